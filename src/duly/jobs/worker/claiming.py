"""The claim thread: asks for as much as there is room for, and sleeps on a bell otherwise."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import cached_property, partial

import orjson

from duly.jobs.run import Run
from duly.jobs.settle import Claimed
from duly.jobs.sql.sqlite import ANY_READY
from duly.jobs.worker.running import Running
from duly.kernel.errors import DatabaseBusy, DatabaseConflict, DatabaseUnavailable, brief

#: Seconds after which the claimer looks again whether the settler is still at it.
YIELD = 0.02
#: Seconds for which it leaves the interpreter to the loop when it has claimed all there was, so that the jobs start before it looks what becomes due.
MOMENT = 0.0003
#: Seconds between two looks for the jobs of a claim whose answer never came.
AGAIN = 1.0


class Claiming(Running):
    """Takes work."""

    #: When jobs of claims whose answer never came are looked for next.
    _look_at = 0.0

    @cached_property
    def _unanswered(self) -> list[tuple[int, float]]:
        """Claims whose answer never came: their token, and until when their jobs are looked for."""
        return []

    def _claim_step(self) -> None:
        if self._unanswered and time.monotonic() >= self._look_at:
            self._return_unanswered()
        if time.monotonic() >= self._next_due:
            self._promote()
        if self._yields():
            return
        with self._claiming:
            got, asked = self._claim_all()
        if got:
            self._quiet.clear()
            if got >= asked // 2:
                return  # there is more where this came from
            time.sleep(MOMENT)
        elif self._rang and self._promote():
            return  # what rang was due already, or became so
        else:
            self._quiet.set()
        if got == 0:
            # a ring may mean that something is due sooner than was known: it is looked at after the claim, which is likelier
            self._rest(self._next_due - time.monotonic())

    def _yields(self) -> bool:
        """Leave the claim to the settler, which on SQLite claims in its own transaction, and wait until it has written.

        While it is at that, or about to be, a claim of one's own would stand in line behind it and take a transaction more.
        It is about to be while jobs are at hand that have not started; but if it has not come since they were waited for, they
        are slow. Queues that something governs are claimed here only.
        """
        if not self._exchanges:
            return False
        self._yielding = True  # before it is looked: the settler rings when it is done
        try:
            writes = self._writing or bool(self._over)
            if not writes and (self._waited_at == self._batches or not self._at_hand()):
                self._waited_at = -1
                return False
            self._waited_at = self._batches
            self._rest(YIELD)
        finally:
            self._yielding = False
        return True

    def _at_hand(self) -> bool:
        """Are there claimed jobs that are about to start?"""
        lanes = self.lanes.values()
        return any(lane.transit or (lane.buffer and lane.running < lane.concurrency) for lane in lanes)

    def _rest(self, pause: float) -> None:
        """Sleep on the bell. ``_rang``: somebody rang since it was last asked what becomes due, and not only for room that has come."""
        self._bell.wait(min(max(pause, 0.001), self.settings.poll))
        if self._bell.called:
            self._bell.called, self._rang = False, True

    def _claim_all(self) -> tuple[int, int]:
        """Ask for as much as there is room for. Returns (got, asked)."""
        open_lanes, governed = self._rooms()
        tasks = self.engine.task_names
        got = asked = 0
        if not tasks:
            return 0, 0
        if open_lanes:
            asked += sum(open_lanes.values())
            got += self._claim(open_lanes, tasks)
        for name, room in governed:
            if self._claimer.stopping.is_set():
                break
            asked += room
            try:
                got += self._claim_governed(name, room, tasks)
            except DatabaseUnavailable:
                raise
            except Exception as error:
                # what is wrong with one queue is told, and keeps no other from its work
                self.emitter.emit("queue_failed", "error", queue=name, error=brief(error))
        return got, asked

    def _rooms(self) -> tuple[dict[str, int], list[tuple[str, int]]]:
        """How much each lane has room for: lanes that nothing governs, and the others."""
        now = time.monotonic()
        open_lanes: dict[str, int] = {}
        governed: list[tuple[str, int]] = []
        with self._lock:
            for lane in self.lanes.values():
                lane.look(now)
                lane.governed, tight = lane.name in self.house.governed, lane.name in self.house.tight
                if tight is not lane.tight:
                    lane.tight = tight
                    lane.take_stock()
                room = lane.room()
                if room > 0:
                    if lane.governed:
                        governed.append((lane.name, room))
                    else:
                        open_lanes[lane.name] = room
        return open_lanes, governed

    def _claim(self, rooms: dict[str, int], tasks: list[str]) -> int:
        engine, token, asked_at = self.engine, secrets.randbits(62), time.monotonic()
        if self._bell.glance is not None and not self._bell.glance(
            ANY_READY, {"queues": orjson.dumps(list(rooms)).decode()}
        ):
            return 0  # a claim would have to write, and wait for those who do
        rows = self._answer(
            token,
            lambda: self.db.once(lambda c: engine.store.claim(c, rooms, tasks, token, self.terms.seconds, self.name)),
        )
        self._deliver(rows, asked_at)
        return len(rows)

    def _answer(self, token: int, claim: Callable[[], list[Claimed]]) -> list[Claimed]:
        """What a claim answers. A connection that was lost may have been so after the database had committed it."""
        try:
            return claim()
        except DatabaseUnavailable as error:
            if not isinstance(error, DatabaseConflict | DatabaseBusy):
                self._unanswered.append((token, time.monotonic() + self.terms.seconds))
            raise

    def _return_unanswered(self) -> None:
        """Jobs of claims whose answer never came are nobody's: without this their leases would lapse, an attempt each.

        It is looked again for as long as a lease, as the lost statement may still be at work.
        """
        now = time.monotonic()
        store = self.engine.store
        for token, until in self._unanswered[:]:
            if found := self.db.write(partial(store.unclaim, token=token, worker=self.name)):
                self.emitter.emit("claim_given_back", "warning", worker=self.name, jobs=found)
                self.db.bells.ring()
            if found or now > until:
                self._unanswered.remove((token, until))
        self._look_at = now + AGAIN

    def _claim_governed(self, name: str, room: int, tasks: list[str]) -> int:
        engine, token, asked_at = self.engine, secrets.randbits(62), time.monotonic()
        rows = self._answer(
            token,
            lambda: self.db.write(
                lambda c: engine.queues.claim_governed(
                    c, name, room, tasks, token, self.terms.seconds, self.name, self.house.note_hold
                )
            ),
        )
        self._deliver(rows, asked_at)
        return len(rows)

    def _deliver(self, rows: list[Claimed], asked_at: float) -> None:
        if not rows:
            return
        tasks, lanes = self.engine.tasks, self.lanes
        runs = [Run(c, tasks.get(c.task), lanes[c.queue], asked_at) for c in rows]
        with self._lock:
            for run in runs:
                self._held[run.claimed.id] = run
                run.lane.outstanding += 1
                run.lane.transit += 1
            self.tally.add(claimed=len(rows))
        if self.emitter.active:
            self.emitter.emit(
                "jobs_claimed",
                "debug",
                worker=self.name,
                count=len(rows),
                lags=[(c.queue, c.task, c.lag) for c in rows],
            )
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._accept, runs)
        except RuntimeError:  # the loop has ended: the leases lapse and others take over
            with self._lock:
                for run in runs:
                    self._held.pop(run.claimed.id, None)

    def _promote(self) -> int:
        """Make due jobs claimable, one portion at a time, and find out when to do so next. Returns how many it made."""
        self._rang = False
        store, moved = self.engine.store, 0
        wait = self.db.read(store.next_due)
        if wait is not None and wait <= 0:
            moved = self.db.once(store.promote)
            wait = 0.0 if moved else 0.02  # none: another worker is moving these rows now
        self._next_due = time.monotonic() + min(self.settings.poll, wait if wait is not None else self.settings.poll)
        return moved

"""Housekeeping: what every worker does now and then, so that nothing has to be done by hand.

Any number of workers may do it at once; each duty is one set-based statement (or a locked read) that finds nothing when
another worker was quicker. A duty that fails is told and tried again at its next turn, and keeps no other from its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, update

from duly._version import __version__
from duly.audit.seal import Sealer
from duly.jobs.blackouts import BlackoutWatch
from duly.jobs.claim import STALE
from duly.jobs.prune import prune_expired
from duly.jobs.queues import CONTROLS_SEEN, QueueSettings
from duly.jobs.settle import Settlement
from duly.jobs.tables import workers
from duly.kernel.errors import DatabaseUnavailable, brief
from duly.kernel.gate import Hold
from duly.storage.wake import Bell

if TYPE_CHECKING:
    from duly.jobs.worker import Worker


@dataclass(slots=True)
class Duty:
    """Something done every so often."""

    name: str
    every: float
    act: Callable[[], object]
    #: Seconds after the worker's start at which it is done for the first time. What nobody waits for leaves the first moments to the jobs.
    first: float = 0.0
    due: float = 0.0
    #: It came to its turn at least once.
    done: bool = False


class Housekeeper:
    """The duties of one worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.engine, self.db, self.emitter = worker.engine, worker.db, worker.emitter
        #: Queues that a claim must look at closely, as of a moment ago.
        self.governed: frozenset[str] = frozenset()
        #: Those of them whose jobs are counted (by limit, key or rate): nothing is prefetched from them.
        self.tight: frozenset[str] = frozenset()
        self._paused: frozenset[str] = frozenset()
        self.blackouts = BlackoutWatch(self.db, lambda: self.engine.calendars, self.emitter, worker.lanes)
        self.online = True
        #: Why this worker makes no progress although work waits; empty when it does.
        self.stalled = ""
        #: Why what is written here reaches nobody; "" as long as it does.
        self.replaced = ""
        self._claimed = 0
        self._sealed_at = 0
        self._waited = 0
        self._holds: dict[str, str] = {}
        self._bell: Bell | None = None
        self._sealer = Sealer(self.db)
        lease = worker.terms.seconds
        self.duties = [
            Duty("controls", 0.25, self.controls),
            Duty("stale", 0.5, self.stale, first=0.5),
            Duty("cancels", 0.5, self.cancels, first=0.5),
            Duty("rescue", min(lease / 3, 10.0), self.rescue),
            Duty("presence", min(5.0, lease / 2), self.presence),
            Duty("progress", 10.0, self.progress),
            Duty("seal", 2.0, self.seal, first=2.0),
            Duty("parents", 15.0, self.parents, first=3.0),
            Duty("prune", 60.0, self.prune, first=5.0),
            Duty("blackouts", 60.0, self.blackouts.check),
        ]

    def add(self, name: str, every: float, act: Callable[[], object], first: float = 0.0) -> None:
        """Another room's duty, done every so many seconds while the worker runs, and so many after its start for the first time."""
        self.duties.append(Duty(name, every, act, first))

    def step(self) -> None:
        """Do what is due, then wait a little."""
        if self._bell is None:
            self._bell = self.db.control_bell(CONTROLS_SEEN)
            for duty in self.duties:
                duty.due = time.monotonic() + duty.first
        now, trouble = time.monotonic(), None
        for duty in self.duties:
            if duty.due > now:
                continue
            duty.due = now + duty.every
            duty.done = True
            try:
                duty.act()
                # a long duty keeps nobody from hearing of a pause, nor from a blackout's beginning or end
                if self._bell.wait(0) or self.blackouts.turns_at <= time.monotonic():
                    self.controls()
            except DatabaseUnavailable as error:
                # it is the first to be tried again: until it succeeds nobody takes the others' reads for a recovery (a full disk, C013)
                duty.due, trouble = 0.0, error
                break
            except Exception as error:
                self._failed(duty, error)
        if trouble is not None:
            raise trouble
        if self._bell.wait(max(0.02, min(d.due for d in self.duties) - time.monotonic())):
            self.duties[0].due = 0.0

    def catch_up(self) -> None:
        """Do what was put off and never came to its turn: for a worker that ends because nothing is left."""
        for duty in self.duties:
            if not duty.done:
                try:
                    duty.act()
                except DatabaseUnavailable:
                    raise
                except Exception as error:
                    self._failed(duty, error)

    def _failed(self, duty: Duty, error: Exception) -> None:
        self.emitter.emit("duty_failed", "error", duty=duty.name, error=brief(error))

    def wake(self) -> None:
        """Make the loop look now, at the controls and at whether it is to end."""
        if self._bell is not None:
            self._bell.ring()

    def close(self) -> None:
        if self._bell is not None:
            self._bell.close()

    # ------------------------------------------------------------------ duties

    def controls(self) -> None:
        """Look at the gate, the queues' settings and the blackouts; give back prefetched work that is held now."""

        def look(connection: Any) -> tuple[bool, list[QueueSettings]]:
            self.blackouts.ask(connection)
            return self.engine.queues.online(connection), list(self.engine.queues.all(connection).values())

        online, every = self.db.read(look)
        governed = frozenset(s.name for s in every if s.governed)
        tight = frozenset(s.name for s in every if s.counted)
        paused = frozenset(s.name for s in every if s.paused_at is not None or s.held_until is not None)
        dark, bright = self.blackouts.obey()
        # what begins or ends before the next look is looked at when it does
        self.duties[0].due = min(self.duties[0].due, self.blackouts.turns_at)
        held = (governed - self.governed) | (tight - self.tight) | (paused - self._paused) | dark
        closed = self.online and not online
        # also where a closer look is needed now: the claim before this one has passed such a queue by
        freed = (self.governed ^ governed) | (self._paused - paused) or (online and not self.online) or bright
        if self.online != online:
            self.emitter.emit("gate_changed", "warning", online=online)
        self.online, self.governed, self.tight, self._paused = online, governed, tight, paused
        if closed:
            self.worker.give_back_soon(lambda _item: True)
        elif held:
            self.worker.give_back_soon(lambda item: item[0].claimed.queue in held)
        if freed:
            self.db.bells.ring()

    def stale(self) -> None:
        """Give back prefetched jobs that have waited too long behind slow ones."""
        limit = time.monotonic() - STALE
        if any(lane.buffer and lane.buffer[0][1] < limit for lane in self.worker.lanes.values()):
            self.worker.give_back_soon(lambda item: item[1] < limit)

    def cancels(self) -> None:
        """Interrupt running jobs that an operator asked to stop."""
        old = time.monotonic() - 0.4
        runs = {
            run.claimed.id: run
            for run in self.worker.held()
            if run.started_mono and run.started_mono < old and run.reason is None
        }
        if runs:
            asked = self.db.read(lambda c: self.engine.store.cancels(c, list(runs)))
            self.worker.interrupt_soon([runs[i] for i in asked], "cancel")

    def rescue(self) -> None:
        """Take jobs whose lease has lapsed from whoever held them."""
        at, asked = self.engine.clock.now().isoformat(), time.monotonic()
        patience = self.worker.terms.renew_every / 2

        def rescue(connection: Any) -> list[Settlement]:
            if time.monotonic() - asked > patience:
                # Nobody could write for a while (a long transaction on SQLite), so nobody could renew either. Those who
                # are alive do so now; who is not is found at the next pass.
                return []
            return self.engine.store.rescue(connection, at, self.worker.name)

        self.worker.renew()  # a worker that is well does not take its own jobs for lost
        rescued = self.db.write(rescue)
        # one that was lost on its last attempt has failed here, whoever had it
        self.worker.tally.add(failed=sum(s.event == "fail" for s in rescued))
        for start in range(0, len(rescued), 100):
            part = rescued[start : start + 100]
            ended = [s.id for s in part if s.final]
            self.emitter.emit("jobs_rescued", "warning", count=len(part), jobs=[s.id for s in part], ended=ended)
        if rescued:
            self.db.bells.ring()

    def presence(self) -> None:
        """Say that this worker is here, for people."""
        w = self.worker
        if not self.replaced and not self.db.is_same_file():
            self.replaced = f"{self.db.shown_url} was moved or replaced while it was open: what this process writes is not there. Start it anew."
            self.emitter.emit("database_replaced", "error", worker=w.name, reason=self.replaced)
        problems = w.problems
        values = {
            "state": "unready" if problems and w.state == "running" else w.state, "reason": "; ".join([*problems, *w.notes])[:500] or None,
            "running": sum(lane.running for lane in w.lanes.values()), "seen_at": self.db.now(), "leaves": self.engine.left.standing() or None,
        }  # fmt: skip

        def say(connection: Any) -> None:
            if connection.execute(update(workers).where(workers.c.name == w.name).values(**values)).rowcount == 0:
                connection.execute(insert(workers).values(
                    name=w.name, host=socket.gethostname(), pid=os.getpid(), version=__version__, started_at=self.db.now(),
                    queues={n: lane.concurrency for n, lane in w.lanes.items()}, tasks=self.engine.task_names, declares=w.declares or None, **values,
                ))  # fmt: skip

        self.db.write(say)

    def say_goodbye(self) -> None:
        """Seal what was done last, and leave the list of workers."""
        try:
            for _ in range(20):
                if self._sealer.seal(5000) == 0:
                    break
        finally:
            self.db.write(lambda c: c.execute(delete(workers).where(workers.c.name == self.worker.name)))

    def progress(self) -> None:
        """Notice that claimable work waits while this worker, with free slots, claims none."""
        w = self.worker
        claimed, free = w.tally.claimed, any(lane.running < lane.concurrency for lane in w.lanes.values())
        names = [n for n in w.lanes if n not in self.governed and n not in self.blackouts.held]
        waits = self.online and free and claimed == self._claimed and names and self.engine.any_claimable(names)
        self._claimed, self._waited = claimed, self._waited + 1 if waits else 0
        before, self.stalled = (
            self.stalled,
            "claimable work waits and this worker claims none" if self._waited >= 2 else "",
        )
        if self.stalled and not before:
            self.emitter.emit("worker_stalled", "error", worker=w.name, reason=self.stalled)

    def seal(self) -> None:
        """Extend the hash chain over the audit trail."""
        # under load the chain may lag behind; it catches up when there is time
        for _ in range(20):
            busy, self._sealed_at = self.worker.tally.claimed - self._sealed_at > 100, self.worker.tally.claimed
            if self._sealer.seal(5000) == 0 or busy:
                break

    def parents(self) -> None:
        if self.db.read(self.engine.store.any_waits):
            self.db.write(lambda c: self.engine.store.sweep_parents(c, self.worker.name))

    def prune(self) -> None:
        """Remove finished jobs and keys that are past their retention, in small portions."""
        gone = prune_expired(self.db)
        left = self.engine.clock.now() - timedelta(days=1)
        self.db.write(lambda c: c.execute(delete(workers).where(workers.c.seen_at < left)))
        if gone:
            self.emitter.emit("jobs_pruned", "info", count=gone)

    # ------------------------------------------------------------------ holds

    def note_hold(self, hold: Hold) -> None:
        """A governed queue was held; told once until the reason changes."""
        if self._holds.get(hold.detail) is None:
            self._holds = {hold.detail: hold.reason}
            with contextlib.suppress(Exception):
                self.emitter.emit("queue_held", "debug", reason=str(hold.reason), detail=hold.detail)

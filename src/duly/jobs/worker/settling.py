"""The settle thread: writes what gathered while its last statement ran, until the database has taken it."""

from __future__ import annotations

import contextlib
import secrets
import time

from sqlalchemy import Connection

from duly.jobs.loops import LOOP_BACKOFF
from duly.jobs.run import Run
from duly.jobs.settle import Claimed, Settlement
from duly.jobs.worker.claiming import Claiming
from duly.kernel.errors import DatabaseConflict, brief

#: Seconds for which the settler waits for more ends of the same turn of the loop.
LINGER = 0.003
UNSTORABLE = {"type": "UnstorableOutcome", "message": "the database refused the outcome of this run"}


class Settling(Claiming):
    """Writes outcomes."""

    def _settle_step(self) -> None:
        batch = self._gather()
        if not batch:
            return
        self._writing = True
        try:
            self._settle_batch(batch)
        finally:
            self._writing, self._batches = False, self._batches + 1
            if self._yielding:
                self._bell.nudge()

    def _settle_batch(self, batch: list[Run]) -> None:
        settlements = [run.settlement for run in batch if run.settlement is not None]
        failures = 0
        while True:
            try:
                held = self._exchange(settlements) if self._fused and not failures else self._write(settlements)
                break
            except Exception as error:
                # The outcome of the runs is known and must not be lost: write it again until the database takes it.
                failures += 1
                blamed = self.db.blames_values(error)
                if len(batch) > 1 and blamed:
                    self._write_one_by_one(batch)
                    return
                self._settler.ready, self._settler.problem = False, brief(error)
                self.emitter.emit(
                    "settle_failed",
                    "warning" if isinstance(error, DatabaseConflict) else "error",  # a collision is over the next time
                    error=self._settler.problem,
                    jobs=len(batch),
                    failures=failures,
                )
                if blamed:
                    held = self._write_plainly(settlements[0], error)
                    break
                if self._settler.stopping.wait(LOOP_BACKOFF.delay(failures)):
                    self._put_back(batch)
                    return
        self._account(batch, held)

    def _exchange(self, settlements: list[Settlement]) -> set[int]:
        """Settle, and claim in the same transaction if there is room: on SQLite one commit then serves both ends."""
        engine, asked_at = self.engine, time.monotonic()
        if not self._claiming.acquire(blocking=False):
            return self._write(settlements)  # the claim thread is at it; the group commit joins the two if it can
        try:
            rooms, _ = self._rooms()
            if not rooms or self._claimer.stopping.is_set():
                return self._write(settlements)
            tasks, token = engine.task_names, secrets.randbits(62)

            def both(connection: Connection) -> tuple[set[int], list[Claimed]]:
                held = engine.store.settle(connection, settlements, self.name)
                return held, engine.store.claim(connection, rooms, tasks, token, self.terms.seconds, self.name)

            held, rows = self.db.write(both)
            if rows:
                self._quiet.clear()
                self._deliver(rows, asked_at)
            return held
        finally:
            self._claiming.release()

    def _gather(self) -> list[Run]:
        """Wait for ended runs, then take all that have ended meanwhile, up to a batch. A job stands in a batch once.

        Runs that end in one turn of the loop are taken together, but nobody waits longer than a moment: the turn may be held up by
        a handler that computes.
        """
        if not self._over and not self._carry:
            self._settler_bell.wait()
        self._settler_bell.clear()
        if len(self._over) < self.batch:
            self._turned.wait(LINGER)
        found, self._carry, take = self._carry, [], self._over.popleft
        while len(found) < self.batch:
            try:
                found.append(take())
            except IndexError:
                break
        if len({run.claimed.id for run in found}) < len(found):
            found, self._carry = _once_each(found)
        return found

    def _put_back(self, runs: list[Run]) -> None:
        self._over.extend(runs)
        self._settler_bell.set()

    def _write(self, batch: list[Settlement]) -> set[int]:
        store = self.engine.store
        door = self.db.once if store.settles_alone(batch) else self.db.write
        return door(lambda c: store.settle(c, batch, self.name))

    def _write_one_by_one(self, batch: list[Run]) -> None:
        """One settlement that the database refuses must not hold up the others."""
        for run in batch:
            assert run.settlement is not None
            try:
                held = self._write([run.settlement])
            except Exception as error:
                if not self.db.blames_values(error):
                    self._put_back([run])
                    continue
                held = self._write_plainly(run.settlement, error)
            self._account([run], held)

    def _write_plainly(self, s: Settlement, error: Exception) -> set[int]:
        """Write the end of a run without what the database would not take. If even that fails, the lease lapses and the
        rescue accounts for the run.

        Only where the values are to blame: a database that takes nothing now (read-only after a failover, a right that is
        missing) is waited for, as one that does not answer.
        """
        self.emitter.emit("settlement_refused", "error", job=s.id, error=brief(error))
        plain = Settlement(
            s.id, s.token, s.event, s.status, output="{}" if s.final else None, error=UNSTORABLE, action=s.action, level=s.level,
            wait=s.wait, until=s.until, counted=s.counted, record=s.record, parent_id=s.parent_id, key_scope=s.key_scope,
        )  # fmt: skip
        with contextlib.suppress(Exception):
            return self._write([plain])
        return set()


def _once_each(runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """The first run of each job, and the others."""
    first: dict[int, Run] = {}
    for run in runs:
        first.setdefault(run.claimed.id, run)
    return list(first.values()), [run for run in runs if first[run.claimed.id] is not run]

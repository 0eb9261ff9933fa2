"""Writing as the session that has the slot: whatever a round writes stands behind this.

Two things are asked in each transaction: does the session have the slot under the activation that this job was made for, and does this
worker have the job? So two rounds of one session never both write, and what an answer brings after the slot was taken is discarded
(T001-p, T001-q, case B078). The session's row is locked before the job's, as everywhere in this room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection

from duly.automations.controller import Pass, SessionController
from duly.automations.session import SessionEndReason
from duly.automations.store import SlotLost
from duly.jobs.run import CURRENT, Run

T = TypeVar("T")


class Fence:
    """One job that runs the rounds of one activation of a session."""

    def __init__(self, controller: SessionController, session_id: int, activation: str) -> None:
        run = CURRENT.get()
        assert isinstance(run, Run), "the rounds of a session are a job of a worker"
        self.job, self.controller, self.db = run, controller, controller.db
        self.session_id, self.activation = session_id, activation
        #: Plain functions that were given up after their timeout, and whose threads go on.
        self.left: list[asyncio.Future[Any]] = []

    def hold(self, connection: Connection, **values: Any) -> None:
        """In a transaction that writes: write to the session, and hold it and its job. Raises SlotLost, LeaseLost, Cancel."""
        self.controller.store.touch(connection, self.session_id, self.activation, **values)
        self.controller.engine.store.hold(connection, self.job.claimed)

    def hold_to_finish(self, connection: Connection, **values: Any) -> None:
        """As ``hold``, to write down what a call has done: also where the job was cancelled or the slot taken while it was under way, as long as
        the slot is kept for this job. Raises SlotLost, LeaseLost."""
        store, job = self.controller.store, self.job.claimed.id
        values = {"last_activity_at": self.db.present(connection), **values}
        try:
            store.touch(connection, self.session_id, self.activation, job, **values)
        except SlotLost:
            if not store.finish(connection, self.session_id, job, **values):
                raise
        self.controller.engine.store.hold_lease(connection, self.job.claimed)

    async def finish(self, act: Callable[[Connection, datetime], T], **values: Any) -> T:
        """As ``write``, behind ``hold_to_finish``."""

        def fenced(connection: Connection) -> T:
            self.hold_to_finish(connection, **values)
            return act(connection, self.db.present(connection))

        return await self.db.arun(self.db.write, fenced)

    async def write(self, act: Callable[[Connection, datetime], T], *, happened: bool = True, **values: Any) -> T:
        """Do something in a transaction that only commits while this job has the slot. ``happened``: it is activity, for the watchdog;
        waiting for the network is none (T001-o). ``values``: of the session's row.

        Raises SlotLost, LeaseLost, Cancel, DatabaseUnavailable.
        """

        def fenced(connection: Connection) -> T:
            now = self.db.present(connection)
            self.hold(connection, **(values | {"last_activity_at": now} if happened else values))
            return act(connection, now)

        return await self.db.arun(self.db.write, fenced)

    async def end(
        self, reason: SessionEndReason, detail: str, also: Callable[[Connection, datetime], Any] | None = None, told: str | None = None, **values: Any
    ) -> None:  # fmt: skip
        """End the session: what came last, the reason, the release of the slot and the next pass are one transaction (T001-g). ``told``: what
        events and the audit trail say instead of ``detail``, where that may repeat what was said."""

        def act(connection: Connection) -> Pass:
            done = Pass()
            session = self.controller.lock_active(connection, self.session_id, self.activation)
            if also is not None:
                self.controller.store.touch(connection, self.session_id, self.activation, **values)
                also(connection, self.db.present(connection))
            is_busy = any(not one.done() for one in self.left)
            self.controller.end_by_itself(connection, session, reason, detail, done, is_busy, told)
            # not before: whoever ends a session locks the jobs of its calls before its own
            self.controller.engine.store.hold(connection, self.job.claimed)
            return done

        self.controller.announce(await self.db.arun(self.db.write, act))

    async def settle(self) -> None:
        """Wait for what was given up and goes on: the slot is kept until then. A worker that stops does not wait."""
        while self.job.reason in (None, "cancel") and (going := [one for one in self.left if not one.done()]):
            try:
                await asyncio.wait(going, timeout=1.0)
            except asyncio.CancelledError:
                if self.job.reason != "cancel":
                    raise

    def is_interrupted(self) -> bool:
        """Has somebody outside asked this job to stop?"""
        task = asyncio.current_task()
        return self.job.reason is not None or self.job.settled or (task is not None and task.cancelling() > 0)

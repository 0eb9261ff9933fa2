"""The scheduler of a worker, as long as there is nothing to schedule: this asks for schedules, and loads the rest when there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from duly.storage.database import Database
from duly.storage.rows import any_row
from duly.storage.wake import Bell

if TYPE_CHECKING:
    from duly.schedules.tick import Scheduler

#: The longest sleep: what another process changed is heard by then.
POLL = 1.0
#: Seconds between turns of housekeeping (``Scheduler.keep``).
KEEP_EVERY = 60.0


def any_schedule(connection: Connection) -> bool:
    """Is there one at all? One that was removed has a history, which is pruned."""
    return any_row(connection, "schedules")


class Watch:
    """One worker's loop over schedules. ``make``: makes the scheduler, asked once there is a schedule."""

    def __init__(self, db: Database, make: Callable[[Bell], Scheduler]) -> None:
        self.db, self._make = db, make
        #: Rings when somebody changes a schedule or a blackout; a worker that ends rings it too.
        self.bell = db.controls.add(Bell())
        self._scheduler: Scheduler | None = None

    def step(self) -> None:
        """One turn of a loop: what is due, and sleep until the next instant."""
        scheduler = self._found()
        if scheduler is None:
            self.bell.wait(POLL)
        else:
            scheduler.step()

    def keep(self) -> None:
        """Housekeeping, every so often."""
        scheduler = self._found()
        if scheduler is not None:
            scheduler.keep()

    def _found(self) -> Scheduler | None:
        if self._scheduler is None and self.db.read(any_schedule):
            self._scheduler = self._make(self.bell)
        return self._scheduler

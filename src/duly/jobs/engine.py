"""The jobs room put together: one database, its stores, and the tasks that are known here.

Workers, the command line and the application all hold one of these. It decides nothing and runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, literal, or_, select

from duly.calendars.standing import queues_held, standing
from duly.jobs.enqueue import JobMaker
from duly.jobs.left import Left
from duly.jobs.queues import QueueStore
from duly.jobs.settle import Policy
from duly.jobs.store import FAR, JobStore
from duly.jobs.tables import jobs
from duly.jobs.task import Task
from duly.kernel.backoff import Backoff
from duly.kernel.clock import Clock
from duly.kernel.events import Emitter
from duly.settings import Settings
from duly.storage.database import Database

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from duly.calendars.store import CalendarStore
    from duly.jobs.hooks import Hooks
    from duly.jobs.names import Names
    from duly.jobs.read import JobReader
    from duly.jobs.run import Run
    from duly.jobs.settle import Settlement


class Engine:
    """Everything about jobs that needs a database."""

    def __init__(self, db: Database, emitter: Emitter) -> None:
        self.db, self.emitter = db, emitter
        self.settings: Settings = db.settings
        self.clock: Clock = db.clock
        self.tasks: dict[str, Task[Any, Any]] = {}
        #: Jobs whose input cannot be read in this process: when that was first seen (monotonic), and how often they came.
        self.unread: dict[int, tuple[float, int]] = {}
        #: Definitions that this process cannot read and leaves to others.
        self.left = Left(emitter)
        self._policies: dict[str, Policy] = {}
        self.store = JobStore(db, self.policy)
        self.queues = QueueStore(db, self.store, lambda: self.calendars)
        self.maker = JobMaker(db, lambda: self.reader)

    @cached_property
    def reader(self) -> JobReader:
        """Jobs as people and programs see them. Loaded when somebody asks."""
        from duly.jobs.read import JobReader

        return JobReader(self.db)

    @cached_property
    def hooks(self) -> Hooks:
        """Functions that are called for each failed attempt. Loaded when there is one."""
        from duly.jobs.hooks import Hooks

        return Hooks(self.emitter, self.clock)

    def tell_failure(self, run: Run, settlement: Settlement, worker: str, loop: AbstractEventLoop | None) -> None:
        """Have the functions of ``app.on_error`` called for a run that failed, where there are any."""
        if "hooks" in vars(self):
            self.hooks.tell(run, settlement, worker, loop)

    def flush_failures(self) -> None:
        """Wait for a moment until those functions are done."""
        if "hooks" in vars(self):
            self.hooks.flush()

    @cached_property
    def names(self) -> Names:
        """Which names exist. Loaded when a name is given that this application does not define."""
        from duly.jobs.names import Names

        return Names(self.db, self.emitter)

    @cached_property
    def calendars(self) -> CalendarStore:
        """Blackouts. Loaded when there is one, or somebody asks: what works out windows is much code."""
        from duly.calendars.store import CalendarStore

        return CalendarStore(self.db, self.emitter, self.left)

    @property
    def task_names(self) -> list[str]:
        return list(self.tasks)

    def policy(self, name: str) -> Policy:
        """What the task says about the end of its runs; the defaults for a task that is not known here."""
        found = self._policies.get(name)
        if found is None:
            task = self.tasks.get(name)
            if task is None:
                return Policy(Backoff(), f"{name}_COMPLETED", self.settings.audit_success)
            found = self._policies[name] = Policy(
                task.backoff, task.completed_action, self.settings.audit_success, task.wait_for_children
            )
        return found

    def any_claimable(self, names: Sequence[str]) -> bool:
        """Is any job of these queues ready whose task is known here?"""
        mine = [jobs.c.queue.in_(names), jobs.c.task.in_(self.task_names), self.store.within_abilities()]
        query = select(literal(1)).where(*mine, jobs.c.status == "queued", jobs.c.due_at.is_(None)).limit(1)
        return self.db.read(lambda c: c.execute(query).first()) is not None

    def busy(self, names: Sequence[str], horizon: float = 0.0) -> bool:
        """Is there work that a worker of these queues could still do: running anywhere, ready, or due within ``horizon`` seconds?

        Held work does not count: a paused queue, a blackout or a closed gate would keep it busy for ever.
        """

        def ask(connection: Connection) -> bool:
            now = self.clock.now()
            mine = [jobs.c.queue.in_(names), jobs.c.task.in_(self.task_names), self.store.within_abilities()]
            running = select(jobs.c.id).where(*mine, jobs.c.status == "running").limit(1)
            if connection.execute(running).first() is not None:
                return True
            if not self.queues.online(connection):
                return False
            held = [s.name for s in self.queues.all(connection).values() if s.paused_at is not None or s.is_held(now)]
            found, present = standing(self.db, connection)
            if present is not None:
                everything, dark = queues_held(found, present)
                if everything:
                    return False
                held += dark
            soon = or_(jobs.c.due_at.is_(None), jobs.c.due_at <= now + timedelta(seconds=horizon))
            waiting = select(jobs.c.id).where(
                *mine, jobs.c.status == "queued", soon, jobs.c.due_at.is_(None) | (jobs.c.due_at < FAR)
            )
            if held:
                waiting = waiting.where(jobs.c.queue.not_in(held))
            return connection.execute(waiting.limit(1)).first() is not None

        return self.db.read(ask)

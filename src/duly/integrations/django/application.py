"""The Duly application of a Django process: its database is Django's, and what it enqueues joins the ORM's transaction."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.utils.module_loading import autodiscover_modules
from sqlalchemy import Connection

from duly.app import Duly
from duly.idempotency import around
from duly.integrations.django.config import MEMORY, Config
from duly.integrations.django.guest import Guest
from duly.integrations.django.hygiene import guarded
from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.jobs.job import Attempt, Enqueued, Job
from duly.jobs.task import Options, Task
from duly.settings import Settings
from duly.storage.database import Database


class DjangoDuly(Duly):
    """A Duly application whose jobs are written on Django's connection.

    Everything else (workers, looking at jobs, acting on them) goes through Duly's own connections to the same database.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.guest = Guest(config.alias, lambda: self.settings.schema)
        around.lend = _lend
        #: Queues that are served though no task here names them as its own.
        self.extra_queues: set[str] = set()
        self._home = config.url()
        super().__init__(self._home, **config.duly)

    # ------------------------------------------------------------------ enqueue

    def _joins(self) -> bool:
        """Does what is written here go through Django's connection?

        Not on a thread where Django has none open, so that no transaction can be: threads that Django knows nothing of (of a relay, of
        the REST API) would keep connections that nobody looks after. While Django tests, always: a test database may be in memory,
        and is dropped under everybody who is connected to it.
        """
        if not self.config.shared:
            return False
        return self.guest.is_open() or self.config.url() != self._home or self._home == MEMORY

    @contextlib.contextmanager
    def _joined(self, options: Options) -> Iterator[Options]:
        """The options of a call, which joins Django's transaction unless it names a session of its own."""
        if options.session is not None or not self._joins():
            yield options
            return
        with self.guest.join() as connection:
            yield dataclasses.replace(options, session=connection)

    def _put(self, new: list[NewJob], options: Options) -> list[Enqueued]:
        with self._joined(options) as joined:
            return super()._put(new, joined)

    def _put_alike(self, inputs: Iterable[str], template: NewJob, options: Options) -> Sequence[Enqueued]:
        with self._joined(options) as joined:
            return super()._put_alike(inputs, template, joined)

    async def _aput(self, new: list[NewJob], options: Options) -> list[Enqueued]:
        if options.session is not None or not self.config.shared:
            return await super()._aput(new, options)
        made: list[Enqueued] = await sync_to_async(self._put, thread_sensitive=True)(new, options)
        return made

    def look(self, ident: int) -> tuple[Job, list[Attempt]]:
        """A job and the attempts that failed, as Django's connection sees them. Raises NotFound."""

        def read(connection: Connection) -> tuple[Job, list[Attempt]]:
            job = self.engine.reader.get(connection, ident, self.settings.tenant)
            return job, self.engine.reader.attempts_of(connection, ident) if job.attempts else []

        if not self._joins():
            return self._read(read)
        with self.guest.join(write=False) as connection:
            return read(connection)

    # ------------------------------------------------------------------ work

    def discover(self) -> None:
        """Import the modules that define tasks: ``tasks`` of each installed app, and those of ``DULY["MODULES"]``."""
        autodiscover_modules("tasks")
        for name in self.config.modules:
            import_module(name)

    def _define(self, fn: Callable[..., Any], name: str, options: dict[str, Any]) -> Task[Any, Any]:
        made = super()._define(fn, name, options)
        self.add(made)
        return made

    def add(self, task: Task[Any, Any]) -> None:
        """Let workers run a task, with Django's connections looked after. Whoever calls the function itself calls it bare."""
        self.engine.tasks[task.name] = guarded(task)

    def _queues(self) -> set[str]:
        return super()._queues() | self.extra_queues

    # ------------------------------------------------------------------ database

    def open(self) -> None:
        """Check the schema once. Where Django's database has become another one since (its tests make one), follow it."""
        if self.config.shared and (url := self.config.url()) != self.settings.database_url:
            self._follow(url)
        super().open()

    def _follow(self, url: str) -> None:
        with self._lock:
            before, tasks, abilities = self.db, self.engine.tasks, self.engine.store.abilities
            self.settings = Settings.load(**{**dataclasses.asdict(self.settings), "database_url": url})
            self.db = Database(self.settings, before.clock)
            self.engine = Engine(self.db, self.events)
            self.engine.tasks.update(tasks)
            self.engine.store.abilities = abilities
            self._checked = False
        before.close()


_lock = threading.RLock()
_made: DjangoDuly | None = None


def application() -> DjangoDuly:
    """The application of this process. Raises ImproperlyConfigured where the settings cannot be used."""
    global _made
    with _lock:
        if _made is None:
            _made = DjangoDuly(Config.read())
        return _made


def _lend(alias: str) -> contextlib.AbstractContextManager[Connection]:
    """A connection in Django's transaction, for keys that are part of it."""
    return _guest_of(alias).join(check=False)


@functools.cache
def _guest_of(alias: str) -> Guest:
    return Guest(alias, lambda: application().settings.schema)

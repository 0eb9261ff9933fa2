"""The application: the one place where tasks, settings and the database meet.

``Duly(url)`` opens nothing until it is used. An embedded (SQLite) database makes its own tables at first use; a
PostgreSQL is migrated by ``duly migrate``.
"""

from __future__ import annotations

import contextvars
import dataclasses
import os
import threading
import time
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload, runtime_checkable

import orjson
from sqlalchemy import Connection

from duly.idempotency.default import any_reservation, set_default_store
from duly.jobs.codec import encode_plain
from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.jobs.filter import JobFilter
from duly.jobs.job import Enqueued, Job
from duly.jobs.queues import QueueSettings
from duly.jobs.run import CAUSED, cause
from duly.jobs.session import borrowed
from duly.jobs.task import Options, Task, check_same
from duly.jobs.worker import Worker
from duly.kernel.clock import Clock
from duly.kernel.errors import BlockingCallWarning, InvalidArgument, UnknownTask
from duly.kernel.events import PROCESS, Emitter, Listener
from duly.kernel.gate import Rate
from duly.kernel.names import notice, warn_outside
from duly.kernel.on_loop import blocking_call
from duly.kernel.payload import check_name, check_size, check_value
from duly.monitoring.alerts.notices import WEBHOOK, poster
from duly.monitoring.alerts.watch import Alerts
from duly.schedules.watch import KEEP_EVERY, Watch
from duly.settings import Settings, unknown_variables
from duly.storage import migrate
from duly.storage.database import Database
from duly.tracing import traceparent
from duly.workflows import ENGINE_RUN

if TYPE_CHECKING:
    from duly.idempotency.keys import Keys
    from duly.idempotency.sql import SqlStore
    from duly.jobs.admin import JobAdmin
    from duly.jobs.calendars import Calendars
    from duly.jobs.why import Check
    from duly.kernel.recurrence import Schedule as Recurrence
    from duly.schedules.door import Schedules
    from duly.schedules.schedule import Spec
    from duly.schedules.tick import Scheduler
    from duly.storage.wake import Bell
    from duly.workflows.door import Workflows
    from duly.workflows.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
_KEEP: Any = object()
#: Variables of the environment that were told of in this process.
_TOLD = set[str]()


class Room(Protocol):
    """A room that has queues of its own and something to do now and then."""

    #: The duty's name, and every how many seconds it is done.
    name: str
    every: float

    def queues(self) -> set[str]: ...

    def keep(self) -> object: ...


@runtime_checkable
class Declares(Protocol):
    """A room whose definitions stand in code."""

    def declarations(self) -> dict[str, str]: ...


class Duly:
    """Tasks and a database.

    ``database_url``: ``sqlite:///file.db`` or ``postgresql://user@host/name``; without it ``DULY_DATABASE_URL``, else
    ``sqlite:///duly.db``. Every other setting is a keyword of the same name (see ``duly doctor --settings``). Raises
    InvalidArgument for a setting that cannot be used.
    """

    def __init__(self, database_url: str | None = None, *, clock: Clock | None = None, **settings: Any) -> None:
        self.settings = Settings.load(database_url=database_url, **settings)
        self.events = Emitter()
        PROCESS.join(self.events)
        self.db = Database(self.settings, clock)
        self.engine = Engine(self.db, self.events)
        self.queues = Queues(self)
        self.gate = Gate(self)
        self.jobs = Jobs(self)
        self._checked = False
        #: When each blocking call was last told as an event.
        self._warned: dict[str, float] = {}
        self.db.on_loop = self._tell_blocking
        self._tell_unknown_variables()
        self.alerts = Alerts(self.engine, self.open)
        self._workflows: Workflows | None = None
        self._rooms: list[Room] = []
        self._reservations: SqlStore | None = None
        _offer_reservations(weakref.ref(self))
        self._lock = threading.Lock()

    @property
    def reservations(self) -> SqlStore:
        """Where ``@idempotent_task`` keeps its reservations unless it is told otherwise: the table ``idempotency``."""
        if self._reservations is None or self._reservations.db is not self.db:
            from duly.idempotency.sql import SqlStore

            self.open()
            self._reservations = SqlStore(self.db)
        return self._reservations

    @property
    def keys(self) -> Keys:
        """Looking at the keys of ``@idempotent_task`` and of HTTP requests, and forgetting one; ``keys.jobs``: those of ``enqueue(key=…)``."""
        from duly.idempotency.keys import Keys

        self.open()
        return Keys(self.db, self.reservations)

    @cached_property
    def calendars(self) -> Calendars:
        """Blackouts: setting them, looking at them, and what one would hold."""
        from duly.jobs.calendars import Calendars

        return Calendars(self, self._planned)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules and their occurrences: looking at them, acting on them."""
        from duly.schedules.door import Schedules

        # what is declared is kept there, so of two threads that come first both get the same
        return vars(self).setdefault("schedules", Schedules(self))  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ tasks

    @overload
    def task(self, name: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, name: str | None = None, /, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, name: Any = None, /, **options: Any) -> Any:
        """Define a task. ``name`` defaults to the function's.

        Options: ``queue`` ("default"), ``max_attempts``, ``backoff`` (Backoff), ``timeout`` (seconds), ``priority``,
        ``run_in`` ("thread" or "process", for plain functions), ``audit_action``, ``wait_for_children`` ("fail" or
        "ignore"). Raises InvalidArgument for a name that is taken or a parameter that cannot be carried.
        """
        if callable(name):
            return self._define(name, _named(name), {})
        return lambda fn: self._define(fn, name or _named(fn), options)

    def _define(self, fn: Callable[..., Any], name: str, options: dict[str, Any]) -> Task[Any, Any]:
        if isinstance(fn, Task):
            fn = fn.fn
        try:
            made: Task[Any, Any] = Task(name, fn, app=self, **options)
        except TypeError as error:
            raise InvalidArgument(f"task {name}", f"{error}.") from None
        known = self.engine.tasks.get(name)
        if known is not None:
            check_same(known.fn, fn, f"task {name}", "Give one another name.")
        self.engine.tasks[name] = made
        return made

    def on_error(self, function: Callable[[BaseException, Job], Any]) -> Callable[[BaseException, Job], Any]:
        """Have a function called once for each failed attempt: ``@app.on_error def report(error, job): …``.

        ``error``: what the handler raised (TimeoutError where it ran for too long). ``job``: the job as it stands after the failure, so its
        ``status`` and ``next_retry_at`` say what happens next. Plain functions are called on a thread of their own, async ones on the
        worker's event loop. What one raises is an event (``on_error_failed``) and harms nothing. Not called for attempts whose worker died.
        """
        return self.engine.hooks.add(function)

    def join(self, room: Room) -> None:
        """Let a room have its queues served and its duty done by this application's workers, in place of one of the same name."""
        self._rooms = [*(known for known in self._rooms if known.name != room.name), room]

    # ------------------------------------------------------------------ workflows

    @property
    def workflows(self) -> Workflows:
        """Runs of workflows: starting them, telling them things, looking at them, acting on them."""
        if self._workflows is None:
            from duly.workflows.door import Workflows

            self._workflows = Workflows(self)
        return self._workflows

    def workflow(
        self,
        name: str,
        /,
        *,
        version: int = 1,
        queue: str = "workflows",
        max_attempts: int | None = None,
        priority: int = 0,
    ) -> Callable[[Callable[..., Any]], Workflow]:
        """Define a workflow: ``@app.workflow("onboarding") async def onboarding(ctx: WorkflowContext, user: int): …``.

        ``version``: raise it with a change that runs in their middle could not go on with, and keep the old function beside it for as
        long as such runs live. ``queue``: of its runs. ``max_attempts``: how often a run may be lost or broken in a row without getting
        any further. Raises InvalidArgument for a version that is taken or a parameter that cannot be carried.
        """
        from duly.workflows.workflow import Workflow

        return lambda fn: self.workflows.define(Workflow(name, fn, version, queue, max_attempts, priority))

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Enqueued:
        """Make a job by name, also of a task that is defined elsewhere. ``options`` as for ``Task.using``.

        The input of a task known here is checked by its annotations; of others it is carried as plain JSON.
        """
        chosen = self._options(options)
        new = self._by_name(name, input or {}, chosen)
        self._check_names(name, chosen)
        return self._put([new], chosen)[0]

    async def aenqueue(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Enqueued:
        """As ``enqueue``, for callers on an event loop."""
        chosen = self._options(options)
        new = self._by_name(name, input or {}, chosen)
        await self._acheck_names(name, chosen)
        return (await self._aput([new], chosen))[0]

    def enqueue_many(self, name: str, inputs: Iterable[Mapping[str, Any]], **options: Any) -> Sequence[Enqueued]:
        """Make many jobs of one task, all in one transaction. Returns their answers in the order of ``inputs``.

        Raises InvalidArgument when ``key`` is among the options, or an input cannot be carried; then none is made.
        """
        chosen = self._options(options)
        task = self.engine.tasks.get(name)
        if task is not None:
            return self.enqueue_tasks(task, inputs, chosen)
        check_name(name, "task name")
        self._check_names(name, chosen)
        return self._put_alike(
            (self._plain(one) for one in inputs), self._new(name, "default", "{}", 0, None, chosen), chosen
        )

    def enqueue_task(self, task: Task[Any, Any], arguments: Mapping[str, Any], options: Options) -> Enqueued:
        new = self._of_task(task, arguments, options)
        if options.queue is not None:
            self._check_names(task.name, options)
        return self._put([new], options)[0]

    def enqueue_tasks(
        self, task: Task[Any, Any], many: Iterable[Mapping[str, Any]], options: Options
    ) -> Sequence[Enqueued]:
        if options.queue is not None:
            self._check_names(task.name, options)
        template = self._new(task.name, task.queue, "{}", task.priority, task.max_attempts, options)
        return self._put_alike((self._encoded(task, one) for one in many), template, options)

    def _put_alike(self, inputs: Iterable[str], template: NewJob, options: Options) -> Sequence[Enqueued]:
        """Jobs that differ in their (encoded) inputs only."""
        if options.key is not None:
            raise InvalidArgument(
                "key", "is given for many jobs.", "Enqueue them one by one, or give each its key with app.enqueue."
            )
        encoded = list(inputs)
        if options.session is not None:
            return self._put([dataclasses.replace(template, input=text) for text in encoded], options)
        self.open()
        return self.engine.maker.make_alike(template, encoded)

    async def aenqueue_task(self, task: Task[Any, Any], arguments: Mapping[str, Any], options: Options) -> Enqueued:
        new = self._of_task(task, arguments, options)
        if options.queue is not None:
            await self._acheck_names(task.name, options)
        return (await self._aput([new], options))[0]

    def prepare(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> NewJob:
        """Check a job and decide everything about it without making it: what ``enqueue`` does before it writes.

        For callers who make many different jobs at once, with ``enqueue_prepared``. Raises as ``enqueue``.
        """
        chosen = self._options(options)
        new = self._by_name(name, input or {}, chosen)
        self._check_names(name, chosen)
        return new

    def draft(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> NewJob:
        """As ``prepare``, of a task that may be defined later: whether the name is known is asked when the job is made for good."""
        return self._by_name(name, input or {}, self._options(options))

    def attempts_of(self, name: str, input: Mapping[str, Any] | None = None) -> int | None:
        """The attempts that a task gives its jobs, or a workflow its runs; None for what the settings say."""
        task = self.engine.tasks.get(name)
        return self.workflows.attempts(input) if name == ENGINE_RUN else None if task is None else task.max_attempts

    def enqueue_prepared(self, prepared: Sequence[NewJob], *, actor: str | None = None) -> Sequence[Enqueued]:
        """Make prepared jobs, all in one transaction, in order. ``actor``: who makes them, for the audit trail (JOB_ENQUEUED)."""
        if actor is None:
            return self._put(list(prepared), Options())
        self.open()

        def act(connection: Connection) -> list[Enqueued]:
            made = self.engine.maker.make_in(connection, prepared)
            self.engine.maker.note(connection, made, actor)
            return made

        found = self.db.write(act) if prepared else []
        self.db.bells.ring()
        return found

    def warn_unknown(self, what: str, name: str, known: Collection[str], **more: Any) -> str:
        """Warn of a name that neither this application nor a running worker knows; "" where it is known (see ``jobs/names.py``)."""
        return self.engine.names.check(what, name, known, **more)

    def warn_unused_queue(self, name: str, remedy: str) -> str:
        """Warn of a queue that is acted on, and that no task, worker or job uses; "" where one does."""
        self.open()
        return self.engine.names.acted_on(name, {"default", *self._queues()}, remedy)

    def _tell_unknown_variables(self) -> None:
        """Warn of variables of the environment that look like settings and are none, each once in a process."""
        for name, near in self._unknown_variables().items():
            if name not in _TOLD:
                _TOLD.add(name)
                meant = f"Did you mean {near}?" if near else "duly doctor --settings lists all that there are."
                notice(f"The environment sets {name}, which nothing reads. {meant}")

    def _unknown_variables(self) -> dict[str, str | None]:
        return unknown_variables(os.environ, self.settings.publish_channels)

    def warn_unknown_task(self, name: str) -> str:
        """Warn of a task that neither this application nor a running worker defines; "" where it is known. Raises UnknownName where
        ``strict_names`` is on."""
        return "" if name in self.engine.tasks else self.engine.names.task(name, self.engine.tasks)

    def _check_names(self, name: str, o: Options) -> None:
        """Warn of a task or a queue that does not exist, or refuse it; nothing is looked up where both are defined here."""
        task = self.engine.tasks.get(name)
        if task is None:
            self.engine.names.task(name, self.engine.tasks)
        if o.queue is not None and (task is None or o.queue != task.queue):
            here = {"default"} | {one.queue for one in self.engine.tasks.values()}
            if o.queue not in here:
                self.engine.names.queue(o.queue, here | self._queues())

    async def _acheck_names(self, name: str, o: Options) -> None:
        task = self.engine.tasks.get(name)
        if task is None or (o.queue is not None and o.queue != task.queue):
            await self.db.arun(contextvars.copy_context().run, self._check_names, name, o)

    def _options(self, given: Mapping[str, Any]) -> Options:
        from duly.jobs.task import _options

        return _options(given)

    def _by_name(self, name: str, input: Mapping[str, Any], o: Options) -> NewJob:
        if name == ENGINE_RUN and (run := self.workflows.prepared(input, o)) is not None:
            return run
        task = self.engine.tasks.get(name)
        if task is not None:
            return self._of_task(task, input, o)
        check_name(name, "task name")
        return self._new(name, "default", self._plain(input), 0, None, o)

    def _plain(self, input: Mapping[str, Any]) -> str:
        if not isinstance(input, Mapping):
            raise InvalidArgument(
                "input", f"is of type {type(input).__name__}; it must be a mapping of argument names to values."
            )
        return encode_plain(dict(input), "input", self.settings.max_payload)

    def _of_task(self, task: Task[Any, Any], arguments: Mapping[str, Any], o: Options) -> NewJob:
        return self._new(task.name, task.queue, self._encoded(task, arguments), task.priority, task.max_attempts, o)

    def _encoded(self, task: Task[Any, Any], arguments: Mapping[str, Any]) -> str:
        """The input of a job of a task, checked: every door comes by here."""
        if task.check is not None:
            task.check(arguments)
        return task.codec.encode(arguments, self.settings.max_payload)

    def _new(self, name: str, queue: str, text: str, priority: int, max_attempts: int | None, o: Options) -> NewJob:
        meta, trace, caused = None, traceparent(), cause()
        if o.meta is not None or trace is not None or caused is not None:
            carried = dict(o.meta or {})
            check_value(carried, "meta")
            if trace is not None:
                carried.setdefault("traceparent", trace)
            if caused is not None:
                carried.setdefault(CAUSED, caused)
            meta = orjson.dumps(carried).decode()
            check_size(len(meta), self.settings.max_payload, "meta")
        parent = o.parent.id if isinstance(o.parent, Job) else o.parent.job.id if hasattr(o.parent, "job") else o.parent
        if parent is not None and (isinstance(parent, bool) or not isinstance(parent, int) or not 0 < parent < 2**63):
            raise InvalidArgument("parent", f"is {parent!r}; it must be a job or its id.")
        return NewJob(
            tenant=o.tenant or self.settings.tenant, queue=o.queue or queue, task=name, input=text,
            max_attempts=o.max_attempts or max_attempts or self.settings.max_attempts, priority=priority if o.priority is None else o.priority,
            run_at=o.run_at, delay=o.delay(), key=o.key, unique=o.unique(), on_conflict=o.on_conflict, concurrency_key=o.concurrency_key,
            parent_id=parent, meta=meta,
        )  # fmt: skip

    def _tell_blocking(self) -> None:
        """Warn of a call that waits for the database on a running event loop: all that runs on that loop stands still meanwhile.

        Said as a Python warning at the caller's line, and as the event ``blocking_call`` once a minute.
        """
        found = blocking_call()
        if found is None:
            return
        called, instead = found
        now = time.monotonic()
        if now - self._warned.get(called, -60.0) >= 60.0:
            self._warned[called] = now
            self.events.emit("blocking_call", "warning", call=called, instead=instead)
        warn_outside(f"{called} blocks the running event loop. Use {instead}.", BlockingCallWarning)

    def _put(self, new: list[NewJob], options: Options) -> list[Enqueued]:
        if options.session is not None:
            if _get_running_loop() is not None:
                self._tell_blocking()
            connection = borrowed(options.session, self.db, asynchronous=False)
            return self.engine.maker.make_in(connection, new)
        self.open()
        return [self.engine.maker.make(new[0])] if len(new) == 1 else self.engine.maker.make_many(new)

    async def _aput(self, new: list[NewJob], options: Options) -> list[Enqueued]:
        session = options.session
        if session is None:
            return await self.db.arun(self._put, new, options)
        if hasattr(session, "run_sync"):  # AsyncSession and AsyncConnection
            made: list[Enqueued] = await session.run_sync(
                lambda s: self.engine.maker.make_in(borrowed(s, self.db, asynchronous=True), new)
            )
            return made
        return self.engine.maker.make_in(borrowed(session, self.db, asynchronous=False), new)

    # ------------------------------------------------------------------ schedules

    def schedule(
        self,
        name: str,
        recurrence: Recurrence,
        task: str | Task[Any, Any],
        input: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Spec:
        """Declare recurring work: ``app.schedule("nightly", Cron("30 2 * * *", tz="Europe/Paris"), task=report)``.

        ``task``: a task or its name; ``input``: its arguments. Options: ``catch_up`` ("latest", "all", "none" or a timedelta),
        ``overlap`` ("allow", "skip", "queue", "replace"), ``blackout`` ("defer", "run_after", "skip"), ``starts_at`` and
        ``ends_at`` (aware), ``queue``, ``priority``, ``max_attempts``, ``tenant``. It is written when a worker of this app starts,
        or by ``app.schedules.sync()``. Raises InvalidArgument.
        """
        spec = self.schedules.spec(name, recurrence, task, input, **options)
        self.schedules.declare(spec)
        return spec

    def scheduler(self) -> Scheduler:
        """What decides occurrences when they are due. A worker runs one; ``tick()`` looks by hand."""
        return self._scheduler()

    def _scheduler(self, bell: Bell | None = None) -> Scheduler:
        from duly.schedules.tick import Scheduler

        self.open()
        return Scheduler(self.engine, bell)

    def _planned(self, start: datetime, end: datetime) -> Iterator[tuple[str, set[str], Iterator[datetime]]]:
        """The planned instants of the schedules that are active, for ``calendars.impact``."""
        for schedule in self.schedules.all():
            if schedule.spec is not None and schedule.paused_at is None:
                scopes = set(schedule.spec.scopes)
                first = max(start, schedule.spec.starts_at or start)
                stop = min(end, schedule.spec.ends_at or end)
                yield schedule.name, scopes, schedule.spec.recurrence.occurrences(first, stop)

    # ------------------------------------------------------------------ work

    def worker(
        self,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        concurrency: int | None = None,
        name: str | None = None,
    ) -> Worker:
        """A worker for some queues: ``{"mail": 10, "default": 20}``, or names that get ``concurrency`` slots each.

        Without ``queues`` it serves ``default`` and the queue of every task defined here.
        """
        self.open()
        each = concurrency or self.settings.concurrency
        if self.settings.alerts_webhook and self.engine.tasks and WEBHOOK not in self.engine.tasks:
            self.task(WEBHOOK, queue=self.settings.alerts_queue or "default", timeout=60)(poster(self.engine))
        self.find_rooms()
        if queues is None:
            queues = ["default", *sorted(self._queues() - {"default"})]
        if not isinstance(queues, Mapping):
            queues = dict.fromkeys([queues] if isinstance(queues, str) else queues, each)
        if not self.engine.tasks:
            raise InvalidArgument(
                "worker", "has no tasks to run.", "Define some with @app.task, or name the module that does."
            )
        for one in queues:
            self.warn_unused_queue(
                one, "This worker serves it all the same, and has nothing to do there until a job comes."
            )
        for variable, near in self._unknown_variables().items():
            self.events.emit("unknown_name", "warning", what="variable", unknown=variable[:200], nearest=near)
        worker = Worker(self.engine, queues, name)
        if "schedules" in vars(self):  # else nothing is declared
            self.schedules.sync()
            worker.declares |= self.schedules.declarations()
            worker.house.add("declarations", KEEP_EVERY, self.schedules.catch_up, first=KEEP_EVERY)
        schedules = Watch(self.db, self._scheduler)
        worker.accompany("schedules", schedules.step, schedules.bell.ring)
        worker.house.add("schedules", KEEP_EVERY, schedules.keep)
        if self._workflows is not None:
            worker.house.add("workflows", KEEP_EVERY, self._workflows.keep)
        for room in self._rooms:
            worker.house.add(room.name, room.every, room.keep)
            worker.declares |= room.declarations() if isinstance(room, Declares) else {}
        worker.house.add("reservations", 60.0, self._prune_reservations, first=5.0)
        worker.house.add("alerts", self.settings.alerts_every, lambda: self.alerts.duty(worker.name), first=3.0)
        return worker

    def _prune_reservations(self) -> int:
        return self.reservations.prune() if self._reservations is not None or self._read(any_reservation) else 0

    def keep_rooms(self) -> None:
        """Do the duty of each room now, as workers do every so often."""
        for room in self._rooms:
            room.keep()

    def find_rooms(self) -> bool:
        """Have the rooms worked for that need no code: a file of channels, automations that are in the database. False where there are none."""
        if self.settings.publish_channels:
            from duly.publishing.door import Publishing

            # channels that cannot be read are said here, before anything is claimed
            wanted = Publishing.of(self).wanted()
            if "EMAIL_SEND" in wanted - set(self.engine.tasks):  # a newsletter is mailed by somebody
                from duly.mail import Mail

                Mail.of(self)
        if self._has_automations():
            from duly.automations.door import Automations

            Automations.of(self)
        return bool(self._rooms)

    def _has_automations(self) -> bool:
        s = self.settings
        if s.ai_script or s.ai_model or s.anthropic_model:
            return True
        if not self.db.is_there or self.db.read(migrate.current) != migrate.HEAD:
            return False
        from duly.automations.presence import any_automation

        return self.db.read(any_automation)

    def _queues(self) -> set[str]:
        """The queues of what is defined here."""
        runs = set() if self._workflows is None else self._workflows.queues()
        served = {queue for room in self._rooms for queue in room.queues()}
        return {task.queue for task in self.engine.tasks.values()} | runs | served

    def find_task(self, name: str) -> Task[Any, Any]:
        """A task defined here. Raises UnknownTask."""
        try:
            return self.engine.tasks[name]
        except KeyError:
            raise UnknownTask(name, tuple(sorted(self.engine.tasks))) from None

    # ------------------------------------------------------------------ database

    def open(self) -> None:
        """Check the schema once; an embedded database is made or upgraded. Raises SchemaMissing or SchemaTooNew."""
        if not self._checked:
            with self._lock:
                if not self._checked:
                    migrate.ensure(self.db)
                    self._checked = True

    def migrate(self) -> tuple[str | None, str]:
        """Bring the database to the revision of this code. Returns (before, after), before None when there were no tables.

        Safe to run twice and from several places at once. Raises SchemaTooNew when a newer Duly was there that leaves no room.
        """
        out = migrate.migrate(self.db)
        self._checked = True
        return out

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self.db.close()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear every event; returns a function that stops it.

        ``listener`` is called on the thread that emits, so it must be quick. What it raises is told as an event and harms nobody.
        """
        return self.events.listen(listener)

    def why(self, ident: int, tenant: str | None = None) -> list[Check]:
        """Why a job does not run: every condition, met or not, each with its remedy. Raises NotFound."""
        from duly.jobs.ask import ask_why

        self.open()
        checks = ask_why(self.engine, ident, tenant)
        if self.jobs.get(ident, tenant).task != ENGINE_RUN:
            return checks
        waits = self.workflows.why(ident)
        return checks if waits is None else [waits if check.name == "due" else check for check in checks]

    def _write(self, fn: Callable[[Connection], R]) -> R:
        self.open()
        out = self.db.write(fn)
        self.db.bells.ring()
        self.db.controls.ring()
        return out

    def _read(self, fn: Callable[[Connection], R]) -> R:
        self.open()
        return self.db.read(fn)

    def _snapshot(self, fn: Callable[[Connection], R]) -> R:
        self.open()
        return self.db.snapshot(fn)


def _named(fn: Any) -> str:
    """The name of a function; of what has none the definition says that it is no function."""
    return str(getattr(fn, "__name__", type(fn).__name__))


def _offer_reservations(ref: weakref.ref[Duly]) -> None:
    """The application made last keeps the reservations of functions that name no store."""

    def found() -> SqlStore | None:
        app = ref()
        return None if app is None else app.reservations

    set_default_store(found)


@dataclasses.dataclass(frozen=True, slots=True)
class Queues:
    """``app.queues``: what operators set."""

    app: Duly

    def set(
        self,
        name: str,
        *,
        limit: int | None = _KEEP,
        key_limit: int | None = _KEEP,
        rate: tuple[int, float] | Rate | None = _KEEP,
        fair: bool = _KEEP,
        actor: str = "code",
        reason: str = "",
    ) -> QueueSettings:
        """Limits of a queue; what is not given stays, None takes a limit away.

        ``limit``: how many of its jobs run at once in the whole cluster. ``key_limit``: how many with the same concurrency
        key. ``rate``: (count, seconds), starts in any window of that length. ``fair``: tenants take turns at equal priority.
        ``actor``: who asks, and ``reason``: why, for the audit trail. Raises InvalidArgument for a number that cannot be a limit.
        """
        chosen: dict[str, Any] = {}
        for key, value in (("limit", limit), ("key_limit", key_limit), ("rate", rate), ("fair", fair)):
            if value is not _KEEP:
                chosen[key] = Rate(*value) if key == "rate" and isinstance(value, tuple) else value
        self._warn(name)
        return self.app._write(lambda c: self.app.engine.queues.set(c, name, actor, reason=reason, **chosen))

    def pause(self, name: str, reason: str = "", actor: str = "code") -> QueueSettings:
        """Stop claims on a queue in the whole cluster. Running jobs go on; pausing a paused queue changes its reason."""
        self._warn(name)
        return self.app._write(lambda c: self.app.engine.queues.pause(c, name, actor, reason))

    def resume(self, name: str, actor: str = "code", reason: str = "") -> QueueSettings:
        """Let claims on a queue go on. A queue that is not paused stays as it is."""
        return self.app._write(lambda c: self.app.engine.queues.resume(c, name, actor, reason))

    def hold(self, name: str, until: datetime, reason: str = "", actor: str = "code") -> QueueSettings:
        """Stop claims on a queue until an instant (aware); running jobs go on. A hold that lasts longer stays as it is."""
        self._warn(name)
        return self.app._write(lambda c: self.app.engine.queues.hold(c, name, until, reason, actor))

    def release(self, name: str, actor: str = "code", reason: str = "") -> QueueSettings:
        """End a hold before its instant. A queue that is not held stays as it is."""
        return self.app._write(lambda c: self.app.engine.queues.release(c, name, actor, reason))

    def get(self, name: str) -> QueueSettings:
        """What is set for a queue; one that nothing was set for has no limits."""
        return self.app._read(lambda c: self.app.engine.queues.get(c, name))

    def all(self) -> dict[str, QueueSettings]:
        """The queues that something was set for, by name."""
        return self.app._read(self.app.engine.queues.all)

    def _warn(self, name: str) -> None:
        self.app.warn_unused_queue(name, "It is set all the same, and counts for jobs of this queue.")


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """``app.gate``: the global online gate. While it is closed no worker claims anything and no relay of the application's outbox sends
    anything; enqueueing and publishing go on.

    ``scope``: what a move is about: ``jobs``, ``outbox``, or several of them; all by default.
    """

    app: Duly

    @property
    def is_online(self) -> bool:
        """Is it open? Asked of the database each time. What cannot be read as yes counts as closed."""
        return self.app._read(self.app.engine.queues.online)

    @property
    def is_outbox_online(self) -> bool:
        """Is it open for the relays of the application's outbox?"""
        return self.app._read(self.app.engine.queues.outbox_online)

    def online(self, reason: str = "", actor: str = "code", scope: str | Iterable[str] | None = None) -> None:
        """Open it for every worker and relay. Audited with who did it and why. Raises InvalidArgument for an unknown scope."""
        self._move(True, reason, actor, scope)

    def offline(self, reason: str = "", actor: str = "code", scope: str | Iterable[str] | None = None) -> None:
        """Close it for every worker and relay. Running jobs go on. Audited with who did it and why. Raises InvalidArgument for an unknown scope."""
        self._move(False, reason, actor, scope)

    def _move(self, online: bool, reason: str, actor: str, scope: str | Iterable[str] | None) -> None:
        from duly.kernel.gate import Scope

        given = list(Scope) if scope is None else [scope] if isinstance(scope, str) else list(scope)
        for one in given:
            if one not in set(Scope):
                raise InvalidArgument("scope", f"is {one!r}.", f"Use {' or '.join(Scope)}, or leave it out for all.")
        if not given:
            raise InvalidArgument("scope", "is empty.", f"Use {' or '.join(Scope)}, or leave it out for all.")
        scopes = [Scope(one) for one in given]
        self.app._write(lambda c: self.app.engine.queues.set_online(c, online, actor, reason, scopes))


@dataclasses.dataclass(frozen=True, slots=True)
class Jobs:
    """``app.jobs``: looking at jobs and acting on them."""

    app: Duly

    @property
    def admin(self) -> JobAdmin:
        """Acts on many jobs, and pruning: what the command line uses."""
        from duly.jobs.admin import JobAdmin

        self.app.open()
        return JobAdmin(self.app.engine)

    def get(self, ident: int, tenant: str | None = None) -> Job:
        """One job as it stands now. Raises NotFound, also when it is another tenant's than ``tenant``."""
        return self.app._read(lambda c: self.app.engine.reader.get(c, ident, tenant))

    def find(self, limit: int = 50, below: int | None = None, **filters: Any) -> list[Job]:
        """Jobs, newest first. Filters are the fields of ``JobFilter``.

        ``limit``: at most so many, from 1 to 10,000. ``below``: only ids below this one, the last of the page before.
        """
        return self.app._snapshot(lambda c: self.app.engine.reader.find(c, JobFilter(**filters), limit, below))

    def count(self, **filters: Any) -> int:
        """How many jobs fit, counted up to 100,000. Filters are the fields of ``JobFilter``."""
        return self.app._snapshot(lambda c: self.app.engine.reader.count(c, JobFilter(**filters)))

    def cancel(
        self, ident: int, reason: str = "", actor: str = "code", tenant: str | None = None, children: bool = False
    ) -> Job:
        """Cancel a job and return it. A queued one has ended then; a running one was asked to stop (``cancel_requested``).

        ``children``: its live children too. Raises NotFound, or WrongState when it has ended.
        """
        return self.admin.cancel(ident, actor, tenant, reason, children)

    def replay(
        self, ident: int, reason: str = "", actor: str = "code", tenant: str | None = None, force: bool = False,
        at_once: bool = False,
    ) -> Job:  # fmt: skip
        """Run an ended job again and return it: same id, input and key, attempts from 0, due now. A job that was cancelled before its planned
        instant goes back to that instant, or with ``at_once`` is due now.

        ``force``: also one that succeeded, whose effects are repeated: the body of an idempotent task runs again, too. Raises NotFound, WrongState when it is live (or succeeded, without ``force``), or
        KeyConflict when its key was freed and another job has it.
        """
        return self.admin.replay(ident, actor, tenant, reason, force, at_once)

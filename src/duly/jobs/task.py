"""What a task is: a function with a name, and how its jobs are to be run.

A task stays the function it decorates; ``enqueue`` makes a job of it instead of running it. Options that belong to one
job (when, which key, which tenant) are set with ``using``; options that belong to the work (retries, timeout, where it
runs) are set where the task is defined, so that no job carries them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from duly.jobs.codec import Codec
from duly.jobs.job import Enqueued, Job
from duly.kernel.backoff import Backoff
from duly.kernel.binding import is_async, signature_of
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_name, check_whole, read_seconds

P = ParamSpec("P")
R = TypeVar("R")

#: The longest delay and the longest memory of a key, in seconds: a hundred years.
FARTHEST = 100 * 365.25 * 86_400
#: When the key of a job is free again.
UniqueUntil = Literal["start", "done", "forever"] | Duration
#: Where a handler runs: on the event loop (async), on a thread, or in a process of its own that can be killed.
RunIn = Literal["loop", "thread", "process"]


@dataclass(frozen=True, slots=True)
class Options:
    """How one job is wanted. Everything is optional; ``None`` means the task's or the setting's default."""

    queue: str | None = None
    #: The planned instant (aware). At most one of run_at and run_in.
    run_at: datetime | None = None
    run_in: Duration | None = None
    #: Higher runs first.
    priority: int | None = None
    #: The idempotency key: at most one job per tenant, queue and key.
    key: str | None = None
    unique_until: UniqueUntil | None = None
    #: What to do when the key is taken by another payload: give that job back, or raise KeyConflict.
    on_conflict: Literal["return", "raise"] = "return"
    tenant: str | None = None
    #: Jobs with the same concurrency key share the queue's key_limit.
    concurrency_key: str | None = None
    max_attempts: int | None = None
    #: The job this one belongs to: a Job or its id.
    parent: Any = None
    #: Small facts handed to the handler beside its arguments, e.g. trace context.
    meta: Mapping[str, Any] | None = None
    #: A Session, AsyncSession, Connection or AsyncConnection: the job is written in its transaction.
    session: Any = None

    def checked(self) -> Options:
        """Itself, or InvalidArgument naming the option."""
        for name in ("queue", "tenant", "key", "concurrency_key"):
            value = getattr(self, name)
            if value is not None:
                check_name(value, name)
        self._check_moment()
        for name, low in (("priority", -(2**31)), ("max_attempts", 1)):
            value = getattr(self, name)
            if value is not None:
                check_whole(value, name, low, 2**31 - 1)
        self._check_key()
        if self.parent is not None and not isinstance(self.parent, int | Job | Enqueued):
            raise InvalidArgument("parent", f"is of type {type(self.parent).__name__}.", "Give a job or its id.")
        if self.meta is not None and not isinstance(self.meta, Mapping):
            raise InvalidArgument(
                "meta", f"is of type {type(self.meta).__name__}.", "Give a mapping of names to values."
            )
        return self

    def _check_moment(self) -> None:
        if self.run_at is not None:
            if self.run_in is not None:
                raise InvalidArgument("run_at", "and run_in are both given.", "Give one.")
            if not isinstance(self.run_at, datetime) or self.run_at.tzinfo is None:
                raise InvalidArgument("run_at", f"is {self.run_at!r}; it must be a datetime with a time zone.")
            if not 1900 <= self.run_at.year <= 9000:
                raise InvalidArgument("run_at", f"is in the year {self.run_at.year}; give one from 1900 to 9000.")
        elif self.run_in is not None and not abs(self.delay() or 0.0) <= FARTHEST:
            raise InvalidArgument("run_in", f"is {self.run_in}; it must be within a hundred years.")

    def _check_key(self) -> None:
        until = self.unique_until
        if until is not None:
            if self.key is None:
                raise InvalidArgument("unique_until", "is given without a key.")
            try:
                kept = self.unique()
            except InvalidArgument:
                remedy = "Use 'start', 'done', 'forever' or a duration such as 1h."
                raise InvalidArgument("unique_until", f"is {until!r}.", remedy) from None
            if not isinstance(kept, str) and not 0 < kept <= FARTHEST:
                raise InvalidArgument("unique_until", f"is {until}; it must be positive and within a hundred years.")
        if self.on_conflict not in ("return", "raise"):
            raise InvalidArgument("on_conflict", f"is {self.on_conflict!r}.", "Use 'return' or 'raise'.")

    def unique(self) -> str | float:
        """When the key is free again: a word, or how many seconds after the enqueue."""
        if self.unique_until is None or self.unique_until in ("start", "done", "forever"):
            return "forever" if self.unique_until is None else str(self.unique_until)
        return read_seconds(self.unique_until, "unique_until")

    def delay(self) -> float | None:
        """Seconds from now that the job is wanted in; None for now or for a fixed instant."""
        if self.run_in is None:
            return None
        return read_seconds(self.run_in, "run_in")


class Queueing(Protocol):
    """What a task needs of the application: somewhere to put jobs."""

    def enqueue_task(self, task: Task[Any, Any], arguments: Mapping[str, Any], options: Options) -> Enqueued: ...

    def enqueue_tasks(
        self, task: Task[Any, Any], many: Iterable[Mapping[str, Any]], options: Options
    ) -> Sequence[Enqueued]: ...

    async def aenqueue_task(self, task: Task[Any, Any], arguments: Mapping[str, Any], options: Options) -> Enqueued: ...


@dataclass(frozen=True)
class Task(Generic[P, R]):
    """A definition of work."""

    name: str
    fn: Callable[P, R]
    queue: str = "default"
    max_attempts: int | None = None
    backoff: Backoff = field(default_factory=Backoff)
    #: Seconds one run may take; None is no limit.
    timeout: float | None = None
    priority: int = 0
    run_in: RunIn = "loop"
    #: The audit action of a success; the default is ``<NAME>_COMPLETED``.
    audit_action: str | None = None
    #: With "fail" or "ignore", a job whose handler is done waits for the children it enqueued.
    wait_for_children: Literal["fail", "ignore"] | None = None
    #: Looks at the arguments of a single call before its job is made, and raises InvalidArgument.
    check: Callable[[Mapping[str, Any]], None] | None = field(default=None, repr=False, compare=False)
    app: Queueing | None = field(default=None, repr=False, compare=False)
    codec: Codec = field(init=False, repr=False, compare=False)
    #: Parameter name → what the worker hands in: "job" or "session".
    injected: dict[str, str] = field(init=False, repr=False, compare=False)
    #: The name of the parameter that gets a session whose commit also settles the job, if there is one.
    transactional: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name, "task name")
        check_name(self.queue, "queue")
        if not inspect.isroutine(self.fn):
            raise InvalidArgument(
                f"task {self.name}", f"is an object of type {type(self.fn).__name__}, not a function.", "Define a function that calls it."
            )  # fmt: skip
        for name, low in (("priority", -(2**31)), ("max_attempts", 1)):
            value = getattr(self, name)
            if value is not None:
                check_whole(value, name, low, 2**31 - 1)
        if self.timeout is not None:
            object.__setattr__(self, "timeout", read_seconds(self.timeout, "timeout", 0, above=True))
        if not isinstance(self.backoff, Backoff):
            raise InvalidArgument("backoff", f"is of type {type(self.backoff).__name__}.", "Give a duly.Backoff.")
        if self.audit_action is not None:
            check_name(self.audit_action, "audit_action")
        for name, value, known in (
            ("run_in", self.run_in, ("loop", "thread", "process")),
            ("wait_for_children", self.wait_for_children, (None, "fail", "ignore")),
        ):
            if value not in known:
                raise InvalidArgument(name, f"is {value!r}.", f"Use one of: {', '.join(repr(k) for k in known if k)}.")
        is_async = inspect.iscoroutinefunction(self.fn)
        if is_async and self.run_in == "process":
            raise InvalidArgument(
                f"task {self.name}", "is async, so it cannot run in a process of its own.", "Make it a plain function."
            )
        if is_async and self.run_in != "loop":
            object.__setattr__(self, "run_in", "loop")
        elif not is_async and self.run_in == "loop":
            object.__setattr__(self, "run_in", "thread")
        injected = injected_parameters(self.fn)
        check_callable(self.fn, f"task {self.name}", injected)
        if self.run_in == "process" and injected:
            raise InvalidArgument(
                f"task {self.name}", "runs in a process, so it cannot be handed a session or a context."
            )
        object.__setattr__(self, "injected", injected)
        sessions = (name for name, what in injected.items() if what.endswith("session"))
        object.__setattr__(self, "transactional", next(sessions, None))
        object.__setattr__(self, "codec", Codec(self.fn, self.name, injected))
        for attribute in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(self.fn, attribute):
                object.__setattr__(self, attribute, getattr(self.fn, attribute))
        object.__setattr__(self, "__wrapped__", self.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Still the function."""
        return self.fn(*args, **kwargs)

    @property
    def completed_action(self) -> str:
        return self.audit_action or f"{self.name}_COMPLETED"

    # ------------------------------------------------------------------ asking for work

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Make a job of this call. Returns (job, created) once it is committed.

        Raises InvalidArgument or InvalidPayload when an argument cannot be carried, naming the parameter.
        """
        app = self.app
        if app is None:
            raise self._homeless()
        return app.enqueue_task(self, self.codec.bind(args, kwargs), _PLAIN)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """As ``enqueue``, for callers on an event loop."""
        return await self.using().aenqueue(*args, **kwargs)

    def enqueue_many(self, many: Iterable[Mapping[str, Any]]) -> Sequence[Enqueued]:
        """Make a job of each mapping of arguments, all in one transaction, in order."""
        return self.using().enqueue_many(many)

    def _homeless(self) -> InvalidArgument:
        return InvalidArgument(f"task {self.name}", "belongs to no application.", "Define it with @app.task.")

    def using(self, **options: Any) -> Call[P, R]:
        """This task with options for one call: queue, run_at (aware), run_in (a duration), priority, key, unique_until,
        on_conflict, tenant, concurrency_key, max_attempts, parent, meta, session (see ``Options``).

        Raises InvalidArgument naming the option.
        """
        return Call(self, _options(options))


@dataclass(frozen=True, slots=True)
class Call(Generic[P, R]):
    """A task and the options of one call."""

    task: Task[P, R]
    options: Options

    def using(self, **options: Any) -> Call[P, R]:
        """The same with more options, or others. Raises InvalidArgument naming the option."""
        return Call(self.task, replace(self.options, **options).checked())

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Make a job of this call. With a session it exists once that commits; without, when this returns.

        Raises InvalidArgument or InvalidPayload naming the parameter, UnsafeSession, and KeyConflict if asked to.
        """
        return self._app().enqueue_task(self.task, self.task.codec.bind(args, kwargs), self.options)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """As ``enqueue``, for callers on an event loop and for asynchronous sessions."""
        return await self._app().aenqueue_task(self.task, self.task.codec.bind(args, kwargs), self.options)

    def enqueue_many(self, many: Iterable[Mapping[str, Any]]) -> Sequence[Enqueued]:
        """Make a job of each mapping of arguments, all in one transaction, in order. Raises as ``enqueue``; then none is made."""
        return self._app().enqueue_tasks(self.task, many, self.options)

    def _app(self) -> Queueing:
        if self.task.app is None:
            raise self.task._homeless()
        return self.task.app


_PLAIN = Options()


def _options(given: Mapping[str, Any]) -> Options:
    if not given:
        return _PLAIN
    try:
        return Options(**given).checked()
    except TypeError:
        known = Options.__dataclass_fields__
        wrong = next((name for name in given if name not in known), "?")
        raise InvalidArgument(wrong, "is not an option of a job.", f"Options are: {', '.join(known)}.") from None


def injected_parameters(fn: Callable[..., Any]) -> dict[str, str]:
    """Which parameters the worker fills in: ``job`` annotated Job or Context, and sessions, by annotation or by name."""
    found: dict[str, str] = {}
    try:
        hints = get_type_hints(fn)
    except (NameError, TypeError):  # TypeError: a partial, or an object that can be called
        hints = {}
    for p in signature_of(fn).parameters.values():
        kind = hints.get(p.name)
        if get_origin(kind) in (
            Union,
            UnionType,
        ):  # ``job: Job | None = None``, for those who call the function themselves
            others = [one for one in get_args(kind) if one is not NoneType]
            kind = others[0] if len(others) == 1 else kind
        name = getattr(kind, "__name__", "")
        module = getattr(kind, "__module__", "")
        if module == "duly.jobs.run" and name == "Context":
            found[p.name] = "context"
        elif module == "duly.jobs.job" and name == "Job":
            found[p.name] = "job"
        elif module.startswith("sqlalchemy.") and name == "AsyncSession":
            found[p.name] = "async_session"
        elif module.startswith("sqlalchemy.") and name == "Session":
            found[p.name] = "session"
        elif p.name == "session" and kind is None and p.default is p.empty:
            found[p.name] = "async_session" if is_async(fn) else "session"
    return found


def check_callable(fn: Callable[..., Any], owner: str, injected: Mapping[str, str]) -> None:
    """Refuse a function whose body would not run, or would not do what it says, though nothing raised.

    ``owner``: how it is called in a refusal; ``injected``: as ``injected_parameters`` tells. Raises InvalidArgument.
    """
    if inspect.isasyncgenfunction(fn):
        raise InvalidArgument(
            owner, "is an asynchronous generator, which nobody would go through.", "Return a list instead of yielding."
        )
    sessions = [name for name, what in injected.items() if what.endswith("session")]
    if len(sessions) > 1:
        raise InvalidArgument(owner, f"asks for two sessions, {sessions[0]} and {sessions[1]}.", "Take one: a job has one transaction.")  # fmt: skip
    for name in sessions:
        if injected[name] == "session" and is_async(fn):
            raise InvalidArgument(
                owner,
                f"is async, and {name} is annotated with a Session, whose calls would stop the event loop.",
                "Annotate it with sqlalchemy.ext.asyncio.AsyncSession and await its calls, or make it a plain function.",
            )
        if injected[name] == "async_session" and not is_async(fn):
            raise InvalidArgument(
                owner,
                f"is a plain function, and {name} is annotated with an AsyncSession, whose calls have to be awaited.",
                "Annotate it with sqlalchemy.orm.Session, or define it with `async def`.",
            )


def check_same(known: Callable[..., Any], fn: Callable[..., Any], owner: str, remedy: str) -> None:
    """Refuse another function under a name that is taken; the same one may be defined again, by a reload or a cell that is run again.

    A function within a function may be made twice with other values around it, and jobs of the first would run the second.
    Raises InvalidArgument.
    """
    if (known.__module__, known.__qualname__) != (fn.__module__, fn.__qualname__):
        raise InvalidArgument(owner, f"is defined twice: in {known.__module__} and in {fn.__module__}.", remedy)
    before, now = getattr(known, "__code__", None), getattr(fn, "__code__", None)
    if before is None or now is None or fn.__module__.startswith("duly."):
        return  # a room that is made anew takes the place of the one before
    if before is now:
        if not all(map(_alike, _around(known), _around(fn))):
            raise InvalidArgument(
                owner, f"is defined twice by {fn.__qualname__}, with other values around it: jobs of the first would run the second.", remedy
            )  # fmt: skip
    elif fn.__name__ == "<lambda>" and before.co_firstlineno != now.co_firstlineno:
        raise InvalidArgument(owner, f"is defined twice: by two lambdas in {fn.__module__}.", remedy)


def _around(fn: Any) -> list[Any]:
    """What a function knows of the one that it was made in, and its defaults."""
    out: list[Any] = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    for cell in fn.__closure__ or ():
        try:
            out.append(cell.cell_contents)
        except ValueError:  # not given a value yet
            out.append(None)
    return out


def _alike(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, str | bytes | int | float) and one == other)

"""Running one claimed job: from its row to an outcome.

The steps read in order: decode the input, call the handler where it belongs (loop, thread or process), and turn what it
returned or raised into an ``Outcome``. Whatever a handler does, an outcome comes out: a result that cannot be stored, an
exception whose text cannot be made, a handler that swallows its cancellation. This file knows no queue and writes nothing,
except for transactional handlers, whose effects and settlement are one commit.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncContextDecorator, ContextDecorator, contextmanager
from contextvars import ContextVar
from datetime import datetime
from types import NoneType
from typing import Any, Literal, Protocol

import orjson

from duly import tracing
from duly.jobs.chain import chained
from duly.jobs.claim import Lane
from duly.jobs.codec import Arguments, encode_output
from duly.jobs.job import Job, Status
from duly.jobs.settle import Claimed, Settlement
from duly.jobs.task import Task
from duly.kernel.clock import from_micros
from duly.kernel.errors import Cancel, DatabaseBusy, DulyError, InvalidArgument, PermanentError, Retry, Snooze
from duly.kernel.exception_group import decisive, others
from duly.kernel.masking import masked
from duly.kernel.outcome import Outcome, OutcomeKind
from duly.kernel.payload import check_name, check_text, check_whole

#: Why a run was interrupted from outside.
Reason = Literal["timeout", "cancel", "release", "lost"]
#: The outcome that each of them leads to.
INTERRUPTED: Mapping[str, OutcomeKind] = {
    "timeout": OutcomeKind.TIMED_OUT,
    "cancel": OutcomeKind.CANCELLED,
    "release": OutcomeKind.RELEASED,
    "lost": OutcomeKind.LOST,
}
MAX_ERROR = 4_000
#: In the meta of a job that was replayed by force after it had succeeded: "its number:how often".
REPEAT = "forced_replay"
#: The class of the error of a job that no worker has been able to read so far.
UNREADABLE = "Unreadable"
#: The outcome of a handler that returned None.
NOTHING = Outcome(OutcomeKind.SUCCEEDED, "{}")
#: What most handlers return, which is looked at no further.
_VALUES = frozenset({NoneType, str, int, float, bool, dict, list, tuple})


class CurrentJob(Protocol):
    """What is known of it wherever a handler runs."""

    @property
    def id(self) -> int: ...

    @property
    def tenant(self) -> str: ...

    @property
    def meta(self) -> str | None: ...


class CurrentRun(Protocol):
    """The run whose handler is being called: a ``Run``, or what stands for it in a process of handlers."""

    @property
    def claimed(self) -> CurrentJob: ...


#: The run whose handler is being called here, if any.
CURRENT: ContextVar[CurrentRun | None] = ContextVar("duly_run", default=None)


class LeaseLost(DulyError):
    """The job belongs to somebody else by now; its effects in our database are rolled back."""


class UnreadableInput(InvalidArgument):
    """The stored input of a job does not fit the task as it is defined here; its handler was not called."""


class Settled(BaseException):
    """Raised by a handler that has written the end of its run itself, under its lease token, in a transaction that is committed."""

    def __init__(self, settlement: Settlement) -> None:
        super().__init__(settlement.event)
        self.settlement = settlement


class _Injected:
    """What stands in for a value that the worker supplies."""

    def __repr__(self) -> str:
        return "INJECT"


#: The default of a parameter that the worker fills in: ``def send(to: str, context: Context = INJECT)``. With it, type
#: checkers do not ask for the parameter where the job is enqueued.
INJECT: Any = _Injected()


class Context:
    """What a handler may know and say about its own run. Ask for it with a parameter annotated ``Context``.

    ``job`` is the job as it was claimed. ``cost_cents``, ``remote_id`` and ``audit_action`` may be set; they are stored with the outcome.
    """

    __slots__ = ("_cancel", "audit_action", "cost_cents", "job", "remote_id")

    def __init__(self, job: Job, cancel: threading.Event) -> None:
        self.job = job
        #: What this run cost, in cents.
        self.cost_cents: int | None = None
        #: What the other side calls the effect of this job.
        self.remote_id: str | None = None
        #: The audit action if this run succeeds, where it did something else than the task's says.
        self.audit_action: str | None = None
        self._cancel = cancel

    @property
    def cancel_requested(self) -> bool:
        """True when the run should stop: an operator cancelled it, it timed out, or the worker shuts down.

        Handlers on threads cannot be interrupted; they look here now and then (or call ``checkpoint``).
        """
        return self._cancel.is_set()

    def checkpoint(self) -> None:
        """Raise Cancel when the run should stop."""
        if self._cancel.is_set():
            raise Cancel("the run was asked to stop")


class Run:
    """A job that is being run here.

    With slots, as thousands are at hand: an object whose attributes come one after the other ends up with a dictionary of its
    own, which is three times as much memory and takes longer to make.
    """

    __slots__ = (
        "cancel", "claimed", "claimed_mono", "context", "deadline", "ended_mono", "error", "forgotten", "handle", "kill", "lane", "reason", "settled",
        "settlement", "started_mono", "task",
    )  # fmt: skip

    def __init__(self, claimed: Claimed, task: Task[Any, Any] | None, lane: Lane, claimed_mono: float) -> None:
        self.claimed, self.task, self.lane, self.claimed_mono = claimed, task, lane, claimed_mono
        #: Monotonic instant of the start, 0 before it.
        self.started_mono = 0.0
        self.ended_mono = 0.0
        #: Monotonic instant at which the timeout strikes, 0 for none.
        self.deadline = 0.0
        #: Why it was interrupted, once it was.
        self.reason: Reason | None = None
        self.handle: asyncio.Task[None] | None = None
        self.cancel: threading.Event | None = None
        #: Kills the process it runs in, for handlers in processes.
        self.kill: Callable[[], None] | None = None
        self.context: Context | None = None
        #: What its handler raised, until the end of the run is written: for ``app.on_error``.
        self.error: BaseException | None = None
        #: What it fails with: it has asked for something and never awaited it (``jobs/forgotten``).
        self.forgotten: PermanentError | None = None
        #: The run has ended and its outcome is on its way to the database.
        self.settled = False
        self.settlement: Settlement | None = None

    def cancel_event(self) -> threading.Event:
        if self.cancel is None:
            self.cancel = threading.Event()
        return self.cancel

    def interrupt(self, reason: Reason) -> None:
        """Ask the handler to stop, as firmly as its kind allows. The first reason stays."""
        if self.reason is not None:
            return
        self.reason = reason
        if self.cancel is not None:
            self.cancel.set()
        if self.kill is not None:
            self.kill()
        if self.handle is not None:
            self.handle.cancel()


def trace_of(meta: str | None) -> str | None:
    """The ``traceparent`` in a job's meta (JSON text), if there is one."""
    if meta is None or '"traceparent"' not in meta:
        return None
    return tracing.checked(orjson.loads(meta).get("traceparent"))


#: A job whose work is going on, where what that causes is to be known by it: in the meta of jobs that are enqueued meanwhile (``CAUSED``).
CAUSE: ContextVar[int | None] = ContextVar("duly_cause", default=None)
CAUSED = "caused_by"


def cause() -> int | None:
    """The job that has caused the present one, or is at work here. What it enqueues in turn is caused by the same one."""
    found, run = CAUSE.get(), CURRENT.get()
    if found is not None or run is None:
        return found
    meta = run.claimed.meta
    return None if meta is None or f'"{CAUSED}"' not in meta else caused_by(orjson.loads(meta))


@contextmanager
def causing(job: int) -> Iterator[None]:
    """What is enqueued within is known to be caused by this job."""
    mark = CAUSE.set(job)
    try:
        yield
    finally:
        CAUSE.reset(mark)


def uncaused(meta: str | None) -> str | None:
    """The same meta (JSON text) without what has caused its job."""
    if meta is None or f'"{CAUSED}"' not in meta:
        return meta
    rest = {name: value for name, value in orjson.loads(meta).items() if name != CAUSED}
    return orjson.dumps(rest).decode() if rest else None


def repeats(ident: int, meta: str | None) -> int:
    """How often a job has been replayed by force after it had succeeded. A mark that came along from another job does not count."""
    if meta is None or f'"{REPEAT}"' not in meta:
        return 0
    return repeats_of(ident, orjson.loads(meta))


def repeats_of(ident: int, meta: object) -> int:
    found = meta.get(REPEAT) if isinstance(meta, dict) else None
    job, _, count = found.partition(":") if isinstance(found, str) else ("", "", "")
    return int(count) if job == str(ident) and count.isascii() and count.isdigit() and len(count) < 10 else 0


def caused_by(meta: object) -> int | None:
    """The job that has caused one with this meta."""
    found = meta.get(CAUSED) if isinstance(meta, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


@tracing.source
def _of_run() -> str | None:
    """The trace that the present job brought along."""
    run = CURRENT.get()
    return None if run is None else trace_of(run.claimed.meta)


def is_unawaited(result: object) -> bool:
    """Is it the awaitable of work that was never done, an asynchronous generator or what `@contextmanager` makes of a function?

    A coroutine is closed, so that nobody is warned of it later.
    """
    if not inspect.isawaitable(result):
        return inspect.isasyncgen(result) or isinstance(result, ContextDecorator | AsyncContextDecorator)
    if inspect.iscoroutine(result):
        result.close()
    return True


def to_job(c: Claimed, worker: str) -> Job:
    """The claimed row as handlers see it."""

    def instant(value: int | float) -> datetime:
        return from_micros(value if isinstance(value, int) else round(value * 1e6))

    return Job(
        id=c.id, tenant=c.tenant, queue=c.queue, task=c.task, status=Status.RUNNING, priority=c.priority, input=orjson.loads(c.input), key=c.key,
        concurrency_key=c.concurrency_key, parent_id=c.parent_id, created_at=instant(c.created_at), run_at=instant(c.run_at), attempts=c.attempts,
        max_attempts=c.max_attempts, worker=worker, meta=orjson.loads(c.meta) if c.meta else None,
    )  # fmt: skip


def prepare(run: Run, worker: str) -> Arguments:
    """The handler's arguments, with what the worker supplies (sessions aside). Raises UnreadableInput."""
    task = run.task
    assert task is not None
    try:
        arguments = task.codec.decode(run.claimed.input)
    except InvalidArgument as error:
        raise UnreadableInput(error.field, error.problem, error.remedy) from None
    for name, what in task.injected.items():
        if what == "context":
            run.context = Context(to_job(run.claimed, worker), run.cancel_event())
            arguments.kwargs[name] = run.context
        elif what == "job":
            arguments.kwargs[name] = to_job(run.claimed, worker)
    return arguments


def succeeded(run: Run, result: Any, limit: int) -> Outcome:
    """The outcome of a handler that returned. Raises PermanentError where it returned work instead of doing it."""
    if run.forgotten is not None:
        raise run.forgotten
    context = run.context
    if result is None and context is None:
        return NOTHING
    if type(result) not in _VALUES and is_unawaited(result):
        name = run.task.name if run.task is not None else run.claimed.task
        raise PermanentError(
            f"task {name} returned an object of type {type(result).__name__}: work that nobody has done. "
            "Await it, in a function defined with `async def`, or go through it, and return what comes of it"
        )
    output, problem = encode_output(result, limit)
    error = None
    if problem is not None:
        # the work is done: a result that cannot be stored must not make it run again
        output, error = output or "{}", {"type": "UnstorableResult", "message": problem}
    if context is None:
        return Outcome(OutcomeKind.SUCCEEDED, output, error)
    noted, problem = _noted(context)
    if problem is not None and error is None:
        error = {"type": "UnstorableResult", "message": problem}
    return Outcome(OutcomeKind.SUCCEEDED, output, error, None, None, *noted)


def _noted(context: Context) -> tuple[tuple[int | None, str | None, str | None], str | None]:
    """What a handler has set on its context: (cost_cents, remote_id, audit_action), each None where it cannot be stored, and why.

    It is looked at when the handler is done: an error in its middle would make it run again.
    """
    cost, remote, action, problems = context.cost_cents, context.remote_id, context.audit_action, []
    try:
        if cost is not None:
            check_whole(cost, "context.cost_cents", -(2**31), 2**31 - 1)
    except InvalidArgument as error:
        cost = None
        problems.append(str(error))
    try:
        if remote is not None:
            if not isinstance(remote, str):
                raise InvalidArgument("context.remote_id", f"is of type {type(remote).__name__}; it must be a text.")
            check_text(remote, "context.remote_id")
    except InvalidArgument as error:
        remote = None
        problems.append(str(error))
    try:
        if action is not None and action != "":
            check_name(action, "context.audit_action")
    except InvalidArgument as error:
        action = None
        problems.append(str(error))
    return (cost, remote, action), " ".join(problems) or None


def failed(run: Run, error: BaseException, at: datetime) -> Outcome:
    """The outcome of a handler that raised."""
    kind, after, until = OutcomeKind.FAILED, None, None
    group, error = error, decisive(error)
    if isinstance(error, asyncio.CancelledError | Cancel) and run.reason is not None:
        kind = INTERRUPTED[run.reason]
    elif isinstance(error, Cancel):
        kind = OutcomeKind.CANCELLED
    elif isinstance(error, PermanentError):
        kind = OutcomeKind.REFUSED
    elif isinstance(error, Retry):
        after = error.after
    elif isinstance(error, Snooze):
        kind, after, until = OutcomeKind.SNOOZED, error.after, error.until
    if kind is OutcomeKind.RELEASED or kind is OutcomeKind.SNOOZED:
        described = None
    elif kind is OutcomeKind.TIMED_OUT:
        timeout = run.task.timeout if run.task else None
        described = {
            "type": "Timeout",
            "message": "the handler ran longer than "
            + (f"its timeout of {timeout:g} s" if timeout is not None else "a run may take where it ran"),
            "attempted_at": at.isoformat(),
        }
    else:
        described = describe(group, at)
        own = run.task.transactional if run.task is not None else None
        if own is not None and isinstance(error, DatabaseBusy):
            described["message"] += (
                f" It may be the session of this handler: what it does beside that needs session={own}."
            )
    if kind is OutcomeKind.TIMED_OUT:
        run.error = TimeoutError(described["message"] if described else "")
    elif kind is OutcomeKind.FAILED or kind is OutcomeKind.REFUSED:
        run.error = group
    context = run.context
    cost, remote, _ = (None, None, None) if context is None else _noted(context)[0]
    return Outcome(kind, None, described, after, until, cost, remote)


def unreadable(error: InvalidArgument, at: datetime, after: float) -> Outcome:
    """The outcome of a job whose input this worker cannot read: a newer worker may, so it is put back for ``after`` seconds, uncounted."""
    described = {**describe(error, at), "type": UNREADABLE}
    described.pop("trace", None)
    return Outcome(OutcomeKind.UNREADABLE, error=described, after=after)


def refused(error: InvalidArgument, at: datetime) -> Outcome:
    """The outcome of a job whose input no longer fits its task: trying again would not help."""
    return Outcome(OutcomeKind.REFUSED, error=describe(error, at))


#: Where an exception that another process has raised says its type and the lines of its traceback there.
TOLD = "_duly_told"


def describe(error: BaseException, at: datetime) -> dict[str, Any]:
    """An exception as the error of a job (R003-5): message, type, where that is defined if not here, attempted_at, and its traceback with its causes.

    Safe against exceptions whose text cannot be made or stored. Secrets in texts are starred out before anything is written.
    """
    group, error = error, decisive(error)
    try:
        message = (str(error) or type(error).__name__) + others(group, error)
    except BaseException:
        message = "(the error's text cannot be made)"
    kind = type(error)
    name, lines = error.__dict__.get(TOLD) or (kind.__name__, chained(group))
    trace = [clean(line) for line in lines]
    foreign = kind.__module__.partition(".")[0] not in ("builtins", "duly")
    return {
        "message": masked(clean(message)[:MAX_ERROR]), "type": name, "attempted_at": at.isoformat(),
        **({"path": f"{kind.__module__}.{kind.__qualname__}"} if foreign else {}), **({"trace": trace} if trace else {}),
    }  # fmt: skip


def clean(text: str) -> str:
    """Text that both databases can store."""
    return text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()

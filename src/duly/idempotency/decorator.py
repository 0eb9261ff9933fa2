"""``@idempotent_task``: the body runs once per key, however often the function is called or delivered.

Before anything the body does, the key is reserved in a store (R004-8). Who finds it taken is given the recorded result, or
is asked to come again. A failure frees the key. It cannot make an effect happen exactly once: a process that dies after
the effect and before the record leaves a key that lapses, and the next delivery runs the body again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import random
import sys
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from duly.idempotency.around import InBlock, Noted, block_on, is_file, keeps_file
from duly.idempotency.default import default_store
from duly.idempotency.keeper import KEEPER
from duly.idempotency.pending import Pending, decided
from duly.idempotency.plan import Busy, Done, Mismatch, come_again
from duly.idempotency.reservation import Ask, State, Terms
from duly.idempotency.results import Results
from duly.idempotency.store import LOOK, End, Holding, Store, StoreBusy, store_finder
from duly.idempotency.surroundings import InCelery, InJob, Surroundings, caller, is_control, surroundings
from duly.idempotency.telling import Teller
from duly.idempotency.twins import warn_of_twin
from duly.jobs.run import is_unawaited
from duly.jobs.task import Task, injected_parameters
from duly.kernel.binding import instance_parameter, is_async, signature_of
from duly.kernel.canonical import canonical_task_key
from duly.kernel.duration import Duration
from duly.kernel.errors import (
    AlreadyDone,
    InProgress,
    InvalidArgument,
    PayloadMismatch,
    PermanentError,
    StoreUnavailable,
    UsageError,
    brief,
)
from duly.kernel.payload import check_name, read_duration, read_seconds
from duly.tracing import carried

if TYPE_CHECKING:
    from duly.idempotency.taken import Taken
    from duly.idempotency.together import Together

_SESSIONS = {"Session", "AsyncSession", "scoped_session", "async_scoped_session"}
#: Seconds for which a call that seems to wait for its own caller tries all the same.
PATIENCE = 2.0

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Options:
    """What ``idempotent_task`` was told; its docstring says what each means."""

    name: str
    key: Callable[..., object] | None
    store: Callable[[], Store]
    tenant: str
    terms: Terms
    on_duplicate: str
    wait_timeout: float
    on_store_error: str
    fallback: Callable[[object], str] | None
    ignore: frozenset[str]
    naive_zone: tzinfo | None


@overload
def idempotent_task(fn: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def idempotent_task(
    *,
    name: str | None = None,
    key: Callable[..., object] | None = None,
    store: Store | Callable[[], Store] | None = None,
    tenant: str = "default",
    time_limit: Duration = 300.0,
    margin: Duration = 60.0,
    heartbeat: Duration = 10.0,
    keep: Duration = timedelta(hours=24),
    on_duplicate: Literal["return", "raise", "wait"] = "return",
    wait_timeout: Duration = 30.0,
    on_store_error: Literal["retry", "raise", "run"] = "retry",
    fallback: Callable[[object], str] | None = None,
    ignore: Collection[str] = (),
    naive_zone: tzinfo | str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def idempotent_task(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    key: Callable[..., object] | None = None,
    store: Store | Callable[[], Store] | None = None,
    tenant: str = "default",
    time_limit: Duration = 300.0,
    margin: Duration = 60.0,
    heartbeat: Duration = 10.0,
    keep: Duration = timedelta(hours=24),
    on_duplicate: Literal["return", "raise", "wait"] = "return",
    wait_timeout: Duration = 30.0,
    on_store_error: Literal["retry", "raise", "run"] = "retry",
    fallback: Callable[[object], str] | None = None,
    ignore: Collection[str] = (),
    naive_zone: tzinfo | str | None = None,
) -> Any:
    """Run the body once per key (R004-8 … R004-13). For plain and async functions, below ``@app.task`` or Celery's decorator.

    ``name``: what the key is about; default: the function's module and qualified name, the same in every process.
    ``key``: a function of the same arguments that gives the key, such as an order's number; the same key with other arguments
    raises PayloadMismatch. Default: the canonical key of all arguments, defaults applied, ``self`` and what a worker injects left out;
    what a ``functools.partial`` binds belongs to it as if it were given in the call.
    ``store``: where reservations are kept, or a function that gives it at the first call; default: what ``set_default_store`` was
    given, which a Duly application does with its database.
    ``time_limit`` and ``margin`` (seconds): the lock outlives the longest body by the margin (T004-c); it is also renewed every
    ``heartbeat`` seconds while the body runs. ``keep``: for how long an end is remembered (T004-e).
    ``on_duplicate``: what a call gets whose key is done: the recorded result, AlreadyDone, or, with ``wait``, the result also of a call
    that is in progress, for which it waits up to ``wait_timeout`` seconds. A duplicate of a call in progress is otherwise made again
    later: in a job by Snooze, in Celery by retry, and a plain caller gets InProgress.
    ``on_store_error``: when the store does not answer, ``retry``: the call is made again later; ``raise``: StoreUnavailable at
    once, a failure; ``run``: the body runs unprotected, and an event says so.
    ``fallback``: gives text for argument types that have no canonical form, e.g. ``str``.
    ``ignore``: names of parameters that are no part of what is asked for, such as a client or an ORM object; they tell no two calls apart.
    ``naive_zone``: the zone that datetimes without one are meant in (a tzinfo, or a name such as ``Europe/Paris``); without it they are refused.

    The function that comes out has ``idempotency_key(*args, **kwargs)``, which gives the key of such a call. A body that raises frees
    its key. Where the body is given a session (``Session`` or ``AsyncSession``) on the store's database, the end of the key is
    committed with what the body writes, or not at all (on PostgreSQL at READ COMMITTED); elsewhere once that is durable. A body that commits
    by itself is done. Of a session or connection that it takes from elsewhere and writes with, the transaction's end decides as well.
    Raises InvalidArgument at definition for options that contradict each other, and at the call for
    arguments that cannot be part of a key, naming where; UsageError at a call in the middle of the caller's own write transaction on
    the SQLite file that the key is in.
    """
    if fn is None:
        return functools.partial(
            idempotent_task, name=name, key=key, store=store, tenant=tenant, time_limit=time_limit, margin=margin, heartbeat=heartbeat,
            keep=keep, on_duplicate=on_duplicate, wait_timeout=wait_timeout, on_store_error=on_store_error, fallback=fallback, ignore=ignore,
            naive_zone=naive_zone,
        )  # fmt: skip
    for field, value, allowed in (
        ("on_duplicate", on_duplicate, ("return", "raise", "wait")),
        ("on_store_error", on_store_error, ("retry", "raise", "run")),
    ):
        if value not in allowed:
            raise InvalidArgument(field, f"is {value!r}.", f"Use {', '.join(map(repr, allowed))}.")
    time_limit, margin, heartbeat, wait_timeout = (
        read_seconds(given, field, 0, 1e9, above=True)
        for field, given in (
            ("time_limit", time_limit),
            ("margin", margin),
            ("heartbeat", heartbeat),
            ("wait_timeout", wait_timeout),
        )
    )
    for field, given, what in (
        ("key", key, "of the same arguments that gives the key, such as lambda order: order"),
        ("fallback", fallback, "that gives text for a value, such as str"),
    ):
        if given is not None and not callable(given):
            raise InvalidArgument(field, f"is of type {type(given).__name__}.", f"Give a function {what}.")
    terms = Terms(timedelta(seconds=time_limit + margin), timedelta(seconds=heartbeat), read_duration(keep, "keep"))
    check_name(tenant, "tenant")
    task, body = (fn, fn.fn) if isinstance(fn, Task) else (None, fn)
    _checked(body, named=name is not None or task is not None)
    known = name or (task.name if task is not None else _name_of(body))
    if name is None and task is None and key is None:
        warn_of_twin(body, known, store)
    made = _wrapped(
        body,
        Options(
            known,
            key,
            store_finder(store),
            tenant,
            terms,
            on_duplicate,
            wait_timeout,
            on_store_error,
            fallback,
            _ignored(body, ignore),
            _zone(naive_zone),
        ),
    )
    if task is None:
        return made
    # it is known to its application under its name, so the function inside is replaced
    object.__setattr__(task, "fn", made)
    return task


def _zone(given: tzinfo | str | None) -> tzinfo | None:
    """The zone of datetimes without one. Raises InvalidArgument."""
    if given is None or isinstance(given, tzinfo):
        return given
    try:
        return ZoneInfo(given)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidArgument(
            "naive_zone", f"is {given!r}.", "Give a tzinfo, or a name such as Europe/Paris."
        ) from None


def _ignored(fn: Callable[..., Any], given: Collection[str]) -> frozenset[str]:
    """The parameters that are left out of the key. Raises InvalidArgument naming one that is none."""
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        raise InvalidArgument("ignore", f"is {given!r}.", "Give a list of names of parameters.")
    parameters = signature_of(unbound(fn)[0]).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in given:
            if name not in parameters:
                known = ", ".join(parameters) or "none"
                raise InvalidArgument("ignore", f"names {name!r}, which is no parameter.", f"Parameters: {known}.")
    return frozenset(given)


def _checked(fn: Any, named: bool) -> None:
    """Can it be run once? Raises InvalidArgument."""
    if not callable(fn) or hasattr(fn, "apply_async") or isinstance(fn, staticmethod | classmethod | type):
        raise InvalidArgument(
            "idempotent_task",
            f"decorates a {type(fn).__name__}.",
            "Put it right above the function, below every other decorator.",
        )
    inner, _, _ = unbound(fn)
    called = (inner, getattr(type(inner), "__call__", None))  # noqa: B004 (the method itself is looked at)
    if any(map(inspect.isgeneratorfunction, called)) or any(map(inspect.isasyncgenfunction, called)):
        raise InvalidArgument(
            "idempotent_task", "decorates a generator, whose body runs while it is read.", "Return a list."
        )
    if not named and getattr(inner, "__name__", "") == "<lambda>":
        raise InvalidArgument("name", "is needed: one lambda is called like the next.", "Give name=, or use def.")
    try:
        signature_of(inner)
    except (TypeError, ValueError):
        raise InvalidArgument(
            "idempotent_task",
            f"decorates {getattr(inner, '__name__', type(inner).__name__)}, which does not say what its parameters are.",
            "Call it in a function of your own, and decorate that.",
        ) from None
    try:
        signature_of(fn)
    except ValueError:
        raise InvalidArgument(
            "idempotent_task",
            f"decorates a partial of {getattr(inner, '__name__', type(inner).__name__)} that binds what its parameters do not take.",
            "Bind arguments that fit the function.",
        ) from None


# ------------------------------------------------------------------ what it is about

#: What a partial has in the places that its calls fill (Python 3.14); equal to nothing before.
_HOLE: Any = getattr(functools, "Placeholder", object())


def unbound(fn: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The function within partials, and what these bind by position and by name. Of any other function itself, with nothing."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        given = iter(args)
        args = (*(next(given, one) if one is _HOLE else one for one in fn.args), *given)
        kwargs = {**fn.keywords, **kwargs}
        fn = fn.func
    return fn, args, kwargs


def _name_of(fn: Callable[..., Any]) -> str:
    """Module and qualified name. A program that is run and imported elsewhere must not have two names."""
    fn, _, _ = unbound(fn)
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    module = named.__module__
    if module == "__main__":
        main = inspect.getmodule(named)
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec is not None else file.rsplit("/", 1)[-1].removesuffix(".py") if file else module
    return f"{module}.{named.__qualname__}"


# ------------------------------------------------------------------ one call


class _Call:
    """One call of an idempotent function: its key, what was decided about it, and what is told about it."""

    def __init__(self, body: _Body, args: tuple[Any, ...], kwargs: Mapping[str, Any], blocking: bool = True) -> None:
        o = self.options = body.options
        self.body = body
        self.where: Surroundings = surroundings()
        self.store = self.where.store() if o.store is default_store else o.store()
        bound = isinstance(self.where, InCelery) and bool(args) and args[0] is self.where.task
        try:
            key, fingerprint = body.key(args, kwargs, bound)
        except InvalidArgument as error:
            if isinstance(self.where, InJob):  # the next attempt has the same arguments
                raise PermanentError(str(error)) from error
            raise
        self.ask = Ask(
            self.where.tenant or o.tenant, key, o.name, self.where.owner, fingerprint, o.terms, self.where.again
        )
        self.tell = Teller(o.name, key)
        #: What the body is given as its session, and what follows from that.
        self.session: Any = body.session(args, kwargs)
        self.together: Together | None = None
        if self.session is not None:
            from duly.idempotency.together import Together, session_of

            found = session_of(self.session)
            later = functools.partial(self.where.later, InProgress(o.name, 1.0))
            self.together = None if found is None else Together(found, self.store, self.ask, self.tell, later)
        self._blocking = blocking
        self._place = self.store
        #: The call seems to be made in its caller's own write transaction. Threads are shared and sessions handed on, so it may not be.
        self._seems_inside = False
        #: Which of Django's connections the body uses.
        self._noted: Noted | None = None
        #: What the body writes with and was not given.
        self._taken: Taken | None = None
        self._caller = weakref.ref(caller())
        #: The key is part of Django's transaction on an SQLite file.
        self._block: InBlock | None = None

    def traced(self) -> contextlib.AbstractContextManager[None]:
        """Within: the trace that the call brought along, for the body and for what is told of it."""
        brought = self.where.traceparent
        return contextlib.nullcontext() if brought is None else carried(brought)

    # --- before

    def begin(self) -> bool:
        """Find the place to ask, on the caller's own thread. Is that in the session's transaction?"""
        if self.together is not None:
            self._place = self.together.place()
            if self.together.inside:
                return True
        self._block = block_on(self.store) if self._in_django else None
        self._seems_inside = self.store.would_wait_for_caller(self._blocking) or (
            self._in_django and keeps_file(self.store)
        )
        return False

    @property
    def _in_django(self) -> bool:
        """May the call be made inside of a block of Django's? There is none on an event loop."""
        return self._blocking and "django.db" in sys.modules

    def _ask(self) -> Holding | Done | Busy | Mismatch:
        if self.together is not None and self.together.inside:
            return KEEPER.join(self._place, self.ask)
        if self._block is not None:
            return KEEPER.join(self._block, self.ask)
        if (known := decided(self.store, self.ask, self._caller)) is not None:
            return known
        until = time.monotonic() + PATIENCE if self._seems_inside else 0.0
        while self._seems_inside:
            try:
                with self.store.hurried():
                    return KEEPER.reserve(self._place, self.ask)
            except StoreBusy:
                if time.monotonic() >= until:
                    raise UsageError(
                        f"{self.options.name} was called in the middle of a write transaction on the database that its key is in. SQLite "
                        "has one writer, so the two would wait for each other. Call it before the first write or after the commit; or give "
                        "the function a parameter annotated Session and hand the session on, then its key is part of that transaction. "
                        "In Django's transaction.atomic(): call it first in the block, or give it a store elsewhere (store=)."
                    ) from None
                time.sleep(LOOK.base)
        return KEEPER.reserve(self._place, self.ask)

    def reserve(self) -> Holding | None:
        """Ask the store. A holding means run; None means that the store is out of reach and the body runs all the same.

        Raises UsageError where the answer waits for a transaction that only the caller can end.
        """
        try:
            found = self._ask()
        except StoreUnavailable as error:
            self.tell.emit("idempotency_store_failed", "warning", error=brief(error))
            if self.options.on_store_error == "run":
                return None
            if self.options.on_store_error == "raise":
                raise
            self.where.later(error)
        if isinstance(found, Holding):
            self.tell.emit("idempotency_attempt", result="allowed", took_over=found.took_over)
            self.tell.emit("idempotency_state", state=State.IN_PROGRESS.value)
            return found
        if isinstance(found, Mismatch):
            self.tell.emit("idempotency_attempt", result="deduped")
            raise PayloadMismatch(self.options.name)
        raise _Duplicate(found)

    async def areserve(self) -> Holding | None:
        """The same, on an event loop."""
        if self.together is not None and hasattr(self.session, "run_sync"):
            if await self.session.run_sync(lambda _: self.begin()):
                found: Holding | None = await self.session.run_sync(lambda _: self.reserve())
                return found
        else:
            self.begin()
        return await _off_the_loop(self.reserve)

    def answer(self, decision: Done | Busy, deadline: float) -> Any:
        """What a duplicate gets; _Wait when it is to look again."""
        if isinstance(decision, Done):
            self.tell.emit("idempotency_attempt", result="deduped")
            result = self.body.results.decoded(decision.reservation.result)
            if self.options.on_duplicate == "raise":
                raise AlreadyDone(self.options.name, result)
            return result
        left = deadline - time.monotonic()
        # in the session's own transaction nobody else's end will ever be seen
        if self.options.on_duplicate == "wait" and left > 0 and self._place is self.store:
            raise _Wait
        if self.where.comes_again:
            self.tell.emit("idempotency_waits", "debug")  # it counts when it is answered
        else:
            self.tell.emit("idempotency_attempt", result="deduped")
        self.where.later(InProgress(self.options.name, come_again(decision, random.random())))  # noqa: S311

    def look(self, last: Done | Busy) -> Done | Busy | None:
        """Where a call in progress stands now; None when its key is free. As it stood last, when the store does not answer."""
        try:
            decision = self.store.look(self.ask.tenant, self.ask.key)
        except StoreUnavailable as error:
            self.tell.emit("idempotency_store_failed", "warning", error=brief(error))
            return last
        if decision is None or decision.state is State.FAILED:
            return None
        return Done(decision) if decision.state is State.SUCCEEDED else Busy(decision, decision.locked_until)

    def watch(self, holding: Holding | None) -> None:
        """The body begins, on this thread."""
        if holding is not None and self.together is not None:
            self.together.watch(holding)
        if holding is not None and self._in_django:
            self._noted = Noted()
            self._noted.begin()
        # who has given a session has said which transaction the effect is in
        if holding is not None and self.together is None and "sqlalchemy.orm" in sys.modules:
            from duly.idempotency.taken import Taken

            self._taken = Taken()
            self._taken.begin()

    # --- after

    def end(self, holding: Holding | None, result: Any, error: BaseException | None) -> None:
        """Write how the body ended. Raises only where that undoes what the body did."""
        if holding is None:
            return
        end = self._end(holding, result, error)
        blocks = [] if self._noted is None else self._noted.end()
        taken = [] if self._taken is None else self._taken.end()
        if self.together is not None and self._beside_effect(self.together, holding, end):
            return
        if self._block is not None:
            self._write_in_block(holding, end)
        elif not self._pending(holding, end, blocks, taken):
            self._write(holding, end)

    async def aend(self, holding: Holding | None, result: Any, error: BaseException | None) -> None:
        """The same, on an event loop."""
        if holding is None:
            return
        end = self._end(holding, result, error)
        taken = [] if self._taken is None else self._taken.end()
        together = self.together
        if together is not None and hasattr(self.session, "run_sync"):
            if await self.session.run_sync(lambda _: self._beside_effect(together, holding, end)):
                return
        elif together is not None and self._beside_effect(together, holding, end):
            return
        if not self._pending(holding, end, [], taken):
            await _off_the_loop(self._write, holding, end)

    def _pending(self, holding: Holding, end: End, blocks: list[Any], taken: list[Any]) -> bool:
        """Let the end wait for transactions that the body has written in, and was not given. False when there is nothing to wait for."""
        if (blocks or taken) and end.state is State.SUCCEEDED:
            Pending(self.store, holding, self.ask, end, self._write, self._write_later).wait(blocks, taken)
            return True
        if taken and is_file(self.store):  # whose file they may keep until the caller has ended them
            self._write_later(holding, end)
            return True
        return False

    def _end(self, holding: Holding, result: Any, error: BaseException | None) -> End:
        KEEPER.let_go(holding)
        if error is None and self.where.asked_again:
            return End(None, Holding.release)  # it has not succeeded (T004-f)
        if error is None:
            text, problem = self.body.results.encoded(result)
            if problem:
                self.tell.emit("idempotency_result_dropped", "warning", problem=problem)
            return End(State.SUCCEEDED, lambda h: h.succeed(text), text)
        if is_control(error):
            return End(None, Holding.release)
        kind = orjson.dumps({"type": type(error).__name__}).decode()
        return End(State.FAILED, lambda h: h.fail(kind))

    def _beside_effect(self, together: Together, holding: Holding, end: End) -> bool:
        """Let the end wait for the commit of what the body wrote. False when there is nothing to wait for."""
        done = together.end(holding, end)
        if done is None:
            self.tell.emit("idempotency_lost", "warning")
            self.where.later(InProgress(self.options.name, 1.0))
        return done

    def _write(self, holding: Holding, end: End) -> None:
        """Write an end, now or as soon as the store takes it. Never raises: what the body did is done."""
        try:
            self._written(holding, end)
        except Exception as failure:
            self.tell.emit("idempotency_store_failed", "error", error=brief(failure))
            self._write_later(holding, end)

    def _write_later(self, holding: Holding, end: End) -> None:
        """Write it on the store's own thread."""
        KEEPER.end_later(holding, functools.partial(self._written, holding, end))

    def _write_in_block(self, holding: Holding, end: End) -> None:
        """Write an end in Django's transaction. One that is broken is rolled back, and the reservation with it."""
        try:
            self._written(holding, end)
        except Exception as failure:
            self.tell.emit("idempotency_store_failed", "warning", error=brief(failure))

    def _written(self, holding: Holding, end: End) -> bool:
        """Write an end, and tell it once it is written."""
        held = end.write(holding)
        if not held:
            self.tell.emit("idempotency_lost", "warning")
        elif end.state is not None:
            self.tell.emit("idempotency_state", state=end.state.value)
        return held

    def thrown_away(self, holding: Holding | None) -> None:
        """The body was destroyed with its event loop: nobody can wait here for a write."""
        if self._taken is not None:
            self._taken.leave()
        if holding is not None:
            if self.together is not None:
                self.together.abandon()
            self._write_later(holding, End(State.FAILED, lambda h: h.fail('{"type":"GeneratorExit"}')))


class _Duplicate(Exception):
    """Not an error: the way out of ``reserve`` for a call whose body must not run."""

    def __init__(self, decision: Done | Busy) -> None:
        self.decision = decision


class _Wait(Exception):
    """Look again in a moment."""


class _Body:
    """A function and what is known of it."""

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self.fn, self.options = fn, options
        #: The function within partials, and what these bind: it is part of each call.
        inner, self._bound_args, self._bound_kwargs = unbound(fn)
        self._signature = signature_of(inner)
        instance = instance_parameter(inner)
        #: Not part of the key: what a worker fills in, and what a method belongs to (T004-l).
        self._hidden = {*injected_parameters(inner), *([] if instance is None else [instance])}
        self._first = next(iter(signature_of(fn).parameters), None)
        #: The parameter that is given a session whose commit is the effect's, be it a worker or a caller who gives it.
        sessions = session_parameters(inner)
        self._session = next(iter(sessions), None)
        self._hidden.update(sessions)
        self.results = Results(fn)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], bound: bool = False) -> tuple[str, str]:
        """(key, fingerprint) of a call: the same unless a key function names the work.

        ``bound``: the first argument is the task itself, whatever its parameter is called (Celery's ``bind=True``).
        """
        o, fingerprint = self.options, self.fingerprint(args, kwargs, bound)
        if o.key is None:
            return fingerprint, fingerprint
        chosen = o.key(*args, **kwargs, **self._defaults_of_key(args, kwargs))
        if chosen is None or chosen == "":
            raise InvalidArgument(
                "key", f"of {o.name} is {chosen!r}.", "Let the key function give what names the work."
            )
        given = canonical_task_key(o.name, (chosen,), namespace="key", fallback=o.fallback, naive_zone=o.naive_zone)
        return given, fingerprint

    def _defaults_of_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The function's defaults that the key function takes and the call leaves out."""
        try:
            assert self.options.key is not None
            taken = signature_of(self.options.key)
            given = taken.bind_partial(*args, **kwargs).arguments
            call = signature_of(self.fn).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return {}
        call.apply_defaults()
        return {
            name: call.arguments[name] for name, p in taken.parameters.items()
            if name not in given and name in call.arguments and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }  # fmt: skip

    def _whole(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """A call as the function within partials gets it."""
        if self._bound_args:
            given = iter(args)
            args = (*(next(given, one) if one is _HOLE else one for one in self._bound_args), *given)
        return args, {**self._bound_kwargs, **kwargs} if self._bound_kwargs else kwargs

    def session(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the body is given as its session, if anything."""
        if self._session is None:
            return None
        args, kwargs = self._whole(args, kwargs)
        if self._session in kwargs:
            return kwargs[self._session]
        return self._signature.bind(*args, **kwargs).arguments.get(self._session)

    def fingerprint(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], bound: bool = False) -> str:
        """The canonical key of a call (R004-10)."""
        hidden = self._hidden | {self._first} if bound and self._first is not None else self._hidden
        args, kwargs = self._whole(args, kwargs)
        return canonical_task_key(
            self.options.name,
            args,
            kwargs,
            signature=self._signature,
            ignore=hidden | self.options.ignore,
            fallback=self.options.fallback,
            naive_zone=self.options.naive_zone,
        )


def session_parameters(fn: Callable[..., Any]) -> list[str]:
    """Which parameters take a session: annotated as one, as one or None, as one of a class of one's own, or called ``session``."""
    try:
        hints = get_type_hints(fn)
    except (NameError, TypeError):
        hints = {}
    found = [name for name, what in injected_parameters(fn).items() if what.endswith("session")]
    for p in signature_of(fn).parameters.values():
        kind = hints.get(p.name)
        plain = p.name == "session" and kind is None and p.default is None
        if p.name not in found and (plain or any(map(_is_session, (kind, *get_args(kind))))):
            found.append(p.name)
    return found


def _is_session(kind: object) -> bool:
    """SQLAlchemy's own, or a class made of it. Nothing is imported for that."""
    names = [f"{c.__module__}.{c.__name__}" for c in getattr(get_origin(kind) or kind, "__mro__", ())]
    return any(n.startswith("sqlalchemy.") and n.rpartition(".")[2] in _SESSIONS for n in names)


def _wrapped(fn: Callable[..., Any], options: Options) -> Callable[..., Any]:
    body = _Body(fn, options)
    if "sqlalchemy.orm" in sys.modules:
        import duly.idempotency.taken  # noqa: F401 (it hears which sessions begin from now on)
    made = _around(body)
    # Celery checks the arguments of a call against this, and looks through no wrapper
    made.__signature__ = signature_of(fn)  # type: ignore[attr-defined]
    made.idempotency_key = lambda *args, **kwargs: body.key(args, kwargs)[0]  # type: ignore[attr-defined]
    return made


def _around(body: _Body) -> Callable[..., Any]:
    fn, options = body.fn, body.options
    if is_async(fn):

        @functools.wraps(fn)
        async def on_the_loop(*args: Any, **kwargs: Any) -> Any:
            call = _Call(body, args, kwargs, blocking=False)
            with call.traced():
                return await awaited(call, args, kwargs)

        async def awaited(call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            deadline, looks = time.monotonic() + options.wait_timeout, 0
            while True:
                try:
                    holding = await call.areserve()
                    break
                except _Duplicate as duplicate:
                    decision: Done | Busy | None = duplicate.decision
                while decision is not None:
                    try:
                        return call.answer(decision, deadline)
                    except _Wait:
                        looks += 1
                        await asyncio.sleep(min(LOOK.delay(looks), max(0.0, deadline - time.monotonic())))
                        decision = await _off_the_loop(call.look, decision)
            call.watch(holding)
            try:
                result = await fn(*args, **kwargs)
            except GeneratorExit:
                call.thrown_away(holding)
                raise
            except BaseException as error:
                await call.aend(holding, None, error)
                raise
            await call.aend(holding, result, None)
            return result

        return on_the_loop

    @functools.wraps(fn)
    def plain(*args: Any, **kwargs: Any) -> Any:
        call = _Call(body, args, kwargs)
        with call.traced():
            return called(call, args, kwargs)

    def called(call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        deadline, looks = time.monotonic() + options.wait_timeout, 0
        while True:
            try:
                call.begin()
                holding = call.reserve()
                break
            except _Duplicate as duplicate:
                decision: Done | Busy | None = duplicate.decision
            while decision is not None:
                try:
                    return call.answer(decision, deadline)
                except _Wait:
                    looks += 1
                    time.sleep(min(LOOK.delay(looks), max(0.0, deadline - time.monotonic())))
                    decision = call.look(decision)
        call.watch(holding)
        try:
            result = fn(*args, **kwargs)
            if is_unawaited(result):
                raise InvalidArgument(
                    options.name,
                    "is a plain function and returned an awaitable: its work has not been done.",
                    "Define it with `async def`.",
                )
        except BaseException as error:
            call.end(holding, None, error)
            raise
        call.end(holding, result, None)
        return result

    return plain


async def _off_the_loop(fn: Callable[..., R], *args: Any) -> R:
    """On a thread, and to its end even when the caller is cancelled meanwhile: what is written is known."""
    work = asyncio.ensure_future(asyncio.to_thread(fn, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_given_back)
        raise


def _given_back(work: asyncio.Future[Any]) -> None:
    """A reservation came after its caller had gone: nobody will run the body."""
    if not work.cancelled() and work.exception() is None and isinstance(work.result(), Holding):
        holding: Holding = work.result()
        KEEPER.end_later(holding, holding.release)

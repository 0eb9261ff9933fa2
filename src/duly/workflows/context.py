"""What a workflow's code holds in its hands: ``ctx``.

Each thing it asks for gets the next number. What is on record under that number is its answer; what is not is done and recorded before
the code goes on. Where nothing can go on, the run is put down (``Suspended``) and holds no worker until there is news.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast, overload

from duly.jobs.enqueue import NewJob
from duly.jobs.forgotten import Dropped
from duly.jobs.run import LeaseLost, UnreadableInput
from duly.jobs.task import FARTHEST, Call, Task
from duly.kernel.backoff import Backoff
from duly.kernel.duration import Duration
from duly.kernel.errors import Cancel, DatabaseError, InvalidArgument, InvalidPayload, PermanentError
from duly.kernel.exception_group import leaves
from duly.kernel.localtime import in_utc
from duly.kernel.payload import check_name, check_whole, read_duration, read_seconds
from duly.workflows.calling import WITHIN
from duly.workflows.identity import Fingerprints, of_call, of_values
from duly.workflows.pending import (
    Note,
    Operation,
    Pending,
    asking,
    forgotten,
    in_another_task,
    verb_of,
)
from duly.workflows.plan import Attempts, check_same
from duly.workflows.step import (
    FINAL,
    Ahead,
    Approval,
    Changed,
    ChildFailed,
    Kind,
    Status,
    Step,
    StepFailed,
    WaitTimedOut,
)
from duly.workflows.store import value_of
from duly.workflows.values import decoded

if TYPE_CHECKING:
    from duly.workflows.advance import Advance
    from duly.workflows.workflow import Workflow, WorkflowCall

P = ParamSpec("P")
T = TypeVar("T")

_RAISE: Any = object()


class Interrupted(BaseException):
    """The turn is over for a reason that is none of the workflow's: no ``except Exception`` of it may take it for the failure of a step."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class CalledOff(BaseException):
    """An operator has called the run off: what it has done is undone. No ``except Exception`` of a workflow catches it."""


class Renewed(BaseException):
    """The run begins anew with another input. No ``except Exception`` of a workflow catches it."""

    def __init__(self, input: str, version: int, definition: Any) -> None:
        super().__init__("the run begins anew")
        self.input, self.version, self.definition = input, version, definition


class Suspended(BaseException):
    """The run goes on when there is news of one of these. No ``except Exception`` of a workflow catches it."""

    def __init__(self, waiting: Sequence[Step] = ()) -> None:
        super().__init__("the run waits")
        self.waiting = waiting


#: The attempts of a step that says nothing of them. One for all: each turn asks for all steps again.
PLAIN = Attempts()


@dataclass(slots=True, eq=False)
class Wanted:
    """Something that a workflow asks for. One is made for each thing on record each time that a run goes on; nobody changes it."""

    position: int
    kind: Kind
    name: str
    #: A step: its function, with its arguments; how often it is tried; seconds for one attempt; what undoes it.
    fn: Callable[[], Any] | None = None
    of: Callable[..., Any] | None = None
    attempts: Attempts = PLAIN
    timeout: float | None = None
    compensate: Callable[..., Any] | None = None
    #: A task: makes its job.
    job: Callable[[], NewJob] | None = None
    #: A sleep or a wait: for how long, or until when.
    span: timedelta | None = None
    until: datetime | None = None
    #: What a wait answers when its time is over; without it that raises.
    default: Any = _RAISE
    #: What it is asked for with; None where nothing is.
    arguments: Fingerprints | None = None


@dataclass(frozen=True, slots=True)
class ToUndo:
    """A completed step, and what undoes it. ``of``: the function that answered; None for a child."""

    record: Step
    fn: Callable[..., Any]
    of: Callable[..., Any] | None

    def call(self, **more: Any) -> Any:
        """Undo it, with the answer as it is on record, whatever the code has made of its own copy."""
        answer = value_of(self.record.output)
        if self.of is not None:
            # it was done, whatever the function says now that it returns
            with contextlib.suppress(InvalidArgument):
                answer = decoded(self.of, answer, self.record.name)
        return self.fn(answer, **more)


class WorkflowContext:
    """``ctx``, the first argument of a workflow.

    What a workflow does outside of steps is done again each time the run goes on, so it has to come out the same: clocks, dice and
    the outside world belong into steps. Branches and loops over what steps answered are fine.
    """

    def __init__(
        self, advance: Advance, run_id: int, tenant: str, workflow: str, version: int, history: dict[int, Step]
    ) -> None:
        self._advance, self._history = advance, history
        #: The run's number: its job's id.
        self.run_id, self.tenant, self.workflow, self.version = run_id, tenant, workflow, version
        #: The last position that is on record, or was when the turn began.
        self._asked, self.recorded = 0, max((p for p in history if p > 0), default=0)
        #: The last position that was on record when the turn began.
        self._known = self.recorded
        self._options = _NONE
        #: Why this turn is over. From then on nothing is done any more, whatever the code does on its way out.
        self._over: BaseException | None = None
        #: What was being done then.
        self._doing: list[str] = []
        #: The positions that the code was answered for; of these, the last, and what was raised for them.
        self._answered: set[int] = set()
        self._last: list[int] = []
        self._raised: list[BaseException] = []
        #: Completed steps that can be undone, in their order.
        self._undo: list[ToUndo] = []
        self._undoable: set[int] = set()
        #: What was asked for and not awaited yet, in that order; and the task that may await it.
        self._open: dict[Note, None] = {}
        self._task = asyncio.current_task()

    # ------------------------------------------------------------------ what can be asked for

    @overload
    def step(
        self, name: str, fn: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any
    ) -> Pending[T]: ...

    @overload
    def step(self, name: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Pending[T]: ...

    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Pending[Any]:
        """Call ``fn(*args, **kwargs)``, async or plain (then on a thread), to its end, once, and record what it answers.

        ``fn`` may ask for a ``session`` (by that name, or annotated Session or AsyncSession): its effects in Duly's database and the
        record of the step are then one commit. Without, a worker that dies after the effect and before the record has the next one
        call it again. Answers come back as they can be stored as JSON, or as the function's return annotation says. What it raises is
        tried again after a while (``using``), then raised here as StepFailed; PermanentError at once.
        """
        o = self._take_options()
        _check_name(name)
        if not callable(fn):
            raise InvalidArgument("fn", f"is of type {type(fn).__name__}; it must be a function.")
        if o.name is not None:
            raise InvalidArgument("name", "is given twice.", "A step has its name in its call.")
        frame = asking(__file__)
        return self._want(
            Kind.STEP, name, frame, fn=lambda **more: fn(*args, **kwargs, **more), of=fn, attempts=o.tries(), timeout=o.timeout,
            compensate=o.compensate, arguments=of_call(fn, args, kwargs, frame.f_code.co_cellvars),
        )  # fmt: skip

    def using(
        self, *, attempts: int | None = None, backoff: Backoff | None = None, timeout: Duration | None = None,
        compensate: Callable[..., Any] | None = None, name: str | None = None,
    ) -> WorkflowContext:  # fmt: skip
        """Options of the step or child that is asked for next: ``await ctx.using(attempts=3).step(…)``.

        ``compensate``: called with its answer if the run fails later on; those of later ones first. Of a step: ``attempts``: how often it is
        tried in all (4); ``backoff``: between attempts (10 s × 2ⁿ); ``timeout``: seconds for one attempt of an async function. Of a child:
        ``name``: under which it stands on record; otherwise its task's.
        """
        if name is not None:
            check_name(name, "name")
        if attempts is not None:
            check_whole(attempts, "attempts")
        if timeout is not None:
            timeout = read_seconds(timeout, "timeout", 0, above=True)
        self._options = _StepOptions(attempts, backoff, timeout, compensate, name)
        return self

    @overload
    def enqueue(
        self,
        task: Task[P, Coroutine[Any, Any, T]] | Call[P, Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]: ...

    @overload
    def enqueue(self, task: Task[P, T] | Call[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Pending[T]: ...

    @overload
    def enqueue(self, task: Workflow | WorkflowCall | str, /, *args: Any, **kwargs: Any) -> Pending[Any]: ...

    def enqueue(
        self, task: Task[Any, Any] | Call[Any, Any] | Workflow | WorkflowCall | str, /, *args: Any, **kwargs: Any
    ) -> Pending[Any]:  # fmt: skip
        """Make a child job and wait for its end; answers with its output, as plain JSON. ``task``: a task, also with options
        (``task.using(…)``), a workflow (its run is the child), or a task's name with its input as keywords.

        A child that does not succeed raises ChildFailed.
        """
        return self._child(task, args, kwargs, detached=False)

    def start(
        self, task: Task[Any, Any] | Call[Any, Any] | Workflow | WorkflowCall | str, /, *args: Any, **kwargs: Any
    ) -> Pending[int]:  # fmt: skip
        """Make a child job and do not wait for it; answers with the job's id. Otherwise as ``enqueue``."""
        return self._child(task, args, kwargs, detached=True)

    def _child(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], detached: bool) -> Pending[Any]:
        known = task if isinstance(task, Task | str) else getattr(task, "task", task)
        o = self._take_options()
        for name in ("attempts", "backoff", "timeout"):
            if getattr(o, name) is not None:
                raise InvalidArgument(
                    name, "is an option of a step.", "Those of a child are its task's, or task.using(…)."
                )
        if detached and o.compensate is not None:
            raise InvalidArgument("compensate", "needs the answer of a child that is waited for.", "Use ctx.enqueue.")
        named = o.name or str(known if isinstance(known, str) else getattr(known, "name", "?"))
        return self._want(
            Kind.START if detached else Kind.TASK,
            named,
            job=lambda: self._advance.prepare(self, task, args, kwargs),
            compensate=o.compensate,
            arguments=_of_child(known, args, kwargs),
        )

    def sleep(
        self, span: Duration | None = None, *, until: datetime | None = None, name: str = "sleep"
    ) -> Pending[None]:
        """Wait for seconds or a timedelta, or until an aware instant, without a worker."""
        self._take_no_options("a sleep")
        if (span is None) is (until is None):
            raise InvalidArgument("span", "and until: exactly one is to be given.")
        return self._want(
            Kind.SLEEP, _check_name(name), **_times(_span(span, "span"), _instant(until)),
        )  # fmt: skip

    def wait_event(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        until: datetime | None = None,
        default: Any = _RAISE,
    ) -> Pending[Any]:
        """Wait for ``app.workflows.signal(run, name, payload)``; answers with the payload. A signal that was sent before counts.

        ``timeout`` or ``until``: when to give up; then it answers with ``default``, or raises WaitTimedOut. Either is on record.
        """
        self._take_no_options("a wait")
        if timeout is not None and until is not None:
            raise InvalidArgument("timeout", "and until are both given.", "Give one.")
        times = _times(_span(timeout, "timeout"), _instant(until), default)
        return self._want(Kind.EVENT, _check_name(name), **times)

    def approve(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        until: datetime | None = None,
        default: Any = _RAISE,
    ) -> Pending[Approval]:
        """Wait for a person's yes or no (``duly workflows approve``). Answers with an Approval, which is true for a yes."""
        self._take_no_options("a question")
        if timeout is not None and until is not None:
            raise InvalidArgument("timeout", "and until are both given.", "Give one.")
        times = _times(_span(timeout, "timeout"), _instant(until), default)
        return self._want(Kind.APPROVAL, _check_name(name), **times)

    def now(self) -> Pending[datetime]:
        """The present instant (aware, UTC), the same each time the code is run."""
        self._take_no_options("the present instant")
        return self._want(Kind.NOW, "now")

    def patched(self, name: str) -> Pending[bool]:
        """Was this run here for the first time after the code was changed? Guards new code in a workflow that runs are in the middle of:
        ``if await ctx.patched("second-letter"): …``. Runs that were past this point when it came answer False."""
        self._take_no_options("a guard")
        self._refuse_within()
        check_name(name, "name")
        self._advance.knows_guard(self, name)
        record = self._history.get(self._asked + 1)
        if record is None and self.recorded <= self._asked:
            return self._want(Kind.PATCH, name)
        if record is not None and record.kind is Kind.PATCH and record.name == name:
            return self._want(Kind.PATCH, name)
        # the run has gone on from here before: it takes no number
        note = self._noted(verb_of(Kind.PATCH), name, self._asked + 0.5)

        def act() -> Generator[Any, Any, bool]:
            self._begin_to_await(note)
            yield from ()
            return False

        return cast("Pending[bool]", Operation(self, note, (), act))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> Pending[NoReturn]:
        """Begin this run anew with another input and an empty history: ``await ctx.continue_as_new(state)``, for a loop that never ends.

        It is the same run: its id, its key, its place below a parent, and signals that it has not taken yet stay. It goes on with the newest
        version of the workflow. What it has done so far is not undone any more, whatever happens later. Nothing behind this is reached.
        """
        self._take_no_options("a new beginning")
        self._refuse_within()
        note = self._noted("continue_as_new", None, self._asked + 0.5)

        def act() -> Generator[Any, Any, NoReturn]:
            self._begin_to_await(note)
            yield from ()
            if self._over is None:
                self._over = self._advance.renewed(self, args, kwargs)
            raise self._over

        return cast("Pending[NoReturn]", Operation(self, note, (), act))

    def gather(self, *pending: Pending[Any], return_exceptions: bool = False) -> Pending[list[Any]]:
        """Do several things at once, and answer when all are done, in their order: ``await ctx.gather(ctx.step(…), ctx.enqueue(…))``.

        The first that failed raises, once all have ended; with ``return_exceptions`` errors stand in the list.
        """
        parts = [one for one in pending if isinstance(one, Operation)]
        strange = next(
            (one for one in pending if not isinstance(one, Operation) or one.owner is not self or len(one.wanted) != 1),
            None,
        )
        problem = "holds the same thing twice." if len({id(one) for one in parts}) < len(parts) else ""
        if strange is not None:
            problem = f"holds a {type(strange).__name__}."
        wanted = [w for one in parts for w in one.wanted]
        note = self._noted("gather", None, min((w.position for w in wanted), default=self._asked + 0.5))
        notes = [note, *(one.note for one in parts)]

        def act() -> Generator[Any, Any, list[Any]]:
            self._begin_to_await(*notes)
            if problem:
                raise InvalidArgument(
                    "pending", problem, "Give what ctx.step, ctx.enqueue and their like return, each once, not awaited."
                )
            return (yield from self._gathered(wanted, return_exceptions).__await__())

        return cast("Pending[list[Any]]", Operation(self, note, wanted, act))

    async def _gathered(self, wanted: Sequence[Wanted], return_exceptions: bool) -> list[Any]:
        records = [self._on_record(w) for w in wanted]
        open_ones = [w for w, r in zip(wanted, records, strict=True) if r is None or r.status is Status.WAITING]
        if open_ones:
            try:
                fresh = iter(await self._resolve(open_ones))
            except BaseException:
                for w, r in zip(wanted, records, strict=True):
                    if r is not None and r.status in FINAL:  # what undoes it is known, although not all has ended
                        self._answered.add(r.position)
                        self._note_undo(w, r)
                raise
            records = [next(fresh) if r is None or r.status is Status.WAITING else r for r in records]
        answers: list[Any] = []
        first: Exception | None = None
        self._begin_to_answer(wanted)
        for w, r in zip(wanted, records, strict=True):
            assert r is not None
            try:
                answers.append(self._answer(w, r))
            except Exception as error:
                first = first or error
                answers.append(error)
        if first is not None and not return_exceptions:
            raise first
        return answers

    # ------------------------------------------------------------------ beneath

    def _blamed(self, error: BaseException) -> list[int]:
        """The steps whose failure an error of the code is, where they were the last that it was answered for. Those that were asked for at
        once have failed together."""
        found: BaseException | None = error
        while found is not None and not any(leaf is raised for leaf in leaves(found) for raised in self._raised):
            # what is raised while a failure is handled stands for it where it was raised on purpose
            found = found.__cause__ or (found.__context__ if isinstance(found, PermanentError) else None)
        if found is None:
            return []
        return [
            p for p in self._last if p in self._history and self._history[p].status in (Status.FAILED, Status.TIMED_OUT)
        ]

    def _want(self, kind: Kind, name: str, frame: FrameType | None = None, /, **more: Any) -> Pending[Any]:
        self._refuse_within()
        self._asked += 1
        wanted = Wanted(self._asked, kind, name, **more)
        note = self._noted(verb_of(kind), name, wanted.position, frame)

        def act() -> Generator[Any, Any, Any]:
            self._begin_to_await(note)
            record = self._on_record(wanted)
            if record is None or record.status is Status.WAITING:
                [record] = yield from self._resolve([wanted]).__await__()
            self._begin_to_answer([wanted])
            return self._answer(wanted, record)

        return cast("Pending[Any]", Operation(self, note, (wanted,), act))

    def _noted(self, verb: str, name: str | None, position: float, frame: FrameType | None = None) -> Note:
        frame = frame or asking(__file__)
        note = Note(verb, name, position, frame.f_code.co_filename, frame.f_lineno)
        self._open[note] = None
        return note

    def _begin_to_await(self, *own: Note) -> None:
        """These are awaited now. Raises NotAwaited where something that was asked for before them was forgotten, before anything is done."""
        self._refuse_within()
        if asyncio.current_task() is not self._task:
            raise in_another_task(own[0])
        if len(self._open) > len(own) or any(note not in self._open for note in own):
            last = max(note.position for note in own)
            if left := [n for n in self._open if n not in own and (n.dropped or n.position < last)]:
                raise forgotten(left)
        for note in own:
            self._open.pop(note, None)

    def note_helper(self, dropped: Dropped) -> None:
        """The code has called a coroutine function and never awaited it: nothing of it was begun."""
        note = Note("", dropped.name, self._asked + 0.5, dropped.file, dropped.line, dropped=True)
        self._open[note] = None

    def check_all_awaited(self) -> None:
        """Raise NotAwaited where the code has ended and something that it asked for was never awaited."""
        if self._open:
            raise forgotten(list(self._open))

    def _refuse_within(self) -> None:
        step = WITHIN.get()
        if step is not None and step[0] is self._advance:
            raise PermanentError(
                f"ctx was asked for something within step {step[1]!r}, which is called once and not again when the run goes on. "
                "Ask for it in the workflow's function, and give the step its answer."
            )

    def _take_no_options(self, what: str) -> None:
        if self._take_options() != _NONE:
            raise InvalidArgument("using", f"is given for {what}.", "Its options are those of a step or a child.")

    def _take_options(self) -> _StepOptions:
        o, self._options = self._options, _NONE
        return o

    async def _resolve(self, wanted: Sequence[Wanted]) -> list[Step]:
        try:
            return await self._advance.resolve(self, wanted)
        except (LeaseLost, DatabaseError, Cancel) as error:
            self._over = Interrupted(error)
            raise self._over from None
        except Exception:
            raise
        except BaseException as error:
            self._over, self._doing = error, [w.name for w in wanted]
            raise

    def _on_record(self, wanted: Wanted) -> Step | None:
        if self._over is not None:
            raise self._over
        record = self._history.get(wanted.position)
        if record is not None:
            try:
                check_same(record, wanted.kind, wanted.name, wanted.arguments, self._history)
            except (Changed, Ahead) as error:
                self._over = Interrupted(error)
                raise self._over from None
        return record

    def _note_undo(self, wanted: Wanted, record: Step) -> None:
        """Note what undoes a step: it was done, whatever the code makes of the answer, and also where the answer is lost."""
        if wanted.compensate is not None and record.has_effect and record.position not in self._undoable:
            self._undoable.add(record.position)
            self._undo.append(ToUndo(record, wanted.compensate, wanted.of))

    def _begin_to_answer(self, wanted: Sequence[Wanted]) -> None:
        self._last, self._raised = [w.position for w in wanted], []

    def _answer(self, wanted: Wanted, record: Step | None) -> Any:
        """What the code gets for a final step. Raises what it raises."""
        assert record is not None
        self._answered.add(record.position)
        failure: Exception | None = None
        if record.status is Status.FAILED:
            child = record.kind is Kind.TASK
            failure = (
                ChildFailed(record.name, record.error, record.child_id)
                if child
                else StepFailed(record.name, record.error)
            )
        elif record.status is Status.TIMED_OUT:
            if wanted.default is not _RAISE:
                return wanted.default
            failure = WaitTimedOut(record.name)
        self._note_undo(wanted, record)
        if failure is not None:
            self._raised.append(failure)
            raise failure
        if record.kind is Kind.STEP and wanted.of is not None:
            try:
                return decoded(wanted.of, value_of(record.output), record.name)
            except InvalidPayload as error:
                if record.position > self._known:
                    raise  # the function does not return what it says
                # it was recorded by other code, which may be newer
                self._over = Interrupted(UnreadableInput(error.field, error.problem, error.remedy))
                raise self._over from None
        value = value_of(record.output)
        if record.kind is Kind.APPROVAL:
            return Approval(bool(value["approved"]), value["by"], value["reason"], datetime.fromisoformat(value["at"]))
        return datetime.fromisoformat(value) if record.kind is Kind.NOW else value


@dataclass(frozen=True, slots=True)
class _StepOptions:
    attempts: int | None = None
    backoff: Backoff | None = None
    timeout: float | None = None
    compensate: Callable[..., Any] | None = None
    name: str | None = None

    def tries(self) -> Attempts:
        if self.attempts is None and self.backoff is None:
            return PLAIN
        return Attempts(self.attempts or PLAIN.most, self.backoff or PLAIN.backoff)


_NONE = _StepOptions()
#: Names that were checked, as a run goes through its own again each time that it goes on.
_names: set[str] = set()


def _check_name(name: str) -> str:
    if type(name) is str and name in _names:
        return name
    check_name(name, "name")
    if len(_names) >= 10_000:
        _names.clear()
    _names.add(name)
    return name


def _span(value: Duration | None, field: str) -> timedelta | None:
    if value is None:
        return None
    span = read_duration(value, field)
    if not 0 <= span.total_seconds() <= FARTHEST:
        raise InvalidArgument(field, f"is {value}; it must be from 0 to a hundred years.")
    return span


def _times(span: timedelta | None, until: datetime | None, default: Any = _RAISE) -> dict[str, Any]:
    """How long a sleep or a wait takes, and what it answers then."""
    said = {"span": span, "until": until, **({} if default is _RAISE else {"default": default})}
    return {"span": span, "until": until, "default": default, "arguments": of_values(said)}


def _of_child(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fingerprints:
    """What a child is made of: its task, which may stand on record under another name, and its input."""
    fn, named = getattr(task, "fn", None) or _by_name, task if isinstance(task, str) else getattr(task, "name", None)
    # the first parameter of a workflow is its context
    return [*of_values({"task": named}), *of_call(fn, args, kwargs, skip=0 if isinstance(task, Task | str) else 1)]


def _by_name(**kwargs: Any) -> None:
    """Stands for the function of a task that is known by its name only."""


def _instant(value: datetime | None) -> datetime | None:
    return None if value is None else in_utc(value, "until")

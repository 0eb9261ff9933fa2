"""The actor: runs a workflow's code from its start, with what is on record, until it ends or has to wait.

Whatever it writes is fenced by the job's lease token, in the transaction that writes it. Each time it puts a run down, the job goes
back to its queue with the instant at which there is something to do; signals and the ends of children make that sooner, each in the
transaction that brings the news. A signal that comes while the run is put down is noticed there (``rest``), so none is slept through.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from duly.jobs.calling import called, own, session_parameter, with_session
from duly.jobs.codec import Arguments
from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.jobs.forgotten import listening
from duly.jobs.job import LIVE
from duly.jobs.job import Status as JobStatus
from duly.jobs.run import CURRENT, LeaseLost, Settled, describe
from duly.jobs.run import Run as JobRun
from duly.jobs.settle import Settlement
from duly.jobs.store import FAR, RESUME
from duly.kernel.errors import (
    Cancel,
    DatabaseError,
    DatabaseUnavailable,
    InvalidArgument,
    PermanentError,
    Retry,
    Snooze,
    brief,
)
from duly.kernel.exception_group import decisive
from duly.storage.types import Encoded
from duly.workflows.calling import within
from duly.workflows.context import CalledOff, Interrupted, Renewed, Suspended, Wanted, WorkflowContext
from duly.workflows.plan import (
    Facts,
    called_off,
    check_all_asked_for,
    cut_short,
    failed_attempt,
    labels,
    left_behind,
    look,
    wakes,
)
from duly.workflows.step import CONTINUED, LIFECYCLE, Kind, Status, Step
from duly.workflows.store import Kept, WorkflowStore, needs
from duly.workflows.values import DONE, UnstorableResult, calling, check_done, check_step, encoded


class WorkflowFailed(PermanentError):
    """A run ended in failure, and what was to be undone was."""


class TooLong(PermanentError):
    """A run has more steps on record than the settings allow."""


class _Stop(BaseException):
    """A run that is being undone goes no further than it had come."""


#: Who puts a run down, for the trail of one that was cancelled meanwhile.
ACTOR = "workflow"
#: Makes the job of a child: (context, what is to run, its arguments).
Preparing = Callable[[WorkflowContext, Any, tuple[Any, ...], dict[str, Any]], NewJob]


#: Makes the new beginning of a run: (context, the arguments of its workflow).
Renewing = Callable[[WorkflowContext, tuple[Any, ...], dict[str, Any]], Renewed]


class Memory:
    """The histories of runs that this process put down last: where nobody has taken them up since, they need not be read again."""

    def __init__(self, most: int = 200) -> None:
        self.most = most
        self._kept: OrderedDict[int, tuple[str, dict[int, Step]]] = OrderedDict()
        self._lock, self._process, self._count = threading.Lock(), secrets.token_hex(8), itertools.count()
        self._unrecorded: OrderedDict[tuple[int, int], Unrecorded] = OrderedDict()

    def mark(self) -> str:
        """A mark that nobody has made before."""
        return f"{self._process}-{next(self._count)}"

    def keep(self, ident: int, mark: str, history: dict[int, Step]) -> None:
        """Remember a history that stands in the database under a mark."""
        with self._lock:
            self._kept[ident] = mark, history
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)

    def take(self, ident: int) -> tuple[str, dict[int, Step]] | None:
        """The mark and the history, forgotten here: whoever takes them may change them."""
        with self._lock:
            return self._kept.pop(ident, None)

    def hold(self, ident: int, done: Unrecorded) -> None:
        """Remember what came of a step that could not be recorded."""
        with self._lock:
            self._unrecorded[ident, done.wanted.position] = done
            while len(self._unrecorded) > self.most:
                self._unrecorded.popitem(last=False)

    def unrecorded(self, ident: int, wanted: Wanted, since: datetime | None) -> Unrecorded | None:
        """What came of a step that this process has called and could not record, unless the run has gone on elsewhere since. Forgotten here."""
        with self._lock:
            done = self._unrecorded.pop((ident, wanted.position), None)
        if done is None or done.since != since:
            return None
        same = (done.wanted.kind, done.wanted.name, done.wanted.arguments)
        return done if same == (wanted.kind, wanted.name, wanted.arguments) else None


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """What came of a step. ``since``: when its run was last put down before. ``make``: its record as of an instant."""

    wanted: Wanted
    since: datetime | None
    make: Callable[[datetime], Step]


class Advance:
    """One turn of a run: from the claim of its job to where it ends or waits."""

    def __init__(
        self, engine: Engine, store: WorkflowStore, prepare: Preparing, anew: Renewing, memory: Memory
    ) -> None:
        run = CURRENT.get()
        assert isinstance(run, JobRun), "a run is a job of a worker"
        self.job = run
        self.engine, self.db, self.store, self.prepare, self.memory = engine, engine.db, store, prepare, memory
        self._anew = anew
        self.history: dict[int, Step] = {}
        #: When the turn began, by the clock that statements compare with.
        self.now: datetime
        #: How many signals the run was sent, as far as it has looked; and as of the last transaction here.
        self._news, self._sent = 0, 0
        self._risen, self._mark = False, ""
        self._failing = False
        #: Is the run being undone, and has an operator called it off since this turn began?
        self._undoing, self._called_off = False, False
        #: When the run was last put down.
        self._since: datetime | None = None

    # ------------------------------------------------------------------ the turn

    async def run(self, kept: Kept, code: Callable[..., Any], arguments: Callable[[], Arguments]) -> Any:
        """Answer what the workflow returns. ``arguments``: makes its input, anew each time that the code is called.

        Raises Settled where it was put down, LeaseLost, WorkflowFailed, or what is to be tried again.
        """
        kept = await self._load(kept)
        while True:
            try:
                return await self._turn(kept, code, arguments())
            except Interrupted as interrupted:
                raise interrupted.cause from None
            except CalledOff:
                pass  # what it has done is undone now
            except Renewed as renewed:
                raise Settled(await self._write(partial(self._renew, kept=kept, renewed=renewed))) from None
            except Suspended as suspended:
                settlement = await self.db.arun(self.db.write, partial(self._put_down, waiting=suspended.waiting))
                if settlement is not None:
                    self.memory.keep(kept.id, self._mark, self.history)
                    raise Settled(settlement) from None
            kept = await self._write(partial(self._look_again, kept=kept))

    async def _turn(self, kept: Kept, code: Callable[..., Any], arguments: Arguments) -> Any:
        assert kept.version is not None
        self._undoing, self._called_off = kept.failing is not None, False
        ctx = WorkflowContext(self, kept.id, kept.tenant, kept.workflow, kept.version, self.history)
        if kept.failing is not None and not kept.failing.get("over"):
            await self._go_back(ctx, code, arguments, kept.failing)
        elif kept.failing is not None:  # of an end that an operator has had go on again as a job
            await self._write(lambda c: self.store.set_failing(c, kept.id, None))
            self._undoing = False
        try:
            with listening(ctx.note_helper):
                answer = await code(ctx, *arguments.args, **arguments.kwargs)
            if ctx._over is not None:  # the code has swallowed it
                raise ctx._over
            ctx.check_all_awaited()
            check_done(answer, f"workflow {kept.workflow}")
        except BaseException as raised:
            error = raised
            if ctx._over is not None:
                if not self._cut_itself_off(ctx._over):
                    raise ctx._over from None
                error = InvalidArgument(
                    "ctx", f"was cut off by the code itself (asyncio.timeout, wait_for, a cancel) while it did {', '.join(ctx._doing)}, "
                    "which may be done, or be done yet, and is not undone.",
                    "Give a step `ctx.using(timeout=…)`, and a wait its own `timeout`.",
                )  # fmt: skip
            elif not self._ends(error):
                raise
            failing = describe(error, self.now)
            left = left_behind(self.history, ctx._answered)
            if ctx._over is not None:  # what it cut off is not behind it
                left = [step for step in left if step.position > ctx._asked]
            if left:  # of what lies there nobody says what undoes it
                raise cut_short(self.history, left, _in_words(failing)) from error
            # a replay does anew what has ended the run
            failing |= {"steps": ctx._blamed(error), "over": not ctx._undo}
            if ctx._undo or failing["steps"]:
                self._undoing = True
                await self._write(lambda c: self.store.set_failing(c, kept.id, failing))
            if not ctx._undo:
                raise WorkflowFailed(_in_words(failing)) from error
            await self._undo(ctx, failing)
        check_all_asked_for(self.history, ctx._answered)
        return answer

    def _ends(self, error: BaseException) -> bool:
        """Does an error of the code end the run, so that its steps are undone? Otherwise the run is tried again, or gives way."""
        error = decisive(error)
        if isinstance(error, Snooze | Cancel | GeneratorExit):
            return False
        if isinstance(error, asyncio.CancelledError) and self._is_interrupted():
            return False
        # what the code asks for wrongly, it would ask for wrongly again
        final = isinstance(error, PermanentError | InvalidArgument)
        return final or self.job.claimed.attempts >= self.job.claimed.max_attempts

    def _cut_itself_off(self, over: BaseException) -> bool:
        """Was a turn ended by a cancellation that was the code's own? One from outside is still to be heard by the task."""
        return isinstance(over, asyncio.CancelledError) and not self._is_interrupted()

    def _is_interrupted(self) -> bool:
        """Has somebody outside of the code asked this turn to stop?"""
        task = asyncio.current_task()
        return self.job.reason is not None or self.job.settled or (task is not None and task.cancelling() > 0)

    async def _load(self, kept: Kept) -> Kept:
        remembered = self.memory.take(kept.id)

        def read(connection: Connection) -> tuple[Kept, dict[int, Step], datetime]:
            # the row first: a signal that comes after it is news
            fresh = self.store.run(connection, kept.id)
            assert fresh is not None
            same = remembered is not None and fresh.rested == remembered[0]
            history = remembered[1] if remembered is not None and same else self.store.history(connection, kept.id)
            return fresh, history, self.db.present(connection)

        fresh: Kept
        fresh, history, self.now = await self.db.arun(self.db.read, read)
        if history is not self.history:
            self.history.clear()
            self.history.update(history)
        self._news, self._risen, self._since = fresh.news, fresh.rested is None, fresh.updated_at
        return fresh

    def _look_again(self, connection: Connection, kept: Kept) -> Kept:
        """The run's row as it is now, while this worker holds it: so nobody else has written to its history, which is not read again."""
        fresh = self.store.run(connection, kept.id)
        assert fresh is not None
        self.now, self._news = self.db.present(connection), fresh.news
        return fresh

    async def _write(self, act: Callable[[Connection], Any]) -> Any:
        """Do something in a transaction that only commits while this worker holds the run. Raises LeaseLost."""

        def fenced(connection: Connection) -> Any:
            self._hold(connection)
            return act(connection)

        answer = await self.db.arun(self.db.write, fenced)
        self._got_on()
        return answer

    def _hold(self, connection: Connection) -> None:
        """In a transaction that writes: hold the run, or raise LeaseLost."""
        called_off, news = self.store.fence(connection, self.job.claimed)
        self._sent = news
        if called_off and not self._undoing:
            self._called_off = True
        if not self._risen:
            self.store.rise(connection, self.job.claimed.id)

    def _got_on(self) -> None:
        """What was held is written. The fence counts attempts from one, so does this run."""
        self._risen = True
        if self.job.claimed.attempts > 1:
            self.job.claimed = self.job.claimed._replace(attempts=1)

    async def _record(self, w: Wanted, make: Callable[[datetime], Step], began: float) -> None:
        """Put a step on record. ``make``: the step as it is at an instant, by the clock that statements compare with. ``began``: monotonic.

        The step is done by now. So while the database is away this waits for it, as long as a lease is held; after that, this process
        remembers what came of the step, and records it when it has the run again, instead of calling the step twice.
        """
        unsure, pause = False, 0.1
        until = time.monotonic() + self.engine.settings.lease

        def act(connection: Connection) -> Step:
            if unsure:  # a commit whose answer was lost may have been one
                there = self.store.step(connection, self.job.claimed.id, w.position)
                known = self.history.get(w.position)
                if there is not None and (known is None or there.attempts > known.attempts):
                    return there
            return self._put_on_record(connection, make, began)

        try:
            while True:
                try:
                    step: Step = await self._write(act)
                    break
                except DatabaseUnavailable as error:
                    if time.monotonic() + pause > until:
                        raise
                    if not unsure:
                        self.engine.emitter.emit(
                            "workflow_answer_waits", "warning", run=self.job.claimed.id, step=w.name, error=brief(error)
                        )
                    unsure = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)
        except BaseException:
            self.memory.hold(self.job.claimed.id, Unrecorded(w, self._since, make))
            raise
        self.history[step.position] = step

    def _put_on_record(self, connection: Connection, make: Callable[[datetime], Step], began: float) -> Step:
        now = self.db.present(connection)
        step = replace(make(now), started_at=now - timedelta(seconds=time.monotonic() - began))
        self.store.write(connection, [step], self.history)
        return step

    def _put_down(self, connection: Connection, waiting: Sequence[Step]) -> Settlement | None:
        """Write that the run waits, and settle its job. None where there is news already."""
        claimed = self.job.claimed
        shown = [{"kind": s.kind.value, "name": s.name, "position": s.position, "until": s.due_at} for s in waiting]
        self._mark = self.memory.mark()
        if not self.store.rest(connection, claimed.id, shown, self._news, self._mark):
            return None
        children = [step.child_id for step in waiting if step.kind is Kind.TASK and step.child_id is not None]
        if children:
            self.store.jobs.wait_for(connection, claimed.id, children)
        settlement = Settlement(
            claimed.id, claimed.token, "snooze", JobStatus.QUEUED, until=wakes(waiting) or FAR, counted=False, afresh=True,
            on_child_failure=RESUME if children else None, parent_id=claimed.parent_id, key_scope=claimed.key_scope,
        )  # fmt: skip
        if not self.store.jobs.settle(connection, [settlement], ACTOR):
            raise LeaseLost(f"run {claimed.id} belongs to another worker by now")
        return settlement

    def renewed(self, ctx: WorkflowContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Renewed:
        """The new beginning that the code asks for. Raises InvalidArgument, InvalidPayload for an input that does not fit."""
        if self._failing:
            raise _Stop
        return self._anew(ctx, args, kwargs)

    def _renew(self, connection: Connection, kept: Kept, renewed: Renewed) -> Settlement:
        """Forget what is on record, and settle the job so that the run begins anew."""
        claimed = self.job.claimed
        count = self.store.renew(
            connection, claimed.id, renewed.input, kept.workflow, renewed.version, renewed.definition
        )
        self.store.audit(connection, claimed.id, claimed.tenant, ACTOR, CONTINUED, workflow=kept.workflow, steps=count)
        settlement = Settlement(
            claimed.id, claimed.token, "snooze", JobStatus.QUEUED, counted=False, afresh=True, parent_id=claimed.parent_id,
            key_scope=claimed.key_scope,
        )  # fmt: skip
        if not self.store.jobs.settle(connection, [settlement], ACTOR):
            raise LeaseLost(f"run {claimed.id} belongs to another worker by now")
        return settlement

    # ------------------------------------------------------------------ what the code asks for

    def knows_guard(self, ctx: WorkflowContext, name: str) -> None:
        """The code here has this guard: runs that are past it can be claimed."""
        mine = needs(ctx.workflow, ctx.version, past=name)
        if mine not in self.engine.store.abilities:
            self.engine.store.abilities |= {mine}

    async def resolve(self, ctx: WorkflowContext, wanted: Sequence[Wanted]) -> list[Step]:
        """Do what is asked for, or find out that it has to be waited for. Raises Suspended, _Stop, LeaseLost, TooLong."""
        if self._failing:
            raise _Stop
        self._check_length(ctx, max(w.position for w in wanted))
        if any(w.kind is not Kind.STEP for w in wanted):
            await self._look(ctx, [w for w in wanted if w.kind is not Kind.STEP])
        due = [w for w in wanted if w.kind is Kind.STEP and self._is_due(self.history.get(w.position))]
        if len(due) == 1:
            await self._attempt(due[0])
        elif due:
            await _all(self._attempt(w) for w in due)
        if self._called_off:
            raise CalledOff
        records = [ctx._on_record(w) for w in wanted]
        waiting = [record for record in records if record is not None and record.status is Status.WAITING]
        if waiting:
            raise Suspended(waiting)
        return [record for record in records if record is not None]

    def _check_length(self, ctx: WorkflowContext, position: int) -> None:
        """Warn of a long history, once, and refuse one that is too long."""
        most, warn = self.engine.settings.workflow_steps_max, self.engine.settings.workflow_steps_warn
        if position in self.history or position < min(warn, most):
            return
        if position > most:
            raise TooLong(
                f"the run has {position - 1:,} steps on record, and DULY_WORKFLOW_STEPS_MAX allows {most:,}. Let the workflow begin anew now and then "
                "with `await ctx.continue_as_new(…)`."
            )
        if position >= warn and ctx.recorded < warn:
            ctx.recorded = position
            self.engine.emitter.emit(
                "workflow_history_long", "warning", run=ctx.run_id, workflow=ctx.workflow, steps=position, most=most
            )

    def _is_due(self, step: Step | None) -> bool:
        """Is a step to be called now: for the first time, or again?"""
        return step is None or (step.status is Status.WAITING and (step.due_at is None or step.due_at <= self.now))

    async def _look(self, ctx: WorkflowContext, wanted: Sequence[Wanted]) -> None:
        """Put on record what is new, and what has come of what is waited for, in one transaction."""
        jobs = [(w, w.job()) for w in wanted if w.job is not None and w.position not in self.history]

        def act(connection: Connection) -> tuple[list[Step], list[Step], int]:
            sent = self._sent
            now = self.db.present(connection)
            made = self.engine.maker.make_in(connection, [job for _, job in jobs]) if jobs else []
            children = {w.position: enqueued.job.id for (w, _), enqueued in zip(jobs, made, strict=True)}
            fresh = [
                self._opened(ctx.run_id, w, children.get(w.position), now)
                for w in wanted
                if w.position not in self.history
            ]
            known = [self.history[w.position] for w in wanted if w.position in self.history]
            waiting = [step for step in [*known, *fresh] if step.status is Status.WAITING]
            ended, taken = look(waiting, self._facts(connection, ctx.run_id, waiting, now))
            self.store.take(connection, taken)
            over = {step.position for step in ended}
            new = [next((e for e in ended if e.position == s.position), s) if s.position in over else s for s in fresh]
            known = [step for step in ended if step.position in self.history]
            if new or known:
                self.store.write(connection, [*new, *known], self.history)
            return new, known, sent

        # signals that came before were looked for here, by all that waits for one
        new, known, self._news = await self._write(act)
        self.history.update({step.position: step for step in [*new, *known]})
        if jobs:
            self.db.bells.ring()

    def _opened(self, run_id: int, w: Wanted, child: int | None, now: datetime) -> Step:
        """The record of something new."""
        step = Step(run_id, w.position, w.kind, w.name, started_at=now, child_id=child, arguments=w.arguments)
        if w.kind is Kind.NOW:
            return replace(step, status=LIFECYCLE.target(None, "do"), output=now.isoformat(), finished_at=now)
        if w.kind is Kind.PATCH:
            return replace(step, status=LIFECYCLE.target(None, "do"), output=True, finished_at=now)
        if w.kind is Kind.START:
            return replace(step, status=LIFECYCLE.target(None, "do"), output=child, finished_at=now)
        due_at = w.until if w.until is not None else None if w.span is None else now + w.span
        return replace(step, status=LIFECYCLE.target(None, "wait"), due_at=due_at)

    def _facts(self, connection: Connection, run_id: int, waiting: Sequence[Step], now: datetime) -> Facts:
        kinds = {step.kind for step in waiting}
        signals = self.store.signals(connection, run_id) if kinds & {Kind.EVENT, Kind.APPROVAL} else ()
        idents = [step.child_id for step in waiting if step.child_id is not None]
        return Facts(now, signals, self.store.children(connection, idents) if idents else None)

    # ------------------------------------------------------------------ steps

    async def _attempt(self, w: Wanted) -> None:
        """Call a step's function once, and record what came of it."""
        step = self.history.get(w.position) or Step(
            self.job.claimed.id, w.position, w.kind, w.name, arguments=w.arguments
        )
        assert w.of is not None
        session, began = session_parameter(w.of), time.monotonic()
        if (called_before := self.memory.unrecorded(self.job.claimed.id, w, self._since)) is not None:
            await self._record(w, called_before.make, began)
            return
        try:
            check_step(w.of, w.name, None if session is None else session[1])
            if session is not None:
                done = await self._with_session(w, step, began, *session)
                self._got_on()
                self.history[w.position] = done
                return
            assert w.fn is not None
            with within(self, w.name):
                answer = await called(calling(w.fn, w.name, None), w.of, w.timeout)
            make = partial(_ended, step, self._encoded(w, answer))
        except (DatabaseError, LeaseLost, Cancel, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit too: a step that calls sys.exit() fails, the worker goes on
            if isinstance(error, asyncio.CancelledError) and self._is_interrupted():
                raise
            if isinstance(decisive(error), Cancel | DatabaseError | LeaseLost):
                raise
            make = partial(_failed, step, w, own(error))
        await self._record(w, make, began)

    def _encoded(self, w: Wanted, answer: Any) -> str | None:
        """An answer as it is kept. That of what undoes a step is for people only: it is undone also where its answer cannot be kept."""
        try:
            return encoded(answer, w.name, self.engine.settings.max_payload)
        except UnstorableResult:
            if w.kind is Kind.UNDO:
                return None
            raise

    async def _with_session(self, w: Wanted, step: Step, began: float, parameter: str, kind: str) -> Step:
        """A step whose effects in our database and whose record are one commit."""
        assert w.fn is not None

        def record(connection: Connection, answer: Any) -> Step:
            try:
                text = self._encoded(w, answer)
            except UnstorableResult as error:  # what it did in the session is rolled back
                raise PermanentError(str(error).replace(f". {DONE}", "")) from None
            self._hold(connection)
            return self._put_on_record(connection, partial(_ended, step, text), began)

        with within(self, w.name):
            return await with_session(self.db, calling(w.fn, w.name, kind), parameter, kind, w.timeout, record)

    # ------------------------------------------------------------------ failure

    async def _go_back(
        self, ctx: WorkflowContext, code: Callable[..., Any], arguments: Arguments, failing: dict[str, Any]
    ) -> None:
        """Go on undoing: the code is run to where it had come, so that it says what undoes what."""
        if failing.get("called_off"):
            await self._see_children_end()
        self._failing, raised = True, None
        try:
            await code(ctx, *arguments.args, **arguments.kwargs)
        except (Interrupted, _Stop):
            pass
        except Exception as error:
            raised = error
        self._failing = False
        if isinstance(ctx._over, Interrupted):  # the code was changed, and does not say any more what undoes what
            raise ctx._over
        left = [step for step in left_behind(self.history, ctx._answered) if step.status is not Status.WAITING]
        if left:
            if raised is not None and not self._ends(raised):
                raise raised  # to be tried again: it has not come to where it said what undoes what
            words = "nothing" if raised is None else _in_words(describe(raised, self.now))
            raise cut_short(self.history, left, words) from raised
        await self._undo(ctx, failing)

    async def _see_children_end(self) -> None:
        """Put on record how the children of a run ended that was called off: one that succeeded is done, and to be undone. Raises Suspended
        where one of them goes on yet, also one that the code did not wait for: then nobody can say what stays."""
        made = [s for s in self.history.values() if s.position > 0 and s.child_id is not None]
        if not made:
            return

        def act(connection: Connection) -> tuple[list[Step], list[Step]]:
            now = self.db.present(connection)
            children = self.store.children(connection, [s.child_id for s in made if s.child_id is not None])
            ended, _ = look([s for s in made if s.status is Status.WAITING], Facts(now, (), children))
            if ended:
                self.store.write(connection, ended, self.history)
            live = [s for s in made if s.child_id is not None and children[s.child_id].status in LIVE]
            return ended, live

        ended, live = await self._write(act)
        self.history.update({step.position: step for step in ended})
        if live:
            raise Suspended([replace(s, kind=Kind.TASK, status=Status.WAITING, due_at=None) for s in live])

    async def _undo(self, ctx: WorkflowContext, failing: dict[str, Any]) -> None:
        """Call what undoes the steps that were done, the last first. Raises WorkflowFailed in the end, Suspended in between."""
        left: list[str] = []
        for done in reversed(ctx._undo):
            position, name = done.record.position, done.record.name
            record = self.history.get(-position)
            if record is None or record.status is Status.WAITING:
                if not self._is_due(record):
                    assert record is not None
                    raise Suspended([record])
                await self._attempt(Wanted(-position, Kind.UNDO, name, fn=done.call, of=done.fn))
                record = self.history[-position]
                if record.status is Status.WAITING:
                    raise Suspended([record])
            if record.status is Status.FAILED:
                left.append(name)
        words = _in_words(failing)
        if failing.get("called_off"):
            stays = await self.db.arun(self.db.read, partial(self.store.standing, history=self.history))
            called = labels(self.history)
            raise Cancel(called_off(words, [called[one.record.position] for one in ctx._undo], stays))
        raise WorkflowFailed(words if not left else f"{words} (could not be undone: {', '.join(reversed(left))})")


def _ended(step: Step, text: str | None, now: datetime) -> Step:
    """A step whose function has answered."""
    output = None if text is None else Encoded(text)
    return replace(
        step, status=LIFECYCLE.target(step.status, "do"), output=output, attempts=step.attempts + 1, error=None, due_at=None, finished_at=now
    )  # fmt: skip


def _failed(step: Step, w: Wanted, error: BaseException, now: datetime) -> Step:
    """A step whose function has raised."""
    group, error = error, decisive(error)
    if isinstance(error, Snooze):
        wait = error.after if error.after is not None else (error.until - now).total_seconds() if error.until else 0.0
        return failed_attempt(step, {}, w.attempts, now, after=max(0.0, wait), counts=False)
    after = error.after if isinstance(error, Retry) else None
    final = isinstance(error, PermanentError)
    return failed_attempt(step, describe(group, now), w.attempts, now, final=final, after=after, u=random.random())  # noqa: S311


def _in_words(error: dict[str, Any]) -> str:
    kind, message = error.get("type", "Error"), error.get("message", "")
    return message if kind in ("StepFailed", "ChildFailed", "WaitTimedOut", "PermanentError") else f"{kind}: {message}"


async def _all(attempts: Any) -> None:
    """All of them to their end; the first that raises, raises then."""
    results = await asyncio.gather(*attempts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result

"""Running a document: a function like any other workflow's, which does each step by asking ``ctx`` for it.

So what is promised of workflows holds of documents too. A run is interpreted by the document that it began with, which stands in its row;
nothing here remembers anything between two looks at a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta
from typing import Any

from pydantic_core import to_jsonable_python

from duly.jobs.task import FARTHEST
from duly.kernel.errors import InvalidArgument, PermanentError
from duly.kernel.localtime import instant_on, local_date, resolve
from duly.kernel.payload import read_duration
from duly.kernel.recurrence.reading import read_instant, read_local, read_time
from duly.kernel.source import Source
from duly.workflows.context import WorkflowContext
from duly.workflows.document import (
    CONTINUE,
    EMAIL_TASK,
    NONE,
    Approve,
    Await,
    Document,
    DocumentStep,
    Email,
    Fork,
    Sleep,
    TaskCall,
)
from duly.workflows.expressions import NoValue, filled, holds
from duly.workflows.reading import checked, kind_of
from duly.workflows.step import StepFailed, WaitTimedOut
from duly.workflows.workflow import Workflow

_DAY = timedelta(days=1)


class Rejected(PermanentError):
    """A person said no, and the document does not say what follows."""


#: What ``on_failure: continue`` goes on after. Not among them: a run whose document and history do not agree.
_FAILURES = (StepFailed, WaitTimedOut, NoValue, Rejected)


def workflow_of(document: Document) -> Workflow:
    """The workflow that a document is."""
    return Workflow(document.name, function_of(document), document.version, document=document.mapping)


def as_begun(mapping: Mapping[str, Any]) -> Workflow:
    """The workflow of a document as it stands in a run's row. Raises InvalidDocument where this Duly cannot read it."""
    return workflow_of(checked(Source(mapping)))


def function_of(document: Document) -> Callable[..., Any]:
    """The function of a document; its inputs are its parameters, given by name and checked by their types."""

    async def run(ctx: WorkflowContext, /, **given: Any) -> Any:
        return await _Interpreter(ctx, document, given).run()

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            one.name, kind, default=inspect.Parameter.empty if one.default is NONE else one.default, annotation=kind_of(one)
        )
        for one in document.input
    ]  # fmt: skip
    # an input begins with a letter, so it may be called ctx
    context = inspect.Parameter("_ctx", inspect.Parameter.POSITIONAL_ONLY)
    run.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__ = run.__qualname__ = f"document {document.name}"
    run.__doc__ = document.description or None
    return run


class _Interpreter:
    """One look at a run."""

    def __init__(self, ctx: WorkflowContext, document: Document, given: Mapping[str, Any]) -> None:
        self.ctx, self.document = ctx, document
        values = {one.name: given.get(one.name, one.default) for one in document.input}
        run = {"id": ctx.run_id, "tenant": ctx.tenant, "workflow": ctx.workflow, "version": ctx.version}
        self.steps: dict[str, dict[str, Any]] = {one.name: {"status": "skipped"} for one in document.every_step()}
        self.scope = {"input": to_jsonable_python(values), "steps": self.steps, "run": run}

    async def run(self) -> Any:
        await self.do(self.document.steps)
        return filled(self.document.output, self.scope)

    async def do(self, steps: tuple[DocumentStep, ...]) -> None:
        for step in steps:
            arms = dict(step.arms())
            await self.do(arms.get(await self.step(step), ()))

    async def step(self, step: DocumentStep) -> str:
        """Do a step and note what came of it. Answers with the arm that follows."""
        try:
            match step.what:
                case Email():
                    return self.note(step, await self.child(step.name, EMAIL_TASK, self.letter(step.what)))
                case TaskCall(task, given):
                    return self.note(step, await self.child(step.name, task, self.fill(given)))
                case Sleep():
                    await self.sleep(step.name, step.what)
                    return self.note(step, None)
                case Await():
                    return await self.event(step, step.what)
                case Approve():
                    return await self.approval(step, step.what)
                case Fork(when):
                    taken = holds(when, self.scope)
                    return self.note(step, taken, arm="then" if taken else "else")
        except _FAILURES as error:
            if step.on_failure != CONTINUE:
                raise
            self.steps[step.name] |= {"status": "failed", "error": str(error)}
            return ""

    def note(self, step: DocumentStep, answer: Any, *, status: str = "done", arm: str = "") -> str:
        self.steps[step.name] |= {"status": status, "answer": answer}
        return arm

    # ------------------------------------------------------------------ kinds

    async def child(self, name: str, task: str, given: Any) -> Any:
        if not isinstance(given, dict):
            raise NoValue(f"the input of task {task} is no mapping.")
        try:
            return await self.ctx.using(name=name).enqueue(task, **given)
        except InvalidArgument as error:
            # Nothing of it is on record, so the run cannot go on from here as if there were.
            raise PermanentError(f"task {task} refuses its input: {error}") from None

    def letter(self, what: Email) -> dict[str, Any]:
        """The fields of EMAIL_SEND. What is filled into HTML is escaped."""
        return {name: filled(value, self.scope, escape=name == "html") for name, value in what.fields.items()}

    async def sleep(self, name: str, what: Sleep) -> None:
        if what.span is not None:
            await self.ctx.sleep(self.duration(what.span), name=name)
        elif what.until is not None:
            await self.ctx.sleep(until=self.read(read_instant, what.until, "until"), name=name)
        else:
            now = await self.ctx.now()
            await self.ctx.sleep(until=self.shown(what, now), name=name)

    def shown(self, what: Sleep, now: datetime) -> datetime:
        """The instant at which the clock of a zone shows a local time."""
        local, tz = what.local, what.tz
        assert tz is not None
        if isinstance(local, str):
            text = self.fill(local)
            short = isinstance(text, str) and len(text) <= 8
            local = self.read(read_time if short else read_local, text, "at")
        if isinstance(local, time):
            day = local_date(now, tz)
            instant = instant_on(day, local, tz)
            return instant if instant > now else instant_on(day + _DAY, local, tz)
        assert isinstance(local, datetime)
        return resolve(local, tz)[0]

    async def event(self, step: DocumentStep, what: Await) -> str:
        try:
            payload = await self.ctx.wait_event(what.event, timeout=self.duration(what.timeout))
        except WaitTimedOut:
            if what.timed_out is None:
                raise
            return self.note(step, None, status="timed_out", arm="timed_out")
        return self.note(step, payload)

    async def approval(self, step: DocumentStep, what: Approve) -> str:
        try:
            said = await self.ctx.approve(step.name, timeout=self.duration(what.timeout))
        except WaitTimedOut:
            if what.timed_out is None:
                raise
            return self.note(step, None, status="timed_out", arm="timed_out")
        answer = {"approved": said.approved, "by": said.by, "reason": said.reason, "at": said.at.isoformat()}
        self.note(step, answer)
        if said:
            return "approved"
        if what.rejected is None:
            raise Rejected(f"{step.name} was rejected by {said.by}" + (f": {said.reason}" if said.reason else "") + ".")
        return "rejected"

    # ------------------------------------------------------------------ values

    def fill(self, value: Any) -> Any:
        return filled(value, self.scope)

    def duration(self, value: Any) -> timedelta | None:
        if value is None:
            return None
        span: timedelta = self.read(read_duration, value, "duration")
        if not 0 <= span.total_seconds() <= FARTHEST:
            raise NoValue(f"a duration of {span} is not one from 0 to a hundred years.")
        return span

    def read(self, reader: Callable[[Any, str], Any], value: Any, field: str) -> Any:
        """What a reader of the kernel makes of a value. Raises NoValue where it was filled in and cannot be read."""
        try:
            return reader(self.fill(value), field)
        except InvalidArgument as error:
            raise NoValue(str(error)) from None

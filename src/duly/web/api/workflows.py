"""``/api/v1/workflows``: starting runs, seeing what they have done and wait for, telling them things, and acting on them.

A run is a job; its id is the job's. Source: R003, ADR 0025.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.jobs.job import Enqueued
from duly.kernel.errors import InvalidArgument
from duly.kernel.names import noticing
from duly.monitoring.redact import redacted
from duly.web.api.common import (
    LOOK,
    Act,
    Cursor,
    Ident,
    Instant,
    InstantIn,
    Limit,
    Name,
    Reason,
    SecondsIn,
    Strict,
    TenantIn,
    Words,
    below,
    for_whom,
    router,
    whose,
)
from duly.web.api.common import cursor as going_on
from duly.web.identity import needs
from duly.web.problems import documented
from duly.workflows.door import Branch as KnownBranch
from duly.workflows.mermaid import of_run
from duly.workflows.step import Run as KnownRun
from duly.workflows.step import Step as KnownStep

Viewer: TypeAlias = Annotated[Identity, needs("workflows")]
Operator: TypeAlias = Annotated[Identity, needs("workflows", Role.OPERATOR)]
Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
#: Steps and jobs that are shown of one run at the most.
MOST_SHOWN = 10_000


class Definition(BaseModel):
    """A workflow that this process knows. Workers may know others."""

    name: str
    versions: list[int]
    queue: str


class Definitions(BaseModel):
    workflows: list[Definition]


class Wait(BaseModel):
    """Something that a run waits for."""

    kind: str
    name: str
    until: Instant | None


class Run(BaseModel):
    """A run as it stands. What it carries is hidden from who may not see payloads."""

    id: int
    tenant: str
    workflow: str
    version: int | None = Field(description="Null until it was first looked at.")
    state: str = Field(description="queued, running, sleeping, waiting, AWAITING_HUMAN, succeeded, failed or cancelled.")  # fmt: skip
    waits: list[Wait]
    input: Any
    output: Any
    error: Any
    parent_id: int | None
    forked_from: int | None
    attempts: int
    created_at: Instant | None
    finished_at: Instant | None
    hidden: bool


class Page(BaseModel):
    runs: list[Run]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class Step(BaseModel):
    """Something that a run has on record. ``position`` counts from 1; an undo has the negative of its step's."""

    position: int
    kind: str
    name: str
    status: str | None
    attempts: int
    child_id: int | None = Field(description="The job of a task.")
    output: Any
    error: Any
    due_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None


class Branch(BaseModel):
    """A job below a run."""

    id: int
    parent_id: int
    depth: int
    task: str
    status: str
    workflow: str | None = Field(description="Of one that is a run itself.")


class Whole(Run):
    """A run with its history and everything below it."""

    steps: list[Step] = Field(description="The last ones, in order; what undid them comes last.")
    steps_count: int
    steps_limit: int = Field(description="The most steps that a run may have. A run near it should continue as new.")
    stays: list[str] = Field(
        description="Steps that are done and not undone: what stays when the run is cancelled without `undo`."
    )
    jobs: list[Branch] = Field(description="Children after their parents.")


class StartIn(Strict):
    """A run to be made."""

    workflow: Name
    input: dict[str, Any] = Field(default={})
    key: Words | None = Field(None, min_length=1, max_length=500, description="At most one run per tenant, queue and key.")  # fmt: skip
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    run_at: InstantIn | None = Field(None, description="Not before this instant.")
    run_in: SecondsIn | None = Field(
        None, ge=0, le=3.2e9, description="Not before so long from now: seconds, or a text such as 5m."
    )
    tenant: Name | None = None


class Started(BaseModel):
    run: Run
    created: bool = Field(description="False: the key had this run already, and nothing was written.")
    warnings: list[str] = Field(
        [], description="Names in the request that neither this application nor a run that has begun knows."
    )


class SignalIn(Strict):
    name: Name = Field(description="Of the event that the run waits for, or will.")
    payload: Any = None
    key: Words | None = Field(None, min_length=1, max_length=200, description="Taken once per run and key.")


class Sent(BaseModel):
    sent: bool = Field(description="False: a signal with that key was taken before.")
    warnings: list[str] = Field([], description="A name that the run does not wait for, where it waits for others.")


class ApproveIn(Strict):
    approved: bool = Field(True, description="False: no.")
    name: Name | None = Field(None, description="Which of its questions, where it has several.")
    reason: Reason = ""


class CancelIn(Act):
    undo: bool = Field(False, description="Undo what the run has done first, the last step first.")


class SinceIn(Act):
    since: Annotated[int, Field(ge=1, lt=2**31)] | Name | None = Field(None, description="From this step on: its position, or its name.")  # fmt: skip


def routes(app: Duly) -> Any:
    made = router("workflows")

    @made.get("/workflows", response_model=Definitions)
    def definitions(who: Viewer) -> Definitions:
        """The workflows that are defined in this process."""
        door = app.workflows
        found = [
            Definition(name=name, versions=list(versions), queue=door.find(name).queue)
            for name, versions in door.names().items()
        ]
        return Definitions(workflows=found)

    @made.post("/workflows/runs", response_model=Started, status_code=201, responses={200: {"model": Started}, **documented(409)})  # fmt: skip
    def start(given: StartIn, who: Operator, request: Request, response: Response) -> Started:
        """Start a run by its workflow's name, also of one that only workers know. 200 with the run that has the key."""
        if given.run_at is not None and given.run_in is not None:
            raise InvalidArgument("run_in", "is given beside run_at.", "Give one of the two.")
        options = given.model_dump(exclude={"workflow", "input", "tenant", "run_in"}, exclude_none=True)
        if given.run_in is not None:
            options["run_in"] = timedelta(seconds=given.run_in)
        app.open()
        options["tenant"] = for_whom(who, given.tenant, app.settings.tenant)

        def act(connection: Connection) -> Enqueued:
            made = app.workflows.start(given.workflow, given.input, session=connection, **options)
            app.engine.maker.note(connection, [made], who.actor)
            return made

        with noticing() as warned:
            done = app.db.write(act)
        app.db.bells.ring()
        ident = done.job.id
        if done.created:
            response.headers["Location"] = request.url_for("duly_run", id=str(ident)).path
        else:
            response.status_code = 200
        return Started(run=shown(app.workflows.get(ident), who), created=done.created, warnings=warned)

    @made.get("/workflows/runs", response_model=Page)
    def find(
        who: Viewer,
        workflow: Annotated[Name | None, Query()] = None,
        status: Annotated[list[Status], Query(description="Of its job.")] = [],  # noqa: B006
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Page:
        """List runs, newest first."""
        seen = app.workflows.look(
            workflow, status=status, tenant=whose(who, tenant), limit=limit, below=below(cursor), seconds=LOOK
        )
        return Page(runs=[shown(run, who) for run in seen.rows], next=going_on(seen.below) if seen.below else None)

    @made.get("/workflows/runs/{id}", response_model=Whole, responses=documented(404), name="duly_run")
    def show(
        id: Ident,
        who: Viewer,
        last: Annotated[int, Query(ge=1, le=MOST_SHOWN, description="So many of its last steps.")] = 1000,
    ) -> Whole:
        """One run, with its steps and the jobs below it."""
        at, door = whose(who), app.workflows
        run, steps, jobs = door.get(id, at), door.history(id, at), door.tree(id, at)
        return Whole(
            **shown(run, who).model_dump(), steps=[_step(step, who) for step in steps[-last:]], steps_count=len(steps),
            steps_limit=app.settings.workflow_steps_max, stays=list(door.standing(id, at))[:MOST_SHOWN],
            jobs=[_branch(job) for job in jobs[:MOST_SHOWN]],
        )  # fmt: skip

    @made.get("/workflows/runs/{id}/mermaid", response_class=PlainTextResponse, responses=documented(404))
    def mermaid(id: Ident, who: Viewer) -> PlainTextResponse:
        """A Mermaid flowchart of a run."""
        at, door = whose(who), app.workflows
        return PlainTextResponse(of_run(door.get(id, at), door.history(id, at), door.tree(id, at)))

    @made.post("/workflows/runs/{id}/signal", response_model=Sent, responses=documented(404, 409))
    def signal(id: Ident, given: SignalIn, who: Operator) -> Sent:
        """Tell a run something it waits for, or will. Each signal is taken once."""
        with noticing() as warned:
            sent = app.workflows.signal(
                id, given.name, given.payload, key=given.key, tenant=whose(who), actor=who.actor
            )
        return Sent(sent=sent, warnings=warned)

    @made.post("/workflows/runs/{id}/approve", response_model=Run, responses=documented(404, 409))
    def approve(id: Ident, given: ApproveIn, who: Operator) -> Run:
        """Answer a run that waits for a person: yes, or no. 409 where it waits for none."""
        at = whose(who)
        app.workflows.approve(id, given.name, given.approved, reason=given.reason, tenant=at, actor=who.actor)
        return shown(app.workflows.get(id, at), who)

    @made.post("/workflows/runs/{id}/replay", response_model=Run, responses=documented(404, 409))
    def replay(id: Ident, who: Operator, given: SinceIn | None = None) -> Run:
        """Have an ended run go on again: that step and all behind it are forgotten and done anew."""
        since, reason = (given.since, given.reason) if given else (None, "")
        return shown(app.workflows.replay(id, since, reason=reason, tenant=whose(who), actor=who.actor), who)

    @made.post("/workflows/runs/{id}/fork", response_model=Run, status_code=201, responses=documented(404, 409))
    def fork(id: Ident, who: Operator, given: SinceIn | None = None) -> Run:
        """Make another run with the same input, and with what this one has done before a step."""
        since, reason = (given.since, given.reason) if given else (None, "")
        return shown(app.workflows.fork(id, since, reason=reason, tenant=whose(who), actor=who.actor), who)

    @made.post("/workflows/runs/{id}/cancel", response_model=Run, responses=documented(404, 409))
    def cancel(id: Ident, who: Operator, given: CancelIn | None = None) -> Run:
        """Cancel a run and everything below it. With `undo`, a worker undoes what it has done before it ends as cancelled; its error then names
        what stays."""
        undo, reason = (given.undo, given.reason) if given else (False, "")
        return shown(app.workflows.cancel(id, undo=undo, reason=reason, tenant=whose(who), actor=who.actor), who)

    return made


def shown(run: KnownRun, who: Identity) -> Run:
    """A run as somebody may see it."""
    said = {name: getattr(run, name) for name in Run.model_fields if name not in ("hidden", "waits")}
    for name in ("input", "output", "error"):
        said[name] = redacted(said[name]) if who.sees_payloads else None
    waits = [Wait(kind=str(one["kind"]), name=str(one["name"]), until=_instant(one.get("until"))) for one in run.waits]
    return Run(**said, waits=waits, hidden=not who.sees_payloads)


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _step(step: KnownStep, who: Identity) -> Step:
    said = {name: getattr(step, name) for name in Step.model_fields}
    for name in ("output", "error"):
        said[name] = redacted(said[name]) if who.sees_payloads else None
    return Step(**{**said, "kind": step.kind.value, "status": None if step.status is None else step.status.value})


def _branch(job: KnownBranch) -> Branch:
    return Branch(
        id=job.id, parent_id=job.parent_id, depth=job.depth, task=job.task, status=str(job.status), workflow=job.name or None
    )  # fmt: skip

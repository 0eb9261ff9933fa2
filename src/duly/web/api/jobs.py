"""``/api/v1/jobs``: making jobs, finding them, seeing why one does not run, and acting on one. On many: ``bulk.py``.

Words at this door are those of the jobs room: ``task``, ``queue``, ``status``, ``attempts``. Source: R003, B080.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.jobs.filter import JobFilter, of_error
from duly.jobs.job import Attempt as KnownAttempt
from duly.jobs.job import Job as KnownJob
from duly.jobs.job import Status as KnownStatus
from duly.kernel.errors import InvalidArgument
from duly.kernel.names import noticing
from duly.kernel.rooms import check_task
from duly.monitoring.redact import redacted
from duly.web.api.common import (
    LOOK,
    Act,
    Cursor,
    ErrorIn,
    Ident,
    Instant,
    InstantIn,
    Limit,
    Name,
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

Viewer: TypeAlias = Annotated[Identity, needs("jobs")]
Operator: TypeAlias = Annotated[Identity, needs("jobs", Role.OPERATOR)]
Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
#: Jobs that one request makes at the most; how far they are counted.
MOST_MADE, CAP = 1_000, 10_000
#: For how long jobs are counted where no index answers: seconds.
COUNT = 1.0


class Job(BaseModel):
    """A job as it stands. Instants are UTC. What it carries is hidden from who may not see payloads."""

    id: int
    tenant: str
    queue: str
    task: str
    status: Status
    priority: int
    key: str | None
    concurrency_key: str | None
    parent_id: int | None
    attempts: int
    max_attempts: int
    created_at: Instant | None
    run_at: Instant | None
    due_at: Instant | None
    next_retry_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None
    worker: str | None
    lease_until: Instant | None
    cancel_requested: bool
    waits_for_children: bool
    cost_cents: int
    remote_id: str | None
    input: Any = Field(description="Null where it is hidden; values of keys that name a secret are *****.")
    output: Any
    error: Any
    meta: Any
    hidden: bool = Field(description="The input, output and error are not shown to who asks.")


class JobAttempt(BaseModel):
    """One start that did not end well."""

    number: int
    outcome: str
    worker: str | None
    started_at: Instant | None
    ended_at: Instant
    error: Any


class Whole(Job):
    """A job with what became of each start, and its children."""

    attempts_made: list[JobAttempt]
    children: list[int]


class Page(BaseModel):
    jobs: list[Job]
    next: str | None = Field(
        description="The cursor of the page behind; null on the last one. With a filter that few jobs fit, a page may come before it is full, "
        "even empty: a look stops after half a second. Go on while there is a next."
    )


class JobIn(Strict):
    """A job to be made."""

    task: Name
    input: dict[str, Any] = Field(default={})
    queue: Name | None = None
    key: Words | None = Field(None, min_length=1, max_length=500, description="At most one job per tenant, queue and key.")  # fmt: skip
    priority: int | None = Field(None, ge=-(2**31), lt=2**31, description="Higher runs first.")
    run_at: InstantIn | None = Field(None, description="Not before this instant.")
    run_in: SecondsIn | None = Field(
        None, ge=0, le=3.2e9, description="Not before so long from now: seconds, or a text such as 5m."
    )
    max_attempts: int | None = Field(None, ge=1, le=2**31 - 1)
    concurrency_key: Words | None = Field(None, min_length=1, max_length=500)
    tenant: Name | None = Field(None, description="Whose it is; who belongs to a tenant makes jobs of that one.")


class ManyIn(Strict):
    jobs: list[JobIn] = Field(min_length=1, max_length=MOST_MADE, description="All of them are made, or none.")


class Made(BaseModel):
    job: Job
    created: bool = Field(description="False: the key had this job already, and nothing was written.")
    warnings: list[str] = Field(
        [], description="Names in the request that neither this application nor a running worker knows."
    )


class MadeMany(BaseModel):
    jobs: list[Made]
    created: int
    warnings: list[str] = Field(
        [], description="Names in the request that neither this application nor a running worker knows."
    )


class Condition(BaseModel):
    """One condition that has to hold before a job runs."""

    name: str
    met: bool
    detail: str
    remedy: str


class Why(BaseModel):
    id: int
    runs: bool = Field(description="Every condition is met: it is claimed in a moment, or it runs.")
    checks: list[Condition]


class Counted(BaseModel):
    count: int
    capped: bool = Field(description="There are at least so many; they were not counted to the end.")


class ReplayIn(Act):
    force: bool = Field(
        False, description="Also one that succeeded: its effects are repeated, those of an idempotent task too."
    )


def routes(app: Duly) -> Any:
    made = router("jobs")

    @made.post("/jobs", response_model=Made, status_code=201, responses={200: {"model": Made}, **documented(409)})
    def enqueue(given: JobIn, who: Operator, request: Request, response: Response) -> Made:
        """Enqueue a job. 201 when it was made; 200 with the job that has the key when it was there already."""
        with noticing() as warned:
            prepared = _prepared(app, given, who)
        found = app.enqueue_prepared([prepared], actor=who.actor)[0]
        if found.created:
            response.headers["Location"] = request.url_for("duly_job", id=str(found.job.id)).path
        else:
            response.status_code = 200
        return Made(job=shown(found.job, who), created=found.created, warnings=warned)

    @made.post("/jobs/batch", response_model=MadeMany, status_code=201)
    def enqueue_many(given: ManyIn, who: Operator) -> MadeMany:
        """Enqueue many jobs in one transaction: all of them, or none."""
        prepared = []
        with noticing() as warned:
            for place, one in enumerate(given.jobs):
                try:
                    prepared.append(_prepared(app, one, who))
                except InvalidArgument as error:
                    raise InvalidArgument(f"jobs[{place}].{error.field}", error.problem, error.remedy) from None
        found = app.enqueue_prepared(prepared, actor=who.actor)
        out = [Made(job=shown(one.job, who), created=one.created, warnings=[]) for one in found]
        return MadeMany(jobs=out, created=sum(one.created for one in out), warnings=warned)

    @made.get("/jobs", response_model=Page)
    def find(
        who: Viewer,
        status: Annotated[list[Status], Query()] = [],  # noqa: B006
        queue: Annotated[Name | None, Query()] = None,
        task: Annotated[Name | None, Query()] = None,
        key: Annotated[Words | None, Query(max_length=500)] = None,
        parent_id: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
        error: Annotated[ErrorIn | None, Query()] = None,
        since: Annotated[InstantIn | None, Query(description="Ended, or while live made, at or after.")] = None,
        before: Annotated[InstantIn | None, Query()] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Page:
        """List jobs, newest first."""
        wanted = JobFilter(
            tenant=whose(who, tenant), status=tuple(status), queue=queue, task=task, key=key, parent_id=parent_id, since=since, before=before,
            error=error,
        )  # fmt: skip
        seen = app._snapshot(lambda c: app.engine.reader.look(c, of_error(wanted), limit, below(cursor), LOOK))
        return Page(jobs=[shown(job, who) for job in seen.rows], next=going_on(seen.below) if seen.below else None)

    @made.get("/jobs/count", response_model=Counted)
    def count(
        who: Viewer,
        status: Annotated[list[Status], Query()] = [],  # noqa: B006
        queue: Annotated[Name | None, Query()] = None,
        task: Annotated[Name | None, Query()] = None,
        key: Annotated[Words | None, Query(max_length=500)] = None,
        parent_id: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
        error: Annotated[ErrorIn | None, Query()] = None,
        since: Annotated[InstantIn | None, Query(description="Ended, or while live made, at or after.")] = None,
        before: Annotated[InstantIn | None, Query()] = None,
        tenant: TenantIn = None,
    ) -> Counted:
        """How many jobs fit, counted as far as ten thousand, and for no longer than a second."""
        wanted = JobFilter(
            tenant=whose(who, tenant), status=tuple(status), queue=queue, task=task, key=key, parent_id=parent_id, since=since, before=before,
            error=error,
        )  # fmt: skip
        found = app._snapshot(lambda c: app.engine.reader.tally(c, of_error(wanted), CAP, COUNT))
        return Counted(count=found.count, capped=found.at_least)

    @made.get("/jobs/{id}", response_model=Whole, responses=documented(404), name="duly_job")
    def show(id: Ident, who: Viewer) -> Whole:
        """One job, with its failed starts and its children."""
        job = app.jobs.get(id, whose(who))
        attempts, children = app._read(
            lambda c: (app.engine.reader.attempts_of(c, id), app.engine.reader.children_of(c, id))
        )
        return Whole(
            **shown(job, who).model_dump(), attempts_made=[_attempt(one, who) for one in attempts], children=[child.id for child in children]
        )  # fmt: skip

    @made.get("/jobs/{id}/why", response_model=Why, responses=documented(404))
    def why(id: Ident, who: Viewer) -> Why:
        """Why a job does not run: every condition, met or not, with its remedy."""
        checks = app.why(id, whose(who))
        out = [Condition(name=c.name, met=c.met, detail=c.detail, remedy=c.remedy) for c in checks]
        return Why(id=id, runs=all(c.met for c in checks), checks=out)

    @made.post("/jobs/{id}/cancel", response_model=Job, responses=documented(404, 409))
    def cancel(id: Ident, who: Operator, given: Act | None = None) -> Job:
        """Cancel a job: at once where it waits; one that runs is asked to stop."""
        return shown(app.jobs.admin.cancel(id, who.actor, whose(who), given.reason if given else ""), who)

    @made.post("/jobs/{id}/replay", response_model=Job, responses=documented(404, 409))
    def replay(id: Ident, who: Operator, given: ReplayIn | None = None) -> Job:
        """Run an ended job again: same id, input and key, attempts from 0. 409 where it has not ended; of two at once, one gets that."""
        asked = given or ReplayIn(force=False)
        return shown(app.jobs.admin.replay(id, who.actor, whose(who), asked.reason, asked.force), who)

    return made


def shown(job: KnownJob, who: Identity) -> Job:
    """A job as somebody may see it."""
    values = {name: getattr(job, name) for name in Job.model_fields if name != "hidden"}
    values["status"] = KnownStatus(job.status).value
    if who.sees_payloads:
        for name in ("input", "output", "error", "meta"):
            values[name] = redacted(values[name])
    else:
        values |= {"input": None, "output": None, "error": None, "meta": None}
    return Job(**values, hidden=not who.sees_payloads)


def _attempt(one: KnownAttempt, who: Identity) -> JobAttempt:
    return JobAttempt(
        number=one.attempt, outcome=one.outcome, worker=one.worker, started_at=one.started_at, ended_at=one.ended_at,
        error=redacted(one.error) if who.sees_payloads else None,
    )  # fmt: skip


def _prepared(app: Duly, given: JobIn, who: Identity) -> Any:
    if given.run_at is not None and given.run_in is not None:
        raise InvalidArgument("run_in", "is given beside run_at.", "Give one of the two.")
    options = given.model_dump(exclude={"task", "input", "tenant", "run_in"}, exclude_none=True)
    if given.run_in is not None:
        options["run_in"] = timedelta(seconds=given.run_in)
    tenant = for_whom(who, given.tenant, app.settings.tenant)
    app.open()
    return app.prepare(check_task(given.task), given.input, tenant=tenant, **options)

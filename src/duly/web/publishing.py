"""The REST door of publications: ``router(app)`` under ``/fp-publisher/v1``, for any FastAPI application.

Whoever mounts it decides who may come in (``app.create`` asks for a token) and whose publications these are: the tenant is fixed here,
never taken from a request. Files of this machine are not to be named from outside. Source: R002-13 to R002-17, T002-h, T002-m, T002-o,
B063, B068.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import MOST_ID, check_name, check_text
from duly.kernel.recurrence.reading import read_instant
from duly.publishing.door import Publishing
from duly.publishing.enqueue import report
from duly.publishing.host import Host
from duly.publishing.plan import Planned, load
from duly.publishing.view import Publication, PublicationFilter
from duly.web.problems import StrictRoute, documented

PREFIX = "/fp-publisher/v1"
#: Who asks, as it stands in the audit trail; set by who lets people in.
ACTING: ContextVar[str] = ContextVar("duly_publishing_actor", default="rest")
#: The route of one publication, by which its address is found wherever the router is mounted.
_ONE = "duly_publication"

Instant = Annotated[
    datetime,
    BeforeValidator(lambda value: _instant(value)),
    WithJsonSchema({"type": "string", "format": "date-time", "description": "With a time zone."}),
]
Status = Literal["pending", "running", "completed", "failed", "cancelled"]
Type = Literal["publish", "ig_first_comment"]
#: Text that a database can store: others are refused where they stand.
Words = Annotated[str, AfterValidator(lambda value: check_text(value, "text"))]
Name = Annotated[Words, Field(min_length=1, max_length=200)]
Ident = Annotated[int, Path(ge=1, le=MOST_ID)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AssetIn(_Strict):
    """An image or a video; at least one of url and reference."""

    kind: Literal["image", "video"] = "image"
    url: str | None = None
    checksum: str | None = None
    reference: str | None = None
    alt: str = ""


class PostIn(_Strict):
    """What is to be published; at least one of caption, title, link and assets."""

    brand: str = ""
    caption: str = ""
    title: str = ""
    link: str = ""
    assets: list[AssetIn] = Field(default=[], max_length=100)
    ig_first_comment: str | None = None
    options: dict[str, Any] = {}
    preview: bool = Field(False, description="Only show what would be published; nothing is enqueued.")


class JobIn(_Strict):
    """A channel and a payload, or a plan."""

    channel: str | None = None
    payload: PostIn | None = None
    run_at: Instant | None = Field(None, description="Without it: now.")
    idempotency_key: Name | None = Field(None, description="Without it: a UUID. Not with a plan: that makes its own.")
    plan: dict[str, Any] | None = Field(None, description="A plan as in a file; paths of files are refused.")
    skip_past: bool = Field(
        False, description="Leave out the posts of a plan that lie in the past; else they are due at once."
    )
    override: str | None = Field(None, description="Enqueue although checks fail, and why; it is audited.")


class TestIn(_Strict):
    channel: str
    payload: PostIn | None = None
    run_at: Instant | None = None
    idempotency_key: Name | None = None


class PreviewIn(_Strict):
    channel: str
    payload: PostIn


class ReplayIn(_Strict):
    reason: Words = Field("", max_length=2000)


class FilterIn(_Strict):
    """Which publications. Everything given must hold, and something besides the status must be given."""

    channel: Name | None = None
    status: list[Status] = []
    type: Type | None = None
    idempotency_key: Name | None = None
    remote_id: Words | None = None
    parent_id: Annotated[int, Field(ge=1, le=MOST_ID)] | None = None
    run_from: Instant | None = None
    run_until: Instant | None = None
    ids: list[Annotated[int, Field(ge=1, le=MOST_ID)]] = Field(default=[], max_length=1000)


class BulkIn(_Strict):
    filter: FilterIn
    reason: Words = Field("", max_length=2000)
    limit: int = Field(1000, ge=1, le=10_000, description="At most so many.")


class Job(BaseModel):
    """A publication, or the first comment beneath one. Instants are UTC."""

    id: int
    channel: str
    type: str
    status: Status
    idempotency_key: str | None
    payload: dict[str, Any]
    run_at: datetime | None
    attempts: int
    max_attempts: int
    remote_id: str | None
    url: str | None
    error: str | None
    progress: str | None
    parent_id: int | None
    children: list[int]
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    gone: bool = Field(
        description="Its record was removed after the retention: its key, how it ended and its remote id are known."
    )


class Finding(BaseModel):
    severity: Literal["error", "warning", "hint"]
    field: str
    message: str


class Preflight(BaseModel):
    score: int
    ok: bool
    findings: list[Finding]


class Made(BaseModel):
    """A publication, and whether this request made it."""

    job: Job
    created: bool
    past: bool = Field(False, description="It was made for an instant that lay in the past: it is due at once.")


class MadeMany(BaseModel):
    jobs: list[Made]
    created: int
    past: int = Field(0, description="How many were made for an instant that lay in the past: they are due at once.")
    skipped: int = Field(0, description="How many `skip_past` left out.")


class Previewed(BaseModel):
    preview: dict[str, Any]
    preflight: Preflight


class Tested(BaseModel):
    outcome: Literal["ok", "preflight", "blackout", "collision", "limit"]
    detail: str
    until: datetime | None
    existing: Job | None


class Page(BaseModel):
    jobs: list[Job]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class Replayed(BaseModel):
    replayed: list[int]
    refused: dict[str, str]


class Cancelled(BaseModel):
    cancelled: list[int]
    refused: dict[str, str]


def router(app: Host, *, tenant: str | None = None) -> APIRouter:
    """The routes. ``app``: a Duly; ``tenant``: whose publications, else the application's. Its channels must be declared before a request."""
    publishing = Publishing.of(app)
    whose = tenant or app.settings.tenant
    check_name(whose, "tenant")
    made = APIRouter(prefix=PREFIX, tags=["publications"], route_class=StrictRoute, responses=documented(422, 503))

    def planned(given: JobIn) -> list[Planned]:
        if given.plan is None:
            if given.channel is None or given.payload is None:
                lacking = "channel" if given.channel is None else "payload"
                raise InvalidArgument(lacking, "is not given.", "Give a channel and a payload, or a plan.")
            at = given.run_at or app.engine.clock.now()
            return [
                Planned(
                    given.channel, at, given.idempotency_key or str(uuid.uuid4()), _payload(given.payload), "payload"
                )
            ]
        for name in ("channel", "payload", "run_at"):
            if getattr(given, name) is not None:
                raise InvalidArgument(name, "is given beside a plan.", "A plan says it itself.")
        if given.idempotency_key is not None:
            raise InvalidArgument("idempotency_key", "is given beside a plan, which decides its keys itself.", "Leave it out.")  # fmt: skip
        return list(load(given.plan, files=False).items)

    def previewed(channel: str, payload: Mapping[str, Any]) -> Previewed:
        shown = publishing.preview(channel, payload)
        return Previewed(preview=dict(shown), preflight=Preflight(**_report(publishing, channel, payload)))

    @made.post(
        "/jobs",
        response_model=Made | MadeMany | Previewed,
        status_code=201,
        responses={
            200: {"model": Made | MadeMany | Previewed, "description": "It was there already, or it is a preview"}
        },
    )
    def enqueue(given: JobIn, request: Request, response: Response) -> Made | MadeMany | Previewed:
        """Enqueue a post, or all posts of a plan.

        201 when something was made, 200 when everything was there already: the job that has the key, unchanged. A payload with
        `preview` is only shown.
        """
        if given.payload is not None and given.payload.preview and given.plan is None:
            if given.channel is None:
                raise InvalidArgument("channel", "is not given.")
            response.status_code = 200
            return previewed(given.channel, _payload(given.payload))
        now = app.engine.clock.now()
        every = planned(given)
        items = [one for one in every if not (given.skip_past and given.plan is not None and one.run_at < now)]
        found = publishing.enqueue_plan(items, tenant=whose, override=given.override, actor=ACTING.get())
        asked = given.plan is not None or given.run_at is not None
        out = [
            Made(job=_job(job), created=created, past=created and asked and one.run_at < now)
            for one, (job, created) in zip(items, found, strict=True)
        ]
        if not any(one.created for one in out):
            response.status_code = 200
        if given.plan is not None:
            return MadeMany(
                jobs=out,
                created=sum(one.created for one in out),
                past=sum(one.past for one in out),
                skipped=len(every) - len(items),
            )
        if not out[0].job.gone:
            response.headers["Location"] = request.url_for(_ONE, id=str(out[0].job.id)).path
        return out[0]

    @made.post("/jobs/test", response_model=Tested)
    def test(given: TestIn) -> Tested:
        """Say what would become of a post: nothing is enqueued."""
        payload = None if given.payload is None else _payload(given.payload)
        answer = publishing.test(given.channel, payload, given.run_at, given.idempotency_key, whose)
        existing = None if answer.existing is None else _job(answer.existing)
        return Tested(outcome=answer.outcome, detail=answer.detail, until=answer.until, existing=existing)

    @made.post("/preview", response_model=Previewed)
    def preview(given: PreviewIn) -> Previewed:
        """Show what would be published: nothing is asked of the other side, and nothing is enqueued."""
        return previewed(given.channel, _payload(given.payload))

    @made.get("/jobs", response_model=Page)
    def jobs(
        channel: Annotated[Name | None, Query()] = None,
        status: Annotated[list[Status], Query()] = [],  # noqa: B006
        type: Annotated[Type | None, Query()] = None,
        idempotency_key: Annotated[Name | None, Query()] = None,
        remote_id: Annotated[Name | None, Query()] = None,
        parent_id: Annotated[int | None, Query(ge=1, le=MOST_ID)] = None,
        run_from: Annotated[Instant | None, Query()] = None,
        run_until: Annotated[Instant | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        cursor: Annotated[str | None, Query(pattern="^[0-9]{1,18}$", description="`next` of the page before.")] = None,
    ) -> Page:
        """List publications, newest first."""
        wanted = PublicationFilter(
            tenant=whose, channel=channel, status=tuple(status), type=type, key=idempotency_key, remote_id=remote_id, parent_id=parent_id,
            run_from=run_from, run_until=run_until,
        )  # fmt: skip
        found = publishing.list(wanted, limit + 1, None if cursor is None else int(cursor))
        more = len(found) > limit
        found = found[:limit]
        return Page(jobs=[_job(one) for one in found], next=str(found[-1].id) if more else None)

    @made.get("/jobs/{id}", response_model=Job, responses=documented(404), name=_ONE)
    def job(id: Ident) -> Job:
        """One publication as it stands."""
        return _job(publishing.get(id, whose))

    @made.post("/jobs/replay", response_model=Replayed)
    def replay_many(given: BulkIn) -> Replayed:
        """Replay the failed publications that fit the filter.

        A cancelled one is replayed only where the filter names its id: a person ended it. 422 for the status `cancelled` without ids.
        """
        bulk = publishing.replay_many(_filter(given.filter, whose), ACTING.get(), given.reason, given.limit)
        return Replayed(replayed=bulk.done, refused={str(ident): why for ident, why in bulk.refused.items()})

    @made.post("/jobs/cancel", response_model=Cancelled)
    def cancel_many(given: BulkIn) -> Cancelled:
        """Cancel the publications that fit the filter and have not ended."""
        bulk = publishing.cancel_many(_filter(given.filter, whose), ACTING.get(), given.reason, given.limit)
        return Cancelled(cancelled=bulk.done, refused={str(ident): why for ident, why in bulk.refused.items()})

    @made.post("/jobs/{id}/replay", response_model=Job, responses=documented(404, 409))
    def replay(id: Ident, given: ReplayIn | None = None) -> Job:
        """Run a failed or cancelled publication again: attempts from 0, due now, same key.

        One that was cancelled before its planned time goes back to it. 409 when it has neither failed nor been cancelled; of two at once, one gets that. What is published by what is on record ends as completed.
        """
        return _job(publishing.replay(id, ACTING.get(), given.reason if given else "", whose))

    return made


def _instant(value: object) -> datetime:
    """An instant as it is written in JSON. One without a time zone is refused: it is not guessed, and it is not "now" (T002-m)."""
    try:
        return read_instant(value, "instant")
    except InvalidArgument as error:
        remedy = "Write an instant with its offset, such as 2026-07-27T09:00:00Z."
        raise InvalidArgument("instant", error.problem, remedy) from None


def _payload(given: PostIn) -> dict[str, Any]:
    """As ``read_post`` reads it: what was given, without what is empty."""
    said = given.model_dump(exclude={"preview"}, exclude_defaults=True)
    if "assets" in said:
        said["assets"] = [
            {"kind": one.kind, **one.model_dump(exclude_defaults=True)} for one in given.assets
        ]  # kind is kept, where it is the default too: it says what was meant
    return said


def _report(publishing: Publishing, channel: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    return report(publishing.channels[channel].connector, publishing.post(channel, payload)).to_json()


def _filter(given: FilterIn, tenant: str) -> PublicationFilter:
    said = given.model_dump(exclude={"idempotency_key"})
    return PublicationFilter(tenant=tenant, key=given.idempotency_key, **said | {"status": tuple(given.status)})


def _job(one: Publication) -> Job:
    return Job.model_validate({name: value for name, value in one.record().items() if name in Job.model_fields})

"""``/api/v1/schedules``: recurring work: its definitions, what is planned, and what became of it.

A schedule is named, as at every door of that room; of another tenant than the usual one, by ``?tenant=``. Its definition has a version, and
that and its number are its ETag: one that was removed and made anew has another. Source: R000, ADR 0024, B080.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from fastapi import Header, Path, Query, Response
from pydantic import BaseModel, Field, computed_field

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.jobs.job import Job, Status
from duly.kernel.errors import InvalidArgument, NotFound, WrongState
from duly.kernel.localtime import in_utc, zone
from duly.kernel.names import noticing
from duly.kernel.recurrence import schedule_from_json
from duly.kernel.rooms import check_task
from duly.monitoring.redact import redacted
from duly.schedules.door import Previewed, Schedules, clock_changes
from duly.schedules.read import latest
from duly.schedules.schedule import Occurrence as KnownOccurrence
from duly.schedules.schedule import Policies, Spec
from duly.schedules.schedule import Schedule as Known
from duly.web.api.common import (
    ETAG,
    Act,
    Cursor,
    IfMatch,
    Instant,
    InstantIn,
    Limit,
    Name,
    Reason,
    Strict,
    TenantIn,
    Words,
    behind,
    check_tag,
    cursor,
    for_whom,
    not_given_out,
    router,
    tag,
    whose,
)
from duly.web.identity import needs
from duly.web.problems import Stale, documented

Viewer: TypeAlias = Annotated[Identity, needs("schedules")]
Operator: TypeAlias = Annotated[Identity, needs("schedules", Role.OPERATOR)]
#: A name may hold slashes: ``%2F`` in a path.
NamePath = Annotated[Words, Path(min_length=1, max_length=200)]
Became = Literal["fired", "skipped", "missed", "deferred"]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31, description="Higher runs first.")]
Recurrence = Annotated[
    dict[str, Any],
    Field(description='When: `{"kind": "cron", "expression": "30 2 * * *", "tz": "Europe/Paris"}`, or another kind: every, daily, weekly, …'),
]  # fmt: skip
#: Ends of paths that are not part of a name.
VIEWS = ("ledger", "preview", "versions")


class Occurrence(BaseModel):
    """What became of one planned instant."""

    due_at: Instant = Field(description="The planned instant; of one that was run by hand, when that was asked.")
    status: Became
    reason: str | None
    policy: str = Field(description="The policies by which it was decided, such as `catch_up=latest`.")
    trigger: str
    version: int
    job_id: int | None
    job_status: str | None
    start_at: Instant | None
    release_at: Instant | None = Field(description="Of one that is deferred: when it is looked at again.")
    acted_at: Instant
    late: float = Field(description="Seconds from the planned instant to the decision.")


class Schedule(BaseModel):
    """A schedule as it stands. Of one that cannot be read (`broken`), what it does is null."""

    id: int
    name: str
    tenant: str
    version: int
    state: Literal["active", "paused", "broken", "ended"]
    when: str | None = Field(description="In plain words.")
    recurrence: dict[str, Any] | None
    tz: str | None
    task: str | None
    input: Any
    queue: str | None
    priority: int | None
    max_attempts: int | None
    catch_up: str | None
    overlap: str | None
    blackout: str | None
    starts_at: Instant | None
    ends_at: Instant | None
    next_at: Instant | None
    next_local: str | None = Field(description="The same on the clock of its zone.")
    decided_until: Instant
    paused_at: Instant | None
    paused_by: str | None
    paused_reason: str | None
    error: str | None
    error_at: Instant | None
    created_at: Instant | None
    updated_at: Instant | None
    updated_by: str | None
    undeclared: bool = Field(
        description="Code declared it once, and that of no living worker declares it now: it goes on until somebody pauses or removes it."
    )
    hidden: bool = Field(description="The input is not shown to who asks.")
    warnings: list[str] = Field(
        [], description="Of a change: names that neither this application nor a running worker knows."
    )

    @computed_field(description=ETAG)  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        return tag(f"{self.id}.{self.version}")


class Listed(Schedule):
    last: Occurrence | None = Field(description="The newest row of its ledger.")


class Page(BaseModel):
    schedules: list[Listed]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class ScheduleIn(Strict):
    """A definition, whole: what is left out has its default."""

    recurrence: Recurrence
    task: Name
    input: dict[str, Any] = Field(default={})
    queue: Name | None = Field(None, description="The task's, where it is known, else `default`.")
    priority: Priority | None = None
    max_attempts: int | None = Field(None, ge=1, le=2**31 - 1)
    catch_up: Words = Field("latest", max_length=100, description="latest, all, none, or within(2h).")
    overlap: Literal["allow", "skip", "queue", "replace"] = "allow"
    blackout: Literal["defer", "skip", "run_after"] = "defer"
    starts_at: InstantIn | None = Field(None, description="Nothing before this instant.")
    ends_at: InstantIn | None = Field(None, description="Nothing from this instant on.")


class PreviewIn(Strict):
    """A recurrence that is tried out; nothing is written."""

    recurrence: Recurrence
    name: Name = Field("preview", description="Blackouts of a schedule of this name count; so does the jitter.")
    queue: Name = Field("default", description="Blackouts of this queue count.")
    blackout: Literal["defer", "skip", "run_after"] = "defer"
    starts_at: InstantIn | None = None
    ends_at: InstantIn | None = None
    since: InstantIn | None = Field(None, description="From here; else from now on.")
    n: int = Field(10, ge=1, le=100)


class Coming(BaseModel):
    """A planned instant to come, and what is special about it."""

    due_at: Instant
    local: str | None = Field(description="On the clock of the schedule's zone.")
    effect: str = Field(description="fires, deferred or skipped.")
    special: str | None = Field(description="The day's remark where a clock is put forward or back.")
    blackout: list[str] = Field(description="The blackouts that cover it; who may not see queues is told `a blackout`.")
    blackout_until: Instant | None = Field(description="Null, too, for who may not see queues.")


class Preview(BaseModel):
    when: str = Field(description="In plain words.")
    tz: str | None
    next: list[Coming]
    clock_changes: list[str] = Field(description="Days in between on which clocks change, whether it runs on them or not.")  # fmt: skip


class Ledger(BaseModel):
    occurrences: list[Occurrence]
    next: str | None


class Version(BaseModel):
    version: int
    definition: dict[str, Any] | None
    made_at: Instant
    made_by: str


class Versions(BaseModel):
    versions: list[Version]


class BackfillIn(Strict):
    start: InstantIn = Field(description="From this planned instant on.")
    end: InstantIn | None = Field(None, description="Until before this one; else until now.")
    reason: Reason = ""
    dry_run: bool = Field(False, description="Only say which.")


class Backfilled(BaseModel):
    fired: list[Instant] = Field(description="Jobs were made, or would be.")
    deferred: list[Instant] = Field(description="They run one after the other, as the schedule allows no overlap.")
    left: list[Instant] = Field(description="They had fired before, or wait.")
    dry_run: bool


def routes(app: Duly) -> Any:
    made = router("schedules")
    door = app.schedules

    @made.get("/schedules", response_model=Page)
    def find(who: Viewer, tenant: TenantIn = None, limit: Limit = 50, cursor: Cursor = None) -> Page:
        """List schedules, by tenant and name."""
        at = whose(who, tenant)
        after = behind(cursor, str, str)
        found = door.all(tenant=at, limit=limit + 1, after=None if after is None else (after[0], after[1]))
        kept = found[:limit]
        last = app.db.read(lambda c: latest(c, at, [s.id for s in kept])) if kept else {}
        jobs = _jobs(app, list(last.values()))
        gone = set(door.undeclared()) if kept else set()
        out = [
            Listed(**shown(s, who, gone).model_dump(), last=_occurrence(last[s.id], jobs) if s.id in last else None)
            for s in kept
        ]
        return Page(schedules=out, next=_next(kept) if len(found) > limit else None)

    @made.post("/schedules/preview", response_model=Preview)
    def try_out(given: PreviewIn, who: Viewer, tenant: TenantIn = None) -> Preview:
        """When a recurrence would run, with days on which clocks change, and blackouts."""
        recurrence = schedule_from_json(given.recurrence, "recurrence")
        spec = Spec(
            given.name, recurrence, "preview", "{}", given.queue, for_whom(who, tenant, app.settings.tenant), Policies(blackout=given.blackout),
            starts_at=given.starts_at, ends_at=given.ends_at,
        )  # fmt: skip
        app.open()
        since = given.since or app._read(app.db.present)
        return _preview(spec, door.preview_of(spec, given.n, since=since), since, who)

    @made.get("/schedules/{name:any}/ledger", response_model=Ledger, responses=documented(404))
    def ledger(
        name: NamePath,
        who: Viewer,
        status: Annotated[list[Became], Query()] = [],  # noqa: B006
        since: Annotated[InstantIn | None, Query(description="Planned at or after.")] = None,
        until: Annotated[InstantIn | None, Query(description="Planned before.")] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Ledger:
        """What became of its occurrences, the newest first."""
        found = door.ledger(
            name, tenant=whose(who, tenant), since=since, until=until, statuses=status, limit=limit + 1, before=_before(cursor)
        )  # fmt: skip
        kept = found[:limit]
        jobs = _jobs(app, kept)
        return Ledger(occurrences=[_occurrence(o, jobs) for o in kept], next=_older(kept) if len(found) > limit else None)  # fmt: skip

    @made.get("/schedules/{name:any}/preview", response_model=Preview, responses=documented(404))
    def preview(
        name: NamePath,
        who: Viewer,
        n: Annotated[int, Query(ge=1, le=100)] = 10,
        since: Annotated[InstantIn | None, Query(description="From here; else from now on.")] = None,
        tenant: TenantIn = None,
    ) -> Preview:
        """When it runs next, with days on which clocks change, and blackouts."""
        at = whose(who, tenant)
        begin = since or app._read(app.db.present)
        coming = door.preview(name, n, tenant=at, since=begin)
        spec = door.get(name, tenant=at).spec
        assert spec is not None
        return _preview(spec, coming, begin, who)

    @made.get("/schedules/{name:any}/versions", response_model=Versions, responses=documented(404))
    def versions(name: NamePath, who: Viewer, tenant: TenantIn = None) -> Versions:
        """The definitions that it has had, the newest first."""
        found = door.versions(name, tenant=whose(who, tenant))
        return Versions(versions=[Version(**{**one, "definition": _definition(one["definition"], who)}) for one in found])  # fmt: skip

    @made.post("/schedules/{name:any}/pause", response_model=Schedule, responses=documented(404))
    def pause(name: NamePath, who: Operator, given: Act | None = None, tenant: TenantIn = None) -> Schedule:
        """Skip what is planned, on record, until it is resumed. Of a paused one this changes the reason."""
        reason = given.reason if given else ""
        return shown(door.pause(name, reason, tenant=whose(who, tenant), actor=who.actor), who, door.undeclared())

    @made.post("/schedules/{name:any}/resume", response_model=Schedule, responses=documented(404))
    def resume(name: NamePath, who: Operator, given: Act | None = None, tenant: TenantIn = None) -> Schedule:
        """Let it fire again, from now on."""
        reason = given.reason if given else ""
        return shown(door.resume(name, reason, tenant=whose(who, tenant), actor=who.actor), who, door.undeclared())

    @made.post("/schedules/{name:any}/run", response_model=Occurrence, responses=documented(404))
    def run(name: NamePath, who: Operator, given: Act | None = None, tenant: TenantIn = None) -> Occurrence:
        """Make its job now, whether it is due, paused or neither. It uses up no planned instant."""
        reason = given.reason if given else ""
        done = door.run(name, tenant=whose(who, tenant), actor=who.actor, reason=reason)
        return _occurrence(done, _jobs(app, [done]))

    @made.post("/schedules/{name:any}/backfill", response_model=Backfilled, responses=documented(404))
    def backfill(name: NamePath, given: BackfillIn, who: Operator, tenant: TenantIn = None) -> Backfilled:
        """Fire what was planned in a range of the past and has not fired, each once."""
        done = door.backfill(
            name, given.start, given.end or app._read(app.db.present), tenant=whose(who, tenant), actor=who.actor, reason=given.reason,
            dry_run=given.dry_run,
        )  # fmt: skip
        return Backfilled(fired=list(done.fired), deferred=list(done.deferred), left=list(done.left), dry_run=done.dry_run)  # fmt: skip

    @made.get("/schedules/{name:any}", response_model=Schedule, responses=documented(404))
    def show(name: NamePath, who: Viewer, response: Response, tenant: TenantIn = None) -> Schedule:
        """One schedule. Its ETag goes into If-Match of a change."""
        found = shown(door.get(name, tenant=whose(who, tenant)), who, door.undeclared())
        response.headers["ETag"] = found.etag
        return found

    @made.put("/schedules/{name:any}", response_model=Schedule, responses={201: {"model": Schedule}, **documented(412)})
    def put(
        name: NamePath,
        given: ScheduleIn,
        who: Operator,
        response: Response,
        if_match: IfMatch = None,
        if_none_match: Annotated[Literal["*"] | None, Header(description="Make it only where there is none.")] = None,
        reason: Annotated[Reason, Query()] = "",
        tenant: TenantIn = None,
    ) -> Schedule:
        """Make a schedule (201), or a new version of the one of that name. What was due until now is decided by its old version."""
        if name.rpartition("/")[2] in VIEWS and "/" in name:
            raise InvalidArgument("name", f"ends in /{name.rpartition('/')[2]}, which is a view of another schedule.", "Choose another.")  # fmt: skip
        at = for_whom(who, tenant, app.settings.tenant)
        app.open()
        options = given.model_dump(exclude={"recurrence", "task", "input"}, exclude_none=True)
        spec = door.spec(
            name,
            schedule_from_json(given.recurrence, "recurrence"),
            check_task(given.task),
            given.input,
            tenant=at,
            **options,
        )
        bound = _looked_at(_found(door, name, at), if_match, if_none_match)
        try:
            with noticing() as warned:
                schedule, change = door.set(spec, actor=who.actor, reason=reason, **bound)
        except WrongState as error:
            raise Stale(str(error)) from None
        response.status_code = 201 if change == "created" else 200
        found = shown(schedule, who, door.undeclared())
        found.warnings = warned
        response.headers["ETag"] = found.etag
        return found

    @made.delete("/schedules/{name:any}", status_code=204, responses=documented(404, 412))
    def remove(
        name: NamePath,
        who: Operator,
        reason: Annotated[Reason, Query()] = "",
        if_match: IfMatch = None,
        tenant: TenantIn = None,
    ) -> Response:
        """Let it fire no more. Jobs that it made go on; its ledger stays in the database."""
        at = whose(who, tenant)
        bound = _looked_at(door.get(name, tenant=at), if_match, None)
        try:
            door.remove(name, tenant=at, actor=who.actor, reason=reason, **bound)
        except WrongState as error:
            raise Stale(str(error)) from None
        return Response(status_code=204)

    return made


def _found(door: Schedules, name: str, tenant: str) -> Known | None:
    """A schedule, where there is one."""
    try:
        return door.get(name, tenant=tenant)
    except NotFound:
        return None


def _looked_at(found: Known | None, if_match: str | None, if_none_match: str | None) -> dict[str, Any]:
    """What the change is bound to; nothing: whatever is there. Raises Stale where it is another by now."""
    if if_none_match is not None:
        if found is not None:
            raise Stale("there is a schedule of that name.")
        return {"version": 0}
    if if_match is None:
        return {}
    if found is None:
        raise Stale("there is no schedule of that name any more.")
    check_tag(if_match, tag(f"{found.id}.{found.version}"))
    return {"version": found.version, "id": found.id}


def shown(s: Known, who: Identity, gone: Collection[tuple[str, str]]) -> Schedule:
    """A schedule as somebody may see it. ``gone``: (tenant, name) of those that no living worker's code declares any more."""
    said: dict[str, Any] = dict.fromkeys(Schedule.model_fields)
    for name in (
        "id", "name", "tenant", "version", "state", "next_at", "decided_until", "paused_at", "paused_by", "paused_reason", "error", "error_at",
        "created_at", "updated_at", "updated_by",
    ):  # fmt: skip
        said[name] = getattr(s, name)
    spec = s.spec
    if spec is not None:
        for name in ("tz", "task", "queue", "priority", "max_attempts", "starts_at", "ends_at"):
            said[name] = getattr(spec, name)
        said |= {
            "when": spec.recurrence.describe(), "recurrence": spec.recurrence.to_json(), "catch_up": spec.policies.catch_up_text,
            "overlap": spec.policies.overlap, "blackout": spec.policies.blackout,
            "input": redacted(orjson.loads(spec.input)) if who.sees_payloads else None,
            "next_local": _local(s.next_at, spec.tz),
        }  # fmt: skip
    return Schedule(
        **{**said, "hidden": not who.sees_payloads, "undeclared": (s.tenant, s.name) in gone, "warnings": []}
    )


def _local(instant: datetime | None, tz: str | None) -> str | None:
    return None if instant is None or tz is None else instant.astimezone(zone(tz)).isoformat()


def _definition(kept: Any, who: Identity) -> dict[str, Any] | None:
    if not isinstance(kept, dict):
        return None
    said = kept.get("input")
    if isinstance(said, str):
        said = orjson.loads(said)
    return {**kept, "input": redacted(said) if who.sees_payloads else None}


def _jobs(app: Duly, found: list[KnownOccurrence]) -> dict[int, Job]:
    idents = [o.job_id for o in found if o.job_id is not None]
    return app.db.read(lambda c: app.engine.reader.get_many(c, idents)) if idents else {}


def _occurrence(o: KnownOccurrence, jobs: dict[int, Job]) -> Occurrence:
    job = jobs.get(o.job_id) if o.job_id is not None else None
    return Occurrence(
        due_at=o.due_at, status=o.status.value, reason=o.reason, policy=o.policy, trigger=str(o.trigger), version=o.version, job_id=o.job_id,
        job_status=None if job is None else Status(job.status).value, start_at=o.start_at, release_at=o.release_at, acted_at=o.acted_at,
        late=max(0.0, (o.acted_at - o.due_at).total_seconds()),
    )  # fmt: skip


def _preview(spec: Spec, coming: list[Previewed], since: datetime, who: Identity) -> Preview:
    named = who.may("queues", Role.VIEWER)  # blackouts are shown there
    return Preview(
        when=spec.recurrence.describe(since=since), tz=spec.tz, clock_changes=clock_changes(spec.recurrence, coming, since),
        next=[
            Coming(due_at=p.due_at, local=p.local.isoformat() if p.local else None, effect=p.effect, special=p.special,
                   blackout=list(p.blackout) if named else ["a blackout"] * bool(p.blackout), blackout_until=p.blackout_until if named else None)
            for p in coming
        ],
    )  # fmt: skip


def _next(kept: list[Known]) -> str:
    return cursor(kept[-1].tenant, kept[-1].name)


def _older(kept: list[KnownOccurrence]) -> str:
    return cursor(kept[-1].due_at.isoformat())


def _before(given: str | None) -> datetime | None:
    """The planned instant that a page of the ledger goes on from. Raises InvalidArgument."""
    found = behind(given, str)
    if found is None:
        return None
    try:
        return in_utc(datetime.fromisoformat(found[0]), "cursor")
    except ValueError:  # naive, too
        raise not_given_out() from None

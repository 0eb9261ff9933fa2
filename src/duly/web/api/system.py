"""``/api/v1``: the audit trail, alerts, workers, health, metrics and the overview; ``/livez`` and ``/readyz`` at the root.

Alerts, workers and metrics speak of queues, schedules and machines of everybody, so who belongs to a tenant does not see them. The trail and
the overview are scoped. Source: R000-19, R000-20, T000-o, R003-9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.audit.read import TrailFilter
from duly.audit.read import find as find_entries
from duly.audit.seal import verify as walk
from duly.jobs.ask import WORKER_GONE
from duly.jobs.survey import Counted, Depth, Stretch, altogether, depths, pace, quantile
from duly.kernel.errors import DulyError
from duly.monitoring.alerts.alert import Alert as KnownAlert
from duly.monitoring.alerts.alert import Severity as KnownSeverity
from duly.monitoring.alerts.beside import AlertMetrics, Beside
from duly.monitoring.alerts.beside import health as judged_health
from duly.monitoring.alerts.rules import every_rule
from duly.monitoring.examine import gate_facts
from duly.monitoring.metrics import Metrics
from duly.monitoring.redact import redacted
from duly.web.api.common import (
    Act,
    Cursor,
    Ident,
    Instant,
    InstantIn,
    Limit,
    Name,
    TenantIn,
    Words,
    below,
    overall,
    page,
    router,
    whose,
)
from duly.web.identity import needs
from duly.web.problems import ProblemRoute, documented

Reader: TypeAlias = Annotated[Identity, needs("audit")]
Auditor: TypeAlias = Annotated[Identity, needs("audit", Role.ADMIN)]
Watcher: TypeAlias = Annotated[Identity, needs("alerts")]
Noter: TypeAlias = Annotated[Identity, needs("alerts", Role.OPERATOR)]
Viewer: TypeAlias = Annotated[Identity, needs("system")]
#: As far as jobs are counted for the overview, and its minutes.
CAP, MINUTES, SAMPLED = 10_000, 5, 500
#: Bytes below which the disk of an SQLite file counts as full.
FULL = 256 << 10
#: In the description: a token is not needed.
UNASKED: dict[str, Any] = {"security": [{}]}

State = Literal["pending", "raised", "cleared"]
Severity = Literal["warning", "critical"]


class Entry(BaseModel):
    """A row of the trail: who did what to what, and when."""

    id: int
    at: Instant
    tenant: str
    actor: str
    level: str
    action: str
    entity: str
    entity_id: str
    meta: Any


class EntryPage(BaseModel):
    entries: list[Entry]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class Verdict(BaseModel):
    """What a walk along the hash chain found."""

    holds: bool
    rows: int = Field(description="Rows that hold.")
    seals: int
    unsealed: int = Field(description="Rows that no seal covers yet.")
    broken: str | None = Field(description="The first broken link, in words.")
    seal_id: int | None
    row_id: int | None


class Alert(BaseModel):
    """Something that a person must know. Instants are UTC."""

    id: int
    rule: str
    subject: str
    state: State
    severity: Severity
    detail: str
    value: float
    since: Instant
    last_seen: Instant
    raised_at: Instant | None
    fine_since: Instant | None
    cleared_at: Instant | None
    acked_at: Instant | None
    acked_by: str | None
    ack_reason: str | None
    noticed_at: Instant | None
    remedy: str | None = Field(description="What to do about it; null for a rule that this version does not have.")
    terms: str | None = Field(description="When it is raised and when it is fine again.")


class AlertPage(BaseModel):
    alerts: list[Alert]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")
    judged_at: Instant | None = Field(description="When the rules were judged last.")
    stale: str | None = Field(
        description="Why this is not how things stand: nobody has judged for five minutes. Null while it is fresh."
    )
    unknown: dict[str, str] = Field(description="Rules that could not be judged, and why.")


class Worker(BaseModel):
    """A worker as it last said it was. Nothing is decided by it."""

    name: str
    host: str
    pid: int
    version: str
    state: str
    reason: str | None
    queues: dict[str, int] = Field(description="By name: how many jobs at once.")
    tasks: list[str]
    running: int
    started_at: Instant
    seen_at: Instant
    age: float = Field(description="Seconds since it was heard of.")


class Workers(BaseModel):
    workers: list[Worker]


class Raised(BaseModel):
    id: int
    rule: str
    subject: str
    severity: Severity
    detail: str
    raised_at: Instant | None
    acked_by: str | None


class Health(BaseModel):
    """``ok``; ``degraded``: alerts are raised, or rules cannot be judged; ``failing`` (503): the database does not answer."""

    status: Literal["ok", "degraded", "failing"]
    reasons: list[str]
    alerts: list[Raised]
    unknown: dict[str, str]
    judged_at: Instant | None
    judged_by: str | None


class Probe(BaseModel):
    status: str
    reasons: list[str] | None = Field(description="Null for who may not see them.")


class QueueDepth(BaseModel):
    queue: str
    ready: int
    later: int
    running: int
    oldest: Instant | None
    at_least: list[Counted] = Field(description="Numbers that were not counted to the end. With `later`, queues may be missing whose jobs are all for later.")  # fmt: skip


class Oldest(BaseModel):
    """The ready job that was planned for the earliest instant."""

    queue: str
    at: Instant
    seconds: float


class Minute(BaseModel):
    """What ended within a minute, the last one until now."""

    start: Instant
    succeeded: int
    failed: int
    cancelled: int
    wait_median: float | None = Field(description="Seconds from the instant a job was planned for to its start, of a sample; null without one.")  # fmt: skip
    wait_p95: float | None


class Totals(BaseModel):
    """Over all queues and the minutes that are shown."""

    ready: int
    later: int
    running: int
    at_least: list[Counted] = Field(description="Numbers that were not counted to the end. With `later`, queues may be missing whose jobs are all for later.")  # fmt: skip
    succeeded: int
    failed: int
    cancelled: int
    wait_median: float | None
    wait_p95: float | None


class Told(BaseModel):
    """What is everybody's: null in the overview of who belongs to a tenant."""

    workers: int
    unserved: list[str] = Field(description="Queues with ready jobs that no living worker serves.")
    alerts_raised: int
    alerts_critical: int
    alerts_noted: int
    judged_at: Instant | None


class Overview(BaseModel):
    """How things stand. Jobs are counted as far as is told, so that no backlog makes it slow."""

    now: Instant
    online: bool
    gate_reason: str | None
    capped_at: int = Field(
        description="As far as the ready jobs of a queue are counted where more than a hundred thousand are ready."
    )
    queues: list[QueueDepth]
    oldest: Oldest | None
    minutes: list[Minute] = Field(description="The earliest first.")
    totals: Totals
    system: Told | None


def routes(app: Duly) -> Any:
    made = router("system")
    metrics, beside = Metrics(), Beside(app.alerts, "web")
    metrics.registry.register(AlertMetrics(beside))
    app.listen(metrics)

    # ------------------------------------------------------------------ audit

    @made.get("/audit", response_model=EntryPage, tags=["audit"])
    def trail(
        who: Reader,
        actor: Annotated[Name | None, Query(description="By whom: token:ci, user:ann, cli:…, a worker's name.")] = None,
        action: Annotated[Name | None, Query(description="Such as JOB_CANCELLED or QUEUE_PAUSED.")] = None,
        level: Annotated[Literal["info", "warning", "error"] | None, Query()] = None,
        entity: Annotated[Name | None, Query(description="About things of this kind: job, queue, gate.")] = None,
        entity_id: Annotated[Words | None, Query(max_length=500)] = None,
        since: Annotated[InstantIn | None, Query()] = None,
        before: Annotated[InstantIn | None, Query()] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> EntryPage:
        """List what was done, by whom and to what, newest first."""
        wanted = TrailFilter(whose(who, tenant), actor, action, level, entity, entity_id, since, before)
        found = app._read(lambda c: find_entries(c, wanted, limit + 1, below(cursor)))
        kept, following = page(found, limit, lambda entry: entry.id)
        return EntryPage(entries=[Entry(**{**asdict(e), "meta": redacted(e.meta)}) for e in kept], next=following)

    @made.post("/audit/verify", response_model=Verdict, tags=["audit"])
    def verify(who: Auditor) -> Verdict:
        """Walk the hash chain over the trail from its start, and name the first link that is broken. Nothing is changed."""
        overall(who, "the chain")
        app.open()
        found = walk(app.db)
        return Verdict(holds=found.broken is None, **asdict(found))

    # ------------------------------------------------------------------ alerts

    @made.get("/alerts", response_model=AlertPage, tags=["alerts"])
    def alerts(
        who: Watcher,
        state: Annotated[list[State], Query(description="Without one: all of them.")] = [],  # noqa: B006
        rule: Annotated[Name | None, Query()] = None,
        subject: Annotated[Words | None, Query(max_length=500)] = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> AlertPage:
        """List alerts, newest first, as they were judged last."""
        overall(who, "an alert")
        found = app.alerts.find(limit + 1, below(cursor), state, rule, subject)
        kept, following = page(found, limit, lambda alert: alert.id)
        standing = app.alerts.standing()
        judged = standing.judged.at if standing.judged is not None else None
        return AlertPage(
            alerts=[_alert(app, a) for a in kept],
            next=following,
            judged_at=judged,
            stale=standing.stale or None,
            unknown=standing.unknown,
        )

    @made.get("/alerts/{id}", response_model=Alert, responses=documented(404), tags=["alerts"])
    def alert(id: Ident, who: Watcher) -> Alert:
        """One alert, and what to do about it."""
        overall(who, "an alert")
        return _alert(app, app.alerts.get(id))

    @made.post("/alerts/{id}/ack", response_model=Alert, responses=documented(404, 409), tags=["alerts"])
    def acknowledge(id: Ident, who: Noter, given: Act | None = None) -> Alert:
        """Take note of a raised alert. It stays raised until it is fine again; the others see that somebody knows."""
        overall(who, "an alert")
        return _alert(app, app.alerts.ack(id, given.reason if given else "", who.actor))

    # ------------------------------------------------------------------ workers, health, metrics

    @made.get("/workers", response_model=Workers)
    def workers(who: Viewer) -> Workers:
        """Workers that were heard of lately, by name."""
        overall(who, "a worker")
        found = app._read(lambda c: app.engine.reader.live_workers(c, WORKER_GONE))
        return Workers(workers=[Worker(**one) for one in found])

    @made.get("/health", response_model=Health, responses={503: {"model": Health}})
    def health(who: Viewer, response: Response) -> Health:
        """How things stand, in one word, with the raised alerts. 503 while it is failing."""
        overall(who, "health")
        well, document = judged_health(beside, [])
        response.status_code = 200 if well else 503
        return Health(**document)

    @made.get("/metrics", response_class=PlainTextResponse)
    def scrape(who: Viewer) -> Response:
        """For Prometheus: what this process counted, and the alerts."""
        overall(who, "a metric")
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @made.get("/overview", response_model=Overview)
    def overview(who: Viewer, tenant: TenantIn = None) -> Overview:
        """What waits and runs in each queue, what ended in the last minutes and how long it had waited; workers and alerts."""
        mine = whose(who, tenant)
        return app._read(lambda c: _overview(app, c, mine, everybodys=who.tenant is None))

    # ------------------------------------------------------------------ at the root, for who starts and stops processes

    root = APIRouter(tags=["probes"], route_class=ProblemRoute)

    @root.get("/livez", response_model=Probe, openapi_extra=UNASKED)
    def livez() -> Probe:
        """The process answers."""
        return Probe(status="alive", reasons=[])

    @root.get("/readyz", response_model=Probe, responses={503: {"model": Probe}}, openapi_extra=UNASKED)
    def readyz(request: Request, response: Response) -> Probe:
        """It can do what it is there for: the database answers, has room on its disk (SQLite), and has the schema of this version. 503 with the reasons otherwise."""
        reasons = []
        try:
            app._read(app.db.present)
            free = app.db.free_space()
            if free is not None and free < FULL:
                reasons.append(f"the disk of {app.db.shown_url} is full: {free} bytes are free, and writes fail")
        except DulyError as error:
            reasons.append(str(error))
        if reasons:
            response.status_code = 503
        who: Identity | None = getattr(request.state, "identity", None)
        sees = who is not None and who.tenant is None and who.may("system", Role.VIEWER)
        return Probe(status="unready" if reasons else "ready", reasons=reasons if sees else None)

    whole = APIRouter()
    whole.include_router(made)
    whole.include_router(root)
    return whole


def _alert(app: Duly, known: KnownAlert) -> Alert:
    rule = next((one for one in every_rule(app.settings) if one.name == known.rule), None)
    values = {**asdict(known), "state": known.state.value, "severity": known.severity.value}
    return Alert(**values, remedy=rule.remedy if rule else None, terms=rule.terms() if rule else None)


def _overview(app: Duly, c: Connection, tenant: str | None, *, everybodys: bool) -> Overview:
    now = app.db.present(c)
    stands = depths(c, now, tenant, cap=CAP)
    gone = pace(c, now, timedelta(minutes=1), MINUTES, tenant, CAP, SAMPLED)
    gate = gate_facts(app.engine, c)
    total, oldest = altogether(stands), None
    if total.oldest is not None:
        oldest = Oldest(queue=total.queue, at=total.oldest, seconds=max(0.0, (now - total.oldest).total_seconds()))
    ended = sum((Counter(one.ended) for one in gone), Counter[str]())
    waits = sorted(wait for one in gone for wait in one.waits)
    return Overview(
        now=now, online=gate.online, gate_reason=(gate.reason or None) if not gate.online else None, capped_at=CAP,
        queues=[QueueDepth(**{**asdict(d), "at_least": sorted(d.at_least)}) for d in stands], oldest=oldest, minutes=[_minute(one) for one in gone],
        totals=Totals(
            ready=total.ready, later=total.later, running=total.running, at_least=sorted(total.at_least),
            succeeded=ended["succeeded"], failed=ended["failed"], cancelled=ended["cancelled"],
            wait_median=quantile(waits, 0.5), wait_p95=quantile(waits, 0.95),
        ),
        system=_told(app, c, now, stands) if everybodys else None,
    )  # fmt: skip


def _told(app: Duly, c: Connection, now: datetime, stands: Sequence[Depth]) -> Told:
    alive = app.engine.reader.live_workers(c, WORKER_GONE)
    served = {queue for one in alive for queue in one["queues"]}
    raised = [a for a in app.alerts.store.standing(c) if a.raised_at is not None and a.cleared_at is None]
    judged = app.alerts.store.judged(c)
    return Told(
        workers=len(alive), unserved=[d.queue for d in stands if d.ready and d.queue not in served], alerts_raised=len(raised),
        alerts_critical=sum(a.severity is KnownSeverity.CRITICAL for a in raised), alerts_noted=sum(a.is_acked for a in raised),
        judged_at=judged.at if judged is not None else None,
    )  # fmt: skip


def _minute(one: Stretch) -> Minute:
    counted = {status: one.ended.get(status, 0) for status in ("succeeded", "failed", "cancelled")}
    return Minute(start=one.start, **counted, wait_median=one.wait(0.5), wait_p95=one.wait(0.95))

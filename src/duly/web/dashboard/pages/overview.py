"""``/``: how things stand, on one page. What is wrong stands on top."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.jobs.ask import WORKER_GONE
from duly.jobs.filter import JobFilter
from duly.jobs.job import Status
from duly.jobs.survey import altogether, depths, pace
from duly.kernel.errors import NotFound
from duly.monitoring.examine import gate_facts
from duly.web.api.common import whose
from duly.web.dashboard.desk import Desk, query, sees
from duly.web.dashboard.words import depth

Viewer: TypeAlias = Annotated[Identity, sees("jobs")]
#: Failed jobs that are listed.
FAILED = 8
#: A stretch of the charts, and how many they show: three hours.
STRETCH, STRETCHES = timedelta(minutes=5), 36


@dataclass(frozen=True, slots=True)
class Banner:
    """What a person should know before anything else."""

    kind: str
    said: str
    link: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """A stretch of the charts. Delays are seconds from due to start of jobs that started once; None where there is none."""

    start: datetime
    ended: int
    failed: int
    p50: float | None
    p95: float | None


def beats_of(app: Duly, connection: Connection, tenant: str | None) -> list[Beat]:
    """The last three hours, the oldest first; the last stretch is not over yet."""
    now, width = app.db.present(connection).timestamp(), STRETCH.total_seconds()
    end = datetime.fromtimestamp((now // width + 1) * width, tz=UTC)
    return [
        Beat(one.start, one.ended.get("succeeded", 0) + one.ended.get("failed", 0), one.ended.get("failed", 0), one.wait(0.5), one.wait(0.95))
        for one in pace(connection, end, STRETCH, STRETCHES, tenant)
    ]  # fmt: skip


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/")
    def overview(request: Request, who: Viewer) -> Response:
        mine = whose(who)
        app.open()

        def ask() -> dict[str, Any]:
            return app.db.read(
                lambda c: {
                    "stands": depths(c, app.db.present(c), mine),
                    "beats": beats_of(app, c, mine),
                    "workers": app.engine.reader.live_workers(c, WORKER_GONE),
                    "gate": gate_facts(app.engine, c),
                    "failed": app.engine.reader.find(c, JobFilter(tenant=mine, status=(Status.FAILED,)), FAILED),
                }
            )

        found = desk.lately(("overview", mine), ask)
        standing = app.alerts.standing() if who.tenant is None and who.may("alerts", Role.VIEWER) else None
        raised = standing.raised if standing is not None else None
        beats: list[Beat] = found["beats"]
        return desk.page(
            request, "overview.html", "Overview", **found, raised=raised, stale=standing.stale if standing is not None else "", slots=_slots(app, who), banners=banners(app, found, raised, who),
            totals=altogether(found["stands"]), hour=_hour(beats), chart=_chart(beats), delays=_delay_chart(beats), scoped=who.tenant,
        )  # fmt: skip

    return made


def banners(app: Duly, found: dict[str, Any], raised: Any, who: Identity) -> list[Banner]:
    """What stands on top: the gate, alerts, and queues with work that nobody serves."""
    out = []
    gate = found["gate"]
    if not gate.online:
        by = f" by {gate.by}" if gate.by else ""
        out.append(Banner("bad", f"The gate is offline{by}: no worker claims anything.{f' {gate.reason}' if gate.reason else ''}", "/queues", "Queues & gate"))  # fmt: skip
    elif not gate.outbox:
        out.append(
            Banner("bad", "The gate is offline for the outbox: no relay sends anything.", "/queues", "Queues & gate")
        )
    served = {queue for worker in found["workers"] for queue in worker["queues"]}
    unserved = [one for one in found["stands"] if one.ready and one.queue not in served]
    if unserved and not found["workers"]:
        out.append(Banner("bad", f"No worker is alive, and {depth(altogether(unserved), 'ready')} jobs are ready.", "/jobs?status=queued", "Queued jobs"))  # fmt: skip
    else:
        for one in unserved[:3]:
            name = one.queue
            out.append(Banner("warn", f"No worker serves queue {name}, and {depth(one, 'ready')} of its jobs are ready: duly worker --queue {name}", query("/jobs", queue=name, status="queued"), "Its jobs"))  # fmt: skip
    for alert in (raised or ())[:3]:
        if not alert.is_acked and alert.rule not in ("gate_offline", "queue_unserved"):
            kind = "bad" if alert.severity == "critical" else "warn"
            out.append(Banner(kind, alert.detail, "/alerts", "Alerts"))
    return out


def _hour(beats: list[Beat]) -> dict[str, Any]:
    """The last hour, which the last twelve stretches are."""
    last = beats[-12:]
    delays = [beat.p50 for beat in last if beat.p50 is not None]
    worst = [beat.p95 for beat in last if beat.p95 is not None]
    return {
        "ended": sum(beat.ended for beat in last), "failed": sum(beat.failed for beat in last),
        "p50": sorted(delays)[len(delays) // 2] if delays else None, "p95": max(worst, default=None),
    }  # fmt: skip


def _chart(beats: list[Beat]) -> str:
    return orjson.dumps({
        "x": [int(beat.start.timestamp()) for beat in beats],
        "series": [
            {"label": "ended", "values": [beat.ended for beat in beats], "colour": "accent", "bars": True},
            {"label": "failed", "values": [beat.failed for beat in beats], "colour": "bad", "bars": True},
        ],
    }).decode()  # fmt: skip


def _delay_chart(beats: list[Beat]) -> str:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 3)

    return orjson.dumps({
        "x": [int(beat.start.timestamp()) for beat in beats],
        "series": [
            {"label": "median", "values": [rounded(beat.p50) for beat in beats], "colour": "accent", "unit": " s"},
            {"label": "95 of 100", "values": [rounded(beat.p95) for beat in beats], "colour": "warn", "unit": " s"},
        ],
    }).decode()  # fmt: skip


def _slots(app: Duly, who: Identity) -> list[dict[str, Any]]:
    """Who has each slot; of another tenant's session only that somebody has it."""
    if not who.may("automations", Role.VIEWER):
        return []
    from duly.automations.door import Automations
    from duly.web.dashboard.pages.automations import busy_words

    room, out = Automations.of(app), []
    for slot in room.slots():
        session = None
        if slot.session_id is not None:
            try:
                session = room.session(slot.session_id, whose(who))
            except NotFound:
                pass
        out.append({"name": slot.name, "held": slot.session_id is not None, "since": slot.since, "session": session, "busy": busy_words(room, slot, whose(who))})  # fmt: skip
    return out

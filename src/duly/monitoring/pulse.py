"""How much was done lately, and how soon after it was due: what the overview draws. Only reads, and no more than it has to.

Each stretch of time is counted as far as ``ROWS`` and sampled for its delays, so that a busy system costs no more than a quiet one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, case, func, literal, select, text, union_all

from duly.jobs.tables import jobs_done
from duly.storage.database import Database

#: Seconds of a stretch, and how many are looked at.
STRETCH, STRETCHES = 300, 36
#: Rows of a stretch that are counted, and of those whose delay is looked at.
ROWS, SAMPLED = 5_000, 60


@dataclass(frozen=True, slots=True)
class Beat:
    """A stretch of time. Delays are seconds from due to start of jobs that started once; None where there is none."""

    start: datetime
    ended: int
    failed: int
    p50: float | None
    p95: float | None


def pulse(db: Database, connection: Connection, tenant: str | None = None) -> list[Beat]:
    """The last three hours in stretches of five minutes, the oldest first; the last one is not over yet."""
    if not db.is_sqlite:
        # the planner takes rows for evenly spread, and would read the whole table for a late stretch
        connection.execute(text("SELECT set_config('enable_seqscan', 'off', true)"))
    now = db.present(connection)
    last = datetime.fromtimestamp(now.timestamp() // STRETCH * STRETCH, tz=now.tzinfo)
    starts = [last - timedelta(seconds=STRETCH * n) for n in reversed(range(STRETCHES))]
    counts, delays = _counts(connection, starts, tenant), _delays(connection, starts, tenant)
    return [
        Beat(at, *counts.get(n, (0, 0)), _at(delays.get(n, ()), 0.5), _at(delays.get(n, ()), 0.95))
        for n, at in enumerate(starts)
    ]


def _within(start: datetime, tenant: str | None) -> list[object]:
    c = jobs_done.c
    where = [c.finished_at >= start, c.finished_at < start + timedelta(seconds=STRETCH)]
    return [*where, c.tenant == tenant] if tenant is not None else [*where]


def _counts(connection: Connection, starts: Sequence[datetime], tenant: str | None) -> dict[int, tuple[int, int]]:
    c, parts = jobs_done.c, []
    for n, start in enumerate(starts):
        part = select(c.status).where(*_within(start, tenant), c.status != "cancelled").limit(ROWS).subquery()  # type: ignore[arg-type]
        parts.append(
            select(literal(n).label("n"), func.count().label("all"), func.sum(case((part.c.status == "failed", 1), else_=0)).label("bad")).select_from(part)
        )  # fmt: skip
    return {n: (found, int(bad or 0)) for n, found, bad in connection.execute(union_all(*parts))}


def _delays(connection: Connection, starts: Sequence[datetime], tenant: str | None) -> dict[int, list[float]]:
    c, parts = jobs_done.c, []
    for n, start in enumerate(starts):
        where = [*_within(start, tenant), c.attempts == 1, c.started_at.is_not(None)]
        some = select(c.run_at, c.created_at, c.started_at).where(*where).limit(SAMPLED).subquery()  # type: ignore[arg-type]
        parts.append(select(literal(n).label("n"), some.c.run_at, some.c.created_at, some.c.started_at))
    out: dict[int, list[float]] = {}
    for n, run_at, created_at, started_at in connection.execute(union_all(*parts)):
        out.setdefault(n, []).append(max(0.0, (started_at - max(run_at, created_at)).total_seconds()))
    return out


def _at(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else None

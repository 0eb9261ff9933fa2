"""How schedules stand: what lists, ``duly up`` and ``duly doctor`` ask in a few statements, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, Text, cast, func, select

from duly.schedules.schedule import Occurrence
from duly.schedules.store import occurrence
from duly.schedules.tables import occurrences, schedules

#: Broken and overdue schedules that are named.
NAMED = 20


@dataclass(frozen=True, slots=True)
class Coming:
    """The next planned instant of all: whose it is, when, and the zone whose clock is meant."""

    name: str
    at: datetime
    tz: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How the schedules of a database stand."""

    count: int = 0
    paused: int = 0
    #: Of those that are neither paused nor broken.
    next: Coming | None = None
    #: (name, why it cannot be planned, since when), the longest first.
    broken: tuple[tuple[str, str, datetime], ...] = ()
    #: (name, when somebody should have looked at it), the longest first.
    overdue: tuple[tuple[str, datetime], ...] = ()


def standing(connection: Connection, late: datetime) -> Standing:
    """Ask. ``late`` (aware): what nobody has looked at since before then is overdue."""
    s = schedules.c
    there = s.removed_at.is_(None)
    count, paused = connection.execute(select(func.count(), func.count(s.paused_at)).where(there)).one()
    if not count:
        return Standing()
    active = [there, s.paused_at.is_(None), s.error.is_(None), s.next_at.is_not(None)]
    first = connection.execute(
        select(s.name, s.next_at, cast(s.recurrence, Text)).where(*active).order_by(s.next_at, s.name).limit(1)
    ).first()
    broken = select(s.name, s.error, s.error_at).where(there, s.error.is_not(None)).order_by(s.error_at).limit(NAMED)
    overdue = select(s.name, s.look_at).where(s.look_at < late).order_by(s.look_at, s.name).limit(NAMED)
    return Standing(
        count,
        paused,
        Coming(first[0], first[1], _zone(first[2])) if first is not None else None,
        tuple((name, error, at) for name, error, at in connection.execute(broken)),
        tuple((name, at) for name, at in connection.execute(overdue)),
    )


def _zone(recurrence: str) -> str | None:
    try:
        found: Any = orjson.loads(recurrence)
    except orjson.JSONDecodeError:  # written by hand, and not looked at yet
        return None
    return found.get("tz") if isinstance(found, dict) else None


def latest(
    connection: Connection, tenant: str | None = None, idents: Sequence[int] | None = None
) -> dict[int, Occurrence]:
    """The newest occurrence of each schedule that has one, by the schedule's number. ``idents``: of these schedules only."""
    o, s = occurrences.c, schedules.c
    x = occurrences.alias("x")
    newest = select(func.max(x.c.due_at)).where(x.c.schedule_id == s.id).scalar_subquery()
    query = select(occurrences).join(schedules, s.id == o.schedule_id).where(s.removed_at.is_(None), o.due_at == newest)
    if tenant is not None:
        query = query.where(s.tenant == tenant)
    if idents is not None:
        query = query.where(s.id.in_(idents))
    return {row.schedule_id: occurrence(row) for row in connection.execute(query)}


def between(
    connection: Connection, idents: Sequence[int], start: datetime, end: datetime, most: int
) -> list[Occurrence]:
    """What the ledger says of these schedules from ``start`` until before ``end``; at most ``most`` rows."""
    o = occurrences.c
    query = select(occurrences).where(o.schedule_id.in_(idents), o.due_at >= start, o.due_at < end)
    rows = connection.execute(query.order_by(o.schedule_id, o.due_at).limit(most)) if idents else ()
    return [occurrence(row) for row in rows]

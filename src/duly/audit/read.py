"""Reading the trail."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, or_, select

from duly.audit.tables import audit_log, audit_seals
from duly.kernel.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the trail: who did what to what, and when (aware UTC)."""

    id: int
    at: datetime
    tenant: str
    actor: str
    level: str
    action: str
    entity: str
    entity_id: str
    meta: Any


@dataclass(frozen=True, slots=True)
class TrailFilter:
    """Which rows. Everything given must hold."""

    tenant: str | None = None
    actor: str | None = None
    action: str | None = None
    level: str | None = None
    entity: str | None = None
    entity_id: str | None = None
    since: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    """What the hash chain does not cover yet."""

    rows: int
    oldest_at: datetime | None


def find(connection: Connection, f: TrailFilter, limit: int = 50, below: int | None = None) -> list[Entry]:
    """Rows by filter, newest first. ``below`` is the last id of the page before."""
    if not 1 <= limit <= 10_000:
        raise InvalidArgument("limit", f"is {limit}; it must be between 1 and 10,000.")
    c = audit_log.c
    query = select(*(c[n] for n in Entry.__dataclass_fields__))
    equal: Mapping[str, Any] = {n: getattr(f, n) for n in ("tenant", "actor", "action", "level", "entity", "entity_id")}
    query = query.where(*(c[n] == value for n, value in equal.items() if value is not None))
    if f.since is not None:
        query = query.where(c.at >= f.since)
    if f.before is not None:
        query = query.where(c.at < f.before)
    if below is not None:
        query = query.where(c.id < below)
    return [Entry(*row) for row in connection.execute(query.order_by(c.id.desc()).limit(limit))]


def acts(connection: Connection, entity: str, entity_ids: Iterable[str], actions: Sequence[str]) -> list[Entry]:
    """Entries of these actions about these entities, oldest first."""
    c, wanted, out = audit_log.c, sorted(set(entity_ids)), list[Entry]()
    for start in range(0, len(wanted), 500):
        mine = [c.entity_id.in_(wanted[start : start + 500]), c.entity == entity, c.action.in_(actions)]
        query = select(*(c[n] for n in Entry.__dataclass_fields__)).where(*mine).order_by(c.id)
        out += [Entry(*row) for row in connection.execute(query)]
    return out


def newest(connection: Connection) -> int:
    """The id of the last row; 0 where there is none."""
    return connection.execute(select(func.max(audit_log.c.id))).scalar() or 0


def follow(connection: Connection, above: int, gaps: Collection[tuple[int, int]] = (), limit: int = 500) -> list[Entry]:
    """Rows in the order of their ids: those above one, and those of ``gaps``, ranges of ids (first, last) below it that were not there yet. ``meta`` is left out.

    Ids are given out before transactions commit (case B043): who follows the trail looks again for those that were passed by.
    """
    c = audit_log.c
    query = select(*(c[n] for n in Entry.__dataclass_fields__ if n != "meta"))
    query = query.where(or_(c.id > above, *(c.id.between(first, last) for first, last in gaps)))
    return [Entry(**row._mapping, meta={}) for row in connection.execute(query.order_by(c.id).limit(limit))]


def tail(connection: Connection) -> Tail:
    """The rows behind the last seal."""
    last = connection.execute(select(func.max(audit_seals.c.last_id))).scalar() or 0
    query = select(func.count(), func.min(audit_log.c.at)).where(audit_log.c.id > last)
    rows, oldest = connection.execute(query).one()
    return Tail(rows, oldest)

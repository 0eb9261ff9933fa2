"""How blackouts stand, for those who obey them and ask often: rows are read as they are, and no window is worked out.

What moves a row to its next stretch, and everything that people ask, is in ``store``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, or_, select

from duly.calendars.stretch import NEVER, Hold
from duly.calendars.tables import blackouts
from duly.storage.database import Database
from duly.storage.rows import any_row


@dataclass(frozen=True, slots=True)
class Standing:
    """A blackout as a worker sees it: what it holds, from when, until when."""

    name: str
    scope: str
    hold: Hold


def standing(db: Database, connection: Connection) -> tuple[list[Standing], datetime | None]:
    """What holds or will hold, and the database's present instant; None for it where there is nothing."""
    query = select(
        blackouts.c.name, blackouts.c.scope, blackouts.c.holds_from, blackouts.c.holds_until, db.now().label("now")
    ).where(or_(blackouts.c.holds_from.is_(None), blackouts.c.holds_from < NEVER))  # fmt: skip
    rows = connection.execute(query.order_by(blackouts.c.name)).all()
    return [Standing(r.name, r.scope, Hold(r.holds_from, r.holds_until)) for r in rows], rows[0].now if rows else None


def any_blackout(connection: Connection) -> bool:
    """Is there one at all, be it on or off?"""
    return any_row(connection, blackouts.name)


def any_holds(db: Database, connection: Connection, *scopes: str) -> bool:
    """Does a row hold one of these scopes now, or all?"""
    mine = blackouts.c.scope.in_(("all", *scopes))
    return connection.execute(select(blackouts.c.name).where(_on(db.now()), mine).limit(1)).first() is not None


def _on(now: Any) -> Any:
    return or_(blackouts.c.holds_from.is_(None), blackouts.c.holds_from <= now)


def queues_held(standing: Iterable[Standing], now: datetime) -> tuple[bool, frozenset[str]]:
    """(are all queues held, the names of those that are held by name), at an instant."""
    scopes = {s.scope for s in standing if s.hold.is_on(now)}
    return "all" in scopes, frozenset(s.partition(":")[2] for s in scopes if s.startswith(("queue:", "channel:")))

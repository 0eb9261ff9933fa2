"""Blackouts: windows that hold work, under a name."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Index, Integer, Table, Text

from duly.storage.schema import metadata
from duly.storage.types import Instant, Json

#: What may be held, as the column says it. A scope that nobody understands would hold nobody, so the database refuses it.
SCOPES = "scope = 'all' OR scope LIKE 'queue:_%' OR scope LIKE 'channel:_%' OR scope LIKE 'schedule:_%'"

blackouts = Table(
    "blackouts",
    metadata,
    #: Unique in the whole system, as the names of queues are.
    Column("name", Text, primary_key=True),
    #: What it holds: all, queue:NAME, channel:NAME or schedule:NAME.
    Column("scope", Text, nullable=False),
    #: The window, as ``kernel.windows`` writes it.
    Column("definition", Json, nullable=False),
    Column("enabled", Boolean, nullable=False),
    #: Rises with each change.
    Column("version", Integer, nullable=False),
    #: The present stretch or the next one. Claims ask for ``holds_from`` alone: from that instant on they are held, until
    #: somebody has moved it. Null, so also a row written by hand: nobody has looked yet, and it holds.
    Column("holds_from", Instant),
    Column("holds_until", Instant),
    Column("reason", Text),
    #: The import it came from; the next import of that name replaces it.
    Column("source", Text),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Text, nullable=False),
    CheckConstraint(SCOPES, name="scope"),
)
Index("ix_blackouts_holds", blackouts.c.holds_from)


def queue_scopes(name: str) -> tuple[str, str]:
    """The scopes that hold a queue by its name: a channel is the queue of its name."""
    return f"queue:{name}", f"channel:{name}"


def held(sqlite: bool, queue: str, now: str) -> str:
    """SQL that is true while a blackout holds a queue; both are SQL expressions. The one test of every claim.

    On PostgreSQL what holds is collected once per statement, into an array: a subquery that names the queue is turned into a
    join, and the order of the joins that the planner then chose made a claim six times as slow (measured; a test looks at the plan).
    """
    on = f"(b.holds_from <= {now} OR b.holds_from IS NULL)"
    if sqlite:
        return f"EXISTS (SELECT 1 FROM blackouts b WHERE {on} AND b.scope IN ('all', 'queue:' || {queue}, 'channel:' || {queue}))"
    return f"(ARRAY['all', 'queue:' || {queue}, 'channel:' || {queue}] && ARRAY(SELECT b.scope FROM blackouts b WHERE {on}))"

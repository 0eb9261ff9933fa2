"""What pages ask of many rounds at once, in a few statements, however many there are. Readers never lock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, literal_column, select

from duly.rounds.group import Group
from duly.rounds.records import to_group, to_round
from duly.rounds.round import Round
from duly.rounds.tables import group_members, groups, round_comments, round_submissions, round_votes, rounds


@dataclass(frozen=True, slots=True)
class Standing:
    """How rounds stand."""

    groups: int
    #: Those with rounds to come.
    active: int
    open: int
    #: When the next of the planned rounds is due, and when the next of the open ones closes that are not over.
    due_at: datetime | None
    close_at: datetime | None


@dataclass(frozen=True, slots=True)
class Tally:
    """How much is in a round."""

    submissions: int = 0
    comments: int = 0
    votes: int = 0


def standing(connection: Connection, now: datetime, tenant: str | None = None) -> Standing:
    g, r = groups.c, rounds.c
    active = func.count().filter(g.is_active)
    of_groups = select(func.count(), active).where(*([g.tenant == tenant] if tenant is not None else []))
    mine = [r.tenant == tenant] if tenant is not None else []
    # constants, as the indexes have them
    is_open, scheduled = r.status == literal_column("'open'"), r.status == literal_column("'scheduled'")
    count, running = connection.execute(of_groups).one()
    opened = connection.execute(select(func.count()).select_from(rounds).where(is_open, *mine)).scalar_one()
    close_at = connection.execute(select(func.min(r.close_at)).where(is_open, r.close_at > now, *mine)).scalar()
    due_at = connection.execute(select(func.min(r.due_at)).where(scheduled, r.due_at.is_not(None), *mine)).scalar()
    return Standing(count, running, opened, due_at, close_at)


def live(connection: Connection, idents: Collection[int]) -> dict[int, Round]:
    """The round of each group that is not closed, by the group's number."""
    r = rounds.c
    query = select(rounds).where(r.group_id.in_(idents), r.status != literal_column("'closed'"))
    return {row.group_id: to_round(row) for row in connection.execute(query)}


def open_rounds(connection: Connection, tenant: str | None, limit: int) -> list[Round]:
    """Open rounds, the one that closes first first."""
    r = rounds.c
    query = select(rounds).where(r.status == literal_column("'open'")).order_by(r.close_at, r.id).limit(limit)
    if tenant is not None:
        query = query.where(r.tenant == tenant)
    return [to_round(row) for row in connection.execute(query)]


def tallies(connection: Connection, idents: Collection[int]) -> dict[int, Tally]:
    """How much is in rounds, by their numbers."""
    counts: list[dict[int, int]] = []
    for table in (round_submissions, round_comments, round_votes):
        c: Any = table.c
        query = select(c.round_id, func.count()).where(c.round_id.in_(idents)).group_by(c.round_id)
        counts.append({row[0]: row[1] for row in connection.execute(query)})
    return {ident: Tally(*(one.get(ident, 0) for one in counts)) for ident in idents}


def groups_by_number(connection: Connection, idents: Collection[int]) -> dict[int, Group]:
    return {row.id: to_group(row) for row in connection.execute(select(groups).where(groups.c.id.in_(idents)))}


def names(connection: Connection, members: Collection[int]) -> dict[int, str]:
    """The names of members, by their numbers."""
    m = group_members.c
    return {row.id: row.name for row in connection.execute(select(m.id, m.name).where(m.id.in_(members)))}

"""Looking at the outbox: one message, many, and how it stands. No statement here writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, case, false, func, select, union_all

from duly.kernel.errors import InvalidArgument, NotFound
from duly.kernel.hold import Hold
from duly.outbox.message import PARKED_BY_HAND, Message, Status
from duly.storage.database import Database
from duly.storage.types import json_text


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages. Everything given must hold; ``status`` may be several."""

    status: Sequence[Status] | Status | None = None
    destination: str | None = None
    tenant: str | None = None
    key: str | None = None
    ordering_key: str | None = None
    message_id: str | None = None
    #: Sent before this instant (aware).
    sent_before: datetime | None = None
    #: True: only what an operator put aside (``park``); False: only what was not.
    discarded: bool | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """How it stands with one destination."""

    destination: str
    pending: int = 0
    #: Of the pending: those whose instant has come, and those that a relay holds.
    due: int = 0
    in_flight: int = 0
    parked: int = 0
    #: Sent and not pruned yet; None where it was not counted.
    sent: int | None = None
    #: When the oldest pending message was published, and how many seconds ago.
    oldest_at: datetime | None = None
    oldest_age: float = 0.0
    #: Why a relay holds it; None while it is open. Known in Duly's own database only.
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """How the outbox stands: what ``outbox.status()`` answers."""

    pending: int
    due: int
    in_flight: int
    parked: int
    #: Sent and not pruned yet; None where it was not counted.
    sent: int | None
    oldest_at: datetime | None
    oldest_age: float
    destinations: tuple[Backlog, ...]

    def with_holds(self, holds: Iterable[Hold]) -> Standing:
        """The same with the holds of its destinations; one that nothing waits for is not held any more."""
        by_name = {hold.destination: hold for hold in holds}
        each = tuple(replace(d, hold=by_name.get(d.destination)) if d.pending else d for d in self.destinations)
        return replace(self, destinations=each)

    @property
    def drained(self) -> bool:
        """Is nothing left to send?"""
        return self.pending == 0


class OutboxReader:
    """The looks at one table of one database."""

    def __init__(self, db: Database, table: Table) -> None:
        self.db, self.table = db, table

    def get(self, connection: Connection, ident: int | str, tenant: str | None = None) -> Message:
        """One message, by number or by message id. Raises NotFound, also when it is another tenant's."""
        c = self.table.c
        query = select(self.table).where(c.id == ident if isinstance(ident, int) else c.message_id == ident)
        row = connection.execute(query).first()
        if row is None or (tenant is not None and row.tenant != tenant):
            raise NotFound("message", ident)
        return _message(row)

    def find(
        self, connection: Connection, wanted: MessageFilter, limit: int = 50, below: int | None = None
    ) -> list[Message]:
        """Messages, newest first. ``below``: only ids below this one, the last of the page before."""
        if not 1 <= limit <= 10_000:
            raise InvalidArgument("limit", f"is {limit}; it must be between 1 and 10,000.")
        query = self._where(select(self.table), wanted)
        if below is not None:
            query = query.where(self.table.c.id < below)
        return [_message(row) for row in connection.execute(query.order_by(self.table.c.id.desc()).limit(limit))]

    def ids(self, connection: Connection, wanted: MessageFilter, limit: int | None = None) -> list[int]:
        """Their numbers, the oldest first."""
        query = self._where(select(self.table.c.id), wanted).order_by(self.table.c.id)
        return list(connection.execute(query.limit(limit) if limit is not None else query).scalars())

    def count(self, connection: Connection, wanted: MessageFilter) -> dict[tuple[str, str], int]:
        """How many, by destination and status."""
        c = self.table.c
        query = self._where(select(c.destination, c.status, func.count()), wanted).group_by(c.destination, c.status)
        rows = connection.execute(query.order_by(c.destination, c.status))
        return {(destination, status): n for destination, status, n in rows}

    def _where(self, query: Select[Any], f: MessageFilter) -> Select[Any]:
        c = self.table.c
        if f.status is not None:
            wanted = [f.status] if isinstance(f.status, str) else list(f.status)
            query = query.where(c.status.in_([str(s) for s in wanted]))
        for name in ("destination", "tenant", "key", "ordering_key", "message_id"):
            value = getattr(f, name)
            if value is not None:
                query = query.where(c[name] == value)
        if f.sent_before is not None:
            query = query.where(c.sent_at < f.sent_before)
        if f.discarded is not None:
            by = and_(c.status == "parked", json_text(c.error, "type") == PARKED_BY_HAND)
            query = query.where(by if f.discarded else func.coalesce(by, false()).is_(False))
        return query

    def standing(self, connection: Connection, sent: bool = True, tenant: str | None = None) -> Standing:
        """Counts and ages. ``sent`` also counts what was sent, which takes the longer the more is kept. ``tenant``: of its messages only."""
        c, now = self.table.c, self.db.now()
        leased, due = c.lease_token.is_not(None), and_(c.lease_token.is_(None), c.due_at <= now)
        columns = (
            c.destination, c.status, func.count().label("n"), func.sum(case((due, 1), else_=0)).label("due"),
            func.sum(case((leased, 1), else_=0)).label("leased"), func.min(c.created_at).label("oldest"),
        )  # fmt: skip
        # three parts, each answered by a partial index: sent messages are not looked at
        mine = () if tenant is None else (c.tenant == tenant,)
        parts = [
            select(*columns).where(*where, *mine).group_by(c.destination, c.status)
            for where in (
                (c.status == "pending", c.ordering_key.is_(None)),
                (c.ordering_key.is_not(None), c.status != "sent"),
                (c.status == "parked", c.ordering_key.is_(None)),
            )
        ]
        found: dict[str, Backlog] = {}
        at = self.db.present(connection)
        for name, status, n, n_due, n_leased, oldest in connection.execute(union_all(*parts)):
            found[name] = _added(found.get(name, Backlog(name)), status, n, n_due, n_leased, oldest, at)
        if sent:
            found = self._with_sent(connection, found, mine)
        each = tuple(found[name] for name in sorted(found))
        oldest_at = min((b.oldest_at for b in each if b.oldest_at is not None), default=None)
        counted = sum(b.sent or 0 for b in each) if sent else None
        return Standing(
            sum(b.pending for b in each), sum(b.due for b in each), sum(b.in_flight for b in each), sum(b.parked for b in each), counted,
            oldest_at, _age(oldest_at, at), each,
        )  # fmt: skip

    def _with_sent(
        self, connection: Connection, found: Mapping[str, Backlog], mine: Sequence[ColumnElement[bool]]
    ) -> dict[str, Backlog]:
        c = self.table.c
        query = select(c.destination, func.count().label("n")).where(c.status == "sent", *mine).group_by(c.destination)
        sent = {row.destination: row.n for row in connection.execute(query)}
        return {name: replace(found.get(name, Backlog(name)), sent=sent.get(name, 0)) for name in {*found, *sent}}


def _added(b: Backlog, status: str, n: int, due: int, leased: int, oldest: datetime | None, now: datetime) -> Backlog:
    if status == Status.PARKED:
        return replace(b, parked=b.parked + n)
    at = oldest if b.oldest_at is None or (oldest is not None and oldest < b.oldest_at) else b.oldest_at
    return replace(
        b, pending=b.pending + n, due=b.due + int(due), in_flight=b.in_flight + int(leased), oldest_at=at, oldest_age=_age(at, now)
    )  # fmt: skip


def _age(instant: datetime | None, now: datetime) -> float:
    return max(0.0, (now - instant).total_seconds()) if instant is not None else 0.0


def _message(row: Row[Any]) -> Message:
    return Message(
        id=row.id, message_id=row.message_id, tenant=row.tenant, destination=row.destination, payload=row.payload, headers=row.headers,
        key=row.key, ordering_key=row.ordering_key, status=Status(row.status), attempts=row.attempts, created_at=row.created_at,
        due_at=row.due_at, sent_at=row.sent_at, parked_at=row.parked_at, relay=row.relay, lease_until=row.lease_until,
        losses=row.losses, error=row.error, token=row.lease_token or 0,
    )  # fmt: skip

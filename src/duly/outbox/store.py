"""Every statement that moves messages: publish, look, claim, settle, renew, rescue, redrive, park, prune.

There is no watermark anywhere: what is to be sent is found by its status, so a message with a smaller id that commits
later is found later (case B043), and ids of rolled-back transactions leave gaps that nobody waits for.

A relay looks before it takes, in two cheap reads that hop along an index: the destinations that have messages, and for
each the first message of every ordering key (its *head*). Then one transaction takes them. Heads are locked first and
the line behind a head is read under that lock, so two relays never hold messages of one line; a line of which anything
is leased has no head for anybody else. A message that is sent again by hand may stand before those that are out: on
PostgreSQL who claims and who redrives take an advisory lock of the line, and what was read before it is read again under
it. Every write about a message that is being sent names the lease token, which is a random number
of the claim plus the message's id; a write that matches no row is an ordinary answer, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Row, Table, delete, select

from duly.kernel.hold import Hold
from duly.outbox.holds import Fault
from duly.outbox.message import Message, NewMessage
from duly.outbox.plan import CHAIN, Link, OnParked, Settlement, leading, release, unbroken
from duly.outbox.statements import CHANNEL, HOPS, Statements
from duly.outbox.tables import outbox_holds
from duly.storage.database import Database
from duly.storage.rows import encode, insert_into

__all__ = ["CHANNEL", "HOPS", "OutboxStore", "Waiting"]


class Waiting(NamedTuple):
    """A destination, or a head, that has something to send."""

    destination: str
    #: Seconds until its first message may be taken, 0 or less for now; None when all of it is being sent or held.
    wait: float | None
    #: Of a head: its ordering key and id.
    key: str = ""
    id: int = 0


class OutboxStore:
    """The statements on one table of one database."""

    def __init__(self, db: Database, table: Table, on_parked: OnParked = "hold") -> None:
        self.db, self.table, self.on_parked = db, table, on_parked
        self.sqlite = db.is_sqlite
        dialect = db.engine.dialect
        # a preparer of its own: that of the dialect may name the schema of Duly's tables, which is said where a statement is compiled
        self.sql = Statements(dialect.preparer(dialect).format_table(table), self.sqlite, on_parked)

    def _at(self, now: datetime | None) -> datetime | None:
        """The instant for a statement: the given one, else as the database's rule has it."""
        return now if now is not None else self.db.stamp()

    # ------------------------------------------------------------------ publish

    def publish(self, connection: Connection, new: Sequence[NewMessage], notify: bool) -> list[tuple[str, bool]]:
        """Write messages in the caller's transaction, in order. Returns (message id, created) of each.

        A key that is taken gives the id of the message that has it. On PostgreSQL whoever publishes with the same
        destination and ordering key waits until this transaction has ended, so ids of a line follow its commits.
        """
        rows = encode(self.sqlite, (_row(n, message) for n, message in enumerate(new)))
        if not self.sqlite and any(m.ordering_key is not None for m in new):
            connection.execute(self.sql.line_up, {"rows": rows})
        parameters: dict[str, Any] = {"rows": rows, "now": self.db.stamp()}
        if not self.sqlite:
            parameters["notify"] = notify
        made: set[str] = set()
        owners: dict[tuple[str, str, str], str] = {}
        left = list(new)
        while left:
            made.update(row[0] for row in connection.execute(self.sql.publish, parameters))
            left = [m for m in left if m.message_id not in made]
            if left:
                asked = ({"tenant": m.tenant, "destination": m.destination, "key": m.key} for m in left)
                found = connection.execute(self.sql.owners, {"rows": encode(self.sqlite, asked)})
                owners |= {(tenant, destination, key): ident for tenant, destination, key, ident in found}
            # a key whose message was pruned between the two statements is free after all
            left = [m for m in left if _place(m) not in owners]
            parameters["rows"] = encode(self.sqlite, (_row(n, m) for n, m in enumerate(left)))
        return [(m.message_id, True) if m.message_id in made else (owners[_place(m)], False) for m in new]

    # ------------------------------------------------------------------ look

    def waiting(self, connection: Connection, after: str, now: datetime | None = None) -> list[Waiting]:
        """Destinations behind ``after`` with messages that have no ordering key, at most ``HOPS``."""
        rows = connection.execute(self.sql.destinations, {"after": after, "now": self._at(now)})
        return [Waiting(name, None if wait is None else float(wait)) for name, wait in rows]

    def lines(self, connection: Connection, after: str) -> list[str]:
        """Destinations behind ``after`` with ordered messages that are not sent, at most ``HOPS``."""
        return list(connection.execute(self.sql.ordered, {"after": after}).scalars())

    def heads(self, connection: Connection, after: Mapping[str, str], now: datetime | None = None) -> list[Waiting]:
        """The first message of each ordering key behind ``after[destination]``, at most ``HOPS`` of each destination."""
        rows = encode(self.sqlite, ({"name": name, "after": key} for name, key in after.items()))
        answer = connection.execute(self.sql.heads, {"rows": rows, "now": self._at(now)})
        return [Waiting(name, None if wait is None else float(wait), key, ident) for name, key, ident, wait in answer]

    # ------------------------------------------------------------------ claim

    def take_lines(
        self, connection: Connection, heads: Sequence[int], total: int, token: int, lease: float, relay: str,
        now: datetime | None = None,
    ) -> list[Message]:  # fmt: skip
        """Take messages of which the heads are given, each with those behind it that may go with it; ``total`` in all."""
        at = self._at(now)
        planned: list[list[int]] = []
        each, left = min(CHAIN, max(1, total // max(1, len(heads)))), total
        for row in connection.execute(self.sql.lock_heads, {"ids": self._ids(heads), "now": at}).all():
            if not row.mine:
                continue
            facts = {
                "destination": row.destination,
                "key": row.ordering_key,
                "head": row.id,
                "n": min(each, left),
                "now": at,
            }
            line = connection.execute(self.sql.line, facts)
            planned.append(leading((Link(i, s, bool(free), bool(due)) for i, s, free, due in line), self.on_parked))
            left -= len(planned[-1])
            if left <= 0:
                break
        wanted = [ident for line_ids in planned for ident in line_ids]
        if not wanted:
            return []
        asked = {"ids": self._ids(wanted), "token": token, "lease": lease, "relay": relay, "now": at}
        taken = {m.id: m for m in map(_message, connection.execute(self.sql.take, asked))}
        out: list[Message] = []
        for line_ids in planned:
            to_send, back = unbroken(line_ids, set(taken))
            out += [taken[ident] for ident in to_send]
            if back:
                self.settle(connection, [release(taken[i]) for i in back], now)
        return out

    def take(
        self, connection: Connection, rooms: Mapping[str, int], total: int, token: int, lease: float, relay: str,
        now: datetime | None = None,
    ) -> list[Message]:  # fmt: skip
        """Take due messages without an ordering key: up to ``rooms[destination]`` of each, ``total`` in all, the oldest first."""
        at = self._at(now)
        facts: dict[str, Any] = {"token": token, "lease": lease, "relay": relay, "now": at}
        if self.sqlite:
            picked: list[tuple[Any, int]] = []
            for name, room in rooms.items():
                rows = connection.execute(self.sql.pick, {"destination": name, "room": room, "now": at})
                picked += [(due_at, ident) for ident, due_at in rows]
            facts["ids"] = self._ids([ident for _, ident in sorted(picked)[:total]])
            taken = connection.execute(self.sql.take, facts).all() if picked else []
        else:
            facts |= {"names": list(rooms), "rooms": list(rooms.values()), "total": total}
            taken = connection.execute(self.sql.claim, facts).all()
        return sorted(map(_message, taken), key=lambda m: (m.due_at, m.id))

    # ------------------------------------------------------------------ settle

    def settle(self, connection: Connection, batch: Iterable[Settlement], now: datetime | None = None) -> set[int]:
        """Write settlements. Returns the ids that were still held; of the others nothing changed."""
        rows = encode(self.sqlite, (
            {
                "ident": s.id, "token": s.token, "status": str(s.status), "wait": s.wait, "uncount": 0 if s.counted else 1, "losses": s.losses,
                "error": None if s.error is None else orjson.dumps(s.error).decode(),
            }
            for s in batch
        ))  # fmt: skip
        return set(connection.execute(self.sql.settle, {"rows": rows, "now": self._at(now)}).scalars())

    def renew(
        self, connection: Connection, held: Iterable[tuple[int, int]], lease: float, now: datetime | None = None
    ) -> set[int]:
        """Renew leases given as (id, token). Returns the ids of those still held."""
        rows = encode(self.sqlite, ({"ident": ident, "token": token} for ident, token in held))
        return set(connection.execute(self.sql.renew, {"rows": rows, "lease": lease, "now": self._at(now)}).scalars())

    def lapsed(self, connection: Connection, now: datetime | None = None) -> list[Message]:
        """Messages whose lease has lapsed, locked until this transaction ends."""
        return [_message(row) for row in connection.execute(self.sql.lapsed, {"now": self._at(now)})]

    # ------------------------------------------------------------------ held destinations

    def write_holds(self, connection: Connection, changes: Mapping[str, Hold | None], relay: str) -> None:
        """Write which destinations are held, for people, alerts and relays that start later."""
        gone = [name for name, hold in changes.items() if hold is None]
        if gone:
            connection.execute(delete(outbox_holds).where(outbox_holds.c.destination.in_(gone)))
        for name in sorted(name for name, hold in changes.items() if hold is not None):
            hold = changes[name]
            assert hold is not None
            values = {
                "kind": str(hold.kind), "since": hold.since, "until": hold.until, "tries": hold.tries, "problem": hold.problem, "relay": relay,
            }  # fmt: skip
            statement = insert_into(self.sqlite)(outbox_holds).values(destination=name, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["destination"], set_=values))

    def holds(self, connection: Connection) -> list[Hold]:
        """The destinations that some relay holds, by name."""
        c = outbox_holds.c
        rows = connection.execute(select(outbox_holds).order_by(c.destination))
        return [Hold(r.since, r.until, r.problem, Fault(r.kind), r.tries, destination=r.destination) for r in rows]

    # ------------------------------------------------------------------ operators

    def redrive(self, connection: Connection, ids: Sequence[int]) -> list[tuple[int, str]]:
        """Have parked and sent messages sent again, attempts from 0. Returns (id, tenant) of those that were."""
        if not self.sqlite:
            connection.execute(self.sql.stop_lines, {"ids": self._ids(ids)})
        rows = connection.execute(self.sql.redrive, {"ids": self._ids(ids), "now": self.db.stamp()})
        return [(ident, tenant) for ident, tenant in rows]

    def park(self, connection: Connection, ids: Sequence[int], error: Any) -> list[tuple[int, str, str]]:
        """Put pending messages aside, also one that is being sent. Returns (id, tenant, destination) of those that were."""
        parameters = {"ids": self._ids(ids), "error": orjson.dumps(error).decode(), "now": self.db.stamp()}
        return [
            (ident, tenant, destination) for ident, tenant, destination in connection.execute(self.sql.park, parameters)
        ]

    def prune(self, connection: Connection, older: float, limit: int) -> int:
        """Remove up to ``limit`` messages that were sent more than ``older`` seconds ago, their keys with them."""
        return connection.execute(self.sql.prune, {"older": older, "n": limit, "now": self.db.stamp()}).rowcount

    def _ids(self, ids: Sequence[int]) -> Any:
        return orjson.dumps(list(ids)).decode() if self.sqlite else list(ids)


def _place(m: NewMessage) -> tuple[str, str, str]:
    """Where its key is unique."""
    return m.tenant, m.destination, m.key or ""


def _row(n: int, m: NewMessage) -> dict[str, Any]:
    return {
        "n": n, "message_id": m.message_id, "tenant": m.tenant, "destination": m.destination, "payload": m.payload,
        "headers": orjson.dumps(m.headers).decode(), "key": m.key, "ordering_key": m.ordering_key, "run_at": m.run_at, "delay": m.delay,
    }  # fmt: skip


def _message(row: Row[Any]) -> Message:
    """A message as a claim returns it."""
    return Message(
        id=row.id, message_id=row.message_id, tenant=row.tenant, destination=row.destination, payload=row.payload, headers=row.headers,
        key=row.key, ordering_key=row.ordering_key, attempts=row.attempts, created_at=row.created_at, due_at=row.due_at,
        lease_until=row.lease_until, losses=row.losses, token=row.lease_token,
    )  # fmt: skip

"""The statements of the outbox as text, made once for a table: what they are is here, what they are for in ``store.py``.

SQLite and PostgreSQL differ in instants, in how a list is handed over, and in locking; everything else is one text. Named
parameters: ``now`` is the present instant (null lets PostgreSQL use its own clock), ``rows`` a batch of rows as JSON, ``ids`` a
list of numbers.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam

from duly.outbox.plan import OnParked
from duly.storage.qualified import text
from duly.storage.rows import at, plus_seconds, relation
from duly.storage.types import Id, Instant, Json

#: The channel on which publishing transactions of PostgreSQL say that there is something to send.
CHANNEL = "duly_outbox"
#: Destinations and ordering keys looked at in one statement.
HOPS = 200

_NEW = {
    "n": "int", "message_id": "text", "tenant": "text", "destination": "text", "payload": "text", "headers": "text", "key": "text",
    "ordering_key": "text", "run_at": "timestamptz", "delay": "float8",
}  # fmt: skip
_SETTLED = {
    "ident": "bigint",
    "token": "bigint",
    "status": "text",
    "wait": "float8",
    "uncount": "int",
    "losses": "int",
    "error": "text",
}
_HELD = {"ident": "bigint", "token": "bigint"}
#: What a claim reads of a message.
_TAKEN = """id, message_id, tenant, destination, CAST(payload AS text) AS payload, CAST(headers AS text) AS headers, key, ordering_key,
            attempts, created_at, due_at, lease_until, losses, lease_token"""
_TYPES: dict[str, Any] = {
    "id": Id, "payload": Json(), "headers": Json(), "created_at": Instant, "due_at": Instant, "lease_until": Instant,
}  # fmt: skip


class Statements:
    """The statements on one table."""

    def __init__(self, name: str, sqlite: bool, on_parked: OnParked) -> None:
        #: ``name``: the table's, quoted where it has to be.
        self.name, self.sqlite = name, sqlite
        self._now = at(sqlite)
        self._json = "" if sqlite else "::json"
        #: Messages that wait by themselves, and those that stand in a line.
        self._ready = "o.status = 'pending' AND o.ordering_key IS NULL"
        # both terms: SQLite uses a partial index only where its condition stands word for word
        skip = " AND o.status = 'pending'" if on_parked == "skip" else ""
        self._unsent = f"o.ordering_key IS NOT NULL AND o.status <> 'sent'{skip}"
        self._free, self._due = "o.lease_token IS NULL", f"o.due_at <= {self._now}"
        self._held = "o.ordering_key IS NOT NULL AND o.lease_token IS NOT NULL"
        left = f"o.due_at - {self._now}"
        self._until = f"({left}) / 1000000.0" if sqlite else f"CAST(extract(epoch FROM {left}) AS float8)"
        self._some = "IN (SELECT value FROM json_each(:ids))" if sqlite else "= ANY(CAST(:ids AS bigint[]))"
        self._make_publish()
        self._make_looks()
        self._make_claims()
        self._make_settlements()
        self._make_operators()

    def _text(self, sql: str) -> Any:
        statement = text(sql)
        return statement.bindparams(bindparam("now", type_=Instant)) if self.sqlite and ":now" in sql else statement

    def _taking(self, sql: str) -> Any:
        """A statement that returns messages, with the types of their columns."""
        return self._text(sql).columns(**_TYPES)

    def _plus(self, seconds: str) -> str:
        return plus_seconds(self.sqlite, self._now, seconds)

    def _lock_of(self, alias: str, divider: int) -> str:
        """The number of a line's advisory lock (PostgreSQL): the same however the table is spelled. ``divider``: which of the two.

        Publishers take one (31) until they commit, so that ids follow commits. Who claims or redrives takes the other (30)."""
        table = f"CAST(CAST('{self.name}' AS regclass) AS oid)"
        return (
            f"hashtextextended({alias}.destination || chr({divider}) || {alias}.ordering_key, CAST({table} AS bigint))"
        )

    def _lock_lines(self, lock: str, rows: str) -> Any:
        """Take the locks of lines, in one order for everybody."""
        return text(
            f"SELECT pg_advisory_xact_lock(line) FROM (SELECT DISTINCT {lock} AS line FROM {rows} ORDER BY line) AS lines"
        )

    def _make_publish(self) -> None:
        s, name, now, json = self.sqlite, self.name, self._now, self._json
        # SQLite's parser needs a WHERE between SELECT … FROM and ON CONFLICT
        ring = "" if s else f", CASE WHEN CAST(:notify AS boolean) THEN pg_notify('{CHANNEL}', '') END"
        self.publish = self._text(f"""
            INSERT INTO {name} (message_id, tenant, destination, payload, headers, key, ordering_key, status, attempts, created_at, due_at)
            SELECT r.message_id, r.tenant, r.destination, r.payload{json}, r.headers{json}, r.key, r.ordering_key, 'pending', 0, {now},
                   coalesce(r.run_at, {self._plus("coalesce(r.delay, 0)")})
              FROM {relation(s, _NEW)} WHERE true ORDER BY r.n
                ON CONFLICT (tenant, destination, key) WHERE key IS NOT NULL DO NOTHING
         RETURNING message_id{ring}""")
        rows = relation(s, {"destination": "text", "ordering_key": "text"})
        self.line_up = self._lock_lines(self._lock_of("r", 31), f"{rows} WHERE r.ordering_key IS NOT NULL")
        self.owners = text(f"""
            SELECT o.tenant, o.destination, o.key, o.message_id FROM {relation(s, {"tenant": "text", "destination": "text", "key": "text"})}
              JOIN {name} o ON o.tenant = r.tenant AND o.destination = r.destination AND o.key = r.key AND o.key IS NOT NULL""")

    def _make_looks(self) -> None:
        s, name, ready, unsent, free, until = self.sqlite, self.name, self._ready, self._unsent, self._free, self._until

        def hop(condition: str) -> str:
            return f"""
            WITH RECURSIVE d(name, n) AS (
                SELECT (SELECT o.destination FROM {name} o WHERE {condition} AND o.destination > :after ORDER BY o.destination LIMIT 1), 1
                 UNION ALL
                SELECT (SELECT o.destination FROM {name} o WHERE {condition} AND o.destination > d.name ORDER BY o.destination LIMIT 1), d.n + 1
                  FROM d WHERE d.name IS NOT NULL AND d.n < {HOPS})"""

        self.destinations = self._text(f"""{hop(ready)}
            SELECT d.name, (SELECT {until} FROM {name} o WHERE {ready} AND o.destination = d.name AND {free}
                             ORDER BY o.due_at, o.id LIMIT 1) AS wait
              FROM d WHERE d.name IS NOT NULL ORDER BY d.n""")
        self.ordered = text(f"{hop(unsent)} SELECT d.name FROM d WHERE d.name IS NOT NULL ORDER BY d.n")
        first = (
            f"FROM {name} o WHERE {unsent} AND o.destination = k.name AND o.ordering_key = k.key ORDER BY o.id LIMIT 1"
        )
        held = f"SELECT 1 FROM {name} o WHERE {self._held} AND o.destination = k.name AND o.ordering_key = k.key"
        step = f"SELECT o.ordering_key FROM {name} o WHERE {unsent} AND o.destination"
        self.heads = self._text(f"""
            WITH RECURSIVE k(name, key, n) AS (
                SELECT r.name, ({step} = r.name AND o.ordering_key > r.after ORDER BY o.ordering_key LIMIT 1), 1
                  FROM {relation(s, {"name": "text", "after": "text"})}
                 UNION ALL
                SELECT k.name, ({step} = k.name AND o.ordering_key > k.key ORDER BY o.ordering_key LIMIT 1), k.n + 1
                  FROM k WHERE k.key IS NOT NULL AND k.n < {HOPS})
            SELECT k.name, k.key, (SELECT o.id {first}) AS id,
                   (SELECT CASE WHEN o.status = 'pending' AND {free} AND NOT EXISTS ({held}) THEN {until} END {first}) AS wait
              FROM k WHERE k.key IS NOT NULL ORDER BY k.name, k.n""")

    def _make_claims(self) -> None:
        s, name, now, some = self.sqlite, self.name, self._now, self._some
        ready, unsent, free, due = self._ready, self._unsent, self._free, self._due

        def is_head(destination: str, key: str, ident: str) -> str:
            line = f"o.destination = {destination} AND o.ordering_key = {key}"
            return f"""NOT EXISTS (SELECT 1 FROM {name} o WHERE {unsent} AND {line} AND o.id < {ident})
               AND NOT EXISTS (SELECT 1 FROM {name} o WHERE {self._held} AND {line})"""

        lock = "true" if s else f"pg_try_advisory_xact_lock({self._lock_of('h', 30)})"
        self.lock_heads = self._text(f"""
            SELECT h.id, h.destination, h.ordering_key, {lock} AS mine FROM {name} h
             WHERE h.id {some} AND h.status = 'pending' AND h.lease_token IS NULL AND h.due_at <= {now}
               AND {is_head("h.destination", "h.ordering_key", "h.id")}
             ORDER BY h.id{"" if s else " FOR UPDATE OF h SKIP LOCKED"}""")
        self.line = self._text(f"""
            SELECT o.id, o.status, {free} AS free, {due} AS due FROM {name} o
             WHERE {unsent} AND o.destination = :destination AND o.ordering_key = :key AND o.id >= :head
               AND {is_head(":destination", ":key", ":head")}
             ORDER BY o.id LIMIT :n""")
        self.take = self._taking(f"""
            UPDATE {name} AS m SET attempts = m.attempts + 1, relay = :relay, lease_token = :token + m.id,
                   lease_until = {self._plus(":lease")}
             WHERE m.id {some} AND m.status = 'pending' AND m.lease_token IS NULL
         RETURNING {_TAKEN}""")
        picked = f"SELECT o.id, o.due_at FROM {name} o WHERE {ready} AND {free} AND {due} AND o.destination = "
        self.pick = self._text(f"{picked} :destination ORDER BY o.due_at, o.id LIMIT :room")
        self.claim = self._taking(f"""
            UPDATE {name} AS m SET attempts = m.attempts + 1, relay = :relay, lease_token = :token + m.id,
                   lease_until = {self._plus(":lease")}
             WHERE m.id = ANY(ARRAY(
                SELECT p.id FROM unnest(CAST(:names AS text[]), CAST(:rooms AS int[])) AS q(name, room)
                 CROSS JOIN LATERAL ({picked} q.name ORDER BY o.due_at, o.id LIMIT q.room FOR UPDATE SKIP LOCKED) AS p
                 ORDER BY p.due_at, p.id LIMIT :total))
         RETURNING {_TAKEN}""")

    def _make_settlements(self) -> None:
        s, name, now, json = self.sqlite, self.name, self._now, self._json
        mine = "m.id = r.ident AND m.lease_token = r.token AND m.status = 'pending'"
        self.settle = self._text(f"""
            UPDATE {name} AS m SET status = r.status, attempts = m.attempts - r.uncount, lease_token = NULL, lease_until = NULL,
                   due_at = CASE WHEN r.wait IS NULL THEN m.due_at ELSE {self._plus("r.wait")} END,
                   sent_at = CASE WHEN r.status = 'sent' THEN {now} END, parked_at = CASE WHEN r.status = 'parked' THEN {now} END,
                   losses = r.losses, error = coalesce(r.error{json}, m.error)
              FROM {relation(s, _SETTLED)} WHERE {mine} RETURNING id""")
        self.renew = self._text(f"""
            UPDATE {name} AS m SET lease_until = {self._plus(":lease")} FROM {relation(s, _HELD)} WHERE {mine} RETURNING id""")
        self.lapsed = self._taking(f"""
            SELECT {_TAKEN} FROM {name} m WHERE m.lease_token IS NOT NULL AND m.lease_until <= {now}
             ORDER BY m.lease_until LIMIT 500{"" if s else " FOR UPDATE SKIP LOCKED"}""")

    def _make_operators(self) -> None:
        s, name, now, some = self.sqlite, self.name, self._now, self._some
        self.stop_lines = self._lock_lines(
            self._lock_of("o", 30), f"{name} o WHERE o.id {some} AND o.ordering_key IS NOT NULL"
        )
        self.redrive = self._text(f"""
            UPDATE {name} AS m SET status = 'pending', attempts = 0, losses = 0, due_at = {now}, sent_at = NULL, parked_at = NULL
             WHERE m.id {some} AND m.status IN ('parked', 'sent') RETURNING id, tenant""")
        self.park = self._text(f"""
            UPDATE {name} AS m SET status = 'parked', parked_at = {now}, lease_token = NULL, lease_until = NULL, error = CAST(:error AS {"text" if s else "json"})
             WHERE m.id {some} AND m.status = 'pending' RETURNING id, tenant, destination""")
        old = f"""SELECT o.id FROM {name} o WHERE o.status = 'sent' AND o.sent_at <= {self._plus("-CAST(:older AS float8)")}
                   ORDER BY o.sent_at LIMIT :n"""
        chosen = f"IN ({old})" if s else f"= ANY(ARRAY({old} FOR UPDATE SKIP LOCKED))"
        self.prune = self._text(f"DELETE FROM {name} WHERE id {chosen}")

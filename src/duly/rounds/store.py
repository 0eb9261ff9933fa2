"""Every statement of the three ticks: what is due, what is known of it, and what becomes of it, in batches.

Candidates come from partial indexes, in their order, behind the last one that was looked at; so a pass reads what is due and
nothing else, and ends. Every change is guarded by the state it starts from. What people do stands in ``records.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import Connection, Date, bindparam, delete, insert, select, update

from duly.kernel.clock import from_micros
from duly.rounds.plan import NO_REPEAT, GroupFacts, Moved, Opened, Past, Planned, RoundFacts
from duly.rounds.round import Status
from duly.rounds.tables import groups, round_ticks, rounds
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.rows import encode, plus_seconds, relation
from duly.storage.types import Instant

#: Before every instant that a column can hold here.
NEVER_YET = datetime(1900, 1, 1, tzinfo=UTC)
#: Members told in one statement.
TELL = 2_000


@dataclass(frozen=True, slots=True)
class Due:
    """Something that is due: a group to plan for, or a round to open or close. ``at`` is since when."""

    ident: int
    group_id: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Tick:
    """A row of the ledger of ticks."""

    kind: str
    started_at: datetime
    seconds: float
    done: int
    skipped: int
    failed: int
    mean_late: float | None = None
    most_late: float | None = None


class TickStore:
    """What the ticks read and write."""

    def __init__(self, db: Database) -> None:
        self.db = db
        s = db.is_sqlite
        self._due = {kind: self._typed(sql, at=Instant) for kind, sql in _DUE.items()}
        self._any = {kind: self._typed(sql) for kind, sql in _ANY.items()}
        self._groups = self._typed(_GROUPS_SQLITE if s else _GROUPS_POSTGRES, plan_at=Instant).bindparams(
            bindparam("ids", expanding=True)
        )
        self._rounds = self._typed(
            _ROUNDS, planned_at=Instant, due_at=Instant, created_at=Instant, scheduled_for=Date
        ).bindparams(bindparam("ids", expanding=True))
        new = {"tenant": "text", "group_id": "bigint", "scheduled_for": "date", "zone": "text", "drop_time": "text",
               "planned_at": "timestamptz", "due_at": "timestamptz", "prompt_id": "bigint"}  # fmt: skip
        # SQLite's parser needs a WHERE between SELECT … FROM and ON CONFLICT
        self._insert = self._typed(f"""
            INSERT INTO rounds (tenant, group_id, scheduled_for, status, zone, drop_time, planned_at, due_at, prompt_id, created_at)
            SELECT r.tenant, r.group_id, r.scheduled_for, 'scheduled', r.zone, r.drop_time, r.planned_at, r.due_at, r.prompt_id, :now
              FROM {relation(s, new)} WHERE true ORDER BY r.group_id
                ON CONFLICT DO NOTHING RETURNING group_id""")
        opened = {
            "ident": "bigint",
            "open_at": "timestamptz",
            "close_at": "timestamptz",
            "late": "float8",
            "prompt_id": "bigint",
        }
        self._open = self._typed(f"""
            UPDATE rounds AS m
               SET status = 'open', open_at = r.open_at, close_at = r.close_at, opened_at = :now, late = r.late, due_at = NULL,
                   prompt_id = r.prompt_id, prompt_text = (SELECT p.text FROM group_prompts p WHERE p.id = r.prompt_id)
              FROM {relation(s, opened)}
             WHERE m.id = r.ident AND m.status = 'scheduled' AND m.due_at <= :now RETURNING id""")
        moved = {"ident": "bigint", "scheduled_for": "date", "planned_at": "timestamptz"}
        self._move = self._typed(f"""
            UPDATE rounds AS m SET scheduled_for = r.scheduled_for, planned_at = r.planned_at, due_at = r.planned_at
              FROM {relation(s, moved)} WHERE m.id = r.ident AND m.status = 'scheduled' AND m.due_at <= :now RETURNING id""")
        self._free = self._typed(f"""
            UPDATE groups AS g SET plan_at = {plus_seconds(s, "m.close_at", "coalesce(g.cooldown, :cooldown)")},
                   error = NULL, error_at = NULL, failures = 0
              FROM rounds m WHERE m.id IN :ids AND g.id = m.group_id""").bindparams(bindparam("ids", expanding=True))
        self._later = self._typed(f"""
            UPDATE groups AS g SET plan_at = r.at FROM {relation(s, {"ident": "bigint", "at": "timestamptz"})} WHERE g.id = r.ident""")
        self._fail = self._typed(f"""
            UPDATE groups AS g SET error = r.error, error_at = :now, failures = g.failures + 1
              FROM {relation(s, {"ident": "bigint", "error": "text"})} WHERE g.id = r.ident""")

    def _typed(self, sql: str, **columns: Any) -> Any:
        """A statement whose instants travel as each database keeps them."""
        statement: Any = text(sql)
        instants = [bindparam(name, type_=Instant) for name in ("now", "after") if f":{name}" in sql]
        if instants:
            statement = statement.bindparams(*instants)
        return statement.columns(**columns) if columns else statement

    def _rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        return {"rows": encode(self.db.is_sqlite, rows)}

    # ------------------------------------------------------------------ what is due

    def any_due(self, connection: Connection, kind: str, now: datetime) -> bool:
        """Is there anything to do? One look at an index."""
        return connection.execute(self._any[kind], {"now": now}).first() is not None

    def due(self, connection: Connection, kind: str, now: datetime, after: Due | None, most: int) -> list[Due]:
        """What is due, the oldest first, behind ``after``."""
        at, ident = (NEVER_YET, 0) if after is None else (after.at, after.ident)
        rows = connection.execute(self._due[kind], {"now": now, "after": at, "after_id": ident, "n": most})
        return [Due(row.id, row.group_id, row.at) for row in rows]

    def zones(self, connection: Connection, idents: Collection[int]) -> list[tuple[int, str]]:
        """(group, its zone)."""
        query = select(groups.c.id, groups.c.zone).where(groups.c.id.in_(sorted(idents)))
        return [(row.id, row.zone) for row in connection.execute(query)]

    # ------------------------------------------------------------------ planning

    def groups(
        self, connection: Connection, idents: Sequence[int], drop_time: str, cooldown: float
    ) -> dict[int, tuple[str, GroupFacts]]:
        """(tenant, facts) of groups, by id. ``drop_time`` and ``cooldown`` are those of groups that name none."""
        found = {}
        for row in connection.execute(self._groups, {"ids": list(idents), "most": NO_REPEAT + 1}):
            # there may be years between them, but never a date twice
            past = sorted(orjson.loads(row.past or "[]"), reverse=True)
            found[row.id] = row.tenant, GroupFacts(
                row.id, row.zone, row.drop_time or drop_time, timedelta(seconds=cooldown if row.cooldown is None else row.cooldown),
                bool(row.is_active), tuple(_past(*one) for one in past), orjson.loads(row.prompts or "[]"), row.plan_at,
            )  # fmt: skip
        return found

    def add_rounds(
        self, connection: Connection, planned: Sequence[tuple[str, GroupFacts, Planned]], now: datetime
    ) -> set[int]:
        """Make rounds, and keep their groups from being looked at while these live. Returns the groups that got one.

        One that is there already, by whoever it was made, is an ordinary outcome (R000-2).
        """
        if not planned:
            return set()
        rows = [
            {
                "tenant": tenant, "group_id": facts.id, "scheduled_for": p.scheduled_for, "zone": facts.zone, "drop_time": facts.drop_time,
                "planned_at": p.planned_at, "due_at": p.due_at, "prompt_id": p.prompt_id,
            }
            for tenant, facts, p in planned
        ]  # fmt: skip
        made = set(connection.execute(self._insert, {**self._rows(rows), "now": now}).scalars())
        self.stop_planning(connection, [facts.id for _, facts, _ in planned])
        return made

    def stop_planning(self, connection: Connection, idents: Sequence[int]) -> None:
        """Groups with a live round are not looked at until it has closed."""
        live = select(rounds.c.id).where(rounds.c.group_id == groups.c.id, rounds.c.status != "closed")
        connection.execute(
            update(groups).where(groups.c.id.in_(idents), live.exists())
            .values(plan_at=None, error=None, error_at=None, failures=0)
        )  # fmt: skip

    def plan_later(self, connection: Connection, later: Mapping[int, datetime]) -> None:
        """Look at groups again at an instant each."""
        if later:
            rows = [{"ident": ident, "at": at} for ident, at in later.items()]
            connection.execute(self._later, self._rows(rows))

    # ------------------------------------------------------------------ opening

    def rounds(self, connection: Connection, idents: Sequence[int]) -> list[tuple[str, bool, RoundFacts]]:
        """(tenant, does the group notify, facts) of rounds."""
        return [
            (
                row.tenant, bool(row.notifications),
                RoundFacts(
                    row.id, row.group_id, row.planned_at, row.due_at, row.prompt_id, row.scheduled_for, row.zone, row.drop_time, row.created_at,
                    Status(row.status), bool(row.is_active), bool(row.prompt_is_active),
                ),
            )
            for row in connection.execute(self._rounds, {"ids": list(idents)})
        ]  # fmt: skip

    def open_rounds(self, connection: Connection, opened: Mapping[int, Opened], now: datetime) -> set[int]:
        """Open rounds that still are scheduled and due. Returns which."""
        if not opened:
            return set()
        rows = [
            {"ident": ident, "open_at": o.open_at, "close_at": o.close_at, "late": o.late, "prompt_id": o.prompt_id}
            for ident, o in opened.items()
        ]
        return set(connection.execute(self._open, {**self._rows(rows), "now": now}).scalars())

    def move_rounds(self, connection: Connection, moved: Mapping[int, Moved], now: datetime) -> set[int]:
        """Let rounds that still are scheduled and due wait for their next hour. Returns which."""
        if not moved:
            return set()
        rows = [
            {"ident": ident, "scheduled_for": m.scheduled_for, "planned_at": m.planned_at} for ident, m in moved.items()
        ]
        return set(connection.execute(self._move, {**self._rows(rows), "now": now}).scalars())

    def to_tell(
        self, connection: Connection, group_ids: Sequence[int], after: tuple[int, int]
    ) -> list[tuple[int, int, str]]:
        """(group, member, channels) of active members who want to be told, in order, behind ``after`` (group, member)."""
        chosen = {"ids": list(group_ids), "group": after[0], "member": after[1], "n": TELL}
        return [(row[0], row[1], row[2]) for row in connection.execute(_TELL, chosen)]

    # ------------------------------------------------------------------ closing

    def close_rounds(self, connection: Connection, idents: Sequence[int], now: datetime, cooldown: float) -> set[int]:
        """Close open rounds whose time is over. Returns which. Their groups may be planned again after the cooldown (T000-b)."""
        r = rounds.c
        moved = connection.execute(
            update(rounds).where(r.id.in_(idents), r.status == "open", r.close_at <= now)
            .values(status="closed", closed_at=now).returning(r.id)
        )  # fmt: skip
        closed = set(moved.scalars())
        if closed:
            connection.execute(self._free, {"ids": sorted(closed), "cooldown": cooldown})
        return closed

    # ------------------------------------------------------------------ what went wrong, and the ledger

    def note_failed(self, connection: Connection, failed: Mapping[int, str], now: datetime) -> None:
        """Write down why groups failed, for people."""
        if failed:
            rows = [{"ident": ident, "error": problem} for ident, problem in failed.items()]
            connection.execute(self._fail, {**self._rows(rows), "now": now})

    def note_well(self, connection: Connection, idents: Sequence[int]) -> None:
        """These groups fail no more."""
        well = update(groups).where(groups.c.id.in_(idents), groups.c.error.is_not(None))
        connection.execute(well.values(error=None, error_at=None, failures=0))

    def note_tick(self, connection: Connection, tick: Tick, forget_before: datetime | None) -> None:
        """Add a pass to the ledger, and forget old ones of its kind."""
        t = round_ticks.c
        connection.execute(
            insert(round_ticks).values(
                kind=tick.kind, started_at=tick.started_at, seconds=tick.seconds, done=tick.done, skipped=tick.skipped,
                failed=tick.failed, mean_late=tick.mean_late, most_late=tick.most_late,
            )
        )  # fmt: skip
        if forget_before is not None:
            connection.execute(delete(round_ticks).where(t.kind == tick.kind, t.started_at < forget_before))

    def ticks(self, connection: Connection, kind: str | None = None, limit: int = 100) -> list[Tick]:
        """Passes, the newest first."""
        query = select(round_ticks).order_by(round_ticks.c.started_at.desc(), round_ticks.c.id.desc()).limit(limit)
        if kind is not None:
            query = query.where(round_ticks.c.kind == kind)
        return [
            Tick(r.kind, r.started_at, r.seconds, r.done, r.skipped, r.failed, r.mean_late, r.most_late)
            for r in connection.execute(query)
        ]


def _past(day: str, status: str, prompt_id: int | None, close_at: int | None) -> Past:
    closes = None if close_at is None else from_micros(int(close_at))
    return Past(date.fromisoformat(day), Status(status), prompt_id, closes)


# --- Statements ---------------------------------------------------------------------------------------------------------

_PLAN = "FROM groups g WHERE g.is_active AND g.plan_at IS NOT NULL AND g.plan_at <= :now"
# what the opening pass plans: not again, every five minutes, what has nothing to ask
_READY = f"{_PLAN} AND EXISTS (SELECT 1 FROM group_prompts p WHERE p.group_id = g.id AND p.is_active)"
# a group that was deactivated by hand, past the door that holds its rounds, opens nothing either
_OPEN = "FROM rounds r WHERE r.status = 'scheduled' AND r.due_at IS NOT NULL AND r.due_at <= :now AND EXISTS (SELECT 1 FROM groups g WHERE g.id = r.group_id AND g.is_active)"
_CLOSE = "FROM rounds r WHERE r.status = 'open' AND r.close_at <= :now"

_ANY = {
    "plan": f"SELECT 1 {_PLAN} LIMIT 1",
    "ready": f"SELECT 1 {_READY} LIMIT 1",
    "open": f"SELECT 1 WHERE EXISTS (SELECT 1 {_READY}) OR EXISTS (SELECT 1 {_OPEN})",
    "close": f"SELECT 1 {_CLOSE} LIMIT 1",
}
_DUE = {
    "plan": f"SELECT g.id, g.id AS group_id, g.plan_at AS at {_PLAN} AND (g.plan_at, g.id) > (:after, :after_id) ORDER BY g.plan_at, g.id LIMIT :n",
    "ready": f"SELECT g.id, g.id AS group_id, g.plan_at AS at {_READY} AND (g.plan_at, g.id) > (:after, :after_id) ORDER BY g.plan_at, g.id LIMIT :n",
    "open": f"SELECT r.id, r.group_id, r.due_at AS at {_OPEN} AND (r.due_at, r.id) > (:after, :after_id) ORDER BY r.due_at, r.id LIMIT :n",
    "close": f"SELECT r.id, r.group_id, r.close_at AS at {_CLOSE} AND (r.close_at, r.id) > (:after, :after_id) ORDER BY r.close_at, r.id LIMIT :n",
}

#: A group's latest rounds and its active prompts come as one JSON text each: a row per group, however many there are.
_LATEST = """SELECT r.scheduled_for, r.status, r.prompt_id, r.close_at
               FROM rounds r WHERE r.group_id = g.id ORDER BY r.scheduled_for DESC LIMIT :most"""
_ACTIVE = "FROM group_prompts p WHERE p.group_id = g.id AND p.is_active"
_GROUP = "g.id, g.tenant, g.zone, g.drop_time, g.cooldown, g.is_active, g.plan_at"
_GROUPS_SQLITE = f"""
    SELECT {_GROUP},
           (SELECT json_group_array(json_array(x.scheduled_for, x.status, x.prompt_id, x.close_at)) FROM ({_LATEST}) x) AS past,
           (SELECT json_group_array(p.id) {_ACTIVE}) AS prompts
      FROM groups g WHERE g.id IN :ids"""
_GROUPS_POSTGRES = f"""
    SELECT {_GROUP},
           (SELECT CAST(json_agg(json_build_array(x.scheduled_for, x.status, x.prompt_id,
                   CAST(extract(epoch FROM x.close_at) * 1000000 AS bigint))) AS text) FROM ({_LATEST}) x) AS past,
           (SELECT CAST(json_agg(p.id) AS text) {_ACTIVE}) AS prompts
      FROM groups g WHERE g.id IN :ids"""
_ROUNDS = """
    SELECT r.id, r.tenant, r.group_id, r.planned_at, r.due_at, r.scheduled_for, r.zone, r.drop_time, r.created_at, r.status, r.prompt_id, g.is_active,
           g.notifications,
           p.is_active AS prompt_is_active
      FROM rounds r JOIN groups g ON g.id = r.group_id
      LEFT JOIN group_prompts p ON p.id = r.prompt_id AND p.group_id = r.group_id
     WHERE r.id IN :ids ORDER BY r.id"""
_TELL = text("""
    SELECT m.group_id, m.id, m.channels FROM group_members m
     WHERE m.group_id IN :ids AND m.is_active AND m.channels <> '' AND (m.group_id, m.id) > (:group, :member)
     ORDER BY m.group_id, m.id LIMIT :n""").bindparams(bindparam("ids", expanding=True))

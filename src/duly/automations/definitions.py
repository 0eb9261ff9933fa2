"""Every statement about what automations are: their rows and the seeds that their executions begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import orjson
from sqlalchemy import ClauseElement, Connection, Text, cast, delete, insert, null, select, update
from sqlalchemy.exc import IntegrityError

from duly.audit.store import record
from duly.automations.automation import (
    LIMITS,
    Automation,
    Definition,
    asking_json,
    definition_mark,
    limits_json,
    read_kept_asking,
    read_limits,
    read_window,
    schedule_json,
)
from duly.automations.plan import Limits
from duly.automations.providers.base import Message, Role
from duly.automations.records import RecordStore
from duly.automations.session import SessionType, Status
from duly.automations.store import SessionStore
from duly.automations.tables import ai_messages, automations
from duly.jobs.declarations import is_ahead, is_behind, is_late, living
from duly.kernel.errors import InvalidArgument, UnreadableHere, brief
from duly.kernel.localtime import zone
from duly.kernel.payload import MOST_ID
from duly.kernel.recurrence import CivilSchedule, Schedule, schedule_from_json
from duly.storage.database import Database

T = TypeVar("T")
A = automations.c
#: How many definitions that code has declared of an automation are remembered, by their marks.
MOST_MARKS = 50
#: A schedule as its text: one that cannot be read keeps nobody from reading the rest (T001-x).
_ROW = [cast(column, Text).label("schedule") if column.name == "schedule" else column for column in A]


class Placed(NamedTuple):
    """Whose an automation is, and the slot that it needs."""

    id: int
    tenant: str
    slot: str


class DefinitionStore:
    """Automations."""

    def __init__(self, db: Database, sessions: SessionStore, records: RecordStore) -> None:
        self.db, self.sessions, self.records = db, sessions, records

    def get(
        self, connection: Connection, ident: int, tenant: str | None = None, lock: bool = False, removed: bool = False
    ) -> Automation | None:
        """An automation, with its seed; None where there is none (in that tenant)."""
        query = select(*_ROW).where(A.id == ident)
        if tenant is not None:
            query = query.where(A.tenant == tenant)
        if not removed:
            query = query.where(A.removed_at.is_(None))
        row = connection.execute(query.with_for_update() if lock else query).first()
        return None if row is None else self._automation(connection, row)

    def named(self, connection: Connection, name: str, tenant: str) -> int | None:
        """The id of the automation of that name in a tenant."""
        query = select(A.id).where(A.name == name, A.tenant == tenant, A.removed_at.is_(None))
        found: int | None = connection.execute(query).scalar()
        return found

    def find(
        self, connection: Connection, *, tenant: str | None = None, enabled: bool | None = None, slot: str | None = None, below: int | None = None,
        limit: int = 100,
    ) -> list[Automation]:  # fmt: skip
        """Automations, the newest first."""
        query = select(*_ROW).where(A.removed_at.is_(None)).order_by(A.id.desc()).limit(limit)
        for column, value in ((A.tenant, tenant), (A.is_enabled, enabled), (A.slot, slot)):
            if value is not None:
                query = query.where(column == value)
        if below is not None:
            query = query.where(A.id < min(below, MOST_ID))
        return [self._automation(connection, row) for row in connection.execute(query).all()]

    def add(self, connection: Connection, tenant: str, d: Definition, enabled: bool, now: datetime, actor: str) -> int:
        """Make an automation and its seed. What was planned before ``now`` is not wanted (T001-i)."""
        seed = self.sessions.add(
            connection, Status.SEED, tenant=tenant, slot=d.slot, type=SessionType.SEED, now=now, title=d.name
        )
        self.records.say(connection, seed, d.messages, now)
        made = insert(automations).values(
            tenant=tenant, seed_session_id=seed, is_enabled=enabled, version=1, reference_at=now, execution_history=[], created_at=now, updated_at=now,
            updated_by=actor, **_columns(d),
        )  # fmt: skip
        with _free(d.name):
            ident: int = connection.execute(made.returning(A.id)).scalar_one()
        return ident

    def change(
        self, connection: Connection, known: Automation, d: Definition, now: datetime, actor: str, *, enabled: bool | None = None,
        reference_at: datetime | None = None, is_whole: bool = False,
    ) -> None:  # fmt: skip
        """Write a new version of an automation, its row locked. A part that newer code has written, and this program cannot read, stays as it is
        where it is not what is changed, unless the definition is given whole (``is_whole``)."""
        before = _columns(known.definition)
        values: dict[str, Any] = {
            **{
                name: value
                for name, value in _columns(d).items()
                if is_whole or name not in known.unreadable or _differs(value, before[name])
            },
            "version": known.version + 1,
            "updated_at": now,
            "updated_by": actor,
            "error": None,
        }
        if enabled is not None:
            values["is_enabled"] = enabled
        if reference_at is not None:
            values["reference_at"] = reference_at
        with _free(d.name):
            connection.execute(update(automations).where(A.id == known.id).values(**values))
        if d.messages != known.definition.messages:
            connection.execute(delete(ai_messages).where(ai_messages.c.session_id == known.seed_session_id))
            self.records.say(connection, known.seed_session_id, d.messages, now)

    def declared(self, connection: Connection, ident: int, tenant: str, d: Definition) -> str | None:
        """How a definition of code stands: ``last``, code declared it last; ``behind``, newer code has replaced it and lives; ``ahead``, older code
        has put its own in its place; None: it is a new one, or its newer one lives no more. What is not ``last`` or ``behind`` counts."""
        kept = connection.execute(select(A.declared).where(A.id == ident)).scalar() or {}
        own, last, at = definition_mark(d), kept.get("last"), kept.get("at")
        if own == last:
            return "last"
        if last is None:
            return None
        lives = living(self.db, connection).get(declaration(tenant, d.name), ())
        late = is_late(self.db.present(connection), None if at is None else datetime.fromisoformat(at))
        # as the rule wants it: the order in which they came first, and behind it the one that counts now
        order = [*kept.get("order", ()), last]
        return "behind" if is_behind(own, order, lives, late) else "ahead" if is_ahead(own, order) else None

    def note_declared(self, connection: Connection, ident: int, d: Definition) -> None:
        """Code declares an automation so."""
        kept = connection.execute(select(A.declared).where(A.id == ident)).scalar() or {}
        own = definition_mark(d)
        order = list(dict.fromkeys([*kept.get("order", ()), own]))[-MOST_MARKS:]
        now = self.db.present(connection)
        connection.execute(
            update(automations)
            .where(A.id == ident)
            .values(declared={"last": own, "order": order, "at": now.isoformat()})
        )

    def undeclared(self, connection: Connection, tenant: str | None) -> list[tuple[str, str]]:
        """(tenant, name) of automations that code declared once and no living worker's code declares now; none where no worker says."""
        names = set(living(self.db, connection))
        query = (
            select(A.tenant, A.name).where(A.removed_at.is_(None), A.declared.is_not(None)).order_by(A.tenant, A.name)
        )
        if tenant is not None:
            query = query.where(A.tenant == tenant)
        return [(t, n) for t, n in connection.execute(query) if names and declaration(t, n) not in names]

    def remove(self, connection: Connection, ident: int, now: datetime, actor: str) -> None:
        values = {"removed_at": now, "updated_at": now, "updated_by": actor, "is_enabled": False}
        connection.execute(update(automations).where(A.id == ident).values(**values))

    def triggered(self, connection: Connection, name: str, tenant: str | None) -> list[Placed]:
        """Enabled automations that an event runs."""
        query = select(A.id, A.tenant, A.slot, A.triggers).where(A.is_enabled, A.removed_at.is_(None)).order_by(A.id)
        if tenant is not None:
            query = query.where(A.tenant == tenant)
        return [
            Placed(row.id, row.tenant, row.slot)
            for row in connection.execute(query).all()
            if isinstance(row.triggers, list) and name in row.triggers
        ]

    def triggers(self, connection: Connection) -> set[str]:
        """The names of all events that run something."""
        query = select(A.triggers).where(A.is_enabled, A.removed_at.is_(None))
        return {name for row in connection.execute(query).scalars() if isinstance(row, list) for name in row}

    def audit(self, connection: Connection, ident: int, tenant: str, actor: str, action: str, **meta: Any) -> None:
        shown = {name: value for name, value in meta.items() if value not in (None, "")}
        record(self.db, connection, actor=actor, action=action, entity="automation", entity_id=ident, tenant=tenant, meta=shown)  # fmt: skip

    def _automation(self, connection: Connection, row: Any) -> Automation:
        unread, left = dict[str, str](), list[UnreadableHere]()

        def part(name: str, read: Callable[[], T], usual: T) -> T:
            try:
                return read()
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # InvalidArgument, or no JSON at all
                unread[name] = brief(error)
                if isinstance(error, UnreadableHere):
                    left.append(error)
                return usual

        def planned() -> Schedule | None:
            return None if row.schedule is None else schedule_from_json(orjson.loads(row.schedule))

        def bounds() -> Limits:
            """As far as they are known here."""
            return read_limits({name: row.limits[name] for name in LIMITS if name in row.limits})

        schedule = part("schedule", planned, None)
        try:
            if isinstance(schedule, CivilSchedule):
                zone(schedule.tz, "schedule.tz")
        except UnreadableHere as error:  # it can be read, and not be planned here
            left.append(error)

        messages = part("messages", lambda: self.records.messages(connection, row.seed_session_id), list[Message]())
        definition = Definition(
            row.name,
            tuple(replace(m, calls=()) for m in messages or [Message(Role.USER, "")]),
            schedule,
            part("triggers", lambda: _texts(row.triggers), ()),
            part("tools", lambda: _texts(row.tools), ()),
            row.slot, row.provider, row.model, bool(row.dismiss_older_instances),
            part("catch_up_window", lambda: read_window(row.catch_up_window), None),
            part("limits", lambda: read_limits(row.limits), part("limits", bounds, Limits())),
            **part("asking", lambda: read_kept_asking(row.asking or {}), dict[str, Any]()),
        )  # fmt: skip
        return Automation(
            row.id, row.tenant, definition, bool(row.is_enabled), row.version, row.reference_at, row.seed_session_id, row.created_at, row.updated_at,
            row.error if left else unread.get("schedule", row.error), unread, row.last_execution_id, tuple(row.execution_history),
            left[-1] if left else None,
        )  # fmt: skip


def declaration(tenant: str, name: str) -> str:
    """What a worker's row calls an automation that its code declares."""
    return f"automation:{tenant}/{name}"


def _texts(value: Any) -> tuple[str, ...]:
    """Names, as they are kept. Raises TypeError."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError("it is no list of names")
    return tuple(value)


def name_taken(name: str) -> InvalidArgument:
    return InvalidArgument(
        "name", f"is {name!r}, and there is an automation of that name.", "Choose another, or change that one."
    )


@contextmanager
def _free(name: str) -> Iterator[None]:
    """Somebody may take a name at the same moment: the index says so."""
    try:
        yield
    except IntegrityError as error:
        if any(words in str(error.orig) for words in ("ix_automations_name", "automations.name")):
            raise name_taken(name) from None
        raise


def _differs(one: Any, other: Any) -> bool:
    """Are two values of a column different? What says NULL is no value that can be compared."""
    texts = [str(value) if isinstance(value, ClauseElement) else value for value in (one, other)]
    return bool(texts[0] != texts[1])


def _columns(d: Definition) -> dict[str, Any]:
    schedule, asking = schedule_json(d.schedule), asking_json(d)
    lists: dict[str, Sequence[str]] = {"triggers": d.triggers, "tools": d.tools}
    return {
        "name": d.name, "slot": d.slot, "schedule": null() if schedule is None else schedule, "provider": d.provider, "model": d.model,
        "dismiss_older_instances": d.dismiss_older_instances,
        "catch_up_window": None if d.catch_up_window is None else d.catch_up_window.total_seconds(), "limits": limits_json(d.limits), "asking": asking or null(),
        **{name: list(value) for name, value in lists.items()},
    }  # fmt: skip

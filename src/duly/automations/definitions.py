"""Every statement about what automations are: their rows and the seeds that their executions begin with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Text, cast, delete, insert, null, select, update
from sqlalchemy.exc import IntegrityError

from duly.audit.store import record
from duly.automations.automation import (
    LIMITS,
    Automation,
    Definition,
    asking_json,
    limits_json,
    read_asking,
    read_limits,
    schedule_json,
)
from duly.automations.providers.base import Message, Role
from duly.automations.records import RecordStore
from duly.automations.session import SessionType, Status
from duly.automations.store import SessionStore
from duly.automations.tables import ai_messages, automations
from duly.kernel.errors import InvalidArgument, UnreadableHere
from duly.kernel.localtime import zone
from duly.kernel.payload import MOST_ID
from duly.kernel.recurrence import CivilSchedule, Schedule, schedule_from_json
from duly.storage.database import Database

A = automations.c
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
        reference_at: datetime | None = None,
    ) -> None:  # fmt: skip
        """Write a new version of an automation, its row locked."""
        values: dict[str, Any] = {
            **_columns(d),
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

    def remove(self, connection: Connection, ident: int, now: datetime, actor: str) -> None:
        values = {"removed_at": now, "updated_at": now, "updated_by": actor, "is_enabled": False}
        connection.execute(update(automations).where(A.id == ident).values(**values))

    def triggered(self, connection: Connection, name: str, tenant: str | None) -> list[Placed]:
        """Enabled automations that an event runs."""
        query = select(A.id, A.tenant, A.slot, A.triggers).where(A.is_enabled, A.removed_at.is_(None)).order_by(A.id)
        if tenant is not None:
            query = query.where(A.tenant == tenant)
        return [Placed(row.id, row.tenant, row.slot) for row in connection.execute(query).all() if name in row.triggers]

    def triggers(self, connection: Connection) -> set[str]:
        """The names of all events that run something."""
        query = select(A.triggers).where(A.is_enabled, A.removed_at.is_(None))
        return {name for row in connection.execute(query).scalars() for name in row}

    def audit(self, connection: Connection, ident: int, tenant: str, actor: str, action: str, **meta: Any) -> None:
        shown = {name: value for name, value in meta.items() if value not in (None, "")}
        record(self.db, connection, actor=actor, action=action, entity="automation", entity_id=ident, tenant=tenant, meta=shown)  # fmt: skip

    def _automation(self, connection: Connection, row: Any) -> Automation:
        problem = row.error
        left: UnreadableHere | None = None
        schedule: Schedule | None = None
        try:
            schedule = None if row.schedule is None else schedule_from_json(orjson.loads(row.schedule))
            if isinstance(schedule, CivilSchedule):
                zone(schedule.tz, "schedule.tz")
        except UnreadableHere as error:
            left = error
        except ValueError as error:  # InvalidArgument, or no JSON at all
            problem = str(error)
        try:
            limits = read_limits(row.limits)
        except UnreadableHere as error:
            limits, left = read_limits({name: row.limits[name] for name in LIMITS if name in row.limits}), error
        window = None if row.catch_up_window is None else timedelta(seconds=row.catch_up_window)
        messages = self.records.messages(connection, row.seed_session_id) or [Message(Role.USER, "")]
        definition = Definition(
            row.name, tuple(replace(m, calls=()) for m in messages), schedule, tuple(row.triggers), tuple(row.tools), row.slot, row.provider,
            row.model, bool(row.dismiss_older_instances), window, limits, **read_asking(row.asking or {}),
        )  # fmt: skip
        return Automation(
            row.id, row.tenant, definition, bool(row.is_enabled), row.version, row.reference_at, row.seed_session_id, row.created_at, row.updated_at,
            problem, row.last_execution_id, tuple(row.execution_history), left,
        )  # fmt: skip


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


def _columns(d: Definition) -> dict[str, Any]:
    schedule, asking = schedule_json(d.schedule), asking_json(d)
    lists: dict[str, Sequence[str]] = {"triggers": d.triggers, "tools": d.tools}
    return {
        "name": d.name, "slot": d.slot, "schedule": null() if schedule is None else schedule, "provider": d.provider, "model": d.model,
        "dismiss_older_instances": d.dismiss_older_instances,
        "catch_up_window": None if d.catch_up_window is None else d.catch_up_window.total_seconds(), "limits": limits_json(d.limits), "asking": asking or null(),
        **{name: list(value) for name, value in lists.items()},
    }  # fmt: skip

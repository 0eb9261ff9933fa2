"""Every statement about the slot, the queue and the moves of sessions. What is said in them stands in ``records.py``, definitions in ``definitions.py``.

The slot's row is locked before an automation's or a session's, and that before its job's: whoever gives or takes a slot holds its row until the
commit. Who needs several locks them all at first, in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Text, and_, cast, exists, func, insert, null, or_, select, update

from duly.audit.store import record
from duly.automations.plan import AutomationFacts, Incomplete, Skipped, Waiting
from duly.automations.session import (
    ENDED,
    LIFECYCLE,
    CallStatus,
    ExecutionTrigger,
    Session,
    SessionEndReason,
    SessionType,
    Status,
    read_end_reason,
)
from duly.automations.tables import ai_calls, ai_sessions, automation_skips, automation_slots, automations
from duly.jobs.declarations import LIVES
from duly.jobs.run import UNREADABLE
from duly.jobs.store import FAR
from duly.jobs.tables import jobs, jobs_done, workers
from duly.kernel.errors import DulyError, UnreadableHere
from duly.kernel.localtime import zone
from duly.kernel.payload import MOST_ID
from duly.kernel.recurrence import CivilSchedule, Schedule, schedule_from_json
from duly.kernel.words import is_known, word_of
from duly.storage.database import Database
from duly.storage.rows import insert_into

S = ai_sessions.c
_SESSION = [
    S.id, S.tenant, S.slot, S.type, S.status, S.created_at, S.trigger, S.automation_id, S.scheduled_at, S.title, S.started_at, S.activation,
    S.job_id, S.last_activity_at, S.is_waiting_for_network, S.end_reason, S.end_detail, S.ended_at, S.resume_at, S.rounds, S.calls, S.crashes,
    S.input_tokens, S.output_tokens, S.cost_micros, S.provider, S.options, S.key, S.partial, S.wanted_until,
]  # fmt: skip
_SLOT = [
    automation_slots.c[name] for name in ("slot", "session_id", "activation", "since", "busy_job_id", "busy_session_id")
]
_LIVE = [Status.QUEUED.value, Status.ACTIVE.value, Status.INTERRUPTED.value]
_ENDED = [reason.value for reason in sorted(ENDED)]


#: The queue of sessions.
QUEUE = "automations"
#: The slot of automations and chats that name none.
DEFAULT = "default"


class SlotLost(DulyError):
    """The session does not have the slot any more under this activation: whatever was about to be written is not (T001-q)."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot's row."""

    name: str
    session_id: int | None = None
    activation: str | None = None
    since: datetime | None = None
    #: What is still under way of the session that had it before (R001-54): the job that calls a function, the session one of whose calls is a job.
    busy_job_id: int | None = None
    busy_session_id: int | None = None
    #: What that is, for whoever looks.
    busy: Busy | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """What is under way of a session: the tool; the job that calls a function; the session, where the job of a call runs."""

    tool: str
    job_id: int | None = None
    session_id: int | None = None

    @property
    def words(self) -> str:
        called = f" of {self.tool}" if self.tool else ""
        return (
            f"a call{called} of session {self.session_id} is still under way"
            if self.session_id
            else "a call is still under way"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """How the job of a session stands."""

    lives: bool
    #: It could run, and no worker has taken it: none is alive, or a gate is closed.
    waits: bool = False
    started_at: datetime | None = None
    is_cancelled: bool = False
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """An automation whose schedule cannot be read."""

    automation_id: int
    problem: str
    #: Another process may read it: it is left to that one, and nothing is wrong with the automation.
    left: UnreadableHere | None = None


class SessionStore:
    """Sessions and the slot."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._insert_into: Any = insert_into(db.is_sqlite)

    # ------------------------------------------------------------------ slots

    def hold_slot(self, connection: Connection, name: str) -> Slot:
        """Lock a slot's row until this transaction ends; it is made where there is none."""
        t = automation_slots
        query = select(*_SLOT).where(t.c.slot == name).with_for_update()
        row = connection.execute(query).first()
        if row is None:
            connection.execute(self._insert_into(t).values(slot=name).on_conflict_do_nothing())
            row = connection.execute(query).one()
        return Slot(*row)

    def hold_slots(self, connection: Connection, wanted: Callable[[], Iterable[str]]) -> set[str]:
        """Lock the slots that ``wanted`` reads, in the order of their names: so of two who need several nobody waits for the other.

        It reads once more when they are locked. Where an automation has moved to another slot in between, all are let go and it begins anew. Returns the
        names of those that are locked.
        """
        names = set(wanted())
        while True:
            # an SQLite file has one writer: nothing moves
            savepoint = None if self.db.is_sqlite else connection.begin_nested()
            for name in sorted(names):
                self.hold_slot(connection, name)
            now = set(wanted())
            if now <= names or savepoint is None:
                break
            savepoint.rollback()
            names = now
        if savepoint is not None:
            savepoint.commit()
        return names

    def slots(self, connection: Connection, tenant: str | None = None) -> list[Slot]:
        """Every slot that is there or that an automation names, by name.

        ``tenant``: those that its automations name or its sessions want, and the default one; a holder of another tenant has no number.
        """
        a = automations.c
        found = {row.slot: Slot(*row) for row in connection.execute(select(*_SLOT))}
        named = select(a.slot).where(a.removed_at.is_(None)).distinct()
        if tenant is not None:
            named = named.where(a.tenant == tenant)
        names = set(connection.execute(named).scalars())
        for name in names:
            found.setdefault(name, Slot(name))
        if tenant is None:
            return [found[name] for name in sorted(found)]
        live = select(S.id, S.slot).where(S.tenant == tenant, S.status.in_(_LIVE))
        own = {row.id: row.slot for row in connection.execute(live)}
        names |= {*own.values(), DEFAULT}
        mine = (found.get(name, Slot(name)) for name in sorted(names))
        return [one if one.session_id in own else replace(one, session_id=None) for one in mine]

    def moving(self, connection: Connection) -> set[str]:
        """Slots that somebody has or waits for, or that are kept for what is under way."""
        t = automation_slots.c
        taken = or_(t.session_id.is_not(None), t.busy_job_id.is_not(None), t.busy_session_id.is_not(None))
        held = connection.execute(select(t.slot).where(taken)).scalars()
        waits = connection.execute(select(S.slot).where(S.status == Status.QUEUED.value).distinct()).scalars()
        return {*held, *waits}

    def mark(self, connection: Connection) -> tuple[object, ...]:
        """What changes whenever something may be due at another time than it was: by a definition, by who has a slot, or by who waits for one."""
        changed = connection.execute(select(func.max(automations.c.updated_at))).scalar()
        since = connection.execute(select(func.max(automation_slots.c.since))).scalar()
        waits = connection.execute(select(func.max(S.id)).where(S.status == Status.QUEUED.value)).scalar()
        return changed, since, waits

    # ------------------------------------------------------------------ sessions

    def session(
        self, connection: Connection, ident: int, tenant: str | None = None, lock: bool = False
    ) -> Session | None:
        """A session; None where there is none (in that tenant)."""
        query = select(*_SESSION).where(S.id == ident)
        if tenant is not None:
            query = query.where(S.tenant == tenant)
        row = connection.execute(query.with_for_update() if lock else query).first()
        return None if row is None else session_of(row)

    def add(
        self, connection: Connection, status: Status, *, tenant: str, slot: str, type: SessionType, now: datetime, title: str = "",
        trigger: ExecutionTrigger | None = None, automation_id: int | None = None, scheduled_at: datetime | None = None,
        wanted_until: datetime | None = None, activation: str | None = None, options: Mapping[str, Any] | None = None, key: str | None = None,
    ) -> int:  # fmt: skip
        """Make a session in one of the states that it is born in. Returns its id."""
        active, queued = status is Status.ACTIVE, status is Status.QUEUED
        made = insert(ai_sessions).values(
            tenant=tenant, slot=slot, type=type.value, status=status.value, trigger=None if trigger is None else trigger.value,
            automation_id=automation_id, scheduled_at=scheduled_at, title=title, created_at=now, queued_at=now if queued else None,
            wanted_until=wanted_until, started_at=now if active else None, activation=activation, last_activity_at=now if active else None,
            is_waiting_for_network=False, resumes_early=False, options=null() if options is None else dict(options), key=key, rounds=0, calls=0, crashes=0, input_tokens=0, output_tokens=0, cost_micros=0,
        )  # fmt: skip
        ident: int = connection.execute(made.returning(S.id)).scalar_one()
        return ident

    def take(self, connection: Connection, session: Session, activation: str, now: datetime) -> None:
        """Make a session the one that has the slot. What it had stopped for is forgotten; no message is added."""
        target = LIFECYCLE.target(session.status, "activate")
        values = {
            "status": target.value, "activation": activation, "started_at": session.started_at or now, "last_activity_at": now, "queued_at": None,
            "wanted_until": None, "end_reason": None, "end_detail": None, "ended_at": None, "resume_at": None, "is_waiting_for_network": False,
            "job_id": None, "partial": None,
        }  # fmt: skip
        connection.execute(update(ai_sessions).where(S.id == session.id).values(**values))

    def set_slot(
        self, connection: Connection, name: str, session_id: int | None, activation: str | None, now: datetime, busy: Busy | None = None
    ) -> None:  # fmt: skip
        """Who has the slot. ``busy``: what has to end before somebody gets it."""
        t = automation_slots
        values: dict[str, Any] = {"session_id": session_id, "activation": activation, "since": now}
        values |= {"busy_job_id": busy and busy.job_id, "busy_session_id": busy and busy.session_id}
        connection.execute(update(t).where(t.c.slot == name).values(**values))

    def at_work(self, connection: Connection, session: Session, now: datetime) -> Busy | None:
        """What is under way of the calls of a session: a function that its job is in the middle of calling, or the job of a call."""
        if session.job_id is None:
            return None
        tool, job = None, self.job(connection, session.job_id, now)
        if job.lives and job.started_at is not None:
            c = ai_calls.c
            # or given up after its timeout, while its thread goes on
            open_ = or_(c.status.in_([CallStatus.ASKED.value, CallStatus.CALLED.value]), c.may_take_until >= FAR)
            # begun by this job: what an earlier one had begun ended with its worker
            begun = select(c.tool).where(c.session_id == session.id, open_, c.begun_at >= job.started_at)
            tool = connection.execute(begun.limit(1)).scalar()
        child = self.running_child(connection, session.id, now)
        if tool is None and child is None:
            return None
        return Busy(
            tool or child or "", None if tool is None else session.job_id, None if child is None else session.id
        )

    def running_child(self, connection: Connection, session_id: int, now: datetime) -> str | None:
        """The tool of a session whose job a living worker runs at this moment."""
        c = ai_calls.c
        running = jobs.c.status == "running", jobs.c.lease_until >= now
        query = select(c.tool).join(jobs, c.job_id == jobs.c.id)
        query = query.where(c.session_id == session_id, c.status == CallStatus.WAITING.value, *running)
        found: str | None = connection.execute(query.limit(1)).scalar()
        return found

    def is_busy(self, connection: Connection, slot: Slot, now: datetime) -> bool:
        """Is something of the session that had the slot before still under way?"""
        if slot.busy_job_id is not None:
            job = self.job(connection, slot.busy_job_id, now)
            if job.lives and job.started_at is not None:
                return True
        of = slot.busy_session_id
        return of is not None and self.running_child(connection, of, now) is not None

    def busy_with(self, connection: Connection, slot: Slot, now: datetime) -> Busy | None:
        """What keeps a slot that nobody has: the session that had it, and the tool."""
        if slot.session_id is not None or not self.is_busy(connection, slot, now):
            return None
        ident = slot.busy_session_id
        if ident is None:
            said = connection.execute(select(jobs.c.input).where(jobs.c.id == slot.busy_job_id)).scalar()
            ident = said.get("session") if isinstance(said, dict) else None
        if ident is None:
            return Busy("", slot.busy_job_id)
        c = ai_calls.c
        begun = select(c.tool).where(c.session_id == ident, c.begun_at.is_not(None)).order_by(c.number.desc()).limit(1)
        tool = self.running_child(connection, ident, now) or connection.execute(begun).scalar()
        return Busy(tool or "", slot.busy_job_id, ident)

    def finish(self, connection: Connection, session_id: int, job_id: int, **values: Any) -> bool:
        """Write to a session that has lost its slot while the slot is kept for this job, which ends what it was doing: nobody has had it since.
        Holds the slot. False where it is not kept."""
        slot = connection.execute(select(S.slot).where(S.id == session_id)).scalar()
        if slot is None or self.hold_slot(connection, slot).busy_job_id != job_id:
            return False
        connection.execute(update(ai_sessions).where(S.id == session_id).values(**values))
        return True

    def set_job(self, connection: Connection, session_id: int, job_id: int | None, **values: Any) -> None:
        """The job that runs the rounds of a session; None: none is wanted."""
        connection.execute(update(ai_sessions).where(S.id == session_id).values(job_id=job_id, **values))

    def leave(
        self, connection: Connection, session: Session, end_reason: SessionEndReason | None, detail: str, now: datetime,
        resume_at: datetime | None = None, resumes_early: bool = False,
    ) -> None:  # fmt: skip
        """A session has the slot no more, or wants it no more. ``end_reason`` None: by a crash."""
        target = LIFECYCLE.target(session.status, "end" if end_reason in ENDED else "interrupt")
        values = {
            "status": target.value, "activation": None, "job_id": None, "end_reason": None if end_reason is None else end_reason.value,
            "end_detail": detail[:2000], "ended_at": now, "resume_at": resume_at, "resumes_early": resumes_early, "queued_at": None, "wanted_until": None, "partial": None,
            # kept where it went away while it waited, for people
            "is_waiting_for_network": end_reason is SessionEndReason.NETWORK_ERROR and session.is_waiting_for_network,
            "crashes": S.crashes + 1 if end_reason is None else S.crashes,
        }  # fmt: skip
        connection.execute(update(ai_sessions).where(S.id == session.id).values(**values))

    # ------------------------------------------------------------------ the fence

    def touch(
        self, connection: Connection, session_id: int, activation: str, run_by: int | None = None, **values: Any
    ) -> None:
        """Write to a session as the one that has the slot, and hold its row until this transaction ends. Raises SlotLost.

        Everything that a round writes is written behind this (T001-p, T001-q). ``last_activity_at`` is among ``values`` where something has
        happened; waiting for the network is nothing (T001-o). ``run_by``: only as long as this job runs it.
        """
        mine = [S.id == session_id, S.activation == activation, S.status == Status.ACTIVE.value]
        if run_by is not None:
            mine.append(S.job_id == run_by)
        # without values too: the row is to be held
        if connection.execute(update(ai_sessions).where(*mine).values(**(values or {"slot": S.slot}))).rowcount != 1:
            raise SlotLost(f"session {session_id} does not have the slot any more")

    # ------------------------------------------------------------------ the queue

    def waiting(self, connection: Connection, slot: str) -> list[Waiting]:
        """Who waits for the slot."""
        query = select(S.id, S.type, S.queued_at).where(S.slot == slot, S.status == Status.QUEUED.value)
        found = [Waiting(row.id, word_of(SessionType, row.type), row.queued_at) for row in connection.execute(query)]
        return [one for one in found if is_known(one.type)]  # newer code gives the slot to the others

    def unwanted(self, connection: Connection, slot: str, now: datetime) -> list[int]:
        """Chats that wait and that nobody waits for any more (T001-y)."""
        query = select(S.id).where(S.slot == slot, S.status == Status.QUEUED.value, S.wanted_until < now).order_by(S.id)
        return list(connection.execute(query).scalars())

    def want(self, connection: Connection, session_id: int, until: datetime) -> None:
        """Somebody still waits for a queued chat, or is still there in one that has the slot."""
        waits = S.id == session_id, S.status.in_([Status.QUEUED.value, Status.ACTIVE.value])
        connection.execute(update(ai_sessions).where(*waits).values(wanted_until=until))

    def count_waiting(self, connection: Connection, automation_id: int) -> int:
        """How many executions of an automation wait for the slot."""
        mine = S.automation_id == automation_id, S.status == Status.QUEUED.value
        return connection.execute(select(func.count()).select_from(ai_sessions).where(*mine)).scalar_one()

    def count_events(self, connection: Connection, automation_id: int, prefix: str, since: datetime) -> int:
        """How many executions of an automation were asked for since an instant, under keys that begin so."""
        mine = S.automation_id == automation_id, S.created_at >= since, S.key.startswith(prefix, autoescape=True)
        return connection.execute(select(func.count()).select_from(ai_sessions).where(*mine)).scalar_one()

    def keyed(self, connection: Connection, automation_id: int, key: str) -> int | None:
        """The session that has a key."""
        query = select(S.id).where(S.automation_id == automation_id, S.key == key)
        found: int | None = connection.execute(query).scalar()
        return found

    def unended(self, connection: Connection, automation_id: int) -> list[int]:
        """The sessions of an automation that have not ended, those that wait first, then the oldest first."""
        query = select(S.id, S.status).where(S.automation_id == automation_id, S.status.in_(_LIVE)).order_by(S.id)
        rows = connection.execute(query).all()
        return [row.id for row in sorted(rows, key=lambda row: row.status == Status.ACTIVE.value)]

    def ready_early(self, connection: Connection, slot: str, but: int) -> None:
        """A session has left the slot: those that were paused without a span need not wait any longer."""
        paused = S.slot == slot, S.status == Status.INTERRUPTED.value, S.resumes_early, S.id != but
        connection.execute(update(ai_sessions).where(*paused).values(resume_at=None))

    def ready(self, connection: Connection, session_id: int) -> None:
        """An interrupted session need not wait any longer."""
        connection.execute(update(ai_sessions).where(S.id == session_id).values(resume_at=None))

    # ------------------------------------------------------------------ facts

    def defined_elsewhere(self, connection: Connection, tools: Sequence[str]) -> str | None:
        """The first of some tools that a living worker which runs sessions defines, as it says in its row."""
        w, since = workers.c, self.db.present(connection) - timedelta(seconds=LIVES)
        for worker in connection.execute(select(w.queues, w.tasks, w.declares).where(w.seen_at >= since)):
            if QUEUE in (worker.queues or {}):
                for name in tools:
                    if name in (worker.tasks or ()) or tool_mark(name) in (worker.declares or {}):
                        return name
        return None

    def tools_elsewhere(self, connection: Connection) -> set[str]:
        """The tools and tasks that living workers define, as they say in their rows."""
        w, since = workers.c, self.db.present(connection) - timedelta(seconds=LIVES)
        found, mark = set[str](), tool_mark("")
        for worker in connection.execute(select(w.tasks, w.declares).where(w.seen_at >= since)):
            found |= {*(worker.tasks or ())}
            found |= {said.removeprefix(mark) for said in worker.declares or () if said.startswith(mark)}
        return found

    def any_lost(self, connection: Connection) -> bool:
        """Is there a session that has a slot and whose job does not live any more, or one that waits for a slot that nobody has?"""
        lives = exists().where(jobs.c.id == S.job_id)
        lost = and_(S.status == Status.ACTIVE.value, S.job_id.is_not(None), ~lives)
        other = ai_sessions.alias().c
        held = exists().where(other.slot == S.slot, other.status == Status.ACTIVE.value)
        forgotten = and_(S.status == Status.QUEUED.value, ~held)
        return any(
            connection.execute(select(S.id).where(one).limit(1)).first() is not None for one in (lost, forgotten)
        )

    def find(
        self, connection: Connection, limit: int, below: int | None, *, tenant: str | None = None, automation: int | None = None,
        type: str | None = None, status: Sequence[str] = (), slot: str | None = None, end_reason: str | None = None,
    ) -> list[Session]:  # fmt: skip
        """Sessions, the newest first; no seeds."""
        query = select(*_SESSION).where(S.type != SessionType.SEED.value).order_by(S.id.desc()).limit(limit)
        for column, value in (
            (S.tenant, tenant), (S.automation_id, automation), (S.type, type), (S.slot, slot), (S.end_reason, end_reason),
        ):  # fmt: skip
            if value is not None:
                query = query.where(column == value)
        if status:
            query = query.where(S.status.in_(list(status)))
        if below is not None:
            query = query.where(S.id < min(below, MOST_ID))
        return [session_of(row) for row in connection.execute(query)]

    def job(self, connection: Connection, job_id: int, now: datetime) -> Job:
        """How the job of a session stands. One whose lease has lapsed does not live (T001-b)."""
        query = select(jobs.c.status, jobs.c.lease_until, jobs.c.due_at, jobs.c.started_at, jobs.c.error).where(
            jobs.c.id == job_id
        )
        for again in (False, True):  # it may move back at this moment
            row = connection.execute(query).first()
            if row is not None:
                running = row.status == "running"
                lapsed = running and row.lease_until is not None and row.lease_until < now
                unread = isinstance(row.error, dict) and row.error.get("type") == UNREADABLE
                waits = not running and (row.due_at is None or row.due_at <= now or unread)
                return Job(not lapsed, waits=waits, started_at=row.started_at if running else None, due_at=row.due_at)
            ended = None if again else connection.execute(select(jobs_done.c.status).where(jobs_done.c.id == job_id)).scalar()  # fmt: skip
            if ended is not None:
                return Job(False, is_cancelled=ended == "cancelled")
        return Job(False)

    def quiet_until(self, connection: Connection, session_id: int, now: datetime) -> datetime | None:
        """Until when a session may be silent because of a call that is under way: ``now`` where that is a job, which its own lease watches; the
        end of the timeout of a function that has one. None: no such call."""
        c = ai_calls.c
        job = select(jobs.c.id).join(ai_calls, c.job_id == jobs.c.id)
        waits = c.session_id == session_id, c.status == CallStatus.WAITING.value
        if connection.execute(job.where(*waits).limit(1)).first() is not None:
            return now
        called = c.session_id == session_id, c.status.in_([CallStatus.ASKED.value, CallStatus.CALLED.value])
        found: datetime | None = connection.execute(select(func.max(c.may_take_until)).where(*called)).scalar()
        return found

    def facts(self, connection: Connection, slot: str) -> tuple[list[AutomationFacts], list[Broken]]:
        """What is known of every enabled automation of a slot, and those whose schedule cannot be read (T001-x)."""
        a = automations.c
        return self._facts(connection, a.slot == slot, a.is_enabled, of=S.slot == slot).get(slot, ([], []))

    def all_facts(self, connection: Connection) -> dict[str, tuple[list[AutomationFacts], list[Broken]]]:
        """The same of every slot, in the same two statements."""
        return self._facts(connection, automations.c.is_enabled)

    def facts_of(self, connection: Connection, automation_id: int) -> AutomationFacts | None:
        """The same of one automation, switched on or off. None where its schedule cannot be read, or nothing is planned."""
        found = self._facts(connection, automations.c.id == automation_id, of=S.automation_id == automation_id)
        return next((one for facts, _ in found.values() for one in facts), None)

    def is_unreadable(self, connection: Connection, automation_id: int) -> bool:
        """Can the schedule of an automation not be read here?"""
        found = self._facts(connection, automations.c.id == automation_id, of=S.automation_id == automation_id)
        return any(broken for _, broken in found.values())

    def _facts(
        self, connection: Connection, *which: ColumnElement[bool], of: ColumnElement[bool] | None = None
    ) -> dict[str, tuple[list[AutomationFacts], list[Broken]]]:
        """By slot. ``which``: automations; ``of``: their sessions."""
        a = automations.c
        # the newest by the index, not the largest of all there are
        done = (
            select(S.scheduled_at)
            .where(S.automation_id == a.id, S.trigger == ExecutionTrigger.SCHEDULED.value, S.status.in_([Status.ENDED.value, Status.ACTIVE.value]))
            .order_by(S.scheduled_at.desc()).limit(1).scalar_subquery()
        )  # fmt: skip
        k = automation_skips.c
        skipped = select(func.max(k.last_at)).where(k.automation_id == a.id).scalar_subquery()
        query = (
            select(a.slot, a.id, a.name, cast(a.schedule, Text), a.reference_at, a.dismiss_older_instances, a.catch_up_window, done, skipped)
            .where(*which, a.removed_at.is_(None)).order_by(a.id)
        )  # fmt: skip
        incomplete = self._incomplete(connection, of)
        by_slot: dict[str, tuple[list[AutomationFacts], list[Broken]]] = {}
        for slot, ident, name, schedule, reference, dismiss, window, completed, left_out in connection.execute(query):
            found, broken = by_slot.setdefault(slot, ([], []))
            try:
                read = None if schedule is None else _read(name, schedule)
                if isinstance(read, CivilSchedule):
                    zone(read.tz, "schedule.tz")
            except UnreadableHere as error:
                broken.append(Broken(ident, str(error), error))
                read = None
            except ValueError as error:  # InvalidArgument, or no JSON at all
                broken.append(Broken(ident, str(error)))
                read = None
            if read is None and ident not in incomplete:
                continue
            untils = [until for until in (completed, left_out) if until is not None]
            found.append(AutomationFacts(
                ident, read, reference, max(untils, default=None), incomplete.get(ident, ()), bool(dismiss),
                None if window is None else timedelta(seconds=window),
            ))  # fmt: skip
        return by_slot

    def _incomplete(self, connection: Connection, of: ColumnElement[bool] | None) -> dict[int, list[Incomplete]]:
        """Sessions of automations that had the slot, do not have it, and have not ended, by automation.

        A real NULL in ``end_reason`` is a crash (T001-a); those that never had the slot are none of them (T001-c).
        """
        resumable = or_(S.end_reason.is_(None), S.end_reason.not_in(_ENDED))
        query = (
            select(S.id, S.automation_id, S.scheduled_at, S.end_reason, S.ended_at, S.resume_at, S.trigger)
            .where(S.status == Status.INTERRUPTED.value, resumable, S.type == SessionType.AUTOMATION.value)
            .order_by(S.id)
        )  # fmt: skip
        if of is not None:
            query = query.where(of)
        found: dict[int, list[Incomplete]] = {}
        for row in connection.execute(query):
            found.setdefault(row.automation_id, []).append(Incomplete(
                row.id, row.scheduled_at, read_end_reason(row.end_reason), row.ended_at, row.resume_at, word_of(ExecutionTrigger, row.trigger),
            ))  # fmt: skip
        return found

    # ------------------------------------------------------------------ the trail of executions

    def note_execution(self, connection: Connection, automation_id: int, session_id: int, most: int) -> None:
        """Keep a session among the last ones of its automation (R001-22)."""
        a = automations.c
        history = connection.execute(select(a.execution_history).where(a.id == automation_id).with_for_update()).scalar()  # fmt: skip
        if history is None:
            return
        kept = [session_id, *(one for one in history if one != session_id)][:most]
        connection.execute(
            update(automations)
            .where(a.id == automation_id)
            .values(last_execution_id=session_id, execution_history=kept)
        )

    def note_skips(self, connection: Connection, automation_id: int, skips: Sequence[Skipped], now: datetime) -> None:
        """Put on record which planned instants were left out."""
        for skip in skips:
            made = self._insert_into(automation_skips).values(
                automation_id=automation_id, first_at=skip.first_at, last_at=skip.last_at, count=skip.count, reason=skip.reason, acted_at=now
            )  # fmt: skip
            connection.execute(made.on_conflict_do_nothing())

    def skips(self, connection: Connection, automation_id: int, limit: int) -> list[Skipped]:
        """The planned instants that were left out, the latest first."""
        k = automation_skips.c
        query = select(k.first_at, k.last_at, k.count, k.reason).where(k.automation_id == automation_id)
        return [Skipped(*row) for row in connection.execute(query.order_by(k.first_at.desc()).limit(limit))]

    def set_error(self, connection: Connection, automation_id: int, problem: str | None) -> bool:
        """Note why a schedule cannot be read. False where that is known."""
        a = automations.c
        new = update(automations).where(a.id == automation_id, a.error.is_distinct_from(problem))
        return connection.execute(new.values(error=problem)).rowcount == 1

    def audit(self, connection: Connection, session: Session, actor: str, action: str, level: str = "info", **meta: Any) -> None:  # fmt: skip
        """A move of a session, without what was said in it."""
        shown = {name: value for name, value in meta.items() if value not in (None, "")}
        record(
            self.db, connection, actor=actor, action=action, entity="session", entity_id=session.id, tenant=session.tenant, level=level,
            meta=shown,
        )  # fmt: skip


@lru_cache(maxsize=20_000)
def _read(name: str, schedule: str) -> Schedule:
    """The schedule of an automation from its JSON text. Remembered: each pass reads those of all automations. Raises InvalidArgument."""
    return schedule_from_json(orjson.loads(schedule)).named(name)


def tool_mark(name: str) -> str:
    """What a worker's row calls a tool that its code defines."""
    return f"tool:{name}"


def session_of(row: Any) -> Session:
    return Session(
        id=row.id, tenant=row.tenant, slot=row.slot, type=word_of(SessionType, row.type), status=word_of(Status, row.status), created_at=row.created_at,
        trigger=None if row.trigger is None else word_of(ExecutionTrigger, row.trigger), automation_id=row.automation_id, scheduled_at=row.scheduled_at,
        title=row.title, started_at=row.started_at, activation=row.activation, job_id=row.job_id, last_activity_at=row.last_activity_at,
        is_waiting_for_network=bool(row.is_waiting_for_network), end_reason=read_end_reason(row.end_reason), end_detail=row.end_detail,
        ended_at=row.ended_at, resume_at=row.resume_at, rounds=row.rounds, calls=row.calls, crashes=row.crashes, input_tokens=row.input_tokens,
        output_tokens=row.output_tokens, cost_micros=row.cost_micros, provider=row.provider, options=row.options,
        key=row.key, partial=row.partial, wanted_until=row.wanted_until,
    )  # fmt: skip

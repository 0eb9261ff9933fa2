"""Every statement of the schedules room."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import DataError, IntegrityError

from duly.audit.store import record
from duly.jobs.declarations import is_ahead, is_behind, is_late, living
from duly.jobs.declarations import mark as marked
from duly.jobs.tables import jobs
from duly.kernel.backoff import Backoff
from duly.kernel.errors import InvalidArgument, NotFound, UnreadableHere, brief
from duly.kernel.localtime import tz_version, zone
from duly.kernel.recurrence import schedule_from_json
from duly.kernel.words import word_of
from duly.schedules.plan import Plan, Waiting
from duly.schedules.schedule import (
    CHANGED,
    CREATED,
    REMOVED,
    REWOUND,
    Occurrence,
    Policies,
    Schedule,
    Spec,
    Status,
    Trigger,
    definition,
)
from duly.schedules.tables import occurrences, schedule_versions, schedules
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.types import Encoded

#: Deferred occurrences of one schedule that are looked at together.
WAITING = 1000
#: Jobs of one schedule, the newest first, that are asked whether they are alive.
ALIVE = 100
#: Before another look at a schedule that could not be planned: 1, 2, 4 … minutes, at most an hour.
BROKEN = Backoff(base=60, factor=2, max=3600)

#: JSON is read as text and taken apart row by row: what somebody wrote by hand may be none.
_JSON = ("recurrence", "input")
#: The columns that say what a schedule is.
_DEFINITION = (
    "name", "tenant", "recurrence", "task", "queue", "input", "catch_up", "overlap", "blackout", "priority", "max_attempts", "starts_at", "ends_at",
)  # fmt: skip
#: What reading a damaged row raises: on this side of the connection, so the transaction goes on.
_UNREADABLE = (TypeError, ValueError, OverflowError, DataError)
#: Stands for an instant that cannot be read.
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
#: For each schedule a short walk down its newest jobs, by index.
_COUNT_ALIVE = text("""
    SELECT s.id, (SELECT count(*)
                    FROM (SELECT o.job_id FROM occurrences o WHERE o.schedule_id = s.id AND o.job_id IS NOT NULL
                           ORDER BY o.job_id DESC LIMIT :most) n
                    JOIN jobs j ON j.id = n.job_id)
      FROM schedules s WHERE s.id IN :idents""").bindparams(bindparam("idents", expanding=True))
_COLUMNS = (*(c for c in schedules.c if c.name not in _JSON), *(cast(schedules.c[n], Text).label(n) for n in _JSON))


class ScheduleStore:
    """Schedules, their versions and their ledger."""

    def __init__(self, db: Database) -> None:
        self.db = db
        #: Schedule → what its row said, and what that means: a row is taken apart once.
        self._specs: dict[int, tuple[tuple[Any, ...], Spec]] = {}

    # ------------------------------------------------------------------ reading

    def get(self, connection: Connection, name: str, tenant: str, lock: bool = False) -> Schedule:
        """A schedule by its name. Raises NotFound."""
        query = select(*_COLUMNS).where(
            schedules.c.tenant == tenant, schedules.c.name == name, schedules.c.removed_at.is_(None)
        )
        query = query.with_only_columns(schedules.c.id)
        ident = connection.execute(query.with_for_update() if lock else query).scalar()
        if ident is None:
            raise NotFound("schedule", name)
        return self._schedules(connection, [ident])[0]

    def find(self, connection: Connection, name: str, tenant: str, lock: bool = False) -> Schedule | None:
        try:
            return self.get(connection, name, tenant, lock)
        except NotFound:
            return None

    def all(
        self, connection: Connection, tenant: str | None = None, limit: int | None = None, after: tuple[str, str] | None = None
    ) -> list[Schedule]:  # fmt: skip
        """Every schedule that is not removed, by tenant and name; at most ``limit`` behind (tenant, name)."""
        query = select(*_COLUMNS).where(schedules.c.removed_at.is_(None)).order_by(schedules.c.tenant, schedules.c.name)
        if tenant is not None:
            query = query.where(schedules.c.tenant == tenant)
        if after is not None:
            query = query.where(tuple_(schedules.c.tenant, schedules.c.name) > tuple_(*map(literal, after)))
        query = query.limit(limit)
        return self._schedules(connection, list(connection.execute(query.with_only_columns(schedules.c.id)).scalars()))

    def due(
        self, connection: Connection, now: datetime, most: int, but: Collection[tuple[int, int]] = ()
    ) -> list[Schedule]:
        """Schedules that somebody has to look at, locked; those in other hands are passed by. ``but``: without these (number, version)."""
        due = schedules.c.look_at <= now, *_without(but)
        query = select(schedules.c.id).where(*due).order_by(schedules.c.look_at).limit(most)
        return self._schedules(connection, list(connection.execute(query.with_for_update(skip_locked=True)).scalars()))

    def any_due(self, connection: Connection, now: datetime | None, but: Collection[tuple[int, int]] = ()) -> bool:
        """Is there a schedule that somebody has to look at?"""
        due = schedules.c.look_at <= (self.db.now() if now is None else now), *_without(but)
        return connection.execute(select(schedules.c.id).where(*due).limit(1)).first() is not None

    def _schedules(self, connection: Connection, idents: Sequence[int]) -> list[Schedule]:
        """Schedules by number, in that order. A row that holds what no instant can be is found out alone (case B010)."""
        if not idents:
            return []
        query = select(*_COLUMNS).where(schedules.c.id.in_(idents))
        try:
            rows = {row.id: row for row in connection.execute(query)}
        except _UNREADABLE as error:
            if len(idents) > 1:
                return [s for ident in idents for s in self._schedules(connection, [ident])]
            named = select(schedules.c.id, schedules.c.version, schedules.c.name, schedules.c.tenant)
            row = connection.execute(named.where(schedules.c.id == idents[0])).one()
            problem = f"its row cannot be read: {brief(error)}"
            return [Schedule(row.id, row.version, None, row.name, row.tenant, _NEVER, None, None, error=problem)]
        return [self._schedule(rows[ident]) for ident in idents if ident in rows]

    def next_look(self, connection: Connection, but: Collection[tuple[int, int]] = ()) -> datetime | None:
        """When the first schedule is to be looked at."""
        looks = schedules.c.look_at.is_not(None), *_without(but)
        query = select(schedules.c.look_at).where(*looks).order_by(schedules.c.look_at).limit(1)
        found: datetime | None = connection.execute(query).scalar()
        return found

    def waiting(self, connection: Connection, idents: Sequence[int]) -> dict[int, list[Waiting]]:
        """The deferred occurrences of schedules, in order: the first of each, and one more than ``WAITING`` where there are more."""
        found: dict[int, list[Waiting]] = defaultdict(list)
        for ident in self._with_deferred(connection, idents):
            query = (
                select(occurrences.c.due_at, occurrences.c.reason)
                .where(occurrences.c.schedule_id == ident, occurrences.c.status == "deferred")
                # what an operator wanted again comes last, so that it crowds out nothing
                .order_by(case((occurrences.c.reason == "backfill", 1), else_=0), occurrences.c.due_at)
                .limit(WAITING + 1)
            )
            found[ident] = [Waiting(due_at, reason or "") for due_at, reason in connection.execute(query)]
        return found

    def _with_deferred(self, connection: Connection, idents: Sequence[int]) -> list[int]:
        deferred = select(occurrences.c.schedule_id).where(
            occurrences.c.schedule_id == schedules.c.id, occurrences.c.status == "deferred"
        )
        return list(
            connection.execute(select(schedules.c.id).where(schedules.c.id.in_(idents), deferred.exists())).scalars()
        )

    def alive(self, connection: Connection, ident: int) -> list[int]:
        """The jobs of a schedule's occurrences that have not ended, of the newest ``ALIVE``."""
        newest = (
            select(occurrences.c.job_id)
            .where(occurrences.c.schedule_id == ident, occurrences.c.job_id.is_not(None))
            .order_by(occurrences.c.job_id.desc())
            .limit(ALIVE)
            .subquery()
        )
        return list(connection.execute(select(jobs.c.id).join(newest, newest.c.job_id == jobs.c.id)).scalars())

    def count_alive(self, connection: Connection, idents: Sequence[int]) -> dict[int, int]:
        """How many jobs of each schedule's occurrences have not ended, of the newest ``ALIVE``; schedules without one are left out."""
        if not idents:
            return {}
        return {
            ident: alive
            for ident, alive in connection.execute(_COUNT_ALIVE, {"idents": list(idents), "most": ALIVE})
            if alive
        }

    def ledger(
        self, connection: Connection, ident: int, *, since: datetime | None = None, until: datetime | None = None,
        statuses: Sequence[str] = (), limit: int = 100, before: datetime | None = None,
    ) -> list[Occurrence]:  # fmt: skip
        """Occurrences of a schedule, the newest first."""
        query = (
            select(occurrences)
            .where(occurrences.c.schedule_id == ident)
            .order_by(occurrences.c.due_at.desc())
            .limit(limit)
        )
        for bound in (since is not None and occurrences.c.due_at >= since, until is not None and occurrences.c.due_at < until,
                      before is not None and occurrences.c.due_at < before, bool(statuses) and occurrences.c.status.in_(statuses)):  # fmt: skip
            if bound is not False:
                query = query.where(bound)
        return self._occurrences(connection, query)

    def among(self, connection: Connection, ident: int, dues: Sequence[datetime]) -> dict[datetime, Occurrence]:
        """Those of the given planned instants that stand in the ledger."""
        query = select(occurrences).where(occurrences.c.schedule_id == ident, occurrences.c.due_at.in_(dues))
        return {row.due_at: row for row in self._occurrences(connection, query)}

    def kept(self, connection: Connection, schedule: Schedule) -> Spec | None:
        """A schedule's definition as its version keeps it: for one whose row was damaged. None where that cannot be read either."""
        v = schedule_versions.c
        query = select(cast(v.definition, Text)).where(v.schedule_id == schedule.id, v.version == schedule.version)
        try:
            said = dict(orjson.loads(connection.execute(query).scalar_one()))
            bounds = [
                None if said.get(n) is None else datetime.fromisoformat(said[n]) for n in ("starts_at", "ends_at")
            ]
            return Spec(
                schedule.name, schedule_from_json(said["recurrence"], "recurrence"), said["task"], orjson.dumps(said["input"]).decode(),
                said["queue"], schedule.tenant, Policies(said["catch_up"], said["overlap"], said["blackout"]), said["priority"],
                said.get("max_attempts"), *bounds,
            )  # fmt: skip
        except (KeyError, InvalidArgument, *_UNREADABLE):
            return None

    def versions(self, connection: Connection, ident: int) -> list[dict[str, Any]]:
        """The definitions that a schedule has had, the newest first."""
        query = (
            select(schedule_versions)
            .where(schedule_versions.c.schedule_id == ident)
            .order_by(schedule_versions.c.version.desc())
        )
        return [
            {"version": row.version, "definition": row.definition, "made_at": row.made_at, "made_by": row.made_by}
            for row in connection.execute(query)
        ]

    def fired_ahead(self, connection: Connection, idents: Sequence[int]) -> dict[int, set[datetime]]:
        """Of schedules, the occurrences that have a job already although they are not decided: by a clock that was ahead."""
        o, s = occurrences.c, schedules.c
        query = select(o.schedule_id, o.due_at).join(schedules, s.id == o.schedule_id)
        ahead = and_(s.id.in_(idents), o.due_at > s.decided_until, o.trigger != Trigger.MANUAL.value)
        found: dict[int, set[datetime]] = defaultdict(set)
        for ident, due_at in connection.execute(query.where(ahead)):
            found[ident].add(due_at)
        return found

    def any_ahead(self, connection: Connection, than: datetime) -> bool:
        """Was a schedule decided, or put off, by a clock later than ``than``?"""
        return connection.execute(select(schedules.c.id).where(_ahead(than)).limit(1)).first() is not None

    def ahead(self, connection: Connection, than: datetime) -> list[Schedule]:
        """Schedules that a clock later than ``than`` decided or put off, locked."""
        query = select(schedules.c.id).where(_ahead(than)).limit(1000).with_for_update(skip_locked=True)
        return self._schedules(connection, list(connection.execute(query).scalars()))

    def outdated(self, connection: Connection) -> list[Schedule]:
        """Schedules whose next instant was computed by other time zone data than this process has, locked."""
        query = (
            select(*_COLUMNS)
            .where(schedules.c.removed_at.is_(None), schedules.c.tz_version != tz_version())
            .limit(1000)
        )
        return [self._schedule(row) for row in connection.execute(query.with_for_update(skip_locked=True))]

    def count_outdated(self, connection: Connection) -> int:
        """How many schedules have a next instant that other time zone data computed."""
        query = select(func.count()).select_from(schedules)
        return int(
            connection.execute(
                query.where(schedules.c.removed_at.is_(None), schedules.c.tz_version != tz_version())
            ).scalar_one()
        )

    # ------------------------------------------------------------------ rows

    def _schedule(self, row: Any) -> Schedule:
        spec, error, left = None, row.error, None
        try:
            spec = self._spec(row)
            if spec.tz:
                zone(spec.tz)
        except UnreadableHere as problem:
            spec, left = None, problem
        except Exception as problem:  # a row written by hand may hold anything
            error = brief(problem) if not isinstance(problem, InvalidArgument) else str(problem)
        return Schedule(
            id=row.id, version=row.version, spec=spec, name=row.name, tenant=row.tenant, decided_until=row.decided_until, next_at=row.next_at,
            look_at=row.look_at, paused_at=row.paused_at, paused_reason=row.paused_reason, paused_by=row.paused_by, error=error,
            error_at=row.error_at, created_at=row.created_at, updated_at=row.updated_at, updated_by=row.updated_by, tz_version=row.tz_version,
            left=left,
        )  # fmt: skip

    def _spec(self, row: Any) -> Spec:
        # compared whole: a row that somebody changed by hand has no new version
        said = tuple(getattr(row, name) for name in _DEFINITION)
        known = self._specs.get(row.id)
        if known is not None and known[0] == said:
            return known[1]
        made = Spec(
            row.name, schedule_from_json(orjson.loads(row.recurrence), "recurrence"), row.task, row.input, row.queue, row.tenant,
            _policies(row), row.priority, row.max_attempts, row.starts_at, row.ends_at,
        )  # fmt: skip
        if len(self._specs) > 50_000:
            self._specs.clear()
        self._specs[row.id] = said, made
        return made

    def _occurrences(self, connection: Connection, query: Select[Any]) -> list[Occurrence]:
        return [occurrence(row) for row in connection.execute(query)]

    # ------------------------------------------------------------------ definitions

    def create(
        self, connection: Connection, spec: Spec, now: datetime, next_at: datetime | None, actor: str, declared: bool, reason: str = "",
    ) -> Schedule | None:  # fmt: skip
        """Make a schedule; None when somebody else was quicker."""
        values = self._values(spec, next_at) | {
            "tenant": spec.tenant, "name": spec.name, "version": 1, "decided_until": now, "look_at": next_at, "created_at": now,
            "updated_at": now, "updated_by": actor, "declared": _digest(spec) if declared else None,
        }  # fmt: skip
        try:
            with connection.begin_nested():
                ident = connection.execute(insert(schedules).values(**values).returning(schedules.c.id)).scalar_one()
        except IntegrityError:
            return None
        self._keep_version(connection, ident, 1, spec, now, actor)
        self._audit(connection, actor, CREATED, spec.tenant, ident, {"name": spec.name, "version": 1} | _why(reason))
        return self.get(connection, spec.name, spec.tenant)

    def change(
        self, connection: Connection, was: Schedule, spec: Spec, now: datetime, next_at: datetime | None, look_at: datetime | None,
        actor: str, declared: bool, reason: str = "",
    ) -> Schedule:  # fmt: skip
        """A new version of a schedule whose row is locked and whose occurrences up to ``now`` are decided."""
        version = was.version + 1
        values = self._values(spec, next_at) | {
            "version": version, "decided_until": max(was.decided_until, now), "look_at": look_at, "error": None, "error_at": None, "failures": 0,
            "updated_at": now, "updated_by": actor,
        }  # fmt: skip
        if declared:
            values["declared"] = _digest(spec)
        connection.execute(update(schedules).where(schedules.c.id == was.id).values(**values))
        self._keep_version(connection, was.id, version, spec, now, actor)
        self._audit(
            connection, actor, CHANGED, spec.tenant, was.id, {"name": spec.name, "version": version} | _why(reason)
        )
        return self.get(connection, spec.name, spec.tenant)

    def declared(self, connection: Connection, specs: Iterable[Spec]) -> set[tuple[str, str]]:
        """(tenant, name) of those schedules that stand there as code declared them last."""
        wanted = {(spec.tenant, spec.name): _digest(spec) for spec in specs}
        query = select(schedules.c.tenant, schedules.c.name, schedules.c.declared).where(
            schedules.c.removed_at.is_(None), schedules.c.name.in_([name for _, name in wanted])
        )
        return {(t, name) for t, name, digest in connection.execute(query) if wanted.get((t, name)) == digest}

    def replaced(
        self, connection: Connection, specs: Iterable[Spec]
    ) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """(tenant, name) of those definitions that newer code has replaced, while a worker with that newer code lives; and of those that are
        newer than the one that counts.

        The versions say in which order code declared them; the rule is that of ``jobs.declarations``.
        """
        lives, now = living(self.db, connection), self.db.present(connection)
        behind, ahead = set[tuple[str, str]](), set[tuple[str, str]]()
        v = schedule_versions.c
        for spec in specs:
            mine = [schedules.c.tenant == spec.tenant, schedules.c.name == spec.name, schedules.c.removed_at.is_(None)]
            by_code = (
                select(v.definition, v.made_at)
                .join(schedules, schedules.c.id == v.schedule_id)
                .where(*mine, v.made_by == "code")
            )
            rows = connection.execute(by_code.order_by(v.version)).all()
            own, order = mark(spec), [marked(row.definition) for row in rows]
            late = is_late(now, rows[-1].made_at if rows else None)
            if is_behind(own, order, lives.get(declaration(spec), ()), late):
                behind.add((spec.tenant, spec.name))
            elif is_ahead(own, order):
                ahead.add((spec.tenant, spec.name))
        return behind, ahead

    def undeclared(self, connection: Connection) -> list[tuple[str, str]]:
        """(tenant, name) of schedules that code declared once and no living worker's code declares now; none where no worker says what it declares."""
        names = living(self.db, connection)
        if not names:
            return []
        c = schedules.c
        once = (
            select(c.tenant, c.name).where(c.declared.is_not(None), c.removed_at.is_(None)).order_by(c.tenant, c.name)
        )
        return [(t, n) for t, n in connection.execute(once) if f"schedule:{t}/{n}" not in names]

    def note_declared(self, connection: Connection, was: Schedule, spec: Spec) -> None:
        """Code declares a schedule just as it stands."""
        connection.execute(update(schedules).where(schedules.c.id == was.id).values(declared=_digest(spec)))

    def _values(self, spec: Spec, next_at: datetime | None) -> dict[str, Any]:
        return {
            "recurrence": spec.recurrence.to_json(), "task": spec.task, "queue": spec.queue, "input": Encoded(spec.input), "priority": spec.priority,
            "max_attempts": spec.max_attempts, "catch_up": spec.policies.catch_up_text, "overlap": spec.policies.overlap,
            "blackout": spec.policies.blackout, "starts_at": spec.starts_at, "ends_at": spec.ends_at, "next_at": next_at,
            "tz_version": tz_version(),
        }  # fmt: skip

    def _keep_version(
        self, connection: Connection, ident: int, version: int, spec: Spec, now: datetime, actor: str
    ) -> None:
        said = spec.to_json()
        said["input"] = orjson.loads(spec.input)
        connection.execute(
            insert(schedule_versions).values(
                schedule_id=ident, version=version, definition=said, made_at=now, made_by=actor
            )
        )

    def remove(self, connection: Connection, was: Schedule, actor: str, reason: str, now: datetime) -> None:
        """Forget a schedule; its ledger stays until it is pruned. What was deferred is skipped."""
        connection.execute(
            update(occurrences).where(occurrences.c.schedule_id == was.id, occurrences.c.status == "deferred")
            .values(status="skipped", reason="removed", release_at=None, acted_at=now)
        )  # fmt: skip
        connection.execute(
            update(schedules).where(schedules.c.id == was.id)
            .values(removed_at=now, next_at=None, look_at=None, updated_at=now, updated_by=actor)
        )  # fmt: skip
        self._audit(connection, actor, REMOVED, was.tenant, was.id, {"name": was.name, "reason": reason})

    def set_paused(
        self,
        connection: Connection,
        was: Schedule,
        by: str,
        at: datetime | None,
        reason: str,
        action: str,
        now: datetime,
    ) -> None:
        connection.execute(
            update(schedules).where(schedules.c.id == was.id)
            .values(paused_at=at, paused_reason=(reason or None) if at else None, paused_by=by if at else None, updated_at=now, updated_by=by)
        )  # fmt: skip
        self._audit(connection, by, action, was.tenant, was.id, {"name": was.name, "reason": reason})

    def _audit(
        self, connection: Connection, actor: str, action: str, tenant: str, ident: int, meta: Mapping[str, Any]
    ) -> None:
        record(
            self.db,
            connection,
            actor=actor,
            action=action,
            entity="schedule",
            entity_id=ident,
            tenant=tenant,
            meta=meta,
        )

    def audit(self, connection: Connection, was: Schedule, actor: str, action: str, **meta: Any) -> None:
        """An operator's act on a schedule."""
        self._audit(connection, actor, action, was.tenant, was.id, {"name": was.name, **meta})

    # ------------------------------------------------------------------ decisions

    def write(
        self, connection: Connection, decided: Sequence[tuple[Schedule, Plan, Mapping[datetime, int]]], now: datetime
    ) -> None:
        """Write plans: the ledger, and how far each schedule is decided. The rows of the schedules are locked."""
        fresh, known, rows = [], [], []
        for schedule, plan, made in decided:
            version = tz_version(schedule.spec.tz) if schedule.spec is not None and schedule.spec.tz else None
            for d in plan.decisions:
                row = {
                    "status": d.status.value, "reason": d.reason, "policy": d.policy, "job_id": made.get(d.due_at), "start_at": d.start_at,
                    "acted_at": now, "release_at": d.release_at, "version": schedule.version, "tz_version": version,
                    "late": (now - d.due_at).total_seconds() if d.status is Status.FIRED and not d.known else None,
                }  # fmt: skip
                if d.same:
                    continue
                if d.known:
                    known.append(row | {"b_schedule": schedule.id, "b_due": d.due_at})
                else:
                    fresh.append(row | {"schedule_id": schedule.id, "due_at": d.due_at, "trigger": "schedule"})
            rows.append(
                {
                    "b_id": schedule.id,
                    "decided_until": plan.decided_until,
                    "next_at": plan.next_at,
                    "look_at": plan.look_at,
                }
            )
        if fresh:
            connection.execute(insert(occurrences), fresh)
        if known:
            at = and_(occurrences.c.schedule_id == bindparam("b_schedule"), occurrences.c.due_at == bindparam("b_due"))
            names = (
                "status",
                "reason",
                "policy",
                "job_id",
                "start_at",
                "acted_at",
                "release_at",
                "version",
                "tz_version",
                "late",
            )
            connection.execute(
                update(occurrences)
                .where(at, occurrences.c.status == "deferred")
                .values({n: bindparam(n) for n in names}),
                known,
            )
        if rows:
            values: dict[str, Any] = {n: bindparam(n) for n in ("decided_until", "next_at", "look_at")} | {
                "error": None,
                "error_at": None,
                "failures": 0,
            }
            connection.execute(update(schedules).where(schedules.c.id == bindparam("b_id")).values(values), rows)

    def add(self, connection: Connection, schedule: Schedule, rows: Sequence[Mapping[str, Any]]) -> None:
        """Occurrences that an operator wants, new in the ledger."""
        version = tz_version(schedule.spec.tz) if schedule.spec and schedule.spec.tz else None
        shared = {"schedule_id": schedule.id, "version": schedule.version, "tz_version": version, "job_id": None, "start_at": None,
                  "release_at": None, "late": None, "reason": None}  # fmt: skip
        connection.execute(insert(occurrences), [shared | dict(row) for row in rows])

    def revive(self, connection: Connection, schedule: Schedule, rows: Sequence[Mapping[str, Any]]) -> None:
        """Occurrences that an operator wants and that were skipped or missed."""
        at = and_(occurrences.c.schedule_id == schedule.id, occurrences.c.due_at == bindparam("b_due"))
        names = ("status", "reason", "policy", "job_id", "start_at", "acted_at", "release_at", "trigger")
        connection.execute(
            update(occurrences).where(at).values({n: bindparam(n) for n in names}), [dict(row) for row in rows]
        )

    def look_soon(self, connection: Connection, schedule: Schedule, at: datetime) -> None:
        """Have somebody look at a schedule at ``at`` or before."""
        sooner = or_(schedules.c.look_at.is_(None), schedules.c.look_at > at)
        connection.execute(update(schedules).where(schedules.c.id == schedule.id, sooner).values(look_at=at))

    def retime(
        self, connection: Connection, schedule: Schedule, next_at: datetime | None, look_at: datetime | None
    ) -> None:
        """The next instant, computed anew."""
        connection.execute(
            update(schedules)
            .where(schedules.c.id == schedule.id)
            .values(next_at=next_at, look_at=look_at, tz_version=tz_version())
        )

    def rewind(self, connection: Connection, schedule: Schedule, now: datetime, next_at: datetime | None) -> int:
        """Let a schedule be decided until ``now`` only, and forget what became of later occurrences, but for those with a job.

        Returns how many were forgotten.
        """
        o = occurrences.c
        ahead = and_(o.schedule_id == schedule.id, o.due_at > now, o.job_id.is_(None))
        count = connection.execute(delete(occurrences).where(ahead)).rowcount
        connection.execute(
            update(schedules).where(schedules.c.id == schedule.id)
            .values(decided_until=min(schedule.decided_until, now), next_at=next_at, look_at=now)
        )  # fmt: skip
        until = schedule.decided_until.isoformat()
        self._audit(
            connection,
            "scheduler",
            REWOUND,
            schedule.tenant,
            schedule.id,
            {"name": schedule.name, "until": until, "count": count},
        )
        return count

    def mark_broken(self, connection: Connection, ident: int, problem: str, now: datetime) -> int:
        """Note why a schedule could not be planned, and look again later. Returns how often that happened in a row."""
        row = connection.execute(select(schedules.c.failures).where(schedules.c.id == ident).with_for_update()).first()
        if row is None:
            return 0
        failures = int(row.failures) + 1
        pause = timedelta(seconds=BROKEN.delay(failures))
        connection.execute(
            update(schedules).where(schedules.c.id == ident)
            .values(error=problem[:2000], error_at=func.coalesce(schedules.c.error_at, self.db.now()), failures=failures, look_at=now + pause)
        )  # fmt: skip
        return failures

    def prune(self, connection: Connection, before: datetime, most: int = 1000) -> int:
        """Forget occurrences decided before an instant whose job is no longer alive. Returns how many."""
        old = (
            select(occurrences.c.schedule_id, occurrences.c.due_at)
            .where(occurrences.c.acted_at < before, occurrences.c.status != "deferred")
            .where(~select(jobs.c.id).where(jobs.c.id == occurrences.c.job_id).exists())
            .order_by(occurrences.c.acted_at).limit(most)
        )  # fmt: skip
        rows = connection.execute(old).all()
        if rows:
            at = and_(occurrences.c.schedule_id == bindparam("b_id"), occurrences.c.due_at == bindparam("b_due"))
            connection.execute(delete(occurrences).where(at), [{"b_id": i, "b_due": d} for i, d in rows])
        return len(rows)


def _policies(row: Any) -> Policies:
    """Raises UnreadableHere for one that this code does not know: newer code may have written it (E1)."""
    try:
        return Policies(row.catch_up, row.overlap, row.blackout)
    except InvalidArgument as error:
        raise UnreadableHere(error.field, error.problem, error.remedy) from None


def _without(but: Collection[tuple[int, int]]) -> list[ColumnElement[bool]]:
    return [tuple_(schedules.c.id, schedules.c.version).not_in(sorted(but))] if but else []


def _ahead(than: datetime) -> ColumnElement[bool]:
    s = schedules.c
    # looked at next when it is planned next; or sooner, or within an hour, for what waits or is broken
    put_off = and_(s.look_at > than, or_(s.next_at.is_(None), s.look_at != s.next_at))
    return and_(s.removed_at.is_(None), or_(s.decided_until > than, put_off))


def occurrence(row: Any) -> Occurrence:
    """An occurrence from its row."""
    return Occurrence(
        row.schedule_id, row.due_at, word_of(Status, row.status), row.reason, row.policy, row.acted_at, row.version, word_of(Trigger, row.trigger),
        row.job_id, row.start_at, row.release_at, row.tz_version,
    )  # fmt: skip


def _why(reason: str) -> dict[str, str]:
    """Of an act that code does without one, nothing is kept."""
    return {"reason": reason} if reason else {}


def declaration(spec: Spec) -> str:
    """What a worker's row calls a schedule that its code declares."""
    return f"schedule:{spec.tenant}/{spec.name}"


def mark(spec: Spec) -> str:
    """A mark of a definition, which its version has, too."""
    return marked({**spec.to_json(), "input": orjson.loads(spec.input)})


def _digest(spec: Spec) -> str:
    return hashlib.sha256(definition(spec.to_json()).encode()).hexdigest()

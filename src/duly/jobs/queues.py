"""Queues and the gate: what operators set, and the closer look that governed queues get before a claim.

A queue is *governed* when something about it must be asked before its work may start: it is paused, limited, rated,
fair, or uses concurrency keys. The fast claim passes governed queues by, inside its own statement, so a stale picture in
some worker cannot break a limit. ``claim_governed`` locks the queue's row, asks ``kernel.gate``, and takes as many jobs as
there is room for: claims on one limited queue happen one after the other in the whole cluster, other queues are not
touched. Occupancy is counted from the running rows themselves; nothing is counted up and down that could leak.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from duly.audit.store import record
from duly.calendars.standing import any_holds
from duly.calendars.tables import queue_scopes
from duly.jobs.settle import Claimed
from duly.jobs.store import JobStore
from duly.jobs.tables import GATE_KEY, OUTBOX_GATE_KEY, jobs, queue_starts, queues, system_state
from duly.kernel.errors import InvalidArgument
from duly.kernel.gate import Admit, Hold, QueueFacts, Rate, Scope, gate, read_gate, read_outbox_gate
from duly.kernel.payload import check_name, check_text, check_whole
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.types import Instant

if TYPE_CHECKING:
    from duly.calendars.store import CalendarStore

_UNSET: Any = object()

#: One row that differs when a control was changed.
CONTROLS_SEEN = """SELECT (SELECT group_concat(key || '=' || value) FROM system_state), (SELECT max(updated_at) FROM queues),
                          (SELECT count(*) FROM queues WHERE governed),
                          (SELECT count(*) || ' ' || sum(version) || ' ' || max(updated_at) FROM blackouts)"""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What is set for one queue."""

    name: str
    limit: int | None = None
    key_limit: int | None = None
    rate: Rate | None = None
    fair: bool = False
    paused_at: datetime | None = None
    paused_reason: str | None = None
    paused_by: str | None = None
    #: A claim must look closer.
    governed: bool = False
    #: Held until an instant, which may have passed.
    held_until: datetime | None = None
    held_reason: str | None = None

    def is_held(self, now: datetime) -> bool:
        """Is it held at that instant (aware)?"""
        return self.held_until is not None and self.held_until > now

    @property
    def counted(self) -> bool:
        """Its running jobs or starts are counted, so none may be held without being run."""
        return self.limit is not None or self.key_limit is not None or self.rate is not None


def _settings(row: Any) -> QueueSettings:
    rate = Rate(row.rate_count, row.rate_seconds) if row.rate_count is not None else None
    return QueueSettings(
        row.name,
        row.concurrency_limit,
        row.key_limit,
        rate,
        bool(row.fair),
        row.paused_at,
        row.paused_reason,
        row.paused_by,
        bool(row.governed),
        row.held_until,
        row.held_reason,
    )


#: The longest window of a rate, in seconds.
LONGEST_WINDOW = 400 * 86_400.0


def _whole(field: str, value: object) -> int:
    """A number of jobs. Raises InvalidArgument."""
    return check_whole(value, field, remedy="Pause the queue to stop it.")


class QueueStore:
    """Settings of queues, the online gate, and claims on governed queues."""

    def __init__(self, db: Database, store: JobStore, calendars: Callable[[], CalendarStore]) -> None:
        #: ``calendars``: gives the blackouts, and is asked where one holds.
        self.db, self.store, self.calendars = db, store, calendars
        #: For each fair queue, the tenant that had the last turn here.
        self._last_turn: dict[str, str] = {}

    # ------------------------------------------------------------------ settings

    def all(self, connection: Connection) -> dict[str, QueueSettings]:
        return {row.name: _settings(row) for row in connection.execute(select(queues).order_by(queues.c.name))}

    def get(self, connection: Connection, name: str, lock: bool = False) -> QueueSettings:
        query = select(queues).where(queues.c.name == name)
        row = connection.execute(query.with_for_update() if lock else query).first()
        return _settings(row) if row is not None else QueueSettings(name)

    def locked(self, connection: Connection, name: str) -> QueueSettings:
        """What is set for a queue; nobody else sets anything until this transaction ends."""
        check_name(name, "queue")
        return self._ensure(connection, name)

    def set(
        self,
        connection: Connection,
        name: str,
        actor: str,
        *,
        limit: int | None = _UNSET,
        key_limit: int | None = _UNSET,
        rate: Rate | None = _UNSET,
        fair: bool = _UNSET,
        reason: str = "",
    ) -> QueueSettings:
        """Change what is given, leave the rest. None takes a limit away. Audited as QUEUE_CHANGED."""
        check_name(name, "queue")
        check_text(reason, "reason")
        values: dict[str, Any] = {}
        for field, value in (("concurrency_limit", limit), ("key_limit", key_limit)):
            if value is not _UNSET:
                values[field] = None if value is None else _whole("limit", value)
        if rate is not _UNSET:
            if rate is not None:
                if not isinstance(rate, Rate):
                    raise InvalidArgument("rate", f"is {rate!r}.", "Give (count, seconds).")
                _whole("rate", rate.count)
                if not 0 < rate.seconds <= LONGEST_WINDOW:
                    raise InvalidArgument(
                        "rate", f"has a window of {rate.seconds} s; it must be more than 0 and at most 400 days."
                    )
            values |= {"rate_count": rate and rate.count, "rate_seconds": rate and rate.seconds}
        if fair is not _UNSET:
            values["fair"] = bool(fair)
        before = self._ensure(connection, name)
        connection.execute(update(queues).where(queues.c.name == name).values(**values, updated_at=self.db.now()))
        after = self._regovern(connection, name)
        if after.fair != before.fair:
            # rows that wait already take their place in the other index, and so do running ones if they come back
            connection.execute(update(jobs).where(jobs.c.queue == name).values(fair=after.fair))
        meta = {k: (f"{v.count}/{v.seconds:g}s" if isinstance(v, Rate) else v)
                for k, v in (("limit", after.limit), ("key_limit", after.key_limit), ("rate", after.rate), ("fair", after.fair))}  # fmt: skip
        meta |= {"reason": reason} if reason else {}
        record(self.db, connection, actor=actor, action="QUEUE_CHANGED", entity="queue", entity_id=name, meta=meta)
        return after

    def pause(self, connection: Connection, name: str, actor: str, reason: str = "") -> QueueSettings:
        """Stop claims on a queue. Running jobs go on. Pausing a paused queue changes its reason."""
        check_name(name, "queue")
        check_text(reason, "reason")
        self._ensure(connection, name)
        connection.execute(
            update(queues).where(queues.c.name == name)
            .values(paused_at=func.coalesce(queues.c.paused_at, self.db.now()), paused_reason=reason or None, paused_by=actor, updated_at=self.db.now())
        )  # fmt: skip
        record(
            self.db,
            connection,
            actor=actor,
            action="QUEUE_PAUSED",
            entity="queue",
            entity_id=name,
            meta={"reason": reason},
        )
        return self._regovern(connection, name)

    def resume(self, connection: Connection, name: str, actor: str, reason: str = "") -> QueueSettings:
        """Let claims go on."""
        check_name(name, "queue")
        check_text(reason, "reason")
        if self.get(connection, name).paused_at is not None:
            connection.execute(
                update(queues)
                .where(queues.c.name == name)
                .values(paused_at=None, paused_reason=None, paused_by=None, updated_at=self.db.now())
            )
            meta = {"reason": reason} if reason else {}
            record(self.db, connection, actor=actor, action="QUEUE_RESUMED", entity="queue", entity_id=name, meta=meta)
        return self._regovern(connection, name)

    def hold(
        self, connection: Connection, name: str, until: datetime, reason: str, actor: str, *, longer: bool = True
    ) -> QueueSettings:  # fmt: skip
        """Hold a queue until an instant (aware). Running jobs go on; it opens by itself. Audited as QUEUE_HELD.

        ``longer``: a hold that lasts beyond ``until`` stays as it is.
        """
        check_name(name, "queue")
        check_text(reason, "reason")
        if not isinstance(until, datetime) or until.tzinfo is None:
            raise InvalidArgument("until", f"is {until!r}; it must be a datetime with a time zone.")
        before = self._ensure(connection, name)
        if longer and before.held_until is not None and before.held_until >= until:
            return before
        values = {"held_until": until, "held_reason": reason or None, "updated_at": self.db.now()}
        connection.execute(update(queues).where(queues.c.name == name).values(**values))
        meta = {"reason": reason, "until": until.isoformat()}
        record(self.db, connection, actor=actor, action="QUEUE_HELD", entity="queue", entity_id=name, meta=meta)
        return self._regovern(connection, name)

    def release(self, connection: Connection, name: str, actor: str, reason: str = "") -> QueueSettings:
        """End a hold before its instant. Audited as QUEUE_RELEASED where there was one."""
        check_name(name, "queue")
        check_text(reason, "reason")
        before = self.get(connection, name, lock=True)
        if before.held_until is None:
            return before
        if before.is_held(self.db.present(connection)):
            meta = {"reason": reason} if reason else {}
            record(self.db, connection, actor=actor, action="QUEUE_RELEASED", entity="queue", entity_id=name, meta=meta)
        return self._let_go(connection, name)

    def _let_go(self, connection: Connection, name: str) -> QueueSettings:
        values = {"held_until": None, "held_reason": None, "updated_at": self.db.now()}
        connection.execute(update(queues).where(queues.c.name == name).values(**values))
        return self._regovern(connection, name)

    def _ensure(self, connection: Connection, name: str) -> QueueSettings:
        connection.execute(
            text("INSERT INTO queues (name, governed, fair, updated_at) VALUES (:name, false, false, :now) ON CONFLICT (name) DO NOTHING")
            .bindparams(bindparam("now", type_=Instant)), {"name": name, "now": self.db.clock.now()},
        )  # fmt: skip
        return self.get(connection, name, lock=True)

    def _regovern(self, connection: Connection, name: str) -> QueueSettings:
        s = self.get(connection, name)
        governed = (
            s.paused_at is not None or s.held_until is not None or s.limit is not None or s.key_limit is not None or s.rate is not None or s.fair
        )  # fmt: skip
        connection.execute(update(queues).where(queues.c.name == name).values(governed=governed))
        self.db.announce(connection)
        return self.get(connection, name)

    # ------------------------------------------------------------------ the online gate

    def online(self, connection: Connection) -> bool:
        """The online gate (R003-8): a missing row is online, an unreadable one is not."""
        return read_gate(
            connection.execute(select(system_state.c.value).where(system_state.c.key == GATE_KEY)).scalar()
        )

    def outbox_online(self, connection: Connection) -> bool:
        """May relays of this database's outbox send? They follow the gate unless they were told otherwise."""
        found = select(system_state.c.key, system_state.c.value).where(
            system_state.c.key.in_((GATE_KEY, OUTBOX_GATE_KEY))
        )
        rows = {row.key: row.value for row in connection.execute(found)}
        return read_outbox_gate(rows.get(GATE_KEY), rows.get(OUTBOX_GATE_KEY))

    def set_online(
        self,
        connection: Connection,
        online: bool,
        actor: str,
        reason: str = "",
        scopes: Collection[Scope] = tuple(Scope),
    ) -> None:
        """Open or close the gate for these scopes. Audited as ATLAS_ONLINE or ATLAS_OFFLINE (T003-f)."""
        check_text(reason, "reason")
        jobs_online, outbox_online = self.online(connection), self.outbox_online(connection)
        if Scope.JOBS in scopes:
            jobs_online = online
            self._set_state(connection, GATE_KEY, online)
        outbox_online = online if Scope.OUTBOX in scopes else outbox_online
        if outbox_online == jobs_online:
            connection.execute(delete(system_state).where(system_state.c.key == OUTBOX_GATE_KEY))
        else:
            self._set_state(connection, OUTBOX_GATE_KEY, outbox_online)
        record(
            self.db,
            connection,
            actor=actor,
            action="ATLAS_ONLINE" if online else "ATLAS_OFFLINE",
            entity="gate",
            entity_id=GATE_KEY if Scope.JOBS in scopes else OUTBOX_GATE_KEY,
            level="warning",
            meta={"reason": reason}
            if set(scopes) == set(Scope)
            else {"reason": reason, "scopes": sorted(map(str, scopes))},
        )
        self.db.announce(connection)

    def _set_state(self, connection: Connection, key: str, online: bool) -> None:
        values = {"value": "true" if online else "false", "updated_at": self.db.now()}
        if connection.execute(update(system_state).where(system_state.c.key == key).values(**values)).rowcount == 0:
            connection.execute(insert(system_state).values(key=key, **values))

    # ------------------------------------------------------------------ the closer look

    def facts(self, connection: Connection, s: QueueSettings, online: bool | None = None) -> QueueFacts:
        """Everything ``kernel.gate`` wants to know about a queue now."""
        online = self.online(connection) if online is None else online
        running = 0
        if s.limit is not None:
            running = connection.execute(
                select(func.count()).select_from(jobs).where(jobs.c.queue == s.name, jobs.c.status == "running")
            ).scalar_one()
        started, frees_at = 0, None
        if s.rate is not None:
            window = [
                queue_starts.c.queue == s.name,
                queue_starts.c.at > self.db.present(connection) - timedelta(seconds=s.rate.seconds),
            ]
            started, oldest = connection.execute(
                select(func.coalesce(func.sum(queue_starts.c.count), 0), func.min(queue_starts.c.at)).where(*window)
            ).one()
            frees_at = oldest + timedelta(seconds=s.rate.seconds) if oldest else None
        held = s.is_held(self.db.present(connection))
        scopes, covered = queue_scopes(s.name), None
        if any_holds(self.db, connection, *scopes):
            covered = self.calendars().covering(connection, *scopes)
        return QueueFacts(
            s.name,
            online=online,
            paused_at=s.paused_at,
            paused_reason=s.paused_reason,
            held_until=s.held_until if held else None,
            held_reason=s.held_reason if held else None,
            blackout=None if covered is None else ", ".join(covered.names),
            blackout_until=None if covered is None else covered.until,
            limit=s.limit,
            running=running,
            rate=s.rate,
            started=int(started),
            rate_frees_at=frees_at,
        )

    def claim_governed(
        self,
        connection: Connection,
        name: str,
        room: int,
        tasks: Sequence[str],
        token: int,
        lease: float,
        worker: str,
        held: Callable[[Hold], None] | None = None,
    ) -> list[Claimed]:
        """Take up to ``room`` jobs of a governed queue, within everything that governs it.

        Returns nothing when the queue is held, or when another worker is claiming on it at this moment.
        """
        query = select(queues).where(queues.c.name == name).with_for_update(skip_locked=True, key_share=True)
        row = connection.execute(query).first()
        if row is None:
            return []
        s = _settings(row)
        answer = gate(self.facts(connection, s))
        if isinstance(answer, Hold):
            if held is not None:
                held(answer)
            return []
        assert isinstance(answer, Admit)
        if s.held_until is not None:
            self._let_go(connection, name)  # its instant has passed
        room = room if answer.room is None else min(room, answer.room)
        ids = self._pick(connection, s, room, tasks)
        if not ids:
            return []
        rows = self.store.take(connection, ids, token, lease, worker)
        if s.rate is not None and rows:
            now = self.db.present(connection)
            connection.execute(insert(queue_starts).values(queue=name, at=now, count=len(rows)))
            connection.execute(
                delete(queue_starts).where(
                    queue_starts.c.queue == name, queue_starts.c.at <= now - timedelta(seconds=s.rate.seconds)
                )
            )
        return rows

    def give_back(self, connection: Connection, name: str, claimed_at: datetime) -> None:
        """Take one start of the claim at that instant (a job's ``started_at``) out of the queue's rate: what it counts was not begun."""
        c = queue_starts.c
        # a claim writes its row right after it has taken its jobs, and the queue's claims come one after the other
        mine = [c.queue == name, c.at >= claimed_at, c.at <= claimed_at + timedelta(seconds=1)]
        ident = connection.execute(select(c.id).where(*mine).order_by(c.at, c.id).limit(1)).scalar()
        if ident is not None:
            connection.execute(update(queue_starts).where(c.id == ident).values(count=c.count - 1))
            connection.execute(delete(queue_starts).where(c.id == ident, c.count <= 0))

    def _pick(self, connection: Connection, s: QueueSettings, room: int, tasks: Sequence[str]) -> list[int]:
        """Which ready jobs, in order: by turns among tenants where the queue is fair, within each key's limit."""
        ready: list[Any] = [
            jobs.c.queue == s.name,
            jobs.c.status == "queued",
            jobs.c.due_at.is_(None),
            jobs.c.task.in_(tasks),
            self.store.within_abilities(),
        ]
        busy: Mapping[str, int] = {}
        if s.key_limit is not None:
            counted = (
                select(jobs.c.concurrency_key, func.count()).where(jobs.c.queue == s.name, jobs.c.status == "running", jobs.c.concurrency_key.is_not(None))
                .group_by(jobs.c.concurrency_key)
            )  # fmt: skip
            busy = {row[0]: row[1] for row in connection.execute(counted)}
            full = [key for key, n in busy.items() if n >= s.key_limit]
            if full:
                ready.append(jobs.c.concurrency_key.is_(None) | jobs.c.concurrency_key.not_in(full))
        # where keys are limited, look at more than is taken: several in a row may share one key
        look = room if s.key_limit is None else room * 4 + 50
        rows: list[Any] = []
        if s.fair:
            rows = self._by_turns(connection, s.name, ready, look)
        if len(rows) < look:
            # not fair, or rows that were enqueued while fairness was being switched on
            rest = [*ready, jobs.c.fair.is_(False)] if s.fair else ready
            query = (
                select(jobs.c.id, jobs.c.concurrency_key, jobs.c.tenant)
                .where(*rest)
                .order_by(jobs.c.priority.desc(), jobs.c.run_at, jobs.c.id)
            )
            rows += connection.execute(query.limit(look - len(rows)).with_for_update(skip_locked=True)).all()
        out: list[int] = []
        used = dict(busy)
        for ident, key, tenant in rows:
            if len(out) == room:
                break
            if key is not None and s.key_limit is not None:
                if used.get(key, 0) >= s.key_limit:
                    continue
                used[key] = used.get(key, 0) + 1
            out.append(ident)
            if s.fair:
                self._last_turn[s.name] = tenant
        return out

    def _by_turns(self, connection: Connection, name: str, ready: list[Any], look: int) -> list[Any]:
        """Ready jobs by priority, and at equal priority one tenant after the other, each tenant's own in order.

        Turns go round: the tenant after the one that was served last begins, so that claims of one job are fair too.
        """
        turns = []
        for position, tenant in enumerate(self._tenants(connection, name, self._last_turn.get(name))):
            query = (
                select(jobs.c.id, jobs.c.concurrency_key, jobs.c.priority).where(*ready, jobs.c.fair, jobs.c.tenant == tenant)
                .order_by(jobs.c.priority.desc(), jobs.c.run_at, jobs.c.id).limit(look).with_for_update(skip_locked=True)
            )  # fmt: skip
            seen: dict[int, int] = {}
            for ident, key, priority in connection.execute(query):
                seen[priority] = turn = seen.get(priority, 0) + 1
                turns.append((-priority, turn, position, ident, key, tenant))
        turns.sort(key=lambda t: t[:3])
        return [(ident, key, tenant) for _, _, _, ident, key, tenant in turns[:look]]

    def _tenants(self, connection: Connection, name: str, after: str | None, most: int = 200) -> list[str]:
        """Tenants with ready jobs in a fair queue, the one behind ``after`` first.

        Found by hopping along the queue's index: one probe per tenant, however long the backlog.
        """
        out: list[str] = []
        last, wrapped = after, after is None
        while len(out) < most:
            query = select(jobs.c.tenant).where(
                jobs.c.queue == name, jobs.c.status == "queued", jobs.c.due_at.is_(None), jobs.c.fair
            )
            if last is not None:
                query = query.where(jobs.c.tenant > last)
            last = connection.execute(query.order_by(jobs.c.tenant).limit(1)).scalar()
            if last is None and not wrapped:
                wrapped = True
                continue
            if last is None or last in out:
                break
            out.append(last)
        return out

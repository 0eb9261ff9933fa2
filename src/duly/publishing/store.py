"""Every statement of the publishing room."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, case, delete, func, or_, select, update

from duly.jobs.job import ENDED, LIVE, Status
from duly.jobs.look import Found, Stream, below_of, walk
from duly.jobs.tables import job_keys, jobs, jobs_done, queues, system_state
from duly.kernel.errors import InvalidArgument
from duly.kernel.gate import Rate
from duly.publishing.state import LIFECYCLE, State
from duly.publishing.tables import POSTS, publication_channels, publications
from duly.publishing.view import COMMENT, PUBLISH, TASKS, PublicationFilter, Trace
from duly.storage.database import Database
from duly.storage.locks import wait_lock
from duly.storage.qualified import text
from duly.storage.rows import by_index, insert_into

#: The reason under which a breaker holds a queue begins so; nobody else's hold is lifted by it.
BREAKER = "circuit breaker"
#: The reason of a hold in front of another side that takes nothing.
HELD = "waiting for the other side"
#: The keys of ``system_state`` under which the ends of channels' access stand.
ACCESS_ENDS = "publish_token:"
#: The keys of ``system_state`` under which stands what processes have declared of channels.
DECLARED = "publish_channel:"
#: While one publication is tried after such a hold, the reason begins so.
TRIAL = f"{BREAKER}: a trial"
#: Cancelled jobs are looked at for so long after their publication has last changed.
RECENT = timedelta(days=7)
#: No request that publishes is on its way for longer.
ON_ITS_WAY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Row:
    """A publication as a run finds it."""

    state: State
    facts: Mapping[str, Any] = field(default_factory=dict)
    remote_id: str | None = None
    url: str | None = None
    #: Where it was handed over last.
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Rival:
    """Another publication that a post on the other side may be."""

    job: int
    tenant: str
    #: It is that post; otherwise nobody knows yet whether it is there.
    published: bool
    #: Its job has not ended: what is not known of it may still come out by itself.
    live: bool


@dataclass(frozen=True, slots=True)
class Fare:
    """How a channel fares: failures in a row, and how often in a row it was held for them."""

    failures: int = 0
    trips: int = 0


class PublicationStore:
    """The statements, on one database."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._insert_into: Any = insert_into(db.is_sqlite)

    # ------------------------------------------------------------------ one run

    def holds(self, connection: Connection, job: int, token: int | None) -> bool:
        """Is the job still running under this lease? It keeps it until the transaction ends. None: a run without a lease of its own."""
        if token is None:
            return True
        query = select(jobs.c.id).where(jobs.c.id == job, jobs.c.status == "running", jobs.c.lease_token == token)
        return connection.execute(query.with_for_update(read=True)).first() is not None

    def claimed_at(self, connection: Connection, job: int, token: int | None) -> datetime | None:
        """When the present run of a job was claimed; None when its lease is lost."""
        mine = [jobs.c.id == job, jobs.c.status == "running", *([] if token is None else [jobs.c.lease_token == token])]
        found: datetime | None = connection.execute(select(jobs.c.started_at).where(*mine)).scalar()
        return found

    def begin(
        self, connection: Connection, job: int, token: int | None, holder: str, tenant: str, channel: str, facts: Mapping[str, Any]
    ) -> Row | None:  # fmt: skip
        """Take the publication over for this run, and say what is on record. None when the lease is lost."""
        if not self.holds(connection, job, token):
            return None
        now = self.db.present(connection)
        made = self._insert_into(publications).values(
            job_id=job, tenant=tenant, channel=channel, state=LIFECYCLE.target(None, "begin").value, facts=dict(facts), holder=holder, updated_at=now
        )  # fmt: skip
        connection.execute(made.on_conflict_do_nothing())
        p = publications.c
        connection.execute(update(publications).where(p.job_id == job).values(holder=holder, updated_at=now))
        row = connection.execute(select(p.state, p.facts, p.remote_id, p.url, p.place).where(p.job_id == job)).one()
        return Row(State(row.state), row.facts, row.remote_id, row.url, row.place)

    def note(self, connection: Connection, job: int, token: int | None, holder: str, facts: Mapping[str, Any]) -> bool:
        """Write the facts. False when another run has taken over."""
        return self._change(connection, job, token, holder, State, facts=dict(facts))

    def ahead(
        self, connection: Connection, job: int, token: int | None, holder: str, facts: Mapping[str, Any], place: str = "", looks: str = ""
    ) -> bool:  # fmt: skip
        """Write down that the request that publishes is about to be made. False when another run has taken over, or it is published."""
        now = self.db.present(connection)
        target = LIFECYCLE.target(State.PREPARING, "ahead")
        sources = (State.PREPARING, State.SENDING)  # a connector may say it twice
        return self._change(
            connection, job, token, holder, sources, state=target.value, facts=dict(facts), sent_at=now, place=place or None,
            looks=looks or None,
        )  # fmt: skip

    def back(
        self, connection: Connection, job: int, token: int | None, holder: str, event: str, facts: Mapping[str, Any]
    ) -> bool:  # fmt: skip
        """After ``refuse``, ``miss`` or ``forget``: nothing was published. False when another run has taken over."""
        target = LIFECYCLE.target(State.SENDING, event)
        return self._change(connection, job, token, holder, (State.SENDING,), state=target.value, facts=dict(facts))

    def _change(
        self, connection: Connection, job: int, token: int | None, holder: str, sources: Iterable[State], **values: Any
    ) -> bool:  # fmt: skip
        if not self.holds(connection, job, token):
            return False
        p = publications.c
        mine = [p.job_id == job, p.holder == holder, p.state.in_([s.value for s in sources])]
        done = update(publications).where(*mine).values(**values, updated_at=self.db.present(connection))
        return connection.execute(done).rowcount == 1

    def published(self, connection: Connection, job: int, remote_id: str | None, url: str | None) -> None:
        """Write down that it is there, whoever holds the job by now: it is true. What is known of it is never taken back (T002-l)."""
        p = publications.c
        connection.execute(
            update(publications).where(p.job_id == job)
            .values(state=State.PUBLISHED.value, remote_id=func.coalesce(p.remote_id, remote_id), url=func.coalesce(url, p.url),
                    updated_at=self.db.present(connection))
        )  # fmt: skip

    # ------------------------------------------------------------------ looking

    def rival(
        self, connection: Connection, place: str, looks: str, remote_id: str, but: int, since: datetime
    ) -> Rival | None:  # fmt: skip
        """Another publication than job ``but``, on any channel and of any tenant, that a post in a place may be: one that has its id on
        record, or one with the same looks of which nobody knows, and whose request may have made what is there since an instant.

        Until the transaction ends nobody else is answered for that place.
        """
        wait_lock(self.db, connection, f"publishing {place}", 0)
        p = publications.c
        others = select(p.job_id, p.tenant).where(p.place == place, p.job_id != but)
        row = connection.execute(others.where(p.remote_id == remote_id).limit(1)).first()
        if row is not None:
            return Rival(row.job_id, row.tenant, published=True, live=False)
        if not looks:
            return None
        alike = others.where(p.looks == looks, p.state == State.SENDING.value, p.sent_at >= since - ON_ITS_WAY)
        live = select(jobs.c.id).where(jobs.c.id == p.job_id).exists()
        row = connection.execute(alike.add_columns(live.label("live")).order_by(p.job_id).limit(1)).first()
        return None if row is None else Rival(row.job_id, row.tenant, published=False, live=bool(row.live))

    def traces(self, connection: Connection, idents: Iterable[int]) -> dict[int, Trace]:
        """What is on record of these jobs."""
        p, wanted = publications.c, sorted(set(idents))
        out: dict[int, Trace] = {}
        for start in range(0, len(wanted), 500):
            query = select(p.job_id, p.state, p.remote_id, p.url).where(p.job_id.in_(wanted[start : start + 500]))
            for r in connection.execute(query):
                out[r.job_id] = Trace(State(r.state), r.remote_id, r.url)
        return out

    def children(self, connection: Connection, idents: Iterable[int]) -> dict[int, list[int]]:
        """The first comments beneath these jobs, by parent, in order."""
        out: dict[int, list[int]] = {}
        wanted = sorted(set(idents))
        for start in range(0, len(wanted), 500):
            for t in (jobs, jobs_done):
                mine = [t.c.parent_id.in_(wanted[start : start + 500]), t.c.task == COMMENT]
                for ident, parent in connection.execute(select(t.c.id, t.c.parent_id).where(*mine)):
                    out.setdefault(parent, []).append(ident)
        # a job that moves between the two reads may be seen twice
        return {parent: sorted(set(ids)) for parent, ids in out.items()}

    def find(self, connection: Connection, f: PublicationFilter, limit: int, below: int | None = None) -> list[int]:
        """The ids of publications by filter, newest first. ``below``: only ids below this one."""
        return self.look(connection, f, limit, below).rows

    def look(
        self, connection: Connection, f: PublicationFilter, limit: int, below: int | None = None, until: float | None = None
    ) -> Found[int]:  # fmt: skip
        """The same, for no longer than ``until`` (monotonic; None: to the end). The connection as for ``jobs.look``."""
        if not 1 <= limit <= 10_000:
            raise InvalidArgument("limit", f"is {limit}; it must be between 1 and 10,000.")
        is_exact = bool(f.ids) or f.key is not None or f.parent_id is not None
        if not is_exact:
            by_index(connection)
        parts = []
        for table, states in ((jobs, LIVE), (jobs_done, ENDED)):
            if f.statuses and not set(f.statuses) & set(states):
                continue
            posts, rest = [text(POSTS)], _conditions(table, f)
            parts.append(
                Stream(table, select(table.c.id), [*posts, *rest] if is_exact else posts, [] if is_exact else rest)
            )
        return walk(connection, parts, limit, below_of(below), until).told(lambda rows: [row.id for row in rows])

    def owner(self, connection: Connection, tenant: str, channel: str, key: str) -> int | None:
        """The job that has a key."""
        k = job_keys.c
        mine = [k.tenant == tenant, k.queue == channel, k.key == key]
        found: int | None = connection.execute(select(k.job_id).where(*mine)).scalar()
        return found

    def task_of_owner(self, connection: Connection, tenant: str, channel: str, key: str) -> str | None:
        """The task of the job that has a key, where the job was pruned; None where it is not known."""
        k = job_keys.c
        mine = [k.tenant == tenant, k.queue == channel, k.key == key]
        found: str | None = connection.execute(select(k.task).where(*mine)).scalar()
        return found

    def owners(
        self, connection: Connection, tenant: str, keys: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], int]:  # fmt: skip
        """The jobs that have keys, by (channel, key)."""
        by_channel: dict[str, list[str]] = {}
        for channel, key in keys:
            by_channel.setdefault(channel, []).append(key)
        k, out = job_keys.c, dict[tuple[str, str], int]()
        for channel, wanted in by_channel.items():
            for start in range(0, len(wanted), 500):
                mine = [k.tenant == tenant, k.queue == channel, k.key.in_(wanted[start : start + 500])]
                for key, job in connection.execute(select(k.key, k.job_id).where(*mine)):
                    out[channel, key] = job
        return out

    def near(self, connection: Connection, channel: str, start: datetime, end: datetime) -> list[tuple[int, datetime]]:
        """(job, instant) of the posts of a channel that go out, went out, or may have, from an instant until another, both included."""
        c, d, p = jobs.c, jobs_done.c, publications.c
        mine: list[Any] = [c.queue == channel, c.task == PUBLISH]
        waits: list[Any] = [text("status = 'queued' AND due_at IS NOT NULL"), c.due_at >= start, c.due_at <= end]
        begun: list[Any] = [text(POSTS), c.due_at.is_(None), c.run_at >= start, c.run_at <= end]
        out = [(r.id, r.due_at) for r in connection.execute(select(c.id, c.due_at).where(*waits, *mine))]
        out += [(r.id, r.run_at) for r in connection.execute(select(c.id, c.run_at).where(*begun, *mine))]
        there = [
            p.state.in_((State.PUBLISHED.value, State.SENDING.value)),
            p.updated_at >= start - ON_ITS_WAY,
            p.channel == channel,
            d.id == p.job_id,
        ]
        gone = [d.task == PUBLISH, d.run_at >= start, d.run_at <= end]
        out += [(r.id, r.run_at) for r in connection.execute(select(d.id, d.run_at).where(*there, *gone))]
        return sorted(set(out), key=lambda one: (one[1], one[0]))

    def waiting_of(self, connection: Connection, tenant: str, channels: Sequence[str] = ()) -> list[Any]:
        """(id, queue, key, due_at, run_at, next_retry_at, meta, input) of the posts that have not begun; ``channels``: only of these."""
        c = jobs.c
        mine: list[Any] = [text(POSTS), c.task == PUBLISH, c.status == "queued", c.tenant == tenant]
        if channels:
            mine.append(c.queue.in_(channels))
        query = select(c.id, c.queue, c.key, c.due_at, c.run_at, c.next_retry_at, c.meta, c.input).where(*mine)
        return list(connection.execute(query.order_by(c.id)))

    def planned_by_clock(self, connection: Connection, above: int, limit: int) -> list[Any]:
        """(id, tenant, run_at, meta) of posts that wait for their first run, by id, at most so many above one."""
        c = jobs.c
        mine: list[Any] = [
            text(POSTS),
            c.task == PUBLISH,
            c.status == "queued",
            c.due_at.is_not(None),
            c.next_retry_at.is_(None),
        ]
        query = select(c.id, c.tenant, c.run_at, c.due_at, c.meta).where(*mine, c.id > above, c.due_at == c.run_at)
        return list(connection.execute(query.order_by(c.id).limit(limit)))

    def retime(self, connection: Connection, job: int, was: datetime, at: datetime, meta: Mapping[str, Any]) -> bool:
        """Move a post that waits for its first run. False when it does not any more."""
        c = jobs.c
        there = [c.id == job, c.status == "queued", c.due_at == was]
        values = {"run_at": at, "due_at": at, "meta": dict(meta)}
        return connection.execute(update(jobs).where(*there).values(**values)).rowcount == 1

    def due(self, connection: Connection, channel: str, limit: int) -> list[int]:
        """The jobs of a channel that a claim would take now, in its order: due (inclusive), by priority, run_at, id."""
        now = self.db.now()
        ready = [jobs.c.queue == channel, jobs.c.status == "queued", jobs.c.task.in_((PUBLISH, COMMENT))]
        query = select(jobs.c.id).where(*ready, or_(jobs.c.due_at.is_(None), jobs.c.due_at <= now))
        query = query.order_by(jobs.c.priority.desc(), jobs.c.run_at, jobs.c.id).limit(limit)
        return list(connection.execute(query).scalars())

    def running(self, connection: Connection, channel: str) -> int:
        """How many of a channel's jobs run."""
        query = select(func.count()).select_from(jobs).where(jobs.c.queue == channel, jobs.c.status == "running")
        return int(connection.execute(query).scalar_one())

    # ------------------------------------------------------------------ ends that no run reports

    def published_but_failed(self, connection: Connection, limit: int = 100) -> list[int]:
        """Failed and cancelled jobs whose publication is there: their last run was lost or stopped between the answer and its end."""
        p, d = publications.c, jobs_done.c
        mine = [d.id == p.job_id, p.state == State.PUBLISHED.value]
        failed = select(d.id).where(*mine, d.status == Status.FAILED.value).order_by(d.id).limit(limit)
        out = list(connection.execute(failed).scalars())
        # few of a job's table are publications: they are looked for among those of late
        since = self.db.present(connection) - RECENT
        cancelled = [*mine, d.status == Status.CANCELLED.value, p.updated_at >= since]
        out += connection.execute(select(d.id).where(*cancelled).order_by(d.id).limit(limit)).scalars()
        return sorted(out)

    def untold(self, connection: Connection, told: str, limit: int = 100) -> list[tuple[int, str, bool]]:
        """(id, channel, was it cancelled) of ended jobs of which nobody knows whether they were published, and nobody has been told.

        They are marked.
        """
        p, d = publications.c, jobs_done.c
        ended = d.status.in_([Status.FAILED.value, Status.CANCELLED.value])
        mine = [d.id == p.job_id, ended, p.state == State.SENDING.value, p.holder != told]
        rows = connection.execute(select(d.id, p.channel, d.status).where(*mine).order_by(d.id).limit(limit)).all()
        if rows:
            connection.execute(update(publications).where(p.job_id.in_([r[0] for r in rows])).values(holder=told))
        return [(r[0], r[1], r[2] == Status.CANCELLED.value) for r in rows]

    def paused_by_us(self, connection: Connection) -> list[str]:
        """Channels that publishing has paused."""
        q = queues.c
        return list(
            connection.execute(select(q.name).where(q.paused_at.is_not(None), q.paused_by == "publishing")).scalars()
        )

    def token_ends(self, connection: Connection, channel: str, at: datetime | None) -> None:
        """Remember when the access of a channel ends; None: it does not, or nobody says."""
        s, key = system_state, f"{ACCESS_ENDS}{channel}"
        if at is None:
            connection.execute(delete(s).where(s.c.key == key))
            return
        values = {"value": at.isoformat(), "updated_at": self.db.present(connection)}
        made = self._insert_into(s).values(key=key, **values)
        connection.execute(made.on_conflict_do_update(index_elements=[s.c.key], set_=values))

    def declarations(self, connection: Connection) -> dict[str, tuple[tuple[str, ...], datetime]]:
        """By channel, the marks of its definitions as code declared them (``channel.declared_by``), and when the one that counts was."""
        s = system_state.c
        query = select(s.key, s.value, s.updated_at).where(s.key >= DECLARED, s.key < DECLARED + "\U0010ffff")
        return {
            row.key.removeprefix(DECLARED): (_order(row.value), row.updated_at) for row in connection.execute(query)
        }

    def declaration(self, connection: Connection, channel: str) -> tuple[tuple[str, ...], datetime | None]:
        """The same of one channel, whose row stays locked; empty where nobody has declared it."""
        s = system_state.c
        query = select(s.value, s.updated_at).where(s.key == f"{DECLARED}{channel}")
        row = connection.execute(query.with_for_update()).first()
        return ((), None) if row is None else (_order(row.value), row.updated_at)

    def declare(self, connection: Connection, channel: str, order: tuple[str, ...]) -> None:
        """Remember what code declares of a channel."""
        s = system_state
        values = {"value": json.dumps({"order": order}), "updated_at": self.db.present(connection)}
        made = self._insert_into(s).values(key=f"{DECLARED}{channel}", **values)
        connection.execute(made.on_conflict_do_update(index_elements=[s.c.key], set_=values))

    def mark_told(self, connection: Connection, job: int, holder: str, told: str) -> None:
        """People were told that nobody knows; the duty need not do it again."""
        p = publications.c
        connection.execute(update(publications).where(p.job_id == job, p.holder == holder).values(holder=told))

    def settle_remote(self, connection: Connection, ident: int) -> None:
        """Put what is known of a publication on its (queued) job before that is archived."""
        p = publications.c
        remote = select(p.remote_id).where(p.job_id == ident).scalar_subquery()
        values = {"remote_id": func.coalesce(remote, jobs.c.remote_id)}
        connection.execute(update(jobs).where(jobs.c.id == ident).values(**values))

    # ------------------------------------------------------------------ what is set on queues

    def set_by_us(
        self, connection: Connection, channel: str, lock: bool = False
    ) -> tuple[int | None, Rate | None]:  # fmt: skip
        """(limit, rate) that publishing has set on the channel's queue last; None for what it never has."""
        c = publication_channels.c
        query = select(c.set_limit, c.set_rate_count, c.set_rate_seconds).where(c.channel == channel)
        row = connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            return None, None
        rate = None if row.set_rate_count is None else Rate(row.set_rate_count, row.set_rate_seconds)
        return row.set_limit, rate

    def remember_set(self, connection: Connection, channel: str, limit: int | None, rate: Rate | None) -> None:
        """Remember what publishing has set on the channel's queue."""
        values = {
            "set_limit": limit, "set_rate_count": rate and rate.count, "set_rate_seconds": rate and rate.seconds,
            "updated_at": self.db.present(connection),
        }  # fmt: skip
        fresh = self._insert_into(publication_channels).values(channel=channel, failures=0, trips=0, **values)
        connection.execute(fresh.on_conflict_do_update(index_elements=[publication_channels.c.channel], set_=values))

    # ------------------------------------------------------------------ the circuit breaker

    def fare(self, connection: Connection, channel: str, lock: bool = False) -> Fare:
        """How the channel fares. ``lock``: where it was held, nobody else is told before this transaction ends."""
        c = publication_channels.c
        query = select(c.failures, c.trips).where(c.channel == channel)
        row = connection.execute(query).first()
        if row is not None and lock and row.trips:
            row = connection.execute(query.with_for_update()).first()
        return Fare() if row is None else Fare(row.failures, row.trips)

    def failed(self, connection: Connection, channel: str) -> Fare:
        """Count one more failure in a row. Returns how it fares now."""
        c, now = publication_channels.c, self.db.present(connection)
        fresh = self._insert_into(publication_channels).values(channel=channel, failures=1, trips=0, updated_at=now)
        more = {"failures": c.failures + 1, "updated_at": now}
        connection.execute(fresh.on_conflict_do_update(index_elements=[c.channel], set_=more))
        return self.fare(connection, channel)

    def away(self, connection: Connection, channel: str, failures: int) -> Fare:
        """Count one more hold in a row in front of another side that takes nothing: at least so many failures. Returns how it fares now."""
        c, now = publication_channels.c, self.db.present(connection)
        fresh = self._insert_into(publication_channels).values(
            channel=channel, failures=failures, trips=1, updated_at=now
        )
        least = case((c.failures < failures, failures), else_=c.failures)
        more = {"failures": least, "trips": c.trips + 1, "updated_at": now}
        connection.execute(fresh.on_conflict_do_update(index_elements=[c.channel], set_=more))
        return self.fare(connection, channel)

    def went_through(self, connection: Connection, channel: str, but: int, since: datetime) -> bool:
        """Was another post of the channel published since an instant?"""
        p = publications.c
        others = [p.state == State.PUBLISHED.value, p.channel == channel, p.job_id != but, p.updated_at >= since]
        return connection.execute(select(p.job_id).where(*others).limit(1)).first() is not None

    def tripped(self, connection: Connection, channel: str) -> None:
        """Count one more hold in a row."""
        c = publication_channels.c
        connection.execute(update(publication_channels).where(c.channel == channel).values(trips=c.trips + 1))

    def well(self, connection: Connection, channel: str) -> Fare:
        """Something went well: the count begins again. Returns how it fared before."""
        before, c = self.fare(connection, channel), publication_channels.c
        if before != Fare():
            now = self.db.present(connection)
            connection.execute(
                update(publication_channels).where(c.channel == channel).values(failures=0, trips=0, updated_at=now)
            )
        return before


def _order(value: str) -> tuple[str, ...]:
    return tuple(json.loads(value).get("order", ()))


def _conditions(table: Any, f: PublicationFilter) -> list[Any]:
    c = table.c
    out: list[Any] = [c.task == TASKS[f.type]] if f.type is not None else []
    for column, value in ((c.tenant, f.tenant), (c.queue, f.channel), (c.key, f.key), (c.parent_id, f.parent_id)):
        if value is not None:
            out.append(column == value)
    if f.statuses:
        out.append(c.status.in_([str(s) for s in f.statuses]))
    if f.ids:
        out.append(c.id.in_(f.ids))
    # while it waits for a retry, that is when it runs
    moment = func.coalesce(c.due_at, c.run_at) if "due_at" in c else c.run_at
    if f.run_from is not None:
        out.append(moment >= f.run_from)
    if f.run_until is not None:
        out.append(moment < f.run_until)
    if f.remote_id is not None:
        p = publications.c
        known = select(p.job_id).where(p.job_id == c.id, p.remote_id == f.remote_id)
        out.append(or_(c.remote_id == f.remote_id, known.exists()))
    return out

"""Counting jobs for people: what a bulk act would touch, what waits and for whom, which leases have lapsed.

Nothing decides by these numbers. Readers never lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, func, literal, select, text, union_all

from duly.jobs.job import ENDED, LIVE, Status
from duly.jobs.read import JobFilter, conditions
from duly.jobs.tables import DUE, READY, RUNNING, jobs, jobs_done
from duly.storage.database import Database


@dataclass(frozen=True, slots=True)
class Bunch:
    """Jobs that have queue, task and status in common."""

    queue: str
    task: str
    status: Status
    count: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Jobs of one queue and task that could run now; ``oldest`` is the earliest instant one of them was planned for."""

    queue: str
    task: str
    count: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Running jobs whose lease has ended longer ago than a pass of the rescue takes."""

    count: int
    oldest: datetime | None


def bunches(connection: Connection, f: JobFilter) -> list[Bunch]:
    """The jobs that fit a filter, counted by queue, task and status; the largest bunch first."""
    out = []
    for table, states in ((jobs, LIVE), (jobs_done, ENDED)):
        if f.status and not set(f.status) & set(states):
            continue
        c: Any = table.c
        query = select(c.queue, c.task, c.status, func.count()).where(*conditions(table, f))
        out += [
            Bunch(queue, task, Status(status), n)
            for queue, task, status, n in connection.execute(query.group_by(c.queue, c.task, c.status))
        ]
    return sorted(out, key=lambda b: (-b.count, b.queue, b.task, b.status))


def waiting(connection: Connection, now: datetime) -> list[Waiting]:
    """What could run now, by queue and task: ready, or due and waiting for a worker to notice."""
    c = jobs.c
    query = (
        select(c.queue, c.task, func.count(), func.min(c.run_at))
        .where(c.status == "queued", c.due_at.is_(None) | (c.due_at <= now))
        .group_by(c.queue, c.task)
        .order_by(c.queue, c.task)
    )
    return [Waiting(*row) for row in connection.execute(query)]


def lapsed(connection: Connection, before: datetime) -> Lapsed:
    """Running jobs whose lease ended before an instant."""
    query = select(func.count(), func.min(jobs.c.lease_until)).where(
        jobs.c.status == "running", jobs.c.lease_until < before
    )
    return Lapsed(*connection.execute(query).one())


# ---------------------------------------------------------------------- for those who look all the time

#: The most queues, and priorities of one queue, that are told apart.
HOPS = 500
#: For what no index counts queue by queue: the most rows that are read, of all queues together.
TOGETHER = 50_000


Counted = Literal["ready", "later", "running"]


@dataclass(frozen=True, slots=True)
class Depth:
    """What stands in one queue."""

    queue: str
    #: Could be claimed now, if nothing holds the queue.
    ready: int = 0
    #: Not due yet, retries included.
    later: int = 0
    running: int = 0
    #: The earliest instant that one of the ready was planned for.
    oldest: datetime | None = None
    #: Which of the three were not counted to the end: there are at least so many.
    at_least: frozenset[Counted] = frozenset()


def altogether(stands: Sequence[Depth]) -> Depth:
    """What stands in all of them; ``queue`` is the one with the oldest, or empty where nothing is ready."""
    first = min((d for d in stands if d.oldest is not None), key=lambda d: (d.oldest, d.queue), default=Depth(""))
    return Depth(
        first.queue, sum(d.ready for d in stands), sum(d.later for d in stands), sum(d.running for d in stands), first.oldest,
        frozenset().union(*(d.at_least for d in stands)),
    )  # fmt: skip


def depths(
    connection: Connection, now: datetime, tenant: str | None = None, queue: str | None = None, cap: int = 10_000, together: int = TOGETHER
) -> list[Depth]:  # fmt: skip
    """What stands in each queue, by name. However deep a backlog is, no more than ``cap`` ready rows of a queue are read, and no more than
    ``together`` of those that wait or run.

    For the backlog of one tenant, rows of others that stand before it are passed by.
    """
    c: Any = jobs.c
    mine = [*([c.tenant == tenant] if tenant is not None else []), *([c.queue == queue] if queue is not None else [])]
    ready, oldest = _ready(connection, mine, cap)
    due = [text(DUE), c.due_at <= now, *mine]
    promoted = select(c.queue, c.run_at).where(*due).order_by(c.due_at).limit(together).subquery()
    found = 0
    for name, n, at in connection.execute(
        select(promoted.c.queue, func.count(), func.min(promoted.c.run_at)).group_by(promoted.c.queue)
    ):
        found += n
        ready[name] = ready.get(name, 0) + n
        oldest[name] = min(at, oldest.get(name, at))
    later = _by_queue(connection, [text(DUE), c.due_at > now, *mine], together)
    running = _by_queue(connection, [text(RUNNING), *mine], together)
    cut: dict[Counted, bool] = {"later": sum(later.values()) >= together, "running": sum(running.values()) >= together}
    return [
        Depth(
            n, min(ready.get(n, 0), cap), later.get(n, 0), running.get(n, 0), oldest.get(n),
            frozenset([kind for kind, is_so in {**cut, "ready": ready.get(n, 0) >= cap or found >= together}.items() if is_so]),
        )
        for n in sorted({*ready, *later, *running})
    ]  # fmt: skip


def _by_queue(connection: Connection, where: list[Any], most: int) -> dict[str, int]:
    some = select(jobs.c.queue).where(*where).limit(most).subquery()
    rows = connection.execute(select(some.c.queue, func.count()).group_by(some.c.queue))
    return {row[0]: row[1] for row in rows}


def _ready(connection: Connection, mine: list[Any], cap: int) -> tuple[dict[str, int], dict[str, datetime]]:
    """Hops along the index of claims, from queue to queue, and from priority to priority for the oldest of each."""
    c: Any = jobs.c
    ready = [text(READY), *mine]
    counted: dict[str, int] = {}
    oldest: dict[str, datetime] = {}
    name, priority = "", None
    for _ in range(HOPS):
        first = select(c.queue).where(*ready, c.queue > name).order_by(c.queue, c.priority.desc()).limit(1)
        found = connection.execute(first).scalar()
        if found is None:
            break
        name, priority = found, None
        its = [*ready, c.queue == name]
        some = select(c.id).where(*its).limit(cap).subquery()
        counted[name] = connection.execute(select(func.count()).select_from(some)).scalar_one()
        for _ in range(HOPS):
            lower: list[Any] = [] if priority is None else [c.priority < priority]
            query = (
                select(c.priority, c.run_at).where(*its, *lower).order_by(c.priority.desc(), c.run_at, c.id).limit(1)
            )
            row = connection.execute(query).first()
            if row is None:
                break
            priority = row.priority
            oldest[name] = min(row.run_at, oldest.get(name, row.run_at))
    return counted, oldest


@dataclass(frozen=True, slots=True)
class Stretch:
    """What ended within a stretch of time."""

    #: Its beginning.
    start: datetime
    #: By status, each counted as far as a cap.
    ended: dict[str, int]
    #: Seconds from the instant a job was due (made or planned for, whichever was later) to its start, in ascending order: a sample of those
    #: that needed one attempt.
    waits: tuple[float, ...]

    def wait(self, share: float) -> float | None:
        """The delay that this share of the sample does not exceed; None without one."""
        return quantile(self.waits, share)


def quantile(ascending: Sequence[float], share: float) -> float | None:
    """The value that this share of them does not exceed; None where there is none."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))] if ascending else None


def pace(
    db: Database, connection: Connection, end: datetime, every: timedelta, count: int, tenant: str | None = None, cap: int = 5_000,
    sample: int = 60,
) -> list[Stretch]:  # fmt: skip
    """What ended in the ``count`` stretches up to ``end``, the earliest first. An end belongs to the stretch that it closes.

    A busy system costs no more than a quiet one: of each stretch ``cap`` rows are counted, and ``sample`` looked at for their delays.
    """
    if not db.is_sqlite:
        # the planner takes rows for evenly spread, and would read the whole table for a late stretch
        connection.execute(text("SELECT set_config('enable_seqscan', 'off', true)"))
    starts = [end - every * (n + 1) for n in reversed(range(count))]
    c: Any = jobs_done.c
    mine = [c.tenant == tenant] if tenant is not None else []
    counts, waits = [], []
    for n, start in enumerate(starts):
        within = [c.finished_at > start, c.finished_at <= start + every, *mine]
        some = select(c.status).where(*within).limit(cap).subquery()
        counts.append(select(literal(n).label("n"), some.c.status, func.count().label("many")).group_by(some.c.status))
        taken = [*within, c.attempts == 1, c.started_at.is_not(None)]
        few = select(c.run_at, c.created_at, c.started_at).where(*taken).limit(sample).subquery()
        waits.append(select(literal(n).label("n"), few.c.run_at, few.c.created_at, few.c.started_at))
    ended: list[dict[str, int]] = [{} for _ in starts]
    for n, status, many in connection.execute(union_all(*counts)):
        ended[n][str(status)] = many
    delays: list[list[float]] = [[] for _ in starts]
    for n, run_at, created_at, started_at in connection.execute(union_all(*waits)):
        delays[n].append(max(0.0, (started_at - max(run_at, created_at)).total_seconds()))
    return [Stretch(start, ended[n], tuple(sorted(delays[n]))) for n, start in enumerate(starts)]

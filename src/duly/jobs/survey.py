"""Counting jobs for people: what a bulk act would touch, what waits and for whom.

Nothing decides by these numbers. Readers never lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, func, literal, select, union_all

from duly.jobs.filter import JobFilter, conditions
from duly.jobs.job import ENDED, LIVE, Status
from duly.jobs.tables import DUE, READY, RUNNING, jobs, jobs_done
from duly.storage.qualified import text
from duly.storage.rows import by_index


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


# ---------------------------------------------------------------------- for those who look all the time

#: Of a backlog that is deeper than it is read: the queues that are counted, the priorities of one that are told apart, and the queues that are named.
HOPS, NAMED = 500, 10_000
#: The most rows that are read of what is ready, and of what is for later, of all queues together.
TOGETHER = 100_000

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
    """What stands in each queue, by name: exactly, as long as no more than ``together`` jobs are ready and no more are for later.

    Of a deeper backlog ``cap`` ready jobs of a queue are counted, and each queue is named. Of deeper plans only ``together`` jobs are looked at:
    then ``later`` is in each ``at_least``, and a queue may be missing whose jobs are all for later. For the backlog of one tenant, rows of others
    that stand before it are passed by.
    """
    c: Any = jobs.c
    mine = [*([c.tenant == tenant] if tenant is not None else []), *([c.queue == queue] if queue is not None else [])]
    found = _ready(connection, mine, cap, together)
    due, due_cut = _by_queue(connection, [text(DUE), c.due_at <= now, *mine], together)
    later, later_cut = _by_queue(connection, [text(DUE), c.due_at > now, *mine], together)
    running, running_cut = _by_queue(connection, [text(RUNNING), *mine], together)
    cut = {"ready": due_cut, "later": later_cut, "running": running_cut}
    out = []
    for name in sorted({*found, *due, *later, *running}):
        stands, promoted = found.get(name, _Stands()), due.get(name, _Stands())
        oldest = min((at for at in (stands.oldest, promoted.oldest) if at is not None), default=None)
        kinds: list[Counted] = ["ready", "later", "running"]
        at_least = frozenset(kind for kind in kinds if cut[kind] or (kind == "ready" and stands.is_more))
        out.append(
            Depth(name, stands.count + promoted.count, later.get(name, _Stands()).count, running.get(name, _Stands()).count, oldest, at_least)
        )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class _Stands:
    count: int = 0
    oldest: datetime | None = None
    is_more: bool = False


def _by_queue(connection: Connection, where: list[Any], most: int) -> tuple[dict[str, _Stands], bool]:
    """(counts by queue, are there more rows than were looked at?)"""
    some = select(jobs.c.queue, jobs.c.run_at).where(*where).limit(most).subquery()
    rows = connection.execute(select(some.c.queue, func.count(), func.min(some.c.run_at)).group_by(some.c.queue))
    found = {name: _Stands(count, oldest) for name, count, oldest in rows}
    return found, sum(one.count for one in found.values()) >= most


def _ready(connection: Connection, mine: list[Any], cap: int, together: int) -> dict[str, _Stands]:
    """All of it in one look; where that is cut, hops along the index of claims, from queue to queue and from priority to priority."""
    found, is_cut = _by_queue(connection, [text(READY), *mine], together)
    if not is_cut:
        return found
    c: Any = jobs.c
    names = _names(connection, [text(READY), *mine])
    out = {name: _Stands(1, None, True) for name in names[HOPS:]}
    for name in names[:HOPS]:
        its = [text(READY), *mine, c.queue == name]
        some = select(c.id).where(*its).limit(cap).subquery()
        count = connection.execute(select(func.count()).select_from(some)).scalar_one()
        oldest, priority = None, None
        for _ in range(HOPS):
            lower: list[Any] = [] if priority is None else [c.priority < priority]
            query = (
                select(c.priority, c.run_at).where(*its, *lower).order_by(c.priority.desc(), c.run_at, c.id).limit(1)
            )
            row = connection.execute(query).first()
            if row is None:
                break
            priority = row.priority
            oldest = min(row.run_at, oldest or row.run_at)
        out[name] = _Stands(count, oldest, count >= cap)
    return out


def standing(connection: Connection, tenant: str | None, most: int) -> list[str]:
    """Queues in which something stands, by name. Of what is for later, and of what runs, ``most`` jobs are looked at; for one tenant, the
    newest ``most`` live jobs."""
    found: set[str] = set()
    if tenant is None:
        found.update(_names(connection, [text(READY)]))
        looks = [select(jobs.c.queue).where(text(state)).limit(most).subquery() for state in (DUE, RUNNING)]
    else:
        newest = select(jobs.c.queue, jobs.c.tenant).order_by(jobs.c.id.desc()).limit(most).subquery()
        looks = [select(newest.c.queue).where(newest.c.tenant == tenant).subquery()]
    for some in looks:
        found.update(connection.execute(select(some.c.queue).distinct()).scalars())
    return sorted(found)


def _names(connection: Connection, where: list[Any]) -> list[str]:
    """Queues with such rows, by name, each found by one look into the index."""
    name = jobs.c.queue
    hops = select(select(func.min(name)).where(*where).scalar_subquery().label("queue")).cte("hops", recursive=True)
    behind = select(func.min(name)).where(*where, name > hops.c.queue).scalar_subquery()
    hops = hops.union_all(select(behind).where(hops.c.queue.is_not(None)))
    rows = connection.execute(select(hops.c.queue).where(hops.c.queue.is_not(None)).limit(NAMED))
    return sorted(rows.scalars())


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
    connection: Connection, end: datetime, every: timedelta, count: int, tenant: str | None = None, cap: int = 5_000,
    sample: int = 60,
) -> list[Stretch]:  # fmt: skip
    """What ended in the ``count`` stretches up to ``end``, the earliest first. An end belongs to the stretch that it closes.

    A busy system costs no more than a quiet one: of each stretch ``cap`` rows are counted, and ``sample`` looked at for their delays.
    """
    by_index(connection)  # or a late stretch is looked for in the whole table
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

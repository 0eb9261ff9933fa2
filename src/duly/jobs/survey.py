"""Counting jobs for people: what a bulk act would touch, what waits and for whom, which leases have lapsed.

Nothing decides by these numbers. Readers never lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from duly.jobs.job import ENDED, LIVE, Status
from duly.jobs.read import JobFilter, conditions
from duly.jobs.tables import jobs, jobs_done


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

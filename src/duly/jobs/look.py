"""Looking back through the jobs by filter, newest first, for as long as somebody waits.

What an index answers is answered whole: a job's number, parent or key, what failed, what was cancelled, few rows of a time or of a class of errors.
Anything else is looked for in rows, from the newest backwards, in growing stretches of ids. A look that has taken its time stops between two
stretches and says how far it came, so that a page costs the same over a million jobs as over a hundred million (ADR 0033). Readers never lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Select, Table, func, select

from duly.jobs.filter import JobFilter, conditions, done_rows, live_rows, to_job
from duly.jobs.job import ENDED, LIVE, Job, Status
from duly.jobs.tables import LONGEST_CLASS, error_class, jobs, jobs_done
from duly.kernel.payload import MOST_ID

#: Rows of the first stretch; each is so many times as long as the one before, up to the longest.
FIRST, GROWTH, LONGEST = 5_000, 4, 40_000
#: A time or a class of errors that no more rows have than these is answered by its index.
FEW = 2_000
#: By so much at most the clocks differ by which jobs are made and ended.
SLACK = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Look:
    """What was found, newest first."""

    jobs: list[Job]
    #: Go on below this id; None: there is nothing further back.
    below: int | None
    #: Did it stop for want of time? Then there was room for more jobs, and maybe there is none below.
    is_cut: bool = False


@dataclass(slots=True)
class Stream:
    """Jobs of one table, and of one status where its index is used.

    ``base``: conditions that an index answers in order of id. ``rest``: those for which rows are read.
    """

    table: Table
    rows: Select[Any]
    base: list[Any]
    rest: list[Any] = field(default_factory=list)

    def floor(self, connection: Connection, floor: int, top: int, rows: int) -> int:
        """An id as low as ``floor``, or so much higher that no more rows than these are read from it on and below ``top``."""
        if not self.rest:
            return floor
        c = self.table.c
        if self.base:  # such rows lie apart from each other, and take longer
            rows = max(rows // 4, 1)
        query = select(c.id).where(*self.base, c.id < top, c.id >= floor).order_by(c.id.desc()).offset(rows).limit(1)
        following = connection.execute(query).scalar()
        return floor if following is None else int(following) + 1

    def within(self, floor: int, top: int) -> list[Any]:
        c = self.table.c
        return [*self.base, *self.rest, c.id < top, *([c.id >= floor] if floor else [])]


def look(
    connection: Connection, f: JobFilter, limit: int, below: int | None = None, seconds: float | None = None
) -> Look:
    """Up to ``limit`` jobs, newest first. ``below``: only ids below this one. ``seconds``: when to stop; None: never."""
    found: dict[int, Any] = {}
    floor = 0
    for parts, floor, top in _stretches(connection, f, below, seconds):
        for part in parts:  # live jobs first: one that ends between the two is found in the second
            c = part.table.c
            query = part.rows.where(*part.within(floor, top)).order_by(c.id.desc()).limit(limit + 1)
            found |= {row.id: row for row in connection.execute(query)}
        if len(found) > limit:
            break
    newest = [to_job(found[ident]) for ident in sorted(found, reverse=True)[:limit]]
    if len(found) > limit:
        return Look(newest, newest[-1].id)
    return Look(newest, floor or None, is_cut=floor > 0)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs; ``at_least``: there may be more."""

    count: int
    at_least: bool


def tally(connection: Connection, f: JobFilter, cap: int, seconds: float | None = None) -> Tally:
    """How many jobs fit, counted as far as ``cap``, and for no longer than ``seconds``."""
    total, floor = 0, 0
    for parts, floor, top in _stretches(connection, f, None, seconds):
        for part in parts:
            some = select(part.table.c.id).where(*part.within(floor, top)).limit(cap - total).subquery()
            total += connection.execute(select(func.count()).select_from(some)).scalar_one()
            if total >= cap:
                return Tally(cap, at_least=True)
    return Tally(total, at_least=floor > 0)


def _stretches(
    connection: Connection, f: JobFilter, below: int | None, seconds: float | None
) -> Iterator[tuple[list[Stream], int, int]]:
    """(what to look in, from this id on, below that one), until nothing is left (the floor is 0) or the time is over."""
    begun = time.monotonic()
    parts = streams(connection, f)
    top, rows = min(below or MOST_ID, MOST_ID), FIRST
    if f.before is not None and any(part.rest for part in parts):
        top = min(top, max(_made_before(connection, part.table, f, top) for part in parts))
    while parts:
        floor = 0
        for part in parts:
            floor = part.floor(connection, floor, top, rows)
        yield parts, floor, top
        if not floor or (seconds is not None and time.monotonic() - begun >= seconds):
            return
        top, rows = floor, min(rows * GROWTH, LONGEST)


def streams(connection: Connection, f: JobFilter) -> list[Stream]:
    """Where jobs that fit may be."""
    wanted = set(f.status or Status)
    out = []
    if wanted & set(LIVE):
        out.append(_split(jobs, live_rows(), f))
    ended = {one for one in ENDED if one in wanted and not (f.error is not None and one is Status.SUCCEEDED)}
    if not ended:
        return out
    if Status.SUCCEEDED in ended:
        filters = [replace(f, status=tuple(ended) if f.status else ())]
    else:
        filters = [replace(f, status=(one,)) for one in sorted(ended)]
    for one in filters:
        part = _split(jobs_done, done_rows(), one)
        narrow = _few(connection, one) if part.rest else None
        if narrow is not None:
            part.base, part.rest = [*part.base, *part.rest, jobs_done.c.id.in_(narrow)], []
        out.append(part)
    return out


def _split(table: Table, rows: Select[Any], f: JobFilter) -> Stream:
    """A stream, with what an index of the table answers set apart."""
    every = conditions(table, f)
    if f.ids or f.parent_id is not None or (f.key is not None and table is jobs_done):
        return Stream(table, rows, every)
    if f.status in ((Status.FAILED,), (Status.CANCELLED,)):
        base = conditions(table, JobFilter(status=f.status))
        return Stream(table, rows, base, conditions(table, replace(f, status=())))
    return Stream(table, rows, [], every)


def _few(connection: Connection, f: JobFilter) -> list[int] | None:
    """The ids of ended jobs of a time, or of a class of errors, where these are few; else None."""
    c: Any = jobs_done.c
    among = conditions(jobs_done, JobFilter(since=f.since, before=f.before))
    if f.error is not None and f.status == (Status.FAILED,):
        among += [*conditions(jobs_done, JobFilter(status=f.status)), error_class(c.error) == f.error[:LONGEST_CLASS]]
    if not among:
        return None
    query = select(c.id).where(*among).order_by(c.finished_at.desc()).limit(FEW + 1)  # by its index
    found = list(connection.execute(query).scalars())
    return found if len(found) <= FEW else None


def _made_before(connection: Connection, table: Table, f: JobFilter, top: int) -> int:
    """An id below which all jobs of a table are that were made before the filter's end: none of the others can have ended by then.

    Numbers are given in the order in which jobs are made, by clocks that differ by no more than ``SLACK``.
    """
    c = table.c
    assert f.before is not None
    end = f.before + SLACK
    first = connection.execute(select(c.id, c.created_at).order_by(c.id).limit(1)).first()
    if first is None or first.id >= top or first.created_at >= end:
        return 0
    low, high = first.id, min(top, connection.execute(select(func.max(c.id))).scalar_one() + 1)
    while high - low > FIRST // 10:
        middle = (low + high) // 2
        nearest = select(c.created_at).where(c.id >= middle, c.id < high).order_by(c.id).limit(1)
        at = connection.execute(nearest).scalar()
        if at is None or at >= end:
            high = middle
        else:
            low = middle
    return int(high)

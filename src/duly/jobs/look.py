"""Looking back through the jobs by filter, newest first, for as long as somebody waits.

What an index answers is answered whole: a job's number, parent or key, what runs, failed or was cancelled, few rows of a time or of a class of errors.
Anything else is looked for in rows, from the newest backwards, in growing stretches of ids. A look that has taken its time stops between two
stretches and says how far it came, so that a page costs the same over a million jobs as over a hundred million (ADR 0033). Readers never lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Select, Table, func, select

from duly.jobs.filter import JobFilter, conditions, done_rows, live_rows, to_job
from duly.jobs.job import ENDED, LIVE, Job, Status
from duly.jobs.tables import NO_CLASS, jobs, jobs_done
from duly.kernel.payload import MOST_ID
from duly.storage.rows import by_index

T = TypeVar("T")
S = TypeVar("S")
#: Rows of the first stretch; each is so many times as long as the one before, up to the longest.
FIRST, GROWTH, LONGEST = 5_000, 4, 40_000
#: A time or a class of errors that no more rows have than these is answered by its index.
FEW = 2_000
#: By so much at most the clocks differ by which jobs are made and ended.
SLACK = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What a look has found, newest first."""

    rows: list[T]
    #: Go on below this id; None: there is nothing further back.
    below: int | None
    #: Did it stop for want of time? Then there was room for more, and maybe there is none below.
    is_cut: bool = False
    #: Of one that stopped: when the oldest job was made that it looked at.
    back_to: datetime | None = None

    def told(self, show: Callable[[list[T]], list[S]]) -> Found[S]:
        """The same with its rows as somebody else shows them."""
        return Found(show(self.rows), self.below, self.is_cut, self.back_to)


@dataclass(slots=True)
class Stream:
    """Jobs of one table, and of one status where its index is used.

    ``base``: conditions that an index answers. ``rest``: those for which rows are read, in order of id.
    """

    table: Table
    rows: Select[Any]
    base: list[Any]
    rest: list[Any] = field(default_factory=list)

    def floor(self, connection: Connection, floor: int, top: int, rows: int) -> int:
        """An id as low as ``floor``, or so much higher that no more rows than these are read from it on up to ``top``."""
        if not self.rest:
            return floor
        c = self.table.c
        if self.base:  # such rows lie apart from each other, and take longer
            rows = max(rows // 4, 1)
        query = select(c.id).where(*self.base, c.id <= top, c.id >= floor).order_by(c.id.desc()).offset(rows).limit(1)
        following = connection.execute(query).scalar()
        return floor if following is None else int(following) + 1

    def within(self, floor: int, top: int) -> list[Any]:
        c = self.table.c
        return [*self.base, *self.rest, c.id <= top, *([c.id >= floor] if floor else [])]


def look(
    connection: Connection, f: JobFilter, limit: int, below: int | None = None, seconds: float | None = None
) -> Found[Job]:
    """Up to ``limit`` jobs, newest first. ``below``: only ids below this one. ``seconds``: when to stop; None: never.

    The connection must see one state of the database throughout (``Database.snapshot``): a job that ends meanwhile changes its table.
    """
    until = until_of(seconds)
    parts, top = _begin(connection, f, below)
    found = walk(connection, parts, limit, top, until)
    return found.told(lambda rows: [to_job(row) for row in rows])


def walk(
    connection: Connection, parts: Sequence[Stream], limit: int, top: int = MOST_ID, until: float | None = None
) -> Found[Any]:
    """Up to ``limit`` rows of these, newest first, of ids up to ``top``. ``until``: when to stop (monotonic); None: never."""
    found: dict[int, Any] = {}
    floor = 0
    for floor, highest in _stretches(connection, parts, top, until):
        for part in parts:
            c = part.table.c
            query = part.rows.where(*part.within(floor, highest)).order_by(c.id.desc()).limit(limit + 1)
            found |= {row.id: row for row in connection.execute(query)}
        if len(found) > limit:
            break
    newest = [found[ident] for ident in sorted(found, reverse=True)[:limit]]
    if len(found) > limit:
        return Found(newest, newest[-1].id)
    if not floor:
        return Found(newest, None)
    made = [_made(connection, part.table, floor) for part in parts]
    return Found(newest, floor, len(newest) < limit, min((at for at in made if at is not None), default=None))


def until_of(seconds: float | None) -> float | None:
    """When a look that begins now is to stop (monotonic); None: never."""
    return None if seconds is None else time.monotonic() + seconds


def below_of(ident: int | None) -> int:
    """The highest id of what is below this one; None: of everything."""
    return MOST_ID if ident is None else min(ident - 1, MOST_ID)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many jobs; ``at_least``: there may be more."""

    count: int
    at_least: bool


def tally(connection: Connection, f: JobFilter, cap: int, seconds: float | None = None) -> Tally:
    """How many jobs fit, counted as far as ``cap``, and for no longer than ``seconds``. The connection as for ``look``."""
    until = until_of(seconds)
    parts, top = _begin(connection, f, None)
    total, floor = 0, 0
    for floor, highest in _stretches(connection, parts, top, until):
        for part in parts:
            some = select(part.table.c.id).where(*part.within(floor, highest)).limit(cap - total).subquery()
            total += connection.execute(select(func.count()).select_from(some)).scalar_one()
            if total >= cap:
                return Tally(cap, at_least=True)
    return Tally(total, at_least=floor > 0)


def _stretches(
    connection: Connection, parts: Sequence[Stream], top: int, until: float | None
) -> Iterator[tuple[int, int]]:
    """(from this id on, up to that one), until nothing is left (the first is 0) or the time is over."""
    rows = FIRST
    while parts:
        floor = 0
        for part in parts:
            floor = part.floor(connection, floor, top, rows)
        yield floor, top
        if not floor or (until is not None and time.monotonic() >= until):
            return
        top, rows = floor - 1, min(rows * GROWTH, LONGEST)


def _begin(connection: Connection, f: JobFilter, below: int | None) -> tuple[list[Stream], int]:
    """(what to look in, from which id downwards)"""
    if not _is_exact(f):
        by_index(connection)
    parts, top = streams(connection, f), below_of(below)
    if f.before is not None and any(part.rest for part in parts):
        top = min(top, max(_made_before(connection, part.table, f, top) for part in parts))
    return parts, top


def streams(connection: Connection, f: JobFilter) -> list[Stream]:
    """Where jobs that fit may be."""
    wanted = set(f.status or Status)
    if f.error is not None:
        wanted.discard(Status.SUCCEEDED)  # has none
    out = []
    if wanted & set(LIVE):
        running = Status.QUEUED not in wanted
        out.append(_split(connection, jobs, live_rows(), replace(f, status=(Status.RUNNING,)) if running else f))
    ended = sorted(wanted & set(ENDED))
    if Status.SUCCEEDED in ended:
        out.append(_split(connection, jobs_done, done_rows(), replace(f, status=tuple(ended) if f.status else ())))
    else:
        out += [_split(connection, jobs_done, done_rows(), replace(f, status=(one,))) for one in ended]
    return out


def _is_exact(f: JobFilter) -> bool:
    """Does it name jobs so closely that any database finds them by an index, and sorts what it has found?"""
    return bool(f.ids) or f.parent_id is not None or f.key is not None


def _split(connection: Connection, table: Table, rows: Select[Any], f: JobFilter) -> Stream:
    """A stream, with what an index of the table answers set apart."""
    every = conditions(table, f)
    if _is_exact(f):
        return Stream(table, rows, every)
    few = _few(connection, table, f)
    if few is not None:
        return Stream(table, rows, [*every, table.c.id.in_(few)])
    if table is jobs_done and f.status in ((Status.FAILED,), (Status.CANCELLED,)):
        base = conditions(table, JobFilter(status=f.status))
        return Stream(table, rows, base, conditions(table, replace(f, status=()), class_by_index=False))
    if table is jobs and f.error not in (None, NO_CLASS):
        return Stream(table, rows, [jobs.c.error.is_not(None)], every)
    return Stream(table, rows, [], every)


def _few(connection: Connection, table: Table, f: JobFilter) -> list[int] | None:
    """The ids of jobs of a time, of a class of errors, or that run, where these are few; else None. Each in the order of its index."""
    c: Any = table.c
    if table is jobs:
        if f.status != (Status.RUNNING,):
            return None
        query = select(c.id).where(*conditions(jobs, JobFilter(status=f.status))).order_by(c.queue, c.lease_until)
    else:
        among = conditions(jobs_done, JobFilter(since=f.since, before=f.before))
        if f.error is not None and f.status == (Status.FAILED,):
            among += conditions(jobs_done, JobFilter(status=f.status, error=f.error))
        if not among:
            return None
        query = select(c.id).where(*among).order_by(c.finished_at.desc())
    found = list(connection.execute(query.limit(FEW + 1)).scalars())
    return found if len(found) <= FEW else None


def _made(connection: Connection, table: Table, ident: int) -> datetime | None:
    """When the first job was made that has this id or a higher one."""
    c = table.c
    found: datetime | None = connection.execute(
        select(c.created_at).where(c.id >= ident).order_by(c.id).limit(1)
    ).scalar()
    return found


def _made_before(connection: Connection, table: Table, f: JobFilter, top: int) -> int:
    """An id above which, as far as ``top``, no job of a table was made before the filter's end: none of these can have ended by then.

    Numbers are given in the order in which jobs are made, by clocks that differ by no more than ``SLACK``.
    """
    c = table.c
    assert f.before is not None
    end = f.before + SLACK
    first = connection.execute(select(c.id, c.created_at).order_by(c.id).limit(1)).first()
    if first is None or first.id > top or first.created_at >= end:
        return 0
    low, high = first.id, min(top, connection.execute(select(func.max(c.id))).scalar_one()) + 1
    while high - low > max(FIRST // 10, 1):
        middle = (low + high) // 2
        nearest = select(c.created_at).where(c.id >= middle, c.id < high).order_by(c.id).limit(1)
        at = connection.execute(nearest).scalar()
        if at is None or at >= end:
            high = middle
        else:
            low = middle
    return int(high) - 1

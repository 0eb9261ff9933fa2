"""What would a window hold? Asked before it is set: the waiting jobs, and the occurrences of schedules.

Nothing decides by it. A job counts whose moment, or the beginning of the range for one that is ready already, lies in a stretch of
the window; what other blackouts hold anyway is not taken off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol

from sqlalchemy import Connection, Select, Subquery, func, select

from duly.jobs.store import FAR
from duly.jobs.survey import depths
from duly.jobs.tables import DUE, READY, jobs
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import in_utc
from duly.kernel.windows import Calendar, Stretch, Window
from duly.storage.database import Database
from duly.storage.qualified import text

#: So many of each are named; the others are counted.
FIRST = 5
SPAN, LONGEST = timedelta(days=7), timedelta(days=400)
#: Queues of which jobs that are ready are named, and jobs that become due that are looked at: of more, a queue whose jobs are the last may be missing.
NAMED, MOST_DUE = 100, 10_000
#: Planned instants of one schedule that are looked at.
MOST_PLANNED = 10_000


class Planned(Protocol):
    """What the schedules room hands in: for each schedule its name, its scopes, and its planned instants of a range, in order.

    Called for each stretch of the window. The scopes are what its blackouts are looked up by, such as ``{"schedule:nightly", "queue:mail"}``.
    """

    def __call__(
        self, start: datetime, end: datetime, /
    ) -> Iterable[tuple[str, Collection[str], Iterable[datetime]]]: ...


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A waiting job that would be held. ``at``: its moment, or that it is ready (then the beginning of the range)."""

    id: int
    task: str
    at: datetime


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """The jobs of a queue that would be held: how many, and the first of them (of the first hundred queues)."""

    queue: str
    count: int
    first: tuple[HeldJob, ...]
    #: There may be more than ``count``: they were not counted to the end.
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class HeldSchedule:
    """The occurrences of a schedule that would be held: how many (counted up to 10,000), and the first of them."""

    schedule: str
    count: int
    first: tuple[datetime, ...]


@dataclass(frozen=True, slots=True)
class Impact:
    """What a window would hold from ``start`` until before ``end`` (aware, in UTC)."""

    start: datetime
    end: datetime
    #: When it holds.
    stretches: tuple[Stretch, ...]
    queues: tuple[HeldQueue, ...]
    schedules: tuple[HeldSchedule, ...]


def impact(
    db: Database,
    window: Window,
    start: datetime,
    end: datetime | None = None,
    planned: Planned | None = None,
) -> Impact:
    """What a window would hold between two aware instants (seven days without an ``end``, 400 at most). Raises InvalidArgument."""
    if not isinstance(window, Window):
        raise InvalidArgument("window", f"is of type {type(window).__name__}.", "Give a Window.")
    begins = in_utc(start, "start")
    ends = begins + SPAN if end is None else in_utc(end, "end")
    if not begins < ends <= begins + LONGEST:
        raise InvalidArgument("end", "is not after the start, or more than 400 days later.")
    stretches = tuple(Calendar([window]).spans(begins, ends))
    return Impact(
        begins,
        ends,
        stretches,
        db.snapshot(lambda c: tuple(_queues(c, window, begins, stretches))),
        tuple(_schedules(planned, window, stretches) if planned is not None else ()),
    )


def _queues(
    connection: Connection, window: Window, start: datetime, stretches: Sequence[Stretch]
) -> Iterable[HeldQueue]:
    kind, _, queue = window.scope.partition(":")
    if kind not in ("all", "queue", "channel") or not stretches:
        return
    mine = None if kind == "all" else queue
    counts: Counter[str] = Counter()
    more: set[str] = set()
    first: dict[str, list[HeldJob]] = {}
    if stretches[0].start <= start:  # ready jobs start at once, unless the window holds at the beginning
        for stands in depths(connection, start, queue=mine):
            if stands.ready:
                counts[stands.queue] = stands.ready
                more |= {stands.queue} if "ready" in stands.at_least else set()
        first = _first_ready(connection, start, sorted(counts)[:NAMED], mine)
    unnamed = set(counts) - set(first)
    looked = 0
    for stretch in stretches:
        rows = _due(connection, start, stretch, MOST_DUE - looked)
        looked += sum({row.queue: row.n for row in rows}.values())
        for row in rows:
            if mine is None or row.queue == mine:
                named = first.setdefault(row.queue, [])
                if row.place == 1:
                    counts[row.queue] += row.n
                if len(named) < FIRST and row.queue not in unnamed:
                    named.append(HeldJob(row.id, row.task, row.due_at))
        if looked >= MOST_DUE:
            more |= set(counts)
            break
    for name in sorted(counts):
        yield HeldQueue(name, counts[name], tuple(first.get(name, ())), name in more)


def _first_ready(
    connection: Connection, start: datetime, queues: Sequence[str], mine: str | None
) -> dict[str, list[HeldJob]]:
    """The first of the jobs of each queue that are ready at an instant, in the order of claims. ``mine``: of this queue only."""
    c: Any = jobs.c
    place: tuple[Any, ...] = c.priority.desc(), c.run_at, c.id
    columns = c.queue, c.id, c.task, c.priority, c.run_at
    # due, and no worker has noticed yet
    due = [text(DUE), c.due_at <= start, *([c.queue == mine] if mine is not None else [])]
    some = select(*columns).where(*due).order_by(c.due_at).limit(MOST_DUE).subquery()
    promoted: dict[str, list[Any]] = {}
    for row in connection.execute(_placed(some, (some.c.priority.desc(), some.c.run_at, some.c.id))):
        promoted.setdefault(row.queue, []).append(row)
    out = {}
    for name in queues:
        ready = select(*columns).where(text(READY), c.queue == name).order_by(*place).limit(FIRST)
        found = [*connection.execute(ready), *promoted.get(name, ())]
        found.sort(key=lambda row: (-row.priority, row.run_at, row.id))
        out[name] = [HeldJob(row.id, row.task, start) for row in found[:FIRST]]
    return out


def _placed(some: Subquery, order: Sequence[Any]) -> Select[Any]:
    """The first rows of each queue of these (``place`` from 1), in this order, with how many it has (``n``)."""
    one = func.row_number().over(partition_by=some.c.queue, order_by=order).label("place")
    placed = select(some, one, func.count().over(partition_by=some.c.queue).label("n")).subquery()
    return select(placed).where(placed.c.place <= FIRST).order_by(placed.c.queue, placed.c.place)


def _due(connection: Connection, start: datetime, stretch: Stretch, most: int) -> Sequence[Any]:
    """The first jobs of each queue that become due within a stretch (``place`` from 1), and how many there are of it (``n``) among the ``most`` next."""
    c: Any = jobs.c
    within = [text(DUE), c.due_at > start, c.due_at >= stretch.start, c.due_at < stretch.end, c.due_at < FAR]
    some = select(c.queue, c.id, c.task, c.due_at).where(*within).order_by(c.due_at).limit(most).subquery()
    return connection.execute(_placed(some, (some.c.due_at, some.c.id))).all()


def _schedules(planned: Planned, window: Window, stretches: Sequence[Stretch]) -> Iterable[HeldSchedule]:
    held: dict[str, list[datetime]] = {}
    for stretch in stretches:
        for name, scopes, instants in planned(stretch.start, stretch.end):
            if window.scope == "all" or window.scope in scopes:
                found = held.setdefault(name, [])
                found.extend(islice(instants, MOST_PLANNED - len(found)))
    for name, found in sorted(held.items()):
        if found:
            yield HeldSchedule(name, len(found), tuple(found[:FIRST]))

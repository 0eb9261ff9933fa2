"""What would a window hold? Asked before it is set: the waiting jobs, and the occurrences of schedules.

Nothing decides by it. A job counts whose moment, or the beginning of the range for one that is ready already, lies in a stretch of
the window; what other blackouts hold anyway is not taken off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Protocol

from sqlalchemy import Connection, bindparam, text

from duly.jobs.store import FAR
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import in_utc
from duly.kernel.windows import Calendar, Stretch, Window
from duly.storage.database import Database
from duly.storage.rows import at as instant
from duly.storage.rows import encode, relation
from duly.storage.types import Instant

#: So many of each are named; the others are counted.
FIRST = 5
SPAN, LONGEST = timedelta(days=7), timedelta(days=400)
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
    """The jobs of a queue that would be held: how many, and the first of them."""

    queue: str
    count: int
    first: tuple[HeldJob, ...]


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
        db.read(lambda c: tuple(_queues(db, c, window, begins, stretches))),
        tuple(_schedules(planned, window, stretches) if planned is not None else ()),
    )


def _queues(
    db: Database, connection: Connection, window: Window, start: datetime, stretches: Sequence[Stretch]
) -> Iterable[HeldQueue]:
    kind, _, queue = window.scope.partition(":")
    if kind not in ("all", "queue", "channel") or not stretches:
        return
    # ready jobs start at once, unless the window holds at the beginning
    ready = stretches[0].start <= start
    mine = "" if kind == "all" else "AND j.queue = :queue"
    now = instant(db.is_sqlite, "start")
    statement = text(
        f"""
        SELECT queue, id, task, at, n FROM (
          SELECT queue, id, task, at, count(*) OVER (PARTITION BY queue) AS n,
                 row_number() OVER (PARTITION BY queue ORDER BY later, priority DESC, at, id) AS place
            FROM (SELECT j.queue, j.id, j.task, j.priority, 0 AS later, {now} AS at
                    FROM jobs j WHERE :ready AND j.status = 'queued' AND (j.due_at IS NULL OR j.due_at <= {now}) {mine}
                  UNION ALL
                  SELECT j.queue, j.id, j.task, 0, 1, j.due_at
                    FROM {relation(db.is_sqlite, {"since": "timestamptz", "until": "timestamptz"})}
                    JOIN jobs j ON j.due_at >= r.since AND j.due_at < r.until
                   WHERE j.status = 'queued' AND j.due_at > {now} AND j.due_at < :far {mine}) AS held) AS counted
         WHERE place <= :first ORDER BY queue, place"""
    ).bindparams(bindparam("start", type_=Instant), bindparam("far", type_=Instant)).columns(at=Instant)  # fmt: skip
    rows = connection.execute(
        statement,
        {
            "start": start,
            "far": FAR,
            "ready": ready,
            "first": FIRST,
            "rows": encode(db.is_sqlite, ({"since": s.start, "until": s.end} for s in stretches)),
            **({"queue": queue} if kind != "all" else {}),
        },
    ).all()
    by_queue: dict[str, list[Any]] = {}
    for row in rows:
        by_queue.setdefault(row.queue, []).append(row)
    for name, found in by_queue.items():
        yield HeldQueue(name, found[0].n, tuple(HeldJob(row.id, row.task, row.at) for row in found))


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

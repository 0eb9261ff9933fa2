"""Looking at the database once, for everything that the rules are judged by. Only reads.

What is read is bounded: indexes are hopped along, windows are read in slices, and a statement that takes too long is given up. So
a deep backlog makes no look slow, and the judge harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache, cached_property
from typing import Any

from sqlalchemy import Connection, TextClause, bindparam, func, or_, select

from duly.calendars.tables import blackouts, queue_scopes
from duly.jobs.engine import Engine
from duly.jobs.tables import GATE_KEY, attempts, jobs, jobs_done, queues, system_state, workers
from duly.kernel.gate import read_gate
from duly.storage.qualified import text
from duly.storage.rows import any_row
from duly.storage.types import Instant

#: Seconds that one statement may take (PostgreSQL).
ONE = 2.0
#: The window of failures is read in so many slices, and so many rows of each.
SLICES, ROWS = 30, 5_000
#: How far back jobs that fail in a row are looked for, in seconds: two of a day.
FAR = 50 * 3600.0
#: The most queues, and priorities of one queue, that are told apart.
HOPS = 200


class Look:
    """One look at the database; what several rules ask for is read once."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self.engine, self.settings = engine, engine.settings
        self.connection = connection
        if not engine.db.memory:  # there the connection is everybody's
            # statements that are made twice a minute: to keep them compiled would cost more memory than it saves time
            connection.execution_options(compiled_cache=None)
        self._any: dict[str, bool] = {}
        if not engine.db.is_sqlite:
            # bounded in time, and by index where there is one: the planner takes rows for evenly spread, and would read the whole
            # table for the first few of a late window
            connection.execute(
                text(
                    f"SELECT set_config('statement_timeout', '{int(ONE * 1000)}', true), set_config('enable_seqscan', 'off', true)"
                )
            )
        self.now = engine.db.present(connection)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A part that may fail without the rest."""
        if self.engine.db.is_sqlite:
            yield
            return
        with self.connection.begin_nested():
            yield

    def ago(self, seconds: float) -> datetime:
        return self.now - timedelta(seconds=seconds)

    def since(self, instant: datetime) -> float:
        """Seconds from an instant to now, never negative."""
        return max(0.0, (self.now - instant).total_seconds())

    # ------------------------------------------------------------------ shared

    def any(self, table: str) -> bool:
        """Is there a row in it at all? Of a room that nobody uses, nothing is read further, and nothing is loaded."""
        found = self._any.get(table)
        if found is None:
            found = self._any[table] = any_row(self.connection, table)
        return found

    @cached_property
    def online(self) -> bool:
        return read_gate(
            self.connection.execute(select(system_state.c.value).where(system_state.c.key == GATE_KEY)).scalar()
        )

    @cached_property
    def paused(self) -> Mapping[str, Any]:
        """Queues that are paused: name → row."""
        found = select(queues.c.name, queues.c.paused_at, queues.c.paused_by, queues.c.paused_reason)
        return {row.name: row for row in self.connection.execute(found.where(queues.c.paused_at.is_not(None)))}

    @cached_property
    def held(self) -> frozenset[str]:
        """Queues that are held until an instant."""
        found = select(queues.c.name).where(queues.c.held_until > self.now)
        return frozenset(self.connection.execute(found).scalars())

    @cached_property
    def blacked_out(self) -> frozenset[str]:
        """Scopes of the blackouts that hold now."""
        c = blackouts.c
        holding = select(c.scope).where(or_(c.holds_from <= self.now, c.holds_from.is_(None)))
        return frozenset(self.connection.execute(holding).scalars())

    @cached_property
    def alive(self) -> frozenset[str]:
        """Queues that a worker serves which was heard of lately."""
        living = self.connection.execute(
            select(workers.c.queues).where(workers.c.seen_at >= self.ago(self.settings.alerts_worker))
        )
        return frozenset(name for served in living.scalars() for name in served)

    @cached_property
    def due(self) -> Mapping[str, datetime]:
        """Queues that nothing holds: since when their oldest job is due."""
        if not self.online or "all" in self.blacked_out:
            return {}
        found = self._ready()
        for queue, at in self._not_promoted():
            found[queue] = min(at, found.get(queue, at))
        return {
            queue: at
            for queue, at in found.items()
            if queue not in self.paused and queue not in self.held and self.blacked_out.isdisjoint(queue_scopes(queue))
        }

    def _ready(self) -> dict[str, datetime]:
        """Hops along the index of claims: the first job of each queue and priority, however many stand behind it."""
        c = jobs.c
        ready = [c.status == "queued", c.due_at.is_(None)]
        due_since = func.greatest if not self.engine.db.is_sqlite else func.max
        since = due_since(c.run_at, func.coalesce(c.next_retry_at, c.run_at), c.created_at, type_=Instant)
        out: dict[str, datetime] = {}
        queue = ""
        for _ in range(HOPS):
            first = select(c.queue).where(*ready, c.queue > queue).order_by(c.queue, c.priority.desc()).limit(1)
            found = self.connection.execute(first).scalar()
            if found is None:
                break
            queue, priority = found, None
            for _ in range(HOPS):
                mine = [*ready, c.queue == queue, *([] if priority is None else [c.priority < priority])]
                # a few of each: the first by plan may be a retry that became due a moment ago
                few = select(c.priority, since).where(*mine).order_by(c.priority.desc(), c.run_at, c.id).limit(20)
                rows = self.connection.execute(few).all()
                if not rows:
                    break
                priority = rows[0][0]
                oldest = min(at for its, at in rows if its == priority)
                out[queue] = min(oldest, out.get(queue, oldest))
        return out

    def _not_promoted(self) -> list[tuple[str, datetime]]:
        """Jobs whose moment has come and which no worker has made claimable yet: the first ten thousand."""
        c = jobs.c
        some = (
            select(c.queue, c.due_at)
            .where(c.status == "queued", c.due_at.is_not(None), c.due_at <= self.now)
            .order_by(c.due_at)
            .limit(10_000)
            .subquery()
        )
        return [
            (queue, at)
            for queue, at in self.connection.execute(
                select(some.c.queue, func.min(some.c.due_at)).group_by(some.c.queue)
            )
        ]

    @cached_property
    def ended(self) -> Mapping[str, tuple[int, int]]:
        """By queue: how many jobs succeeded and failed within the window. A busy window is sampled, evenly over its length."""
        each = self.settings.alerts_window / SLICES
        edges = {f"edge{n}": self.ago(n * each) for n in range(SLICES + 1)}
        rows = self.connection.execute(_window(ROWS), edges)
        return {queue: (n - int(bad), int(bad)) for queue, n, bad in rows}

    @cached_property
    def streaks(self) -> Mapping[str, int]:
        """By queue (all of them together: the empty name): how many jobs failed in a row, up to now, for longer than the window.

        A queue with one job an hour never has enough samples in a window of half an hour, and is empty again before the next one runs.
        """
        c = jobs_done.c
        newest = (
            select(c.queue, c.status, c.finished_at)
            .where(c.finished_at > self.ago(FAR), c.finished_at <= self.now, c.status.in_(("succeeded", "failed")))
            .order_by(c.finished_at.desc())
            .limit(ROWS)
        )
        found: dict[str, list[datetime]] = {}
        over = set[str]()
        for queue, status, at in self.connection.execute(newest):
            for name in {queue, ""} - over:
                if status == "failed":
                    found.setdefault(name, []).append(at)
                else:
                    over.add(name)
        window = timedelta(seconds=self.settings.alerts_window)
        return {name: len(ats) for name, ats in found.items() if ats[0] - ats[-1] >= window}

    def last_run(self, after: datetime) -> datetime | None:
        """When a job last started or ended, as far as that was after an instant."""
        c = jobs_done.c
        found: list[datetime | None] = [
            self.connection.execute(select(func.max(jobs.c.started_at)).where(jobs.c.status == "running")).scalar(),
            self.connection.execute(select(attempts.c.ended_at).order_by(attempts.c.id.desc()).limit(1)).scalar(),
        ]
        # a short stretch answers on a busy system; a longer one is asked about only when that was empty
        for begin in (self.ago(60), self.ago(self.settings.alerts_idle), after):
            some = select(c.finished_at).where(c.finished_at >= max(begin, after)).limit(ROWS).subquery()
            at = self.connection.execute(select(func.max(some.c.finished_at))).scalar()
            if at is not None:
                found.append(at)
                break
        return max((at for at in found if at is not None), default=None)


@cache
def _window(rows: int) -> TextClause:
    """How many jobs ended and failed by queue, between the instants ``edge0`` (the last) and ``edge30``. Written out: as a tree of
    thirty selects it took a megabyte in every worker."""
    parts = " UNION ALL ".join(
        f"SELECT * FROM (SELECT queue, status FROM jobs_done WHERE finished_at > :edge{n + 1} AND finished_at <= :edge{n} "
        f"AND status IN ('succeeded', 'failed') LIMIT {rows}) AS slice{n}"
        for n in range(SLICES)
    )
    counted = f"SELECT queue, count(*), sum(CASE WHEN status = 'failed' THEN 1 ELSE 0 END) FROM ({parts}) AS ended GROUP BY queue"
    return text(counted).bindparams(*(bindparam(f"edge{n}", type_=Instant) for n in range(SLICES + 1)))

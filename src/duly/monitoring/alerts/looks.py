"""Looking: what each rule is judged by, read from the database.

One small function per rule; a new rule needs one more and its name in ``LOOKS``. Only reads. A function that fails makes its own
rule unknown and no other's. What is read is bounded: indexes are hopped along, windows are read in slices, and a look that takes
too long is given up, so a deep backlog makes no look slow and the judge harms nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, case, func, literal, or_, select, text, union_all
from sqlalchemy.exc import SQLAlchemyError

from duly.audit.tables import audit_log, audit_seals
from duly.calendars.tables import blackouts
from duly.jobs.engine import Engine
from duly.jobs.survey import lapsed
from duly.jobs.tables import GATE_KEY, attempts, jobs, jobs_done, queues, system_state, workers
from duly.kernel.errors import brief
from duly.kernel.gate import read_gate
from duly.monitoring.alerts.alert import MOST_SUBJECTS, Facts, Reading, Rule, Sample
from duly.storage.types import Instant

#: Seconds that one look may take, and all of them together.
ONE, ALL = 2.0, 8.0
#: The window of failures is read in so many slices, and so many rows of each.
SLICES, ROWS = 30, 5_000
#: The most queues, and priorities of one queue, that are told apart.
HOPS = 200
#: A worker that has been silent for longer is not asked about any more: it is gone, and its jobs were rescued.
GONE = timedelta(hours=1)


def look(engine: Engine, rules: tuple[Rule, ...], connection: Connection) -> Facts:
    """What the rules are judged by, as of now. Raises DatabaseUnavailable when the database is away."""
    look = Look(engine, connection)
    begun = time.monotonic()
    readings: dict[str, Reading] = {}
    for rule in rules:
        read = LOOKS.get(rule.name)
        if read is None:
            continue
        if time.monotonic() - begun > ALL:
            readings[rule.name] = Reading.unknown("the looks before it took too long")
            continue
        try:
            with look.guarded():
                readings[rule.name] = read(look)
        except SQLAlchemyError as error:
            if engine.db.translated(error) is not error:  # it is away: nothing can be read
                raise
            readings[rule.name] = Reading.unknown(brief(error))
        except Exception as error:
            readings[rule.name] = Reading.unknown(brief(error))
    return Facts(look.now, readings)


class Look:
    """One look at the database; what several rules ask for is read once."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self.engine, self.connection, self.settings = engine, connection, engine.settings
        if not engine.db.is_sqlite:
            # bounded in time, and by index where there is one: the planner takes rows for evenly spread, and would read the whole
            # table for the first few of a late window
            connection.execute(
                text(
                    f"SELECT set_config('statement_timeout', '{int(ONE * 1000)}', true), set_config('enable_seqscan', 'off', true)"
                )
            )
        stamp = engine.db.stamp()
        self.now: datetime = stamp if stamp is not None else connection.execute(select(engine.db.now())).scalar_one()

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
            if queue not in self.paused and f"queue:{queue}" not in self.blacked_out
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
        c, each = jobs_done.c, self.settings.alerts_window / SLICES
        parts = []
        for n in range(SLICES):
            edge = self.ago(n * each)
            part = select(c.queue, c.status).where(
                c.finished_at > self.ago((n + 1) * each), c.finished_at <= edge, c.status.in_(("succeeded", "failed"))
            )
            parts.append(select(part.limit(ROWS).subquery()))
        window = union_all(*parts).subquery()
        failed = func.sum(case((window.c.status == "failed", 1), else_=0))
        counted = select(window.c.queue, func.count(), failed).group_by(window.c.queue)
        return {queue: (n - int(bad), int(bad)) for queue, n, bad in self.connection.execute(counted)}

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


# ---------------------------------------------------------------------- jobs


def jobs_idle(look: Look) -> Reading:
    """Since when nothing was done: the last run, or the moment from which there was something to do."""
    if not look.due:
        return Reading()
    queue, oldest = min(look.due.items(), key=lambda item: item[1])
    last = look.last_run(oldest)
    idle = look.since(oldest if last is None else max(last, oldest))
    return Reading.of([Sample("", idle, detail=f"the oldest waits in queue {queue}")])


def jobs_failing(look: Look) -> Reading:
    good, bad = (sum(column) for column in zip(*look.ended.values(), strict=True)) if look.ended else (0, 0)
    return _share({"": (good, bad)})


def queue_failing(look: Look) -> Reading:
    return _share(look.ended)


def _share(counts: Mapping[str, tuple[int, int]]) -> Reading:
    """Failures among what was taken up, by subject; a subject without any is left out."""
    return Reading.of(
        [Sample(name, bad / (good + bad), good + bad) for name, (good, bad) in counts.items() if good + bad]
    )


def queue_backlog(look: Look) -> Reading:
    return Reading.of([Sample(queue, look.since(at)) for queue, at in look.due.items()], complete=len(look.due) < HOPS)


def queue_unserved(look: Look) -> Reading:
    return Reading.of(
        [Sample(queue, look.since(at)) for queue, at in look.due.items() if queue not in look.alive],
        complete=len(look.due) < HOPS,
    )


def queue_paused(look: Look) -> Reading:
    return Reading.of(
        [
            Sample(name, look.since(row.paused_at), detail=_by(row.paused_by, row.paused_reason))
            for name, row in look.paused.items()
        ]
    )


def _by(actor: str | None, reason: str | None) -> str:
    return ": ".join(part for part in (f"by {actor}" if actor else "", reason or "") if part)


def gate_offline(look: Look) -> Reading:
    if look.online:
        return Reading()
    at = look.connection.execute(select(system_state.c.updated_at).where(system_state.c.key == GATE_KEY)).scalar_one()
    return Reading.of([Sample("", look.since(at))])


def leases_stuck(look: Look) -> Reading:
    found = lapsed(look.connection, look.now)
    if not found.count or found.oldest is None:
        return Reading()
    return Reading.of([Sample("", look.since(found.oldest), detail=_count(found.count, "job"))])


def worker_silent(look: Look) -> Reading:
    seen = select(workers.c.name, workers.c.seen_at).where(workers.c.seen_at >= look.now - GONE)
    return Reading.of([Sample(name, look.since(at)) for name, at in look.connection.execute(seen)])


def worker_unready(look: Look) -> Reading:
    lately = workers.c.seen_at >= look.ago(look.settings.alerts_worker)
    unready = select(workers.c.name, workers.c.reason).where(workers.c.state == "unready", lately)
    return Reading.of([Sample(name, 1, detail=reason or "") for name, reason in look.connection.execute(unready)])


# ---------------------------------------------------------------------- audit, outbox


def seals_behind(look: Look) -> Reading:
    """The age of the first row behind the last seal. Workers seal, so without one nothing is expected."""
    if not look.alive:
        return Reading()
    last = look.connection.execute(select(audit_seals.c.last_id).order_by(audit_seals.c.id.desc()).limit(1)).scalar()
    first = select(audit_log.c.at).where(audit_log.c.id > (last or 0)).order_by(audit_log.c.id).limit(1)
    at = look.connection.execute(first).scalar()
    return Reading() if at is None else Reading.of([Sample("", look.since(at))])


def outbox_parked(look: Look) -> Reading:
    from duly.outbox.tables import outbox

    parked = select(outbox.c.destination).where(outbox.c.status == "parked").limit(ROWS).subquery()
    counted = select(parked.c.destination, func.count()).group_by(parked.c.destination)
    rows = look.connection.execute(counted).all()
    return Reading.of([Sample(name, n) for name, n in rows], complete=sum(n for _, n in rows) < ROWS)


def outbox_waiting(look: Look) -> Reading:
    """The oldest pending message of each destination, of the first few thousand by its index."""
    from duly.outbox.tables import outbox

    c = outbox.c
    oldest: dict[str, datetime] = {}
    full = False
    for mine, order in (
        ([c.status == "pending", c.ordering_key.is_(None)], (c.due_at, c.id)),
        ([c.ordering_key.is_not(None), c.status != "sent"], (c.ordering_key, c.id)),
    ):
        last = ""
        for hop in range(HOPS):
            first = select(c.destination).where(*mine, c.destination > last).order_by(c.destination, *order).limit(1)
            found = look.connection.execute(first).scalar()
            if found is None:
                break
            last, full = found, full or hop == HOPS - 1
            some = select(c.created_at, c.status).where(*mine, c.destination == last).order_by(*order).limit(ROWS)
            few = some.subquery()
            at = look.connection.execute(select(func.min(few.c.created_at)).where(few.c.status == "pending")).scalar()
            if at is not None:
                oldest[last] = min(at, oldest.get(last, at))
    return Reading.of([Sample(name, look.since(at)) for name, at in oldest.items()], complete=not full)


# ---------------------------------------------------------------------- schedules


def schedules_overdue(look: Look) -> Reading:
    from duly.schedules.tables import schedules

    c = schedules.c
    late = [c.look_at.is_not(None), c.look_at < look.now]
    rows = look.connection.execute(select(c.name, c.look_at).where(*late).order_by(c.look_at).limit(100)).all()
    if not rows:
        return Reading()
    few = ", ".join(row.name for row in rows[:3])
    more = f" and {len(rows) - 3}{' or more' if len(rows) == 100 else ''} others" if len(rows) > 3 else ""
    return Reading.of([Sample("", look.since(rows[0].look_at), detail=few + more)])


def schedules_missed(look: Look) -> Reading:
    from duly.schedules.tables import occurrences, schedules

    c = occurrences.c
    missed = (
        select(c.schedule_id)
        .where(c.acted_at > look.ago(look.settings.alerts_window), c.acted_at <= look.now, c.status == "missed")
        .limit(ROWS)
        .subquery()
    )
    counted = (
        select(schedules.c.name, func.count().label("n"))
        .join_from(missed, schedules, schedules.c.id == missed.c.schedule_id)
        .group_by(schedules.c.name)
        .order_by(literal(0) - func.count(), schedules.c.name)
    )
    rows = look.connection.execute(counted).all()
    if not rows:
        return Reading()
    return Reading.of([Sample("", sum(row.n for row in rows), detail=", ".join(row.name for row in rows[:5]))])


def schedule_broken(look: Look) -> Reading:
    from duly.schedules.tables import schedules

    c = schedules.c
    broken = select(c.name, c.failures).where(c.error.is_not(None), c.removed_at.is_(None))
    rows = look.connection.execute(broken.order_by(c.error_at).limit(MOST_SUBJECTS + 1)).all()
    return Reading.of([Sample(name, max(1, failures), detail=_count(failures, "failure")) for name, failures in rows])


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


#: By the name of the rule.
LOOKS: dict[str, Callable[[Look], Reading]] = {
    fn.__name__: fn
    for fn in (
        jobs_idle, jobs_failing, queue_failing, queue_backlog, queue_unserved, queue_paused, gate_offline, leases_stuck, worker_silent,
        worker_unready, seals_behind, outbox_parked, outbox_waiting, schedules_overdue, schedules_missed, schedule_broken,
    )
}  # fmt: skip

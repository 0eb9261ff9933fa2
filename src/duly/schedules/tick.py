"""The scheduler: looks at schedules that are due, asks the plan, and writes what it decided in one transaction.

Any number may run, in any number of processes: a schedule in another's hands is passed by, and its next instant moves on in the
transaction that makes its job. A schedule that cannot be planned is marked and told; the others go on (case B010).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from duly.jobs.admin import JobAdmin
from duly.jobs.engine import Engine
from duly.jobs.enqueue import NewJob
from duly.kernel.errors import DatabaseError, InvalidArgument, brief
from duly.kernel.localtime import in_utc
from duly.kernel.windows import Calendar
from duly.schedules.plan import Facts, Plan, Waiting, checked, next_planned, plan
from duly.schedules.schedule import Schedule, Status
from duly.schedules.store import WAITING, ScheduleStore
from duly.schedules.watch import POLL
from duly.storage.apart import apart
from duly.storage.wake import Bell

#: Schedules looked at in one transaction.
BATCH = 200
#: Seconds until another look at a schedule that another scheduler has locked.
CONTENDED = 0.1
#: Decisions of occurrences further ahead than this were made by a wrong clock.
AHEAD = timedelta(hours=1)


@dataclass(slots=True)
class TickReport:
    """What a tick did, in occurrences."""

    looked: int = 0
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    deferred: int = 0
    #: Schedules that could not be planned.
    broken: int = 0
    #: Schedules that this process cannot read and leaves to others: of newer code, or in a zone that this machine does not know.
    left: int = 0

    def add(self, other: TickReport) -> None:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


#: A schedule, its plan, and the job of each occurrence that fired.
Decided = tuple[Schedule, Plan, Mapping[datetime, int]]


class Scheduler:
    """Looks at schedules. Made by ``app.scheduler()``; a worker of the app runs one, once there are schedules."""

    def __init__(self, engine: Engine, bell: Bell | None = None) -> None:
        self.engine, self.db, self.emitter = engine, engine.db, engine.emitter
        self.store, self.admin = ScheduleStore(engine.db), JobAdmin(engine)
        self.calendar = engine.calendars.calendar
        self._grace = timedelta(seconds=engine.settings.schedule_grace)
        #: (number, version) of schedules that are left to others, until housekeeping looks again or somebody changes them.
        self._left: set[tuple[int, int]] = set()
        #: Rings when somebody changes a schedule or a blackout; a worker that ends rings it too.
        self.bell = bell or self.db.controls.add(Bell())

    # ------------------------------------------------------------------ a tick

    def tick(self, now: datetime | None = None) -> TickReport:
        """Decide every occurrence that is due, and make the jobs of those that fire. Returns what was done.

        ``now`` (aware) stands for the present instant; without it the database's clock, or the application's. May be called at
        any time, by any number of processes. Raises DatabaseUnavailable.
        """
        at = None if now is None else in_utc(now, "now")
        report = TickReport()
        while True:
            part = self._pass(at)
            report.add(part)
            if not part.looked:
                return report

    def _pass(self, now: datetime | None) -> TickReport:
        decided: list[Decided] = []
        broken: list[tuple[Schedule, str, int]] = []
        left: list[Schedule] = []
        but = frozenset(self._left)

        def act(connection: Connection) -> None:
            decided.clear()  # a transaction that was lost may be run again
            broken.clear()
            at = now or self.db.present(connection)
            due = self.store.due(connection, at, BATCH, but)
            left[:] = [schedule for schedule in due if schedule.left is not None]
            found = [schedule for schedule in due if schedule.left is None]
            if not found:
                return
            planned, failed = self.plan(connection, found, at)
            written, refused = self.write_apart(connection, planned, at)
            decided.extend(written)
            for schedule, problem in [*failed, *refused]:
                broken.append((schedule, problem, self.store.mark_broken(connection, schedule.id, problem, at)))

        if not self.db.read(lambda c: self.store.any_due(c, now, but)):
            return TickReport()
        self.db.write(act)
        self.leave(left)
        report = self.tell(decided, broken)
        report.looked, report.left = report.looked + len(left), len(left)
        if report.fired:
            self.db.bells.ring()
        return report

    def leave(self, left: Sequence[Schedule]) -> None:
        """Leave schedules to others: their rows say nothing of it, and who can read them plans them (C023)."""
        for schedule in left:
            assert schedule.left is not None
            self._left.add((schedule.id, schedule.version))
            self.engine.left.note("schedule", f"{schedule.tenant}/{schedule.name}", schedule.left)

    def plan(
        self, connection: Connection, found: Sequence[Schedule], at: datetime
    ) -> tuple[list[tuple[Schedule, Plan]], list[tuple[Schedule, str]]]:
        """Plans of schedules whose rows are locked, and those that cannot be planned, with the reason."""
        calendar = self.calendar(connection)
        idents = [schedule.id for schedule in found]
        waiting, fired = self.store.waiting(connection, idents), self.store.fired_ahead(connection, idents)
        alone = [s.id for s in found if s.spec is not None and s.spec.policies.overlap != "allow"]
        alive = self.store.count_alive(connection, alone)
        planned, failed = [], []
        for schedule in found:
            try:
                facts = self.facts(
                    schedule,
                    calendar,
                    waiting.get(schedule.id, ()),
                    alive.get(schedule.id, 0),
                    fired.get(schedule.id, ()),
                )
                planned.append((schedule, checked(plan(facts, at))))
            except (SQLAlchemyError, DatabaseError):
                raise
            except Exception as error:
                failed.append((schedule, str(error) if isinstance(error, InvalidArgument) else brief(error)))
        return planned, failed

    def facts(
        self, schedule: Schedule, calendar: Calendar, waiting: Sequence[Waiting] = (), alive: int = 0, fired: Collection[datetime] = ()
    ) -> Facts:  # fmt: skip
        """What the plan is told of a schedule. Raises InvalidArgument for a row that cannot be read."""
        spec = schedule.spec
        if spec is None:
            raise schedule.left or InvalidArgument("schedule", schedule.error or "cannot be read.")
        return Facts(
            spec.recurrence, spec.policies, schedule.decided_until, spec.starts_at, spec.ends_at, schedule.paused_at is not None,
            calendar.applying_to(*spec.scopes), waiting[:WAITING], len(waiting) > WAITING, alive, fired, self._grace,
        )  # fmt: skip

    # ------------------------------------------------------------------ writing

    def write_apart(
        self, connection: Connection, planned: Sequence[tuple[Schedule, Plan]], at: datetime
    ) -> tuple[list[Decided], list[tuple[Schedule, str]]]:
        """Write plans. Returns what was written, and the schedules whose writing the database refused, with the reason."""
        done, failed = apart(self.db, connection, planned, lambda part: self.apply(connection, part, at))
        return [one for part in done for one in part], [(schedule, brief(error)) for (schedule, _), error in failed]

    def apply(self, connection: Connection, planned: Sequence[tuple[Schedule, Plan]], at: datetime) -> list[Decided]:
        """Make the jobs of occurrences that fire, and write the ledger, in the caller's transaction."""
        places, new = [], []
        for schedule, its_plan in planned:
            if its_plan.replaces:
                alive = self.store.alive(connection, schedule.id)
                self.admin.cancel_in(
                    connection, alive, f"schedule:{schedule.name}", "a newer occurrence takes its place"
                )
            for d in its_plan.decisions:
                if d.status is Status.FIRED:
                    places.append((schedule.id, d.due_at))
                    new.append(self.job(schedule, d.due_at, d.start_at or d.due_at))
        made = self.engine.maker.make_in(connection, new) if new else []
        jobs: dict[int, dict[datetime, int]] = {}
        for (ident, due_at), enqueued in zip(places, made, strict=True):
            jobs.setdefault(ident, {})[due_at] = enqueued.job.id
        decided: list[Decided] = [(schedule, its_plan, jobs.get(schedule.id, {})) for schedule, its_plan in planned]
        self.store.write(connection, decided, at)
        return decided

    def job(self, schedule: Schedule, due_at: datetime, start_at: datetime, trigger: str = "schedule") -> NewJob:
        """The job of an occurrence; its ``meta`` says which one."""
        spec = schedule.spec
        assert spec is not None
        meta = {"schedule": schedule.name, "due_at": due_at.isoformat(), "trigger": trigger}
        return NewJob(
            spec.tenant, spec.queue, spec.task, spec.input, spec.max_attempts or self.engine.settings.max_attempts, spec.priority, start_at,
            meta=orjson.dumps(meta).decode(),
        )  # fmt: skip

    def tell(self, decided: Sequence[Decided], broken: Sequence[tuple[Schedule, str, int]] = ()) -> TickReport:
        """Tell what was written, once it is. Returns the counts."""
        report = TickReport(looked=len(decided) + len(broken), broken=len(broken))
        for schedule, its_plan, jobs in decided:
            counts: dict[tuple[Status, str], int] = {}
            for d in its_plan.decisions:
                counts[d.status, d.reason or ""] = counts.get((d.status, d.reason or ""), 0) + (
                    not d.known or d.status is not Status.DEFERRED
                )
                if d.status is Status.FIRED:
                    self.emitter.emit(
                        "schedule_fired",
                        "info",
                        schedule=schedule.name,
                        due_at=d.due_at.isoformat(),
                        job=jobs[d.due_at],
                    )
            for (status, reason), count in counts.items():
                if count:
                    setattr(report, status.value, getattr(report, status.value) + count)
                    self._tell_left_out(schedule, status, reason, count)
        for schedule, problem, failures in broken:
            self.emitter.emit("schedule_broken", "error", schedule=schedule.name, error=problem, failures=failures)
        return report

    def _tell_left_out(self, schedule: Schedule, status: Status, reason: str, count: int) -> None:
        if status is Status.SKIPPED:
            self.emitter.emit("schedule_skipped", "info", schedule=schedule.name, reason=reason, count=count)
        elif status is Status.MISSED:
            self.emitter.emit("schedule_missed", "warning", schedule=schedule.name, count=count)
        elif status is Status.DEFERRED:
            self.emitter.emit("schedule_deferred", "info", schedule=schedule.name, reason=reason, count=count)

    # ------------------------------------------------------------------ a loop

    def step(self) -> None:
        """One turn of a loop: a tick, and sleep until the next instant."""
        looked = self.tick().looked
        # what is due and could not be had is in the hands of another scheduler at this moment
        least = 0.0 if looked else CONTENDED
        self.bell.wait(max(least, self.db.read(self._until_next)))

    def _until_next(self, connection: Connection) -> float:
        try:
            look = self.store.next_look(connection, frozenset(self._left))
        except (TypeError, ValueError, OverflowError, SQLAlchemyError) as error:
            if self.db.translated(error) is not error:
                raise
            return POLL  # a row that holds no instant
        if look is None or self.db.clock.manual:
            return POLL
        return min(POLL, max(0.0, (look - self.db.present(connection)).total_seconds()))

    def keep(self) -> None:
        """Housekeeping, every so often: a clock that was ahead, other time zone data, and what is old."""
        self._left.clear()  # zone data may have come, or a definition that can be read
        self.engine.left.turn("schedule")
        self.rewind()
        self.retime()
        self.prune()

    def rewind(self) -> int:
        """Take back what was decided of occurrences that are still to come, because the clock was ahead. Returns of how many schedules.

        Without this they would be silent until the clock has come there again. What fired stays fired, once; what was missed, skipped
        or deferred is decided anew when its time comes. Less than ``AHEAD`` is left as it is: clocks of two machines differ a little.
        """
        taken: list[tuple[Schedule, int]] = []

        def act(connection: Connection) -> None:
            taken.clear()
            now = self.db.present(connection)
            calendar = self.calendar(connection)
            for schedule in self.store.ahead(connection, now + AHEAD):
                if schedule.spec is None:
                    continue
                next_at = next_planned(self.facts(schedule, calendar), min(schedule.decided_until, now))
                taken.append((schedule, self.store.rewind(connection, schedule, now, next_at)))

        if self.db.read(lambda c: self.store.any_ahead(c, self.db.present(c) + AHEAD)):
            self.db.write(act)
        for schedule, count in taken:
            self.emitter.emit(
                "schedule_rewound",
                "warning",
                schedule=schedule.name,
                until=schedule.decided_until.isoformat(),
                count=count,
            )
        return len(taken)

    def retime(self) -> int:
        """Compute next instants anew that were computed by other time zone data than this process has. Returns how many."""

        def act(connection: Connection) -> int:
            found = [schedule for schedule in self.store.outdated(connection) if schedule.left is None]
            if not found:
                return 0
            calendar = self.calendar(connection)
            for schedule in found:
                next_at = schedule.next_at
                if schedule.spec is not None:
                    next_at = next_planned(self.facts(schedule, calendar), schedule.decided_until)
                # what waits, or is broken, is looked at when it was to be
                waits = schedule.look_at is not None and schedule.look_at != schedule.next_at
                looks = [at for at in (next_at, schedule.look_at if waits else None) if at is not None]
                self.store.retime(connection, schedule, next_at, min(looks, default=None))
            return len(found)

        changed = self.db.write(act) if self.db.read(lambda c: bool(self.store.count_outdated(c))) else 0
        if changed:
            self.emitter.emit("schedules_retimed", "warning", count=changed)
        return changed

    def prune(self) -> int:
        """Forget occurrences older than the setting ``schedule_retention``. Returns how many."""
        keep = self.engine.settings.schedule_retention
        if not keep:
            return 0
        pruned = 0
        while (part := self.db.write(lambda c: self.store.prune(c, self.db.present(c) - timedelta(seconds=keep)))) > 0:
            pruned += part
        return pruned

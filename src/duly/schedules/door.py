"""``app.schedules``: what people and programs do with schedules.

A definition is checked before it is written, and an edit is a new version: what was due until then is decided by the old one, in
the same transaction. Every act of an operator is audited with who did it and why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from sqlalchemy import Connection

from duly.kernel.errors import InvalidArgument, UnknownZone, WrongState
from duly.kernel.events import Emitter
from duly.kernel.localtime import TICK, in_utc, zone
from duly.kernel.payload import check_name, check_text
from duly.kernel.recurrence import CivilSchedule, special_days
from duly.kernel.recurrence import Schedule as Recurrence
from duly.kernel.recurrence.special import LONGEST_LOOK
from duly.kernel.windows import Calendar
from duly.schedules.plan import Facts, next_planned, undecided
from duly.schedules.schedule import (
    BACKFILLED,
    LIFECYCLE,
    PAUSED,
    RESUMED,
    RUN,
    Blackout,
    CatchUp,
    Occurrence,
    Overlap,
    Policies,
    Schedule,
    Spec,
    Status,
    Trigger,
)
from duly.schedules.store import ScheduleStore, declaration, mark
from duly.schedules.tick import Decided, Scheduler

if TYPE_CHECKING:
    from duly.jobs.engine import Engine
    from duly.jobs.enqueue import NewJob
    from duly.jobs.task import Task

R = TypeVar("R")

#: Occurrences that one backfill may have.
BACKFILL_LIMIT = 10_000
#: Occurrences of a preview.
PREVIEW_LIMIT = 1_000

Change = Literal["created", "changed", "unchanged", "behind", "left"]


class Host(Protocol):
    """What an application offers here."""

    @property
    def engine(self) -> Engine: ...

    @property
    def events(self) -> Emitter: ...

    def open(self) -> None: ...

    def draft(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> NewJob: ...

    def warn_unknown_task(self, name: str) -> str: ...

    def attempts_of(self, name: str, input: Mapping[str, Any] | None = None) -> int | None: ...

    def scheduler(self) -> Scheduler: ...


@dataclass(frozen=True, slots=True)
class Previewed:
    """A planned instant to come, and what is special about it."""

    due_at: datetime
    #: What the clock of the schedule's zone shows; None for schedules without one.
    local: datetime | None
    #: The day's remark when a clock is put forward or back: ``29 March 2026 runs at 03:00``.
    special: str | None = None
    #: The blackouts that cover it, by name, and when that ends.
    blackout: tuple[str, ...] = ()
    blackout_until: datetime | None = None
    #: ``fires``, ``deferred`` or ``skipped``.
    effect: str = "fires"


def clock_changes(recurrence: Recurrence, coming: Sequence[Previewed], since: datetime) -> list[str]:
    """The days from ``since`` (aware) to the last of these instants on which clocks change, in words, whether it runs on them or not."""
    if not coming or not isinstance(recurrence, CivilSchedule):
        return []
    days = min((coming[-1].due_at - since).days + 1, LONGEST_LOOK)
    return [day.text for day in special_days(recurrence, since, days)]


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill did, or would do, as planned instants."""

    #: Jobs were made.
    fired: tuple[datetime, ...]
    #: They run one after the other, as the schedule allows no overlap.
    deferred: tuple[datetime, ...]
    #: They had fired before, or are waiting.
    left: tuple[datetime, ...]
    dry_run: bool = False


class Schedules:
    """Schedules of an application."""

    def __init__(self, app: Host) -> None:
        self._app = app
        #: What code declares, by (tenant, name); written by ``sync``.
        self._declared: dict[tuple[str, str], Spec] = {}
        #: (tenant, name) of what this code declares and newer code has replaced.
        self.behind: set[tuple[str, str]] = set()
        #: (tenant, name) of what this code declares in a zone that this machine does not know.
        self.left: set[tuple[str, str]] = set()
        self._scheduler: Scheduler | None = None

    # ------------------------------------------------------------------ definitions

    def spec(
        self,
        name: str,
        recurrence: Recurrence,
        task: str | Task[Any, Any],
        input: Mapping[str, Any] | None = None,
        *,
        catch_up: CatchUp | timedelta | str = "latest",
        overlap: Overlap = "allow",
        blackout: Blackout = "defer",
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        **options: Any,
    ) -> Spec:
        """Check a definition. ``options``: queue, tenant, priority, max_attempts. Raises InvalidArgument."""
        check_name(name, "name")
        for other in options:
            if other not in ("queue", "tenant", "priority", "max_attempts"):
                raise InvalidArgument(
                    other, "is no option of a schedule.", "Known are queue, tenant, priority and max_attempts."
                )
        job = self._app.draft(task if isinstance(task, str) else task.name, input, **options)
        own = options.get("max_attempts")
        return Spec(
            name, recurrence, job.task, job.input, job.queue, job.tenant, Policies(catch_up, overlap, blackout),  # type: ignore[arg-type]
            job.priority, own or self._app.attempts_of(job.task, input), starts_at, ends_at,
        )  # fmt: skip

    def declare(self, spec: Spec) -> None:
        """Keep what code declares until ``sync`` writes it. Raises InvalidArgument for a name that is taken by another definition."""
        at = spec.tenant, spec.name
        known = self._declared.get(at)
        if known is not None and known.to_json() != spec.to_json():
            raise InvalidArgument("name", f"is {spec.name!r}, which is declared twice.", "Give one another name.")
        self._declared[at] = spec

    def declarations(self) -> dict[str, str]:
        """What code declares, for a worker's row: name → a mark of the definition."""
        return {declaration(spec): mark(spec) for spec in self._declared.values()}

    def undeclared(self) -> list[tuple[str, str]]:
        """(tenant, name) of schedules that code declared once and no living worker's code declares now. They go on until a person removes or
        pauses them."""
        return self._read(self._store.undeclared)

    def catch_up(self) -> None:
        """Look again at definitions that newer code had replaced: when no worker with that code lives any more, they count again. So does what a
        program that does not know the rule has put an older definition in the place of."""
        specs = list(self._declared.values())
        same = self._read(lambda c: self._store.declared(c, specs)) if specs else set()
        others = [spec for spec in specs if (spec.tenant, spec.name) not in same]
        ahead = self._read(lambda c: self._store.replaced(c, others))[1] if others else set()
        if again := self.behind | self.left | ahead:
            self.sync(again)

    def sync(self, only: Collection[tuple[str, str]] | None = None) -> dict[str, Change]:
        """Write what code declares. A worker does it when it starts. ``only``: (tenant, name) of these. Returns what became of each, by name (``tenant/name`` for those of
        another tenant than the application's).

        A definition that is as it was declared last stays as it is, even if a person has changed the schedule since. One that newer code has
        replaced is left alone while a worker with that newer code lives (``behind``).
        """
        if not self._declared:
            return {}
        specs = [spec for at, spec in self._declared.items() if only is None or at in only]
        same = self._read(lambda c: self._store.declared(c, specs))
        others = [spec for spec in specs if (spec.tenant, spec.name) not in same]
        behind = self._read(lambda c: self._store.replaced(c, others))[0] if others else set()
        done: dict[str, Change] = {}
        for spec in specs:
            at = spec.tenant, spec.name
            if at in same:
                self._app.warn_unknown_task(spec.task)
                change: Change = "unchanged"
            else:
                change = "behind" if at in behind else self._put(spec)
            done[spec.name if spec.tenant == self._tenant(None) else f"{spec.tenant}/{spec.name}"] = change
            if change != "left":
                self.left.discard(at)
            if change != "behind":
                self.behind.discard(at)
            elif at not in self.behind:
                self.behind.add(at)
                self._app.events.emit("declaration_old", "warning", schedule=spec.name, tenant=spec.tenant)
        return done

    def _put(self, spec: Spec) -> Change:
        """Write a definition that code declares, or leave it to a machine that knows its zone."""
        try:
            return self.set(spec, actor="code", declared=True)[1]
        except UnknownZone as error:
            # the row stays as others have declared it, and a machine that knows the zone declares it
            self._app.engine.left.note("schedule", f"{spec.tenant}/{spec.name}", error)
            self.left.add((spec.tenant, spec.name))
            return "left"

    def _warn_unknown(self, spec: Spec) -> None:
        """Warn of a task that nobody knows, unless the schedule names it already: then it was warned of, or an application that is not here
        defines it."""
        if spec.task in self._app.engine.tasks:
            return
        was = self._read(lambda c: self._store.find(c, spec.name, spec.tenant))
        if was is None or was.spec is None or was.spec.task != spec.task:
            self._app.warn_unknown_task(spec.task)

    def set(
        self,
        spec: Spec,
        *,
        actor: str = "code",
        declared: bool = False,
        version: int | None = None,
        id: int | None = None,
        reason: str = "",
    ) -> tuple[Schedule, Change]:
        """Make a schedule, or a new version of the one with that name and tenant. Occurrences count from now on.

        What the old version had due until now is decided by the old version. A pause stays. ``version``: the one that was looked at, 0 where
        there was none; where it is another by now, WrongState. So it is for ``id``, its number: one that was removed and made anew has another.
        """
        check_text(reason, "reason")
        self._warn_unknown(spec)

        def act(connection: Connection, done: list[Decided]) -> tuple[Schedule, Change]:
            now = self._app.engine.db.present(connection)
            was = self._store.find(connection, spec.name, spec.tenant, lock=True)
            _check_version(spec.name, 0 if was is None else was.version, version)
            _check_id(spec.name, was, id)
            if was is None:
                made = self._store.create(connection, spec, now, _first(spec, now), actor, declared, reason)
                if made is not None:
                    return made, "created"
                was = self._store.get(connection, spec.name, spec.tenant, lock=True)
                _check_version(spec.name, was.version, version)
            # asked here, with the row locked: newer code may have declared it since somebody looked (E2)
            if declared and self._store.replaced(connection, [spec])[0]:
                return was, "behind"
            if was.spec is not None and was.spec.to_json() == spec.to_json():
                if declared:
                    self._store.note_declared(connection, was, spec)
                return was, "unchanged"
            self._close(connection, self._settle(connection, was, now, done), now, "changed", done)
            return self._store.change(
                connection, was, spec, now, _first(spec, now), now, actor, declared, reason
            ), "changed"

        schedule, change = self._write(act)
        if change in ("created", "changed"):
            self._app.events.emit(
                "schedule_changed", "info", schedule=spec.name, change=change, version=schedule.version
            )
        return schedule, change

    def remove(
        self, name: str, *, tenant: str | None = None, actor: str = "code", reason: str = "", version: int | None = None, id: int | None = None
    ) -> None:  # fmt: skip
        """Let a schedule fire no more. Jobs that it made go on; its ledger stays. Raises NotFound; WrongState as ``set``."""
        check_text(reason, "reason")

        def act(connection: Connection, done: list[Decided]) -> None:
            now = self._app.engine.db.present(connection)
            was = self._store.get(connection, name, self._tenant(tenant), lock=True)
            _check_version(name, was.version, version)
            _check_id(name, was, id)
            was = self._settle(connection, was, now, done)
            self._close(connection, was, now, "removed", done)
            self._store.remove(connection, was, actor, reason, now)

        self._write(act)

    def pause(self, name: str, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> Schedule:
        """Skip occurrences from now on, on record, until ``resume``. Pausing a paused schedule changes its reason. Raises NotFound."""
        return self._set_paused(name, tenant, actor, reason, True)

    def resume(self, name: str, reason: str = "", *, tenant: str | None = None, actor: str = "code") -> Schedule:
        """Fire again from now on. A schedule that is not paused stays as it is. Raises NotFound."""
        return self._set_paused(name, tenant, actor, reason, False)

    def _set_paused(self, name: str, tenant: str | None, actor: str, reason: str, paused: bool) -> Schedule:
        check_text(reason, "reason")

        def act(connection: Connection, done: list[Decided]) -> Schedule:
            now = self._app.engine.db.present(connection)
            was = self._store.get(connection, name, self._tenant(tenant), lock=True)
            if not paused and was.paused_at is None:
                return was
            was = self._settle(connection, was, now, done)
            if not paused:
                self._close(connection, was, now, "paused", done)
            at = (was.paused_at or now) if paused else None
            self._store.set_paused(connection, was, actor, at, reason, PAUSED if paused else RESUMED, now)
            self._store.look_soon(connection, was, now)
            return self._store.get(connection, name, was.tenant)

        return self._write(act)

    def _settle(self, connection: Connection, schedule: Schedule, now: datetime, done: list[Decided]) -> Schedule:
        """Decide what is due until now as the schedule stands; its row is locked. What cannot be planned is left. ``done``: what was
        decided is put there, to be told when it is committed."""
        scheduler = self._made()
        if schedule.spec is None:  # somebody damaged the row: what it said stands with its version
            schedule = replace(schedule, spec=self._store.kept(connection, schedule))
        # asked of the plan and not of look_at: one that is broken is looked at later than it is due
        while schedule.spec is not None:
            planned, _ = scheduler.plan(connection, [schedule], now)
            if not planned:
                break
            written, refused = scheduler.write_apart(connection, planned, now)
            done += written
            schedule = replace(self._store.get(connection, schedule.name, schedule.tenant), spec=schedule.spec)
            look_at = planned[0][1].look_at
            if refused or look_at is None or look_at > now:
                break
        return schedule

    def _close(self, connection: Connection, schedule: Schedule, now: datetime, act: str, done: list[Decided]) -> None:
        """Put on record what ``_settle`` could not decide, as nobody will decide it any more."""
        lost = undecided(schedule.decided_until, schedule.next_at, now, act)
        if lost is not None and not self._store.among(connection, schedule.id, [d.due_at for d in lost.decisions]):
            self._store.write(connection, [(schedule, lost, {})], now)
            done.append((schedule, lost, {}))

    # ------------------------------------------------------------------ acts

    def run(self, name: str, *, tenant: str | None = None, actor: str = "code", reason: str = "") -> Occurrence:
        """Make a job of a schedule now, whatever it is paused by, on record as an occurrence of this instant. Raises NotFound."""
        check_text(reason, "reason")

        def act(connection: Connection, done: list[Decided]) -> Occurrence:
            now = self._app.engine.db.present(connection)
            schedule = self._readable(self._store.get(connection, name, self._tenant(tenant), lock=True))
            schedule = self._readable(self._settle(connection, schedule, now, done))
            assert schedule.spec is not None
            due_at = now
            while (
                self._store.among(connection, schedule.id, [due_at])
                or schedule.spec.recurrence.next_after(due_at - TICK) == due_at
            ):
                due_at += TICK
            job = self._app.engine.maker.make_in(connection, [self._made().job(schedule, due_at, now, "manual")])[0].job
            row = {"due_at": due_at, "status": "fired", "reason": "manual", "policy": "", "trigger": "manual", "job_id": job.id,
                   "start_at": now, "acted_at": now}  # fmt: skip
            self._store.add(connection, schedule, [row])
            self._store.audit(connection, schedule, actor, RUN, reason=reason, job=job.id)
            return self._store.among(connection, schedule.id, [due_at])[due_at]

        done = self._write(act)
        self._app.events.emit("schedule_fired", "info", schedule=name, due_at=done.due_at.isoformat(), job=done.job_id)
        return done

    def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        tenant: str | None = None,
        actor: str = "code",
        reason: str = "",
        dry_run: bool = False,
        forgotten: bool = False,
    ) -> Backfill:
        """Fire the occurrences planned from ``start`` until before ``end`` (aware) that have not fired, each once.

        Those that were skipped or missed, and those from before the schedule was made. Where the schedule allows no overlap they run
        one after the other, behind what is due by itself. Nothing is taken that is still to come, or that lies beyond the schedule's bounds.
        Of what is older than the ledger (setting ``schedule_retention``) nobody knows whether it has fired: it is refused, unless
        ``forgotten`` is true, which fires it all the same. Raises NotFound; InvalidArgument for a range without past, with more than 10,000
        occurrences, or with some that are forgotten.
        """
        first, stop = in_utc(start, "start"), in_utc(end, "end")
        check_text(reason, "reason")

        def act(connection: Connection, done: list[Decided]) -> Backfill:
            now = self._app.engine.db.present(connection)
            schedule = self._readable(self._store.get(connection, name, self._tenant(tenant), lock=True))
            if first >= stop or first > now:
                raise InvalidArgument(
                    "start",
                    f"is {first.isoformat()}, which leaves no range in the past.",
                    "Let it be before end and before now.",
                )
            if not dry_run:
                schedule = self._readable(self._settle(connection, schedule, now, done))
            assert schedule.spec is not None
            since = max(first, schedule.spec.starts_at or first)
            until = min(stop, now + TICK, schedule.spec.ends_at or stop)
            dues = list(schedule.spec.recurrence.occurrences(since, until, BACKFILL_LIMIT + 1)) if since < until else []
            if len(dues) > BACKFILL_LIMIT:
                raise InvalidArgument("end", f"makes more than {BACKFILL_LIMIT} occurrences.", "Give a smaller range.")
            known: dict[datetime, Occurrence] = {}
            for at in range(0, len(dues), 500):
                known |= self._store.among(connection, schedule.id, dues[at : at + 500])
            if not forgotten:
                # what nobody has looked at yet was never in the ledger
                self._check_kept(schedule, [at for at in dues if at not in known and at <= schedule.decided_until], now)
            wanted = [at for at in dues if at not in known or known[at].status in (Status.SKIPPED, Status.MISSED)]
            left = tuple(at for at in dues if at not in set(wanted))
            one_by_one = schedule.spec.policies.overlap != "allow"
            if not dry_run and wanted:
                self._fill(connection, schedule, wanted, known, one_by_one, now)
                self._store.audit(
                    connection,
                    schedule,
                    actor,
                    BACKFILLED,
                    reason=reason,
                    count=len(wanted),
                    first=wanted[0].isoformat(),
                    last=wanted[-1].isoformat(),
                )
            return Backfill(() if one_by_one else tuple(wanted), tuple(wanted) if one_by_one else (), left, dry_run)

        return self._read(lambda c: act(c, [])) if dry_run else self._write(act)

    def _check_kept(self, schedule: Schedule, unknown: Sequence[datetime], now: datetime) -> None:
        """Refuse occurrences that stand in no ledger because the ledger is not kept for so long. A schedule made since has lost nothing yet."""
        keep = self._app.engine.settings.schedule_retention
        if not keep or not unknown:
            return
        horizon = now - timedelta(seconds=keep)
        made = schedule.created_at
        if unknown[0] < horizon and (made is None or made < horizon):
            # to the minute, and a little later: it moves on while somebody types it
            since = horizon.replace(second=0, microsecond=0) + timedelta(minutes=2)
            raise InvalidArgument(
                "start",
                f"leads back to {unknown[0].isoformat()}, and what fired before {since.isoformat()} is not known any more (setting schedule_retention).",
                f"Let it be {since.isoformat()} or later. A program may give forgotten=True: then all of it fires, whether it has before or not.",
            )  # fmt: skip

    def _fill(
        self, connection: Connection, schedule: Schedule, wanted: Sequence[datetime], known: Mapping[datetime, Occurrence],
        one_by_one: bool, now: datetime,
    ) -> None:  # fmt: skip
        ids: list[int | None] = [None] * len(wanted)
        if not one_by_one:
            new = [self._made().job(schedule, at, at, "backfill") for at in wanted]
            ids = [enqueued.job.id for enqueued in self._app.engine.maker.make_in(connection, new)]
        fresh, revived = [], []
        for at, ident in zip(wanted, ids, strict=True):
            status = Status.DEFERRED if one_by_one else Status.FIRED
            row: dict[str, Any] = {
                "status": status.value, "reason": "backfill", "policy": "", "trigger": Trigger.BACKFILL.value, "job_id": ident,
                "start_at": None if one_by_one else at, "acted_at": now, "release_at": now if one_by_one else None,
            }  # fmt: skip
            if at in known:
                LIFECYCLE.target(known[at].status, "requeue" if one_by_one else "backfill")
                revived.append(row | {"b_due": at})
            else:
                fresh.append(row | {"due_at": at})
        if fresh:
            self._store.add(connection, schedule, fresh)
        if revived:
            self._store.revive(connection, schedule, revived)
        if one_by_one:
            self._store.look_soon(connection, schedule, now)

    # ------------------------------------------------------------------ looking

    def get(self, name: str, *, tenant: str | None = None) -> Schedule:
        """A schedule as it stands. Raises NotFound."""
        return self._read(lambda c: self._store.get(c, name, self._tenant(tenant)))

    def all(
        self, *, tenant: str | None = None, limit: int | None = None, after: tuple[str, str] | None = None
    ) -> list[Schedule]:
        """Every schedule, by tenant and name; those of every tenant without ``tenant``. ``limit``: at most so many, behind ``after``, the
        tenant and name of the last one seen."""
        return self._read(lambda c: self._store.all(c, tenant, limit, after))

    def versions(self, name: str, *, tenant: str | None = None) -> list[dict[str, Any]]:
        """The definitions that a schedule has had, the newest first: version, definition, made_at, made_by. Raises NotFound."""
        return self._read(lambda c: self._store.versions(c, self._store.get(c, name, self._tenant(tenant)).id))

    def ledger(
        self,
        name: str,
        *,
        tenant: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        statuses: Sequence[str] = (),
        limit: int = 100,
        before: datetime | None = None,
    ) -> list[Occurrence]:
        """What became of a schedule's occurrences, the newest first. ``before`` goes on from the last one seen. Raises NotFound."""
        bounds = {
            n: None if v is None else in_utc(v, n) for n, v in (("since", since), ("until", until), ("before", before))
        }
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise InvalidArgument("limit", f"is {limit!r}.", "Give a number from 1 to 10000.")
        for status in statuses:
            if status not in set(Status):
                raise InvalidArgument("statuses", f"has {status!r}.", f"Use {', '.join(Status)}.")

        def look(connection: Connection) -> list[Occurrence]:
            ident = self._store.get(connection, name, self._tenant(tenant)).id
            return self._store.ledger(connection, ident, statuses=statuses, limit=limit, **bounds)

        return self._read(look)

    def preview(
        self, name: str, n: int = 10, *, tenant: str | None = None, since: datetime | None = None
    ) -> list[Previewed]:
        """The next ``n`` planned instants of a schedule, with days on which clocks change and blackouts. Raises NotFound."""

        def look(connection: Connection) -> list[Previewed]:
            schedule = self._readable(self._store.get(connection, name, self._tenant(tenant)))
            now = in_utc(since, "since") if since is not None else self._app.engine.db.present(connection)
            assert schedule.spec is not None
            return preview(schedule.spec, self._made().calendar(connection), now, n)

        return self._read(look)

    def preview_of(self, spec: Spec, n: int = 10, *, since: datetime | None = None) -> list[Previewed]:
        """The same of a definition that is not written."""

        def look(connection: Connection) -> list[Previewed]:
            now = in_utc(since, "since") if since is not None else self._app.engine.db.present(connection)
            return preview(spec, self._made().calendar(connection), now, n)

        return self._read(look)

    # ------------------------------------------------------------------ beneath

    @property
    def _store(self) -> ScheduleStore:
        return self._made().store

    def _made(self) -> Scheduler:
        engine = self._app.engine
        if self._scheduler is None or self._scheduler.engine is not engine:
            self._scheduler = self._app.scheduler()
        return self._scheduler

    def _tenant(self, tenant: str | None) -> str:
        return tenant or self._app.engine.settings.tenant

    def _readable(self, schedule: Schedule) -> Schedule:
        if schedule.spec is None:
            raise InvalidArgument(
                f"schedule {schedule.name}", f"cannot be read: {schedule.problem}", "Set it anew, or remove it."
            )
        return schedule

    def _read(self, fn: Callable[[Connection], R]) -> R:
        self._app.open()
        return self._app.engine.db.read(fn)

    def _write(self, fn: Callable[[Connection, list[Decided]], R]) -> R:
        """Run ``fn(connection, done)`` in one transaction, and tell afterwards what it decided by the way."""
        self._app.open()
        db = self._app.engine.db
        done: list[Decided] = []

        def act(connection: Connection) -> R:
            done.clear()  # a transaction that was lost may be run again
            out = fn(connection, done)
            db.announce(connection)
            return out

        out = db.write(act)
        self._made().tell(done)
        db.bells.ring()
        db.controls.ring()
        return out


def preview(spec: Spec, calendar: Calendar, now: datetime, n: int) -> list[Previewed]:
    """The next planned instants of a definition after ``now``, and what is special about them."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= PREVIEW_LIMIT:
        raise InvalidArgument("n", f"is {n!r}.", f"Give a number from 1 to {PREVIEW_LIMIT}.")
    applying = calendar.applying_to(*spec.scopes)
    found: list[datetime] = []
    at = now if spec.starts_at is None else max(now, spec.starts_at - TICK)
    while len(found) < n and (following := spec.recurrence.next_after(at)) is not None:
        if spec.ends_at is not None and following >= spec.ends_at:
            break
        found.append(at := following)
    special: dict[Any, str] = {}
    if found and isinstance(spec.recurrence, CivilSchedule):
        days = min((found[-1] - now).days + 3, 3_660)
        special = {day.on: day.text for day in special_days(spec.recurrence, now - timedelta(days=1), days)}
    out = []
    for due_at in found:
        local = due_at.astimezone(zone(spec.tz)) if spec.tz else None
        covering = applying.covering(due_at)
        effect = "fires" if covering is None else "skipped" if spec.policies.blackout == "skip" else "deferred"
        out.append(
            Previewed(
                due_at, local, special.get(local.date()) if local else None, covering.names if covering else (), covering.until if covering else None, effect
            )
        )  # fmt: skip
    return out


def _check_version(name: str, current: int, given: int | None) -> None:
    if given is not None and given != current:
        stands = f"at version {current}" if current else "not there"
        raise WrongState(f"schedule {name}", stands, f"be changed from version {given}")


def _check_id(name: str, current: Schedule | None, given: int | None) -> None:
    if given is not None and (current is None or current.id != given):
        raise WrongState(f"schedule {name}", "another one", f"be changed as number {given}")


def _first(spec: Spec, now: datetime) -> datetime | None:
    return next_planned(Facts(spec.recurrence, spec.policies, now, spec.starts_at, spec.ends_at), now)

"""The three ticks: plan, open, close. Each reads what is due, asks the plan, writes what it decided, and can be run again at once.

Why any number of workers may run them at any time. A batch is one transaction. Each of its groups is locked for as long as that
lasts, and one that somebody else has locked is passed by, not waited for (R000-17). What is known of it is read under the lock, every
change names the state it starts from, and two unique indexes allow neither a second round for a date nor a second one that is not
closed. The jobs that tell members are made in the transaction that opens the round: a worker that dies in between leaves neither
(R000-13). So the second to come finds nothing due, whoever he is.

What fails, fails alone (R000-18): decisions one by one; statements for the whole batch in a savepoint, then for its halves, down to
the one group that the database refuses, which is tried once more, counted, marked and told. It is due again at the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from sqlalchemy import Connection

from duly.jobs.engine import Engine
from duly.kernel.errors import InvalidArgument, UnknownZone, brief
from duly.kernel.localtime import in_utc, zone
from duly.rounds.notify import Notices
from duly.rounds.plan import (
    COOLDOWN,
    HOUR_PASSED,
    LIVE,
    LOCKED,
    LOST,
    GroupFacts,
    Left,
    Moved,
    Opened,
    Planned,
    RoundFacts,
    open_round,
    plan_round,
)
from duly.rounds.round import Status
from duly.rounds.store import Due, Tick, TickStore
from duly.storage.apart import apart
from duly.storage.locks import brief_waits, try_locks

Kind: TypeAlias = Literal["plan", "open", "close"]

#: Groups in one transaction. Each holds a place in PostgreSQL's table of locks while it lasts.
BATCH = 250
#: How often a group that the database refuses is tried in one pass.
ATTEMPTS = 2
#: The name under which this room locks groups.
ROOM = "rounds"
#: A group's zone is not known on this machine: others move it.
NO_ZONE = "zone_unknown"
#: Groups named in one event.
NAMED = 20


@dataclass(frozen=True, slots=True)
class TickReport:
    """What a pass did, in groups (R000-19)."""

    kind: Kind
    #: Rounds planned, opened or closed.
    done: int = 0
    #: Left as they are, for a reason: no prompt, the date is taken, somebody else has the lock.
    skipped: int = 0
    failed: int = 0
    #: From the start of the pass to its end.
    seconds: float = 0.0
    #: Of the openings, in seconds: the mean and the longest time between due and open; None where nothing opened.
    mean_late: float | None = None
    most_late: float | None = None
    #: Of those that were skipped: their zone is not known on this machine, and others have to move them.
    far: int = 0

    @property
    def per_minute(self) -> float | None:
        """Groups looked at per minute; None for a pass without any."""
        return round(60 * self.looked / self.seconds, 1) if self.looked and self.seconds else None

    @property
    def looked(self) -> int:
        """Groups looked at."""
        return self.done + self.skipped + self.failed


@dataclass(slots=True)
class Batch:
    """What became of the groups of a batch."""

    #: Seconds between due and done, of each.
    done: list[float] = field(default_factory=list)
    left: dict[str, list[int]] = field(default_factory=dict)
    #: Group → why.
    failed: dict[int, str] = field(default_factory=dict)
    #: Jobs were made.
    told: int = 0
    #: Seconds between due and now of rounds that came too late and wait for the next hour.
    moved: list[float] = field(default_factory=list)

    def leave(self, reason: str, group: int) -> None:
        self.left.setdefault(reason, []).append(group)

    def add(self, other: Batch) -> None:
        self.done += other.done
        for reason, idents in other.left.items():
            self.left.setdefault(reason, []).extend(idents)
        self.failed |= other.failed
        self.told += other.told
        self.moved += other.moved


Act: TypeAlias = Callable[[Connection, Sequence[Due], datetime], Batch]


class Ticks:
    """The ticks of an engine's database. ``draw`` gives a number from 0 until before 1 for each choice of a prompt."""

    def __init__(self, engine: Engine, notices: Notices, draw: Callable[[], float]) -> None:
        self.engine, self.db, self.emitter = engine, engine.db, engine.emitter
        self.store, self.notices, self.draw = TickStore(engine.db), notices, draw
        self.settings = engine.settings

    def run(self, kind: Kind, now: datetime | None = None) -> TickReport:
        """One pass. ``now`` (aware) stands for the present instant; without it the database's clock, or the application's.

        An opening pass first plans what opens in it: whatever order the ticks run in, what is due opens when it is due (R000-24).
        Raises InvalidArgument for a naive ``now``, DatabaseUnavailable.
        """
        given = None if now is None else in_utc(now, "now")
        self.engine.left.turn("group")
        # asked before anything is written: on SQLite a write waits its turn
        is_due = self._any(kind, given)
        if kind == "open" and is_due and self._any("ready", given):
            self._run("plan", "ready", given)
        return self._run(kind, kind if is_due else None, given)

    def _any(self, which: str, given: datetime | None) -> bool:
        return self.db.read(lambda c: self.store.any_due(c, which, given or self.db.present(c)))

    def _run(self, kind: Kind, which: str | None, given: datetime | None) -> TickReport:
        """One pass over ``which`` of what is due, if there is anything. Planning before an opening is noted only where it found something."""
        begun = time.monotonic()
        started_at = self.db.read(self.db.present)
        try:
            total, looked = self._pass(kind, which, given)
        except BaseException as error:
            self.emitter.emit("round_tick_failed", "error", kind=kind, error=brief(error))
            raise
        lates = total.done + total.moved if kind == "open" else []
        report = TickReport(
            kind, len(total.done), sum(map(len, total.left.values())), len(total.failed), time.monotonic() - begun,
            sum(lates) / len(lates) if lates else None, max(lates, default=None), len(total.left.get(NO_ZONE, ())),
        )  # fmt: skip
        if which == "ready" and not report.looked:
            return report
        self._note(report, started_at)
        if total.told:
            self.db.bells.ring()
        self.emitter.emit(
            "round_tick", "info", kind=kind, seconds=report.seconds, done=report.done, skipped=report.skipped, failed=report.failed,
            per_minute=report.per_minute, batches=looked,
        )  # fmt: skip
        return report

    def _note(self, report: TickReport, started_at: datetime) -> None:
        keep = self.settings.rounds_tick_retention
        forget = started_at - timedelta(seconds=keep) if keep else None
        tick = Tick(
            report.kind, started_at, report.seconds, report.done, report.skipped, report.failed, report.mean_late, report.most_late
        )  # fmt: skip
        self.db.write(lambda c: self.store.note_tick(c, tick, forget))

    def _pass(self, kind: Kind, which: str | None, given: datetime | None) -> tuple[Batch, int]:
        acts: dict[str, Act] = {"plan": self._plan, "ready": self._plan_due, "open": self._open, "close": self._close}
        total, after, batches = Batch(), None, 0
        if which is None:
            return total, batches
        while True:
            found, batch = self._batch(which, acts[which], given, after)
            if not found:
                return total, batches
            batches += 1
            self._tell(kind, batch)
            total.add(batch)
            after = found[-1]

    def _batch(self, which: str, act: Act, given: datetime | None, after: Due | None) -> tuple[list[Due], Batch]:
        """One transaction: what is due behind ``after``, locked, decided, written."""

        def transaction(connection: Connection) -> tuple[list[Due], Batch]:
            now = given or self.db.present(connection)
            found = self.store.due(connection, which, now, after, BATCH)
            brief_waits(self.db, connection)
            if not found:
                return [], Batch()
            # a group whose zone is not known here is not locked: who knows it can have it at this moment
            far = set[int]() if which == "close" else self._far(connection, found)
            mine = try_locks(self.db, connection, ROOM, sorted({due.group_id for due in found} - far))
            batch = Batch()
            for due in found:
                if due.group_id in far:
                    batch.leave(NO_ZONE, due.group_id)
                elif due.group_id not in mine:
                    batch.leave(LOCKED, due.group_id)
            ours = [due for due in found if due.group_id in mine]
            if ours:
                batch.add(self._apart(connection, act, ours, now))
                # the row of a group that failed may be what somebody else has locked
                notes = list(batch.failed.items())
                apart(self.db, connection, notes, lambda part: self.store.note_failed(connection, dict(part), now))
            return found, batch

        return self.db.write(transaction)

    def _far(self, connection: Connection, found: Sequence[Due]) -> set[int]:
        """Groups whose zone this machine does not know (C023)."""
        far = set()
        for ident, tz in self.store.zones(connection, {due.group_id for due in found}):
            try:
                zone(tz, "zone")
            except UnknownZone as error:
                far.add(ident)
                self.engine.left.note("group", str(ident), error)
            except InvalidArgument:
                pass  # nobody knows it: that is the group's fault
        return far

    def _apart(self, connection: Connection, act: Act, dues: Sequence[Due], now: datetime) -> Batch:
        """Do it for all at once, but for those whose writing the database refuses."""
        done, failed = apart(self.db, connection, dues, lambda part: act(connection, part, now), ATTEMPTS)
        batch = Batch(failed={due.group_id: brief(error) for due, error in failed})
        for part in done:
            batch.add(part)
        return batch

    # ------------------------------------------------------------------ plan

    def _plan_due(self, connection: Connection, dues: Sequence[Due], now: datetime) -> Batch:
        """Plan what opens in this pass; everything else is the planning tick's."""
        return self._plan(connection, dues, now, only_due=True)

    def _plan(self, connection: Connection, dues: Sequence[Due], now: datetime, only_due: bool = False) -> Batch:
        batch, planned, later, live = (
            Batch(),
            list[tuple[str, GroupFacts, Planned]](),
            dict[int, datetime](),
            list[int](),
        )
        s = self.settings
        late = timedelta(seconds=s.rounds_late_open_limit)
        known = self.store.groups(connection, [due.ident for due in dues], s.rounds_drop_time, s.rounds_cooldown)
        for due in dues:
            tenant, facts = known[due.ident]
            try:
                decision = plan_round(facts, now, self.draw(), late)
            except Exception as error:  # a zone or a time written by hand (T000-n)
                batch.failed[due.ident] = _problem(error)
                continue
            if only_due and not (isinstance(decision, Planned) and decision.due_at <= now):
                continue
            if isinstance(decision, Planned):
                planned.append((tenant, facts, decision))
                continue
            batch.leave(decision.reason, due.ident)
            if decision.reason == LIVE:
                live.append(due.ident)
            elif decision.until is not None:
                later[due.ident] = decision.until
        made = self.store.add_rounds(connection, planned, now)
        self.store.plan_later(connection, later)
        if live:
            self.store.stop_planning(connection, live)
        since = {due.ident: due.at for due in dues}
        for _, facts, _ in planned:
            if facts.id in made:
                batch.done.append((now - since[facts.id]).total_seconds())
            else:
                batch.leave(LOST, facts.id)
        return batch

    # ------------------------------------------------------------------ open

    def _open(self, connection: Connection, dues: Sequence[Due], now: datetime) -> Batch:
        batch, opened, groups = Batch(), dict[int, Opened](), dict[int, tuple[str, int, bool]]()
        later = dict[int, tuple[int, Moved]]()
        limit = timedelta(seconds=self.settings.rounds_late_open_limit)
        for tenant, notifies, facts in self._facts(connection, [due.ident for due in dues]):
            try:
                decision = open_round(facts, now, limit, self.draw())
            except Exception as error:  # a zone or a time written by hand (T000-n)
                batch.failed[facts.group_id] = _problem(error)
                continue
            if isinstance(decision, Left):
                batch.leave(decision.reason, facts.group_id)
                continue
            if isinstance(decision, Moved):
                later[facts.id] = facts.group_id, decision
                continue
            opened[facts.id] = decision
            groups[facts.id] = tenant, facts.group_id, notifies
        waiting = self.store.move_rounds(connection, {ident: decision for ident, (_, decision) in later.items()}, now)
        for ident, (group, decision) in later.items():
            batch.leave(HOUR_PASSED if ident in waiting else LOST, group)
            if ident in waiting:
                batch.moved.append(decision.late)
        moved = self.store.open_rounds(connection, opened, now)
        for ident, decision in opened.items():
            if ident in moved:
                batch.done.append(decision.late)
            else:
                batch.leave(LOST, groups[ident][1])
        telling = {
            group: (ident, tenant) for ident, (tenant, group, notifies) in groups.items() if notifies and ident in moved
        }
        batch.told = self.notices.make(connection, self.store, telling)
        self.store.note_well(connection, [groups[ident][1] for ident in moved])
        return batch

    def _facts(self, connection: Connection, idents: Sequence[int]) -> list[tuple[str, bool, RoundFacts]]:
        """What is known of rounds; of those whose prompt is not there any more also what it can be replaced by."""
        found = self.store.rounds(connection, idents)
        orphans = [facts.group_id for _, _, facts in found if not facts.prompt_is_active]
        if not orphans:
            return found
        known = self.store.groups(connection, orphans, "", 0)
        out = []
        for tenant, notifies, facts in found:
            if not facts.prompt_is_active:
                group = known[facts.group_id][1]
                used = [past.prompt_id for past in group.rounds if past.status is not Status.SCHEDULED]
                facts = replace(facts, prompts=group.prompts, used=used)
            out.append((tenant, notifies, facts))
        return out

    # ------------------------------------------------------------------ close

    def _close(self, connection: Connection, dues: Sequence[Due], now: datetime) -> Batch:
        batch = Batch()
        closed = self.store.close_rounds(connection, [due.ident for due in dues], now, self.settings.rounds_cooldown)
        for due in dues:
            if due.ident in closed:
                batch.done.append((now - due.at).total_seconds())
            else:
                batch.leave(LOST, due.group_id)
        return batch

    # ------------------------------------------------------------------ telling

    def _tell(self, kind: Kind, batch: Batch) -> None:
        if batch.moved:
            self.emitter.emit(
                "rounds_postponed",
                "warning",
                count=len(batch.moved),
                groups=batch.left[HOUR_PASSED][:NAMED],
                late=max(batch.moved),
            )
        if batch.done:
            self.emitter.emit("rounds_moved", "info", kind=kind, count=len(batch.done), lates=batch.done)
        for reason, idents in batch.left.items():
            if reason != COOLDOWN:
                self.emitter.emit(
                    "rounds_left", "info", kind=kind, reason=reason, count=len(idents), groups=idents[:NAMED]
                )
        for group, problem in batch.failed.items():
            self.emitter.emit("round_failed", "error", kind=kind, group=group, error=problem)


def _problem(error: Exception) -> str:
    return str(error) if isinstance(error, InvalidArgument) else brief(error)

"""What should have the slot next, given the facts and the present instant. Pure.

The next execution of an automation is computed from its schedule and its history, and stored nowhere (R001-3, R001-8). Its history is made of
scheduled executions only: one that a person or an event asked for eats no planned occurrence (T001-j).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from duly.automations.session import (
    RESUMABLE,
    ExecutionTrigger,
    RoundReason,
    SessionEndReason,
    SessionType,
    resume_reason,
)
from duly.kernel.localtime import TICK
from duly.kernel.recurrence import Schedule

#: Occurrences that are left out are counted as far as this.
COUNTED = 1_000


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A session that had the slot, does not have it now, and has not ended. Instants are aware, in UTC."""

    session_id: int
    scheduled_at: datetime
    end_reason: SessionEndReason | None = None
    #: When it lost the slot.
    ended_at: datetime | None = None
    #: It does not go on before this.
    resume_at: datetime | None = None
    trigger: ExecutionTrigger = ExecutionTrigger.SCHEDULED


@dataclass(frozen=True, slots=True)
class AutomationFacts:
    """What is known of an enabled automation."""

    id: int
    #: None: only people and events run it.
    schedule: Schedule | None
    #: Occurrences up to this instant are not wanted: it was made, switched on, or given this schedule then (T001-i).
    reference_at: datetime
    #: The planned instant of its last execution that has ended, or up to which occurrences were left out.
    completed_until: datetime | None = None
    incomplete: Sequence[Incomplete] = ()
    #: Of several missed occurrences only the latest runs (T001-k).
    dismiss_older_instances: bool = False
    #: How far back missed occurrences still run.
    catch_up_window: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A stretch of occurrences that are left out: the first, the last, how many (counted as far as ``COUNTED``)."""

    first_at: datetime
    last_at: datetime
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    """A session goes on. ``cancels``: older ones of its automation that are not wanted any more (T001-r)."""

    session_id: int
    automation_id: int
    scheduled_for: datetime
    reason: RoundReason
    cancels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Create:
    """An occurrence is executed. ``skips``: those before it that are not."""

    automation_id: int
    scheduled_for: datetime
    skips: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing is due."""


NextSession: TypeAlias = Resume | Create | Nothing


class AutomationScheduler:
    """Computes which session is next. It knows of no slot and no queue, and writes nothing."""

    def get_next_session(self, facts: Iterable[AutomationFacts], now: datetime) -> NextSession:
        """The candidate that was due first. ``now``: aware, in UTC.

        Of two that are due at the same instant one that goes on comes first, then the lower id (R001-7). One that waited for the network
        counts from when it lost the slot, so that others get their turn (T001-m).
        """
        return next(iter(self.in_order(facts, now)), Nothing())

    def in_order(self, facts: Iterable[AutomationFacts], now: datetime) -> list[Resume | Create]:
        """All that could have the slot, one for each automation at most, in the order in which they get it."""
        found = [candidate for each in facts for candidate in self._candidate(each, now)]
        return [next_session for _, next_session in sorted(found, key=lambda one: one[0])]

    def left_out(self, facts: Iterable[AutomationFacts], now: datetime) -> list[tuple[int, Skipped]]:
        """Occurrences that are due and that nothing follows: all of them are older than ``catch_up_window``. (Automation, what is left out.)
        Where a later one is executed, its ``Create`` says what was left out before it."""
        found = []
        for each in facts:
            first = None if each.schedule is None or each.incomplete else _following(each.schedule, decided_until(each))
            if first is None or first > now or each.catch_up_window is None or self._due(each, now) is not None:
                continue
            assert each.schedule is not None
            found.append((each.id, _skipped(each.schedule, first, now + TICK, "catch_up_window")))
        return found

    def _candidate(
        self, facts: AutomationFacts, now: datetime
    ) -> Iterable[tuple[tuple[datetime, int, int], Resume | Create]]:
        """At most one for each automation: what is incomplete, else what is planned (R001-4)."""
        if facts.incomplete:
            ready = [one for one in facts.incomplete if _is_ready(one, now)]
            if not ready:
                return
            oldest_first = sorted(ready, key=lambda one: (one.scheduled_at, one.session_id))
            older: list[int] = []
            if facts.dismiss_older_instances:
                # of what was planned only the latest is wanted; what people and events have asked for is no older instance of it
                planned = [one for one in oldest_first if one.trigger is ExecutionTrigger.SCHEDULED]
                older = [one.session_id for one in planned[:-1]]
                oldest_first = [one for one in oldest_first if one.session_id not in older]
            chosen = oldest_first[0]
            waited = chosen.end_reason is SessionEndReason.NETWORK_ERROR and chosen.ended_at is not None
            at = chosen.ended_at if waited and chosen.ended_at is not None else chosen.scheduled_at
            resume = Resume(
                chosen.session_id, facts.id, chosen.scheduled_at, resume_reason(chosen.end_reason), tuple(older)
            )
            yield (at, 0, facts.id), resume
            return
        create = self._due(facts, now)
        if create is not None:
            yield (create.scheduled_for, 1, facts.id), create

    def _due(self, facts: AutomationFacts, now: datetime) -> Create | None:
        """The occurrence of an automation that is to be executed at ``now``."""
        schedule = facts.schedule
        if schedule is None:
            return None
        first = _following(schedule, decided_until(facts))
        if first is None or first > now:
            return None
        skips: list[Skipped] = []
        wanted = first
        if facts.catch_up_window is not None:
            oldest = now - facts.catch_up_window
            if wanted < oldest:
                nearer = schedule.next_after(oldest - TICK)
                skips.append(_skipped(schedule, wanted, oldest, "catch_up_window"))
                if nearer is None or nearer > now:  # all that is due is too old
                    return None
                wanted = nearer
        if facts.dismiss_older_instances:
            latest = schedule.previous_before(now + TICK)
            if latest is not None and latest > wanted:
                skips.append(_skipped(schedule, wanted, latest, "dismissed"))
                wanted = latest
        if merged := schedule.merged_at(wanted):  # these local times were left out by the clock, and run once (T002-g)
            times = ",".join(f"{local:%H:%M:%S}".removesuffix(":00") for local in merged)
            skips.append(Skipped(wanted, wanted, len(merged) - 1, f"gap={times}"))
        return Create(facts.id, wanted, tuple(skips))


def decided_until(facts: AutomationFacts) -> datetime:
    """Occurrences up to and including this instant have had their turn, or are not wanted."""
    return facts.reference_at if facts.completed_until is None else max(facts.reference_at, facts.completed_until)


def dropped(facts: AutomationFacts, now: datetime, reason: str) -> Skipped | None:
    """The occurrences up to ``now`` that have had no turn, and get none any more: it is switched off, removed, or planned anew.

    Those whose execution was interrupted had theirs.
    """
    planned = [one.scheduled_at for one in facts.incomplete if one.trigger is ExecutionTrigger.SCHEDULED]
    until = max([decided_until(facts), *planned])
    first = None if facts.schedule is None else facts.schedule.next_after(until)
    if first is None or first > now:
        return None
    assert facts.schedule is not None
    return _skipped(facts.schedule, first, now + TICK, reason)


@lru_cache(maxsize=20_000)
def _following(schedule: Schedule, after: datetime) -> datetime | None:
    """The first planned instant later than another. Remembered: passes ask the same of thousands of automations, until one is executed."""
    return schedule.next_after(after)


def _is_ready(one: Incomplete, now: datetime) -> bool:
    # one that stopped for a reason that only newer code knows is left to newer code
    is_resumable = one.end_reason is None or one.end_reason in RESUMABLE
    return is_resumable and (one.resume_at is None or one.resume_at <= now)


def _skipped(schedule: Schedule, first: datetime, until: datetime, reason: str) -> Skipped:
    """The occurrences from ``first`` until before ``until``."""
    count, last = 0, first
    for at in schedule.occurrences(first, until, COUNTED):
        count, last = count + 1, at
    if count == COUNTED:
        before = schedule.previous_before(until)
        last = last if before is None else max(last, before)
    return Skipped(first, last, count, reason)


def next_look(facts: Iterable[AutomationFacts], now: datetime) -> datetime | None:
    """When the answer of the scheduler may change by itself: an occurrence comes due, or a pause ends. None: not by time."""
    looks: list[datetime] = []
    for each in facts:
        for one in each.incomplete:
            if one.resume_at is not None and one.resume_at > now:
                looks.append(one.resume_at)
        following = None if each.incomplete else upcoming(each, now)
        if following is not None:
            looks.append(following)
    return min(looks, default=None)


def upcoming(facts: AutomationFacts, now: datetime) -> datetime | None:
    """The first planned instant that is still to come. One that has come is not it: it is due, or nobody wants it any more."""
    if facts.schedule is None:
        return None
    following = _following(facts.schedule, decided_until(facts))
    return following if following is None or following > now else facts.schedule.next_after(now)


# ---------------------------------------------------------------------- the watchdog


@dataclass(frozen=True, slots=True)
class Holder:
    """The session that has the slot."""

    type: SessionType
    last_activity_at: datetime
    is_waiting_for_network: bool = False
    #: The job that runs it: None while none is wanted, False for one that is not alive any more.
    is_run: bool | None = None
    #: How often in a row a worker was lost with it.
    crashes: int = 0
    #: Its job was cancelled by an operator.
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Watch:
    """When the watchdog and others take the slot from a session. ``crash_cap``: after so many crashes in a row it ends."""

    max_inactivity: timedelta = timedelta(minutes=10)
    chat_eviction: timedelta = timedelta(minutes=5)
    crash_cap: int = 3


@dataclass(frozen=True, slots=True)
class Stopped:
    """The slot is taken. ``end_reason`` None: by a crash."""

    end_reason: SessionEndReason | None
    detail: str
    #: What events and the audit trail say instead, where the detail may repeat what was said in the session.
    told: str | None = None


def inactivity(last: datetime, now: datetime) -> timedelta:
    """How long nothing has happened; none if the clock was set back (T001-v)."""
    return max(timedelta(0), now - last)


def should_stop_inactive_session(held: Holder, watch: Watch, now: datetime) -> Stopped | None:
    """Does a session lose the slot, and why? Exactly at the limit it does not (R001-9); a chat never does by time alone (R001-10)."""
    if held.is_run is False:
        if held.is_cancelled:
            return Stopped(SessionEndReason.CANCELLED, "its job was cancelled")
        if held.crashes + 1 > watch.crash_cap and held.type is SessionType.AUTOMATION:
            detail = f"its worker was lost {held.crashes + 1} times in a row"
            return Stopped(SessionEndReason.ERROR, detail)
        if held.type is SessionType.AUTOMATION:
            return Stopped(None, "its worker was lost")
        return None
    if held.type is not SessionType.AUTOMATION or inactivity(held.last_activity_at, now) <= watch.max_inactivity:
        return None
    idle = _minutes(watch.max_inactivity)
    if held.is_waiting_for_network:
        return Stopped(SessionEndReason.NETWORK_ERROR, f"it waited for the network for more than {idle}")
    return Stopped(SessionEndReason.TIMEOUT, f"nothing happened for more than {idle}")


def gives_way(held: Holder, watch: Watch, now: datetime) -> bool:
    """Is it a chat that nobody has used for so long that an automation takes its slot (R001-11)?

    While it is being answered its person waits, and does use it: then it is kept for as long as an automation would be.
    """
    span = max(watch.chat_eviction, watch.max_inactivity) if held.is_run else watch.chat_eviction
    return held.type is SessionType.CHAT and inactivity(held.last_activity_at, now) > span


def _minutes(span: timedelta) -> str:
    minutes = span.total_seconds() / 60
    return f"{minutes:g} min"


# ---------------------------------------------------------------------- the queue


@dataclass(frozen=True, slots=True)
class Waiting:
    """A session that waits for the slot."""

    session_id: int
    type: SessionType
    queued_at: datetime


def queue(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Those who wait in their order: a chat before what people and events run, the first to come first (R001-13)."""
    return sorted(waiting, key=lambda one: (one.type is not SessionType.CHAT, one.queued_at, one.session_id))


def next_in_queue(waiting: Iterable[Waiting]) -> Waiting | None:
    """Who is first in the queue."""
    return next(iter(queue(waiting)), None)


# ---------------------------------------------------------------------- bounds


@dataclass(frozen=True, slots=True)
class Limits:
    """What one execution, and all of a local day, may use. None is no bound. Cents."""

    max_rounds: int = 20
    max_calls: int = 100
    max_tokens: int | None = None
    max_cents: float | None = None
    max_tokens_per_day: int | None = None
    max_cents_per_day: float | None = None
    #: How often events of Duly's own may run it within an hour.
    max_event_runs_per_hour: int | None = 20

    @property
    def bounds_cents(self) -> bool:
        return (self.max_cents, self.max_cents_per_day) != (None, None)

    @property
    def bounds_use(self) -> bool:
        """Is there a bound in tokens or cents?"""
        return self.bounds_cents or (self.max_tokens, self.max_tokens_per_day) != (None, None)


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used: by this execution, and by all of this automation since its local midnight."""

    rounds: int = 0
    calls: int = 0
    tokens: int = 0
    cost_micros: int = 0
    tokens_today: int = 0
    cost_micros_today: int = 0


def exhausted(limits: Limits, spent: Spent) -> str | None:
    """Why no further question is asked: the bound that is reached, in a sentence. None: it may be (T001-n)."""
    if spent.rounds >= limits.max_rounds:
        return f"it has asked {spent.rounds} questions, and may ask {limits.max_rounds} (limits.max_rounds)"
    for used, most, unit, name in (
        (spent.tokens, limits.max_tokens, "tokens", "max_tokens"),
        (spent.tokens_today, limits.max_tokens_per_day, "tokens today", "max_tokens_per_day"),
        (spent.cost_micros / 1e6, limits.max_cents, "cents", "max_cents"),
        (spent.cost_micros_today / 1e6, limits.max_cents_per_day, "cents today", "max_cents_per_day"),
    ):
        if most is not None and used >= most:
            return f"it has used {_number(used)} {unit}, and may use {_number(most)} (limits.{name})"
    return None


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"

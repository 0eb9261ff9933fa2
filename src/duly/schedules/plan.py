"""What should happen to a schedule's occurrences, given its facts and the present instant. Pure.

The order of the questions: is it due; is the schedule paused; was it found in time (catch-up); does a blackout cover it; does an
earlier job still live (overlap). Each occurrence that is due leaves here with one decision, in order of its planned instant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from duly.kernel.localtime import TICK
from duly.kernel.recurrence import Schedule as Recurrence
from duly.kernel.windows import Calendar
from duly.schedules.schedule import LIFECYCLE, Policies, Status

#: How soon to look again at what waits for an earlier job.
LOOK_AGAIN = timedelta(seconds=1)
#: How soon to look again at what waits for the end of a blackout, in case somebody ends it sooner.
LOOK_BLACKOUT = timedelta(seconds=60)
#: Occurrences decided at once. More go on at the next look, which comes at once.
PORTION = 500


@dataclass(frozen=True, slots=True)
class Waiting:
    """A deferred occurrence: its planned instant and what it waits for."""

    due_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a schedule when somebody looks."""

    recurrence: Recurrence
    policies: Policies
    #: Every occurrence up to and including this instant is decided.
    decided_until: datetime
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    paused: bool = False
    #: The blackouts that apply to it.
    calendar: Calendar = field(default_factory=Calendar)
    #: Deferred occurrences, in order.
    waiting: Sequence[Waiting] = ()
    #: There are more of them than these.
    more_waiting: bool = False
    #: How many jobs of earlier occurrences have not ended.
    alive: int = 0
    #: Occurrences behind ``decided_until`` that have fired already: by a clock that was ahead.
    fired: Collection[datetime] = frozenset()
    #: An occurrence found within this span is not late.
    grace: timedelta = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one occurrence."""

    due_at: datetime
    status: Status
    reason: str | None
    policy: str
    #: For ``fired``: when the job is to start.
    start_at: datetime | None = None
    #: For ``deferred``: when to look again.
    release_at: datetime | None = None
    #: Did it stand in the ledger before, deferred?
    known: bool = False
    #: It waits on for what it waited for, so there is nothing to write.
    same: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write."""

    decisions: tuple[Decision, ...]
    decided_until: datetime
    next_at: datetime | None
    look_at: datetime | None
    #: Cancel the jobs that are alive: a newer occurrence takes their place.
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class _Due:
    """An occurrence that wants to run."""

    due_at: datetime
    #: What it waited for; None for a new one.
    waited: str | None = None
    #: It fell into a blackout, which is over now.
    after_blackout: bool = False
    #: It was found late, and the catch-up policy wants it.
    late: bool = False


def plan(facts: Facts, now: datetime, most: int = PORTION) -> Plan:
    """Decide everything that is due at ``now`` (aware, in UTC), at most ``most`` new occurrences."""
    first = facts.decided_until + TICK if facts.starts_at is None else max(facts.decided_until + TICK, facts.starts_at)
    stop = now + TICK if facts.ends_at is None else min(now + TICK, facts.ends_at)
    due = list(facts.recurrence.occurrences(first, stop, most)) if first < stop else []
    decided: dict[datetime, Decision] = {}
    runnable = _released(facts, now, decided)
    for at in due:
        if at not in facts.fired:
            _look_at(facts, at, now, decided, runnable)
    until = due[-1] if due else facts.decided_until
    next_at = next_planned(facts, until)
    if facts.policies.blackout == "run_after":
        runnable = _one_after_each_blackout(facts, runnable, decided, now, until)
    replaces = _overlap(facts, runnable, now, decided)
    releases = [d.release_at for d in decided.values() if d.status is Status.DEFERRED and d.release_at is not None]
    looks = releases if next_at is None else [next_at, *releases]
    if facts.more_waiting:
        looks.append(now + LOOK_AGAIN)
    decisions = tuple(_with_gap(facts, decided[at]) for at in sorted(decided))
    return Plan(decisions, until, next_at, min(looks, default=None), replaces)


def next_planned(facts: Facts, after: datetime) -> datetime | None:
    """The first planned instant later than ``after``, within the bounds of the schedule."""
    if facts.starts_at is not None:
        after = max(after, facts.starts_at - TICK)
    found = facts.recurrence.next_after(after)
    return None if found is not None and facts.ends_at is not None and found >= facts.ends_at else found


def is_wanted_late(facts: Facts, at: datetime, now: datetime) -> bool:
    """Does the catch-up policy want an occurrence that is found at ``now``?"""
    late, wants = now - at, facts.policies.catch_up
    if late <= facts.grace or wants == "all":
        return True
    if isinstance(wants, timedelta):
        return late <= wants
    if wants == "none":
        return False
    stop = now + TICK if facts.ends_at is None else min(now + TICK, facts.ends_at)
    return at == facts.recurrence.previous_before(stop)


def _look_at(
    facts: Facts, at: datetime, now: datetime, decided: dict[datetime, Decision], runnable: list[_Due]
) -> None:
    """Decide a new occurrence, or put it among those that want to run."""
    policies = facts.policies
    if facts.paused:
        decided[at] = Decision(at, Status.SKIPPED, "paused", "paused")
        return
    if not is_wanted_late(facts, at, now):
        decided[at] = Decision(at, Status.MISSED, "late", f"catch_up={policies.catch_up_text}")
        return
    covered = facts.calendar.covers(at)
    if covered and policies.blackout == "skip":
        decided[at] = Decision(at, Status.SKIPPED, "blackout", "blackout=skip")
        return
    if facts.calendar.covers(now):
        if not covered and now - at <= facts.grace:  # it was planned before the blackout, and is on time
            runnable.append(_Due(at))
            return
        decided[at] = _held(facts, at, _free_again(facts, now))
        return
    runnable.append(_Due(at, after_blackout=covered, late=now - at > facts.grace))


def _free_again(facts: Facts, now: datetime) -> datetime:
    """When to look again at what a blackout holds: at its end, or sooner in case somebody ends it."""
    end = facts.calendar.free_from(now)
    return now + LOOK_BLACKOUT if end is None else min(end, now + LOOK_BLACKOUT)


def _held(facts: Facts, at: datetime, again: datetime, waited: str | None = None) -> Decision:
    """Deferred by the blackout that covers the present; what waited for something else goes on waiting for that."""
    policy = f"blackout={facts.policies.blackout}"
    return Decision(
        at,
        Status.DEFERRED,
        waited or "blackout",
        policy,
        release_at=again,
        known=waited is not None,
        same=waited is not None,
    )


def _released(facts: Facts, now: datetime, decided: dict[datetime, Decision]) -> list[_Due]:
    """Those deferred before that want to run now; the others go on waiting."""
    free = []
    covered = bool(facts.waiting) and facts.calendar.covers(now)
    again = _free_again(facts, now) if covered else now
    for each in facts.waiting:
        if facts.paused and each.reason != "backfill":
            decided[each.due_at] = Decision(each.due_at, Status.SKIPPED, "paused", "paused", known=True)
        elif covered and each.reason != "backfill":
            decided[each.due_at] = _held(facts, each.due_at, again, each.reason)
        else:
            free.append(_Due(each.due_at, each.reason, after_blackout=each.reason == "blackout"))
    return free


def _one_after_each_blackout(
    facts: Facts, runnable: list[_Due], decided: dict[datetime, Decision], now: datetime, until: datetime
) -> list[_Due]:
    """Of those that were planned within one stretch of blackout only the last one runs, however many stretches are looked at together.

    What was planned before a blackout and is held by it, as it was found late, is none of its own: it runs besides. ``until``: the last
    occurrence that is looked at now.
    """
    held = [at for at, d in decided.items() if d.status is Status.DEFERRED and d.reason == "blackout"]
    stretches: list[tuple[datetime | None, list[datetime]]] = []
    for at in sorted([*held, *(due.due_at for due in runnable if due.after_blackout)]):
        if stretches and ((end := stretches[-1][0]) is None or at < end):
            stretches[-1][1].append(at)
        else:  # one that no blackout covers is free from its own instant on
            stretches.append((facts.calendar.free_from(at), [at]))
    left_out: set[datetime] = set()
    for end, planned in stretches:
        left_out.update(planned if _is_followed(facts, end, now, until) else planned[:-1])
    waited = {each.due_at for each in facts.waiting}
    for at in left_out:
        decided[at] = Decision(at, Status.SKIPPED, "blackout", "blackout=run_after", known=at in waited)
    return [due for due in runnable if due.due_at not in left_out]


def _is_followed(facts: Facts, end: datetime | None, now: datetime, until: datetime) -> bool:
    """Is an occurrence of the blackout that ends at ``end`` due as well that is only looked at next, behind ``until``, and will be wanted?"""
    stops = [stop for stop in (now + TICK, end, facts.ends_at) if stop is not None]
    last = facts.recurrence.previous_before(min(stops))
    return last is not None and last > until and is_wanted_late(facts, last, now)


def _overlap(facts: Facts, runnable: list[_Due], now: datetime, decided: dict[datetime, Decision]) -> bool:
    """Decide those that want to run by what is alive. Returns whether the living are to be cancelled."""
    rule, alive = facts.policies.overlap, facts.alive
    policy = f"overlap={rule}"
    wanted = sorted(runnable, key=lambda due: due.due_at)
    last = max((due.due_at for due in wanted if due.waited != "backfill"), default=None)
    replaces = rule == "replace" and alive > 0 and last is not None
    # what an operator had run again waits for what is due by itself
    for due in sorted(wanted, key=lambda due: (due.waited == "backfill", due.due_at)):
        known = due.waited is not None
        if rule == "allow":
            decided[due.due_at] = _fired(facts, due, "")
        elif rule == "replace" and due.waited != "backfill" and due.due_at != last:
            decided[due.due_at] = Decision(due.due_at, Status.SKIPPED, "replaced", policy, known=known)
        elif alive == 0:
            decided[due.due_at] = _fired(facts, due, policy)
            alive += 1
        elif rule == "skip" and due.waited != "backfill":
            decided[due.due_at] = Decision(due.due_at, Status.SKIPPED, "overlap", policy, known=known)
        else:
            reason = "backfill" if due.waited == "backfill" else "overlap"
            decided[due.due_at] = Decision(
                due.due_at,
                Status.DEFERRED,
                reason,
                policy,
                release_at=now + LOOK_AGAIN,
                known=known,
                same=due.waited == reason,
            )
    return replaces


def _fired(facts: Facts, due: _Due, policy: str) -> Decision:
    said = [f"catch_up={facts.policies.catch_up_text}"] if due.late else []
    if due.after_blackout:
        said.append(f"blackout={facts.policies.blackout}")
    if policy:
        said.append(policy)
    start = due.due_at if due.waited == "backfill" else facts.recurrence.jittered(due.due_at)
    return Decision(due.due_at, Status.FIRED, due.waited, " ".join(said), start_at=start, known=due.waited is not None)


def _with_gap(facts: Facts, decision: Decision) -> Decision:
    """Local times that the clock left out together are one occurrence: whatever becomes of it, the record names them (T002-g)."""
    merged = () if decision.same else facts.recurrence.merged_at(decision.due_at)
    if not merged:
        return decision
    gap = f"gap={','.join(f'{local:%H:%M:%S}'.removesuffix(':00') for local in merged)}"
    return replace(decision, policy=f"{decision.policy} {gap}".strip())


def undecided(decided_until: datetime, next_at: datetime | None, now: datetime, act: str) -> Plan | None:
    """What is put on record where a person changes a schedule that cannot be planned: that its occurrences until ``now``, of which only the first
    is known, are not decided any more. None where none is due."""
    if next_at is None or not decided_until < next_at <= now:
        return None
    first = Decision(next_at, Status.SKIPPED, "undecided", f"{act} until={now.isoformat()}")
    return Plan((first,), now, None, now)


def checked(plan: Plan) -> Plan:
    """The plan itself, if every move in it is one of the lifecycle's."""
    moves = {Status.FIRED: "fire", Status.SKIPPED: "skip", Status.MISSED: "miss", Status.DEFERRED: "defer"}
    for decision in plan.decisions:
        LIFECYCLE.target(Status.DEFERRED if decision.known else None, moves[decision.status])
    return plan

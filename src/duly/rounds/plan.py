"""What should happen to a group or a round now? Pure: facts, an instant, and a number that somebody else has drawn.

Local dates and times are turned into instants before anything is compared (T000-d): "the date is reached and the time is reached",
asked apart, waits almost a day for a tick after midnight, and turns false again in a repeated hour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from duly.kernel.localtime import TICK, instant_on, local_date
from duly.rounds.group import read_drop_time
from duly.rounds.round import LIFECYCLE, OPEN_FOR, Status

#: A prompt is not chosen again within so many rounds (R000-7).
NO_REPEAT = 7
#: The planning tick runs at the full hour (R000-3) where nothing else is said.
PLAN_EVERY = timedelta(hours=1)
#: Dates that the outlook asks: passes at an odd hour may all come too late for a round that was moved.
MOST_DATES = 370

#: A group whose round was moved, and that is free again later than this after its local time, waits for the next date: so it comes back to
#: its hour.
LATE = timedelta(hours=2)

#: Why a group or a round was left as it is.
NO_ELIGIBLE_PROMPT = "NO_ELIGIBLE_PROMPT"
INACTIVE, LIVE, COOLDOWN, DATE_TAKEN, NOT_DUE = "inactive", "live", "cooldown", "date_taken", "not_due"
HOUR_PASSED = "hour_passed"
#: No pass of the planning tick is in sight: its schedule is paused, or at its end.
UNPLANNED = "unplanned"
#: Somebody else has the group's lock, or was there first.
LOCKED, LOST = "locked", "lost"


@dataclass(frozen=True, slots=True)
class Past:
    """A round of the group, as far as planning is concerned."""

    scheduled_for: date
    status: Status
    prompt_id: int | None = None
    close_at: datetime | None = None
    #: It opened so late that its hours count from another instant than the planned one (T000-f).
    moved: bool = False


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What is known of a group when somebody plans."""

    id: int
    zone: str
    drop_time: str
    cooldown: timedelta
    is_active: bool = True
    #: Its latest rounds by ``scheduled_for``, the latest first; at least ``NO_REPEAT`` of them where there are so many.
    rounds: Sequence[Past] = ()
    #: Its active prompts.
    prompts: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """A round to be made."""

    scheduled_for: date
    #: The instant at which it is to open, and the one from which the opening tick takes it.
    planned_at: datetime
    due_at: datetime
    prompt_id: int


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing is done; ``until`` is when there is something to do again, None when nobody knows."""

    reason: str
    until: datetime | None = None


def plan_round(facts: GroupFacts, now: datetime, draw: float, late: timedelta = LATE) -> Planned | Left:
    """The next round of a group, or why there is none (R000-4 to R000-9, T000-a, T000-b).

    ``draw``: a number from 0 until before 1, by which the prompt is chosen. ``late``: how long after its local time a group whose last
    round was moved may be free again and still have a round on that date; every other group has it at once, whatever the hour. Raises
    InvalidArgument for a zone or a local time that cannot be read (T000-n).
    """
    latest = facts.rounds[0] if facts.rounds else None
    if not facts.is_active:
        return Left(INACTIVE)
    if latest is not None:
        if latest.status is not Status.CLOSED or latest.close_at is None:
            return Left(LIVE)
        free = latest.close_at + facts.cooldown
        if now < free:
            return Left(COOLDOWN, free)
    today = local_date(now, facts.zone)
    planned_at = instant_on(today, read_drop_time(facts.drop_time), facts.zone)
    if any(past.scheduled_for == today for past in facts.rounds):
        return Left(DATE_TAKEN)
    if latest is not None and latest.moved and now - planned_at > late:
        # Opened now, it would be as late again after the next day of waiting, and the next: an outage would move the hour for good.
        return Left(HOUR_PASSED, next_date(today, facts.zone))
    prompt = choose(facts.prompts, [past.prompt_id for past in facts.rounds], draw)
    if prompt is None:
        return Left(NO_ELIGIBLE_PROMPT)
    LIFECYCLE.target(None, "plan")
    return Planned(today, planned_at, max(planned_at, now), prompt)


def choose(prompts: Collection[int], used: Sequence[int | None], draw: float) -> int | None:
    """One of the active prompts, each as likely as any other, that is none of the last seven used (R000-7, T000-h, T000-i).

    ``used``: the prompts of the group's rounds, the latest first. Where that leaves none, the oldest exclusions are dropped, one
    round after the other, so that of few prompts the one that was longest unused comes next; the very last one is repeated only
    where it is the only one. None where there is no active prompt.
    """
    for window in range(min(NO_REPEAT, len(used)), -1, -1):
        eligible = sorted(set(prompts) - set(used[:window]))
        if eligible:
            return eligible[int(draw * len(eligible))]
    return None


# --- Opening -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What is known of a scheduled round when somebody opens it."""

    id: int
    group_id: int
    planned_at: datetime
    due_at: datetime | None
    prompt_id: int | None
    status: Status = Status.SCHEDULED
    group_is_active: bool = True
    prompt_is_active: bool = True
    #: Asked for only where the prompt must be chosen again: the group's active prompts, and those of its other rounds.
    prompts: Collection[int] = ()
    used: Sequence[int | None] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """What is written of a round that opens."""

    open_at: datetime
    close_at: datetime
    #: Seconds, from when it was due.
    late: float
    prompt_id: int


def open_round(facts: RoundFacts, now: datetime, late_limit: timedelta, draw: float) -> Opened | Left:
    """Open a round that is due, or say why not (R000-10, R000-11, T000-e, T000-f, T000-j, T000-k)."""
    if not LIFECYCLE.allows(facts.status, "open"):
        return Left(LOST)
    if not facts.group_is_active:
        return Left(INACTIVE)
    if facts.due_at is None or now < facts.due_at:
        return Left(NOT_DUE, facts.due_at)
    prompt = facts.prompt_id
    if prompt is None or not facts.prompt_is_active:
        prompt = choose(facts.prompts, facts.used, draw)
        if prompt is None:
            return Left(NO_ELIGIBLE_PROMPT)
    # Members go by the planned instant, so that the hour does not drift with the ticks; but nobody loses hours to an outage.
    open_at = facts.planned_at if now - facts.planned_at <= late_limit else now
    return Opened(open_at, open_at + OPEN_FOR, (now - facts.due_at).total_seconds(), prompt)


# --- Looking ahead -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Upcoming:
    """The next opening of a group, as far as it is known now."""

    group_id: int
    #: None where there is none in sight; ``reason`` says why.
    at: datetime | None
    #: The local date of that round.
    scheduled_for: date | None = None
    #: Is the round planned already, and not only foreseen?
    planned: bool = False
    reason: str = ""


def upcoming(
    facts: GroupFacts, now: datetime, due_at: datetime | None = None, late: timedelta = LATE, passes: Callable[[datetime], datetime | None] | None = None
) -> Upcoming:  # fmt: skip
    """When the next round of a group opens, if nothing is changed and the ticks come in time.

    ``due_at``: of the round that is scheduled, if there is one; ``late`` as in ``plan_round``; ``passes``: the first pass of the planning tick at or after an
    instant. A round that is only foreseen is planned by the first pass after its group is free, which decides its date. Raises InvalidArgument as ``plan_round``.
    """
    following = passes or full_hour
    latest = facts.rounds[0] if facts.rounds else None
    if not facts.is_active:
        return Upcoming(facts.id, None, reason=INACTIVE)
    if latest is not None and latest.status is Status.SCHEDULED:
        at = None if due_at is None else max(due_at, now)
        return Upcoming(facts.id, at, latest.scheduled_for, planned=True)
    if not facts.prompts:
        return Upcoming(facts.id, None, reason=NO_ELIGIBLE_PROMPT)
    free = now
    if latest is not None and latest.close_at is not None:
        free = max(now, latest.close_at + facts.cooldown)
    at = following(free)
    taken, drop_time = {past.scheduled_for for past in facts.rounds}, read_drop_time(facts.drop_time)
    for _ in range(MOST_DATES):
        if at is None:
            return Upcoming(facts.id, None, reason=UNPLANNED)
        today = local_date(at, facts.zone)
        opens = instant_on(today, drop_time, facts.zone)
        if today not in taken and (latest is None or not latest.moved or at - opens <= late):
            return Upcoming(facts.id, max(opens, at), today)
        at = following(next_date(today, facts.zone))
    return Upcoming(facts.id, None, reason=HOUR_PASSED)


def next_date(day: date, zone: str) -> datetime:
    """The instant at which the date behind ``day`` begins in a zone."""
    return instant_on(day + timedelta(days=1), time(), zone)


def full_hour(instant: datetime) -> datetime:
    """The first full hour (UTC) at or after an instant."""
    floor = instant.replace(minute=0, second=0, microsecond=0)
    return floor if floor > instant - TICK else floor + PLAN_EVERY


def replanned(scheduled_for: date, drop_time: str, zone: str, now: datetime) -> tuple[datetime, datetime]:
    """(planned_at, due_at) of a scheduled round whose group changed its zone or its time (R000-21), or became active again.

    What is in the past is due from now on, and late from now on.
    """
    planned_at = instant_on(scheduled_for, read_drop_time(drop_time), zone)
    return planned_at, max(planned_at, now)

"""What should happen to a group or a round now? Pure: facts, an instant, and a number that somebody else has drawn.

Local dates and times are turned into instants before anything is compared (T000-d): "the date is reached and the time is reached",
asked apart, waits almost a day for a tick after midnight, and turns false again in a repeated hour.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import instant_on, local_date
from duly.kernel.localtime import zone as read_zone
from duly.rounds.group import read_drop_time
from duly.rounds.round import LIFECYCLE, OPEN_FOR, Status

#: A prompt is not chosen again within so many rounds (R000-7).
NO_REPEAT = 7
#: Dates that a search for the next hour looks at: more than can be taken.
MOST_DATES = 370

#: Rounds that an outage has delayed do not open at night, by the clock of their group: it would tell everybody.
NIGHT, MORNING = time(22), time(7)

#: Why a group or a round was left as it is.
NO_ELIGIBLE_PROMPT = "NO_ELIGIBLE_PROMPT"
INACTIVE, LIVE, COOLDOWN, DATE_TAKEN, NOT_DUE = "inactive", "live", "cooldown", "date_taken", "not_due"
HOUR_PASSED = "hour_passed"
#: No pass of the opening tick is in sight: its schedule is paused, or at its end.
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
    #: From when on a round could be planned: the group was created, activated or unblocked, or its cooldown ended. None: not known.
    plan_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A round to be made."""

    scheduled_for: date
    #: The instant at which it is to open, and the one from which the opening tick takes it: the same.
    planned_at: datetime
    due_at: datetime
    prompt_id: int


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing is done; ``until`` is when there is something to do again, None when nobody knows."""

    reason: str
    until: datetime | None = None


def plan_round(facts: GroupFacts, now: datetime, draw: float, late: timedelta) -> Planned | Left:
    """The next round of a group, or why there is none (R000-4 to R000-9, R000-24, R000-25).

    A round is for the first of the group's hours that is not before the moment at which it could open: nobody has less than 24 hours,
    and no round begins at another hour than the group's. ``draw``: a number from 0 until before 1, by which the prompt is chosen.
    ``late``: how long after its hour a round may still open on another date. Raises InvalidArgument for a zone or a local time that
    cannot be read (T000-n).
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
    read_zone(facts.zone, "zone")
    day, planned_at = _next_round(facts, now)
    if is_passed(planned_at, facts.zone, now, late):
        day, planned_at = _next_hour(facts, now)
    today = local_date(now, facts.zone)
    if day != today and now < planned_at:  # a round is planned on its own date (R000-9)
        taken = any(past.scheduled_for == today for past in facts.rounds)
        return Left(DATE_TAKEN if taken else HOUR_PASSED, instant_on(day, time(), facts.zone))
    prompt = choose(facts.prompts, [past.prompt_id for past in facts.rounds], draw)
    if prompt is None:
        return Left(NO_ELIGIBLE_PROMPT)
    LIFECYCLE.target(None, "plan")
    return Planned(day, planned_at, planned_at, prompt)


def _next_round(facts: GroupFacts, now: datetime) -> tuple[date, datetime]:
    """The date and the hour of a group's next round, counted from when it could open."""
    latest = facts.rounds[0] if facts.rounds else None
    free = None if latest is None or latest.close_at is None else latest.close_at + facts.cooldown
    known = [moment for moment in (free, facts.plan_at) if moment is not None]
    # A caller that does not know since when the group waits asks for the date of today.
    return _next_hour(facts, max(known) if known else instant_on(local_date(now, facts.zone), time(), facts.zone))


def _next_hour(facts: GroupFacts, since: datetime) -> tuple[date, datetime]:
    return next_hour(facts.drop_time, facts.zone, since, {past.scheduled_for for past in facts.rounds})


def next_hour(drop_time: str, zone: str, since: datetime, taken: Collection[date] = ()) -> tuple[date, datetime]:
    """The first local date, none of ``taken``, on which a zone's clock reaches ``drop_time`` at or after ``since``; and that instant."""
    at = read_drop_time(drop_time)
    day = local_date(since, zone)
    for _ in range(MOST_DATES):
        opens = instant_on(day, at, zone)
        if opens >= since and day not in taken:
            return day, opens
        # the date on the wall: a zone that crosses the date line leaves one out
        day = local_date(instant_on(day + timedelta(days=1), time(), zone), zone)
    raise InvalidArgument("scheduled_for", f"is taken on {MOST_DATES} dates in a row.", "Look at the group's rounds.")


def is_night_late(opens: datetime, zone: str, now: datetime, late: timedelta) -> bool:
    """Was a round's hour missed for so long that it is night now? Nobody is woken: it waits for the next hour (R000-25)."""
    return now - opens > late and not MORNING <= now.astimezone(read_zone(zone, "zone")).time() < NIGHT


def is_passed(opens: datetime, zone: str, now: datetime, late: timedelta) -> bool:
    """Is it too late to plan a round for this hour, because its date is over (R000-9)?"""
    return now - opens > late and local_date(now, zone) != local_date(opens, zone)


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
    #: The local date that it is for, by which clock, and at which local time.
    scheduled_for: date
    zone: str
    drop_time: str
    created_at: datetime | None = None
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


@dataclass(frozen=True, slots=True)
class Moved:
    """A scheduled round that waits for its group's next hour, under another date."""

    scheduled_for: date
    planned_at: datetime
    #: Seconds, from when it was due.
    late: float


def open_round(facts: RoundFacts, now: datetime, late_limit: timedelta, draw: float) -> Opened | Moved | Left:
    """Open a round that is due, move it to the next hour, or say why not (R000-10, R000-11, R000-25, T000-e, T000-f, T000-j, T000-k)."""
    if not LIFECYCLE.allows(facts.status, "open"):
        return Left(LOST)
    if not facts.group_is_active:
        return Left(INACTIVE)
    if facts.due_at is None or now < facts.due_at:
        return Left(NOT_DUE, facts.due_at)
    # What people go by is the later of the planned hour and the moment from which it could open (R000-25).
    opens = max(facts.planned_at, facts.due_at)
    # The opening tick is not late for what was planned late (T000-e).
    late = now - max(opens, facts.created_at or opens)
    if is_night_late(opens, facts.zone, now, late_limit):
        return Moved(*next_hour(facts.drop_time, facts.zone, now), late.total_seconds())
    prompt = facts.prompt_id
    if prompt is None or not facts.prompt_is_active:
        prompt = choose(facts.prompts, facts.used, draw)
        if prompt is None:
            return Left(NO_ELIGIBLE_PROMPT)
    # The hour does not drift with the ticks; but nobody loses hours to an outage.
    open_at = opens if now - opens <= late_limit else now
    return Opened(open_at, open_at + OPEN_FOR, late.total_seconds(), prompt)


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
    facts: GroupFacts, now: datetime, due_at: datetime | None, late: timedelta, passes: Callable[[datetime], datetime | None] | None = None
) -> Upcoming:  # fmt: skip
    """When the next round of a group opens (its ``open_at``), if nothing is changed and the ticks come in time (R000-24).

    ``due_at``: of the round that is scheduled, if there is one; ``late`` as in ``plan_round``; ``passes``: the first pass of the opening tick at or after an
    instant, which plans what is due. Raises InvalidArgument as ``plan_round``.
    """
    latest = facts.rounds[0] if facts.rounds else None
    if not facts.is_active:
        return Upcoming(facts.id, None, reason=INACTIVE)
    read_zone(facts.zone, "zone")
    planned = latest is not None and latest.status is Status.SCHEDULED
    if not facts.prompts:
        return Upcoming(
            facts.id, None, latest.scheduled_for if latest and planned else None, planned, NO_ELIGIBLE_PROMPT
        )
    if latest is None or not planned:
        day, opens = _next_round(facts, now)
    elif due_at is None:
        return Upcoming(facts.id, None, latest.scheduled_for, planned=True)
    else:
        day, opens = latest.scheduled_for, due_at
    for _ in range(MOST_DATES):
        tick = max(opens, now) if passes is None else passes(max(opens, now))
        if tick is None:
            return Upcoming(facts.id, None, reason=UNPLANNED)
        is_over = not planned and is_passed(opens, facts.zone, tick, late)
        if not is_over and not is_night_late(opens, facts.zone, tick, late):
            return Upcoming(facts.id, opens if tick - opens <= late else tick, day, planned)
        day, opens = _next_hour(facts, tick)
    return Upcoming(facts.id, None, reason=HOUR_PASSED)

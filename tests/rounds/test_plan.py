"""The pure plan of rounds: tables of facts and what should happen, and what holds for all of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument, WrongState
from duly.kernel.localtime import instant_on, local_date, resolve, transitions
from duly.rounds.group import read_channels, read_cooldown, read_drop_time, shown_drop_time
from duly.rounds.plan import (
    COOLDOWN,
    DATE_TAKEN,
    HOUR_PASSED,
    INACTIVE,
    LIVE,
    LOST,
    NO_ELIGIBLE_PROMPT,
    NOT_DUE,
    GroupFacts,
    Left,
    Moved,
    Opened,
    Past,
    Planned,
    RoundFacts,
    choose,
    next_hour,
    open_round,
    plan_round,
    upcoming,
)
from duly.rounds.round import LIFECYCLE, OPEN_FOR, Round, Status, check_takes_part, takes_part
from duly.storage.locks import lock_key
from rounds.hands import utc

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
LIMIT = timedelta(hours=2)


def plan(group: GroupFacts, now: datetime, draw: float = 0.0) -> Planned | Left:
    return plan_round(group, now, draw, LIMIT)


def facts(**given: Any) -> GroupFacts:
    values = {"id": 1, "zone": "UTC", "drop_time": "18:00", "cooldown": DAY, "prompts": (1, 2, 3)}
    return GroupFacts(**{**values, **given})


def closed(on: str, close_at: str, prompt: int | None = None) -> Past:
    return Past(date.fromisoformat(on), Status.CLOSED, prompt, utc(close_at))


# --- The lifecycle -----------------------------------------------------------------------------------------------------


def test_a_round_is_planned_opened_and_closed_and_makes_no_other_move() -> None:
    # R000-1
    assert LIFECYCLE.states == (Status.SCHEDULED, Status.OPEN, Status.CLOSED)
    assert {(m.source, m.event, m.target) for m in LIFECYCLE.moves} == {
        (None, "plan", "scheduled"),
        ("scheduled", "open", "open"),
        ("open", "close", "closed"),
    }
    assert LIFECYCLE.final == {Status.CLOSED}
    with pytest.raises(WrongState):
        LIFECYCLE.target(Status.SCHEDULED, "close")


# --- Planning ----------------------------------------------------------------------------------------------------------


def test_a_group_without_a_round_is_planned_for_today() -> None:
    # T000-a, R000-9
    decision = plan(facts(), utc("2026-06-01 10:00"), 0.0)
    assert decision == Planned(date(2026, 6, 1), utc("2026-06-01 18:00"), utc("2026-06-01 18:00"), 1)


@pytest.mark.parametrize(
    ("now", "planned"),
    [("2026-06-02 17:59:59.999999", False), ("2026-06-02 18:00", True), ("2026-06-03 09:00", True)],
)
def test_the_next_round_waits_until_a_day_after_the_planned_end_of_the_last(now: str, planned: bool) -> None:
    # R000-5, T000-b: 24 h, the boundary belongs to it, counted from close_at whenever it was closed
    decision = plan(facts(rounds=(closed("2026-05-31", "2026-06-01 18:00"),)), utc(now), 0.0)
    assert decision == Left(COOLDOWN, utc("2026-06-02 18:00")) if not planned else isinstance(decision, Planned)


def test_a_cooldown_of_nothing_makes_a_round_a_day() -> None:
    # T000-c
    decision = plan(
        facts(cooldown=timedelta(0), rounds=(closed("2026-06-01", "2026-06-02 18:00"),)), utc("2026-06-02 18:00"), 0.0
    )
    assert isinstance(decision, Planned)
    assert decision.scheduled_for == date(2026, 6, 2)
    assert decision.planned_at == decision.due_at == utc("2026-06-02 18:00")


@pytest.mark.parametrize("status", [Status.SCHEDULED, Status.OPEN])
def test_a_group_with_a_live_round_gets_no_other(status: Status) -> None:
    # R000-6
    assert plan(facts(rounds=(Past(date(2026, 5, 1), status),)), utc("2026-06-01 10:00"), 0.0) == Left(LIVE)


def test_a_group_that_is_not_active_is_left_alone() -> None:
    # R000-4
    assert plan(facts(is_active=False), utc("2026-06-01 10:00"), 0.0) == Left(INACTIVE)


def test_a_group_that_moved_west_into_the_same_date_again_waits_for_the_next() -> None:
    # T000-q
    west = facts(zone="Pacific/Pago_Pago", cooldown=timedelta(0), rounds=(closed("2026-06-02", "2026-06-02 20:00"),))
    assert plan(west, utc("2026-06-03 05:00"), 0.0) == Left(
        DATE_TAKEN, utc("2026-06-03 11:00")
    )  # it is 18:00 on the 2nd there
    assert isinstance(plan(west, utc("2026-06-03 11:00"), 0.0), Planned)


@pytest.mark.parametrize("zone", ["Mars/Base", "UTC+3", ""])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    # T000-n
    with pytest.raises(InvalidArgument):
        plan(facts(zone=zone), utc("2026-06-01 10:00"), 0.0)


@pytest.mark.parametrize(
    ("zone", "drop", "now", "on", "planned_at"),
    [
        # B015: the date is the group's, not that of UTC
        ("Pacific/Auckland", "09:00", "2026-06-30 13:05", "2026-07-01", "2026-06-30 21:00"),
        ("America/Los_Angeles", "21:30", "2026-07-01 05:00", "2026-06-30", "2026-07-01 04:30"),
        ("Pacific/Kiritimati", "18:00", "2026-07-01 05:00", "2026-07-01", "2026-07-01 04:00"),
        # T000-g: gaps and folds, at midnight and by half an hour
        ("Europe/Paris", "02:30", "2026-03-28 23:30", "2026-03-29", "2026-03-29 01:00"),
        ("Europe/Paris", "02:30", "2026-10-24 22:30", "2026-10-25", "2026-10-25 00:30"),
        ("Africa/Cairo", "00:00", "2026-04-23 22:00", "2026-04-24", "2026-04-23 22:00"),
        ("America/Santiago", "00:30", "2026-09-06 04:00", "2026-09-06", "2026-09-06 04:00"),
        ("Asia/Beirut", "00:15", "2026-03-28 22:00", "2026-03-29", "2026-03-28 22:00"),
        ("Australia/Lord_Howe", "02:15", "2026-10-03 14:00", "2026-10-04", "2026-10-03 15:30"),
        ("Australia/Lord_Howe", "01:45", "2026-04-04 14:00", "2026-04-05", "2026-04-04 14:45"),
        ("Asia/Kathmandu", "18:00", "2026-06-01 06:00", "2026-06-01", "2026-06-01 12:15"),
        ("Pacific/Apia", "18:00", "2011-12-30 09:00", "2011-12-29", "2011-12-30 04:00"),
        ("Pacific/Apia", "18:00", "2011-12-30 10:00", "2011-12-31", "2011-12-31 04:00"),
    ],
)
def test_a_round_is_for_the_date_and_the_time_of_the_groups_own_clock(
    zone: str, drop: str, now: str, on: str, planned_at: str
) -> None:
    # R000-9, R000-10, T000-d, T000-g
    decision = plan(facts(zone=zone, drop_time=drop), utc(now), 0.0)
    assert isinstance(decision, Planned)
    assert (decision.scheduled_for, decision.planned_at) == (date.fromisoformat(on), utc(planned_at))
    assert decision.due_at == utc(planned_at)  # T000-e


@pytest.mark.parametrize(
    ("could", "now", "decision"),
    [
        ("2026-06-01 18:00", "2026-06-01 18:00", (date(2026, 6, 1), "2026-06-01 18:00")),
        ("2026-06-01 18:00:00.000001", "2026-06-01 18:05", Left(HOUR_PASSED, utc("2026-06-02 00:00"))),
        ("2026-06-01 19:55", "2026-06-01 20:00", Left(HOUR_PASSED, utc("2026-06-02 00:00"))),
        ("2026-06-01 19:55", "2026-06-02 00:00", (date(2026, 6, 2), "2026-06-02 18:00")),
        ("2026-06-01 03:00", "2026-06-01 03:05", (date(2026, 6, 1), "2026-06-01 18:00")),
        # nobody ticked for a while: on its date it is made up for, on the next it is not
        ("2026-06-01 18:00", "2026-06-01 23:00", (date(2026, 6, 1), "2026-06-01 18:00")),
        ("2026-06-01 18:00", "2026-06-02 03:00", (date(2026, 6, 2), "2026-06-02 18:00")),
    ],
)
def test_a_round_is_for_the_first_hour_that_is_not_before_the_moment_at_which_it_could_open(
    could: str, now: str, decision: Any
) -> None:
    # R000-25: created, activated or unblocked late, a group waits for its next hour
    found = plan(facts(plan_at=utc(could)), utc(now))
    late = closed("2026-05-20", "2026-05-31 00:00")
    after = plan(facts(plan_at=utc(could), cooldown=utc(could) - utc("2026-05-31 00:00"), rounds=(late,)), utc(now))
    assert found == after
    if isinstance(found, Planned):
        assert (found.scheduled_for, found.planned_at) == (decision[0], utc(decision[1]))
    else:
        assert found == decision


@pytest.mark.parametrize("drop", ["23:58", "23:59", "00:00", "23:59:59"])
def test_a_pass_after_midnight_still_plans_for_the_date_whose_hour_has_just_come(drop: str) -> None:
    # R000-24: the last minutes of a day are an hour like any other
    opens = instant_on(date(2026, 6, 1), read_drop_time(drop), "UTC")
    found = plan(
        facts(drop_time=drop, cooldown=timedelta(0), rounds=(Past(date(2026, 5, 31), Status.CLOSED, 1, opens),)),
        utc("2026-06-02 00:00"),
    )
    assert isinstance(found, Planned)
    assert found.planned_at == found.due_at == opens if drop != "00:00" else found.planned_at == utc("2026-06-02 00:00")


# --- Choosing a prompt -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_with_eight_prompts_of_which_seven_were_used_the_eighth_is_chosen(seed: int) -> None:
    # R000-7, B019: group A
    draw = random.Random(seed).random()
    assert choose(range(1, 9), [1, 2, 3, 4, 5, 6, 7], draw) == 8
    assert (
        choose([2, 4, 8], [1, 2, 3, 4, 5, 6, 7], draw) == 8
    )  # of the others, those that are not active are no candidates


@pytest.mark.parametrize("seed", range(200))
def test_seven_prompts_that_were_all_used_lately_take_turns(seed: int) -> None:
    # T000-h, B019: group B
    assert choose(range(1, 8), [1, 2, 3, 4, 5, 6, 7], random.Random(seed).random()) == 7


def test_every_eligible_prompt_is_as_likely_as_the_others() -> None:
    # R000-7
    numbers = random.Random(1)
    counted = Counter(choose(range(1, 13), [1, 2, 3, 4, 5, 6, 7], numbers.random()) for _ in range(10_000))
    assert set(counted) == {8, 9, 10, 11, 12}
    assert all(1_800 < count < 2_200 for count in counted.values())


def test_one_prompt_repeats_and_none_is_none() -> None:
    # T000-h
    assert choose([1], [1, 1, 1], 0.9) == 1
    assert choose([], [1, 2], 0.0) is None
    assert plan(facts(prompts=()), utc("2026-06-01 10:00"), 0.0) == Left(NO_ELIGIBLE_PROMPT)


def test_rounds_whose_prompt_is_gone_are_rounds_all_the_same() -> None:
    # T000-i: the last seven rounds count, not the last seven prompts that are still there
    assert choose([8], [1, None, 3, 4, 5, 6, 7, 8], 0.0) == 8
    assert choose([2, 8], [99, 98, 97, 96, 95, 94, 2, 8], 0.0) == 8


prompts = st.sets(st.integers(1, 12), min_size=1)
used = st.lists(st.one_of(st.none(), st.integers(1, 15)), max_size=12)


@given(prompts, used, st.floats(0, 1, exclude_max=True))
def test_a_choice_is_active_and_repeats_no_sooner_than_it_must(
    active: set[int], used: list[int | None], draw: float
) -> None:
    # R000-7, R000-8, T000-h
    chosen = choose(active, used, draw)
    assert chosen in active
    window = used[:7]
    if active - set(window):
        assert chosen not in window
    elif len(active) > 1:
        assert chosen != window[0]
        # nobody waits longer than the one that is taken
        assert all(window.index(chosen) >= window.index(other) for other in active)


@given(st.integers(1, 7), st.floats(0, 1, exclude_max=True))
def test_few_prompts_go_round_in_a_circle(n: int, draw: float) -> None:
    used: list[int | None] = []
    for _ in range(5 * n):
        used.insert(0, choose(range(n), used, draw))
    assert all(set(used[at : at + n]) == set(range(n)) for at in range(4 * n))


# --- Opening -----------------------------------------------------------------------------------------------------------


def scheduled(planned_at: str, due_at: str | None = None, **given: Any) -> RoundFacts:
    due = utc(due_at or planned_at)
    values = {"id": 1, "group_id": 1, "planned_at": utc(planned_at), "due_at": due, "prompt_id": 5}
    clock = {"scheduled_for": utc(planned_at).date(), "zone": "UTC", "drop_time": planned_at[11:16]}
    return RoundFacts(**{**values, **clock, **given})


@pytest.mark.parametrize(
    ("now", "open_at", "late"),
    [
        ("2026-06-01 18:00", "2026-06-01 18:00", 0),
        ("2026-06-01 18:04:30", "2026-06-01 18:00", 270),
        ("2026-06-01 20:00", "2026-06-01 18:00", 7_200),
        ("2026-06-01 20:00:00.000001", "2026-06-01 20:00:00.000001", 7_200.000001),
        ("2026-06-01 21:59", "2026-06-01 21:59", 14_340),
        ("2026-06-02 07:00", "2026-06-02 07:00", 46_800),
    ],
)
def test_a_round_opens_at_its_planned_instant_unless_it_is_much_too_late(now: str, open_at: str, late: float) -> None:
    # R000-11, T000-f
    decision = open_round(scheduled("2026-06-01 18:00"), utc(now), LIMIT, 0.0)
    assert decision == Opened(utc(open_at), utc(open_at) + timedelta(hours=24), late, 5)


@pytest.mark.parametrize("now", ["2026-06-01 22:00", "2026-06-02 03:00", "2026-06-02 06:59"])
def test_a_round_that_is_much_too_late_at_night_waits_for_the_next_hour_and_does_not_open_at_night(now: str) -> None:
    # R000-25, T000-f
    decision = open_round(scheduled("2026-06-01 18:00"), utc(now), LIMIT, 0.0)
    assert decision == Moved(
        date(2026, 6, 2), utc("2026-06-02 18:00"), (utc(now) - utc("2026-06-01 18:00")).total_seconds()
    )


def test_a_round_does_not_open_a_microsecond_too_soon() -> None:
    # R000-10
    decision = open_round(scheduled("2026-06-01 18:00"), utc("2026-06-01 17:59:59.999999"), LIMIT, 0.0)
    assert decision == Left(NOT_DUE, utc("2026-06-01 18:00"))


def test_a_tick_after_midnight_opens_what_was_due_before_it() -> None:
    # T000-d: asked apart, "the time is reached" would be false until the next evening
    assert isinstance(open_round(scheduled("2026-06-01 23:58"), utc("2026-06-02 00:01"), LIMIT, 0.0), Opened)


def test_a_round_that_was_planned_after_its_own_time_is_not_late() -> None:
    # T000-e
    decision = open_round(scheduled("2026-06-01 18:00", "2026-06-01 19:00"), utc("2026-06-01 19:01"), LIMIT, 0.0)
    assert isinstance(decision, Opened)
    assert (decision.open_at, decision.late) == (utc("2026-06-01 19:00"), 60)  # R000-25: from when it could open


@pytest.mark.parametrize("status", [Status.OPEN, Status.CLOSED])
def test_what_is_not_scheduled_does_not_open(status: Status) -> None:
    assert open_round(scheduled("2026-06-01 18:00", status=status), utc("2026-06-01 18:00"), LIMIT, 0.0) == Left(LOST)


def test_a_round_of_a_group_that_is_not_active_does_not_open() -> None:
    # T000-k
    waiting = scheduled("2026-06-01 18:00", group_is_active=False)
    assert open_round(waiting, utc("2026-06-01 18:00"), LIMIT, 0.0) == Left(INACTIVE)


def test_a_prompt_that_is_gone_at_the_opening_is_chosen_again() -> None:
    # T000-j
    orphan = scheduled("2026-06-01 18:00", prompt_is_active=False, prompts=[1, 2, 3], used=[1, 3])
    decision = open_round(orphan, utc("2026-06-01 18:00"), LIMIT, 0.5)
    assert isinstance(decision, Opened)
    assert decision.prompt_id == 2
    nothing = scheduled("2026-06-01 18:00", prompt_is_active=False)
    assert open_round(nothing, utc("2026-06-01 18:00"), LIMIT, 0.5) == Left(NO_ELIGIBLE_PROMPT)


@pytest.mark.parametrize(
    ("day", "opens", "closes"),
    [("2026-10-24", "2026-10-24 16:00", "2026-10-25 16:00"), ("2026-03-28", "2026-03-28 17:00", "2026-03-29 17:00")],
)
def test_a_round_is_open_for_24_hours_also_when_the_day_is_not(day: str, opens: str, closes: str) -> None:
    # B012, R000-11, T000-g, C029
    planned_at = instant_on(date.fromisoformat(day), read_drop_time("18:00"), "Europe/Paris")
    decision = open_round(scheduled(planned_at.replace(tzinfo=None).isoformat()), planned_at, LIMIT, 0.0)
    assert isinstance(decision, Opened)
    assert (decision.open_at, decision.close_at) == (utc(opens), utc(closes))
    assert (decision.close_at - decision.open_at).total_seconds() == 86_400


# --- Taking part -------------------------------------------------------------------------------------------------------


def a_round(status: Status, close_at: str | None = None) -> Round:
    at = utc("2026-06-01 18:00")
    return Round(
        1, "default", 1, date(2026, 6, 1), status, "UTC", "18:00", at, at, close_at=utc(close_at) if close_at else None
    )


@pytest.mark.parametrize(
    ("status", "close_at", "may"),
    [
        (Status.SCHEDULED, None, False),
        (Status.OPEN, "2026-06-02 18:00:00.000001", True),
        (Status.OPEN, "2026-06-02 18:00", False),  # R000-16
        (Status.CLOSED, "2026-06-03 18:00", False),  # R000-15
    ],
)
def test_members_take_part_until_before_the_end_whatever_the_status_says(
    status: Status, close_at: str | None, may: bool
) -> None:
    found, now = a_round(status, close_at), utc("2026-06-02 18:00")
    assert takes_part(found, now) is may
    if not may:
        with pytest.raises(WrongState, match="cannot take a vote"):
            check_takes_part(found, now, "take a vote")


def test_an_open_round_whose_time_is_over_is_called_over() -> None:
    found = a_round(Status.OPEN, "2026-06-02 18:00")
    assert found.label(utc("2026-06-02 17:59")) == "open"
    assert found.label(utc("2026-06-02 18:00")) == "over"


# --- Looking ahead -----------------------------------------------------------------------------------------------------


ZONES = [
    "Europe/Paris",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Santiago",
    "Pacific/Apia",
    "Asia/Kathmandu",
]
instants = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(lambda at: utc(at.isoformat()))


def five(at: datetime) -> datetime:
    """The first full five minutes at or after an instant."""
    floor = at.replace(minute=at.minute - at.minute % 5, second=0, microsecond=0)
    return floor if floor == at else floor + timedelta(minutes=5)


@given(
    st.sampled_from(ZONES), st.times().map(lambda t: t.strftime("%H:%M:%S")), instants, st.integers(0, 48), st.sampled_from([0, 0, 0, 100, 400])
)  # fmt: skip
def test_what_is_foretold_is_what_happens(zone: str, drop: str, now: datetime, cooldown: int, outage: int) -> None:
    # R000-24: asked at any time, passes every five minutes find it so; now and then nobody ticks for a while
    group, now = facts(zone=zone, drop_time=drop, cooldown=cooldown * HOUR, plan_at=now), five(now)
    down = now + outage * timedelta(minutes=7) if outage else now
    foretold = upcoming(group, now, None, LIMIT, lambda at: five(max(at, down)))
    seen: list[datetime] = []
    tick = down
    for _ in range(3):
        while isinstance(planned := plan(group, tick), Left):
            assert planned.reason in (COOLDOWN, DATE_TAKEN, HOUR_PASSED)
            assert planned.until is not None
            tick = five(planned.until)
        tick = max(tick, five(planned.due_at))
        known = RoundFacts(1, 1, planned.planned_at, planned.due_at, 1, planned.scheduled_for, zone, drop)
        opened = open_round(known, tick, LIMIT, 0.0)
        if isinstance(opened, Moved):  # an outage that ends at night
            at, planned = opened.planned_at, replace(planned, scheduled_for=opened.scheduled_for)
            tick, known = five(at), replace(known, planned_at=at, due_at=at, scheduled_for=opened.scheduled_for)
            opened = open_round(known, tick, LIMIT, 0.0)
        assert isinstance(opened, Opened)
        assert (foretold.at, foretold.scheduled_for) == (opened.open_at, planned.scheduled_for)
        assert opened.close_at - opened.open_at == DAY
        assert tick == down or opened.late < 300
        assert all(opened.open_at >= other + DAY for other in seen)
        assert (opened.open_at.astimezone(ZoneInfo(zone)).time().replace(microsecond=0).isoformat() == drop
                or tick == down or not _is_plain(planned.scheduled_for, drop, zone))  # fmt: skip
        seen.append(opened.open_at)
        tick = five(opened.close_at)
        past = Past(planned.scheduled_for, Status.CLOSED, 1, opened.close_at)
        group = replace(group, rounds=(past, *group.rounds), plan_at=opened.close_at + cooldown * HOUR)
        foretold = upcoming(group, tick, None, LIMIT, five)


def _is_plain(day: date, drop: str, zone: str) -> bool:
    """Does the clock of a zone show a time once on a date?"""
    return len(resolve(datetime.combine(day, read_drop_time(drop)), zone, "skip", "both")) == 1


def test_the_outlook_says_why_there_is_none() -> None:
    now = utc("2026-06-01 10:00")
    assert upcoming(facts(is_active=False), now, None, LIMIT).reason == INACTIVE
    assert upcoming(facts(prompts=()), now, None, LIMIT).reason == NO_ELIGIBLE_PROMPT
    scheduled_one = facts(rounds=(Past(date(2026, 6, 1), Status.SCHEDULED),))
    assert upcoming(scheduled_one, now, utc("2026-06-01 18:00"), LIMIT).at == utc("2026-06-01 18:00")
    assert upcoming(scheduled_one, now, utc("2026-06-01 18:00"), LIMIT).planned


@given(st.sampled_from(ZONES), st.times().map(lambda t: t.strftime("%H:%M")), instants)
def test_a_round_opens_when_its_local_date_and_time_are_reached_and_never_sooner(
    zone: str, drop: str, now: datetime
) -> None:
    # R000-10: until the instant, the wall shows less; from it on, date and time have been reached once
    decision = plan(facts(zone=zone, drop_time=drop), now, 0.0)
    assert isinstance(decision, Planned)
    assert local_date(decision.planned_at, zone) >= decision.scheduled_for
    assert decision.due_at == decision.planned_at
    assert next_hour(drop, zone, decision.planned_at)[1] == decision.planned_at


# --- A year -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", ["02:30", "00:15", "18:05", "02:15", "23:58"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_days_has_a_round_at_each_days_hour_but_for_the_days_that_are_too_short(zone: str, drop: str) -> None:
    # R000-9 to R000-14, R000-24, R000-25, T000-c to T000-g: with passes every five minutes
    tick, past = utc("2026-01-01 00:00"), list[Past]()
    opened_at: list[datetime] = []
    while tick.year == 2026:
        known = past[0].close_at if past else None
        planned = plan(
            facts(zone=zone, drop_time=drop, cooldown=timedelta(0), rounds=past[:8], plan_at=known or tick), tick
        )
        if isinstance(planned, Left):
            assert planned.reason in (COOLDOWN, DATE_TAKEN, HOUR_PASSED)
            assert planned.until is not None
            tick = five(planned.until)
            continue
        tick = max(tick, five(planned.due_at))
        round_facts = RoundFacts(
            1, 1, planned.planned_at, planned.due_at, planned.prompt_id, planned.scheduled_for, zone, drop
        )
        assert isinstance(open_round(round_facts, planned.due_at - timedelta(microseconds=1), LIMIT, 0.0), Left)
        opened = open_round(round_facts, tick, LIMIT, 0.0)
        assert isinstance(opened, Opened)
        assert opened.close_at - opened.open_at == timedelta(hours=24)
        assert opened.late < 300
        assert opened.open_at == planned.planned_at
        past.insert(0, Past(planned.scheduled_for, Status.CLOSED, planned.prompt_id, opened.close_at))
        opened_at.append(opened.open_at)
        tick = five(opened.close_at)
    dates = [one.scheduled_for for one in reversed(past)]
    assert dates == sorted(set(dates))
    # a day of 23 hours has none: the round before lasts its 24 hours, and no other begins at another hour
    short = sum(t.is_gap for t in transitions(zone, utc("2026-01-01 00:00"), utc("2027-01-01 00:00")))
    assert 363 - short <= len(dates) <= 366
    assert all(later - sooner >= timedelta(hours=24) for sooner, later in itertools.pairwise(opened_at))


# --- Reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["18:00", "00:00", "23:59:59"])
def test_a_local_time_comes_back_as_it_was_written(text: str) -> None:
    assert shown_drop_time(read_drop_time(text)) == text


@pytest.mark.parametrize("text", ["24:00", "18", "6pm", "18:00+02:00", "1800", "", None, 18, "18:0"])
def test_what_is_no_local_time_is_refused(text: Any) -> None:
    with pytest.raises(InvalidArgument):
        read_drop_time(text)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "soon", timedelta(days=4_000)])
def test_what_is_no_cooldown_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument):
        read_cooldown(value)


def test_channels_are_read_once_each() -> None:
    assert read_channels(["log", "email", "log"]) == ("email", "log")
    assert read_channels("webhook") == ("webhook",)
    with pytest.raises(InvalidArgument, match="'sms'"):
        read_channels(["sms"])


def test_the_key_of_a_lock_is_the_same_for_ever() -> None:
    # T000-m
    assert lock_key("rounds", 42) == 7683748182056522615
    assert lock_key("rounds", 42) != lock_key("rounds", 43) != lock_key("other", 43)
    assert all(-(2**63) <= lock_key("rounds", n) < 2**63 for n in range(1000))
    assert timedelta(seconds=86_400) == OPEN_FOR


def test_the_diagram_of_a_round_in_the_docs_is_its_lifecycle() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "lifecycle.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{LIFECYCLE.mermaid()}\n```" in text
    assert all(f"| {m.source or '(none)'} | `{m.event}` | {m.target} |" in text for m in LIFECYCLE.moves)

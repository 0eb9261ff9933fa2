"""Days of the year, single moments, and the dates that bound a schedule, against calendars and clocks asked by hand.

The judge knows nothing of how schedules are computed: it goes through every local date between the bounds, asks ``zoneinfo`` for each
local time whether a clock ever shows it, and looks minute by minute for the end of what it leaves out.
"""

from __future__ import annotations

import json
from calendar import isleap
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence import (
    CivilSchedule,
    Cron,
    Daily,
    Moments,
    Monthly,
    OnDates,
    RRule,
    Schedule,
    Weekly,
    Yearly,
    schedule_from_json,
    special_days,
)

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
PARIS, APIA, HAVANA, CAIRO = "Europe/Paris", "Pacific/Apia", "America/Havana", "Africa/Cairo"
ZONES = (PARIS, "America/New_York", HAVANA, CAIRO, "Australia/Lord_Howe", "Antarctica/Troll", "Asia/Kathmandu", "UTC")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def texts(instants: object) -> list[str]:
    return [at.strftime("%Y-%m-%dT%H:%M") for at in instants]  # type: ignore[attr-defined]


def all_of(schedule: Schedule) -> list[datetime]:
    return list(schedule.occurrences(utc("1960-01-01"), utc("2210-01-01")))


# --- The judge --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def asked(local: datetime, tz: str, gap: str, fold: str) -> tuple[datetime, ...]:
    """When a local time runs, by what the clock of the zone shows."""
    place = ZoneInfo(tz)
    one, two = (local.replace(tzinfo=place, fold=n).astimezone(UTC) for n in (0, 1))
    if one.astimezone(place).replace(tzinfo=None) == local:
        return tuple(sorted({"first": {one}, "last": {two}, "both": {one, two}}[fold]))
    if gap == "skip":
        return ()
    at = two  # which is earlier here: the clock has the offset of before the gap
    while at.astimezone(place).replace(tzinfo=None, fold=0) < local:
        at += MINUTE
    return (at,)


def judged(locals_: Iterator[datetime], schedule: CivilSchedule) -> list[datetime]:
    found: set[datetime] = set()
    for local in locals_:
        found.update(asked(local, schedule.tz, schedule.gap_rule, schedule.fold_rule))
    return sorted(found)


def dates_between(first: date, last: date) -> Iterator[date]:
    while first <= last:
        yield first
        first += DAY


Names = Callable[[date], list[time]]  # the times of day that a schedule names on a date
clock = st.sampled_from(["00:00", "00:30", "01:45", "02:00", "02:15", "02:30", "03:00", "18:00", "23:59"])
clocks = st.lists(clock, min_size=1, max_size=3, unique=True)


def at(times: list[str]) -> list[time]:
    return [time.fromisoformat(text) for text in times]


@st.composite
def patterns(draw: st.DrawFn, first: date, last: date) -> tuple[type[CivilSchedule], dict[str, Any], Names]:
    """A kind of schedule, its arguments, and what it names by the calendar."""
    times = draw(clocks)
    some = st.dates(first - 9 * DAY, last + 9 * DAY)
    match draw(st.sampled_from(["daily", "weekly", "monthly", "yearly", "on_dates", "moments", "cron", "elapsed", "rrule"])):  # fmt: skip
        case "daily":
            return Daily, {"at": times}, lambda day: at(times)
        case "weekly":
            days = draw(st.sets(st.integers(0, 6), min_size=1))
            names = [("mon", "tue", "wed", "thu", "fri", "sat", "sun")[day] for day in days]
            return Weekly, {"days": names, "at": times}, lambda day: at(times) if day.weekday() in days else []
        case "monthly":
            number = draw(st.integers(1, 31))
            return Monthly, {"day": number, "at": times}, lambda day: at(times) if day.day == number else []
        case "yearly":
            named = draw(st.sets(some.map(lambda day: f"{day:%m-%d}") | st.just("02-29"), min_size=1, max_size=6))
            return Yearly, {"dates": [*named], "at": times}, lambda day: at(times) if f"{day:%m-%d}" in named else []
        case "on_dates":
            dates = draw(st.sets(some, min_size=1, max_size=20))
            return OnDates, {"dates": [*dates], "at": times}, lambda day: at(times) if day in dates else []
        case "moments":
            moments = draw(st.lists(st.tuples(some, clock), min_size=1, max_size=20))
            said = [f"{day}T{shown}" for day, shown in moments]
            return Moments, {"moments": said}, lambda day: at([shown for on, shown in moments if on == day])
        case "cron":
            hour, minute = draw(st.integers(0, 3)), draw(st.sampled_from([0, 15, 30]))
            return Cron, {"expression": f"{minute} {hour} * * *"}, lambda day: [time(hour, minute)]
        case "elapsed":
            return Cron, {"expression": "30 */6 * * *"}, lambda day: [time(hour, 30) for hour in (0, 6, 12, 18)]
        case _:
            number = draw(st.integers(1, 31))
            rule, start = f"FREQ=MONTHLY;BYMONTHDAY={number}", f"2010-01-01T{times[0]}"
            return RRule, {"rule": rule, "start": start}, lambda day: at(times[:1]) if day.day == number else []


@st.composite
def bounded(draw: st.DrawFn) -> tuple[type[CivilSchedule], dict[str, Any], Names, date, date]:
    tz = draw(st.sampled_from([*ZONES, APIA]))
    middle = date(2011, 12, 30) if tz == APIA else draw(st.dates(date(2024, 1, 1), date(2030, 1, 1)))
    first = middle - draw(st.integers(0, 200)) * DAY
    last = middle + draw(st.integers(0, 200)) * DAY
    made, arguments, names = draw(patterns(first, last))
    options = {
        "tz": tz,
        "gap": draw(st.sampled_from([None, "after", "skip"])),
        "fold": draw(st.sampled_from([None, "first", "last", "both"])),
        "start_date": draw(st.sampled_from([first, first.isoformat()])),
        "end_date": draw(st.sampled_from([last, last.isoformat()])),
    }
    return made, arguments | options, names, first, last


@settings(max_examples=100, deadline=None)
@given(bounded())
def test_a_bounded_schedule_agrees_with_a_calendar_and_a_clock(case) -> None:  # T001-w, T001-x
    made, arguments, names, first, last = case
    try:
        plain = made(**{**arguments, "start_date": None, "end_date": None})
    except InvalidArgument:  # all that it names is left out: one that never happens
        with pytest.raises(InvalidArgument, match="never happens between 1970 and 2200"):
            made(**arguments)
        return
    expected = judged((datetime.combine(day, on) for day in dates_between(first, last) for on in names(day)), plain)
    if not expected:
        with pytest.raises(InvalidArgument, match=r"^end_date: leaves nothing"):
            made(**arguments)
        return
    schedule = made(**arguments)
    assert all_of(schedule) == expected
    assert all(earlier < later and later.tzinfo is UTC for earlier, later in pairwise(expected))
    backwards, instant = [], utc("2210-01-01")
    while (found := schedule.previous_before(instant)) is not None:
        backwards.append(found)
        instant = found
    assert backwards[::-1] == expected
    # From any instant the next is strictly later, and the previous of it is not.
    for instant in (expected[0], expected[-1], expected[len(expected) // 2] - MINUTE):
        assert schedule.next_after(instant) == next((one for one in expected if one > instant), None)
        assert schedule.previous_before(instant) == next((one for one in reversed(expected) if one < instant), None)
    assert schedule_from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@settings(max_examples=30, deadline=None)
@given(bounded())
def test_each_bound_alone_cuts_one_end(case) -> None:  # T001-x
    made, arguments, _, first, last = case
    near = first - 3 * DAY, last + 3 * DAY
    start, end = (datetime.combine(day, time(), UTC) for day in near)
    try:
        plain = made(**{**arguments, "start_date": None, "end_date": None})
        both, after, before = (made(**arguments | cut) for cut in ({}, {"end_date": None}, {"start_date": None}))
    except InvalidArgument:
        return
    whole = set(plain.occurrences(start, end))
    cut_after, cut_before = set(after.occurrences(start, end)), set(before.occurrences(start, end))
    assert set(all_of(both)) == cut_after & cut_before
    assert cut_after | cut_before == whole


# --- Dates that bound -------------------------------------------------------------------------------------------------


def test_both_dates_count() -> None:  # T001-x
    daily = Daily(["00:00", "23:59:59"], tz=PARIS, start_date="2027-01-01", end_date=date(2027, 1, 2))
    assert [str(one) for one in all_of(daily)] == [
        "2026-12-31 23:00:00+00:00",
        "2027-01-01 22:59:59+00:00",
        "2027-01-01 23:00:00+00:00",
        "2027-01-02 22:59:59+00:00",
    ]
    assert (daily.start_date, daily.end_date) == ("2027-01-01", "2027-01-02")
    assert daily.next_after(utc("2027-01-02T22:59:59")) is None
    assert daily.previous_before(utc("2026-12-31T22:59:59")) is None
    assert daily.previous_before(utc("2026-12-31T23:00")) is None
    assert daily.previous_before(utc("2027-01-01T22:59:59")) == utc("2026-12-31T23:00")
    assert daily.previous_before(utc("2100-01-01")) == utc("2027-01-02T22:59:59")


def test_one_day_is_a_range_too() -> None:  # T001-x
    assert texts(all_of(Daily("18:00", tz="UTC", start_date="2028-02-29", end_date="2028-02-29"))) == [
        "2028-02-29T18:00"
    ]


@pytest.mark.parametrize(
    ("bounds", "runs"),
    [
        # 18:00 of 30 December 2011, which Apia left out, runs at the first instant of the 31st, and belongs to the 30th
        ({"end_date": "2011-12-30"}, ["2011-12-30T04:00", "2011-12-30T10:00"]),
        ({"end_date": "2011-12-29"}, ["2011-12-30T04:00"]),
        ({"start_date": "2011-12-31"}, ["2011-12-31T04:00"]),
        ({"start_date": "2011-12-30", "end_date": "2011-12-30"}, ["2011-12-30T10:00"]),
    ],
)
def test_what_counts_is_the_date_that_is_named_where_a_gap_moves_the_run(bounds, runs) -> None:  # T001-w, T001-x
    daily = Daily("18:00", tz=APIA, **bounds)
    assert texts(daily.occurrences(utc("2011-12-29T05:00"), utc("2011-12-31T23:00"))) == runs


def test_a_fold_at_midnight_shows_the_last_date_again() -> None:  # T001-w, T001-x
    # Cairo puts its clock from 00:00 of 30 October 2026 back to 23:00 of the 29th.
    late = {"tz": CAIRO, "fold": "both"}
    assert texts(all_of(Daily("23:30", **late, start_date="2026-10-29", end_date="2026-10-29"))) == [
        "2026-10-29T20:30",
        "2026-10-29T21:30",
    ]
    assert texts(Daily("23:30", **late, start_date="2026-10-30").next_n(utc("2026-10-29"), 1)) == ["2026-10-30T21:30"]


def test_special_days_outside_the_dates_are_not_told() -> None:  # T001-x
    told = lambda **bounds: [s.on for s in special_days(Daily("02:30", tz=PARIS, **bounds), utc("2026-01-01"))]  # noqa: E731
    assert told() == [date(2026, 3, 29), date(2026, 10, 25)]
    assert told(start_date="2026-03-30") == [date(2026, 10, 25)]
    assert told(end_date="2026-03-29") == [date(2026, 3, 29)]


def test_a_rule_counts_from_its_start_whatever_dates_bound_it() -> None:  # T001-x
    rule = RRule("FREQ=DAILY;COUNT=5", start="2027-01-01T09:00", tz="UTC", start_date="2027-01-04")
    assert texts(all_of(rule)) == ["2027-01-04T09:00", "2027-01-05T09:00"]


@pytest.mark.parametrize(
    ("bounds", "field", "said"),
    [
        ({"start_date": "2027-02-01", "end_date": "2027-01-31"}, "end_date", "before start_date, 2027-02-01"),
        ({"start_date": "2027-02-29"}, "start_date", "no calendar"),
        ({"end_date": "31.1.2027"}, "end_date", "YYYY-MM-DD"),
        ({"end_date": ""}, "end_date", "YYYY-MM-DD"),
        ({"end_date": datetime(2027, 1, 1)}, "end_date", "has a time"),
        ({"start_date": "2201-01-01"}, "start_date", "from 1970 to 2200"),
        ({"end_date": "1969-12-31"}, "end_date", "from 1970 to 2200"),
        ({"end_date": 20270131}, "end_date", "YYYY-MM-DD"),
        ({"end_date": ["2027-01-31"]}, "end_date", "YYYY-MM-DD"),
        ({"start_date": True}, "start_date", "YYYY-MM-DD"),
        ({"start_date": "2027-01-05", "end_date": "2027-01-10"}, "end_date", "between 2027-01-05 and 2027-01-10"),
        ({"start_date": "2200-12-30"}, "start_date", "leaves nothing"),
    ],
)
def test_dates_that_make_no_sense_are_refused_by_name(bounds, field: str, said: str) -> None:  # T001-x, B010
    with pytest.raises(InvalidArgument, match=said) as refused:
        Weekly("mon", "09:00", tz="UTC", **bounds)
    assert refused.value.field == field
    assert len(str(refused.value)) < 400


def test_what_never_happens_at_all_is_not_blamed_on_the_dates() -> None:  # T001-x
    with pytest.raises(InvalidArgument, match=r"^dates: never happens"):
        OnDates("2026-03-29", "02:30", tz=PARIS, gap="skip", start_date="2026-01-01", end_date="2026-12-31")


def test_a_hashed_expression_is_judged_by_its_dates_when_it_has_a_name() -> None:  # T001-x
    # A name's hash says which day of the month; only the name can say whether it is the 3rd.
    bounds = {"start_date": "2027-01-03", "end_date": "2027-01-03"}
    unnamed = Cron("0 9 H * *", tz="UTC", **bounds)
    names = [f"n{number}" for number in range(200)]
    on_third = [name for name in names if Cron("0 9 H * *", tz="UTC", name=name).next_after(utc("2027-01-01")) == utc("2027-01-03T09:00")]  # fmt: skip
    assert on_third
    for name in names:
        if name in on_third:
            assert texts(all_of(unnamed.named(name))) == ["2027-01-03T09:00"]
        else:
            with pytest.raises(InvalidArgument, match=r"^end_date: leaves nothing"):
                unnamed.named(name)


# --- Days of the year -------------------------------------------------------------------------------------------------


def test_29_february_runs_in_leap_years_only() -> None:  # T001-x
    runs = all_of(Yearly("02-29", "06:00", tz="UTC"))
    assert [run.year for run in runs] == [year for year in range(1970, 2201) if isleap(year)]
    assert {(run.month, run.day) for run in runs} == {(2, 29)}
    assert texts(Yearly(["02-28", "02-29", "03-01"], "06:00", tz="UTC").next_n(utc("2027-01-01"), 5)) == [
        "2027-02-28T06:00",
        "2027-03-01T06:00",
        "2028-02-28T06:00",
        "2028-02-29T06:00",
        "2028-03-01T06:00",
    ]
    assert Yearly("02-29", "06:00", tz="UTC").previous_before(utc("2104-02-29T06:00")) == utc("2096-02-29T06:00")


def test_days_of_the_year_are_kept_once_and_in_order() -> None:
    yearly = Yearly(["12-24", "01-06", "12-24"], ["18:00", "9:00"], tz=PARIS)
    assert yearly.dates == ("01-06", "12-24")
    assert yearly == Yearly(("01-06", "12-24"), ("09:00", "18:00"), tz=PARIS)


@pytest.mark.parametrize("dates", ["02-30", "13-01", "00-10", "12-00", "1-6", "12-24-2026", "2026-12-24", "--12-24", "", [], {}, 1224, None, ["12-24", 5], "１２-24", ["12-24"] * 367, date(2026, 12, 24)])  # fmt: skip
def test_what_is_no_day_of_the_year_is_refused(dates) -> None:  # T001-x, B010
    with pytest.raises(InvalidArgument, match=r"^dates(\[1\])?: ") as refused:
        Yearly(dates, "09:00", tz="UTC")
    assert len(str(refused.value)) < 300


# --- Single moments ---------------------------------------------------------------------------------------------------


def test_each_moment_has_its_own_time() -> None:
    moments = Moments(["2027-01-06T09:30", "2026-12-24 18:00", datetime(2026, 7, 1, 8)], tz=PARIS)
    assert moments.moments == ("2026-07-01T08:00", "2026-12-24T18:00", "2027-01-06T09:30")
    assert texts(all_of(moments)) == ["2026-07-01T06:00", "2026-12-24T17:00", "2027-01-06T08:30"]
    assert moments.next_after(utc("2026-12-24T17:00")) == utc("2027-01-06T08:30")
    assert moments.next_after(utc("2027-01-06T08:30")) is None


def test_moments_that_are_the_same_run_once() -> None:  # T001-w
    assert Moments(["2026-12-24T18:00", "2026-12-24T18:00:00"], tz=PARIS).moments == ("2026-12-24T18:00",)
    gap = Moments(["2026-03-29T02:00", "2026-03-29T02:30", "2026-03-29T03:00"], tz=PARIS)
    assert texts(all_of(gap)) == ["2026-03-29T01:00"]
    assert texts(all_of(Moments("2026-10-25T02:30", tz=PARIS))) == ["2026-10-25T00:30"]


def test_a_time_is_zero_padded_when_it_is_kept() -> None:  # T001-x: 9:00 comes before 10:00, whoever wrote it
    assert Daily(["10:00", "9:00"], tz="UTC").at == ("09:00", "10:00")
    assert Moments(["2026-12-24T10:00", "2026-12-24T9:00"], tz="UTC").moments == (
        "2026-12-24T09:00",
        "2026-12-24T10:00",
    )
    for written in ("9:0", "9", "009:00", "9:00 ", " 9:00"):
        with pytest.raises(InvalidArgument, match=r"^at: "):
            Daily(written, tz="UTC")


@pytest.mark.parametrize("moments", ["2026-12-24", "2026-12-24T18:00Z", "2026-12-24T18:00+01:00", "2026-12-24T24:00", "2026-02-29T18:00", "2026-W01-1T18:00", "20261224T180000", "2026-12-24T18:00:00.5", "1969-12-31T23:00", "2201-01-01T00:00", "18:00", "", [], {}, 5, None, ["2026-12-24T18:00", 5], datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, microsecond=1), date(2026, 1, 1), "2026-12-24T18:00" * 1000])  # fmt: skip
def test_what_is_no_moment_is_refused(moments) -> None:  # T001-x, B010
    with pytest.raises(InvalidArgument, match=r"^moments(\[1\])?: ") as refused:
        Moments(moments, tz="UTC")
    assert len(str(refused.value)) < 300


def test_ten_thousand_moments_are_taken_and_no_more() -> None:
    many = [(datetime(2026, 3, 29) + n * MINUTE).isoformat() for n in range(10_000)]
    moments = Moments(many, tz=PARIS)
    # a gap of an hour: 60 of them run at its end, as does the one that is planned there
    assert len(all_of(moments)) == 10_000 - 60
    assert schedule_from_json(json.loads(json.dumps(moments.to_json()))) == moments
    assert moments.describe() == (
        "at 00:00 on 29 March 2026, at 00:01 on 29 March 2026, at 00:02 on 29 March 2026 and 9997 more times, Paris time"
    )
    with pytest.raises(InvalidArgument, match=r"^moments: has 10001 entries; at most 10000"):
        Moments([*many, "2027-01-01T00:00"], tz=PARIS)


def test_ten_thousand_moments_that_no_clock_shows_are_refused() -> None:
    gone = [datetime(2011, 12, 30) + 8 * n * timedelta(seconds=1) for n in range(10_000)]
    with pytest.raises(InvalidArgument, match=r"^moments: never happens"):
        Moments(gone, tz=APIA, gap="skip")


# --- In words and as JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Yearly(["12-24", "01-06"], "18:00", tz=PARIS), "at 18:00 on 6 January and 24 December of every year, Paris time"),
        (Yearly("02-29", "6:00", tz="UTC"), "at 06:00 on 29 February of leap years, UTC"),
        (
            Yearly(["02-29", "12-24"], "6:00", tz="UTC"),
            "at 06:00 on 29 February and 24 December of every year, 29 February in leap years, UTC",
        ),
        (
            Yearly([f"01-{day:02}" for day in range(1, 10)], "6:00", tz="UTC"),
            "at 06:00 on 1 January, 2 January, 3 January and 6 more days of every year, UTC",
        ),
        (
            Moments(["2026-12-24T18:00", "2027-01-06T09:30"], tz=PARIS),
            "at 18:00 on 24 December 2026 and at 09:30 on 6 January 2027, Paris time",
        ),
        (
            Daily("18:00", tz=PARIS, start_date="2027-01-01", end_date="2027-03-31"),
            "at 18:00 every day, from 1 January 2027 until 31 March 2027, Paris time",
        ),
        (Weekly("mon", "9:00", tz="UTC", start_date="2027-01-01"), "at 09:00 on Monday, from 1 January 2027, UTC"),
        (Cron("30 2 * * *", tz="UTC", end_date="2027-03-31"), "at 02:30 every day, until 31 March 2027, UTC"),
        (
            RRule("FREQ=DAILY", start="2026-01-05T09:00", tz="UTC", start_date="2027-01-01"),
            "every day at 09:00, counted from 5 January 2026, from 1 January 2027, UTC",
        ),
    ],
)  # fmt: skip
def test_they_say_in_a_line_when_they_run(schedule: Schedule, words: str) -> None:
    assert schedule.describe() == words


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (
            Yearly("12-24", "9:00", tz="UTC", end_date=date(2030, 1, 1)),
            {"kind": "yearly", "dates": ["12-24"], "at": ["09:00"], "tz": "UTC", "end_date": "2030-01-01"},
        ),
        (
            Moments("2026-12-24T9:00", tz="UTC", start_date="2026-01-01"),
            {"kind": "moments", "moments": ["2026-12-24T09:00"], "tz": "UTC", "start_date": "2026-01-01"},
        ),
    ],
)
def test_their_form_is_plain_and_short(schedule: Schedule, said: dict[str, Any]) -> None:
    assert schedule.to_json() == said
    assert schedule_from_json(said) == schedule


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"kind": "yearly", "dates": ["12-24", "02-30"], "at": "9:00", "tz": "UTC"}, "schedule.dates[1]"),
        ({"kind": "yearly", "dates": "12-24", "tz": "UTC"}, "schedule.at"),
        ({"kind": "moments", "moments": ["2026-12-24T18:00", "x"], "tz": "UTC"}, "schedule.moments[1]"),
        ({"kind": "moments", "moments": "2026-12-24T18:00", "at": "9:00", "tz": "UTC"}, "schedule.at"),
        ({"kind": "moments", "moments": "2026-12-24T18:00"}, "schedule.tz"),
        ({"kind": "daily", "at": "9:00", "tz": "UTC", "start_date": "2027-01-02", "end_date": "2027-01-01"}, "schedule.end_date"),
        ({"kind": "moments", "moments": "2026-12-24T18:00", "tz": "UTC", "start_date": "2026-12-25"}, "schedule.start_date"),
        ({"kind": "every", "duration": 60, "end_date": "2027-01-01"}, "schedule.end_date"),
        ({"kind": "once", "instant": "2026-07-27T09:00Z", "start_date": "2026-01-01"}, "schedule.start_date"),
    ],
)  # fmt: skip
def test_a_mistake_in_them_is_named_by_its_path(value: dict[str, Any], field: str) -> None:  # T001-x, B010
    with pytest.raises(InvalidArgument) as refused:
        schedule_from_json(value)
    assert refused.value.field == field

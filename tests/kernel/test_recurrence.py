"""When next? Schedules by example: public failures by number, every kind of schedule, and the faces they share."""

from __future__ import annotations

import copy
import datetime as datetime_module
import pickle
from dataclasses import fields
from datetime import UTC, date, datetime, time, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence import (
    Cron,
    Daily,
    Every,
    Moments,
    Monthly,
    Once,
    OnDates,
    RRule,
    Schedule,
    Weekly,
    Yearly,
    schedule_from_text,
    special_days,
)
from duly.kernel.recurrence.schedule import CivilSchedule

PARIS, NEW_YORK, CHICAGO, LONDON = "Europe/Paris", "America/New_York", "America/Chicago", "Europe/London"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def texts(instants: object) -> list[str]:
    return [at.strftime("%Y-%m-%dT%H:%M") for at in instants]  # type: ignore[attr-defined]


def between(schedule: Schedule, start: str, end: str) -> list[str]:
    return texts(schedule.occurrences(utc(start), utc(end)))


def after(schedule: Schedule, instant: str, n: int) -> list[str]:
    return texts(schedule.next_n(utc(instant), n))


# --- Public failures, by number ---------------------------------------------------------------------------------------


def test_a_time_in_the_spring_gap_runs_at_its_end_and_the_next_day_as_ever() -> None:  # B001
    nightly = Cron("30 2 * * *", tz=NEW_YORK)
    assert after(nightly, "2026-03-08T06:30", 2) == ["2026-03-08T07:00", "2026-03-09T06:30"]
    runs = nightly.occurrences(utc("2026-03-07T05:00"), utc("2026-03-10T04:00"))
    dates = [at.astimezone(ZoneInfo(NEW_YORK)).date().day for at in runs]
    assert dates == [7, 8, 9]


def test_a_time_in_the_repeated_hour_runs_once_on_its_first_pass() -> None:  # B002
    runs = between(Cron("30 1 * * *", tz=NEW_YORK), "2026-10-31T12:00", "2026-11-02T12:00")
    assert runs == ["2026-11-01T05:30", "2026-11-02T06:30"]


def test_the_next_run_is_always_later_in_a_fold() -> None:  # B004
    hourly = Cron("30 * * * *", tz="Europe/Helsinki")
    assert hourly.next_after(datetime(2017, 10, 29, 3, 45, fold=1, tzinfo=ZoneInfo("Europe/Helsinki"))) == utc(
        "2017-10-29T02:30"
    )
    assert after(hourly, "2017-10-28T23:45", 4) == [f"2017-10-29T0{hour}:30" for hour in range(4)]
    every_other = Cron("0 */2 * * *", tz=LONDON)
    assert after(every_other, "2024-10-26T22:30", 4) == [
        "2024-10-26T23:00",
        "2024-10-27T02:00",
        "2024-10-27T04:00",
        "2024-10-27T06:00",
    ]


@pytest.mark.parametrize(
    ("expression", "tz", "since", "expected"),
    [
        ("0 8 * * 0", CHICAGO, "2026-03-08T05:45", "2026-03-08T13:00"),
        ("0 12 * * 0", "Europe/Berlin", "2022-03-24T11:00", "2022-03-27T10:00"),
        ("0 0 * * *", "Europe/Prague", "2026-03-28T23:30", "2026-03-29T22:00"),
        ("0 0 * * 1-5", CHICAGO, "2021-03-12T06:00", "2021-03-15T05:00"),
    ],
)
def test_a_day_of_23_hours_is_not_jumped_over(expression: str, tz: str, since: str, expected: str) -> None:  # B005
    assert after(Cron(expression, tz=tz), since, 1) == [expected]


@pytest.mark.parametrize(
    ("expression", "since", "expected"),
    [
        ("0 0 */2 * 1", "2025-01-01", ["2025-01-13", "2025-01-27", "2025-02-03", "2025-02-17"]),
        (
            "0 16 1,2,3 * 5",
            "2023-05-01",
            ["2023-05-01", "2023-05-02", "2023-05-03", "2023-05-05", "2023-05-12", "2023-05-19"],
        ),
        ("0 9 1-31 * 1", "2026-05-01", ["2026-05-01", "2026-05-02", "2026-05-03", "2026-05-04"]),
        ("0 0 * * */2", "2026-01-02", ["2026-01-03", "2026-01-04", "2026-01-06"]),
    ],
)
def test_both_days_must_match_if_one_begins_with_a_star_and_else_either(
    expression: str, since: str, expected: list[str]
) -> None:  # B008
    found = Cron(expression, tz="UTC").occurrences(utc(since), utc("2030-01-01"), len(expected))
    assert [at.date().isoformat() for at in found] == expected


@pytest.mark.parametrize("tz", ["America/New_Yrok", "UTC+3", ""])
def test_an_unusable_zone_is_refused_when_the_schedule_is_made(tz: str) -> None:  # B010
    for made in (lambda: Cron("* * * * *", tz=tz), lambda: Daily("9:00", tz=tz), lambda: Weekly("mon", "9:00", tz=tz)):
        with pytest.raises(InvalidArgument, match=r"^tz: "):
            made()


def test_a_local_time_stays_a_local_time_when_the_offset_changes() -> None:  # B011
    nine = Daily("09:00", tz=NEW_YORK)
    assert between(nine, "2026-03-07T05:00", "2026-03-10T04:00") == [
        "2026-03-07T14:00",
        "2026-03-08T13:00",
        "2026-03-09T13:00",
    ]
    assert between(nine, "2026-10-31T04:00", "2026-11-03T04:00") == [
        "2026-10-31T13:00",
        "2026-11-01T14:00",
        "2026-11-02T14:00",
    ]


def test_what_was_missed_can_be_counted_and_named() -> None:  # B023, T001-k
    minutely = Cron("* * * * *", tz="UTC")
    last, back = utc("2026-05-01T00:00"), utc("2026-05-01T03:00:30")
    assert len(list(minutely.occurrences(last + timedelta(microseconds=1), back))) == 180
    assert minutely.previous_before(back) == utc("2026-05-01T03:00")
    assert minutely.next_after(back) == utc("2026-05-01T03:01")


# --- Fixed and elapsed ------------------------------------------------------------------------------------------------

SPRING = ("2026-03-29T00:00", "2026-03-29T03:00")
AUTUMN = ("2026-10-24T23:30", "2026-10-25T03:00")


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        # minute or hour begins with a star: whenever a clock shows it
        ("30 * * * *", ["00:30", "01:30", "02:30"], ["23:30", "00:30", "01:30", "02:30"]),
        ("*/30 2 * * *", [], ["00:00", "00:30", "01:00", "01:30"]),
        ("*/30 2-3 * * *", ["01:00", "01:30"], ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30"]),
        ("30 */2 * * *", ["02:30"], ["00:30", "01:30"]),
        # else: each local time once
        ("0,30 2 * * *", ["01:00"], ["00:00", "00:30"]),
        ("0-59/30 2-3 * * *", ["01:00", "01:30"], ["00:00", "00:30", "02:00", "02:30"]),
        ("30 0-23 * * *", ["00:30", "01:00", "01:30", "02:30"], ["23:30", "00:30", "02:30"]),
    ],
)
def test_an_expression_follows_elapsed_time_if_minute_or_hour_begins_with_a_star(
    expression: str, spring: list[str], autumn: list[str]
) -> None:
    schedule = Cron(expression, tz=PARIS)
    assert [text[-5:] for text in between(schedule, *SPRING)] == spring
    assert [text[-5:] for text in between(schedule, *AUTUMN)] == autumn


@pytest.mark.parametrize(
    ("options", "spring", "autumn"),
    [
        ({}, ["01:00"], ["00:30"]),
        ({"gap": "skip"}, [], ["00:30"]),
        ({"fold": "last"}, ["01:00"], ["01:30"]),
        ({"fold": "both"}, ["01:00"], ["00:30", "01:30"]),
        ({"gap": "skip", "fold": "both"}, [], ["00:30", "01:30"]),
    ],
)
@pytest.mark.parametrize(
    "made",
    [
        lambda **options: Daily("02:30", tz=PARIS, **options),
        lambda **options: Cron("30 2 * * *", tz=PARIS, **options),
        lambda **options: Weekly("sun", "02:30", tz=PARIS, **options),
        lambda **options: Monthly("last sun", "02:30", tz=PARIS, **options),
        lambda **options: OnDates(["2026-03-29", "2026-10-25"], "02:30", tz=PARIS, **options),
        lambda **options: Yearly(["03-29", "10-25"], "02:30", tz=PARIS, **options),
        lambda **options: Moments(["2026-03-29T02:30", "2026-10-25T02:30"], tz=PARIS, **options),
        lambda **options: Daily("02:30", tz=PARIS, start_date="2026-03-29", end_date="2026-10-25", **options),
        lambda **options: RRule("FREQ=MONTHLY;BYDAY=-1SU", start="2026-01-01T02:30", tz=PARIS, **options),
    ],
)
def test_every_kind_of_schedule_can_say_what_becomes_of_a_gap_and_a_fold(made, options, spring, autumn) -> None:
    schedule = made(**options)
    assert [text[-5:] for text in between(schedule, *SPRING)] == spring
    assert [text[-5:] for text in between(schedule, *AUTUMN)] == autumn


def test_an_expression_that_follows_elapsed_time_can_be_told_not_to() -> None:
    once = Cron("*/30 2 * * *", tz=PARIS, gap="after", fold="first")
    assert [text[-5:] for text in between(once, *SPRING)] == ["01:00"]
    assert [text[-5:] for text in between(once, *AUTUMN)] == ["00:00", "00:30"]


def test_two_local_times_in_one_gap_run_once() -> None:
    daily = Daily(["02:00", "02:30", "03:00"], tz=PARIS)
    assert between(daily, "2026-03-28T23:00", "2026-03-29T22:00") == ["2026-03-29T01:00"]


def test_a_date_that_a_zone_leaves_out_runs_at_its_end() -> None:  # T000-g
    daily = Daily("18:00", tz="Pacific/Apia")
    assert between(daily, "2011-12-29T00:00", "2012-01-01T12:00") == [
        "2011-12-29T04:00",
        "2011-12-30T04:00",
        "2011-12-30T10:00",  # 30 December, which nobody in Apia has seen
        "2011-12-31T04:00",
        "2012-01-01T04:00",
    ]


@pytest.mark.parametrize(
    ("tz", "expression", "since", "expected"),
    [
        # a quarter past the hour, through a shift of half an hour forward and back
        ("Australia/Lord_Howe", "15 * * * *", "2026-10-03T14:30", ["14:45", "16:15", "17:15"]),
        ("Australia/Lord_Howe", "45 * * * *", "2026-04-04T14:00", ["14:45", "15:15", "16:15"]),
        ("Asia/Kathmandu", "0 0 * * *", "2026-01-01T00:00", ["18:15", "18:15"]),
        ("Africa/Cairo", "30 0 * * *", "2026-04-23T00:00", ["22:00", "21:30"]),
        ("Antarctica/Troll", "30 1 * * *", "2026-10-24T12:00", ["23:30", "01:30"]),
        ("Africa/Monrovia", "0 12 * * *", "1972-01-06T00:00", ["12:44", "12:00"]),  # 12:44:30: offsets had seconds
    ],
)
def test_zones_with_unusual_clocks(tz: str, expression: str, since: str, expected: list[str]) -> None:
    found = after(Cron(expression, tz=tz), since, len(expected))
    assert [text[-5:] for text in found] == expected


# --- Each kind of schedule --------------------------------------------------------------------------------------------


def test_daily_at_several_times() -> None:
    daily = Daily(["18:00", "08:00", time(12, 30), "8:00"], tz="UTC")
    assert daily.at == ("08:00", "12:30", "18:00")
    assert after(daily, "2026-05-01T08:00", 3) == ["2026-05-01T12:30", "2026-05-01T18:00", "2026-05-02T08:00"]


def test_daily_to_the_second() -> None:
    assert Daily("23:59:59", tz="UTC").next_after(utc("2026-05-01T23:59:58")) == utc("2026-05-01T23:59:59")


def test_weekly_by_names_ranges_and_lists() -> None:
    assert Weekly("mon-fri", "09:00", tz="UTC").days == ("mon", "tue", "wed", "thu", "fri")
    assert Weekly("fri-mon", "09:00", tz="UTC").days == ("mon", "fri", "sat", "sun")
    assert Weekly(["Thursday", "mon"], "09:00", tz="UTC") == Weekly("mon,thu", "09:00", tz="UTC")
    found = after(Weekly(["mon", "thu"], ["09:00", "17:00"], tz="UTC"), "2026-05-04T09:00", 3)
    assert found == ["2026-05-04T17:00", "2026-05-07T09:00", "2026-05-07T17:00"]


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        (1, ["2026-02-01", "2026-03-01"]),
        (31, ["2026-01-31", "2026-03-31"]),  # months without a 31st are passed over
        ("last", ["2026-01-31", "2026-02-28"]),
        ("second tue", ["2026-01-13", "2026-02-10"]),
        ("Last Friday", ["2026-01-30", "2026-02-27"]),
        ("fifth sat", ["2026-01-31", "2026-05-30"]),
        ("first weekday", ["2026-02-02", "2026-03-02"]),
        ("last weekday", ["2026-01-30", "2026-02-27"]),
        ([15, "last"], ["2026-01-15", "2026-01-31", "2026-02-15"]),
    ],
)
def test_monthly_by_number_and_by_words(day: object, expected: list[str]) -> None:
    found = after(Monthly(day, "06:00", tz="UTC"), "2026-01-01T06:00", len(expected))  # type: ignore[arg-type]
    assert [text[:10] for text in found] == expected


def test_on_dates() -> None:
    eve = OnDates([date(2026, 12, 31), "2026-12-24"], "14:00", tz=PARIS)
    assert after(eve, "2026-01-01", 3) == ["2026-12-24T13:00", "2026-12-31T13:00"]
    assert eve.next_after(utc("2026-12-31T13:00")) is None
    assert eve.previous_before(utc("2026-12-24T13:00")) is None


def test_once() -> None:
    once = Once(datetime(2026, 7, 27, 11, tzinfo=timezone(timedelta(hours=2))))
    assert once.next_n(utc("2026-01-01"), 5) == [utc("2026-07-27T09:00")]
    assert once.next_after(utc("2026-07-27T09:00")) is None
    assert once.previous_before(utc("2026-07-27T09:00")) is None
    assert once.previous_before(utc("2026-07-27T09:01")) == utc("2026-07-27T09:00")
    assert once.named("x") is once
    assert once.jittered(utc("2026-07-27T09:00")) == utc("2026-07-27T09:00")


@pytest.mark.parametrize("duration", ["15m", 900, timedelta(minutes=15), "900s", "0h 15min", 900.0])
def test_every_is_a_grid_that_clock_changes_do_not_move(duration: object) -> None:
    every = Every(duration)  # type: ignore[arg-type]
    assert after(every, "2026-03-29T00:50", 3) == ["2026-03-29T01:00", "2026-03-29T01:15", "2026-03-29T01:30"]
    assert every == Every("15m")


def test_every_counts_both_ways_from_its_anchor() -> None:
    every = Every("6h", anchor="2026-05-01T02:30+02:00")
    assert after(every, "2026-04-30T12:00", 3) == ["2026-04-30T12:30", "2026-04-30T18:30", "2026-05-01T00:30"]
    assert every.previous_before(utc("2026-05-01T00:30")) == utc("2026-04-30T18:30")


def test_one_line_of_text_is_a_cron_expression_or_an_interval() -> None:
    assert schedule_from_text("@every 1h30m") == Every("90m")
    assert schedule_from_text("@Every 10s") == Every(10)
    assert schedule_from_text("30 2 * * *", PARIS) == Cron("30 2 * * *", tz=PARIS)
    assert schedule_from_text("@daily", PARIS) == Cron("0 0 * * *", tz=PARIS)
    with pytest.raises(InvalidArgument, match="tz: is missing"):
        schedule_from_text("30 2 * * *")
    with pytest.raises(InvalidArgument, match="duration"):
        schedule_from_text("@every")


# --- The face they share ----------------------------------------------------------------------------------------------

KINDS: list[Schedule] = [
    Cron("*/20 1-3 * * *", tz=PARIS),
    Cron("30 2 29 2 *", tz="Africa/Cairo"),
    Cron("H H * * *", tz=PARIS, name="x"),
    Every("7h", anchor="2026-01-01T00:00:30Z"),
    Daily(["02:30", "18:00"], tz=PARIS, gap="skip", fold="both"),
    Weekly("sat-sun", "02:30", tz=NEW_YORK, fold="last"),
    Monthly(["last", "second tue"], ["00:00", "23:59:59"], tz="Africa/Cairo"),
    OnDates(["2026-03-29", "2026-10-25"], "02:30", tz=PARIS),
    Once("2026-03-29T01:00Z"),
    RRule("FREQ=WEEKLY;INTERVAL=2;BYDAY=SU,MO;COUNT=500", start="2024-01-01T02:30", tz=PARIS),
    Yearly(["02-29", "03-29", "10-25"], ["02:30", "23:00"], tz=PARIS, fold="both"),
    Moments(["2024-03-31T02:30", "2026-03-29T02:00", "2026-03-29T02:30", "2026-10-25T02:30"], tz=PARIS, fold="both"),
    Daily(["00:00", "23:30"], tz="Africa/Cairo", start_date="2024-04-26", end_date="2026-10-29", fold="both"),
    Cron("30 * * * *", tz=PARIS, start_date="2024-03-31"),
    RRule("FREQ=DAILY", start="2020-01-01T02:30", tz=NEW_YORK, end_date="2026-11-01"),
]
kinds = pytest.mark.parametrize("schedule", KINDS, ids=repr)
instants = st.datetimes(datetime(1960, 1, 1), datetime(2210, 1, 1), timezones=st.just(UTC))
near = st.datetimes(datetime(2023, 12, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
spans = st.timedeltas(timedelta(0), timedelta(days=40))


@given(st.sampled_from(KINDS), instants | near)
def test_the_next_is_later_and_nothing_lies_between(schedule: Schedule, at: datetime) -> None:
    found = schedule.next_after(at)
    if found is None:
        return
    assert found > at
    assert found.tzinfo is UTC
    before = schedule.previous_before(found)
    assert before is None or before <= at
    # previous_before is the inverse of next_after
    assert schedule.previous_before(found + timedelta(microseconds=1)) == found
    assert schedule.next_after(found - timedelta(microseconds=1)) == found
    if before is not None:
        assert schedule.next_after(before) == found


@given(st.sampled_from(KINDS), instants | near)
def test_the_previous_is_earlier_and_nothing_lies_between(schedule: Schedule, at: datetime) -> None:
    found = schedule.previous_before(at)
    if found is None:
        return
    assert found < at
    assert found.tzinfo is UTC
    following = schedule.next_after(found)
    assert following is None or following >= at
    if following is not None:
        assert schedule.previous_before(following) == found


@given(st.sampled_from(KINDS), near, spans, spans)
def test_a_range_is_the_sum_of_its_parts(schedule: Schedule, a: datetime, one: timedelta, two: timedelta) -> None:
    b, c = a + one, a + one + two
    whole = list(schedule.occurrences(a, c))
    assert list(schedule.occurrences(a, b)) + list(schedule.occurrences(b, c)) == whole
    assert all(earlier < later for earlier, later in pairwise(whole))
    assert all(a <= at < c for at in whole)
    assert list(schedule.occurrences(a, c, 2)) == whole[:2]


@kinds
def test_a_range_has_its_start_and_not_its_end(schedule: Schedule) -> None:
    first = schedule.next_after(utc("2024-02-01"))
    assert first is not None
    assert list(schedule.occurrences(first, first + timedelta(microseconds=1))) == [first]
    assert list(schedule.occurrences(first, first)) == []
    assert list(schedule.occurrences(first + timedelta(days=1), first)) == []
    assert list(schedule.occurrences(first, first + timedelta(days=1), 0)) == []


@kinds
def test_no_instant_is_out_of_reach(schedule: Schedule) -> None:
    lowest, highest = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    first, last = schedule.next_after(lowest), schedule.previous_before(highest)
    assert first is not None
    assert last is not None
    assert 1969 <= first.year <= last.year <= 2201
    assert schedule.previous_before(first) is None
    assert schedule.next_after(last) is None
    assert schedule.previous_before(lowest) is None
    assert schedule.next_after(highest) is None
    assert list(schedule.occurrences(lowest, first + timedelta(microseconds=1))) == [first]
    assert schedule.next_n(highest, 3) == schedule.next_n(last, 3) == []
    assert schedule.next_n(lowest, 1) == [first]


@kinds
def test_a_naive_instant_is_refused_everywhere(schedule: Schedule) -> None:
    naive, aware = datetime(2026, 1, 1), utc("2026-01-01")
    for asked in (
        lambda: schedule.next_after(naive),
        lambda: schedule.previous_before(naive),
        lambda: schedule.next_n(naive, 1),
        lambda: schedule.occurrences(naive, aware),
        lambda: schedule.occurrences(aware, naive),
        lambda: schedule.jittered(naive),
        lambda: schedule.next_after("2026-01-01T00:00Z"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            asked()


@kinds
def test_a_negative_limit_is_refused_before_anything_is_asked(schedule: Schedule) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        schedule.occurrences(utc("2026-01-01"), utc("2027-01-01"), -1)
    with pytest.raises(InvalidArgument, match="n: "):
        schedule.next_n(utc("2026-01-01"), 1.5)  # type: ignore[arg-type]


@kinds
def test_a_schedule_is_a_value(schedule: Schedule) -> None:
    twin = pickle.loads(pickle.dumps(schedule))
    assert twin == schedule == copy.deepcopy(schedule)
    assert hash(twin) == hash(schedule)
    assert twin.next_n(utc("2026-01-01"), 3) == schedule.next_n(utc("2026-01-01"), 3)
    assert eval(repr(schedule), {**globals(), "datetime": datetime_module}) == schedule
    with pytest.raises(AttributeError):
        setattr(schedule, fields(schedule)[0].name, None)  # type: ignore[arg-type]


def test_an_instant_in_any_zone_is_the_same_instant() -> None:
    daily = Daily("18:00", tz=PARIS)
    at = utc("2026-10-25T00:30")
    assert daily.next_after(at.astimezone(ZoneInfo("Asia/Kathmandu"))) == daily.next_after(at)


def test_an_instant_that_is_not_later_is_reported_instead_of_returned() -> None:
    class Broken(Daily):
        __slots__ = ()

        def _next(self, after: datetime) -> datetime:
            return after

        def _previous(self, before: datetime) -> datetime:
            return before

    broken = Broken("18:00", tz="UTC")
    with pytest.raises(RuntimeError, match="must be later"):
        broken.next_after(utc("2026-01-01"))
    with pytest.raises(RuntimeError, match="not earlier"):
        broken.previous_before(utc("2026-01-01"))


# --- Spreading load ---------------------------------------------------------------------------------------------------


@given(
    st.sampled_from([Cron("*/5 * * * *", tz=PARIS), Daily("02:30", tz=PARIS), Every("1s")]),
    st.text(min_size=1, max_size=200).filter(str.isprintable),
    st.floats(0.001, 604_800),
    near,
)
def test_jitter_is_never_early_and_never_as_late_as_the_next(
    schedule: CivilSchedule, name: str, jitter: float, at: datetime
) -> None:
    schedule = type(schedule)(**{**_fields(schedule), "jitter": jitter}).named(name)
    first, second, third = schedule.next_n(at, 3)
    assert first <= schedule.jittered(first) < second <= schedule.jittered(second) < third
    assert schedule.jittered(first) - first < timedelta(seconds=jitter) + timedelta(microseconds=1)
    assert schedule.jittered(first) == pickle.loads(pickle.dumps(schedule)).jittered(first)


def _fields(schedule: Schedule) -> dict[str, object]:
    said = schedule.to_json()
    del said["kind"]
    return said


def test_jitter_moves_nothing_that_is_planned() -> None:
    assert Daily("18:00", tz=PARIS, jitter=600, name="x").next_n(utc("2026-01-01"), 50) == Daily(
        "18:00", tz=PARIS
    ).next_n(utc("2026-01-01"), 50)


def test_jitter_is_the_same_in_every_process_and_spreads() -> None:
    daily = Daily("18:00", tz="UTC", jitter=600)
    planned = utc("2026-05-01T18:00")
    assert daily.named("report").jittered(planned) == utc("2026-05-01T18:04:03.569995")
    late = sorted((daily.named(f"n{number}").jittered(planned) - planned).total_seconds() for number in range(1000))
    assert 0 <= late[0] < 10
    assert 590 < late[-1] < 600
    assert 270 < sum(late) / len(late) < 330


def test_jitter_of_one_schedule_differs_from_day_to_day() -> None:
    daily = Daily("18:00", tz="UTC", jitter=timedelta(minutes=10), name="x")  # type: ignore[arg-type]
    assert len({daily.jittered(at) - at for at in daily.next_n(utc("2026-01-01"), 100)}) == 100


def test_no_jitter_is_no_delay() -> None:
    assert Daily("18:00", tz="UTC").jittered(utc("2026-05-01T18:00")) == utc("2026-05-01T18:00")


def test_a_name_is_given_once() -> None:
    named = Daily("18:00", tz="UTC", name="mine")
    assert named.named("other") is named
    assert Daily("18:00", tz="UTC").named("other").name == "other"


# --- In plain language ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            Cron("30 2 * * *", tz=PARIS),
            "at 02:30 every day, Paris time; 29 March 2026 runs at 03:00; 25 October 2026 runs at the first 02:30",
        ),
        (Daily("18:00", tz="America/Argentina/Buenos_Aires"), "at 18:00 every day, Buenos Aires time"),
        (
            Daily(["02:15", "02:45"], tz=PARIS, fold="last"),
            "at 02:15 and 02:45 every day, Paris time; 29 March 2026 runs at 03:00 for 02:15 and 02:45; "
            "25 October 2026 runs at the last 02:15 and 02:45",
        ),
        (
            Daily("02:30", tz=PARIS, gap="skip", fold="both"),
            "at 02:30 every day, Paris time; 29 March 2026 does not run; 25 October 2026 runs at both passes of 02:30",
        ),
        (
            Cron("*/5 * * * *", tz=PARIS),
            "every fifth minute of every hour, Paris time; 29 March 2026 does not run at 12 times from 02:00 to 02:55; "
            "25 October 2026 runs at both passes of 12 times from 02:00 to 02:55",
        ),
        (Cron("0 9 22 * *", tz="UTC"), "at 09:00 on the 22nd day of every month, UTC"),
        (Weekly("mon-wed", "9:00", tz="Etc/GMT-2"), "at 09:00 on Monday, Tuesday and Wednesday, Etc/GMT-2"),
        (Monthly(31, "06:00", tz="UTC"), "at 06:00 on the 31st of the months that have one, UTC"),
        (
            Monthly([1, "last fri"], "06:00", tz="UTC"),
            "at 06:00 on the 1st and the last Friday of every month, UTC",
        ),
        (OnDates("2026-12-24", "14:00", tz="UTC"), "at 14:00 on 24 December 2026, UTC"),
        (
            OnDates([date(2026, 1, day) for day in range(1, 10)], "14:00", tz="UTC"),
            "at 14:00 on 1 January 2026, 2 January 2026, 3 January 2026 and 6 more days, UTC",
        ),
        (Every("15m"), "every 15 minutes"),
        (Every("1h"), "every hour"),
        (
            Every("1h30m", anchor="2026-01-01T00:00:30Z"),
            "every 1 hour 30 minutes, counted from 00:00:30 UTC on 1 January 2026",
        ),
        (Once("2026-07-27T09:00Z"), "once, at 09:00 UTC on 27 July 2026"),
        (
            RRule("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR", start="2026-01-05T09:00", tz=PARIS),
            "every 2 weeks on Monday and Friday at 09:00, from 5 January 2026, Paris time",
        ),
        (
            RRule("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", start="2026-01-05T09:00", tz=PARIS),
            "by the rule FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1 at 09:00, from 5 January 2026, Paris time",
        ),
        (Cron("H H * * *", tz="UTC").named("report"), "at 14:37 every day, UTC"),
    ],
)
def test_a_schedule_says_in_a_line_when_it_runs(schedule: Schedule, expected: str) -> None:
    assert schedule.describe(since=utc("2026-01-01")) == expected
    assert schedule.describe() == expected.split("; ")[0]


def test_only_english_is_spoken() -> None:
    with pytest.raises(InvalidArgument, match="locale"):
        Daily("18:00", tz="UTC").describe("fr")


def test_special_days_say_what_was_planned_and_when_it_runs() -> None:
    spring, autumn = special_days(Daily("02:30", tz=PARIS), utc("2026-01-01"), 365)
    assert (spring.on, spring.kind, spring.planned) == (date(2026, 3, 29), "gap", (time(2, 30),))
    assert spring.runs == (utc("2026-03-29T01:00"),)
    assert (autumn.on, autumn.kind, autumn.runs) == (date(2026, 10, 25), "fold", (utc("2026-10-25T00:30"),))


def test_special_days_are_looked_for_as_long_as_asked() -> None:
    daily = Daily("02:30", tz=PARIS)
    assert special_days(daily, utc("2026-01-01"), 87) == ()
    assert len(special_days(daily, utc("2026-01-01"), 88)) == 1
    assert len(special_days(daily, utc("2026-01-01"), 3660)) == 20
    assert special_days(daily, utc("2026-03-29T01:01"), 100) == ()
    assert special_days(Daily("18:00", tz=PARIS), utc("2026-01-01")) == ()
    for days in (0, 3661, 1.5):
        with pytest.raises(InvalidArgument, match="days"):
            special_days(daily, utc("2026-01-01"), days)  # type: ignore[arg-type]


def test_a_date_that_does_not_exist_says_where_its_run_goes() -> None:
    (special,) = [
        special
        for special in special_days(Daily("12:00", tz="Pacific/Apia"), utc("2011-12-01"), 60)
        if special.kind == "gap"
    ]
    assert special.text == "30 December 2011 runs at 00:00 on 31 December 2011"


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda: Daily("24:00", tz="UTC"), "at"),
        (lambda: Daily("18", tz="UTC"), "at"),
        (lambda: Daily("18:60", tz="UTC"), "at"),
        (lambda: Daily("６:00", tz="UTC"), "at"),
        (lambda: Daily([], tz="UTC"), "at"),
        (lambda: Daily(["18:00", "25:00"], tz="UTC"), r"at\[1\]"),
        (lambda: Daily(18, tz="UTC"), "at"),  # type: ignore[arg-type]
        (lambda: Daily(time(18, microsecond=1), tz="UTC"), "at"),
        (lambda: Daily(time(18, tzinfo=UTC), tz="UTC"), "at"),
        (lambda: Daily(["18:00"] * 2000, tz="UTC"), "at"),
        (lambda: Daily("18:00", tz="UTC", gap="before"), "gap"),  # type: ignore[arg-type]
        (lambda: Daily("18:00", tz="UTC", fold="second"), "fold"),  # type: ignore[arg-type]
        (lambda: Daily("18:00", tz="UTC", jitter=-1), "jitter"),
        (lambda: Daily("18:00", tz="UTC", jitter=float("nan")), "jitter"),
        (lambda: Daily("18:00", tz="UTC", jitter=604_801), "jitter"),
        (lambda: Daily("18:00", tz="UTC", jitter="soon"), "jitter"),  # type: ignore[arg-type]
        (lambda: Daily("18:00", tz="UTC", name=""), "name"),
        (lambda: Daily("18:00", tz="UTC", name="a\nb"), "name"),
        (lambda: Weekly([], "18:00", tz="UTC"), "days"),
        (lambda: Weekly("lun", "18:00", tz="UTC"), "days"),
        (lambda: Weekly([0, 1], "18:00", tz="UTC"), r"days\[0\]|days"),  # type: ignore[list-item]
        (lambda: Weekly("mon-", "18:00", tz="UTC"), "days"),
        (lambda: Monthly(0, "18:00", tz="UTC"), "day"),
        (lambda: Monthly(32, "18:00", tz="UTC"), "day"),
        (lambda: Monthly(True, "18:00", tz="UTC"), "day"),
        (lambda: Monthly("sixth tue", "18:00", tz="UTC"), "day"),
        (lambda: Monthly("tue", "18:00", tz="UTC"), "day"),
        (lambda: Monthly([1, "x"], "18:00", tz="UTC"), r"day\[1\]"),
        (lambda: Monthly([], "18:00", tz="UTC"), "day"),
        (lambda: Monthly({}, "18:00", tz="UTC"), "day"),  # type: ignore[arg-type]
        (lambda: OnDates("2026-02-30", "18:00", tz="UTC"), "dates"),
        (lambda: OnDates("2026-W01-1", "18:00", tz="UTC"), "dates"),
        (lambda: OnDates("1969-12-31", "18:00", tz="UTC"), "dates"),
        (lambda: OnDates("2201-01-01", "18:00", tz="UTC"), "dates"),
        (lambda: OnDates(datetime(2026, 1, 1), "18:00", tz="UTC"), "dates"),
        (lambda: OnDates("2026-03-29", "02:30", tz=PARIS, gap="skip"), "dates"),  # it never happens
        (lambda: Once("2026-07-27T09:00"), "instant"),
        (lambda: Once("tomorrow"), "instant"),
        (lambda: Once(5), "instant"),  # type: ignore[arg-type]
        (lambda: Once("2201-01-01T00:00Z"), "instant"),
        (lambda: Every(0), "duration"),
        (lambda: Every("0.5s"), "duration"),
        (lambda: Every(0.5), "duration"),
        (lambda: Every(-60), "duration"),
        (lambda: Every("15 bananas"), "duration"),
        (lambda: Every(float("inf")), "duration"),
        (lambda: Every(10**400), "duration"),
        (lambda: Every(10**5000), "duration"),
        (lambda: Every("999999999w" * 9), "duration"),
        (lambda: Every(True), "duration"),
        (lambda: Every("40000d"), "duration"),
        (lambda: Every("15m", anchor="2026-01-01T00:00"), "anchor"),
        (lambda: Every("15m", anchor=datetime(2026, 1, 1)), "anchor"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(made, field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^({field}): ") as refused:
        made()
    assert len(str(refused.value)) < 400

"""When not? Blackout windows by example, against a clock on a wall, and as JSON."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.windows import HORIZON, Calendar, Coverage, Stretch, Window, calendar_from_json, window_from_json
from kernel.wallclock import HOUR, MINUTE, Change, Wall, different_changes

ROME, PARIS = "Europe/Rome", "Europe/Paris"
DAY = timedelta(days=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def stretches(calendar: Calendar | Window, start: str, end: str) -> list[tuple[str, str]]:
    if isinstance(calendar, Window):
        calendar = Calendar([calendar])
    found = calendar.spans(utc(start), utc(end))
    return [(f"{span.start:%Y-%m-%dT%H:%M}", f"{span.end:%Y-%m-%dT%H:%M}") for span in found]


# --- By example -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "covered"),
    [
        ("2026-01-15T20:59", False),
        ("2026-01-15T21:00", True),
        ("2026-01-15T23:30", True),
        ("2026-01-16T05:59", True),
        ("2026-01-16T06:00", False),
    ],
)
def test_a_window_over_midnight_covers_both_sides_of_it_and_not_its_end(at: str, covered: bool) -> None:  # B057, R002-8
    window = Window(start="22:00", end="07:00", tz=ROME)
    assert window.covers(utc(at)) is covered
    assert window.ends_after(utc(at)) == (utc("2026-01-16T06:00") if covered else None)


def test_a_window_until_eight_does_not_cover_the_evening() -> None:  # B057
    assert not Window(start="00:00", end="08:00", tz=ROME).covers(utc("2026-01-15T20:00"))


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_starts() -> None:  # T002-d
    window = Window(days=["fri"], start="22:00", end="06:00", tz="UTC")
    assert not window.covers(utc("2026-05-01T02:00"))  # Friday
    assert window.covers(utc("2026-05-01T22:00"))
    assert window.covers(utc("2026-05-02T02:00"))  # Saturday
    assert not window.covers(utc("2026-05-02T22:00"))


@pytest.mark.parametrize(("start", "end"), [("00:00", "00:00"), ("00:00", "24:00")])
def test_an_end_at_the_start_is_a_whole_day(start: str, end: str) -> None:  # T002-d
    window = Window(days="wed", start=start, end=end, tz="UTC")
    assert stretches(window, "2026-05-01", "2026-05-10") == [("2026-05-06T00:00", "2026-05-07T00:00")]


def test_a_whole_day_can_start_at_any_time() -> None:  # T002-d
    window = Window(days="wed", start="22:00", end="22:00", tz="UTC")
    assert stretches(window, "2026-05-01", "2026-05-10") == [("2026-05-06T22:00", "2026-05-07T22:00")]


def test_24_00_is_the_end_of_the_day() -> None:  # T002-d
    window = Window(days="wed", start="22:00", end="24:00", tz="UTC")
    assert stretches(window, "2026-05-01", "2026-05-10") == [("2026-05-06T22:00", "2026-05-07T00:00")]


def test_a_window_without_hours_is_on_whole_days() -> None:
    window = Window(dates=("2026-12-24", "2027-01-01"), tz=PARIS)
    assert stretches(window, "2026-01-01", "2028-01-01") == [("2026-12-23T23:00", "2027-01-01T23:00")]


def test_dates_and_days_must_both_match() -> None:
    window = Window(days=["sat", "sun"], dates=[("2026-05-01", "2026-05-10"), "2026-05-16"], tz="UTC")
    assert stretches(window, "2026-01-01", "2027-01-01") == [
        ("2026-05-02T00:00", "2026-05-04T00:00"),
        ("2026-05-09T00:00", "2026-05-11T00:00"),
        ("2026-05-16T00:00", "2026-05-17T00:00"),
    ]


def test_overlapping_and_touching_windows_are_one_coverage() -> None:
    calendar = Calendar(
        [
            Window(days="mon", start="08:00", end="12:00", tz="UTC", name="a"),
            Window(days="mon", start="10:00", end="13:00", tz="UTC", name="b"),
            Window(days="mon", start="15:00", end="16:00", tz=PARIS, name="c"),  # 13:00 to 14:00 UTC
            Window(days="mon", start="14:01", end="15:00", tz="UTC"),
        ]
    )
    assert stretches(calendar, "2026-05-04", "2026-05-05") == [
        ("2026-05-04T08:00", "2026-05-04T14:00"),
        ("2026-05-04T14:01", "2026-05-04T15:00"),
    ]
    assert calendar.ends_after(utc("2026-05-04T08:00")) == utc("2026-05-04T14:00")
    assert calendar.covering(utc("2026-05-04T10:30")) == Coverage(utc("2026-05-04T14:00"), ("a", "b"))
    assert calendar.covering(utc("2026-05-04T14:30")) == Coverage(utc("2026-05-04T15:00"), ())
    assert calendar.covering(utc("2026-05-04T14:00")) is None
    assert calendar.free_from(utc("2026-05-04T09:00")) == utc("2026-05-04T14:00")
    assert calendar.free_from(utc("2026-05-04T14:00")) == utc("2026-05-04T14:00")
    assert calendar.begins_after(utc("2026-05-04T09:00")) == utc("2026-05-04T14:01")
    assert calendar.begins_after(utc("2026-05-04T15:00")) == utc("2026-05-11T08:00")


def test_a_stretch_is_cut_to_what_was_asked_for() -> None:
    window = Window(start="22:00", end="07:00", tz="UTC")
    assert stretches(window, "2026-05-01T23:00", "2026-05-02T22:30") == [
        ("2026-05-01T23:00", "2026-05-02T07:00"),
        ("2026-05-02T22:00", "2026-05-02T22:30"),
    ]
    assert stretches(window, "2026-05-01T23:00", "2026-05-01T23:00") == []


def test_an_empty_calendar_covers_nothing() -> None:
    calendar = Calendar()
    at = utc("2026-05-04")
    assert not calendar.covers(at)
    assert calendar.covering(at) is None
    assert calendar.free_from(at) == at
    assert calendar.ends_after(at) is None
    assert calendar.begins_after(at) is None
    assert list(calendar.spans(at, at + DAY)) == []


def test_a_calendar_can_be_asked_for_what_applies_to_somebody() -> None:
    everybody, mail = Window(tz="UTC", name="all"), Window(tz="UTC", scope="queue:mail")
    other = Window(tz="UTC", scope="channel:mail")
    calendar = Calendar([everybody, mail, other])
    assert calendar.applying_to("queue:mail") == Calendar([everybody, mail])
    assert calendar.applying_to("queue:mail", "channel:mail") == calendar
    assert calendar.applying_to() == Calendar([everybody])


# --- Days on which clocks change --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "spring", "autumn"),
    [
        # Paris: 02:00 to 03:00 is left out on 29 March and shown twice on 25 October 2026
        ("22:00", "07:00", ("28T21:00", "29T05:00"), ("24T20:00", "25T06:00")),
        ("02:15", "02:45", None, ("25T00:15", "25T01:45")),
        ("02:30", "04:00", ("29T01:00", "29T02:00"), ("25T00:30", "25T03:00")),
        ("01:00", "02:30", ("29T00:00", "29T01:00"), ("24T23:00", "25T01:30")),
        ("01:00", "02:00", ("29T00:00", "29T01:00"), ("24T23:00", "25T00:00")),
        ("03:00", "04:00", ("29T01:00", "29T02:00"), ("25T02:00", "25T03:00")),
        ("00:00", "24:00", ("28T23:00", "29T22:00"), ("24T22:00", "25T23:00")),
    ],
)
def test_a_window_is_real_time_between_two_readings_of_a_clock(start, end, spring, autumn) -> None:
    for day, month, expected in (("2026-03-29", "2026-03", spring), ("2026-10-25", "2026-10", autumn)):
        on = date.fromisoformat(day) - (DAY if end < start else timedelta(0))
        window = Window(start=start, end=end, dates=on, tz=PARIS)
        found = [(begin[5:], stop[5:]) for begin, stop in stretches(window, "2026-01-01", "2027-01-01")]
        assert found == ([] if expected is None else [tuple(f"{month[5:]}-{at}" for at in expected)])


def test_a_day_whose_midnight_comes_twice_ends_at_the_first() -> None:
    # Havana goes back from 01:00 to 00:00 on 1 November 2026
    saturday, sunday = Window(dates="2026-10-31", tz="America/Havana"), Window(dates="2026-11-01", tz="America/Havana")
    assert stretches(saturday, "2026-10-01", "2026-12-01") == [("2026-10-31T04:00", "2026-11-01T04:00")]
    assert stretches(sunday, "2026-10-01", "2026-12-01") == [("2026-11-01T04:00", "2026-11-02T05:00")]


def test_a_fold_of_two_hours_is_covered_to_its_end() -> None:
    # Troll goes back from 03:00 to 01:00 at 01:00 UTC; its clock has shown 02:30 before it shows 01:00 to 02:30 again.
    window = Window(start="02:30", end="04:00", dates="2026-10-25", tz="Antarctica/Troll")
    assert stretches(window, "2026-10-01", "2026-11-01") == [("2026-10-25T00:30", "2026-10-25T04:00")]
    assert all(window.covers(utc("2026-10-25T00:30") + minutes * MINUTE) for minutes in range(210))
    assert not window.covers(utc("2026-10-25T04:00"))


def test_a_day_that_a_zone_leaves_out_is_covered_by_nothing() -> None:
    assert stretches(Window(dates="2011-12-30", tz="Pacific/Apia"), "2011-12-01", "2012-02-01") == []
    both = Window(dates=("2011-12-29", "2011-12-31"), tz="Pacific/Apia")
    assert stretches(both, "2011-12-01", "2012-02-01") == [("2011-12-29T10:00", "2011-12-31T10:00")]


edges = st.integers(0, 47).map(lambda half: time(half // 2, half % 2 * 30)) | st.times().map(
    lambda at: at.replace(second=0, microsecond=0)
)


@st.composite
def windows_around(draw: st.DrawFn) -> tuple[Change, Window]:
    change = draw(st.sampled_from(different_changes()))
    touched = change.at.replace(tzinfo=None) + min(change.before, change.after)
    length = abs(change.after - change.before)
    near = st.integers(-90, 90 + length // MINUTE).map(lambda minutes: (touched + minutes * MINUTE).time())
    near = near.map(lambda at: at.replace(second=0))
    days = draw(st.none() | st.lists(st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), min_size=1))
    start, end = draw(near | edges), draw(near | edges | st.just("24:00"))
    return change, Window(days=days, start=start, end=end, tz=change.zone)


def shown_within(window: Window, local: datetime) -> bool:
    """Does a clock that reads ``local`` stand within the window? Said of readings alone."""

    def starts(day: date) -> bool:
        return window.days is None or ["mon", "tue", "wed", "thu", "fri", "sat", "sun"][day.weekday()] in window.days

    start, end = time.fromisoformat(str(window.start)), window.end
    at, yesterday = local.time(), local.date() - DAY
    if end == "24:00":
        return starts(local.date()) and at >= start
    stop = time.fromisoformat(str(end))
    if start < stop:
        return starts(local.date()) and start <= at < stop
    return (starts(local.date()) and at >= start) or (starts(yesterday) and at < stop)


@given(windows_around())
def test_whatever_a_clock_shows_within_a_window_is_covered_and_nothing_else_but_what_a_fold_joins(made) -> None:
    change, window = made
    wall = Wall(change.zone, change.at - 20 * HOUR, change.at + 20 * HOUR)
    repeated = change.at.replace(tzinfo=None) + change.after, change.at.replace(tzinfo=None) + change.before
    spans = list(Calendar([window]).spans(wall.start, wall.end))
    position = 0
    for number, (at, local) in enumerate(wall.readings):
        while position < len(spans) and spans[position].end <= at:
            position += 1
        covered = position < len(spans) and spans[position].start <= at
        if number % 11 == 0:
            assert window.covers(at) is covered, (at, window)
        if covered != shown_within(window, local):
            assert covered, (at, local, window)
            assert repeated[0] <= local < repeated[1], (at, local, window)


@settings(max_examples=40)
@given(st.lists(windows_around().map(lambda made: made[1]), max_size=4), st.sampled_from(different_changes()))
def test_a_calendar_is_its_windows_minute_by_minute(windows: list[Window], change: Change) -> None:
    calendar, start = Calendar(windows), change.at - 15 * HOUR
    end = start + 40 * HOUR
    spans = list(calendar.spans(start, end))
    for one, other in pairwise(spans):
        assert one.end < other.start  # touching ones are one
    at, step = start, 67 * MINUTE
    while at < end:
        covered = any(window.covers(at) for window in windows)
        assert calendar.covers(at) is covered
        within = [span for span in spans if span.start <= at < span.end]
        assert bool(within) is covered
        free = calendar.free_from(at)
        if not covered:
            assert free == at
            assert calendar.ends_after(at) is None
            assert calendar.covering(at) is None
            begins = calendar.begins_after(at)
            following = next((span.start for span in spans if span.start > at), None)
            assert begins == following or (following is None and (begins is None or begins >= end))
        elif within[0].end < end:
            assert free == calendar.ends_after(at) == within[0].end
            assert not calendar.covers(within[0].end)
            assert calendar.covers(within[0].end - timedelta(microseconds=1))
        at += step


# --- What does not end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "windows",
    [
        [Window(tz=PARIS)],
        [Window(start="09:00", end="09:00", tz=PARIS)],
        [Window(days="mon-sun", tz=PARIS)],
        [Window(start="00:00", end="12:00", tz=PARIS), Window(start="12:00", end="24:00", tz=PARIS)],
        [Window(days=[day], tz=PARIS) for day in ("mon", "tue", "wed", "thu", "fri", "sat", "sun")],
        [Window(dates=("2026-01-01", "2200-12-31"), tz=PARIS)],
    ],
    ids=["always", "from nine to nine", "all days", "two halves", "seven days", "to the end"],
)
def test_a_coverage_without_an_end_is_said_to_have_none(windows: list[Window]) -> None:
    calendar, at = Calendar(windows), utc("2026-05-04T10:00")
    assert calendar.covers(at)
    assert calendar.free_from(at) is None
    assert calendar.ends_after(at) is None
    assert calendar.covering(at) == Coverage(None, ())
    assert calendar.begins_after(at) is None
    assert list(calendar.spans(at, at + 900 * DAY)) == [Stretch(at, at + 900 * DAY)]


def test_a_long_stretch_has_an_end_however_far() -> None:
    calendar = Calendar(
        [Window(dates=("2026-01-01", "2026-06-30"), tz="UTC"), Window(dates=("2026-07-01", "2060-12-31"), tz="UTC")]
    )
    assert calendar.ends_after(utc("2026-05-04")) == utc("2061-01-01")
    assert utc("2061-01-01") - utc("2026-05-04") > HORIZON


def test_no_instant_is_out_of_reach() -> None:
    calendar = Calendar([Window(tz="Pacific/Kiritimati"), Window(tz="Etc/GMT+12", start="22:00", end="07:00")])
    lowest, highest = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    for at in (lowest, highest):
        assert not calendar.covers(at)
        assert calendar.free_from(at) == at
        assert calendar.covering(at) is None
        assert calendar.ends_after(at) is None
    assert calendar.begins_after(highest) is None
    assert calendar.begins_after(lowest) == utc("1970-01-01T10:40")
    assert next(calendar.spans(lowest, highest)) == Stretch(utc("1970-01-01T10:40"), highest)


# --- A value ----------------------------------------------------------------------------------------------------------

EVERY_KIND = [
    Window(tz="UTC"),
    Window(days=["wed", "fri-sat"], start="22:00", end="07:00", tz=ROME, name="quiet", scope="channel:instagram"),
    Window(dates=[date(2026, 12, 24), ("2026-12-31", "2027-01-01")], tz=ROME, start="18:00", end="24:00"),
    Window(dates=("2026-12-24", "2027-01-01"), tz=ROME, start="18:00:30", end="18:00:30", scope="queue:mail"),
]


@pytest.mark.parametrize("window", EVERY_KIND, ids=lambda window: window.describe())
def test_a_window_is_a_value_and_comes_back_from_json(window: Window) -> None:
    said = json.loads(json.dumps(window.to_json()))
    assert window_from_json(said) == window == pickle.loads(pickle.dumps(window)) == copy.deepcopy(window)
    assert window_from_json(said).to_json() == said
    assert hash(copy.deepcopy(window)) == hash(window)
    assert eval(repr(window), {"Window": Window, "datetime": __import__("datetime")}) == window
    assert calendar_from_json([said, said]) == Calendar([window, window])


def test_the_form_is_plain_and_short() -> None:
    assert EVERY_KIND[1].to_json() == {
        "days": ["wed", "fri", "sat"],
        "start": "22:00",
        "end": "07:00",
        "tz": ROME,
        "name": "quiet",
        "scope": "channel:instagram",
    }
    assert EVERY_KIND[2].to_json()["dates"] == ["2026-12-24", {"from": "2026-12-31", "to": "2027-01-01"}]


def test_dates_that_follow_each_other_are_one_range() -> None:
    one = Window(dates=["2026-05-03", "2026-05-01", "2026-05-02", ("2026-05-02", "2026-05-04")], tz="UTC")
    assert one == Window(dates=("2026-05-01", "2026-05-04"), tz="UTC")


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (EVERY_KIND[0], "every day all day, UTC"),
        (EVERY_KIND[1], "Wednesday, Friday and Saturday from 22:00 to 07:00 of the next day, Rome time"),
        (
            EVERY_KIND[2],
            "every day from 18:00 to 24:00 on 24 December 2026 and 31 December 2026 to 1 January 2027, Rome time",
        ),
    ],
)
def test_a_window_says_in_a_line_when_it_holds(window: Window, said: str) -> None:
    assert window.describe() == said


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "tz"),
        ({"tz": None}, "tz"),
        ({"tz": "Rome time"}, "tz"),
        ({"tz": "UTC+1"}, "tz"),
        ({"tz": "UTC", "start": "99:99"}, "start"),  # T002-d
        ({"tz": "UTC", "end": "99:99"}, "end"),  # T002-d
        ({"tz": "UTC", "start": "24:00"}, "start"),
        ({"tz": "UTC", "end": "24:01"}, "end"),
        ({"tz": "UTC", "start": 22}, "start"),
        ({"tz": "UTC", "days": []}, "days"),
        ({"tz": "UTC", "days": "mercoledì"}, "days"),
        ({"tz": "UTC", "days": [3]}, "days[0]"),
        ({"tz": "UTC", "dates": []}, "dates"),
        ({"tz": "UTC", "dates": "24.12."}, "dates"),
        ({"tz": "UTC", "dates": ["2026-12-24", "x"]}, "dates[1]"),
        ({"tz": "UTC", "dates": [{"from": "2026-12-24"}]}, "dates[0]"),
        ({"tz": "UTC", "dates": [["2026-12-24", "2026-12-25", "2026-12-26"]]}, "dates[0]"),
        ({"tz": "UTC", "dates": [["2026-12-24", "2026-12-23"]]}, "dates[0]"),
        ({"tz": "UTC", "dates": {"from": "2026-12-24", "to": "2026-12-25"}}, "dates"),
        ({"tz": "UTC", "dates": ["2026-05-04"], "days": "tue"}, "dates"),
        ({"tz": "UTC", "name": ""}, "name"),
        ({"tz": "UTC", "scope": "everything"}, "scope"),
        ({"tz": "UTC", "scope": "queue:"}, "scope"),
        ({"tz": "UTC", "scope": 5}, "scope"),
        ({"tz": "UTC", "zone": "UTC"}, "zone"),
        ({"tz": "UTC", 5: "UTC"}, "5"),
    ],
)
def test_a_mistake_is_named_by_its_path_with_what_to_do(value: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        calendar_from_json([{"tz": "UTC"}, value])
    assert refused.value.field == f"windows[1].{field}"
    assert len(str(refused.value)) < 400
    assert refused.value.remedy or field == "name"


def test_what_is_no_list_of_windows_is_refused() -> None:
    for value in (None, {}, "x", [None], [[]], [{"tz": "UTC"}] * 1001):
        with pytest.raises(InvalidArgument, match="windows"):
            calendar_from_json(value)
    with pytest.raises(InvalidArgument, match="windows"):
        Calendar([Window(tz="UTC")] * 1001)
    with pytest.raises(InvalidArgument, match=r"windows\[1\]: .* Give a Window"):
        Calendar([Window(tz="UTC"), {"tz": "UTC"}])  # type: ignore[list-item]


def test_a_naive_instant_is_refused_everywhere() -> None:
    calendar, naive, aware = Calendar([Window(tz="UTC")]), datetime(2026, 1, 1), utc("2026-01-01")
    for asked in (
        lambda: calendar.covers(naive),
        lambda: calendar.covering(naive),
        lambda: calendar.ends_after(naive),
        lambda: calendar.free_from(naive),
        lambda: calendar.begins_after(naive),
        lambda: calendar.spans(naive, aware),
        lambda: calendar.spans(aware, naive),
        lambda: Window(tz="UTC").covers(naive),
        lambda: Window(tz="UTC").ends_after(naive),
    ):
        with pytest.raises(InvalidArgument, match="without a time zone"):
            asked()

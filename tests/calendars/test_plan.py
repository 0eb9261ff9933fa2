"""From when and until when does a window hold?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.calendars.plan import hold
from duly.calendars.stretch import NEVER, OFF, Hold
from duly.kernel.windows import Window

MICRO = timedelta(microseconds=1)
WEDNESDAY = Window(days=["wed"], start="22:00", end="07:00", tz="Europe/Rome")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "since", "until"),
    [
        # winter, the night in which the clock goes forward, summer, the night in which it goes back
        ("2026-03-02T12:00", "2026-03-04T21:00", "2026-03-05T06:00"),
        ("2026-03-04T21:00", "2026-03-04T21:00", "2026-03-05T06:00"),
        ("2026-03-05T06:00", "2026-03-11T21:00", "2026-03-12T06:00"),
        ("2026-07-01T00:00", "2026-07-01T20:00", "2026-07-02T05:00"),
    ],
)
def test_the_next_stretch_is_the_one_over_the_present_or_the_first_to_come(now: str, since: str, until: str) -> None:
    # R002-8, T002-d
    assert hold(WEDNESDAY, at(now), Hold()) == Hold(at(since), at(until))


@pytest.mark.parametrize(
    ("day", "since", "until"),
    [
        ("2026-03-28", "2026-03-28T21:00", "2026-03-29T05:00"),  # one hour is left out: eight hours
        ("2026-10-24", "2026-10-24T20:00", "2026-10-25T06:00"),  # one hour comes twice: ten hours
    ],
)
def test_a_night_in_which_the_clock_changes_is_one_stretch(day: str, since: str, until: str) -> None:  # T002-d
    night = Window(dates=day, start="22:00", end="07:00", tz="Europe/Rome")
    assert hold(night, at(f"{day}T12:00"), Hold()) == Hold(at(since), at(until))


def test_a_window_belongs_to_the_day_on_which_it_starts() -> None:  # T002-d
    friday = Window(days=["fri"], start="22:00", end="06:00", tz="UTC")
    assert hold(friday, at("2026-03-07T02:00"), Hold()).is_on(at("2026-03-07T02:00"))  # Saturday
    assert not hold(friday, at("2026-03-06T02:00"), Hold()).is_on(at("2026-03-06T02:00"))  # Friday


def test_what_is_over_for_good_never_holds_again() -> None:
    assert hold(Window(dates="2026-03-01", tz="UTC"), at("2026-03-02T00:00"), Hold()) == OFF
    assert not OFF.is_on(at("2200-01-01T00:00"))


def test_whole_days_that_follow_each_other_are_one_stretch_and_for_ever_has_no_end() -> None:
    now = at("2026-03-02T12:00")
    fair = Window(dates=("2026-03-02", "2026-03-04"), tz="UTC")
    assert hold(fair, now, Hold()) == Hold(now, at("2026-03-05T00:00"))
    assert hold(Window(tz="UTC"), now, Hold()) == Hold(now, None)


def test_a_window_that_cannot_be_read_holds_from_now_on_without_an_end() -> None:
    now = at("2026-03-02T12:00")
    held = hold(None, now, Hold())
    assert held == Hold(now, None)
    assert held.is_on(now) and not held.is_over(now + timedelta(days=4000))
    assert hold(None, now + timedelta(days=1), held) == held


def test_what_nobody_has_looked_at_holds_and_is_to_be_looked_at() -> None:
    assert Hold().is_on(at("1970-01-01T00:00")) and Hold().is_over(at("1970-01-01T00:00"))


times = st.integers(0, 86_399).map(lambda s: f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}")


@given(
    start=times,
    end=times,
    days=st.sets(st.sampled_from(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]), min_size=1),
    tz=st.sampled_from(["Europe/Rome", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "UTC"]),
    now=st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC)),
    later=st.floats(0, 1),
)
def test_between_now_and_the_end_of_its_stretch_claims_are_held_exactly_while_the_window_holds(
    start: str, end: str, days: set[str], tz: str, now: datetime, later: float
) -> None:
    window = Window(start=start, end=end, days=sorted(days), tz=tz)
    found = hold(window, now, Hold())
    if found.until is None:
        assert found.since == now and window.ends_after(now) is None
        return
    assert found.since is not None and now <= found.since < found.until < NEVER
    somewhere = now + later * (found.until - MICRO - now)
    for instant in (now, somewhere, found.since, found.until - MICRO):
        assert found.is_on(instant) is window.covers(instant)
    assert not window.covers(found.until) and found.is_over(found.until)
    # looking again changes nothing until it is over
    assert hold(window, somewhere, found) == found

"""The week as it is drawn."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.windows import Calendar, Window
from duly.publishing.calendar import Cell, Entry, Week, bounds, lines, monday, week

SPRING, AUTUMN = date(2026, 3, 23), date(2026, 10, 19)
ROME = "Europe/Rome"
NIGHTS = Calendar([Window(start="22:00", end="07:00", tz=ROME)])
FREE = Calendar([])


def entry(
    at: str, channel: str = "pictures", status: str = "pending", label: str = "Apples", id: int | None = 7
) -> Entry:
    return Entry(datetime.fromisoformat(at), channel, status, label, id)


def text(drawn: Week, width: int = 80) -> list[str]:
    return ["".join(part for part, _ in line).rstrip() for line in lines(drawn, width)]


def shades(drawn: Week, day: int) -> str:
    return "".join(
        {"free": ".", "some": "/", "all": "#"}[cell.shade] if cell.exists else "-" for cell in drawn.cells[day]
    )


def test_a_night_belongs_to_two_days_and_a_clock_leaves_out_an_hour() -> None:
    # B057: the window crosses midnight; HOUSE 9: a day of 23 hours
    drawn = week(SPRING, ROME, [], NIGHTS)
    assert shades(drawn, 0) == "#" * 7 + "." * 15 + "##"
    assert shades(drawn, 6) == "##-" + "#" * 4 + "." * 15 + "##"
    assert drawn.changes == ("on Sun 29 the clock goes from 02:00 to 03:00",)
    assert bounds(SPRING, ROME)[1] - bounds(SPRING, ROME)[0] == timedelta(days=7, hours=-1)


def test_an_hour_that_comes_twice_holds_both_passes() -> None:
    drawn = week(AUTUMN, ROME, [entry("2026-10-25T00:30Z"), entry("2026-10-25T01:30Z")], FREE)
    assert drawn.cells[6][2] == Cell(entries=(1, 2))
    assert drawn.changes == ("on Sun 25 the clock goes from 03:00 to 02:00",)
    assert [line.split()[:4] for line in text(drawn)[-2:]] == [["1", "Sun", "25", "02:30"], ["2", "Sun", "25", "02:30"]]


def test_publications_stand_in_their_hour_by_the_clock_on_the_wall() -> None:
    drawn = week(
        SPRING, ROME, [entry("2026-03-27T17:05Z"), entry("2026-03-29T01:00Z"), entry("2026-03-30T00:00Z")], NIGHTS
    )
    assert drawn.cells[4][18].entries == (1,)
    assert drawn.cells[6][3].entries == (2,)  # 03:00, the first instant after the gap
    assert len(drawn.entries) == 2, "the third is in the next week"
    # R002-7: what is held waits, and it is said until when
    assert [until and until.isoformat() for until in drawn.waits] == [None, "2026-03-29T05:00:00+00:00"]
    assert text(drawn)[-1] == " 2  Sun 29 03:00  pictures  pending    7  (waits until Sun 07:00) Apples".lstrip()


def test_what_has_been_published_in_a_blackout_does_not_wait() -> None:
    assert week(SPRING, ROME, [entry("2026-03-29T01:00Z", status="completed")], NIGHTS).waits == (None,)


def test_a_blackout_of_one_channel_is_told_from_one_of_all() -> None:
    lunch = Calendar(
        [Window(start="12:00", end="13:00", tz=ROME, scope="channel:blog"), Window(start="20:00", end="20:30", tz=ROME)]
    )
    assert shades(week(SPRING, ROME, [], lunch, ["blog", "pictures"]), 0)[12] == "/"
    assert shades(week(SPRING, ROME, [], lunch, ["blog"]), 0)[12] == "#"
    assert shades(week(SPRING, ROME, [], lunch, ["pictures"]), 0)[12] == "."
    assert shades(week(SPRING, ROME, [], lunch), 0)[20] == "/"


def test_it_fits_into_80_columns_and_says_everything_without_colour() -> None:
    many = [entry(f"2026-03-27T17:{n:02}Z", label="日本語 " * 40, id=100 + n) for n in range(12)]
    drawn = week(SPRING, ROME, [*many, entry("2026-03-24T08:00Z", channel="blog", status="completed", id=None)], NIGHTS)
    said = text(drawn)
    assert max(len(line) for line in said) <= 80
    assert said[0] == "Week 13, 23 March to 29 March 2026, Europe/Rome"
    assert said[1] == "On Sun 29 the clock goes from 02:00 to 03:00."
    night = next(line for line in said if line.startswith("22-23"))
    assert night == "22-23 " + "│▒▒▒▒▒▒▒▒▒" * 7
    assert any(line.startswith("   18 ") and "│2 3 +10" in line for line in said)
    assert "▒▒▒ blackout" in said
    assert said[-13] == " 1  Tue 24 09:00  blog      completed  Apples"
    assert said[-1].endswith("…")


def test_a_week_without_anything_says_so() -> None:
    assert text(week(SPRING, "UTC", [], FREE))[-1] == "Nothing is to be published this week."


def test_hours_that_look_alike_are_drawn_once() -> None:
    rows = [line[:5].strip() for line in text(week(AUTUMN, ROME, [], NIGHTS)) if "│" in line]
    assert rows == ["00-06", "07-21", "22-23"]


def test_a_zone_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="tz"):
        week(SPRING, "Europe/Rom", [], FREE)


def test_a_week_begins_on_monday() -> None:
    assert {monday(SPRING + timedelta(days=n)) for n in range(7)} == {SPRING}


dates = st.dates(date(1980, 1, 1), date(2100, 1, 1))
zones = st.sampled_from([ROME, "UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"])


@given(dates, zones, st.lists(st.integers(0, 7 * 24 * 60), max_size=30), st.integers(40, 200))
def test_every_publication_of_a_week_stands_in_one_cell_and_in_the_list(
    day: date, tz: str, minutes: list[int], width: int
) -> None:
    start, end = bounds(day, tz)
    given = [Entry(start + timedelta(minutes=n), "pictures", "pending", f"post {n}", n) for n in minutes]
    drawn = week(day, tz, given, FREE)
    inside = [one for one in given if one.at < end]
    numbers = [number for day_ in drawn.cells for cell in day_ for number in cell.entries]
    assert sorted(numbers) == list(range(1, len(inside) + 1))
    assert all(cell.exists for day_ in drawn.cells for cell in day_ if cell.entries)
    assert len([line for line in text(drawn, width) if "pending" in line]) == len(inside)
    assert all(len(line) <= max(width, 80) for line in text(drawn, width))


@given(dates, zones, st.integers(0, 23), st.integers(0, 23))
def test_a_cell_is_shaded_where_its_window_holds(day: date, tz: str, start: int, end: int) -> None:
    window = Window(start=f"{start:02}:00", end=f"{end:02}:00", tz=tz)
    drawn = week(day, tz, [], Calendar([window]))
    low, high = bounds(day, tz)
    held = sum((one.end - one.start for one in Calendar([window]).spans(low, high)), timedelta())
    if held == high - low:
        assert all(cell.shade == "all" for day_ in drawn.cells for cell in day_ if cell.exists)
    shaded = [cell.shade for day_ in drawn.cells for cell in day_ if cell.exists]
    assert ("free" in shaded) == (held < high - low) or "some" in shaded

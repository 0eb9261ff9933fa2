"""Exceptions and moved instances of series in calendar files: each takes out what it names, and nothing else."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from duly.calendars.ical import read_ical
from duly.kernel.errors import InvalidArgument
from duly.kernel.windows import Calendar, Window

pytest.importorskip("icalendar")


def file(*events: str) -> str:
    body = "".join(f"BEGIN:VEVENT\n{event.strip()}\nEND:VEVENT\n" for event in events)
    return f"BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:x\n{body}END:VCALENDAR\n".replace("\n", "\r\n")


def held(text: str, first: str, last: str, tz: str | None = None) -> list[str]:
    """What holds between two dates, in UTC."""
    start, end = (datetime.fromisoformat(day).replace(tzinfo=UTC) for day in (first, last))
    windows: tuple[Window, ...] = read_ical(text, "w", start=start, end=end, tz=tz).windows
    spans = sorted((s.start, s.end) for window in windows for s in Calendar((window,)).spans(start, end))
    return [f"{begins:%m-%d %H:%M}-{ends:%H:%M}" for begins, ends in spans]


SERIES = "UID:a\nDTSTART;TZID=Europe/Rome:20260303T110000\nDURATION:PT30M\nRRULE:FREQ=DAILY;COUNT=10;"


@pytest.mark.parametrize(
    ("by", "which", "left"),
    [
        ("BYHOUR=11,12,13,14", "EXDATE;TZID=Europe/Rome:20260303T130000", ["10:00", "11:00", "13:00"]),
        ("BYHOUR=11,12,13,14", "EXDATE:20260303T120000Z", ["10:00", "11:00", "13:00"]),
        ("BYHOUR=11,12,13,14", "EXDATE:20260303T110000Z,20260303T130000Z", ["10:00", "12:00"]),
        ("BYHOUR=11,12;BYMINUTE=0,30", "EXDATE;TZID=Europe/Rome:20260303T120000", ["10:00", "10:30", "11:30"]),
        ("BYHOUR=11,12,13,14", "EXDATE;VALUE=DATE:20260303", []),
    ],
)
def test_an_exception_takes_out_the_one_that_it_names(by: str, which: str, left: list[str]) -> None:
    # H10: whatever its neighbours' clocks show in UTC
    found = held(file(f"{SERIES}{by}\n{which}"), "2026-03-03", "2026-03-04")
    assert [one[6:11] for one in found] == left


@pytest.mark.parametrize("which", ["RECURRENCE-ID;TZID=Europe/Rome:20260303T130000", "RECURRENCE-ID:20260303T120000Z"])
@pytest.mark.parametrize("first", [True, False])
def test_a_moved_instance_takes_only_itself_from_its_place(which: str, first: bool) -> None:
    # H10; the order of events in a file means nothing
    series = f"{SERIES}BYHOUR=11,12,13,14"
    moved = f"UID:a\n{which}\nDTSTART;TZID=Europe/Rome:20260303T173000\nDURATION:PT30M"
    events = (moved, series) if first else (series, moved)
    assert held(file(*events), "2026-03-03", "2026-03-04") == [
        "03-03 10:00-10:30", "03-03 11:00-11:30", "03-03 13:00-13:30", "03-03 16:30-17:00",
    ]  # fmt: skip


def test_exceptions_that_are_days_take_out_the_occurrences_of_those_local_days() -> None:
    # C026
    market = """UID:m
DTSTART;TZID=Europe/Vienna:20240317T100000
DTEND;TZID=Europe/Vienna:20240317T150000
RRULE:FREQ=WEEKLY;COUNT=11
EXDATE;VALUE=DATE:20240324,20240331
EXDATE;VALUE=DATE:20240421,20240505,20240519"""
    assert held(file(market), "2024-03-01", "2024-07-01") == [
        "03-17 09:00-14:00", "04-07 08:00-13:00", "04-14 08:00-13:00", "04-28 08:00-13:00", "05-12 08:00-13:00", "05-26 08:00-13:00",
    ]  # fmt: skip


def test_a_series_that_was_changed_three_times_holds_as_it_is_now() -> None:
    # C027: moved, cancelled, and from here on another hour
    events = [
        "UID:a\nDTSTART;TZID=Europe/Berlin:20261006T020000\nDURATION:PT2H\nRRULE:FREQ=WEEKLY;COUNT=5",
        "UID:a\nRECURRENCE-ID;TZID=Europe/Berlin:20261013T020000\nDTSTART;TZID=Europe/Berlin:20261014T220000\nDURATION:PT1H",
        "UID:a\nRECURRENCE-ID;TZID=Europe/Berlin:20261020T020000\nDTSTART;TZID=Europe/Berlin:20261020T020000\nDURATION:PT2H\nSTATUS:CANCELLED",
        "UID:a\nRECURRENCE-ID;RANGE=THISANDFUTURE;TZID=Europe/Berlin:20261027T020000\nDTSTART;TZID=Europe/Berlin:20261027T050000\nDURATION:PT2H",
    ]  # fmt: skip
    right = ["10-06 00:00-02:00", "10-14 20:00-21:00", "10-27 04:00-06:00", "11-03 04:00-06:00"]
    assert held(file(*events), "2026-10-01", "2026-12-01") == right
    assert held(file(*reversed(events)), "2026-10-01", "2026-12-01") == right


def test_a_range_that_is_not_understood_is_refused_by_name() -> None:
    # C027
    moved = "UID:a\nRECURRENCE-ID;RANGE=THISANDPRIOR;TZID=Europe/Rome:20260303T130000\nDTSTART:20260303T160000Z\nDURATION:PT1H"
    with pytest.raises(InvalidArgument, match="RANGE=THISANDPRIOR"):
        held(file(f"{SERIES}BYHOUR=13", moved), "2026-03-03", "2026-03-04")


def test_series_with_too_long_a_past_are_refused_before_they_are_unfolded() -> None:
    # H10: 26 KB were 102 seconds of work
    daily = [f"UID:{n}\nDTSTART:19700101T000000Z\nDURATION:PT1H\nRRULE:FREQ=DAILY" for n in range(200)]
    begun = time.process_time()
    with pytest.raises(InvalidArgument, match=r"more than 1,000,000 dates"):
        held(file(*daily), "2026-03-03", "2026-03-04")
    assert time.process_time() - begun < 20  # a bound against minutes, not a measurement

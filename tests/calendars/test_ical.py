"""Calendar files become windows with dates, and a mistake in one is named with its line and event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duly import InvalidArgument, Window
from duly.calendars.ical import MOST_BYTES, Reading, read_ical
from duly.kernel.windows import Calendar

pytest.importorskip("icalendar")
START = datetime(2026, 1, 1, tzinfo=UTC)


def file(*events: str, head: str = "") -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", *([head] if head else []), *events, "END:VCALENDAR", ""])


def event(*lines: str, uid: str = "1") -> str:
    return "\r\n".join(["BEGIN:VEVENT", f"UID:{uid}", *lines, "END:VEVENT"])


def read(*events: str, tz: str | None = "Europe/Rome", head: str = "", **more: object) -> Reading:
    return read_ical(file(*events, head=head), "cal", tz=tz, start=START, file="cal.ics", **more)  # type: ignore[arg-type]


def refused(text: str | bytes, **more: object) -> str:
    with pytest.raises(InvalidArgument) as error:
        read_ical(text, "cal", start=START, file="cal.ics", **{"tz": "Europe/Rome", **more})  # type: ignore[arg-type]
    return str(error.value)


NIGHT = ("DTSTART;TZID=Europe/Rome:20260304T220000", "DTEND;TZID=Europe/Rome:20260305T070000")


def test_a_night_keeps_its_zone_and_a_series_its_dates_without_its_exceptions() -> None:
    found = read(
        event(*NIGHT, "RRULE:FREQ=WEEKLY;COUNT=4", "EXDATE;TZID=Europe/Rome:20260311T220000"), scope="queue:mail"
    )
    assert found.windows == (
        Window(dates=["2026-03-04", "2026-03-18", "2026-03-25"], start="22:00", end="07:00", tz="Europe/Rome", name="cal", scope="queue:mail"),
    )  # fmt: skip
    assert (found.events, found.occurrences, found.left_out) == (1, 3, ())


def test_a_series_keeps_its_local_time_when_clocks_change() -> None:  # T002-d
    [window] = read(event(*NIGHT, "RRULE:FREQ=WEEKLY;COUNT=5")).windows
    assert window.covers(datetime(2026, 3, 25, 21, tzinfo=UTC)) and not window.covers(
        datetime(2026, 3, 25, 20, 59, tzinfo=UTC)
    )
    assert window.covers(datetime(2026, 4, 1, 20, tzinfo=UTC)) and not window.covers(
        datetime(2026, 4, 1, 19, 59, tzinfo=UTC)
    )


def test_whole_days_are_whole_days_of_the_zone_that_is_given() -> None:
    found = read(
        event("DTSTART;VALUE=DATE:20260304", "DTEND;VALUE=DATE:20260306"), event("DTSTART;VALUE=DATE:20260601", uid="2")
    )
    assert found.windows == (Window(dates=[("2026-03-04", "2026-03-05"), "2026-06-01"], tz="Europe/Rome", name="cal"),)


def test_an_event_over_days_is_one_silence() -> None:
    found = read(event("DTSTART:20260306T180000", "DTEND:20260309T060000"))
    assert [w.name for w in found.windows] == ["cal", "cal-2", "cal-3"]
    [stretch] = Calendar(found.windows).spans(START, START + timedelta(days=200))
    assert (stretch.start, stretch.end) == (datetime(2026, 3, 6, 17, tzinfo=UTC), datetime(2026, 3, 9, 5, tzinfo=UTC))


@pytest.mark.parametrize("uid", [3, 4])
def test_of_an_event_of_years_the_days_within_the_horizon_are_held(uid: int) -> None:
    long = (
        event("DTSTART;VALUE=DATE:19900101", "DTEND;VALUE=DATE:20600101")
        if uid == 3
        else event("DTSTART:19900101T000000Z", "DTEND:20600101T000000Z")
    )
    found = read(long, tz="UTC")
    calendar = Calendar(found.windows)
    assert (
        calendar.covers(START)
        and calendar.covers(START + timedelta(days=399))
        and not calendar.covers(START + timedelta(days=410))
    )


def test_a_moved_and_a_cancelled_occurrence_are_as_the_file_says() -> None:
    moved = event(
        "RECURRENCE-ID;TZID=Europe/Rome:20260311T220000",
        "DTSTART;TZID=Europe/Rome:20260312T220000",
        "DTEND;TZID=Europe/Rome:20260313T070000",
    )
    gone = event(
        "RECURRENCE-ID;TZID=Europe/Rome:20260318T220000",
        "DTSTART;TZID=Europe/Rome:20260318T220000",
        "DTEND;TZID=Europe/Rome:20260319T070000",
        "STATUS:CANCELLED",
    )
    found = read(event(*NIGHT, "RRULE:FREQ=WEEKLY;COUNT=3"), moved, gone)
    assert found.windows[0].to_json()["dates"] == ["2026-03-04", "2026-03-12"]
    assert found.left_out == ("cal.ics, line 3, event '1' is cancelled.",)


def test_what_has_no_length_holds_nothing_and_is_told() -> None:
    found = read(event("DTSTART:20260309T060000Z", "SUMMARY:call the bank"))
    assert (found.windows, found.left_out) == ((), ("cal.ics, line 3, event 'call the bank' has no length.",))


def test_zones_are_kept_translated_and_asked_for() -> None:
    utc = event("DTSTART:20260309T060000Z", "DURATION:PT1H")
    windows = event("DTSTART;TZID=W. Europe Standard Time:20260310T060000", "DURATION:PT1H", uid="2")
    floating = event("DTSTART:20260311T060000", "DURATION:PT1H", uid="3")
    assert {w.tz for w in read(utc, windows, floating).windows} == {"UTC", "Europe/Berlin", "Europe/Rome"}
    assert read(floating, tz=None, head="X-WR-TIMEZONE:Asia/Tokyo").windows[0].tz == "Asia/Tokyo"
    assert "tz: is missing: cal.ics, line 3, event '3'" in refused(file(floating), tz=None)
    assert "'Mars/X', which is no IANA time zone" in refused(
        file(event("DTSTART;TZID=Mars/X:20260311T060000", "DURATION:PT1H"))
    )


def test_the_horizon_is_the_callers() -> None:
    daily = event("DTSTART;VALUE=DATE:20200101", "RRULE:FREQ=DAILY")
    assert read(daily, end=START + timedelta(days=10)).occurrences in (10, 11)
    assert "ten years" in refused(file(daily), end=START + timedelta(days=4000))
    assert "ten years" in refused(file(daily), end=START)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "cal.ics, line 1: is 'hello'"),
        ("", "cal.ics: holds no calendar"),
        (file(event(*NIGHT)).replace("UID:1", "UID 1"), "cal.ics, line 4: is 'UID 1'"),
        (file(event(*NIGHT)).replace("END:VEVENT\r\n", ""), "ends 'VCALENDAR', which has not begun"),
        (file(event(*NIGHT)).replace("END:VCALENDAR\r\n", ""), "cal.ics, line 1: begins VCALENDAR, which does not end"),
        ("BEGIN:VCARD\nEND:VCARD\n", "Give a calendar file"),
        (file(event("DTSTART:20261304T220000", "SUMMARY:quiet")), "cal.ics, line 3, event 'quiet': has DTSTART that cannot be read"),
        (file(event("SUMMARY:quiet")), "event 'quiet': has no DTSTART"),
        (file(event(*NIGHT, "RRULE:FREQ=SECONDLY")), "has FREQ=SECONDLY"),
        (file(event(*NIGHT, "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30")), "never happens"),
        (b"BEGIN:VCALENDAR\r\nX:\xff\r\nEND:VCALENDAR", "cal.ics, line 2: is not UTF-8"),
        ("X" * (MOST_BYTES + 1), "at most 2,097,152 are read"),
        ("BEGIN:VCALENDAR\n" + "BEGIN:X\n" * 20, "nested more than ten deep"),
        (file(*[event(*NIGHT, uid=str(n)) for n in range(5001)]), "more than 5000 events"),
        (file(*[event(*NIGHT, "RRULE:FREQ=DAILY", uid=str(n)) for n in range(501)]), "more than 500 recurring events"),
    ],
    ids=range(15),
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_event(text: str | bytes, said: str) -> None:
    assert said in refused(text)


def test_what_a_file_unfolds_into_is_bounded() -> None:
    daily = [event(f"DTSTART:20260101T{n:02}0000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY", uid=str(n)) for n in range(24)]
    assert "unfolds into more than 10000" in refused(file(*daily), end=START + timedelta(days=500))
    hours = [event(f"DTSTART:20260101T{n // 60:02}{n % 60:02}00Z", "DURATION:PT7M", uid=str(n)) for n in range(201)]
    assert "201 different times of day" in refused(file(*hours))


def test_folded_lines_and_a_mark_at_the_beginning_are_read() -> None:
    text = "\ufeff" + file(event(*NIGHT, "SUMMARY:a very\r\n  long word")).replace("DTSTART", "DT\r\n START")
    assert len(read_ical(text.encode(), "cal", start=START).windows) == 1


def test_a_long_line_that_is_none_costs_no_more_than_its_length() -> None:
    # H10: with two ways to match each comma this took minutes
    assert "NAME:VALUE" in refused(file(event(*NIGHT, "X-A;A=" + ",".join("a" * 300_000))))


def test_many_series_since_1970_are_counted_before_they_are_unfolded() -> None:
    daily = [
        event("DTSTART:19700101T010000Z", "DTEND:19700101T020000Z", "RRULE:FREQ=DAILY", uid=str(n)) for n in range(200)
    ]
    assert "1,000,000 dates" in refused(file(*daily))


# --- When clocks change --------------------------------------------------------------------------------------------------


def held(*lines: str, begin: datetime = datetime(2027, 1, 1, tzinfo=UTC), days: int = 400) -> list[str]:
    """The stretches that an event holds, in UTC."""
    found = read_ical(file(event(*lines)), "cal", tz="Europe/Rome", start=begin, end=begin + timedelta(days=days))
    spans = Calendar(found.windows).spans(begin - timedelta(days=3), begin + timedelta(days=days + 3))
    return [f"{stretch.start:%m-%d %H:%M} {stretch.end:%m-%d %H:%M}" for stretch in spans]


#: In Rome clocks go forward on 28 March 2027 at 01:00 UTC, and back on 31 October at 01:00 UTC.
SPRING, AUTUMN = "DTSTART;TZID=Europe/Rome:20270328T003000", "DTSTART;TZID=Europe/Rome:20271031T003000"
EVE = "DTSTART;TZID=Europe/Rome:20270327T120000"


@pytest.mark.parametrize(
    ("lines", "stretch"),
    [
        ((SPRING, "DURATION:PT3H"), "03-27 23:30 03-28 02:30"),
        ((AUTUMN, "DURATION:PT3H"), "10-30 22:30 10-31 01:30"),
        ((AUTUMN, "DURATION:PT2H15M"), "10-30 22:30 10-31 00:45"),
        (("DTSTART:20270328T003000", "DURATION:PT3H"), "03-27 23:30 03-28 02:30"),
        ((EVE, "DURATION:P1D"), "03-27 11:00 03-28 10:00"),
        ((EVE, "DURATION:PT24H"), "03-27 11:00 03-28 11:00"),
        ((EVE, "DURATION:P1DT2H"), "03-27 11:00 03-28 12:00"),
        ((EVE, "DURATION:P1W"), "03-27 11:00 04-03 10:00"),
        ((EVE, "DURATION:PT168H"), "03-27 11:00 04-03 11:00"),
        ((SPRING, "DTEND;TZID=America/New_York:20270327T223000"), "03-27 23:30 03-28 02:30"),
        ((SPRING, "DTEND:20270328T023000Z"), "03-27 23:30 03-28 02:30"),
        ((AUTUMN, "DTEND:20271031T013000Z"), "10-30 22:30 10-31 01:30"),
        ((SPRING, "DTEND;TZID=Europe/Rome:20270328T043000"), "03-27 23:30 03-28 02:30"),
        (("DTSTART:20270327T233000Z", "DURATION:PT3H"), "03-27 23:30 03-28 02:30"),
    ],
)  # fmt: skip
def test_days_of_a_length_are_counted_on_the_calendar_and_hours_as_they_pass(
    lines: tuple[str, ...], stretch: str
) -> None:
    assert held(*lines) == [stretch]


def test_each_occurrence_of_a_series_has_its_own_end() -> None:
    start, series = "DTSTART;TZID=Europe/Rome:20270326T200000", "RRULE:FREQ=DAILY;COUNT=3"
    twelve_hours = ["03-26 19:00 03-27 07:00", "03-27 19:00 03-28 07:00", "03-28 18:00 03-29 06:00"]
    assert held(start, "DURATION:PT12H", series) == twelve_hours
    assert held(start, "DTEND;TZID=America/New_York:20270327T030000", series) == twelve_hours
    by_calendar = ["03-26 19:00 03-27 19:00", "03-28 18:00 03-29 18:00"]
    assert held(start, "DURATION:P1D", "RRULE:FREQ=DAILY;INTERVAL=2;COUNT=2") == by_calendar


def test_a_series_that_ends_by_the_clock_is_held_until_the_later_of_clock_and_length_when_clocks_change() -> None:
    spring = held("DTSTART;TZID=Europe/Rome:20270326T220000", "DTEND;TZID=Europe/Rome:20270327T060000", "RRULE:FREQ=DAILY;COUNT=3")  # fmt: skip
    assert spring == ["03-26 21:00 03-27 05:00", "03-27 21:00 03-28 05:00", "03-28 20:00 03-29 04:00"]
    autumn = held("DTSTART;TZID=Europe/Rome:20271029T220000", "DTEND;TZID=Europe/Rome:20271030T060000", "RRULE:FREQ=DAILY;COUNT=3")  # fmt: skip
    assert autumn == ["10-29 20:00 10-30 04:00", "10-30 20:00 10-31 05:00", "10-31 21:00 11-01 05:00"]


def test_a_period_among_the_dates_of_a_series_is_held_until_the_later_of_clock_and_length() -> None:
    lines = ("DTSTART;TZID=Europe/Rome:20270326T100000", "DURATION:PT1H", "RDATE;TZID=Europe/Rome;VALUE=PERIOD:20270328T003000/PT3H")  # fmt: skip
    assert held(*lines) == ["03-26 09:00 03-26 10:00", "03-27 23:30 03-28 02:30"]


def test_what_is_within_the_horizon_is_told_by_instants_and_not_by_the_clock() -> None:
    # its clock says that it is over, an hour of it is left
    assert held(SPRING, "DURATION:PT3H", begin=datetime(2027, 3, 28, 2, tzinfo=UTC)) == ["03-27 23:30 03-28 02:30"]
    assert held(SPRING, "DURATION:PT3H", begin=datetime(2027, 3, 28, 2, 30, tzinfo=UTC)) == []
    # a day that the file gives without a zone begins at 23:00 UTC of the day before
    whole = "DTSTART;VALUE=DATE:20270110"
    assert held(whole, begin=datetime(2027, 1, 8, 22, tzinfo=UTC), days=1) == []
    assert held(whole, begin=datetime(2027, 1, 8, 23, 30, tzinfo=UTC), days=1) == ["01-09 23:00 01-10 23:00"]


def test_an_end_in_a_zone_that_nobody_knows_is_refused() -> None:
    said = refused(file(event(SPRING, "DTEND;TZID=Mars/X:20270328T043000")))
    assert "event '1'" in said and "'Mars/X', which is no IANA time zone" in said

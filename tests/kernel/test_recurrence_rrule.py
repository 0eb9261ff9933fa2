"""Calendar rules: the examples of RFC 5545, agreement with dateutil, and what is refused."""

from __future__ import annotations

import re
import warnings
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence import RRule
from duly.kernel.recurrence.rrule import _week_of_year

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from dateutil.rrule import rrulestr


def runs(rule: str, start: str, n: int = 10, until: str = "2100-01-01") -> list[str]:
    schedule = RRule(rule, start=start, tz="UTC")
    end = datetime.fromisoformat(until).replace(tzinfo=UTC)
    return [at.strftime("%Y-%m-%d") for at in schedule.occurrences(datetime(1970, 1, 1, tzinfo=UTC), end, n)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [  # after RFC 5545, section 3.8.5.3; all from 2 September 1997, 9:00
        ("FREQ=DAILY;COUNT=3", ["1997-09-02", "1997-09-03", "1997-09-04"]),
        ("FREQ=DAILY;INTERVAL=10;COUNT=3", ["1997-09-02", "1997-09-12", "1997-09-22"]),
        ("FREQ=WEEKLY;INTERVAL=2;WKST=SU", ["1997-09-02", "1997-09-16", "1997-09-30"]),
        ("FREQ=WEEKLY;COUNT=4;WKST=SU;BYDAY=TU,TH", ["1997-09-02", "1997-09-04", "1997-09-09", "1997-09-11"]),
        ("FREQ=MONTHLY;COUNT=3;BYDAY=1FR", ["1997-09-05", "1997-10-03", "1997-11-07"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-3", ["1997-09-28", "1997-10-29", "1997-11-28"]),
        ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", ["1998-02-13", "1998-03-13", "1998-11-13", "1999-08-13"]),
        ("FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3", ["1997-09-04", "1997-10-07", "1997-11-06"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2", ["1997-09-29", "1997-10-30", "1997-11-27"]),
        ("FREQ=YEARLY;INTERVAL=3;COUNT=3;BYYEARDAY=1,100,200", ["2000-01-01", "2000-04-09", "2000-07-18"]),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", ["1998-05-11", "1999-05-17", "2000-05-15"]),
        ("FREQ=YEARLY;BYDAY=20MO", ["1998-05-18", "1999-05-17", "2000-05-15"]),
        ("FREQ=YEARLY;BYMONTH=3;BYDAY=TH", ["1998-03-05", "1998-03-12", "1998-03-19"]),
        ("FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8", ["1997-11-04", "2001-11-06"]),
        ("FREQ=YEARLY", ["1997-09-02", "1998-09-02"]),
        ("FREQ=MONTHLY", ["1997-09-02", "1997-10-02"]),
        ("RRULE:FREQ=WEEKLY;UNTIL=19970916", ["1997-09-02", "1997-09-09", "1997-09-16"]),
        ("FREQ=WEEKLY;UNTIL=19970916T085959", ["1997-09-02", "1997-09-09"]),
        ("freq=weekly;until=19970916T090000Z;", ["1997-09-02", "1997-09-09", "1997-09-16"]),
    ],
)
def test_the_examples_of_rfc_5545(rule: str, expected: list[str]) -> None:
    found = runs(rule, "1997-09-02T09:00", len(expected) + 1)
    assert found[: len(expected)] == expected
    if "COUNT" in rule or "UNTIL" in rule:
        assert found == expected


def test_the_day_that_weeks_begin_on_matters_every_second_week() -> None:  # RFC 5545's own example
    assert runs("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO", "1997-08-05T09:00") == [
        "1997-08-05", "1997-08-10", "1997-08-19", "1997-08-24",
    ]  # fmt: skip
    assert runs("FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU", "1997-08-05T09:00") == [
        "1997-08-05", "1997-08-17", "1997-08-19", "1997-08-31",
    ]  # fmt: skip


def test_a_month_without_the_day_is_passed_over() -> None:
    assert runs("FREQ=MONTHLY", "2026-01-31T09:00", 4) == ["2026-01-31", "2026-03-31", "2026-05-31", "2026-07-31"]


def test_a_start_that_does_not_match_is_not_planned() -> None:
    assert runs("FREQ=WEEKLY;BYDAY=MO;COUNT=2", "2026-05-05T09:00") == ["2026-05-11", "2026-05-18"]


def test_an_end_in_utc_is_that_instant_in_the_zone() -> None:
    rule = RRule("FREQ=DAILY;UNTIL=20260103T080000Z", start="2026-01-01T09:00", tz="Europe/Paris")
    assert len(rule.next_n(datetime(2025, 1, 1, tzinfo=UTC), 9)) == 3
    rule = RRule("FREQ=DAILY;UNTIL=20260103T075959Z", start="2026-01-01T09:00", tz="Europe/Paris")
    assert len(rule.next_n(datetime(2025, 1, 1, tzinfo=UTC), 9)) == 2


def test_counted_and_plain_days_of_the_week_stand_beside_each_other() -> None:
    assert runs("FREQ=MONTHLY;BYDAY=1MO,FR", "2026-05-01T09:00", 6) == [
        "2026-05-01", "2026-05-04", "2026-05-08", "2026-05-15", "2026-05-22", "2026-05-29",
    ]  # fmt: skip


def test_weeks_are_those_of_iso_8601_also_at_the_turn_of_a_year() -> None:
    day = date(1970, 1, 1)
    while day.year < 2100:
        year, week, _ = day.isocalendar()
        assert _week_of_year(day, 0) == (week, week - date(year, 12, 28).isocalendar()[1] - 1), day
        day += timedelta(1)
    # the first of January 2022 is in week 52 of 2021
    rule = "FREQ=YEARLY;BYMONTH=1;BYMONTHDAY=1;BYWEEKNO=52"
    assert runs(rule, "2020-01-01T09:00", 2) == ["2022-01-01", "2023-01-01"]


def test_hours_minutes_and_seconds_multiply() -> None:
    rule = RRule("FREQ=DAILY;BYHOUR=9,17;BYMINUTE=0,30;BYSECOND=0,15", start="2026-01-01T00:00", tz="UTC")
    found = rule.next_n(datetime(2026, 1, 1, tzinfo=UTC), 9)
    assert [at.strftime("%H:%M:%S") for at in found[:5]] == ["09:00:00", "09:00:15", "09:30:00", "09:30:15", "17:00:00"]
    assert found[8].day == 2


def test_a_question_far_away_is_answered_at_once() -> None:
    rule = RRule("FREQ=DAILY;INTERVAL=3", start="1970-01-01T09:00", tz="UTC")
    found = rule.next_after(datetime(2199, 12, 1, tzinfo=UTC))
    assert found is not None
    assert (found.date() - datetime(1970, 1, 1).date()).days % 3 == 0


# --- Agreement with dateutil ------------------------------------------------------------------------------------------

DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


def some(low: int, high: int, *, signed: bool = False) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    if signed:
        numbers = numbers | numbers.map(lambda number: -number)
    return st.lists(numbers, min_size=1, max_size=3, unique=True).map(lambda found: ",".join(map(str, found)))


@st.composite
def rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]))
    parts = [f"FREQ={frequency}"]

    def maybe(name: str, values: st.SearchStrategy[str], *, chance: int = 3) -> bool:
        if draw(st.integers(1, chance)) == 1:
            parts.append(f"{name}={draw(values)}")
            return True
        return False

    maybe("INTERVAL", st.integers(1, 5).map(str), chance=2)
    maybe("WKST", st.sampled_from(DAYS), chance=2)
    by = maybe("BYMONTH", some(1, 12))
    weeks = frequency == "YEARLY" and maybe(
        "BYWEEKNO", some(2, 51, signed=True)
    )  # dateutil miscounts some last weeks, see below
    if frequency == "YEARLY":
        by |= weeks | maybe("BYYEARDAY", some(1, 366, signed=True), chance=4)
    if frequency != "WEEKLY":
        by |= maybe("BYMONTHDAY", some(1, 31, signed=True))
    counted = frequency in ("MONTHLY", "YEARLY") and not weeks
    days = st.sampled_from(DAYS)
    if counted and draw(st.booleans()):  # not both: dateutil then wants a day to be both
        days = st.builds(lambda n, day: f"{n}{day}", st.sampled_from([1, 2, 5, -1, -2]), days)
    by |= maybe("BYDAY", st.lists(days, min_size=1, max_size=3, unique=True).map(",".join), chance=2)
    by |= maybe("BYHOUR", some(0, 23))
    by |= maybe("BYMINUTE", some(0, 59))
    if by and frequency != "WEEKLY":  # dateutil counts the positions of the first week from the start on
        maybe("BYSETPOS", some(1, 5, signed=True))
    match draw(st.integers(1, 4)):
        case 1:
            parts.append(f"COUNT={draw(st.integers(1, 30))}")
        case 2:
            parts.append(f"UNTIL={draw(st.integers(2020, 2060))}0701T120000")
    return ";".join(parts)


@settings(max_examples=60)
@given(
    rules(),
    st.datetimes(datetime(2015, 1, 1), datetime(2030, 12, 31)).map(lambda at: at.replace(second=0, microsecond=0)),
    st.integers(0, 20_000),
)
def test_any_rule_means_what_dateutil_makes_of_it(rule: str, start: datetime, later: int) -> None:
    end = datetime(2060, 1, 1)
    try:
        schedule = RRule(rule, start=start, tz="UTC")
    except InvalidArgument as error:
        assert "never happens" in error.problem, error
        schedule = None
    if schedule is None:
        # dateutil looks for what never comes until the year 9999. Calendars repeat after 400 years, so begin near there.
        shifted = re.sub(r"UNTIL=(\d{4})", lambda found: f"UNTIL={int(found[1]) + 7600}", rule)
        judge = rrulestr(shifted, dtstart=start.replace(year=start.year + 7600))
        assert next((at for at in judge if at.year <= 2200 + 7600), None) is None
        return
    judge, expected = rrulestr(rule, dtstart=start), []
    last = schedule.previous_before(end.replace(tzinfo=UTC))
    for at in () if last is None else judge:
        expected.append(at.replace(tzinfo=UTC))
        if expected[-1] >= last or len(expected) == 500:
            break
    found = list(schedule.occurrences(start.replace(tzinfo=UTC), end.replace(tzinfo=UTC), max(len(expected), 1)))
    assert found == expected
    if len(expected) == 500:
        return
    at = (start + timedelta(days=later)).replace(tzinfo=UTC)
    if at < end.replace(tzinfo=UTC):
        assert schedule.previous_before(at) == max((run for run in expected if run < at), default=None)
        following = min((run for run in expected if run > at), default=None)
        assert following is None or schedule.next_after(at) == following


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("", "Write one rule"),
        ("BYDAY=MO", "no FREQ"),
        ("FREQ=HOURLY", "Use Every"),
        ("FREQ=MINUTELY", "Use Every"),
        ("FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "Use Every"),
        ("FREQ=FORTNIGHTLY", "Use DAILY"),
        ("FREQ=DAILY;FREQ=DAILY", "FREQ twice"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
        ("FREQ=DAILY;INTERVAL=-1", "INTERVAL"),
        ("FREQ=DAILY;INTERVAL=99999999999999999999", "INTERVAL"),
        ("FREQ=DAILY;COUNT=0", "COUNT"),
        ("FREQ=DAILY;COUNT=10001", "COUNT"),
        ("FREQ=DAILY;COUNT=1;UNTIL=20260101", "both COUNT and UNTIL"),
        ("FREQ=DAILY;UNTIL=2026-01-01", "UNTIL"),
        ("FREQ=DAILY;UNTIL=20260230", "UNTIL"),
        ("FREQ=DAILY;UNTIL=20200101", "never happens"),
        ("FREQ=DAILY;BYDAY=XX", "BYDAY"),
        ("FREQ=DAILY;BYDAY=0MO", "BYDAY"),
        ("FREQ=DAILY;BYDAY=", "part"),
        ("FREQ=DAILY;BYDAY=1MO", "counts days"),
        ("FREQ=WEEKLY;BYDAY=1MO", "counts days"),
        ("FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO", "counts days"),
        ("FREQ=MONTHLY;BYWEEKNO=1", "BYWEEKNO"),
        ("FREQ=MONTHLY;BYYEARDAY=1", "BYYEARDAY"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY"),
        ("FREQ=MONTHLY;BYSETPOS=1", "BYSETPOS"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY"),
        ("FREQ=MONTHLY;BYMONTHDAY=32", "BYMONTHDAY"),
        ("FREQ=MONTHLY;BYMONTHDAY=--1", "BYMONTHDAY"),
        ("FREQ=MONTHLY;BYMONTHDAY=+-1", "BYMONTHDAY"),
        ("FREQ=MONTHLY;BYMONTH=-1", "BYMONTH"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR"),
        ("FREQ=DAILY;BYMINUTE=60", "BYMINUTE"),
        ("FREQ=DAILY;WKST=1", "WKST"),
        ("FREQ=DAILY;X-NAME=1", "Known parts"),
        ("FREQ=DAILY;RSCALE=GREGORIAN", "Known parts"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "start="),
        ("FREQ=DAİLY", "Write one rule"),
        ("FREQ=DAILY;BYMONTHDAY=٣", "Write one rule"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "never happens"),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never happens"),
        ("FREQ=MONTHLY;BYDAY=MO;BYSETPOS=6", "never happens"),
        ("FREQ=DAILY;BYHOUR=" + ",".join(map(str, range(24))) + ";BYMINUTE=" + ",".join(map(str, range(60)))
         + ";BYSECOND=0,1", "1440"),
        ("FREQ=DAILY;" + "BYHOUR=1;" * 500, "at most 2000"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_meant_is_refused(rule: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        RRule(rule, start="2026-01-01T09:00", tz="Europe/Paris")
    assert refused.value.field == "rule"
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("start", ["2026-01-01T09:00Z", "2026-01-01T09:00+01:00", "soon", 5, None, "1969-12-31T00:00"])
def test_a_start_is_a_local_time(start: object) -> None:
    with pytest.raises(InvalidArgument, match="start: "):
        RRule("FREQ=DAILY", start=start, tz="UTC")  # type: ignore[arg-type]


@settings(max_examples=80)
@given(
    st.text(st.sampled_from("FREQ=DAILYBMONTHSP;,0123456789-+T"), max_size=80)
    | rules().flatmap(lambda rule: st.integers(0, len(rule)).map(lambda at: rule[:at] + rule[at + 1 :]))
)
def test_any_text_is_a_rule_or_refused_by_name(text: str) -> None:
    try:
        RRule(text, start="2026-01-01T09:00", tz="UTC")
    except InvalidArgument as error:
        assert error.field == "rule"

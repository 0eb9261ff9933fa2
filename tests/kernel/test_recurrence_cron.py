"""Cron expressions: what they mean, what they hash to, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from calendar import monthrange
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
from cronsim import CronSim
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence import Cron, special_days
from duly.kernel.recurrence.cron_text import LONGEST, NICKNAMES

PARIS = "Europe/Paris"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def dates(expression: str, year: int = 2026, **options: str) -> list[str]:
    schedule = Cron(expression, tz="UTC", **options)  # type: ignore[arg-type]
    return [at.strftime("%m-%d") for at in schedule.occurrences(utc(f"{year}-01-01"), utc(f"{year + 1}-01-01"))]


@pytest.mark.parametrize(
    ("expression", "nickname"),
    [
        ("0 * * * *", "@hourly"),
        ("0 0 * * *", "@daily"),
        ("0 0 * * *", "@midnight"),
        ("0 0 * * 0", "@weekly"),
        ("0 0 1 * *", "@monthly"),
        ("0 0 1 1 *", "@yearly"),
        ("0 0 1 1 *", "@annually"),
        ("0 0 1 1 *", " @Yearly "),
    ],
)
def test_a_nickname_is_the_expression_it_stands_for(expression: str, nickname: str) -> None:
    assert Cron(nickname, tz=PARIS) == Cron(expression, tz=PARIS)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 29 2 *", []),
        ("0 0 31 * *", ["01-31", "03-31", "05-31", "07-31", "08-31", "10-31", "12-31"]),
        ("0 0 L 1-4 *", ["01-31", "02-28", "03-31", "04-30"]),
        ("0 0 LW 1-5 *", ["01-30", "02-27", "03-31", "04-30", "05-29"]),
        ("0 0 1,L 2 *", ["02-01", "02-28"]),
        ("0 0 * 1 5L", ["01-30"]),
        ("0 0 * 2 mon#2", ["02-09"]),
        ("0 0 * 2 0#1", ["02-01"]),
        ("0 0 * 2 7#1", ["02-01"]),
        ("0 0 * 2 7", ["02-01", "02-08", "02-15", "02-22"]),
        ("0 0 * 2 sun", ["02-01", "02-08", "02-15", "02-22"]),
        ("0 0 * 2 6-7", ["02-01", "02-07", "02-08", "02-14", "02-15", "02-21", "02-22", "02-28"]),
        ("0 0 13 * 5", None),
        ("0 0 5/10 jan,MAR *", ["01-05", "01-15", "01-25", "03-05", "03-15", "03-25"]),
        ("0 0 5-5/10 jan *", ["01-05"]),
        ("0 0 * jan-1/2 mon-1/2", ["01-05", "01-12", "01-19", "01-26"]),
        ("0 0 L 2 0", ["02-01", "02-08", "02-15", "02-22", "02-28"]),
    ],
)
def test_what_an_expression_means(expression: str, expected: list[str] | None) -> None:
    if expected is None:  # a 13th or a Friday
        days = [date(2026, 1, 1) + timedelta(number) for number in range(365)]
        expected = [day.strftime("%m-%d") for day in days if day.day == 13 or day.weekday() == 4]
    assert dates(expression) == expected


def test_the_29th_of_february_comes_in_leap_years() -> None:
    found = Cron("0 0 29 2 *", tz="UTC").next_n(utc("2088-03-01"), 3)
    assert [at.year for at in found] == [2092, 2096, 2104]  # 2100 is none


def test_day_fields_are_and_if_one_begins_with_a_star() -> None:  # B008
    assert dates("0 0 *,13 9 5") == ["09-04", "09-11", "09-18", "09-25"]
    assert dates("0 0 13 9 *,5") == ["09-13"]
    assert dates("0 0 1-31 9 5") == [f"09-{day:02}" for day in range(1, 31)]


# --- Against an independent reading -----------------------------------------------------------------------------------

RANGES = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}
WORDS = {
    "month": dict(
        zip(
            ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
            range(1, 13),
            strict=True,
        )
    ),
    "weekday": dict(zip(["sun", "mon", "tue", "wed", "thu", "fri", "sat"], range(7), strict=True)),
}


@st.composite
def fields(draw: st.DrawFn, label: str) -> tuple[str, set[int]]:
    low, high = RANGES[label]
    terms, matches = [], set()
    for _ in range(draw(st.integers(1, 2))):
        first = draw(st.integers(low, high))
        last = draw(st.integers(first, high))
        step = draw(st.integers(1, high - low))
        kind = draw(st.sampled_from(["*", "*/", "one", "word", "range", "range/", "from/"]))
        words = {number: word for word, number in WORDS.get(label, {}).items()}
        term, found = {
            "*": ("*", range(low, high + 1)),
            "*/": (f"*/{step}", range(low, high + 1, step)),
            "one": (str(first), [first]),
            "word": (words.get(first, str(first)), [first]),
            "range": (f"{first}-{last}", range(first, last + 1)),
            "range/": (f"{first}-{last}/{step}", range(first, last + 1, step)),
            "from/": (f"{first}/{step}", range(first, high + 1, step)),
        }[kind]
        terms.append(term)
        matches |= set(found)
    return ",".join(terms), matches


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, dict[str, tuple[str, set[int]]]]:
    parts = {label: draw(fields(label)) for label in RANGES}
    return " ".join(text for text, _ in parts.values()), parts


def matching(day: date, parts: dict[str, tuple[str, set[int]]]) -> bool:
    by_number = day.day in parts["day"][1]
    by_weekday = bool({day.isoweekday(), day.isoweekday() % 7} & parts["weekday"][1])
    both = parts["day"][0][0] == "*" or parts["weekday"][0][0] == "*"
    return day.month in parts["month"][1] and (by_number and by_weekday if both else by_number or by_weekday)


@settings(max_examples=200)
@given(expressions(), st.datetimes(datetime(1970, 1, 1), datetime(2190, 1, 1), timezones=st.just(UTC)))
def test_any_expression_means_what_it_says(made, start: datetime) -> None:
    expression, parts = made
    try:
        schedule = Cron(expression, tz="UTC")
    except InvalidArgument:
        years = [date(2000, 1, 1) + timedelta(number) for number in range(366 * 28)]
        assert not any(matching(day, parts) for day in years)
        return
    minutes, hours = sorted(parts["minute"][1]), sorted(parts["hour"][1])
    expected: list[datetime] = []
    day = start.date()
    while len(expected) < 3 and day < start.date() + timedelta(366 * 9):
        if matching(day, parts):
            times = [datetime(day.year, day.month, day.day, h, m, tzinfo=UTC) for h in hours for m in minutes]
            expected += [at for at in times if at > start]
        day += timedelta(1)
    found = schedule.next_n(start, 3)
    assert found[: len(expected)] == expected[:3]


@settings(max_examples=100)
@given(expressions(), st.datetimes(datetime(2000, 1, 1), datetime(2040, 1, 1)))
def test_any_expression_means_in_utc_what_cronsim_makes_of_it(made, naive: datetime) -> None:
    expression, _ = made
    assume(not re.search(r"\b(\d+)-\1/", expression))  # cronsim takes 5-5/10 for 5/10; Debian's cron for 5
    try:
        schedule = Cron(expression, tz="UTC")
    except InvalidArgument:
        return
    judge = CronSim(expression, naive.replace(tzinfo=UTC))
    expected = []
    for _ in range(4):
        try:
            expected.append(next(judge))
        except StopIteration:
            break
    found = [at for at in schedule.next_n(naive.replace(tzinfo=UTC), len(expected)) if at.year < naive.year + 50]
    assert found == expected[: len(found)]
    assert (
        len(found) == len(expected)
        or schedule.next_n(naive.replace(tzinfo=UTC), len(expected))[-1].year > naive.year + 49
    )


@given(st.integers(1970, 2200), st.integers(1, 12))
def test_the_last_weekday_of_any_month(year: int, month: int) -> None:
    (found,) = Cron(f"0 0 LW {month} *", tz="UTC").occurrences(
        datetime(year, month, 1, tzinfo=UTC), datetime(year, month, monthrange(year, month)[1], 1, tzinfo=UTC)
    )
    days = [date(year, month, day) for day in range(1, monthrange(year, month)[1] + 1)]
    assert found.date() == max(day for day in days if day.weekday() < 5)


# --- Hashed fields ----------------------------------------------------------------------------------------------------


def test_a_hashed_expression_needs_a_name() -> None:
    unnamed = Cron("H H * * *", tz=PARIS)
    for asked in (
        lambda: unnamed.next_after(utc("2026-01-01")),
        lambda: unnamed.previous_before(utc("2026-01-01")),
        lambda: list(unnamed.occurrences(utc("2026-01-01"), utc("2027-01-01"))),
        lambda: unnamed.follows_elapsed_time,
        lambda: special_days(unnamed, utc("2026-01-01")),
    ):
        with pytest.raises(InvalidArgument, match="name: is missing"):
            asked()
    assert (
        unnamed.describe() == unnamed.describe(since=utc("2026-01-01")) == "by H H * * *, hashed by a name, Paris time"
    )
    assert unnamed.named("report").next_after(utc("2026-01-01")) is not None
    assert Cron("H H * * *", tz=PARIS, name="report") == unnamed.named("report")


def test_a_hash_is_the_same_in_every_process() -> None:
    code = (
        "from duly.kernel.recurrence import Cron; from datetime import *;"
        "print(Cron('H H H H H', tz='UTC', name='report').next_after(datetime(2026, 1, 1, tzinfo=UTC)))"
    )
    for seed in ("0", "1"):
        run = [sys.executable, "-c", code]
        said = subprocess.run(run, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == "2026-07-02 14:37:00+00:00"


@given(
    st.text(min_size=1, max_size=20).filter(str.isprintable), st.integers(0, 59), st.integers(0, 59), st.integers(1, 60)
)
def test_a_hashed_field_stays_in_its_range(name: str, one: int, other: int, step: int) -> None:
    low, high = sorted((one, other))
    minutes = {at.minute for at in hour_of(Cron(f"H({low}-{high}) * * * *", tz="UTC", name=name))}
    assert len(minutes) == 1
    assert low <= minutes.pop() <= high
    stepped = sorted(at.minute for at in hour_of(Cron(f"H/{step} * * * *", tz="UTC", name=name)))
    assert stepped == list(range(stepped[0], 60, step))
    assert stepped[0] < step
    if step <= high - low + 1:
        both = sorted(at.minute for at in hour_of(Cron(f"H({low}-{high})/{step} * * * *", tz="UTC", name=name)))
        assert both == list(range(both[0], high + 1, step))
        assert low <= both[0] < low + step


def hour_of(schedule: Cron) -> list[datetime]:
    return list(schedule.occurrences(utc("2026-01-01T05:00"), utc("2026-01-01T06:00")))


def test_hashed_days_are_in_every_month_and_hashed_fields_spread() -> None:
    found = [Cron("H H H * *", tz="UTC", name=f"n{number}").next_n(utc("2026-01-01"), 12) for number in range(400)]
    assert all([at.month for at in runs][1:] == [at.month % 12 + 1 for at in runs][:-1] for runs in found)
    minutes = Counter(runs[0].minute for runs in found)
    assert len(minutes) == 60
    assert max(minutes.values()) < 20
    # minute and hour do not go together
    assert len({(runs[0].minute, runs[0].hour) for runs in found}) > 300


def test_a_hashed_step_follows_elapsed_time_like_the_step_it_replaces() -> None:
    def runs(expression: str) -> int:
        schedule = Cron(expression, tz=PARIS, name="x")
        return len(list(schedule.occurrences(utc("2026-10-25T00:00"), utc("2026-10-25T02:00"))))

    assert runs("*/15 2 * * *") == runs("H/15 2 * * *") == 8
    assert runs("H 2 * * *") == runs("H(0-29)/10 2 * * *") / 3 == 1


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "is empty"),
        ("  \t ", "is empty|printable|plain English"),
        ("30 2 * *", "has 4 fields"),
        ("30", "has 1 field;"),
        ("0 30 2 * * *", "six fields.*Daily"),
        ("30 2 * * * 2026 x", "has 7 fields"),
        ("0 5 * * * root /bin/backup", "has 7 fields"),
        ("30 2 * * *\n30 3 * * *", "is '30 2"),
        ("30 2 * * *\x00", "is '30 2"),
        ("@reboot", "Enqueue the job"),
        ("@every 15m", r"Use Every\('15m'\)"),
        ("@fortnightly", "Known are @yearly"),
        ("@", "Known are"),
        ("TZ=Europe/Paris 30 2 * * *", "tz="),
        ("CRON_TZ=Europe/Paris 30 2 * * *", "tz="),
        ("60 * * * *", "for the minute.*0 to 59"),
        ("-1 * * * *", "for the minute"),
        ("* 24 * * *", "for the hour.*0 to 23"),
        ("* * 0 * *", "for the day of the month.*1 to 31"),
        ("* * 32 * *", "for the day of the month"),
        ("* * * 13 *", "for the month.*jan to dec"),
        ("* * * 0 *", "for the month"),
        ("* * * * 8", "for the day of the week.*Sunday is 0 or 7"),
        ("* * * * lun", "for the day of the week.*sun to sat"),
        ("* * * févr *", "plain English"),
        ("* * * * ſun", "plain English"),
        ("٣ * * * *", "plain English"),
        ("5-1 * * * *", "for the minute.*smaller first"),
        ("* * * * fri-mon", "for the day of the week"),
        ("*/0 * * * *", "the step '\\*/0'"),
        ("*/60 * * * *", "step.*Use Every|step.*use Every"),
        ("*/90 * * * *", "longer than an hour use Every"),
        ("0 */24 * * *", "longer than a day use Every"),
        ("*/99999999999999999999 * * * *", "the step"),
        ("0 0 */31 * *", "the step"),
        ("0 0 L/2 * *", "no step"),
        ("0 0 ? * *", r"Use \*"),
        ("0 0 * * 5L/2", "day of the week"),
        ("0 0 * * 5#6", "day of the week"),
        ("0 0 W * *", "day of the month"),
        ("0 0 15W * *", "day of the month"),
        (", * * * *", "for the minute"),
        ("1,, * * * *", "for the minute"),
        ("1- * * * *", "for the minute"),
        ("1-2-3 * * * *", "for the minute"),
        ("*/ * * * *", "for the minute"),
        ("** * * * *", "for the minute"),
        ("1.5 * * * *", "for the minute"),
        ("0x1 * * * *", "for the minute"),
        ("H(5-60) * * * *", "for the minute"),
        ("H(9-5) * * * *", "for the minute"),
        ("H/0 * * * *", "for the minute"),
        ("H/61 * * * *", "for the minute"),
        ("H(0-4)/6 * * * *", "for the minute"),
        ("H- * * * *", "for the minute"),
        ("HH * * * *", "for the minute"),
        ("H(1-3 * * * *", "for the minute"),
        ("1," * 600 + "1 * * * *", "at most 1000"),
        ("9" * 5000 + " * * * *", "at most 1000"),
        ("9" * 900 + " * * * *", "for the minute"),
    ],
)
def test_an_expression_that_cannot_be_meant_is_refused_with_what_to_write(expression: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        Cron(expression, tz=PARIS)
    assert refused.value.field == "expression"
    assert refused.value.remedy or refused.value.problem
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", ["*"] * 5, object()])
def test_an_expression_that_is_no_text_is_refused(expression: object) -> None:
    with pytest.raises(InvalidArgument, match="expression: is of type"):
        Cron(expression, tz=PARIS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "expression",
    ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 30-31 2 *", "0 0 31 2-2 *", "0 0 */30 2 mon#5", "0 0 31 */13 *"],
)
def test_a_date_that_never_comes_is_refused_at_once(expression: str) -> None:
    with pytest.raises(InvalidArgument, match="expression: "):
        Cron(expression, tz=PARIS)


def test_an_impossible_date_beside_a_weekday_is_one_of_two_ways_and_fine() -> None:
    assert dates("0 0 30 2 1") == ["02-02", "02-09", "02-16", "02-23"]


@settings(max_examples=300)
@given(st.text(st.sampled_from("0123456789*/-,#LWHh()? @mon\tfri"), max_size=60) | st.text(max_size=60))
@example("* * * * *" * 200)
def test_any_text_is_an_expression_or_refused_by_name(text: str) -> None:
    try:
        schedule = Cron(text, tz="UTC", name="x")
    except InvalidArgument as error:
        assert error.field == "expression"
        return
    assert schedule.next_after(utc("2026-01-01")) is not None or schedule.previous_before(utc("2026-01-01")) is not None


def test_the_longest_expression_is_read() -> None:
    full = ",".join(map(str, range(60)))
    text = f"{full} {','.join(map(str, range(24)))} {','.join(map(str, range(1, 32)))} 1-12 0-7"
    assert Cron(text, tz="UTC").next_after(utc("2026-01-01")) == utc("2026-01-01T00:01")
    assert Cron("0 " * 1 + "0 1 1 0" + " " * (LONGEST - 9), tz="UTC").expression == "0 0 1 1 0"
    assert len(NICKNAMES) == 7

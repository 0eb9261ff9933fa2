"""An RRULE (RFC 5545, section 3.3.10), read and checked. What the rule means is ``rrule``'s.

Read are all parts of rules by the day, week, month or year. HOURLY, MINUTELY and SECONDLY are refused: RFC 5545 does not say
what they do when clocks change, and ``Every`` and ``Cron`` do. Errors name the field ``rule`` and the part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time
from typing import Literal, TypeAlias, cast

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence.reading import quoted

Frequency: TypeAlias = Literal["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]

LONGEST = 2_000
_FORM = "Write one rule, such as FREQ=WEEKLY;BYDAY=MO. DTSTART is start=."
MOST_INTERVAL, MOST_COUNT = 10_000, 10_000

#: Days of the week as RFC 5545 writes them; 0 is Monday.
DAY_NAMES = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

#: Parts that are lists of numbers: the smallest and largest, and whether they may count from the end.
_NUMBERS = {
    "BYSECOND": (0, 59, False),
    "BYMINUTE": (0, 59, False),
    "BYHOUR": (0, 23, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYMONTH": (1, 12, False),
    "BYSETPOS": (1, 366, True),
}
_PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST", *_NUMBERS)
_DAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_UNTIL = re.compile(r"([0-9]{8})(?:T([0-9]{6})(Z?))?")


@dataclass(frozen=True, slots=True)
class RuleParts:
    """A rule as it was written. A list that was not written is empty."""

    text: str
    frequency: Frequency
    interval: int
    count: int | None
    #: The last local time that can match, naive; or the last instant, if it was written in UTC.
    until: datetime | None
    until_is_utc: bool
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    #: ``(n, day of the week)``: the n-th such day of the month or year; 0 for each.
    weekdays: tuple[tuple[int, int], ...]
    month_days: tuple[int, ...]
    year_days: tuple[int, ...]
    weeks: tuple[int, ...]
    months: tuple[int, ...]
    positions: tuple[int, ...]
    #: The day that weeks begin on.
    week_start: int


def parse_rule(rule: object) -> RuleParts:
    """What a rule says. Raises InvalidArgument for the field ``rule``."""
    if not isinstance(rule, str):
        raise _wrong(f"is of type {type(rule).__name__}; it must be a text.", _FORM)
    if len(rule) > LONGEST:
        raise _wrong(f"has {len(rule)} characters; at most {LONGEST} are read.", _FORM)
    text = rule.strip().upper().removeprefix("RRULE:")
    if not text or not rule.isascii() or "\n" in text or "\r" in text:
        raise _wrong(f"is {quoted(rule)}.", _FORM)
    parts: dict[str, str] = {}
    for part in text.rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if name not in _PARTS or not equals or not value:
            raise _wrong(f"has the part {quoted(part)}.", f"Known parts are {', '.join(_PARTS)}.")
        if name in parts:
            raise _wrong(f"says {name} twice.")
        parts[name] = value
    numbers = {name: _numbers(name, parts[name]) if name in parts else () for name in _NUMBERS}
    frequency = _frequency(parts.get("FREQ"))
    until, until_is_utc = _until(parts["UNTIL"]) if "UNTIL" in parts else (None, False)
    found = RuleParts(
        text=";".join(f"{name}={value}" for name, value in parts.items()),
        frequency=frequency,
        interval=_number("INTERVAL", parts.get("INTERVAL", "1"), MOST_INTERVAL),
        count=_number("COUNT", parts["COUNT"], MOST_COUNT) if "COUNT" in parts else None,
        until=until,
        until_is_utc=until_is_utc,
        seconds=numbers["BYSECOND"],
        minutes=numbers["BYMINUTE"],
        hours=numbers["BYHOUR"],
        weekdays=_weekdays(parts["BYDAY"]) if "BYDAY" in parts else (),
        month_days=numbers["BYMONTHDAY"],
        year_days=numbers["BYYEARDAY"],
        weeks=numbers["BYWEEKNO"],
        months=numbers["BYMONTH"],
        positions=numbers["BYSETPOS"],
        week_start=_week_start(parts.get("WKST", "MO")),
    )
    _check_together(found)
    return found


def _frequency(value: str | None) -> Frequency:
    if value in ("DAILY", "WEEKLY", "MONTHLY", "YEARLY"):
        return cast(Frequency, value)
    if value in ("HOURLY", "MINUTELY", "SECONDLY"):
        raise _wrong(f"has FREQ={value}.", "Use Every for an interval, or Cron for minutes of the hour.")
    raise _wrong(
        "says no FREQ." if value is None else f"has FREQ={quoted(value)}.", "Use DAILY, WEEKLY, MONTHLY or YEARLY."
    )


def _number(name: str, value: str, most: int) -> int:
    if not value.isdigit() or len(value) > 9 or not 1 <= int(value) <= most:
        raise _wrong(f"has {name}={quoted(value)}.", f"Use a number from 1 to {most}.")
    return int(value)


def _numbers(name: str, value: str) -> tuple[int, ...]:
    low, high, from_end = _NUMBERS[name]
    found = set()
    for text in value.split(","):
        digits = text.lstrip("+-") if from_end and len(text) > 1 and text[0] in "+-" else text
        number = int(digits) if digits.isdigit() and len(digits) <= 3 else -1
        if not low <= number <= high or (from_end and text.count("-") + text.count("+") > 1):
            remedy = f"Use {low} to {high}" + (f", or -1 to -{high} counted from the end." if from_end else ".")
            raise _wrong(f"has {quoted(text)} for {name}.", remedy)
        found.add(-number if text.startswith("-") else number)
    return tuple(sorted(found))


def _weekdays(value: str) -> tuple[tuple[int, int], ...]:
    found = set()
    for text in value.split(","):
        day = _DAY.fullmatch(text)
        n = int(day[1] or 0) if day else 0
        if day is None or abs(n) > 53 or (day[1] and n == 0):
            raise _wrong(f"has {quoted(text)} for BYDAY.", "Use MO, TU, WE, TH, FR, SA, SU, or 2TU and -1FR.")
        found.add((n, DAY_NAMES.index(day[2])))
    return tuple(sorted(found))


def _week_start(value: str) -> int:
    if value not in DAY_NAMES:
        raise _wrong(f"has WKST={quoted(value)}.", f"Use {', '.join(DAY_NAMES)}.")
    return DAY_NAMES.index(value)


def _until(value: str) -> tuple[datetime, bool]:
    """The bound, and whether it is in UTC. A date alone counts to its end."""
    found = _UNTIL.fullmatch(value)
    try:
        if found is None:
            raise ValueError
        day = datetime.strptime(found[1], "%Y%m%d")  # noqa: DTZ007  # local, or UTC by the flag beside it
        clock = datetime.strptime(found[2], "%H%M%S").time() if found[2] else time(23, 59, 59)  # noqa: DTZ007
    except ValueError:
        remedy = "Write 20261231, 20261231T180000 (local) or 20261231T170000Z."
        raise _wrong(f"has UNTIL={quoted(value)}.", remedy) from None
    return datetime.combine(day.date(), clock), bool(found[3])


def _check_together(rule: RuleParts) -> None:
    """Refuse what RFC 5545 says must not stand together."""
    by_day_or_more = bool(rule.weekdays or rule.month_days or rule.year_days or rule.weeks or rule.months)
    if rule.count is not None and rule.until is not None:
        raise _wrong("says both COUNT and UNTIL.", "Say one of them.")
    if rule.weeks and rule.frequency != "YEARLY":
        raise _wrong("says BYWEEKNO without FREQ=YEARLY.")
    if rule.year_days and rule.frequency != "YEARLY":
        raise _wrong("says BYYEARDAY without FREQ=YEARLY.")
    if rule.month_days and rule.frequency == "WEEKLY":
        raise _wrong("says BYMONTHDAY with FREQ=WEEKLY.", "Use FREQ=MONTHLY or DAILY.")
    if any(n for n, _ in rule.weekdays) and (rule.frequency not in ("MONTHLY", "YEARLY") or rule.weeks):
        raise _wrong("counts days of the week (such as 2TU) where it names no month or year to count in.")
    if rule.positions and not (by_day_or_more or rule.hours or rule.minutes or rule.seconds):
        raise _wrong("says BYSETPOS without another BY part to choose from.")
    times = max(len(rule.hours), 1) * max(len(rule.minutes), 1) * max(len(rule.seconds), 1)
    days = {"DAILY": 1, "WEEKLY": 7, "MONTHLY": 31, "YEARLY": 366}[rule.frequency]
    if rule.positions and min(map(abs, rule.positions)) > days * times:
        raise _wrong(
            f"never happens: no period has {min(map(abs, rule.positions))} matches for BYSETPOS to choose from."
        )
    if times > 1_440:
        raise _wrong("names more than 1440 times of day.", "Use Cron or Every.")


def _wrong(problem: str, remedy: str = "") -> InvalidArgument:
    return InvalidArgument("rule", problem, remedy)

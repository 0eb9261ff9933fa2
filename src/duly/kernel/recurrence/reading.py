"""What people write in a schedule or a window, read and checked: times of day, days, dates, durations, instants.

Each reader takes the value and the name of its field, and answers with the one form used inside, or raises
InvalidArgument with the field, what is wrong and what to do. Lists are bounded, so that no value costs more than it looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeAlias, TypeVar

from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import FIRST_YEAR, LAST_YEAR, in_utc

#: A time of day as it may be written: ``"18:00"``, ``"18:00:30"``, or a ``datetime.time`` in whole seconds.
TimeOfDay: TypeAlias = str | time
#: A local date as it may be written: ``"2026-12-24"``, or a ``datetime.date``.
Day: TypeAlias = str | date

#: A local date and time as it may be written: ``"2026-12-24T18:00"``, or a naive ``datetime`` in whole seconds.
LocalTime: TypeAlias = str | datetime

#: The days of the week as everything here counts them: 0 is Monday.
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MOST_TIMES, MOST_DATES, MOST_MOMENTS = 1_440, 10_000, 10_000
#: A text is quoted in an error up to this length.
_SHOWN = 60

_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_MOMENT = re.compile(rf"([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})[T ]({_CLOCK.pattern})")

T = TypeVar("T")


def quoted(value: object) -> str:
    """A value as it is quoted in an error: short, whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        text = f"a {type(value).__name__} too long to be written"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def read_time(value: object, field: str) -> time:
    """A time of day in whole seconds, from 00:00 to 23:59:59."""
    if isinstance(value, time):
        if value.tzinfo is not None or value.microsecond:
            raise InvalidArgument(
                field,
                f"is {value.isoformat()}.",
                "Give a time of day in whole seconds and without a zone; tz= says which.",
            )
        return value.replace(fold=0)
    found = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidArgument(field, f"is {quoted(value)}.", "Write a time of day as HH:MM or HH:MM:SS, such as 18:00.")
    hour, minute, second = (int(part or 0) for part in found.groups())
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidArgument(
            field, f"is {quoted(value)}, which no clock shows.", "The day goes from 00:00 to 23:59:59."
        )
    return time(hour, minute, second)


def write_time(at: time) -> str:
    """``18:00``, or ``18:00:30`` where there are seconds."""
    return at.isoformat("seconds" if at.second else "minutes")


def read_times(value: object, field: str) -> tuple[time, ...]:
    """One time of day or several, in order and without repetitions."""
    return _several(value, field, read_time, str | time, MOST_TIMES, "time of day")


def read_weekdays(value: object, field: str) -> tuple[int, ...]:
    """Days of the week, 0 for Monday: ``"mon"``, ``"mon-fri"``, ``"sat,sun"`` or a list of these."""
    groups = _several(value, field, _read_weekday_text, str, 50, "day")
    return tuple(sorted({day for group in groups for day in group}))


def _read_weekday_text(value: object, field: str) -> tuple[int, ...]:
    if not isinstance(value, str):
        remedy = "Write days by their English names, such as mon or mon-fri: numbers mean other days elsewhere."
        raise InvalidArgument(field, f"is {quoted(value)}.", remedy)
    days: set[int] = set()
    for part in value.split(",", 8):
        first, dash, last = part.partition("-")
        start = _weekday(first, field, value)
        stop = _weekday(last, field, value) if dash else start
        days.update((start + step) % 7 for step in range((stop - start) % 7 + 1))
    return tuple(sorted(days))


def _weekday(word: str, field: str, value: str) -> int:
    lowered = word.strip().lower()
    for number, name in enumerate(WEEKDAY_NAMES):
        if lowered in (WEEKDAYS[number], name.lower()):
            return number
    raise InvalidArgument(
        field, f"is {quoted(value)}, in which {quoted(word)} is no day of the week.", f"Use {', '.join(WEEKDAYS)}."
    )


def write_weekdays(days: Iterable[int]) -> list[str]:
    """Days of the week as they are written."""
    return [WEEKDAYS[day] for day in days]


def read_date(value: object, field: str) -> date:
    """A local date within the years that civil time is computed for."""
    if isinstance(value, datetime):
        raise InvalidArgument(field, f"is {quoted(value)}, which has a time.", "Give a date, such as 2026-12-24.")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            raise InvalidArgument(
                field, f"is {quoted(value)}, which no calendar has.", "Check month and day."
            ) from None
    if not isinstance(value, date):
        raise InvalidArgument(field, f"is {quoted(value)}.", "Write a date as YYYY-MM-DD, such as 2026-12-24.")
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise InvalidArgument(field, f"is {value}; dates from {FIRST_YEAR} to {LAST_YEAR} are known.")
    return value


def read_dates(value: object, field: str) -> tuple[date, ...]:
    """One date or several, in order and without repetitions."""
    return _several(value, field, read_date, str | date, MOST_DATES, "date")


def read_year_days(value: object, field: str) -> tuple[tuple[int, int], ...]:
    """One day of the year or several, as ``(month, day)``, in order and without repetitions: ``"12-24"``, also ``"02-29"``."""
    return _several(value, field, _read_year_day, str, 366, "day of the year")


def _read_year_day(value: object, field: str) -> tuple[int, int]:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{2}-[0-9]{2}", value):
        raise InvalidArgument(field, f"is {quoted(value)}.", "Write a day of the year as MM-DD, such as 12-24.")
    try:
        day = date.fromisoformat(f"2000-{value}")  # a leap year: 29 February is a day, if not of every year
    except ValueError:
        raise InvalidArgument(field, f"is {quoted(value)}, which no calendar has.", "Check month and day.") from None
    return day.month, day.day


def write_year_day(month: int, day: int) -> str:
    """``12-24``."""
    return f"{month:02}-{day:02}"


def read_moments(value: object, field: str) -> tuple[datetime, ...]:
    """One local date and time or several, naive, in order and without repetitions."""
    return _several(value, field, _read_moment, str | datetime, MOST_MOMENTS, "local date and time")


def _read_moment(value: object, field: str) -> datetime:
    """A date and a time, both: a date alone would be midnight, which few mean."""
    if isinstance(value, datetime):
        return read_local(value, field)
    found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        remedy = "Write a local date and time as 2026-12-24T18:00, without an offset; tz= says which clock."
        raise InvalidArgument(field, f"is {quoted(value)}.", remedy)
    return datetime.combine(read_date(found[1], field), read_time(found[2], field))


def write_local(local: datetime) -> str:
    """``2026-12-24T18:00``, with seconds where there are some."""
    return local.isoformat(timespec="seconds" if local.second else "minutes")


def read_date_ranges(value: object, field: str) -> tuple[tuple[date, date], ...]:
    """Dates and ranges of dates, each with its last: in order, those that overlap or follow each other joined.

    A date, ``(first, last)``, or a list of these and of ``{"from": …, "to": …}``.
    """
    if isinstance(value, str | date) or (
        isinstance(value, tuple) and len(value) == 2 and all(isinstance(day, str | date) for day in value)
    ):
        ranges = [_read_range(value, field)]
    elif isinstance(value, list | tuple) and 1 <= len(value) <= MOST_DATES:
        ranges = sorted(_read_range(inner, f"{field}[{place}]") for place, inner in enumerate(value))
    else:
        remedy = f"Give a date, (first, last), or a list of 1 to {MOST_DATES} of these."
        raise InvalidArgument(field, f"is {quoted(value)}.", remedy)
    return tuple(_joined(ranges))


def _read_range(value: object, name: str) -> tuple[date, date]:
    if isinstance(value, Mapping):
        if set(value) != {"from", "to"}:
            raise InvalidArgument(name, f"is {quoted(value)}.", 'Write {"from": "2026-12-24", "to": "2027-01-02"}.')
        value = (value["from"], value["to"])
    if not isinstance(value, list | tuple):
        day = read_date(value, name)
        return day, day
    if len(value) != 2:
        raise InvalidArgument(name, f"is {quoted(value)}.", "A range has a first and a last date.")
    first, last = read_date(value[0], name), read_date(value[1], name)
    if last < first:
        raise InvalidArgument(name, f"goes from {first} to {last}, which is backwards.", "Give the first date first.")
    return first, last


def _joined(ranges: Iterable[tuple[date, date]]) -> Iterator[tuple[date, date]]:
    held: tuple[date, date] | None = None
    for first, last in ranges:
        if held is not None and first <= held[1] + timedelta(days=1):
            held = held[0], max(held[1], last)
            continue
        if held is not None:
            yield held
        held = first, last
    if held is not None:
        yield held


def _several(
    value: object, field: str, read: Callable[[object, str], T], one: Any, most: int, noun: str
) -> tuple[T, ...]:
    if isinstance(value, one):
        return (read(value, field),)
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidArgument(field, f"is {quoted(value)}.", f"Give a {noun}, or a list of them.")
    if not value:
        raise InvalidArgument(field, "is empty.", f"Give at least one {noun}.")
    if len(value) > most:
        raise InvalidArgument(field, f"has {len(value)} entries; at most {most} are allowed.")
    found = {read(inner, f"{field}[{position}]") for position, inner in enumerate(value)}
    return tuple(sorted(found))  # type: ignore[type-var]  # dates, times and tuples of numbers have an order


def read_local(value: object, field: str) -> datetime:
    """A local date and time, naive, in whole seconds: ``"2026-03-02T09:00"``, or a naive datetime."""
    if isinstance(value, str) and len(value) <= 32:
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            pass
    if not isinstance(value, datetime):
        raise InvalidArgument(field, f"is {quoted(value)}.", "Write a local time such as 2026-03-02T09:00.")
    if value.tzinfo is not None or value.microsecond:
        remedy = "Give it in whole seconds, as the clock on the wall shows it: without an offset; tz= says which clock."
        raise InvalidArgument(field, f"is {value.isoformat()}.", remedy)
    read_date(value.date(), field)
    return value.replace(fold=0)


def read_instant(value: object, field: str) -> datetime:
    """An instant: an aware datetime, or its ISO 8601 text with an offset or Z. Answers in UTC."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            pass
    if not isinstance(value, datetime):
        remedy = "Write an instant with its offset, such as 2026-07-27T09:00:00Z."
        raise InvalidArgument(field, f"is {quoted(value)}.", remedy)
    instant = in_utc(value, field)
    if not FIRST_YEAR <= instant.year <= LAST_YEAR:
        raise InvalidArgument(field, f"is {instant.isoformat()}; instants from {FIRST_YEAR} to {LAST_YEAR} are known.")
    return instant


def write_instant(instant: datetime) -> str:
    """An instant in UTC as it is written in JSON."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")

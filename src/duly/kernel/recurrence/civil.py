"""Schedules that people say in words: daily, weekly, monthly, yearly, on given dates, at given moments.

Most are a rule for dates (``dates``) and a list of times of day; ``CivilSchedule`` turns what they name into instants.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any, Protocol, TypeAlias

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence.dates import (
    DAY,
    EVERY_DAY,
    FIRST_DATE,
    LAST_DATE,
    DateRule,
    Listed,
    MonthDays,
    Weekdays,
    YearDays,
)
from duly.kernel.recurrence.reading import (
    WEEKDAY_NAMES,
    WEEKDAYS,
    Day,
    LocalTime,
    TimeOfDay,
    quoted,
    read_dates,
    read_moments,
    read_times,
    read_weekdays,
    read_year_days,
    write_local,
    write_time,
    write_weekdays,
    write_year_day,
)
from duly.kernel.recurrence.schedule import CivilSchedule
from duly.kernel.recurrence.words import day_words, listed, month_day_words, ordinal


class TimeRule(Protocol):
    """Matching times of a day, in order; at least one."""

    @property
    def first(self) -> time:
        """The earliest."""
        ...

    @property
    def last(self) -> time:
        """The latest."""
        ...

    def from_(self, at: time) -> time | None:
        """The first that is not before ``at``."""
        ...

    def before(self, at: time) -> time | None:
        """The last before ``at``."""
        ...


@dataclass(frozen=True, slots=True)
class Times:
    """Times of day by name, in order."""

    times: tuple[time, ...]

    @property
    def first(self) -> time:
        return self.times[0]

    @property
    def last(self) -> time:
        return self.times[-1]

    def from_(self, at: time) -> time | None:
        position = bisect_left(self.times, at)
        return self.times[position] if position < len(self.times) else None

    def before(self, at: time) -> time | None:
        position = bisect_left(self.times, at)
        return self.times[position - 1] if position else None


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DatesAndTimes(CivilSchedule):
    """A civil schedule that is at each of its times on each of its dates."""

    _dates: DateRule = field(init=False, repr=False, compare=False)
    _times: TimeRule = field(init=False, repr=False, compare=False)

    def _match_from(self, local: datetime) -> datetime | None:
        day = local.date()
        found = self._dates.on_or_after(day)
        if found == day:
            at = self._times.from_(local.time())
            if at is not None:
                return datetime.combine(day, at)
            found = self._dates.on_or_after(day + DAY) if day < LAST_DATE else None
        return None if found is None else datetime.combine(found, self._times.first)

    def _match_before(self, local: datetime) -> datetime | None:
        day = local.date()
        found = self._dates.on_or_before(day)
        if found == day:
            at = self._times.before(local.time())
            if at is not None:
                return datetime.combine(day, at)
            found = self._dates.on_or_before(day - DAY) if day > FIRST_DATE else None
        return None if found is None else datetime.combine(found, self._times.last)


#: What ``at`` may be: one time of day or several.
At: TypeAlias = TimeOfDay | Sequence[TimeOfDay]
#: What a day of the month may be: its number, ``"last"``, or words such as ``"second tue"`` or ``"last weekday"``.
MonthDay: TypeAlias = int | str

_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "last": -1}
_WORKDAYS = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class _AtTimes(DatesAndTimes):
    """What the schedules below have in common: times of day by name."""

    #: The times as texts, in order.
    _at: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def _begin(self, dates: DateRule, at: At) -> None:
        """Check the options and keep both rules; ``at`` is kept as a tuple of texts."""
        CivilSchedule.__post_init__(self)
        times = read_times(at, "at")
        object.__setattr__(self, "_dates", dates)
        object.__setattr__(self, "_times", Times(times))
        for name in ("at", "_at"):
            object.__setattr__(self, name, tuple(write_time(time) for time in times))


@dataclass(frozen=True, slots=True, repr=False)
class Daily(_AtTimes):
    """Every day, at one time or several: ``Daily("18:00", tz="Europe/Paris")``.

    On a day whose clock is put forward or back, each time still runs once (``gap``, ``fold``).
    """

    #: Kept as a tuple of texts, in order.
    at: At

    def __post_init__(self) -> None:
        self._begin(EVERY_DAY, self.at)
        self._must_happen("at")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "daily", "at": list(self._at)} | self._options()

    def _words(self) -> str:
        return f"at {listed(self._at)} every day"


@dataclass(frozen=True, slots=True, repr=False)
class Weekly(_AtTimes):
    """On days of the week: ``Weekly(["mon", "thu"], "09:00", tz="Europe/Rome")``, or ``Weekly("mon-fri", …)``."""

    #: English names of days, ranges of them, or a list; kept as a tuple of names, Monday first.
    days: str | Sequence[str]
    at: At

    def __post_init__(self) -> None:
        days = read_weekdays(self.days, "days")
        self._begin(Weekdays(days), self.at)
        object.__setattr__(self, "days", tuple(write_weekdays(days)))
        self._must_happen("days")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "weekly", "days": list(self.days), "at": list(self._at)} | self._options()

    def _words(self) -> str:
        return f"at {listed(self._at)} on {listed([WEEKDAY_NAMES[WEEKDAYS.index(day)] for day in self.days])}"


@dataclass(frozen=True, slots=True, repr=False)
class Monthly(_AtTimes):
    """On days of the month: ``Monthly(1, "06:00", tz="Europe/Paris")``, ``Monthly("last", …)``, ``Monthly("second tue", …)``.

    A month that has no 29th, 30th, 31st or fifth Tuesday is passed over; ``"last"`` is there in every month.
    """

    #: One day or several; kept as a tuple. ``"first weekday"`` and ``"last weekday"`` count Monday to Friday.
    day: MonthDay | Sequence[MonthDay]
    at: At

    def __post_init__(self) -> None:
        given = (self.day,) if isinstance(self.day, int | str) else self.day
        if not isinstance(given, list | tuple) or not 1 <= len(given) <= 100:
            raise InvalidArgument(
                "day", f"is {quoted(self.day)}.", "Give a day of the month, or a list of 1 to 100 of them."
            )
        one = len(given) == 1
        days = [_read_month_day(inner, "day" if one else f"day[{place}]") for place, inner in enumerate(given)]
        self._begin(
            MonthDays(
                frozenset(day for day in days if isinstance(day, int)),
                "last" in days,
                tuple(day for day in days if isinstance(day, tuple)),
            ),
            self.at,
        )
        object.__setattr__(self, "day", tuple(dict.fromkeys(_write_month_day(day) for day in days)))
        self._must_happen("day")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "monthly", "day": list(self._days()), "at": list(self._at)} | self._options()

    def _days(self) -> Sequence[MonthDay]:
        return (self.day,) if isinstance(self.day, int | str) else self.day

    def _words(self) -> str:
        days = [f"the {ordinal(day)}" if isinstance(day, int) else f"the {_day_words(day)}" for day in self._days()]
        least = [day for day in self._days() if (isinstance(day, int) and day > 28) or str(day).startswith("fifth")]
        where = "of the months that have one" if least and len(days) == 1 else "of every month"
        return f"at {listed(self._at)} on {listed(days)} {where}"


@dataclass(frozen=True, slots=True, repr=False)
class OnDates(_AtTimes):
    """On given local dates: ``OnDates(["2026-12-24", "2026-12-31"], "14:00", tz="Europe/Paris")``."""

    #: One date or up to 10 000; kept as a tuple of texts, in order.
    dates: Day | Sequence[Day]
    at: At

    def __post_init__(self) -> None:
        dates = read_dates(self.dates, "dates")
        self._begin(Listed(dates), self.at)
        object.__setattr__(self, "dates", tuple(day.isoformat() for day in dates))
        self._must_happen("dates")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "on_dates", "dates": self._listed(), "at": list(self._at)} | self._options()

    def _listed(self) -> list[str]:
        return [day.isoformat() for day in read_dates(self.dates, "dates")]

    def _words(self) -> str:
        days = [day_words(date.fromisoformat(day)) for day in self._listed()]
        return f"at {listed(self._at)} on {listed(_shortened(days, 'days'))}"


@dataclass(frozen=True, slots=True, repr=False)
class Yearly(_AtTimes):
    """On days of the year: ``Yearly(["12-24", "12-31"], "14:00", tz="Europe/Paris")``.

    29 February (``"02-29"``) is passed over in years that have none (T001-x).
    """

    #: Days as month and day, from one to all 366; kept as a tuple of texts, in order.
    dates: str | Sequence[str]
    at: At

    def __post_init__(self) -> None:
        pairs = read_year_days(self.dates, "dates")
        self._begin(YearDays(pairs), self.at)
        object.__setattr__(self, "dates", tuple(write_year_day(*pair) for pair in pairs))
        self._must_happen("dates")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "yearly", "dates": list(self.dates), "at": list(self._at)} | self._options()

    def _words(self) -> str:
        pairs = read_year_days(self.dates, "dates")
        if pairs == ((2, 29),):
            return f"at {listed(self._at)} on 29 February of leap years"
        days = _shortened([month_day_words(*pair) for pair in pairs], "days")
        leap = ", 29 February in leap years" if (2, 29) in pairs else ""
        return f"at {listed(self._at)} on {listed(days)} of every year{leap}"


@dataclass(frozen=True, slots=True, repr=False)
class Moments(CivilSchedule):
    """At single local dates and times: ``Moments(["2026-12-24T18:00", "2027-01-06T09:30"], tz="Europe/Paris")``.

    Each is a fixed local time, with ``gap`` and ``fold`` as everywhere. For an instant that no zone moves, say Once.
    """

    #: One date and time or up to 10 000; kept as a tuple of texts, in order and without repetitions.
    moments: LocalTime | Sequence[LocalTime]
    _locals: tuple[datetime, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        CivilSchedule.__post_init__(self)
        found = read_moments(self.moments, "moments")
        object.__setattr__(self, "_locals", found)
        object.__setattr__(self, "moments", tuple(write_local(local) for local in found))
        self._must_happen("moments")

    def _match_from(self, local: datetime) -> datetime | None:
        position = bisect_left(self._locals, local)
        return self._locals[position] if position < len(self._locals) else None

    def _match_before(self, local: datetime) -> datetime | None:
        position = bisect_left(self._locals, local)
        return self._locals[position - 1] if position else None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "moments", "moments": [write_local(local) for local in self._locals]} | self._options()

    def _words(self) -> str:
        said = [f"at {write_time(local.time())} on {day_words(local.date())}" for local in self._locals]
        return listed(_shortened(said, "times"))


def _shortened(words: list[str], noun: str) -> list[str]:
    """Five things in full; of more, three and how many there are besides."""
    return words if len(words) <= 5 else [*words[:3], f"{len(words) - 3} more {noun}"]


def _read_month_day(value: object, name: str) -> int | str | tuple[int, tuple[int, ...]]:
    """A day of the month: a number, ``"last"``, or ``(n, days of the week)``."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 31:
        return value
    remedy = "Use 1 to 31, 'last', or an ordinal and a day such as 'second tue', 'last fri', 'first weekday'."
    words = value.lower().split() if isinstance(value, str) and len(value) <= 40 else []
    if words in (["last"], ["last", "day"]):
        return "last"
    if len(words) == 2 and words[0] in _ORDINALS:
        n = _ORDINALS[words[0]]
        for number, (short, full) in enumerate(zip(WEEKDAYS, WEEKDAY_NAMES, strict=True)):
            if words[1] in (short, full.lower()):
                return n, (number,)
        if words[1] == "weekday":
            return n, _WORKDAYS
    raise InvalidArgument(name, f"is {quoted(value)}.", remedy)


def _write_month_day(day: int | str | tuple[int, tuple[int, ...]]) -> MonthDay:
    if not isinstance(day, tuple):
        return day
    word = next(word for word, n in _ORDINALS.items() if n == day[0])
    return f"{word} weekday" if day[1] == _WORKDAYS else f"{word} {WEEKDAYS[day[1][0]]}"


def _day_words(day: str) -> str:
    if day == "last":
        return "last day"
    word, weekday = day.split()
    return f"{word} {weekday if weekday == 'weekday' else WEEKDAY_NAMES[WEEKDAYS.index(weekday)]}"

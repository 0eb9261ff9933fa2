"""Which days? Rules that find the next matching date before or behind a given one, by calendar arithmetic alone.

All are frozen, know nothing of zones or times of day, and end at the bounds of the years that civil time is known for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Protocol

from duly.kernel.localtime import FIRST_YEAR, LAST_YEAR

FIRST_DATE, LAST_DATE = date(FIRST_YEAR, 1, 1), date(LAST_YEAR, 12, 31)
DAY = timedelta(days=1)
ALL_MONTHS = tuple(range(1, 13))


class DateRule(Protocol):
    """Matching dates, in order."""

    def on_or_after(self, day: date) -> date | None:
        """The first matching date that is not before ``day``."""
        ...

    def on_or_before(self, day: date) -> date | None:
        """The last matching date that is not behind ``day``."""
        ...


@dataclass(frozen=True, slots=True)
class Weekdays:
    """Days of the week, 0 for Monday."""

    days: tuple[int, ...]

    def on_or_after(self, day: date) -> date | None:
        day = max(day, FIRST_DATE)
        found = day + timedelta(min((wanted - day.weekday()) % 7 for wanted in self.days))
        return found if found <= LAST_DATE else None

    def on_or_before(self, day: date) -> date | None:
        day = min(day, LAST_DATE)
        found = day - timedelta(min((day.weekday() - wanted) % 7 for wanted in self.days))
        return found if found >= FIRST_DATE else None


EVERY_DAY = Weekdays((0, 1, 2, 3, 4, 5, 6))


@dataclass(frozen=True, slots=True)
class Listed:
    """Dates by name, in order."""

    dates: tuple[date, ...]

    def on_or_after(self, day: date) -> date | None:
        position = bisect_left(self.dates, day)
        return self.dates[position] if position < len(self.dates) else None

    def on_or_before(self, day: date) -> date | None:
        position = bisect_right(self.dates, day)
        return self.dates[position - 1] if position else None


class OfMonth:
    """Dates that each month names by itself. A subclass says which, and may leave months out."""

    __slots__ = ()

    def matching_months(self) -> tuple[int, ...]:
        """The months that can match at all, in order."""
        return ALL_MONTHS

    def days(self, year: int, month: int) -> Sequence[int]:
        """The matching days of a month, in order."""
        raise NotImplementedError

    def on_or_after(self, day: date) -> date | None:
        day, months = max(day, FIRST_DATE), self.matching_months()
        least, position = day.day, bisect_left(months, day.month)
        for year in range(day.year, LAST_YEAR + 1):
            for month in months[position:]:
                for found in self.days(year, month):
                    if found >= least or month != day.month or year != day.year:
                        return date(year, month, found)
            position = 0
        return None

    def on_or_before(self, day: date) -> date | None:
        day, months = min(day, LAST_DATE), self.matching_months()
        most, position = day.day, bisect_right(months, day.month)
        for year in range(day.year, FIRST_YEAR - 1, -1):
            for month in reversed(months[:position]):
                for found in reversed(self.days(year, month)):
                    if found <= most or month != day.month or year != day.year:
                        return date(year, month, found)
            position = 12
        return None


@dataclass(frozen=True, slots=True)
class YearDays(OfMonth):
    """Days of every year. 29 February is passed over in years that have none."""

    #: ``(month, day)``, in order.
    pairs: tuple[tuple[int, int], ...]

    def matching_months(self) -> tuple[int, ...]:
        return tuple(sorted({month for month, _ in self.pairs}))

    def days(self, year: int, month: int) -> Sequence[int]:
        first = bisect_left(self.pairs, (month, 0))
        last = bisect_right(self.pairs, (month, monthrange(year, month)[1]))
        return [day for _, day in self.pairs[first:last]]


@dataclass(frozen=True, slots=True)
class MonthDays(OfMonth):
    """Days of every month: by number, counted by day of the week, or the last."""

    #: Days by number. A month that has no such day is passed over.
    numbers: frozenset[int] = frozenset()
    #: Is the last day of the month meant?
    last: bool = False
    #: ``(n, days of the week)``: the n-th of them in the month; -1 for the last.
    nth: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def days(self, year: int, month: int) -> Sequence[int]:
        first, length = monthrange(year, month)
        found = {number for number in self.numbers if number <= length}
        if self.last:
            found.add(length)
        for n, weekdays in self.nth:
            candidates = [number for number in range(1, length + 1) if (first + number - 1) % 7 in weekdays]
            if n <= len(candidates):
                found.add(candidates[n - 1 if n > 0 else n])
        return sorted(found)

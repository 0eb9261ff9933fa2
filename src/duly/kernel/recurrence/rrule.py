"""Calendar rules as RFC 5545 writes them: ``RRule("FREQ=MONTHLY;BYDAY=-1FR", start="2026-01-30T17:00", tz="Europe/Paris")``.

A rule is a sequence of *periods* (days, weeks, months, years; every ``INTERVAL``-th from the one that holds the start). In each
period the dates that pass every BY part match, at each time of day; BYSETPOS chooses some of a period's matches by number. A
period is found by arithmetic, so a question about the year 2100 costs what one about tomorrow does.

Local times become instants by the same rule as everywhere (``gap``, ``fold``). RFC 5545 leaves that open.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import isleap, monthrange
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from itertools import product
from typing import Any

from duly.kernel.errors import UnknownZone
from duly.kernel.localtime import TICK, zone
from duly.kernel.recurrence.dates import LAST_DATE
from duly.kernel.recurrence.reading import WEEKDAY_NAMES, read_local, write_local, write_time
from duly.kernel.recurrence.rrule_text import RuleParts, parse_rule
from duly.kernel.recurrence.schedule import CivilSchedule
from duly.kernel.recurrence.words import MONTH_NAMES, day_words, listed, ordinal


class _Rule:
    """Which local times match, by the calendar alone."""

    __slots__ = ("_found", "_origin", "_parts", "_start", "_times", "end")

    def __init__(self, parts: RuleParts, start: datetime, until: datetime | None) -> None:
        self._parts, self._start = _with_defaults(parts, start), start
        hours, minutes, seconds = parts.hours or (start.hour,), parts.minutes or (start.minute,), parts.seconds
        self._times = tuple(time(*clock) for clock in product(hours, minutes, seconds or (start.second,)))
        self._origin = self._number(start.date())
        #: The matching dates of the period that was asked for last.
        self._found: tuple[int, tuple[date, ...]] = (-1, ())
        #: The last local time that can match.
        self.end = datetime.combine(LAST_DATE, time.max)
        if until is not None:
            self.end = min(self.end, until)
        if parts.count is not None:
            self.end = min(self.end, self._last_counted(parts.count))

    def first_from(self, local: datetime) -> datetime | None:
        """The first match that is not before ``local``."""
        local = max(local, self._start)
        if local > self.end:
            return None
        interval, number = self._parts.interval, self._number(local.date())
        number += (self._origin - number) % interval
        for period in range(number, self._number(self.end.date()) + 1, interval):
            found = self._first_in(period, local)
            if found is not None:
                return found if found <= self.end else None
        return None

    def last_before(self, local: datetime) -> datetime | None:
        """The last match before ``local``."""
        if self.end < self._start or local <= self._start:
            return None
        local = min(local, self.end + TICK)
        interval, number = self._parts.interval, self._number(local.date())
        number -= (number - self._origin) % interval
        for period in range(number, self._origin - 1, -interval):
            found = self._last_in(period, local)
            if found is not None:
                return found if found >= self._start else None
        return None

    def _last_counted(self, count: int) -> datetime:
        """The match with the number ``count``; the end of the years known, if there are fewer, and what is before the start if there is none."""
        wanted = count
        for period in range(self._origin, self._number(LAST_DATE) + 1, self._parts.interval):
            dates = self._dates(period)
            if self._parts.positions:
                matches = [match for match in self._chosen(dates) if match >= self._start]
                if count <= len(matches):
                    return matches[count - 1]
                count -= len(matches)
                continue
            before = sum(day < self._start.date() for day in dates) * len(self._times)
            if before < len(dates) * len(self._times) and dates[before // len(self._times)] == self._start.date():
                before += bisect_left(self._times, self._start.time())
            here = len(dates) * len(self._times) - before
            if count <= here:
                return self._match(dates, before + count - 1)
            count -= here
        return self._start - TICK if count == wanted else datetime.combine(LAST_DATE, time.max)

    # --- One period -------------------------------------------------------------------------------------------------

    def _first_in(self, period: int, local: datetime) -> datetime | None:
        dates = self._dates(period)
        if self._parts.positions:
            return next((match for match in self._chosen(dates) if match >= local), None)
        position = bisect_left(dates, local.date())
        if position < len(dates) and dates[position] == local.date():
            at = bisect_left(self._times, local.time())
            if at < len(self._times):
                return datetime.combine(dates[position], self._times[at])
            position += 1
        return datetime.combine(dates[position], self._times[0]) if position < len(dates) else None

    def _last_in(self, period: int, local: datetime) -> datetime | None:
        dates = self._dates(period)
        if self._parts.positions:
            return max((match for match in self._chosen(dates) if match < local), default=None)
        position = bisect_left(dates, local.date())
        if position < len(dates) and dates[position] == local.date():
            at = bisect_left(self._times, local.time())
            if at:
                return datetime.combine(dates[position], self._times[at - 1])
        return datetime.combine(dates[position - 1], self._times[-1]) if position else None

    def _chosen(self, dates: tuple[date, ...]) -> list[datetime]:
        """The matches of a period that BYSETPOS names, in order."""
        total = len(dates) * len(self._times)
        wanted = {position - 1 if position > 0 else total + position for position in self._parts.positions}
        return [self._match(dates, number) for number in sorted(wanted) if 0 <= number < total]

    def _match(self, dates: tuple[date, ...], number: int) -> datetime:
        return datetime.combine(dates[number // len(self._times)], self._times[number % len(self._times)])

    def _dates(self, period: int) -> tuple[date, ...]:
        found = self._found
        if found[0] != period:
            found = self._found = period, tuple(filter(self._matches, self._days(period)))
        return found[1]

    def _number(self, day: date) -> int:
        """The number of the period that holds a date; periods that follow each other differ by one."""
        match self._parts.frequency:
            case "DAILY":
                return day.toordinal()
            case "WEEKLY":
                return (day.toordinal() - 1 - self._parts.week_start) // 7
            case "MONTHLY":
                return day.year * 12 + day.month - 1
            case "YEARLY":
                return day.year

    def _days(self, period: int) -> Iterator[date]:
        """The dates of a period, in order; months that cannot match may be left out."""
        match self._parts.frequency:
            case "DAILY":
                yield date.fromordinal(period)
            case "WEEKLY":
                first = period * 7 + 1 + self._parts.week_start
                yield from (date.fromordinal(number) for number in range(first, first + 7))
            case "MONTHLY":
                yield from self._days_of_month(period // 12, period % 12 + 1)
            case "YEARLY":
                for month in self._parts.months or range(1, 13):
                    yield from self._days_of_month(period, month)

    def _days_of_month(self, year: int, month: int) -> Iterator[date]:
        if not self._parts.months or month in self._parts.months:
            first = date(year, month, 1).toordinal()
            yield from map(date.fromordinal, range(first, first + monthrange(year, month)[1]))

    def _matches(self, day: date) -> bool:
        """Does a date pass every BY part?"""
        parts = self._parts
        if parts.months and day.month not in parts.months:
            return False
        if parts.weekdays and not self._is_weekday(day):
            return False
        if parts.month_days:
            from_end = day.day - monthrange(day.year, day.month)[1] - 1
            if day.day not in parts.month_days and from_end not in parts.month_days:
                return False
        if parts.year_days:
            number, from_end = _day_of_year(day)
            if number not in parts.year_days and from_end not in parts.year_days:
                return False
        if parts.weeks:
            number, from_end = _week_of_year(day, parts.week_start)
            return number in parts.weeks or from_end in parts.weeks
        return True

    def _is_weekday(self, day: date) -> bool:
        weekday, wanted = day.weekday(), self._parts.weekdays
        if (0, weekday) in wanted:
            return True
        if not any(n and named == weekday for n, named in wanted):
            return False
        if self._parts.frequency == "MONTHLY" or self._parts.months:
            number, from_end = day.day, day.day - monthrange(day.year, day.month)[1] - 1
        else:
            number, from_end = _day_of_year(day)
        return ((number + 6) // 7, weekday) in wanted or (-((6 - from_end) // 7), weekday) in wanted


def _day_of_year(day: date) -> tuple[int, int]:
    """The number of a day in its year, from 1 on and, counted from the end, from -1 down."""
    number = day.toordinal() - date(day.year, 1, 1).toordinal() + 1
    return number, number - (366 if isleap(day.year) else 365) - 1


def _week_of_year(day: date, week_start: int) -> tuple[int, int]:
    """The number of a day's week, both ways; a week belongs to the year that holds its fourth day (ISO 8601)."""
    fourth = day.toordinal() - (day.weekday() - week_start) % 7 + 3
    year = date.fromordinal(fourth).year
    number = (fourth - date(year, 1, 1).toordinal()) // 7 + 1
    end = date(year, 12, 28)  # in the last week of its year, whatever day weeks begin on
    last = (end.toordinal() - (end.weekday() - week_start) % 7 + 3 - date(year, 1, 1).toordinal()) // 7 + 1
    return number, number - last - 1


def _with_defaults(parts: RuleParts, start: datetime) -> RuleParts:
    """What RFC 5545 takes from the start where a rule names no days."""
    if parts.weekdays or parts.month_days or parts.year_days or parts.weeks:
        return parts
    match parts.frequency:
        case "WEEKLY":
            return replace(parts, weekdays=((0, start.weekday()),))
        case "MONTHLY":
            return replace(parts, month_days=(start.day,))
        case "YEARLY":
            return replace(parts, months=parts.months or (start.month,), month_days=(start.day,))
        case "DAILY":
            return parts


@dataclass(frozen=True, slots=True, repr=False)
class RRule(CivilSchedule):
    """An RRULE of RFC 5545 in the local time of a zone, from a local start on.

    ``start`` is where intervals, COUNT and what the rule leaves out are taken from; it is planned only if it matches. UNTIL may
    be a date (to its end), a local time or an instant in UTC. COUNT counts local times from ``start`` on, those of a gap and those
    before ``start_date`` included.
    """

    #: One rule by the day, week, month or year, with or without ``RRULE:`` before it. Kept in capitals.
    rule: str
    #: The first local time (DTSTART), naive, or its text. Kept as a datetime.
    start: datetime | str = field(kw_only=True)
    _rule: _Rule = field(init=False, repr=False, compare=False)
    _start: datetime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        CivilSchedule.__post_init__(self)
        parts, start = parse_rule(self.rule), read_local(self.start, "start")
        until = parts.until
        if until is not None and parts.until_is_utc:
            try:
                until = until.replace(tzinfo=UTC).astimezone(zone(self.tz)).replace(tzinfo=None, fold=0)
            except UnknownZone:
                pass  # nothing is planned by it here
        kept = (("rule", parts.text), ("start", start), ("_start", start), ("_rule", _Rule(parts, start, until)))
        for name, value in kept:
            object.__setattr__(self, name, value)
        self._must_happen("rule")

    def _match_from(self, local: datetime) -> datetime | None:
        return self._rule.first_from(local)

    def _match_before(self, local: datetime) -> datetime | None:
        return self._rule.last_before(local)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "rrule", "rule": self.rule, "start": write_local(self._start)} | self._options()

    def _words(self) -> str:
        counted = "counted from" if self.is_bounded else "from"
        return f"{_rule_words(parse_rule(self.rule), self._start)}, {counted} {day_words(self._start.date())}"


_UNITS = {"DAILY": "day", "WEEKLY": "week", "MONTHLY": "month", "YEARLY": "year"}
_NTH = {0: "", 1: "the first ", 2: "the second ", 3: "the third ", 4: "the fourth ", 5: "the fifth ", -1: "the last "}


def _rule_words(parts: RuleParts, start: datetime) -> str:
    """A rule in words; one with rarer parts as it is written."""
    rare = parts.positions or parts.weeks or parts.year_days
    if rare or any(n not in _NTH for n, _ in parts.weekdays) or any(day < -1 for day in parts.month_days):
        return f"by the rule {parts.text} at {start.time().isoformat('minutes')}"
    unit = _UNITS[parts.frequency]
    words = f"every {unit}" if parts.interval == 1 else f"every {parts.interval} {unit}s"
    parts = _with_defaults(parts, start)
    on = [f"{_NTH[n]}{WEEKDAY_NAMES[day]}" for n, day in sorted(parts.weekdays, key=lambda pair: (pair[1], pair[0]))]
    days = ["the last day" if day == -1 else f"the {ordinal(day)}" for day in parts.month_days]
    if on:
        words += f" on {listed(on)}"
    if days:
        words += f"{' if it is' if on else ' on'} {listed(days)}"
    if parts.months:
        words += f" of {listed([MONTH_NAMES[month - 1] for month in parts.months])}"
    clock = product(parts.hours or (start.hour,), parts.minutes or (start.minute,), parts.seconds or (start.second,))
    times = [write_time(time(*at)) for at in clock]
    words += f" at {listed(times if len(times) <= 5 else [*times[:3], f'{len(times) - 3} more times'])}"
    if parts.count is not None:
        words += f", {parts.count} time{'' if parts.count == 1 else 's'}"
    if parts.until is not None:
        words += f", until {day_words(parts.until.date())}"
    return words

"""Cron expressions, evaluated by Duly's rule for days on which clocks change.

Fixed or elapsed? As in Debian's cron and cronie: if the **minute or the hour field begins with** ``*`` (``*``, ``*/15``; also
``H/15``, which is ``*/15`` from a hashed beginning), the expression follows elapsed time: it runs whenever a clock on the wall
shows a matching minute, in both passes of a fold, and not in a gap, which no clock shows. Every other expression names fixed
local times, each once per day: in a gap at its end, in a fold on the first pass. ``gap=`` and ``fold=`` change that.

Day of the month and day of the week must both match if either of these fields begins with ``*``; else one of them is enough.
Source: the reference policy for cron values, cases B001 to B008, ADR 0022.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from typing import Any

from cronsim import CronSim
from cronsim.explain import explain

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence.civil import DatesAndTimes
from duly.kernel.recurrence.cron_text import CronFields, needs_name, parse, split_expression
from duly.kernel.recurrence.dates import EVERY_DAY, DateRule, OfMonth
from duly.kernel.recurrence.schedule import CivilSchedule
from duly.kernel.recurrence.words import ordinal


@dataclass(frozen=True, slots=True)
class _Grid:
    """Times of day: every one of these minutes in every one of these hours."""

    hours: tuple[int, ...]
    minutes: tuple[int, ...]

    @property
    def first(self) -> time:
        return time(self.hours[0], self.minutes[0])

    @property
    def last(self) -> time:
        return time(self.hours[-1], self.minutes[-1])

    def from_(self, at: time) -> time | None:
        hour = bisect_left(self.hours, at.hour)
        if hour == len(self.hours):
            return None
        if self.hours[hour] == at.hour:
            minute = bisect_left(self.minutes, at.minute + (at.second > 0 or at.microsecond > 0))
            if minute < len(self.minutes):
                return time(at.hour, self.minutes[minute])
            hour += 1
        return time(self.hours[hour], self.minutes[0]) if hour < len(self.hours) else None

    def before(self, at: time) -> time | None:
        hour = bisect_left(self.hours, at.hour)
        if hour < len(self.hours) and self.hours[hour] == at.hour:
            minute = bisect_left(self.minutes, at.minute + (at.second > 0 or at.microsecond > 0))
            if minute:
                return time(at.hour, self.minutes[minute - 1])
        return time(self.hours[hour - 1], self.minutes[-1]) if hour else None


class _Days(OfMonth):
    """Dates by the last three fields of an expression."""

    __slots__ = ("_fields", "_known")

    def __init__(self, fields: CronFields) -> None:
        self._fields = fields
        #: Matching days by the weekday of the first and the length of a month: there are 28 kinds of month.
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def matching_months(self) -> tuple[int, ...]:
        return self._fields.months

    def days(self, year: int, month: int) -> Sequence[int]:
        kind = monthrange(year, month)
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = tuple(self._of_kind(*kind))
        return found

    def _of_kind(self, first: int, length: int) -> Iterator[int]:
        fields = self._fields
        numbers = {number for number in fields.days if 0 < number <= length}
        if CronSim.LAST in fields.days:
            numbers.add(length)
        if CronSim.LAST_WEEKDAY in fields.days:
            # Monday is 0: from a Saturday one day back, from a Sunday two.
            numbers.add(length - max(0, (first + length - 1) % 7 - 4))
        for number in range(1, length + 1):
            sunday_first = (first + number) % 7
            nth = {(number + 6) // 7, CronSim.LAST} if number + 7 > length else {(number + 6) // 7}
            # Sunday is written 0 or 7.
            names = (0, 7) if sunday_first == 0 else (sunday_first,)
            by_weekday = any(
                name in fields.weekdays or any((name, n) in fields.weekdays for n in nth) for name in names
            )
            if (number in numbers and by_weekday) if fields.both_days else (number in numbers or by_weekday):
                yield number


def _date_rule(fields: CronFields) -> DateRule:
    every_day = len(fields.days) == 31 and min(fields.days) == 1
    every_weekday = {day % 7 for day in fields.weekdays if isinstance(day, int)} == set(range(7))
    if len(fields.months) == 12 and (every_day and every_weekday if fields.both_days else every_day or every_weekday):
        return EVERY_DAY
    return _Days(fields)


@dataclass(frozen=True, slots=True, repr=False)
class Cron(DatesAndTimes):
    """A cron expression in the local time of a zone: ``Cron("30 2 * * *", tz="Europe/Paris")``.

    Five fields (minute, hour, day of the month, month, day of the week) with lists, ranges, steps, English names, ``L``,
    ``LW``, ``5L``, ``2#1`` and ``H``; or a nickname: @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually.
    """

    #: Kept in capitals with single blanks, nicknames resolved.
    expression: str
    #: What it means; None for a hashed expression that has no name yet.
    _fields: CronFields | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        CivilSchedule.__post_init__(self)
        fields = split_expression(self.expression)
        object.__setattr__(self, "expression", " ".join(fields))
        parsed = parse(fields, self.name)
        unnamed = self.name is None and needs_name(fields)
        object.__setattr__(self, "_dates", _date_rule(parsed))
        object.__setattr__(self, "_times", _Grid(parsed.hours, parsed.minutes))
        object.__setattr__(self, "_fields", parsed)
        if unnamed and self.is_bounded:
            # Only the name will say whether there is something between the dates.
            replace(self, start_date=None, end_date=None)
        else:
            self._must_happen("expression")
        if unnamed:
            object.__setattr__(self, "_fields", None)

    @property
    def follows_elapsed_time(self) -> bool:
        return self._meaning().elapsed

    def _match_from(self, local: datetime) -> datetime | None:
        self._meaning()
        return DatesAndTimes._match_from(self, local)

    def _match_before(self, local: datetime) -> datetime | None:
        self._meaning()
        return DatesAndTimes._match_before(self, local)

    def _meaning(self) -> CronFields:
        if self._fields is None:
            raise InvalidArgument(
                "name",
                f"is missing, and {self.expression!r} is hashed by it.",
                "Give name=, or ask the schedule that is kept under one.",
            )
        return self._fields

    def to_json(self) -> dict[str, Any]:
        return {"kind": "cron", "expression": self.expression} | self._options()

    def describe(self, locale: str = "en", *, since: datetime | None = None, days: int = 366) -> str:
        return CivilSchedule.describe(self, locale, since=since if self._fields else None, days=days)

    def _words(self) -> str:
        if self._fields is None:
            return f"by {self.expression}, hashed by a name"
        text = explain(self._fields.text)
        # cronsim writes every ordinal from the tenth on with th
        text = re.sub(r"\b([0-9]+)th\b", lambda found: ordinal(int(found[1])), text)
        return text[0].lower() + text[1:]

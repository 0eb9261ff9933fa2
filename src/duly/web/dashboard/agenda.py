"""Days of a calendar, and what stands on them. Pure: facts and instants in, days out.

A day is as long as the clock of its zone makes it, 23 or 25 hours on two of the year, and now and then none; places on it are parts of that length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import groupby

from duly.kernel.localtime import instant_on, transitions, zone

#: How many of one thing on a day are joined to one line.
JOINED = 4
#: How bad a word is: of what is joined, the worst one is shown.
_WORSE = ("missed", "failed", "skipped", "deferred", "paused", "running", "pending", "planned", "completed", "fired")
#: Of a strip, in its own units.
WIDTH = 240


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happens at an instant. ``at`` aware; ``word``: how it stands; ``of``: what it belongs to."""

    at: datetime
    kind: str
    word: str
    label: str
    link: str
    of: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Dark:
    """A stretch in which a blackout holds."""

    start: datetime
    end: datetime
    name: str
    scope: str
    link: str


@dataclass(frozen=True, slots=True)
class Item:
    """A line of a day: one mark, or those of one thing joined. ``last``: of the last of them."""

    mark: Mark
    count: int = 1
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """A day in a zone, from ``start`` until before ``end``."""

    on: date
    start: datetime
    end: datetime
    items: tuple[Item, ...]
    #: What holds on it, cut to it.
    darks: tuple[Dark, ...]
    #: On the strip: (from, how wide) of what holds, and (where, kind, word) of what happens.
    held: tuple[tuple[float, float], ...]
    ticks: tuple[tuple[float, str, str], ...]
    #: What the clock does that day, in words.
    change: str = ""


def days(first: date, count: int, tz: str, marks: Iterable[Mark], darks: Sequence[Dark]) -> list[Day]:
    """``count`` days from a date on, in a zone."""
    place = zone(tz)
    by_day: dict[date, list[Mark]] = {}
    for mark in marks:
        by_day.setdefault(mark.at.astimezone(place).date(), []).append(mark)
    dates = [first + timedelta(days=n) for n in range(count)]
    edges = [instant_on(day, time(0), tz) for day in [*dates, dates[-1] + timedelta(days=1)]]
    changes = {at.date(): said for at, said in _changes(tz, edges[0], edges[-1])}
    return [_day(day, start, end, by_day.get(day, []), darks, changes.get(day, "")) for day, start, end in zip(dates, edges, edges[1:], strict=False)]  # fmt: skip


def _day(on: date, start: datetime, end: datetime, marks: list[Mark], darks: Sequence[Dark], change: str) -> Day:
    if start == end:  # a zone that went over the date line, as Apia in 2011
        return Day(on, start, end, (), (), (), (), "this zone had no such day")
    length = (end - start) / WIDTH
    here = [
        Dark(max(one.start, start), min(one.end, end), one.name, one.scope, one.link) for one in darks if one.start < end and one.end > start
    ]  # fmt: skip
    held = tuple((round((one.start - start) / length, 1), round(max((one.end - one.start) / length, 1.0), 1)) for one in here)  # fmt: skip
    ticks = tuple((round((one.at - start) / length, 1), one.kind, one.word) for one in sorted(marks, key=lambda one: one.at))  # fmt: skip
    return Day(on, start, end, tuple(_items(marks)), tuple(sorted(here, key=lambda one: (one.start, one.name))), held, ticks, change)  # fmt: skip


def _items(marks: list[Mark]) -> list[Item]:
    """The lines of a day, in order; where one thing happens often, one line for all of it."""
    out = []
    for _, group in groupby(sorted(marks, key=lambda one: (one.kind, one.of, one.at)), key=lambda one: (one.kind, one.of)):  # fmt: skip
        of = list(group)
        if len(of) <= JOINED:
            out += [Item(one) for one in of]
        else:
            worst = min(of, key=lambda one: _WORSE.index(one.word) if one.word in _WORSE else len(_WORSE))
            joined = Mark(of[0].at, worst.kind, worst.word, of[0].label, of[0].link, of[0].of)
            out.append(Item(joined, len(of), of[-1].at))
    return sorted(out, key=lambda item: (item.mark.at, item.mark.label))


def _changes(tz: str, start: datetime, end: datetime) -> Iterator[tuple[datetime, str]]:
    for change in transitions(tz, start, end):
        local = change.at.astimezone(zone(tz))
        before = (change.at - timedelta(microseconds=1)).astimezone(zone(tz)) + timedelta(microseconds=1)
        yield local, f"the clock goes from {before:%H:%M} to {local:%H:%M}"


def monday(day: date) -> date:
    """The Monday of a day's week."""
    return day - timedelta(days=day.weekday())


def month_grid(day: date) -> tuple[date, int]:
    """(the Monday before a month, how many days until the Sunday behind it)."""
    first = day.replace(day=1)
    last = (first + timedelta(days=32)).replace(day=1) - timedelta(days=1)
    begin = monday(first)
    return begin, (monday(last) - begin).days + 7

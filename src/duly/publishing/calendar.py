"""A week of publications as the clock on the wall shows it: days and hours, what is held when, and what is to go out. Pure.

An hour of a day is a cell. A clock that is put forward leaves one out, and one that is put back shows one twice: its cell holds both
passes. ``week`` decides what stands where; ``lines`` writes it as text, which is readable without colour and in 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Literal, TypeAlias
from unicodedata import east_asian_width

from duly.kernel.localtime import instant_on, resolve, transitions, zone
from duly.kernel.windows import Calendar

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
#: An hour is looked at in quarters: zones are put forward and back by halves of an hour, and windows end at quarters.
_QUARTERS = (0, 15, 30, 45)
#: How much of a cell is held, on how many of the channels.
Shade: TypeAlias = Literal["free", "some", "all"]
#: What carries a colour: a part of a line is (text, what it is).
Ink: TypeAlias = Literal[
    "", "head", "blackout", "pending", "running", "completed", "failed", "cancelled", "planned", "dim"
]
Line: TypeAlias = tuple[tuple[str, Ink], ...]
_SIGNS: Mapping[Shade, str] = {"free": " ", "some": "░", "all": "▒"}
_INKS: Mapping[str, Ink] = {
    "pending": "pending", "running": "running", "completed": "completed", "failed": "failed", "cancelled": "cancelled",
    "planned": "planned",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One publication in a calendar. ``status``: as the door says, or ``planned`` for one that is not there yet. ``at``: aware."""

    at: datetime
    channel: str
    status: str
    label: str
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One hour of a day. ``exists``: False where the clock leaves it out. ``entries``: numbers of entries of the week, from 1."""

    exists: bool = True
    shade: Shade = "free"
    entries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Week:
    """Seven days from a date on. ``cells[day][hour]``; ``entries`` in the order of their instants, ``waits`` until when a blackout holds each of
    them (None: it does not, or it is over for it); ``changes``: of the clock.
    """

    first: date
    tz: str
    cells: tuple[tuple[Cell, ...], ...]
    entries: tuple[Entry, ...]
    waits: tuple[datetime | None, ...]
    changes: tuple[str, ...]


def monday(day: date) -> date:
    """The Monday of a day's week."""
    return day - timedelta(days=day.weekday())


def bounds(first: date, tz: str) -> tuple[datetime, datetime]:
    """The instants of the week that begins on a date: from (inclusive), until (exclusive)."""
    return instant_on(first, time(0), tz), instant_on(first + timedelta(days=7), time(0), tz)


def week(first: date, tz: str, entries: Iterable[Entry], blackouts: Calendar, channels: Sequence[str] = ()) -> Week:
    """The week that begins on ``first`` in a zone. ``channels``: whose blackouts are drawn; those of the entries are among them.

    Raises InvalidArgument for a zone that is none.
    """
    start, end = bounds(first, tz)
    place = zone(tz)
    here = tuple(
        sorted((one for one in entries if start <= one.at < end), key=lambda one: (one.at, one.channel, one.id or 0))
    )
    names = list(dict.fromkeys([*channels, *(one.channel for one in here)]))
    spans = [_held(blackouts, name, start, end) for name in names] or [_held(blackouts, "", start, end)]
    numbers: dict[tuple[date, int], list[int]] = {}
    for number, entry in enumerate(here, 1):
        shown = entry.at.astimezone(place)
        numbers.setdefault((shown.date(), shown.hour), []).append(number)
    days = [first + timedelta(days=n) for n in range(7)]
    cells = tuple(
        tuple(_cell(day, hour, tz, spans, numbers.get((day, hour), ())) for hour in range(24)) for day in days
    )
    waits = tuple(_wait(one, blackouts) for one in here)
    return Week(first, tz, cells, here, waits, tuple(_changes(tz, start, end)))


def _wait(entry: Entry, blackouts: Calendar) -> datetime | None:
    return _of(blackouts, entry.channel).ends_after(entry.at) if entry.status in ("pending", "planned") else None


def _of(blackouts: Calendar, channel: str) -> Calendar:
    """What holds a channel."""
    return blackouts.applying_to(f"channel:{channel}", f"queue:{channel}")


def _held(blackouts: Calendar, channel: str, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    return [(one.start, one.end) for one in _of(blackouts, channel).spans(start, end)]


def _cell(
    day: date, hour: int, tz: str, spans: Sequence[Sequence[tuple[datetime, datetime]]], numbers: Sequence[int]
) -> Cell:
    instants = [
        at for minute in _QUARTERS for at in resolve(datetime.combine(day, time(hour, minute)), tz, gap="skip", fold="both")
    ]  # fmt: skip
    if not instants:
        return Cell(exists=False)
    held = [any(low <= at < high for low, high in one) for one in spans for at in instants]
    shade: Shade = "all" if all(held) else "some" if any(held) else "free"
    return Cell(True, shade, tuple(numbers))


def _changes(tz: str, start: datetime, end: datetime) -> Iterator[str]:
    for change in transitions(tz, start, end):
        local = change.at.astimezone(zone(tz))
        before = (change.at - timedelta(microseconds=1)).astimezone(zone(tz)) + timedelta(microseconds=1)
        yield f"on {local:%a} {local.day} the clock goes from {before:%H:%M} to {local:%H:%M}"


# ---------------------------------------------------------------------- drawing


def lines(drawn: Week, width: int = 80) -> Iterator[Line]:
    """The week as lines of text, each a row of (text, what it is). ``width``: columns, at least 60 are used."""
    across = max(6, min(14, (max(width, 60) - 7) // 7 - 1))
    last = drawn.first + timedelta(days=6)
    number = drawn.first.isocalendar().week
    yield ((f"Week {number}, {_day(drawn.first)} to {_day(last)} {last.year}, {drawn.tz}", "head"),)
    for change in drawn.changes:
        yield ((f"{change[0].upper()}{change[1:]}.", ""),)
    yield ()
    heads = [_day(drawn.first + timedelta(days=n), short=True) for n in range(7)]
    yield (("      ", ""), *((f" {head:<{across}}", "head") for head in heads))
    for low, high in _rows(drawn):
        name = f"{low:02}" if low == high else f"{low:02}-{high:02}"
        yield ((f"{name:>5} ", "dim"), *(part for day in drawn.cells for part in _drawn(day[low], drawn, across)))
    yield ()
    yield from _legend(drawn)
    yield from _list(drawn, width)


def _day(day: date, short: bool = False) -> str:
    return f"{DAYS[day.weekday()]} {day.day}" if short else f"{day.day} {day:%B}"


def _rows(drawn: Week) -> Iterator[tuple[int, int]]:
    """The hours, those joined that follow each other, look alike and hold nothing."""
    low = 0
    for hour in range(1, 25):
        if hour < 24 and _alike(drawn, low, hour):
            continue
        yield low, hour - 1
        low = hour


def _alike(drawn: Week, one: int, other: int) -> bool:
    return all(day[one] == day[other] and not day[one].entries for day in drawn.cells)


def _drawn(cell: Cell, drawn: Week, across: int) -> Iterator[tuple[str, Ink]]:
    yield "│", "dim"
    if not cell.exists:
        yield f"{'--':^{across}}", "dim"
        return
    ground = _SIGNS[cell.shade]
    room = across
    for place, number in enumerate(cell.entries):
        text = str(number)
        rest = len(cell.entries) - place
        more = f"+{rest}"
        if room < len(text) + (1 if rest == 1 else len(more) + 2):
            yield more[:room], ""
            room -= len(more[:room])
            break
        yield text, _INKS.get(drawn.entries[number - 1].status, "")
        yield ground, "blackout" if cell.shade != "free" else ""
        room -= len(text) + 1
    yield ground * room, "blackout" if cell.shade != "free" else ""


def _legend(drawn: Week) -> Iterator[Line]:
    shades = {cell.shade for day in drawn.cells for cell in day if cell.exists}
    if "all" in shades:
        yield ((_SIGNS["all"] * 3, "blackout"), (" blackout", ""))
    if "some" in shades:
        yield ((_SIGNS["some"] * 3, "blackout"), (" blackout for a part of the hour, or for some channels", ""))
    if any(not cell.exists for day in drawn.cells for cell in day):
        yield ((" -- ", "dim"), ("an hour that the clock leaves out", ""))
    if shades != {"free"}:
        yield ()


def _list(drawn: Week, width: int) -> Iterator[Line]:
    if not drawn.entries:
        yield (("Nothing is to be published this week.", ""),)
        return
    place = zone(drawn.tz)
    longest = max(_columns(one.channel) for one in drawn.entries)
    digits = len(str(len(drawn.entries)))
    for number, entry in enumerate(drawn.entries, 1):
        shown = entry.at.astimezone(place)
        when = f"{DAYS[shown.weekday()]} {shown.day:>2} {shown:%H:%M}"
        told = f"{number:>{digits}}  {when}  {entry.channel}{' ' * (longest - _columns(entry.channel))}  "
        label = " ".join(entry.label.split())
        until = drawn.waits[number - 1]
        if until is not None:
            end = until.astimezone(place)
            label = f"(waits until {DAYS[end.weekday()]} {end:%H:%M}) {label}"
        ident = f"{entry.id}  " if entry.id is not None else ""
        room = width - _columns(told) - 11 - len(ident)
        yield (
            (told, ""),
            (f"{entry.status:<9}  ", _INKS.get(entry.status, "")),
            (ident + _cut(label, max(room, 10)), ""),
        )


def _columns(text: str) -> int:
    """How many columns a text takes on a terminal, near enough."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _cut(text: str, most: int) -> str:
    if _columns(text) <= most:
        return text
    while text and _columns(text) > most - 1:
        text = text[:-1]
    return f"{text.rstrip()}…"

"""When not? Blackout windows in local time, and calendars of them.

A window holds on some days from a local start to a local end; one that ends at or before the time it starts ends on the next
day, and belongs to the day on which it starts (R002-8, T002-d). On the days on which a clock changes it is one unbroken
stretch of real instants:

* from the first instant at which the clock shows its start or something later,
* until the last instant at which the clock still shows something before its end (which is itself outside).

So whatever a clock shows within the window is covered, in both passes of a fold; a window whose times are all left out by a
gap is not there that day. Instants go in aware and come out in UTC. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any, TypeAlias

from duly.kernel.errors import InvalidArgument, UnreadableHere
from duly.kernel.localtime import clock_at, in_utc, instant_of, offset_at, offset_of, zone
from duly.kernel.payload import check_name
from duly.kernel.recurrence.dates import DAY, FIRST_DATE, LAST_DATE
from duly.kernel.recurrence.reading import (
    WEEKDAY_NAMES,
    Day,
    TimeOfDay,
    quoted,
    read_date_ranges,
    read_time,
    read_weekdays,
    write_time,
    write_weekdays,
)
from duly.kernel.recurrence.schedule import EARLIEST, LATEST
from duly.kernel.recurrence.words import day_words, listed, zone_words

#: The dates of a window: a date, ``(first, last)``, or a list of these. The last is included, as people mean it.
Dates: TypeAlias = Day | tuple[Day, Day] | Sequence[Day | tuple[Day, Day]]

#: How far on a calendar looks for an end where windows follow each other without a break, each some days long at most.
HORIZON = timedelta(days=400)
MOST_WINDOWS = 1_000

_MIDNIGHT = time(0)
_SCOPE = re.compile(r"all|(?:queue|channel|schedule):.{1,200}")
#: Before and behind a local date, the days whose windows can cover an instant of it, also where a clock goes back over midnight.
_AROUND = range(-2, 2)
#: Without a change of the clock within this time, nothing that covers an instant touches a gap or a fold.
_NEAR = timedelta(days=2)
#: Nothing is known of what comes after this.
_END = LATEST - timedelta(days=5)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of real time, from ``start`` until before ``end``; both aware, in UTC."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Coverage:
    """An instant is covered."""

    #: When the coverage ends, all windows that follow without a break included. None if no end is in sight.
    until: datetime | None
    #: The names of the windows that cover the instant itself; those without a name are left out.
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A blackout window: ``Window(days=["wed"], start="22:00", end="07:00", tz="Europe/Rome")``.

    ``start`` equal to ``end`` is a whole day, and so are the defaults. Given both, ``days`` and ``dates`` must match.
    """

    #: Days of the week on which it starts, by English names or ranges of them; None for every day. Kept as a tuple of names.
    days: str | Sequence[str] | None = None
    #: The local time at which it starts. Kept as a text.
    start: TimeOfDay = "00:00"
    #: The local time at which it ends, ``24:00`` included. Kept as a text.
    end: TimeOfDay = "24:00"
    #: The IANA name of the zone whose clock is meant.
    tz: str
    #: Local dates on which it starts; None for every date. Kept as a tuple of ``(first, last)``.
    dates: Dates | None = None
    name: str | None = None
    #: What it holds: ``all``, or ``queue:``, ``channel:`` or ``schedule:`` with a name behind.
    scope: str = "all"
    _weekdays: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _ranges: tuple[tuple[date, date], ...] = field(init=False, repr=False, compare=False)
    _start: time = field(init=False, repr=False, compare=False)
    _end: time = field(init=False, repr=False, compare=False)
    #: How many days after its start it ends.
    _later: timedelta = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        zone(self.tz)
        start = read_time(self.start, "start")
        midnight = self.end == "24:00"
        end = _MIDNIGHT if midnight else read_time(self.end, "end")
        weekdays = tuple(range(7)) if self.days is None else read_weekdays(self.days, "days")
        ranges = ((FIRST_DATE, LAST_DATE),) if self.dates is None else read_date_ranges(self.dates, "dates")
        if self.name is not None:
            check_name(self.name, "name")
        if not isinstance(self.scope, str) or not _SCOPE.fullmatch(self.scope):
            raise InvalidArgument(
                "scope", f"is {quoted(self.scope)}.", "Use all, queue:NAME, channel:NAME or schedule:NAME."
            )
        kept: dict[str, Any] = {
            "_weekdays": weekdays,
            "_ranges": ranges,
            "_start": start,
            "_end": end,
            "_later": DAY if end <= start else timedelta(0),
            "days": None if len(weekdays) == 7 else tuple(write_weekdays(weekdays)),
            "start": write_time(start),
            "end": "24:00" if midnight else write_time(end),
            "dates": None if self.dates is None else ranges,
        }
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        if self._on_or_after(FIRST_DATE) is None:
            raise InvalidArgument("dates", "have none of the days.", "Check days and dates: both must match.")

    def covers(self, instant: datetime) -> bool:
        """Does this window hold at an aware instant?"""
        return bool(self._covering(in_utc(instant, "instant")))

    def ends_after(self, instant: datetime) -> datetime | None:
        """When the coverage of an aware instant by this window ends, in UTC; None if there is none, or no end in sight."""
        return Calendar([self]).ends_after(instant)

    def describe(self) -> str:
        """This window in a line of plain language: ``Wednesday from 22:00 to 07:00 of the next day, Rome time``."""
        days = "every day" if self.days is None else listed([WEEKDAY_NAMES[day] for day in self._weekdays])
        if self._start == self._end == _MIDNIGHT:
            hours = "all day"
        else:
            hours = f"from {self.start} to {self.end}"
            hours += " of the next day" if self._later and self.end != "24:00" else ""
        words = f"{days} {hours}"
        if self.dates is not None:
            spans = [
                day_words(first) if first == last else f"{day_words(first)} to {day_words(last)}"
                for first, last in self._ranges
            ]
            words += f" on {listed(spans if len(spans) <= 5 else [*spans[:3], f'{len(spans) - 3} more dates'])}"
        return f"{words}, {zone_words(self.tz)}"

    def to_json(self) -> dict[str, Any]:
        """This window as plain JSON; ``window_from_json`` makes an equal one of it."""
        said: dict[str, Any] = {"start": self.start, "end": self.end, "tz": self.tz}
        if self.days is not None:
            said["days"] = write_weekdays(self._weekdays)
        if self.dates is not None:
            said["dates"] = [
                first.isoformat() if first == last else {"from": first.isoformat(), "to": last.isoformat()}
                for first, last in self._ranges
            ]
        if self.name is not None:
            said["name"] = self.name
        if self.scope != "all":
            said["scope"] = self.scope
        return said

    # --- What calendars ask -----------------------------------------------------------------------------------------

    def _covering(self, at: datetime) -> list[tuple[date, Stretch]]:
        """The days whose window covers an instant (in UTC), and its stretches."""
        if not EARLIEST <= at < LATEST:
            return []
        place = zone(self.tz)
        shown = at.astimezone(place)
        today, offset = shown.date(), offset_of(shown)
        if offset_at(at - _NEAR, place) == offset == offset_at(at + _NEAR, place):
            # No clock changes near: readings can be compared as they are.
            reads, days = shown.replace(tzinfo=None), [today - DAY, today]
        else:
            reads, days = None, [today + step * DAY for step in _AROUND]
        found = []
        for day in days:
            if self._starts_on(day):
                if reads is not None and not self._first(day) <= reads < self._last(day):
                    continue
                stretch = self._stretch(day)
                if stretch.start <= at < stretch.end:
                    found.append((day, stretch))
        return found

    def _end_of(self, at: datetime) -> datetime | None:
        """The end of this window's stretch over an instant, days that follow each other joined; None outside of it."""
        covering = self._covering(at)
        if not covering:
            return None
        if self._start == self._end:
            # Whole days follow each other without a break.
            covering.append((day := self._last_of_run(covering[-1][0]), self._stretch(day)))
        return max(stretch.end for _, stretch in covering)

    def _begins_after(self, at: datetime) -> datetime | None:
        """The first instant later than ``at`` (in UTC) at which this window begins on a day."""
        if at >= LATEST:
            return None
        at = max(at, EARLIEST)
        day: date | None = at.astimezone(zone(self.tz)).date() + _AROUND[0] * DAY
        while day is not None and (day := self._on_or_after(day)) is not None:
            stretch = self._stretch(day)
            if at < stretch.start < stretch.end:
                return stretch.start
            day = day + DAY if day < LAST_DATE else None
        return None

    def _stretch(self, day: date) -> Stretch:
        """The real instants of the window that starts on a local date; empty if a gap leaves all of them out."""
        place, start, end = zone(self.tz), self._first(day), self._last(day)
        shown = clock_at(start, place)
        if isinstance(shown, timedelta):
            begins = instant_of(start, shown)
        else:
            begins = shown.at if shown.is_gap else instant_of(start, shown.before)
        shown = clock_at(end, place)
        if isinstance(shown, timedelta):
            stops = instant_of(end, shown)
        elif shown.is_gap:
            stops = shown.at
        else:
            # The second pass shows times before the end once more, unless the fold begins with the end.
            stops = instant_of(end, shown.after if end > shown.starts else shown.before)
        return Stretch(begins, max(begins, stops))

    def _first(self, day: date) -> datetime:
        """The local time at which the window of a day starts, naive."""
        return datetime.combine(day, self._start)

    def _last(self, day: date) -> datetime:
        """The local time at which the window of a day ends, naive."""
        return datetime.combine(day + self._later, self._end)

    def _starts_on(self, day: date) -> bool:
        return day.weekday() in self._weekdays and any(first <= day <= last for first, last in self._ranges)

    def _on_or_after(self, day: date) -> date | None:
        """The first date that is not before ``day`` and on which the window starts."""
        for first, last in self._ranges:
            found = max(day, first)
            found += min((weekday - found.weekday()) % 7 for weekday in self._weekdays) * DAY
            if found <= last:
                return found
        return None

    def _last_of_run(self, day: date) -> date:
        """The last of the dates from ``day`` on that follow each other and on which the window starts."""
        last = next(last for first, last in self._ranges if first <= day <= last)
        if len(self._weekdays) == 7:
            return last
        while day < last and (day + DAY).weekday() in self._weekdays:
            day += DAY
        return day


@dataclass(frozen=True, slots=True)
class Calendar:
    """Any number of windows together, in any zones. Overlapping and touching ones are one coverage."""

    windows: Sequence[Window] = ()

    def __post_init__(self) -> None:
        windows = tuple(self.windows)
        if len(windows) > MOST_WINDOWS:
            raise InvalidArgument(
                "windows", f"are {len(windows)}; a calendar holds at most {MOST_WINDOWS}.", "Join some of them."
            )
        for place, window in enumerate(windows):
            if not isinstance(window, Window):
                raise InvalidArgument(f"windows[{place}]", f"is {quoted(window)}.", "Give a Window.")
        object.__setattr__(self, "windows", windows)

    def applying_to(self, *scopes: str) -> Calendar:
        """The calendar of the windows whose scope is ``all`` or one of these, such as ``queue:mail``."""
        return Calendar([window for window in self.windows if window.scope == "all" or window.scope in scopes])

    def covers(self, instant: datetime) -> bool:
        """Does any window hold at an aware instant?"""
        at = in_utc(instant, "instant")
        return any(window._covering(at) for window in self.windows)

    def covering(self, instant: datetime) -> Coverage | None:
        """What covers an aware instant, and until when; None if nothing does."""
        at = in_utc(instant, "instant")
        holding = [window for window in self.windows if window._covering(at)]
        if not holding:
            return None
        return Coverage(self._end(at), tuple(window.name for window in holding if window.name is not None))

    def ends_after(self, instant: datetime) -> datetime | None:
        """When the coverage of an aware instant ends, in UTC; None if there is none, or no end in sight.

        No end in sight is what never ends, and what has no break within 400 days (``HORIZON``).
        """
        at = in_utc(instant, "instant")
        end = self._end(at)
        return None if end == at else end

    def free_from(self, instant: datetime) -> datetime | None:
        """The first instant, from an aware one on, that nothing covers, in UTC; None if no end is in sight."""
        return self._end(in_utc(instant, "instant"))

    def begins_after(self, instant: datetime) -> datetime | None:
        """The first instant later than an aware one at which a coverage begins, in UTC; None if there is none."""
        at = in_utc(instant, "instant")
        free = self._end(at)
        if free is None:
            return None
        found = [begin for window in self.windows if (begin := window._begins_after(free)) is not None]
        # At the very end of one coverage no other begins: they would be one.
        return min(found, default=None)

    def spans(self, start: datetime, end: datetime) -> Iterator[Stretch]:
        """The covered stretches from ``start`` until before ``end`` (aware), joined, cut to that range, in order."""
        return self._spans(in_utc(start, "start"), in_utc(end, "end"))

    def _spans(self, at: datetime, end: datetime) -> Iterator[Stretch]:
        while at < end:
            free = self._end(at)
            if free is None or free > at:
                yield Stretch(at, end if free is None else min(free, end))
                if free is None:
                    return
            begins = [begin for window in self.windows if (begin := window._begins_after(free)) is not None]
            if not begins:
                return
            at = min(begins)

    def _end(self, at: datetime) -> datetime | None:
        """The first instant from ``at`` (in UTC) on that nothing covers; None if no end is in sight."""
        if not EARLIEST <= at < LATEST:
            return at
        limit = at + HORIZON
        while at < min(limit, _END):
            ends = [end for window in self.windows if (end := window._end_of(at)) is not None]
            if not ends:
                return at
            if max(ends) - at > 7 * DAY:
                limit = max(limit, max(ends) + HORIZON)  # a long stretch is one step
            at = max(ends)
        return None


def window_from_json(value: object, path: str = "window") -> Window:
    """The window that a JSON object says; ``path`` is what it is called in errors.

    ``{"days": ["wed"], "start": "22:00", "end": "07:00", "tz": "Europe/Rome", "name": "quiet"}``; ``dates`` is a list of dates
    and of ``{"from": …, "to": …}``. A field that may be left out may also be null. Raises InvalidArgument.
    """
    known = ("days", "start", "end", "tz", "dates", "name", "scope")
    if not isinstance(value, Mapping):
        raise InvalidArgument(path, f"is {quoted(value)}.", f"Give an object with {', '.join(known)}.")
    for name in value:
        if name not in known:
            label = name if isinstance(name, str) and len(name) <= 60 else quoted(name)
            raise InvalidArgument(f"{path}.{label}", "is no field of a window.", f"Known are {', '.join(known)}.")
    if value.get("tz") is None:
        raise InvalidArgument(f"{path}.tz", "is missing.", "Name an IANA time zone such as Europe/Rome.")
    try:
        return Window(**{name: given for name, given in value.items() if given is not None})
    except UnreadableHere as error:
        raise error.at(f"{path}.{error.field}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}.{error.field}", error.problem, error.remedy) from None


def calendar_from_json(value: object, path: str = "windows") -> Calendar:
    """The calendar that a JSON list of windows says. Raises InvalidArgument."""
    if not isinstance(value, list | tuple):
        raise InvalidArgument(path, f"is {quoted(value)}.", "Give a list of windows.")
    if len(value) > MOST_WINDOWS:
        raise InvalidArgument(path, f"has {len(value)} entries; at most {MOST_WINDOWS} are allowed.")
    return Calendar([window_from_json(inner, f"{path}[{place}]") for place, inner in enumerate(value)])

"""A clock on a wall, looked at every minute: the slow and simple judge of civil time in these tests.

Nothing here asks ``duly``. What a zone's clock shows is what ``zoneinfo`` says of an instant; everything else follows from
looking at it minute by minute.
"""

from __future__ import annotations

import zoneinfo
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
SINCE, UNTIL = datetime(2024, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)

ZONES = tuple(sorted(zoneinfo.available_timezones() - {"localtime"}))


@dataclass(frozen=True)
class Change:
    """The clock of ``zone`` is put forward or back at an instant."""

    zone: str
    at: datetime
    before: timedelta
    after: timedelta


@cache
def every_change() -> tuple[Change, ...]:
    """Every change of every zone's clock from 2024 to 2030."""
    return tuple(change for name in ZONES for change in changes_of(name))


@cache
def different_changes() -> tuple[Change, ...]:
    """The same without those that another zone makes at the same instant in the same way."""
    return tuple({(change.at, change.before, change.after): change for change in every_change()}.values())


@cache
def changes_of(name: str, since: datetime = SINCE, until: datetime = UNTIL) -> tuple[Change, ...]:
    place, found, at = ZoneInfo(name), [], since
    offset = at.astimezone(place).utcoffset()
    while at < until:
        later = at + 12 * HOUR
        if later.astimezone(place).utcoffset() != offset:
            low, high = at, later
            while high - low > timedelta(seconds=1):
                middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
                if middle.astimezone(place).utcoffset() == offset:
                    low = middle
                else:
                    high = middle
            after = high.astimezone(place).utcoffset()
            found.append(Change(name, high, offset, after))
            offset = after
        at = later
    return tuple(found)


class Wall:
    """What the clock of a zone shows at every minute from ``start`` until before ``end``."""

    def __init__(self, name: str, start: datetime, end: datetime) -> None:
        place = ZoneInfo(name)
        self.name, self.start, self.end = name, start, end
        #: (instant, what is shown), in order.
        self.readings: list[tuple[datetime, datetime]] = []
        #: What is shown → when.
        self.shown: dict[datetime, list[datetime]] = defaultdict(list)
        #: (a minute that is never shown, the first instant after it).
        self.left_out: list[tuple[datetime, datetime]] = []
        at, previous = start, None
        while at < end:
            local = at.astimezone(place).replace(tzinfo=None, fold=0)
            while previous is not None and local - previous > MINUTE:
                previous += MINUTE
                self.left_out.append((previous, at))
            self.readings.append((at, local))
            self.shown[local].append(at)
            at, previous = at + MINUTE, local

    def runs(self, matches: Callable[[datetime], bool], gap: str, fold: str) -> list[datetime]:
        """When a schedule runs whose local times are those (whole minutes) that match."""
        found: set[datetime] = set()
        for local, instants in self.shown.items():
            if matches(local):
                found.update({"first": instants[:1], "last": instants[-1:], "both": instants}[fold])
        if gap == "after":
            found.update(at for local, at in self.left_out if matches(local))
        return sorted(found)

    def inside(self, instants: Iterable[datetime], margin: timedelta) -> list[datetime]:
        """Those that are not near an end, where the clock's past or future was not seen."""
        return [at for at in instants if self.start + margin <= at < self.end - margin]

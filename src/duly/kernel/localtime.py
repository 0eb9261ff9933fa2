"""Which local time? What a wall clock shows, turned into instants, and the days on which that is not simple.

A zone's clock is put forward or back at a transition. Put forward, it leaves out local times (a *gap*); put back, it
shows local times twice (a *fold*). ``resolve`` is the one rule of what a local time means on such a day:

* in a gap: the first instant after it, once (``gap="after"``), or none (``gap="skip"``);
* in a fold: its first pass (``fold="first"``), its last, or both;
* else: the one instant at which the clock shows it.

Every zone is an IANA name; its data is the machine's, else that of the ``tzdata`` wheel, as Python's ``zoneinfo`` has
it. Local times go in naive, instants come out aware and in UTC. No transitions of one zone since 1970 are less than six
days apart (a test holds that against the data), so no local time is touched by two of them.
Source: HOUSE decision 9 (ADR 0022), T000-d to T000-g.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal, TypeAlias, cast
from zoneinfo import ZoneInfo

from duly.kernel.errors import InvalidArgument, UnknownZone
from duly.kernel.zone_names import ZONE_NAMES

#: What a local time in a gap means: the first instant after the gap, or nothing.
Gap: TypeAlias = Literal["after", "skip"]
#: Which pass of a repeated local time counts.
Fold: TypeAlias = Literal["first", "both", "last"]

#: Civil time is computed for these local years. Beyond them no answer is given, so that no search goes on for ever.
FIRST_YEAR, LAST_YEAR = 1970, 2200

#: The smallest step between two instants.
TICK = timedelta(microseconds=1)

_SECOND = timedelta(seconds=1)
#: Between two looks at a zone's offset. Transitions are further apart, so each look meets at most one.
_STEP = timedelta(days=5)
_EXAMPLE = "Name an IANA time zone such as Europe/Paris, or UTC."
_OFFSET = re.compile(r"(?:Z|UTC|GMT)?\s*([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)
_POSIX = re.compile(r"(?:[A-Za-z]{3,}|<[^>]*>)[+-]?\d.*")


@dataclass(frozen=True, slots=True)
class Transition:
    """A zone's clock is put forward or back."""

    #: The first instant of the new offset, aware, in UTC.
    at: datetime
    #: What is added to UTC until then, and from then on.
    before: timedelta
    after: timedelta

    @property
    def is_gap(self) -> bool:
        """Is the clock put forward, so that local times are left out? Otherwise they are repeated."""
        return self.after > self.before

    @property
    def starts(self) -> datetime:
        """The first local time that is left out or repeated, naive."""
        return self.at.replace(tzinfo=None) + min(self.before, self.after)

    @property
    def ends(self) -> datetime:
        """The first local time that is ordinary again, naive."""
        return self.at.replace(tzinfo=None) + max(self.before, self.after)


def resolve(local: datetime, tz: str, gap: Gap = "after", fold: Fold = "first") -> tuple[datetime, ...]:
    """The instants that the local time ``local`` (naive) of a zone stands for: none, one or two, aware, in UTC, in order.

    Raises InvalidArgument for an aware ``local``, an unknown zone, or another ``gap`` or ``fold``.
    """
    place = zone(tz)
    if not isinstance(local, datetime) or local.tzinfo is not None:
        raise InvalidArgument("local", f"is {local!r}.", "Give a datetime without a time zone: what the clock shows.")
    if not FIRST_YEAR <= local.year <= LAST_YEAR:
        raise InvalidArgument(
            "local", f"is in the year {local.year}; civil time is known for {FIRST_YEAR} to {LAST_YEAR}."
        )
    read_gap(gap)
    read_fold(fold)
    shown = clock_at(local, place)
    if isinstance(shown, timedelta):
        return (instant_of(local, shown),)
    if shown.is_gap:
        return (shown.at,) if gap == "after" else ()
    first, last = instant_of(local, shown.before), instant_of(local, shown.after)
    return {"first": (first,), "last": (last,), "both": (first, last)}[fold]


def instant_on(day: date, at: time, tz: str) -> datetime:
    """The instant at which the clock of a zone has reached ``at`` on a local date (R000-10, T000-d): aware, in UTC.

    The first of two passes; the first instant after a gap.
    """
    return resolve(datetime.combine(day, at), tz)[0]


def local_date(instant: datetime, tz: str) -> date:
    """The date that a calendar on the wall shows at an aware instant in a zone (R000-9, case B015)."""
    place = zone(tz)
    try:
        return in_utc(instant, "instant").astimezone(place).date()
    except OverflowError:
        raise InvalidArgument("instant", f"is {instant.isoformat()}, which no calendar of {tz} holds.") from None


def transitions(tz: str, start: datetime, end: datetime) -> tuple[Transition, ...]:
    """The transitions of a zone from ``start`` (aware) until before ``end``, in order, each found to the second.

    They are looked for from 1970 to 2200. Only changes of the offset count: a zone that changes its name or what it calls standard time keeps its clock.
    """
    known = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)
    return tuple(_transitions(zone(tz), max(in_utc(start, "start"), known[0]), min(in_utc(end, "end"), known[1])))


def _transitions(place: ZoneInfo, start: datetime, end: datetime) -> Iterator[Transition]:
    low, offset = start - TICK, offset_at(start - TICK, place)
    while low < end:
        high = low + _STEP
        if offset_at(high, place) != offset:
            found = _bisect(place, low, high)
            if found.at >= end:
                return
            yield found
            offset = found.after
        low = high


def _bisect(place: ZoneInfo, low: datetime, high: datetime) -> Transition:
    """The transition between two instants with different offsets, of which the second is the later."""
    before, after = offset_at(low, place), offset_at(high, place)
    # Transitions stand on whole seconds.
    low = low.replace(microsecond=0)
    high = high.replace(microsecond=0) + _SECOND
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if offset_at(middle, place) == before:
            low = middle
        else:
            high = middle
    return Transition(high, before, after)


def clock_at(local: datetime, place: ZoneInfo) -> timedelta | Transition:
    """What a zone adds to UTC at an ordinary local time (naive); the transition, for a time that it leaves out or repeats."""
    # PEP 495: asked for a time in a gap or fold, a zone answers with the offset before (fold 0) and after it (fold 1).
    before = offset_of(local.replace(tzinfo=place, fold=0))
    after = offset_of(local.replace(tzinfo=place, fold=1))
    if before == after:
        return before
    return _change_near(place, local.date())


@lru_cache(maxsize=4096)
def _change_near(place: ZoneInfo, day: date) -> Transition:
    """The transition that touches local times of a date. Within five days there is no other."""
    midnight = datetime.combine(day, time(), UTC)
    return _bisect(place, midnight - timedelta(days=2), midnight + timedelta(days=3))


def instant_of(local: datetime, offset: timedelta) -> datetime:
    """The instant at which a clock with this offset reads ``local`` (naive): aware, in UTC."""
    return (local - offset).replace(tzinfo=UTC, fold=0)


def offset_at(instant: datetime, place: ZoneInfo) -> timedelta:
    """What a zone adds to UTC at an aware instant."""
    return offset_of(instant.astimezone(place))


def offset_of(moment: datetime) -> timedelta:
    """The offset of an aware datetime."""
    return cast(timedelta, moment.utcoffset())


def in_utc(instant: datetime, field: str) -> datetime:
    """An aware instant in UTC. Raises InvalidArgument for a naive one: nobody guesses its zone."""
    if not isinstance(instant, datetime):
        raise InvalidArgument(field, f"is of type {type(instant).__name__}.", "Give a datetime with a time zone.")
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise InvalidArgument(
            field,
            f"is {instant.isoformat()}, without a time zone.",
            "Give an aware datetime, such as datetime.now(UTC).",
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidArgument(field, f"is {instant.isoformat()}, which no calendar holds in UTC.") from None


def read_gap(value: object, field: str = "gap") -> Gap:
    """Check a value for ``gap``."""
    if value not in ("after", "skip"):
        raise InvalidArgument(
            field,
            f"is {value!r}.",
            "Use 'after' (a local time that is left out runs at the first instant after the gap) or 'skip'.",
        )
    return value


def read_fold(value: object, field: str = "fold") -> Fold:
    """Check a value for ``fold``."""
    if value not in ("first", "both", "last"):
        raise InvalidArgument(
            field, f"is {value!r}.", "Use 'first', 'last' or 'both': which pass of a repeated local time runs."
        )
    return value


# --- Zones ------------------------------------------------------------------------------------------------------------


def zone(tz: str, field: str = "tz") -> ZoneInfo:
    """The zone of an IANA name. Raises InvalidArgument, with what to write instead, for anything else (case B010).

    UnknownZone, which is one of these, is raised for a zone that there is and of which this machine has no data (C023).
    """
    if not isinstance(tz, str):
        raise InvalidArgument(field, f"is of type {type(tz).__name__}; it must be a text.", _EXAMPLE)
    try:
        return _load(tz)
    except (OSError, ValueError, KeyError):
        if tz in ZONE_NAMES:
            raise UnknownZone(
                field,
                f"is {tz!r}, a time zone of which this machine has no data.",
                "Install tzdata and tzdata-legacy, or pip install -U tzdata, on this machine.",
            ) from None
        problem, remedy = _why_not(tz)
        raise InvalidArgument(field, problem, remedy) from None


def check_zone(tz: str) -> None:
    """Is there a zone of this name, be its data here or not? Raises InvalidArgument as ``zone``."""
    try:
        zone(tz)
    except UnknownZone:
        pass


@lru_cache(maxsize=1024)
def _load(tz: str) -> ZoneInfo:
    # Folders of the system that are no IANA names: copies, copies that count leap seconds, and what the machine is set to.
    if len(tz) > 64 or tz.split("/")[0] in ("posix", "right", "localtime", "posixrules"):
        raise ValueError(tz)
    return ZoneInfo(tz)


def _why_not(tz: str) -> tuple[str, str]:
    """What is wrong with a name that is no zone, and what to do."""
    shown = repr(tz if len(tz) <= 64 else tz[:61] + "…")
    if not tz.strip():
        return "is empty.", _EXAMPLE
    if tz.strip().lower() in ("local", "localtime", "system", "tzlocal"):
        return f"is {shown}, which is another zone on another machine.", _EXAMPLE
    if fixed := _OFFSET.fullmatch(tz.strip()):
        sign, hours, minutes = fixed[1], int(fixed[2]), int(fixed[3] or 0)
        remedy = "Name the place whose clock is meant, such as Europe/Paris."
        if minutes == 0 and hours <= 12:
            # POSIX counts westwards, and so does the IANA database in these names.
            same = f"Etc/GMT{'-' if sign == '+' else '+'}{hours}" if hours else "UTC"
            remedy += (
                f" A clock that never changes is {same} (the sign is turned round there)." if hours else " Or UTC."
            )
        return f"is {shown}, an offset, and no zone: it does not know when clocks change.", remedy
    if "," in tz or _POSIX.fullmatch(tz):
        return f"is {shown}, which looks like a POSIX rule and is no IANA time zone.", _EXAMPLE
    known = zoneinfo.available_timezones() - {"localtime"}
    asked = tz[:64].strip().replace(" ", "_").lower()
    near = sorted(name for name in known if asked in (name.lower(), name.lower().split("/")[-1]))
    near = near[-1:] or get_close_matches(tz[:64].strip(), known, 1, 0.75)
    return f"is {shown}, which is no IANA time zone.", f"Did you mean {near[0]}?" if near else _EXAMPLE


@lru_cache(maxsize=1024)
def differs_from_package(tz: str, year: int) -> bool | None:
    """Does the data that this process has of a zone differ from the ``tzdata`` package's, in that year or the two after it?

    Both are looked at day by day. None where one of the two does not know the zone.
    """
    try:
        here = _load(tz)
        with resources.files("tzdata").joinpath("zoneinfo", *tz.split("/")).open("rb") as file:
            there = ZoneInfo.from_file(file, tz)
    except (OSError, ValueError, KeyError, ImportError):
        return None
    begins = datetime(year, 1, 1, tzinfo=UTC)
    return any(
        offset_at(begins + day * timedelta(days=1), here) != offset_at(begins + day * timedelta(days=1), there)
        for day in range(3 * 366)
    )


@lru_cache(maxsize=1024)
def tz_version(tz: str = "UTC") -> str:
    """The release of the IANA database that a zone's data comes from, such as ``2026f``; ``unknown`` if its folder does not say.

    A machine's own data goes before the ``tzdata`` wheel, as ``zoneinfo`` has it; ``PYTHONTZPATH=`` (empty) leaves the wheel alone.
    """
    zone(tz)
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / tz).is_file():
            return _version_of(folder)
    import tzdata  # the wheel is asked only where it is used

    return str(tzdata.IANA_VERSION)


def _version_of(folder: Path) -> str:
    """What a folder of zones says of its release: in the first line of `tzdata.zi`, or in `+VERSION` (BSD, macOS)."""
    for name in ("tzdata.zi", "+VERSION"):
        try:
            with (folder / name).open(encoding="utf-8") as file:
                said = file.readline(100)
        except (OSError, ValueError):
            continue
        if found := re.search(r"\b\d{4}[a-z]{1,2}\b", said):
            return found[0]
    return "unknown"

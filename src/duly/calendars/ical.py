"""Reading calendar files (iCalendar, RFC 5545) as blackout windows. Needs ``duly[ical]``.

What a file says (series, exceptions, moved and cancelled events) is worked out for a horizon and becomes windows with explicit
dates: what holds is then in plain sight, and a rule that nobody here wrote decides nothing later. Events that share their times of
day and their zone become one window with many dates. A file is data from outside: its size, its events and what they unfold into
are bounded, and a mistake in it is named with its line and its event.

When an event ends (RFC 5545, 3.3.6 and 3.8.5.3). Of a ``DURATION`` weeks and days are counted on the calendar, hours, minutes and
seconds as they pass; a ``DTEND`` in another zone is an instant, and in a series the same length of real time for each occurrence. A
``DTEND`` in the zone of the ``DTSTART`` is what the clock shows there, each time. The RFC gives a series the real length of its first
occurrence instead, and most calendars do not: where clocks change within an occurrence, it is held until the later of the two. What
waits an hour too long can still be sent, and what was sent in a time of silence cannot be called back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

from duly.kernel.errors import InvalidArgument, UsageError
from duly.kernel.localtime import clock_at, in_utc, zone
from duly.kernel.payload import check_name
from duly.kernel.recurrence import RRule
from duly.kernel.recurrence.reading import MOST_DATES, quoted, write_time
from duly.kernel.windows import Window

MOST_BYTES = 2 * 1024 * 1024
MOST_EVENTS = 5_000
#: Series are unfolded by a library that looks at each of their dates, so there may be fewer of them.
MOST_SERIES = 500
#: What all events together may unfold into.
MOST_OCCURRENCES = MOST_DATES
#: What the library goes through, from the beginning of each series to the horizon: a daily series since 1970 has 20,000 dates.
MOST_STEPS = 1_000_000
#: Different times of day in one file, each a window of its own.
MOST_GROUPS = 200
HORIZON, LONGEST = timedelta(days=400), timedelta(days=3_660)

_DAY = timedelta(days=1)
#: The library compares times without a zone as if they were UTC, and ends by the clock: so it is asked for more, and what is outside
#: of the horizon is left out here.
_AROUND = timedelta(days=2)
_DURATION = re.compile(r"\+?P(?:(\d+)W)?(?:(\d+)D)?(?:T.*)?")
#: Where an event keeps its length and its UID while it is unfolded; its occurrences are copies of it.
_LENGTH, _UID = "X-DULY-LENGTH", "X-DULY-UID"
#: One way to match each text: a line that is none costs no more than its length.
_LINE = re.compile(r"[A-Za-z0-9-]+(?:;[^:;=]+=(?:\"[^\"]*\"|[^\":;,]*)(?:,(?:\"[^\"]*\"|[^\":;,]*))*)*:.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in a file."""

    windows: tuple[Window, ...]
    #: How many events there were, and how many occurrences of them within the horizon.
    events: int
    occurrences: int
    #: What holds nothing, and why, in a sentence each.
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of an occurrence that a window can say: a day, and from when to when."""

    tz: str
    start: str
    end: str
    day: date


@dataclass(frozen=True, slots=True)
class _Length:
    """How long an event is, as far as the library that unfolds series forgets it: it adds every length on the clock."""

    #: Days on the calendar. None: it ends by the clock, as unfolded, and not before ``exact`` has passed.
    days: int | None
    #: Real time behind those days. None: as much as the clock says.
    exact: timedelta | None


@dataclass(frozen=True, slots=True)
class _Span:
    """An occurrence as local times (naive) of a zone, and as instants."""

    tz: str
    start: datetime
    end: datetime
    begins: datetime
    ends: datetime

    def is_within(self, begins: datetime, ends: datetime) -> bool:
        return self.begins < ends and (begins < self.ends or begins <= self.begins)


def read_ical(
    data: bytes | str,
    name: str,
    *,
    scope: str = "all",
    tz: str | None = None,
    start: datetime,
    end: datetime | None = None,
    file: str = "file",
) -> Reading:
    """The windows of a calendar file, for what happens from ``start`` until before ``end`` (aware; 400 days later by default).

    They are called ``name``, ``name-2``, …; ``tz`` is the zone of days and times that the file gives without one (its
    ``X-WR-TIMEZONE`` otherwise). Cancelled events are left out, and so are those without a length. ``file`` is what it is called in
    errors. Raises InvalidArgument with the line or the event, UsageError without ``duly[ical]``.
    """
    check_name(name, "name", 180)
    begins = in_utc(start, "start")
    ends = begins + HORIZON if end is None else in_utc(end, "end")
    if not begins < ends <= begins + LONGEST:
        raise InvalidArgument(
            "end", "is not after the start, or more than ten years later.", f"Choose an end within {LONGEST.days} days."
        )
    if tz is not None:
        zone(tz)
    text = _text(data, file)
    lines, durations = _checked_lines(text, file)
    calendars = _parsed(text, file)
    pieces: set[_Piece] = set()
    events, occurrences, left_out, lengths = 0, 0, list[str](), iter(durations)
    for calendar in calendars:
        found = list(calendar.walk("VEVENT"))
        events += len(found)
        if events > MOST_EVENTS:
            raise InvalidArgument(file, f"has more than {MOST_EVENTS} events.", "Import a part of it.")
        default = tz or _default_zone(calendar)
        for event in found:
            called = _called(event, lines, file)
            _check(event, called, default)
            event[_LENGTH] = _length(event, next(lengths, ""), called, default)
        if sum(1 for event in found if "RRULE" in event) > MOST_SERIES:
            raise InvalidArgument(file, f"has more than {MOST_SERIES} recurring events.", "Import a part of it.")
        _check_steps(found, ends, file)
        excluded = _take_out(calendar, found, lines, file, default)
        for event in _unfolded(calendar, begins - _AROUND, ends + _AROUND, file):
            called = _called(event, lines, file)
            if excluded.get(str(event.get("UID", "")), _NOTHING).has(
                event.start, _zone_of(event.start, called, default)
            ):
                continue
            span = _span(event, called, default)
            if not span.is_within(begins, ends):
                continue
            occurrences += 1
            if occurrences > MOST_OCCURRENCES:
                raise InvalidArgument(
                    file, f"unfolds into more than {MOST_OCCURRENCES} occurrences.", "Choose an earlier end."
                )
            if str(event.get("STATUS", "")).upper() == "CANCELLED":
                left_out.append(f"{called} is cancelled.")
                continue
            of_event = list(_pieces(span, (begins, ends)))
            if not of_event:
                left_out.append(f"{called} has no length.")
            pieces.update(of_event)
    return Reading(tuple(_windows(pieces, name, scope, file)), events, occurrences, tuple(left_out))


# --- The text ------------------------------------------------------------------------------------------------------------


def _text(data: bytes | str, file: str) -> str:
    if len(data) > MOST_BYTES:
        raise InvalidArgument(
            file, f"has {len(data):,} bytes; at most {MOST_BYTES:,} are read.", "Export a part of the calendar."
        )
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(f"{file}, line {line}", "is not UTF-8.", "Save the file in UTF-8.") from None


def _checked_lines(text: str, file: str) -> tuple[dict[str, int], list[str]]:
    """Check the form of each line and the nesting of its parts.

    Returns the line on which each event's UID begins its event, and the DURATION of each event in their order, as it is written; empty
    for one that has none. (The library makes a timedelta of it, for which a day and 24 hours are the same.)
    """
    begun: list[tuple[str, int]] = []
    where: dict[str, int] = {}
    durations: dict[int, str] = {}
    for number, line in _content_lines(text):
        if not _LINE.fullmatch(line):
            raise InvalidArgument(
                f"{file}, line {number}", f"is {quoted(line)}.", "A line of a calendar file is NAME:VALUE."
            )
        name, _, value = line.partition(":")
        name, value = name.upper(), value.strip().upper()
        if name == "BEGIN":
            if not begun and value != "VCALENDAR":
                raise InvalidArgument(f"{file}, line {number}", f"begins {quoted(value)}.", "Give a calendar file.")
            begun.append((value, number))
            if value == "VEVENT":
                durations[number] = ""
            if len(begun) > 10:
                raise InvalidArgument(f"{file}, line {number}", "is nested more than ten deep.")
        elif name == "END":
            if not begun or begun.pop()[0] != value:
                raise InvalidArgument(f"{file}, line {number}", f"ends {quoted(value)}, which has not begun.")
        elif not begun:
            raise InvalidArgument(f"{file}, line {number}", "stands outside of BEGIN:VCALENDAR.")
        elif name.partition(";")[0] == "UID" and begun[-1][0] == "VEVENT":
            where.setdefault(line.partition(":")[2].strip(), begun[-1][1])
        elif name.partition(";")[0] == "DURATION" and begun[-1][0] == "VEVENT":
            durations[begun[-1][1]] = line.rpartition(":")[2].strip().upper()
    if begun:
        raise InvalidArgument(f"{file}, line {begun[-1][1]}", f"begins {begun[-1][0]}, which does not end.")
    return where, list(durations.values())


def _content_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines as the format means them: one that begins with a blank goes on from the one before. With the number of the first."""
    held, first = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        if line[:1] in (" ", "\t") and held:
            held += line[1:]
            continue
        if held.strip():
            yield first, held
        held, first = line, number
    if held.strip():
        yield first, held


def _parsed(text: str, file: str) -> list[Any]:
    try:
        from icalendar import Calendar
    except ImportError:
        raise UsageError("calendar files are read with duly[ical]. Install it: pip install 'duly[ical]'.") from None
    try:
        found = Calendar.from_ical(text, multiple=True)
    except Exception as error:  # a form that the checks above let through, and the library does not
        raise InvalidArgument(file, f"cannot be read: {error}.") from None
    if not found:
        raise InvalidArgument(file, "holds no calendar.", "Give a file that begins with BEGIN:VCALENDAR.")
    return list(found)


# --- Events --------------------------------------------------------------------------------------------------------------


def _called(event: Any, lines: dict[str, int], file: str) -> str:
    uid, summary = str(event.get(_UID, event.get("UID", ""))).strip(), str(event.get("SUMMARY", "")).strip()
    line = f", line {lines[uid]}" if uid in lines else ""
    return f"{file}{line}, event {quoted(summary or uid)}"


def _default_zone(calendar: Any) -> str | None:
    named = str(calendar.get("X-WR-TIMEZONE", "")).strip()
    try:
        return zone(named).key if named else None
    except InvalidArgument:
        return None


def _check(event: Any, called: str, default: str | None) -> None:
    """Refuse what is wrong with an event, before anything is unfolded."""
    for broken, problem in event.errors:
        raise InvalidArgument(called, f"has {broken} that cannot be read: {problem}.")
    if "DTSTART" not in event:
        raise InvalidArgument(called, "has no DTSTART.", "Each event needs a beginning.")
    for name in ("DTSTART", "DTEND"):
        if name in event:
            at, named = event[name].dt, event[name].params.get("TZID")
            if named is not None and isinstance(at, datetime) and at.tzinfo is None:
                raise _no_zone(called, named)
    begins = event["DTSTART"].dt
    rules = event.get("RRULE", ())
    for rule in rules if isinstance(rules, list | tuple) else [rules]:
        local = begins if isinstance(begins, datetime) else datetime.combine(begins, time())
        start, tz = local.replace(tzinfo=None, microsecond=0), _zone_of(begins, called, default)
        try:
            # the judge of all rules here: it refuses what runs by the hour and what never comes
            RRule(rule.to_ical().decode(), start=start, tz=tz)
        except InvalidArgument as error:
            raise InvalidArgument(called, f"has a rule that cannot be used: {error.problem}", error.remedy) from None


#: How many days lie between two turns of a rule, at least.
_TURN = {"DAILY": 1, "WEEKLY": 7, "MONTHLY": 28, "YEARLY": 365}


def _check_steps(events: Iterable[Any], ends: datetime, file: str) -> None:
    """Refuse what would be gone through for minutes, before any of it is."""
    steps = 0.0
    for event in events:
        rules = event.get("RRULE", ())
        for rule in rules if isinstance(rules, list | tuple) else [rules]:
            begins = event["DTSTART"].dt
            days = max(0, (ends.date() - (begins.date() if isinstance(begins, datetime) else begins)).days)
            turns = (
                days
                / _TURN.get(str(rule.get("FREQ", ["DAILY"])[0]).upper(), 1)
                / max(1, int(rule.get("INTERVAL", [1])[0]))
            )
            for part in ("BYHOUR", "BYMINUTE", "BYSECOND", "BYDAY", "BYMONTHDAY"):
                turns *= max(1, len(rule.get(part, ())))
            steps += min([turns, *(int(count) for count in rule.get("COUNT", ()))])
    if steps > MOST_STEPS:
        remedy = "Begin the series later (DTSTART), or import a part of the file."
        raise InvalidArgument(file, f"has series with more than {MOST_STEPS:,} dates from their beginning on.", remedy)


@dataclass(frozen=True, slots=True)
class _Excluded:
    """The occurrences of a series that are not: by EXDATE, or because another event stands for them."""

    instants: frozenset[datetime]
    #: Whole days, by the clock of the series (C026).
    days: frozenset[date]

    def has(self, begins: Any, tz: str) -> bool:
        if not isinstance(begins, datetime):
            return begins in self.days or _instant(datetime.combine(begins, time()), tz) in self.instants
        return begins.date() in self.days or _instant(begins, tz) in self.instants


_NOTHING = _Excluded(frozenset(), frozenset())


def _take_out(
    calendar: Any, events: Iterable[Any], lines: dict[str, int], file: str, default: str | None
) -> dict[str, _Excluded]:
    """Take exceptions and moved instances out of series, and say what they stand for, by UID.

    The library that unfolds series compares them by what the clock shows in UTC *or* in their zone, so that of three times a day the
    one an hour before went with the one that was meant. Here an exception is an instant, or a day where it is written as one.
    """
    instants, days = dict[str, set[datetime]](), dict[str, set[date]]()
    moved: dict[tuple[str, datetime | date], Any] = {}
    series = {str(event.get("UID", "")): event for event in events if "RECURRENCE-ID" not in event}
    for event in events:
        uid, called = str(event.get("UID", "")), _called(event, lines, file)
        out, whole = instants.setdefault(uid, set()), days.setdefault(uid, set())
        # what is written without a zone goes by the clock of the series
        master = series.get(uid, event)["DTSTART"].dt
        exceptions = event.pop("EXDATE", ())
        for one in exceptions if isinstance(exceptions, list) else [exceptions]:
            for each in getattr(one, "dts", ()):
                _exclude(each.dt, master, called, default, out, whole)
        if "RECURRENCE-ID" not in event:
            continue
        which = event["RECURRENCE-ID"]
        if str(which.params.get("RANGE", "")).upper() == "THISANDFUTURE":
            continue  # the library shifts what follows
        if which.params.get("RANGE"):
            problem = f"has RANGE={which.params['RANGE']}, which is not understood."
            raise InvalidArgument(called, problem, "Split the series in your calendar, and export it again.")
        if uid not in series:
            continue
        known = _exclude(which.dt, master, called, default, out, whole)
        older = moved.get((uid, known))
        if older is not None:
            newer = event if int(event.get("SEQUENCE", 0)) >= int(older.get("SEQUENCE", 0)) else older
            calendar.subcomponents.remove(older if newer is event else event)
            moved[uid, known] = newer
        else:
            moved[uid, known] = event
    for number, ((uid, _), event) in enumerate(moved.items()):
        event.pop("RECURRENCE-ID")
        event[_UID] = uid
        event["UID"] = f"{uid}#{number}"
    return {uid: _Excluded(frozenset(instants[uid]), frozenset(days[uid])) for uid in instants}


def _exclude(
    at: Any, master: Any, called: str, default: str | None, instants: set[datetime], days: set[date]
) -> datetime | date:
    """Note what an exception names. Returns it."""
    if not isinstance(at, datetime):
        days.add(at)
        return cast(date, at)
    if not isinstance(master, datetime):
        days.add(at.date())
        return at.date()
    instant = _instant(at, _zone_of(at if at.tzinfo is not None else master, called, default))
    instants.add(instant)
    return instant


def _unfolded(calendar: Any, begins: datetime, ends: datetime, file: str) -> Iterable[Any]:
    import recurring_ical_events

    try:
        yield from recurring_ical_events.of(calendar).between(begins, ends)
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(file, f"has a series that cannot be unfolded: {error}.") from None


def _zone_of(at: Any, called: str, default: str | None) -> str:
    """The IANA name of the zone whose clock an event goes by."""
    place = at.tzinfo if isinstance(at, datetime) else None
    if place is None:
        if default is None:
            raise InvalidArgument(
                "tz", f"is missing: {called} has a time or a day without a zone.", "Name a zone, such as Europe/Rome."
            )
        return default
    if place is UTC or str(place) == "UTC":
        return "UTC"
    named = getattr(place, "key", None)
    if isinstance(place, ZoneInfo) and named:
        return zone(named).key
    raise _no_zone(called, str(getattr(place, "_tzid", place)))


def _no_zone(called: str, named: str) -> InvalidArgument:
    remedy = "Replace its TZID in the file by an IANA name, such as Europe/Rome."
    return InvalidArgument(called, f"has the time zone {quoted(named)}, which is no IANA time zone.", remedy)


def _length(event: Any, duration: str, called: str, default: str | None) -> _Length | None:
    """How long an event is. ``duration``: as it is written. None where it ends as the library says."""
    begins = event["DTSTART"].dt
    if not isinstance(begins, datetime):
        return None
    rdates = event.get("RDATE", ())
    if any(
        isinstance(each.dt, tuple)
        for one in (rdates if isinstance(rdates, list) else [rdates])
        for each in getattr(one, "dts", ())
    ):
        # which of its occurrences are periods with an end or a length of their own is not to be seen afterwards
        return _Length(None, None)
    if "DTEND" in event:
        ends = event["DTEND"].dt
        if not isinstance(ends, datetime):
            return None
        tz = _zone_of(begins, called, default)
        exact = ends.replace(tzinfo=ends.tzinfo or zone(tz)).astimezone(UTC) - _instant(begins, tz)
        if exact <= timedelta(0):
            return None
        if ends.tzinfo is not None and _zone_of(ends, called, default) != tz:
            return _Length(0, exact)
        return _Length(None, exact) if "RRULE" in event or "RDATE" in event else None
    said = _DURATION.fullmatch(duration)
    if said is None or "DURATION" not in event or event["DURATION"].dt <= timedelta(0):
        return None
    days = 7 * int(said[1] or 0) + int(said[2] or 0)
    return _Length(days, event["DURATION"].dt - timedelta(days=days))


def _span(event: Any, called: str, default: str | None) -> _Span:
    """When an occurrence begins and ends."""
    begins: Any = event.start
    ends: Any = event.end
    length: _Length | None = event.get(_LENGTH)
    tz = _zone_of(begins, called, default)
    if not isinstance(begins, datetime):
        first, last = (datetime.combine(at, time()) for at in (begins, ends))
        return _Span(tz, first, last, _instant(first, tz), _instant(last, tz))
    if isinstance(ends, datetime) and ends.tzinfo is not None:
        ends = ends.astimezone(zone(tz))
    start, end = begins.replace(tzinfo=None, microsecond=0), ends.replace(tzinfo=None, microsecond=0)
    began = _instant(start, tz)
    # of a time that the clock shows twice a window holds until the second
    by_clock = _Span(tz, start, end, began, _instant(end, tz, fold=1))
    if length is None:
        return by_clock
    if length.days is None:
        stop = began + (end - start if length.exact is None else length.exact)
        if stop <= by_clock.ends:
            return by_clock
    elif not length.exact:
        return by_clock
    else:
        stop = _instant(start + length.days * _DAY, tz) + length.exact
    shown = stop.astimezone(zone(tz)).replace(tzinfo=None, fold=0)
    if isinstance(clock_at(shown, zone(tz)), timedelta):
        return _Span(tz, start, shown, began, stop)
    # the clock shows that time twice, and no window could say which is meant: UTC says it
    return _Span("UTC", began.replace(tzinfo=None), stop.replace(tzinfo=None), began, stop)


def _instant(at: datetime, tz: str, fold: int = 0) -> datetime:
    """The instant of a time, in UTC; of one without a zone by the clock of ``tz``."""
    return at.replace(tzinfo=at.tzinfo or zone(tz), fold=fold, microsecond=0).astimezone(UTC)


def _pieces(span: _Span, horizon: tuple[datetime, datetime]) -> Iterator[_Piece]:
    """An occurrence as parts that a window can say, none longer than a day; of a long one those within the horizon."""
    tz, start, end = span.tz, span.start, span.end
    if end <= start:
        return
    low, high = (at.astimezone(zone(tz)).date() + step for at, step in zip(horizon, (-_DAY, _DAY), strict=True))
    first, last = start.date(), end.date()
    if start.time() == end.time() == time():
        yield from (_Piece(tz, "00:00", "24:00", day) for day in _days(max(first, low), min(last, high)))
        return
    if first == last or (last == first + _DAY and end.time() <= start.time()):
        yield _Piece(tz, write_time(start.time()), _ending(end, last > first), first)
        return
    if low <= first:
        yield _Piece(tz, write_time(start.time()), "24:00", first)
    yield from (_Piece(tz, "00:00", "24:00", day) for day in _days(max(first + _DAY, low), min(last, high)))
    if end.time() != time() and last <= high:
        yield _Piece(tz, "00:00", write_time(end.time()), last)


def _days(first: date, end: date) -> Iterator[date]:
    while first < end:
        yield first
        first += _DAY


def _ending(end: datetime, on_next_day: bool) -> str:
    return "24:00" if on_next_day and end.time() == time() else write_time(end.time())


def _windows(pieces: set[_Piece], name: str, scope: str, file: str) -> Iterator[Window]:
    """One window for each zone and times of day, with all its dates."""
    groups: dict[tuple[str, str, str], list[date]] = {}
    for piece in pieces:
        groups.setdefault((piece.tz, piece.start, piece.end), []).append(piece.day)
    if len(groups) > MOST_GROUPS:
        raise InvalidArgument(
            file,
            f"has {len(groups)} different times of day; at most {MOST_GROUPS} are allowed.",
            "Import a part of it.",
        )
    if sum(map(len, groups.values())) > MOST_OCCURRENCES:
        raise InvalidArgument(file, f"holds more than {MOST_OCCURRENCES} days.", "Choose an earlier end.")
    for number, ((tz, start, end), days) in enumerate(sorted(groups.items()), 1):
        called = name if number == 1 else f"{name}-{number}"
        yield Window(dates=sorted(days), start=start, end=end, tz=tz, name=called, scope=scope)

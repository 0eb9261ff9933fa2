"""What every schedule can be asked, and how planned local times become instants.

A schedule is a frozen value. It names *planned instants*: aware, in UTC, strictly increasing. The three questions are
pure (``next_after``, ``previous_before``, ``occurrences``); nobody reads a clock.

How a civil schedule finds its instants
---------------------------------------
It has a pattern of *local* times (``_match_from``, ``_match_before``: calendar arithmetic without zones), of which it keeps
those from ``start_date`` to ``end_date`` (``_first_from``, ``_last_before``), and a rule that turns a local time into an
instant (``localtime``: after a gap or not at all, first or last pass of a fold). For one pass that rule never decreases: a
later local time never runs earlier. So the next instant after ``u`` belongs to the first local time that the pass has not
yet shown at ``u``. Usually that is whatever comes after the clock's present reading. In the second pass of a fold, though,
the first has shown everything up to the fold's end already; and in the first pass, the last has shown nothing of the fold.
Both passes together are the two sequences, merged. Dates bound the pattern, not the instants, so none of this knows of them.

Source: HOUSE decision 9, ADR 0022, T001-w, T001-x, cases B001 to B011.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, time, timedelta
from hashlib import sha256
from typing import Any, Self
from zoneinfo import ZoneInfo

from duly.kernel.errors import InvalidArgument, UnknownZone
from duly.kernel.localtime import (
    FIRST_YEAR,
    LAST_YEAR,
    TICK,
    Fold,
    Gap,
    Transition,
    check_zone,
    clock_at,
    in_utc,
    instant_of,
    offset_at,
    read_fold,
    read_gap,
    zone,
)
from duly.kernel.payload import check_name, read_duration
from duly.kernel.recurrence.dates import DAY, FIRST_DATE, LAST_DATE
from duly.kernel.recurrence.reading import Day, quoted, read_date
from duly.kernel.recurrence.special import special_days
from duly.kernel.recurrence.words import bounds_words, zone_words

#: No instant outside of these is ever planned. Local years are bounded (``FIRST_YEAR`` to ``LAST_YEAR``); zones differ from UTC by up to a day.
EARLIEST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC) - timedelta(days=2)
LATEST = datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC) + timedelta(days=2)

#: Nobody waits longer than this for jitter.
LONGEST_JITTER = timedelta(days=7)
#: Local times of one gap that are named.
MOST_MERGED = 100


class Schedule(ABC):
    """When something is planned: any number of instants, in order."""

    __slots__ = ()

    @abstractmethod
    def _next(self, after: datetime) -> datetime | None:
        """The first planned instant later than ``after``, which is in UTC and within bounds."""

    @abstractmethod
    def _previous(self, before: datetime) -> datetime | None:
        """The last planned instant earlier than ``before``, which is in UTC and within bounds."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """This schedule as plain JSON; ``schedule_from_json`` makes an equal one of it."""

    @abstractmethod
    def _words(self) -> str:
        """When this is planned, in English, without the zone."""

    def describe(self, locale: str = "en", *, since: datetime | None = None, days: int = 366) -> str:
        """This schedule in a line of plain language: ``at 02:30 every day, Paris time``.

        Given ``since`` (aware), the days within the next ``days`` on which the clock is put forward or back are added if
        they matter here: ``; 29 March 2026 runs at 03:00``. English is the only ``locale`` so far.
        """
        if locale != "en":
            raise InvalidArgument("locale", f"is {quoted(locale)}.", "Schedules are described in English, 'en'.")
        return self._words()

    def named(self, name: str) -> Self:
        """This schedule under a name, for those that hash one (``H`` in a cron expression, jitter) and have none yet."""
        return self

    def jittered(self, planned: datetime) -> datetime:
        """When what is planned for an instant is to start: the same for all processes, never earlier, never as late as the next."""
        return in_utc(planned, "planned")

    def next_after(self, instant: datetime) -> datetime | None:
        """The first planned instant later than an aware one, aware, in UTC. None if there is none (until the year 2200)."""
        after = in_utc(instant, "instant")
        if after >= LATEST:
            return None
        found = self._next(max(after, EARLIEST))
        if found is not None and found <= after:
            raise RuntimeError(
                f"{self!r} went from {after} to {found}; the next instant must be later. Please report this."
            )
        return found

    def previous_before(self, instant: datetime) -> datetime | None:
        """The last planned instant earlier than an aware one, aware, in UTC. None if there is none (since 1970)."""
        before = in_utc(instant, "instant")
        if before <= EARLIEST:
            return None
        found = self._previous(min(before, LATEST))
        if found is not None and found >= before:
            raise RuntimeError(
                f"{self!r} went back from {before} to {found}, which is not earlier. Please report this."
            )
        return found

    def merged_at(self, instant: datetime) -> tuple[datetime, ...]:
        """The local times (naive) that one occurrence at ``instant`` stands for, where a clock put forward left out several; else none.

        They run once, at the first instant after the gap; whoever keeps a record of occurrences can say so.
        """
        return ()

    def occurrences(self, start: datetime, end: datetime, limit: int | None = None) -> Iterator[datetime]:
        """The planned instants from ``start`` until before ``end`` (aware), in order; at most ``limit`` of them."""
        at, stop = in_utc(start, "start"), in_utc(end, "end")
        _check_count("limit", limit)
        return self._occurrences(max(at, EARLIEST) - TICK, stop, limit)

    def _occurrences(self, at: datetime, stop: datetime, limit: int | None) -> Iterator[datetime]:
        count = 0
        while limit is None or count < limit:
            found = self.next_after(at)
            if found is None or found >= stop:
                return
            yield found
            at, count = found, count + 1

    def next_n(self, instant: datetime, n: int) -> list[datetime]:
        """The first ``n`` planned instants later than an aware one; fewer if there are no more."""
        at = in_utc(instant, "instant")
        _check_count("n", n)
        return list(self._occurrences(at, LATEST, n))


def _check_count(name: str, count: int | None) -> None:
    if count is not None and (not isinstance(count, int) or count < 0):
        raise InvalidArgument(name, f"is {quoted(count)}.", "Give a whole number that is not negative.")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Recurring(Schedule):
    """What is planned again and again, and may be spread."""

    #: Up to this many seconds are added to each planned instant, by a hash of the name and that instant. 0 adds nothing.
    jitter: float = 0.0
    #: What is hashed to spread load; None until ``named`` gives one.
    name: str | None = None

    def __post_init__(self) -> None:
        wait = read_duration(self.jitter, "jitter")
        if not timedelta(0) <= wait <= LONGEST_JITTER:
            raise InvalidArgument("jitter", f"is {quoted(self.jitter)}.", "Give seconds from 0 to 604800 (a week).")
        object.__setattr__(self, "jitter", wait.total_seconds())
        if self.name is not None:
            check_name(self.name, "name")

    def named(self, name: str) -> Self:
        return self if self.name is not None else replace(self, name=name)

    def jittered(self, planned: datetime) -> datetime:
        planned = in_utc(planned, "planned")
        if not self.jitter:
            return planned
        room = timedelta(seconds=self.jitter)
        following = self.next_after(planned)
        if following is not None:
            room = min(room, following - planned)
        text = f"{self.name or ''}\n{planned.isoformat()}"
        # A fraction of 2**64, so less than all of the room; in whole microseconds, so the same on every machine.
        part = int.from_bytes(sha256(text.encode()).digest()[:8])
        return planned + (room // TICK * part >> 64) * TICK

    def __repr__(self) -> str:
        # As it would be written: the fields of the class, then the options that are not at their defaults.
        said = [(field.name, getattr(self, field.name), field) for field in fields(self) if field.init]
        said = [(name, value, field) for name, value, field in said if value != field.default]
        own = [f"{name}={value!r}" for name, value, field in said if not field.kw_only]
        options = [f"{name}={value!r}" for name, value, field in said if field.kw_only]
        return f"{type(self).__name__}({', '.join(own + options)})"

    def _options(self) -> dict[str, Any]:
        """What ``to_json`` says of the options that are not at their defaults."""
        said: dict[str, Any] = {}
        if self.jitter:
            said["jitter"] = self.jitter
        if self.name is not None:
            said["name"] = self.name
        return said


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CivilSchedule(Recurring):
    """A schedule in the local time of a zone."""

    #: The IANA name of the zone whose clock is meant.
    tz: str
    #: A local time that a clock put forward leaves out: ``after`` runs it at the first instant after the gap, ``skip`` does not.
    #: None is the rule: ``after``, and ``skip`` for cron expressions that follow elapsed time.
    gap: Gap | None = None
    #: A local time that a clock put back shows twice: which pass runs. None is the rule: ``first``, and ``both`` for
    #: cron expressions that follow elapsed time.
    fold: Fold | None = None
    #: The first and the last local date of the zone on which this is planned, both inclusive; None for no bound. Kept as texts.
    #: What counts is the date that the pattern names, also where a clock that is put forward makes it run on the next.
    start_date: Day | None = None
    end_date: Day | None = None
    #: The same as local times: the first that counts, and the first that does not any more.
    _since: datetime = field(init=False, repr=False, compare=False)
    _until: datetime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Recurring.__post_init__(self)
        # a machine without its data can carry it, and plans nothing by it (C023)
        check_zone(self.tz)
        if self.gap is not None:
            read_gap(self.gap)
        if self.fold is not None:
            read_fold(self.fold)
        first = FIRST_DATE if self.start_date is None else read_date(self.start_date, "start_date")
        last = LAST_DATE if self.end_date is None else read_date(self.end_date, "end_date")
        if last < first:
            problem = f"is {last}, which is before start_date, {first}."
            raise InvalidArgument("end_date", problem, "Both dates count; give the later one here.")
        object.__setattr__(self, "start_date", None if self.start_date is None else first.isoformat())
        object.__setattr__(self, "end_date", None if self.end_date is None else last.isoformat())
        object.__setattr__(self, "_since", datetime.combine(first, time()))
        object.__setattr__(self, "_until", datetime.combine(last + DAY, time()))

    @property
    def follows_elapsed_time(self) -> bool:
        """Does this run at every matching reading of the clock, rather than once for each local time?"""
        return False

    @property
    def gap_rule(self) -> Gap:
        """What becomes of a local time that is left out."""
        return self.gap or ("skip" if self.follows_elapsed_time else "after")

    @property
    def fold_rule(self) -> Fold:
        """Which pass of a repeated local time runs."""
        return self.fold or ("both" if self.follows_elapsed_time else "first")

    def merged_at(self, instant: datetime) -> tuple[datetime, ...]:
        at, place = in_utc(instant, "instant"), zone(self.tz)
        before, after = offset_at(at - TICK, place), offset_at(at, place)
        if after <= before or self.gap_rule != "after":
            return ()
        found: list[datetime] = []
        local, ends = at.replace(tzinfo=None) + before, at.replace(tzinfo=None) + after
        while len(found) < MOST_MERGED and (match := self._first_from(local)) is not None and match <= ends:
            found.append(match)
            local = match + TICK
        return tuple(found) if len(found) > 1 else ()

    @property
    def is_bounded(self) -> bool:
        """Is there a first or a last date?"""
        return self.start_date is not None or self.end_date is not None

    @abstractmethod
    def _match_from(self, local: datetime) -> datetime | None:
        """The first local time of the pattern that is not before ``local`` (both naive), within the years known."""

    @abstractmethod
    def _match_before(self, local: datetime) -> datetime | None:
        """The last local time of the pattern before ``local`` (both naive), within the years known."""

    def _first_from(self, local: datetime) -> datetime | None:
        """The first local time that is not before ``local``, of the pattern and within the dates that bound it."""
        found = self._match_from(max(local, self._since)) if local < self._until else None
        return found if found is not None and found < self._until else None

    def _last_before(self, local: datetime) -> datetime | None:
        """The last local time before ``local``, of the pattern and within the dates that bound it."""
        found = self._match_before(min(local, self._until)) if local > self._since else None
        return found if found is not None and found >= self._since else None

    def describe(self, locale: str = "en", *, since: datetime | None = None, days: int = 366) -> str:
        bounds = bounds_words(self.start_date, self.end_date)
        parts = [f"{Recurring.describe(self, locale)}{bounds}, {zone_words(self.tz)}"]
        if since is not None:
            try:
                parts += [special.text for special in special_days(self, since, days)]
            except UnknownZone as error:
                parts.append(f"{error.field} {error.problem.rstrip('.')}")
        return "; ".join(parts)

    def _must_happen(self, field: str) -> None:
        """Refuse a pattern without a single instant, such as 30 February; also one that its dates leave none of."""
        try:
            found = self._next(EARLIEST)
        except UnknownZone:
            return  # who has its data can tell
        if found is None:
            if self.is_bounded:
                replace(self, start_date=None, end_date=None)  # refused itself, if it never happens at all
                field = "start_date" if self.end_date is None else "end_date"
                problem = (
                    f"leaves nothing: this never happens between {self._since.date()} and {self._until.date() - DAY}."
                )
                raise InvalidArgument(field, problem, "Both dates count. Choose dates with something between them.")
            raise InvalidArgument(
                field,
                f"never happens between {FIRST_YEAR} and {LAST_YEAR}.",
                "Check the day, the month, and what gap= leaves out.",
            )

    def _options(self) -> dict[str, Any]:
        said: dict[str, Any] = {"tz": self.tz}
        if self.gap is not None:
            said["gap"] = self.gap
        if self.fold is not None:
            said["fold"] = self.fold
        if self.start_date is not None:
            said["start_date"] = self.start_date
        if self.end_date is not None:
            said["end_date"] = self.end_date
        return said | Recurring._options(self)

    def _next(self, after: datetime) -> datetime | None:
        place, rule = zone(self.tz), self.fold_rule
        reads, second_pass, change = _reading(after, place)
        if change is None:
            # No local time to come runs earlier on its last pass than on its first.
            return self._run_from(reads + TICK, place, first=rule != "last")
        found = []
        if rule != "last":
            found.append(self._run_from(change.ends if second_pass else reads + TICK, place, first=True))
        if rule != "first":
            found.append(self._run_from(reads + TICK if second_pass else change.starts, place, first=False))
        return min((instant for instant in found if instant is not None), default=None)

    def _previous(self, before: datetime) -> datetime | None:
        place, rule = zone(self.tz), self.fold_rule
        reads, second_pass, change = _reading(before, place)
        if change is None:
            return self._run_before(reads, before, place, first=rule == "first")
        found = []
        if rule != "last":
            found.append(self._run_before(change.ends if second_pass else reads, before, place, first=True))
        if rule != "first":
            found.append(self._run_before(reads if second_pass else change.starts, before, place, first=False))
        return max((instant for instant in found if instant is not None), default=None)

    def _run_from(self, start: datetime, place: ZoneInfo, *, first: bool) -> datetime | None:
        """When the first local time that is not before ``start`` (naive) runs, on its first or last pass."""
        while (found := self._first_from(start)) is not None:
            shown = clock_at(found, place)
            if isinstance(shown, timedelta):
                return instant_of(found, shown)
            if not shown.is_gap:
                return instant_of(found, shown.before if first else shown.after)
            if self.gap_rule == "after":
                return shown.at
            start = shown.ends
        return None

    def _run_before(self, end: datetime, before: datetime, place: ZoneInfo, *, first: bool) -> datetime | None:
        """When the last local time before ``end`` (naive) runs that runs before an instant, on its first or last pass."""
        while (found := self._last_before(end)) is not None:
            shown = clock_at(found, place)
            if isinstance(shown, timedelta):
                return instant_of(found, shown)
            if not shown.is_gap:
                return instant_of(found, shown.before if first else shown.after)
            if self.gap_rule == "after" and shown.at < before:
                return shown.at
            end = shown.starts
        return None


def _reading(instant: datetime, place: ZoneInfo) -> tuple[datetime, bool, Transition | None]:
    """What the clock reads at an instant (naive); within a fold also whether it is the second pass, and the transition."""
    local = instant.astimezone(place)
    reads = local.replace(tzinfo=None, fold=0)
    shown = clock_at(reads, place)
    return reads, local.fold == 1, None if isinstance(shown, timedelta) else shown

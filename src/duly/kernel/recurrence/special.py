"""The days on which a schedule does something else than usual, because the clock is put forward or back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Literal

from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import LAST_YEAR, Transition, in_utc, resolve, transitions, zone
from duly.kernel.recurrence.reading import quoted, write_time
from duly.kernel.recurrence.words import day_words, listed

if TYPE_CHECKING:
    from duly.kernel.recurrence.schedule import CivilSchedule

#: The longest look ahead, in days.
LONGEST_LOOK = 3_660


@dataclass(frozen=True, slots=True)
class SpecialDay:
    """A local date on which planned local times are left out or repeated."""

    #: The date on the calendar of the schedule's zone.
    on: date
    #: Were they left out (``gap``), or shown twice (``fold``)?
    kind: Literal["gap", "fold"]
    #: The planned local times concerned, in order.
    planned: tuple[time, ...]
    #: The instants at which they run, aware, in UTC, in order; empty if they are skipped.
    runs: tuple[datetime, ...]
    #: The same in plain English: ``29 March 2026 runs at 03:00``.
    text: str


def special_days(schedule: CivilSchedule, since: datetime, days: int = 366) -> tuple[SpecialDay, ...]:
    """The special days of a schedule from ``since`` (aware) on, for ``days`` days, in order."""
    start = in_utc(since, "since")
    if not isinstance(days, int) or not 0 < days <= LONGEST_LOOK:
        raise InvalidArgument("days", f"is {quoted(days)}.", f"Give a number of days from 1 to {LONGEST_LOOK}.")
    if start.year > LAST_YEAR:
        return ()
    changes = transitions(schedule.tz, start, start + timedelta(days))
    return tuple(special for change in changes for special in _around(schedule, change))


def _around(schedule: CivilSchedule, change: Transition) -> Iterator[SpecialDay]:
    """A special day for each date that a transition touches planned times of."""
    planned: dict[date, list[datetime]] = {}
    local = schedule._first_from(change.starts)
    while local is not None and local < change.ends:
        planned.setdefault(local.date(), []).append(local)
        local = schedule._first_from(local + timedelta(microseconds=1))
    for day, locals_ in planned.items():
        found = {at for local in locals_ for at in resolve(local, schedule.tz, schedule.gap_rule, schedule.fold_rule)}
        runs = tuple(sorted(found))
        times = tuple(local.time() for local in locals_)
        text = f"{day_words(day)} {_says(schedule, change, day, times, runs)}"
        yield SpecialDay(day, "gap" if change.is_gap else "fold", times, runs, text)


def _says(
    schedule: CivilSchedule, change: Transition, day: date, times: tuple[time, ...], runs: tuple[datetime, ...]
) -> str:
    names = [write_time(at) for at in times]
    which = listed(names) if len(names) <= 3 else f"{len(names)} times from {names[0]} to {names[-1]}"
    if not change.is_gap:
        passes = {"first": "the first", "last": "the last", "both": "both passes of"}[schedule.fold_rule]
        return f"runs at {passes} {which}"
    if not runs:
        return f"does not run at {which}" if schedule.follows_elapsed_time or len(names) > 1 else "does not run"
    then = runs[0].astimezone(zone(schedule.tz))
    at = write_time(then.time()) if then.date() == day else f"{write_time(then.time())} on {day_words(then.date())}"
    return f"runs at {at}" if len(names) == 1 else f"runs at {at} for {which}"

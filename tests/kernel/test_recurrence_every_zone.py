"""Schedules on the days on which clocks change: every zone, every change from 2024 to 2030, against a clock on a wall.

The judge looks at the wall every minute (`wallclock.py`) and knows nothing of how schedules are computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.kernel.localtime import Fold, Gap
from duly.kernel.recurrence import CivilSchedule, Cron, Daily, Moments, Monthly, OnDates, RRule, Weekly, Yearly
from kernel.wallclock import HOUR, MINUTE, Change, Wall, different_changes, every_change

#: On either side of a change. Clocks change by three hours at most from 2024 to 2030.
SEEN, MARGIN = 9 * HOUR, 4 * HOUR

Rule = tuple[Gap, Fold]
RULES: list[Rule] = [(gap, fold) for gap in ("after", "skip") for fold in ("first", "last", "both")]


@lru_cache(maxsize=400)
def wall(change: Change) -> Wall:
    return Wall(change.zone, change.at - SEEN, change.at + SEEN)


def touched(change: Change) -> datetime:
    """The first local time that a change leaves out or repeats."""
    return change.at.replace(tzinfo=None) + min(change.before, change.after)


def check(schedule: CivilSchedule, change: Change, matches: Callable[[datetime], bool], rule: Rule) -> None:
    """The schedule agrees with the wall, forwards, backwards, and from every minute in between."""
    seen = wall(change)
    expected = seen.inside(seen.runs(matches, *rule), MARGIN)
    start, end = seen.start + MARGIN, seen.end - MARGIN
    assert list(schedule.occurrences(start, end)) == expected, (schedule, change)
    backwards, at = [], end
    while (found := schedule.previous_before(at)) is not None and found >= start:
        backwards.append(found)
        at = found
    assert backwards[::-1] == expected, (schedule, change)


def asked_around(schedule: CivilSchedule, change: Change) -> None:
    """From any instant around a change, the next is later, and the one before it is not."""
    at = change.at - 2 * HOUR
    while at < change.at + 2 * HOUR:
        following = schedule.next_after(at)
        assert following is not None
        assert following > at
        before = schedule.previous_before(following)
        assert before is None or before <= at
        at += 7 * MINUTE


def at_minutes(*times: time) -> Callable[[datetime], bool]:
    wanted = {(at.hour, at.minute) for at in times}
    return lambda local: (local.hour, local.minute) in wanted


def test_a_fixed_local_time_runs_exactly_once_on_every_local_day_of_every_zone() -> None:  # HOUSE decision 9
    for change in every_change():
        middle = touched(change) + abs(change.after - change.before) / 2
        daily = Daily(middle.time().replace(second=0, microsecond=0), tz=change.zone)
        runs = list(daily.occurrences(change.at - 60 * HOUR, change.at + 60 * HOUR))
        assert len(runs) == 5, change
        assert all(earlier < later for earlier, later in pairwise(runs)), change
        # Days on the wall are as long as the clock makes them: all of the difference stands between two runs.
        steps = Counter(later - earlier for earlier, later in pairwise(runs))
        assert sum(steps.elements(), timedelta()) == 96 * HOUR + (change.before - change.after) * (len(set(steps)) > 1)


@pytest.mark.parametrize("part", range(4))
def test_every_change_of_every_zone_agrees_with_the_wall(part: int) -> None:
    for number, change in enumerate(different_changes()):
        if number % 4 != part:
            continue
        inside = touched(change) + abs(change.after - change.before) / 2
        inside = inside.replace(second=0, microsecond=0)
        edges = [touched(change), touched(change) + abs(change.after - change.before), inside, inside - MINUTE]
        gap, fold = RULES[number // 4 % 6]
        options = {"tz": change.zone, "gap": gap, "fold": fold}
        times = sorted({edge.time() for edge in edges})
        check(Daily(times, **options), change, at_minutes(*times), (gap, fold))
        # What follows elapsed time runs whenever the wall shows it.
        minute = inside.minute
        check(Cron(f"{minute} * * * *", tz=change.zone), change, lambda local: local.minute == minute, ("skip", "both"))
        check(Cron("*/7 * * * *", tz=change.zone), change, lambda local: local.minute % 7 == 0, ("skip", "both"))
        asked_around(Daily(times, **options), change)
        asked_around(Cron("*/7 * * * *", tz=change.zone), change)


@pytest.mark.parametrize("rule", RULES)
def test_every_kind_of_schedule_agrees_with_the_wall(rule: Rule) -> None:
    gap, fold = rule
    for change in different_changes()[RULES.index(rule) :: 23]:
        inside = touched(change) + abs(change.after - change.before) / 2
        at, day = inside.time().replace(second=0, microsecond=0), inside.date()
        options = {"tz": change.zone, "gap": gap, "fold": fold}
        # The day before, and the same day of other weeks, are out of sight.
        on_day = lambda local: local.date() == day and (local.hour, local.minute) == (at.hour, at.minute)  # noqa: E731
        weekday = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[day.weekday()]
        start = f"{day.year - 1}-01-01T{at:%H:%M}"
        for schedule in (
            Weekly(weekday, at, **options),
            Monthly(day.day, at, **options),
            OnDates([day, day - timedelta(1)], at, **options),
            Yearly([f"{day:%m-%d}", f"{day - timedelta(2):%m-%d}"], at, **options),
            Moments([inside, inside - timedelta(2)], **options),
            Daily(at, start_date=day - timedelta(3), end_date=day, **options),
            Cron(f"{at.minute} {at.hour} {day.day} {day.month} *", **options),
            RRule(f"FREQ=YEARLY;BYMONTH={day.month};BYMONTHDAY={day.day}", start=start, **options),
        ):
            check(schedule, change, on_day, rule)


# --- Any expression ---------------------------------------------------------------------------------------------------

numbers = {"minute": (0, 59), "hour": (0, 23)}


@st.composite
def fields(draw: st.DrawFn, label: str) -> tuple[str, frozenset[int]]:
    """A field of an expression, and what it matches, computed here."""
    low, high = numbers[label]
    terms, matches = [], set()
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["*", "*/", "one", "range", "range/"]))
        first = draw(st.integers(low, high))
        last = draw(st.integers(first, high))
        step = draw(st.integers(1, high - low))
        match kind:
            case "*":
                terms.append("*")
                matches |= set(range(low, high + 1))
            case "*/":
                terms.append(f"*/{step}")
                matches |= set(range(low, high + 1, step))
            case "one":
                terms.append(str(first))
                matches.add(first)
            case "range":
                terms.append(f"{first}-{last}")
                matches |= set(range(first, last + 1))
            case _:
                terms.append(f"{first}-{last}/{step}" if last > first else str(first))
                matches |= set(range(first, last + 1, step if last > first else 1))
    return ",".join(terms), frozenset(matches)


@settings(max_examples=100)
@given(
    st.sampled_from(different_changes()),
    fields("minute"),
    fields("hour"),
    st.sampled_from([None, *RULES]),
)
def test_any_expression_agrees_with_the_wall(change: Change, minutes, hours, rule: Rule | None) -> None:
    options = {} if rule is None else {"gap": rule[0], "fold": rule[1]}
    schedule = Cron(f"{minutes[0]} {hours[0]} * * *", tz=change.zone, **options)
    if rule is None:
        # The reference policy: interval style if minute or hour begins with a star.
        rule = ("skip", "both") if minutes[0][0] == "*" or hours[0][0] == "*" else ("after", "first")
    check(schedule, change, lambda local: local.minute in minutes[1] and local.hour in hours[1], rule)


@given(
    st.sampled_from(different_changes()), st.integers(0, 9), st.sampled_from(["* * * * *", "*/15 * * * *", "0 * * * *"])
)
def test_what_follows_elapsed_time_neither_stops_nor_doubles(change: Change, hours: int, expression: str) -> None:
    # Where clocks change by whole hours, an elapsed hour has as many runs as any other.
    if (change.after - change.before) % HOUR:
        return
    schedule = Cron(expression, tz=change.zone)
    start = change.at + (hours - 5) * HOUR
    expected = {"* * * * *": 60, "*/15 * * * *": 4, "0 * * * *": 1}[expression]
    assert len(list(schedule.occurrences(start, start + HOUR))) == expected

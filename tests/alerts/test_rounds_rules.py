"""The rules about rounds: judged by the ledger of the ticks, by somebody else than the ticks."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

import fronts
from alerts.hands import NOON, World
from duly.monitoring.alerts.readings import TICKS
from duly.rounds.tables import groups, round_ticks, rounds

db_url = fronts.db_url


def group(world: World, active: bool = True) -> int:
    values = {
        "tenant": "default", "name": f"g{active}", "zone": "Europe/Paris", "is_active": active, "notifications": False, "created_at": NOON,
        "updated_at": NOON, "updated_by": "t",
    }  # fmt: skip
    ident: int = world.app.db.write(
        lambda c: c.execute(insert(groups).values(**values).returning(groups.c.id)).scalar_one()
    )
    return ident


def tick(
    world: World, kind: str = "open", done: int = 0, failed: int = 0, most_late: float | None = None, **ago: float
) -> None:
    values = {
        "kind": kind, "started_at": world.ago(**ago) if ago else world.clock.now(), "seconds": 0.1, "done": done, "skipped": 5,
        "failed": failed, "mean_late": most_late, "most_late": most_late,
    }  # fmt: skip
    world.app.db.write(lambda c: c.execute(insert(round_ticks).values(**values)))


def scheduled(world: World, group_id: int, due_at: Any, created_at: Any) -> None:
    values = {
        "tenant": "default", "group_id": group_id, "scheduled_for": date(2026, 7, 27), "status": "scheduled", "zone": "Europe/Paris",
        "drop_time": "18:00", "planned_at": NOON, "due_at": due_at, "created_at": created_at,
    }  # fmt: skip
    world.app.db.write(lambda c: c.execute(insert(rounds).values(**values)))


def test_without_groups_nobody_expects_a_tick(world: World) -> None:
    group(world, active=False)
    world.clock.advance(timedelta(days=3))
    assert world.readings("rounds_idle") == {}
    assert world.judge() == []


@fronts.on_both("this reading has a statement of its own")
def test_an_hour_without_a_tick_is_fine_and_more_is_not(world: World) -> None:  # R000-20, T000-o
    group(world)
    for kind in TICKS:
        tick(world, kind)
    world.clock.advance(timedelta(hours=1))
    assert world.readings("rounds_idle") == dict.fromkeys(TICKS, 3600)
    assert world.judge() == []
    tick(world, "open")
    tick(world, "close")
    assert world.later(microseconds=1) == [("suspect", "rounds_idle", "plan")]
    assert world.later(minutes=4, seconds=59) == []
    assert world.later(seconds=1) == [("raise", "rounds_idle", "plan")]
    assert str(world.only("rounds_idle").severity) == "critical"
    tick(world, "plan")
    world.later(seconds=1)
    assert world.later(minutes=1) == [("clear", "rounds_idle", "plan")]


def test_the_hourly_tick_may_come_a_little_late_without_an_alert(world: World) -> None:  # R000-3
    group(world)
    moves = []
    for minute in range(0, 4 * 60, 2):
        if minute % 62 == 0:  # every hour, and two minutes
            tick(world, "plan")
        tick(world, "open")
        tick(world, "close")
        if minute % 62 in (0, 2, 58, 60):  # looks at what matters
            moves += world.judge()
        world.clock.advance(timedelta(minutes=2))
    assert [move for move in moves if move[0] == "raise"] == []


def test_a_tick_that_never_ran_counts_from_the_first_group(world: World) -> None:
    group(world)
    world.clock.advance(timedelta(minutes=90))
    assert world.readings("rounds_idle") == dict.fromkeys(TICKS, 5400)


@fronts.on_both("this reading has a statement of its own")
def test_an_open_round_of_a_group_that_is_not_active_still_needs_its_ticks(world: World) -> None:  # T000-k
    ident = group(world, active=False)
    scheduled(world, ident, None, NOON)
    assert world.readings("rounds_idle") == dict.fromkeys(TICKS, 0)


def test_ten_percent_of_failed_groups_are_fine_and_more_are_not(world: World) -> None:  # R000-20, T000-p
    group(world)
    tick(world, "open", done=18, failed=2, minutes=5)
    assert world.readings("rounds_failing") == {"open": 0.1}
    assert not [m for m in world.judge() if m[1] == "rounds_failing"]
    tick(world, "open", done=0, failed=1)
    assert ("raise", "rounds_failing", "open") in world.later(seconds=1)
    assert world.only("rounds_failing").detail.startswith(
        "14.3 % of the 21 groups that the open tick took up lately have failed"
    )


def test_nine_groups_are_not_judged_and_skipped_ones_do_not_count(world: World) -> None:  # T000-p
    tick(world, "close", done=0, failed=9)
    assert not [m for m in world.judge() if m[1] == "rounds_failing"]
    tick(world, "close", done=0, failed=1)
    assert ("raise", "rounds_failing", "close") in world.later(seconds=1)


@fronts.on_both("this reading has a statement of its own")
def test_failures_count_for_half_an_hour_and_for_each_tick_alone(world: World) -> None:  # T000-p
    tick(world, "open", done=0, failed=50, minutes=30)
    assert world.readings("rounds_failing") == {}
    tick(world, "open", done=10, failed=10, minutes=29)
    tick(world, "plan", done=80, minutes=29)
    assert world.readings("rounds_failing") == {"open": 0.5, "plan": 0}


@pytest.mark.parametrize(("late", "is_late"), [(300.0, False), (300.001, True)])
def test_five_minutes_late_are_fine_and_more_are_not(world: World, late: float, is_late: bool) -> None:  # R000-20
    tick(world, "open", done=3, most_late=late, minutes=1)
    tick(world, "open", done=3, most_late=12.0)
    assert (("raise", "rounds_late", "") in world.judge()) is is_late


@fronts.on_both("this reading has a statement of its own")
def test_a_round_that_is_due_and_not_open_is_late_too(world: World) -> None:
    ident = group(world)
    scheduled(world, ident, NOON, NOON)
    world.clock.advance(timedelta(minutes=5))
    assert world.readings("rounds_late") == {"": 300}
    assert ("raise", "rounds_late", "") in world.later(seconds=1)
    assert f"(of group {ident})" in world.only("rounds_late").detail


def test_a_round_planned_after_its_own_time_is_not_late(world: World) -> None:  # T000-e
    """``due_at`` is the later of the planned opening and the planning, and lateness is measured from it."""
    ident = group(world)
    world.clock.advance(timedelta(hours=2))
    scheduled(world, ident, world.clock.now(), world.clock.now())
    world.clock.advance(timedelta(minutes=4))
    assert world.readings("rounds_late") == {"": 240}


def test_an_opening_in_time_clears_the_alert_when_the_late_one_is_half_an_hour_old(world: World) -> None:
    tick(world, "open", done=1, most_late=4000)
    assert ("raise", "rounds_late", "") in world.judge()
    world.later(minutes=29)
    assert ("rounds_late", "") in world.raised()
    world.later(minutes=1)
    assert world.later(minutes=1) == [("clear", "rounds_late", "")]


@fronts.on_both("this reading has a statement of its own")
def test_a_round_that_waits_for_its_time_is_nobodys_trouble(world: World) -> None:
    ident = group(world)
    scheduled(world, ident, world.ago(hours=-3), NOON)
    assert world.readings("rounds_late") == {}
    world.app.db.write(lambda c: c.execute(update(rounds).values(due_at=None)))
    assert world.readings("rounds_late") == {}


def test_nine_groups_that_fail_at_every_planning_are_an_alert(world: World) -> None:  # A4, R000-20
    group(world)
    for _ in range(3):
        tick(world, "plan", failed=9)
        for _ in range(12):
            world.judge()
            world.clock.advance(timedelta(minutes=5))
    assert ("rounds_failing", "plan") in world.raised()


@pytest.mark.parametrize("groups", [1, 20])
def test_a_tick_that_comes_once_an_hour_raises_one_alert_and_clears_it_once(world: World, groups: int) -> None:  # A4
    group(world)
    said: list[str] = []
    tick(world, "plan")
    world.clock.advance(timedelta(hours=1))
    for good in (False,) * 4 + (True,) * 4:
        tick(world, "plan", **{"done" if good else "failed": groups})
        for _ in range(12):
            said += [
                event for event, rule, _ in world.judge() if rule == "rounds_failing" and event in ("raise", "clear")
            ]
            world.clock.advance(timedelta(minutes=5))
    assert said == ["raise", "clear"]

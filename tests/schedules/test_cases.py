"""Cases of other systems that concern schedules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from duly.kernel.recurrence import Cron, Every
from schedules.test_schedules import HOUR, START, Scene


@pytest.fixture
def scene(sqlite_url: str) -> Iterator[Scene]:
    made = Scene(sqlite_url)
    yield made
    made.app.close()


@pytest.mark.parametrize(
    "edit", [{"priority": 7}, {"input": {"n": 3}}, {}, {"recurrence": Every("5m")}], ids=["priority", "input", "nothing", "no jitter"]
)  # fmt: skip
@pytest.mark.parametrize("edits", [1, 2])
def test_an_edit_between_the_planned_and_the_jittered_moment_loses_no_occurrence_and_doubles_none(
    scene: Scene, edit: dict[str, Any], edits: int
) -> None:
    # C021
    scene.set(recurrence=Every("5m", jitter="60s"))
    for _ in range(3):
        scene.pass_time(timedelta(minutes=5))
    scene.clock.advance(timedelta(minutes=5, seconds=10))
    for n in range(edits):
        scene.set(**{"recurrence": Every("5m", jitter="60s"), "priority": n, **edit})
    scene.scheduler.tick()
    assert scene.ledger() == [(n / 12, "fired", None) for n in range(1, 5)]
    assert scene.jobs() == 4


def test_a_schedule_without_a_past_does_not_run_when_it_is_resumed(scene: Scene) -> None:
    # C022 (a): paused over its hour, and looked at later
    scene.set(recurrence=Cron("0 17 * * *", tz="UTC"))
    scene.schedules.pause("s", "maintenance", actor="bob")
    scene.pass_time(18 * HOUR)
    scene.schedules.resume("s", actor="bob")
    scene.scheduler.tick()
    assert [status for _, status, _ in scene.ledger()] == ["skipped"]
    assert scene.jobs() == 0


def test_a_first_day_is_counted_from_its_hour_and_not_from_the_moment_it_was_written(scene: Scene) -> None:
    # C022 (b)
    scene.clock.advance(14 * HOUR)
    scene.set(recurrence=Cron("0 15 * * *", tz="UTC", start_date=START.date()))
    scene.scheduler.tick()
    assert scene.jobs() == 0
    scene.pass_time(HOUR)
    assert scene.ledger() == [(15, "fired", None)]


def test_a_long_interval_is_due_to_the_second_whatever_is_edited_beside_it(scene: Scene) -> None:
    # C022 (c): a new scheduler each hour, another schedule edited each hour
    scene.set("a", Every("3d", anchor=START))
    for hour in range(73):
        scene.set("b", Cron("30 4 1 1 *", tz="UTC"), priority=hour)
        assert scene.schedules.get("a").next_at == START + timedelta(days=3 if hour < 72 else 6)
        scene.scheduler = scene.app.scheduler()
        scene.pass_time(HOUR)
    assert scene.ledger("a") == [(72, "fired", None)]

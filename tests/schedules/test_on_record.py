"""What was due is on record with what became of it and why, whoever looks first, and whatever a person changes meanwhile. B4."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly import Daily, Every
from schedules.test_schedules import HOUR, HOURLY, MINUTE, START, Scene


@pytest.fixture
def scene(db_url: str) -> Iterator[Scene]:
    made = Scene(db_url)
    yield made
    made.app.close()


@pytest.mark.parametrize(
    ("catch_up", "last"), [("within(10m)", "missed"), ("none", "missed"), ("latest", "fired"), ("all", "fired")]
)
def test_who_looks_once_after_the_end_of_a_schedule_finds_the_last_one_too(
    scene: Scene, catch_up: str, last: str
) -> None:
    # until before 16:00: the last one is at 15:00, and nobody looks before the next day
    scene.set("s", HOURLY, catch_up=catch_up, ends_at=START + 4 * HOUR)
    scene.clock.advance(20 * 3600)
    report = scene.app.scheduler().tick()
    rest = "fired" if catch_up == "all" else "missed"
    assert scene.ledger("s") == [
        (n, status, None if status == "fired" else "late") for n, status in ((1, rest), (2, rest), (3, last))
    ]
    assert (report.fired + report.missed, scene.jobs()) == (3, report.fired)
    assert scene.names()["schedule_missed"] == bool(report.missed)
    assert scene.schedules.get("s").state == "ended"


@pytest.mark.parametrize("act", ["edit", "remove", "resume"])
@pytest.mark.parametrize("damage", ["recurrence = '[]'", "overlap = 'merge'"], ids=["broken", "newer"])
def test_what_nobody_can_decide_any_more_after_a_persons_change_is_on_record(
    scene: Scene, act: str, damage: str
) -> None:
    scene.set("s", HOURLY, catch_up="all")
    ident = scene.schedules.get("s").id
    scene.pass_time(HOUR)
    if act == "resume":
        scene.schedules.pause("s", "for now")
    good = scene.sql("SELECT CAST(recurrence AS text) FROM schedules")[0][0]
    scene.sql(f"UPDATE schedules SET {damage}")
    scene.sql("UPDATE schedule_versions SET definition = '[]'")
    scene.clock.advance(2.5 * 3600)
    if act == "edit":
        scene.set("s", HOURLY, catch_up="all", input={"n": 2})
    elif act == "remove":
        scene.schedules.remove("s", actor="ann")
    else:
        scene.schedules.resume("s", actor="ann")
    found = scene.sql("SELECT status, reason, policy FROM occurrences WHERE schedule_id = :i ORDER BY due_at", i=ident)
    what = {"edit": "changed", "remove": "removed", "resume": "paused"}[act]
    assert [tuple(row) for row in found[1:]] == [
        ("skipped", "undecided", f"{what} until={scene.clock.now().isoformat()}")
    ]
    assert [e.facts["reason"] for e in scene.told if e.name == "schedule_skipped"] == ["undecided"]
    if act == "resume":
        scene.sql("UPDATE schedules SET recurrence = :good, overlap = 'allow'", good=good)
        scene.scheduler.keep()
    if act != "remove":
        assert scene.pass_time(HOUR).fired == 1  # it goes on from now on


def test_a_change_with_nothing_due_puts_nothing_on_record(scene: Scene) -> None:
    scene.set("s", HOURLY)
    scene.sql("UPDATE schedules SET recurrence = '[]'")
    scene.sql("UPDATE schedule_versions SET definition = '[]'")
    scene.clock.advance(1800)
    scene.set("s", Every(1800, anchor=START))
    assert scene.ledger("s") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"catch_up": "none"}, ("missed", "catch_up=none gap=02:15,02:45")),
        ({}, ("fired", "catch_up=latest gap=02:15,02:45")),
    ],
)
def test_two_times_in_one_gap_are_told_whatever_becomes_of_them(
    scene: Scene, options: dict[str, Any], said: tuple[str, str]
) -> None:
    scene.clock.set(datetime(2026, 3, 28, 23, tzinfo=UTC))
    scene.set("s", Daily(["02:15", "02:45"], tz="Europe/Rome"), **options)
    scene.clock.advance(timedelta(hours=2) + 5 * MINUTE)
    scene.scheduler.tick()
    assert [(o.status, o.policy) for o in scene.schedules.ledger("s")] == [said]

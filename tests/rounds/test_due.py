"""What is due opens when it is due, and is open for 24 hours from when it could open."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from duly import Duly
from duly.rounds import Rounds
from duly.rounds.round import Status
from duly.rounds.store import TickStore
from duly.testing import ManualClock, drain
from rounds.hands import Ear, ready, scalar, utc

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


def five(at: datetime) -> datetime:
    """The first full five minutes at or after an instant."""
    floor = at.replace(minute=at.minute - at.minute % 5, second=0, microsecond=0)
    return floor if floor == at else floor + 5 * MINUTE


def run(app: Duly, *kinds: str) -> None:
    for kind in kinds:
        app.enqueue(f"ROUNDS_{kind.upper()}")
        drain(app, queues=["rounds"])


@pytest.mark.parametrize("order", itertools.permutations(("close", "plan", "open")))
def test_a_daily_round_opens_at_its_hour_whatever_order_the_ticks_run_in(
    rounds: Rounds, app: Duly, clock: ManualClock, order: Sequence[str]
) -> None:
    # R000-24
    ready(rounds, "daily", cooldown=0)
    for day in range(1, 4):
        clock.set(utc(f"2026-06-0{day} 18:00"))
        run(app, *order)
        opened = rounds.list("daily")[0]
        assert (opened.status, opened.open_at, opened.opened_at, opened.late) == (
            Status.OPEN, clock.now(), clock.now(), 0,
        )  # fmt: skip


@pytest.mark.postgres
def test_an_opening_pass_that_comes_by_while_rounds_are_closed_makes_none_late(
    rounds: Rounds, app: Duly, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R000-24: two workers at the same boundary; the closing pass holds the group's lock when the opening pass looks
    if app.db.is_sqlite:
        pytest.skip("SQLite has one writer")
    ready(rounds, "daily", cooldown=0)
    clock.set(utc("2026-06-01 18:00"))
    rounds.open()
    clock.advance(DAY)
    close = TickStore.close_rounds

    def meanwhile(self: TickStore, *given: Any) -> set[int]:
        closed = close(self, *given)
        other = threading.Thread(target=rounds.open)
        other.start()
        other.join()
        return closed

    monkeypatch.setattr(TickStore, "close_rounds", meanwhile)
    run(app, "close")
    assert (rounds.list("daily")[0].opened_at, rounds.list("daily")[0].late) == (clock.now(), 0)


@pytest.mark.parametrize(
    ("zone", "drop"),
    [("Europe/Paris", "18:05"), ("Asia/Kathmandu", "18:00"), ("Asia/Kolkata", "07:10"), ("America/St_Johns", "18:00"),
     ("Australia/Lord_Howe", "06:15"), ("Pacific/Chatham", "21:00"), ("Africa/Casablanca", "23:58")],
)  # fmt: skip
@pytest.mark.parametrize("cooldown", [None, 0])
def test_rounds_open_at_their_hour_and_as_foretold_in_every_zone(
    rounds: Rounds, app: Duly, clock: ManualClock, zone: str, drop: str, cooldown: float | None
) -> None:
    # R000-24, R000-10: across a change of the clocks, with the opening tick alone and passes every five minutes
    clock.set(utc("2026-03-25 12:00"))
    ready(rounds, "g", zone, drop_time=drop, cooldown=cooldown)
    for _ in range(5):
        foretold = rounds.next("g")[0]
        assert foretold.at is not None
        clock.set(five(foretold.at))
        run(app, "open")
        opened = rounds.list("g")[0]
        assert (opened.scheduled_for, opened.open_at) == (foretold.scheduled_for, foretold.at)
        assert opened.open_at == opened.planned_at
        assert opened.late is not None
        assert opened.late < 300
        clock.set(five(opened.open_at + DAY))
        assert rounds.next("g")[0].at is not None
        rounds.close()


def test_a_group_that_is_made_after_its_hour_has_its_first_round_at_the_next(
    rounds: Rounds, clock: ManualClock
) -> None:
    # R000-25
    clock.set(utc("2026-06-01 19:55"))
    ready(rounds, "new")
    assert rounds.next("new")[0].at == utc("2026-06-02 18:00")
    for at in ("2026-06-01 20:00", "2026-06-02 00:00", "2026-06-02 18:00"):
        clock.set(utc(at))
        rounds.tick()
    (opened,) = rounds.list("new")
    assert (opened.open_at, opened.close_at) == (utc("2026-06-02 18:00"), utc("2026-06-03 18:00"))


@pytest.mark.parametrize("planned", [False, True])
def test_a_group_that_gets_a_prompt_after_its_hour_has_its_round_at_the_next(
    rounds: Rounds, clock: ManualClock, planned: bool
) -> None:
    # R000-25: unblocked, before or after its round was planned
    group = ready(rounds, "mute", prompts=1 if planned else 0)
    rounds.plan()
    if planned:
        rounds.prompts.set(rounds.prompts.all(group.id)[0].id, is_active=False)
        assert rounds.next("mute")[0].reason == "NO_ELIGIBLE_PROMPT"
    clock.set(utc("2026-06-01 19:30"))
    rounds.tick()
    rounds.prompts.add(group.id, "Why?")
    assert rounds.next("mute")[0].at == utc("2026-06-02 18:00")
    rounds.tick()
    assert not [r for r in rounds.list("mute") if r.open_at]
    clock.set(utc("2026-06-02 18:00"))
    rounds.tick()
    opened = rounds.list("mute")[0]
    assert (opened.open_at, opened.scheduled_for, opened.late) == (clock.now(), date(2026, 6, 2), 0)


@pytest.mark.parametrize(
    "change",
    [{"drop_time": "11:30"}, {"zone": "Asia/Tokyo"}],
)
def test_a_round_whose_hour_is_over_after_a_change_waits_for_the_next(
    rounds: Rounds, clock: ManualClock, change: dict[str, str]
) -> None:
    # R000-25, R000-21
    ready(rounds, "a", drop_time="12:00")
    rounds.plan()
    clock.set(utc("2026-06-01 11:45"))
    rounds.groups.set("a", **change)  # type: ignore[arg-type]
    (waiting,) = rounds.list("a")
    assert waiting.due_at == waiting.planned_at == rounds.next("a")[0].at
    assert waiting.due_at is not None
    assert clock.now() < waiting.due_at <= clock.now() + DAY
    assert waiting.scheduled_for == date(2026, 6, 2)
    rounds.tick()
    assert rounds.list("a") == [waiting]


def test_a_group_that_is_activated_at_night_wakes_nobody(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    # R000-25: the round of long ago is for the next hour, and the trail says so
    ready(rounds, "a", "Europe/Rome", members=2)
    rounds.plan()
    rounds.groups.set("a", is_active=False)
    clock.set(utc("2026-07-05 01:00"))
    rounds.groups.set("a", is_active=True, reason="back")
    rounds.tick()
    (waiting,) = rounds.list("a")
    assert (waiting.status, waiting.scheduled_for, waiting.due_at) == (
        Status.SCHEDULED, date(2026, 7, 5), utc("2026-07-05 16:00"),
    )  # fmt: skip
    told = scalar(app, "SELECT meta FROM audit_log WHERE action = 'GROUP_CHANGED' ORDER BY id DESC LIMIT 1")
    assert "2026-06-01" in str(told) and "2026-07-05" in str(told)


def test_an_outage_that_ends_at_night_wakes_nobody_and_is_told(rounds: Rounds, clock: ManualClock, ear: Ear) -> None:
    # R000-25, T000-f: by day it opens at once, with its 24 hours; at night it waits for the next hour
    ready(rounds, "a")
    rounds.plan()
    clock.set(utc("2026-06-02 03:00"))
    assert rounds.next("a")[0].at == utc("2026-06-02 18:00")
    report = rounds.open()
    assert (report.done, report.most_late) == (0, 9 * 3600)
    assert ear.named("rounds_postponed") == [{"count": 1, "groups": [rounds.groups.get("a").id], "late": 9 * 3600}]
    assert rounds.list("a")[0].due_at == utc("2026-06-02 18:00")


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["plan", "open", "close"])
def test_a_row_that_somebody_else_has_locked_stops_no_other_group(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear, kind: str
) -> None:
    # R000-17, R000-18: an operator's session in psql, left open in the middle of a change
    if app.db.is_sqlite:
        pytest.skip("SQLite has one writer")
    groups = [ready(rounds, f"g{n}").id for n in range(5)]
    steps = {"plan": "2026-06-01 10:00", "open": "2026-06-01 18:00", "close": "2026-06-02 18:00"}
    for name, at in steps.items():
        clock.set(utc(at))
        if name == kind:
            break
        getattr(rounds, name)()
    with app.db.engine.connect() as other:
        other.execute(text("UPDATE groups SET name = name WHERE id = :id"), {"id": groups[2]})
        other.execute(text("UPDATE rounds SET prompt_id = prompt_id WHERE group_id = :id"), {"id": groups[2]})
        report = getattr(rounds, kind)()
        assert (report.done, report.failed) == (4, 1)
        assert [facts["group"] for facts in ear.named("round_failed")] == [groups[2]]
        other.rollback()
    assert getattr(rounds, kind)().done == 1


@pytest.mark.parametrize("limit", ["599", "86400", "50000"])
def test_a_limit_of_lateness_that_makes_no_sense_is_refused(limit: str) -> None:
    with pytest.raises(Exception, match="rounds_late_open_limit"):
        Duly("sqlite://", rounds_late_open_limit=float(limit))


def test_a_zone_that_nobody_knows_is_told_by_the_name_of_its_field(rounds: Rounds, app: Duly) -> None:
    group = ready(rounds, "a")
    app.db.write(lambda c: c.execute(text("UPDATE groups SET zone = 'Mars/Base'")))
    rounds.plan()
    assert str(rounds.groups.get(group.id).error).startswith("zone: is 'Mars/Base'")
    assert rounds.next(group.id)[0].reason.startswith("zone: is 'Mars/Base'")

"""Alerts of publishing: per event, at once, whatever the number of samples; cleared by a replay, or by taking note (A4)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly import Duly
from duly.kernel.verdict import Kind
from duly.publishing import PublicationFilter, Publishing
from duly.testing import ManualClock, drain
from publishing.hands import Ear, World, put, verdict


@pytest.fixture
def clock() -> ManualClock:
    from datetime import UTC, datetime

    return ManualClock(datetime(2026, 6, 1, 10, tzinfo=UTC))


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Duly:
    app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    yield app  # type: ignore[misc]
    app.close()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def room(app: Duly, world: World) -> Publishing:
    room = Publishing(app)
    room.channel("ig", world.connector(), max_attempts=1)
    return room


def raised(app: Duly) -> dict[tuple[str, str], str]:
    app.engine.clock.advance(30)  # type: ignore[attr-defined]  # the test moves it
    app.alerts.judge("test")
    return {(one.rule, one.subject): one.detail for one in app.alerts.find(state="raised")}


def test_one_failed_post_is_told_at_once_and_until_it_is_replayed_or_noted(
    room: Publishing, world: World, app: Duly, clock: ManualClock
) -> None:
    told = []
    room.on("failed")(lambda publication, facts: told.append((publication.id, facts)))
    ear = Ear(room)
    world.script = [verdict(Kind.PERMANENT, "no such thing"), verdict(Kind.PERMANENT, "nor this")]
    first, second = put(room), put(room)
    drain(app)
    assert raised(app) == {
        ("publish_failed", str(first)): f"Publication {first} has failed (channel ig: no such thing).",
        ("publish_failed", str(second)): f"Publication {second} has failed (channel ig: nor this).",
    }
    assert told == [
        (first, {"error": "no such thing", "unknown": False}),
        (second, {"error": "nor this", "unknown": False}),
    ]
    assert [one["job"] for one in ear.named("publish_failed")] == [first, second]
    room.replay(first)
    drain(app)
    assert raised(app).keys() == {("publish_failed", str(second))}
    [alert] = app.alerts.find(state="raised")
    app.alerts.ack(alert.id, "it is too late for it", "ada")
    assert raised(app) == {}
    clock.advance(timedelta(hours=1))
    world.script = [verdict(Kind.PERMANENT, "again")]
    room.replay(second)
    drain(app)
    assert raised(app).keys() == {("publish_failed", str(second))}, "it failed once more after the note"


def test_an_unknown_outcome_is_told_once_and_as_such(room: Publishing, world: World, app: Duly) -> None:
    told = []
    room.on("failed")(lambda publication, facts: told.append(facts["unknown"]))
    world.script, world.blind = ["gone"], verdict(Kind.UNKNOWN, "cannot tell")
    ident = put(room)
    drain(app)
    assert (raised(app).keys(), told) == ({("publish_unknown", str(ident))}, [True])
    world.blind = None
    room.replay(ident)
    drain(app)
    assert raised(app) == {}


def test_a_channel_that_publishing_paused_is_told_at_once_and_by_one_rule(
    room: Publishing, world: World, app: Duly, clock: ManualClock
) -> None:
    world.script = [verdict(Kind.AUTH, "the token has expired")]
    put(room)
    drain(app)
    assert raised(app).keys() == {("publish_paused", "ig")}
    clock.advance(timedelta(hours=5))
    app.queues.pause("other", "lunch")
    clock.advance(timedelta(hours=5))
    assert raised(app).keys() == {("publish_paused", "ig"), ("queue_paused", "other")}
    assert room.list(PublicationFilter(channel="ig", status="failed")) == []


def test_a_channel_that_is_held_is_told_at_once_and_until_it_publishes_again(
    room: Publishing, world: World, app: Duly, clock: ManualClock
) -> None:  # C046
    world.script = [verdict(Kind.AWAY, "a firewall answers")] * 2
    put(room)
    drain(app)
    seen = raised(app)
    assert seen.keys() == {("publish_held", "ig")}
    assert "a firewall answers" in seen["publish_held", "ig"]
    clock.advance(60)
    drain(app)
    assert raised(app).keys() == {("publish_held", "ig")}
    clock.advance(300)
    drain(app)
    for _ in range(3):  # it is calm for a minute
        after = raised(app)
    assert (len(world.posts), after) == (1, {})

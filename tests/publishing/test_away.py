"""Another side that takes nothing: the channel is held, posts keep their place and their attempts, and go out by themselves (C046, F1)."""

from __future__ import annotations

import asyncio
import threading

from duly.kernel.verdict import Kind
from duly.publishing import Publishing
from duly.testing import ManualClock
from publishing.hands import Ear, World, app_of, go, later, put, sql, verdict


def firewall() -> object:
    return verdict(Kind.AWAY, "a firewall before the site answers", owner="firewall")


def test_a_firewall_holds_the_channel_and_the_posts_go_out_when_it_lets_them(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # C046
    ear = Ear(room)
    idents = [put(room, {"caption": str(n)}) for n in range(3)]
    world.script = [firewall()] * 2
    seen = go(room, idents[0])
    assert (seen.status, seen.attempts, len(world.calls)) == ("pending", 0, 2), "limits, and one publish"
    assert [one["wait"] for one in ear.named("publish_held")] == [60.0]
    assert sql(room, "SELECT held_reason FROM queues WHERE name = 'ig'")[0][0].startswith(
        "waiting for the other side: a firewall"
    )
    later(room, clock, idents[1], 30)
    assert world.calls.count("publish") == 1, "held"
    later(room, clock, idents[1], 40)
    assert (world.calls.count("publish"), [one["wait"] for one in ear.named("publish_held")]) == (2, [60.0, 120.0])
    for _ in range(8):
        later(room, clock, idents[0], 130)
    assert ([room.get(i).status for i in idents], sorted(world.posts)) == (["completed"] * 3, ["0", "1", "2"])
    assert all(room.get(i).attempts <= 1 for i in idents)


def test_a_post_that_alone_is_not_let_in_fails_and_says_so(room: Publishing, world: World, clock: ManualClock) -> None:
    # C046
    bad = put(room, {"caption": "<script"})
    connector = room.channels["ig"].connector
    publish = connector.publish

    async def picky(post, notebook):  # type: ignore[no-untyped-def]
        world.script = [firewall()] if post.caption == "<script" else []
        return await publish(post, notebook)

    connector.publish = picky  # type: ignore[method-assign]
    assert go(room, bad).status == "pending"
    good = [put(room, {"caption": str(n)}) for n in range(2)]
    for _ in range(20):
        later(room, clock, bad, 50)
    assert [room.get(i).status for i in good] == ["completed"] * 2
    seen = room.get(bad)
    assert (seen.status, "it is this post that is not let in" in (seen.error or "")) == ("failed", True)


def test_an_other_side_that_cannot_be_reached_uses_no_attempt(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # F1
    ident = put(room)
    world.script = [verdict(Kind.TRANSIENT, "no connection", owner="network")] * 7
    go(room, ident)
    for _ in range(12):
        later(room, clock, ident, 1000)
    assert (room.get(ident).status, room.get(ident).attempts, world.posts) == ("completed", 1, ["Plums today"])


def test_a_channel_that_has_too_many_posts_and_names_no_time_is_asked_less_and_less(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # issue 16, F: 429 without Retry-After
    ear = Ear(room)
    ident = put(room)
    world.script = [verdict(Kind.THROTTLED, "too many"), verdict(Kind.QUOTA, "too many", after=0.0)] * 3
    go(room, ident)
    for _ in range(60):
        later(room, clock, ident, 60)
    assert [one["wait"] for one in ear.named("publish_throttled")] == [60, 120, 240, 480, 900, 900]
    assert (room.get(ident).status, room.get(ident).attempts) == ("completed", 1)


def test_posts_that_are_refused_together_make_the_hold_no_longer(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # as in the outbox and in mail: one counts
    connector, ear = world.connector(), Ear(room)
    room.channel("ig", connector, limit=None)
    waiting = threading.Barrier(3)
    publish = connector.publish

    async def together(post, notebook):  # type: ignore[no-untyped-def]
        if not ear.named("publish_held"):
            await asyncio.to_thread(waiting.wait, 20)
        return await publish(post, notebook)

    connector.publish = together  # type: ignore[method-assign]
    world.script = [firewall()] * 3
    idents = [put(room, {"caption": str(n)}) for n in range(3)]
    app_of(room).worker({"ig": 3}).run(until_idle=True)
    assert [one["wait"] for one in ear.named("publish_held")] == [60.0]
    for _ in range(5):
        later(room, clock, idents[0], 60)
    assert {room.get(i).status for i in idents} == {"completed"}

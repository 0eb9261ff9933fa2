"""Another side that takes nothing: the channel is held, posts keep their place and their attempts, and go out by themselves (C046, F1)."""

from __future__ import annotations

from duly.kernel.verdict import Kind
from duly.publishing import Publishing
from duly.testing import ManualClock
from publishing.hands import Ear, World, go, later, put, sql, verdict


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

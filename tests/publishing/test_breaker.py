"""The circuit breaker: a channel whose other side is down is held, and not its attempts burnt (T002-b)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

from duly.kernel.verdict import Kind
from duly.publishing import Notebook, Post, Published, Publishing
from duly.publishing.state import State
from duly.testing import ManualClock, drain
from publishing.conftest import AT
from publishing.hands import Ear, World, app_of, later, put, sql, verdict

DOWN = verdict(Kind.TRANSIENT, "502")


def fail(world: World, times: int) -> None:
    world.script = [DOWN] * times


def until_of(room: Publishing) -> float | None:
    """Seconds from the beginning of the test until which the channel is held."""
    held = app_of(room).queues.get("ig").held_until
    return None if held is None else (held - AT).total_seconds()


def test_failures_in_a_row_hold_the_channel_and_then_one_is_tried(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    room.channel("ig", world.connector(), limit=None, breaker=(3, 300))
    ear, ids = Ear(room), [put(room) for _ in range(6)]
    fail(world, 4)
    drain(app_of(room))
    assert world.calls.count("publish") == 3
    assert [(room.get(i).status, room.get(i).attempts) for i in ids] == [("pending", 1)] * 3 + [("pending", 0)] * 3
    assert until_of(room) == 300
    assert [(e["failures"], e["wait"]) for e in ear.named("publish_breaker_opened")] == [(3, 300)]
    assert "502" in next(c.detail for c in app_of(room).why(ids[5]) if c.name == "held")
    # held work is not claimed: no attempt is used
    clock.advance(299)
    drain(app_of(room))
    assert world.calls.count("publish") == 3
    # one trial, which fails: it is held for twice as long
    clock.advance(1)
    drain(app_of(room))
    assert world.calls.count("publish") == 4
    assert until_of(room) == 300 + 600
    # the next one goes well: all others follow at once
    clock.advance(600)
    drain(app_of(room))
    clock.advance(4000)
    drain(app_of(room))
    assert {room.get(i).status for i in ids} == {"completed"}
    assert until_of(room) is None
    assert sql(room, "SELECT failures, trips FROM publication_channels") == [(0, 0)]
    assert sum(room.get(i).attempts for i in ids) == 6 + 4


def test_a_trial_that_goes_well_lets_the_others_go_in_the_same_moment(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    room.channel("ig", world.connector(), breaker=(2, 60))
    fail(world, 2)
    ids = [put(room) for _ in range(5)]
    drain(app_of(room))
    clock.advance(60)
    drain(app_of(room))
    assert [room.get(i).status for i in ids[2:]] == ["completed"] * 3


def test_while_one_is_tried_nobody_else_is_claimed_and_a_longer_hold_outlasts_it(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    connector, seen = world.connector(), list[object]()
    room.channel("ig", connector, limit=None, breaker=(1, 60))
    fail(world, 1)
    for _ in range(3):
        put(room)
    drain(app_of(room))
    original = connector.publish

    async def publish(post: Post, notebook: Notebook) -> Published:
        if not seen:
            seen.append([p.id for p in room.get_runnable_jobs()])
            app_of(room).queues.hold("ig", AT + timedelta(hours=5), "ada says so", "ada")
        return await original(post, notebook)

    connector.publish = publish  # type: ignore[method-assign]
    clock.advance(60)
    drain(app_of(room))
    assert (seen, len(world.posts), until_of(room)) == ([[]], 1, 5 * 3600)
    clock.advance(5 * 3600)
    drain(app_of(room))
    assert (len(world.posts), until_of(room)) == (3, None)


def test_an_answer_in_between_begins_the_count_again(room: Publishing, world: World, clock: ManualClock) -> None:
    room.channel("ig", world.connector(), breaker=(2, 60))
    world.script = [DOWN, verdict(Kind.PERMANENT), DOWN, "ok", DOWN]
    for _ in range(5):
        put(room)
    drain(app_of(room))
    assert until_of(room) is None
    assert sql(room, "SELECT failures, trips FROM publication_channels") == [(1, 0)]


def test_who_was_claimed_before_the_hold_is_put_off_and_uses_no_attempt(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-b
    connector, ident = world.connector(), put(room)
    room.channel("ig", connector)
    original = app_of(room).engine.store.take

    def take_then_hold(*args: object) -> object:
        rows = original(*args)  # type: ignore[arg-type]
        app_of(room).engine.queues.hold(args[0], "ig", AT + timedelta(minutes=5), "somebody else was told", "test")  # type: ignore[arg-type]
        return rows

    app_of(room).queues.set("ig", limit=1)
    app_of(room).engine.store.take = take_then_hold  # type: ignore[method-assign, assignment]
    drain(app_of(room))
    app_of(room).engine.store.take = original  # type: ignore[method-assign]
    seen = room.get(ident)
    assert (seen.status, seen.attempts, seen.run_at, world.calls) == ("pending", 0, AT + timedelta(seconds=1), [])
    assert later(room, clock, ident, 299).status == "pending"
    assert later(room, clock, ident, 1).status == "completed"


def test_somebody_elses_hold_is_not_lifted_by_a_success(room: Publishing, world: World, clock: ManualClock) -> None:
    room.channel("ig", world.connector(), breaker=(1, 60))
    fail(world, 1)
    first = put(room)
    drain(app_of(room))
    app_of(room).queues.hold("ig", AT + timedelta(hours=5), "ada says so", "ada")
    assert later(room, clock, first, 3600).status == "pending"
    assert until_of(room) == 5 * 3600
    app_of(room).queues.release("ig", "ada")
    assert later(room, clock, first, 0).status == "completed"


def test_a_breaker_of_none_never_holds(room: Publishing, world: World) -> None:
    room.channel("ig", world.connector(), breaker=(0, 60))
    fail(world, 50)
    for _ in range(50):
        put(room)
    drain(app_of(room))
    assert (until_of(room), world.calls.count("publish")) == (None, 50)


def test_a_trial_that_is_put_off_ends_its_hold(room: Publishing, world: World, clock: ManualClock) -> None:
    room.channel("ig", world.connector(), breaker=(1, 300))
    world.script = [DOWN, verdict(Kind.THROTTLED, after=30.0), verdict(Kind.BUSY, after=5.0), DOWN]
    ids = [put(room) for _ in range(2)]
    drain(app_of(room))
    clock.advance(300)
    drain(app_of(room))  # too much, for half a minute: not for the five minutes of the trial
    assert until_of(room) == 300 + 30
    clock.advance(30)
    drain(app_of(room))  # busy, and the next one is tried at once
    assert [c for c in world.calls if c == "publish"] == ["publish"] * 4
    assert until_of(room) == 330 + 600
    clock.advance(600)
    drain(app_of(room))
    clock.advance(4000)
    drain(app_of(room))
    assert {room.get(i).status for i in ids} == {"completed"}


def test_who_was_claimed_beside_a_trial_goes_on_once_the_trial_has_gone_well(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # the hold keeps it as long as the trial lasts, and no longer
    connector = world.connector()
    original = connector.publish
    room.channel("ig", connector, limit=2, breaker=(1, 300), backoff={"base": 4000, "max": 9000})
    app_of(room).queues.set("ig", limit=2)
    fail(world, 1)
    put(room)
    drain(app_of(room))
    ids = {word: put(room, {"caption": word}) for word in ("one", "two")}
    tried = list[str]()

    async def until(ident: int, *wanted: object) -> None:
        async def look() -> None:
            while True:
                seen = await asyncio.to_thread(room.get, ident)
                if (seen.status, seen.progress) == wanted:
                    return
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), 30)

    async def publish(post: Post, notebook: Notebook) -> Published:
        tried.append(post.caption)
        if len(tried) == 1:
            await until(ids["two" if post.caption == "one" else "one"], "pending", State.PREPARING)
        return await original(post, notebook)

    holds, again, queues = list[object](), threading.Event(), app_of(room).engine.queues
    hold = queues.hold

    def slow(*args: object, **more: object) -> object:
        holds.append(args)
        if len(holds) > 1:
            again.set()
        again.wait(0.5)  # the other run begins meanwhile, and waits where it is known that one goes first
        return hold(*args, **more)  # type: ignore[arg-type]

    queues.hold = slow  # type: ignore[method-assign, assignment]
    connector.publish = publish  # type: ignore[method-assign]
    clock.advance(300)
    worker = app_of(room).worker({"ig": 2})

    async def act() -> None:
        running = asyncio.create_task(worker.arun())
        while not tried:
            await asyncio.sleep(0.01)
        await until(ids[tried[0]], "completed", State.PUBLISHED)
        clock.advance(1)
        app_of(room).db.bells.ring()
        await until(ids["two" if tried[0] == "one" else "one"], "completed", State.PUBLISHED)
        worker.stop()
        await running

    asyncio.run(act())
    assert (until_of(room), len(holds)) == (None, 1)

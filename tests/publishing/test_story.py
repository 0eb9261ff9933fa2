"""Whole days of publishing (R002-7, R002-8, T002-d, T002-e, T002-f, B054, B057, B060)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly import Duly, Window, WrongState
from duly.kernel.events import Event
from duly.kernel.gate import Rate
from duly.kernel.verdict import Kind
from duly.publishing import Notebook, Post, Published, Publishing, Run
from duly.settings import Settings
from duly.testing import ManualClock, adrain, drain
from publishing.hands import POST, WITH_COMMENT, World, app_of, put, sql, verdict

ROME = ZoneInfo("Europe/Rome")


class Stamped:
    """Writes down what was published when."""

    def __init__(self, world: World, clock: ManualClock) -> None:
        self.connector, self.clock, self.seen = world.connector(), clock, list[tuple[datetime, str]]()
        original = self.connector.publish

        async def publish(post: Post, notebook: Notebook) -> Published:
            self.seen.append((self.clock.now(), post.caption))
            return await original(post, notebook)

        self.connector.publish = publish  # type: ignore[method-assign]


@pytest.mark.parametrize("sunday", [datetime(2026, 3, 29), datetime(2026, 10, 25)], ids=["spring", "autumn"])
def test_a_week_with_nights_in_rome_across_a_change_of_clocks(
    room: Publishing, world: World, clock: ManualClock, sunday: datetime
) -> None:
    # R002-8, T002-d, T002-e, B060
    app, here = app_of(room), Stamped(world, clock)
    start = (sunday - timedelta(days=3)).replace(tzinfo=ROME)
    clock.set(start)
    room.channel("ig", here.connector)
    app.calendars.set(Window(start="22:00", end="07:00", tz="Europe/Rome", name="nights", scope="channel:ig"))
    planned = {}
    for hour in range(0, 7 * 24, 3):
        at = start.astimezone(UTC) + timedelta(hours=hour)
        planned[str(hour)] = at
        room.enqueue("ig", {"caption": str(hour)}, run_at=at, key=str(hour))
    # every planned instant, the edges of each night, and the moments right before them
    midnights = [start + timedelta(days=day) for day in range(9)]  # by the clocks of Rome
    edges = [m.replace(hour=h).astimezone(UTC) for m in midnights for h in (7, 22)]
    looks = {*planned.values(), *edges, *(at - timedelta(seconds=1) for at in edges)}
    for at in sorted(looks):
        if at >= clock.now():
            clock.set(at)
            drain(app)
    assert [caption for _, caption in here.seen] == list(planned)  # every one once, in the order of their instants
    for at, caption in here.seen:
        local, wanted = at.astimezone(ROME), planned[caption].astimezone(ROME)
        assert 7 <= local.hour < 22, f"{caption} in the night, at {local}"
        if 7 <= wanted.hour < 22:
            assert at == planned[caption]
        else:  # the morning after, to the minute, by the clocks of that morning
            assert (local.hour, local.minute) == (7, 0)
            assert timedelta(0) < at - planned[caption] <= timedelta(hours=10)
    assert sql(room, "SELECT DISTINCT attempts FROM jobs_done") == [(1,)]


def test_twenty_ticks_and_publish_now_are_one_call(room: Publishing, world: World) -> None:
    # B054, R002-9
    app, ident = app_of(room), put(room, key="k")
    barrier, answers = threading.Barrier(22), list[str]()

    def tick() -> None:
        barrier.wait()
        asyncio.run(adrain(app, queues=["ig"]))

    def publish_now() -> None:
        barrier.wait()
        answers.append(f"created {room.enqueue('ig', POST, key='k').created}")

    def replay() -> None:
        barrier.wait()
        try:
            room.replay(ident)
        except WrongState as error:
            answers.append(f"it is {error.current}")

    threads = [threading.Thread(target=fn) for fn in (*[tick] * 20, publish_now, replay)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = room.get(ident)
    assert (seen.status, seen.attempts, world.calls.count("publish"), len(world.posts)) == ("completed", 1, 1, 1)
    assert "created False" in answers
    assert len(answers) == 2


def test_a_hundred_due_posts_of_one_channel_never_delay_one_of_another(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # B061, T002-e: by a real worker, whose slots one channel could fill
    app, order = app_of(room), list[str]()
    room.channel("ig", connector := world.connector())
    original = connector.publish
    facebook = asyncio.Event()

    async def slow(post: Post, notebook: Notebook) -> Published:
        if not order:
            order.append("ig")
            await asyncio.wait_for(facebook.wait(), 30)  # ig goes on only once fb has been published
        return await original(post, notebook)

    connector.publish = slow  # type: ignore[method-assign]

    @room.process("fb")
    async def fb(run: Any) -> None:
        order.append("fb")
        facebook.set()

    posts = 100 if app.db.is_sqlite else 30
    for n in range(posts):
        put(room, run_at=clock.now() - timedelta(minutes=200 - n))
    put(room, channel="fb")
    tally = app.worker({"ig": 1, "fb": 1}).run(until_idle=True)
    assert order == ["ig", "fb"]
    assert (tally.succeeded, len(world.posts)) == (posts + 1, posts)


def test_a_worker_sets_what_a_channel_says_unless_somebody_has_set_it(room: Publishing, world: World) -> None:
    # R002-7
    room.channel("rated", world.connector(), limit=4, rate=(50, 86_400))
    app_of(room).queues.set("ig", limit=3)
    app_of(room).worker().run(until_idle=True)
    found: Mapping[str, Any] = app_of(room).queues.all()
    assert (found["ig"].limit, found["ig"].rate) == (3, None)
    assert (found["rated"].limit, found["rated"].rate.count, found["rated"].rate.seconds) == (4, 50, 86_400)


def test_a_changed_limit_or_rate_takes_effect_unless_somebody_has_changed_it_since(
    room: Publishing, world: World
) -> None:
    # R002-7
    app = app_of(room)

    def begins(**declared: Any) -> tuple[int | None, Rate | None]:
        room.channel("ig", world.connector(), **declared)
        expected = room.limit("ig")
        app.events.emit("worker_started", worker="w", queues={"ig": 1})
        found = app.queues.get("ig")
        assert expected == (found.limit, found.rate) == room.limit("ig")
        return expected

    assert begins(limit=2, rate=(5, 60)) == (2, Rate(5, 60))
    assert begins(limit=4, rate=(7, 60)) == (4, Rate(7, 60))
    assert begins(limit=None) == (None, None)
    assert begins(limit=1, rate=(5, 60)) == (1, Rate(5, 60))
    app.queues.set("ig", limit=None, rate=(9, 60), actor="ada")  # a person takes the limit away, and sets another rate
    assert begins(limit=3, rate=(6, 60)) == (None, Rate(9, 60))
    app.queues.set("ig", limit=3, rate=(6, 60), actor="ada")  # and leaves both to the declaration again
    begins(limit=3, rate=(6, 60))
    assert begins(limit=5, rate=(8, 60)) == (5, Rate(8, 60))


def test_what_another_process_enqueued_is_found_without_a_wake_up(db_url: str) -> None:
    # R002-6: at every poll, which comes far more often than a tick of a minute
    app, other = Duly(db_url, notify=False, poll=0.05), Duly(db_url, notify=False)
    assert Settings().poll <= 60
    room, seen = Publishing(app), list[str]()
    worker = None

    @room.process("blog")
    def blog(run: Run) -> None:
        seen.append(run.post.caption)
        if worker is not None:
            worker.stop()

    far = Publishing(other)
    far.process("blog")(print)
    worker = app.worker({"blog": 1})

    def elsewhere(event: Event) -> None:
        if event.name == "worker_started":
            far.enqueue("blog", POST)

    app.listen(elsewhere)
    worker.run()
    assert seen == [POST["caption"]]
    app.close()
    other.close()


def test_a_rate_lets_so_many_go_in_a_window(room: Publishing, world: World, clock: ManualClock) -> None:
    app_of(room).queues.set("ig", rate=(2, 3600))
    for _ in range(5):
        put(room)
    for wanted in (2, 2, 4, 4, 5):
        drain(app_of(room))
        assert len(world.posts) == wanted
        clock.advance(1800)


def test_a_rate_counts_posts_and_neither_waits_nor_first_comments(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    app_of(room).queues.set("ig", rate=(3, 86_400))
    world.script = [verdict(Kind.THROTTLED, after=60.0)] * 3
    ids = [put(room, WITH_COMMENT, key=str(n)) for n in range(4)]
    for _ in range(3):
        drain(app_of(room))
        assert world.posts == []
        clock.advance(60)
    for _ in range(2):
        drain(app_of(room))
    # a comment goes before the posts that wait; the last one waits for room, as they do
    assert (len(world.posts), len(world.comments)) == (3, 2)
    assert [room.get(i).status for i in ids] == ["completed"] * 3 + ["pending"]
    clock.advance(86_400)
    drain(app_of(room))
    drain(app_of(room))
    assert (len(world.posts), len(world.comments)) == (4, 4)
    assert sql(room, "SELECT sum(count) FROM queue_starts") == [(1,)]

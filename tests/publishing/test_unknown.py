"""Nobody knows whether it was published: it is asked before anything is sent again (T002-c, T002-h, T002-i, B055)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from duly import Duly, Retry
from duly.kernel.verdict import Kind
from duly.publishing import Notebook, Post, Publication, Published, Publishing, Run
from duly.publishing.state import LIFECYCLE, State
from duly.testing import ManualClock, drain
from publishing.hands import POST, Ear, World, actions, app_of, go, later, put, sql, verdict

Make = Callable[..., Publishing]


def test_a_lost_answer_is_looked_for_and_the_post_is_there_once(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-i, B055
    ear, ident = Ear(room), None
    world.script = ["lost"]
    ident = put(room)
    seen = go(room, ident)
    assert (seen.status, seen.progress, seen.attempts) == ("pending", State.SENDING, 1)
    assert "the outcome is unknown" in (seen.error or "")
    seen = later(room, clock, ident)
    assert (seen.status, seen.remote_id, seen.attempts) == ("completed", "m1", 2)
    assert (world.posts, world.calls) == ([POST["caption"]], ["limits", "publish", "reconcile"])
    assert [e["found"] for e in ear.named("publish_reconciled")] == [True]


def test_what_is_certainly_not_there_is_published_again(room: Publishing, world: World, clock: ManualClock) -> None:
    # T002-c
    world.script = ["gone"]
    ident = put(room)
    go(room, ident)
    seen = later(room, clock, ident)
    assert (seen.status, seen.remote_id, len(world.posts)) == ("completed", "m1", 1)
    assert [c for c in world.calls if c != "limits"] == ["publish", "reconcile", "publish"]


def test_at_the_last_attempt_it_is_looked_for_at_once(room: Publishing, world: World) -> None:
    # T002-i
    room.channel("ig", world.connector(), max_attempts=1)
    world.script = ["lost"]
    seen = go(room, put(room))
    assert (seen.status, seen.remote_id, len(world.posts)) == ("completed", "m1", 1)
    world.script = ["gone"]
    seen = go(room, put(room))
    assert (seen.status, seen.unknown, seen.progress) == ("failed", False, State.PREPARING)
    assert "is not there" in (seen.error or "")


def test_where_the_other_side_cannot_tell_it_is_held_and_people_are_told(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-c, B055
    ear = Ear(room)
    world.script, world.blind = ["lost"], verdict(Kind.UNKNOWN, "posts cannot be listed")
    ident = put(room)
    go(room, ident)
    seen = later(room, clock, ident)
    assert (seen.status, seen.unknown, seen.attempts, len(world.posts)) == ("failed", True, 2, 1)
    assert "posts cannot be listed" in (seen.error or "")
    assert "replay" in (seen.error or "")
    assert later(room, clock, ident).status == "failed"
    assert room.keep() == 0
    assert [e["job"] for e in ear.named("publish_unknown")] == [ident]
    # a person looks, and asks again: now the other side can tell
    world.blind = None
    room.replay(ident, "ada", "looked")
    seen = go(room, ident)
    assert (seen.status, seen.remote_id, len(world.posts)) == ("completed", "m1", 1)


def test_the_post_of_another_publication_is_not_taken_for_this_one(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-i: two posts with the same words, of which one has arrived
    first, world.since = go(room, put(room, key="first")), clock.now()
    world.script = ["gone"]
    ident = put(room, key="second")
    go(room, ident)
    world.keys["second"] = first.remote_id or ""
    seen = later(room, clock, ident)
    assert (first.remote_id, seen.remote_id, seen.status, seen.unknown) == ("m1", None, "failed", True)
    assert f"m1 was found, and that is publication {first.id}" in (seen.error or "")


def test_a_channel_may_say_that_it_is_published_again(room: Publishing, world: World, clock: ManualClock) -> None:
    # T002-c
    room.channel("ig", world.connector(), unknown="retry")
    world.script, world.blind = ["gone"], verdict(Kind.UNKNOWN)
    ident = put(room)
    go(room, ident)
    seen = later(room, clock, ident)
    assert (seen.status, seen.progress) == ("pending", State.PREPARING)
    assert "published again" in (seen.error or "")
    seen = later(room, clock, ident)
    assert (seen.status, seen.attempts, len(world.posts)) == ("completed", 3, 1)


@pytest.mark.parametrize("kind", [Kind.TRANSIENT, Kind.AUTH, Kind.THROTTLED])
def test_while_it_cannot_be_asked_nothing_is_sent(
    room: Publishing, world: World, clock: ManualClock, kind: Kind
) -> None:
    world.script, world.blind = ["lost"], verdict(kind)
    ident = put(room)
    go(room, ident)
    for _ in range(2):
        seen = later(room, clock, ident)
        assert (seen.status, seen.progress) == ("pending", State.SENDING)
    world.blind = None
    app_of(room).queues.resume("ig")
    assert later(room, clock, ident).status == "completed"
    assert (len(world.posts), world.calls.count("publish")) == (1, 1)


def test_what_could_not_be_asked_until_the_attempts_were_used_up_is_unknown(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    room.channel("ig", world.connector(), max_attempts=3, breaker=(0, 1))
    ear = Ear(room)
    world.script, world.blind = ["lost"], verdict(Kind.TRANSIENT, "it does not answer")
    ident = put(room)
    for _ in range(3):
        seen = later(room, clock, ident)
    assert (seen.status, seen.unknown, seen.attempts) == ("failed", True, 3)
    assert len(ear.named("publish_unknown")) == 1


def test_an_error_of_a_connector_counts_as_unknown_once_it_may_have_sent(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    world.script = [RuntimeError("a mistake after ahead")]
    ident = put(room)
    seen = go(room, ident)
    assert (seen.status, seen.progress) == ("pending", State.SENDING)
    seen = later(room, clock, ident)
    assert (seen.status, world.calls.count("reconcile"), len(world.posts)) == ("completed", 1, 1)


def test_a_success_without_an_id_is_a_success(room: Publishing, world: World) -> None:
    # T002-i
    world.script = ["id"]
    seen = go(room, put(room))
    assert (seen.status, seen.remote_id, seen.progress) == ("completed", None, State.PUBLISHED)


# --- What kills a worker ------------------------------------------------------------------------------------------------


def lose(room: Publishing, ident: int, clock: ManualClock) -> None:
    """As if its worker had died: it runs under a lease that has lapsed."""
    app = app_of(room)
    change = "UPDATE jobs SET status = 'running', attempts = attempts + 1, worker = 'dead', lease_token = 7, lease_until = created_at WHERE id = :id"
    app.db.write(lambda c: c.execute(text(change), {"id": ident}))
    clock.advance(60)


def stand(room: Publishing, ident: int, state: State, remote: str | None = None) -> None:
    """What a worker that died has left on record."""
    facts = '{"key": "k", "container": "c-k", "ahead_at": "2026-06-01T10:00:00+00:00"}'
    values = {"id": ident, "state": str(state), "remote": remote, "facts": facts}
    change = (
        "INSERT INTO publications (job_id, tenant, channel, state, facts, remote_id, holder, updated_at) "
        "SELECT id, tenant, queue, :state, {facts}, :remote, 'dead', created_at FROM jobs WHERE id = :id"
    )
    app = app_of(room)
    cast = ":facts" if app.db.is_sqlite else "CAST(:facts AS json)"
    app.db.write(lambda c: c.execute(text(change.format(facts=cast)), values))


def test_a_run_that_was_lost_after_the_answer_was_written_ends_without_a_call(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-c
    ident = put(room, key="k")
    stand(room, ident, State.PUBLISHED, "m9")
    lose(room, ident, clock)
    seen = go(room, ident)
    assert (seen.status, seen.remote_id, world.calls) == ("completed", "m9", [])
    assert actions(room, ident) == ["PUBLISHED"]


def test_a_run_that_was_lost_while_it_sent_is_asked_for_first(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-c
    ident = put(room, key="k")
    world.keys["k"] = "m9"
    stand(room, ident, State.SENDING)
    lose(room, ident, clock)
    seen = go(room, ident)
    assert (seen.status, seen.remote_id, world.calls) == ("completed", "m9", ["reconcile"])


def test_a_worker_lost_in_the_last_run_after_the_answer_leaves_a_completed_publication(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-c
    room.channel("ig", world.connector(), max_attempts=1)
    ident = put(room, key="k")
    stand(room, ident, State.PUBLISHED, "m9")
    lose(room, ident, clock)
    assert go(room, ident).status == "failed"
    assert room.keep() == 1
    seen = room.get(ident)
    assert (seen.status, seen.remote_id, seen.error, world.calls) == ("completed", "m9", None, [])
    assert room.keep() == 0
    assert actions(room, ident) == ["JOB_EXHAUSTED_RETRIES", "JOB_REPLAYED", "PUBLISHED"]


def test_a_worker_lost_in_the_last_run_while_it_sent_leaves_an_unknown_one_that_is_told_once(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-c
    room.channel("ig", world.connector(), max_attempts=1)
    ear, ident = Ear(room), put(room, key="k")
    stand(room, ident, State.SENDING)
    lose(room, ident, clock)
    assert go(room, ident).unknown
    room.keep()
    room.keep()
    assert [e["job"] for e in ear.named("publish_unknown")] == [ident]
    room.replay(ident)
    assert go(room, ident).status == "completed"
    assert world.calls == ["reconcile", "limits", "publish"]


def test_the_answer_of_a_run_that_lost_its_lease_is_kept_and_the_next_run_ends_with_it(
    room: Publishing, world: World, clock: ManualClock, db_url: str
) -> None:
    # T002-l: the late answer is true, whoever holds the job by now
    connector, app = world.connector(), app_of(room)
    original = type(connector).publish
    other = Duly(db_url, clock=clock)
    second = Publishing(other)
    second.channel("ig", world.connector(), unknown="hold")
    world.blind = verdict(Kind.UNKNOWN)

    async def slow(self: object, post: object, notebook: object) -> object:
        answer = await original(self, post, notebook)  # type: ignore[arg-type]
        # meanwhile the lease lapses, and another worker begins: it cannot tell, and holds
        clock.advance(timedelta(seconds=600))
        await asyncio.to_thread(drain, other)
        return answer

    slow_connector = world.connector()
    slow_connector.publish = slow.__get__(slow_connector)  # type: ignore[method-assign]
    room.channel("ig", slow_connector)
    ident = put(room, key="k")
    try:
        drain(app)
        assert (len(world.posts), world.calls.count("publish")) == (1, 1)
        assert sql(room, "SELECT state, remote_id FROM publications") == [("published", "m1")]
        assert second.get(ident).status == "failed"
        assert second.keep() == 1
        assert (room.get(ident).status, room.get(ident).remote_id) == ("completed", "m1")
    finally:
        other.close()


def test_an_id_is_never_taken_back(room: Publishing, world: World) -> None:
    # T002-l
    ident = put(room)
    go(room, ident)
    store, db = room._store, app_of(room).db
    for remote in (None, "other"):
        db.write(lambda c, r=remote: store.published(c, ident, r, None))
        assert (room.get(ident).remote_id, room.get(ident).url) == ("m1", "https://example.org/m1")


def test_a_run_that_was_taken_over_writes_nothing_and_sends_nothing(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-c: the write ahead is the fence
    ident, stolen = put(room), []
    connector = world.connector()
    original = connector.publish

    async def slow(post: object, notebook: object) -> object:
        if not stolen:
            stolen.append(True)
            change = "UPDATE publications SET holder = 'another' WHERE job_id = :id"
            app_of(room).db.write(lambda c: c.execute(text(change), {"id": ident}))
        return await original(post, notebook)  # type: ignore[arg-type]

    connector.publish = slow  # type: ignore[method-assign]
    room.channel("ig", connector)
    seen = go(room, ident)
    assert (seen.status, world.posts) == ("pending", [])
    assert "another run" in (seen.error or "")
    assert later(room, clock, ident).status == "completed"
    assert len(world.posts) == 1


def test_after_a_refusal_the_next_write_ahead_counts_from_its_own_instant(make: Make, clock: ManualClock) -> None:
    # a reconcile looks from there on
    room = make()

    @room.process("blog", backoff={"base": 60})
    def blog(run: Run) -> None:
        if len(told) < 2:
            run.mark_failed("not now", retryable=True)
        told.append(run.notebook.facts["ahead_at"])

    told: list[str] = []
    ident = put(room, channel="blog")
    for _ in range(3):
        assert later(room, clock, ident).progress is (State.PREPARING if len(told) < 3 else State.PUBLISHED)
    assert len(set(told)) == 3


def test_a_function_that_says_how_its_run_ended_leaves_nothing_unknown(make: Make, clock: ManualClock) -> None:
    room, calls = make(), list[int]()

    @room.process("blog")
    async def blog(run: Run) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise Retry("later", after=5)

    ident = put(room, channel="blog")
    assert go(room, ident).progress is State.PREPARING
    assert (later(room, clock, ident).status, len(calls)) == ("completed", 2)


def test_only_the_holder_of_the_lease_takes_a_publication_over(room: Publishing, clock: ManualClock) -> None:
    # T002-c
    ident = put(room, key="k")
    lose(room, ident, clock)  # it runs under token 7
    store, db = room._store, app_of(room).db
    assert db.write(lambda c: store.begin(c, ident, 8, "late", "default", "ig", {})) is None
    assert sql(room, "SELECT count(*) FROM publications") == [(0,)]
    assert db.write(lambda c: store.begin(c, ident, 7, "first", "default", "ig", {})) is not None
    assert db.write(lambda c: store.ahead(c, ident, 8, "first", {})) is False
    assert db.write(lambda c: store.ahead(c, ident, 7, "other", {})) is False
    assert db.write(lambda c: store.ahead(c, ident, 7, "first", {})) is True


def test_every_state_on_record_is_reached_and_only_what_is_there_is_final() -> None:
    assert LIFECYCLE.sources("publish") == {"preparing", "sending", "published"}
    assert LIFECYCLE.target(None, "begin") is State.PREPARING
    assert {m.target for m in LIFECYCLE.moves if m.source is State.PUBLISHED} == {State.PUBLISHED}


# --- Cancelled while it runs --------------------------------------------------------------------------------------------


def _cancelled_when(room: Publishing, ident: int, reached: asyncio.Event) -> None:
    """Run a worker, and cancel its publication once that has come so far."""
    worker = app_of(room).worker()

    async def act() -> None:
        running = asyncio.create_task(worker.arun())
        await asyncio.wait_for(reached.wait(), 30)
        await asyncio.to_thread(room.cancel, ident, "ada", "not today")
        while (await asyncio.to_thread(room.get, ident)).status == "running":
            await asyncio.sleep(0.01)
        worker.stop()
        await running

    asyncio.run(act())


def test_who_is_cancelled_while_its_post_is_on_its_way_is_told_of_as_unknown(room: Publishing, world: World) -> None:
    # T002-c
    connector, ear, sent = world.connector(), Ear(room), asyncio.Event()
    original = connector.publish

    async def slow(post: Post, notebook: Notebook) -> Published:
        await original(post, notebook)
        sent.set()
        await asyncio.Event().wait()
        raise AssertionError

    connector.publish = slow  # type: ignore[method-assign]
    room.channel("ig", connector)
    ident = put(room)
    _cancelled_when(room, ident, sent)
    assert [room.keep(), room.keep()] == [0, 0]
    seen = room.get(ident)
    assert (seen.status, seen.unknown) == ("cancelled", True)
    assert "nobody knows" in (seen.error or "")
    told = ear.named("publish_unknown")
    assert [(e["job"], "cancelled" in e["reason"]) for e in told] == [(ident, True)]
    connector.publish = original  # type: ignore[method-assign]
    room.replay(ident, "ada", "is it there?")
    assert (go(room, ident).status, len(world.posts)) == ("completed", 1)


def test_who_is_cancelled_once_its_post_is_there_ends_as_completed(room: Publishing, world: World) -> None:
    # T002-h
    told = asyncio.Event()

    @room.on("published")
    async def slow(publication: Publication, facts: object) -> None:
        told.set()
        await asyncio.Event().wait()

    ident = put(room)
    _cancelled_when(room, ident, told)
    room.keep()
    seen = room.get(ident)
    assert (seen.status, seen.remote_id, world.posts) == ("completed", "m1", [POST["caption"]])
    assert actions(room, ident)[-3:] == ["JOB_CANCELLED", "JOB_REPLAYED", "PUBLISHED"]

"""Replay and cancel: failed ones only, one of two wins, and what is there is not published again (R002-16, T002-g, T002-h, T002-q, B063)."""

from __future__ import annotations

import threading

import pytest

from duly import InvalidArgument, KeyConflict, NotFound, WrongState
from duly.jobs.prune import prune_expired
from duly.kernel.verdict import Kind
from duly.publishing import PublicationFilter, Publishing
from duly.testing import ManualClock, drain
from publishing.hands import POST, World, actions, app_of, go, put, sql, verdict
from publishing.test_unknown import lose, stand


def failing(room: Publishing, world: World, **options: object) -> int:
    world.script = [verdict(Kind.PERMANENT, "refused")]
    ident = put(room, **options)  # type: ignore[arg-type]
    assert go(room, ident).status == "failed"
    return ident


def test_a_replay_begins_again_now_with_the_same_key(room: Publishing, world: World, clock: ManualClock) -> None:
    # R002-16, B063
    ident = failing(room, world, key="k")
    now = clock.advance(500)
    seen = room.replay(ident, "ada", "mended")
    assert (seen.status, seen.attempts, seen.run_at, seen.idempotency_key, seen.id) == ("pending", 0, now, "k", ident)
    assert go(room, ident).status == "completed"
    assert actions(room, ident) == ["JOB_FAILED_PERMANENT", "JOB_REPLAYED", "PUBLISHED"]


def test_the_key_of_a_failed_one_gives_it_back_and_one_record_is_all_there_is(room: Publishing, world: World) -> None:
    # T002-g, T002-q
    ident = failing(room, world, key="k")
    again = room.enqueue("ig", POST, key="k")
    assert (again.created, again.job.id, again.job.status) == (False, ident, "failed")
    room.replay(ident)
    assert sql(room, "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM jobs_done)") == [(1,)]


def test_only_a_failed_one_is_replayed(room: Publishing, world: World, clock: ManualClock) -> None:
    # R002-16, B063
    pending, running = put(room, run_at=clock.now().replace(year=2027)), put(room)
    stand(room, running, "preparing")  # type: ignore[arg-type]
    done = put(room)
    app_of(room).db.write(lambda c: None)
    drain(app_of(room))
    lose(room, pending, clock)
    for ident, state in ((pending, "running"), (done, "completed")):
        with pytest.raises(WrongState) as caught:
            room.replay(ident)
        assert (caught.value.current, caught.value.allowed) == (state, ("failed", "cancelled"))
    with pytest.raises(WrongState, match="is pending"):
        room.replay(put(room))
    with pytest.raises(NotFound):
        room.replay(99_999)
    with pytest.raises(NotFound):
        room.replay(done, tenant="acme")


def test_of_two_replays_at_once_one_wins_and_it_is_published_once(room: Publishing, world: World) -> None:
    # T002-h, B063
    ident, answers = failing(room, world), []
    barrier = threading.Barrier(6)

    def ask() -> None:
        barrier.wait()
        try:
            answers.append(str(room.replay(ident).status))
        except WrongState as error:
            answers.append(f"refused, it is {error.current}")

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["pending", *["refused, it is pending"] * 5]
    go(room, ident)
    assert len(world.posts) == 1


def test_a_failed_one_that_is_there_is_completed_without_a_call(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-h
    room.channel("ig", world.connector(), max_attempts=1)
    ident = put(room, key="k")
    stand(room, ident, "published", "m9")  # type: ignore[arg-type]
    lose(room, ident, clock)
    assert (go(room, ident).status, room.get(ident).remote_id) == ("failed", "m9")
    seen = room.replay(ident, "ada")
    assert (seen.status, seen.remote_id, world.calls) == ("completed", "m9", [])
    assert room.enqueue("ig", POST, key="k").job.remote_id == "m9"
    assert app_of(room).jobs.get(ident).remote_id == "m9"


def test_a_cancelled_one_is_shown_as_cancelled_and_says_by_whom_and_why(room: Publishing, world: World) -> None:
    ident = put(room)
    seen = room.cancel(ident, "ada", "not today")
    assert (seen.status, seen.error) == ("cancelled", "it was cancelled by ada: not today")
    assert (go(room, ident).status, world.calls) == ("cancelled", [])
    with pytest.raises(WrongState, match=f"publication {ident} is cancelled"):
        room.cancel(ident)
    assert room.replay(ident).status == "pending"


def test_no_filter_replays_what_a_person_cancelled_and_by_its_id_it_goes_back_to_its_instant(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # R002-25
    then = clock.now().replace(year=2031)
    withdrawn, failed = put(room, run_at=then), failing(room, world)
    room.cancel(withdrawn, "ada", "wrong price")
    assert [p.id for p in room.list(PublicationFilter(channel="ig", status="failed"))] == [failed]
    for status in ((), ("failed",), ("failed", "pending")):
        done = room.replay_many(PublicationFilter(channel="ig", status=status), "bob", "after the outage", limit=10)
        assert (withdrawn in done.done, withdrawn in done.refused) == (False, False)
    with pytest.raises(InvalidArgument, match="Replay a cancelled one by its id"):
        room.replay_many(PublicationFilter(channel="ig", status=("failed", "cancelled")))
    assert room.replay_many(PublicationFilter(ids=(withdrawn,)), "ada", "right after all").done == [withdrawn]
    seen = room.get(withdrawn)
    assert (seen.status, seen.run_at, seen.attempts) == ("pending", then, 0)
    assert go(room, withdrawn).status == "pending", "it waits for its instant"
    clock.set(then)
    assert go(room, withdrawn).status == "completed"


def test_acts_on_many_are_limited_to_the_filter(room: Publishing, world: World) -> None:
    # T002-q
    room.channel("fb", world.connector())
    ids = {}
    for name, channel, tenant in (("a", "ig", None), ("b", "ig", "acme"), ("c", "fb", None)):
        ids[name] = failing(room, world, channel=channel, tenant=tenant)
    waiting = put(room, channel="fb")
    with pytest.raises(InvalidArgument, match="narrows"):
        room.replay_many(PublicationFilter(status="failed"))
    done = room.replay_many(PublicationFilter(channel="ig", tenant="acme"), "ada", "mended")
    assert (done.done, done.refused) == ([ids["b"]], {})
    assert room.replay_many(PublicationFilter(channel="ig", status="pending")).done == []
    assert sorted(room.replay_many(PublicationFilter(ids=[*ids.values(), waiting])).done) == [ids["a"], ids["c"]]
    assert sorted(room.cancel_many(PublicationFilter(channel="fb")).done) == sorted([ids["c"], waiting])
    assert {str(p.status) for p in room.list(PublicationFilter(channel="fb"))} == {"cancelled"}
    assert {str(p.status) for p in room.list(PublicationFilter(channel="ig"))} == {"pending"}


def test_a_key_is_remembered_when_its_job_is_gone(room: Publishing, world: World, clock: ManualClock) -> None:
    # T002-p
    ident = put(room, key="k")
    go(room, ident)
    clock.advance(30 * 86_400)
    assert prune_expired(app_of(room).db) == 1
    again = room.enqueue("ig", POST, key="k")
    assert (again.created, again.job.status, again.job.remote_id) == (False, "completed", "m1")


def test_a_job_that_holds_a_posts_key_is_named_and_the_post_is_not_said_to_be_there(
    room: Publishing, world: World, clock: ManualClock
) -> None:  # D3
    app = app_of(room)
    holder = app.enqueue("NOOP", key="k", queue="ig").job.id
    for pruned in (False, True):
        if pruned:
            app.jobs.cancel(holder)
            clock.advance(30 * 86_400)
            assert prune_expired(app.db) == 1
        with pytest.raises(KeyConflict, match=f"job {holder} of task 'NOOP'"):
            room.enqueue("ig", POST, key="k")
        answer = room.test("ig", POST, key="k")
        assert (answer.outcome, f"job {holder} of task NOOP" in answer.detail) == ("collision", True)


@pytest.mark.parametrize("key", ["", "  ", "\t"])
def test_a_blank_key_is_refused(room: Publishing, key: str) -> None:  # N4
    with pytest.raises(InvalidArgument):
        room.enqueue("ig", POST, key=key)

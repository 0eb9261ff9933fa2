"""Parents and children: a parent whose handler is done ends when its last child has ended, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from contract.hands import AT_ONCE, Hand, K, Later, actions, audit, rows, run_sql, together, wait_until
from duly import Context, Duly, Status
from duly.jobs.settle import Claimed, settle
from duly.kernel.outcome import Outcome
from duly.testing import ManualClock, drain


@pytest.fixture
def family(app: Duly) -> Callable[..., tuple[int, list[int]]]:
    return make_family(app)


def make_family(app: Duly) -> Callable[..., tuple[int, list[int]]]:
    """A parent that waits, its handler done, and its children: ``family(n, policy)`` gives their ids."""
    fathers = {
        policy: app.task(f"FATHER_{policy}", wait_for_children=policy, queue="fathers")(lambda: {"made": True})
        for policy in ("fail", "ignore")
    }
    child = app.task("CHILD", max_attempts=1)(lambda: None)

    def make(n: int, policy: str = "fail") -> tuple[int, list[int]]:
        father = fathers[policy].enqueue().job
        kids = [child.using(parent=father).enqueue().job.id for _ in range(n)]
        hand = Hand(app)
        assert hand.succeed(hand.one("fathers"), '{"made":true}')
        return father.id, kids

    return make


def test_a_parent_waits_until_its_last_child_has_ended(
    app: Duly, family: Callable[..., tuple[int, list[int]]], hand: Hand
) -> None:
    father, kids = family(3)
    for n, _ in enumerate(kids):
        job = app.jobs.get(father)
        assert (job.status, job.waits_for_children, job.attempts, job.retry_count) == (Status.QUEUED, True, 1, 0)
        assert job.label(app.db.clock.now()) == "waiting for children"
        assert hand.claim("fathers") == []
        assert hand.succeed(hand.one()), n
    job = app.jobs.get(father)
    assert (job.status, job.output, job.error, job.waits_for_children) == (
        Status.SUCCEEDED,
        {"made": True},
        None,
        False,
    )
    assert actions(app, father) == ["FATHER_fail_COMPLETED"]


def test_a_parent_without_children_ends_at_once(app: Duly, family: Callable[..., tuple[int, list[int]]]) -> None:
    father, _ = family(0)
    assert app.jobs.get(father).status is Status.SUCCEEDED


def test_a_parent_whose_children_ended_first_ends_with_its_handler(app: Duly, hand: Hand) -> None:
    father = app.task("FATHER", wait_for_children="fail", queue="fathers")(lambda: None).enqueue().job
    running = hand.one("fathers")
    app.task("CHILD")(lambda: None).using(parent=father).enqueue()
    hand.succeed(hand.one())
    assert app.jobs.get(father.id).status is Status.RUNNING
    hand.succeed(running)
    assert app.jobs.get(father.id).status is Status.SUCCEEDED


@pytest.mark.parametrize(("policy", "status"), [("fail", Status.FAILED), ("ignore", Status.SUCCEEDED)])
@pytest.mark.parametrize("end", [K.REFUSED, K.CANCELLED])
def test_what_a_failed_child_means_is_the_parents_policy(
    app: Duly, family: Callable[..., tuple[int, list[int]]], hand: Hand, policy: str, status: Status, end: K
) -> None:
    father, _ = family(3, policy)
    hand.succeed(hand.one())
    hand.end(hand.one(), Outcome(end, error={"message": "no"}))
    assert app.jobs.get(father).status is Status.QUEUED  # the last one may still do its work
    hand.succeed(hand.one())
    job = app.jobs.get(father)
    assert job.status is status
    if status is Status.FAILED:
        assert job.error["type"] == "ChildFailed"
        assert [(r["action"], r["level"]) for r in audit(app, father)] == [("JOB_CHILD_FAILED", "error")]


def test_a_child_that_is_tried_again_keeps_its_parent_waiting(app: Duly, clock: ManualClock, hand: Hand) -> None:
    father = app.task("FATHER", wait_for_children="fail", queue="fathers")(lambda: None).enqueue().job
    app.task("CHILD")(lambda: None).using(parent=father).enqueue()
    hand.succeed(hand.one("fathers"))
    hand.fail(hand.one())
    assert app.jobs.get(father.id).status is Status.QUEUED
    clock.advance(10)
    hand.succeed(hand.one())
    assert app.jobs.get(father.id).status is Status.SUCCEEDED


def test_a_grandparent_ends_with_the_last_of_its_line(app: Duly, hand: Hand) -> None:
    node = app.task("NODE", wait_for_children="fail")(lambda: None)
    top = node.enqueue().job
    middle = node.using(parent=top).enqueue().job
    leaf = node.using(parent=middle.id).enqueue().job
    for job in hand.claim(n=2):
        hand.succeed(job)
    assert [app.jobs.get(j.id).waits_for_children for j in (top, middle)] == [True, True]
    hand.succeed(hand.one())
    assert [app.jobs.get(j.id).status for j in (leaf, middle, top)] == [Status.SUCCEEDED] * 3
    assert [len(actions(app, j.id)) for j in (leaf, middle, top)] == [1, 1, 1]


def test_a_failure_climbs_as_far_as_the_policies_let_it(app: Duly, hand: Hand) -> None:
    strict = app.task("STRICT", wait_for_children="fail")(lambda: None)
    lenient = app.task("LENIENT", wait_for_children="ignore")(lambda: None)
    top = lenient.enqueue().job
    middle = strict.using(parent=top).enqueue().job
    strict.using(parent=middle).enqueue()
    jobs = hand.claim(n=3)
    hand.succeed(jobs[0])
    hand.succeed(jobs[1])
    hand.fail(jobs[2], kind=K.REFUSED)
    assert [app.jobs.get(j.id).status for j in (middle, top)] == [Status.FAILED, Status.SUCCEEDED]


def test_the_last_two_children_that_end_at_once_end_their_parent_once(
    app: Duly, family: Callable[..., tuple[int, list[int]]]
) -> None:
    for _ in range(10):
        father, _ = family(2)
        jobs = Hand(app).claim(n=2)
        assert together(*[partial(Hand(app, f"w{j.id}").succeed, j) for j in jobs]) == [True, True]
        assert app.jobs.get(father).status is Status.SUCCEEDED
        assert actions(app, father) == ["FATHER_fail_COMPLETED"]
        assert rows(app, "SELECT count(*) FROM jobs_done WHERE id = :id", id=father) == [(1,)]


def settled(app: Duly, job: Claimed, kind: K = K.SUCCEEDED) -> partial[set[int]]:
    """The settlement of a run, to be written in a transaction of the test's own."""
    decided = settle(job, Outcome(kind, "{}"), app.engine.policy(job.task))
    return partial(app.engine.store.settle, batch=[decided], actor="w")


def test_two_transactions_that_end_the_last_two_children_end_their_parent_once(pg: Duly) -> None:
    father, _ = make_family(pg)(2)
    one, two = Hand(pg).claim(n=2)
    with pg.db.engine.begin() as connection:
        settled(pg, one)(connection)
        other = Later(lambda: Hand(pg).succeed(two))
        wait_until(lambda: other.is_waiting(pg))  # for the parent's row
    assert other.result() is True
    assert pg.jobs.get(father).status is Status.SUCCEEDED
    assert actions(pg, father) == ["FATHER_fail_COMPLETED"]


@pytest.mark.parametrize("first", ["child", "parent"])
def test_a_child_and_its_parents_handler_that_end_at_once_end_the_parent(pg: Duly, first: str) -> None:
    father = pg.task("FATHER", wait_for_children="fail", queue="fathers")(lambda: None).enqueue().job
    pg.task("CHILD")(lambda: None).using(parent=father).enqueue()
    hand = Hand(pg)
    jobs = {"parent": hand.one("fathers"), "child": hand.one()}
    second = jobs["child" if first == "parent" else "parent"]
    with pg.db.engine.begin() as connection:
        settled(pg, jobs[first])(connection)
        other = Later(lambda: hand.succeed(second))
        wait_until(lambda: other.is_waiting(pg))
    assert other.result() is True
    assert pg.jobs.get(father.id).status is Status.SUCCEEDED


def test_a_parent_that_a_crash_left_waiting_is_ended_by_the_sweep(
    app: Duly, family: Callable[..., tuple[int, list[int]]]
) -> None:
    father, [kid] = family(1)
    run_sql(app, "DELETE FROM jobs WHERE id = :id", id=kid)
    house = app.worker().house
    house.parents()
    assert app.jobs.get(father).status is Status.SUCCEEDED
    house.parents()
    assert len(actions(app, father)) == 1


def test_a_waiting_parent_can_be_cancelled_alone_or_with_its_children(
    app: Duly, family: Callable[..., tuple[int, list[int]]], hand: Hand
) -> None:
    father, kids = family(2)
    assert app.jobs.cancel(father).status is Status.CANCELLED
    assert [app.jobs.get(k).status for k in kids] == [Status.QUEUED] * 2
    for kid in kids:
        app.jobs.cancel(kid)

    father, kids = family(3)
    running = hand.one()
    assert app.jobs.cancel(father, children=True).status is Status.CANCELLED
    assert [app.jobs.get(k).status.value for k in kids] == ["running", "cancelled", "cancelled"]
    assert app.jobs.get(running.id).cancel_requested
    assert actions(app, father) == ["JOB_CANCELLED"]
    assert audit(app, kids[1])[0]["meta"] == {"reason": f"parent {father} was cancelled"}


def test_a_parent_that_was_asked_to_stop_does_not_wait(app: Duly, hand: Hand) -> None:
    father = app.task("FATHER", wait_for_children="fail", queue="fathers")(lambda: None).enqueue().job
    app.task("CHILD")(lambda: None).using(parent=father).enqueue()
    running = hand.one("fathers")
    app.jobs.cancel(father.id)
    hand.succeed(running)
    assert app.jobs.get(father.id).status is Status.CANCELLED


def test_a_replayed_parent_runs_again_and_waits_again(
    app: Duly, family: Callable[..., tuple[int, list[int]]], hand: Hand
) -> None:
    father, _ = family(1)
    hand.fail(hand.one(), kind=K.REFUSED)
    assert app.jobs.get(father).status is Status.FAILED
    job = app.jobs.replay(father)
    assert (job.status, job.waits_for_children, job.attempts, job.error) == (Status.QUEUED, False, 0, None)
    again = hand.one("fathers")
    app.enqueue("CHILD", parent=father)
    hand.succeed(again)
    assert app.jobs.get(father).waits_for_children


def test_handlers_that_enqueue_their_children_are_waited_for(app: Duly) -> None:
    done: list[int] = []

    @app.task("CHILD", backoff=AT_ONCE)
    def child(n: int, me: Context) -> None:
        if me.job.attempts == 1 and n == 1:
            raise ValueError("once")
        done.append(n)

    @app.task("FATHER", wait_for_children="fail")
    async def father(me: Context) -> str:
        for n in range(3):
            await app.aenqueue("CHILD", {"n": n}, parent=me.job)
        return "sown"

    ident = app.enqueue("FATHER").job.id
    tally = drain(app)
    assert sorted(done) == [0, 1, 2]
    assert (app.jobs.get(ident).status, app.jobs.get(ident).output) == (Status.SUCCEEDED, "sown")
    assert (tally.succeeded, tally.retried) == (4, 1)


def test_the_key_of_a_waiting_parent_is_free_when_it_ends(app: Duly, hand: Hand) -> None:
    task = app.task("FATHER", wait_for_children="fail", queue="fathers")(lambda: None).using(
        key="k", unique_until="done"
    )
    father = task.enqueue().job
    app.task("CHILD")(lambda: None).using(parent=father).enqueue()
    hand.succeed(hand.one("fathers"))
    assert not task.enqueue().created
    hand.succeed(hand.one())
    assert task.enqueue().created


def test_a_success_of_a_waiting_parent_is_left_out_of_the_trail_like_any_other(db_url: str, clock: ManualClock) -> None:
    app = Duly(db_url, clock=clock, audit_success=False)
    father, _ = make_family(app)(1)
    hand = Hand(app)
    hand.succeed(hand.one())
    assert (app.jobs.get(father).status, actions(app, father)) == (Status.SUCCEEDED, [])
    app.close()

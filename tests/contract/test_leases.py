"""A lease is the right to write about running work. Who lost it changes nothing, whatever it is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from contract.hands import (
    AT_ONCE,
    NOON,
    Hand,
    K,
    Later,
    actions,
    attempts,
    audit,
    ids,
    rows,
    run_sql,
    together,
    wait_until,
    working,
)
from duly import Context, Duly, Status
from duly.jobs.settle import settle
from duly.kernel.events import Event
from duly.kernel.outcome import Outcome
from duly.testing import ManualClock, drain


@pytest.fixture
def send(app: Duly) -> Callable[..., int]:
    @app.task("X", backoff=AT_ONCE)
    def x(n: int = 0) -> None: ...

    return lambda **options: x.using(**options).enqueue().job.id


# --- Fencing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("a", "b"), ("same", "same")])
def test_a_settled_job_ignores_a_late_worker(
    app: Duly, send: Callable[..., int], clock: ManualClock, names: tuple[str, str]
) -> None:  # B026, T003-c
    ident = send()
    a, b = Hand(app, names[0], lease=2), Hand(app, names[1], lease=2)
    stalled = a.one()
    clock.advance(3)
    assert b.rescue() == [(ident, "rescue")]
    owner = b.one()
    assert (stalled.attempts, owner.attempts) == (1, 2)
    clock.advance(1)
    assert a.renew(stalled) == set()
    assert a.succeed(stalled, '"A"') is False
    clock.advance(0.5)
    assert b.succeed(owner, '"B"') is True
    job = app.jobs.get(ident)
    assert (job.status, job.output, job.attempts) == (Status.SUCCEEDED, "B", 2)
    assert actions(app, ident) == ["X_COMPLETED"]
    assert rows(app, "SELECT count(*) FROM jobs_done") == [(1,)]


@pytest.mark.parametrize("late", [K.SUCCEEDED, K.FAILED, K.REFUSED, K.CANCELLED, K.SNOOZED, K.RELEASED])
def test_no_late_outcome_of_any_kind_touches_the_job_of_another(
    app: Duly, send: Callable[..., int], clock: ManualClock, late: K
) -> None:  # B026
    ident = send()
    a, b = Hand(app, lease=2), Hand(app, lease=20)
    stalled = a.one()
    clock.advance(2)
    b.rescue()
    owner = b.one()
    before, history = app.jobs.get(ident), attempts(app, ident)
    assert a.end(stalled, Outcome(late, "{}", {"message": "late"}, after=5)) is False
    assert app.jobs.get(ident) == before
    assert attempts(app, ident) == history
    assert actions(app, ident) == []
    assert b.succeed(owner)


def test_a_late_outcome_and_the_right_one_may_be_written_by_one_statement(
    app: Duly, send: Callable[..., int], clock: ManualClock
) -> None:  # B026: one process claims again what it lost
    ident = send()
    hand = Hand(app, lease=2)
    stalled = hand.one()
    clock.advance(2)
    hand.rescue()
    owner = hand.one()
    store, policy = app.engine.store, app.engine.policy("X")
    batch = [
        settle(stalled, Outcome(K.SUCCEEDED, '"late"'), policy),
        settle(owner, Outcome(K.SUCCEEDED, '"right"'), policy),
    ]
    assert app.db.write(lambda c: store.settle(c, batch, "hand")) == {ident}
    assert (app.jobs.get(ident).output, app.jobs.get(ident).attempts) == ("right", 2)
    assert actions(app, ident) == ["X_COMPLETED"]


def test_of_two_settlements_of_one_run_the_first_counts(app: Duly, send: Callable[..., int], hand: Hand) -> None:
    ident = send()
    job = hand.one()
    answers = together(partial(hand.succeed, job, '"one"'), partial(hand.succeed, job, '"two"'))
    assert sorted(answers, key=str) == [False, True]
    assert actions(app, ident) == ["X_COMPLETED"]


def test_a_stale_settlement_does_not_stop_the_others_of_its_batch(
    app: Duly, send: Callable[..., int], hand: Hand, clock: ManualClock
) -> None:
    idents = [send() for _ in range(4)]
    jobs = hand.claim(n=4)
    run_sql(app, "UPDATE jobs SET lease_token = 1 WHERE id = :id", id=idents[1])
    outcomes = [
        Outcome(K.SUCCEEDED, "1"),
        Outcome(K.SUCCEEDED, "2"),
        Outcome(K.REFUSED, error={"message": "x"}),
        Outcome(K.FAILED),
    ]
    batch = [settle(j, o, app.engine.policy("X")) for j, o in zip(jobs, outcomes, strict=True)]
    held = app.db.write(lambda c: app.engine.store.settle(c, batch, "hand"))
    assert held == {idents[0], idents[2], idents[3]}
    assert [app.jobs.get(i).status.value for i in idents] == ["succeeded", "running", "failed", "queued"]


def test_a_worker_that_claims_again_what_it_lost_counts_one_completion(live: Duly) -> None:  # B026, same process
    first_in, second_in = threading.Event(), threading.Event()
    let_first, let_second = threading.Event(), threading.Event()
    heard: list[Event] = []
    live.listen(heard.append)

    @live.task("X", backoff=AT_ONCE)
    def x() -> str:
        if not first_in.is_set():
            first_in.set()
            assert let_first.wait(30)
            return "late"
        second_in.set()
        assert let_second.wait(30)
        return "right"

    worker = live.worker({"default": 2}, name="w")
    with working(worker):
        job = x.enqueue().job
        assert first_in.wait(30)
        # another process finds the lease lapsed and gives the job back
        run_sql(
            live, "UPDATE jobs SET status = 'queued', lease_token = NULL, lease_until = NULL WHERE id = :id", id=job.id
        )
        live.db.bells.ring()
        assert second_in.wait(30)
        let_first.set()
        wait_until(lambda: worker.tally.lost == 1)
        assert live.jobs.get(job.id).status is Status.RUNNING
        worker.renew()  # the second run is still known, and its lease is kept
        assert [r.claimed.attempts for r in worker.held()] == [2]
        let_second.set()
        wait_until(lambda: live.jobs.get(job.id).status is Status.SUCCEEDED)
    assert live.jobs.get(job.id).output == "right"
    assert (worker.tally.succeeded, worker.tally.lost) == (1, 1)
    assert worker.lanes["default"].outstanding == 0
    assert [e.facts for e in heard if e.name == "loop_failed"] == []


# --- Renewal and rescue ------------------------------------------------------------------------------------------------


def test_a_renewed_lease_is_not_rescued(app: Duly, send: Callable[..., int], clock: ManualClock) -> None:  # B028
    ident = send()
    hand = Hand(app, lease=2)
    job = hand.one()
    for _ in range(14):  # seven seconds of work under a lease of two
        clock.advance(0.5)
        assert hand.renew(job) == {ident}
        assert hand.rescue() == []
    assert hand.succeed(job)
    assert (app.jobs.get(ident).attempts, attempts(app, ident)) == (1, [])


def test_a_lease_lapses_at_its_very_end(app: Duly, send: Callable[..., int], clock: ManualClock) -> None:
    ident = send()
    hand = Hand(app, lease=2)
    hand.one()
    clock.advance(timedelta(seconds=2) - timedelta(microseconds=1))
    assert hand.rescue() == []
    clock.advance(timedelta(microseconds=1))
    assert hand.rescue() == [(ident, "rescue")]


def test_a_rescue_counts_an_attempt_and_the_job_is_ready_again(
    app: Duly, send: Callable[..., int], clock: ManualClock
) -> None:  # T003-c, X5
    ident = send()
    dead = Hand(app, "dead", lease=2)
    dead.one()
    clock.advance(2)
    Hand(app, "saviour").rescue()
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, job.retry_count, job.due_at, job.lease_until) == (Status.QUEUED, 1, 1, None, None)
    [lost] = attempts(app, ident)
    assert (lost.attempt, lost.outcome, lost.worker, lost.started_at, lost.ended_at) == (
        1,
        "lost",
        "dead",
        NOON,
        clock.now(),
    )
    assert lost.error["type"] == "WorkerLost"
    assert Hand(app).one().attempts == 2


def test_a_job_whose_worker_dies_each_time_fails_when_its_attempts_are_used(
    app: Duly, send: Callable[..., int], clock: ManualClock
) -> None:  # T003-c, R003-6
    ident = send(max_attempts=3)
    hand = Hand(app, lease=2)
    for expected in ("rescue", "rescue", "fail"):
        hand.one()
        clock.advance(2)
        assert hand.rescue() == [(ident, expected)]
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, job.finished_at) == (Status.FAILED, 3, clock.now())
    [row] = audit(app, ident)
    assert (row["action"], row["meta"]) == ("JOB_EXHAUSTED_RETRIES", {"attempts": 3, "reason": "worker_lost"})
    assert [a.outcome for a in attempts(app, ident)] == ["lost"] * 3


def test_a_release_uses_no_attempt_and_a_rescue_does(
    app: Duly, send: Callable[..., int], clock: ManualClock
) -> None:  # HOUSE decision 5
    ident = send()
    hand = Hand(app, lease=2)
    hand.end(hand.one(), Outcome(K.RELEASED))
    assert app.jobs.get(ident).attempts == 0
    hand.one()
    clock.advance(2)
    hand.rescue()
    assert app.jobs.get(ident).attempts == 1


def test_a_rescue_looks_at_the_jobs_own_lease_and_at_nothing_else(
    app: Duly, send: Callable[..., int], clock: ManualClock
) -> None:  # HOUSE decision 5, B028
    old, young = Hand(app, "w", lease=1000), Hand(app, "w", lease=2)
    send()
    slow = old.one()
    clock.advance(900)
    ident = send()
    young.one()
    clock.advance(3)
    assert young.rescue() == [(ident, "rescue")]
    assert old.renew(slow) == {slow.id}


def test_twenty_rescuers_rescue_once(app: Duly, send: Callable[..., int], clock: ManualClock) -> None:
    for _ in range(10):
        send()
    Hand(app, lease=2).claim(n=10)
    clock.advance(2)
    found = together(*[Hand(app, f"w{n}").rescue for n in range(20)])
    assert not [f for f in found if isinstance(f, Exception)]
    assert sum(map(len, found)) == 10  # type: ignore[arg-type]
    assert rows(app, "SELECT count(*), count(DISTINCT job_id) FROM attempts") == [(10, 10)]


def test_a_renewal_that_is_on_its_way_is_waited_for_by_nobody_and_wins(pg: Duly, clock: ManualClock) -> None:
    pg.task("X")(lambda: None).enqueue()
    hand = Hand(pg, lease=2)
    job = hand.one()
    clock.advance(2)
    with pg.db.engine.begin() as connection:  # a renewal that has not committed yet
        pg.engine.store.renew(connection, [(job.id, job.token)], 30)
        assert hand.rescue() == []  # its row is passed by
    assert hand.rescue() == []
    assert hand.succeed(job)


def test_a_settlement_waits_for_a_rescue_that_was_quicker_and_changes_nothing(
    pg: Duly, clock: ManualClock
) -> None:  # B026
    pg.task("X", backoff=AT_ONCE)(lambda: None).enqueue()
    hand = Hand(pg, lease=2)
    job = hand.one()
    clock.advance(2)
    with pg.db.engine.begin() as connection:
        assert len(pg.engine.store.rescue(connection, NOON.isoformat(), "saviour")) == 1
        late = Later(partial(hand.succeed, job))
        wait_until(lambda: late.is_waiting(pg))
    assert late.result() is False
    assert (pg.jobs.get(job.id).status, actions(pg, job.id)) == (Status.QUEUED, [])


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_effects_in_a_session_are_rolled_back_when_the_lease_is_lost_before_the_commit(
    pg: Duly, kind: str
) -> None:  # B026
    def plain(session: Session, me: Context) -> None:
        session.execute(text("CREATE TABLE mine (id integer)"))
        run_sql(pg, "UPDATE jobs SET lease_token = 1 WHERE id = :id", id=me.job.id)

    async def coroutine(session: AsyncSession, me: Context) -> None:
        await session.execute(text("CREATE TABLE mine (id integer)"))
        await pg.db.arun(run_sql, pg, f"UPDATE jobs SET lease_token = 1 WHERE id = {me.job.id}")

    pg.task("X")(plain if kind == "plain" else coroutine)
    job = pg.enqueue("X").job
    tally = drain(pg)
    assert (tally.lost, tally.succeeded) == (1, 0)
    assert rows(pg, "SELECT to_regclass('mine')") == [(None,)]
    assert (pg.jobs.get(job.id).status, actions(pg, job.id)) == (Status.RUNNING, [])


def test_a_healthy_long_job_is_run_once_beside_other_workers(db_url: str) -> None:  # B028
    app = Duly(db_url, lease=0.5, poll=0.05)
    runs, go = list[int](), threading.Event()

    @app.task("LONG")
    def long() -> None:
        runs.append(1)
        go.wait(2.5)  # five leases

    workers = [app.worker(name=f"w{n}") for n in (1, 2)]
    with working(*workers):
        job = long.enqueue().job
        wait_until(lambda: app.jobs.get(job.id).is_final)
    assert (runs, app.jobs.get(job.id).attempts) == ([1], 1)
    assert attempts(app, job.id) == []
    assert sum(w.tally.lost for w in workers) == 0
    app.close()


def test_a_worker_that_lost_its_lease_interrupts_its_handler(live: Duly) -> None:
    import asyncio

    began, told = threading.Event(), threading.Event()

    @live.task("X", max_attempts=1)
    async def x() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set()
            raise

    worker = live.worker(name="w")
    with working(worker):
        job = x.enqueue().job
        assert began.wait(30)
        run_sql(live, "UPDATE jobs SET lease_token = 1, worker = 'other' WHERE id = :id", id=job.id)
        worker.renew()  # which finds that the job is another's
        assert told.wait(30)
        wait_until(lambda: worker.tally.lost == 1)
        assert live.jobs.get(job.id).worker == "other"
    assert rows(live, "SELECT count(*) FROM attempts") == [(0,)]


def test_a_prefetched_batch_is_renewed_as_a_whole(app: Duly, send: Callable[..., int], clock: ManualClock) -> None:
    for _ in range(5):
        send()
    hand = Hand(app, lease=10)
    jobs = hand.claim(n=5)
    clock.advance(9)
    assert hand.renew(*jobs) == set(ids(jobs))
    assert {job.lease_until for job in app.jobs.find()} == {clock.now() + timedelta(seconds=10)}

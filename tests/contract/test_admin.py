"""What people do to jobs: cancel, replay, prune, look. Guarded, audited, and never across tenants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from contract.hands import (
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
from duly import Context, Duly, InvalidArgument, KeyConflict, NotFound, Status, WrongState
from duly.idempotency import idempotent_task
from duly.jobs.filter import JobFilter
from duly.jobs.prune import prune_expired
from duly.jobs.survey import depths
from duly.kernel.outcome import Outcome
from duly.testing import ManualClock, drain

Send = Callable[..., int]


@pytest.fixture
def send(app: Duly) -> Send:
    @app.task("X", max_attempts=1)
    def x(n: int = 0) -> None: ...

    return lambda n=0, **options: x.using(**options).enqueue(n).job.id


def failed(hand: Hand) -> int:
    """Claim a job and let it fail for good."""
    job = hand.one()
    hand.fail(job, kind=K.REFUSED)
    return job.id


# --- Cancel ------------------------------------------------------------------------------------------------------------


def test_a_waiting_job_that_is_cancelled_ends_at_once(app: Duly, send: Send, hand: Hand) -> None:
    for options in ({}, {"run_in": 60}):
        ident = send(tenant="acme", **options)
        job = app.jobs.cancel(ident, "not needed", actor="cli:ada")
        assert (job.status, job.finished_at) == (Status.CANCELLED, NOON)
        [row] = audit(app, ident)
        assert (row["action"], row["actor"], row["tenant"], row["meta"]) == (
            "JOB_CANCELLED",
            "cli:ada",
            "acme",
            {"reason": "not needed"},
        )
    assert hand.claim() == []


def test_a_running_job_is_asked_to_stop_and_the_asking_is_on_record(
    app: Duly, send: Send, hand: Hand
) -> None:  # R003-9
    ident = send(tenant="acme")
    running = hand.one()
    job = app.jobs.cancel(ident, "wrong address", actor="cli:ada")
    assert (job.status, job.cancel_requested, job.label(NOON)) == (Status.RUNNING, True, "cancelling")
    store = app.engine.store
    assert app.db.read(lambda c: store.cancels(c, [ident])) == [ident]
    assert app.db.write(lambda c: store.renew(c, [(ident, running.token)], 30)) == {ident: True}
    [row] = audit(app, ident)
    assert (row["action"], row["tenant"], row["meta"]) == ("JOB_CANCEL_REQUESTED", "acme", {"reason": "wrong address"})
    hand.end(running, Outcome(K.CANCELLED))
    assert app.jobs.get(ident).status is Status.CANCELLED


@pytest.mark.parametrize("kind", [K.FAILED, K.SNOOZED, K.RELEASED])
def test_a_job_that_was_asked_to_stop_does_not_come_back(app: Duly, send: Send, hand: Hand, kind: K) -> None:
    ident = send(max_attempts=4, key="k", unique_until="done")
    running = hand.one()
    app.jobs.cancel(ident)
    assert hand.end(running, Outcome(kind, after=5))
    assert app.jobs.get(ident).status is Status.CANCELLED
    assert actions(app, ident) == ["JOB_CANCEL_REQUESTED", "JOB_CANCELLED"]
    assert send(key="k", unique_until="done") != ident


def test_a_lost_job_that_was_asked_to_stop_is_not_run_again(app: Duly, send: Send, clock: ManualClock) -> None:
    ident = send(max_attempts=4)
    hand = Hand(app, lease=2)
    hand.one()
    app.jobs.cancel(ident)
    clock.advance(2)
    assert hand.rescue() == [(ident, "cancel")]


def test_a_job_that_succeeds_all_the_same_has_succeeded(app: Duly, send: Send, hand: Hand) -> None:
    ident = send()
    running = hand.one()
    app.jobs.cancel(ident)
    assert hand.succeed(running)
    assert app.jobs.get(ident).status is Status.SUCCEEDED


def test_an_ended_job_cannot_be_cancelled(app: Duly, send: Send, hand: Hand) -> None:
    ident = send()
    hand.succeed(hand.one())
    with pytest.raises(WrongState) as refused:
        app.jobs.cancel(ident)
    assert (refused.value.current, refused.value.event) == ("succeeded", "cancel")
    assert actions(app, ident) == ["X_COMPLETED"]


def test_a_cancel_is_not_lost_when_the_job_goes_back_to_wait_at_that_moment(pg: Duly) -> None:
    pg.task("X")(lambda: None).enqueue()
    hand = Hand(pg)
    job = hand.one()
    from duly.jobs.settle import settle

    retry = settle(job, Outcome(K.FAILED), pg.engine.policy("X"))
    with pg.db.engine.begin() as connection:
        assert pg.engine.store.settle(connection, [retry], "w") == {job.id}
        cancel = Later(lambda: pg.jobs.cancel(job.id))
        wait_until(lambda: cancel.is_waiting(pg))
    assert cancel.result().status is Status.CANCELLED
    assert pg.jobs.get(job.id).status is Status.CANCELLED


def test_a_cancel_that_comes_as_the_job_ends_is_refused(pg: Duly) -> None:
    pg.task("X")(lambda: None).enqueue()
    hand = Hand(pg)
    job = hand.one()
    from duly.jobs.settle import settle

    done = settle(job, Outcome(K.SUCCEEDED, "{}"), pg.engine.policy("X"))
    with pg.db.engine.begin() as connection:
        pg.engine.store.settle(connection, [done], "w")
        cancel = Later(lambda: pg.jobs.cancel(job.id))
        wait_until(lambda: cancel.is_waiting(pg))
    with pytest.raises(WrongState):
        cancel.result()


def test_of_a_claim_and_a_cancel_at_once_both_are_honoured(app: Duly, send: Send) -> None:
    for _ in range(10):
        ident = send()
        got, cancelled = together(lambda: Hand(app).claim(), partial(app.jobs.cancel, ident))
        job = app.jobs.get(ident)
        if got:
            assert job.cancel_requested or job.status is Status.CANCELLED
            assert Hand(app).end(got[0], Outcome(K.CANCELLED))  # type: ignore[index]
        else:
            assert job.status is Status.CANCELLED
        assert not isinstance(cancelled, Exception)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_cancel_reaches_the_handler_that_is_running(live: Duly, kind: str) -> None:
    began, told = threading.Event(), threading.Event()

    async def coroutine() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            told.set()

    def plain(me: Context) -> None:
        began.set()
        while True:
            me.checkpoint()
            threading.Event().wait(0.01)

    live.task("X")(coroutine if kind == "async" else plain)
    worker = live.worker(name="w")
    with working(worker):
        job = live.enqueue("X").job
        assert began.wait(30)
        live.jobs.cancel(job.id)
        wait_until(lambda: live.jobs.get(job.id).is_final)
    assert live.jobs.get(job.id).status is Status.CANCELLED
    assert worker.tally.cancelled == 1
    assert told.is_set() is (kind == "async")


# --- Replay ------------------------------------------------------------------------------------------------------------


def test_a_replayed_job_starts_afresh_under_its_old_number_and_key(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:  # B063, R002-16
    ident = send(7, key="k", priority=3, tenant="acme", concurrency_key="c", meta={"a": 1})
    failed(hand)
    clock.advance(3600)
    job = app.jobs.replay(ident, "provider is back", actor="cli:ada")
    assert (job.id, job.status, job.attempts, job.run_at, job.due_at) == (ident, Status.QUEUED, 0, clock.now(), None)
    assert (job.key, job.input, job.priority, job.tenant, job.concurrency_key, job.meta) == (
        "k",
        {"n": 7},
        3,
        "acme",
        "c",
        {"a": 1},
    )
    assert (job.error, job.output, job.finished_at, job.started_at, job.created_at) == (None, None, None, None, NOON)
    row = audit(app, ident, "JOB_REPLAYED")[0]
    assert (row["actor"], row["tenant"], row["meta"]) == (
        "cli:ada",
        "acme",
        {"reason": "provider is back", "was": "failed"},
    )
    hand.succeed(hand.one())
    assert app.jobs.get(ident).status is Status.SUCCEEDED
    assert [a.outcome for a in attempts(app, ident)] == ["refused"]  # its history stays


def test_only_what_has_ended_can_be_replayed(app: Duly, send: Send, hand: Hand) -> None:  # B063
    ident = send()
    for state in ("queued", "running"):
        with pytest.raises(WrongState) as refused:
            app.jobs.replay(ident)
        assert (refused.value.current, refused.value.event) == (state, "replay")
        job = hand.one() if state == "queued" else None
        if job:
            running = job
    hand.succeed(running)
    with pytest.raises(WrongState):
        app.jobs.replay(ident)
    assert app.jobs.replay(ident, force=True).status is Status.QUEUED
    with pytest.raises(NotFound):
        app.jobs.replay(10**9)


def test_of_two_replays_at_once_one_wins(app: Duly, send: Send, hand: Hand) -> None:  # B063, T002-h
    ident = send()
    failed(hand)
    answers = together(*[lambda: app.jobs.replay(ident)] * 8)
    assert sum(isinstance(a, WrongState) for a in answers) == 7
    assert rows(app, "SELECT count(*) FROM jobs") == [(1,)]
    assert actions(app, ident).count("JOB_REPLAYED") == 1


def test_a_replay_keeps_its_key_taken(app: Duly, send: Send, hand: Hand) -> None:
    for scope in ("forever", "done", "start", timedelta(hours=1)):
        ident = send(key=str(scope), unique_until=scope)
        failed(hand)
        app.jobs.replay(ident)
        again = app.enqueue("X", {"n": 0}, key=str(scope), unique_until=scope, on_conflict="raise")
        assert (again.created, again.job.id) == (False, ident)
        hand.succeed(hand.one())


def test_a_replay_is_refused_when_another_job_has_taken_its_key(app: Duly, send: Send, hand: Hand) -> None:  # B063
    ident = send(key="k", unique_until="done")
    failed(hand)
    other = send(key="k", unique_until="done")
    with pytest.raises(KeyConflict) as conflict:
        app.jobs.replay(ident)
    assert (conflict.value.job_id, conflict.value.replayed) == (other, ident)
    assert str(conflict.value) == (
        f"job {ident} cannot replay: its key 'k' on queue 'default' is taken by job {other}. "
        f"Replay it if job {other} lets go of the key, or enqueue its input again under another key."
    )
    assert app.jobs.get(ident).status is Status.FAILED
    hand.succeed(hand.one())
    assert app.jobs.replay(ident).status is Status.QUEUED


@pytest.mark.parametrize("scope", ["done", "start", timedelta(hours=1)], ids=str)
def test_why_names_no_replay_that_is_refused_and_the_one_that_is_not(
    app: Duly, send: Send, hand: Hand, clock: ManualClock, scope: Any
) -> None:
    ident = send(key="k", unique_until=scope)
    assert {c.name: c for c in app.why(ident)}["uniqueness"].detail == "key 'k' is its own"
    failed(hand)
    assert [c.remedy for c in app.why(ident)] == [f"duly jobs replay {ident}"]
    clock.advance(timedelta(hours=2))
    other = send(key="k", unique_until=scope)
    ended, unique = app.why(ident)
    assert (ended.remedy, unique.name, unique.met) == ("", "uniqueness", False)
    assert unique.detail == f"key 'k' belongs to job {other} by now"
    assert f", then duly jobs replay {ident};" in unique.remedy
    with pytest.raises(KeyConflict):
        app.jobs.replay(ident)
    hand.succeed(hand.one())  # as the remedy says: it has started and has ended, and then its hour is over
    clock.advance(timedelta(hours=2))
    assert [c.remedy for c in app.why(ident)] == [f"duly jobs replay {ident}"]
    assert app.jobs.replay(ident).status is Status.QUEUED


@pytest.mark.parametrize("scope", ["forever", "done", "start", timedelta(hours=1)], ids=str)
@pytest.mark.parametrize("retries", [False, True], ids=["planned", "retrying"])
def test_who_does_as_why_says_of_a_job_that_is_not_due_has_the_same_job_due(
    app: Duly, hand: Hand, scope: Any, retries: bool
) -> None:
    app.task("Y", max_attempts=3)(lambda n: None)
    options: dict[str, Any] = {"key": "k", "unique_until": scope} | ({} if retries else {"run_in": 600})
    ident = app.enqueue("Y", {"n": 1}, **options).job.id
    if retries:
        hand.fail(hand.one(), "no")
    due = app.why(ident)[0]
    assert (due.name, due.met) == ("due", False)
    assert ("waits for its retry" if retries else "is planned for later") in due.detail
    assert f"duly jobs cancel {ident}, then duly jobs replay {ident}" in due.remedy
    app.jobs.cancel(ident)
    assert " --now" in due.remedy
    app.jobs.replay(ident, at_once=True)
    job = app.jobs.get(ident)
    assert (job.input, job.key, job.attempts) == ({"n": 1}, "k", 0)
    assert all(c.met for c in app.why(ident) if c.name != "worker")
    assert hand.one().id == ident


def test_a_retrying_job_that_has_lost_its_key_is_not_to_be_cancelled(app: Duly, hand: Hand) -> None:
    app.task("Y", max_attempts=3)(lambda: None)
    first = app.enqueue("Y", key="k", unique_until="start").job.id
    hand.fail(hand.one())
    other = app.enqueue("Y", key="k", unique_until="start").job.id
    assert app.why(first)[0].remedy == f"wait; once cancelled it could not be replayed, because job {other} has its key"


def test_a_replay_and_an_enqueue_that_race_for_a_key_end_with_one_owner(
    pg: Duly,
) -> None:  # B063: never a raw database error
    from sqlalchemy.orm import Session

    task = pg.task("X", max_attempts=1)(lambda: None)
    ident = task.using(key="k", unique_until="done").enqueue().job.id
    failed(Hand(pg))
    with Session(pg.db.session_engine) as session:
        other = task.using(key="k", unique_until="done", session=session).enqueue().job
        replay = Later(lambda: pg.jobs.replay(ident))
        wait_until(lambda: replay.is_waiting(pg))
        session.commit()
    with pytest.raises(KeyConflict) as conflict:
        replay.result()
    assert conflict.value.job_id == other.id


def test_a_key_for_a_duration_stays_free_once_it_is_over_also_after_a_replay(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:
    ident = send(key="k", unique_until=timedelta(minutes=1))
    failed(hand)
    clock.advance(timedelta(days=2))
    prune_expired(app.db)  # which also removes the key
    app.jobs.replay(ident)
    assert send(key="k") != ident


# --- In bulk -----------------------------------------------------------------------------------------------------------


def test_many_jobs_are_acted_on_each_on_its_own_feet(app: Duly, send: Send, hand: Hand) -> None:
    bad = [send() for _ in range(3)]
    for _ in bad:
        failed(hand)
    good, foreign = send(), send(tenant="other")
    admin = app.jobs.admin
    assert admin.matching(JobFilter(task="X"), "replay") == bad
    assert admin.matching(JobFilter(task="X"), "cancel") == [good, foreign]
    assert admin.matching(JobFilter(status=[Status.SUCCEEDED]), "replay") == []
    done = admin.act_on("replay", [*bad, good, foreign, 10**9], "cli:ada", tenant="default")
    assert done.done == bad
    assert set(done.refused) == {good, foreign, 10**9}
    assert "is queued, so it cannot replay" in done.refused[good]
    assert "there is no job" in done.refused[foreign]
    with pytest.raises(InvalidArgument):
        admin.matching(JobFilter(), "explode")


def test_more_jobs_than_one_portion_are_all_cancelled(app: Duly, send: Send) -> None:
    app.find_task("X").enqueue_many([{}] * 250)
    admin = app.jobs.admin
    assert len(admin.act_on("cancel", admin.matching(JobFilter(), "cancel"), "me").done) == 250
    assert app.jobs.count(status=[Status.CANCELLED]) == 250


# --- Prune -------------------------------------------------------------------------------------------------------------


def test_pruning_removes_what_ended_before_an_instant_with_its_attempts(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:  # T002-p
    old = send()
    failed(hand)
    clock.advance(60)
    young, live = send(), send(run_in=3600)
    failed(hand)
    admin = app.jobs.admin
    assert admin.prune(NOON + timedelta(seconds=1), dry_run=True) == 1
    assert admin.prune(NOON + timedelta(seconds=1)) == 1
    assert {j.id for j in app.jobs.find()} == {young, live}
    assert (attempts(app, old), len(attempts(app, young))) == ([], 1)
    assert actions(app, old) == ["JOB_FAILED_PERMANENT"]  # the trail stays
    assert admin.prune(clock.now() + timedelta(days=1), statuses=[Status.SUCCEEDED]) == 0
    assert admin.prune(clock.now() + timedelta(days=1), statuses=[Status.FAILED]) == 1


def test_what_is_kept_for_ever_is_never_pruned(db_url: str, clock: ManualClock) -> None:
    app = Duly(db_url, clock=clock, retention=0)
    app.task("X")(lambda: None).enqueue()
    drain(app)
    clock.advance(timedelta(days=4000))
    assert prune_expired(app.db) == 0
    assert app.jobs.count() == 1
    app.close()


# --- Tenants -----------------------------------------------------------------------------------------------------------


def test_another_tenants_job_cannot_be_seen_cancelled_or_replayed(app: Duly, send: Send, hand: Hand) -> None:  # R003-9
    ident = send(tenant="acme")
    for act in (app.jobs.get, app.jobs.cancel, app.jobs.replay, app.why):
        with pytest.raises(NotFound):
            act(ident, tenant="other")
    assert app.jobs.get(ident, tenant="acme").status is Status.QUEUED
    failed(hand)
    with pytest.raises(NotFound):
        app.jobs.replay(ident, tenant="other")
    assert app.jobs.replay(ident, tenant="acme").status is Status.QUEUED
    assert app.jobs.cancel(ident, tenant="acme").status is Status.CANCELLED


def test_lists_counts_and_tallies_are_a_tenants_own(app: Duly, send: Send) -> None:  # R003-9
    mine = [send(tenant="acme"), send(tenant="acme", run_in=60)]
    send(tenant="other")
    assert ids(app.jobs.find(tenant="acme")) == mine[::-1]
    assert (app.jobs.count(tenant="acme"), app.jobs.count()) == (2, 3)
    stands = app.db.read(lambda c: depths(c, app.db.present(c), "acme"))
    assert [(one.ready, one.later, one.running) for one in stands] == [(1, 1, 0)]


# --- Looking -----------------------------------------------------------------------------------------------------------


def test_one_list_shows_live_and_ended_jobs_newest_first_page_by_page(
    app: Duly, send: Send, hand: Hand
) -> None:  # B080
    sent = [send() for _ in range(7)]
    for _ in range(3):
        hand.succeed(hand.one())
    hand.one()
    pages, below = list[int](), None
    while page := app.jobs.find(limit=3, below=below):
        pages += ids(page)
        below = page[-1].id
    assert pages == sent[::-1]


@pytest.mark.parametrize("status", ["failed", Status.FAILED, ["failed"], [Status.FAILED, Status.CANCELLED]])
def test_a_list_can_be_asked_for_one_status_or_several(app: Duly, send: Send, hand: Hand, status: Any) -> None:
    ident = send()
    failed(hand)
    send()
    assert ids(app.jobs.find(status=status)) == [ident]
    assert app.jobs.count(status=status) == 1


def test_a_status_that_does_not_exist_is_refused(app: Duly) -> None:
    for status in ("finished", ["failed", "finished"]):
        with pytest.raises(InvalidArgument, match="status: is 'finished'"):
            app.jobs.find(status=status)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_that_makes_no_sense_is_refused(app: Duly, limit: int) -> None:  # B080
    with pytest.raises(InvalidArgument, match="limit"):
        app.jobs.find(limit=limit)


def test_filters_hold_together(app: Duly, send: Send, clock: ManualClock) -> None:
    a = send(key="a", queue="q")
    clock.advance(60)
    b = send(key="b", queue="q")
    parent = send(parent=a)
    assert ids(app.jobs.find(queue="q", key="b")) == [b]
    assert ids(app.jobs.find(parent_id=a)) == [parent]
    assert ids(app.jobs.find(since=NOON + timedelta(seconds=1), queue="q")) == [b]
    assert ids(app.jobs.find(before=NOON + timedelta(seconds=1))) == [a]
    assert ids(app.jobs.find(ids=[a, 10**9])) == [a]
    assert app.jobs.find(task="Y") == []


def test_a_job_that_does_not_exist_is_said_so(app: Duly) -> None:
    with pytest.raises(NotFound, match="there is no job 7"):
        app.jobs.get(7)


def test_why_asks_the_same_gate_as_the_claim(app: Duly, send: Send, hand: Hand, clock: ManualClock) -> None:
    def unmet(ident: int) -> list[str]:
        return [c.name for c in app.why(ident) if not c.met and c.name != "worker"]

    app.queues.set("default", limit=1, key_limit=1, rate=(1, 60))
    first, second = send(concurrency_key="k"), send(concurrency_key="k", run_in=5)
    assert unmet(first) == []
    running = hand.one()
    assert unmet(second) == ["due", "limit", "rate", "concurrency key"]
    assert app.why(first)[0].name == "running"
    app.queues.pause("default")
    app.gate.offline()
    clock.advance(120)
    hand.succeed(running)
    assert unmet(second) == ["gate", "paused"]
    app.gate.online()
    app.queues.resume("default")
    assert ids(hand.claim()) == [second]
    assert app.why(first)[0].name == "ended"


def test_why_counts_who_comes_first_and_sees_who_works(live: Duly) -> None:
    task = live.task("X")(lambda: None)
    idents = [task.using(run_in=3600).enqueue().job.id for _ in range(3)]
    with working(live.worker(name="w1")):
        wait_until(lambda: rows(live, "SELECT name FROM workers") == [("w1",)])
        checks = {c.name: c for c in live.why(idents[-1])}
        assert checks["worker"].met
        assert "w1" in checks["worker"].detail
    assert not {c.name: c for c in live.why(idents[-1])}["worker"].met  # it said goodbye
    run_sql(live, "UPDATE jobs SET due_at = NULL")
    assert {c.name: c for c in live.why(idents[-1])}["turn"].detail == "2 ready job(s) of this queue come first"


def test_the_view_of_all_jobs_shows_one_life(app: Duly, send: Send, hand: Hand) -> None:
    done, live = send(), send()
    hand.succeed(hand.one())
    found = app.db.read(lambda c: c.execute(text("SELECT id, status, attempts FROM all_jobs ORDER BY id")).all())
    assert [tuple(row) for row in found] == [(done, "succeeded", 1), (live, "queued", 0)]


def test_a_filter_never_replays_what_a_person_cancelled(app: Duly, send: Send, hand: Hand) -> None:  # R002-25
    broken = send()
    failed(hand)
    withdrawn = send(run_in=3600)
    app.jobs.cancel(withdrawn, "wrong price", actor="cli:ada")
    admin = app.jobs.admin
    assert admin.matching(JobFilter(task="X"), "replay") == [broken]
    assert admin.matching(JobFilter(ids=(broken, withdrawn)), "replay") == [broken, withdrawn]
    with pytest.raises(InvalidArgument, match="Replay a cancelled job by its id"):
        admin.matching(JobFilter(task="X", status=("failed", "cancelled")), "replay")
    # cancelled between the look and the act
    bulk = admin.act_on("replay", [withdrawn], "cli:bob", fits=JobFilter(task="X"))
    assert (bulk.done, withdrawn in bulk.refused) == ([], True)
    assert app.db.read(lambda c: app.engine.reader.cancelled_by(c, [withdrawn])) == {
        withdrawn: ("cli:ada", "wrong price")
    }


def test_a_cancelled_job_that_is_replayed_goes_back_to_its_planned_instant(
    app: Duly, send: Send, hand: Hand, clock: ManualClock
) -> None:  # R002-25
    ident = send(run_in=3600)
    app.jobs.cancel(ident, actor="cli:ada")
    clock.advance(60)
    job = app.jobs.replay(ident, actor="cli:ada")
    assert (job.status, job.run_at, job.due_at) == (Status.QUEUED, NOON + timedelta(hours=1), NOON + timedelta(hours=1))
    assert hand.claim() == []
    app.jobs.cancel(ident)
    clock.advance(timedelta(hours=2))
    assert app.jobs.replay(ident).due_at is None


def test_a_forced_replay_runs_the_body_of_an_idempotent_task_again_and_nothing_else_does(
    app: Duly, clock: ManualClock
) -> None:  # F9
    ran: list[int] = []

    @app.task("ONCE", max_attempts=1)
    @idempotent_task
    def once(n: int) -> int:
        ran.append(n)
        return len(ran)

    first, twin = once.using(meta={"of": "ann"}).enqueue(7).job.id, once.enqueue(7).job.id
    drain(app)
    assert len(ran) == 1
    for count in (2, 3):
        app.jobs.replay(first, "the printer was empty", actor="cli:ann", force=True)
        drain(app)
        assert (len(ran), app.jobs.get(first).output) == (count, count)
    assert app.jobs.get(first).meta == {"of": "ann", "forced_replay": f"{first}:2"}
    # the run is delivered again after its body has succeeded: its own success counts
    app.db.write(lambda c: c.execute(text(f"UPDATE jobs_done SET status = 'failed' WHERE id = {first}")))
    app.jobs.replay(first)
    # and another job's call is what it was, even where the mark was copied
    other = once.using(meta=app.jobs.get(first).meta).enqueue(7).job.id
    drain(app)
    assert [app.jobs.get(one).output for one in (first, other, twin)] == [3, 3, 1]
    assert len(ran) == 3
    # in bulk, too
    app.jobs.admin.act_on("replay", [twin], "cli:ann", "and this one", force=True)
    drain(app)
    assert (len(ran), app.jobs.get(twin).output) == (4, 4)
    acts = audit(app, twin, "JOB_REPLAYED")
    assert [(one["actor"], one["meta"]["reason"], one["meta"]["forced"]) for one in acts] == [
        ("cli:ann", "and this one", True)
    ]

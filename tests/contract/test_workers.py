"""Workers at work: once each, in order, beside each other, and away in good order."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from contract.hands import AT_ONCE, Later, actions, attempts, ids, rows, wait_until, working
from duly import Context, Duly, Status, Worker
from duly.jobs.run import Run
from duly.jobs.settle import Claimed
from duly.kernel.errors import DatabaseUnavailable
from duly.kernel.events import Event
from duly.testing import drain

SUCCEEDED = [Status.SUCCEEDED]


def test_ten_workers_and_one_that_runs_it_now_call_the_provider_once(live: Duly) -> None:  # B054
    calls: list[int] = []

    @live.task("PUBLISH")
    def publish(me: Context) -> None:
        calls.append(me.job.attempts)
        threading.Event().wait(0.1)  # the provider takes its time

    workers = [live.worker({"default": 2}, name=f"w{n}") for n in range(10)]
    with working(*workers):
        job = publish.enqueue().job  # type: ignore[call-arg]
        now = Later(lambda: drain(live))
        wait_until(lambda: live.jobs.get(job.id).is_final)
        now.result()
    assert (calls, live.jobs.get(job.id).attempts) == ([1], 1)
    assert actions(live, job.id) == ["PUBLISH_COMPLETED"]


def test_a_worker_starts_jobs_in_order(live: Duly) -> None:  # R003-3
    order: list[str] = []

    @live.task("X")
    def x(name: str) -> None:
        order.append(name)

    for name, priority in (("c", 0), ("a", 5), ("e", -1), ("d", 0), ("b", 5)):
        x.using(priority=priority).enqueue(name)
    with working(live.worker({"default": 1})):
        wait_until(lambda: live.jobs.count(status=SUCCEEDED) == 5)
    assert order == list("abcde")


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_worker_never_runs_more_at_once_than_its_slots(live: Duly, kind: str) -> None:
    lock, at_once, most = threading.Lock(), 0, 0

    def enter(step: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += step
            most = max(most, at_once)

    async def coroutine() -> None:
        enter(1)
        await asyncio.sleep(0.005)
        enter(-1)

    def plain() -> None:
        enter(1)
        threading.Event().wait(0.005)
        enter(-1)

    live.task("X")(coroutine if kind == "async" else plain).enqueue_many([{}] * 60)
    with working(live.worker({"default": 3})):
        wait_until(lambda: live.jobs.count(status=SUCCEEDED) == 60)
    assert most == 3


def test_a_worker_takes_work_of_its_queues_and_tasks_only(live: Duly) -> None:  # R003-3
    mine = live.task("MINE")(lambda: None)
    other = live.enqueue("OTHER").job
    elsewhere = mine.using(queue="elsewhere").enqueue().job
    done = mine.enqueue().job
    with working(live.worker(["default"])):
        wait_until(lambda: live.jobs.get(done.id).is_final)
    assert [live.jobs.get(j.id).attempts for j in (other, elsewhere)] == [0, 0]


def test_a_worker_wakes_when_a_job_is_enqueued_by_another_program(db_url: str) -> None:
    app, elsewhere = Duly(db_url, poll=60), Duly(db_url, poll=60)
    ran = threading.Event()
    app.task("X")(ran.set)
    with working(app.worker()) as _:
        wait_until(lambda: rows(app, "SELECT count(*) FROM workers") == [(1,)])
        elsewhere.enqueue("X")
        assert ran.wait(20)
    app.close()
    elsewhere.close()


def test_a_worker_wakes_for_a_job_that_becomes_due(db_url: str) -> None:  # R003-4
    app = Duly(db_url, poll=60)
    ran = threading.Event()
    app.task("X")(ran.set).using(run_in=0.3).enqueue()
    with working(app.worker()):
        assert ran.wait(20)
    app.close()


def test_a_worker_ends_by_itself_once_nothing_is_left(live: Duly) -> None:
    runs: list[int] = []

    @live.task("X", backoff=AT_ONCE, max_attempts=3)
    def x(n: int) -> None:
        runs.append(n)
        if n:
            x.enqueue(n - 1)
        else:
            raise ValueError

    x.enqueue(3)
    live.enqueue("UNKNOWN")
    live.queues.pause("paused")
    x.using(queue="paused").enqueue(0)
    x.using(run_in=timedelta(hours=1)).enqueue(0)
    tally = live.worker(["default", "paused"]).run(until_idle=True)
    assert runs == [3, 2, 1, 0, 0, 0]
    assert (tally.succeeded, tally.retried, tally.failed) == (3, 2, 1)


def test_a_worker_that_ends_by_itself_may_wait_for_what_is_due_soon(live: Duly) -> None:
    task = live.task("X")(lambda: None)
    soon, late = task.using(run_in=0.4).enqueue().job, task.using(run_in=3600).enqueue().job
    assert live.worker().run(until_idle=5.0).succeeded == 1
    assert (live.jobs.get(soon.id).status, live.jobs.get(late.id).status) == (Status.SUCCEEDED, Status.QUEUED)


def test_a_worker_that_stops_ends_what_runs_and_gives_back_what_it_only_held(
    db_url: str,
) -> None:  # B032, HOUSE decision 5
    app = Duly(db_url, poll=0.05, lease=1)
    began, go = threading.Event(), threading.Event()

    @app.task("X")
    def x() -> str:
        began.set()
        assert go.wait(30)
        return "whole"

    worker = app.worker({"default": 1}, name="w")
    worker.lanes["default"].pace = 1000.0  # as if it had seen short jobs until now: it claims ahead
    worker.lanes["default"].seen_at = 1e18
    idents = ids([m.job for m in x.enqueue_many([{}] * 10)])
    with working(worker):
        assert began.wait(30)
        wait_until(lambda: rows(app, "SELECT count(*) FROM jobs WHERE status = 'running'") != [(1,)])
        worker.stop()
        wait_until(lambda: worker.state == "draining")
        wait_until(lambda: rows(app, "SELECT count(*) FROM jobs WHERE status = 'running'") == [(1,)])
        lapsed = "SELECT count(*) FROM jobs WHERE status = 'running' AND lease_until = :u"
        [(until,)] = rows(app, "SELECT lease_until FROM jobs WHERE status = 'running'")
        wait_until(lambda: rows(app, lapsed, u=until) == [(0,)])  # the lease is renewed also while draining
        go.set()
    first, *rest = (app.jobs.get(i) for i in idents)
    assert (first.status, first.output, first.attempts) == (Status.SUCCEEDED, "whole", 1)
    assert {(j.status, j.attempts) for j in rest} == {(Status.QUEUED, 0)}
    assert rows(app, "SELECT count(*) FROM attempts") == [(0,)]
    assert rows(app, "SELECT count(*) FROM workers") == [(0,)]
    app.close()


def test_what_does_not_end_within_the_grace_is_interrupted_and_given_back(db_url: str) -> None:
    app = Duly(db_url, poll=0.05, grace=0.1)
    began, interrupted = threading.Event(), threading.Event()

    @app.task("X")
    async def x() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            interrupted.set()
            raise

    ident = x.enqueue().job.id
    with working(app.worker(name="w")):
        assert began.wait(30)
    job = app.jobs.get(ident)
    assert interrupted.is_set()
    assert (job.status, job.attempts, attempts(app, ident)) == (Status.QUEUED, 0, [])
    app.close()


def test_events_tell_a_life_without_a_word_of_its_input(live: Duly) -> None:  # HOUSE decision 11
    heard: list[Event] = []
    live.listen(heard.append)

    @live.task("X", max_attempts=2, backoff=AT_ONCE)
    def x(secret: str) -> str:
        raise ValueError(f"not {secret}")

    job = x.enqueue("hunter2").job
    with working(live.worker(name="w")):
        wait_until(lambda: live.jobs.get(job.id).is_final)
    names = [e.name for e in heard]
    for name in ("worker_started", "jobs_claimed", "job_retry", "job_failed", "jobs_settled", "worker_stopped"):
        assert name in names
    assert "hunter2" not in repr(heard)
    failed = next(e for e in heard if e.name == "job_failed")
    assert (failed.level, failed.facts["job"], failed.facts["error"], failed.facts["attempt"]) == (
        "error",
        job.id,
        "ValueError",
        2,
    )


def test_a_worker_leaves_the_collector_as_it_found_it(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.task("hello")(lambda: None)
    thresholds = gc.get_threshold()
    assert gc.get_freeze_count()  # the suite has set its own things aside: a worker does not undo that
    app.worker().run(until_idle=True)
    assert gc.get_freeze_count()
    gc.unfreeze()
    try:
        app.worker().run(until_idle=True)
        assert not gc.get_freeze_count()
    finally:
        gc.freeze()
    assert gc.get_threshold() == thresholds
    app.close()


def test_on_sqlite_a_claim_is_left_to_the_settler_while_it_writes(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.task("X")(lambda: None)
    worker, asked = app.worker(), []
    worker._claim_all = lambda: (asked.append(True), (0, 1))[1]  # type: ignore[method-assign]
    worker._next_due, worker._fused, worker.house.governed = math.inf, True, frozenset()

    def claims() -> bool:
        asked.clear()
        worker._bell.ring()  # so that nothing waits
        worker._claim_step()
        return bool(asked)

    assert claims()
    worker._writing = True
    assert not claims()
    worker.house.governed = frozenset({"X"})  # the settler does not claim of such queues
    assert claims()
    worker.house.governed = frozenset()
    worker._writing = False
    [lane] = worker.lanes.values()
    worker._over.append(Run(claimed(1), None, lane, 0.0))  # something waits for the settler, which is about to write
    assert not claims()
    worker._over.clear()
    assert claims()
    lane.transit = 1  # jobs are at hand, so the settler will come soon
    assert not claims()
    worker._batches += 1  # it did, and there are still some
    assert not claims()
    assert claims()  # this time it did not come: they are slow
    lane.transit = 0
    lane.buffer.append((None, 0.0))
    assert not claims()
    worker._batches += 1
    lane.running = lane.concurrency  # they wait for a slot, and that may take long
    assert claims()
    lane.buffer.clear()
    worker.house.close()
    worker._bell.close()
    app.close()


def test_room_that_has_come_asks_nobody_what_becomes_due(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.task("X")(lambda: None)
    worker, asked = app.worker(), []
    worker._promote = lambda: asked.append(True) or 0  # type: ignore[method-assign,func-returns-value]
    worker._claim_all = lambda: (0, 0)  # type: ignore[method-assign]
    worker._next_due = math.inf

    def looks(wake: Callable[[], None]) -> bool:
        worker._rang = worker._bell.called = False
        wake()
        worker._claim_step()  # sleeps, and is woken at once
        worker._bell.nudge()
        asked.clear()
        worker._claim_step()
        return bool(asked)

    assert not looks(worker._bell.nudge)
    assert looks(worker._bell.ring)  # also without room: something may be due sooner than was known
    worker.house.close()
    worker._bell.close()
    app.close()


def claimed(ident: int) -> Claimed:
    return Claimed(ident, "default", "default", "X", "{}", 1, 4, 0, None, None, 0.0, None, None, None, None, None)


def test_what_ended_is_settled_a_batch_at_a_time_and_a_job_stands_in_a_batch_once(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.task("X")(lambda: None)
    worker = app.worker()
    [lane] = worker.lanes.values()
    worker.batch = 3

    def ended(*idents: int) -> None:
        worker._put_back([Run(claimed(ident), None, lane, 0.0) for ident in idents])

    def batch() -> list[int]:
        return [run.claimed.id for run in worker._gather()]

    ended(1, 2)
    ended(3, 4, 5, 6, 7)
    assert [batch(), batch(), batch()] == [[1, 2, 3], [4, 5, 6], [7]]
    ended(1, 1, 2)  # claimed here again before its first end was written
    ended(3)
    assert [batch(), batch()] == [[1, 2], [1, 3]]
    worker._settler_bell.set()  # the end of the worker
    assert batch() == []
    worker.house.close()
    worker._bell.close()
    app.close()


def test_what_has_ended_is_written_while_another_handler_holds_the_loop(live: Duly) -> None:
    written: list[list[int]] = []

    @live.task("X")
    async def x(n: int) -> None:
        if n == 1:  # the loop hears of nobody meanwhile
            for _ in range(500):
                written.append([job.id for job in live.jobs.find(status=SUCCEEDED)])
                if written[-1]:
                    break
                time.sleep(0.01)

    first, second = x.enqueue_many([{"n": 0}, {"n": 1}])
    with working(live.worker({"default": 2})):
        wait_until(lambda: live.jobs.get(second.job.id).is_final)
    assert written[-1] == [first.job.id]


def test_a_full_worker_hears_of_what_becomes_due(db_url: str) -> None:
    live = Duly(db_url, poll=3600.0)  # looking now and then does not help it
    order: list[str] = []
    go = threading.Event()

    @live.task("X")
    def x(name: str) -> None:
        order.append(name)
        go.wait(60)

    with working(live.worker({"default": 1})):
        x.enqueue("first")
        wait_until(lambda: order == ["first"])
        soon = x.using(run_in=timedelta(seconds=0.2), priority=9).enqueue("urgent").job
        # due and ready although this worker, the only one, has no slot: others may have
        wait_until(lambda: live.jobs.get(soon.id).due_at is None)
        assert order == ["first"]
        go.set()
        wait_until(lambda: live.jobs.count(status=SUCCEEDED) == 2)
    live.close()


def test_a_worker_that_ends_because_nothing_is_left_does_what_it_put_off(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    x = app.task("X")(lambda: None)
    x.enqueue()
    x.using(
        run_in=timedelta(minutes=10)
    ).enqueue()  # is waited for by one that runs until nothing is due within an hour
    done: list[str] = []

    def watched() -> Worker:
        worker = app.worker()
        for duty in worker.house.duties:
            if duty.name in ("prune", "parents", "alerts", "reservations"):
                duty.act = lambda name=duty.name: done.append(name)  # type: ignore[misc]
        return worker

    told = watched()
    deaf = app.listen(lambda event: told.stop() if event.name == "jobs_settled" else None)
    told.run(until_idle=3600.0)
    deaf()
    assert done == []  # whoever told it to stop is not kept waiting
    watched().run(until_idle=True)
    assert sorted(done) == ["alerts", "parents", "prune", "reservations"]
    app.close()


def test_a_worker_that_starts_turns_to_the_jobs_before_what_nobody_waits_for(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.task("X")(lambda: None)
    house, done = app.worker().house, []
    for duty in house.duties:
        duty.act = lambda name=duty.name: done.append(name)  # type: ignore[misc]
    house.wake()
    house.step()
    assert {"controls", "presence", "rescue", "blackouts", "schedules"} <= set(done)
    assert not {"alerts", "parents", "prune", "reservations", "seal"} & set(done)
    later = {duty.name: duty.due for duty in house.duties}
    assert later["prune"] > later["seal"] > later["controls"]
    house.close()
    app.close()


def test_a_worker_takes_fewer_at_once_where_nobody_else_writes_meanwhile(sqlite_url: str, pg_url: str) -> None:
    def batch(url: str, **settings: int) -> int:
        app = Duly(url, **settings)  # type: ignore[arg-type]
        app.task("X")(lambda: None)
        worker = app.worker()
        worker._bell.close()
        app.close()
        return worker.batch

    assert (batch(sqlite_url), batch(pg_url)) == (500, 1000)
    assert (batch(sqlite_url, claim_batch=7), batch(pg_url, claim_batch=7)) == (7, 7)


def test_sealing_leaves_off_while_jobs_come_by_the_hundred(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    app.task("X")(lambda: None)
    worker, sealed = app.worker(), []
    house = worker.house
    worker.tally.claimed = 0

    def seal(_limit: int) -> int:
        sealed.append(True)
        if len(sealed) == 2:
            worker.tally.claimed += 1000
        return 1

    house._sealer.seal = seal  # type: ignore[method-assign]
    house.seal()
    assert len(sealed) == 3
    house.close()
    worker._bell.close()
    app.close()


def test_a_stop_that_comes_before_the_worker_began_is_heard(live: Duly) -> None:  # issue 16, C4
    live.task("X")(lambda: None)
    worker = live.worker()
    worker.stop()
    worker.run()  # ends by itself
    assert worker.state == "stopped"


def test_a_worker_says_goodbye_again_when_the_database_takes_writes_again(
    live: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:  # issue 16, C4
    live.task("X")(lambda: None)
    worker = live.worker()
    worker.house.presence()
    goodbye, tries = worker.house.say_goodbye, []

    def refused() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise DatabaseUnavailable("no writes")
        goodbye()

    monkeypatch.setattr(worker.house, "say_goodbye", refused)
    worker.run(until_idle=True)
    assert rows(live, "SELECT count(*) FROM workers") == [(0,)]


def test_a_worker_whose_writes_fail_is_not_ready_until_one_succeeds_although_it_can_read(
    live: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:  # C013
    live.task("X")(lambda: None)
    worker = live.worker()
    full, write = threading.Event(), live.db.write

    def refused(fn: Any) -> Any:
        if full.is_set():
            raise DatabaseUnavailable("database or disk is full")
        return write(fn)

    full.set()
    monkeypatch.setattr(live.db, "write", refused)
    seen: list[bool] = []
    for _ in range(6):
        try:
            worker.house.step()
        except DatabaseUnavailable:
            seen.append(False)
        else:
            seen.append(True)
    assert not any(seen)
    full.clear()
    worker.house.step()
    worker.house.close()

"""PostgreSQL goes away and comes back: the worker outlasts it, says so, and loses nothing (B034)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psycopg
import pytest

from crash.program import BOOKS
from crash.scene import Scene
from duly import DatabaseUnavailable
from servers import PostgresServer, Stop


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_worker_outlasts_a_database_that_stops_in_the_middle_of_its_work(
    own_postgres: PostgresServer, make_scene: Callable[..., Scene], mode: Stop
) -> None:  # B034
    scene = make_scene(own_postgres.url, lease=60)
    long = scene.enqueue("WORK", "long", seconds=1.5)
    jobs = [made.job.id for made in scene.app.enqueue_many("WORK", [{"seconds": 0.02}] * 400)]
    worker = scene.worker("w", {"default": 5, "long": 1})
    scene.wait(lambda: len(scene.lines("effect")) > 50, 20, "some work to be done")
    own_postgres.stop(mode)

    scene.wait(lambda: not scene.is_ready("w"), 10, "the worker to say that it is not ready")
    scene.wait(lambda: scene.events("loop_failed"), 10, "a loop to say that it failed")
    scene.wait(lambda: scene.lines("end", job=long.id), 10, "the long job to end during the outage")
    scene.wait(lambda: scene.events("settle_failed"), 10, "an outcome that cannot be written")
    began = time.monotonic()
    with pytest.raises(DatabaseUnavailable):
        scene.app.enqueue("WORK")
    assert time.monotonic() - began < 60  # it does not wait for the database
    assert worker.alive

    own_postgres.start()
    fresh = scene.enqueue("WORK")
    scene.wait_for_end([fresh.id], 10)
    scene.wait(lambda: scene.is_ready("w"), 10, "the worker to be ready again")
    scene.wait_for_end(seconds=20)
    assert scene.check([*jobs, long.id, fresh.id]) == []
    assert (scene.effects(long.id), scene.attempts(long.id)) == ([1], [])
    failed = {x["_loop"] for x in scene.events("loop_failed")}
    recovered = {x["_loop"] for x in scene.events("loop_recovered")}
    assert failed
    assert failed <= recovered
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


def test_a_worker_that_waits_longest_for_a_database_runs_a_job_within_ten_seconds_of_its_return(
    own_postgres: PostgresServer, make_scene: Callable[..., Scene]
) -> None:
    """B034: the pause between two tries has grown to its full length. Meanwhile SIGTERM is heard at once, also by a
    worker that holds an outcome which it cannot write; that job is rescued, and its attempt is on record as lost."""
    scene = make_scene(own_postgres.url, lease=2, grace=1)
    patient = scene.worker("patient")
    idle = scene.worker("idle", {"another": 5})
    laden = scene.worker("laden", {"laden": 5})
    unwritten = scene.enqueue("WORK", "laden", seconds=0.5)
    scene.wait(lambda: scene.lines("begin", job=unwritten.id), 10, "the job to begin")
    own_postgres.stop("fast")

    scene.wait(lambda: [x for x in scene.events("loop_failed", who="idle") if x["_failures"] > 3], 10, "failures")
    idle.signal(signal.SIGTERM)
    assert idle.ended(10) == 0
    scene.wait(lambda: scene.events("settle_failed", who="laden"), 10, "an outcome that cannot be written")
    laden.signal(signal.SIGTERM)
    assert laden.ended(15) == 0

    full = lambda: [x for x in scene.events("loop_failed", who="patient", _loop="claim") if x["_failures"] >= 7]  # noqa: E731
    scene.wait(full, 15, "the longest pause")
    own_postgres.start()
    job = scene.enqueue("WORK")
    scene.wait_for_end([job.id], 10)
    scene.wait(lambda: scene.is_ready("patient"), 10, "the worker to be ready")
    heir = scene.worker("heir", {"laden": 5})
    scene.wait_for_end()
    assert scene.check([job.id, unwritten.id]) == []
    assert [(a.outcome, a.worker) for a in scene.attempts(unwritten.id)] == [("lost", "laden")]
    for worker in (patient, heir):
        worker.signal(signal.SIGTERM)
    assert [worker.ended() for worker in (patient, heir)] == [0, 0]


def test_a_worker_survives_the_loss_of_any_of_its_connections(pg_url: str, make_scene: Callable[..., Scene]) -> None:
    """B034: one after the other, its listener included, each while a job runs. A poll takes longer than this test, so
    the last job shows that notifications are heard again."""
    scene = make_scene(pg_url, lease=60)
    scene.app.open()
    scene.app.close()
    worker = scene.worker("w", poll=600)
    with psycopg.connect(pg_url, autocommit=True) as admin:
        ours = "application_name LIKE 'duly%' AND datname = current_database()"

        def connections() -> dict[int, str]:
            return dict(admin.execute(f"SELECT pid, application_name FROM pg_stat_activity WHERE {ours}").fetchall())

        scene.wait(lambda: "duly-listen" in connections().values() and len(connections()) > 2, 10, "connections")
        victims = connections()
        jobs = []
        for pid in victims:
            jobs.append(scene.enqueue("WORK", seconds=0.2).id)
            scene.wait(lambda: scene.lines("begin", job=jobs[-1]), 10, "the job to begin")
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
            scene.wait_for_end(jobs, 10)
        scene.app.close()
        scene.wait(lambda: "duly-listen" in connections().values(), 10, "the listener")
        assert not connections().keys() & victims.keys()
    jobs.append(scene.enqueue("WORK").id)
    scene.wait_for_end(jobs, 10)
    assert scene.check(jobs, most=1) == []
    assert [scene.attempts(job) for job in jobs] == [[]] * len(jobs)
    scene.wait(lambda: scene.is_ready("w"), 10, "the worker to be ready")
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


def test_a_caller_does_not_notice_that_its_idle_connections_were_closed(
    pg_url: str, make_scene: Callable[..., Scene]
) -> None:
    """B034: after a restart of the server, a web process enqueues at its first try."""
    scene = make_scene(pg_url)
    with psycopg.connect(pg_url, autocommit=True) as admin:
        ours = "FROM pg_stat_activity WHERE application_name = 'duly' AND datname = current_database()"
        for key in (None, "with a key"):
            scene.enqueue("WORK", options={"key": key})
            admin.execute(f"SELECT pg_terminate_backend(pid) {ours}")
            scene.wait(lambda: admin.execute(f"SELECT count(*) {ours}").fetchall() == [(0,)], 10, "their end")
        scene.enqueue("WORK")
    assert scene.app.jobs.count() == 3


def test_a_transaction_that_is_cut_off_under_its_handler_is_tried_again(
    pg_url: str, make_scene: Callable[..., Scene]
) -> None:  # B034
    scene = make_scene(pg_url, lease=60)
    scene.change(BOOKS)
    jobs = [scene.enqueue(task, seconds=30).id for task in ("BOOK", "ABOOK")]
    scene.worker("w")
    with psycopg.connect(pg_url, autocommit=True) as admin:
        hung = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep(%'"

        def cut() -> int:
            return len(admin.execute(f"SELECT pg_terminate_backend(pid) {hung}").fetchall())

        scene.wait(lambda: admin.execute(f"SELECT count(*) {hung}").fetchall() == [(2,)], 10, "two transactions")
        assert cut() == 2
    scene.wait_for_end(seconds=20)
    assert scene.check(jobs) == []
    assert [[a.outcome for a in scene.attempts(job)] for job in jobs] == [["failed"], ["failed"]]
    assert sorted(scene.sql("SELECT job, attempt FROM books")) == [(job, 2) for job in jobs]

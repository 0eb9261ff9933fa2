"""A Celery fleet runs Duly's jobs: each by whoever holds its lease, whatever becomes of messages, processes and broker.

Every fleet here is a Celery worker in processes of its own, on a real Valkey. R004-12, T004-c, T004-d.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from contract.hands import actions, attempts, audit
from duly import Status
from duly.integrations.celery.dispatcher import _Broker
from integrations.celery_scene import TESTS, Scene
from servers import PostgresServer, ValkeyServer

pytestmark = pytest.mark.timeout(180)


def states(scene: Scene, *jobs: int) -> list[str]:
    return [str(scene.job(ident).status) for ident in jobs]


def in_the_broker(scene: Scene) -> int:
    """How many messages it has that nobody has acknowledged: those that wait, and those that a fleet has received."""
    with redis.Redis.from_url(scene.broker) as client:
        return int(client.llen("celery")) + int(client.hlen("unacked"))  # type: ignore[arg-type]


# --- Ends of runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pool", [("-P", "prefork", "-c", "2"), ("-P", "threads", "-c", "3")], ids=["prefork", "threads"]
)
def test_a_fleet_runs_jobs_as_a_worker_does(scene: Scene, pool: tuple[str, ...]) -> None:
    scene.fleet(*pool)
    works = [scene.enqueue("WORK") for _ in range(4)]
    waits, apart, book = scene.enqueue("WAIT"), scene.enqueue("APART"), scene.enqueue("BOOK")
    fails, refused, slow = scene.enqueue("FAIL_ONCE"), scene.enqueue("REFUSE"), scene.enqueue("LINGER")
    snoozed = scene.enqueue("SNOOZE_ONCE")
    with scene.dispatching() as dispatcher:
        scene.wait_for_end(*works, waits, apart, book, fails, refused, slow, snoozed)
        scene.wait(lambda: dispatcher.unfinished == 0, "the dispatcher to let go of everything")

    good = [*works, waits, apart, book, fails, snoozed]
    assert states(scene, *good) == ["succeeded"] * len(good)
    assert states(scene, refused, slow) == ["failed", "failed"]
    for ident in works:
        job = scene.job(ident)
        assert scene.begun(ident) == [1]
        assert job.worker is not None
        assert job.worker.startswith("fleet@")
        assert job.output == {"by": job.worker, "attempt": 1}
        assert [(row["actor"], row["action"]) for row in audit(scene.app, ident)] == [(job.worker, "WORK_COMPLETED")]
    assert scene.job(fails).output == "the second time"
    assert [(a.attempt, a.outcome, a.error["type"]) for a in attempts(scene.app, fails)] == [
        (1, "failed", "ValueError")
    ]
    assert (scene.job(refused).attempts, scene.job(refused).error["type"]) == (1, "PermanentError")
    assert actions(scene.app, refused) == ["JOB_FAILED_PERMANENT"]
    assert scene.job(slow).error["type"] == "Timeout"
    assert scene.lines("interrupted", job=slow)
    assert (scene.job(snoozed).attempts, scene.begun(snoozed), scene.job(snoozed).cost_cents) == (1, [1, 1], 7)
    assert scene.rows("SELECT value FROM system_state WHERE key = 'booked'") == [("yes",)]
    assert scene.job(apart).output in {line["pid"] for line in scene.lines("message")}  # a child of the pool's process


def test_a_running_job_can_be_cancelled(scene: Scene) -> None:
    scene.fleet()
    ident = scene.enqueue("LINGER_ON")
    with scene.dispatching():
        scene.wait_for("begin", ident)
        scene.app.jobs.cancel(ident)
        scene.wait_for_end(ident)
    assert states(scene, ident) == ["cancelled"]
    assert scene.lines("interrupted", job=ident)


def test_the_limits_of_celery_hold_where_a_task_has_no_timeout(scene: Scene) -> None:
    scene.fleet("-P", "prefork", "-c", "2", time_limit=4, visibility_timeout=60)
    told, stubborn = scene.enqueue("LINGER_ON"), scene.enqueue("STUBBORN")
    with scene.dispatching():
        scene.wait_for_end(told)
        scene.wait(lambda: "Hard time limit" in scene._fleet[0].log.read_text(), "the end of the stubborn one")
        scene.lapse(stubborn)
        scene.wait_for_end(stubborn)
    assert scene.job(told).error["type"] == "Timeout"
    assert scene.job(stubborn).error["type"] == "WorkerLost"
    assert states(scene, told, stubborn) == ["failed", "failed"]


def test_a_job_of_a_task_that_the_fleet_does_not_know_waits_and_loses_no_attempt(scene: Scene) -> None:
    scene.fleet(without="WORK")
    ident = scene.enqueue("WORK")
    with scene.dispatching():
        scene.wait(lambda: scene.events("handover_refused"), "the fleet to refuse the job")
        scene.wait(lambda: scene.job(ident).due_at is not None, "the job to be put off")
    job = scene.job(ident)
    assert (job.status, job.attempts, scene.begun(ident)) == (Status.QUEUED, 0, [])


# --- What governs a queue ------------------------------------------------------------------------------------------------


def test_a_limit_is_never_exceeded(scene: Scene) -> None:
    scene.app.queues.set("default", limit=2)
    jobs = [scene.enqueue("WORK", seconds=0.05) for _ in range(12)]
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            most[0] = max(most[0], scene.rows("SELECT count(*) FROM jobs WHERE status = 'running'")[0][0])

    looking = threading.Thread(target=look)
    looking.start()
    scene.fleet("-P", "threads", "-c", "6")
    with scene.dispatching():
        scene.wait_for_end(*jobs)
    over.set()
    looking.join()
    assert most == [2]
    running = highest = 0
    for line in sorted(scene.lines("begin") + scene.lines("end"), key=lambda x: x["at"]):
        running += 1 if line["what"] == "begin" else -1
        highest = max(highest, running)
    assert highest <= 2
    assert [scene.begun(ident) for ident in jobs] == [[1]] * 12


def test_a_pause_takes_back_what_waits_in_the_broker(scene: Scene) -> None:
    jobs = [scene.enqueue("WORK") for _ in range(5)]
    with scene.dispatching() as dispatcher:
        scene.wait(lambda: in_the_broker(scene) == 5, "the jobs to be handed over")
        assert states(scene, *jobs) == ["running"] * 5
        scene.app.queues.pause("default")
        scene.wait(lambda: states(scene, *jobs) == ["queued"] * 5, "the pause to take them back")
        later = scene.enqueue("WORK")
        scene.fleet()
        scene.wait(lambda: len(scene.events("handover_lost")) == 5, "the messages to find no job")
        assert [scene.job(ident).attempts for ident in jobs] == [0] * 5
        assert scene.lines("begin") == []
        scene.app.queues.resume("default")
        scene.wait_for_end(*jobs, later)
        assert dispatcher.tally.released == 5
    assert [scene.begun(ident) for ident in (*jobs, later)] == [[1]] * 6


def test_a_waiting_job_can_be_cancelled(scene: Scene) -> None:
    ident, other = scene.enqueue("WORK"), scene.enqueue("WORK")
    with scene.dispatching():
        scene.wait(lambda: in_the_broker(scene) == 2, "the jobs to be handed over")
        scene.app.jobs.cancel(ident)
        scene.wait_for_end(ident)
        scene.fleet()
        scene.wait_for_end(other)
        scene.wait(lambda: len(scene.lines("message")) == 2, "both messages")
    assert states(scene, ident, other) == ["cancelled", "succeeded"]
    assert scene.begun(ident) == []
    assert [facts["reason"] for facts in scene.events("handover_lost")] == ["ended"]


def test_no_more_than_the_limit_is_handed_over(scene: Scene) -> None:
    for _ in range(20):
        scene.enqueue("WAIT")
        scene.enqueue("WAIT", queue="other")
    scene.fleet("-P", "threads", "-c", "3")
    running = "SELECT count(*) FROM jobs WHERE status = 'running'"
    with scene.dispatching(queues={"default": 100, "other": 2}, limit=6) as dispatcher:
        scene.wait(lambda: len(scene.lines("begin")) == 3, "the fleet to be busy")
        scene.wait(lambda: scene.rows(running) == [(6,)], "the limit to be reached")
        others = "SELECT count(*) FROM jobs WHERE status = 'running' AND queue = 'other'"
        assert scene.rows(others) == [(2,)]
        assert dispatcher.unfinished == 6
        assert not scene.told("worker_stalled")
        scene.go_on()
        scene.wait(lambda: scene.rows("SELECT count(*) FROM jobs") == [(0,)], "the end of all jobs")
    assert scene.rows("SELECT count(*) FROM jobs_done WHERE attempts = 1 AND status = 'succeeded'") == [(40,)]


# --- Messages ------------------------------------------------------------------------------------------------------------


def test_the_same_message_delivered_twice_runs_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    once: Callable[[Any, Any], None] = _Broker.send

    def twice(broker: _Broker, run: Any) -> None:
        once(broker, run)
        once(broker, run)

    monkeypatch.setattr(_Broker, "send", twice)
    scene.fleet("-P", "prefork", "-c", "2")
    jobs = [scene.enqueue("WORK", seconds=0.1) for _ in range(6)]
    with scene.dispatching():
        scene.wait_for_end(*jobs)
        scene.wait(lambda: len(scene.lines("message")) == 12, "all messages")
    assert [scene.begun(ident) for ident in jobs] == [[1]] * 6
    assert len(scene.events("handover_lost")) == 6
    assert states(scene, *jobs) == ["succeeded"] * 6


def test_a_message_that_the_broker_lost_is_sent_again(scene: Scene) -> None:
    jobs = [scene.enqueue("WORK") for _ in range(3)]
    with scene.dispatching(handover_timeout=2):
        scene.wait(lambda: in_the_broker(scene) == 3, "the jobs to be handed over")
        with redis.Redis.from_url(scene.broker) as client:
            client.flushdb()
        scene.fleet()
        scene.wait_for_end(*jobs)
    assert [(scene.begun(i), scene.job(i).attempts, attempts(scene.app, i)) for i in jobs] == [([1], 1, [])] * 3
    assert scene.told("jobs_taken_back")


def test_a_message_tells_the_trace_and_no_data(scene: Scene) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    scene.app.enqueue("LINGER", meta={"traceparent": trace, "note": "secret"})
    with scene.dispatching():
        scene.wait(lambda: in_the_broker(scene) == 1, "the job to be handed over")
        with redis.Redis.from_url(scene.broker) as client:
            [text] = client.lrange("celery", 0, -1)  # type: ignore[misc]
    message = json.loads(text)
    body = json.loads(base64.b64decode(message["body"]))
    assert set(body[1]) == {"job", "token"}
    headers = message["headers"]
    assert (headers["traceparent"], headers["shadow"], headers["kwargsrepr"]) == (trace, "LINGER", "{'job': 1}")
    assert headers["timelimit"] == [10.3, 5.3]  # behind the timeout of the task
    assert "secret" not in str(message) + str(body)


def test_a_message_from_another_database_does_nothing_and_says_so(
    scene: Scene,
) -> None:  # a fleet that is set up wrongly
    scene.fleet()
    scene.celery_app.send_task("duly.execute", kwargs={"job": 4711, "token": 1}, ignore_result=True)
    scene.wait(lambda: scene.events("handover_lost"), "the message to be read")
    [line] = scene.lines("event", event="handover_lost")
    assert (line["level"], line["facts"]["reason"]) == ("error", "unknown")


# --- Deaths --------------------------------------------------------------------------------------------------------------


def test_a_job_whose_process_is_killed_is_rescued_and_done(scene: Scene) -> None:  # T004-d
    scene.fleet("-P", "prefork", "-c", "2")
    ident = scene.enqueue("WAIT")
    with scene.dispatching():
        os.kill(scene.wait_for("begin", ident)["pid"], signal.SIGKILL)
        # Celery delivers the message of a lost process again, at once; it finds a token that is no longer valid
        scene.wait(lambda: scene.events("handover_lost"), "the message to be delivered again")
        assert states(scene, ident) == ["running"]
        scene.go_on()
        scene.lapse(ident)
        scene.wait_for_end(ident)
    assert scene.begun(ident) == [1, 2]
    assert [(a.attempt, a.outcome) for a in attempts(scene.app, ident)] == [(1, "lost")]
    assert (scene.job(ident).attempts, scene.job(ident).output) == (2, {"attempt": 2})
    assert actions(scene.app, ident) == ["WAIT_COMPLETED"]


def test_a_process_that_is_told_to_end_gives_its_job_back(
    db_url: str, redis_url: str, make_scene: Callable[..., Scene]
) -> None:
    scene = make_scene(db_url, redis_url, grace=0)
    scene.fleet("-P", "prefork", "-c", "2")
    ident = scene.enqueue("WAIT")
    with scene.dispatching():
        os.kill(scene.wait_for("begin", ident)["pid"], signal.SIGTERM)
        scene.wait(lambda: len(scene.begun(ident)) == 2, "another process to begin it")
        scene.go_on()
        scene.wait_for_end(ident)
    assert (scene.begun(ident), scene.job(ident).attempts, attempts(scene.app, ident)) == ([1, 1], 1, [])


def test_jobs_of_a_fleet_that_is_gone_are_run_by_the_next_one(scene: Scene) -> None:
    fleet = scene.fleet("-P", "prefork", "-c", "2")
    jobs = [scene.enqueue("WAIT") for _ in range(4)]
    with scene.dispatching():
        scene.wait(lambda: len(scene.lines("begin")) == 2, "two to begin")
        fleet.kill()
        began = {line["job"] for line in scene.lines("begin")}
        scene.go_on()
        scene.lapse(*began)
        scene.fleet(name="next")
        scene.wait_for_end(*jobs)
    for ident in jobs:
        assert scene.begun(ident) == ([1, 2] if ident in began else [1])
        assert scene.job(ident).attempts == (2 if ident in began else 1)


def test_a_fleet_that_is_stopped_finishes_what_it_runs(scene: Scene) -> None:
    fleet = scene.fleet("-P", "prefork", "-c", "2")
    ident = scene.enqueue("WORK", seconds=1)
    with scene.dispatching():
        scene.wait_for("begin", ident)
        assert fleet.stop() == 0
        scene.wait_for_end(ident)
    assert (scene.begun(ident), states(scene, ident)) == ([1], ["succeeded"])


def dispatch(scene: Scene, *options: str) -> subprocess.Popen[str]:
    """``duly dispatch`` in a process of its own."""
    environ = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]), "DULY_DATABASE_URL": scene.url, "FLEET_DULY": "{}", "FLEET_BROKER": scene.broker,
        **{f"DULY_{name.upper()}": str(value) for name, value in scene.settings.items()},
    }  # fmt: skip
    target = ("integrations.celery_fleet:duly_app", "--to", "celery", "--celery", "integrations.celery_fleet:app")
    return subprocess.Popen(
        [sys.executable, "-m", "duly", "dispatch", *target, *options], env=environ, cwd=scene.folder,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_what_a_killed_dispatcher_held_is_run_and_loses_no_attempt(scene: Scene) -> None:
    jobs = [scene.enqueue("WORK") for _ in range(3)]
    process = dispatch(scene)
    try:
        scene.wait(lambda: in_the_broker(scene) == 3, "the jobs to be handed over")
    finally:
        process.kill()
        process.communicate()
    assert states(scene, *jobs) == ["running"] * 3
    assert all((scene.job(ident).worker or "").startswith("handover:") for ident in jobs)
    scene.lapse(*jobs)
    with scene.dispatching():
        scene.wait(lambda: in_the_broker(scene) == 6, "the jobs to be rescued and handed over again")
        scene.fleet()
        scene.wait_for_end(*jobs)
        scene.wait(lambda: len(scene.lines("message")) == 6, "all messages")
    assert [(scene.begun(i), scene.job(i).attempts, attempts(scene.app, i)) for i in jobs] == [([1], 1, [])] * 3


def test_a_fleet_goes_on_with_what_a_dead_dispatcher_has_handed_over(scene: Scene) -> None:
    ident = scene.enqueue("WORK")
    process = dispatch(scene)
    try:
        scene.wait(lambda: in_the_broker(scene) == 1, "the job to be handed over")
    finally:
        process.kill()
        process.communicate()
    scene.fleet()
    scene.wait_for_end(ident)
    assert (scene.begun(ident), scene.job(ident).attempts) == ([1], 1)


def test_a_dispatcher_that_is_stopped_takes_back_what_nobody_has_begun(scene: Scene) -> None:
    begun = scene.enqueue("WAIT")
    scene.fleet()
    process = dispatch(scene)
    try:
        scene.wait_for("begin", begun)
        jobs = [scene.enqueue("WORK") for _ in range(3)]
        scene.wait(lambda: in_the_broker(scene) == 4, "the jobs to be handed over")
        process.terminate()
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "1 handed over, 3 taken back in" in out
    assert [(scene.job(ident).status, scene.job(ident).attempts) for ident in jobs] == [(Status.QUEUED, 0)] * 3
    assert states(scene, begun) == ["running"]
    scene.go_on()
    scene.wait_for_end(begun)
    scene.wait(lambda: len(scene.events("handover_lost")) == 3, "the messages to find no job")
    assert [scene.begun(ident) for ident in jobs] == [[]] * 3


def test_dispatching_ends_by_itself_when_nothing_is_left(scene: Scene) -> None:
    jobs = [scene.enqueue("WORK", seconds=0.2) for _ in range(3)]
    scene.fleet()
    process = dispatch(scene, "--until-idle", "--json")
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert '"handed_over":3,"taken_back":0' in out
    assert states(scene, *jobs) == ["succeeded"] * 3


# --- The broker ----------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_costs_no_job_and_no_attempt(
    db_url: str, own_valkey: ValkeyServer, make_scene: Callable[..., Scene]
) -> None:
    scene = make_scene(db_url, own_valkey.url, grace=0)  # a process that is told to end takes no time over it
    scene.fleet("-P", "prefork", "-c", "2")
    with scene.dispatching() as dispatcher:
        running = scene.enqueue("WAIT")
        scene.wait_for("begin", running)
        own_valkey.stop("immediate")
        jobs = [scene.enqueue("WORK") for _ in range(5)]
        scene.wait(lambda: not dispatcher.ready, "the dispatcher to notice")
        scene.wait(lambda: states(scene, *jobs) == ["queued"] * 5, "everything to be given back")
        assert [scene.job(ident).attempts for ident in jobs] == [0] * 5
        assert states(scene, running) == ["running"]
        scene.go_on()
        scene.wait_for_end(running)  # the fleet needs no broker for what it runs
        own_valkey.start()
        scene.wait_for_end(*jobs)
        assert dispatcher.ready
    assert [(scene.begun(i), scene.job(i).attempts) for i in (running, *jobs)] == [([1], 1)] * 6


def test_a_database_that_is_away_costs_no_attempt(
    own_postgres: PostgresServer, redis_url: str, make_scene: Callable[..., Scene]
) -> None:
    scene = make_scene(own_postgres.url, redis_url, lease=60)
    scene.fleet("-P", "prefork", "-c", "2")
    jobs = [scene.enqueue("WAIT") for _ in range(5)]
    with scene.dispatching() as dispatcher:
        scene.wait(lambda: len(scene.lines("begin")) == 2, "two to begin")
        own_postgres.stop("immediate")
        scene.go_on()
        scene.wait(lambda: len(scene.lines("end")) == 2, "two to end, with nowhere to say so")
        scene.wait(lambda: not dispatcher.ready, "the dispatcher to notice")
        own_postgres.start()
        scene.wait_for_end(*jobs)
    assert [(scene.begun(i), scene.job(i).attempts, scene.job(i).output) for i in jobs] == [
        ([1], 1, {"attempt": 1})
    ] * 5


def test_nothing_is_claimed_for_a_broker_that_was_never_there(scene: Scene) -> None:
    scene.celery_app.conf.broker_url = "redis://127.0.0.1:1/0"
    ident = scene.enqueue("WORK")
    with scene.dispatching() as dispatcher:
        scene.wait(lambda: len(scene.told("loop_failed")) >= 2, "two tries")
        assert not dispatcher.ready
        assert any("publish" in problem for problem in dispatcher.problems)
    assert (scene.job(ident).status, scene.job(ident).attempts, scene.told("jobs_claimed")) == (Status.QUEUED, 0, [])

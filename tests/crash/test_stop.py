"""A worker is asked to stop: it finishes what it has begun, begins nothing new, and lets go in good order (B032)."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from crash.scene import Scene
from duly import Status

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS, ids=["SIGTERM", "SIGINT"])
def test_a_stopping_worker_finishes_its_jobs_and_claims_no_more(scene: Scene, number: signal.Signals) -> None:
    """B032: its leases are kept while it drains, longer than they last, and a worker beside it finds nothing to rescue."""
    first = scene.worker("first", grace=300, lease=3)
    apart: dict[str, Any] = {"folder": str(scene.folder), "seconds": 4}
    jobs = [scene.enqueue(task, seconds=4).id for task in ("WORK", "THREAD")] + [scene.enqueue("APART", **apart).id]
    scene.wait(lambda: len(scene.lines("begin")) == 2 and list(scene.folder.glob("child-*")), 20, "three jobs to begin")
    second = scene.worker("second", grace=300, lease=3)
    first.signal(number)
    scene.wait(lambda: scene.told("first", "ready", state="draining"), 5, "the drain to begin")
    later = [scene.enqueue("WORK").id for _ in range(20)]
    assert first.ended(20) == 0  # before its grace is over
    scene.wait_for_end()
    assert scene.check(jobs + later, most=1) == []
    assert scene.sql("SELECT count(*) FROM attempts") == [(0,)]
    by = dict(scene.sql("SELECT id, worker FROM jobs_done"))
    assert by == dict.fromkeys(jobs, "first") | dict.fromkeys(later, "second")
    assert [x for x in scene.lines("event") if "rescued" in x["event"]] == []
    second.signal(number)
    assert second.ended() == 0
    assert (first.log, second.log, scene.errors()) == ("", "", [])


def begin_four(scene: Scene) -> list[int]:
    """Four handlers that would take longer than anybody waits: on the loop, on threads (heeding and not), in a process."""
    jobs = [scene.enqueue(task, seconds=1000).id for task in ("WORK", "HEED", "THREAD")]
    jobs.append(scene.enqueue("APART", folder=str(scene.folder), seconds=1000).id)
    scene.wait(lambda: len(scene.lines("begin")) == 3 and list(scene.folder.glob("child-*")), 20, "four jobs to begin")
    return jobs


def assert_released(scene: Scene, jobs: list[int]) -> None:
    states = scene.sql("SELECT id, status, attempts, lease_token, due_at FROM jobs ORDER BY id")
    assert states == [(job, Status.QUEUED, 0, None, None) for job in jobs], "given back, no attempt used"
    assert scene.sql("SELECT count(*) FROM attempts") == [(0,)]
    assert scene.sql("SELECT count(*) FROM audit_log WHERE entity = 'job'") == [(0,)]
    [child] = (int(path.name.removeprefix("child-")) for path in scene.folder.glob("child-*"))
    scene.wait(lambda: not running(child), 5, "the end of the handler's process")


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", SIGNALS, ids=["SIGTERM", "SIGINT"])
def test_jobs_that_outlast_the_grace_are_given_back_and_lose_no_attempt(scene: Scene, number: signal.Signals) -> None:
    """B032, HOUSE decision 5."""
    worker = scene.worker("w", grace=0.5, lease=60)
    jobs = begin_four(scene)
    told = worker.signal(number)
    assert worker.ended(20) == 0
    assert time.monotonic() - told >= 0.5
    assert_released(scene, jobs)
    assert (worker.log, scene.errors()) == ("", [])


def test_a_second_signal_ends_the_wait(scene: Scene) -> None:  # B032
    worker = scene.worker("w", grace=3600, lease=60)
    jobs = begin_four(scene)
    worker.signal(signal.SIGTERM)
    scene.wait(lambda: scene.told("w", "ready", state="draining"), 5, "the drain to begin")
    worker.signal(signal.SIGTERM)
    assert worker.ended(20) == 0
    assert_released(scene, jobs)
    assert (worker.log, scene.errors()) == ("", [])


def test_prefetched_jobs_do_not_wait_for_the_slow_ones_of_a_stopping_worker(scene: Scene) -> None:  # HOUSE decision 1
    """They were claimed and have not begun: another worker runs them while the first one still drains."""
    first = scene.worker("first", {"default": 2}, grace=300, lease=60)
    made = scene.app.enqueue_many("WORK", [{}] * 1000 + [{"seconds": 6}] * 2 + [{}] * 50)
    jobs = [one.job.id for one in made]
    slow, more = jobs[1000:1002], jobs[1002:]
    scene.wait(lambda: all(scene.lines("begin", job=job) for job in slow), 20, "the slow jobs to begin")
    held = scene.app.jobs.count(status=[Status.RUNNING])
    first.signal(signal.SIGTERM)
    assert held > 2, "the lane had shown a pace, so it has prefetched"
    scene.worker("second", grace=300, lease=60)
    scene.wait_for_end(more, 20)
    assert [scene.lines("end", job=job) for job in slow] == [[], []], "the first one is still at its slow jobs"
    assert first.ended() == 0
    assert scene.check(jobs, most=1) == []
    assert scene.sql("SELECT count(*) FROM attempts") == [(0,)]


SCRIPT = """
import sys, time
from duly import Duly

app = Duly(sys.argv[1])

@app.task("SLOW", run_in="process")
def slow(seconds: float) -> None:
    print("began", flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    slow.enqueue(1.0)
    app.worker().run()
    print("stopped", flush=True)
"""


def test_ctrl_c_in_a_terminal_stops_a_worker_without_a_traceback(sqlite_url: str, tmp_path: Path) -> None:
    """B032: the terminal signals every process of the group, so the handler's process hears it too, and works on."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, sqlite_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "began\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("stopped\n", "", 0)
    with closing(sqlite3.connect(str(make_url(sqlite_url).database))) as connection:
        done = connection.execute("SELECT status, attempts, error FROM jobs_done").fetchall()
    assert done == [("succeeded", 1, None)], "its process has finished the job"


def test_a_stop_of_the_whole_service_lets_handlers_in_processes_finish(
    db_url: str, make_scene: Callable[..., Scene]
) -> None:
    """B032: service managers send SIGTERM to every process of a service at once (systemd does by default)."""
    scene = make_scene(db_url, grace=300, lease=60)
    worker = scene.worker("w")
    job = scene.enqueue("APART", folder=str(scene.folder), seconds=1)
    scene.wait(lambda: list(scene.folder.glob("child-*")), 20, "the job to begin")
    [child] = (int(path.name.removeprefix("child-")) for path in scene.folder.glob("child-*"))
    for pid in (worker.pid, child):
        os.kill(pid, signal.SIGTERM)
    assert worker.ended() == 0
    assert scene.check([job.id]) == []
    assert scene.attempts(job.id) == []


def test_a_signal_in_the_last_moment_of_a_worker_that_was_told_is_no_death(
    sqlite_url: str, tmp_path: Path
) -> None:  # issue 16, C4
    (tmp_path / "late.py").write_text(
        "import atexit, os, signal\n"
        "from duly import Duly\n"
        f"app = Duly({sqlite_url!r})\n"
        "app.task('X')(lambda: None)\n"
        "app.listen(lambda e: os.kill(os.getpid(), signal.SIGTERM) if e.name in ('worker_started', 'worker_stopped') else None)\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
    )
    ended = subprocess.run([sys.executable, "-m", "duly.cli.main", "worker", "late:app"], cwd=tmp_path, capture_output=True, timeout=240, text=True)  # fmt: skip
    assert ended.returncode == 0, ended.stderr

"""Handlers in processes of their own: what happens to the processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from crash.scene import Scene
from duly import Job, Status


@pytest.fixture
def folder(scene: Scene) -> Path:
    return scene.folder


def children(folder: Path) -> list[int]:
    """The processes in which handlers have begun, in order."""
    marks = sorted(folder.glob("child-*"), key=lambda path: path.stat().st_mtime_ns)
    return [int(path.name.removeprefix("child-")) for path in marks]


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended(scene: Scene, job: Job) -> Job:
    scene.wait_for_end([job.id], 20)
    return scene.app.jobs.get(job.id)


def test_a_process_serves_one_job_after_the_other_and_goes_with_its_worker(scene: Scene, folder: Path) -> None:
    worker = scene.worker("w", {"default": 1})
    jobs = [scene.enqueue("APART", folder=str(folder)) for _ in range(4)]
    outputs = [ended(scene, job).output["pid"] for job in jobs]
    assert outputs == children(folder) * 4
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert not running(outputs[0])


def test_a_timeout_kills_the_process_and_begins_when_the_handler_does(scene: Scene) -> None:
    """The timeout is shorter than the start of a process with this handler, so each fresh process would be killed, and
    no job ever done, if the start were counted."""
    scene.worker("w", {"default": 1})
    first = ended(scene, scene.enqueue("APART_LATE", seconds=0))
    assert first.status is Status.SUCCEEDED
    slow = ended(scene, scene.enqueue("APART_LATE", seconds=60))
    assert (slow.status, slow.error["type"]) == (Status.FAILED, "Timeout")
    assert [a.outcome for a in scene.attempts(slow.id)] == ["timed_out"]
    scene.wait(lambda: not running(first.output["pid"]), 5, "the end of the process")
    last = ended(scene, scene.enqueue("APART_LATE", seconds=0))
    assert last.status is Status.SUCCEEDED
    assert last.output["pid"] != first.output["pid"]


def test_a_process_that_crashes_is_a_failed_attempt_and_the_worker_goes_on(scene: Scene, folder: Path) -> None:
    worker = scene.worker("w", {"default": 1})
    crash = scene.enqueue("APART", options={"max_attempts": 2}, folder=str(folder), end="abort")
    crashed = ended(scene, crash)
    assert (crashed.status, crashed.attempts) == (Status.FAILED, 2)
    assert crashed.error["type"] == "ChildDied"
    assert str(-signal.SIGABRT) in crashed.error["message"]
    assert [a.outcome for a in scene.attempts(crash.id)] == ["failed", "failed"]
    assert len(children(folder)) == 2
    assert ended(scene, scene.enqueue("APART", folder=str(folder))).status is Status.SUCCEEDED
    assert worker.alive


def test_no_process_of_a_handler_outlives_a_killed_worker(scene: Scene, folder: Path) -> None:
    """Its job will be rescued: the first run must not go on beside the second."""
    worker = scene.worker("w", {"default": 2})
    ended(scene, scene.enqueue("APART", folder=str(folder)))
    scene.enqueue("APART", folder=str(folder), seconds=60)
    scene.enqueue("APART", folder=str(folder), seconds=60)
    scene.wait(
        lambda: len(children(folder)) == 2 and scene.app.jobs.count(status=[Status.RUNNING]) == 2, 20, "two runs"
    )
    worker.signal(signal.SIGKILL)
    assert worker.ended() == -signal.SIGKILL
    scene.wait(lambda: not any(running(pid) for pid in children(folder)), 5, "the end of both processes")


def test_a_cancelled_job_in_a_process_is_killed(scene: Scene, folder: Path) -> None:
    scene.worker("w")
    job = scene.enqueue("APART", folder=str(folder), seconds=60)
    scene.wait(lambda: children(folder), 20, "the job to begin")
    scene.app.jobs.cancel(job.id, "not wanted")
    assert ended(scene, job).status is Status.CANCELLED
    [killed] = children(folder)
    scene.wait(lambda: not running(killed), 5, "the end of the process")


def marked(folder: Path, what: str) -> list[int]:
    return [int(path.name.removeprefix(f"{what}-")) for path in folder.glob(f"{what}-*")]


@pytest.mark.parametrize("end", ["copy returns", "copy exits", "copy raises"])
def test_a_copy_that_a_handler_forks_in_its_process_answers_for_no_job(scene: Scene, folder: Path, end: str) -> None:
    scene.worker("w", {"default": 1})
    forks = scene.enqueue("APART", folder=str(folder), end=end)
    others = [scene.enqueue("APART", folder=str(folder)) for _ in range(4)]
    outputs = [ended(scene, job).output["pid"] for job in (forks, *others)]
    [child] = set(outputs)
    scene.wait(lambda: marked(folder, "copy"), 10, "the copy")
    [copy] = marked(folder, "copy")
    assert copy != child
    scene.wait(lambda: gone(copy), 10, "the end of the copy")
    assert children(folder) == [child] * len(set(children(folder)))  # no run began in the copy


def gone(pid: int) -> bool:
    """Has it ended, be it that nobody has asked how?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(("end", "why"), [("helper, exit", "ChildDied"), ("helper, wait", "Timeout")])
def test_a_run_is_over_with_its_process_whatever_that_has_forked(
    scene: Scene, folder: Path, end: str, why: str
) -> None:
    scene.worker("w", {"default": 1})
    job = scene.enqueue("APART_BRIEFLY", folder=str(folder), end=end)
    try:
        assert ended(scene, job).error["type"] == why
        [helper] = marked(folder, "helper")
        assert not gone(helper)  # it is the handler's, and left alone
        assert ended(scene, scene.enqueue("APART", folder=str(folder))).status is Status.SUCCEEDED
    finally:
        (folder / "enough").touch()
    scene.wait(lambda: gone(helper), 10, "the end of the helper")


def test_no_process_of_a_handler_outlives_a_killed_worker_of_which_there_is_a_copy(scene: Scene, folder: Path) -> None:
    worker = scene.worker("w", {"default": 2})
    scene.enqueue("APART", folder=str(folder), seconds=60)
    scene.wait(lambda: children(folder), 20, "the run")
    scene.enqueue("HELPED", folder=str(folder))
    scene.wait(lambda: marked(folder, "helper"), 20, "the copy")
    try:
        worker.signal(signal.SIGKILL)
        worker.ended()
        scene.wait(lambda: gone(children(folder)[0]), 10, "the end of the process")
    finally:
        (folder / "enough").touch()

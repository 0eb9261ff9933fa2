"""Handlers that fork the worker they run in: the copy does what the handler does in it, and nothing else."""

from __future__ import annotations

import signal

import pytest

from crash import program
from crash.scene import Scene
from duly import Status

CODES = {"return": 0, "exit": 7, "raise": 1}
WAYS = [("FORK_THREAD", how) for how in CODES] + [
    (task, how + when) for task in ("FORK_LOOP", "FORK_TASK") for how in CODES for when in ("", ", later")
]  # fmt: skip


def test_a_copy_of_the_worker_ends_with_its_handler_and_does_no_other_work(scene: Scene) -> None:
    worker = scene.worker("w", {"default": 30}, lease=60)
    spinning = [scene.enqueue("SPIN", folder=str(scene.folder)).id for _ in range(3)]
    scene.wait(lambda: len(scene.lines("begin")) == 3, 20, "the neighbours")
    ways = [*WAYS, ("FORK_LOOP", "wait"), ("FORK_LOOP", "wait, later")]
    jobs = {(task, how): scene.enqueue(task, how=how).id for task, how in ways}
    scene.wait_for_end(jobs.values(), 60)
    (scene.folder / "go").touch()
    scene.wait_for_end(spinning, 20)
    codes = {way: scene.app.jobs.get(ident).output for way, ident in jobs.items()}
    assert codes == {(task, how): CODES.get(how.partition(",")[0], 0) for task, how in ways}
    assert scene.lines("beyond") == []  # a copy that waits has come back to the loop
    assert len(scene.lines("copy")) == len(ways)
    assert scene.check(spinning, most=1) == []
    assert {line["pid"] for line in scene.lines("effect")} == {worker.pid}
    assert "ValueError: in the copy" in worker.log
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0


@pytest.mark.parametrize("task", ["FORK_BOOK", "FORK_ABOOK"])
def test_a_copy_commits_and_rolls_back_nothing_of_its_handlers_session(scene: Scene, task: str) -> None:
    scene.change(program.BOOKS)
    scene.worker("w", lease=60)
    jobs = [scene.enqueue(task, how=how).id for how in CODES]
    scene.wait_for_end(jobs, 30)
    assert [scene.app.jobs.get(ident).output for ident in jobs] == list(CODES.values())
    assert sorted(ident for (ident,) in scene.sql("SELECT job FROM books")) == jobs


def test_a_signal_to_a_copy_is_for_the_copy(scene: Scene) -> None:
    worker = scene.worker("w", lease=60)
    job = scene.enqueue("FORK_SIGNAL", number=signal.SIGTERM)
    scene.wait_for_end([job.id], 30)
    assert scene.app.jobs.get(job.id).output == -signal.SIGTERM
    after = scene.enqueue("FORK_THREAD", how="exit")
    scene.wait_for_end([after.id], 20)
    assert scene.app.jobs.get(after.id).status is Status.SUCCEEDED
    assert worker.alive
    assert not [line for line in scene.lines("event") if line["event"] == "signal"]

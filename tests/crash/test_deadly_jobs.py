"""A job that kills whoever runs it ends as failed, and takes no other job along."""

from __future__ import annotations

import pytest

from crash.scene import Scene
from duly import Status


@pytest.mark.parametrize("task", ["DIE_THREAD", "DIE_LOOP"])
def test_a_job_that_kills_its_worker_each_time_fails_and_the_others_are_done_meanwhile(scene: Scene, task: str) -> None:
    """T003-c, X5: it is claimed first, together with others that never began when their worker died."""
    deadly = scene.enqueue(task)
    others = [made.job.id for made in scene.app.enqueue_many("WORK", [{"seconds": 0.02}] * 60, max_attempts=3)]
    died = 0
    while scene.app.jobs.get(deadly.id).status not in (Status.SUCCEEDED, Status.FAILED):
        worker = scene.worker(f"w{died}", {"default": 20}, lease=1, wait=False)
        scene.wait(lambda: not worker.alive or not scene.sql("SELECT 1 FROM jobs"), 30, "a death or the end")
        died += not worker.alive
        assert died <= 3, "it may kill as many workers as it has attempts"
    scene.worker("last", {"default": 20}, wait=False)
    scene.wait_for_end()
    job = scene.app.jobs.get(deadly.id)
    assert (job.status, job.attempts, job.error["type"]) == (Status.FAILED, 3, "WorkerLost")
    assert (scene.effects(deadly.id), died) == ([1, 2, 3], 3)
    assert [a.outcome for a in scene.attempts(deadly.id)] == ["lost"] * 3
    trail = scene.sql("SELECT action, meta FROM audit_log WHERE entity_id = :i", i=str(deadly.id))
    assert [(action, "worker_lost" in str(meta)) for action, meta in trail] == [("JOB_EXHAUSTED_RETRIES", True)]
    assert scene.check(others, most=3) == []

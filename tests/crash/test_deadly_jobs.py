"""A job that kills whoever runs it ends as failed, and takes no other job along."""

from __future__ import annotations

import pytest

from crash.scene import Actor, Scene
from duly import Status
from duly.jobs.settle import apart


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "together", "longest"),
    [
        (1, 4, 1, None),  # lost alone
        (1, 4, 20, None),  # the first time it may be anything: a power cut, a deploy
        (2, 4, 20, 15.0),
        (3, 4, 20, 15.0),
        (3, 4, 1, None),
        (1, 2, 20, 15.0),  # its last chance comes next
        (2, 4, 2, 6.0),
        (2, 4, 500, 30.0),
    ],
)
def test_jobs_that_are_lost_together_again_come_back_apart(
    attempts: int, max_attempts: int, together: int, longest: float | None
) -> None:
    assert apart(attempts, max_attempts, together, 1.0) == longest
    assert apart(attempts, max_attempts, together, 0.0) == (None if longest is None else 0.0)


DEADLY = {"thread": "DIE_THREAD", "loop": "DIE_LOOP"}


def test_a_job_that_kills_its_worker_each_time_fails_and_the_others_are_done_meanwhile(scene: Scene) -> None:
    """T003-c, X5. It is claimed together with others; some of them never begin, and all are lost with the worker.
    Somebody starts the workers again and again, as a service manager does."""
    deadly = {queue: scene.enqueue(task, queue) for queue, task in DEADLY.items()}
    others = [
        made.job.id
        for queue in DEADLY
        for made in scene.app.enqueue_many("WORK", [{"seconds": 0.02}] * 40, queue=queue, max_attempts=5)
    ]
    workers: dict[str, Actor] = {}
    started: dict[str, int] = dict.fromkeys(DEADLY, 0)

    def all_ended() -> bool:
        for queue in DEADLY:
            if queue not in workers or not workers[queue].alive:
                started[queue] += 1
                workers[queue] = scene.worker(f"{queue} {started[queue]}", {queue: 3}, wait=False)
        return scene.sql("SELECT 1 FROM jobs LIMIT 1") == []

    scene.wait(all_ended, 40, "the end of all jobs")
    assert started == dict.fromkeys(DEADLY, 6), "it killed five workers, as many as it has attempts"
    for job in deadly.values():
        ended = scene.app.jobs.get(job.id)
        assert (ended.status, ended.attempts, ended.error["type"]) == (Status.FAILED, 5, "WorkerLost")
        assert scene.effects(job.id) == [1, 2, 3, 4, 5]
        assert [a.outcome for a in scene.attempts(job.id)] == ["lost"] * 5
        trail = scene.sql("SELECT action, meta FROM audit_log WHERE entity_id = :i", i=str(job.id))
        assert [(action, "worker_lost" in str(meta)) for action, meta in trail] == [("JOB_EXHAUSTED_RETRIES", True)]
    assert scene.check(others, most=5) == []

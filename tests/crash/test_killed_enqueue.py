"""A process is killed between any two steps of making a job: the key and its job are there both, or neither."""

from __future__ import annotations

import signal

import pytest

from crash import program
from crash.scene import Scene

COUNTS = "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM job_keys)"


def test_a_key_and_its_job_are_there_both_or_neither_wherever_the_caller_dies(scene: Scene) -> None:
    """HOUSE decision 6: afterwards the same call makes the job once, and every later call is given it."""
    steps = {"enqueue.key": False, "enqueue.rows": False, "commit": False, "enqueue.done": True}
    actors = {}
    for step in steps:
        options = {"queue": step, "key": "order-42"}
        actors[step] = scene.act(step, program.run_enqueue, kill_at=step, args=options)
    for step, actor in actors.items():
        assert actor.ended() == -signal.SIGKILL, f"{step}: {actor.log}"
    there = {step: bool(scene.sql("SELECT 1 FROM jobs WHERE queue = :q", q=step)) for step in steps}
    keys = {step: bool(scene.sql("SELECT 1 FROM job_keys WHERE queue = :q", q=step)) for step in steps}
    assert there == keys == steps
    for step, was_there in steps.items():
        answers = [scene.app.enqueue("WORK", key="order-42", queue=step) for _ in range(2)]
        assert [a.created for a in answers] == [not was_there, False]
        assert scene.sql("SELECT id FROM jobs WHERE queue = :q", q=step) == [(answers[1].job.id,)]
        assert scene.sql("SELECT job_id FROM job_keys WHERE queue = :q", q=step) == [(answers[1].job.id,)]
    scene.worker("w", dict.fromkeys(steps, 5))
    scene.wait_for_end()
    jobs = [r[0] for r in scene.sql("SELECT id FROM jobs_done")]
    assert len(jobs) == len(steps)
    assert scene.check(jobs) == []


@pytest.mark.parametrize("many", [5, 25])  # by INSERT and by COPY
def test_many_jobs_of_one_call_are_there_all_or_none(scene: Scene, many: int) -> None:
    expected = 0
    for step, there in (("enqueue.rows", 0), ("commit", 0), ("enqueue.done", many)):
        actor = scene.act(step, program.run_enqueue, kill_at=step, args={"many": many})
        assert actor.ended() == -signal.SIGKILL, f"{step}: {actor.log}"
        expected += there
        assert scene.sql(COUNTS) == [(expected, 0)]


def test_a_job_in_the_callers_transaction_goes_with_the_caller(scene: Scene) -> None:  # HOUSE decision 10
    scene.change(program.BOOKS)
    for step, there in (("run.effect", 0), ("commit", 0), ("enqueue.done", 1)):
        actor = scene.act(step, program.run_enqueue_in_session, kill_at=step)
        assert actor.ended() == -signal.SIGKILL, f"{step}: {actor.log}"
        assert scene.sql("SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM books)") == [(there, there)]

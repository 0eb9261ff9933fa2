"""Workers start while the gate is closed (B036)."""

from __future__ import annotations

import threading

from crash.scene import Scene
from duly import Status


def test_a_closed_gate_holds_a_fresh_worker_and_an_opened_one_keeps_the_limit(scene: Scene) -> None:
    """B036, R003-8: one orphan and twenty queued jobs, a limit of five, two workers. Sampled by the handlers and in
    the database."""
    orphan = scene.enqueue("WORK", seconds=0.1)
    store = scene.app.engine.store
    scene.app.db.once(lambda c: store.claim(c, {"default": 1}, ["WORK"], 7, 0.001, "gone"))
    jobs = [orphan.id, *(made.job.id for made in scene.app.enqueue_many("WORK", [{"seconds": 0.1}] * 20))]
    scene.app.queues.set("default", limit=5)
    scene.app.gate.offline()
    for name in ("a", "b"):
        scene.worker(name, {"default": 10}, lease=30, wait=False)
    scene.wait(lambda: scene.is_ready("a") and scene.is_ready("b"), 20, "both workers")
    scene.wait(lambda: scene.app.jobs.get(orphan.id).status is Status.QUEUED, 10, "the orphan to be rescued")
    jobs.append(scene.enqueue("WORK", seconds=0.1).id)
    threading.Event().wait(0.5)  # ten times as long as a poll
    assert (scene.lines("begin"), scene.app.jobs.count(status=[Status.RUNNING])) == ([], 0)
    assert scene.app.jobs.count(status=[Status.QUEUED]) == 22

    scene.app.gate.online()
    sampled, left = [], True
    while left:
        sampled.append(scene.app.jobs.count(status=[Status.RUNNING]))
        left = scene.sql("SELECT 1 FROM jobs LIMIT 1") != []
    running, most = 0, 0
    for line in scene.journal():
        running += {"begin": 1, "end": -1}.get(line["what"], 0)
        most = max(most, running)
    assert (most, max(sampled)) == (5, 5)
    assert scene.check(jobs, most=1) == []
    assert [a.outcome for a in scene.attempts(orphan.id)] == ["lost"]

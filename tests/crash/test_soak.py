"""Workers are killed at random and started again while hundreds of jobs run; then the books are checked."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

import pytest

from crash.program import LEDGER
from crash.scene import Actor, Scene

#: So many jobs, and so many workers that are killed, each while it is at work.
SOME, MANY = (300, 4), (1000, 12)


@pytest.mark.parametrize(("count", "deaths"), [SOME, pytest.param(*MANY, marks=pytest.mark.soak)])
def test_whoever_is_killed_when_hundreds_of_jobs_end_once_each_and_the_books_are_right(
    scene: Scene, count: int, deaths: int
) -> None:
    """T003-c, X5. Every run enters (job, attempt) into a ledger whose primary key refuses a second run of an attempt."""
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    scene.change(LEDGER)
    jobs = [
        made.job.id for made in scene.app.enqueue_many("ENTER", ({"seconds": dice.random() / 20} for _ in range(count)))
    ]
    began, started, killed = time.monotonic(), 0, 0
    workers: list[Actor] = []
    while len(workers) < 3 or scene.sql("SELECT 1 FROM jobs LIMIT 1"):
        workers = [w for w in workers if w.alive]
        while len(workers) < 3:
            started += 1
            workers.append(scene.worker(f"w{started}", {"default": 4}, lease=1, pool_size=3, wait=False))
        time.sleep(dice.uniform(0.05, 0.4))
        busy = {name for (name,) in scene.sql("SELECT DISTINCT worker FROM jobs WHERE status = 'running'")}
        at_work = [worker for worker in workers if worker.name in busy]
        if at_work and killed < deaths:
            victim = dice.choice(at_work)
            victim.signal(signal.SIGKILL)
            assert victim.ended() == -signal.SIGKILL
            killed += 1
        assert time.monotonic() - began < 500, f"seed {seed}: {scene.report()}"
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [w.ended() for w in workers] == [0, 0, 0]

    said = f"seed {seed}, {killed} killed"
    assert killed == deaths, said
    assert scene.check(jobs) == [], said
    ledger: dict[int, list[int]] = {}
    for job, attempt in scene.sql("SELECT job, attempt FROM ledger ORDER BY attempt"):
        ledger.setdefault(job, []).append(attempt)
    attempts = dict(scene.sql("SELECT id, attempts FROM jobs_done"))
    lost = Counter(job for (job,) in scene.sql("SELECT job_id FROM attempts WHERE outcome = 'lost'"))
    assert {job: n - 1 for job, n in attempts.items() if n > 1} == lost, said
    # each run that settled is in the ledger; each other entry belongs to an attempt that was lost
    assert {job: runs[-1] for job, runs in ledger.items()} == attempts, said
    assert sum(map(len, ledger.values())) <= count + lost.total(), said
    assert lost, f"{said}: nobody was killed at work"
    assert [x for x in scene.errors() if x.get("_error", "").find("UNIQUE") >= 0] == [], said

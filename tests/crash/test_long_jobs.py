"""Long jobs keep their lease whatever they do to the event loop; a worker that is frozen loses it (B026, B028)."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing

from crash.scene import Actor, Scene
from keeper import freeze

#: Long enough that a machine under load renews it, short enough to be outlived.
LEASE = 3.0


def test_handlers_that_block_the_loop_for_longer_than_a_lease_are_run_once(scene: Scene) -> None:
    """B028: one sleeps on the loop, one computes there without a break. Two more workers look for something to rescue."""
    blocked = scene.enqueue("BLOCK", "blocked", seconds=1.5 * LEASE)
    computed = scene.enqueue("COMPUTE", "computed", seconds=1.5 * LEASE)
    began = time.monotonic()
    for queue in ("blocked", "computed"):
        scene.worker(queue, {queue: 5}, lease=LEASE)
    for name in ("first rival", "second rival"):
        scene.worker(name, {"blocked": 5, "computed": 5}, lease=LEASE, wait=False)
    scene.wait_for_end(seconds=30)
    assert time.monotonic() - began > 1.5 * LEASE
    assert scene.check([blocked.id, computed.id], most=1) == []
    assert scene.sql("SELECT attempts, count(*) FROM jobs_done GROUP BY attempts") == [(1, 2)]
    assert [x for x in scene.lines("event") if x["event"] in ("jobs_rescued", "lease_lost")] == []


def freeze_between_writes(scene: Scene, actor: Actor) -> None:
    """Stop a process at a moment at which it does not write. (Frozen inside a write it would keep an SQLite file locked:
    whoever stops a process there stops all of them.)"""

    def frozen_outside_a_write() -> bool:
        freeze(actor.pid)
        url = scene.app.db.url
        if url.get_backend_name() != "sqlite":
            return True
        with closing(sqlite3.connect(str(url.database), timeout=0.2, isolation_level=None)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                actor.signal(signal.SIGCONT)
                return False
        return True

    scene.wait(frozen_outside_a_write, 10, "a moment without a write")


def test_a_frozen_worker_that_wakes_up_late_changes_nothing(scene: Scene) -> None:
    """B026: it sleeps through its lease, another worker runs the jobs, and its own outcomes come too late. One handler
    on the loop is interrupted, one on a thread ends as if nothing had happened."""
    frozen = scene.worker("frozen", lease=LEASE)
    jobs = [scene.enqueue(task, seconds=2 * LEASE).id for task in ("WORK", "THREAD")]
    scene.wait(lambda: len(scene.lines("begin")) == 2, 10, "both jobs to begin")
    freeze_between_writes(scene, frozen)
    scene.worker("second", lease=LEASE)
    scene.wait(lambda: len(scene.lines("begin", who="second")) == 2, 20, "the second worker to take over")
    frozen.signal(signal.SIGCONT)
    scene.wait(lambda: len(scene.events("lease_lost", who="frozen")) == 2, 10, "the first to find its leases lost")
    scene.wait_for_end()
    assert scene.lines("end", who="frozen", job=jobs[1]), "the handler on the thread has come to its end"
    assert scene.check(jobs) == []
    outputs = scene.sql("SELECT id, output, attempts FROM jobs_done ORDER BY id")
    assert [(ident, "second" in str(output), attempts) for ident, output, attempts in outputs] == [
        (job, True, 2) for job in jobs
    ]
    assert [(a.outcome, a.worker) for job in jobs for a in scene.attempts(job)] == [("lost", "frozen")] * 2
    frozen.signal(signal.SIGTERM)
    assert frozen.ended() == 0
    [tally] = scene.told("frozen", "finished")
    assert (tally["succeeded"], tally["lost"]) == (0, 2)

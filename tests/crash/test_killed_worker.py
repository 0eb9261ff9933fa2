"""A worker is killed between every two steps from the claim of a job to the last line of its settlement.

All victims of a test work on one database at the same time, each on a queue of its own with one job, each with another
step at which it dies. Then one successor serves all queues. What may run twice is what the docs say: the effect of a
worker that died between the effect and the settlement, and nothing else.
"""

from __future__ import annotations

import signal
from typing import NamedTuple

from crash.program import BOOKS
from crash.scene import Actor, Scene
from duly.audit.seal import verify


class Death(NamedTuple):
    """Where a worker dies, and what is to be seen of it afterwards: all effects, and attempts that were lost."""

    step: str
    effects: int
    lost: int
    #: On PostgreSQL, where it differs: one statement may be one transaction there.
    lost_postgres: int | None = None
    effects_postgres: int | None = None


#: In the order of a life. Keys of these jobs are taken for ever; one statement settles such a job.
PLAIN = [
    Death("claim.before", effects=1, lost=0),
    Death("claim.after", effects=1, lost=0, lost_postgres=1),  # not committed on SQLite
    Death("claim.committed", effects=1, lost=1),
    Death("run.accepted", effects=1, lost=1),
    Death("run.started", effects=1, lost=1),
    Death("run.effect", effects=2, lost=1),
    Death("run.returned", effects=2, lost=1),
    Death("settle.before", effects=2, lost=1),
    Death("settle.moved", effects=2, lost=1, lost_postgres=0, effects_postgres=1),  # not committed on SQLite
    Death("settle.after", effects=2, lost=1, lost_postgres=0, effects_postgres=1),
    Death("settle.committed", effects=1, lost=0),
    Death("settle.forgotten", effects=1, lost=0),
]
#: Keys of these are free when the job ends, so settling takes several statements and a transaction around them.
FREED = [
    Death("settle.before", effects=2, lost=1),
    Death("settle.moved", effects=2, lost=1),
    Death("settle.after", effects=2, lost=1),
    Death("settle.commit", effects=2, lost=1),
    Death("settle.committed", effects=1, lost=0),
]
#: The first run of these fails: a row of its attempt and the job's way back are one transaction.
RETRIED = [
    Death("settle.before", effects=2, lost=1),
    Death("settle.recorded", effects=2, lost=1),
    Death("settle.requeued", effects=2, lost=1),
    Death("settle.after", effects=2, lost=1),
    Death("settle.committed", effects=2, lost=0),
]
#: Handlers with a session: their effects and the settlement are one commit.
TRANSACTIONAL = [
    "run.accepted",
    "run.started",
    "run.effect",
    "settle.before",
    "settle.moved",
    "settle.after",
    "settle.commit",
    "settle.transacted",
    "run.returned",
]


def be_killed(scene: Scene, victims: list[Actor]) -> None:
    """Wait until all are dead. Their leases are long, so that a slow machine kills nobody's lease: see `lapse`."""
    for victim in victims:
        assert victim.ended(60) == -signal.SIGKILL, f"{victim.name} has not died: {scene.report()}"


def lapse(scene: Scene) -> None:
    """Let the leases of the dead run out, as if time had passed."""
    scene.change("UPDATE jobs SET lease_until = created_at WHERE status = 'running'")


def queue_of(kind: str, step: str) -> str:
    return f"{kind}:{step}"


def test_a_worker_killed_at_any_step_loses_no_job_and_ends_each_once(scene: Scene) -> None:  # T003-c, T003-i, X5
    victims: dict[str, tuple[int, Death]] = {}
    actors = []
    for kind, deaths in (("plain", PLAIN), ("freed", FREED), ("retried", RETRIED)):
        for death in deaths:
            queue = queue_of(kind, death.step)
            options = {"key": queue, "unique_until": "done"} if kind == "freed" else {"key": queue}
            job = scene.enqueue("FAIL_ONCE" if kind == "retried" else "WORK", queue, options)
            victims[queue] = job.id, death
            actors.append(scene.worker(queue, {queue: 5}, kill_at=death.step, lease=60, pool_size=3, wait=False))
    be_killed(scene, actors)
    lapse(scene)
    scene.worker("successor", dict.fromkeys(victims, 5))
    scene.wait_for_end()
    assert scene.check(ident for ident, _ in victims.values()) == []
    postgres = not scene.app.db.is_sqlite
    seen, expected = {}, {}
    for queue, (ident, death) in victims.items():
        lost = [a for a in scene.attempts(ident) if a.outcome == "lost"]
        seen[queue] = (len(scene.effects(ident)), len(lost))
        expected[queue] = (death.effects, death.lost)
        if postgres and death.lost_postgres is not None:
            expected[queue] = (death.effects_postgres or death.effects, death.lost_postgres)
        for attempt in lost:
            assert (attempt.worker, attempt.error["type"]) == (queue, "WorkerLost"), attempt
    assert seen == expected


def test_effects_through_the_session_happen_once_wherever_their_worker_dies(scene: Scene) -> None:  # T003-h, X5
    scene.change(BOOKS)
    jobs: dict[str, int] = {}
    for task in ("BOOK", "ABOOK"):
        for step in TRANSACTIONAL:
            if (task, step) != ("ABOOK", "settle.transacted"):  # there it is the same step as run.returned
                jobs[queue_of(task, step)] = scene.enqueue(task, queue_of(task, step)).id
    victims = [scene.worker(q, {q: 1}, kill_at=q.partition(":")[2], lease=60, pool_size=3, wait=False) for q in jobs]
    be_killed(scene, victims)
    committed = {queue for queue in jobs if queue.endswith(("transacted", "returned"))}
    books = "SELECT job, count(*) FROM books GROUP BY job"
    assert dict(scene.sql(books)) == {jobs[q]: 1 for q in committed}
    lapse(scene)
    scene.worker("successor", dict.fromkeys(jobs, 1))
    scene.wait_for_end()
    assert scene.check(jobs.values()) == []
    assert dict(scene.sql(books)) == dict.fromkeys(jobs.values(), 1)
    winners = {job: (attempt, worker) for job, attempt, worker in scene.sql("SELECT job, attempt, worker FROM books")}
    expected = {job: (1, q) if q in committed else (2, "successor") for q, job in jobs.items()}
    assert winners == expected


def test_a_rescuer_that_dies_in_the_middle_leaves_the_job_to_the_next(scene: Scene) -> None:
    """T003-c: the attempt that was lost is on record once, however many died while they wrote it down."""
    job = scene.enqueue("WORK")
    store = scene.app.engine.store
    scene.app.db.once(lambda c: store.claim(c, {"default": 1}, ["WORK"], 7, 0.001, "gone"))
    before = scene.sql("SELECT * FROM jobs")
    for step in ("before", "recorded", "requeued", "after", "commit"):
        be_killed(scene, [scene.worker(step, {"another": 1}, kill_at=f"rescue.{step}", wait=False)])
        assert (step, scene.sql("SELECT * FROM jobs"), scene.attempts(job.id)) == (step, before, [])
    scene.worker("successor")
    scene.wait_for_end()
    assert scene.check([job.id]) == []
    assert [(a.attempt, a.outcome, a.worker) for a in scene.attempts(job.id)] == [(1, "lost", "gone")]
    assert scene.effects(job.id) == [2]


def test_a_due_job_is_run_whoever_dies_while_making_it_ready(scene: Scene) -> None:  # R003-4
    jobs = []
    for step in ("before", "moved", "after"):
        jobs.append(scene.enqueue("WORK", options={"run_in": 0.05}).id)
        be_killed(scene, [scene.worker(step, {"another": 1}, kill_at=f"promote.{step}", wait=False)])
    scene.worker("successor")
    scene.wait_for_end()
    assert scene.check(jobs) == []
    assert [scene.effects(job) for job in jobs] == [[1], [1], [1]]


def test_the_chain_over_the_audit_trail_holds_whoever_dies_while_sealing_it(scene: Scene) -> None:
    for step in ("before", "after", "commit"):
        scene.enqueue("WORK")
        be_killed(scene, [scene.worker(step, kill_at=f"seal.{step}", wait=False)])
        assert scene.sql("SELECT count(*) FROM audit_seals") == [(0,)]
    scene.worker("successor")
    scene.wait_for_end()
    scene.wait(lambda: verify(scene.app.db).unsealed == 0, 10, "the trail to be sealed")
    assert (verify(scene.app.db).broken, verify(scene.app.db).rows) == (None, 3)

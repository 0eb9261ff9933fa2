"""Workers are killed between every two steps of an idempotent job: no job is lost, and the body runs again only where it must.

It must where nobody can know whether its effect happened: once the body has begun and its end is not recorded. What was
recorded is never done again, and whoever comes with the same key has what was recorded. T004-c, T004-d, B052.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from crash import idempotent_program as program
from crash.scene import Actor, Scene
from duly import Status


class Death(NamedTuple):
    """Where a worker dies, and what is to be seen afterwards: runs of the body, effects, and whether a dead holder was followed."""

    step: str
    runs: int
    effects: int
    took_over: bool


#: In the order of a life.
DEATHS = [
    Death("reserve.before", runs=1, effects=1, took_over=False),
    Death("reserve.after", runs=1, effects=1, took_over=True),
    Death("body.started", runs=2, effects=1, took_over=True),
    Death("body.effect", runs=2, effects=2, took_over=True),
    Death("record.before", runs=2, effects=2, took_over=True),
    Death("record.after", runs=1, effects=1, took_over=False),
    Death("settle.before", runs=1, effects=1, took_over=False),
]


@pytest.fixture
def idempotent(scene: Scene) -> Scene:
    """A scene whose application knows the idempotent tasks."""
    program.define(scene.app)
    return scene


def work(scene: Scene, name: str, queues: dict[str, int], kill_at: str | None = None, lease: float = 60) -> Actor:
    """Start a worker. Leases are long, so that a slow machine kills nobody's lease: see `lapse`."""
    return scene.act(name, program.run_idempotent_worker, queues, kill_at=kill_at, lease=lease, pool_size=3)


def lapse(scene: Scene) -> None:
    """Let the leases of the dead run out, as if time had passed."""
    scene.change("UPDATE jobs SET lease_until = created_at WHERE status = 'running'")


def marks(folder: Path, kind: str, tag: str) -> int:
    return len(list(folder.glob(f"{kind}-{tag}-*")))


@pytest.mark.parametrize("task", ["ON_A_THREAD", "ON_THE_LOOP"])
def test_wherever_a_worker_dies_its_job_succeeds_and_a_duplicate_has_the_same_result(
    idempotent: Scene, task: str
) -> None:
    scene = idempotent
    jobs = {death.step: scene.enqueue(task, death.step, tag=death.step).id for death in DEATHS}
    victims = [work(scene, f"victim {step}", {step: 1}, kill_at=step) for step in jobs]
    for victim in victims:
        assert victim.ended(60) == -signal.SIGKILL, f"{victim.name} has not died: {scene.report()}"
    lapse(scene)
    copies = {step: scene.enqueue(task, step, tag=step).id for step in jobs}
    work(scene, "successor", dict.fromkeys(jobs, 2))
    scene.wait_for_end(seconds=60)

    seen, wanted = {}, {}
    for death in DEATHS:
        job, copy = scene.app.jobs.get(jobs[death.step]), scene.app.jobs.get(copies[death.step])
        runs = scene.lines("begin", tag=death.step)
        assert (job.status, copy.status) == (Status.SUCCEEDED, Status.SUCCEEDED), death.step
        assert job.output == copy.output, death.step
        assert job.output["job"] in {run["job"] for run in runs}, death.step
        assert [a.outcome for a in scene.attempts(job.id)] == ["lost"], death.step
        # waiting for the dead uses no attempt
        assert (job.attempts, copy.attempts) == (2, 1), death.step
        seen[death.step] = (len(runs), len(scene.lines("effect", tag=death.step)))
        wanted[death.step] = (death.runs, death.effects)
    assert seen == wanted
    followed = [
        x for x in scene.told("successor", "told", event="idempotency_attempt", _result="allowed") if x["_took_over"]
    ]
    assert len(followed) == sum(death.took_over for death in DEATHS)
    states = scene.sql("SELECT state, count(*) FROM idempotency GROUP BY state")
    assert states == [("succeeded", len(DEATHS))]


def test_wherever_a_worker_dies_an_effect_in_the_same_transaction_happens_once(idempotent: Scene) -> None:
    """R004-8, R004-13: no record without its effect, and no effect without its record."""
    scene, steps = idempotent, [death.step for death in DEATHS]
    scene.change("CREATE TABLE bookings (tag text)")
    jobs = {step: scene.enqueue("IN_A_TRANSACTION", step, tag=step).id for step in steps}
    for step in steps:
        victim = work(scene, f"victim {step}", {step: 1}, kill_at=step)
        assert victim.ended(60) == -signal.SIGKILL, f"{victim.name} has not died: {scene.report()}"
    lapse(scene)
    copies = {step: scene.enqueue("IN_A_TRANSACTION", step, tag=step).id for step in steps}
    work(scene, "successor", dict.fromkeys(steps, 2))
    scene.wait_for_end(seconds=60)
    assert sorted(tag for (tag,) in scene.sql("SELECT tag FROM bookings")) == sorted(steps)
    for step in steps:
        job, copy = scene.app.jobs.get(jobs[step]), scene.app.jobs.get(copies[step])
        assert (job.status, copy.status, job.output) == (Status.SUCCEEDED, Status.SUCCEEDED, copy.output), step
    assert scene.sql("SELECT state, count(*) FROM idempotency GROUP BY state") == [("succeeded", len(steps))]


def test_a_duplicate_that_waits_while_the_worker_of_the_first_is_killed_has_its_result(idempotent: Scene) -> None:
    """The first dies in the body; both are served by one successor, whichever comes first to it."""
    scene = idempotent
    job, copy = (scene.enqueue("ON_A_THREAD", queue, tag="x").id for queue in ("dying", "waiting"))
    assert work(scene, "victim", {"dying": 1}, kill_at="body.started").ended(60) == -signal.SIGKILL
    work(scene, "waiter", {"waiting": 1})
    scene.wait(lambda: scene.app.jobs.get(copy).due_at is not None, 30, "the duplicate to be put off")
    assert scene.app.jobs.get(copy).attempts == 0
    lapse(scene)
    work(scene, "successor", {"dying": 1})
    scene.wait_for_end(seconds=60)
    assert scene.app.jobs.get(job).output == scene.app.jobs.get(copy).output
    assert len(scene.lines("begin", tag="x")) == 2
    assert len(scene.lines("effect", tag="x")) == 1


def test_handlers_in_processes_of_their_own_take_over_from_their_dead_selves(idempotent: Scene) -> None:
    """The process of one handler is killed, and for the other the whole worker; both reservations are in Duly's database."""
    scene, folder = idempotent, str(idempotent.folder)
    victim = work(scene, "victim", {"default": 3})
    killed = scene.enqueue("IDEMPOTENT_APART", folder=folder, tag="killed", how="die").id
    orphan = scene.enqueue("IDEMPOTENT_APART", folder=folder, tag="orphan", how="wait").id
    scene.wait_for_end([killed], 60)
    scene.wait(lambda: marks(scene.folder, "run", "orphan"), 30, "the body to begin")
    victim.signal(signal.SIGKILL)
    assert victim.ended() == -signal.SIGKILL
    lapse(scene)
    copies = [
        scene.enqueue("IDEMPOTENT_APART", folder=folder, tag=tag, how=how).id
        for tag, how in (("killed", "die"), ("orphan", "wait"))
    ]
    work(scene, "successor", {"default": 3})
    scene.wait_for_end([orphan, *copies], 60)
    for job, copy, tag in ((killed, copies[0], "killed"), (orphan, copies[1], "orphan")):
        first, second = scene.app.jobs.get(job), scene.app.jobs.get(copy)
        assert (first.status, second.status) == (Status.SUCCEEDED, Status.SUCCEEDED), tag
        assert first.output == second.output, tag
        assert (first.attempts, second.attempts) == (2, 1), tag
        assert (marks(scene.folder, "run", tag), marks(scene.folder, "effect", tag)) == (2, 1), tag
    assert [a.outcome for a in scene.attempts(killed)] == ["failed"]
    assert [a.outcome for a in scene.attempts(orphan)] == ["lost"]
    assert scene.sql("SELECT state, count(*) FROM idempotency GROUP BY state") == [("succeeded", 2)]

"""SIGKILL in the middle of runs: each goes on from what is on record, and its effects stand once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.scene import Scene, start_nursery
from soaking import sqlite_first
from workflows import crash_program as program

db_url = sqlite_first()

ALL = ["one", "two", "four", "five", "six", "seven", "eight", "nine", "ten"]
INSIDE = ["one", "four", "five", "six", "seven", "nine", "ten"]


@pytest.fixture(scope="module", autouse=True)
def nursery() -> None:
    start_nursery()


@pytest.fixture
def scene(db_url: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(db_url, tmp_path, lease=0.5, sqlite_synchronous="NORMAL")
    made.app.open()
    number = "INTEGER" if made.app.db.is_sqlite else "BIGINT GENERATED ALWAYS AS IDENTITY"
    made.change(program.TABLE.format(number=number))
    program.define(made.app)
    yield made
    made.close()


def inside(scene: Scene) -> list[str]:
    return [name for (name,) in scene.sql("SELECT name FROM effects ORDER BY id")]


def outside(scene: Scene) -> Counter[str]:
    return Counter(line["name"] for line in scene.lines("effect"))


def start(scene: Scene) -> int:
    run = scene.app.workflows.start("ten").job.id
    scene.app.workflows.signal(run, "eight", "eight")
    return run


def test_a_worker_killed_after_every_step_of_ten_leaves_each_effect_once(scene: Scene) -> None:
    run, deaths = start(scene), 0
    while scene.app.jobs.get(run).finished_at is None:
        worker = scene.act(f"w{deaths}", program.run_worker, kill_at="step.recorded", until_idle=0.3)
        assert worker.ended() in (-signal.SIGKILL, 0), worker.log
        deaths += 1
        assert deaths < 40, worker.log
    job = scene.app.jobs.get(run)
    assert (job.status, job.output) == ("succeeded", ALL)  # though it may be lost only three times in a row
    assert deaths >= 10
    assert sorted(inside(scene)) == sorted(INSIDE)
    assert outside(scene) == {"two": 1}


@pytest.mark.parametrize("step", program.STEPS)
def test_a_worker_killed_within_a_step_takes_its_effect_along_or_leaves_it_once(scene: Scene, step: str) -> None:
    run = start(scene)
    dying = scene.act("dying", program.run_worker, kill_at=step, kill_after=1)
    assert dying.ended() == -signal.SIGKILL, f"{step}: {dying.log}"
    scene.act("next", program.run_worker)
    scene.wait(lambda: scene.app.jobs.get(run).finished_at is not None, 30, "the end of the run")
    assert scene.app.jobs.get(run).output == ALL
    assert sorted(inside(scene)) == sorted(INSIDE)
    # what lies outside of our database may have been done just before the death
    assert set(outside(scene)) == {"two"}
    assert max(outside(scene).values()) <= 2
    assert not scene.sql("SELECT 1 FROM job_waits")

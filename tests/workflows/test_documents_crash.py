"""SIGKILL in the middle of runs of a document: what holds of code holds of it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.scene import Scene, start_nursery
from soaking import sqlite_first
from workflows import document_program as program

db_url = sqlite_first()


@pytest.fixture(scope="module", autouse=True)
def nursery() -> None:
    start_nursery()


@pytest.fixture
def scene(db_url: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(db_url, tmp_path, lease=0.5, sqlite_synchronous="NORMAL")
    made.app.open()
    program.define(made.app)
    yield made
    made.close()


def test_a_worker_killed_after_every_step_of_a_document_leaves_the_next_to_go_on_from_there(scene: Scene) -> None:
    run, deaths = scene.app.workflows.start("five", {"first": "one"}).job.id, 0
    scene.app.workflows.signal(run, "go", "left")
    places = ("step.written", "rest.before", "rest.noted", "step.recorded")
    while scene.app.jobs.get(run).finished_at is None:
        worker = scene.act(f"w{deaths}", program.run_worker, kill_at=places[deaths % len(places)], until_idle=0.3)
        assert worker.ended() in (-signal.SIGKILL, 0), worker.log
        deaths += 1
        assert deaths < 60, worker.log
    job = scene.app.jobs.get(run)
    assert (job.status, job.output) == ("succeeded", ["one", "left", "skipped", "sent"])
    assert deaths >= 4
    # each child is one job; the worker may have died in the middle of it too
    assert scene.sql("SELECT count(*) FROM jobs_done WHERE parent_id = :run", run=run) == [(3,)]
    effects = Counter(line["name"] for line in scene.lines("effect"))
    assert set(effects) == {"one", "left", "after left"}

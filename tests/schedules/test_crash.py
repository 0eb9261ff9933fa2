"""SIGKILL between any two steps of a scheduler, and real workers that keep time."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crash.scene import Scene, start_nursery
from duly import Duly
from duly.kernel.recurrence import Every
from schedules import crash_program as program
from soaking import sqlite_first

db_url = sqlite_first()

LEDGER = "SELECT count(*), count(DISTINCT due_at), count(DISTINCT job_id) FROM occurrences WHERE status = 'fired'"


@pytest.fixture(scope="module", autouse=True)
def nursery() -> None:
    start_nursery()


@pytest.fixture
def scene(db_url: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(db_url, tmp_path, lease=1)
    yield made
    made.close()


@pytest.mark.parametrize("step", program.STEPS)
def test_a_scheduler_killed_anywhere_leaves_the_occurrence_and_its_job_or_neither(scene: Scene, step: str) -> None:
    schedules = scene.app.schedules
    recurrence = Every(1, anchor=datetime(2026, 1, 1, tzinfo=UTC))
    for name in ("one", "two"):
        schedules.set(schedules.spec(name, recurrence, "WORK", catch_up="all"))
    dying = scene.act("dying", program.run_scheduler, kill_at=step, kill_after=1)
    assert dying.ended() == -signal.SIGKILL, f"{step}: {dying.log}"
    occurrences, _, jobs = scene.sql(LEDGER)[0]
    assert occurrences == jobs == scene.sql("SELECT count(*) FROM jobs")[0][0]
    # the next one goes on where it was: every second has its job, once
    scene.act("next", program.run_scheduler)
    scene.wait(lambda: scene.sql(LEDGER)[0][0] >= occurrences + 4, 30, "occurrences after the crash")
    for name in ("one", "two"):
        dues = [o.due_at for o in reversed(schedules.ledger(name, limit=1000))]
        assert [b - a for a, b in itertools.pairwise(dues)] == [timedelta(seconds=1)] * (len(dues) - 1)
    assert not scene.sql("SELECT 1 FROM schedules WHERE error IS NOT NULL")


def test_a_worker_fires_what_is_due_by_itself_and_sleeps_until_then(db_url: str) -> None:
    app = Duly(db_url, poll=0.5)
    ran: list[datetime] = []

    @app.task("tick")
    def tick() -> None:
        ran.append(datetime.now(UTC))

    app.schedule("each", Every(1, anchor=datetime(2026, 1, 1, tzinfo=UTC)), tick)
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until = time.monotonic() + 30
        while len(ran) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        # one that is made while it runs is heard of
        app.schedules.set(app.schedules.spec("late", Every(1, anchor=datetime(2026, 1, 1, tzinfo=UTC)), "tick"))
        while not app.schedules.ledger("late") and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        worker.stop()
        thread.join(30)
    assert not thread.is_alive()
    assert len(ran) >= 3
    assert app.schedules.ledger("late")
    early = [
        at for at, o in zip(ran, reversed(app.schedules.ledger("each", limit=1000)), strict=False) if at < o.due_at
    ]
    assert early == []
    app.close()


def test_an_outage_of_the_database_does_not_end_the_scheduler(own_postgres: Any) -> None:
    app = Duly(own_postgres.url, poll=0.1)
    app.task("tick")(lambda: None)
    app.schedule("each", Every(1, anchor=datetime(2026, 1, 1, tzinfo=UTC)), "tick", catch_up="all")
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until = time.monotonic() + 60
        while not app.schedules.ledger("each") and time.monotonic() < until:
            time.sleep(0.05)
        own_postgres.stop()
        time.sleep(2)
        own_postgres.start()
        seen = datetime.now(UTC)
        found: list[Any] = []
        while time.monotonic() < until and not found:
            time.sleep(0.1)
            try:
                found = app.schedules.ledger("each", since=seen)
            except Exception:
                found = []
    finally:
        worker.stop()
        thread.join(30)
    assert found
    dues = [o.due_at for o in reversed(app.schedules.ledger("each", limit=1000))]
    assert [b - a for a, b in itertools.pairwise(dues)] == [timedelta(seconds=1)] * (len(dues) - 1)
    app.close()

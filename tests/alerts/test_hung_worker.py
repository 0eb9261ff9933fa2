"""A worker that hangs is told by somebody else: by another worker, and by a command from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.hands import wait_until
from duly import Duly

PROGRAM = """
from duly import Duly
app = Duly()

@app.task("X")
def x() -> None: ...

@app.task("Y", queue="other")
def y() -> None: ...
"""

SETTINGS = {"DULY_ALERTS_EVERY": "1", "DULY_ALERTS_WORKER": "4", "DULY_LEASE": "2"}
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(db_url: str, tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "program.py").write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []

    def go(*args: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "DULY_DATABASE_URL": db_url, **SETTINGS}
        process = subprocess.Popen(
            [sys.executable, "-m", "duly", *args],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield go
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


@pytest.fixture
def app(db_url: str) -> Iterator[Duly]:
    app = Duly(db_url)
    app.open()
    yield app
    app.close()


def names(app: Duly) -> set[str]:
    return {w["name"] for w in app.db.read(lambda c: app.engine.reader.live_workers(c, 5.0))}


def raised(app: Duly) -> dict[str, Any]:
    return {a.subject: a for a in app.alerts.standing().raised if a.rule == "worker_silent"}


@pytest.mark.slow
def test_a_stopped_worker_is_told_by_another_one_and_cleared_when_it_goes_on(app: Duly, start: Start) -> None:
    hung = start("worker", "program.py", "--name", "hung", "--queue", "default")
    start("worker", "program.py", "--name", "well", "--queue", "other")
    wait_until(lambda: names(app) == {"hung", "well"})
    hung.send_signal(signal.SIGSTOP)
    wait_until(lambda: "hung" in raised(app), 60)
    assert set(raised(app)) == {"hung"}
    judged = app.alerts.standing().judged
    assert judged is not None
    assert judged.by == "well"
    hung.send_signal(signal.SIGCONT)
    wait_until(lambda: app.alerts.standing().alerts[0].fine_since is not None, 60)


@pytest.mark.slow
def test_a_stopped_worker_is_told_by_a_command_from_outside(app: Duly, start: Start) -> None:
    hung = start("worker", "program.py", "--name", "hung")
    wait_until(lambda: names(app) == {"hung"})
    hung.send_signal(signal.SIGSTOP)
    assert start("alerts", "check").wait(30) == 0
    wait_until(lambda: start("alerts", "check").wait(30) == 1, 60)
    assert set(raised(app)) == {"hung"}

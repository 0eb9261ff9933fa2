"""A worker that hangs is told by somebody else: by another worker, and by a command from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from contract.hands import wait_until
from duly import DatabaseUnavailable, Duly
from keeper import freeze
from soaking import sqlite_first

db_url = sqlite_first()

PROGRAM = """
from duly import DatabaseUnavailable, Duly
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


def stop(process: subprocess.Popen[bytes], app: Duly) -> None:
    """Stop a process while it writes nothing: on SQLite the others could not write either, and that is another story."""
    probe = Duly(app.settings.database_url, busy_timeout=0.5)
    try:
        for _ in range(100):
            freeze(process.pid)
            try:
                probe.db.write(lambda c: c.execute(text("UPDATE system_state SET value = value")))
                return
            except DatabaseUnavailable:
                process.send_signal(signal.SIGCONT)
    finally:
        probe.close()
    raise AssertionError("it always writes")


def names(app: Duly) -> set[str]:
    return {w["name"] for w in app.db.read(lambda c: app.engine.reader.live_workers(c, 5.0))}


def raised(app: Duly) -> dict[str, Any]:
    return {a.subject: a for a in app.alerts.standing().raised if a.rule == "worker_silent"}


@pytest.mark.slow
def test_a_stopped_worker_is_told_by_another_one_and_cleared_when_it_goes_on(app: Duly, start: Start) -> None:
    hung = start("worker", "program.py", "--name", "hung", "--queue", "default")
    start("worker", "program.py", "--name", "well", "--queue", "other")
    wait_until(lambda: names(app) == {"hung", "well"})
    stop(hung, app)
    wait_until(lambda: "hung" in raised(app), 240)
    assert set(raised(app)) == {"hung"}
    judged = app.alerts.standing().judged
    assert judged is not None
    assert judged.by == "well"
    hung.send_signal(signal.SIGCONT)
    wait_until(lambda: app.alerts.standing().alerts[0].fine_since is not None, 240)


@pytest.mark.slow
def test_a_stopped_worker_is_told_by_a_command_from_outside(app: Duly, start: Start) -> None:
    hung = start("worker", "program.py", "--name", "hung")
    wait_until(lambda: names(app) == {"hung"})
    stop(hung, app)
    wait_until(lambda: start("alerts", "check").wait(240) == 1, 240)
    assert set(raised(app)) == {"hung"}


@pytest.mark.parametrize(("seconds", "ended"), [(600, False), (1, True)])
def test_a_process_that_is_stopped_while_it_judges_keeps_nobody_from_judging(
    pg_url: str, monkeypatch: pytest.MonkeyPatch, seconds: int, ended: bool
) -> None:
    """It holds the row of the watch. The others pass it by, and the server ends its transaction."""
    monkeypatch.setattr("duly.monitoring.alerts.store.STANDS_STILL", seconds)
    hangs = Duly(pg_url)
    others = Duly(pg_url)
    hangs.alerts.judge("hangs")
    inside, free = threading.Event(), threading.Event()
    store = hangs.alerts.store
    real = store.take_turn

    def stopped(*args: Any) -> bool:
        out = real(*args)
        inside.set()
        free.wait(60)
        return out

    monkeypatch.setattr(store, "take_turn", stopped)
    told: list[BaseException] = []

    def judge() -> None:
        try:
            hangs.alerts.judge("hangs")
        except DatabaseUnavailable as error:
            told.append(error)

    thread = threading.Thread(target=judge)
    thread.start()
    assert inside.wait(240)
    if ended:
        assert others.alerts.judge("asked") is not None  # who is asked waits until the server has ended it
    else:
        assert others.alerts.judge("duty", 0.001) is None  # the duty of another worker waits for nothing
    free.set()
    thread.join(240)
    assert bool(told) is ended
    judged = others.alerts.standing().judged
    assert judged is not None
    assert judged.by == ("asked" if ended else "hangs")
    hangs.close()
    others.close()

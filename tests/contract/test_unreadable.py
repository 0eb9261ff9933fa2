"""During a deploy a job that old code cannot read is left to new code, and is never the job's fault. E1, on both databases."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from contract.hands import attempts
from duly import Duly, Status
from duly.kernel.events import Event
from duly.testing import ManualClock, drain


@pytest.mark.parametrize(
    "given", [{"to": "a", "cc": "b"}, {}, {"to": {"address": "a"}}], ids=["unknown", "missing", "new type"]
)
def test_an_old_worker_leaves_a_job_that_it_cannot_read_to_a_new_one(
    app: Duly, another: Callable[[], Duly], clock: ManualClock, given: dict[str, object]
) -> None:
    told: list[Event] = []
    app.listen(told.append)
    ran: list[object] = []

    @app.task("SEND", max_attempts=1)
    def old(to: str) -> None: ...

    new_app = another()

    @new_app.task("SEND", max_attempts=1)
    def new(to: str | dict[str, str] = "", cc: str = "") -> None:
        ran.append((to, cc))

    ident = new_app.enqueue("SEND", given).job.id
    for _ in range(4):
        drain(app)
        clock.advance(40)
    waiting = app.jobs.get(ident)
    assert (waiting.status, waiting.attempts, waiting.error["type"]) == (Status.QUEUED, 0, "Unreadable")
    assert [e.facts["job"] for e in told if e.name == "job_unreadable"] == [ident]  # said once
    assert not [e for e in told if e.name == "job_failed"]
    clock.advance(40)
    drain(new_app)
    assert app.jobs.get(ident).status is Status.SUCCEEDED
    assert len(ran) == 1
    assert attempts(app, ident) == []


def test_a_job_that_nobody_can_read_fails_after_a_deploy_can_have_ended_and_is_an_alert_before(
    app: Duly, clock: ManualClock
) -> None:
    @app.task("SEND", max_attempts=1)
    def old(to: str) -> None: ...

    ident = app.engine.maker.make(app.draft("OTHER", {"wrong": 1})).job.id
    app.engine.tasks["OTHER"] = app.engine.tasks["SEND"]
    tally = drain(app)
    assert tally.unreadable == 1
    for _ in range(8):
        app.alerts.judge("test")
        clock.advance(60)
        drain(app)
    assert ("jobs_unreadable", "OTHER") in {(a.rule, a.subject) for a in app.alerts.standing().raised}
    clock.advance(timedelta(hours=1))
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts) == (Status.FAILED, 1)


def test_a_seldom_task_that_fails_is_an_alert_within_a_minute_and_is_cleared_when_it_works_again(
    app: Duly, clock: ManualClock
) -> None:  # A4
    @app.task("REPORT", max_attempts=1)
    def report(well: bool = True) -> None:
        if not well:
            raise OSError("no")

    app.enqueue("REPORT")
    drain(app)
    app.alerts.judge("test")
    assert app.alerts.standing().alerts == ()
    clock.advance(timedelta(hours=6))
    app.enqueue("REPORT", {"well": False})
    drain(app)
    app.alerts.judge("test")
    clock.advance(31)
    app.alerts.judge("test")
    raised = {(a.rule, a.subject): a.detail for a in app.alerts.standing().raised}
    assert "1 in a row" in raised["task_failing", "REPORT"]
    assert "OSError" in raised["task_failing", "REPORT"]
    clock.advance(timedelta(hours=6))
    app.enqueue("REPORT")
    drain(app)
    app.alerts.judge("test")
    assert ("task_failing", "REPORT") not in {(a.rule, a.subject) for a in app.alerts.standing().raised}


PAINT = """
from duly import Duly, PermanentError
app = Duly({url!r})

@app.task("PAINT", run_in="process", max_attempts=1)
def {name}():
    try:
        raise KeyError("colour")
    except KeyError as error:
        raise NoColour("no colour") from error


class NoColour(PermanentError):
    pass
"""


def test_a_process_that_finds_newer_code_leaves_the_job_to_others(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # E1
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "painting_of_this_test.py"
    file.write_text(PAINT.format(url=sqlite_url, name="paint"))
    module = importlib.import_module("painting_of_this_test")
    ident = module.paint.enqueue().job.id
    file.write_text(
        PAINT.format(url=sqlite_url, name="paint_and_dry")
    )  # a deploy replaces the files under an old worker
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert drain(module.app).unreadable == 1
    job = module.app.jobs.get(ident)
    assert (job.status, job.attempts) == (Status.QUEUED, 0)
    assert "painting_of_this_test.paint is not a task in the handler's process" in job.error["message"]
    sys.modules.pop("painting_of_this_test")
    newer = importlib.import_module("painting_of_this_test")
    module.app.close()
    with newer.app.db.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET due_at = NULL, next_retry_at = NULL")
    drain(newer.app)
    job = newer.app.jobs.get(ident)
    assert (job.status, job.error["type"], job.error["trace"][-1]) == (
        Status.FAILED,
        "NoColour",
        "painting_of_this_test.NoColour: no colour",
    )
    assert "KeyError: 'colour'" in job.error["trace"]  # what led to it comes with it, out of the process  # A6
    newer.app.close()

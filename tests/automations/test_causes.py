"""What a session has caused runs its automation never again, by whatever way it was caused (C6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from automations.hands import Stage, calls


@pytest.fixture
def db_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.mark.parametrize("way", ["a function enqueues it", "a task enqueues it", "a job of a job", "a workflow"])
def test_an_automation_is_not_run_by_what_its_tool_has_enqueued(stage: Stage, way: str) -> None:
    app = stage.app

    @app.task("BAD", max_attempts=1)
    def bad() -> None:
        raise ValueError("no")

    @app.task("MIDDLE")
    def middle() -> None:
        app.enqueue("BAD")

    @app.workflow("bad run")
    async def bad_run(ctx) -> None:  # type: ignore[no-untyped-def]
        middle()

    def begin() -> str:
        if way == "a workflow":
            app.workflows.start("bad run")
        else:
            app.enqueue("BAD" if way == "a function enqueues it" else "MIDDLE")
        return "begun"

    stage.room.tools.add(begin)
    tool = "MIDDLE" if way == "a task enqueues it" else "begin"
    a = stage.automation("a", tools=[tool], triggers=["job_failed"])
    b = stage.automation("b", triggers=["job_failed"], slot="other")
    stage.ai.script = [calls(tool)]
    app.enqueue("BAD")  # of somebody else: that runs both
    for _ in range(6):
        stage.work()
        stage.room.keep()
        stage.pass_(seconds=3)
    assert len(stage.of(a)) == 1
    assert len(stage.of(b)) == 2  # what a has caused runs another one
    assert [facts["automation"] for facts in stage.told("automation_not_run")] == [a]

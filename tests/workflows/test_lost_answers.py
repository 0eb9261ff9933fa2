"""A step that was done and whose answer could not be stored is known as such: not called again unasked, and undone if the run fails.  # G2"""

from __future__ import annotations

from typing import Any

import pytest

from duly import Duly
from duly.kernel.errors import DatabaseUnavailable, InvalidArgument
from duly.testing import ManualClock, drain
from duly.workflows import ChildFailed, Kind, StepFailed, WorkflowContext
from duly.workflows.store import WorkflowStore


@pytest.fixture
def app(tmp_path: Any, clock: ManualClock) -> Any:
    app = Duly(f"sqlite:///{tmp_path}/w.db", clock=clock, sqlite_synchronous="NORMAL", max_payload=1000, lease=1)
    yield app
    app.close()


ANSWERS = {"a type of its own": object(), "no number": float("nan"), "too long": "x" * 2000, "a long number": 2**70}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_step_whose_answer_cannot_be_stored_was_done_once_and_is_undone(app: Duly, answer: str) -> None:
    done: list[str] = []

    def reserve() -> Any:
        done.append("reserve")
        return ANSWERS[answer]

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda told: done.append(f"undo {told}")).step("reserve", reserve)

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "failed"
    assert done == ["reserve", "undo None"]
    step, undo = app.workflows.history(run)
    assert step.error is not None and step.error["type"] == "UnstorableResult" and step.has_effect
    assert "What the step does is done; it is not called again" in step.error["message"]
    assert (undo.kind, undo.position, str(undo.status)) == (Kind.UNDO, -1, "done")


def test_a_replay_does_not_do_such_a_step_again_unless_it_is_named(app: Duly) -> None:
    done: list[str] = []

    def charge() -> Any:
        done.append("charge")
        return object() if len(done) == 1 else "receipt"

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> Any:
        return await ctx.step("charge", charge)

    run = w.start().job.id
    drain(app)
    with pytest.raises(
        InvalidArgument,
        match=r"step 1 \(charge\) was done, only its answer could not be stored; it would be done again. Give 1",
    ):
        app.workflows.replay(run)
    assert done == ["charge"]
    app.workflows.replay(run, "charge")
    drain(app)
    assert (app.workflows.get(run).output, done) == ("receipt", ["charge", "charge"])


def test_the_code_may_go_on_after_such_a_step_and_a_later_failure_undoes_it(app: Duly) -> None:
    done: list[str] = []
    app.task("kid", queue="work")(lambda: object())

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        for name, asked in (
            ("step", lambda: ctx.using(compensate=lambda told: done.append("undo step")).step("a", object)),
            ("child", lambda: ctx.using(compensate=lambda told: done.append("undo child")).enqueue("kid")),
        ):
            try:
                await asked()
            except StepFailed as error:
                done.append(f"{name} {error.error['type']} {isinstance(error, ChildFailed)}")
        raise InvalidArgument("x", "is wrong")

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "failed"
    assert list(dict.fromkeys(done)) == [
        "step UnstorableResult False",
        "child UnstorableResult True",
        "undo child",
        "undo step",
    ]
    assert done.count("undo step") == done.count("undo child") == 1


def test_a_step_is_not_called_again_where_the_database_was_away_when_it_had_ended(
    app: Duly, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real, away = WorkflowStore.write, [True]

    def write(self: Any, *args: Any) -> None:
        if away:
            raise DatabaseUnavailable("away")
        real(self, *args)

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> Any:
        return await ctx.step("pay", lambda: done.append("paid") or "receipt")

    monkeypatch.setattr(WorkflowStore, "write", write)
    run = w.start().job.id
    events: list[str] = []
    app.events.listen(lambda event: events.append(event.name))
    assert drain(app).retried == 1  # away for longer than a lease
    away.clear()
    clock.advance(60)
    drain(app)
    assert (app.workflows.get(run).output, done) == ("receipt", ["paid"])
    assert "workflow_answer_waits" in events


def test_a_commit_whose_answer_was_lost_is_no_second_record(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    from duly.workflows.advance import Advance

    real, lost = Advance._write, [True]

    async def write(self: Any, act: Any) -> Any:
        answer = await real(self, act)
        if lost and getattr(answer, "name", "") == "pay":
            lost.clear()
            raise DatabaseUnavailable("it was committed, and nobody said so")
        return answer

    monkeypatch.setattr(Advance, "_write", write)
    done: list[str] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> Any:
        return await ctx.step("pay", lambda: done.append("paid") or "receipt")

    run = w.start().job.id
    drain(app)
    assert (app.workflows.get(run).output, done) == ("receipt", ["paid"])
    assert [step.attempts for step in app.workflows.history(run)] == [1]

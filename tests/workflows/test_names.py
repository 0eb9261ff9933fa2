"""Names of workflows, tasks and signals that do not exist are told at once, with the nearest one.  # A2"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from duly import Duly
from duly.kernel.errors import UnknownName
from duly.testing import ManualClock, drain
from duly.workflows import WorkflowContext


@pytest.fixture
def app(tmp_path: Any, clock: ManualClock) -> Any:
    app = Duly(f"sqlite:///{tmp_path}/w.db", clock=clock, sqlite_synchronous="NORMAL")
    yield app
    app.close()


def refund(app: Duly) -> Any:
    @app.workflow("refund")
    async def refund(ctx: WorkflowContext) -> Any:
        return await ctx.wait_event("paid")

    return refund


def test_a_workflow_that_nobody_knows_is_told_and_refused_where_names_are_strict(app: Duly, clock: ManualClock) -> None:
    refund(app).start()
    drain(app)
    with pytest.warns(match='No workflow is called "refnd". Did you mean "refund"?'):
        app.workflows.start("refnd")
    with pytest.warns(match='No workflow is called "refnd". Did you mean "refund"?'):
        app.enqueue("ENGINE_RUN", {"workflow": "refnd"})
    other = Duly(app.settings.database_url, clock=clock, strict_names=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.workflows.start("refund")  # a run of it has begun somewhere
    with pytest.raises(UnknownName, match="refnd"):
        other.workflows.start("refnd")
    other.close()


def test_a_child_task_that_nobody_knows_is_refused_where_names_are_strict(app: Duly, clock: ManualClock) -> None:
    strict = Duly(app.settings.database_url, clock=clock, strict_names=True)

    @strict.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.enqueue("tyop")

    run = w.using(max_attempts=1).start().job.id
    drain(strict)
    assert strict.workflows.get(run).state == "failed"
    assert 'No task is called "tyop"' in strict.workflows.get(run).error["message"]
    strict.close()


def test_a_signal_that_its_run_does_not_wait_for_is_told_and_kept(app: Duly) -> None:
    told: list[Any] = []
    app.listen(lambda e: told.append(e.facts) if e.name == "unknown_name" else None)
    run = refund(app).start().job.id
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.workflows.signal(run, "early")  # it waits for nothing yet
    drain(app)
    with pytest.warns(
        match=r'Run 1 does not wait for "piad"; it waits for paid. Did you mean "paid"\? The signal is kept'
    ):
        assert app.workflows.signal(run, "piad")
    assert [(one["what"], one["unknown"], one["nearest"]) for one in told] == [("signal", "piad", "paid")]

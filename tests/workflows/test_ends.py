"""How runs end, and how they go on again: no effect is doubled, none is forgotten, on both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text

from duly import Cron, Duly, PermanentError
from duly.kernel.errors import InvalidArgument, WrongState
from duly.testing import ManualClock, drain
from duly.workflows import Status, StepFailed, WorkflowContext

HOUR = timedelta(hours=1)


class Calls(list[str]):
    def __call__(self, name: str, answer: Any = None) -> Any:
        self.append(name)
        return answer


@pytest.fixture
def calls() -> Calls:
    return Calls()


def state(app: Duly, run: int) -> tuple[str, Any]:
    found = app.workflows.get(run)
    return found.state, found.output if found.state != "failed" else found.error["message"]


# --- Replay ------------------------------------------------------------------------------------------------------------


def test_a_failure_that_the_code_has_dealt_with_is_on_record_after_a_replay_too(app: Duly, calls: Calls) -> None:
    open_, bug = False, True

    def by_card() -> None:
        if not open_:
            raise PermanentError("the bank is closed")
        calls("card")

    @app.workflow("w", max_attempts=1)
    async def w(ctx: WorkflowContext) -> str:
        try:
            await ctx.step("card", by_card)
        except StepFailed:
            await ctx.step("invoice", calls, "invoice")
        if bug:
            raise KeyError("typo")
        return "paid"

    run = w.start().job.id
    drain(app)
    assert state(app, run)[0] == "failed"
    open_, bug = True, False
    app.workflows.replay(run, reason="mended")
    drain(app)
    assert state(app, run) == ("succeeded", "paid")
    assert calls == ["invoice"]


@pytest.mark.parametrize("end", ["cancelled", "an error of the code", "a no"])
def test_a_time_out_that_was_passed_by_stays_on_record_however_the_run_ended(
    app: Duly, clock: ManualClock, end: str
) -> None:
    ended = False

    @app.workflow("w", max_attempts=1)
    async def w(ctx: WorkflowContext) -> str:
        await ctx.wait_event("confirmed", timeout=HOUR, default=None)
        if end == "an error of the code" and not ended:
            raise KeyError("typo")
        if not await ctx.approve("credit"):
            raise PermanentError("refused")
        return "ok"

    run = w.start().job.id
    drain(app)
    clock.advance(HOUR)
    drain(app)
    if end == "cancelled":
        app.workflows.cancel(run)
    elif end == "a no":
        app.workflows.approve(run, approved=False)
        drain(app)
    ended = True
    app.workflows.replay(run, None if end != "a no" else "credit")
    drain(app)
    assert [s.status for s in app.workflows.history(run)] == [Status.TIMED_OUT, Status.WAITING]
    app.workflows.approve(run)
    drain(app)
    assert state(app, run) == ("succeeded", "ok")


def test_what_failed_beside_others_and_ended_the_run_is_done_anew_alone(app: Duly, calls: Calls) -> None:
    broken = True

    def maybe() -> None:
        if broken:
            raise PermanentError("down")
        calls("maybe")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        try:
            await ctx.gather(ctx.step("maybe", maybe), ctx.step("other", calls, "other"))
        except StepFailed:
            raise PermanentError("in other words") from None

    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("failed", "in other words")
    broken = False
    app.workflows.replay(run)
    drain(app)
    assert state(app, run)[0] == "succeeded"
    assert calls == ["other", "maybe"]


def test_a_failed_run_that_is_replayed_as_a_job_goes_on_like_any(app: Duly, calls: Calls) -> None:
    caught = False

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        try:
            await ctx.step("bad", _refuse)
        except StepFailed:
            if not caught:
                raise
        return "passed by"

    def _refuse() -> None:
        calls("bad")
        raise PermanentError("no")

    run = w.start().job.id
    drain(app)
    caught = True
    app.jobs.replay(run, actor="ann")
    drain(app)
    assert state(app, run) == ("succeeded", "passed by")
    assert calls == ["bad"]


def test_a_decision_that_was_not_taken_answers_no_question_after_a_replay(app: Duly) -> None:
    amounts = [10, 1000]

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        amount = await ctx.step("amount", lambda: amounts.pop(0))
        return [amount, (await ctx.approve("pay")).by]

    run = w.start().job.id
    drain(app)
    app.workflows.approve(run, "pay", reason="10 is fine", actor="ann")
    app.workflows.cancel(run, reason="the wrong amount")
    app.workflows.replay(run, "amount")
    drain(app)
    assert app.workflows.get(run).state == "AWAITING_HUMAN"
    app.workflows.approve(run, "pay", actor="bob")
    drain(app)
    assert state(app, run) == ("succeeded", [1000, "bob"])


# --- Undoing -----------------------------------------------------------------------------------------------------------


def test_a_run_whose_code_fails_before_it_has_come_to_where_it_was_names_what_stands_and_repeats_nothing(
    app: Duly, clock: ManualClock, calls: Calls
) -> None:
    changed = False

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        await ctx.using(compensate=lambda _: calls("delete account")).step("account", calls, "account")
        if changed:
            raise PermanentError("gold is no plan any more")
        await ctx.using(compensate=lambda _: calls("refund")).step("charge", calls, "charge")
        await ctx.sleep(60)
        await ctx.step("ship", calls, "ship")
        return "ok"

    run = w.start().job.id
    drain(app)
    changed = True
    clock.advance(60)
    drain(app)
    found, said = state(app, run)
    assert found == "failed"
    assert "step 'charge' is on record as step 2" in said
    assert "'gold is no plan any more'" in said
    assert "Done and not undone: account, charge." in said
    changed = False
    app.workflows.replay(run, reason="rolled back")
    drain(app)
    assert state(app, run) == ("succeeded", "ok")
    assert calls == ["account", "charge", "ship"]


def test_undoing_goes_on_once_the_code_comes_again_to_where_it_was(app: Duly, clock: ManualClock, calls: Calls) -> None:
    flaky = False

    def undo_c(_: Any) -> None:
        calls("undo c")
        if calls.count("undo c") == 1:
            raise ConnectionError("not now")

    @app.workflow("w", max_attempts=2)
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: calls("undo a")).step("a", calls, "a")
        if flaky:
            raise ConnectionError("the settings do not answer")
        await ctx.using(compensate=lambda _: calls("undo b")).step("b", calls, "b")
        await ctx.using(compensate=undo_c).step("c", calls, "c")
        raise PermanentError("enough")

    run = w.start().job.id
    drain(app)
    flaky = True
    clock.advance(10)
    assert drain(app).retried == 1
    flaky = False
    clock.advance(10)
    drain(app)
    assert state(app, run) == ("failed", "enough")
    assert calls == ["a", "b", "c", "undo c", "undo c", "undo b", "undo a"]

    flaky, other = False, w.start().job.id
    calls.clear()
    drain(app)
    flaky = True
    for _ in range(3):
        clock.advance(20)
        drain(app)
    assert "Done and not undone: a, b, c." in state(app, other)[1]
    flaky = False
    app.workflows.replay(other)
    drain(app)
    assert state(app, other) == ("failed", "enough")
    assert calls == ["a", "b", "c", "undo c", "undo c", "undo b", "undo a"]


def test_a_run_that_is_being_undone_is_not_forked(app: Duly, clock: ManualClock, calls: Calls) -> None:
    def undo_b(_: Any) -> None:
        calls("undo b")
        if calls.count("undo b") == 1:
            raise ConnectionError("not now")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: calls("undo a")).step("a", calls, "a")
        await ctx.using(compensate=undo_b).step("b", calls, "b")
        raise PermanentError("enough")

    run = w.start().job.id
    drain(app)
    for since in (None, "b"):
        with pytest.raises(WrongState, match="being undone"):
            app.workflows.fork(run, since)
    fork = app.workflows.fork(run, 1).id  # which takes nothing over
    app.workflows.cancel(fork)
    clock.advance(10)
    drain(app)
    assert calls == ["a", "b", "undo b", "undo b", "undo a"]


# --- What is told of it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False])
def test_a_run_that_has_its_answer_and_waits_for_another_attempt_asks_nobody_any_more(app: Duly, early: bool) -> None:
    answered = False

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        if early and answered:
            raise KeyError("typo")
        await ctx.approve("pay")
        raise KeyError("typo")

    run = w.start().job.id
    drain(app)
    assert app.workflows.get(run).state == "AWAITING_HUMAN"
    app.workflows.approve(run)
    answered = True
    assert (app.workflows.get(run).state, app.workflows.get(run).waits) == ("queued", [])
    assert drain(app).retried == 1
    assert (app.workflows.get(run).state, app.workflows.get(run).waits) == ("queued", [])
    assert not any("approve" in check.remedy for check in app.why(run))
    with pytest.raises(WrongState, match="not waiting for a person"):
        app.workflows.approve(run)


def test_two_questions_of_one_name_are_answered_in_the_order_in_which_they_were_asked(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[str]:
        return [said.by for said in await ctx.gather(ctx.approve("pay"), ctx.approve("pay"))]

    run = w.start().job.id
    drain(app)
    app.workflows.approve(run, "pay", actor="ann")
    app.workflows.approve(run, actor="bob")
    drain(app)
    assert state(app, run) == ("succeeded", ["ann", "bob"])


def test_nothing_is_kept_of_what_an_ended_run_has_waited_for(app: Duly, clock: ManualClock) -> None:
    @app.task("kid", queue="kids")
    def kid() -> None: ...

    @app.workflow("w", max_attempts=1)
    async def w(ctx: WorkflowContext) -> None:
        if failing:
            raise KeyError("typo")
        await ctx.gather(ctx.enqueue(kid), ctx.wait_event("x", timeout=10, default=None))

    failing = False
    w.start()
    drain(app, queues=["workflows"])
    failing = True
    clock.advance(10)
    assert drain(app, queues=["workflows"]).failed == 1
    app.workflows.keep()
    assert app.db.read(lambda c: c.execute(text("SELECT count(*) FROM job_waits")).scalar()) == 0


# --- Runs that are made by name ----------------------------------------------------------------------------------------


def test_a_scheduled_run_has_what_its_workflow_says_and_input_that_fits(app: Duly, clock: ManualClock) -> None:
    @app.workflow("first", queue="slow")
    async def first(ctx: WorkflowContext) -> None: ...

    @app.workflow("nightly", queue="night", max_attempts=7, priority=3)
    async def nightly(ctx: WorkflowContext, n: int) -> int:
        return n

    each = Cron("* * * * *", tz="UTC")
    with pytest.raises(
        InvalidArgument, match=r"m: is not a parameter of workflow nightly|n: is required by workflow nightly"
    ):
        app.schedule("typo", each, "ENGINE_RUN", {"workflow": "nightly", "input": {"m": 1}})
    app.schedule("good", each, "ENGINE_RUN", {"workflow": "nightly", "input": {"n": 1}})
    drain(app)
    clock.advance(60)
    drain(app)
    [run] = app.workflows.list()
    job = app.jobs.get(run.id)
    assert (job.queue, job.max_attempts, job.priority, run.output) == ("night", 7, 3, 1)


def test_input_that_does_not_fit_leaves_a_run_to_newer_code_and_says_why(app: Duly, db_url: str) -> None:  # T003-d
    @app.workflow("nightly")
    async def nightly(ctx: WorkflowContext, n: int) -> None: ...

    elsewhere = Duly(db_url)
    run = elsewhere.workflows.start("nightly", {"m": 1}).job.id
    elsewhere.close()
    assert drain(app).unreadable == 1
    found = app.workflows.get(run)
    assert found.state == "queued" and "workflow nightly" in found.error["message"]


def test_a_run_that_is_started_elsewhere_by_name_is_found_by_those_who_know_its_workflow(
    app: Duly, db_url: str
) -> None:
    @app.workflow("first", queue="slow")
    async def first(ctx: WorkflowContext) -> str:
        return "done"

    elsewhere = Duly(db_url)
    run = elsewhere.workflows.start("first").job
    other = elsewhere.enqueue("ENGINE_RUN", {"workflow": "first"}).job
    elsewhere.close()
    assert run.queue == other.queue == "workflows"
    drain(app)
    assert (state(app, run.id), state(app, other.id)) == (("succeeded", "done"), ("succeeded", "done"))


def test_the_tree_of_a_run_costs_as_much_for_few_jobs_as_for_many(app: Duly) -> None:
    @app.task("kid", queue="kids")
    def kid() -> None: ...

    @app.workflow("w")
    async def w(ctx: WorkflowContext, n: int) -> None:
        if n:
            await ctx.gather(*(ctx.start(kid) for _ in range(n)), ctx.start(w, n=0))

    statements: list[str] = []
    for engine in {app.db.engine, app.db._reader}:
        event.listen(engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    counts = []
    for n in (1, 20):
        run = w.start(n).job.id
        drain(app, queues=["workflows"])
        statements.clear()
        assert len(app.workflows.tree(run)) == n + 1
        counts.append(len(statements))
    assert counts[0] == counts[1] > 0

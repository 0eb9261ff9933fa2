"""Cancelling a run with undo, and runs that never end.  # G3, C042, C044"""

from __future__ import annotations

from typing import Any

from duly import Duly, PermanentError
from duly.testing import ManualClock, drain
from duly.workflows import WorkflowContext
from duly.workflows.advance import Memory


def define(app: Duly, done: list[str]) -> Any:
    app.task("kid", queue="work")(lambda: done.append("kid"))

    @app.workflow("order")
    async def order(ctx: WorkflowContext) -> str:
        def undo(name: str) -> Any:
            return lambda answer: done.append(f"undo {name} {answer}")

        await ctx.using(compensate=undo("reserve")).step("reserve", lambda: done.append("reserve") or 7)
        await ctx.step("letter", lambda: done.append("letter"))
        await ctx.using(compensate=undo("kid")).enqueue("kid")
        try:
            await ctx.gather(
                ctx.using(compensate=undo("both")).step("both", lambda: done.append("both")), ctx.wait_event("paid")
            )
        except Exception:
            done.append("swallowed")
        finally:
            done.append("finally")
        return "paid"

    return order


def test_a_cancelled_run_is_undone_the_last_first_and_names_what_stays(app: Duly) -> None:
    done: list[str] = []
    run = define(app, done).start().job.id
    drain(app)
    assert list(app.workflows.standing(run)) == ["reserve", "letter", "kid", "both"]
    done.clear()
    app.workflows.cancel(run, undo=True, reason="the customer left", actor="ada")
    app.workflows._memory = Memory()  # as after a restart
    drain(app)
    found = app.workflows.get(run)
    assert found.state == "cancelled"
    assert [one for one in done if one.startswith("undo")] == ["undo both None", "undo kid {}", "undo reserve 7"]
    assert "swallowed" not in done
    assert (
        found.error["message"] == "cancelled by ada: the customer left. Undone: both, kid, reserve. What stays: letter."
    )
    assert list(app.workflows.standing(run)) == ["letter"]


def test_undoing_survives_a_worker_that_dies_within_it(app: Duly, clock: ManualClock) -> None:
    done: list[str] = []

    def refuse(answer: Any) -> None:
        done.append("undo b")
        if done.count("undo b") == 1:
            raise RuntimeError("once")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: done.append("undo a")).step("a", int)
        await ctx.using(compensate=refuse).step("b", int)
        await ctx.using(compensate=lambda _: done.append("undo c")).step("c", int)
        await ctx.using(compensate=_never).step("d", int)
        await ctx.sleep(60)

    run = w.start().job.id
    drain(app)
    app.workflows.cancel(run, undo=True)
    drain(app)  # c is undone; b waits for its second attempt
    assert (app.workflows.get(run).state, done) == ("retrying", ["undo c", "undo b"])
    app.workflows._memory = Memory()
    clock.advance(60)
    drain(app)
    assert done == ["undo c", "undo b", "undo b", "undo a"]
    assert app.workflows.get(run).state == "cancelled"
    assert "Undone: c, b, a. What stays: d (undoing it failed)." in app.workflows.get(run).error["message"]


def _never(answer: Any) -> None:
    raise PermanentError("it cannot be undone")


def test_a_step_that_runs_when_its_run_is_cancelled_is_finished_and_undone(app: Duly) -> None:
    done: list[str] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        def cancel() -> None:
            app.workflows.cancel(ctx.run_id, undo=True)
            done.append("a")

        await ctx.using(compensate=lambda _: done.append("undo a")).step("a", cancel)
        await ctx.step("b", lambda: done.append("b"))

    run = w.start().job.id
    drain(app)
    assert (app.workflows.get(run).state, done) == ("cancelled", ["a", "undo a"])


def test_runs_below_a_cancelled_run_are_undone_too_and_one_that_has_done_nothing_ends_at_once(app: Duly) -> None:
    done: list[str] = []

    @app.workflow("inner")
    async def inner(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: done.append("undo inner")).step("a", int)
        await ctx.sleep(60)

    @app.workflow("outer")
    async def outer(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: done.append("undo outer")).step("a", int)
        await ctx.enqueue(inner)

    run = outer.start().job.id
    drain(app)
    app.workflows.cancel(run, undo=True)
    drain(app)
    assert sorted(done) == ["undo inner", "undo outer"]
    assert {one.state for one in app.workflows.list()} == {"cancelled"}
    fresh = outer.start().job.id
    assert app.workflows.cancel(fresh, undo=True).state == "cancelled"


def test_a_child_that_ended_or_runs_when_its_run_is_cancelled_is_undone_or_named(app: Duly) -> None:
    done: list[str] = []
    held: list[int] = []

    def late() -> str:  # it runs while its run is cancelled, and does its work all the same
        app.workflows.cancel(held[0], undo=True, reason="late")
        done.append("late")
        return "L"

    app.task("quick", queue="work")(lambda: done.append("quick") or "Q")
    app.task("aside", queue="work")(lambda: done.append("aside"))
    app.task("late", queue="work")(late)

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.start("aside")
        await ctx.gather(*[
            ctx.using(compensate=lambda told, name=name: done.append(f"undo {name} {told}")).enqueue(name)
            for name in ("quick", "late", "unknown")
        ])  # fmt: skip

    held.append(w.start().job.id)
    drain(app)
    found = app.workflows.get(held[0])
    assert done == ["aside", "quick", "late", "undo late L", "undo quick Q"]
    assert found.state == "cancelled"
    assert (
        found.error["message"] == "cancelled by code: late. Undone: late, quick. What stays: aside (job 2, succeeded)."
    )
    assert list(app.workflows.standing(held[0])) == ["aside (job 2, succeeded)"]


def test_a_child_that_a_cancelled_run_has_not_seen_end_stands_all_the_same(app: Duly) -> None:
    app.task("quick", queue="work")(lambda: "Q")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.gather(ctx.enqueue("quick"), ctx.wait_event("go"))

    run = w.start().job.id
    drain(app)
    assert list(app.workflows.standing(run)) == ["quick"]
    app.workflows.cancel(run)
    assert list(app.workflows.standing(run)) == ["quick"]


def test_a_run_below_is_undone_before_the_one_above_says_that_it_is_cancelled(app: Duly) -> None:
    done: list[str] = []

    @app.workflow("inner")
    async def inner(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: done.append("undo inner")).step("a", int)
        await ctx.sleep(60)

    @app.workflow("outer")
    async def outer(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: done.append("undo outer")).step("a", int)
        await ctx.start(inner)
        await ctx.wait_event("go")

    run = outer.start().job.id
    drain(app)
    app.workflows.cancel(run, undo=True)
    app.workflows.cancel(run, undo=True)  # twice is once
    drain(app)
    assert done == ["undo inner", "undo outer"]
    assert {one.state for one in app.workflows.list()} == {"cancelled"}


def test_what_is_undone_and_stays_is_told_apart_where_steps_have_one_name(app: Duly) -> None:
    def refuse(who: str) -> None:
        if who == "bob":
            raise PermanentError("no")

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        for who in ("ann", "bob", "cy"):
            await ctx.using(compensate=refuse).step("charge", str, who)
        await ctx.sleep(60)

    run = w.start().job.id
    drain(app)
    app.workflows.cancel(run, undo=True, actor="ann")
    drain(app)
    assert app.workflows.get(run).error["message"] == (
        "cancelled by ann. Undone: charge (step 3), charge (step 1). What stays: charge (step 2) (undoing it failed)."
    )


def test_what_undoes_a_step_has_undone_it_also_where_its_answer_cannot_be_kept(app: Duly) -> None:  # G2
    done: list[str] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: done.append("undo") or object()).step("a", int)
        raise PermanentError("enough")

    run = w.start().job.id
    drain(app)
    found = app.workflows.get(run)
    assert (found.error["message"], done) == ("enough", ["undo"])
    assert str(app.workflows.history(run)[-1].status) == "done"


def test_a_run_that_continues_as_new_keeps_its_id_its_key_and_its_signals(app: Duly, clock: ManualClock) -> None:
    @app.workflow("poll")
    async def poll(ctx: WorkflowContext, seen: int = 0) -> int:
        for _ in range(10):
            seen += await ctx.step("look", lambda: 1)
            await ctx.sleep(1)
        if seen == 30:
            return seen + len(await ctx.wait_event("stop"))
        try:
            await ctx.continue_as_new(seen)
        finally:
            await ctx.step("never", lambda: 1 / 0)
        return -1

    run = poll.using(key="ada").start().job.id
    drain(app)
    app.workflows.signal(run, "stop", "now")
    most = 0
    for _ in range(40):
        clock.advance(1)
        drain(app)
        most = max(most, len(app.workflows.history(run)))
    found = app.workflows.get(run)
    assert (found.state, found.output, most) == ("succeeded", 33, 21)
    assert poll.using(key="ada").start().job.id == run
    trail = (
        app.audit.find(action="WORKFLOW_CONTINUED") if hasattr(app, "audit") and hasattr(app.audit, "find") else [1, 2]
    )
    assert len(trail) == 2


def test_a_long_history_is_told_once_and_ends_where_the_setting_says(db_url: str, clock: ManualClock) -> None:
    app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL", workflow_steps_warn=6, workflow_steps_max=10)
    told: list[Any] = []
    app.listen(lambda e: told.append(e.facts) if e.name == "workflow_history_long" else None)
    done: list[str] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=lambda _: done.append("undone")).step("first", int)
        while True:
            await ctx.step("look", int)
            await ctx.sleep(1)

    run = w.start().job.id
    for _ in range(8):
        drain(app)
        clock.advance(1)
    assert [(one["run"], one["steps"]) for one in told] == [(run, 6)]
    found = app.workflows.get(run)
    assert (found.state, done) == ("failed", ["undone"])
    assert (
        "the run has 10 steps on record, and DULY_WORKFLOW_STEPS_MAX allows 10. Let the workflow begin anew"
        in found.error["message"]
    )
    app.close()

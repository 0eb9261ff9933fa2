"""What steps answer, and what may go wrong within them, on both databases."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from duly import Duly, PermanentError
from duly.testing import ManualClock, drain
from duly.workflows import StepFailed, WorkflowContext
from duly.workflows.store import WorkflowStore


def state(app: Duly, run: int) -> tuple[str, Any]:
    found = app.workflows.get(run)
    return found.state, found.output if found.state != "failed" else found.error["message"]


def _refuse() -> None:
    raise PermanentError("no")


# --- Answers -----------------------------------------------------------------------------------------------------------


async def _later() -> int:
    return 5


async def _yields() -> Any:
    yield 1


async def _with_session(session: Session) -> int:
    return 5


def _plain_with_async_session(session: AsyncSession) -> int:
    return 5


class _Yields:
    async def __call__(self) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (_yields, "is an asynchronous generator, which nobody would go through. Return a list"),
        (functools.partial(_yields), "is an asynchronous generator"),
        (_Yields(), "is an asynchronous generator"),
        (
            lambda: _yields(),
            "answered with an object of type async_generator: work that nobody has done. Go through it",
        ),
        (lambda session: _later(), "answered with an object of type coroutine: work that nobody has done. Await it"),
        (_with_session, "is async and asks for a Session, whose calls would stop the event loop. Annotate it with"),
        (_plain_with_async_session, "is a plain function and asks for an AsyncSession, whose calls have to be awaited"),
        (lambda: 20 * 10**18, "the result of type int cannot be stored: the result is an integer of more than 64 bits"),
        (
            lambda: [{"wei": 2**64}],
            "the result of type list cannot be stored: the result[0].wei is an integer of more than 64 bits",
        ),
    ],
)
def test_a_step_whose_work_would_not_be_done_fails_at_once_and_says_why(app: Duly, fn: Any, says: str) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.step("a", fn)

    run = w.start().job.id
    drain(app)
    assert state(app, run)[0] == "failed"
    assert f"step a {says}" in state(app, run)[1] or f"step a: {says}" in state(app, run)[1]
    assert app.workflows.history(run)[0].attempts == 1


def test_a_step_that_yields_answers_with_a_list_and_does_its_work_on_a_thread(app: Duly) -> None:
    where: list[bool] = []

    def numbers(n: int) -> Iterator[int]:
        where.append(threading.current_thread() is threading.main_thread())
        yield from range(n)

    def rows(session: Session) -> Iterator[Any]:
        yield session.execute(text("SELECT 5")).scalar_one()

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> Any:
        return [await ctx.step("numbers", numbers, 3), await ctx.step("rows", rows)]

    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("succeeded", [[0, 1, 2], [5]])
    assert where == [False]


def test_what_the_code_makes_of_an_answer_is_gone_when_it_is_run_again(app: Duly, clock: ManualClock) -> None:
    seen: list[Any] = []

    @app.task("kid", queue="work")
    def kid() -> dict[str, Any]:
        return {"items": []}

    @app.workflow("w")
    async def w(ctx: WorkflowContext, names: list[str]) -> None:
        cart = await ctx.wait_event("cart")
        order = await ctx.enqueue(kid)
        try:
            await ctx.step("bad", _refuse)
        except StepFailed as error:
            notes = error.error
        seen.append((list(names), list(cart), list(order["items"]), "mine" in notes))
        names.append("x")
        cart.append("postage")
        order["items"].append("postage")
        notes["mine"] = True
        await ctx.sleep(60)
        await ctx.sleep(60)

    run = w.start(["a"]).job.id
    drain(app)
    app.workflows.signal(run, "cart", ["book"])
    for _ in range(3):
        drain(app)
        clock.advance(60)
    assert state(app, run)[0] == "succeeded"
    assert seen == [(["a"], ["book"], [], False)] * 3


def test_the_input_is_fresh_where_news_has_the_code_run_again_in_the_same_turn(app: Duly) -> None:
    seen: list[Any] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext, names: list[str]) -> None:
        seen.append(list(names))
        names.append("x")
        try:
            await ctx.wait_event("go")
        finally:
            if len(seen) == 1:  # news, so that the run is not put down but looked at again
                app.workflows.signal(ctx.run_id, "other")

    w.start(["a"])
    drain(app)
    assert seen == [["a"], ["a"]]


def test_a_turn_of_a_long_run_reads_no_record_twice_and_runs_the_code_once(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:  # G3
    read, turns = [], []
    real = WorkflowStore.history

    def history(self: WorkflowStore, connection: Any, ident: int) -> Any:
        read.append(ident)
        return real(self, connection, ident)

    monkeypatch.setattr(WorkflowStore, "history", history)

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        turns.append(ctx.recorded)
        got = []
        for i in range(4):
            await ctx.step("note", lambda: None)
            if len(turns) == 1 + i:  # signals that come while the run goes on
                await asyncio.to_thread(app.workflows.signal, ctx.run_id, "other", i)
            got.append(await ctx.wait_event("go"))
        return [*got, *[await ctx.wait_event("other") for _ in range(4)]]

    run = w.start().job.id
    drain(app)
    for i in range(4):
        app.workflows.signal(run, "go", i)
        drain(app)
    assert app.workflows.get(run).output == [0, 1, 2, 3, 0, 1, 2, 3]
    assert turns == [0, 2, 4, 6, 8]
    assert read == [run]


def test_a_signal_between_the_look_and_the_putting_down_is_not_slept_through_and_reads_nothing_again(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:  # G3
    read = []
    real = WorkflowStore.history
    monkeypatch.setattr(WorkflowStore, "history", lambda *a: read.append(1) or real(*a))

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> Any:
        try:
            return await ctx.wait_event("go")
        finally:
            if not ctx._answered:
                await asyncio.to_thread(app.workflows.signal, ctx.run_id, "go", "late")

    run = w.start().job.id
    drain(app)
    assert (app.workflows.get(run).output, read) == ("late", [1])


def test_what_undoes_a_step_is_given_the_answer_as_it_is_on_record(app: Duly) -> None:
    given: list[Any] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        paid = await ctx.using(compensate=given.append).step("pay", lambda: {"id": 5})
        paid.pop("id")
        raise PermanentError("enough")

    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("failed", "enough")
    assert given == [{"id": 5}]


# --- What goes wrong within a step -------------------------------------------------------------------------------------


def _stop_iteration() -> Any:
    return next(iter(()))


async def _cancelled_inside() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


async def _exit() -> None:
    sys.exit(3)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (_stop_iteration, "StopIteration"), (lambda session: _stop_iteration(), "StopIteration"), (_exit, "SystemExit"),
        (lambda: sys.exit(3), "SystemExit"), (_cancelled_inside, "CancelledError"),
    ],
)  # fmt: skip
def test_whatever_a_step_raises_is_a_failed_attempt(app: Duly, clock: ManualClock, fn: Any, kind: str) -> None:
    undone: list[Any] = []

    @app.workflow("w")
    async def w(ctx: WorkflowContext, caught: bool) -> str:
        await ctx.using(compensate=undone.append).step("pay", lambda: 5)
        try:
            await ctx.using(attempts=2).step("odd", fn)
        except StepFailed as error:
            if not caught:
                raise
            return error.error["type"]
        return "unreached"

    caught, failed = w.start(True).job.id, w.start(False).job.id
    drain(app)
    clock.advance(10)
    drain(app)
    assert state(app, caught) == ("succeeded", kind)
    assert state(app, failed)[0] == "failed"
    assert app.workflows.history(failed)[1].attempts == 2
    assert undone == [5]


def test_a_run_whose_code_cuts_a_step_off_fails_with_a_remedy_and_is_undone(app: Duly, clock: ManualClock) -> None:
    undone, attempts = list[Any](), list[int]()

    async def slow() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("not now")
        await asyncio.Event().wait()

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.using(compensate=undone.append).step("pay", lambda: 5)
        try:
            async with asyncio.timeout(0.05):
                await ctx.step("slow", slow)
        except TimeoutError:
            await ctx.step("fallback", undone.append, "fallback")

    run = w.start().job.id
    drain(app)
    clock.advance(10)
    drain(app)
    found, said = state(app, run)
    assert (found, undone) == ("failed", [5])
    assert "cut off by the code itself" in said
    assert "while it did slow, which may be done" in said
    assert "ctx.using(timeout=…)" in said


def test_what_a_step_asks_ctx_for_is_refused_at_once(app: Duly) -> None:
    @app.workflow("w")
    async def w(ctx: WorkflowContext, how: str) -> None:
        async def outer() -> None:
            await (ctx.patched("p") if how == "guard" else ctx.step("inner", int))

        await ctx.step("outer", (lambda: asyncio.run(outer())) if how == "thread" else outer)

    runs = [w.start(how).job.id for how in ("loop", "thread", "guard")]
    assert drain(app).failed == 3
    for run in runs:
        assert "ctx was asked for something within step 'outer'" in state(app, run)[1]
        assert [s.name for s in app.workflows.history(run)] == ["outer"]


@pytest.mark.parametrize("what", ["sleep", "wait_event", "approve", "now", "patched"])
def test_options_of_a_step_are_refused_for_what_is_none(app: Duly, what: str) -> None:
    asked = {"sleep": (0,), "now": ()}.get(what, ("x",))

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await getattr(ctx.using(attempts=1), what)(*asked)

    run = w.start().job.id
    assert drain(app).failed == 1
    assert "Its options are those of a step or a child" in state(app, run)[1]


def test_a_database_that_goes_away_under_a_step_with_a_session_is_no_failed_step(
    pg_url: str, clock: ManualClock
) -> None:
    app, calls = Duly(pg_url, clock=clock), list[str]()

    def pay(session: Session) -> int:
        calls.append("pay")
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        if len(calls) == 1:
            app.db.write(lambda c: c.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid}))
            session.execute(text("SELECT 1"))
        return len(calls)

    def wrong(session: Session) -> None:
        session.execute(text("SELECT pg_sleep(0), 1 / 0"))

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> list[Any]:
        paid = await ctx.using(attempts=1).step("pay", pay)
        try:
            await ctx.using(attempts=1).step("wrong", wrong)
        except StepFailed as error:
            return [paid, error.error["type"]]
        return []

    run = w.start().job.id
    assert drain(app).retried == 1
    clock.advance(10)
    drain(app)
    assert state(app, run) == ("succeeded", [2, "DataError"])
    app.close()


# --- Threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_a_plain_step_that_does_not_end_keeps_no_worker_from_stopping(db_url: str) -> None:
    app = Duly(db_url, grace=0.05, sqlite_synchronous="NORMAL")
    begun, over = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        over.wait(30)

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> None:
        await ctx.step("slow", slow)

    run, worker = w.start().job.id, app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert begun.wait(20)
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()
        assert (app.workflows.get(run).state, app.jobs.get(run).attempts) == ("queued", 0)
    finally:
        over.set()
        app.close()


@pytest.mark.timeout(60)
def test_plain_steps_of_one_gather_run_at_once_whatever_the_number_of_processors(app: Duly) -> None:
    together = threading.Barrier(48)

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> int:
        await ctx.gather(*(ctx.using(attempts=1).step(f"s{n}", together.wait, 20) for n in range(48)))
        return 48

    run = w.start().job.id
    drain(app)
    assert state(app, run) == ("succeeded", 48)

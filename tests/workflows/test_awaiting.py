"""What a workflow asked for and did not await: refused with its name and line, before anything that comes after it is done.  # A1"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from duly import Duly
from duly.testing import ManualClock, drain
from duly.workflows import NotAwaited, WorkflowContext

Code = Callable[[WorkflowContext, list[str]], Awaitable[Any]]


@pytest.fixture
def app(tmp_path: Any, clock: ManualClock) -> Any:
    app = Duly(f"sqlite:///{tmp_path}/w.db", clock=clock, sqlite_synchronous="NORMAL")
    yield app
    app.close()


def outcome(app: Duly, code: Code) -> tuple[str, str, list[str]]:
    """State and error of a run of some code, and what its steps did."""
    done: list[str] = []

    async def w(ctx: WorkflowContext) -> Any:
        return await code(ctx, done)

    app.task("kid", queue="work")(lambda: done.append("kid"))
    run = app.workflow("w")(w).start().job.id
    drain(app)
    found = app.workflows.get(run)
    return found.state, str((found.error or {}).get("message", "")), done


async def _condition(ctx: WorkflowContext, done: list[str]) -> None:
    if ctx.approve("boss"):
        await ctx.step("pay", done.append, "paid")


async def _and(ctx: WorkflowContext, done: list[str]) -> None:
    ok = True and ctx.approve("boss") and True
    await ctx.step("pay", done.append, ok)


async def _compared(ctx: WorkflowContext, done: list[str]) -> None:
    if ctx.wait_event("paid") == "yes":
        done.append("paid")


async def _in_a_text(ctx: WorkflowContext, done: list[str]) -> str:
    return f"hello {ctx.step('name', str, 'Ada')}"


async def _attribute(ctx: WorkflowContext, done: list[str]) -> Any:
    return ctx.approve("boss").approved  # type: ignore[attr-defined]


async def _patched(ctx: WorkflowContext, done: list[str]) -> None:
    if ctx.patched("letter"):
        done.append("letter")


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (_condition, "ctx.approve('boss')"), (_and, "ctx.approve('boss')"), (_compared, "ctx.wait_event('paid')"),
        (_in_a_text, "ctx.step('name')"), (_attribute, "ctx.approve('boss')"), (_patched, "ctx.patched('letter')"),
    ],
)  # fmt: skip
def test_a_pending_operation_is_no_value_and_says_where_the_await_is_missing(app: Duly, code: Code, named: str) -> None:
    line = inspect.getsourcelines(code)[1]
    state, said, done = outcome(app, code)
    assert (state, done) == ("failed", [])
    assert f"{named} (test_awaiting.py:{line + 1})" in said
    assert f"`await {named.removesuffix(')')}, …)`" in said


def test_no_use_of_a_pending_operation_but_awaiting_it_has_an_answer(app: Duly) -> None:
    uses: list[Callable[[Any], Any]] = [
        bool, str, int, float, len, list, iter, lambda p: p + 1, lambda p: 1 + p, lambda p: p < 1, lambda p: p != None, lambda p: p[0],  # noqa: E711
        lambda p: "x" in p, lambda p: p(), lambda p: p.value, lambda p: p & 1, lambda p: [p].index("x"), lambda p: f"{p:>10}", "{}".format, dict,
    ]  # fmt: skip

    async def code(ctx: WorkflowContext, done: list[str]) -> int:
        one, refused = ctx.step("one", int), 0
        for use in uses:
            with pytest.raises(NotAwaited, match=r"await ctx.step\('one', …\)"):
                use(one)
            refused += 1
        with pytest.raises(TypeError):
            json.dumps(one)
        assert "pending" in repr(one) and {one: 1}[one] == 1
        await one
        return refused

    assert outcome(app, code)[:2] == ("succeeded", "")


async def _dropped(ctx: WorkflowContext, done: list[str]) -> None:
    ctx.step("a", done.append, "a")  # type: ignore[unused-coroutine]


async def _held(ctx: WorkflowContext, done: list[str]) -> None:
    ok = ctx.approve("a")
    await ctx.step("pay", done.append, "paid")
    done.append(repr(ok))


async def _before_a_sleep(ctx: WorkflowContext, done: list[str]) -> None:
    ctx.enqueue("kid")  # type: ignore[unused-coroutine]
    await ctx.sleep(60)


async def _in_a_list(ctx: WorkflowContext, done: list[str]) -> None:
    [ctx.step(name, done.append, name) for name in ("a", "b", "c", "d", "e")]
    await ctx.sleep(60)


async def _in_a_helper(ctx: WorkflowContext, done: list[str]) -> None:
    def ask() -> None:
        ctx.start("kid")  # type: ignore[unused-coroutine]

    ask()


async def _in_a_child_coroutine(ctx: WorkflowContext, done: list[str]) -> None:
    async def ask(inner: WorkflowContext) -> None:
        inner.sleep(60)  # type: ignore[unused-coroutine]

    await ask(ctx)


async def _gather(ctx: WorkflowContext, done: list[str]) -> None:
    ctx.gather(ctx.step("a", done.append, "a"), ctx.step("b", done.append, "b"))  # type: ignore[unused-coroutine]


async def _beside_others(ctx: WorkflowContext, done: list[str]) -> None:
    await ctx.gather(ctx.step("a", done.append, "a"), _and_forget(ctx), ctx.step("c", done.append, "c"))


def _and_forget(ctx: WorkflowContext) -> Any:
    ctx.wait_event("b")  # type: ignore[unused-coroutine]
    return ctx.step("b", int)


async def _swallowed(ctx: WorkflowContext, done: list[str]) -> None:
    try:
        if ctx.approve("a"):
            done.append("paid")
    except Exception:
        pass


async def _as_an_argument(ctx: WorkflowContext, done: list[str]) -> None:
    await ctx.step("pay", done.append, ctx.step("a", str))


async def _returned(ctx: WorkflowContext, done: list[str]) -> Any:
    return [ctx.step("a", str)]


@pytest.mark.parametrize(
    "code",
    [_dropped, _held, _before_a_sleep, _in_a_list, _in_a_helper, _in_a_child_coroutine, _gather, _beside_others, _swallowed,
     _as_an_argument, _returned],
)  # fmt: skip
def test_a_run_that_ends_or_waits_with_something_never_awaited_fails_and_nothing_after_it_was_done(
    app: Duly, code: Code
) -> None:
    state, said, done = outcome(app, code)
    assert (state, done) == ("failed", [])
    assert "never awaited" in said and "(test_awaiting.py:" in said and "`await ctx." in said


async def _helper(ctx: WorkflowContext, done: list[str]) -> None:
    await ctx.step("a", done.append, "a")


async def _dropped_helper(ctx: WorkflowContext, done: list[str]) -> None:
    _helper(ctx, done)  # type: ignore[unused-coroutine]
    await ctx.step("pay", done.append, "paid")


async def _held_helper(ctx: WorkflowContext, done: list[str]) -> None:
    helper = _helper(ctx, done)
    del helper


class _Charging:
    def __init__(self, ctx: WorkflowContext, done: list[str]) -> None:
        self.ctx, self.done = ctx, done

    async def charge(self) -> None:
        await self.ctx.step("charge", self.done.append, "charged")


async def _dropped_method(ctx: WorkflowContext, done: list[str]) -> None:
    _Charging(ctx, done).charge()  # type: ignore[unused-coroutine]
    await ctx.step("pay", done.append, "paid")


async def _dropped_without_context(ctx: WorkflowContext, done: list[str]) -> None:
    async def notify() -> None:
        done.append("told")

    notify()  # type: ignore[unused-coroutine]
    await ctx.step("pay", done.append, "paid")


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("code", [_dropped_method, _dropped_without_context])
def test_any_coroutine_that_a_workflow_has_not_awaited_fails_the_run(app: Duly, code: Code) -> None:
    state, said, done = outcome(app, code)
    assert (state, done) == ("failed", [])
    assert "(test_awaiting.py:" in said or "(defined in test_awaiting.py:" in said
    assert "never awaited" in said


async def _a_job_in_a_step(app: Duly) -> None:
    app.aenqueue("kid")  # type: ignore[unused-coroutine]


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_step_that_forgets_to_await_what_it_asks_of_duly_fails_with_its_line(app: Duly) -> None:
    async def code(ctx: WorkflowContext, done: list[str]) -> None:
        await ctx.step("enqueue", _a_job_in_a_step, app)

    line = inspect.getsourcelines(_a_job_in_a_step)[1] + 1
    state, said, _ = outcome(app, code)
    assert state == "failed"
    assert f"aenqueue(…) was called at test_awaiting.py:{line} and never awaited" in said


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("code", [_dropped_helper, _held_helper])
def test_a_helper_that_was_given_the_context_and_not_awaited_fails_the_run(app: Duly, code: Code) -> None:
    state, said, done = outcome(app, code)
    assert (state, done) == ("failed", [])
    line = inspect.getsourcelines(_helper)[1]
    assert f"_helper(…) (defined in test_awaiting.py:{line}) was never awaited" in said and "`await _helper(…)`" in said


async def _asyncio_gather(ctx: WorkflowContext, done: list[str]) -> None:
    await asyncio.gather(ctx.step("a", done.append, "a"), ctx.step("b", done.append, "b"))


async def _with_exceptions(ctx: WorkflowContext, done: list[str]) -> None:
    await asyncio.gather(ctx.step("a", done.append, "a"), return_exceptions=True)


async def _task_group(ctx: WorkflowContext, done: list[str]) -> None:
    async def one() -> None:
        await ctx.step("a", done.append, "a")

    async with asyncio.TaskGroup() as group:
        group.create_task(one())


async def _waited_for(ctx: WorkflowContext, done: list[str]) -> None:
    await asyncio.wait([asyncio.ensure_future(ctx.step("a", done.append, "a"))])


async def _create_task(ctx: WorkflowContext, done: list[str]) -> None:
    await asyncio.create_task(ctx.step("a", done.append, "a"))


@pytest.mark.parametrize("code", [_asyncio_gather, _with_exceptions, _task_group, _create_task, _waited_for])
def test_operations_awaited_in_other_tasks_are_refused_before_they_do_anything(app: Duly, code: Code) -> None:
    state, said, done = outcome(app, code)
    assert (state, done) == ("failed", [])
    assert "ctx.step('a') (test_awaiting.py:" in said


def test_what_is_asked_for_first_may_be_awaited_after_that_and_twice(app: Duly) -> None:
    async def code(ctx: WorkflowContext, done: list[str]) -> list[Any]:
        undone = ctx.using(compensate=lambda answer: done.append("undone")).step("a", done.append, "a")
        b = ctx.step("b", done.append, "b")
        both = [await undone, await b, await undone]
        c, d = ctx.step("c", str, "c"), ctx.step("d", str, "d")
        return [*both, *await ctx.gather(c, d), await c]

    state, said, done = outcome(app, code)
    assert (state, said, done) == ("succeeded", "", ["a", "b"])


def test_a_run_that_fails_by_itself_says_why_and_not_what_it_had_not_awaited(app: Duly) -> None:
    async def code(ctx: WorkflowContext, done: list[str]) -> None:
        ctx.step("a", done.append, "a")  # type: ignore[unused-coroutine]
        raise NotAwaited("its own")

    assert outcome(app, code) == ("failed", "NotAwaited: its own", [])

"""Old and new code beside each other: an old worker leaves to new ones what it does not know, and nothing of it ever fails.  # E1"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from duly import Duly
from duly.testing import ManualClock, drain
from duly.workflows import WorkflowContext


@pytest.fixture
def other(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    other = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    yield other
    other.close()


def define(app: Duly, done: list[str], *, guarded: bool = False, version: int = 1) -> Any:
    @app.workflow("w", version=version)
    async def w(ctx: WorkflowContext) -> str:
        await ctx.step("a", done.append, "a")
        if guarded and await ctx.patched("letter"):
            await ctx.step("letter", done.append, "letter")
        await ctx.sleep(60)
        await ctx.step("b", done.append, "b")
        return f"version {version}"

    return w


def test_a_run_past_a_guard_that_old_code_lacks_is_left_to_new_code(app: Duly, other: Duly, clock: ManualClock) -> None:
    done: list[str] = []
    told: list[str] = []
    define(app, done)
    other.listen(lambda e: None)
    app.listen(lambda e: told.append(e.name))
    run = define(other, done, guarded=True).start().job.id
    drain(other)
    clock.advance(60)
    for _ in range(5):
        assert drain(app).snoozed == 1
        assert (
            drain(app).claimed == 0
        )  # the old worker takes it no more, until it is looked for one that does not know yet that it can
        clock.advance(30)
        assert drain(app).claimed == 0
        app.workflows.keep()
    assert "workflow_ahead" in told
    job = app.jobs.get(run)
    assert (job.status, job.error, job.attempts) == ("queued", None, 0)
    drain(other)
    assert app.workflows.get(run).state == "succeeded"
    assert done == ["a", "letter", "b"]


def test_old_code_that_ends_before_the_guard_leaves_the_run_too(app: Duly, other: Duly, clock: ManualClock) -> None:
    @app.workflow("w")
    async def old(ctx: WorkflowContext) -> None: ...

    @other.workflow("w")
    async def new(ctx: WorkflowContext) -> str:
        if await ctx.patched("p"):
            await ctx.sleep(60)
        return "new"

    run = new.start().job.id
    drain(other)
    clock.advance(60)
    assert drain(app).snoozed == 1
    clock.advance(1)
    drain(other)
    assert app.workflows.get(run).output == "new"


def test_a_record_of_a_kind_that_is_not_known_here_leaves_the_run_to_a_newer_worker(
    app: Duly, clock: ManualClock
) -> None:
    done: list[str] = []
    run = define(app, done).start().job.id
    drain(app)
    app.db.write(lambda c: c.execute(text("UPDATE workflow_steps SET kind = 'telepathy' WHERE position = 2")))
    other = Duly(app.settings.database_url, clock=clock)
    define(other, done)
    clock.advance(60)
    assert drain(other).snoozed == 1
    assert other.jobs.get(run).status == "queued"
    other.close()


def test_an_old_worker_claims_no_run_of_a_version_that_it_does_not_know(
    app: Duly, other: Duly, clock: ManualClock
) -> None:
    done: list[str] = []
    define(app, done)
    define(other, done)
    new = define(other, done, version=2)
    runs = [new.start().job.id for _ in range(3)]
    drain(other)
    clock.advance(60)
    app.queues.set("workflows", limit=100)  # and no other way of claiming does
    assert drain(app).claimed == 0
    assert not app.engine.any_claimable(["workflows"]) and not app.engine.busy(["workflows"])
    drain(other)
    assert [app.workflows.get(run).output for run in runs] == ["version 2"] * 3


def test_a_run_that_new_code_started_is_not_begun_by_old_code(app: Duly, other: Duly, clock: ManualClock) -> None:
    done: list[str] = []
    define(app, done)
    new = define(other, done, version=2)
    run = new.start().job.id
    assert drain(app).snoozed == 1
    clock.advance(1)
    assert drain(app).claimed == 0  # once is enough to know
    drain(other)
    clock.advance(60)
    drain(other)
    assert (app.workflows.get(run).output, done) == ("version 2", ["a", "b"])


def test_an_input_and_an_answer_that_old_code_cannot_read_are_left_to_new_code(
    app: Duly, other: Duly, clock: ManualClock
) -> None:
    def old_answer() -> int:
        return 0

    def new_answer() -> str:
        return "a text"

    @app.workflow("w")
    async def old(ctx: WorkflowContext) -> int:
        answer = await ctx.step("a", old_answer)
        await ctx.sleep(60)
        return answer

    @other.workflow("w")
    async def new(ctx: WorkflowContext, mode: str = "") -> str:
        answer = await ctx.step("a", new_answer)
        await ctx.sleep(60)
        return answer + mode

    unread = new.start(mode="!").job.id
    assert drain(app).unreadable == 1
    assert app.jobs.get(unread).status == "queued"
    clock.advance(60)
    drain(other)
    clock.advance(60)
    drain(other)
    third = new.start().job.id
    drain(other)
    clock.advance(60)
    assert drain(app).unreadable == 1  # what new code has recorded
    clock.advance(60)
    drain(other)
    assert [app.workflows.get(run).output for run in (unread, third)] == ["a text!", "a text"]


def test_code_of_a_later_version_begins_what_earlier_code_started(app: Duly, other: Duly, clock: ManualClock) -> None:
    done: list[str] = []
    run = define(app, done, version=3).using(run_in=5).start().job.id
    define(other, done, version=4)
    clock.advance(timedelta(seconds=5))
    drain(other)
    clock.advance(60)
    drain(other)
    assert app.workflows.get(run).output == "version 4"

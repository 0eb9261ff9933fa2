"""What the processes of the crash tests run: a worker that knows a workflow of ten steps and has places to die."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from crash.program import Here, Plan, enter_process, write
from duly import INJECT, Backoff, Duly
from duly.workflows import WorkflowContext
from duly.workflows.advance import Advance
from duly.workflows.store import WorkflowStore

#: Where a run can die: after a step's effect, after its record is written, after that is committed, and while it is put down.
STEPS = ("step.effect", "step.written", "step.recorded", "rest.before", "rest.noted")
TABLE = "CREATE TABLE effects (id {number} PRIMARY KEY, name TEXT NOT NULL)"
EFFECT = "INSERT INTO effects (name) VALUES (:name)"


def define(app: Duly) -> Duly:
    def inside(name: str, session: Session) -> str:
        session.execute(
            text(EFFECT),
            {"name": name},
        )
        Here.die_at("step.effect")
        return name

    async def beside(name: str, session: AsyncSession) -> str:
        await session.execute(
            text(EFFECT),
            {"name": name},
        )
        Here.die_at("step.effect")
        return name

    async def outside(name: str) -> str:
        write("effect", name=name)
        return name

    @app.task("CHILD", queue="children", backoff=Backoff(base=0.1))
    def child(name: str, session: Session = INJECT) -> str:
        return inside(name, session)

    @app.workflow("ten", max_attempts=3)
    async def ten(ctx: WorkflowContext) -> list[Any]:
        done = [await ctx.step("one", inside, "one"), await ctx.step("two", outside, "two")]
        await ctx.sleep(0.2)  # three
        done.append(await ctx.step("four", beside, "four"))
        done.append(await ctx.enqueue(child, "five"))
        done += await ctx.gather(ctx.step("six", inside, "six"), ctx.step("seven", inside, "seven"))
        done.append(await ctx.wait_event("eight"))
        done.append(await ctx.step("nine", beside, "nine"))
        done.append(await ctx.step("ten", inside, "ten"))
        return done

    return app


def run_worker(plan: Plan) -> None:
    """Work until somebody ends it, or until the place to die is reached."""
    enter_process(plan)
    app = define(Here.app)
    die = Here.die_at
    die._around(WorkflowStore, "write", None, "step.written")
    die._around(WorkflowStore, "rest", "rest.before", "rest.noted")
    die._around(Advance, "_got_on", None, "step.recorded")
    app.worker({"workflows": 5, "children": 5}, name=plan.name).run(until_idle=plan.until_idle)

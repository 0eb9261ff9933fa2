"""Runs of workflows in one process, beside as many bare commits. Answers are seconds per side."""

from __future__ import annotations

import resource
from typing import Any

from bench import marks
from bench.pairs import _timed
from duly import Duly
from duly.workflows import WorkflowContext


def flow_pg(n: int) -> dict[str, Any]:
    """A run of ``n`` steps; the same run taken up by a worker that has never seen it; a parent of ``n`` children; ``n`` bare commits."""
    return _flow(n)


def flow_sqlite(n: int) -> dict[str, Any]:
    return _flow(n)


def _application() -> Any:
    app = Duly(marks.TARGET)

    async def nothing(i: int) -> int:
        return i

    @app.task("child", queue="children")
    async def child(i: int) -> int:
        return i

    @app.workflow("steps")
    async def steps(ctx: WorkflowContext, n: int) -> int:
        total = 0
        for i in range(n):
            total += await ctx.step("s", nothing, i)
        await ctx.wait_event("go")
        return total

    @app.workflow("children")
    async def children(ctx: WorkflowContext, n: int) -> int:
        return sum(await ctx.gather(*(ctx.enqueue(child, i) for i in range(n))))

    return app


def _flow(n: int) -> dict[str, Any]:
    app = _application()
    app.migrate()
    answer: dict[str, Any] = {}
    app.workflows.start("steps", {"n": 10})
    app.worker().run(until_idle=True)  # warm
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = app.workflows.start("steps", {"n": n}).job.id
    app.worker().run(until_idle=True)
    answer["memory"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    history = app.workflows.history(run)
    begun, ended = history[0].started_at, history[n - 1].finished_at
    assert begun is not None
    assert ended is not None
    answer["steps"] = (ended - begun).total_seconds()
    app.close()

    other = _application()
    other.workflows.signal(run, "go")
    with _timed(answer, "replay"):
        other.worker().run(until_idle=True)
    assert other.workflows.get(run).output == n * (n - 1) // 2
    parent = other.workflows.start("children", {"n": n}).job.id
    other.worker().run(until_idle=True)
    found = other.workflows.get(parent)
    assert found.output == n * (n - 1) // 2
    assert found.finished_at is not None
    assert found.created_at is not None
    answer["children"] = (found.finished_at - found.created_at).total_seconds()
    with other.db.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE bare (id INTEGER PRIMARY KEY, name TEXT)")
    with _timed(answer, "raw"), other.db.engine.connect() as connection:
        for i in range(n):
            connection.exec_driver_sql(f"INSERT INTO bare VALUES ({i}, 's')")
            connection.commit()
    other.close()
    return answer

"""Real workers, and news that come at any moment."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import Connection, text

from duly import Duly
from duly.testing import drain
from duly.workflows import WorkflowContext
from duly.workflows.store import WorkflowStore

pytestmark = pytest.mark.timeout(60)


def test_no_signal_is_slept_through_whenever_it_comes(db_url: str) -> None:
    app = Duly(db_url, poll=30, sqlite_synchronous="NORMAL")  # polling and housekeeping would come too late
    count = 40

    @app.workflow("listen")
    async def listen(ctx: WorkflowContext) -> list[int]:
        return [await ctx.wait_event("n") for _ in range(count)]

    @app.workflow("both")
    async def both(ctx: WorkflowContext) -> list[int]:
        return await ctx.gather(*(ctx.wait_event(f"e{n}") for n in range(count)))

    one, two = listen.start().job.id, both.start().job.id
    sender = Duly(db_url)

    def send() -> None:
        for n in range(count):
            sender.workflows.signal(one, "n", n)
            if n % 7 == 0:
                time.sleep(0.02)  # so that some find the run asleep, and some in the middle of lying down
            sender.workflows.signal(two, f"e{count - 1 - n}", n)

    thread = threading.Thread(target=send)
    thread.start()
    app.worker().run(until_idle=1.0)
    thread.join()
    app.worker().run(until_idle=0.5)
    assert app.workflows.get(one).output == list(range(count))
    assert app.workflows.get(two).output == list(range(count))[::-1]
    sender.close()
    app.close()


def test_runs_of_many_workers_wait_for_children_of_each_other_and_end(db_url: str) -> None:
    apps = [Duly(db_url, poll=30, sqlite_synchronous="NORMAL") for _ in range(3)]
    for app in apps:

        @app.workflow("tree")
        async def tree(ctx: WorkflowContext, depth: int) -> Any:
            if depth == 0:
                return 1
            return 1 + sum(
                await ctx.gather(
                    *(ctx.enqueue("ENGINE_RUN", workflow="tree", input={"depth": depth - 1}) for _ in range(3))
                )
            )

    run = apps[0].workflows.start("tree", {"depth": 3}).job.id
    threads = [threading.Thread(target=app.worker().run, kwargs={"until_idle": 1.5}) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert apps[0].workflows.get(run).output == 1 + 3 + 9 + 27
    for app in apps:
        app.close()


def test_a_worker_that_stops_in_the_middle_of_a_run_leaves_it_to_the_next(db_url: str) -> None:
    app = Duly(db_url, poll=0.1, grace=0.1, sqlite_synchronous="NORMAL")
    begun, calls = threading.Event(), list[str]()

    async def slow() -> str:
        import asyncio

        calls.append("slow")
        begun.set()
        await asyncio.sleep(30 if len(calls) == 2 else 0)
        return "done"

    @app.workflow("w")
    async def w(ctx: WorkflowContext) -> str:
        await ctx.step("first", calls.append, "first")
        return await ctx.step("slow", slow)

    run = w.start().job.id
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(20)
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert app.workflows.get(run).state == "queued"
    assert app.jobs.get(run).attempts == 0
    app.worker().run(until_idle=0.3)
    assert app.workflows.get(run).output == "done"
    assert calls == ["first", "slow", "slow"]
    app.close()


def test_children_that_a_run_makes_while_it_is_cancelled_are_cancelled_with_it(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = Duly(pg_url), Duly(pg_url)
    for one in (app, other):

        @one.task("kid", queue="kids")
        def kid() -> None: ...

        @one.workflow("w")
        async def w(ctx: WorkflowContext) -> None:
            await ctx.gather(*(ctx.enqueue("kid") for _ in range(3)))

    run = app.workflows.start("w").job.id
    look, looks, held, ends = WorkflowStore.layers, [0], threading.Event(), list[threading.Thread]()

    def in_a_thread(fn: Any) -> threading.Thread:
        thread = threading.Thread(target=fn)
        thread.start()
        return thread

    def end_of_a_child(connection: Connection) -> None:  # as settling it does: itself, then its parent
        connection.execute(text("SELECT id FROM jobs WHERE task = 'kid' ORDER BY id LIMIT 1 FOR UPDATE"))
        held.set()
        connection.execute(text("SELECT id FROM jobs WHERE id = :run FOR UPDATE"), {"run": run})

    def layers(self: WorkflowStore, connection: Connection, ident: int) -> list[list[int]]:
        looks[0] += 1
        if looks[0] == 2:  # with the run locked
            ends.append(in_a_thread(lambda: other.db.write(end_of_a_child)))
            assert held.wait(20)
        found = look(self, connection, ident)
        if looks[0] == 1:  # right behind the first look, another worker goes on with the run
            in_a_thread(lambda: drain(other, queues=["workflows"])).join(20)
        return found

    monkeypatch.setattr(WorkflowStore, "layers", layers)
    assert app.workflows.cancel(run).state == "cancelled"
    ends[0].join(20)
    assert [b.status for b in app.workflows.tree(run)] == ["cancelled"] * 3
    assert drain(other).claimed == 0
    app.close()
    other.close()

"""Handlers on the loop: many may share an asyncio task as long as none of them waits; nothing of one reaches another."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from duly import Cancel, Duly, Status, Worker

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.fixture
def app(tmp_path: Path) -> Duly:
    return Duly(f"sqlite:///{tmp_path}/duly.db", lease=60.0, grace=2.0)


def test_a_context_variable_set_by_one_handler_is_not_seen_by_the_next(app: Duly) -> None:
    seen: list[str] = []

    @app.task
    async def leave(name: str) -> None:
        seen.append(TENANT.get())
        TENANT.set(name)

    @app.task
    def leave_a_thread(name: str) -> None:
        seen.append(TENANT.get())
        TENANT.set(name)

    leave.enqueue_many([{"name": f"tenant {n}"} for n in range(50)])
    leave_a_thread.enqueue_many([{"name": f"tenant {n}"} for n in range(50)])
    assert app.worker().run(until_idle=True).succeeded == 100
    assert set(seen) == {"nobody"}


def test_a_handler_that_waits_has_a_task_of_its_own_to_the_end(app: Duly) -> None:
    tasks: list[asyncio.Task[object] | None] = []

    @app.task
    async def wait(turns: int) -> None:
        before = asyncio.current_task()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await asyncio.sleep(0.001)
        assert asyncio.current_task() is before
        tasks.append(before)

    wait.enqueue_many([{"turns": n % 4} for n in range(40)])
    assert app.worker().run(until_idle=True).succeeded == 40
    assert len({id(t) for t in tasks}) == 40


def test_what_a_handler_waited_for_may_fail_and_the_handler_decides(app: Duly) -> None:
    @app.task
    async def brave() -> str:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError("as planned"))
        try:
            await future
        except ValueError as error:
            await asyncio.sleep(0)
            return str(error)
        return "?"

    job = brave.enqueue().job
    app.worker().run(until_idle=True)
    assert app.jobs.get(job.id).output == "as planned"


def test_handlers_that_never_wait_do_not_keep_others_from_their_turn(app: Duly) -> None:
    order: list[str] = []

    @app.task(priority=10)
    async def patient() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        order.append("patient")

    @app.task
    async def greedy(n: int) -> None:
        time.sleep(0.002)  # it is meant to hold the loop
        order.append("greedy")

    greedy.enqueue_many([{"n": n} for n in range(200)])
    patient.enqueue()
    assert app.worker({"default": 2}).run(until_idle=True).succeeded == 201
    assert order.index("patient") < 150  # a turn is a slice of time, not the backlog


def test_a_handler_that_exits_the_program_fails_and_the_worker_goes_on(app: Duly) -> None:
    @app.task(max_attempts=1)
    async def leave() -> None:
        sys.exit(3)

    @app.task(max_attempts=1)
    def leave_a_thread() -> None:
        sys.exit(3)

    @app.task
    async def stay() -> None: ...

    bad, worse, good = leave.enqueue().job, leave_a_thread.enqueue().job, stay.enqueue().job
    app.worker().run(until_idle=True)
    assert app.jobs.get(bad.id).status is Status.FAILED
    assert app.jobs.get(bad.id).error["type"] == "SystemExit"
    assert app.jobs.get(worse.id).error["type"] == "SystemExit"
    assert app.jobs.get(good.id).status is Status.SUCCEEDED


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_a_cancelled_run_does_not_cancel_the_one_after_it(app: Duly) -> None:
    started = threading.Event()

    @app.task
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    @app.task
    async def short(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @app.task
    async def polite() -> None:
        raise Cancel("not wanted")

    victim = long.enqueue().job
    worker: Worker = app.worker({"default": 1})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert started.wait(120)
        shorts = [e.job.id for e in short.enqueue_many([{"n": n} for n in range(20)])]
        gone = polite.enqueue().job
        app.jobs.cancel(victim.id)
        until(lambda: app.jobs.count(status=(Status.SUCCEEDED, Status.CANCELLED)) == 22)
    finally:
        worker.stop()
        thread.join(120)
    assert app.jobs.get(victim.id).status is Status.CANCELLED
    assert app.jobs.get(gone.id).status is Status.CANCELLED
    assert {app.jobs.get(i).status for i in shorts} == {Status.SUCCEEDED}

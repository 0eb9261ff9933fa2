"""What blocks an event loop is told: a handler by its stack, a synchronous enqueue by what to write instead. A3."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duly import BlockingCallWarning, Duly
from duly.kernel.events import Event


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Duly]:
    app = Duly(f"sqlite:///{tmp_path}/duly.db", loop_block=0.05)
    yield app
    app.close()


def test_a_task_that_blocks_the_loop_is_named_with_its_stack(app: Duly) -> None:
    told = threading.Event()
    events: list[Event] = []

    def hear(event: Event) -> None:
        if event.name == "loop_blocked":
            events.append(event)
            told.set()

    app.listen(hear)

    def compute() -> None:
        assert told.wait(30)  # blocks the loop until it was told

    @app.task
    async def quick() -> None:
        await asyncio.sleep(0)

    @app.task
    async def slow() -> None:
        await asyncio.sleep(0)
        compute()

    quick.enqueue()
    ident = slow.enqueue().job.id
    app.worker().run(until_idle=True)
    [event] = events
    assert (event.facts["task"], event.facts["job"]) == ("slow", ident)
    assert any("in compute" in line and "told.wait(30)" in line for line in event.facts["stack"])


def test_a_synchronous_enqueue_on_a_running_loop_says_aenqueue(app: Duly) -> None:
    events: list[Event] = []
    app.listen(events.append)

    @app.task
    def work() -> None: ...

    async def wrong() -> None:
        for call in (lambda: app.enqueue("work"), work.enqueue, lambda: app.gate.offline("x")):
            with pytest.warns(BlockingCallWarning, match="await") as seen:
                call()
            assert seen[0].filename == __file__

    async def right() -> None:
        await app.aenqueue("work")
        await work.aenqueue()
        await asyncio.to_thread(work.enqueue)

    asyncio.run(wrong())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(right())
        work.enqueue()
    assert [e.facts["call"] for e in events if e.name == "blocking_call"] == [
        "Duly.enqueue",
        "Task.enqueue",
        "Gate.offline",
    ]
    assert app.jobs.count() == 6


def test_every_act_and_every_look_on_a_running_loop_says_what_to_write_instead(app: Duly) -> None:
    @app.task
    def work() -> None: ...

    job = work.enqueue().job
    events: list[Event] = []
    app.listen(events.append)
    calls: dict[str, Callable[[], object]] = {
        "Jobs.get": lambda: app.jobs.get(job.id),
        "Jobs.count": app.jobs.count,
        "Jobs.cancel": lambda: app.jobs.cancel(job.id),
        "Queues.pause": lambda: app.queues.pause("mail"),
        "Schedules.all": app.schedules.all,
        "Duly.why": lambda: app.why(job.id),
    }

    async def wrong() -> None:
        for name, call in calls.items():
            with pytest.warns(BlockingCallWarning, match="to_thread") as seen:
                call()
            assert str(seen[0].message).startswith(name), name
            assert seen[0].filename == __file__

    asyncio.run(wrong())
    assert [e.facts["call"] for e in events if e.name == "blocking_call"] == list(calls)


def test_a_worker_on_the_callers_loop_warns_of_what_handlers_block_and_of_nothing_of_its_own(app: Duly) -> None:
    @app.task
    async def blocks() -> None:
        app.jobs.count()

    @app.task
    async def waits() -> None:
        await asyncio.to_thread(app.jobs.count)
        await app.aenqueue("quick")

    @app.task
    def quick() -> None:
        app.jobs.count()

    blocks.enqueue()
    waits.enqueue()
    events: list[Event] = []
    app.listen(events.append)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        app.worker().run(until_idle=True)
    mine = [one for one in seen if issubclass(one.category, BlockingCallWarning)]
    assert {(one.filename, one.lineno) for one in mine} == {(__file__, blocks.fn.__code__.co_firstlineno + 2)}
    assert [e.facts["call"] for e in events if e.name == "blocking_call"] == ["Jobs.count"]

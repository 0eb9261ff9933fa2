"""What blocks an event loop is told: a handler by its stack, a synchronous enqueue by what to write instead. A3."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
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
    assert [e.facts["call"] for e in events if e.name == "blocking_call"] == ["enqueue", "this call"]
    assert app.jobs.count() == 6

"""What a handler has called and not awaited: work of Duly's own that was asked for fails the job; anything else is told of.  # A1"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import Duly, Status
from duly.kernel.events import Event
from duly.testing import drain

pytestmark = pytest.mark.filterwarnings("ignore:coroutine")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Duly]:
    app = Duly(f"sqlite:///{tmp_path}/d.db", sqlite_synchronous="NORMAL")
    app.task("KID")(lambda: None)
    yield app
    app.close()


async def ask(app: Duly) -> None:
    app.aenqueue("KID")  # type: ignore[unused-coroutine]


def ask_on_a_thread(app: Duly) -> None:
    app.aenqueue("KID")  # type: ignore[unused-coroutine]


def test_a_handler_that_forgets_to_await_what_it_asks_of_duly_fails_with_its_line(app: Duly) -> None:
    async def on_the_loop() -> str:
        await ask(app)
        return "done"

    def on_a_thread() -> None:
        ask_on_a_thread(app)

    jobs = {
        app.task(fn.__name__)(fn).enqueue().job.id: of
        for fn, of in ((on_the_loop, ask), (on_a_thread, ask_on_a_thread))
    }
    assert drain(app).failed == 2
    for ident, of in jobs.items():
        job = app.jobs.get(ident)
        line = inspect.getsourcelines(of)[1] + 1
        assert (job.status, job.attempts) == (Status.FAILED, 1)  # another attempt would do the rest twice
        assert f"aenqueue(…) was called at test_forgotten.py:{line} and never awaited" in job.error["message"]


def test_another_coroutine_that_a_handler_forgets_is_told_of_and_the_job_goes_on(app: Duly) -> None:
    told: list[Event] = []
    app.listen(told.append)

    async def notify() -> None: ...

    async def work() -> None:
        notify()  # type: ignore[unused-coroutine]

    ident = app.task("WORK")(work).enqueue().job.id
    drain(app)
    line = inspect.getsourcelines(work)[1] + 1
    [event] = [e for e in told if e.name == "coroutine_never_awaited"]
    assert event.facts == {"function": "notify", "where": f"test_forgotten.py:{line}", "job": ident, "task": "WORK"}
    assert app.jobs.get(ident).status is Status.SUCCEEDED

"""What handlers and operators get wrong ends in words, and keeps nobody else from their work."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import INJECT, Duly, DulyError, Retry, Snooze, Status


@pytest.fixture
def app(tmp_path: Path) -> Duly:
    return Duly(f"sqlite:///{tmp_path}/duly.db", lease=2.0, grace=0.3)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def test_whatever_a_handler_raises_its_job_has_an_end(app: Duly) -> None:
    raised: list[Callable[[], BaseException]] = [
        lambda: Retry(after="120"),  # type: ignore[arg-type]
        lambda: Retry(after="soon"),  # type: ignore[arg-type]
        lambda: Retry(after=[1]),  # type: ignore[arg-type]
        lambda: Snooze(until="tomorrow"),  # type: ignore[arg-type]
        GeneratorExit,
        SystemExit,
        KeyboardInterrupt,
        Unspeakable,
    ]

    @app.task(max_attempts=1)
    async def wrong(n: int) -> None:
        raise raised[n]()

    @app.task
    async def right() -> None: ...

    ids = [wrong.enqueue(n).job.id for n in range(len(raised))]
    good = right.enqueue().job.id
    app.worker().run(until_idle=True)
    assert {app.jobs.get(i).status for i in ids} == {Status.FAILED}
    assert app.jobs.get(good).status is Status.SUCCEEDED


def test_a_retry_after_header_may_be_handed_on_as_it_came() -> None:
    assert Retry(after="120").after == 120.0  # type: ignore[arg-type]


def test_what_cannot_be_set_or_asked_is_refused_in_words(app: Duly) -> None:
    @app.task
    async def right() -> None: ...

    other = right.using(tenant="other").enqueue().job
    for wrong in (
        lambda: app.queues.set("q", rate=(5, float("inf"))),
        lambda: app.queues.set("q", rate=(5, 1e300)),
        lambda: app.queues.set("q", limit=1.5),  # type: ignore[arg-type]
        lambda: app.queues.set("q", limit=2**40),
        lambda: app.queues.pause("q", "a\0"),
        lambda: app.gate.offline("\ud800"),
        lambda: right.using(parent=999).enqueue(),
        lambda: right.using(parent=True).enqueue(),
        lambda: right.using(parent=other).enqueue(),  # another tenant's
        lambda: right.using(meta={"x": "y" * 400_000}).enqueue(),
        lambda: right.using(run_in=10**400).enqueue(),
        lambda: app.jobs.get(2**70),
    ):
        with pytest.raises(DulyError):
            wrong()


def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_worker_alive(app: Duly) -> None:
    @app.task
    async def stubborn() -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # from within: the worker lives, and hears it
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    job = stubborn.enqueue().job

    assert app.worker().run().released == 1
    assert (app.jobs.get(job.id).status, app.jobs.get(job.id).attempts) == (Status.QUEUED, 0)


def test_a_long_transaction_makes_nobody_lose_a_lease(app: Duly) -> None:  # B028
    @app.task(max_attempts=1)
    async def patient() -> None:
        await asyncio.sleep(4)

    @app.task(max_attempts=1)
    def hog(session: Session = INJECT) -> None:
        session.execute(text("INSERT INTO system_state (key, value, updated_at) VALUES ('x', 'y', 0)"))
        time.sleep(3.5)

    ids = [e.job.id for e in patient.enqueue_many([{}] * 5)]
    held = hog.enqueue().job.id
    app.worker().run(until_idle=True)
    assert {app.jobs.get(i).status for i in [*ids, held]} == {Status.SUCCEEDED}


def test_a_key_remembers_how_its_pruned_job_ended(app: Duly) -> None:
    @app.task(max_attempts=1)
    async def wrong() -> None:
        raise ValueError

    wrong.using(key="k").enqueue()
    app.worker().run(until_idle=True)
    assert app.jobs.admin.prune(app.db.clock.now()) == 1
    again = wrong.using(key="k").enqueue()
    assert (again.created, again.job.status) == (False, Status.FAILED)


def test_a_queue_whose_settings_make_no_sense_keeps_no_other_from_its_work(app: Duly) -> None:  # B061
    @app.task(queue="good")
    async def right() -> None: ...

    app.queues.set("broken", rate=(1, 1.0))
    app.queues.set("good", limit=5)
    spoil = text("UPDATE queues SET rate_seconds = 1e300 WHERE name = 'broken'")  # by hand, past the door
    app.db.write(lambda c: c.execute(spoil))
    heard: list[str] = []
    app.listen(lambda event: heard.append(event.name))
    right.enqueue_many([{}] * 10)
    assert app.worker({"broken": 1, "good": 5}).run(until_idle=True).succeeded == 10
    assert "queue_failed" in heard
    assert "loop_failed" not in heard

"""A queue is held until an instant: nothing of it is claimed, no attempt is used, and it opens by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from duly import Duly, InvalidArgument, Status
from duly.testing import ManualClock, drain

AT = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    made = Duly(db_url, clock=clock)

    @made.task("WORK", queue="mail")
    async def work() -> None: ...

    yield made
    made.close()


def put(app: Duly, queue: str = "mail") -> int:
    return app.enqueue("WORK", queue=queue).job.id


def actions(app: Duly, queue: str = "mail") -> list[str]:
    query = text("SELECT action FROM audit_log WHERE entity = 'queue' AND entity_id = :queue ORDER BY id")
    return list(app.db.read(lambda c: c.execute(query, {"queue": queue}).scalars()))


@pytest.mark.parametrize("limit", [None, 3])
def test_a_held_queue_opens_at_its_instant_and_another_one_is_free(
    app: Duly, clock: ManualClock, limit: int | None
) -> None:
    # T002-b, T002-e
    held, free = put(app), put(app, "other")
    if limit:
        app.queues.set("mail", limit=limit)
    app.queues.hold("mail", AT + HOUR, "the other side has had enough", "test")
    assert next((c.name, c.detail) for c in app.why(held) if not c.met) == (
        "held", "queue mail is held: the other side has had enough; free again at 2026-06-01T11:00:00Z",
    )  # fmt: skip
    drain(app, queues=["mail", "other"])
    clock.advance(HOUR - timedelta(microseconds=1))
    drain(app, queues=["mail", "other"])
    assert (app.jobs.get(held).status, app.jobs.get(held).attempts, app.jobs.get(free).status) == (
        "queued",
        0,
        "succeeded",
    )
    clock.advance(timedelta(microseconds=1))
    drain(app, queues=["mail"])
    assert (app.jobs.get(held).status, app.jobs.get(held).attempts) == ("succeeded", 1)
    after = app.queues.get("mail")
    assert (after.held_until, after.held_reason, after.governed) == (None, None, limit is not None)


def test_a_longer_hold_stays_and_a_release_ends_it_on_the_record(app: Duly) -> None:
    app.queues.hold("mail", AT + 2 * HOUR, "long")
    assert app.queues.hold("mail", AT + HOUR, "short").held_reason == "long"
    assert app.queues.hold("mail", AT + 3 * HOUR, "longer").held_until == AT + 3 * HOUR
    assert app.queues.release("mail").held_until is None
    app.queues.release("mail")
    assert actions(app) == ["QUEUE_HELD", "QUEUE_HELD", "QUEUE_RELEASED"]
    ident = put(app)
    drain(app, queues=["mail"])
    assert app.jobs.get(ident).status is Status.SUCCEEDED


def test_a_worker_that_runs_until_nothing_is_left_does_not_wait_for_a_held_queue(app: Duly) -> None:
    ident = put(app)
    app.queues.hold("mail", AT + HOUR)
    assert app.worker({"mail": 5}).run(until_idle=True).claimed == 0
    assert app.jobs.get(ident).status is Status.QUEUED


def test_a_hold_needs_an_instant_with_a_zone(app: Duly) -> None:
    for wrong in (datetime(2026, 6, 1), None, 7):
        with pytest.raises(InvalidArgument, match="until"):
            app.queues.hold("mail", wrong)  # type: ignore[arg-type]


def test_a_hold_and_a_pause_are_two_things(app: Duly, clock: ManualClock) -> None:
    ident = put(app)
    app.queues.hold("mail", AT + HOUR, "quota")
    app.queues.pause("mail", "audit")
    assert [c.name for c in app.why(ident) if not c.met][:2] == ["paused", "held"]
    clock.advance(HOUR)
    drain(app, queues=["mail"])
    assert app.jobs.get(ident).status is Status.QUEUED
    app.queues.resume("mail")
    drain(app, queues=["mail"])
    assert app.jobs.get(ident).status is Status.SUCCEEDED


def test_what_was_fetched_and_has_not_begun_is_given_back(db_url: str) -> None:
    app, begun, ids = Duly(db_url, concurrency=1), list[int](), list[int]()

    @app.task("SLOW", queue="mail")
    async def slow(n: int) -> None:
        if not begun:
            app.queues.hold("mail", datetime.now(UTC) + HOUR, "enough")
        begun.append(n)

    ids += [slow.enqueue(n).job.id for n in range(200)]
    app.worker({"mail": 1}).run(until_idle=True)
    assert len(begun) < 200
    left = [app.jobs.get(i) for i in ids if app.jobs.get(i).status is Status.QUEUED]
    assert {(j.status, j.attempts) for j in left} == {(Status.QUEUED, 0)}
    assert len(left) == 200 - len(begun)
    app.close()

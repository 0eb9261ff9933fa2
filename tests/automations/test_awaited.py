"""A job that a session waits for: what pruning leaves, and what a session is told where the job is gone all the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from automations.room import Room, call, finish, says
from duly.automations.session import CallStatus, SessionEndReason, Status
from duly.jobs.prune import prune, prune_expired
from duly.jobs.tables import job_keys, jobs_done
from duly.kernel.errors import PermanentError
from duly.testing import ManualClock, drain

LONG = timedelta(days=400)


def paused(room: Room) -> tuple[int, int]:
    """A session that was paused while it waits for its call's job, which ends meanwhile. Returns the session and the job."""
    room.model.answers = [says("", call("SLOW")), finish()]
    ident = room.start(tools=["SLOW"])
    drain(room.app, queues=["automations"])
    [waiting] = room.calls(ident)
    assert waiting.status is CallStatus.WAITING
    assert waiting.job_id is not None
    room.door.pause(ident)
    assert room.session(ident).status is Status.INTERRUPTED
    drain(room.app, queues=["slow"])
    return ident, waiting.job_id


def resumed(room: Room, clock: ManualClock, ident: int) -> None:
    room.resume(ident)
    room.drain()
    clock.advance(60)
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def kept(room: Room) -> set[int]:
    return {job.id for job in room.app.jobs.find()}


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_job_that_a_paused_session_waits_for_is_not_pruned_until_its_end_was_told(
    room: Room, clock: ManualClock, by_hand: bool
) -> None:
    room.app.task("SLOW", queue="slow")(lambda: {"v": 2})
    other = room.app.task("OTHER", queue="slow")(lambda: None).enqueue().job.id
    ident, job = paused(room)
    clock.advance(LONG)

    def remove() -> None:
        if by_hand:
            before = clock.now()
            planned = room.app.jobs.admin.prune(before, dry_run=True)
            assert room.app.jobs.admin.prune(before) == planned
        else:
            prune_expired(room.db)

    remove()
    assert job in kept(room)
    assert other not in kept(room)
    resumed(room, clock, ident)
    assert room.results(ident)[0] == '{"v":2}'
    clock.advance(LONG)
    remove()
    assert kept(room) == set()


def test_a_job_that_an_ended_session_waited_for_is_pruned(room: Room, clock: ManualClock) -> None:
    room.app.task("SLOW", queue="slow")(lambda: None)
    ident, job = paused(room)
    room.door.stop(ident)
    assert room.session(ident).status is Status.ENDED
    clock.advance(LONG)
    prune_expired(room.db)
    assert job not in kept(room)


def fails() -> None:
    raise PermanentError("no")


@pytest.mark.parametrize(
    ("work", "told", "status"),
    [
        (lambda: {"v": 2}, "done; its result is no longer kept", CallStatus.DONE),
        (fails, "failed; its error is no longer kept", CallStatus.FAILED),
    ],
)
def test_of_a_job_whose_row_is_gone_a_session_is_told_how_it_ended_by_its_key(
    room: Room, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any], told: str, status: CallStatus
) -> None:  # fmt: skip
    room.app.task("SLOW", queue="slow")(work)
    ident, job = paused(room)
    clock.advance(1)
    with monkeypatch.context() as patch:  # an older version looked for nobody who waits
        patch.setattr("duly.jobs.prune._AWAITED", "(SELECT 0)")
        prune(room.db, clock.now())
    assert job not in kept(room)
    resumed(room, clock, ident)
    assert room.results(ident)[0] == told
    assert room.calls(ident)[0].status is status


def test_of_a_job_of_which_nothing_is_kept_a_session_is_told_that_nobody_knows(room: Room, clock: ManualClock) -> None:
    room.app.task("SLOW", queue="slow")(lambda: None)
    ident, job = paused(room)
    room.db.write(lambda c: c.execute(delete(jobs_done).where(jobs_done.c.id == job)))
    room.db.write(lambda c: c.execute(delete(job_keys).where(job_keys.c.job_id == job)))
    resumed(room, clock, ident)
    assert room.results(ident)[0] == "failed: its job is not there any more, and nobody knows what came of it"


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_tool_that_forgets_to_await_what_it_asks_of_duly_fails_its_call(room: Room) -> None:
    @room.door.tool
    async def ask() -> str:
        """Ask for work."""
        room.app.aenqueue("KID")  # type: ignore[unused-coroutine]
        return "enqueued"

    room.model.answers = [says("", call("ask")), finish()]
    ident = room.start(tools=["ask"])
    room.drain()
    assert next(c.status for c in room.calls(ident)) is CallStatus.FAILED
    assert "never awaited" in room.results(ident)[0]
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED

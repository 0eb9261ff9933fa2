"""A cancel that was acknowledged is kept, whatever the handler does afterwards. C014, on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duly import INJECT, Cancel, Duly, Job, PermanentError, Retry, Snooze, Status
from duly.testing import ManualClock, drain

ENDS: dict[str, Callable[[], BaseException | None]] = {
    "retry": lambda: Retry(after=1),
    "snooze": lambda: Snooze(after=1),
    "error": lambda: ValueError("x"),
    "group": lambda: ExceptionGroup("g", [Retry(after=1), Snooze(after=1)]),
    "cancel": lambda: Cancel("no"),
    "permanent": lambda: PermanentError("no"),
    "return": lambda: None,
}


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_a_cancelled_job_is_never_queued_again(app: Duly, clock: ManualClock, kind: str) -> None:  # C014
    runs: list[int] = []

    def body(how: str, job: Job) -> None:
        runs.append(job.id)
        assert app.jobs.cancel(job.id).cancel_requested
        error = ENDS[how]()
        if error is not None:
            raise error

    @app.task("THREAD")
    def on_thread(how: str, job: Job = INJECT) -> None:
        body(how, job)

    @app.task("LOOP")
    async def on_loop(how: str, job: Job = INJECT) -> None:
        body(how, job)

    task = on_loop if kind == "loop" else on_thread
    ids = {how: task.enqueue(how).job.id for how in ENDS}
    for _ in range(3):
        drain(app)
        clock.advance(3600)
    ended = {how: app.jobs.get(ident).status for how, ident in ids.items()}
    assert len(runs) == len(ENDS)  # none began again
    assert ended.pop("return") is Status.SUCCEEDED  # it had done its work
    assert ended.pop("permanent") in (Status.FAILED, Status.CANCELLED)
    assert set(ended.values()) == {Status.CANCELLED}

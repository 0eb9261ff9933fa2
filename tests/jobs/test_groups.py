"""What a handler asked for survives an exception group: in jobs, in processes, steps, tools, transports and functions of channels. C006."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duly import Cancel, Duly, PermanentError, Retry, Snooze, Status
from duly.automations.calls import failure
from duly.idempotency.surroundings import is_control
from duly.jobs.failures import failures
from duly.jobs.processes import _raised
from duly.kernel.exception_group import MOST_LEAVES, decisive, leaves
from duly.outbox.message import Message
from duly.outbox.plan import Policy, settle
from duly.testing import ManualClock, drain
from duly.workflows import WorkflowContext

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock) -> Iterator[Duly]:
    app = Duly(f"sqlite:///{tmp_path}/duly.db", clock=clock)
    yield app
    app.close()


def group(*errors: BaseException) -> BaseExceptionGroup[Any]:
    return BaseExceptionGroup("unhandled errors in a TaskGroup", list(errors))


async def children(*errors: BaseException) -> None:
    """A task group whose children raise, all at once."""

    async def child(error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    async with asyncio.TaskGroup() as tasks:
        for error in errors:
            tasks.create_task(child(error))


@pytest.mark.parametrize(
    ("raised", "decides"),
    [
        (group(ValueError("x"), Retry(after=5), Retry(after=120), Retry()), "Retry: 120.0"),
        (group(Retry(after=5), group(group(PermanentError("gone")))), "PermanentError"),
        (group(PermanentError("gone"), group(Cancel("stop"))), "Cancel"),
        (group(Snooze(after=5), KeyError("x")), "KeyError"),
        (group(Snooze(after=5), group(Snooze(after=50))), "Snooze: 50.0"),
        (group(asyncio.CancelledError(), OSError("no")), "OSError"),
        (ValueError("alone"), "ValueError"),
    ],
)
def test_the_firmest_wish_in_a_group_decides_and_the_longest_wait_counts(raised: BaseException, decides: str) -> None:
    found = decisive(raised)
    after = getattr(found, "after", None)
    assert type(found).__name__ + ("" if after is None else f": {after}") == decides


def test_a_group_of_any_size_and_depth_is_looked_at_in_bounds() -> None:
    deep: BaseException = ValueError("bottom")
    for _ in range(5_000):
        deep = group(deep)
    assert isinstance(decisive(deep), ValueError)
    wide = group(*(ValueError(str(n)) for n in range(5 * MOST_LEAVES)))
    assert len(list(leaves(wide))) == MOST_LEAVES


def test_a_job_ends_as_the_child_of_its_task_group_asked(app: Duly, clock: ManualClock) -> None:  # C006
    errors: dict[str, list[BaseException]] = {
        "later": [Retry("busy", after=120), ValueError("beside")],
        "never": [PermanentError("gone")],
        "stop": [Cancel("not wanted")],
        "aside": [Snooze("not yet", after=300)],
        "two": [KeyError("first"), ValueError("second")],
    }

    @app.task(max_attempts=3)
    async def work(which: str) -> None:
        if which == "two":
            raise group(group(*errors[which]))
        await children(*errors[which])

    ids = {which: work.enqueue(which).job.id for which in errors}
    drain(app)
    jobs = {which: app.jobs.get(ident) for which, ident in ids.items()}
    assert jobs["later"].due_at == NOON + timedelta(seconds=120)
    assert jobs["later"].error["type"] == "Retry"
    assert jobs["later"].error["message"] == "busy (and 1 more error in the group: ValueError)"
    assert (jobs["never"].status, jobs["never"].attempts, jobs["never"].error["message"]) == (Status.FAILED, 1, "gone")
    assert jobs["stop"].status is Status.CANCELLED
    assert (jobs["aside"].status, jobs["aside"].attempts) == (Status.QUEUED, 0)
    assert jobs["aside"].due_at == NOON + timedelta(seconds=300)
    assert (jobs["two"].error["type"], jobs["two"].attempts) == ("KeyError", 1)
    found, _ = app._read(lambda c: failures(c, clock.now() + timedelta(1), [timedelta(days=7)]))
    assert [f.error for f in found] == ["PermanentError"]  # grouped by the inner exception


def test_a_handler_on_a_thread_and_one_in_a_process_answer_alike(app: Duly) -> None:
    @app.task(max_attempts=3)
    def plain() -> None:
        raise group(PermanentError("gone"))

    ident = plain.enqueue().job.id
    drain(app)
    assert app.jobs.get(ident).status is Status.FAILED
    kind, sent, name, trace = _raised(group(ValueError("x"), Retry("busy", after=9)))
    assert (kind, type(sent), sent.after) == ("signal", Retry, 9.0)
    assert name == "Retry"
    assert str(sent) == "busy (and 1 more error in the group: ValueError)"
    assert any("ValueError: x" in line for line in trace)
    assert _raised(group(KeyError("x"), ValueError("y")))[:3] == ("error", "KeyError", "'x' (and 1 more error in the group: ValueError)")  # fmt: skip


def test_a_step_and_the_code_of_a_workflow_answer_alike(app: Duly, clock: ManualClock) -> None:
    calls: list[str] = []

    async def never() -> None:
        calls.append("never")
        await children(PermanentError("gone"))

    async def later() -> None:
        calls.append("later")
        await children(Retry(after=90))

    @app.workflow("steps")
    async def steps(ctx: WorkflowContext, which: str) -> None:
        await ctx.step(which, {"never": never, "later": later}[which])

    @app.workflow("code", max_attempts=5)
    async def code(ctx: WorkflowContext) -> None:
        await children(PermanentError("gone"))

    never_id, later_id = (app.workflows.start("steps", {"which": w}).job.id for w in ("never", "later"))
    code_id = app.workflows.start("code").job.id
    drain(app)
    assert calls == ["never", "later"]
    assert app.workflows.get(never_id).error["message"] == "never: PermanentError: gone"
    assert app.workflows.get(code_id).error["message"] == "gone"
    clock.advance(89)
    drain(app)
    assert calls == ["never", "later"]
    clock.advance(2)
    drain(app)
    assert calls == ["never", "later", "later"]
    assert app.workflows.get(later_id).state == "retrying"


def test_a_tool_a_transport_and_an_idempotent_body_answer_alike() -> None:
    assert failure(group(ValueError("no such order"))) == "failed: ValueError: no such order"
    message = Message(1, "m", "default", "t:x", None, token=1, attempts=1)
    assert settle(message, group(PermanentError("gone")), Policy()).event == "park"
    assert settle(message, group(OSError("x"), Retry(after=77)), Policy()).wait == 77
    assert is_control(group(group(Retry(after=1))))
    assert not is_control(group(ValueError("x")))

"""One at a time means the work, not the record: the slot is free when the last effect of the one before has ended (R001-54)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session as OrmSession

from automations.hands import Ai, Stage, calls, done
from contract.hands import wait_until, working
from duly import Duly
from duly.automations import Automations
from duly.automations.session import SessionControl, Status
from duly.testing import drain


def answered(stage: Stage, ident: int) -> list[str]:
    """What the model was told of its calls."""
    return [words for role, words in stage.said(ident) if role == "tool"]


@pytest.mark.parametrize("kind", ["plain", "async", "session", "async session"])
def test_a_pause_lets_the_call_under_way_end_and_its_result_is_on_record(stage: Stage, kind: str) -> None:  # R001-54
    a, b = stage.automation("a", "09:00", tools=["slow"]), stage.automation("b")
    stage.app.db.write(lambda c: c.execute(text("CREATE TABLE effects (name TEXT NOT NULL)")))
    seen: list[Any] = []

    def meanwhile() -> str:
        """A person pauses the first, and wants the other."""
        seen.append(stage.room.pause(stage.of(a)[0].id, "lunch"))
        seen.append(stage.room.run(b).control)
        return "it has done its work"

    if kind == "plain":

        def slow() -> str:
            return meanwhile()
    elif kind == "async":

        async def slow() -> str:  # type: ignore[misc]
            return meanwhile()
    elif kind == "session":

        def slow(session: OrmSession) -> str:  # type: ignore[misc]
            said = meanwhile()
            session.execute(text("INSERT INTO effects VALUES ('once')"))
            return said
    else:

        async def slow(session: AsyncSession) -> str:  # type: ignore[misc]
            said = meanwhile()
            await session.execute(text("INSERT INTO effects VALUES ('once')"))
            return said

    stage.room.tools.add(slow, name="slow")
    stage.ai.script = [calls("slow")]
    stage.at(9)
    stage.tick()
    stage.work()
    paused, control = seen
    assert paused.status is Status.INTERRUPTED
    assert "its call of slow was under way" in (paused.end_detail or "")
    assert control is SessionControl.QUEUED, "the other had the slot beside it"
    stage.tick()
    stage.work()
    assert stage.ends(b) == ["COMPLETED"]
    assert answered(stage, paused.id)[0] == '"it has done its work"'
    assert [call.status for call in stage.room.calls(paused.id)] == ["done"]
    assert stage.ends(a) == ["COMPLETED"]  # it went on when the other had had its turn
    if "session" in kind:
        assert stage.rows("SELECT name FROM effects") == [("once",)]
    assert len(seen) == 2, "the call was made again"


def test_nobody_gets_the_slot_while_the_job_of_a_call_runs(stage: Stage) -> None:  # R001-54
    a, b = stage.automation("a", "09:00", tools=["print"]), stage.automation("b")
    controls = []

    @stage.app.task("print")
    def print_pages() -> None:
        stage.room.stop(stage.of(a)[0].id, "wrong printer")
        controls.append(stage.room.run(b).control)

    stage.ai.script = [calls("print")]
    stage.at(9)
    stage.tick()
    stage.work()
    assert controls == [SessionControl.QUEUED]
    stage.tick()
    stage.work()
    assert (stage.ends(a), stage.ends(b)) == (["CANCELLED"], ["COMPLETED"])


@pytest.mark.parametrize("how", ["stop", "pause now", "timeout of the tool"])
def test_the_slot_is_free_when_the_thread_of_a_plain_tool_has_ended(tmp_path: Path, how: str) -> None:  # R001-54
    app = Duly(f"sqlite:///{tmp_path / 'jobs.db'}", lease=0.6, sqlite_synchronous="NORMAL")
    room = Automations(app)
    ai = Ai(calls("slow"))
    room.use("ai", ai)
    began, go, both = threading.Event(), threading.Event(), threading.Event()
    running = [0]

    def slow() -> str:
        running[0] += 1
        began.set()
        assert go.wait(30)
        running[0] -= 1
        return "done"

    def other() -> None:
        if running[0]:
            both.set()

    room.tools.add(slow, name="slow", timeout=0.2 if "tool" in how else None)
    room.tools.add(other, name="other")
    first = room.create({"name": "first", "prompt": "x", "provider": "ai", "tools": ["slow"]})
    second = room.create({"name": "second", "prompt": "x", "provider": "ai", "tools": ["other"]})
    with working(app.worker(queues={"automations": 5, "default": 5})):
        session = room.run(first.id).session
        assert began.wait(30)
        if how == "stop":
            room.stop(session.id)
        elif how == "pause now":
            room.pause(session.id, span="1h", now=True)
        else:
            wait_until(lambda: room.session(session.id).status is Status.ENDED)
        ai.script = [calls("other")]
        asked = room.run(second.id)
        assert asked.control is SessionControl.QUEUED
        # its worker has heard of it: the run of the first has nothing left to do but to wait
        wait_until(lambda: how == "timeout of the tool" or heard(app))
        room.tick()
        assert room.session(asked.session.id).status is Status.QUEUED
        go.set()
        wait_until(lambda: room.session(asked.session.id).status is Status.ENDED)
        assert not both.is_set()
    [call] = room.calls(session.id)
    assert call.status == ("failed" if "tool" in how else "done")
    app.close()


def test_a_tool_that_was_given_up_after_its_timeout_keeps_the_slot_while_it_goes_on(tmp_path: Path) -> None:  # R001-54
    """The session went on behind it, and lost its slot."""
    app = Duly(f"sqlite:///{tmp_path / 'jobs.db'}", lease=0.6, sqlite_synchronous="NORMAL")
    room, go, asked = Automations(app), threading.Event(), threading.Event()

    def paused(_: Any) -> Any:
        asked.set()
        assert go.wait(30)
        return done()

    ai = Ai(calls("slow"), paused)
    room.use("ai", ai)
    room.tools.add(lambda: go.wait(30), name="slow", timeout=0.2)
    first = room.create({"name": "first", "prompt": "x", "provider": "ai", "tools": ["slow"]})
    second = room.create({"name": "second", "prompt": "x", "provider": "ai"})
    with working(app.worker(queues={"automations": 5})):
        session = room.run(first.id).session
        wait_until(lambda: [call.status for call in room.calls(session.id)] == ["failed"])
        room.stop(session.id)
        other = room.run(second.id)
        assert other.control is SessionControl.QUEUED
        [slot] = room.slots()
        assert slot.busy is not None and slot.busy.words == f"a call of slow of session {session.id} is still under way"
        [check] = [check for check in room.why(second.id) if check.name == "slot"]
        assert not check.met and slot.busy.words in check.detail
        go.set()
        wait_until(lambda: room.session(other.session.id).status is Status.ENDED)
    app.close()


def heard(app: Duly) -> bool:
    """Has a worker been told that a job is to stop, and gone on beating since?"""
    rows = app.db.read(lambda c: c.execute(text("SELECT cancel_requested FROM jobs WHERE task = 'AI_SESSION'")).all())
    return any(row[0] for row in rows)


def test_a_drained_session_leaves_a_slot_that_is_free(stage: Stage) -> None:
    a, b = stage.automation("a", "09:00"), stage.automation("b", "09:00")
    stage.ai.script = [done(), done()]
    stage.at(9)
    stage.tick()
    drain(stage.app)
    assert (stage.ends(a), stage.ends(b)) == (["COMPLETED"], ["COMPLETED"])

"""Calls of tools: what a model is told, what it may call, and how often each has its effect (T001-q, B072, issue of tools)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
from pydantic import Field
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from automations.room import Room, call, finish, says
from duly import INJECT, Context, PermanentError
from duly.automations.calls import INTERRUPTED, bounded, failure, result_text
from duly.automations.protocol import FINISH
from duly.automations.providers.base import ToolCall
from duly.automations.session import CallStatus, SessionEndReason, Status
from duly.automations.tables import automations
from duly.kernel.errors import InvalidArgument
from duly.rounds import Rounds
from duly.testing import ManualClock, drain


@pytest.fixture
def ledger(room: Room) -> Room:
    """A table of effects."""
    room.db.write(lambda c: c.execute(text("CREATE TABLE effects (name TEXT NOT NULL)")))
    return room


def effects(room: Room) -> list[str]:
    return [name for (name,) in room.db.read(lambda c: c.execute(text("SELECT name FROM effects ORDER BY name")).all())]


def run(room: Room, *calls: ToolCall, tools: list[str], **fields: Any) -> int:
    """Have a model make these calls in one answer, and end."""
    room.model.answers = [says("", *calls), finish()]
    ident = room.start(tools=tools, **fields)
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED, room.session(ident).end_detail
    return ident


# --- what a model is told ----------------------------------------------------------------------------------------------


@dataclass
class Address:
    street: str
    title: str = ""


def test_a_tool_is_told_by_its_docstring_and_annotations(room: Room) -> None:
    @room.tools.tool
    def send(
        to: Annotated[list[str], Field(description="who gets it")],
        title: str,
        where: Address,
        urgent: bool = False,
        near: str | None = None,
    ) -> None:
        """Send a message.

        At once.
        """

    [spec] = room.tools.specs(["send"])
    assert (spec.name, spec.description) == ("send", "Send a message.\n\nAt once.")
    assert spec.parameters["required"] == ["to", "title", "where"]
    properties = spec.parameters["properties"]
    assert properties["to"] == {"description": "who gets it", "items": {"type": "string"}, "type": "array"}
    assert properties["title"] == {"type": "string"}  # a parameter may be called title
    assert properties["urgent"] == {"default": False, "type": "boolean"}
    assert properties["near"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert set(spec.parameters["$defs"]["Address"]["properties"]) == {"street", "title"}
    assert "title" not in spec.parameters
    assert spec.parameters["additionalProperties"] is False


def test_a_session_is_no_parameter_that_a_model_is_told_of(room: Room) -> None:
    def book(name: str, session: Session) -> None: ...

    room.tools.add(book, description="Book.")
    [spec] = room.tools.specs(["book"])
    assert list(spec.parameters["properties"]) == ["name"]
    assert spec.description == "Book."


def test_tasks_are_tools_by_their_names_those_of_other_applications_once_they_are_told_of(room: Room) -> None:
    @room.app.task("REPORT")
    def report(day: str) -> None:
        """Write the report of a day."""

    room.tools.add_task("ELSEWHERE", "Done by somebody else.")
    specs = room.tools.specs(["REPORT", "ELSEWHERE", "NOBODY", "AI_SESSION", FINISH, "REPORT"])
    assert [spec.name for spec in specs] == ["REPORT", "ELSEWHERE"]
    assert specs[0].description == "Write the report of a day."
    assert list(specs[0].parameters["properties"]) == ["day"]
    assert specs[1].parameters["additionalProperties"] is True
    assert [p.split()[0] for p in room.tools.problems(["REPORT", "NOBODY", "AI_SESSION"])] == ["NOBODY", "AI_SESSION"]


def test_what_can_be_no_tool_is_refused_where_it_is_registered(room: Room) -> None:
    def with_context(context: Context) -> None: ...

    def plain(session: Session) -> None: ...

    def rest(*args: int) -> None: ...

    for fn, options, field in (
        (print, {"name": FINISH}, "name"), (with_context, {}, "tool with_context"), (plain, {"timeout": 1}, "timeout"),
        (rest, {}, "tool rest"), (lambda: 0, {"name": ""}, "name"), (lambda: 0, {"name": "x", "timeout": 0}, "timeout"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument) as caught:
            room.tools.add(fn, **options)  # type: ignore[arg-type]
        assert caught.value.field == field
    room.tools.add(lambda: 0, name="x")
    with pytest.raises(InvalidArgument):
        room.tools.add(lambda: 1, name="x")


def test_what_would_never_be_done_is_refused_where_it_is_registered(room: Room) -> None:
    async def stream(n: int) -> Any:
        yield n

    async def blocking(session: Session) -> None: ...

    def unheard(session: AsyncSession) -> None: ...

    for fn, said in ((stream, "asynchronous generator"), (blocking, "AsyncSession"), (unheard, "async def")):
        with pytest.raises(InvalidArgument) as caught:
            room.door.tool(fn)
        assert caught.value.field == f"tool {fn.__name__}"
        assert said in str(caught.value)
    assert room.tools.names() == []


# --- what it may call --------------------------------------------------------------------------------------------------


def test_a_tool_that_is_not_on_the_list_is_not_called_and_that_is_on_record(room: Room) -> None:
    called: list[int] = []
    room.tools.add(lambda: called.append(1), name="delete")
    ident = run(room, call("delete"), call("made-up"), call("GHOST"), tools=["GHOST"])
    assert not called
    assert room.results(ident)[:3] == [
        "refused: this tool is not among those that you may call",
        "refused: this tool is not among those that you may call",
        "refused: this tool is not defined where this runs",
    ]
    assert [c.status for c in room.calls(ident)] == [CallStatus.REFUSED] * 3
    assert room.trail("TOOL_CALLED") == [
        {"tool": "delete", "number": 1, "status": "refused"},
        {"tool": "(unknown)", "number": 2, "status": "refused"},  # a name that the model made up is something it said
        {"tool": "(unknown)", "number": 3, "status": "refused"},
    ]
    assert room.session(ident).calls == 0


@pytest.mark.parametrize("name", ["AI_SESSION", "PUBLISH", "ig_first_comment", "ROUNDS_PLAN", "ROUNDS_NOTIFY_EMAIL"])
def test_a_task_whose_jobs_a_room_makes_itself_is_no_tool(room: Room, name: str) -> None:
    given = {"name": "brief", "prompt": "Do it.", "tools": ["EMAIL_SEND", name]}
    plain = room.door.create({**given, "tools": ["EMAIL_SEND", "ENGINE_RUN"]})
    written = replace(plain.definition, name="other", tools=("EMAIL_SEND", name))
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("tools[1]", lambda: room.door.create({**given, "name": "other"})),
        ("tools[1]", lambda: room.door.create(written)),
        ("tools[1]", lambda: room.door.ensure(given)),
        ("tools[1]", lambda: room.door.update("brief", {"tools": given["tools"]})),
        ("tools[1]", lambda: room.door.update("brief", written)),
        ("tools[1]", lambda: room.door.chat(tools=["EMAIL_SEND", name])),
        ("name", lambda: room.tools.add_task(name)),
        ("name", lambda: room.tools.add(lambda: 1, name=name)),
    ]
    for field, attempt in attempts:
        with pytest.raises(InvalidArgument) as caught:
            attempt()
        assert (caught.value.field, caught.value.problem) == (
            field,
            f"is {name}, whose jobs a room of Duly makes itself.",
        )
    assert [a.definition.tools for a in room.door.list()] == [("EMAIL_SEND", "ENGINE_RUN")]


def test_an_automation_that_was_made_with_a_rooms_task_cannot_call_it(room: Room) -> None:
    rounds = Rounds(room.app)
    rounds.groups.add("readers", "Europe/Rome", tenant="another")
    given = {"name": "old", "prompt": "Do it.", "provider": "model", "tools": ["GHOST"]}
    old = room.door.create(given)
    room.db.write(lambda c: c.execute(update(automations).values(tools=["ROUNDS_PLAN", "ROUNDS_NOTIFY_LOG"])))
    room.model.answers = [
        says("", call("ROUNDS_PLAN"), call("ROUNDS_NOTIFY_LOG", round=1, member=1)),
        finish(),
    ]
    session = room.door.run(old.id).session
    room.drain()
    calls = room.calls(session.id)
    assert [(c.status, c.result, c.job_id) for c in calls] == [
        (CallStatus.REFUSED, f"refused: this is {name}, whose jobs a room of Duly makes itself", None)
        for name in ("ROUNDS_PLAN", "ROUNDS_NOTIFY_LOG")
    ]
    assert room.app.jobs.find(task="ROUNDS_PLAN") == []
    assert rounds.list() == []
    # the model is not told of it, and people are
    assert [spec.name for spec in room.model.questions[0].tools] == [FINISH]
    notes = room.door.notes(room.door.get("old"))
    assert notes[0] == "ROUNDS_PLAN is a task whose jobs a room of Duly makes itself: a call of it is refused"
    # what is changed of it besides is no matter of its tools
    assert room.door.update("old", {"prompt": "Do something else."}).definition.tools == (
        "ROUNDS_PLAN",
        "ROUNDS_NOTIFY_LOG",
    )


def test_wrong_arguments_are_told_with_the_field_and_call_nothing(room: Room) -> None:
    called: list[Any] = []

    def send(to: str, copies: int = 1) -> None:
        called.append(to)

    room.tools.add(send)
    ident = run(
        room, call("send"), call("send", to="a", copies="many"), call("send", to="a", colour="red"),
        ToolCall("x", "send", {}, "its arguments are no JSON"), call("send", to="b", copies="2"), tools=["send"],
    )  # fmt: skip
    first, second, third, fourth, fifth = room.results(ident)[:5]
    assert first == "refused: to: is required by tool send."
    assert second.startswith("refused: copies: input should be a valid integer")
    assert third == "refused: colour: is not a parameter of tool send."
    assert fourth == "refused: its arguments are no JSON"
    assert fifth == "null"
    assert called == ["b"]


def test_calls_beyond_the_limit_are_refused(room: Room) -> None:
    called: list[int] = []
    room.tools.add(called.append, name="count")
    ident = run(room, *(call("count", object=n) for n in range(4)), tools=["count"], limits={"max_calls": 2})
    assert called == [0, 1]
    assert room.results(ident)[2] == "refused: 2 calls may be made in a run (limits.max_calls), and they have been"
    assert room.session(ident).calls == 2


# --- functions ---------------------------------------------------------------------------------------------------------


def test_calls_of_one_answer_are_made_one_after_the_other_and_their_results_stand_in_their_order(room: Room) -> None:
    busy, order = threading.Lock(), list[str]()

    async def later(name: str) -> dict[str, str]:
        with busy:
            await asyncio.sleep(0)
            order.append(name)
        return {"name": name}

    def now(name: str) -> str:
        assert busy.acquire(blocking=False)
        order.append(name)
        busy.release()
        return name

    room.tools.add(later)
    room.tools.add(now)
    ident = run(room, call("later", ident="1", name="a"), call("now", ident="2", name="b"), call("later", ident="3", name="c"), tools=["later", "now"])  # fmt: skip
    assert order == ["a", "b", "c"]
    said = [m for m in room.messages(ident) if m.call_id in ("1", "2", "3")]
    assert [(m.call_id, m.text) for m in said] == [("1", '{"name":"a"}'), ("2", '"b"'), ("3", '{"name":"c"}')]
    assert [c.status for c in room.calls(ident)] == [CallStatus.DONE] * 3
    assert [(e["tool"], e["status"]) for e in room.told("session_call")] == [
        ("later", "done"),
        ("now", "done"),
        ("later", "done"),
    ]


def test_what_a_tool_raises_is_its_result_and_the_model_goes_on(room: Room) -> None:
    def boom(kind: str) -> None:
        raise {
            "value": ValueError("no such city"),
            "exit": SystemExit(3),
            "stop": StopIteration(),
            "final": PermanentError("no"),
        }[kind]

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    room.tools.add(boom)
    room.tools.add(cancels_itself)
    kinds = ["value", "exit", "stop", "final"]
    ident = run(room, *(call("boom", kind=kind) for kind in kinds), call("cancels_itself"), tools=["boom", "cancels_itself"])  # fmt: skip
    assert room.results(ident)[:5] == [
        "failed: ValueError: no such city", "failed: SystemExit: 3", "failed: StopIteration: ", "failed: PermanentError: no",
        "failed: CancelledError: ",
    ]  # fmt: skip
    assert [c.status for c in room.calls(ident)] == [CallStatus.FAILED] * 5


def test_work_that_a_tool_returns_instead_of_doing_it_is_not_done(ledger: Room) -> None:
    async def later() -> str:
        return "too late"

    async def stream() -> Any:
        yield 1

    @contextmanager
    def around() -> Any:
        yield 1

    @ledger.tools.tool
    async def coroutine() -> Any:
        return later()

    @ledger.tools.tool
    def with_session(session: Session) -> Any:
        session.execute(insert("rolled back"))
        return later()

    ledger.tools.add(lambda: stream(), name="stream")
    ledger.tools.add(lambda: around(), name="around")
    ledger.tools.add(lambda: later(), name="awaited")
    names = ["coroutine", "with_session", "stream", "around", "awaited"]
    ident = run(ledger, *[call(name) for name in names], tools=names)
    *undone, awaited = ledger.calls(ident)
    assert [c.status for c in undone] == [CallStatus.FAILED] * 4
    for made in undone:
        assert made.result is not None
        assert "work that nobody has done" in made.result
    assert (awaited.status, awaited.result) == (CallStatus.DONE, '"too late"')
    assert effects(ledger) == []


def test_a_tool_that_takes_too_long_fails(room: Room) -> None:
    stuck = threading.Event()

    async def for_ever() -> None:
        await asyncio.Event().wait()

    async def with_session(session: AsyncSession) -> None:
        await asyncio.Event().wait()

    def its_own() -> None:
        stuck.set()  # its thread goes on behind the timeout, and the slot is free when it has ended
        raise TimeoutError("the city hall is closed")

    room.tools.add(for_ever, timeout=0.05)
    room.tools.add(with_session, timeout=0.05)
    room.tools.add(stuck.wait, name="stuck", timeout=0.05)
    room.tools.add(its_own, timeout=5)
    try:
        ident = run(room, call("for_ever"), call("stuck"), call("with_session"), call("its_own"), tools=["for_ever", "stuck", "with_session", "its_own"])  # fmt: skip
    finally:
        stuck.set()
    assert room.results(ident)[:4] == [
        "failed: it did not end within 0.05 s; it may or may not have done its work",
        "failed: it did not end within 0.05 s; it may or may not have done its work",
        "failed: it did not end within 0.05 s",
        "failed: TimeoutError: the city hall is closed",
    ]


def test_a_call_is_on_record_before_the_function_is_called(room: Room) -> None:
    seen: list[Any] = []
    room.tools.add(lambda: seen.extend(room.calls(ident)), name="look")
    room.model.answers = [says("", call("look")), finish()]
    ident = room.start(tools=["look"])
    room.drain()
    assert [c.status for c in seen] == [CallStatus.CALLED]


@pytest.mark.parametrize("repeat", [False, True])
def test_a_call_that_a_crash_came_into_is_made_again_only_if_it_may_be(
    room: Room, clock: ManualClock, repeat: bool
) -> None:
    # R001-16: never doubled; the model is told that nobody knows
    calls: list[int] = []

    def charge() -> str:
        calls.append(1)
        if len(calls) == 1:
            clock.advance(room.app.settings.lease + 1)  # nobody has renewed the lease, and nobody hears the end of it
            room.tick()
        return "charged"

    room.tools.add(charge, repeat=repeat)
    room.model.answers = [says("", call("charge")), finish()]
    ident = room.start(tools=["charge"])
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED
    assert len(calls) == (2 if repeat else 1)
    assert room.results(ident)[0] == ('"charged"' if repeat else INTERRUPTED)
    assert room.calls(ident)[0].status is (CallStatus.DONE if repeat else CallStatus.UNKNOWN)
    assert room.session(ident).calls == 1


def test_results_are_bounded_and_what_cannot_be_told_is_told_to_be_so() -> None:
    assert result_text(None, 10) == "null"
    less = "were left out. Ask for less at once, such as one page or one item)"
    assert result_text("x" * 50, 10) == '"' + "x" * 9 + f"\n(cut: the first 10 of 52 bytes; 42 {less}"
    assert bounded("äö", 3) == f"ä\n(cut: the first 3 of 4 bytes; 1 {less}"
    assert result_text(object(), 10).startswith("done; the result of type object cannot be stored")
    assert failure(ValueError("a\x00b")) == "failed: ValueError: a\\0b"


def test_the_model_is_told_a_bounded_result_and_people_read_the_whole(room: Room) -> None:
    # C040
    room.tools.add(lambda: "x" * 200_000, name="much")
    ident = run(room, call("much"), tools=["much"])
    told = room.results(ident)[0]
    assert len(told) < 33_000
    assert "the first 32,768 of 200,002 bytes; 167,234 were left out" in told
    assert room.calls(ident)[0].result == '"' + "x" * 200_000 + '"'


# --- functions with a session ------------------------------------------------------------------------------------------


def insert(name: str) -> Any:
    return text("INSERT INTO effects (name) VALUES (:name)").bindparams(name=name)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_the_effect_of_a_tool_with_a_session_and_its_record_are_one_commit(
    ledger: Room, clock: ManualClock, kind: str
) -> None:
    room = ledger
    tries: list[int] = []

    def crash() -> None:
        clock.advance(room.app.settings.lease + 1)  # nobody has renewed the lease
        room.tick()

    def book(name: str, session: Session) -> str:
        tries.append(1)
        if len(tries) == 1:
            crash()
        session.execute(insert(name))
        return name

    async def abook(name: str, session: AsyncSession) -> str:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.to_thread(crash)
        await session.execute(insert(name))
        return name

    room.tools.add(book if kind == "plain" else abook, name="book")
    room.model.answers = [says("", call("book", name="mine")), finish()]
    ident = room.start(tools=["book"])
    room.drain()
    # the slot was lost before the first commit
    assert (effects(room), len(tries)) == (["mine"], 2)
    assert room.results(ident)[0] == '"mine"'
    assert room.session(ident).calls == 1


def test_a_tool_with_a_session_that_fails_leaves_nothing(ledger: Room) -> None:
    def book(session: Session) -> None:
        session.execute(insert("x"))
        raise ValueError("no room left")

    ledger.tools.add(book)
    ident = run(ledger, call("book"), tools=["book"])
    assert effects(ledger) == []
    assert ledger.results(ident)[0] == "failed: ValueError: no room left"


# --- tasks -------------------------------------------------------------------------------------------------------------


def test_a_task_is_waited_for_without_a_worker_and_its_output_is_the_result(ledger: Room) -> None:
    room = ledger

    @room.app.task("REPORT", queue="reports", max_attempts=1)
    def report(day: str, session: Session = INJECT) -> dict[str, str]:
        session.execute(insert(day))
        return {"day": day}

    room.model.answers = [says("", call("REPORT", day="monday")), finish()]
    ident = room.start(tools=["REPORT"])
    drain(room.app, queues=["automations"])
    session, [made] = room.session(ident), room.calls(ident)
    assert (made.status, session.calls) == (CallStatus.WAITING, 1)
    own, child = room.app.jobs.get(session.job_id or 0), room.app.jobs.get(made.job_id or 0)
    assert (own.status, own.attempts) == ("queued", 0)
    assert (child.parent_id, child.key, child.tenant) == (own.id, made.key, session.tenant)
    drain(room.app, queues=["automations"])  # it is not claimed before the other has ended
    assert room.calls(ident)[0].status is CallStatus.WAITING
    drain(room.app, queues=["reports"])
    drain(room.app, queues=["automations"])  # woken at once: no time has passed
    assert room.results(ident)[0] == '{"day":"monday"}'
    assert effects(room) == ["monday"]
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def test_a_task_that_fails_or_is_cancelled_is_a_result_too(room: Room) -> None:
    @room.app.task("BROKEN", max_attempts=1)
    def broken() -> None:
        raise ValueError("the printer is on fire")

    ident = run(room, call("BROKEN"), call("BROKEN", wrong=1), tools=["BROKEN"])
    assert room.results(ident)[:2] == [
        "failed: ValueError: the printer is on fire",
        "refused: wrong: is not a parameter of task BROKEN.",
    ]
    room.model.answers = [says("", call("BROKEN")), finish()]
    ident = room.start(name="other", tools=["BROKEN"])
    drain(room.app, queues=["automations"])
    room.app.jobs.cancel(room.calls(ident)[0].job_id or 0, actor="test")
    room.drain()
    assert room.results(ident)[0] == "failed: its job was cancelled"


def waiting(room: Room) -> int:
    """A session that waits for its task."""

    @room.app.task("SLOW", queue="slow")
    def slow() -> str:
        return "done"

    room.model.answers = [says("", call("SLOW")), finish()]
    ident = room.start(tools=["SLOW"])
    drain(room.app, queues=["automations"])
    assert room.calls(ident)[0].status is CallStatus.WAITING
    return ident


def test_a_stop_cancels_the_job_that_is_waited_for(room: Room) -> None:
    ident = waiting(room)
    own, child = room.session(ident).job_id or 0, room.calls(ident)[0].job_id or 0
    room.stop(ident)
    assert [room.app.jobs.get(j).status for j in (own, child)] == ["cancelled", "cancelled"]


def test_a_pause_does_not_and_the_job_of_before_is_waited_for_again(room: Room, clock: ManualClock) -> None:
    # R001-16, R001-20: the same job, found again by the next activation
    ident = waiting(room)
    own, child = room.session(ident).job_id or 0, room.calls(ident)[0].job_id or 0
    room.pause(ident)
    assert [room.app.jobs.get(j).status for j in (own, child)] == ["cancelled", "queued"]
    room.resume(ident)
    drain(room.app, queues=["automations"])
    assert room.session(ident).job_id not in (None, own)
    assert room.calls(ident)[0].job_id == child
    drain(room.app, queues=["slow"])
    clock.advance(2)
    room.drain()
    assert room.results(ident)[0] == '"done"'
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def test_a_session_whose_task_takes_long_is_not_silent(room: Room, clock: ManualClock) -> None:
    # R001-9: the lease of that job watches it; what has no job any more is silent
    ident = waiting(room)
    child = room.calls(ident)[0].job_id or 0
    taken = "UPDATE jobs SET status = 'running', worker = 'w', lease_token = 1, lease_until = NULL, started_at = created_at WHERE id = :id"
    room.app.db.write(lambda c: c.execute(text(taken), {"id": child}))
    clock.advance(3_600)
    room.tick()
    assert room.session(ident).is_active
    assert not room.app.jobs.get(child).cancel_requested
    room.app.db.write(lambda c: c.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": child}))
    clock.advance(1)
    room.tick()
    assert room.session(ident).end_reason is SessionEndReason.TIMEOUT


def test_a_chat_whose_worker_was_lost_among_its_calls_is_taken_up_again(room: Room, clock: ManualClock) -> None:
    # T001-b: its person still waits
    def dies() -> None:
        clock.advance(room.app.settings.lease + 1)  # nobody has renewed the lease
        room.tick()

    room.tools.add(dies)
    room.model.answers = [says("", call("dies")), says("I do not know whether it is done.")]
    ident = room.chat("Do it.", tools=["dies"])
    room.drain()
    room.drain()
    assert room.results(ident) == [INTERRUPTED]
    assert room.messages(ident)[-1].text == "I do not know whether it is done."
    assert room.told("session_crashed")[0]["again"]
    assert (room.session(ident).crashes, room.session(ident).job_id) == (0, None)


def test_a_chat_calls_what_it_was_begun_with(room: Room) -> None:
    room.tools.add(lambda: "sunny", name="weather")
    room.model.answers = [says("", call("weather"), call("other")), says("It is sunny.")]
    ident = room.chat("Weather?", tools=["weather"])
    room.drain()
    assert room.session(ident).status is Status.ACTIVE
    assert room.results(ident) == ['"sunny"', "refused: this tool is not among those that you may call"]

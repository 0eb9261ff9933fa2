"""Answers that break off, that are cut, that hold nothing, and what is kept of them (C6, G4; R001-50, C038, C040)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from automations.room import Room, call, finish, says
from duly.automations.automation import read_definition
from duly.automations.calls import failure, finished, of_job, result_text
from duly.automations.context import fit, next_limit, size
from duly.automations.prices import cost_of, read_table
from duly.automations.protocol import FINISH, NO_CALL, said_in_text
from duly.automations.providers.base import (
    Answer,
    Message,
    Original,
    Owner,
    Prices,
    Question,
    Refused,
    Role,
    Stop,
    ToolCall,
    Usage,
)
from duly.automations.session import CallStatus, SessionEndReason
from duly.automations.tools import ToolError
from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind, Verdict, refusal
from duly.testing import ManualClock

Say = Callable[[str], None]


def breaks_off(text: str, kind: Kind = Kind.UNKNOWN) -> Any:
    """An answer of which so much is heard."""

    async def answer(question: Question, say: Say) -> Answer:
        say(text)
        raise refusal(kind, "the connection was lost")

    return answer


def hours(room: Room, clock: ManualClock, number: float) -> None:
    """So much time passes, and workers do what is ready every half minute."""
    for _ in range(int(number * 120)):
        room.drain()
        room.tick()
        clock.advance(30)
    room.drain()


# ---------------------------------------------------------------------- answers that break off


@pytest.mark.parametrize("kind", [Kind.UNKNOWN, Kind.TRANSIENT, Kind.THROTTLED])
def test_answers_that_break_off_are_counted_and_end_at_a_bound_of_their_own(
    room: Room, clock: ManualClock, kind: Kind
) -> None:
    # R001-50: the recipe asked 120 times in an hour, with no token counted
    room.model.answers = [breaks_off("word " * 400, kind)] * 50
    ident = room.start(max_unanswered=4)
    hours(room, clock, 0.6)
    session = room.session(ident)
    assert session.end_reason is SessionEndReason.ERROR
    assert "4 answers in a row broke off, and 4 may (max_unanswered)" in (session.end_detail or "")
    assert len(room.model.questions) == 4
    assert session.output_tokens == 4 * 500
    assert session.input_tokens > 4 * 400
    (row,) = room.rounds(ident)
    assert (row.input_tokens, row.output_tokens, row.unanswered) == (session.input_tokens, session.output_tokens, 4)
    told = room.told("session_broke_off")
    assert [(one["times"], one.get("after")) for one in told] == [(1, 30.0), (2, 60.0), (3, 120.0), (4, None)]
    # for metrics
    assert {one["automation_name"] for one in told} == {"briefing"}
    assert round(sum(one["cents"] for one in told) * 1e6) == session.cost_micros > 0


def test_answers_that_break_off_cannot_pass_the_bound_of_a_day(room: Room, clock: ManualClock) -> None:
    room.model.answers = [breaks_off("word " * 4_000)] * 50
    ident = room.start(limits={"max_tokens_per_day": 12_000}, max_unanswered=50)
    hours(room, clock, 0.5)
    session = room.session(ident)
    assert "max_tokens_per_day" in (session.end_detail or "")
    assert session.output_tokens == 15_000


def test_an_answer_of_which_nothing_was_heard_counts_as_the_longest_it_may_have_been(
    room: Room, clock: ManualClock
) -> None:
    # a model that thinks in silence for longer than the time-out is billed all the same
    room.model.answers = [refusal(Kind.UNKNOWN, "ReadTimeout"), finish()]
    ident = room.start(max_tokens=700)
    room.drain()
    assert room.session(ident).output_tokens == 700
    clock.advance(30)
    room.drain()
    assert room.session(ident).output_tokens == 710


def test_what_was_never_asked_uses_nothing(room: Room, clock: ManualClock) -> None:
    room.model.answers = [refusal(Kind.TRANSIENT, "no connection")] * 100
    ident = room.start()
    hours(room, clock, 0.1)
    assert room.session(ident).tokens_used == 0
    assert room.told("session_broke_off") == []


def test_an_answer_ends_the_count_of_those_that_broke_off(room: Room, clock: ManualClock) -> None:
    room.tools.add(lambda: 1, name="look")
    lost = refusal(Kind.UNKNOWN, "lost")
    room.model.answers = [lost, lost, says("", call("look")), lost, lost, finish()]
    ident = room.start(max_unanswered=3, tools=["look"])
    hours(room, clock, 0.1)
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def test_what_a_question_may_use_is_counted_before_it_is_asked(room: Room) -> None:
    # so a worker that dies in the middle of an answer leaves it counted
    seen = []

    async def look(question: Question, say: Say) -> Answer:
        seen.append(await asyncio.to_thread(lambda: room.rounds(ident)[0]))
        return finish()

    room.model.answers = [look]
    ident = room.start(max_tokens=300)
    room.drain()
    assert seen[0].output_tokens == 300
    assert seen[0].input_tokens > 100
    assert (room.session(ident).input_tokens, room.session(ident).output_tokens) == (100, 10)
    assert (room.rounds(ident)[0].input_tokens, room.rounds(ident)[0].output_tokens) == (100, 10)


def test_an_automation_without_a_bound_of_its_own_has_that_of_the_settings(db_url: str, clock: ManualClock) -> None:
    from duly import Duly

    app = Duly(db_url, clock=clock, automation_max_tokens_per_day=1_000)
    room = Room(app, *[says("", call("look"), tokens=(500, 100))] * 5)
    room.tools.add(lambda: 1, name="look")
    ident = room.start(tools=["look"])
    room.drain()
    assert "automation_max_tokens_per_day" in (room.session(ident).end_detail or "")
    assert len(room.model.questions) == 2
    app.close()


# ---------------------------------------------------------------------- answers that are cut


@pytest.mark.parametrize("stop", [Stop.LENGTH, Stop.OTHER])
@pytest.mark.parametrize("arguments", [{}, {"everything": True}])
def test_a_call_of_an_answer_that_was_cut_is_refused(room: Room, stop: Stop, arguments: dict[str, Any]) -> None:
    # C6: `wipe` was called with its defaults, also where what came is a whole JSON object
    wiped = []

    def wipe(everything: bool = True) -> str:
        wiped.append(everything)
        return "wiped"

    room.tools.add(wipe)
    room.model.answers = [says("", call("wipe", **arguments), call("wipe", ident="b"), stop=stop), finish()]
    ident = room.start(tools=["wipe"])
    room.drain()
    assert wiped == []
    assert [one.status for one in room.calls(ident)] == [CallStatus.REFUSED] * 2
    for said in room.results(ident)[:2]:
        assert said.startswith("refused: your answer ")
        assert "nothing was called" in said
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def test_a_run_does_not_end_by_a_finish_that_was_cut(room: Room) -> None:
    room.model.answers = [says("", call(FINISH, completed=True), stop=Stop.LENGTH), finish("now")]
    ident = room.start()
    room.drain()
    assert (room.session(ident).end_detail, len(room.model.questions)) == ("now", 2)


# ---------------------------------------------------------------------- answers that hold nothing


@pytest.mark.parametrize("text", ["", " \n "])
def test_an_empty_answer_is_asked_once_more_and_then_ends_in_words(room: Room, text: str) -> None:
    # C038
    room.model.answers = [says(text, finish_reason="stop")] * 3
    ident = room.start()
    room.drain()
    session = room.session(ident)
    assert (session.end_reason, session.end_detail) == (
        SessionEndReason.ERROR, "the model said nothing (finish_reason stop)",
    )  # fmt: skip
    assert len(room.model.questions) == 2
    assert [m.role for m in room.messages(ident)] == [Role.USER]
    assert session.rounds == 2


def test_an_empty_answer_that_was_asked_again_does_no_harm(room: Room) -> None:
    room.model.answers = [says("", stop=Stop.LENGTH), finish("done")]
    ident = room.start()
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def test_a_chat_goes_on_after_an_empty_answer(room: Room, clock: ManualClock) -> None:
    room.model.answers = [says(""), says(""), says("I am here.")]
    ident = room.chat("Hello?")
    room.drain()
    assert len(room.model.questions) == 2
    assert room.told("session_waits")[-1]["reason"].startswith("the model said nothing")
    clock.advance(1)
    room.say(ident, "Are you there?")
    room.drain()
    assert [m.text for m in room.messages(ident)] == ["Hello?", "Are you there?", "I am here."]
    assert not any(m.is_empty for question in room.model.questions for m in question.messages)


def test_an_empty_answer_of_an_older_version_is_not_sent_along(room: Room) -> None:
    ident = room.chat("Hello?")
    room.db.write(lambda c: room.records.say(c, ident, [Message(Role.ASSISTANT, "")], room.db.present(c)))
    room.say(ident, "Once more.")
    room.model.answers = [says("Yes.")]
    room.drain()
    assert [m.text for m in room.model.questions[0].messages[1:]] == ["Hello?", "Once more."]


# ---------------------------------------------------------------------- what was sent, and what fits


def test_an_answer_is_kept_as_its_provider_sent_it(room: Room) -> None:
    room.tools.add(lambda: 1, name="look")
    kept = Original(
        "somebody", [{"type": "thinking", "thinking": "…", "signature": "c2ln"}, {"new": {"deep": [1, None]}}]
    )
    room.model.answers = [says("", call("look"), original=kept), finish()]
    ident = room.start(tools=["look"])
    room.drain()
    assert next(m for m in room.messages(ident) if m.calls).original == kept
    assert next(m for m in room.model.questions[1].messages if m.calls).original == kept


def too_long(limit: int | None = None) -> Refused:
    verdict = Verdict(Kind.PERMANENT, "the AI answered 400 context_length_exceeded")
    return Refused(verdict, owner=Owner.SESSION, is_too_long=True, context_limit=limit)


def test_a_conversation_that_is_too_long_is_shortened_and_asked_once_more(room: Room) -> None:
    # C040
    def big() -> str:
        return "x" * 25_000

    room.tools.add(big)

    async def small(question: Question, say: Say) -> Answer:
        if size(question.messages) > 16_000:
            raise too_long(8_000)
        return finish("it fits")

    room.model.answers = [says("", call("big", ident="a"), call("big", ident="b")), small, small]
    ident = room.start(tools=["big"])
    room.drain()
    assert room.session(ident).end_detail == "it fits"
    shortened = [m.text for m in room.model.questions[-1].messages if m.role is Role.TOOL]
    assert all("(shortened: the first" in text for text in shortened)
    kept = [len(m.text) for m in room.messages(ident) if m.role is Role.TOOL]
    assert kept[:2] == [25_002, 25_002]  # people read the whole


def test_a_conversation_that_stays_too_long_ends_in_words(room: Room) -> None:
    room.tools.add(lambda: "x" * 25_000, name="big")
    room.model.answers = [says("", call("big")), too_long(), too_long(), too_long()]
    ident = room.start(tools=["big"])
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.ERROR
    assert len(room.model.questions) == 3


def test_the_oldest_results_are_shortened_first() -> None:
    def asks(n: int) -> list[Message]:
        return [
            Message(Role.ASSISTANT, "", (ToolCall(f"c{n}", "look", {}),)),
            Message(Role.TOOL, str(n) * 5_000, call_id=f"c{n}"),
        ]

    talk = [Message(Role.USER, "Go."), *asks(1), *asks(2), *asks(3)]
    cut = fit(talk, 11_000)
    assert ["shortened" in m.text for m in cut if m.role is Role.TOOL] == [True, False, False]
    assert ["shortened" in m.text for m in fit(talk, 3_000) if m.role is Role.TOOL] == [True, True, True]
    assert fit(talk, None) == tuple(talk)
    chat = [Message(role, "y" * 1_000) for _ in range(20) for role in (Role.USER, Role.ASSISTANT)]
    assert size(fit([*chat, Message(Role.USER, "And now?")], 20_000)) <= 24_000
    assert next_limit(talk, 2_000) == 4_000


def test_the_same_failing_call_is_stopped_after_three(room: Room) -> None:
    called = []

    def pay(order: int) -> None:
        called.append(order)
        raise RuntimeError("no such order")

    room.tools.add(pay)
    room.model.answers = [says("", call("pay", ident=f"p{n}", order=7)) for n in range(20)]
    ident = room.start(tools=["pay"])
    room.drain()
    assert called == [7, 7, 7]
    assert room.results(ident)[3].startswith("refused: this very call has failed 3 times and is not made again")
    assert room.session(ident).end_detail == "it has asked 6 times for the same call of a tool, which fails"


def test_another_call_is_made_although_one_has_failed(room: Room) -> None:
    room.tools.add(lambda order: order // (order - 7), name="pay")
    room.model.answers = [*(says("", call("pay", ident=f"p{n}", order=7)) for n in range(4)), says("", call("pay", order=8)), finish()]  # fmt: skip
    ident = room.start(tools=["pay"])
    room.drain()
    assert room.results(ident)[4] == "8"
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


# ---------------------------------------------------------------------- an answer without a call


@pytest.mark.parametrize(
    ("no_call", "end", "asked"),
    [("wait", None, 1), ("complete", "COMPLETED", 1), ("ask", "ERROR", 2)],
)
def test_what_an_answer_without_a_call_means_is_chosen(room: Room, no_call: str, end: str | None, asked: int) -> None:
    room.model.answers = [says("I have looked.")] * 3
    ident = room.start(no_call=no_call)
    room.drain()
    assert (room.session(ident).end_reason, len(room.model.questions)) == (end and SessionEndReason(end), asked)
    assert (NO_CALL in [m.text for m in room.messages(ident)]) is (no_call == "ask")


def test_an_automation_says_how_it_is_asked(room: Room) -> None:
    room.model.answers = [finish()]
    room.start(max_tokens=77, temperature=0.5)
    room.drain()
    assert (room.model.questions[0].max_tokens, room.model.questions[0].temperature) == (77, 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("max_tokens", True), ("temperature", 3), ("temperature", "hot"), ("no_call", "give up"), ("max_unanswered", 0)],
)  # fmt: skip
def test_how_an_automation_is_asked_is_checked(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        read_definition({"name": "a", "prompt": "b", name: value})


# ---------------------------------------------------------------------- what is said to whom


def test_what_a_provider_quotes_stands_in_the_session_alone(room: Room) -> None:
    # FAULTS 10
    quoted = "Invalid 'messages[1].content': my password is hunter2"
    verdict = Verdict(Kind.PERMANENT, "the AI answered 400 invalid_request_error")
    room.model.answers = [Refused(verdict, owner=Owner.SESSION, said=quoted)]
    ident = room.start()
    room.drain()
    assert "hunter2" in (room.session(ident).end_detail or "")
    assert "hunter2" not in str(room.events)
    assert "hunter2" not in str(room.trail("SESSION_ENDED"))
    assert room.trail("SESSION_ENDED")[0]["detail"] == "the AI answered 400 invalid_request_error"


@pytest.mark.parametrize("kind", [Kind.AUTH, Kind.QUOTA])
def test_what_is_the_accounts_fault_ends_no_session(room: Room, clock: ManualClock, kind: Kind) -> None:
    room.model.answers = [*[Refused(Verdict(kind, "no money"), owner=Owner.ACCOUNT)] * 5, finish()]
    ident = room.start()
    hours(room, clock, 0.5)
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED
    assert room.told("session_waits")[0]["reason"] == "no money"
    assert len(room.model.questions) == 6


# ---------------------------------------------------------------------- tools


async def _nobody_awaits() -> int:
    return 1


@pytest.mark.parametrize(
    "undone",
    [
        lambda: (n for n in range(3)), lambda: {"total": _nobody_awaits()}, lambda: [1, [_nobody_awaits()]], lambda: Future(),
        lambda: (_nobody_awaits(),),
    ],
)  # fmt: skip
def test_work_that_a_tool_returns_instead_of_doing_it_is_a_failure(undone: Callable[[], Any]) -> None:
    # A1
    with pytest.raises(TypeError, match="work that nobody has done"):
        finished(undone())


def test_a_generator_is_refused_as_a_tool(room: Room) -> None:
    def rows() -> Any:
        yield 1

    with pytest.raises(InvalidArgument, match="is a generator"):
        room.tools.add(rows)


def test_what_a_tool_asked_for_survives_an_exception_group() -> None:
    # H8
    group = ExceptionGroup(
        "unhandled", [ExceptionGroup("inner", [ToolError("There is no order 17.")]), ValueError("x")]
    )
    assert failure(group) == "failed: There is no order 17."
    assert failure(ExceptionGroup("g", [KeyError("a"), ValueError("b")])).startswith(
        "failed: KeyError: 'a' (and 1 more"
    )


def test_of_an_error_of_the_database_the_model_is_told_type_and_sqlstate(room: Room) -> None:
    # FAULTS 9: DETAIL: Key (mail)=(ann@example.org) already exists.
    def add(session: Session) -> None:
        session.execute(text("CREATE TABLE ann_at_example_org (x INTEGER PRIMARY KEY)"))
        session.execute(text("INSERT INTO ann_at_example_org VALUES (:x)"), {"x": 4711})
        session.execute(text("INSERT INTO ann_at_example_org VALUES (:x)"), {"x": 4711})

    room.tools.add(add)
    room.model.answers = [says("", call("add")), finish()]
    ident = room.start(tools=["add"])
    room.drain()
    told = room.results(ident)[0]
    assert told.startswith("failed: IntegrityError of the database")
    assert "ann" not in told
    assert "4711" not in told
    assert ("23505" in told) is (not room.db.is_sqlite)


def test_of_a_task_that_failed_in_the_database_no_values_are_told() -> None:
    from types import SimpleNamespace

    from duly.jobs.job import Status

    def told(type: str, message: str) -> str:
        job: Any = SimpleNamespace(status=Status.FAILED, error={"type": type, "message": message})
        return of_job(job, 1_000)[1]

    assert told("IntegrityError", "Key (mail)=(ann@example.org)") == "failed: IntegrityError of the database"
    assert told("MyError", "[SQL: INSERT …]") == "failed: MyError of the database"
    assert told("ToolError", "There is no order 17.") == "failed: There is no order 17."


def test_numbers_that_json_has_not_are_told_as_words() -> None:
    assert result_text({"a": [float("nan"), float("-inf"), None, 1.5]}, 1_000) == '{"a":["nan","-inf",null,1.5]}'


def test_arguments_that_could_not_be_read_are_shown_to_the_model_and_to_people(room: Room) -> None:
    room.tools.add(lambda city: city, name="look")
    broken = ToolCall("b", "look", {}, "the arguments are not JSON", '{"city": "Rom')
    room.model.answers = [Answer("", (broken,), Usage(1, 1)), finish()]
    ident = room.start(tools=["look"])
    room.drain()
    assert room.results(ident)[:1] == ['refused: the arguments are not JSON (you wrote: {"city": "Rom)']
    assert room.calls(ident)[0].arguments == {"_as_written": '{"city": "Rom'}


def test_the_end_of_a_long_text_is_found_in_linear_time() -> None:
    assert said_in_text("```{" * 200_000) is None
    assert said_in_text('Done.\n```json\n{"completed": true, "summary": "s"}\n```') == "s"
    assert said_in_text('{"completed": true}\n```\nno\n```') is None


# ---------------------------------------------------------------------- prices


def test_each_model_has_its_price(room: Room) -> None:
    table = read_table('{"model/big": [100, 200], "small": [1, 2], "house/*": [0, 0]}')
    used = Usage(1_000_000, 1_000_000)

    def cents(model: str | None) -> float | None:
        cost = cost_of(table, room.model, model)
        return None if cost is None else cost(used) / 1e6

    assert [cents(name) for name in ("big", "small", None, "unknown")] == [300, 3, 12, None]
    room.model.name = "house"
    assert cents("unknown") == 0


def test_a_bound_in_cents_is_refused_for_a_model_without_a_price(room: Room) -> None:
    # FAULTS 7
    room.model.answers = [finish()]
    ident = room.start(model="unknown", limits={"max_cents": 5})
    room.drain()
    assert "the price of unknown at model is not known" in (room.session(ident).end_detail or "")
    assert room.model.questions == []
    assert "the price of its model is not known here" in " ".join(room.door.notes(room.door.get("briefing")))


def test_prices_that_nobody_set_are_those_of_the_list() -> None:
    from duly.automations.providers.openai import OpenAICompatible

    one = OpenAICompatible(model="gpt-4o-mini")
    cost = cost_of({}, one, None)
    assert cost is not None
    assert cost(Usage(1_000_000, 1_000_000)) == 75_000_000  # 15 and 60 cents
    assert cost_of({}, OpenAICompatible(base_url="http://127.0.0.1:1/v1", model="llama"), None) is None
    own = cost_of({}, OpenAICompatible(model="gpt-4o-mini", prices=Prices(1, 1)), None)
    assert own is not None
    assert own(Usage(1, 1)) == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": [1, "2"]}', '{"a": [1, -2]}'])
def test_prices_that_are_wrong_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="ai_prices"):
        read_table(text)

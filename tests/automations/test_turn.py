"""What a session does next is decided by what stands on record (R001-16, R001-21, T001-p), and what follows a refusal by its kind (R001-17)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.automations.protocol import FINISH
from duly.automations.providers.base import Message, Owner, Refused, Role, ToolCall
from duly.automations.session import RoundReason, SessionType
from duly.automations.turn import (
    FINISHED,
    HELD,
    LONGEST_QUOTA,
    NO_NEED,
    NOT_FINISHED,
    Acknowledge,
    Again,
    Ask,
    Complete,
    GiveUp,
    MakeCall,
    Rest,
    Shorten,
    after_refusal,
    next_turn,
    round_reason,
    rounds_since_person,
)
from duly.kernel.verdict import Kind, Refusal, Verdict

A, CHAT = SessionType.AUTOMATION, SessionType.CHAT
USER = Message(Role.USER, "Do it.")
DONE = ToolCall("f", FINISH, {"completed": True, "summary": "all done"})
LOOK = ToolCall("l", "look", {})
NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def said(*calls: ToolCall, text: str = "") -> Message:
    return Message(Role.ASSISTANT, text, calls)


def result(text: str = "null") -> Message:
    return Message(Role.TOOL, text, call_id="l")


def test_a_fresh_execution_asks() -> None:
    assert next_turn([USER], A) == Ask()


def test_calls_are_made_one_after_the_other_in_the_order_of_the_answer_and_then_the_model_is_asked() -> None:
    two = said(LOOK, ToolCall("m", "send", {}))
    assert next_turn([USER, two], A) == MakeCall(1, 0, 0)
    assert next_turn([USER, two, result()], A) == MakeCall(1, 1, 1)
    assert next_turn([USER, two, result(), result()], A) == Ask()


def test_calls_that_come_with_completed_are_made_before_the_end() -> None:
    answer = said(DONE, LOOK)
    assert next_turn([USER, answer], A) == Acknowledge(1, DONE, FINISHED)
    # finish has no row among the calls
    assert next_turn([USER, answer, result(FINISHED)], A) == MakeCall(1, 1, 0)
    assert next_turn([USER, answer, result(FINISHED), result()], A) == Complete("all done")


def test_a_model_without_tools_says_completed_in_its_text() -> None:
    assert next_turn([USER, said(text='Sent.\n{"completed": true, "summary": "sent"}')], A) == Complete("sent")


def test_a_finish_that_is_not_completed_goes_on() -> None:
    early = ToolCall("f", FINISH, {"completed": False})
    assert next_turn([USER, said(early)], A) == Acknowledge(1, early, NOT_FINISHED)
    assert next_turn([USER, said(early), result(NOT_FINISHED)], A) == Ask()
    broken = ToolCall("f", FINISH, {}, "its arguments are no JSON")
    assert next_turn([USER, said(broken)], A) == Acknowledge(1, broken, "refused: its arguments are no JSON")


def test_an_answer_that_asks_for_nothing_and_does_not_end_rests() -> None:
    # R001-21
    assert next_turn([USER, said(text="I have gathered the data.")], A) == Rest()
    assert next_turn([USER, said(text="Hello!")], CHAT) == Rest()
    assert next_turn([], CHAT) == Rest()


def test_a_chat_is_not_ended_by_its_model() -> None:
    assert next_turn([USER, said(text='{"completed": true}')], CHAT) == Rest()
    assert next_turn([USER, said(DONE)], CHAT) == Acknowledge(1, DONE, NO_NEED)


def test_what_a_person_says_among_calls_is_answered_when_they_are_made() -> None:
    # the statement that records results moves it behind them (records.reply)
    assert next_turn([USER, said(LOOK), USER], CHAT) == MakeCall(1, 0, 0)
    assert next_turn([USER, said(LOOK), result(), USER], CHAT) == Ask()


ROUND = st.lists(st.sampled_from([LOOK, DONE, ToolCall("s", "send", {})]), max_size=4)


@given(st.lists(ROUND, min_size=1, max_size=5), st.integers(0, 4))
def test_a_conversation_taken_up_anywhere_goes_on_where_its_record_ends(rounds: list[list[ToolCall]], cut: int) -> None:
    # R001-16: the same turn is decided whoever looks, and each brings the record on by exactly one thing
    messages = [USER]
    for calls in rounds:
        messages.append(said(*calls, text="thinking"))
        for n, call in enumerate(calls):
            turn = next_turn(messages, A)
            assert isinstance(turn, Acknowledge if call.name == FINISH else MakeCall)
            if isinstance(turn, MakeCall):
                assert turn.place == n
                assert turn.row == sum(c.name != FINISH for c in calls[:n])
            messages.append(result())
        last = next_turn(messages, A)
        if any(call.name == FINISH for call in calls):
            assert isinstance(last, Complete)
            break
        assert last == (Ask() if calls else Rest())


def test_the_rounds_of_a_chat_are_counted_from_what_its_person_said_last() -> None:
    assert rounds_since_person([USER, said(LOOK), result(), said(LOOK), result()]) == 2
    assert rounds_since_person([USER, said(text="Hi"), USER]) == 0


@pytest.mark.parametrize(
    ("type", "begun", "rounds", "last", "expected"),
    [
        (A, None, 0, Role.USER, RoundReason.AUTOMATION_START),
        (A, None, 1, Role.TOOL, RoundReason.AUTOMATION_CONTINUE),
        (A, RoundReason.AUTOMATION_RESUME_CRASH, 1, Role.TOOL, RoundReason.AUTOMATION_RESUME_CRASH),
        (CHAT, None, 0, Role.USER, RoundReason.USER_MESSAGE),
        (CHAT, None, 3, Role.TOOL, RoundReason.AUTOMATION_CONTINUE),
    ],
)
def test_a_round_says_why_it_is_begun(
    type: SessionType, begun: RoundReason | None, rounds: int, last: Role, expected: RoundReason
) -> None:
    assert round_reason(type, begun, rounds, last) is expected  # R001-16


@pytest.mark.parametrize("kind", [Kind.TRANSIENT, Kind.UNKNOWN, Kind.THROTTLED, Kind.BUSY])
def test_what_may_go_better_is_asked_again_not_before_it_may(kind: Kind) -> None:
    for after, wait in ((None, 30), (5, 30), (90, 90)):
        assert after_refusal(Refusal(Verdict(kind, after=after)), A, NOW, 30, unanswered=1, most=8) == Again(wait)


def test_answers_that_break_off_are_asked_again_less_and_less_often_and_not_for_ever() -> None:
    # R001-50
    waits = [after_refusal(Refusal(Verdict(Kind.UNKNOWN)), A, NOW, 30, unanswered=n, most=10) for n in range(1, 11)]
    assert waits[:9] == [Again(min(3600, 30 * 2**n)) for n in range(9)]
    assert isinstance(waits[9], GiveUp)
    assert "10 answers in a row broke off" in waits[9].why


@pytest.mark.parametrize("owner", [Owner.ACCOUNT, Owner.CONFIGURATION])
@pytest.mark.parametrize("kind", [Kind.AUTH, Kind.QUOTA])
def test_what_is_no_fault_of_the_session_does_not_end_it(owner: Owner, kind: Kind) -> None:
    assert after_refusal(Refused(Verdict(kind), owner=owner), A, NOW, 30) == Again(HELD)


def test_a_conversation_that_is_too_long_is_shortened_once() -> None:
    # C040
    too_long = Refused(Verdict(Kind.PERMANENT), owner=Owner.SESSION, is_too_long=True)
    for type in (A, CHAT):
        assert after_refusal(too_long, type, NOW, 30) == Shorten()
        assert after_refusal(too_long, type, NOW, 30, is_short=True) == GiveUp()


def test_a_quota_is_waited_for_that_ends_soon() -> None:
    def ends(seconds: float) -> Verdict:
        return Verdict(Kind.QUOTA, until=NOW + timedelta(seconds=seconds))

    assert after_refusal(Refusal(ends(600)), A, NOW, 30) == Again(600)
    assert after_refusal(Refusal(ends(LONGEST_QUOTA)), A, NOW, 30) == GiveUp()
    assert after_refusal(Refusal(Verdict(Kind.QUOTA)), A, NOW, 30) == GiveUp()


@pytest.mark.parametrize("kind", [Kind.AUTH, Kind.PERMANENT])
def test_what_does_not_go_better_is_given_up(kind: Kind) -> None:
    assert after_refusal(Refusal(Verdict(kind)), A, NOW, 30) == GiveUp()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_chat_tries_nothing_again_by_itself(kind: Kind) -> None:
    assert after_refusal(Refusal(Verdict(kind, after=1)), CHAT, NOW, 30) == GiveUp()  # R001-17

"""What a session does next, given what was said in it, and what follows when its question is not answered. Pure.

Everything is decided by what stands on record: so whoever takes a session up after a crash, a pause or a restart does what the one before
would have done next, with no message added (R001-16).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from duly.automations.protocol import FINISH, meaning, unanswered
from duly.automations.providers.base import Answer, Message, Role, ToolCall
from duly.automations.session import RoundReason, SessionType
from duly.kernel.verdict import Kind, Verdict

#: The longest quota that is waited for, in seconds.
LONGEST_QUOTA = 3_600.0

#: What the model is told of a call of ``finish``.
FINISHED, NOT_FINISHED = "noted", "noted: the work is not done yet, go on"
NO_NEED = "noted: a chat needs no finish"


@dataclass(frozen=True, slots=True)
class MakeCall:
    """A call of the last answer has no result yet. ``place`` counts its calls from 0; ``row``: those of them that are on record as calls."""

    message: int
    place: int
    row: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """It is a call of ``finish``: it calls nothing, and gets its result so that the conversation is whole."""

    message: int
    call: ToolCall
    result: str


@dataclass(frozen=True, slots=True)
class Complete:
    """The model has said that all is done."""

    summary: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The model is to be asked."""


@dataclass(frozen=True, slots=True)
class Rest:
    """There is nothing to ask: a chat waits for its person, an automation for the watchdog (R001-21)."""


Turn: TypeAlias = MakeCall | Acknowledge | Complete | Ask | Rest


def next_turn(messages: Sequence[Message], type: SessionType) -> Turn:
    """What a session does next. One thing at a time: the calls of an answer in their order, then its end, then the next question."""
    last = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role is Role.ASSISTANT), None)
    if last is not None:
        answer, behind = messages[last], messages[last + 1 :]
        # results stand behind their answer in the order of its calls
        place = sum(message.role is Role.TOOL for message in behind)
        if place < len(answer.calls):
            call = answer.calls[place]
            if call.name != FINISH:
                return MakeCall(last, place, sum(c.name != FINISH for c in answer.calls[:place]))
            return Acknowledge(last, call, _of_finish(call, type))
        meant = meaning(Answer(answer.text, answer.calls), type)
        if meant.completed and not any(message.role is Role.USER for message in behind):
            return Complete(meant.summary)
    return Ask() if unanswered(messages) else Rest()


def _of_finish(call: ToolCall, type: SessionType) -> str:
    if type is not SessionType.AUTOMATION:
        return NO_NEED
    if call.problem:
        return f"refused: {call.problem}"
    return FINISHED if call.arguments.get("completed") is True else NOT_FINISHED


def rounds_since_person(messages: Sequence[Message]) -> int:
    """How often the model has answered since a person spoke last."""
    count = 0
    for message in reversed(messages):
        if message.role is Role.USER:
            break
        count += message.role is Role.ASSISTANT
    return count


def round_reason(type: SessionType, begun: RoundReason | None, rounds: int, last: Role | None) -> RoundReason:
    """Why a round is begun. ``begun``: why it was before, where it got no answer, or
    why the session goes on, where it is the first of an activation. ``rounds``: those that were answered."""
    if begun is not None:
        return begun
    if type is SessionType.CHAT:
        return RoundReason.USER_MESSAGE if last is Role.USER else RoundReason.AUTOMATION_CONTINUE
    return RoundReason.AUTOMATION_START if rounds == 0 else RoundReason.AUTOMATION_CONTINUE


# ---------------------------------------------------------------------- a question that is not answered


@dataclass(frozen=True, slots=True)
class Again:
    """The same question is asked again, after so many seconds."""

    after: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It is not: an automation ends, a chat waits for its person."""


#: What may go better by itself. None of it is counted: it is asked with exactly the same messages.
_PASSING = (Kind.TRANSIENT, Kind.UNKNOWN, Kind.THROTTLED, Kind.BUSY)


def after_refusal(verdict: Verdict, type: SessionType, now: datetime, retry: float) -> Again | GiveUp:
    """What follows a refusal. ``retry``: seconds between two tries at the least (R001-17)."""
    if type is not SessionType.AUTOMATION:
        return GiveUp()
    if verdict.kind in _PASSING:
        return Again(max(retry, verdict.after or 0.0))
    if verdict.kind is Kind.QUOTA and verdict.until is not None:
        wait = (verdict.until - now).total_seconds()
        if wait < LONGEST_QUOTA:
            return Again(max(retry, wait))
    return GiveUp()

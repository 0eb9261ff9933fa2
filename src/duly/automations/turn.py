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
from duly.automations.providers.base import Answer, Message, Owner, Role, ToolCall
from duly.automations.records import Call
from duly.automations.session import CallStatus, RoundReason, SessionType
from duly.kernel.verdict import Kind, Refusal

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
class Shorten:
    """The conversation is shortened, and asked again at once."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It is not: an automation ends, a chat waits for its person. ``why``: besides what the refusal says."""

    why: str = ""


#: What may go better by itself. None of it is counted: it is asked with exactly the same messages.
PASSING = (Kind.TRANSIENT, Kind.THROTTLED, Kind.BUSY)
#: The longest wait between two questions whose answers broke off, in seconds.
LONGEST_WAIT = 3_600.0
#: The wait where the account or the configuration is at fault, in seconds: nothing goes better before somebody has done something.
HELD = 300.0


def after_refusal(
    refused: Refusal, type: SessionType, now: datetime, retry: float, *, unanswered: int = 0, most: int = 1, is_short: bool = False
) -> Again | Shorten | GiveUp:  # fmt: skip
    """What follows a refusal. ``retry``: seconds between two tries at the least (R001-17). ``unanswered``: how many answers in a row broke off,
    with this one; at ``most`` it is given up (R001-50). ``is_short``: the conversation has been shortened for this question already.

    What is the account's fault, the configuration's, the server's or the network's ends no automation: it waits (in the end as
    NETWORK_ERROR, without the slot). What is the session's own ends it.
    """
    verdict, owner = refused.verdict, getattr(refused, "owner", None)
    if getattr(refused, "is_too_long", False) and not is_short:
        return Shorten()
    if type is not SessionType.AUTOMATION:
        return GiveUp()
    if verdict.kind is Kind.UNKNOWN:  # it was asked and may be billed: counted, and not for ever
        if unanswered >= most:
            return GiveUp(f"{unanswered} answers in a row broke off, and {most} may (max_unanswered)")
        return Again(max(min(LONGEST_WAIT, retry * 2.0 ** (unanswered - 1)), verdict.after or 0.0))
    if verdict.kind in PASSING:
        return Again(max(retry, verdict.after or 0.0))
    if verdict.kind is Kind.QUOTA and verdict.until is not None:
        wait = (verdict.until - now).total_seconds()
        if wait < LONGEST_QUOTA:
            return Again(max(retry, wait))
    if owner in (Owner.ACCOUNT, Owner.CONFIGURATION):
        return Again(max(retry, HELD))
    return GiveUp()


# ---------------------------------------------------------------------- calls that fail again and again

#: The same call that has failed so often is not made again …
MOST_SAME = 3
#: … and asked for so often, it ends an automation.
ENDS_AT = 6


def same_failures(calls: Sequence[Call], call: Call) -> int:
    """How often the same call (tool and arguments) has failed before ``call``, since it last succeeded."""
    count = 0
    for one in calls:
        if one.number >= call.number or one.tool != call.tool or one.arguments != call.arguments or one.is_open:
            continue
        count = 0 if one.status is CallStatus.DONE else count + 1
    return count


def stuck(calls: Sequence[Call]) -> str | None:
    """Why an automation ends that asks for the same failing call again and again; None where it does not."""
    if not calls or calls[-1].is_open or calls[-1].status is CallStatus.DONE:
        return None
    times = same_failures(calls, calls[-1]) + 1
    return f"it has asked {times} times for the same call of a tool, which fails" if times >= ENDS_AT else None

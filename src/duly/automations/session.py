"""A session: a conversation with an AI that has the slot, waits for it, or had it. The nouns and the one table of its moves.

An AUTOMATION session is one execution of an automation; a CHAT is one of a person; a SEED holds the messages that each execution begins
with. This file knows no database and no clock. Source: R001, T001, ADR 0028.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from duly.kernel.lifecycle import Lifecycle, Move
from duly.kernel.words import is_known, word_of


class SessionType(StrEnum):
    CHAT = "CHAT"
    AUTOMATION = "AUTOMATION"
    SEED = "SEED"


class ExecutionTrigger(StrEnum):
    """Who wanted an execution."""

    SCHEDULED = "SCHEDULED"
    MANUAL = "MANUAL"
    EVENT = "EVENT"


class SessionEndReason(StrEnum):
    """Why a session does not have the slot any more."""

    #: The AI said that all of its work is done.
    COMPLETED = "COMPLETED"
    #: The watchdog: nothing happened for too long.
    TIMEOUT = "TIMEOUT"
    #: It cannot go on.
    ERROR = "ERROR"
    #: Somebody stopped it, or a chat gave way to an automation.
    CANCELLED = "CANCELLED"
    #: Read as null (a crash), and never written (T001-l).
    INTERRUPTED = "INTERRUPTED"
    #: The watchdog, while it waited for the network: it goes on later.
    NETWORK_ERROR = "NETWORK_ERROR"
    #: Somebody paused it: it goes on later.
    SUSPENDED = "SUSPENDED"


#: A session with one of these, or with none (a crash), goes on later; one with any other has ended (R001-6).
RESUMABLE = frozenset({SessionEndReason.NETWORK_ERROR, SessionEndReason.SUSPENDED, SessionEndReason.INTERRUPTED})
ENDED = frozenset(
    {SessionEndReason.COMPLETED, SessionEndReason.CANCELLED, SessionEndReason.TIMEOUT, SessionEndReason.ERROR}
)


#: The ends of an execution that has not done its work.
FAILED = frozenset({SessionEndReason.TIMEOUT, SessionEndReason.ERROR})


def read_end_reason(text: str | None) -> SessionEndReason | None:
    """An end reason as a row says it. INTERRUPTED is another word for none (T001-l)."""
    found = None if text is None else word_of(SessionEndReason, text)
    return None if found is SessionEndReason.INTERRUPTED else found


class RoundReason(StrEnum):
    """Why a round was begun. For logs and people; nothing decides by it (R001-16)."""

    USER_MESSAGE = "USER_MESSAGE"
    AUTOMATION_START = "AUTOMATION_START"
    #: The round after calls of tools, or after a worker gave the session back in good order.
    AUTOMATION_CONTINUE = "AUTOMATION_CONTINUE"
    AUTOMATION_RESUME_CRASH = "AUTOMATION_RESUME_CRASH"
    AUTOMATION_RESUME_NETWORK = "AUTOMATION_RESUME_NETWORK"
    AUTOMATION_RESUME_SUSPENDED = "AUTOMATION_RESUME_SUSPENDED"


def resume_reason(end_reason: SessionEndReason | None) -> RoundReason:
    """Why a session that goes on had stopped."""
    if end_reason is SessionEndReason.NETWORK_ERROR:
        return RoundReason.AUTOMATION_RESUME_NETWORK
    if end_reason is SessionEndReason.SUSPENDED:
        return RoundReason.AUTOMATION_RESUME_SUSPENDED
    return RoundReason.AUTOMATION_RESUME_CRASH


class Status(StrEnum):
    """Where a session stands."""

    #: Messages that executions begin with; it never has the slot.
    SEED = "seed"
    #: Wanted by a person or an event; it waits for the slot.
    QUEUED = "queued"
    #: It has the slot.
    ACTIVE = "active"
    #: It had the slot, and goes on later.
    INTERRUPTED = "interrupted"
    ENDED = "ended"


LIFECYCLE: Lifecycle[Status] = Lifecycle(
    "session",
    (
        Move(None, "write", Status.SEED),
        Move(None, "request", Status.QUEUED),
        Move(None, "activate", Status.ACTIVE, "a scheduled one is born with the slot, or not at all (T001-e)"),
        Move(Status.QUEUED, "activate", Status.ACTIVE),
        Move(Status.QUEUED, "end", Status.ENDED, "nobody wants it any more"),
        Move(Status.ACTIVE, "interrupt", Status.INTERRUPTED, "a crash, the network, a pause"),
        Move(Status.ACTIVE, "end", Status.ENDED),
        Move(Status.INTERRUPTED, "activate", Status.ACTIVE, "the same session, with no message added (R001-16)"),
        Move(Status.INTERRUPTED, "end", Status.ENDED),
    ),
)


class SessionControl(StrEnum):
    """The answer to who asks for the slot."""

    ACTIVATED = "ACTIVATED"
    QUEUED = "QUEUED"
    #: The slot is held, and what is scheduled does not queue (T001-e).
    BUSY = "BUSY"


class CallStatus(StrEnum):
    """How far a call of a tool has come."""

    #: The model asked for it.
    ASKED = "asked"
    #: Written ahead of the call: from here on its effect may be there.
    CALLED = "called"
    #: Its job is under way.
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    #: A crash came between the call and its answer, and nobody knows whether it did anything.
    UNKNOWN = "unknown"
    #: It was not allowed, or its arguments are wrong: nothing was called.
    REFUSED = "refused"


CALL_LIFECYCLE: Lifecycle[CallStatus] = Lifecycle(
    "tool call",
    (
        Move(None, "ask", CallStatus.ASKED),
        Move(CallStatus.ASKED, "refuse", CallStatus.REFUSED),
        Move(CallStatus.ASKED, "call", CallStatus.CALLED, "committed before the function is called"),
        Move(CallStatus.ASKED, "enqueue", CallStatus.WAITING, "with its job, in one transaction"),
        Move(CallStatus.ASKED, "do", CallStatus.DONE, "with its effect, in one transaction"),
        Move(CallStatus.ASKED, "fail", CallStatus.FAILED),
        Move(CallStatus.CALLED, "call", CallStatus.CALLED, "a tool that may be called again is, after a crash"),
        Move(CallStatus.CALLED, "do", CallStatus.DONE),
        Move(CallStatus.CALLED, "fail", CallStatus.FAILED),
        Move(CallStatus.CALLED, "lose", CallStatus.UNKNOWN, "the worker was lost in its middle: it is not called again"),
        Move(CallStatus.WAITING, "do", CallStatus.DONE),
        Move(CallStatus.WAITING, "fail", CallStatus.FAILED),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Session:
    """A session as its row says. Instants are aware, in UTC."""

    id: int
    tenant: str
    slot: str
    type: SessionType
    status: Status
    created_at: datetime
    #: None for a chat and a seed.
    trigger: ExecutionTrigger | None = None
    automation_id: int | None = None
    #: The planned instant; of one that was run by hand or by an event, when that was.
    scheduled_at: datetime | None = None
    title: str = ""
    #: The first activation; None as long as it has not had the slot (T001-c).
    started_at: datetime | None = None
    #: Who has the slot: a new name at each activation. None where it has not.
    activation: str | None = None
    #: The job that runs its rounds; None while it waits for a person, or for the watchdog.
    job_id: int | None = None
    last_activity_at: datetime | None = None
    is_waiting_for_network: bool = False
    end_reason: SessionEndReason | None = None
    #: Why, in a sentence.
    end_detail: str | None = None
    #: When it lost the slot last.
    ended_at: datetime | None = None
    #: It does not go on before this.
    resume_at: datetime | None = None
    #: Questions asked, calls made, crashes in a row.
    rounds: int = 0
    calls: int = 0
    crashes: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: Millionths of a cent.
    cost_micros: int = 0
    #: The provider that answered last.
    provider: str | None = None
    #: Of a chat: ``provider``, ``model``, ``tools``.
    options: Mapping[str, Any] | None = None
    key: str | None = None
    #: What the AI is saying at this moment.
    partial: str | None = None
    #: Of a chat: until when its person is there, as far as is known.
    wanted_until: datetime | None = None

    @property
    def unread(self) -> str:
        """A word of its row that newer code has written, and this code does not know; empty where there is none."""
        words = (self.type, self.status, self.trigger, self.end_reason)
        return next((word for word in words if word is not None and not is_known(word)), "")

    @property
    def is_active(self) -> bool:
        return self.status is Status.ACTIVE

    @property
    def tokens_used(self) -> int:
        """R001-19."""
        return self.input_tokens + self.output_tokens

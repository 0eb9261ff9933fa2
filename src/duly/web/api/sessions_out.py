"""AI sessions and what was said in them, as somebody may see them: the values of ``/api/v1/automations/sessions``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from duly.accounts.account import Identity
from duly.automations.door import Requested
from duly.automations.records import Call as KnownCall
from duly.automations.records import Round as KnownRound
from duly.automations.records import Said as KnownSaid
from duly.automations.session import Session as KnownSession
from duly.monitoring.redact import redacted
from duly.web.api.common import Instant

State = Literal["queued", "active", "interrupted", "ended"]


class Session(BaseModel):
    """A session: an execution of an automation, or a chat."""

    id: int
    tenant: str
    type: Literal["CHAT", "AUTOMATION"]
    status: State
    trigger: Literal["SCHEDULED", "MANUAL", "EVENT"] | None
    automation_id: int | None
    title: str
    slot: str
    job_id: int | None = Field(description="The job that runs its rounds at this moment.")
    created_at: Instant
    scheduled_at: Instant | None
    started_at: Instant | None
    last_activity_at: Instant | None
    ended_at: Instant | None = Field(description="When it lost the slot last.")
    resume_at: Instant | None
    end_reason: str | None
    end_detail: str | None
    is_waiting_for_network: bool
    rounds: int
    calls: int
    crashes: int
    input_tokens: int
    output_tokens: int
    cost_cents: float
    provider: str | None
    key: str | None


class Sessions(BaseModel):
    sessions: list[Session]
    next: str | None


class SaidCall(BaseModel):
    id: str
    name: str
    arguments: Any


class Said(BaseModel):
    """Something that was said."""

    position: int
    role: Literal["system", "user", "assistant", "tool"]
    text: str | None
    calls: list[SaidCall] = Field(description="What an assistant asks for.")
    call_id: str | None = Field(description="Of a tool: the call that this is the result of.")
    round: int | None
    at: Instant


class Call(BaseModel):
    """A call of a tool."""

    number: int
    round: int
    tool: str
    arguments: Any
    status: str
    result: str | None
    job_id: int | None
    asked_at: Instant | None
    finished_at: Instant | None


class Round(BaseModel):
    """A question to the AI, and its answer."""

    number: int
    reason: str
    started_at: Instant
    answered_at: Instant | None
    input_tokens: int
    output_tokens: int
    cost_cents: float
    error: str | None


class Whole(Session):
    """A session with what was said and done in it."""

    transcript: list[Said]
    partial: str | None = Field(description="What the AI is saying at this moment.")
    calls_made: list[Call]
    rounds_made: list[Round]
    hidden: bool


class Wanted(BaseModel):
    session: Session
    control: Literal["ACTIVATED", "QUEUED", "BUSY"] | None = Field(
        description="It has the slot, or waits for it; null: the session that has the key has ended."
    )
    created: bool = Field(description="False: the key had this session already.")


def session_out(s: KnownSession, who: Identity) -> Session:
    """A session as somebody may see it. Why it ended can be what the AI said of it."""
    said = {name: getattr(s, name) for name in Session.model_fields if name != "cost_cents"}
    for name in ("type", "status", "trigger", "end_reason"):
        said[name] = None if said[name] is None else said[name].value
    if not who.sees_payloads:
        said["end_detail"] = None
    return Session(**said, cost_cents=s.cost_micros / 1e6)


def said_out(one: KnownSaid, who: Identity) -> Said:
    """A message as somebody may see it."""
    m, sees = one.message, who.sees_payloads
    calls = [SaidCall(id=c.id, name=c.name, arguments=redacted(dict(c.arguments)) if sees else None) for c in m.calls]
    return Said(
        position=one.position, role=m.role.value, text=redacted(m.text) if sees else None, calls=calls, call_id=m.call_id, round=one.round,
        at=one.created_at,
    )  # fmt: skip


def call_out(one: KnownCall, who: Identity) -> Call:
    said = {name: getattr(one, name) for name in Call.model_fields}
    said["status"] = one.status.value
    said["arguments"] = redacted(one.arguments) if who.sees_payloads else None
    said["result"] = redacted(one.result) if who.sees_payloads else None
    return Call(**said)


def wanted_out(done: Requested, who: Identity) -> Wanted:
    return Wanted(
        session=session_out(done.session, who),
        control=None if done.control is None else done.control.value,
        created=done.created,
    )


def round_out(one: KnownRound, who: Identity) -> Round:
    return Round(
        number=one.number, reason=one.reason.value, started_at=one.started_at, answered_at=one.answered_at, input_tokens=one.input_tokens,
        output_tokens=one.output_tokens, cost_cents=one.cost_micros / 1e6, error=one.error if who.sees_payloads else None,
    )  # fmt: skip

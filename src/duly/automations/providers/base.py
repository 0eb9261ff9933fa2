"""What an AI provider is: it is asked a question and answers. Pure.

A conversation is a sequence of ``Message``s; a ``Question`` is the whole of it, with the tools that may be called. Providers are
stateless: whatever a session has said is in the question (R001-16), so a session goes on at another provider, or after a crash,
by being asked the same question again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable


class Role(StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    #: The result of a call that the assistant asked for.
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it. ``parameters``: a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. ``id`` is the model's own, unique within its answer; ``problem`` says why its arguments could not be
    read (they are empty then)."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """Something that was said. ``calls`` only of an assistant; ``call_id`` only of a tool: the call that this is the result of."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """All that a provider is told. ``label`` says whose question it is ("morning briefing"), for providers that answer from a script."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    label: str = ""
    #: None: what the provider was configured with.
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. ``is_complete`` is False where a stream broke before it had told them."""

    input_tokens: int = 0
    output_tokens: int = 0
    is_complete: bool = True


class Stop(StrEnum):
    """Why an answer ended."""

    END = "end"
    CALLS = "calls"
    #: The most tokens were used up: the text is cut.
    LENGTH = "length"
    #: The provider holds the rest back.
    FILTERED = "filtered"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a provider answered."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    stop: Stop = Stop.END


@dataclass(frozen=True, slots=True)
class Prices:
    """What a provider's tokens cost, in cents per million tokens."""

    input: float
    output: float

    def micros(self, usage: Usage) -> int:
        """Millionths of a cent."""
        return round(self.input * usage.input_tokens + self.output * usage.output_tokens)


class Provider(Protocol):
    """An AI that can be asked.

    ``prices`` None: its cost is not known, and counts as nothing.
    """

    name: str
    prices: Prices | None

    async def is_reachable(self) -> bool:
        """Can the other side be reached at all just now? Asked before a question (R001-17); cheap, bounded by seconds, never raises."""

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        """Ask, and answer when the whole answer is there. ``say`` is given each piece of text as it comes, and an empty one where something of the
        answer comes that is no text (arguments of a call, reasoning): a sign of life for the watchdog. It returns at once.

        Cancelling the task that awaits this cancels the request. Raises ``duly.kernel.verdict.Refusal``: TRANSIENT (no connection, an
        answer that says "later"), THROTTLED (with ``after`` where the other side named it), UNKNOWN (it was asked, the answer did not come, or not
        to its end: it may be billed), QUOTA and AUTH (nothing goes before somebody has mended it), PERMANENT (this question is not answered).
        """

    async def check(self) -> str:
        """A line for people that says what this is and whether it could be asked. Raises Refusal."""


@runtime_checkable
class TellsMissing(Protocol):
    """What a provider may offer besides, so that people are told before a question is refused."""

    def missing(self, model: str | None = None) -> str:
        """What of its configuration is not there, in a line; empty where nothing is known to be missing. ``model``: the one that would be asked for.
        Asks nobody, and never raises."""

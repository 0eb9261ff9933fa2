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

from duly.kernel.verdict import Refusal, Verdict

#: The name under which arguments that are not a JSON object are shown.
AS_WRITTEN = "_as_written"


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
    """A call that the model asks for. ``id`` is the model's own, unique within its answer. ``problem`` says why it must not be made: its
    arguments could not be read (they are empty then), or its answer was cut. ``written``: such arguments, as the model wrote them."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""
    written: str = ""

    @property
    def shown(self) -> Mapping[str, Any]:
        """The arguments as the record and the model are shown them: those that could not be read are one text."""
        return {AS_WRITTEN: self.written} if self.problem and self.written and not self.arguments else self.arguments


@dataclass(frozen=True, slots=True)
class Message:
    """Something that was said. ``calls`` and ``original`` only of an assistant; ``call_id`` only of a tool: the call that this is the result
    of."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    #: The same as its provider sent it, fields that Duly does not know included; the provider sends it back unchanged.
    original: Original | None = None

    @property
    def is_empty(self) -> bool:
        """An answer with neither text nor calls. APIs refuse a conversation that holds one."""
        return self.role is Role.ASSISTANT and not self.calls and not self.text.strip()


@dataclass(frozen=True, slots=True)
class Original:
    """An assistant's message in the words of its API. ``origin`` names the API, the server and the model: it goes back to these only, for
    others refuse fields that they do not know."""

    origin: str
    message: Any


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
    #: For a reason that this provider does not know. No call of such an answer is made.
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a provider answered."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    stop: Stop = Stop.END
    #: The provider's own word for why it ended, such as ``length``; empty where it said none.
    finish_reason: str = ""
    original: Original | None = None


@dataclass(frozen=True, slots=True)
class Prices:
    """What a provider's tokens cost, in cents per million tokens."""

    input: float
    output: float

    def micros(self, usage: Usage) -> int:
        """Millionths of a cent."""
        return round(self.input * usage.input_tokens + self.output * usage.output_tokens)


class Refused(Refusal):
    """A Refusal that says more, so that the right thing follows: whose fault it is, and what had been used by then."""

    def __init__(
        self, verdict: Verdict, *, owner: Owner, said: str = "", usage: Usage | None = None, context_limit: int | None = None,
        is_too_long: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(verdict)
        self.owner = owner
        #: What the other side said. It may quote the conversation: for the record of the session alone.
        self.said = said
        #: What was told and heard of an answer that broke off; None where nothing is known.
        self.usage = usage
        #: The conversation is longer than the model can hold; ``context_limit``: how many tokens it holds, where that was said.
        self.is_too_long, self.context_limit = is_too_long, context_limit


class Owner(StrEnum):
    """Whose fault an answer is that is none."""

    #: This session: what it holds is refused, however often it is asked.
    SESSION = "session"
    #: The account: money, limits, a key.
    ACCOUNT = "account"
    #: The configuration: the model, the URL.
    CONFIGURATION = "configuration"
    #: The provider's server.
    SERVER = "server"
    #: What lies between: a proxy, a firewall, a lost connection.
    NETWORK = "network"


class Provider(Protocol):
    """An AI that can be asked.

    ``prices``: those of the model that it was configured with; None: not known (``duly.automations.prices`` may know them).
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

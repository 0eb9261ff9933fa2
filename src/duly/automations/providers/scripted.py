"""A provider that answers from a script, without a network: the default, for examples, and for tests.

A script holds conversations by the label of the question (the name of an automation), and ``default`` for all others; each is a list of
turns. Which turn is next is computed from the question alone: the answers in it are counted, so a session that is resumed, in another
process too, gets the turn that it would have got. What is no answer (``fail``, ``network: down``) leaves nothing in a conversation: how often
those have happened is counted by each provider, for each label.

::

    morning briefing:
      - call: {tool: weather, arguments: {city: Rome}}
        tokens: [120, 30]
      - fail: throttled
        after: 20
      - say: "It is {{ result.weather.sky }} in Rome."
        completed: true
    default:
      - when: hello
        say: Hello!
      - say: "You said: {{ last }}"
        again: true
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duly.automations.protocol import FINISH
from duly.automations.providers import shared
from duly.automations.providers.base import Answer, Message, Prices, Question, Role, Stop, ToolCall, Usage
from duly.kernel import source
from duly.kernel.source import Reading, Steps, kind_words
from duly.kernel.verdict import Kind, refusal

DEFAULT = "default"
#: What is said where nobody wrote a script.
UNSET = "no AI is set up: set ai_provider to openai or anthropic, or write a script and name it in ai_script"
_FIELDS = (
    "say",
    "call",
    "calls",
    "completed",
    "when",
    "again",
    "pause",
    "tokens",
    "stop",
    "fail",
    "after",
    "network",
    "times",
)
#: What a script can refuse with.
_KINDS = ("transient", "throttled", "permanent", "auth", "quota", "unknown")
_PLACE = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_NAME = re.compile(r"last|result\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a script; its arguments may hold placeholders. As a text they are taken as a model's that wrote it."""

    tool: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. ``fail`` and ``is_down`` are no answers, and happen ``times`` times before the turn that follows."""

    at: str
    say: str = ""
    calls: tuple[Call, ...] = ()
    completed: bool = False
    when: str | None = None
    again: bool = False
    pause: float = 0.0
    usage: Usage = field(default_factory=Usage)
    stop: Stop | None = None
    fail: Kind | None = None
    after: float | None = None
    is_down: bool = False
    times: int = 1

    @property
    def is_answer(self) -> bool:
        return self.fail is None and not self.is_down


@dataclass(frozen=True, slots=True)
class Conversation:
    """``turns`` are answers in their order, ``before`` what happens before each of them and after the last, ``asides`` answers to what the last
    message holds."""

    turns: tuple[Turn, ...]
    before: tuple[tuple[Turn, ...], ...]
    asides: tuple[Turn, ...]

    def aside(self, last: str) -> Turn | None:
        return next((turn for turn in self.asides if turn.when is not None and turn.when in last), None)

    def place(self, messages: Sequence[Message]) -> int:
        """How many of the turns have been answered with."""
        return sum(
            message.role is Role.ASSISTANT and self.aside(_last(messages[:position])) is None
            for position, message in enumerate(messages)
        )

    def turn(self, place: int) -> Turn | None:
        if place < len(self.turns):
            return self.turns[place]
        return self.turns[-1] if self.turns and self.turns[-1].again else None


class Scripted:
    """``script``: a file (``….yaml``, ``….json``), a mapping, or None: then every question is refused. Raises InvalidDocument with all that is wrong."""

    name = "scripted"

    def __init__(
        self, script: str | Path | Mapping[str, Any] | None = None, *, prices: Prices | None = None, name: str | None = None
    ) -> None:  # fmt: skip
        self._conversations = {} if script is None else read(script)
        self._file = "" if script is None or isinstance(script, Mapping) else str(script)
        self.prices = prices
        if name is not None:
            self.name = name
        #: How often what is no answer has happened: (label, place, which of those before it) → times.
        self._happened: dict[tuple[str, int, int], int] = {}
        #: The conversation that was last asked, and the place of its next turn.
        only = next(iter(self._conversations)) if len(self._conversations) == 1 else DEFAULT
        self._next = (only, 0)

    def __repr__(self) -> str:
        return f"Scripted({self._file!r})"

    async def is_reachable(self) -> bool:
        """False while a turn ``network: down`` is the next of the conversation that was last asked; of the only one, or ``default``, before any was
        asked. Each look counts."""
        label, place = self._next
        event = self._event(label, place)
        if event is None or not event[1].is_down:
            return True
        self._count(label, place, event[0])
        return False

    def missing(self, model: str | None = None) -> str:
        return "" if self._conversations else UNSET

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        self._check()
        label = question.label if question.label in self._conversations else DEFAULT
        conversation = self._conversations.get(label)
        if conversation is None:
            known = ", ".join(self._conversations)
            raise refusal(
                Kind.PERMANENT, f"the script has no conversation {question.label!r} and no default; it has {known}"
            )
        last, place = _last(question.messages), conversation.place(question.messages)
        self._next = (question.label, place)
        turn = conversation.aside(last)
        if turn is None:
            event = self._event(question.label, place)
            if event is not None:
                self._count(question.label, place, event[0])
                await self._fail(event[1], question, say)
            turn = conversation.turn(place)
        if turn is None:
            raise refusal(
                Kind.PERMANENT, f"the script {label!r} has {len(conversation.turns)} turns, and one more was asked for"
            )
        answer = await self._answer(turn, question, say)
        self._next = (question.label, place + (turn.when is None))
        return answer

    def _check(self) -> None:
        if why := self.missing():
            raise refusal(Kind.AUTH, why)

    async def check(self) -> str:
        self._check()
        if not self._file:
            return "answers come from a script in the program, and no AI is asked"
        return f"answers come from {self._file} ({len(self._conversations)} conversations), and no AI is asked"

    def _event(self, label: str, place: int) -> tuple[int, Turn] | None:
        """What has to happen before the turn at a place, and has not yet."""
        conversation = self._conversations.get(label) or self._conversations.get(DEFAULT)
        if conversation is None or place >= len(conversation.before):
            return None
        for number, turn in enumerate(conversation.before[place]):
            if self._happened.get((label, place, number), 0) < turn.times:
                return number, turn
        return None

    def _count(self, label: str, place: int, number: int) -> None:
        self._happened[label, place, number] = self._happened.get((label, place, number), 0) + 1

    async def _fail(self, turn: Turn, question: Question, say: Callable[[str], None]) -> None:
        if turn.is_down or turn.fail is None:
            raise refusal(Kind.TRANSIENT, "no connection to the provider: the script says so")
        await _say(str(_filled(turn.say, question, turn)), turn.pause, say)
        raise refusal(turn.fail, f"the script says {turn.fail} at {turn.at}", turn.after)

    async def _answer(self, turn: Turn, question: Question, say: Callable[[str], None]) -> Answer:
        text = str(_filled(turn.say, question, turn))
        wanted = list(turn.calls)
        if turn.completed and any(tool.name == FINISH for tool in question.tools):
            wanted.append(Call(FINISH, {"completed": True}))
        number = sum(message.role is Role.ASSISTANT for message in question.messages) + 1
        calls = tuple(_called(f"call-{number}-{n}", call, question, turn) for n, call in enumerate(wanted, start=1))
        await _say(text, turn.pause, say)
        return Answer(text, calls, turn.usage, turn.stop or (Stop.CALLS if calls else Stop.END))


def _called(ident: str, call: Call, question: Question, turn: Turn) -> ToolCall:
    if isinstance(call.arguments, str):
        return shared.call(ident, call.tool, call.arguments)
    return ToolCall(ident, call.tool, _filled(call.arguments, question, turn))


async def _say(text: str, pause: float, say: Callable[[str], None]) -> None:
    """Word by word."""
    for number, word in enumerate(re.findall(r"\s*\S+|\s+$", text)):
        if number and pause:
            await asyncio.sleep(pause)
        say(word)
    await asyncio.sleep(0)  # whoever wants to cancel can


def _last(messages: Sequence[Message]) -> str:
    return messages[-1].text if messages else ""


# ---------------------------------------------------------------------- placeholders


def _filled(value: Any, question: Question, turn: Turn) -> Any:
    """A value with its placeholders filled; one that stands alone keeps the kind of what it stands for. Raises Refusal (PERMANENT)."""
    if isinstance(value, Mapping):
        return {name: _filled(inner, question, turn) for name, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, question, turn) for inner in value]
    if not isinstance(value, str):
        return value
    alone = _PLACE.fullmatch(value)
    if alone:
        return _found(alone[1], question, turn)
    return _PLACE.sub(lambda match: _as_text(_found(match[1], question, turn)), value)


def _found(name: str, question: Question, turn: Turn) -> Any:
    if name == "last":
        return _last(question.messages)
    _, tool, *path = name.split(".")
    value = _result(tool, question.messages)
    if value is None:
        raise refusal(Kind.PERMANENT, f"the script at {turn.at} wants a result of {tool}, and there is none")
    text = value.text
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = text
    for step in path:
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            raise refusal(Kind.PERMANENT, f"the script at {turn.at} wants {name}, and the result has no {step}")
    return found


def _result(tool: str, messages: Sequence[Message]) -> Message | None:
    """The last result of a tool."""
    names: dict[str, str] = {}
    found = None
    for message in messages:
        names.update({call.id: call.name for call in message.calls})
        if message.role is Role.TOOL and names.get(message.call_id or "") == tool:
            found = message
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------------- reading


def read(script: str | Path | Mapping[str, Any]) -> Mapping[str, Conversation]:
    """The conversations of a script, by label. Raises InvalidDocument, InvalidArgument."""
    document = source.read(script)
    reading, made = Reading(document), dict[str, Conversation]()
    if not isinstance(document.value, Mapping) or not document.value:
        reading.wrong(
            (), f"is {kind_words(document.value)}.", "Write a mapping from labels of conversations to lists of turns."
        )
    else:
        for label, turns in document.value.items():
            made[str(label)] = _conversation(reading, turns, (str(label),))
    reading.refuse_if_wrong()
    return made


def _conversation(reading: Reading, given: Any, at: Steps) -> Conversation:
    if not isinstance(given, list) or not given:
        reading.wrong(at, f"is {kind_words(given)}.", "Write a list with at least one turn.")
        return Conversation((), ((),), ())
    turns: list[Turn] = []
    asides: list[Turn] = []
    before: list[list[Turn]] = [[]]
    for number, value in enumerate(given):
        turn = _turn(reading, value, (*at, number))
        if turn is None:
            continue
        if not turn.is_answer:
            before[-1].append(turn)
        elif turn.when is not None:
            asides.append(turn)
        else:
            turns.append(turn)
            before.append([])
        if turn.again and number != len(given) - 1:
            reading.wrong(
                (*at, number, "again"), "stands before other turns, which never come.", "Only the last turn can say it."
            )
    return Conversation(tuple(turns), tuple(map(tuple, before)), tuple(asides))


def _turn(reading: Reading, value: Any, at: Steps) -> Turn | None:
    fields = reading.mapping(value, at, _FIELDS)
    if fields is None:
        return None
    is_answer = "fail" not in fields and "network" not in fields
    if is_answer and not {"say", "call", "calls", "completed"} & set(fields) and set(fields) <= set(_FIELDS):
        reading.wrong(at, "says nothing.", "Add `say:`, `call:`, `completed: true`, `fail:` or `network: down`.")
    for name in (
        ("when", "again", "call", "calls", "completed", "tokens", "stop") if not is_answer else ("after", "times")
    ):
        if name in fields:
            reading.wrong(
                (*at, name), f"does not go with {'an answer' if is_answer else '`fail` or `network`'}.", key=True
            )
    return Turn(
        at=source.path_of(at),
        say=_text(reading, fields, "say", at) or "",
        calls=_calls(reading, fields, at),
        completed=_truth(reading, fields, "completed", at),
        when=_text(reading, fields, "when", at),
        again=_truth(reading, fields, "again", at),
        pause=_number(reading, fields, "pause", at) or 0.0,
        usage=_usage(reading, fields, at),
        stop=_choice(reading, fields, "stop", at, {one.value: one for one in Stop}),
        fail=_choice(reading, fields, "fail", at, {name: Kind(name) for name in _KINDS}),
        after=_number(reading, fields, "after", at),
        is_down=bool(_choice(reading, fields, "network", at, {"down": True})),
        times=_times(reading, fields, at),
    )


def _text(reading: Reading, fields: Mapping[str, Any], name: str, at: Steps) -> str | None:
    if name not in fields:
        return None
    found = reading.text(fields[name], (*at, name))
    if name != "when":
        _checked(reading, found, (*at, name))
    return found


def _truth(reading: Reading, fields: Mapping[str, Any], name: str, at: Steps) -> bool:
    found = fields.get(name, False)
    if not isinstance(found, bool):
        reading.wrong((*at, name), f"is {kind_words(found)}.", "Write true or false.")
        return False
    return found


def _number(reading: Reading, fields: Mapping[str, Any], name: str, at: Steps) -> float | None:
    found = fields.get(name)
    if name not in fields:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 86_400:
        reading.wrong((*at, name), "is no number of seconds up to a day.")
        return None
    return float(found)


def _times(reading: Reading, fields: Mapping[str, Any], at: Steps) -> int:
    found = fields.get("times", 1)
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        reading.wrong((*at, "times"), "is no whole number from 1.")
        return 1
    return found


def _choice(reading: Reading, fields: Mapping[str, Any], name: str, at: Steps, known: Mapping[str, Any]) -> Any:
    if name not in fields:
        return None
    found = fields[name]
    if not isinstance(found, str) or found not in known:
        reading.wrong((*at, name), f"is {found!r}.", f"Choose one of: {', '.join(known)}.")
        return None
    return known[found]


def _usage(reading: Reading, fields: Mapping[str, Any], at: Steps) -> Usage:
    found = fields.get("tokens", [0, 0])
    if not (
        isinstance(found, list)
        and len(found) == 2
        and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in found)
    ):
        reading.wrong((*at, "tokens"), "is no pair of whole numbers.", "Write [told, answered], such as [120, 30].")
        return Usage()
    return Usage(*found)


def _calls(reading: Reading, fields: Mapping[str, Any], at: Steps) -> tuple[Call, ...]:
    if "call" in fields and "calls" in fields:
        reading.wrong((*at, "calls"), "stands beside `call`.", "Keep one of them.", key=True)
    given: list[tuple[Any, Steps]] = [(fields["call"], (*at, "call"))] if "call" in fields else []
    several = fields.get("calls", [])
    if isinstance(several, list):
        given += [(one, (*at, "calls", number)) for number, one in enumerate(several)]
    else:
        reading.wrong((*at, "calls"), f"is {kind_words(several)}.", "Write a list of calls.")
    made = []
    for value, place in given:
        call = reading.mapping(value, place, ("tool", "arguments"), needed=("tool",))
        if call is None or call.get("tool") is None:
            continue
        arguments = call.get("arguments")
        if arguments is not None and not isinstance(arguments, Mapping | str):
            reading.wrong((*place, "arguments"), f"is {kind_words(arguments)}.", "Write a mapping.")
            continue
        if not isinstance(arguments, str):
            _checked(reading, arguments, (*place, "arguments"))
        given_arguments = arguments if isinstance(arguments, str) else dict(arguments or {})
        made.append(Call(reading.text(call["tool"], (*place, "tool")) or "", given_arguments))
    return tuple(made)


def _checked(reading: Reading, value: Any, at: Steps) -> None:
    """Notes placeholders that nothing could fill."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _checked(reading, inner, (*at, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _checked(reading, inner, (*at, number))
    elif isinstance(value, str):
        for match in _PLACE.finditer(value):
            if not _NAME.fullmatch(match[1]):
                reading.wrong(at, f"holds {match[0]}.", "Write {{ last }} or {{ result.TOOL.path }}.")

"""What the providers that speak HTTP have in common: a key that is shown nowhere, names as an API takes them, texts put together from pieces.

Nothing here knows one API from another.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from duly.automations.providers import verdicts
from duly.automations.providers.base import Message, Owner, Question, Refused, Role, ToolCall, Usage
from duly.clock import SystemClock
from duly.kernel.errors import InvalidArgument, InvalidPayload
from duly.kernel.payload import check_value, read_json
from duly.kernel.retry_after import LONGEST, retry_after
from duly.kernel.verdict import Kind, Refusal, Verdict

if TYPE_CHECKING:
    from duly.outbound import Streamed

#: Seconds that the question whether the other side can be reached takes at most.
REACHED_WITHIN = 2.0
#: What is said for a user where an API wants one to speak first, or last.
GO_ON = "Go on."
#: The longest name and id that APIs take.
_LONGEST_NAME, _LONGEST_ID = 64, 40
_CODE = re.compile(r"[A-Za-z0-9_.\-]{1,60}")
#: The longest that a stranger's sentence is repeated, in characters.
_LONGEST_SAID = 300


def http() -> ModuleType:
    """``duly.outbound``. Raises InvalidArgument where what it needs is not installed."""
    try:
        from duly import outbound
    except ImportError as error:
        remedy = 'Install it with `pip install "duly[ai]"`.'
        raise InvalidArgument("ai_provider", f"needs {error.name}, which is not installed.", remedy) from None
    return outbound


class Endpoint:
    """Where an API is, and what authorizes. Its ``repr`` shows neither a key nor what may hold one."""

    def __init__(self, base_url: str, key: str | None, setting: str, key_setting: str) -> None:
        """Raises InvalidArgument."""
        outbound = http()
        if not _is_plain(base_url):
            remedy = "Give https://host/path, without a user, a query or a fragment."
            raise InvalidArgument(setting, "is no plain URL.", remedy)
        try:
            self.url: str = outbound.checked_url(base_url, setting)
        except Refusal as error:
            raise InvalidArgument(setting, error.verdict.reason.removeprefix(setting).strip() + ".") from None
        self.key = key or ""
        if self.key and not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise InvalidArgument(key_setting, "holds what no key holds (blanks, line ends, letters beyond ASCII).")
        parsed = urlsplit(self.url)
        self.host = parsed.hostname or ""
        self.port = parsed.port or (443 if parsed.scheme == "https" else 80)

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}"

    async def is_reachable(self) -> bool:
        """Does somebody take connections there? Never raises."""
        try:
            async with asyncio.timeout(REACHED_WITHIN):
                _, writer = await asyncio.open_connection(self.host, self.port)
        except (OSError, TimeoutError, ValueError):  # ValueError: a host that cannot be looked up (UnicodeError)
            return False
        writer.close()
        return True

    def clean(self, text: object) -> str:
        """What a stranger said, on one line and shortened, without the key."""
        said = " ".join(str(text or "").split())
        if self.key:
            said = said.replace(self.key, "…")
        return "".join(c for c in said if c.isprintable())[:_LONGEST_SAID]


def _is_plain(url: object) -> bool:
    """Nothing in it that is secret, or that a path could not be put behind."""
    try:
        parsed = urlsplit(url) if isinstance(url, str) and url.isprintable() and " " not in url else None
    except ValueError:
        return False
    return parsed is not None and not ("@" in parsed.netloc or parsed.query or parsed.fragment)


def code(text: object) -> str:
    """A word of an API that stands for a kind of error; empty when it is no such word."""
    return text if isinstance(text, str) and _CODE.fullmatch(text) else ""


def waits(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer wants to be waited (``retry-after-ms``, ``retry-after``), at most a day; None when it does not say."""
    after = retry_after(headers.get("retry-after"), SystemClock().now())
    with suppress(KeyError, ValueError):
        exact = float(headers["retry-after-ms"]) / 1000
        after = exact if math.isfinite(exact) and exact >= 0 else after
    return None if after is None else min(after, LONGEST)


async def error_of(streamed: Streamed) -> tuple[object, str]:
    """What an answer that is no answer says of itself: its ``error``, a mapping or a text, and the word that stands for it where it has none
    (``verdicts.NOT_JSON``, ``NO_ANSWER``)."""
    try:
        answered = await streamed.whole()
    except Refusal:
        return None, ""
    if not isinstance(answered.json, dict):
        return None, verdicts.NOT_JSON
    body = answered.body
    if body.get("error"):
        return body["error"], ""
    told = body.get("message") or body.get("detail")
    if not told:
        return None, verdicts.NO_ANSWER
    return {"message": told if isinstance(told, str) else orjson.dumps(told).decode()}, ""


def broke_off(reason: str, usage: Usage | None = None) -> Refused:
    """It was asked, and its answer did not come to its end. ``usage``: what it had told of it by then."""
    verdict = Verdict(Kind.UNKNOWN, f"the AI was asked, and its answer broke off: {reason}")
    return Refused(verdict, owner=Owner.NETWORK, usage=usage)


_LIMIT = re.compile(
    r"(?:context (?:length|window|size|limit)[^0-9]{0,40}|tokens? > |exceeds? [^0-9]{0,60}|limit of )(\d[\d,_]*)",
    re.IGNORECASE,
)


def limit_of(error: object) -> int | None:
    """How many tokens a model holds, where its refusal of a conversation that is too long says so."""
    if not isinstance(error, Mapping):
        return None
    if told := whole(error.get("n_ctx")):
        return told
    found = _LIMIT.search(str(error.get("message") or "")[:2_000])
    return int(re.sub("[,_]", "", found[1])) if found and len(found[1]) < 12 else None


#: What refusals say of a conversation that is longer than the model can hold, where they have no word for it.
_TOO_LONG = (
    "prompt is too long",
    "context length",
    "context window",
    "context size",
    "context limit",
    "too many input tokens",
)


def is_too_long(said: str) -> bool:
    """Does a refusal say that the conversation is longer than the model can hold?"""
    return any(words in said.lower() for words in _TOO_LONG)


def merge(into: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Put a piece of a streamed object to those before it, whatever its fields are: texts are continued, lists grow (elements with an
    ``index`` are merged with the one of that index), and of what names or counts the first stays.
    """
    for name, value in piece.items():
        known = into.get(name)
        if value is None:
            continue
        if known is None:
            into[name] = _list([], value) if isinstance(value, list) else copy.deepcopy(value)
        elif name in _ONCE:
            continue
        elif isinstance(known, str) and isinstance(value, str):
            into[name] = known + value
        elif isinstance(known, dict) and isinstance(value, Mapping):
            merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            _list(known, value)
        else:
            into[name] = copy.deepcopy(value)


#: What each piece says again as it is.
_ONCE = frozenset({"id", "index", "type", "role", "name", "format", "object", "model", "provider"})


def _list(known: list[Any], pieces: list[Any]) -> list[Any]:
    for piece in pieces:
        index = piece.get("index") if isinstance(piece, dict) else None
        of_index = (one for one in known if isinstance(one, dict) and one.get("index") == index)
        same = next(of_index, None) if index is not None else None
        if same is None:
            known.append(copy.deepcopy(piece))
        else:
            merge(same, piece)
    return known


def unset(setting: str) -> str:
    """What is said of a setting that is needed, and not there."""
    return f"{setting} (DULY_{setting.upper()}) is not set"


# ---------------------------------------------------------------------- what is told


class Names:
    """Names of tools and ids of calls as APIs take them: letters, digits, ``_`` and ``-``. The same question gives the same ones."""

    def __init__(self, question: Question) -> None:
        self._wire: dict[str, str] = {}
        used = [call.name for message in question.messages for call in message.calls]
        for name in dict.fromkeys([*(tool.name for tool in question.tools), *used]):
            self._wire[name] = _free(_plain(name, _LONGEST_NAME), self._wire.values())
        self._names = {wire: name for name, wire in self._wire.items()}

    def wire(self, name: str) -> str:
        return self._wire[name]

    def name(self, wire: str) -> str:
        """What the model calls, by the name that it was told. A name that it made up stays as it is."""
        return self._names.get(wire, wire)


def threaded(messages: Iterable[Message], origin: str = "") -> list[Message]:
    """The same messages with ids of calls that any API takes, each of them once in a conversation: a session may have begun with another
    model, and models repeat themselves. An id from ``origin`` itself goes back as it came. Answers that say nothing are left out.
    """
    out: list[Message] = []
    taken: set[str] = set()
    now: dict[str, str] = {}
    for message in messages:
        if message.is_empty:
            continue
        calls = []
        own = message.original is not None and message.original.origin == origin
        for call in message.calls:
            kept = own and call.id and call.id not in taken
            now[call.id] = made = call.id if kept else _free(_plain(call.id, _LONGEST_ID), taken)
            taken.add(made)
            calls.append(replace(call, id=made))
        ident = message.call_id
        if ident is not None:
            ident = now.get(ident, _plain(ident, _LONGEST_ID))
        out.append(replace(message, calls=tuple(calls), call_id=ident))
    return out


def _plain(text: str, most: int) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:most] or "_"


def _free(text: str, taken: Iterable[str]) -> str:
    used, made, number = set(taken), text, 1
    while made in used:
        number += 1
        made = f"{text[: _LONGEST_ID - 5]}_{number}"
    return made


# ---------------------------------------------------------------------- what is answered


def spoken_in(content: object) -> list[str]:
    """The texts of a content: a text, or a list of parts."""
    if isinstance(content, list):
        return [
            t for part in content if isinstance(part, dict) for t in spoken_in(part.get("text") or part.get("refusal"))
        ]
    return [content] if isinstance(content, str) and content else []


class Speech:
    """A text that comes in pieces, said as it comes: without NUL, which no database stores, and with both halves of each pair."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._pieces, self._half = say, list[str](), ""

    def arrived(self, piece: Mapping[str, Any], texts: Iterable[str], kind: str) -> None:
        """A piece of the answer came: the texts in it are said, and of anything else that something came. ``kind``: the field of it that tells
        nothing but what it is; so one that says nothing, as some servers send it to keep a connection, is no sign of life."""
        said = [text for name in texts for text in spoken_in(piece.get(name))]
        for text in said:
            self.add(text)
        if not said and any(value for name, value in piece.items() if name != kind):
            self._say("")

    def add(self, piece: object) -> None:
        if not isinstance(piece, str) or not piece:
            return
        piece = self._half + piece
        self._half = piece[-1] if "\ud800" <= piece[-1] <= "\udbff" else ""
        self._take(piece[: len(piece) - len(self._half)])

    def text(self) -> str:
        self._take(self._half)
        self._half = ""
        return "".join(self._pieces)

    def _take(self, piece: str) -> None:
        if not piece.isascii():
            piece = piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        piece = piece.replace("\0", "")
        if piece:
            self._pieces.append(piece)
            self._say(piece)


def call(ident: str, name: str, arguments: str) -> ToolCall:
    """A call from what the model wrote; nothing and ``null`` are no arguments. Those that are no JSON object, or that nobody could store, are
    its ``problem``."""
    if not arguments.strip():
        return ToolCall(ident, name, {})
    try:
        found = read_json(arguments, "arguments")
    except InvalidPayload as error:
        return ToolCall(ident, name, {}, f"the arguments cannot be used: {error}", arguments)
    except InvalidArgument:
        return ToolCall(ident, name, {}, "the arguments are not JSON", arguments)
    if found is None:
        return ToolCall(ident, name, {})
    if not isinstance(found, dict):
        return ToolCall(ident, name, {}, "the arguments are not a JSON object", arguments)
    try:
        check_value(found, "arguments")
    except InvalidPayload as error:
        return ToolCall(ident, name, {}, f"the arguments cannot be used: {error}", arguments)
    return ToolCall(ident, name, found)


def loads(text: str) -> Any:
    """JSON, also with half a character at the end of a piece. Raises ValueError."""
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        try:
            return json.loads(text, parse_constant=_no_number)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _no_number(word: str) -> Any:
    raise ValueError(word)


def whole(value: object) -> int:
    """A count of tokens as an API gives it; 0 when it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def spoken(messages: Iterable[Message]) -> tuple[str, list[Message]]:
    """The system's words together, and the other messages."""
    every = list(messages)
    system = "\n\n".join(m.text for m in every if m.role is Role.SYSTEM and m.text)
    return system, [m for m in every if m.role is not Role.SYSTEM]

"""Anthropic's Messages, streamed.

Source: the facts about providers, section 7. There is no idempotency key: an answer that does not come is an unknown outcome, and may be billed.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson

from duly._version import __version__
from duly.automations.protocol import is_failure
from duly.automations.providers import shared
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
from duly.automations.providers.verdicts import Row, refused, word_of
from duly.kernel.verdict import Kind, Refusal, refusal

VERSION = "2023-06-01"
#: What an error says, as the status that it has where it does not come within an answer.
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
    "conflict_error": 409, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip
#: Whose fault an answer is.
VERDICTS: tuple[Row, ...] = (
    Row(None, "billing_error", Kind.QUOTA, Owner.ACCOUNT, "somebody has to pay"),
    # a limit that somebody set, or money that is used up: a 400 or a 429 without retry-after, told by its sentence or details
    Row(None, "spend_limit_reached", Kind.QUOTA, Owner.ACCOUNT, "somebody has to pay, or to raise a limit"),
    Row(None, "prompt_too_long", Kind.PERMANENT, Owner.SESSION, "the conversation is too long", is_too_long=True),
    Row(None, "request_too_large", Kind.PERMANENT, Owner.SESSION, "the conversation is too long", is_too_long=True),
    Row(404, "not_found_error", Kind.AUTH, Owner.CONFIGURATION, "the model is not known there"),
    Row(None, "overloaded_error", Kind.TRANSIENT, Owner.SERVER, "it has too much to do"),
    Row(None, "timeout_error", Kind.UNKNOWN, Owner.SERVER, "it took too long, and may be billed"),
)  # fmt: skip
#: Why an answer ended. One that is not here is ``Stop.OTHER``: nothing is called.
_STOPS = {
    "end_turn": Stop.END, "stop_sequence": Stop.END, "pause_turn": Stop.END, "tool_use": Stop.CALLS, "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH, "refusal": Stop.FILTERED,
}  # fmt: skip
#: What the sentence of a 400 says where a limit that somebody set, or the money, is used up.
_PAID_OUT = ("credit balance is too low", "usage limit", "spend limit")
_CHECKED_WITHIN = 15.0
#: The API wants to be told the longest answer.
_MOST_TOKENS = 4096


class Anthropic:
    """``base_url``: up to and without ``/v1/messages``; https, or plain http on this machine. ``timeout``: the longest silence, in seconds.
    ``max_tokens``: of an answer whose question names none. Raises InvalidArgument.
    """

    name = "anthropic"

    def __init__(
        self, *, base_url: str = "https://api.anthropic.com", model: str = "", key: str | None = None, prices: Prices | None = None,
        timeout: float = 120.0, max_tokens: int | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        self._at = shared.Endpoint(base_url, key, "anthropic_base_url", "anthropic_api_key")
        self._at.url = self._at.url.removesuffix("/v1")
        self._model, self._timeout, self._max_tokens = model, timeout, max_tokens or _MOST_TOKENS
        self.prices = prices
        if name is not None:
            self.name = name

    def __repr__(self) -> str:
        return f"Anthropic({self._at!r}, model={self._model!r})"

    @property
    def model(self) -> str:
        """The model that it was configured with."""
        return self._model

    @property
    def url(self) -> str:
        return self._at.url

    async def is_reachable(self) -> bool:
        return await self._at.is_reachable()

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        outbound, names = shared.http(), shared.Names(question)
        model = self._known(question.model)
        origin = f"anthropic {self._at.url} {model}"
        content = orjson.dumps(body(question, model, self._max_tokens, names, origin))
        async with outbound.stream(
            "POST", f"{self._at.url}/v1/messages", timeout=self._timeout, headers=self._headers(), content=content
        ) as streamed:
            if streamed.status != 200:
                error, word = await shared.error_of(streamed)
                raise classify(streamed.status, streamed.headers, error, self._at.clean, word)
            if not streamed.has_events:
                error, word = await shared.error_of(streamed)
                status = _status_of(error) if error else streamed.status
                raise classify(status, {}, error, self._at.clean, word)
            gathered, reason = _Gathered(say, names, origin), "it ended without saying why"
            try:
                async with aclosing(streamed.events()) as events:
                    async for event in events:
                        try:
                            told = shared.loads(event.data)
                        except ValueError:
                            raise shared.broke_off("what came is not JSON", gathered.usage) from None
                        if not isinstance(told, dict):
                            continue
                        if told.get("type") == "error":
                            raise classify(_status_of(told.get("error")), {}, told.get("error"), self._at.clean)
                        gathered.add(told)
                        if told.get("type") == "message_stop":
                            break
            except Refusal as error:
                if error.verdict.kind is not Kind.UNKNOWN:
                    raise
                reason = error.verdict.reason
            return gathered.answer(reason)

    async def check(self) -> str:
        model = self._known()
        answer = await shared.http().request(
            "GET", f"{self._at.url}/v1/models?limit=1000", timeout=min(self._timeout, _CHECKED_WITHIN), headers=self._headers()
        )  # fmt: skip
        if answer.status != 200:
            word = word_of(answer.body.get("error"), answer.json if isinstance(answer.json, dict) else None)
            raise classify(answer.status, answer.headers, answer.body.get("error"), self._at.clean, word)
        listed = answer.body.get("data")
        known = {one.get("id") for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()
        return f"{self._at!r} answers, and {'knows' if model in known else 'does not list'} {model}"

    def missing(self, model: str | None = None) -> str:
        if not (model or self._model):
            return shared.unset("anthropic_model")
        return "" if self._at.key else shared.unset("anthropic_api_key")

    def _known(self, model: str | None = None) -> str:
        """The model. Raises Refusal (AUTH): it, or the key, is not set."""
        if why := self.missing(model):
            raise refusal(Kind.AUTH, why)
        return model or self._model

    def _headers(self) -> dict[str, str]:
        return {
            "Content-Type": "application/json", "User-Agent": f"duly/{__version__}", "x-api-key": self._at.key, "anthropic-version": VERSION,
        }  # fmt: skip


# ---------------------------------------------------------------------- what is told


def body(question: Question, model: str, max_tokens: int, names: shared.Names, origin: str = "") -> dict[str, Any]:
    """The body of the request: the system's words apart, and the others in turns of user and assistant. ``origin``: whose own messages go
    back unchanged."""
    system, messages = shared.spoken(shared.threaded(question.messages, origin))
    made: dict[str, Any] = {
        "model": model,
        "max_tokens": question.max_tokens or max_tokens,
        "messages": turns(messages, names, origin),
        "stream": True,
    }
    if system:
        made["system"] = system
    if question.temperature is not None:
        made["temperature"] = question.temperature
    if question.tools:
        made["tools"] = [
            {"name": names.wire(t.name), "description": t.description, "input_schema": dict(t.parameters)} for t in question.tools
        ]  # fmt: skip
    return made


def turns(messages: Iterable[Message], names: shared.Names, origin: str = "") -> list[dict[str, Any]]:
    """Turns of user and assistant, one after the other; the user begins and ends. Results of calls stand first in theirs, as the API wants it."""
    made: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = _blocks(message, names, origin)
        if not blocks:
            continue
        if made and made[-1]["role"] == role:
            made[-1]["content"].extend(blocks)
        else:
            made.append({"role": role, "content": blocks})
    for turn in made:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    go_on = {"role": "user", "content": [{"type": "text", "text": shared.GO_ON}]}
    if made and made[0]["role"] == "assistant":
        made.insert(0, go_on)
    if not made or made[-1]["role"] == "assistant":
        made.append(go_on)
    return made


def _blocks(message: Message, names: shared.Names, origin: str = "") -> list[dict[str, Any]]:
    if message.role is Role.TOOL:
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id or ""}
        if message.text:
            result["content"] = message.text
        return [result | {"is_error": True} if is_failure(message.text) else result]
    kept = message.original
    if kept is not None and kept.origin == origin and (blocks := _own(message, kept.message, names)) is not None:
        return blocks
    blocks = []
    if message.text.strip():  # blanks alone are refused
        blocks.append({"type": "text", "text": message.text})
    for call in message.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": names.wire(call.name), "input": dict(call.shown)})
    return blocks


def _own(message: Message, kept: object, names: shared.Names) -> list[dict[str, Any]] | None:
    """The blocks of an answer as they came: thoughts with their signatures, and kinds that nobody here knows. None where they are not those of
    its calls."""
    if not isinstance(kept, list) or not all(isinstance(block, dict) and "type" in block for block in kept):
        return None
    calls = iter(message.calls)
    made = []
    for block in kept:
        if block["type"] == "tool_use":
            call = next(calls, None)
            if call is None:
                return None
            block = {**block, "id": call.id, "name": names.wire(call.name)}
            if call.written or not isinstance(block.get("input"), dict):
                block["input"] = dict(call.shown)
        elif block["type"] == "text" and not str(block.get("text") or "").strip():
            continue
        made.append(block)
    return made if next(calls, None) is None and made else None


# ---------------------------------------------------------------------- what is answered


class _Gathered:
    """An answer, put together from its events."""

    def __init__(self, say: Callable[[str], None], names: shared.Names, origin: str = "") -> None:
        self._speech, self._names, self._origin = shared.Speech(say), names, origin
        #: By their index, as they have come so far; of a call also its arguments as written.
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._written: dict[Any, str] = {}
        self._ended: set[Any] = set()
        self._why, self._told, self._said, self._counted = "", 0, 0, False

    def add(self, event: Mapping[str, Any]) -> None:
        kind, index = event.get("type"), event.get("index")
        if kind == "message_start":
            self._count(_of(event, "message").get("usage"))
        elif kind == "content_block_start":
            block = _of(event, "content_block")
            self._speech.arrived(block, ("text",) if block.get("type") == "text" else (), "type")
            self._blocks[index] = copy.deepcopy(dict(block))
            if block.get("type") == "tool_use":
                given = block.get("input")
                self._written[index] = orjson.dumps(given).decode() if isinstance(given, dict) and given else ""
        elif kind == "content_block_delta":
            delta, known = _of(event, "delta"), self._blocks.get(index)
            self._speech.arrived(delta, ("text",) if delta.get("type") == "text_delta" else (), "type")
            if known is None:
                return
            if delta.get("type") == "input_json_delta":
                self._written[index] = self._written.get(index, "") + str(delta.get("partial_json") or "")
            elif delta.get("type") == "citations_delta":
                known["citations"] = [*(known.get("citations") or ()), delta.get("citation")]
            else:  # a piece of a field of that name, whatever it is
                shared.merge(known, {name: value for name, value in delta.items() if name != "type"})
        elif kind == "content_block_stop":
            self._ended.add(index)
        elif kind == "message_delta":
            why = _of(event, "delta").get("stop_reason")
            if isinstance(why, str) and why:
                self._why = why
            self._counted = self._count(event.get("usage"))

    def _count(self, usage: object) -> bool:
        """Counts are of the whole answer so far; those that are missing stay as they were."""
        if not isinstance(usage, dict):
            return False
        told = sum(
            shared.whole(usage.get(name))
            for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        )
        self._told, self._said = told or self._told, shared.whole(usage.get("output_tokens")) or self._said
        return True

    @property
    def usage(self) -> Usage:
        return Usage(self._told, self._said, self._counted)

    def answer(self, reason: str) -> Answer:
        """The whole of it. ``reason``: why there is no more. Raises Refused (UNKNOWN): it did not come to its end."""
        if not self._why:
            raise shared.broke_off(reason, self.usage)
        text, calls, taken = self._speech.text(), list[ToolCall](), set[str]()
        for index, block in self._blocks.items():
            if block.get("type") != "tool_use":
                if index in self._written:  # of a tool of the provider's own
                    with contextlib.suppress(ValueError):
                        block["input"] = shared.loads(self._written[index] or "{}")
                continue
            ident, written = str(block.get("id") or ""), self._written[index]
            ident = ident if ident and ident not in taken else f"call-{len(calls) + 1}"
            taken.add(ident)
            made = shared.call(ident, self._names.name(str(block.get("name") or "")), written)
            if index not in self._ended:
                made = replace(made, problem="its arguments did not come to their end")
            block["input"] = dict(made.shown)
            calls.append(made)
        stop = _STOPS.get(self._why, Stop.OTHER)
        if stop in (Stop.END, Stop.CALLS):
            stop = Stop.CALLS if calls else Stop.END
        return Answer(
            text, tuple(calls), self.usage, stop, self._why, Original(self._origin, list(self._blocks.values()))
        )


def _of(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------------- what refusals mean


def classify(
    status: int, headers: Mapping[str, str], error: object, clean: Callable[[object], str], word: str = ""
) -> Refused:  # fmt: skip
    """What an answer that is no answer means (``VERDICTS``). ``error``: its object of that name; ``clean``: as ``Endpoint.clean``; ``word``:
    what stands for an answer without an error."""
    found: Mapping[str, Any] = error if isinstance(error, dict) else {}
    details = found.get("details")
    words = [
        shared.code(details.get("error_code")) if isinstance(details, dict) else "",
        shared.code(found.get("type")),
        word,
    ]
    said = str(found.get("message") or (error if isinstance(error, str) else ""))
    after, low = shared.waits(headers), said.lower()
    if status == 400 and any(one in low for one in _PAID_OUT):
        words.append("spend_limit_reached")
    if (
        status == 429
        and after is None
        and (words[0].startswith("enforced_spend_limit") or "enforced_spend_limit" in low)
    ):
        words.append("spend_limit_reached")
    if status == 400 and shared.is_too_long(said):
        words.append("prompt_too_long")
    told = "" if status in (401, 403) else clean(said)
    return refused(VERDICTS, status, [w for w in words if w], after=after, said=told, limit=shared.limit_of(error))


def _status_of(error: object) -> int:
    """The status of an error that came within an answer; 500 for one that nobody knows."""
    return _STATUS.get(str(error.get("type")), 500) if isinstance(error, dict) else 500

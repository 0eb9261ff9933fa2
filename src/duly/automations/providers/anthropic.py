"""Anthropic's Messages, streamed.

Source: the facts about providers, section 7. There is no idempotency key: an answer that does not come is an unknown outcome, and may be billed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from duly._version import __version__
from duly.automations.providers import shared
from duly.automations.providers.base import Answer, Message, Prices, Question, Role, Stop, ToolCall, Usage
from duly.kernel.verdict import Kind, Refusal, Verdict, refusal

VERSION = "2023-06-01"
#: What an error says, as the status that it has where it does not come within an answer.
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
    "conflict_error": 409, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504, "overloaded_error": 529,
}  # fmt: skip
_STOPS = {
    "end_turn": Stop.END, "stop_sequence": Stop.END, "pause_turn": Stop.END, "tool_use": Stop.CALLS, "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH, "refusal": Stop.FILTERED,
}  # fmt: skip
#: Of a 400: a limit that somebody set, or money that is used up.
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

    async def is_reachable(self) -> bool:
        return await self._at.is_reachable()

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        outbound, names = shared.http(), shared.Names(question)
        model = self._known(question.model)
        content = orjson.dumps(body(question, model, self._max_tokens, names))
        async with outbound.stream(
            "POST", f"{self._at.url}/v1/messages", timeout=self._timeout, headers=self._headers(), content=content
        ) as streamed:
            if streamed.status != 200:
                raise Refusal(
                    classify(streamed.status, streamed.headers, await shared.error_of(streamed), self._at.clean)
                )
            if not streamed.has_events:
                raise Refusal(classify(streamed.status, {}, None, self._at.clean))
            gathered, reason = _Gathered(say, names), "it ended without saying why"
            try:
                async with aclosing(streamed.events()) as events:
                    async for event in events:
                        try:
                            told = shared.loads(event.data)
                        except ValueError:
                            raise shared.broke_off("what came is not JSON") from None
                        if not isinstance(told, dict):
                            continue
                        if told.get("type") == "error":
                            raise Refusal(
                                classify(_status_of(told.get("error")), {}, told.get("error"), self._at.clean)
                            )
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
            raise Refusal(classify(answer.status, answer.headers, answer.body.get("error"), self._at.clean))
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


def body(question: Question, model: str, max_tokens: int, names: shared.Names) -> dict[str, Any]:
    """The body of the request: the system's words apart, and the others in turns of user and assistant."""
    system, messages = shared.spoken(shared.threaded(question.messages))
    made: dict[str, Any] = {
        "model": model,
        "max_tokens": question.max_tokens or max_tokens,
        "messages": turns(messages, names),
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


def turns(messages: Iterable[Message], names: shared.Names) -> list[dict[str, Any]]:
    """Turns of user and assistant, one after the other; the user begins and ends. Results of calls stand first in theirs, as the API wants it."""
    made: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = _blocks(message, names)
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


def _blocks(message: Message, names: shared.Names) -> list[dict[str, Any]]:
    if message.role is Role.TOOL:
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id or ""}
        return [{**result, "content": message.text}] if message.text else [result]
    blocks: list[dict[str, Any]] = []
    if message.text.strip():  # blanks alone are refused
        blocks.append({"type": "text", "text": message.text})
    for call in message.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": names.wire(call.name), "input": dict(call.arguments)})
    return blocks


# ---------------------------------------------------------------------- what is answered


class _Gathered:
    """An answer, put together from its events."""

    def __init__(self, say: Callable[[str], None], names: shared.Names) -> None:
        self._speech, self._names = shared.Speech(say), names
        #: By the index of the block: id, name, and the arguments as written so far.
        self._calls: dict[Any, list[str]] = {}
        self._why, self._told, self._said, self._counted = "", 0, 0, False

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "message_start":
            self._count(_of(event, "message").get("usage"))
        elif kind == "content_block_start":
            block = _of(event, "content_block")
            self._speech.arrived(block, ("text",) if block.get("type") == "text" else (), "type")
            if block.get("type") == "tool_use":
                given = block.get("input")
                written = orjson.dumps(given).decode() if isinstance(given, dict) and given else ""
                self._calls[event.get("index")] = [str(block.get("id") or ""), str(block.get("name") or ""), written]
        elif kind == "content_block_delta":
            delta, open_call = _of(event, "delta"), self._calls.get(event.get("index"))
            self._speech.arrived(delta, ("text",) if delta.get("type") == "text_delta" else (), "type")
            if delta.get("type") == "input_json_delta" and open_call is not None:
                open_call[2] += str(delta.get("partial_json") or "")
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

    def answer(self, reason: str) -> Answer:
        """The whole of it. ``reason``: why there is no more. Raises Refusal (UNKNOWN): it did not come to its end."""
        if not self._why:
            raise shared.broke_off(reason)
        text, calls, taken = self._speech.text(), list[ToolCall](), set[str]()
        for number, (ident, name, written) in enumerate(self._calls.values(), start=1):
            ident = ident if ident and ident not in taken else f"call-{number}"
            taken.add(ident)
            calls.append(shared.call(ident, self._names.name(name), written))
        stop = _STOPS.get(self._why, Stop.END)
        if stop in (Stop.END, Stop.CALLS):
            stop = Stop.CALLS if calls else Stop.END
        return Answer(text, tuple(calls), Usage(self._told, self._said, self._counted), stop)


def _of(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------------- what refusals mean


def classify(status: int, headers: Mapping[str, str], error: object, clean: Callable[[object], str]) -> Verdict:
    """What an answer that is no answer means. ``error``: its object of that name; ``clean``: as ``Endpoint.clean``."""
    found: Mapping[str, Any] = error if isinstance(error, dict) else {}
    details = found.get("details")
    word = shared.code(details.get("error_code")) if isinstance(details, dict) else ""
    kind = shared.code(found.get("type"))
    reason = f"the AI answered {status} {word or kind}".rstrip()
    said = str(found.get("message") or (error if isinstance(error, str) else ""))
    after = shared.waits(headers)
    if status == 402 or kind == "billing_error":
        return Verdict(Kind.QUOTA, reason)
    if status == 429:
        if after is None and (word.startswith("enforced_spend_limit") or "enforced_spend_limit" in said):
            return Verdict(Kind.QUOTA, reason)
        return Verdict(Kind.THROTTLED, reason, after)
    if status in (401, 403):
        return Verdict(Kind.AUTH, reason)
    if status in (408, 409, 425) or status >= 500:
        return Verdict(Kind.TRANSIENT, reason, after)
    if status < 400:
        return Verdict(Kind.PERMANENT, f"{reason}: that is not how this API answers. Is the base URL right?")
    said = clean(said)
    kind_of = Kind.QUOTA if status == 400 and any(words in said.lower() for words in _PAID_OUT) else Kind.PERMANENT
    return Verdict(kind_of, f"{reason}: {said}" if said else reason)


def _status_of(error: object) -> int:
    """The status of an error that came within an answer; 500 for one that nobody knows."""
    return _STATUS.get(str(error.get("type")), 500) if isinstance(error, dict) else 500

"""Chat completions as OpenAI has them, at any base URL: OpenAI itself, other houses, models on this machine.

Source: the facts about providers, section 6. Answers are streamed. Servers differ in what they take (``max_tokens`` or
``max_completion_tokens``, ``stream_options``): what one refuses by name is not sent to it again. There is no idempotency key: an answer that does not
come is an unknown outcome, and may be billed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from duly._version import __version__
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

#: Whose fault an answer is (codes and types of errors of OpenAI, Azure, vLLM, llama.cpp and OpenRouter).
VERDICTS: tuple[Row, ...] = (
    # nothing is answered before somebody has paid or raised a limit
    *(Row(None, word, Kind.QUOTA, Owner.ACCOUNT, "somebody has to pay, or to raise a limit") for word in (
        "insufficient_quota", "credit_balance_exhausted", "organization_spend_limit_exceeded", "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded", "billing_hard_limit_reached", "billing_not_active",
    )),
    *(Row(None, word, Kind.PERMANENT, Owner.SESSION, "the conversation is too long", is_too_long=True) for word in (
        "context_length_exceeded", "exceed_context_size_error", "string_above_max_length",
    )),
    *(Row(None, word, Kind.PERMANENT, Owner.SESSION, "the provider does not answer what it holds") for word in (
        "content_filter", "content_policy_violation", "moderation_blocked",
    )),
    *(Row(None, word, Kind.AUTH, Owner.CONFIGURATION, "the model is not known there") for word in (
        "model_not_found", "model_not_available", "deployment_not_found", "DeploymentNotFound",
    )),
    *(Row(status, "invalid_api_key", Kind.AUTH, Owner.ACCOUNT, "the key is not taken") for status in (400, 401, 403)),
    Row(403, "unsupported_country_region_territory", Kind.AUTH, Owner.ACCOUNT, "not from this country"),
)  # fmt: skip
#: What an error within a stream says, as the status that it would have had.
_STATUS = {
    "rate_limit_exceeded": 429, "rate_limit_error": 429, "slow_down": 429, "requests": 429, "tokens": 429, "invalid_api_key": 401,
    "authentication_error": 401, "permission_error": 403, "invalid_request_error": 400, "context_length_exceeded": 400,
    "exceed_context_size_error": 400, "model_not_found": 404, "content_filter": 400,
}  # fmt: skip
#: Why an answer ended, in small letters. One that is not here is ``Stop.OTHER``: nothing is called.
_STOPS = {
    "stop": Stop.END, "end_turn": Stop.END, "eos": Stop.END, "eos_token": Stop.END, "stop_sequence": Stop.END, "tool_calls": Stop.CALLS,
    "tool_call": Stop.CALLS, "tool_use": Stop.CALLS, "function_call": Stop.CALLS, "length": Stop.LENGTH, "max_tokens": Stop.LENGTH,
    "model_length": Stop.LENGTH, "content_filter": Stop.FILTERED, "safety": Stop.FILTERED, "recitation": Stop.FILTERED,
}  # fmt: skip
#: What a server refused by its name: (URL, model) → names. For the life of the process.
_refused: dict[tuple[str, str], frozenset[str]] = {}
#: Seconds for the question what models there are.
_CHECKED_WITHIN = 15.0


class OpenAICompatible:
    """``base_url``: up to and without ``/chat/completions``; https, or plain http on this machine. ``key`` None: none is sent.
    ``timeout``: the longest silence, in seconds. ``max_tokens``: of an answer whose question names none. Raises InvalidArgument.
    """

    name = "openai"

    def __init__(
        self, *, base_url: str = "https://api.openai.com/v1", model: str = "", key: str | None = None, prices: Prices | None = None,
        timeout: float = 120.0, max_tokens: int | None = 4096, name: str | None = None,
    ) -> None:  # fmt: skip
        self._at = shared.Endpoint(base_url, key, "ai_base_url", "ai_api_key")
        self._model, self._timeout, self._max_tokens = model, timeout, max_tokens
        self.prices = prices
        if name is not None:
            self.name = name

    def __repr__(self) -> str:
        return f"OpenAICompatible({self._at!r}, model={self._model!r})"

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
        model = self._known(question.model)
        place, names = (self._at.url, model), shared.Names(question)
        without = _refused.get(place, frozenset())
        while True:
            sent = body(question, model, self._max_tokens, names, without, self._origin(model))
            try:
                answer = await self._asked(sent, question, say, names)
            except _Unliked as error:
                without |= {error.name}  # it is not sent again, so this ends
                continue
            _refused[place] = without  # it is known now that it takes the rest
            return answer

    def missing(self, model: str | None = None) -> str:
        return "" if model or self._model else shared.unset("ai_model")

    def _known(self, model: str | None = None) -> str:
        """The model. Raises Refusal (AUTH): there is none."""
        if why := self.missing(model):
            raise refusal(Kind.AUTH, why)
        return model or self._model

    async def check(self) -> str:
        self._known()
        answer = await shared.http().request(
            "GET", f"{self._at.url}/models", timeout=min(self._timeout, _CHECKED_WITHIN), headers=self._headers()
        )
        if answer.status != 200:
            if answer.status in (404, 405):
                return f"{self._at!r} answers; it has no list of models to look for {self._model} in"
            word = word_of(answer.body.get("error"), answer.json if isinstance(answer.json, dict) else None)
            raise classify(answer.status, answer.headers, answer.body.get("error"), self._at.clean, word)
        listed = answer.body.get("data")
        known = {one.get("id") for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()
        return f"{self._at!r} answers, and {'knows' if self._model in known else 'does not list'} {self._model}"

    def _origin(self, model: str) -> str:
        return f"openai {self._at.url} {model}"

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": f"duly/{__version__}"}
        if self._at.key:
            headers["Authorization"] = f"Bearer {self._at.key}"
        return headers

    async def _asked(
        self, sent: Mapping[str, Any], question: Question, say: Callable[[str], None], names: shared.Names
    ) -> Answer:
        """Asked once. Raises Refusal, _Unliked."""
        outbound = shared.http()
        async with outbound.stream(
            "POST", f"{self._at.url}/chat/completions", timeout=self._timeout, headers=self._headers(), content=orjson.dumps(sent)
        ) as streamed:  # fmt: skip
            if streamed.status != 200:
                error, word = await shared.error_of(streamed)
                unliked = _unliked(streamed.status, error, sent)
                if unliked:
                    raise _Unliked(unliked)
                raise classify(streamed.status, streamed.headers, error, self._at.clean, word)
            gathered = _Gathered(say, names, f"call-{len(question.messages)}", self._origin(sent["model"]))
            if not streamed.has_events:  # a server that does not stream
                whole = await streamed.whole()
                if not whole.body.get("choices") and not whole.body.get("error"):
                    word = word_of(None, whole.body if isinstance(whole.json, dict) else None)
                    raise classify(streamed.status, {}, None, self._at.clean, word)
                self._take(gathered, whole.body)
                return gathered.answer("it says no reason why it ended")
            reason = "it ended without saying why"
            try:
                async with aclosing(streamed.events()) as events:
                    async for event in events:
                        if event.data.strip() == "[DONE]":
                            gathered.is_done = True
                            break
                        try:
                            chunk = shared.loads(event.data)
                        except ValueError:
                            raise shared.broke_off("what came is not JSON", gathered.usage) from None
                        self._take(gathered, chunk)
            except Refusal as error:
                if error.verdict.kind is not Kind.UNKNOWN:
                    raise
                reason = error.verdict.reason
            return gathered.answer(reason)

    def _take(self, gathered: _Gathered, chunk: object) -> None:
        """One piece of an answer. Raises Refusal: it is an error."""
        if not isinstance(chunk, dict):
            return
        if chunk.get("error"):
            error = chunk["error"]
            raise classify(_status_of(error), {}, error, self._at.clean)
        gathered.add(chunk)


class _Unliked(Exception):
    """A field was refused by its name; without it, or under its other name, it may go."""

    def __init__(self, name: str) -> None:
        self.name = name


# ---------------------------------------------------------------------- what is told


def body(
    question: Question, model: str, max_tokens: int | None, names: shared.Names, without: frozenset[str] = frozenset(), origin: str = ""
) -> dict[str, Any]:  # fmt: skip
    """The body of the request. ``without``: names that this server refused; ``origin``: whose own messages go back unchanged."""
    made: dict[str, Any] = {
        "model": model,
        "messages": [_message(m, names, origin) for m in shared.threaded(question.messages, origin)],
        "stream": True,
    }
    if "stream_options" not in without:
        made["stream_options"] = {"include_usage": True}
    most = question.max_tokens or max_tokens
    if most is not None:
        made["max_completion_tokens" if "max_tokens" in without else "max_tokens"] = most
    if question.temperature is not None:
        made["temperature"] = question.temperature
    if question.tools:
        made["tools"] = [
            {"type": "function", "function": {"name": names.wire(t.name), "description": t.description, "parameters": dict(t.parameters)}}
            for t in question.tools
        ]  # fmt: skip
    return made


def _message(message: Message, names: shared.Names, origin: str = "") -> dict[str, Any]:
    if message.role is Role.TOOL:
        return {"role": "tool", "tool_call_id": message.call_id or "", "content": message.text}
    kept: dict[str, Any] = {}
    if (
        message.original is not None
        and message.original.origin == origin
        and isinstance(message.original.message, dict)
    ):
        kept = copy.deepcopy(message.original.message)
    made: dict[str, Any] = {"role": message.role.value, "content": message.text, **kept}
    if not message.calls:
        return made
    if not message.text.strip() and not isinstance(made["content"], list):
        made["content"] = None  # an empty text is refused by some
    own = kept.get("tool_calls")
    whole = own if isinstance(own, list) and len(own) == len(message.calls) else [{}] * len(message.calls)
    made["tool_calls"] = [_call(c, names, one) for c, one in zip(message.calls, whole, strict=True)]
    return made


def _call(call: ToolCall, names: shared.Names, kept: dict[str, Any]) -> dict[str, Any]:
    """A call as it goes back. Arguments that are JSON stay as they were written; others would have some servers refuse the conversation for
    good, and are shown as one text."""
    own = kept.get("function")
    function: dict[str, Any] = own if isinstance(own, dict) else {}
    written = function.get("arguments") if not call.written and call.arguments else None
    if not isinstance(written, str):
        written = orjson.dumps(dict(call.shown)).decode()
    return {
        **kept,
        "id": call.id,
        "type": "function",
        "function": {**function, "name": names.wire(call.name), "arguments": written},
    }


# ---------------------------------------------------------------------- what is answered


@dataclass(slots=True)
class _Call:
    """A call that is still being written. ``rest``: what else was said of it."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    rest: dict[str, Any] = field(default_factory=dict)
    function: dict[str, Any] = field(default_factory=dict)

    def original(self) -> dict[str, Any]:
        function = {**self.function, "name": self.name, "arguments": self.arguments}
        return {**self.rest, "id": self.id, "type": "function", "function": function}


class _Gathered:
    """An answer, put together from its pieces."""

    def __init__(self, say: Callable[[str], None], names: shared.Names, ident: str, origin: str = "") -> None:
        self._speech, self._names, self._ident, self._origin = shared.Speech(say), names, ident, origin
        self._calls: list[_Call] = []
        #: The call that is written at an index: some servers give each its own id, and all of them the index 0.
        self._open: dict[Any, _Call] = {}
        self._rest: dict[str, Any] = {}
        #: The content where it came as a list of parts.
        self._parts: list[Any] = []
        self._has_parts = False
        self._why, self.usage, self.is_done = "", Usage(is_complete=False), False

    def add(self, chunk: Mapping[str, Any]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            told, said = shared.whole(usage.get("prompt_tokens")), shared.whole(usage.get("completion_tokens"))
            if told or said:
                self.usage = Usage(told, said)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or choice.get("index") not in (0, None):
                continue
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                self._speech.arrived(delta, ("content", "refusal"), "role")
                self._part(delta.get("content"))
                shared.merge(
                    self._rest,
                    {k: v for k, v in delta.items() if k not in ("role", "content", "refusal", "tool_calls")},
                )
                pieces = delta.get("tool_calls")
                for place, piece in enumerate(pieces if isinstance(pieces, list) else ()):
                    if isinstance(piece, dict):
                        self._called(piece, place)
            why = choice.get("finish_reason")
            if isinstance(why, str) and why:
                self._why = why

    def _part(self, content: object) -> None:
        self._has_parts = self._has_parts or isinstance(content, list)
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}] if content else ():
            last = self._parts[-1] if self._parts else None
            if isinstance(last, dict) and isinstance(part, dict) and last.keys() == part.keys() == {"type", "text"}:
                last["text"] = f"{last['text']}{part['text']}"
            else:
                self._parts.append(copy.deepcopy(part))

    def _called(self, piece: Mapping[str, Any], place: int) -> None:
        index, ident = piece.get("index"), piece.get("id")
        index = place if index is None else index
        ident = ident if isinstance(ident, str) else ""
        one = self._open.get(index)
        if one is None or (ident and one.id and ident != one.id):
            one = self._open[index] = _Call()
            self._calls.append(one)
        one.id = one.id or ident
        shared.merge(one.rest, {k: v for k, v in piece.items() if k not in ("index", "id", "type", "function")})
        function = piece.get("function")
        if not isinstance(function, dict):
            return
        shared.merge(one.function, {k: v for k, v in function.items() if k not in ("name", "arguments")})
        name, written = function.get("name"), function.get("arguments")
        one.name = one.name or (name if isinstance(name, str) else "")
        if isinstance(written, dict):
            written = orjson.dumps(written).decode()
        one.arguments += written if isinstance(written, str) else ""

    def answer(self, reason: str) -> Answer:
        """The whole of it. ``reason``: why there is no more. Raises Refused (UNKNOWN): it did not come to its end. ``[DONE]`` is an end, too;
        without a ``finish_reason`` a call that has no arguments may not have come whole."""
        if not self._why and not self.is_done:
            raise shared.broke_off(reason, self.usage)
        text, calls, taken = self._speech.text(), list[ToolCall](), set[str]()
        for number, one in enumerate(self._calls, start=1):
            ident = one.id if one.id and one.id not in taken else f"{self._ident}-{number}"
            taken.add(ident)
            made = shared.call(ident, self._names.name(one.name), one.arguments)
            if not self._why and not one.arguments.strip():
                made = replace(made, problem="its arguments did not come: the answer ended without saying why")
            calls.append(made)
        stop = _STOPS.get(self._why.lower(), Stop.OTHER) if self._why else Stop.END
        if calls and stop is Stop.END:
            stop = Stop.CALLS
        elif stop is Stop.CALLS and not calls:
            stop = Stop.END
        kept: dict[str, Any] = {
            "role": "assistant",
            **self._rest,
            "content": self._parts if self._has_parts else text or None,
        }
        if self._calls:
            kept["tool_calls"] = [one.original() for one in self._calls]
        return Answer(text, tuple(calls), self.usage, stop, self._why, Original(self._origin, kept))


# ---------------------------------------------------------------------- what refusals mean


def classify(
    status: int, headers: Mapping[str, str], error: object, clean: Callable[[object], str], word: str = ""
) -> Refused:  # fmt: skip
    """What an answer that is no answer means (``VERDICTS``). ``error``: its object of that name; ``clean``: as ``Endpoint.clean``; ``word``:
    what stands for an answer without an error."""
    found = error if isinstance(error, dict) else {}
    words = [w for w in (shared.code(found.get("code")), shared.code(found.get("type")), word) if w]
    if status in (400, 413, 422) and shared.is_too_long(str(found.get("message") or "")):
        words.append("context_length_exceeded")  # not every server has a word for it
    said = (
        "" if status in (401, 403) else clean(found.get("message") if found else error)
    )  # it may hold a part of the key
    return refused(VERDICTS, status, words, after=shared.waits(headers), said=said, limit=shared.limit_of(error))


def _status_of(error: object) -> int:
    """The status of an error that came within an answer; 500 for one that says nothing of the kind."""
    if not isinstance(error, dict):
        return 500
    for word in (error.get("code"), error.get("status"), error.get("type")):
        if isinstance(word, int) and not isinstance(word, bool) and 400 <= word < 600:
            return word
        if isinstance(word, str) and word in _STATUS:
            return _STATUS[word]
        if isinstance(word, str) and word.isascii() and word.isdigit() and 400 <= int(word[:4]) < 600:
            return int(word)
    return 500


def _unliked(status: int, error: object, sent: Mapping[str, Any]) -> str:
    """What an answer refuses by its name, among what can be left out; empty: nothing of the kind."""
    if status not in (400, 422):
        return ""
    found = error if isinstance(error, dict) else {"message": error}
    words = f"{found.get('param') or ''} {found.get('message') or ''}"
    return next((name for name in ("stream_options", "max_tokens") if name in sent and name in words), "")

"""Chat completions as OpenAI has them, at any base URL: OpenAI itself, other houses, models on this machine.

Source: the facts about providers, section 6. Answers are streamed. Servers differ in what they take (``max_tokens`` or
``max_completion_tokens``, ``stream_options``): what one refuses by name is not sent to it again. There is no idempotency key: an answer that does not
come is an unknown outcome, and may be billed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from duly._version import __version__
from duly.automations.providers import shared
from duly.automations.providers.base import Answer, Message, Prices, Question, Role, Stop, ToolCall, Usage
from duly.kernel.verdict import Kind, Refusal, Verdict, refusal

#: Codes and types of errors after which nothing is answered before somebody has paid or raised a limit.
_PAID_OUT = frozenset({
    "insufficient_quota", "credit_balance_exhausted", "organization_spend_limit_exceeded", "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded", "billing_hard_limit_reached", "billing_not_active",
})  # fmt: skip
#: What an error within a stream says, as the status that it would have had.
_STATUS = {
    "rate_limit_exceeded": 429, "rate_limit_error": 429, "slow_down": 429, "requests": 429, "tokens": 429, "invalid_api_key": 401,
    "authentication_error": 401, "permission_error": 403, "invalid_request_error": 400, "context_length_exceeded": 400,
}  # fmt: skip
_STOPS = {
    "stop": Stop.END, "tool_calls": Stop.CALLS, "function_call": Stop.CALLS, "length": Stop.LENGTH, "content_filter": Stop.FILTERED,
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

    async def is_reachable(self) -> bool:
        return await self._at.is_reachable()

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        model = self._known(question.model)
        place, names = (self._at.url, model), shared.Names(question)
        without = _refused.get(place, frozenset())
        while True:
            sent = body(question, model, self._max_tokens, names, without)
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
            raise Refusal(classify(answer.status, answer.headers, answer.body.get("error"), self._at.clean))
        listed = answer.body.get("data")
        known = {one.get("id") for one in listed if isinstance(one, dict)} if isinstance(listed, list) else set()
        return f"{self._at!r} answers, and {'knows' if self._model in known else 'does not list'} {self._model}"

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
                error = await shared.error_of(streamed)
                found = classify(streamed.status, streamed.headers, error, self._at.clean)
                unliked = _unliked(streamed.status, error, sent)
                raise _Unliked(unliked) if unliked else Refusal(found)
            gathered = _Gathered(say, names, f"call-{len(question.messages)}")
            if not streamed.has_events:  # a server that does not stream
                whole = (await streamed.whole()).body
                if not whole.get("choices") and not whole.get("error"):
                    raise Refusal(classify(streamed.status, {}, None, self._at.clean))
                self._take(gathered, whole)
                return gathered.answer("it says no reason why it ended")
            reason = "it ended without saying why"
            try:
                async with aclosing(streamed.events()) as events:
                    async for event in events:
                        if event.data.strip() == "[DONE]":
                            break
                        try:
                            chunk = shared.loads(event.data)
                        except ValueError:
                            raise shared.broke_off("what came is not JSON") from None
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
            raise Refusal(classify(_status_of(error), {}, error, self._at.clean))
        gathered.add(chunk)


class _Unliked(Exception):
    """A field was refused by its name; without it, or under its other name, it may go."""

    def __init__(self, name: str) -> None:
        self.name = name


# ---------------------------------------------------------------------- what is told


def body(
    question: Question, model: str, max_tokens: int | None, names: shared.Names, without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The body of the request. ``without``: names that this server refused."""
    made: dict[str, Any] = {
        "model": model,
        "messages": [_message(m, names) for m in shared.threaded(question.messages)],
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


def _message(message: Message, names: shared.Names) -> dict[str, Any]:
    if message.role is Role.TOOL:
        return {"role": "tool", "tool_call_id": message.call_id or "", "content": message.text}
    made: dict[str, Any] = {"role": message.role.value, "content": message.text}
    if message.calls:
        made["content"] = message.text or None
        made["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": names.wire(c.name), "arguments": orjson.dumps(dict(c.arguments)).decode()}}
            for c in message.calls
        ]  # fmt: skip
    return made


# ---------------------------------------------------------------------- what is answered


@dataclass(slots=True)
class _Call:
    """A call that is still being written."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class _Gathered:
    """An answer, put together from its pieces."""

    def __init__(self, say: Callable[[str], None], names: shared.Names, ident: str) -> None:
        self._speech, self._names, self._ident = shared.Speech(say), names, ident
        self._calls: list[_Call] = []
        #: The call that is written at an index: some servers give each its own id, and all of them the index 0.
        self._open: dict[Any, _Call] = {}
        self._why, self._usage = "", Usage(is_complete=False)

    def add(self, chunk: Mapping[str, Any]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            told, said = shared.whole(usage.get("prompt_tokens")), shared.whole(usage.get("completion_tokens"))
            if told or said:
                self._usage = Usage(told, said)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or choice.get("index") not in (0, None):
                continue
            delta = choice.get("delta") or choice.get("message")
            if isinstance(delta, dict):
                self._speech.arrived(delta, ("content", "refusal"), "role")
                pieces = delta.get("tool_calls")
                for place, piece in enumerate(pieces if isinstance(pieces, list) else ()):
                    if isinstance(piece, dict):
                        self._called(piece, place)
            why = choice.get("finish_reason")
            if isinstance(why, str) and why:
                self._why = why

    def _called(self, piece: Mapping[str, Any], place: int) -> None:
        index, ident = piece.get("index"), piece.get("id")
        index = place if index is None else index
        ident = ident if isinstance(ident, str) else ""
        one = self._open.get(index)
        if one is None or (ident and one.id and ident != one.id):
            one = self._open[index] = _Call()
            self._calls.append(one)
        one.id = one.id or ident
        function = piece.get("function")
        if not isinstance(function, dict):
            return
        name, written = function.get("name"), function.get("arguments")
        one.name = one.name or (name if isinstance(name, str) else "")
        if isinstance(written, dict):
            written = orjson.dumps(written).decode()
        one.arguments += written if isinstance(written, str) else ""

    def answer(self, reason: str) -> Answer:
        """The whole of it. ``reason``: why there is no more. Raises Refusal (UNKNOWN): it did not come to its end."""
        if not self._why:
            raise shared.broke_off(reason)
        text, calls, taken = self._speech.text(), list[ToolCall](), set[str]()
        for number, one in enumerate(self._calls, start=1):
            ident = one.id if one.id and one.id not in taken else f"{self._ident}-{number}"
            taken.add(ident)
            calls.append(shared.call(ident, self._names.name(one.name), one.arguments))
        stop = _STOPS.get(self._why, Stop.END)
        if calls and stop is Stop.END:
            stop = Stop.CALLS
        elif stop is Stop.CALLS and not calls:
            stop = Stop.END
        return Answer(text, tuple(calls), self._usage, stop)


# ---------------------------------------------------------------------- what refusals mean


def classify(status: int, headers: Mapping[str, str], error: object, clean: Callable[[object], str]) -> Verdict:
    """What an answer that is no answer means. ``error``: its object of that name; ``clean``: as ``Endpoint.clean``."""
    found = error if isinstance(error, dict) else {}
    words = [shared.code(found.get("code")), shared.code(found.get("type"))]
    reason = f"the AI answered {status} {words[0] or words[1]}".rstrip()
    if _PAID_OUT & set(words) or status == 402:
        return Verdict(Kind.QUOTA, reason)
    after = shared.waits(headers)
    if status == 429:
        return Verdict(Kind.THROTTLED, reason, after)
    if status in (401, 403):
        return Verdict(Kind.AUTH, reason)  # what else it says may hold a part of the key
    if status in (408, 409, 425) or status >= 500:
        return Verdict(Kind.TRANSIENT, reason, after)
    if status < 400:
        return Verdict(Kind.PERMANENT, f"{reason}: that is not how this API answers. Is the base URL right?")
    said = clean(found.get("message") if found else error)
    return Verdict(Kind.PERMANENT, f"{reason}: {said}" if said else reason)


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

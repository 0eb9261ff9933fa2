"""An AI on loopback that speaks as OpenAI's chat completions and as Anthropic's Messages, by the path that is asked.

It runs on a thread of the test, so a worker that is killed in another process leaves it as it was. ``answers`` are given in order, one to each
question; where there are none, ``by_question`` answers by what it is asked, so that a question that is asked again is answered again alike.
``questions`` is what it was asked, in order.

::

    with AI().listening() as ai:
        ai.answers.append(Says("Hello", calls=[("EMAIL_SEND", {"to": "a@example.com"})]))
        OpenAICompatible(base_url=ai.openai_url, model="test")      # or Anthropic(base_url=ai.anthropic_url, model="test", key="…")
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeAlias

from listening import listening

#: A server that hangs, hangs no longer than this: a test that waits for it has gone wrong.
HANGS_FOR = 60.0


@dataclass(frozen=True)
class Asked:
    """A question as it came. ``body``: its JSON, {} for a GET."""

    api: str  #: "openai" or "anthropic"
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", ()))

    @property
    def last(self) -> str:
        """The last message, as text."""
        content = self.messages[-1]["content"] if self.messages else ""
        return content if isinstance(content, str) else json.dumps(content)

    @property
    def rounds(self) -> int:
        """How many answers the conversation has."""
        return sum(message["role"] == "assistant" for message in self.messages)


@dataclass(frozen=True)
class Says:
    """An answer in pieces. ``calls``: (name, arguments), arguments as a text go out as they are. ``cut_after``: the connection is lost after so many
    events; ``ends_after``: the stream ends there in good order. ``pause``: seconds between two events. ``hangs_after``: nothing comes after so many, for ``hangs_for`` seconds.
    ``error``: an error event in the place of the end: (type, message). ``usage`` False: tokens are not told."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    tokens: tuple[int, int] = (100, 20)
    stop: str | None = None
    pieces: int = 4
    cut_after: int | None = None
    ends_after: int | None = None
    hangs_after: int | None = None
    hangs_for: float = HANGS_FOR
    pause: float = 0.0
    error: tuple[str, str] | None = None
    usage: bool = True
    ids: Sequence[str] = ()


@dataclass(frozen=True)
class Status:
    """An answer that is none."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def error(
        status: int,
        type: str = "",
        message: str = "",
        *,
        code: str | None = None,
        param: str | None = None,
        **headers: str,
    ) -> Status:
        """With the error object of both APIs. ``headers``: underscores stand for hyphens."""
        error: dict[str, Any] = {"type": type, "message": message, "code": code, "param": param}
        return Status(status, {"type": "error", "error": error}, {k.replace("_", "-"): v for k, v in headers.items()})


@dataclass(frozen=True)
class Gone:
    """The connection is closed without an answer."""


@dataclass(frozen=True)
class Silent:
    """No answer for ``seconds``, or until the other side has had enough; then a late one."""

    seconds: float = HANGS_FOR


Reply: TypeAlias = Says | Status | Gone | Silent


class AI:
    def __init__(self) -> None:
        self.answers: list[Reply] = []
        self.by_question: Callable[[Asked], Reply] = lambda asked: Says("Yes.")
        self.questions: list[Asked] = []
        #: The key that is taken; None: any, and none.
        self.key: str | None = None
        self.models: tuple[str, ...] = ("test",)
        #: Questions whose answer the other side did not wait for.
        self.left = 0
        self.port = 0
        self._changed = threading.Condition()

    @property
    def openai_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def listening(self) -> Iterator[AI]:
        ai = self

        class Handler(_Handler):
            server_ai = ai

        with listening(Handler) as self.port:
            yield self

    def until(self, condition: Callable[[], bool], within: float = 30.0) -> None:
        """Wait until it holds. Asked anew at each question, and at each that was left."""
        with self._changed:
            assert self._changed.wait_for(condition, within), "it did not come about"

    # ------------------------------------------------------------------ for the handler

    def reply(self, asked: Asked) -> Reply:
        with self._changed:
            self.questions.append(asked)
            found = self.answers.pop(0) if self.answers else None
            self._changed.notify_all()
        return found if found is not None else self.by_question(asked)

    def was_left(self) -> None:
        with self._changed:
            self.left += 1
            self._changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    server_ai: AI
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._send(
            Status(200, {"data": [{"id": m} for m in self.server_ai.models]}) if self._may() else self._refused()
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        api = {"/v1/chat/completions": "openai", "/v1/messages": "anthropic"}.get(self.path, "")
        if not api:
            self._send(Status.error(404, "not_found_error", "no such path"))
            return
        if not self._may():
            self._send(self._refused())
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server_ai.reply(Asked(api, self.path, headers, body))
        if isinstance(reply, Status):
            self._send(reply)
        elif isinstance(reply, Gone):
            self._cut()
        else:
            if isinstance(reply, Silent):
                if self._hang(reply.seconds):
                    return
                reply = Says("Late.")
            self._stream(reply, openai(reply, body) if api == "openai" else anthropic(reply, body))

    def _may(self) -> bool:
        key = self.server_ai.key
        given = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        return key is None or given == key

    def _refused(self) -> Status:
        given = self.headers.get("x-api-key") or self.headers.get("authorization", "")
        return Status.error(401, "authentication_error", f"Incorrect API key provided: {given}", code="invalid_api_key")

    def _send(self, reply: Status) -> None:
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def _stream(self, reply: Says, events: list[str]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for number, event in enumerate(events):
                if number == reply.cut_after:
                    self._cut()
                    return
                if number == reply.ends_after:
                    break
                if number == reply.hangs_after and self._hang(reply.hangs_for):
                    return
                if number and reply.pause and self._hang(reply.pause):
                    return
                data = event.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server_ai.was_left()

    def _hang(self, seconds: float) -> bool:
        """Nothing, for so long or until the other side has gone; is it gone?"""
        self.close_connection = True
        end = time.monotonic() + seconds
        self.connection.settimeout(0.02)
        while time.monotonic() < end:
            try:
                gone = not self.connection.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                continue
            except OSError:
                gone = True
            if gone:
                self.server_ai.was_left()
                return True
        self.connection.settimeout(None)
        return False

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _pieces(text: str, number: int) -> list[str]:
    size = max(1, -(-len(text) // number))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _arguments(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def openai(reply: Says, body: Mapping[str, Any]) -> list[str]:
    """The events of an answer, as OpenAI sends them."""

    def chunk(delta: dict[str, Any], why: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": why}
        return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice], 'usage': None})}\n\n"

    events = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": p}) for p in _pieces(reply.text, reply.pieces)),
    ]
    for index, (name, arguments) in enumerate(reply.calls):
        ident = reply.ids[index] if index < len(reply.ids) else f"call_{index}"
        first = {"index": index, "id": ident, "type": "function", "function": {"name": name, "arguments": ""}}
        events.append(chunk({"tool_calls": [first]}))
        events += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in _pieces(_arguments(arguments), reply.pieces)
        ]
    if reply.error is not None:
        kind, message = reply.error
        return [*events, f"data: {json.dumps({'error': {'type': kind, 'message': message, 'code': None}})}\n\n"]
    events.append(chunk({}, reply.stop or ("tool_calls" if reply.calls else "stop")))
    if reply.usage and body.get("stream_options", {}).get("include_usage"):
        told, said = reply.tokens
        usage = {"prompt_tokens": told, "completion_tokens": said, "total_tokens": told + said}
        events.append(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n")
    return [*events, "data: [DONE]\n\n"]


def anthropic(reply: Says, body: Mapping[str, Any]) -> list[str]:
    """The events of an answer, as Anthropic sends them."""

    def event(kind: str, **facts: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n"

    told, said = reply.tokens if reply.usage else (0, 0)
    events = [
        event(
            "message_start",
            message={"role": "assistant", "content": [], "usage": {"input_tokens": told, "output_tokens": 1}},
        ),
        event("ping"),
    ]
    index = 0
    if reply.text:
        events.append(event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
        events += [
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": p})
            for p in _pieces(reply.text, reply.pieces)
        ]
        events.append(event("content_block_stop", index=0))
        index = 1
    for number, (name, arguments) in enumerate(reply.calls):
        ident = reply.ids[number] if number < len(reply.ids) else f"toolu_{number}"
        at = index + number
        events.append(
            event(
                "content_block_start",
                index=at,
                content_block={"type": "tool_use", "id": ident, "name": name, "input": {}},
            )
        )
        events += [
            event("content_block_delta", index=at, delta={"type": "input_json_delta", "partial_json": p})
            for p in _pieces(_arguments(arguments), reply.pieces)
        ]
        events.append(event("content_block_stop", index=at))
    if reply.error is not None:
        kind, message = reply.error
        return [*events, event("error", error={"type": kind, "message": message})]
    why = reply.stop or ("tool_use" if reply.calls else "end_turn")
    return [
        *events,
        event("message_delta", delta={"stop_reason": why}, usage={"output_tokens": said}),
        event("message_stop"),
    ]

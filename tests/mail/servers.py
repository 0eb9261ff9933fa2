"""Servers on this machine that answer as Microsoft Graph, Resend and mail servers do, mishaps included."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeVar
from urllib.parse import parse_qs

from aiosmtpd.smtp import SMTP, AuthResult, Envelope

from listening import listening
from outbox.endpoint import PEM

Reply = tuple[int, Mapping[str, str], Any]
#: Take the message and hang up without an answer.
LOST: Reply = (0, {}, None)


@dataclass
class Asked:
    """A request."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Api:
    """``answers`` come first, each once; then what the real service would say."""

    port: int = 0
    answers: list[Reply] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    #: Messages that were really taken.
    taken: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reply(self, asked: Asked, sending: bool) -> Reply:
        with self.lock:
            self.asked.append(asked)
            answer = self.answers.pop(0) if self.answers and sending else None
            if answer is not None and answer is not LOST:
                return answer
            said = self.real(asked)
            return LOST if answer is LOST else said

    def real(self, asked: Asked) -> Reply:
        raise NotImplementedError

    def sends(self, path: str) -> bool:
        raise NotImplementedError

    @property
    def sent(self) -> list[Asked]:
        return [a for a in self.asked if self.sends(a.path)]


@dataclass
class Graph(Api):
    tokens: int = 0
    expires_in: int = 3600
    #: What a token request is answered with, instead of a token.
    refuses: Reply | None = None
    #: Tokens that are good; None: all.
    good: set[str] | None = None

    def sends(self, path: str) -> bool:
        return path.endswith("/sendMail")

    def real(self, asked: Asked) -> Reply:
        if asked.path.endswith("/oauth2/v2.0/token"):
            if self.refuses is not None:
                return self.refuses
            self.tokens += 1
            return (
                200,
                {},
                {"token_type": "Bearer", "expires_in": self.expires_in, "access_token": f"token-{self.tokens}"},
            )
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if self.good is not None and token not in self.good:
            return 401, {}, {"error": {"code": "InvalidAuthenticationToken", "message": "Lifetime validation failed"}}
        self.taken.append(asked.body)
        return 202, {"request-id": f"request-{len(self.taken)}"}, None


@dataclass
class Resend(Api):
    keys: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def sends(self, path: str) -> bool:
        return path == "/emails"

    def real(self, asked: Asked) -> Reply:
        if asked.headers.get("authorization") != "Bearer re_good":
            return 401, {}, {"statusCode": 401, "name": "validation_error", "message": "API key is invalid"}
        if asked.path == "/domains":
            return (
                401,
                {},
                {"statusCode": 401, "name": "restricted_api_key", "message": "restricted to only send emails"},
            )
        key = asked.headers["idempotency-key"]
        if key in self.keys:
            body, ident = self.keys[key]
            if body != asked.body:
                return 409, {}, {"statusCode": 409, "name": "invalid_idempotent_request", "message": "another body"}
            return 200, {}, {"id": ident}
        self.taken.append(asked.body)
        ident = f"resend-{len(self.taken)}"
        self.keys[key] = asked.body, ident
        return 200, {}, {"id": ident}


A = TypeVar("A", bound=Api)


@contextmanager
def serving(api: A) -> Iterator[A]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            kind = self.headers.get("content-type", "")
            body = json.loads(raw) if "json" in kind else raw if "plain" in kind else parse_qs(raw.decode())
            asked = Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            status, headers, said = api.reply(asked, api.sends(self.path))
            if not status:
                self.close_connection = True
                self.connection.close()
                return
            answer = b"" if said is None else json.dumps(said).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST

        def log_message(self, *args: Any) -> None: ...

    with listening(Handler) as api.port:
        yield api


# ---------------------------------------------------------------------- SMTP


@dataclass
class Arrived:
    """A message that the mail server took."""

    to: list[str]
    content: bytes


@dataclass
class MailServer:
    """A mail server. What it does at a step is set by the test."""

    port: int = 0
    arrived: list[Arrived] = field(default_factory=list)
    #: Recipient → the reply to RCPT, for as often as there are replies.
    replies: dict[str, list[str]] = field(default_factory=dict)
    #: Replies to the end of DATA, one by one; "LOST": take it, then hang up; "GONE": hang up without taking it.
    ends: list[str] = field(default_factory=list)
    #: What a login is answered with when it is not ada's.
    no: str = "535 5.7.8 Wrong"
    sessions: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    async def handle_MAIL(self, server: SMTP, session: Any, envelope: Envelope, address: str, options: Any) -> str:
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(self, server: SMTP, session: Any, envelope: Envelope, address: str, options: Any) -> str:
        self.counts[address] += 1
        replies = self.replies.get(address, [])
        if replies:
            return replies.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Envelope) -> str:
        end = self.ends.pop(0) if self.ends else "250 2.0.0 Ok: queued as 4F2C"
        if end.startswith("2") or end == "LOST":
            assert envelope.original_content is not None
            self.arrived.append(Arrived(list(envelope.rcpt_tos), envelope.original_content))
        if end in ("LOST", "GONE"):
            transport: Any = server.transport
            transport.abort()
            return "421 gone"
        return end

    def authenticate(self, server: SMTP, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        if (data.login, data.password) == (b"ada", b"s3cr:t"):
            return AuthResult(success=True)
        return AuthResult(success=False, handled=False, message=self.no)

    @property
    def got(self) -> list[str]:
        """Every recipient of every message, in order."""
        return [to for message in self.arrived for to in message.to]


@contextmanager
def mail_server(*, login: bool = False, tls: str = "") -> Iterator[MailServer]:
    """``tls``: "" for none, "start" for STARTTLS, "smtps" from the first byte."""
    logging.getLogger("mail.log").setLevel(logging.CRITICAL)
    told, bound = MailServer(), Future[int]()
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PEM)
    state: dict[str, Any] = {}

    def session() -> SMTP:
        told.sessions += 1
        more: dict[str, Any] = {"tls_context": context, "require_starttls": True} if tls == "start" else {}
        if login:
            more |= {"authenticator": told.authenticate, "auth_required": True, "auth_require_tls": False}
        return SMTP(told, enable_SMTPUTF8=True, hostname="localhost", loop=state["loop"], **more)

    async def serve() -> None:
        state["loop"], state["stop"] = asyncio.get_running_loop(), asyncio.Event()
        server = await state["loop"].create_server(session, "127.0.0.1", 0, ssl=context if tls == "smtps" else None)
        bound.set_result(server.sockets[0].getsockname()[1])
        await state["stop"].wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    told.port = bound.result(10)
    try:
        yield told
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join(10)


def trusting() -> ssl.SSLContext:
    """A client's context that knows the certificate of these servers, whatever name it is for."""
    context = ssl.create_default_context(cafile=str(PEM))
    context.check_hostname = False
    return context

"""Servers on this machine that answer as Microsoft Graph, Resend and mail servers do, mishaps included."""

from __future__ import annotations

import asyncio
import base64
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
    method: str = "POST"
    #: Bytes of the body.
    size: int = 0


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
class Draft:
    """A draft with what was attached to it: (name, type, content)."""

    message: Any
    files: list[tuple[str, str, bytes]] = field(default_factory=list)


@dataclass
class Upload:
    """An upload session: for which draft, what, and what has come of it."""

    draft: str
    item: Mapping[str, Any]
    content: bytes = b""


def failed(status: int, code: str) -> Reply:
    return status, {}, {"error": {"code": code, "message": code}}


@dataclass
class Graph(Api):
    """Requests of up to 4 MiB; files between 3 and 150 MB through upload sessions, in pieces of up to 4 MB, in order.

    https://learn.microsoft.com/graph/outlook-large-attachments, https://learn.microsoft.com/graph/api/message-send
    """

    tokens: int = 0
    expires_in: int = 3600
    #: What a token request is answered with, instead of a token.
    refuses: Reply | None = None
    #: Tokens that are good; None: all.
    good: set[str] | None = None
    #: May the application make drafts (Mail.ReadWrite)?
    drafts_allowed: bool = True
    #: The largest message that Exchange sends, in bytes of its files.
    largest: int = 35 * 1024 * 1024
    drafts: dict[str, Draft] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    #: How a request is answered whose method and path hold a text, each once: (text, reply). LOST: it is done, and nobody hears of it.
    mishaps: list[tuple[str, Reply]] = field(default_factory=list)
    #: Drafts that were sent.
    gone: list[Draft] = field(default_factory=list)

    def sends(self, path: str) -> bool:
        return path.endswith(("/sendMail", "/send"))

    def reply(self, asked: Asked, sending: bool) -> Reply:
        mishap = next((one for one in self.mishaps if one[0] in f"{asked.method} {asked.path}"), None)
        if mishap is None:
            return super().reply(asked, sending)
        self.mishaps.remove(mishap)
        if mishap[1] is LOST:
            super().reply(asked, sending)
        else:
            self.asked.append(asked)
        return mishap[1]

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
        if asked.path.startswith("/upload/"):
            return self._piece(asked)
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if self.good is not None and token not in self.good:
            return 401, {}, {"error": {"code": "InvalidAuthenticationToken", "message": "Lifetime validation failed"}}
        if asked.size > 4 * 1024 * 1024:
            return 413, {}, None
        if not asked.path.endswith("/sendMail"):
            return self._draft(asked)
        self.taken.append(asked.body)
        return 202, {"request-id": f"request-{len(self.taken)}"}, None

    def _draft(self, asked: Asked) -> Reply:
        path, _, query = asked.path.partition("?")
        _, _, rest = path.partition("/users/desk@example.org/")
        parts = rest.split("/")
        if not self.drafts_allowed and parts[-1] != "send":
            return failed(403, "ErrorAccessDenied")
        if asked.method == "GET" and rest == "mailFolders/drafts/messages":
            wanted = parse_qs(query)["$filter"][0].removeprefix("internetMessageId eq '").removesuffix("'")
            found = [n for n, draft in self.drafts.items() if draft.message["internetMessageId"] == wanted]
            return 200, {}, {"value": [{"id": ident} for ident in found]}
        if rest == "messages":
            ident = f"AAMk{len(self.asked)}="
            self.drafts[ident] = Draft(asked.body)
            return 201, {}, {"id": ident, "isDraft": True}
        draft = self.drafts.get(parts[1])
        if draft is None:
            return failed(404, "ErrorItemNotFound")
        if asked.method == "DELETE":
            del self.drafts[parts[1]]
            return 204, {}, None
        match parts[2:]:
            case ["attachments"]:
                content = base64.b64decode(asked.body["contentBytes"])
                draft.files.append((asked.body["name"], asked.body["contentType"], content))
                return 201, {}, {"id": "AAMkfile="}
            case ["attachments", "createUploadSession"]:
                item = asked.body["AttachmentItem"]
                if item["size"] < 3_000_000:
                    return failed(400, "ErrorAttachmentSizeShouldNotBeLessThanMinimumSize")
                if item["size"] > 150 * 1024 * 1024:
                    return failed(413, "ErrorAttachmentSizeLimitExceeded")
                name = f"session-{len(self.uploads)}"
                self.uploads[name] = Upload(parts[1], item)
                url = f"{self.url}/upload/{name}?authtoken=eyJ"
                return (
                    201,
                    {},
                    {"uploadUrl": url, "nextExpectedRanges": ["0-"], "expirationDateTime": "2036-01-01T00:00:00Z"},
                )
            case ["send"]:
                assert asked.headers["content-length"] == "0"
                if sum(len(content) for _, _, content in draft.files) > self.largest:
                    return failed(413, "ErrorMessageSizeExceeded")
                self.gone.append(self.drafts.pop(parts[1]))
                self.taken.append(draft.message)
                return 202, {"request-id": f"request-{len(self.taken)}"}, None
        return failed(400, "BadRequest")

    def _piece(self, asked: Asked) -> Reply:
        path, _, query = asked.path.partition("?")
        upload = self.uploads.get(path.removeprefix("/upload/"))
        if upload is None or query != "authtoken=eyJ" or "authorization" in asked.headers:
            return failed(401, "InvalidAuthenticationToken")
        span, total = asked.headers["content-range"].removeprefix("bytes ").split("/")
        first, last = (int(n) for n in span.split("-"))
        if int(total) != upload.item["size"] or last - first + 1 != len(asked.body):
            return failed(400, "InvalidContentRange")
        if first != len(upload.content):
            return failed(416, "ErrorInvalidRange")
        if len(asked.body) > 4_000_000:
            return failed(413, "RequestTooLarge")
        upload.content += asked.body
        if last + 1 < int(total):
            return 200, {}, {"nextExpectedRanges": [str(last + 1)]}
        if upload.draft not in self.drafts:
            return failed(404, "ErrorItemNotFound")
        item = upload.item
        self.drafts[upload.draft].files.append((item["name"], item["contentType"], upload.content))
        return 201, {"Location": f"{self.url}/file"}, None


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
            plain = "plain" in kind or "octet" in kind
            body = json.loads(raw) if "json" in kind else raw if plain else parse_qs(raw.decode())
            asked = Asked(self.path, {k.lower(): v for k, v in self.headers.items()}, body, self.command, len(raw))
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

        do_GET = do_PUT = do_DELETE = do_POST

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

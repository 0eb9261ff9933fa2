"""A server on this machine that does what an API does, and what a script says instead.

A script is a list of replies for requests that match; each is used once, and then the server does again what the real one would.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlsplit

from listening import listening


@dataclass(frozen=True)
class Asked:
    """A request. ``fields``: those of the query, and of a body that is a form, multipart or a JSON object."""

    method: str
    path: str
    headers: Mapping[str, str]
    fields: Mapping[str, Any]
    raw: bytes

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


#: Status, headers, and what becomes JSON (bytes are sent as they are).
Reply: TypeAlias = tuple[int, Mapping[str, str], Any]


@dataclass(frozen=True)
class Lost:
    """Do it, and hang up without an answer."""


@dataclass(frozen=True)
class Gone:
    """Hang up without doing it."""


@dataclass(frozen=True)
class Slow:
    """Do it, and answer only after so many seconds (or when the server ends)."""

    seconds: float = 30.0


@dataclass(frozen=True)
class Then:
    """Do it, call this, and answer (with what it returns, unless that is None)."""

    call: Callable[[Asked], Reply | None]


@dataclass(frozen=True)
class First:
    """Call this before it is done; what it returns is the answer, unless that is None: then it is done."""

    call: Callable[[Asked], Reply | None]


@dataclass(frozen=True)
class Plainly:
    """Do it and answer, as without a script."""


LOST, GONE, PLAINLY = Lost(), Gone(), Plainly()
Step: TypeAlias = Reply | Lost | Gone | Slow | Then | First | Plainly


@dataclass
class Api:
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    #: Headers of every answer (rates).
    says: dict[str, str] = field(default_factory=dict)
    scripts: list[tuple[re.Pattern[str], list[Step]]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def script(self, pattern: str, *steps: Step) -> None:
        """What is answered to requests whose ``METHOD /path`` has ``pattern`` (a regular expression) in it."""
        with self.lock:
            self.scripts.append((re.compile(pattern), list(steps)))

    def count(self, pattern: str) -> int:
        """How many such requests came."""
        with self.lock:
            return sum(1 for one in self.asked if re.search(pattern, one.line))

    def real(self, asked: Asked) -> Reply:
        """What the real service would do and say. Called by one thread at a time."""
        raise NotImplementedError

    def _step(self, asked: Asked) -> Step | None:
        for pattern, steps in self.scripts:
            if steps and pattern.search(asked.line):
                return steps.pop(0)
        return None

    def reply(self, asked: Asked) -> Reply | None:
        """None: hang up."""
        with self.lock:
            self.asked.append(asked)
            step = self._step(asked)
        if isinstance(step, tuple):
            return step
        if isinstance(step, Gone):
            return None
        if isinstance(step, First) and (said := step.call(asked)) is not None:
            return said
        with self.lock:
            done = self.real(asked)
        if isinstance(step, Lost):
            return None
        if isinstance(step, Slow):
            self.ended.wait(step.seconds)
        if isinstance(step, Then) and (said := step.call(asked)) is not None:
            return said
        return done


A = TypeVar("A", bound=Api)


def _fields(kind: str, raw: bytes) -> dict[str, Any]:
    if "json" in kind:
        found = json.loads(raw or b"null")
        return found if isinstance(found, dict) else {}
    if "urlencoded" in kind:
        return dict(parse_qsl(raw.decode(), keep_blank_values=True))
    if "multipart/form-data" in kind:
        whole = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + raw)
        out: dict[str, Any] = {}
        for part in whole.iter_parts():
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            name = str(part.get_param("name", header="content-disposition"))
            out[name] = content if part.get_filename() else content.decode()
        return out
    return {}


@contextmanager
def serving(api: A) -> Iterator[A]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            fields = dict(parse_qsl(parts.query, keep_blank_values=True)) | _fields(
                self.headers.get("content-type", ""), raw
            )
            headers = {k.lower(): v for k, v in self.headers.items()}
            said = api.reply(Asked(self.command, parts.path, headers, fields, raw))
            if said is None:
                self.close_connection = True
                self.connection.close()
                return
            status, more, body = said
            answer = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            standard = {"Content-Type": "application/json", "Content-Length": str(len(answer))}
            for name, value in {**standard, **api.says, **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_DELETE = do_POST

        def log_message(self, *args: Any) -> None: ...

    with listening(Handler) as api.port:
        try:
            yield api
        finally:
            api.ended.set()

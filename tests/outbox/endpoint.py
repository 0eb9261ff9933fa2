"""An HTTP endpoint on this machine, with or without TLS, that writes down what it gets and answers as it is told."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: A certificate for hooks.example.test with its key, made for these tests and worth nothing elsewhere.
PEM = Path(__file__).parent / "hooks.example.test.pem"
NAME = "hooks.example.test"


@dataclass
class Posted:
    """What came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    #: The port of the connection: the same for requests on one connection.
    port: int


@dataclass
class Endpoint:
    """``answers``: status, headers and body of each answer in turn; the last one for all that come later."""

    port: int = 0
    answers: list[tuple[int, Mapping[str, str], bytes]] = field(default_factory=lambda: [(204, {}, b"")])
    posted: list[Posted] = field(default_factory=list)
    #: Instead of answering: the test's own way with the connection.
    instead: Callable[[BaseHTTPRequestHandler], None] | None = None

    def url(self, scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}/hook"


@contextmanager
def endpoint(tls: bool = False) -> Iterator[Endpoint]:
    told = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            told.posted.append(Posted(self.path, dict(self.headers.items()), body, self.client_address[1]))
            if told.instead is not None:
                self.close_connection = True
                told.instead(self)
                return
            status, headers, answer = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # type: ignore[method-assign]  # connections that are broken off
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PEM)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)

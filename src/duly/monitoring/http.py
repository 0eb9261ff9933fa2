"""What a worker answers over HTTP: its metrics, whether it lives, whether it is ready.

* ``/metrics``: for Prometheus.
* ``/livez``: 200 as long as the process answers.
* ``/readyz``: 200 while the worker is ready, else 503 with the reasons, one a line.
* ``/health``: JSON: ``ok``, ``degraded`` (200: alerts are raised) or ``failing`` (503: this worker is not ready, or the database does
  not answer), and the alerts.

``/livez`` and ``/readyz`` also name raised alerts that are known already, one a line, and are not changed by them: an alert is no
reason to take a worker away. Only this machine is answered (127.0.0.1): there is no authentication, and names of queues and tasks
are nobody else's business. The server is the standard library's, on a daemon thread; the database is asked beside it
(``alerts.beside``), so no answer hangs when the database does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import orjson
from prometheus_client import make_wsgi_app

from duly.kernel.errors import InvalidArgument
from duly.monitoring.alerts.beside import Beside, health
from duly.monitoring.metrics import Metrics, WorkerView

HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # HTTPServer's own would look up a name for the address, which takes seconds where DNS is slow.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    timeout = 10  # a client that says nothing is let go

    def log_message(self, format: str, *args: Any) -> None:
        return

    def address_string(self) -> str:
        return str(self.client_address[0])


class Monitor:
    """The running server. ``close`` ends it."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self.port: int = server.server_port
        self.url = f"http://{HOST}:{self.port}"
        self._thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="duly-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=3)


def serve(port: int, metrics: Metrics, beside: Beside | None = None) -> Monitor:
    """Answer on ``port`` of this machine (0: any free one). ``beside``: who knows the alerts. Raises InvalidArgument when it is taken."""
    try:
        server = make_server(HOST, port, answers(metrics, beside), server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        raise InvalidArgument(
            "metrics_port", f"{port} cannot be used: {error.strerror or error}.", "Choose another, or 0 for any."
        ) from None
    return Monitor(server)


def answers(metrics: Metrics, beside: Beside | None = None) -> Callable[..., Iterable[bytes]]:
    """The WSGI application."""
    scrape = make_wsgi_app(metrics.registry)

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        kind = "text/plain; charset=utf-8"
        path, method = environ.get("PATH_INFO", "/"), environ.get("REQUEST_METHOD", "GET")
        if method not in ("GET", "HEAD"):
            status, lines = "405 Method Not Allowed", ["only GET"]
        elif path == "/metrics":
            answer: Iterable[bytes] = scrape(environ, start)
            return answer
        elif path == "/livez":
            status, lines = "200 OK", ["alive", *known(beside)]
        elif path == "/readyz":
            reasons = [*unready(metrics.worker), *metrics.also()]
            status, lines = ("503 Service Unavailable", reasons) if reasons else ("200 OK", ["ready", *known(beside)])
        elif path == "/health":
            well, document = health(beside, [*unready(metrics.worker), *metrics.also()])
            status, kind = "200 OK" if well else "503 Service Unavailable", "application/json"
            lines = [orjson.dumps(document, option=orjson.OPT_UTC_Z).decode()]
        else:
            status, lines = "404 Not Found", ["there are /metrics, /livez, /readyz and /health"]
        body = ("\n".join(lines) + "\n").encode(errors="backslashreplace")
        head = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        start(status, head)
        return [] if method == "HEAD" else [body]

    return application


def known(beside: Beside | None) -> list[str]:
    """Raised alerts as they were seen last, one a line; nothing is asked."""
    standing = beside.last if beside is not None else None
    return [f"alert {a.id}: {a.detail}" for a in standing.raised] if standing is not None else []


def unready(worker: WorkerView | None) -> list[str]:
    """Why a worker is not ready; empty when it is."""
    if worker is None or worker.ready:
        return []
    return worker.problems or [f"the worker is {worker.state}"]

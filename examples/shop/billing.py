"""The billing service of somebody else: it takes signed webhooks and keeps one invoice per message. It knows nothing of Duly.

A webhook is delivered at least once, so the same one may come twice. Its ``webhook-id`` is the same then, and it is the
primary key of the invoices: however often a message comes, it is billed once. It has its moods, too: it is slow, and it
refuses every seventh order at first.

``run.py`` starts it. In a terminal of its own: ``python examples/shop/billing.py var/shop/billing.db --port 8001``.

Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

HOST = "127.0.0.1"
#: Seconds that a webhook may be old: one that somebody recorded cannot be played back for ever.
TOLERANCE = 300
#: Every so many orders are refused at their first attempt.
MOODY = 7

TABLES = """
CREATE TABLE IF NOT EXISTS invoices (
    webhook_id TEXT PRIMARY KEY, number INTEGER NOT NULL, customer TEXT NOT NULL, cents INTEGER NOT NULL,
    place INTEGER NOT NULL, deliveries INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE IF NOT EXISTS refused (webhook_id TEXT PRIMARY KEY);
"""


class Books:
    """The invoices, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._open() as books:
            books.execute("PRAGMA journal_mode=WAL")
            books.executescript(TABLES)

    @contextlib.contextmanager
    def _open(self) -> Any:
        """A connection in a transaction that writes, from its beginning."""
        with contextlib.closing(sqlite3.connect(self._file, timeout=30, isolation_level=None)) as books:
            yield books

    def bill(self, webhook_id: str, order: dict[str, Any]) -> bool:
        """Write the invoice of a message. Returns whether it was new."""
        with self._open() as books:
            # one statement, so two deliveries at the same instant make one invoice
            (deliveries,) = books.execute(
                "INSERT INTO invoices (webhook_id, number, customer, cents, place)"
                " VALUES (?, ?, ?, ?, (SELECT count(*) FROM invoices))"
                " ON CONFLICT (webhook_id) DO UPDATE SET deliveries = deliveries + 1 RETURNING deliveries",
                (webhook_id, order["number"], order["customer"], order["cents"]),
            ).fetchone()
        return bool(deliveries == 1)

    def refuses(self, webhook_id: str, number: int) -> bool:
        """Is it in no mood for this one? It is once, for every seventh order."""
        with self._open() as books:
            return bool(
                number % MOODY == 0
                and books.execute("INSERT OR IGNORE INTO refused VALUES (?)", (webhook_id,)).rowcount == 1
            )

    def all(self) -> dict[str, Any]:
        """Every invoice in the order in which they were written, and how many messages were refused at first."""
        with self._open() as books:
            books.row_factory = sqlite3.Row
            rows = books.execute("SELECT number, customer, cents, deliveries FROM invoices ORDER BY place").fetchall()
            (refused,) = books.execute("SELECT count(*) FROM refused").fetchone()
        return {"invoices": [dict(row) for row in rows], "refused": refused}


class Service(ThreadingHTTPServer):
    """The HTTP server. Of connections that others break off it does not make a fuss."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def is_genuine(secret: bytes, headers: Any, body: bytes, now: float) -> bool:
    """Was it signed with our secret, over this very body, a moment ago? (Standard Webhooks)"""
    ident, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not stamp.isascii() or not stamp.isdigit() or abs(now - int(stamp)) > TOLERANCE:
        return False
    digest = hmac.new(secret, f"{ident}.{stamp}.".encode() + body, hashlib.sha256).digest()
    wanted = f"v1,{base64.b64encode(digest).decode()}"
    # several, while a secret is being exchanged for another
    return any(
        hmac.compare_digest(wanted.encode(), one.encode()) for one in headers.get("webhook-signature", "").split()
    )


def server(books: Books, secret: bytes, port: int, latency: float) -> ThreadingHTTPServer:
    """The service, listening. Raises OSError when the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not is_genuine(secret, self.headers, body, time.time()):
                self.answer(401, {"error": "the signature does not fit"})
                return
            ident, order = self.headers["webhook-id"], json.loads(body)["data"]
            if books.refuses(ident, order["number"]):
                self.answer(503, {"error": "not now"})
                return
            new = books.bill(ident, order)
            # on record before it is answered: a 2xx is a promise. What dies in this moment makes the message come again
            time.sleep(latency)
            self.answer(201 if new else 200, {"billed": order["number"]})

        def do_GET(self) -> None:
            self.answer(200, books.all())

        def answer(self, status: int, document: Any) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Service((HOST, port), Handler)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--port", default=8001, show_default=True, help="The port to listen on; 0 takes a free one.")
@click.option("--latency", default=0.05, show_default=True, help="The seconds it takes over each message.")
@click.option("--secret", envvar="BILLING_SECRET", required=True, help="whsec_ and base64; or BILLING_SECRET.")
def main(file: Path, port: int, latency: float, secret: str) -> None:
    """Bill orders until Ctrl-C. The invoices are kept in FILE, an SQLite database."""
    try:
        service = server(Books(file), base64.b64decode(secret.removeprefix("whsec_")), port, latency)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {HOST}:{port}: {error.strerror}. Name another --port.") from None
    click.echo(f"http://{HOST}:{service.server_address[1]}")
    with contextlib.suppress(KeyboardInterrupt):
        service.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()

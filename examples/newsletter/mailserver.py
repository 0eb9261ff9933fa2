"""A mail server for this machine: it keeps every message in a Maildir and plays the moods of real ones.

It speaks real SMTP, takes its time, refuses two mailboxes for good, and asks for three to be tried again later. Its
messages go nowhere: they are files under ``new/`` that any mail program and any editor can open.

``run.py`` starts one by itself. To have it in a terminal of its own::

    python examples/newsletter/mailserver.py var/newsletter/mail --port 8025
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from concurrent.futures import Future
from mailbox import Maildir
from pathlib import Path
from typing import Any

import click
from aiosmtpd.smtp import SMTP, Envelope

HOST = "127.0.0.1"

#: Mailboxes that are refused for good, with the answer.
REFUSED = {
    "noor.moved@example.net": "550 5.1.1 No such mailbox: its owner has moved away",
    "pauline.closed@example.com": "550 5.2.1 Mailbox closed: nobody has read it for years",
}
#: Mailboxes that are accepted later, and how often they are put off before.
PUT_OFF = {
    "gregory.grey@example.org": 1,
    "gry.grey@example.net": 1,
    "grainne.grey@example.com": 1,
}


class Moods:
    """What the server answers (the handler that aiosmtpd asks)."""

    def __init__(self, folder: Path, latency: float) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._maildir = Maildir(folder, create=True)
        self._latency = latency
        self._put_off: Counter[str] = Counter()

    async def handle_RCPT(self, server: SMTP, session: Any, envelope: Envelope, address: str, options: Any) -> str:
        mailbox = address.lower()
        if mailbox in REFUSED:
            return REFUSED[mailbox]
        if self._put_off[mailbox] < PUT_OFF.get(mailbox, 0):
            self._put_off[mailbox] += 1
            return "451 4.7.1 Not known here yet, please try again later"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Recipient OK"

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Envelope) -> str:
        await asyncio.sleep(self._latency)
        assert envelope.original_content is not None
        content = envelope.original_content.replace(b"\r\n", b"\n")  # as files have it here
        for address in envelope.rcpt_tos:
            # on disk before it is accepted: a 250 is a promise
            self._maildir.add(f"Delivered-To: {address}\n".encode() + content)
        return "250 2.0.0 Kept"


class MailServer:
    """The server on a thread of its own, inside ``with``. ``latency``: the seconds it takes over each message."""

    def __init__(self, folder: Path, *, latency: float = 0.0, port: int = 0) -> None:
        #: The port it listens on; 0 takes a free one.
        self.port = port
        self._moods = Moods(folder, latency)
        self._bound: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="mail-server", daemon=True)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def __enter__(self) -> MailServer:
        """Raises OSError when the port is taken."""
        logging.getLogger("mail.log").setLevel(logging.WARNING)  # it would tell every line of every session
        self._thread.start()
        self.port = self._bound.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            # (aiosmtpd's own Controller cannot be told to take a free port)
            server = await self._loop.create_server(self._session, HOST, self.port)
        except OSError as error:
            self._bound.set_exception(error)
            return
        self._bound.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()

    def _session(self) -> SMTP:
        return SMTP(self._moods, enable_SMTPUTF8=True, hostname="localhost", loop=self._loop)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--port", default=8025, show_default=True, help="The port to listen on; 0 takes a free one.")
@click.option("--latency", default=0.3, show_default=True, help="The seconds it takes over each message.")
def main(folder: Path, port: int, latency: float) -> None:
    """Keep every message in the Maildir FOLDER until Ctrl-C."""
    try:
        with MailServer(folder, latency=latency, port=port) as server:
            click.echo(f"Listening on {server.address}; messages go to {folder}/new. Ctrl-C ends it.")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    except OSError as error:
        raise click.ClickException(f"cannot listen on {HOST}:{port}: {error.strerror}. Name another --port.") from None


if __name__ == "__main__":
    main()

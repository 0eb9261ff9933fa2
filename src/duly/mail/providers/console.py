"""The console: a message is shown and goes nowhere. For looking at templates while they are made."""

from __future__ import annotations

import sys

from duly.kernel.clock import Clock
from duly.mail.message import Message
from duly.mail.mime import compose
from duly.mail.verdict import Receipt
from duly.settings import Settings


class ConsoleProvider:
    name = "console"
    remembers = float("inf")
    concurrency = None

    def __init__(self, settings: Settings, clock: Clock) -> None: ...

    async def send(self, message: Message, key: str) -> Receipt:
        await message.ahead(message.pending)
        shown = compose(message, utf8=True).as_bytes().replace(b"\r\n", b"\n").decode(errors="replace")
        plain = "".join(
            c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in shown
        )  # nothing steers the terminal
        sys.stdout.write(f"--- mail {key}\n{plain}\n---\n")
        sys.stdout.flush()
        return Receipt(remote_id=key)

    async def check(self) -> str:
        return "messages are shown and go nowhere"

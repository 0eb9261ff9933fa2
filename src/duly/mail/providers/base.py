"""What a provider is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from duly.mail.message import Letter, Message
from duly.mail.verdict import Receipt


class Provider(Protocol):
    """Hands one message over, once: no retries, no state about jobs.

    ``send`` awaits ``message.ahead`` with the addresses it is about to hand over, before it does what cannot be taken back. It returns
    when at least one recipient was accepted or every one was answered by itself, and raises ``Undelivered`` when the answer is about
    the message as a whole. ``key`` is the same at every attempt of a job.
    """

    #: As the setting ``mail_provider`` names it.
    name: str
    #: For so many seconds a repeated key is taken for the same message (0: it is sent again).
    remembers: float
    #: How many messages may be under way at once in the whole cluster; None: as many as come.
    concurrency: int | None

    async def send(self, message: Message, key: str) -> Receipt: ...

    async def check(self) -> str:
        """Look whether the configuration works, without sending anything. Returns what was found; raises Undelivered."""
        ...


@runtime_checkable
class ChecksSize(Protocol):
    """A provider that takes no messages above a size, and knows it before it sends."""

    def check_size(self, letter: Letter) -> None:
        """Raises InvalidArgument."""
        ...

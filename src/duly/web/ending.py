"""A server that ends when it is told to: while it starts, and with streams open. It imports little, so that a command has it first of all."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Asked(BaseException):
    """A signal came before there was a server to end."""


class _Server(Protocol):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None: ...


class Ending:
    """What SIGINT and SIGTERM do: until ``serves`` they leave the block at once and without an error, then they are the server's.

    Only on the main thread: Python hears signals on no other.
    """

    def __init__(self) -> None:
        self.asked = False
        self._server: _Server | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Ending:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._server is None:
            raise Asked
        self._server.handle_exit(number, frame)

    def serves(self, server: _Server) -> bool:
        """From now on signals are this server's. Shall it begin? Not where one has come whose exception went nowhere, as in callbacks of the collector."""
        self._server = server
        return not self.asked

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:  # fmt: skip
        for number, handler in self._before.items():
            if handler is not None:  # None: not Python's to set
                signal.signal(number, handler)
        # whoever was interrupted may have made another error of it
        return self.asked and self._server is None


class Streams:
    """Around an application: once ``end`` was called, streams of events end as if their clients had gone, and their answers are complete.

    Whoever still waits for another answer when the server waits no longer is told so (503).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._ends = asyncio.Event()

    def end(self) -> None:
        """On the event loop only."""
        self._ends.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_read = is_begun = is_stream = is_whole = False

        async def heard() -> Message:
            nonlocal is_read
            if not is_read:
                message = await receive()
                is_read = not message.get("more_body", False)
                return message
            # nothing is left but to hear that the client has gone
            left, ends = asyncio.ensure_future(receive()), asyncio.ensure_future(self._ends.wait())
            try:
                await asyncio.wait((left, ends), return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"} if is_stream and not left.done() else await left
            finally:
                left.cancel()
                ends.cancel()

        async def told(message: Message) -> None:
            nonlocal is_begun, is_stream, is_whole
            if message["type"] == "http.response.start":
                is_begun = True
                kinds = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
                is_stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
            elif message["type"] == "http.response.body":
                is_whole = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, heard, told)
        except asyncio.CancelledError:
            if not self._ends.is_set() or is_begun:
                raise
            from duly.web.problems import problem

            await problem(503, "The server is ending, and did not wait for this answer.", headers={"Retry-After": "5"})(
                scope, receive, send
            )
            return
        if is_stream and not is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

"""One admitted request: the application runs, its answer passes through and is recorded, the reservation ends.

**When.** The end is written before the last bytes of the answer leave, so a client that has an answer gets the same one
when it asks again. What the application does after its answer (background tasks) changes nothing. Where the store does not
take the end in a moment, because the application ends its own transaction after its answer and an SQLite file has one writer,
the application goes on and the last bytes are kept back until the end is written, or for a few seconds at most.

**Who goes away.** While an answer is being recorded the application is not told that its client has gone, and what it
sends then is recorded and dropped: the work was begun, so it is finished, and the client's next try gets the answer. An
answer that cannot be kept (too long, a stream of events) is recorded as done at the moment this is known; from then on the
application meets its client's absence as it would without this door, so that no stream runs on for nobody.

**What can happen twice.** A process that dies before the end is written leaves a reservation that lapses; the next try
runs the application again.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

import orjson

from duly.idempotency.http_answer import Kept, encoded, lasting
from duly.idempotency.keeper import KEEPER
from duly.idempotency.reservation import State
from duly.idempotency.store import Holding
from duly.kernel.errors import brief

R = TypeVar("R")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
#: (event, level, facts)
Tell = Callable[..., None]

#: Seconds for which the application is kept waiting for the record of its answer.
MOMENT = 0.1
#: Seconds for which the last bytes of an answer are kept back for it after that.
KEPT_BACK = 5.0

#: Ways of answering that pass this door by; an application that is not offered them sends its answer as usual.
_PAST_US = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


def on_a_thread(fn: Callable[..., R], *args: Any) -> asyncio.Future[R]:
    """Begin it off the loop. It goes on to its end even when the loop ends."""
    run = contextvars.copy_context().run
    return asyncio.get_running_loop().run_in_executor(None, functools.partial(run, fn, *args))


class Replay:
    """The request's body once more: it was read before the application is asked."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        return await self.afterwards()

    async def afterwards(self) -> Message:
        return await self._receive()


class Run(Replay):
    """The application's side of an admitted request. ``run`` is its life; ``leave`` says that nobody waits for it."""

    def __init__(
        self,
        body: bytes,
        receive: Receive,
        send: Send,
        holding: Holding,
        *,
        caller: str,
        remember: Callable[[int], bool],
        max_response: int,
        tell: Tell,
    ) -> None:
        super().__init__(body, receive)
        self._send = send
        self._holding, self._caller, self._tell = holding, caller, tell
        self._remember, self._max = remember, max_response
        self._status = 0
        self._headers: tuple[tuple[bytes, bytes], ...] = ()
        self._answer = bytearray()
        #: The reservation has ended.
        self._ended = False
        #: The answer goes on after that.
        self._streams = False
        self._gone = False
        #: The end is being written, and the last bytes of the answer wait for that.
        self._late: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        #: Set when the application may know what became of its client.
        self._open = asyncio.Event()

    async def run(self, app: App, scope: Scope) -> None:
        extensions = scope.get("extensions")
        if extensions and not _PAST_US.isdisjoint(extensions):
            # the same scope, because those who called us look into it for what routing has found
            scope["extensions"] = {name: value for name, value in extensions.items() if name not in _PAST_US}
        try:
            try:
                await app(scope, self, self.send)
            except BaseException as error:
                await self._failed(type(error).__name__)
                raise
            await self._failed("NoAnswer")
        finally:
            waits_for = self._late or self._writing
            if waits_for is not None:
                await asyncio.shield(waits_for)

    def leave(self, task: asyncio.Task[None]) -> None:
        """Whoever awaited ``task``, which runs this, has been cancelled."""
        self._gone = True
        if self._streams:
            task.cancel()

    # ------------------------------------------------------------------ what the application is given

    async def afterwards(self) -> Message:
        await self._open.wait()
        return {"type": "http.disconnect"} if self._gone else await self._receive()

    async def send(self, message: Message) -> None:
        """Record, then pass on."""
        ended = self._ended
        if not ended and message["type"] == "http.response.start":
            self._status = message["status"]
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers") or ()]
            self._headers = lasting(headers)
            if _is_event_stream(self._headers):
                await self._answered(None)
        elif not ended and message["type"] == "http.response.body":
            self._answer += message.get("body", b"")
            if len(self._answer) > self._max:
                await self._answered(None)
            elif not message.get("more_body", False):
                await self._answered(bytes(self._answer))
                if self._writing is not None:
                    self._late = asyncio.create_task(self._pass_on_late(self._writing, message))
                    return
        await self._pass_on(message)

    async def _pass_on_late(self, writing: asyncio.Future[None], message: Message) -> None:
        await asyncio.wait({writing}, timeout=KEPT_BACK)
        await self._pass_on(message)

    async def _pass_on(self, message: Message) -> None:
        if not self._gone:
            try:
                await self._send(message)
            except OSError:
                # the client has gone, as ASGI says it
                if self._ended:
                    raise
                self._gone = True
        elif self._streams:
            raise ConnectionResetError("the client has gone")

    # ------------------------------------------------------------------ how it ends

    async def _answered(self, body: bytes | None) -> None:
        """The answer is known; ``body`` is None when it is not kept."""
        self._streams = body is None
        self._answer = bytearray()
        if self._remember(self._status):
            text = encoded(Kept(self._status, self._headers, body, self._caller))
            await self._end(functools.partial(self._holding.succeed, text), State.SUCCEEDED)
        elif self._status >= 500:
            error = orjson.dumps({"status": self._status}).decode()
            await self._end(functools.partial(self._holding.fail, error), State.FAILED)
        else:
            await self._end(self._holding.release, None)

    async def _failed(self, kind: str) -> None:
        """It ended without a whole answer, which counts unless it had answered already."""
        if not self._ended:
            error = orjson.dumps({"type": kind}).decode()
            await self._end(functools.partial(self._holding.fail, error), State.FAILED)

    async def _end(self, end: Callable[[], bool], state: State | None) -> None:
        self._ended = True
        KEEPER.let_go(self._holding)
        writing = on_a_thread(self._written, end, state)
        try:
            done, _ = await asyncio.wait({writing}, timeout=MOMENT)
            if not done:
                self._writing = writing
        finally:
            self._open.set()

    def _written(self, end: Callable[[], bool], state: State | None) -> None:
        """Write the end. A store that does not take it gets it later: the work is done, and its answer goes out."""
        try:
            self._told(end, state)
        except Exception as error:
            self._tell("idempotency_store_failed", "warning", error=brief(error))
            KEEPER.end_later(self._holding, functools.partial(self._told, end, state))

    def _told(self, end: Callable[[], bool], state: State | None) -> bool:
        held = end()
        if not held:
            self._tell("idempotency_lost", "warning")
        elif state is not None:
            self._tell("idempotency_state", state=state.value)
        return held

    def over(self, _task: asyncio.Task[None]) -> None:
        """The task has ended. When it was cancelled before its first step, nothing has run."""
        if not self._ended:
            self._ended = True
            KEEPER.end_later(self._holding, self._holding.release)


def _is_event_stream(headers: tuple[tuple[bytes, bytes], ...]) -> bool:
    return any(name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers)

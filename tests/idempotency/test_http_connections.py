"""``IdempotencyMiddleware`` between a server and an application, message by message: who goes away, and when."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from duly.idempotency import IdempotencyMiddleware, MemoryStore
from duly.idempotency.keeper import KEEPER
from duly.idempotency.plan import Decision
from duly.idempotency.reservation import Ask, Reservation, State

App = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert KEEPER.count == 0, "something is still renewed"


class Line:
    """A server's side of one request: what it hands in, and what it is sent."""

    def __init__(self, body: tuple[bytes, ...] = (b"{}",), *, key: str = "k", **scope: Any) -> None:
        last = len(body) - 1
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for n, part in enumerate(body):
            self.incoming.put_nowait({"type": "http.request", "body": part, "more_body": n < last})
        self.sent: list[dict[str, Any]] = []
        #: Raised by ``send`` from now on.
        self.broken: Exception | None = None
        self.scope = {
            "type": "http", "method": "POST", "path": "/", "query_string": b"", "root_path": "",
            "headers": [(b"idempotency-key", key.encode())], **scope,
        }  # fmt: skip

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: dict[str, Any]) -> None:
        if self.broken is not None:
            raise self.broken
        self.sent.append(message)

    def hang_up(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def through(self, app: App) -> Line:
        await app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.sent[1:])


class Work:
    """An application that waits for its gate and answers with the number of its call, in two parts."""

    def __init__(self) -> None:
        self.calls, self.finished = 0, 0
        self.began, self.gate = asyncio.Event(), asyncio.Event()
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        call = self.calls
        assert (await receive())["type"] == "http.request"
        self.began.set()
        await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"call ", "more_body": True})
        await send({"type": "http.response.body", "body": str(call).encode()})
        self.finished += 1


def door(app: App, store: MemoryStore | None = None, **options: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, store=store or MemoryStore(), **options)


# --- The client goes away ------------------------------------------------------------------------------------------------


def test_what_a_client_did_not_wait_for_is_recorded_for_its_next_try() -> None:
    async def story() -> None:
        work = Work()
        app = door(work)
        line = Line()
        first = asyncio.create_task(line.through(app))
        await work.began.wait()
        line.hang_up()
        line.broken = OSError("the connection is closed")
        work.gate.set()
        await first
        again = await Line().through(app)
        assert (again.status, again.body) == (200, b"call 1")
        assert (work.calls, work.finished, line.sent) == (1, 1, [])

    asyncio.run(story())


def test_a_server_that_cancels_does_not_stop_what_was_begun() -> None:
    async def story() -> None:
        work = Work()
        app = door(work)
        line = Line()
        first = asyncio.create_task(line.through(app))
        await work.began.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await Line().through(app)).status == 409
        work.gate.set()
        while not work.finished:
            await asyncio.sleep(0.01)
        again = await Line().through(app)
        assert (again.status, again.body, line.sent) == (200, b"call 1", [])

    asyncio.run(story())


def test_an_application_is_not_told_of_a_client_that_left_while_its_answer_is_recorded() -> None:
    async def stream() -> AsyncIterator[bytes]:
        for n in range(3):
            await asyncio.sleep(0)
            yield str(n).encode()

    async def endpoint(request: Request) -> StreamingResponse:
        assert await request.body() == b"{}"
        assert not await request.is_disconnected()
        return StreamingResponse(stream())  # Starlette listens for the disconnect while it streams, and would stop

    async def story() -> None:
        app = door(Starlette(routes=[Route("/", endpoint, methods=["POST"])]))
        line = Line()
        line.hang_up()
        await line.through(app)
        assert line.body == b"012"
        assert (await Line().through(app)).body == b"012"

    asyncio.run(story())


@pytest.mark.parametrize("kind", [b"text/event-stream", b"text/plain"])
def test_a_stream_that_is_not_kept_does_not_run_on_for_nobody(kind: bytes) -> None:
    ended: list[str] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
                await asyncio.sleep(0)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    async def story() -> None:
        app = door(endless, max_response=1000)
        broken = Line(key="broken")
        first = asyncio.create_task(broken.through(app))
        while len(broken.sent) < 20:
            await asyncio.sleep(0)
        broken.broken = BrokenPipeError("gone")
        with pytest.raises(OSError):
            await first

        early = Line(key="early")
        early.broken = BrokenPipeError("gone before the first byte")
        with pytest.raises(OSError):
            await early.through(app)

        cancelled = Line(key="cancelled")
        third = asyncio.create_task(cancelled.through(app))
        while len(cancelled.sent) < 20:
            await asyncio.sleep(0)
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        while len(ended) < 3:
            await asyncio.sleep(0)
        for key in ("broken", "early", "cancelled"):
            assert (await Line(key=key).through(app)).status == 409

    asyncio.run(story())
    assert ended[0] in ("BrokenPipeError", "ConnectionResetError")
    assert ended[2] == "CancelledError"


def test_a_stream_that_is_not_kept_sees_that_its_client_left() -> None:
    async def endpoint(request: Request) -> StreamingResponse:
        async def stream() -> AsyncIterator[bytes]:
            while not await request.is_disconnected():
                yield b"data: x\n\n"
                await asyncio.sleep(0)
            yield b"data: bye\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def story() -> None:
        line = Line(asgi={"version": "3.0", "spec_version": "2.4"})
        task = asyncio.create_task(line.through(door(Starlette(routes=[Route("/", endpoint, methods=["POST"])]))))
        while len(line.sent) < 5:
            await asyncio.sleep(0)
        line.hang_up()
        await task
        assert line.body.endswith(b"data: bye\n\n")

    asyncio.run(story())


def test_a_client_that_leaves_before_its_request_is_complete_has_asked_for_nothing() -> None:
    async def story() -> None:
        work, store = Work(), MemoryStore()
        line = Line(())
        line.incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        line.hang_up()
        await line.through(door(work, store))
        assert (work.calls, line.sent, store._kept) == (0, [], {})

    asyncio.run(story())


class Slow(MemoryStore):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go, self.begun = threading.Event(), threading.Event(), asyncio.Event()

    def reserve(self, ask: Ask) -> Decision:
        self.asked.set()
        assert self.go.wait(60)
        return super().reserve(ask)


def test_what_is_admitted_for_a_client_that_has_left_is_given_back() -> None:
    async def story() -> None:
        work, store = Work(), Slow()
        app = door(work, store)
        inserted, insert = threading.Event(), store.insert

        def told(new: Any) -> bool:
            written = insert(new)
            inserted.set()
            return written

        store.insert = told  # type: ignore[method-assign]
        first = asyncio.create_task(Line().through(app))
        await asyncio.to_thread(store.asked.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        store.go.set()
        await asyncio.to_thread(inserted.wait, 60)
        while store._kept:
            await asyncio.sleep(0.01)
        assert work.calls == 0
        work.gate.set()
        assert (await Line().through(app)).body == b"call 1"

    asyncio.run(story())


def test_a_server_that_ends_frees_what_it_interrupts() -> None:
    work, store = None, MemoryStore()

    async def story() -> None:
        nonlocal work
        work = Work()
        task = asyncio.create_task(Line().through(door(work, store)))
        await work.began.wait()
        del task  # asyncio.run cancels what still runs, as a server does that has waited long enough

    asyncio.run(story())
    assert work is not None
    assert work.finished == 0
    assert [r.state for r in store._kept.values()] == [State.FAILED]


def test_what_was_admitted_and_never_began_is_given_back() -> None:
    async def story() -> None:
        work, store = Work(), MemoryStore()
        app = door(work, store)
        loop = asyncio.get_running_loop()

        def stillborn(loop: Any, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
            task = asyncio.Task(coroutine, loop=loop, **kwargs)
            if coroutine.__qualname__ == "Run.run":
                task.cancel()
            return task

        loop.set_task_factory(stillborn)
        with pytest.raises(asyncio.CancelledError):
            await Line().through(app)
        assert work.calls == 0
        while store._kept:
            await asyncio.sleep(0.01)

    asyncio.run(story())


# --- What an answer is made of --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [0, 1, 2])
def test_an_answer_that_is_not_complete_is_a_failure(messages: int) -> None:
    calls = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        parts = [
            {"type": "http.response.start", "status": 200, "headers": []},
            {"type": "http.response.body", "body": b"half", "more_body": True},
        ]
        for part in parts[:messages]:
            await send(part)

    async def story() -> None:
        middleware = door(app)
        for _ in range(2):
            await Line().through(middleware)

    asyncio.run(story())
    assert len(calls) == 2


def test_the_record_is_written_before_the_last_bytes_leave() -> None:
    """Whoever has the answer gets it again at once, also when he asks from another process."""

    async def story() -> None:
        work, store = Work(), MemoryStore()
        work.gate.set()
        states: list[tuple[bytes | None, State]] = []
        line = Line()
        send = line.send

        async def watched(message: dict[str, Any]) -> None:
            states.append((message.get("body"), next(iter(store._kept.values())).state))
            await send(message)

        line.send = watched  # type: ignore[method-assign]
        await line.through(door(work, store))
        assert states == [(None, State.IN_PROGRESS), (b"call ", State.IN_PROGRESS), (b"1", State.SUCCEEDED)]

    asyncio.run(story())


def test_a_request_in_progress_gives_signs_of_life() -> None:
    class Watched(MemoryStore):
        renewed = 0

        def replace(self, old: Reservation, new: Reservation | None) -> bool:
            self.renewed += new is not None and new.state is State.IN_PROGRESS
            return super().replace(old, new)

    async def story() -> None:
        work, store = Work(), Watched()
        task = asyncio.create_task(Line().through(door(work, store, heartbeat=0.05, lock=60)))
        while store.renewed < 3:
            await asyncio.sleep(0.01)
        work.gate.set()
        assert (await task).body == b"call 1"

    asyncio.run(story())


def test_a_body_in_parts_reaches_the_application_whole() -> None:
    got = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.append(await receive())
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})
        got.append(await receive())

    async def story() -> None:
        line = Line((b"ab", b"", b"cd"))
        line.hang_up()
        assert (await line.through(door(app))).status == 204

    asyncio.run(story())
    assert got == [{"type": "http.request", "body": b"abcd", "more_body": False}, {"type": "http.disconnect"}]


def test_ways_of_sending_that_cannot_be_recorded_are_not_offered() -> None:
    offered: list[set[str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        offered.append(set(scope["extensions"]))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    extensions = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {}}

    async def story() -> None:
        await Line(extensions=dict(extensions)).through(door(app))
        without_key = Line(extensions=dict(extensions))
        without_key.scope["headers"] = []
        await without_key.through(door(app))

    asyncio.run(story())
    assert offered == [{"tls"}, set(extensions)]


# --- What is no such request ----------------------------------------------------------------------------------------------


def test_web_sockets_and_the_lifespan_pass_untouched() -> None:
    told = []

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        told.append("up")
        yield
        told.append("down")

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    inner = Starlette(routes=[WebSocketRoute("/echo", echo)], lifespan=lifespan)
    with TestClient(door(inner)) as client:
        with client.websocket_connect("/echo", headers={"Idempotency-Key": "k"}) as websocket:
            websocket.send_text("hello")
            assert websocket.receive_text() == "hello"
        assert told == ["up"]
    assert told == ["up", "down"]


# --- A real server ----------------------------------------------------------------------------------------------------------


def test_behind_a_real_server_a_client_that_hung_up_gets_the_answer_at_its_next_try() -> None:
    uvicorn = pytest.importorskip("uvicorn")
    began, gate = threading.Event(), threading.Event()
    calls = []

    async def endpoint(request: Request) -> JSONResponse:
        calls.append(await request.json())
        began.set()
        await asyncio.to_thread(gate.wait, 60)
        return JSONResponse({"call": len(calls)}, 201)

    inner = Starlette(routes=[Route("/orders", endpoint, methods=["POST"])])
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(door(inner, wait=30), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        host, port = listening.getsockname()
        with socket.create_connection((host, port)) as impatient:
            impatient.sendall(
                b'POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: "k"\r\nContent-Type: application/json\r\n'
                b'Content-Length: 8\r\n\r\n{"a": 1}'
            )
            assert began.wait(60)
        with httpx2.Client(base_url=f"http://{host}:{port}") as client:
            threading.Timer(0.2, gate.set).start()
            again = client.post(
                "/orders", content=b'{"a":1}', headers={"Idempotency-Key": "k", "Content-Type": "application/json"}
            )
            assert (again.status_code, again.json()) == (201, {"call": 1})
            assert again.headers["idempotency-replayed"] == "true"
            assert len(again.headers.get_list("date")) == 1
            once_more = client.post("/orders", json={"a": 1}, headers={"Idempotency-Key": "k"})
            assert once_more.json() == {"call": 1}
            big = client.post("/orders", content=b"x" * 2_000_000, headers={"Idempotency-Key": "big"})
            assert big.status_code == 413
        assert calls == [{"a": 1}]
    finally:
        gate.set()
        server.should_exit = True
        thread.join(60)
        listening.close()

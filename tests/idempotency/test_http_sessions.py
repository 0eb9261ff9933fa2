"""``IdempotencyMiddleware`` in front of handlers whose transaction ends after the answer, on the database that keeps the keys."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import Duly
from duly.idempotency import IdempotencyMiddleware
from duly.idempotency.keeper import KEEPER
from duly.kernel.events import PROCESS, Event


@pytest.fixture
def app(db_url: str) -> Iterator[Duly]:
    """With a patience for SQLite's lock that is longer than any of these tests may take."""
    made = Duly(db_url, busy_timeout=120)
    made.open()
    made.db.write(lambda c: c.execute(text("CREATE TABLE orders (item text)")))
    yield made
    made.close()
    assert KEEPER.count == 0


def test_a_dependency_that_commits_after_the_answer_keeps_nobody_waiting(app: Duly) -> None:  # B053
    heard: list[Event] = []
    deaf = PROCESS.listen(heard.append)
    web = FastAPI()
    web.add_middleware(IdempotencyMiddleware, store=app.reservations)

    def session() -> Iterator[Session]:
        with Session(app.db.session_engine) as session, session.begin():
            yield session

    @app.task
    def deliver(item: str) -> None: ...

    @web.post("/orders", status_code=201)
    def place(order: dict[str, str], session: Session = Depends(session)) -> dict[str, int]:
        session.execute(text("INSERT INTO orders VALUES (:item)"), order)
        return {"job": deliver.using(session=session).enqueue(order["item"]).job.id}

    async def go() -> list[Any]:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=web), base_url="http://shop") as client:
            ask = {"json": {"item": "tea"}, "headers": {"Idempotency-Key": "a1"}}
            return [await asyncio.wait_for(client.post("/orders", **ask), 60) for _ in range(2)]

    first, second = asyncio.run(go())
    deaf()
    assert (first.status_code, second.status_code, second.text) == (201, 201, first.text)
    assert second.headers["idempotency-replayed"] == "true"
    assert app.db.read(lambda c: c.execute(text("SELECT item FROM orders")).all()) == [("tea",)]
    assert [e.name for e in heard if e.level in ("warning", "error")] == []


def test_a_request_that_failed_may_be_corrected_under_its_key(app: Duly) -> None:  # R004-13, B053
    web = FastAPI()
    web.add_middleware(IdempotencyMiddleware, store=app.reservations)

    @web.post("/orders", status_code=201)
    async def place(order: dict[str, int]) -> dict[str, int]:
        if not order["cents"]:
            raise ValueError("nothing to pay")
        return order

    async def go() -> list[int]:
        transport = httpx2.ASGITransport(app=web, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
            headers = {"Idempotency-Key": "a1"}
            asked = [await client.post("/orders", json={"cents": n}, headers=headers) for n in (0, 1250, 0)]
            return [answer.status_code for answer in asked]

    assert asyncio.run(go()) == [500, 201, 422]


def test_the_last_bytes_leave_when_the_answer_is_recorded(app: Duly) -> None:
    """The handler's lock is given back after its answer: the client has it, whole, when a repetition would get the same."""
    seen: list[tuple[str, str]] = []
    answered = threading.Event()

    def states() -> list[str]:
        return app.db.read(lambda c: list(c.scalars(text("SELECT state FROM idempotency"))))

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        session = Session(app.db.session_engine)
        session.execute(text("INSERT INTO orders VALUES ('tea')"))
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        answered.set()
        session.commit()
        session.close()

    async def send(message: Any) -> None:
        seen.append((message["type"].rsplit(".")[-1], *states()))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"idempotency-key", b"k1")]
    scope = {"type": "http", "method": "POST", "path": "/orders", "headers": headers, "query_string": b""}
    asyncio.run(asyncio.wait_for(IdempotencyMiddleware(handler, store=app.reservations)(scope, receive, send), 60))
    assert answered.is_set()
    assert seen == [("start", "in_progress"), ("body", "succeeded")]

"""``IdempotencyMiddleware`` as clients meet it: a FastAPI application behind it, on each store."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from fastapi import BackgroundTasks, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse

from duly import Duly, InvalidArgument
from duly.idempotency import IdempotencyMiddleware, MemoryStore, Store, set_default_store
from duly.idempotency.keeper import KEEPER
from duly.idempotency.reservation import Reservation
from duly.kernel.errors import StoreUnavailable
from duly.kernel.events import PROCESS, Event
from duly.testing import ManualClock

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class Order(BaseModel):
    item: str
    cents: int = 0


class Shop:
    """An application that counts what it does. ``gate`` holds slow orders back."""

    def __init__(self) -> None:
        self.api = FastAPI()
        self.orders: list[dict[str, Any]] = []
        self.calls = 0
        self.began, self.gate = asyncio.Event(), asyncio.Event()
        ids = itertools.count(1)

        @self.api.post("/orders", status_code=201)
        async def order(order: Order, response: Response) -> dict[str, Any]:
            self.calls += 1
            row = {"id": next(ids), **order.model_dump()}
            self.orders.append(row)
            response.headers["Location"] = f"/orders/{row['id']}"
            response.headers["X-Call"] = str(self.calls)
            return row

        @self.api.post("/session")
        async def session(response: Response) -> dict[str, int]:
            self.calls += 1
            response.set_cookie("session", "secret")
            return {"call": self.calls}

        @self.api.post("/slow")
        async def slow() -> dict[str, int]:
            self.calls += 1
            self.began.set()
            await self.gate.wait()
            return {"id": next(ids)}

        @self.api.post("/answers/{status}")
        async def answers(status: int) -> dict[str, int]:
            self.calls += 1
            if status >= 300:
                raise HTTPException(status)
            return {"call": self.calls}

        @self.api.post("/breaks")
        async def breaks() -> dict[str, int]:
            self.calls += 1
            if self.calls == 1:
                raise ValueError("it broke")
            return {"call": self.calls}

        @self.api.post("/long")
        async def long() -> StreamingResponse:
            self.calls += 1
            return StreamingResponse(iter([b"x" * 700, b"y" * 700]), media_type="text/plain")

        @self.api.post("/events")
        async def events() -> StreamingResponse:
            self.calls += 1
            return StreamingResponse(iter([b"data: 1\n\n"]), media_type="text/event-stream")

        @self.api.post("/later")
        async def later(background: BackgroundTasks) -> dict[str, int]:
            self.calls += 1

            def fail() -> None:
                raise ValueError("afterwards")

            background.add_task(fail)
            return {"call": self.calls}

        @self.api.get("/orders")
        @self.api.put("/orders")
        async def read(request: Request) -> dict[str, int]:
            self.calls += 1
            return {"call": self.calls}


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    events: list[Event] = []
    remove = PROCESS.listen(events.append)
    yield events
    remove()
    assert KEEPER.count == 0, "something is still renewed"


def served(app: Any, tell: Callable[[httpx2.AsyncClient], Awaitable[Any]]) -> Any:
    """What ``tell`` returns, with a client of ``app``. An application's own errors are its server's 500."""

    async def story() -> Any:
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await tell(client)

    return asyncio.run(story())


def door(shop: Shop, store: Store | None = None, **options: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(shop.api, store=store or MemoryStore(), **options)


def key(value: str, **headers: str) -> dict[str, str]:
    return {"Idempotency-Key": f'"{value}"', **headers}


def posted(client: httpx2.AsyncClient, path: str = "/orders", value: str = "k", **more: Any) -> Any:
    return client.post(path, json=more.pop("json", {"item": "tea"}), headers=key(value, **more))


def results(heard: list[Event]) -> list[str]:
    return [
        e.facts.get("result") or e.facts["state"]
        for e in heard
        if e.name in ("idempotency_attempt", "idempotency_state")
    ]


# --- On each store --------------------------------------------------------------------------------------------------------


def test_a_repeated_request_gets_the_first_answer(store: Store, shop: Shop, heard: list[Event]) -> None:  # B053
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        same = {"content": b'{"cents":0,"item":"tea"}'}
        other_form = {**key("k"), "content-type": "application/json"}
        return [
            await posted(client, json={"item": "tea", "cents": 0}),
            await client.post("/orders", headers=other_form, **same),
        ]

    first, again = served(door(shop, store), tell)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json() == {"id": 1, "item": "tea", "cents": 0}
    assert again.headers["location"] == "/orders/1"
    assert again.headers["x-call"] == "1"
    assert again.headers["content-length"] == str(len(again.content))
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert len(shop.orders) == 1
    assert results(heard) == ["allowed", "in_progress", "succeeded", "deduped"]
    assert {e.facts["task_name"] for e in heard} == {"http"}
    told = [e.facts.get("state") or e.facts["result"] for e in heard if e.level != "debug"]
    assert told == ["succeeded", "deduped"], "one line of a log for a request"


def test_twenty_requests_at_once_make_one_order(store: Store, shop: Shop, heard: list[Event]) -> None:  # B053
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return await asyncio.gather(*(posted(client) for _ in range(20)))

    answers = served(door(shop, store, wait=30), tell)
    assert [a.json()["id"] for a in answers] == [1] * 20
    assert [a.status_code for a in answers] == [201] * 20
    assert len(shop.orders) == 1
    assert sorted(results(heard)) == ["allowed", *["deduped"] * 19, "in_progress", "succeeded"]


def test_another_body_under_the_same_key_is_refused(store: Store, shop: Shop) -> None:  # B053
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [
            await posted(client),
            await posted(client, json={"item": "coffee"}),
            await client.post("/orders?now=1", json={"item": "tea"}, headers=key("k")),
            await posted(client),
        ]

    first, other, query, again = served(door(shop, store), tell)
    assert [other.status_code, query.status_code] == [422, 422]
    assert other.headers["content-type"] == "application/problem+json"
    assert other.json()["code"] == "key-reused"
    assert other.json()["header"] == "Idempotency-Key"
    assert again.json() == first.json()
    assert shop.orders == [first.json()]


def test_a_key_belongs_to_its_tenant_its_method_its_path_and_its_identity(store: Store, shop: Shop) -> None:  # B053
    def header(name: bytes) -> Callable[[Any], str]:
        return lambda scope: dict(scope["headers"]).get(name, b"nobody").decode()

    async def tell(client: httpx2.AsyncClient) -> list[int]:
        paths = "/orders", "/answers/200"
        people = [("a", "anna"), ("a", "otto"), ("b", "anna")]
        for _ in range(2):
            for path, (tenant, person) in itertools.product(paths, people):
                assert (await posted(client, path, **{"X-Tenant": tenant, "X-User": person})).is_success
        return [order["id"] for order in shop.orders]

    app = door(shop, store, tenant=header(b"x-tenant"), identity=header(b"x-user"))
    assert served(app, tell) == [1, 2, 3]
    assert shop.calls == 6


def test_a_request_in_progress_keeps_its_duplicates_out(store: Store, shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> tuple[Any, Any, Any]:
        first = asyncio.create_task(posted(client, "/slow"))
        await shop.began.wait()
        busy = await posted(client, "/slow")
        shop.gate.set()
        return await first, busy, await posted(client, "/slow")

    first, busy, again = served(door(shop, store), tell)
    assert busy.status_code == 409
    assert busy.json()["code"] == "in-progress"
    assert 1 <= int(busy.headers["retry-after"]) <= 5
    assert first.json() == again.json() == {"id": 1}
    assert shop.calls == 1


def test_an_error_of_the_server_frees_the_key(store: Store, shop: Shop, heard: list[Event]) -> None:  # B052, R004-13
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await posted(client, "/breaks") for _ in range(3)]

    assert [a.status_code for a in served(door(shop, store), tell)] == [500, 200, 200]
    assert shop.calls == 2
    assert results(heard) == [
        "allowed", "in_progress", "failed", "allowed", "in_progress", "succeeded", "deduped",
    ]  # fmt: skip


def test_an_answer_of_any_bytes_is_kept(store: Store) -> None:
    body = bytes(range(256)) * 2000

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == body
        headers = [(b"content-type", b"application/octet-stream"), (b"x-bytes", bytes(range(0xA0, 0x100)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await client.post("/", content=body, headers=key("k")) for _ in range(2)]

    first, again = served(IdempotencyMiddleware(app, store=store), tell)
    assert first.content == again.content == body
    assert again.headers["idempotency-replayed"] == "true"
    assert dict(first.headers.raw)[b"x-bytes"] == dict(again.headers.raw)[b"x-bytes"]


# --- What is taken --------------------------------------------------------------------------------------------------------


def test_requests_without_a_key_and_of_other_methods_pass_untouched(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        for _ in range(2):
            await client.post("/orders", json={"item": "tea"})
            await client.get("/orders", headers=key("k"))
            await client.put("/orders", headers=key("k"))
            await client.get("/orders", headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
        return [shop.calls]

    assert served(door(shop, required=False), tell) == [8]


def test_a_key_can_be_required(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await client.post(path, json={"item": "tea"}) for path in ("/orders", "/answers/200")]

    refused, passed = served(door(shop, required=lambda scope: scope["path"] == "/orders"), tell)
    assert refused.status_code == 400
    assert refused.json()["code"] == "key-missing"
    assert "Idempotency-Key is missing" in refused.json()["detail"]
    assert passed.status_code == 200
    assert served(door(shop, required=True), tell)[1].status_code == 400


@pytest.mark.parametrize("bad", [[("Idempotency-Key", "a"), ("Idempotency-Key", "a")], [("Idempotency-Key", "")]])
def test_a_bad_key_is_refused_before_anything_runs(shop: Shop, bad: list[tuple[str, str]]) -> None:
    async def tell(client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.post("/orders", json={"item": "tea"}, headers=bad)

    answer = served(door(shop), tell)
    assert (answer.status_code, answer.json()["code"]) == (400, "key-invalid")
    assert shop.calls == 0


def test_another_header_may_carry_the_key(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await client.put("/orders", headers={"X-Request-Key": "a"})).json()["call"] for _ in range(2)]

    assert served(door(shop, header="X-Request-Key", methods="put"), tell) == [1, 1]


def test_a_body_that_is_too_large_is_refused_before_anything_runs(shop: Shop) -> None:
    async def chunks(n: int) -> Any:
        for _ in range(n):
            yield b"x" * 100

    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [
            await client.post("/answers/200", content=b"x" * 1001, headers=key("told")),
            await client.post("/answers/200", content=chunks(11), headers=key("not-told")),
            await client.post("/answers/200", content=chunks(10), headers=key("fits")),
            await client.post("/answers/200", content=b"x" * 1001),
        ]

    answers = served(door(shop, max_body=1000), tell)
    assert [a.status_code for a in answers] == [413, 413, 200, 200]
    assert answers[0].json()["max_bytes"] == 1000
    assert shop.calls == 2


# --- Who gets an answer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Authorization", "Cookie", "X-API-Key"])
def test_an_answer_is_not_given_to_who_shows_other_credentials(shop: Shop, header: str) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [
            await posted(client, **{header: "Bearer anna"}),
            await posted(client, **{header: "Bearer otto"}),
            await posted(client),
            await posted(client, **{header: "Bearer anna", "Accept-Language": "fr"}),
        ]

    first, stranger, nobody, again = served(door(shop), tell)
    assert [stranger.status_code, nobody.status_code] == [422, 422]
    assert "tea" not in stranger.text
    assert again.json() == first.json()
    assert len(shop.orders) == 1


def test_a_cookie_is_given_once(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        first = await posted(client, "/session")
        with_cookie = await posted(client, "/session")
        client.cookies.clear()
        return [first, with_cookie, await posted(client, "/session")]

    first, with_cookie, again = served(door(shop), tell)
    assert "set-cookie" in first.headers
    assert with_cookie.status_code == 422, "another cookie may be another caller"
    assert again.json() == first.json()
    assert "set-cookie" not in again.headers


def test_a_stranger_does_not_learn_what_was_sent(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        await posted(client, Authorization="Bearer anna")
        return [
            await posted(client, Authorization="Bearer otto"),
            await posted(client, Authorization="Bearer otto", json={"item": "coffee"}),
        ]

    same_body, other_body = served(door(shop), tell)
    assert same_body.json() == other_body.json()


def test_a_refreshed_token_may_repeat_what_failed(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client, "/breaks", Authorization=f"Bearer {n}")).status_code for n in range(2)]

    assert served(door(shop), tell) == [500, 200]


def test_with_an_identity_a_refreshed_token_gets_the_first_answer(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client, Authorization=f"Bearer {n}")).json()["id"] for n in range(3)]

    assert served(door(shop, identity=lambda scope: "anna"), tell) == [1, 1, 1]


def test_without_a_known_identity_credentials_count(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client, Cookie=f"a={n}")).status_code for n in range(2)]

    assert served(door(shop, identity=lambda scope: None), tell) == [201, 422]
    assert served(door(shop, identity=lambda scope: ""), tell) == [201, 422]


def test_two_doors_on_one_store_do_not_meet_under_two_names(shop: Shop) -> None:
    store = MemoryStore()

    async def tell(client: httpx2.AsyncClient) -> int:
        return int((await posted(client)).json()["id"])

    names = "http", "http", "shop-b"
    assert [served(door(shop, store, name=name), tell) for name in names] == [1, 1, 2]


@pytest.mark.parametrize("tenant", ["", "x" * 300, "a\x00b"])
def test_a_request_that_names_no_usable_tenant_is_refused(shop: Shop, tenant: str) -> None:
    async def tell(client: httpx2.AsyncClient) -> int:
        return int((await posted(client)).status_code)

    assert served(door(shop, tenant=lambda scope: tenant), tell) == 400
    assert shop.calls == 0


# --- What is remembered -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "calls"), [(200, 1), (202, 1), (400, 1), (422, 1), (410, 1)])
def test_a_settled_answer_is_remembered(shop: Shop, status: int, calls: int) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client, f"/answers/{status}")).status_code for _ in range(2)]

    assert len(set(served(door(shop), tell))) == 1
    assert shop.calls == calls


@pytest.mark.parametrize("status", [401, 403, 404, 409, 425, 429, 500, 503, 307])
def test_an_answer_that_may_change_is_not_remembered(shop: Shop, status: int, heard: list[Event]) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await posted(client, f"/answers/{status}") for _ in range(2)]

    answers = served(door(shop), tell)
    assert [a.status_code for a in answers] == [status, status]
    assert not any("idempotency-replayed" in a.headers for a in answers)
    assert shop.calls == 2


def test_a_refused_request_may_be_corrected_under_its_key(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client, "/answers/409", json={"n": n})).status_code for n in range(2)]

    assert served(door(shop), tell) == [409, 409]
    assert shop.calls == 2


def test_the_application_decides_what_is_remembered(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client, "/answers/503")).status_code for _ in range(2)]

    assert served(door(shop, remember=lambda status: True), tell) == [503, 503]
    assert shop.calls == 1


def test_an_answer_is_forgotten_when_its_time_is_over(shop: Shop) -> None:
    clock = ManualClock(NOON)

    async def tell(client: httpx2.AsyncClient) -> list[int]:
        ids = [(await posted(client)).json()["id"]]
        clock.advance(timedelta(hours=24) - timedelta(seconds=1))
        ids.append((await posted(client)).json()["id"])
        clock.advance(timedelta(seconds=1))
        return [*ids, (await posted(client)).json()["id"]]

    assert served(door(shop, MemoryStore(clock)), tell) == [1, 1, 2]


def test_a_process_that_died_gives_way_when_its_lock_has_lapsed(shop: Shop, heard: list[Event]) -> None:  # B052
    clock = ManualClock(NOON)
    store = MemoryStore(clock)

    async def tell(client: httpx2.AsyncClient) -> list[int]:
        first = asyncio.create_task(posted(client, "/slow"))
        await shop.began.wait()
        dead = KEEPER.holdings[0]
        KEEPER.let_go(dead)  # as if its process were gone
        statuses = [(await posted(client, "/slow")).status_code]
        clock.advance(timedelta(seconds=90))
        second = asyncio.create_task(posted(client, "/slow"))
        while shop.calls < 2:
            await asyncio.sleep(0.01)
        shop.gate.set()
        late, answer = await first, await second
        again = await posted(client, "/slow")
        return [*statuses, late.status_code, answer.json()["id"] - again.json()["id"]]

    assert served(door(shop, store), tell) == [409, 200, 0]
    assert [e.facts["took_over"] for e in heard if e.facts.get("result") == "allowed"] == [False, True]
    assert [e.name for e in heard if e.name == "idempotency_lost"] == ["idempotency_lost"]


def test_a_long_answer_passes_and_its_duplicate_is_told_so(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await posted(client, "/long") for _ in range(2)]

    first, again = served(door(shop, max_response=1000), tell)
    assert first.text == "x" * 700 + "y" * 700
    assert (again.status_code, again.json()["code"], again.json()["original_status"]) == (409, "answer-not-kept", 200)
    assert "retry-after" not in again.headers
    assert shop.calls == 1
    assert served(door(shop, max_response=1400), tell)[1].text == first.text


def test_a_stream_of_events_is_never_kept(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await posted(client, "/events") for _ in range(2)]

    first, again = served(door(shop), tell)
    assert first.text == "data: 1\n\n"
    assert again.json()["code"] == "answer-not-kept"


def test_what_fails_after_the_answer_changes_nothing(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client, "/later")).json()["call"] for _ in range(2)]

    assert served(door(shop), tell) == [1, 1]


def test_a_duplicate_that_waits_takes_over_from_a_failure(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [a.status_code for a in await asyncio.gather(*(posted(client, "/breaks") for _ in range(5)))]

    assert sorted(served(door(shop, wait=30), tell)) == [200, 200, 200, 200, 500]
    assert shop.calls == 2


def test_patience_ends(shop: Shop) -> None:
    async def tell(client: httpx2.AsyncClient) -> list[int]:
        first = asyncio.create_task(posted(client, "/slow"))
        await shop.began.wait()
        impatient = (await posted(client, "/slow")).status_code
        shop.gate.set()
        return [impatient, (await first).status_code]

    assert served(door(shop, wait=0.2), tell) == [409, 200]


# --- The store is out of reach --------------------------------------------------------------------------------------------------


class Flaky(MemoryStore):
    """Out of reach for what ``down`` names."""

    def __init__(self) -> None:
        super().__init__()
        self.down: set[str] = set()

    def read(self, tenant: str, key: str) -> tuple[Reservation | None, datetime]:
        self._answer("read")
        return super().read(tenant, key)

    def replace(self, old: Reservation, new: Reservation | None) -> bool:
        self._answer("replace")
        return super().replace(old, new)

    def _answer(self, what: str) -> None:
        if what in self.down:
            raise StoreUnavailable("it is down", after=7)


def test_a_store_out_of_reach_refuses_by_default(shop: Shop, heard: list[Event]) -> None:  # T004-g
    store = Flaky()
    store.down = {"read"}

    async def tell(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        refused = await posted(client)
        store.down = set()
        return [refused, await posted(client)]

    refused, taken = served(door(shop, store), tell)
    assert refused.status_code == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert refused.json()["code"] == "store-unavailable"
    assert taken.status_code == 201
    assert shop.calls == 1
    assert [e.facts["unprotected"] for e in heard if e.name == "idempotency_store_failed"] == [False]


def test_a_store_out_of_reach_may_let_requests_pass_and_says_so(shop: Shop, heard: list[Event]) -> None:
    store = Flaky()
    store.down = {"read"}

    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client)).status_code for _ in range(2)]

    assert served(door(shop, store, on_store_error="pass"), tell) == [201, 201]
    assert [o["item"] for o in shop.orders] == ["tea", "tea"]
    assert [e.facts["unprotected"] for e in heard if e.name == "idempotency_store_failed"] == [True, True]


def test_a_duplicate_never_runs_beside_the_first_because_the_store_went_away(shop: Shop) -> None:
    store = Flaky()

    async def tell(client: httpx2.AsyncClient) -> list[int]:
        first = asyncio.create_task(posted(client, "/slow"))
        await shop.began.wait()
        reads = []
        look = store.read

        def read(tenant: str, key: str) -> Any:
            reads.append(key)
            if len(reads) > 1:
                store.down = {"read"}
            return look(tenant, key)

        store.read = read  # type: ignore[method-assign]
        second = (await posted(client, "/slow")).status_code
        shop.gate.set()
        return [second, (await first).status_code]

    assert served(door(shop, store, wait=30, on_store_error="pass"), tell) == [409, 200]
    assert shop.calls == 1


def test_an_end_that_cannot_be_written_is_written_later(shop: Shop) -> None:
    store = Flaky()

    async def tell(client: httpx2.AsyncClient) -> list[Any]:
        store.down = {"replace"}
        first = await posted(client)
        busy = await posted(client)
        store.down = set()
        while KEEPER.count:
            await asyncio.sleep(0.02)
        return [first.json()["id"], busy.status_code, (await posted(client)).json()["id"]]

    assert served(door(shop, store), tell) == [1, 409, 1]


def test_an_application_s_database_is_the_default_store(shop: Shop, sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    try:

        async def tell(client: httpx2.AsyncClient) -> list[int]:
            return [(await posted(client)).json()["id"] for _ in range(2)]

        assert served(IdempotencyMiddleware(shop.api), tell) == [1, 1]
        kept = next(
            iter(app.db.read(lambda c: list(c.exec_driver_sql("SELECT tenant, key, task, result FROM idempotency"))))
        )
        assert (kept.tenant, kept.task) == ("default", "http")
        assert kept.key.startswith("duly:v1:http:")
        assert json.loads(kept.result)["status"] == 201
    finally:
        set_default_store(None)
        app.close()


# --- Inside other software ------------------------------------------------------------------------------------------------------


def test_it_is_added_as_any_middleware(shop: Shop) -> None:
    seen = []

    async def watch(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        seen.append(getattr(request.scope.get("route"), "path", None))
        return response

    shop.api.add_middleware(IdempotencyMiddleware, store=MemoryStore())
    shop.api.add_middleware(BaseHTTPMiddleware, dispatch=watch)

    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client)).json()["id"] for _ in range(2)]

    assert served(shop.api, tell) == [1, 1]
    assert seen == ["/orders", None], "those outside see the route that was found, unless nothing was routed"


def test_a_middleware_inside_may_read_the_body_too(shop: Shop) -> None:
    async def watch(request: Request, call_next: Any) -> Response:
        assert await request.json() == {"item": "tea"}
        response: Response = await call_next(request)
        return response

    shop.api.add_middleware(BaseHTTPMiddleware, dispatch=watch)

    async def tell(client: httpx2.AsyncClient) -> list[int]:
        return [(await posted(client)).json()["id"] for _ in range(2)]

    assert served(door(shop), tell) == [1, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("header", "Idempotency Key"), ("header", ""), ("methods", ()), ("methods", ("PO ST",)), ("store", 7), ("tenant", ""),
        ("identity", "anna"), ("name", ""), ("wait", -1), ("wait", True), ("max_body", "1"), ("max_response", None),
        ("heartbeat", 0), ("lock", 0), ("remember", 200), ("on_store_error", "run"), ("keep", timedelta(0)),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused_at_once(shop: Shop, field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        IdempotencyMiddleware(shop.api, **{"store": MemoryStore(), field: value})
    assert caught.value.field == field

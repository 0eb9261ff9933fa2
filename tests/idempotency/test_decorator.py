"""``@idempotent_task``: the body runs once per key, in plain calls, in async calls and in Duly jobs."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from duly import (
    INJECT,
    Backoff,
    Cancel,
    Context,
    Duly,
    InvalidArgument,
    InvalidPayload,
    Job,
    PermanentError,
    Retry,
    Snooze,
    Status,
)
from duly.idempotency import MemoryStore, Store, idempotent_task, set_default_store
from duly.idempotency.keeper import KEEPER
from duly.idempotency.reservation import Ask, Reservation, Terms
from duly.idempotency.store import Holding
from duly.kernel.errors import AlreadyDone, InProgress, PayloadMismatch, StoreUnavailable
from duly.kernel.events import PROCESS, Event
from duly.testing import ManualClock, drain

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    events: list[Event] = []
    remove = PROCESS.listen(events.append)
    yield events
    remove()
    assert KEEPER.count == 0, "something is still renewed"


def results(heard: list[Event]) -> list[str]:
    return [
        e.facts.get("result") or e.facts["state"]
        for e in heard
        if e.name in ("idempotency_attempt", "idempotency_state")
    ]


# --- Plain calls ------------------------------------------------------------------------------------------------------


def test_the_body_runs_once_and_a_duplicate_gets_its_result(store: Store, heard: list[Event]) -> None:  # R004-8, R004-9
    runs: list[int] = []

    @idempotent_task(store=store)
    def double(n: int) -> int:
        runs.append(n)
        return 2 * n

    assert [double(4), double(n=4), double(4), double(5)] == [8, 8, 8, 10]
    assert runs == [4, 5]
    assert results(heard) == [
        "allowed", "in_progress", "succeeded", "deduped", "deduped", "allowed", "in_progress", "succeeded",
    ]  # fmt: skip


def test_two_deliveries_at_once_run_the_body_once(
    store: Store, heard: list[Event]
) -> None:  # R004-9, the double submit
    runs: list[int] = []
    barrier = threading.Barrier(8)

    @idempotent_task(store=store, on_duplicate="wait")
    def slow(n: int) -> str:
        runs.append(n)
        threading.Event().wait(0.3)
        return "done"

    def go(_: int) -> str:
        barrier.wait()
        return slow(1)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(go, range(8))) == ["done"] * 8
    assert runs == [1]
    assert results(heard).count("deduped") == 7


async def _in_turn(fn: Callable[[int], Any]) -> list[Any]:
    return [await fn(4), await fn(4)]


def test_an_async_function_is_idempotent_too(store: Store) -> None:
    runs: list[int] = []

    @idempotent_task(store=store)
    async def double(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(0)
        return 2 * n

    assert asyncio.run(_in_turn(double)) == [8, 8]
    assert runs == [4]


def test_many_async_calls_at_once_run_the_body_once(store: Store) -> None:
    runs: list[int] = []

    @idempotent_task(store=store, on_duplicate="wait")
    async def slow(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(0.2)
        return n

    async def go() -> list[int]:
        return await asyncio.gather(*(slow(7) for _ in range(10)))

    assert asyncio.run(go()) == [7] * 10
    assert runs == [7]


def test_a_failure_frees_the_key_at_once(heard: list[Event]) -> None:  # R004-13, B052 (1)
    fails = [True, True, False]

    @idempotent_task(store=MemoryStore())
    def shaky() -> str:
        if fails.pop(0):
            raise ValueError("no")
        return "yes"

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            shaky()
    assert shaky() == shaky() == "yes"
    assert results(heard)[:3] == ["allowed", "in_progress", "failed"]


@pytest.mark.parametrize("signal", [Retry("later"), Snooze(after=1), Cancel("stop")])
def test_a_body_that_asks_for_another_run_has_not_failed(signal: Exception, heard: list[Event]) -> None:  # T004-f
    store = MemoryStore()

    @idempotent_task(store=store)
    def asks() -> None:
        raise signal

    with pytest.raises(type(signal)):
        asks()
    assert store._kept == {}
    assert "failed" not in results(heard)


def test_a_cancelled_coroutine_frees_its_key(heard: list[Event]) -> None:
    store = MemoryStore()

    @idempotent_task(store=store)
    async def hang() -> None:
        began[0].set()
        await asyncio.sleep(60)

    async def go() -> None:
        began.append(asyncio.Event())
        call = asyncio.create_task(hang())
        await began[0].wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    began: list[asyncio.Event] = []
    asyncio.run(go())
    [kept] = store._kept.values()
    assert kept.state == "failed"


def test_a_duplicate_of_a_call_in_progress_is_told_when_to_come_again(heard: list[Event]) -> None:  # T004-d
    store, inside = MemoryStore(), []

    @idempotent_task(store=store)
    def outer(deep: bool) -> str:
        if not inside:
            inside.append(True)
            with pytest.raises(InProgress) as caught:
                outer(deep)
            assert caught.value.after is not None
            assert 0 < caught.value.after <= 10
        return "done"

    assert outer(True) == "done"


def test_waiting_ends_after_the_time_that_was_given() -> None:
    store, begun, go = MemoryStore(), threading.Event(), threading.Event()

    @idempotent_task(store=store, on_duplicate="wait", wait_timeout=0.2)
    def slow() -> None:
        begun.set()
        go.wait(20)

    thread = threading.Thread(target=slow)
    thread.start()
    begun.wait(20)
    with pytest.raises(InProgress):
        slow()
    go.set()
    thread.join()


def test_who_waits_runs_the_body_when_the_first_call_fails() -> None:
    store, begun, runs = MemoryStore(), threading.Event(), []

    @idempotent_task(store=store, on_duplicate="wait")
    def second_time_lucky() -> str:
        runs.append(1)
        if len(runs) == 1:
            begun.set()
            threading.Event().wait(0.2)
            raise ValueError("first")
        return "second"

    def first() -> None:
        with pytest.raises(ValueError, match="first"):
            second_time_lucky()

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(20)
    assert second_time_lucky() == "second"
    thread.join()


def test_a_duplicate_raises_when_it_is_asked_to() -> None:
    @idempotent_task(store=MemoryStore(), on_duplicate="raise")
    def once(n: int) -> int:
        return n

    assert once(3) == 3
    with pytest.raises(AlreadyDone) as caught:
        once(3)
    assert caught.value.result == 3
    assert isinstance(caught.value, PermanentError), "inside a job, trying again would not help"


# --- Keys -------------------------------------------------------------------------------------------------------------


def test_a_key_of_ones_own_names_the_work_and_other_arguments_under_it_are_refused() -> None:  # B053, T004-o
    runs: list[int] = []

    @idempotent_task(store=MemoryStore(), key=lambda order, amount: order)
    def charge(order: str, amount: int) -> None:
        runs.append(amount)

    charge("A-1", 10)
    charge("A-1", amount=10)
    with pytest.raises(PayloadMismatch):
        charge("A-1", 11)
    charge("A-2", 11)
    assert runs == [10, 11]


def test_a_key_that_failed_may_be_used_with_corrected_arguments(store: Store) -> None:  # R004-13
    @idempotent_task(store=store, key=lambda order, cents: order)
    def charge(order: int, cents: int) -> str:
        if not cents:
            raise ValueError("nothing to pay")
        return f"{cents} cents"

    with pytest.raises(ValueError, match="nothing to pay"):
        charge(17, 0)
    assert charge(17, 1250) == "1250 cents"
    with pytest.raises(PayloadMismatch):
        charge(17, 0)


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_key_is_refused(nothing: object) -> None:
    @idempotent_task(store=MemoryStore(), key=lambda: nothing)
    def f() -> None: ...

    with pytest.raises(InvalidArgument, match="key"):
        f()


def test_a_method_is_keyed_without_its_object() -> None:  # T004-l
    store, runs = MemoryStore(), []

    class Mailer:
        @idempotent_task(store=store)
        def send(self, to: str = "x") -> None:
            runs.append(to)

    Mailer().send()
    Mailer().send("x")
    Mailer().send("y")
    assert runs == ["x", "y"]


def test_what_has_no_canonical_form_is_refused_before_the_body_runs() -> None:  # T004-i
    runs: list[Any] = []

    @idempotent_task(store=MemoryStore())
    def f(items: list[Any]) -> None:
        runs.append(items)

    with pytest.raises(InvalidPayload) as caught:
        f([{"price": object()}])
    assert "items[0].price" in caught.value.field
    assert runs == []


def test_no_argument_is_in_the_store_or_in_what_is_told(heard: list[Event]) -> None:  # T004-m, R004-6
    store = MemoryStore()

    @idempotent_task(store=store, key=lambda mail: mail)
    def send(mail: str) -> None: ...

    send("secret@example.org")
    assert "secret" not in repr(store._kept)
    assert "secret" not in repr(heard)
    assert {"task_name", "idempotency_key"} <= set(heard[0].facts)


def test_a_program_that_is_run_and_one_that_imports_it_mean_the_same_function(tmp_path: Any) -> None:
    (tmp_path / "work.py").write_text(
        "from duly.idempotency import MemoryStore, idempotent_task\n"
        "store = MemoryStore()\n"
        "@idempotent_task(store=store)\n"
        "def f(n): ...\n"
        "f(1)\n"
        "print(next(iter(store._kept))[1])\n"
    )
    said = [
        subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for how in (["work.py"], ["-c", "import work"], ["-m", "work"])
    ]
    assert said[0] == said[1] == said[2]


# --- Results ------------------------------------------------------------------------------------------------------------


@dataclass
class Receipt:
    total: Decimal
    at: datetime


def test_a_recorded_result_comes_back_as_its_annotation_says() -> None:
    @idempotent_task(store=MemoryStore())
    def pay() -> Receipt:
        return Receipt(Decimal("1.10"), NOON)

    assert pay() == pay() == Receipt(Decimal("1.10"), NOON)


def test_a_result_that_cannot_be_recorded_harms_nobody(heard: list[Event]) -> None:
    @idempotent_task(store=MemoryStore())
    def odd() -> Any:
        return object()

    assert odd() is not None
    assert odd() is None
    assert "idempotency_result_dropped" in [e.name for e in heard]


# --- A store that is away -------------------------------------------------------------------------------------------------


class Away(MemoryStore):
    """A store that does not answer while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = True

    def read(self, tenant: str, key: str) -> tuple[Reservation | None, datetime]:
        if self.away:
            raise StoreUnavailable("away")
        return super().read(tenant, key)

    def replace(self, old: Reservation, new: Reservation | None) -> bool:
        if self.away:
            raise StoreUnavailable("away")
        return super().replace(old, new)


@pytest.mark.parametrize("how", ["retry", "raise", "run"])
def test_what_happens_without_the_store_is_what_was_asked_for(how: Any, heard: list[Event]) -> None:  # T004-g
    runs: list[int] = []

    @idempotent_task(store=Away(), on_store_error=how)
    def f() -> str:
        runs.append(1)
        return "ran"

    if how == "run":
        assert f() == "ran"
    else:
        with pytest.raises(StoreUnavailable):
            f()
    assert runs == ([1] if how == "run" else [])
    assert "idempotency_store_failed" in [e.name for e in heard]


def test_a_store_that_goes_away_meanwhile_is_told_the_end_when_it_is_back() -> None:
    store = Away()
    store.away = False

    @idempotent_task(store=store)
    def f() -> str:
        store.away = True
        return "ran"

    assert f() == "ran"
    assert KEEPER.count == 1
    store.away = False
    for _ in range(500):
        if KEEPER.count == 0:
            break
        threading.Event().wait(0.02)
    [kept] = store._kept.values()
    assert kept.state == "succeeded"


# --- Options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("on_duplicate", {"on_duplicate": "ignore"}),
        ("on_store_error", {"on_store_error": None}),
        ("time_limit", {"time_limit": 0}),
        ("margin", {"margin": True}),
        ("heartbeat", {"heartbeat": "soon"}),
        ("lock", {"time_limit": 1, "margin": 1}),
        ("keep", {"keep": "soon"}),
        ("store", {"store": "redis"}),
        ("tenant", {"tenant": ""}),
        ("key", {"key": "const"}),
        ("fallback", {"fallback": 5}),
    ],
)
def test_options_that_cannot_be_are_refused_where_they_are_written(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        idempotent_task(name="n", **options)(lambda: None)
    assert caught.value.field == field


def test_without_any_store_the_call_says_what_to_do() -> None:
    set_default_store(None)

    @idempotent_task
    def f() -> None: ...

    with pytest.raises(InvalidArgument, match="set_default_store"):
        f()


# --- In Duly jobs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(db_url: str) -> Iterator[Duly]:
    app = Duly(db_url, clock=ManualClock(NOON))
    yield app
    app.close()


@pytest.mark.parametrize("order", ["below", "above"])
def test_two_jobs_that_say_the_same_do_it_once(app: Duly, order: str) -> None:  # R004-9
    runs: list[str] = []

    def send(to: str, context: Context = INJECT) -> dict[str, str]:
        runs.append(to)
        return {"sent": to}

    task: Any = app.task(idempotent_task(send)) if order == "below" else idempotent_task(app.task(send))
    jobs: list[Job] = [task.enqueue("a").job for _ in range(3)]
    drain(app)
    assert runs == ["a"]
    for job in jobs:
        done = app.jobs.get(job.id)
        assert done.status is Status.SUCCEEDED
        assert done.output == {"sent": "a"}


def test_a_duplicate_job_waits_for_the_one_in_progress_and_uses_no_attempt(app: Duly) -> None:  # T004-d
    runs: list[str] = []

    @app.task(max_attempts=1)
    @idempotent_task
    def send(to: str) -> None:
        runs.append(to)

    key = send.fn.idempotency_key("a")  # type: ignore[attr-defined]
    app.reservations.reserve(Ask("default", key, "send", "job:999", key, Terms()))  # whose worker has died
    job = send.enqueue("a").job
    drain(app)
    waiting = app.jobs.get(job.id)
    assert waiting.status is Status.QUEUED
    assert waiting.attempts == 0
    assert runs == []
    clock = app.db.clock
    assert isinstance(clock, ManualClock)
    clock.advance(timedelta(minutes=7))
    drain(app)
    assert app.jobs.get(job.id).status is Status.SUCCEEDED
    assert runs == ["a"]


def test_a_job_that_fails_is_retried_and_runs_again(app: Duly) -> None:  # B052
    runs: list[int] = []

    @app.task(backoff=Backoff(base=0))
    @idempotent_task
    async def shaky() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("no")

    job = shaky.enqueue().job
    drain(app)
    assert len(runs) == 3
    assert app.jobs.get(job.id).status is Status.SUCCEEDED


def test_jobs_of_two_tenants_do_not_share_a_key(app: Duly) -> None:  # B053
    runs: list[str] = []

    @app.task
    @idempotent_task
    def send(to: str, job: Job = INJECT) -> None:
        runs.append(job.tenant)

    for tenant in ("acme", "umbrella", "acme"):
        send.using(tenant=tenant).enqueue(to="a")
    drain(app)
    assert sorted(runs) == ["acme", "umbrella"]


def test_a_worker_forgets_what_need_not_be_remembered(db_url: str) -> None:
    app = Duly(db_url)

    @app.task
    @idempotent_task(keep=timedelta(seconds=0.01))
    async def f() -> None: ...

    f.enqueue()
    worker = app.worker()
    [duty] = [duty for duty in worker.house.duties if duty.name == "reservations"]
    drain(app)
    threading.Event().wait(0.05)
    assert duty.act() == 1
    app.close()


# --- What an adversary found --------------------------------------------------------------------------------------------


class Model(BaseModel):
    when: datetime
    price: Decimal
    secret: SecretStr = SecretStr("")


@dataclass
class Wallet:
    wei: int


class Vault(BaseModel):
    wallet: Wallet


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (bytes, b"\xff\x00\xfe"),
        (Decimal, Decimal("1.10")),
        (datetime, NOON),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Model, Model(when=NOON, price=Decimal("2.50"))),
        (dict[str, Decimal], {"a": Decimal("1")}),
        (str, "é\u2028"),
        (None, None),
        (Receipt | None, Receipt(Decimal("3"), NOON)),
        (int, 2**64 - 1),
        (Wallet, Wallet(-(2**63))),
        (Decimal, Decimal(20 * 10**18)),
        (str, "20000000000000000000"),
        (float, 2e19),
    ],
)
def test_a_typed_result_is_the_same_for_the_duplicate(annotation: Any, result: Any) -> None:
    def body() -> Any:
        return result

    body.__annotations__["return"] = annotation
    task = idempotent_task(store=MemoryStore())(body)
    first, again = task(), task()
    assert again == first == result
    assert type(again) is type(result)


@pytest.mark.parametrize(
    ("annotation", "result"),
    [
        (Model, Model(when=NOON, price=Decimal("2.50"), secret=SecretStr("s3cret"))),
        (float, float("nan")),
        (Any, [1.0, float("inf")]),
        (Any, "a\x00b"),
        (Any, "x" * 1_000_001),
        (int, "not an int"),
        # whole numbers of more than 64 bits, which would come back as floats that are near to them
        (int, 20 * 10**18),
        (int, -(2**63) - 1),
        (int | float, 10**20),
        (list[int], [1, 2**64]),
        (dict[str, Decimal | int], {"wei": 20 * 10**18}),
        (Wallet, Wallet(20 * 10**18)),
        (list[Vault], [Vault(wallet=Wallet(1)), Vault(wallet=Wallet(20 * 10**18))]),
        (Any, 20 * 10**18),
        (Any, Wallet(20 * 10**18)),
        (Any, [{"vault": Vault(wallet=Wallet(20 * 10**18))}]),
    ],
)
def test_a_result_that_would_come_back_as_another_is_not_recorded_and_told_without_its_text(
    annotation: Any, result: Any, heard: list[Event]
) -> None:
    def body() -> Any:
        return result

    body.__annotations__["return"] = annotation
    task = idempotent_task(store=MemoryStore())(body)
    assert task() is result
    assert task() is None
    [dropped] = [e for e in heard if e.name == "idempotency_result_dropped"]
    assert "s3cret" not in repr(dropped)
    assert "not an int" not in repr(dropped)
    assert "0000" not in repr(dropped.facts["problem"])


def test_an_iterator_reaches_the_first_caller_unread() -> None:
    @idempotent_task(store=MemoryStore())
    def numbers() -> Any:
        return map(str, range(3))

    assert list(numbers()) == ["0", "1", "2"]
    assert numbers() is None


def test_what_cannot_be_run_once_is_refused_where_it_is_defined() -> None:
    def generator() -> Any:
        yield 1

    async def async_generator() -> Any:
        yield 1

    class Reader:
        def __call__(self, n: int) -> Any:
            yield n

    silent, read = functools.partial(int, "5"), functools.partial(Reader(), 5)
    for wrong in (generator, async_generator, staticmethod(print), classmethod(print), Model, silent, read, Reader()):
        with pytest.raises(InvalidArgument):
            idempotent_task(store=MemoryStore())(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"what its parameters are\. Call it in a function of your own"):
        idempotent_task(silent)
    twice: Any = _twice
    for unfit in (functools.partial(twice, 1, 2, 3), functools.partial(twice, often=3)):
        with pytest.raises(InvalidArgument, match="a partial of _twice that binds what its parameters do not take"):
            idempotent_task(unfit)


def test_a_plain_function_that_returns_an_awaitable_has_not_succeeded() -> None:
    store = MemoryStore()

    async def work() -> None: ...

    @idempotent_task(store=store)
    def hidden() -> Any:
        return work()

    with pytest.raises(InvalidArgument, match="async def"):
        hidden()
    [kept] = store._kept.values()
    assert kept.state == "failed"


class Doubler:
    async def __call__(self, n: int) -> int:
        return 2 * n


def _twice(n: int, factor: int = 2) -> int:
    return factor * n


def test_partials_and_callable_objects_are_functions_too() -> None:
    plain = idempotent_task(store=MemoryStore())(functools.partial(_twice, factor=3))
    assert plain(2) == plain(2) == 6
    doubler = idempotent_task(store=MemoryStore())(Doubler())
    assert asyncio.run(_in_turn(doubler)) == [8, 8]


def key_of(fn: Any, *args: Any, **kwargs: Any) -> str:
    made: Any = idempotent_task(store=MemoryStore())(fn)
    return str(made.idempotency_key(*args, **kwargs))


def test_what_a_partial_binds_belongs_to_the_key_as_if_it_were_given_in_the_call(store: Store) -> None:  # T004-l
    runs: list[tuple[str, int]] = []

    def charge(account: str, cents: int, **more: str) -> str:
        runs.append((account, cents))
        return f"{account}: {cents} cents"

    plain = idempotent_task(store=store)(charge)
    by_place = [idempotent_task(store=store)(functools.partial(charge, name)) for name in ("ada", "bob")]
    by_name = [idempotent_task(store=store)(functools.partial(charge, account=name)) for name in ("ada", "bob")]
    assert [task(500) for task in by_place] == ["ada: 500 cents", "bob: 500 cents"]
    assert [task(cents=500) for task in by_name] == [plain("ada", 500), plain("bob", 500)]
    assert runs == [("ada", 500), ("bob", 500)]
    twice = functools.partial(functools.partial(charge, "ada", note="a"), note="b")
    keys = {key_of(functools.partial(charge, "ada", note=n), 5) for n in "ab"}
    assert key_of(twice, cents=5) in keys
    assert len(keys | {key_of(charge, "ada", 5)}) == 3


def test_what_a_partial_binds_is_no_part_of_the_key_where_it_would_be_none_in_the_call() -> None:  # T004-l
    class Till:
        def take(self, cents: int, session: Any = None) -> int:
            return cents

    bound, given = functools.partial(Till.take, Till()), functools.partial(Till().take, session=None)
    assert key_of(bound, 5) == key_of(given, cents=5) == key_of(Till.take, Till(), 5)


class Clerk:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, order: int) -> str:
        return f"{self.name} did {order}"

    def do(self, order: int) -> str:
        return self(order)


def test_bound_methods_and_callable_objects_are_keyed_without_their_object_unless_they_have_names() -> None:  # T004-l
    for shape in (lambda clerk: clerk, lambda clerk: clerk.do):
        store = MemoryStore()
        ada, bob = (idempotent_task(store=store)(shape(Clerk(name))) for name in ("ada", "bob"))
        assert [ada(1), bob(1)] == ["ada did 1"] * 2
        ada, bob = (idempotent_task(name=name, store=store)(shape(Clerk(name))) for name in ("ada", "bob"))
        assert [ada(1), bob(1)] == ["ada did 1", "bob did 1"]


# --- Two functions of one name ----------------------------------------------------------------------------------------


def _made(region: Any, runs: Any, **options: Any) -> Callable[..., Any]:
    @idempotent_task(**options)
    def inner(n: int) -> Any:
        runs.append(n)
        return region

    return inner


def test_nested_functions_of_one_name_that_differ_in_what_they_enclose_are_warned_of() -> None:
    store = MemoryStore()
    first = _made("eu", [], store=store)
    with pytest.warns(UserWarning, match=r"_made\.<locals>\.inner, and differ in 'region'.*name=") as told:
        second = _made("us", [], store=store)
    assert told[0].filename == __file__
    assert (first(1), second(1)) == ("eu", "eu")  # which is what the warning says


@pytest.mark.parametrize(
    "pair",
    [
        lambda s: (_made("eu", [], store=s), _made("eu", [], store=s)),
        lambda s: (_made("eu", [], store=s), _made("us", [], store=MemoryStore())),
        lambda s: (_made("eu", [], store=s), _made("us", [], name="us", store=s)),
        lambda s: (_made("eu", [], store=s), _made("us", [], key=lambda n: f"us-{n}", store=s)),
        lambda s: (_made(object(), [], store=s), _made(object(), [], store=s)),
        lambda s: (_made("eu", [], store=s).__name__, _made("us", [], store=s)),
    ],
    ids=["the same again", "another store", "a name", "a key", "values that say nothing", "the first has gone"],
)
def test_nested_functions_that_are_rightly_made_again_are_not_warned_of(pair: Callable[[Store], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair(MemoryStore())


def test_no_function_is_kept_alive_by_looking_for_others_of_its_name() -> None:
    made = _made("eu", [], store=MemoryStore())
    gone = weakref.ref(made.__wrapped__)  # type: ignore[attr-defined]
    del made
    gc.collect()
    assert gone() is None


def test_a_coroutine_that_is_thrown_away_with_its_loop_frees_its_key() -> None:
    store = MemoryStore()

    @idempotent_task(store=store)
    async def hang() -> None:
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    call = hang()
    task = loop.create_task(call)
    loop.run_until_complete(asyncio.sleep(0.1))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    del task
    call.close()
    for _ in range(500):
        if KEEPER.count == 0:
            break
        threading.Event().wait(0.02)
    [kept] = store._kept.values()
    assert kept.state == "failed"


class Deaf(MemoryStore):
    """Writes, and then does not answer, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def insert(self, new: Reservation) -> bool:
        written = super().insert(new)
        if self.times:
            self.times -= 1
            raise StoreUnavailable("no answer")
        return written


def test_a_reservation_whose_answer_was_lost_keeps_nobody_out() -> None:
    store = Deaf(1)

    @idempotent_task(store=store)
    def f() -> str:
        return "ran"

    with pytest.raises(StoreUnavailable):
        f()
    for _ in range(500):
        if KEEPER.count == 0:
            break
        threading.Event().wait(0.02)
    assert f() == "ran"


def test_an_error_of_the_store_at_the_end_does_not_undo_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()

    @idempotent_task(store=store)
    def f() -> str:
        def broken(*_: Any) -> bool:
            raise RuntimeError("no such table")

        monkeypatch.setattr(store, "replace", broken)
        return "ran"

    assert f() == "ran"
    monkeypatch.undo()
    for _ in range(500):
        if KEEPER.count == 0:
            break
        threading.Event().wait(0.02)
    [kept] = store._kept.values()
    assert kept.state == "succeeded"


def test_a_job_reserves_in_the_database_that_it_is_in(tmp_path: Any) -> None:
    here, there = Duly(f"sqlite:///{tmp_path / 'a.db'}"), Duly(f"sqlite:///{tmp_path / 'b.db'}")

    @here.task
    @idempotent_task
    def f() -> None: ...

    f.enqueue()
    drain(here)
    key = f.fn.idempotency_key()  # type: ignore[attr-defined]
    assert here.reservations.look("default", key) is not None
    assert there.reservations.look("default", key) is None
    here.close()
    there.close()


def test_a_function_that_gives_the_store_is_asked_once_however_many_call_first() -> None:
    asked, runs = [], []

    def make() -> Store:
        asked.append(1)
        threading.Event().wait(0.05)
        return MemoryStore()

    @idempotent_task(store=make, on_duplicate="wait")
    def f() -> None:
        runs.append(1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: f(), range(8)))
    assert (len(asked), len(runs)) == (1, 1)


def test_lambdas_need_a_name() -> None:
    with pytest.raises(InvalidArgument, match="name"):
        idempotent_task(store=MemoryStore())(lambda: None)
    with pytest.raises(InvalidArgument, match="name"):
        idempotent_task(store=MemoryStore())(functools.partial(lambda n: n, 5))


class Hiccup(MemoryStore):
    """Does not answer while somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def look(self, tenant: str, key: str) -> Reservation | None:
        self.looks += 1
        if self.looks < 3:
            raise StoreUnavailable("a hiccup")
        return super().look(tenant, key)


def test_who_waits_outlasts_a_store_that_does_not_answer_for_a_moment() -> None:  # T004-g
    store, begun, go = Hiccup(), threading.Event(), threading.Event()

    @idempotent_task(store=store, on_duplicate="wait")
    def slow() -> str:
        begun.set()
        go.wait(20)
        return "done"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow)
        begun.wait(20)
        second = pool.submit(slow)
        while store.looks < 3:
            threading.Event().wait(0.01)
        go.set()
        assert first.result() == second.result() == "done"


def test_a_duplicate_job_counts_once_when_it_is_answered(app: Duly, heard: list[Event]) -> None:  # R004-9
    @app.task
    @idempotent_task
    def send(to: str) -> None: ...

    clock = app.db.clock
    assert isinstance(clock, ManualClock)
    key = send.fn.idempotency_key("a")  # type: ignore[attr-defined]
    held = Holding(
        app.reservations, _admitted(app.reservations.reserve(Ask("default", key, "send", "x", key, Terms()))), Terms()
    )
    send.enqueue("a")
    for _ in range(3):
        drain(app)
        clock.advance(15)
    assert held.succeed("null")
    drain(app)
    assert results(heard) == ["deduped"]
    assert [e.name for e in heard].count("idempotency_waits") == 3


def _admitted(decision: Any) -> Reservation:
    found: Reservation = decision.reservation
    return found


def test_trouble_is_never_silent(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:  # R004-5
    monkeypatch.setattr(PROCESS, "_joined", ())  # other tests' applications
    monkeypatch.setattr(logging.getLogger("duly"), "propagate", True)  # and what they made of logging
    caplog.set_level(logging.DEBUG, logger="duly")

    @idempotent_task(store=Away(), on_store_error="run")
    def f() -> None: ...

    f()
    [line] = [r for r in caplog.records if r.name == "duly"]
    assert (line.name, line.levelname) == ("duly", "WARNING")
    assert "idempotency_store_failed" in line.getMessage()

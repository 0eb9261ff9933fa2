"""Asking for work: every door leads to the same row, and a caller's transaction decides whether it exists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from contract.hands import NOON, Hand, rows
from duly import Duly, InvalidArgument, InvalidPayload, Status, Task, UnsafeSession
from duly.testing import ManualClock, enqueued

PLUS2 = timezone(timedelta(hours=2))


@pytest.fixture
def pay(app: Duly) -> Task[..., None]:
    @app.task("PAY", queue="money", priority=3, max_attempts=2)
    def pay(amount: Decimal, to: str = "x") -> None: ...

    return pay


# --- Doors without a transaction of the caller's -----------------------------------------------------------------------


def test_a_job_is_made_as_its_task_says(app: Duly, pay: Task[..., None]) -> None:  # R003-9, R003-10, R003-12
    made, created = pay.enqueue(Decimal("9.90"))
    assert created
    job = app.jobs.get(made.id)
    assert (job.tenant, job.queue, job.task, job.status) == ("default", "money", "PAY", Status.QUEUED)
    assert (job.priority, job.max_attempts, job.attempts, job.input) == (3, 2, 0, {"amount": "9.90"})
    assert (job.created_at, job.run_at, job.due_at, job.next_retry_at) == (NOON, NOON, None, None)
    assert (job.cost_cents, job.output, job.error, job.finished_at) == (0, None, None, None)


def test_what_enqueue_answers_is_what_stands_in_the_database(app: Duly, pay: Task[..., None]) -> None:
    one = pay.using(key="k", run_in=5, tenant="acme", priority=-1, concurrency_key="c", meta={"a": 1}).enqueue(
        Decimal(1)
    )
    two = pay.enqueue(Decimal(2))
    [three, _] = pay.enqueue_many([{"amount": Decimal(3)}, {"amount": Decimal(4)}])
    for made in (one, two, three):
        assert app.jobs.get(made.job.id) == made.job


def test_every_door_makes_the_same_job(app: Duly, pay: Task[..., None]) -> None:
    async def asynchronous() -> list[Any]:
        return [await pay.aenqueue(Decimal(1)), await app.aenqueue("PAY", {"amount": "1"})]

    made = [
        pay.enqueue(Decimal(1)),
        app.enqueue("PAY", {"amount": "1"}),
        *pay.enqueue_many([{"amount": 1}]),
        *app.enqueue_many("PAY", [{"amount": Decimal(1)}]),
        *asyncio.run(asynchronous()),
    ]
    assert all(m.created for m in made)
    assert len({m.job.id for m in made}) == len(made)
    jobs = [app.jobs.get(m.job.id) for m in made]
    same = ("tenant", "queue", "task", "priority", "max_attempts", "run_at", "created_at", "due_at")
    assert len({tuple(getattr(j, name) for name in same) for j in jobs}) == 1
    assert [j.input for j in jobs] == [{"amount": "1"}] * len(jobs)


def test_a_job_of_a_task_defined_elsewhere_is_carried_as_plain_json(app: Duly) -> None:
    made = app.enqueue("ELSEWHERE", {"b": [1, None], "a": "é\U0001f600"}, queue="far", max_attempts=9)
    job = app.jobs.get(made.job.id)
    assert (job.task, job.queue, job.max_attempts, job.input) == (
        "ELSEWHERE",
        "far",
        9,
        {"b": [1, None], "a": "é\U0001f600"},
    )
    assert app.jobs.get(app.enqueue("ELSEWHERE").job.id).input == {}  # R003-10


def test_many_jobs_are_made_in_order_and_all_or_none(app: Duly, pay: Task[..., None]) -> None:
    made = pay.enqueue_many([{"amount": n} for n in range(50)])  # beyond the number from which they are copied in
    assert [m.job.id for m in made] == sorted(m.job.id for m in made)
    assert [j.input["amount"] for j in enqueued(app, pay)] == [str(n) for n in range(50)]
    with pytest.raises(InvalidArgument):
        pay.enqueue_many([{"amount": 1}, {"amount": "much"}])
    assert app.jobs.count() == 50
    assert pay.enqueue_many([]) == []


@pytest.mark.parametrize("input", [{"t": "a\x00b"}, {"x": float("nan")}, {"x": 1e999}, {"t": "\ud800"}, {"k\x00": 1}])
def test_what_one_database_refuses_is_refused_before_any_sees_it(app: Duly, input: dict[str, Any]) -> None:  # B038
    with pytest.raises(InvalidPayload) as refused:
        app.enqueue("ELSEWHERE", input)
    assert refused.value.field == (next(iter(input)) if "\x00" not in next(iter(input)) else " (a key)")
    with pytest.raises(InvalidArgument):
        app.enqueue("ELSEWHERE", {}, key="k\x00")
    assert app.jobs.count() == 0


def test_an_input_comes_back_byte_for_byte(app: Duly) -> None:  # B038
    strange = {"z": 1, "a": "\\ \" \t \n \u2028 é \U0001f600 %s :x {} ' ''", "n": [0.1, -1e-300, 2**63], "": {"": None}}
    for made in [
        app.enqueue("X", strange),
        *app.enqueue_many("X", [strange] * 2),
        *app.enqueue_many("X", [strange] * 30),
    ]:
        back = app.jobs.get(made.job.id).input
        assert back == strange
        assert list(back) == list(strange)  # the order of its keys


def test_a_job_may_be_planned_for_an_instant_or_a_delay(app: Duly, pay: Task[..., None]) -> None:  # R003-4, T003-a
    at = datetime(2026, 3, 2, 15, 0, tzinfo=PLUS2)  # 13:00 UTC
    for call in (pay.using(run_at=at), pay.using(run_in=3600), pay.using(run_in=timedelta(hours=1), key="k")):
        job = app.jobs.get(call.enqueue(Decimal(1)).job.id)
        assert (job.run_at, job.due_at) == (NOON + timedelta(hours=1),) * 2
        assert job.run_at is not None and job.run_at.tzinfo is UTC


def test_an_instant_in_the_past_means_now_and_keeps_its_place(app: Duly, pay: Task[..., None], hand: Hand) -> None:
    now = pay.enqueue(Decimal(1)).job
    past = pay.using(run_at=NOON - timedelta(hours=1)).enqueue(Decimal(2)).job
    assert app.jobs.get(past.id).due_at is None
    assert [j.id for j in hand.claim("money", 2)] == [past.id, now.id]


def test_a_microsecond_is_not_lost(app: Duly, pay: Task[..., None], clock: ManualClock) -> None:
    clock.advance(timedelta(microseconds=123457))
    at = clock.now() + timedelta(microseconds=1)
    job = app.jobs.get(pay.using(run_at=at).enqueue(Decimal(1)).job.id)
    assert (job.created_at, job.run_at) == (clock.now(), at)


# --- In the caller's transaction ---------------------------------------------------------------------------------------
#
# A door yields (enqueue, transaction): how to make jobs there, and what to commit, roll back, or open savepoints on.


@contextmanager
def in_session(app: Duly) -> Iterator[Session]:
    with Session(app.db.session_engine) as session:
        yield session


@contextmanager
def in_connection(app: Duly) -> Iterator[Any]:
    with app.db.session_engine.connect() as connection:
        yield connection


@asynccontextmanager
async def in_async_session(app: Duly) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(app.db.async_engine) as session:
        yield session
    await app.db.async_engine.dispose()


@asynccontextmanager
async def in_async_connection(app: Duly) -> AsyncIterator[AsyncConnection]:
    async with app.db.async_engine.connect() as connection:
        yield connection
    await app.db.async_engine.dispose()


SYNC = [in_session, in_connection]
ASYNC = [in_async_session, in_async_connection]


def make_all(app: Duly, pay: Task[..., None], session: Any) -> int:
    """Enqueue through every synchronous door. Returns how many jobs that makes."""
    pay.using(session=session).enqueue(Decimal(1))
    pay.using(session=session, key="k").enqueue(Decimal(1))
    pay.using(session=session).enqueue_many([{"amount": n} for n in range(25)])
    app.enqueue("ELSEWHERE", {"a": 1}, session=session)
    app.enqueue_many("ELSEWHERE", [{}, {}], session=session)
    return 30


async def amake_all(app: Duly, pay: Task[..., None], session: Any) -> int:
    await pay.using(session=session).aenqueue(Decimal(1))
    await pay.using(session=session, key="k").aenqueue(Decimal(1))
    await app.aenqueue("ELSEWHERE", {"a": 1}, session=session)
    return 3


@pytest.mark.parametrize("door", SYNC)
def test_a_job_in_a_transaction_appears_when_it_commits_and_not_before(
    app: Duly, pay: Task[..., None], door: Callable[[Duly], Any]
) -> None:  # R004-1, HOUSE decision 10
    with door(app) as session:
        made = make_all(app, pay, session)
        assert app.jobs.count() == 0
        session.commit()
        assert app.jobs.count() == made
    assert app.jobs.count() == made


@pytest.mark.parametrize("door", SYNC)
def test_a_job_in_a_transaction_that_rolls_back_never_existed(
    app: Duly, pay: Task[..., None], door: Callable[[Duly], Any]
) -> None:  # R004-1
    with door(app) as session:
        make_all(app, pay, session)
        session.rollback()
    with door(app) as session:
        make_all(app, pay, session)  # closed without a commit
    assert app.jobs.count() == 0
    assert rows(app, "SELECT count(*) FROM job_keys") == [(0,)]


@pytest.mark.parametrize("door", SYNC)
def test_only_the_savepoint_that_was_rolled_back_loses_its_jobs(
    app: Duly, pay: Task[..., None], door: Callable[[Duly], Any]
) -> None:  # R004-2, B041
    with door(app) as session:
        outer = pay.using(session=session).enqueue(Decimal(1)).job
        inner = session.begin_nested()
        make_all(app, pay, session)
        inner.rollback()
        session.commit()
    assert [j.id for j in app.jobs.find()] == [outer.id]


@pytest.mark.parametrize("door", SYNC)
def test_a_savepoint_before_the_first_statement_protects_as_well(
    app: Duly, pay: Task[..., None], door: Callable[[Duly], Any]
) -> None:  # B041: where the driver's implicit transactions go wrong
    with door(app) as session:
        with session.begin_nested():
            make_all(app, pay, session)
        session.rollback()
    assert app.jobs.count() == 0


@pytest.mark.parametrize("door", SYNC)
def test_a_released_savepoint_does_not_outlive_the_rollback_around_it(
    app: Duly, pay: Task[..., None], door: Callable[[Duly], Any]
) -> None:  # R004-3, B041
    with door(app) as session:
        pay.using(session=session).enqueue(Decimal(1))
        with session.begin_nested():
            made = make_all(app, pay, session)
        session.rollback()
        assert made
    assert app.jobs.count() == 0


@pytest.mark.parametrize("door", ASYNC)
def test_an_asynchronous_transaction_decides_just_the_same(
    app: Duly, pay: Task[..., None], door: Callable[[Duly], Any]
) -> None:  # R004-1, R004-2, R004-3
    async def story() -> None:
        async with door(app) as session:
            await amake_all(app, pay, session)
            assert await app.db.arun(app.jobs.count) == 0
            await session.rollback()
        assert await app.db.arun(app.jobs.count) == 0

        async with door(app) as session:
            async with session.begin_nested():
                await amake_all(app, pay, session)
            await session.rollback()
        assert await app.db.arun(app.jobs.count) == 0

        async with door(app) as session:
            kept = await amake_all(app, pay, session)
            inner = await session.begin_nested()
            await pay.using(session=session, tenant="acme").aenqueue(Decimal(7))
            await inner.rollback()
            await session.commit()
        assert await app.db.arun(app.jobs.count) == kept

    asyncio.run(story())


@pytest.mark.parametrize("door", SYNC)
def test_a_callers_own_rows_and_its_job_are_one_commit(
    app: Duly, pay: Task[..., None], door: Callable[[Duly], Any]
) -> None:
    app.open()
    app.db.write(lambda c: c.execute(text("CREATE TABLE orders (id integer)")))
    for end in ("rollback", "commit"):
        with door(app) as session:
            session.execute(text("INSERT INTO orders VALUES (1)"))
            pay.using(session=session).enqueue(Decimal(1))
            getattr(session, end)()
    assert rows(app, "SELECT count(*) FROM orders") == [(1,)]
    assert app.jobs.count() == 1


def test_an_asynchronous_session_needs_the_asynchronous_door(app: Duly, pay: Task[..., None]) -> None:
    async def story() -> None:
        async with in_async_session(app) as session:
            with pytest.raises(InvalidArgument, match="await"):
                pay.using(session=session).enqueue(Decimal(1))

    asyncio.run(story())


def test_what_is_no_session_is_refused(app: Duly, pay: Task[..., None]) -> None:
    with pytest.raises(InvalidArgument, match="is of type str"):
        pay.using(session="session").enqueue(Decimal(1))
    with pytest.raises(InvalidArgument, match="is of type Engine"):
        pay.using(session=app.db.engine).enqueue(Decimal(1))


# --- SQLite's default driver -------------------------------------------------------------------------------------------


def test_a_default_sqlite_session_is_refused_at_every_door(sqlite_url: str) -> None:  # B041
    app = Duly(sqlite_url)

    @app.task("PAY")
    def pay(amount: Decimal) -> None: ...

    doors: list[Callable[[Any], object]] = [
        lambda s: pay.using(session=s).enqueue(Decimal(1)),
        lambda s: pay.using(session=s, key="k").enqueue(Decimal(1)),
        lambda s: pay.using(session=s).enqueue_many([{"amount": 1}]),
        lambda s: app.enqueue("PAY", {"amount": 1}, session=s),
        lambda s: app.enqueue_many("X", [{}, {}], session=s),
    ]
    engine = create_engine(sqlite_url)
    with Session(engine) as session, engine.connect() as connection:
        for door in doors:
            for unsafe in (session, connection):
                with pytest.raises(UnsafeSession, match="make_engine"):
                    door(unsafe)
    engine.dispose()
    assert app.jobs.count() == 0
    app.close()


def test_a_default_asynchronous_sqlite_session_is_refused_too(sqlite_url: str) -> None:  # B041
    app = Duly(sqlite_url)
    engine = create_async_engine(sqlite_url.replace("sqlite://", "sqlite+aiosqlite://"))

    async def story() -> None:
        async with AsyncSession(engine) as session, engine.connect() as connection:
            for unsafe in (session, connection):
                with pytest.raises(UnsafeSession):
                    await app.aenqueue("X", {}, session=unsafe)
                with pytest.raises(UnsafeSession):
                    await app.aenqueue("X", {}, session=unsafe, key="k")
        await engine.dispose()

    asyncio.run(story())
    assert app.jobs.count() == 0
    app.close()


def test_a_connection_in_autocommit_is_refused_however_it_came_to_be(pg: Duly) -> None:
    engine = pg.db.session_engine
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as one,
        engine.execution_options(isolation_level="AUTOCOMMIT").connect() as two,
        Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as three,
    ):
        for unsafe in (one, two, three):
            for options in ({}, {"key": "k"}):
                with pytest.raises(UnsafeSession, match="autocommit"):
                    pg.enqueue("X", {}, session=unsafe, **options)
    with engine.connect() as connection:  # of the same pool
        pg.enqueue("X", {}, session=connection)
        connection.rollback()

    async def story() -> None:
        async with pg.db.async_engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(UnsafeSession, match="autocommit"):
                await pg.aenqueue("X", {}, session=connection)
        await pg.db.async_engine.dispose()

    asyncio.run(story())
    assert pg.jobs.count() == 0


def test_a_sqlite_connection_in_autocommit_is_refused(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    engine = create_engine(sqlite_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(UnsafeSession):
        app.enqueue("X", {}, session=connection)
    engine.dispose()
    app.close()

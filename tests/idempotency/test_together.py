"""``@idempotent_task`` on a function that is given a session: its effect, its key and the end of its job are one commit.

On both databases. Whatever takes the effect away (a failing commit, a savepoint, a rollback, a death) leaves a key with which
the call can be made again, and on SQLite nobody waits for a lock that only he himself can give back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, Table, create_engine, delete, insert, make_url, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duly import INJECT, Backoff, Duly, Retry, Status, UsageError
from duly.idempotency import MemoryStore, SqlStore, idempotent_task
from duly.idempotency.keeper import KEEPER
from duly.idempotency.reservation import Ask, State, Terms
from duly.idempotency.store import Holding, StoreBusy
from duly.kernel.errors import DatabaseBusy, InProgress
from duly.kernel.events import PROCESS, Event
from duly.testing import drain
from idempotency.session_hands import Base, Booking, Shop, book_in, open_shop
from keeper import until


@pytest.fixture
def shop(db_url: str) -> Iterator[Shop]:
    with open_shop(db_url) as made:
        yield made


# --- In a job ---------------------------------------------------------------------------------------------------------


def test_effect_key_and_job_are_one_commit(shop: Shop) -> None:  # R004-8
    seen: list[Any] = []

    @shop.app.task
    @idempotent_task
    def book(order: int, session: Session = INJECT) -> str:
        session.add(Booking(order=order))
        session.flush()
        shop.runs.append(order)
        return "booked"

    settle = shop.app.engine.store.settle

    def looked(*args: Any) -> Any:
        seen.append((shop.booked(), shop.states()))  # what others see right before the commit
        return settle(*args)

    shop.app.engine.store.settle = looked  # type: ignore[method-assign]
    jobs = [book.enqueue(1).job for _ in range(2)]
    drain(shop.app)
    assert seen[0] == ([], ["in_progress"])
    assert (shop.booked(), shop.states(), shop.runs) == ([1], ["succeeded"], [1])
    assert [shop.app.jobs.get(job.id).output for job in jobs] == ["booked", "booked"]
    assert shop.told == ["allowed", "in_progress", "succeeded", "deduped"]
    assert shop.troubles == []


def test_a_commit_that_fails_frees_the_key_and_the_retry_has_the_effect(shop: Shop) -> None:  # R004-13
    @shop.app.task(max_attempts=3, backoff=Backoff(base=1))
    @idempotent_task
    def book(order: int, session: Session = INJECT) -> str:
        session.add(Booking(order=order))  # flushed by the commit, after the body
        shop.runs.append(order)
        return "booked"

    with shop.session() as session, session.begin():
        session.add(Booking(order=1))
    job = book.enqueue(1).job
    drain(shop.app)
    assert (shop.app.jobs.get(job.id).status, shop.states()) == (Status.QUEUED, ["failed"])
    with shop.session() as session, session.begin():
        session.execute(delete(Booking))
    shop.clock.advance(5)
    drain(shop.app)
    assert (shop.app.jobs.get(job.id).status, shop.booked(), shop.runs) == (Status.SUCCEEDED, [1], [1, 1])
    assert shop.told == ["allowed", "in_progress", "failed", "allowed", "in_progress", "succeeded"]


def test_a_worker_that_lost_its_job_leaves_neither_effect_nor_record(shop: Shop) -> None:
    @shop.app.task
    @idempotent_task
    def book(order: int, session: Session = INJECT) -> str:
        session.add(Booking(order=order))
        shop.runs.append(order)
        return "booked"

    settle = shop.app.engine.store.settle
    shop.app.engine.store.settle = lambda *_: set()  # type: ignore[method-assign, assignment]
    book.enqueue(1)
    drain(shop.app, limit=1)
    shop.app.engine.store.settle = settle  # type: ignore[method-assign]
    assert (shop.booked(), shop.states()) == ([], ["failed"])


def test_a_handler_that_raises_or_asks_for_a_retry_frees_its_key(shop: Shop) -> None:  # R004-13, T004-f
    @shop.app.task(max_attempts=3, backoff=Backoff(base=1))
    @idempotent_task
    def book(order: int, session: Session = INJECT) -> None:
        session.add(Booking(order=order))
        session.flush()
        shop.runs.append(order)
        if len(shop.runs) == 1:
            raise ValueError("not the first time")
        if len(shop.runs) == 2:
            raise Retry("nor the second")

    book.enqueue(1)
    for keys, booked in ((["failed"], []), ([], []), (["succeeded"], [1])):
        drain(shop.app)
        assert (shop.states(), shop.booked()) == (keys, booked)
        shop.clock.advance(60)
    assert shop.troubles == []


def test_an_async_handler_is_one_commit_with_its_key_too(shop: Shop) -> None:
    @shop.app.task(max_attempts=3, backoff=Backoff(base=1))
    @idempotent_task
    async def book(order: int, session: AsyncSession = INJECT) -> str:
        shop.runs.append(order)
        session.add(Booking(order=order))
        await session.flush()
        if len(shop.runs) == 1:
            raise ValueError("not the first time")
        return "booked"

    jobs = [book.enqueue(1).job]
    drain(shop.app)
    assert (shop.states(), shop.booked()) == (["failed"], [])
    jobs.append(book.enqueue(1).job)
    shop.clock.advance(60)
    drain(shop.app)
    assert [shop.app.jobs.get(job.id).output for job in jobs] == ["booked", "booked"]
    assert (shop.states(), shop.booked(), shop.runs) == (["succeeded"], [1], [1, 1])
    assert shop.troubles == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_serves_many_at_once(db_url: str, asynchronous: bool) -> None:
    """On SQLite, none waits for a lock that he himself holds: the shortest wait for it is longer than this test may take."""
    app = Duly(db_url, busy_timeout=60)
    app.open()
    Base.metadata.create_all(app.db.session_engine)
    heard: list[Event] = []
    app.listen(lambda e: heard.append(e) if e.level in ("warning", "error") else None)

    if asynchronous:

        @app.task("BOOK")
        @idempotent_task(heartbeat=0.05)
        async def book(order: int, session: AsyncSession = INJECT) -> None:
            await session.execute(insert(Booking).values(order=order))
            await asyncio.sleep(0.2)  # longer than some signs of life are apart
    else:

        @app.task("BOOK")
        @idempotent_task(heartbeat=0.05)
        def book(order: int, session: Session = INJECT) -> None:
            session.execute(insert(Booking).values(order=order))
            threading.Event().wait(0.2)

    for order in (1, 2, 3, 1, 2, 3):
        app.enqueue("BOOK", {"order": order})
    worker = app.worker({"default": 4})
    ended = threading.Thread(target=lambda: worker.run(until_idle=30))
    ended.start()
    try:
        assert until(lambda: app.db.read(lambda c: c.scalar(text("SELECT count(*) FROM jobs"))) == 0, 40)
        orders = app.db.read(lambda c: list(c.scalars(select(Booking.order).order_by(Booking.order))))
        assert orders == [1, 2, 3]
        assert [e.name for e in heard if e.name != "worker_stopped"] == []
    finally:
        worker.stop()
        ended.join(30)
        app.close()


# --- With one's own session -------------------------------------------------------------------------------------------


def test_the_record_comes_with_the_commit_and_goes_with_the_rollback(shop: Shop) -> None:
    book = book_in(shop)
    with shop.session() as session:
        assert book(1, session=session) == "booked 1"
        assert shop.states() == ["in_progress"]
        session.rollback()
        assert shop.states() == ["failed"]
        assert book(1, session) == "booked 1"
        session.commit()
    assert (shop.states(), shop.booked(), shop.runs) == (["succeeded"], [1], [1, 1])
    with shop.session() as session:
        assert book(1, session) == "booked 1"  # what is recorded
    assert shop.runs == [1, 1]


def test_a_scoped_session_is_known_too(shop: Shop) -> None:
    book, registry = book_in(shop), scoped_session(sessionmaker(shop.app.db.session_engine))
    book(1, registry)
    assert shop.states() == ["in_progress"]
    registry.remove()
    assert (shop.states(), shop.booked()) == (["failed"], [])


@pytest.mark.parametrize("before", [False, True], ids=["first", "after a write"])
def test_a_second_call_in_the_same_transaction_gets_the_result(shop: Shop, before: bool) -> None:
    book = book_in(shop, on_duplicate="wait")
    with shop.session() as session, session.begin():
        if before:
            session.execute(insert(Booking).values(order=7))
        assert [book(1, session), book(1, session)] == ["booked 1", "booked 1"]
    assert (shop.states(), shop.runs) == (["succeeded"], [1])
    assert shop.booked() == ([1, 7] if before else [1])


def test_what_was_written_before_the_call_goes_with_it(shop: Shop) -> None:
    book = book_in(shop)
    with shop.session() as session:
        session.execute(insert(Booking).values(order=7))
        book(1, session)
        session.rollback()
    assert shop.booked() == [] and "succeeded" not in shop.states()
    with shop.session() as session, session.begin():
        session.execute(insert(Booking).values(order=7))
        book(1, session)
    assert (shop.booked(), shop.states(), shop.runs) == ([1, 7], ["succeeded"], [1, 1])


@pytest.mark.parametrize("before", [False, True], ids=["first", "after a write"])
def test_a_savepoint_that_is_given_up_takes_the_record_along(shop: Shop, before: bool) -> None:  # R004-2
    book = book_in(shop)
    with shop.session() as session, session.begin():
        if before:
            session.execute(insert(Booking).values(order=7))
        with pytest.raises(RuntimeError), session.begin_nested():
            book(1, session)
            session.flush()
            raise RuntimeError("only this one")
    assert until(lambda: KEEPER.count == 0, 10)
    assert "succeeded" not in shop.states()
    with shop.session() as session, session.begin(), session.begin_nested():
        book(1, session)
    assert (shop.states(), shop.runs, 1 in shop.booked()) == (["succeeded"], [1, 1], True)


def test_whoever_catches_the_error_may_try_again_in_the_same_transaction(shop: Shop) -> None:  # R004-13
    @idempotent_task
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        session.execute(insert(Booking).values(order=order + 100 * len(shop.runs)))
        if len(shop.runs) == 1:
            raise ValueError("not the first time")
        return "booked"

    with shop.session() as session, session.begin():
        with pytest.raises(ValueError, match="not the first time"):
            book(1, session)
        assert book(1, session) == "booked"
    assert (shop.states(), shop.booked()) == (["succeeded"], [101, 201])


def test_somebody_who_took_over_keeps_the_key_and_the_late_one_is_rolled_back(shop: Shop) -> None:  # T004-c
    """The lock lapsed while the body ran; the other one's call is the one that counts."""

    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        if len(shop.runs) == 1:
            (mine,) = KEEPER.holdings
            store, found = shop.app.reservations, mine.reservation
            theirs = replace(found, owner="call:other", token=found.token + 1)
            assert store.replace(found, theirs)
        session.add(Booking(order=order))
        return "booked"

    with shop.session() as session:
        with pytest.raises(InProgress):
            book(1, session)
        session.rollback()
    assert (shop.states(), shop.booked()) == (["in_progress"], [])
    assert shop.troubles == ["idempotency_lost"]


def test_a_session_that_sees_only_the_past_leaves_the_record_to_the_commit(shop: Shop) -> None:
    if shop.app.db.is_sqlite:
        pytest.skip("an open transaction is a writer there")
    book = book_in(shop)
    engine = shop.app.db.session_engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(engine) as session, session.begin():
        session.execute(select(Booking))
        book(1, session)
    assert (shop.states(), shop.booked()) == (["succeeded"], [1])


def test_an_async_function_with_its_callers_session(shop: Shop) -> None:
    @idempotent_task
    async def book(order: int, session: AsyncSession) -> str:
        shop.runs.append(order)
        await session.execute(insert(Booking).values(order=order))
        return "booked"

    async def go() -> None:
        async with AsyncSession(shop.app.db.async_engine) as session:
            await book(1, session)
            await session.rollback()
            assert (shop.states(), shop.booked()) == (["failed"], [])
            await book(1, session)
            await book(2, session)  # in the middle of a transaction that writes
            assert await book(1, session) == "booked"
            await session.commit()
        await shop.app.db.async_engine.dispose()

    asyncio.run(go())
    assert (shop.states(), shop.booked(), shop.runs) == (["succeeded", "succeeded"], [1, 2], [1, 1, 2])


# --- With a store elsewhere -------------------------------------------------------------------------------------------


def test_a_store_elsewhere_records_after_the_commit(shop: Shop) -> None:
    store = MemoryStore()
    book = book_in(shop, store=store)

    def state() -> str:
        (kept,) = store._kept.values()
        return kept.state

    with shop.session() as session:
        book(1, session)
        assert state() == State.IN_PROGRESS
        session.rollback()
        assert state() == State.FAILED
        book(1, session)
        session.commit()
        assert state() == State.SUCCEEDED
        session.add(Booking(order=1))
        with pytest.raises(IntegrityError):
            session.commit()
    assert (state(), shop.runs, shop.booked()) == (State.SUCCEEDED, [1, 1], [1])


def test_a_commit_that_fails_frees_a_key_that_is_elsewhere(shop: Shop) -> None:
    book = book_in(shop, store=MemoryStore())
    with shop.session() as session, session.begin():
        session.add(Booking(order=1))
    with shop.session() as session:
        book(1, session)
        with pytest.raises(IntegrityError):
            session.commit()
    with shop.session() as session, session.begin():
        session.execute(delete(Booking))
        book(1, session)
    assert (shop.booked(), shop.runs) == ([1], [1, 1])


# --- Where the end is not written in the transaction ------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same database", "store elsewhere"])
@pytest.mark.parametrize("how", ["commit", "block", "commit and read", "no autobegin"])
def test_a_body_that_commits_by_itself_is_done(shop: Shop, how: str, elsewhere: bool) -> None:
    """Whatever becomes of the session afterwards: its effect cannot be taken back, and does not happen twice."""
    store = MemoryStore() if elsewhere else None

    @idempotent_task(name="book", store=store)
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        if how in ("block", "no autobegin"):
            with session.begin():
                session.add(Booking(order=order))
        else:
            session.add(Booking(order=order))
            session.commit()
        if how == "commit and read":
            session.execute(select(Booking)).all()
        return "booked"

    for _ in range(2):
        with Session(shop.app.db.session_engine, autobegin=how != "no autobegin") as session:
            assert book(1, session) == "booked"
            session.rollback()
    assert (shop.booked(), shop.runs, shop.troubles) == ([1], [1], [])
    assert [k.state for k in store._kept.values()] == ["succeeded"] if store else shop.states() == ["succeeded"]


def test_an_async_body_that_commits_by_itself_is_done(shop: Shop) -> None:
    @idempotent_task
    async def book(order: int, session: AsyncSession) -> str:
        shop.runs.append(order)
        session.add(Booking(order=order))
        await session.commit()
        return "booked"

    async def go() -> None:
        for _ in range(2):
            async with AsyncSession(shop.app.db.async_engine) as session:
                assert await book(1, session) == "booked"
        await shop.app.db.async_engine.dispose()

    asyncio.run(go())
    assert (shop.booked(), shop.states(), shop.runs) == ([1], ["succeeded"], [1])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_commit_within_somebody_elses_transaction_is_none(shop: Shop, end: str) -> None:  # T004-p
    @idempotent_task
    def book(order: int, session: Session) -> None:
        session.add(Booking(order=order))
        session.commit()

    with shop.app.db.session_engine.connect() as connection:
        outer = connection.begin()
        with Session(connection) as session:
            book(1, session)
        getattr(outer, end)()
    assert until(lambda: shop.states() != ["in_progress"], 10)
    kept = (["succeeded"], [1])
    assert (shop.states(), shop.booked()) == kept if end == "commit" else "succeeded" not in shop.states()


@pytest.mark.parametrize("before", [False, True], ids=["first", "after a write"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_body_that_rolls_back_and_goes_on_is_recorded_after_the_commit(shop: Shop, before: bool, end: str) -> None:
    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        session.execute(insert(Booking).values(order=99))
        session.rollback()
        session.execute(insert(Booking).values(order=order))
        return "booked"

    with shop.session() as session:
        if before:
            session.execute(insert(Booking).values(order=7))
        assert book(1, session) == "booked"
        assert "succeeded" not in shop.states()
        getattr(session, end)()
    assert shop.booked() == ([1] if end == "commit" else [])
    assert ("succeeded" in shop.states()) == (end == "commit")
    assert shop.troubles == []


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_long_body_that_sees_only_the_past_succeeds(shop: Shop, level: str) -> None:
    """Signs of life change the reservation, which its transaction could not change after them."""
    if shop.app.db.is_sqlite:
        pytest.skip("the levels are PostgreSQL's")

    @idempotent_task(heartbeat=0.02)
    def book(order: int, session: Session) -> None:
        shop.runs.append(order)
        session.execute(insert(Booking).values(order=order))
        (mine,) = KEEPER.holdings
        first = mine.reservation.seen_at
        shop.clock.advance(1)
        assert until(lambda: mine.reservation.seen_at > first, 10)

    for _ in range(2):
        with Session(shop.app.db.session_engine.execution_options(isolation_level=level)) as session, session.begin():
            book(1, session)
    assert (shop.booked(), shop.states(), shop.runs, shop.troubles) == ([1], ["succeeded"], [1], [])


@pytest.mark.parametrize("before", [False, True], ids=["first", "after a read"])
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("what", ["search_path=elsewhere", "search_path=other", "default_transaction_read_only=on"])
def test_a_session_that_cannot_write_the_record_leaves_it_to_the_commit(shop: Shop, what: str, level: str, before: bool) -> None:  # fmt: skip
    """A schema without the table, one with a table of the same name, a follower that only reads."""
    if shop.app.db.is_sqlite:
        pytest.skip("the settings are PostgreSQL's")
    with shop.app.db.engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA other"))
        connection.execute(text("CREATE TABLE other.idempotency (LIKE public.idempotency)"))

    @idempotent_task
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        session.execute(text("SELECT 1"))
        return "booked"

    url = shop.app.db.url.set(drivername="postgresql+psycopg")
    engine = create_engine(url, connect_args={"options": f"-c{what}"}, isolation_level=level)  # type: ignore[arg-type]
    for end in ("rollback", "commit", "commit"):
        with Session(engine) as session:
            if before:
                session.execute(text("SELECT 1"))
            assert book(1, session) == "booked"
            getattr(session, end)()
    engine.dispose()
    assert (shop.states(), shop.runs, shop.troubles) == (["succeeded"], [1, 1], [])


def test_a_session_of_translated_schemas_leaves_the_record_to_the_commit(shop: Shop) -> None:
    book = book_in(shop)
    options = {"schema_translate_map": {None: "public" if not shop.app.db.is_sqlite else "main", "x": "y"}}
    with Session(shop.app.db.session_engine.execution_options(**options)) as session:
        book(1, session)
        session.flush()
        assert shop.states() == ["in_progress"]
        session.commit()
    assert (shop.states(), shop.booked()) == (["succeeded"], [1])


@pytest.mark.parametrize("orm", [True, False])
def test_a_session_that_cannot_go_on_frees_the_key(shop: Shop, orm: bool) -> None:
    """The body has swallowed what its database said. The caller hears what the session says, and nothing else."""
    with shop.session() as session, session.begin():
        session.add(Booking(order=1))

    @idempotent_task
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        with contextlib.suppress(IntegrityError):
            if orm:
                session.add(Booking(order=order))
                session.flush()
            else:
                session.execute(insert(Booking).values(order=order))
        return "booked"

    for _ in range(2):
        with shop.session() as session:
            assert book(1, session) == "booked"
            assert shop.states() == ["in_progress"]
            session.rollback()
        assert shop.states() == ["failed"]
    assert (shop.runs, shop.troubles) == ([1, 1], [])


def test_a_key_elsewhere_gives_signs_of_life_until_the_commit(shop: Shop) -> None:  # T004-d
    store = MemoryStore()
    book = book_in(shop, store=store, heartbeat=0.02)
    with shop.session() as session:
        book(1, session)
        (kept,) = store._kept.values()
        assert until(lambda: next(iter(store._kept.values())).seen_at > kept.seen_at, 10)
        session.commit()
    (kept,) = store._kept.values()
    assert (kept.state, KEEPER.count) == (State.SUCCEEDED, 0)


def test_a_session_that_is_dropped_gives_no_signs_of_life(shop: Shop) -> None:
    book = book_in(shop, store=MemoryStore(), heartbeat=0.02)

    def drop() -> None:
        book(1, Session(shop.app.db.session_engine))

    drop()
    gc.collect()
    assert until(lambda: KEEPER.count == 0, 10)


# --- On SQLite: one writer --------------------------------------------------------------------------------------------


@pytest.fixture
def file(sqlite_url: str) -> Iterator[Duly]:
    app = Duly(sqlite_url, busy_timeout=60)
    app.open()
    Base.metadata.create_all(app.db.session_engine)
    yield app
    app.close()


def test_a_call_in_ones_own_write_transaction_is_refused_in_words(file: Duly) -> None:
    runs = []

    @idempotent_task
    def plain(n: int) -> None:
        runs.append(n)

    with Session(file.db.session_engine) as session, session.begin():
        plain(0)  # nothing is begun yet
        session.execute(insert(Booking).values(order=1))
        with pytest.raises(
            UsageError, match=r"one writer.*before the first write or after the commit.*hand the session"
        ):
            plain(1)
    plain(1)
    assert runs == [0, 1]


def test_a_call_waits_for_a_session_that_another_thread_commits(file: Duly) -> None:
    """A thread that began a transaction may be serving somebody else by now."""
    runs = []

    @idempotent_task
    def plain(n: int) -> None:
        runs.append(n)

    session = Session(file.db.session_engine)
    session.execute(insert(Booking).values(order=1))
    assert file.reservations.would_wait_for_caller(True)
    hurried, asked = file.reservations.hurried, threading.Event()

    def noticed() -> Any:
        asked.set()
        return hurried()

    file.reservations.hurried = noticed  # type: ignore[method-assign]

    def end() -> None:
        asked.wait(30)
        session.commit()

    other = threading.Thread(target=end)
    other.start()
    plain(1)
    other.join()
    assert runs == [1]
    session.close()


@pytest.mark.parametrize("how", ["dropped", "invalidated"])
def test_nothing_is_remembered_of_a_session_that_is_gone(file: Duly, how: str) -> None:
    @idempotent_task
    def plain(n: int) -> None: ...

    session = Session(file.db.session_engine)
    session.execute(insert(Booking).values(order=1))
    if how == "invalidated":
        session.invalidate()
    del session
    gc.collect()
    assert not file.reservations.would_wait_for_caller(True)
    plain(1)


def test_an_async_call_in_ones_own_write_transaction_is_refused_and_another_coroutine_waits(file: Duly) -> None:
    runs = []

    @idempotent_task
    async def plain(n: int) -> None:
        runs.append(n)

    async def go() -> None:
        async with AsyncSession(file.db.async_engine) as session, session.begin():
            await session.execute(insert(Booking).values(order=1))
            with pytest.raises(UsageError, match="one writer"):
                await plain(1)
            other = asyncio.create_task(plain(2))
            await asyncio.sleep(0.05)
            assert runs == []
        await other
        await file.db.async_engine.dispose()

    asyncio.run(go())
    assert runs == [2]


def test_a_transaction_of_another_engine_is_named_when_the_patience_is_over(sqlite_url: str) -> None:
    """Who holds the lock cannot be known then, but what to do can be said, once."""
    app = Duly(sqlite_url, busy_timeout=0.1)
    app.open()

    @idempotent_task(on_store_error="raise")
    def plain(n: int) -> None:
        raise AssertionError

    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM alerts"))
        with pytest.raises(StoreBusy) as caught:
            plain(1)
    said = str(caught.value)
    assert said.count("the idempotency store does not answer") == 1
    assert "hand the session on" in said
    assert KEEPER.count == 0
    engine.dispose()
    app.close()


def test_a_sign_of_life_does_not_wait_for_a_transaction_that_writes(file: Duly) -> None:
    store = SqlStore(file.db)
    terms = Terms(lock=timedelta(seconds=60), heartbeat=timedelta(seconds=0.02))
    holding = KEEPER.reserve(store, Ask("default", "k", "t", "me", "f", terms))
    assert isinstance(holding, Holding)
    heard: list[Event] = []
    deaf = PROCESS.listen(heard.append)
    with Session(file.db.session_engine) as session, session.begin():
        session.execute(insert(Booking).values(order=1))
        first = holding.reservation
        threading.Event().wait(0.5)  # some signs of life are due meanwhile
        with holding._lock:  # nobody keeps it while he waits for the file
            assert holding.reservation == first
    assert until(lambda: holding.reservation.seen_at > first.seen_at, 10)
    KEEPER.let_go(holding)
    assert holding.succeed("null")
    deaf()
    assert [e.name for e in heard if e.level != "info"] == []


def test_a_writer_in_a_hurry_does_not_wait(file: Duly) -> None:
    def touch(connection: Connection) -> None:
        connection.execute(insert(Booking).values(order=2))

    with Session(file.db.session_engine) as session, session.begin():
        session.execute(insert(Booking).values(order=1))
        with file.db.hurried(), pytest.raises(DatabaseBusy):
            file.db.write(touch)
    with file.db.hurried():
        file.db.write(touch)
    assert file.db.read(lambda c: list(c.scalars(select(Booking.order)))) == [1, 2]


def test_an_ordinary_engine_on_the_same_file_carries_the_key_as_well(file: Duly, sqlite_url: str) -> None:
    @idempotent_task(name="book")
    def book(order: int, session: Session) -> None:
        session.execute(insert(Booking).values(order=order))

    engine = create_engine(make_url(sqlite_url))
    with Session(engine) as session:
        book(1, session)
        session.rollback()
        book(1, session)
        book(2, session)
        session.commit()
    with Session(engine) as session:
        table = Table("idempotency", MetaData(), autoload_with=engine)
        assert list(session.scalars(select(table.c.state))) == ["succeeded", "succeeded"]
        assert list(session.scalars(select(Booking.order))) == [1, 2]
    engine.dispose()

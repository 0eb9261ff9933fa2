"""A body that writes with a session or connection that it was not given succeeds when that transaction does (F3)."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duly.idempotency import MemoryStore, idempotent_task
from duly.idempotency.store import KeyFilter
from duly.idempotency.taken import changes_rows
from duly.kernel.errors import InProgress
from duly.storage.sqlite import make_async_engine
from idempotency.session_hands import Booking, Shop, open_shop
from keeper import until


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Shop]:
    with open_shop(sqlite_url) as made:
        yield made


@pytest.fixture
def db(shop: Shop) -> Iterator[Any]:
    registry = scoped_session(sessionmaker(shop.app.db.session_engine))
    yield registry
    registry.remove()


def _flushed(db: Any, order: int) -> None:
    db.add(Booking(order=order))
    db.flush()


WAYS: dict[str, Callable[[Any, int], object]] = {
    "added": lambda db, order: db.add(Booking(order=order)),
    "flushed": _flushed,
    "statement": lambda db, order: db.execute(insert(Booking).values(order=order)),
    "text": lambda db, order: db.execute(text("/* by hand */ INSERT INTO bookings (\"order\") VALUES (:n)"), {"n": order}),
    "its connection": lambda db, order: db.connection().execute(insert(Booking).values(order=order)),
    "released savepoint": lambda db, order: _in_savepoint(db, order),
}  # fmt: skip


def _in_savepoint(db: Any, order: int) -> None:
    with db.begin_nested():
        db.add(Booking(order=order))


def _book(shop: Shop, write: Callable[[int], object], **options: Any) -> Any:
    @idempotent_task(name="book", **options)
    def book(order: int) -> str:
        shop.runs.append(order)
        write(order)
        return f"booked {order}"

    return book


@pytest.mark.parametrize("way", WAYS)
def test_a_rollback_of_a_session_that_was_not_handed_in_frees_the_key(shop: Shop, db: Any, way: str) -> None:  # F3
    book = _book(shop, lambda order: WAYS[way](db, order))
    book(1)
    assert shop.states() == ["in_progress"]
    assert book(1) == "booked 1", "in the same transaction it is known"
    db.remove()
    assert (shop.states(), shop.booked()) == (["failed"], [])
    book(1)
    db.commit()
    assert (shop.states(), shop.booked(), shop.runs) == (["succeeded"], [1], [1, 1])
    assert book(1) == "booked 1" and shop.runs == [1, 1]


def _states(store: MemoryStore) -> list[str]:
    return [one.state.value for one in store.find(KeyFilter(), 10)[0]]


def test_what_was_loaded_before_and_is_changed_in_the_body_counts(shop: Shop, db: Any) -> None:
    store = MemoryStore()
    with shop.session() as session, session.begin():
        session.add(Booking(order=1))
    loaded = db.scalars(select(Booking)).one()
    move = _book(shop, lambda order: setattr(db.get(Booking, loaded.id), "order", order), store=store)
    move(2)
    assert _states(store) == ["in_progress"]
    db.rollback()
    assert _states(store) == ["failed"]
    loaded = db.scalars(select(Booking)).one()
    drop = _book(shop, lambda order: db.delete(db.get(Booking, loaded.id)), store=store)
    drop(2)
    db.commit()
    assert (_states(store), shop.booked()) == (["succeeded"], [])


def test_a_body_that_reads_or_commits_by_itself_waits_for_nobody(shop: Shop, db: Any) -> None:
    store = MemoryStore()
    _book(shop, lambda order: db.scalars(select(Booking)).all(), store=store)(1)
    assert _states(store) == ["succeeded"]
    db.rollback()

    def committed(order: int) -> None:
        db.add(Booking(order=order))
        db.commit()
        _flushed(db, order + 1)

    _book(shop, committed, store=store)(2)
    db.rollback()
    assert (_states(store), shop.booked()) == (["succeeded", "succeeded"], [2])


def test_what_duly_commits_for_a_body_does_not_make_its_session_durable(shop: Shop, db: Any) -> None:
    store = MemoryStore()

    @shop.app.task
    def ship() -> None: ...

    def write(order: int) -> None:
        ship.enqueue()
        _flushed(db, order)

    _book(shop, write, store=store)(1)
    assert _states(store) == ["in_progress"]
    db.rollback()
    assert _states(store) == ["failed"]


def test_what_waited_in_the_session_before_the_call_is_not_the_body_s(shop: Shop, db: Any) -> None:
    store = MemoryStore()
    db.add(Booking(order=7))
    _book(shop, lambda order: None, store=store)(1)
    db.rollback()
    assert _states(store) == ["succeeded"]


def test_a_savepoint_around_the_call_takes_the_key_along(shop: Shop, db: Any) -> None:
    store = MemoryStore()
    book = _book(shop, lambda order: WAYS["flushed"](db, order), store=store)
    db.connection()
    savepoint = db.begin_nested()
    book(1)
    savepoint.rollback()
    assert _states(store) == ["failed"]
    book(1)
    assert _states(store) == ["in_progress"]
    db.commit()
    assert (_states(store), shop.booked(), shop.runs) == (["succeeded"], [1], [1, 1])


@pytest.mark.parametrize("fate", ["rollback", "commit"])
def test_a_transaction_of_a_plain_connection_counts_too(shop: Shop, fate: str) -> None:
    store = MemoryStore()
    with shop.app.db.session_engine.connect() as connection:
        book = _book(shop, lambda order: connection.execute(insert(Booking).values(order=order)), store=store)
        transaction = connection.begin()
        book(1)
        assert _states(store) == ["in_progress"]
        getattr(transaction, fate)()
    assert (_states(store), shop.booked()) == ((["failed"], []) if fate == "rollback" else (["succeeded"], [1]))


def test_of_two_sessions_one_rollback_frees_the_key(shop: Shop, db: Any) -> None:
    store = MemoryStore()
    other = scoped_session(sessionmaker(shop.app.db.session_engine))

    def both(order: int) -> None:
        db.add(Booking(order=order))
        other.add(Booking(order=order + 100))

    book = _book(shop, both, store=store)
    for first, second, end in (("commit", "rollback", "failed"), ("rollback", "commit", "failed"), ("commit", "commit", "succeeded")):  # fmt: skip
        order = len(shop.runs)
        book(order)
        getattr(db, first)()
        getattr(other, second)()
        key = book.idempotency_key(order)
        found, _ = store.read("default", key)
        assert found is not None and found.state.value == end


def test_of_two_sessions_the_first_may_be_dropped_when_it_has_committed(shop: Shop) -> None:  # F3
    store, made = MemoryStore(), [shop.session(), shop.session()]

    def both(order: int) -> None:
        for number, session in enumerate(made):
            session.add(Booking(order=order + number))

    _book(shop, both, store=store)(1)
    made[0].commit()
    del made[0]
    gc.collect()
    made[0].commit()
    assert (_states(store), shop.booked()) == (["succeeded"], [1, 2])


def test_a_body_with_many_transactions_keeps_none_of_them(shop: Shop) -> None:  # F3
    left: list[Any] = []

    def many(order: int) -> None:
        for fate in ("rollback", "commit"):
            with shop.app.db.session_engine.connect() as connection:
                connection.execute(insert(Booking).values(order=order))
                getattr(connection, fate)()
                left.append(weakref.ref(connection))
            del connection
        gc.collect()
        left[:] = [ref for ref in left if ref() is not None]

    _book(shop, many, store=MemoryStore())(1)
    assert left == []


def test_what_a_body_has_started_and_outlives_it_is_not_the_body_s(shop: Shop, db: Any) -> None:
    later: list[contextvars.Context] = []
    store = MemoryStore()
    _book(shop, lambda order: later.append(contextvars.copy_context()), store=store)(1)
    later[0].run(_flushed, db, 1)
    assert _states(store) == ["succeeded"]
    kept = weakref.ref(db.connection())
    db.rollback()
    db.remove()
    gc.collect()
    assert kept() is None, "and nothing is kept of it"


def test_a_child_of_a_fork_knows_nothing_of_its_parents_transactions(shop: Shop, db: Any) -> None:
    store = MemoryStore()
    book = _book(shop, lambda order: _flushed(db, order), store=store)
    book(1)
    child = os.fork()
    if child == 0:
        try:
            book(1)
        except InProgress:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    db.commit()
    assert _states(store) == ["succeeded"]


def test_a_failed_body_with_an_open_session_keeps_nobody_waiting(shop: Shop, db: Any) -> None:
    def fails(order: int) -> None:
        WAYS["flushed"](db, order)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        _book(shop, fails)(1)
    db.rollback()
    until(lambda: shop.states() == ["failed"], 10)


def test_a_session_that_is_dropped_frees_the_key(shop: Shop) -> None:
    made: list[Session] = [shop.session()]
    _book(shop, lambda order: made[0].add(Booking(order=order)))(1)
    assert shop.states() == ["in_progress"]
    made.clear()
    gc.collect()
    until(lambda: shop.states() == ["failed"], 10)


def test_an_outer_body_waits_for_what_an_inner_one_wrote(shop: Shop, db: Any) -> None:
    inner = _book(shop, lambda order: WAYS["flushed"](db, order))

    @idempotent_task(name="outer", store=MemoryStore())
    def outer() -> None:
        shop.runs.append(0)
        inner(1)

    outer()
    db.rollback()
    outer()
    db.commit()
    outer()
    assert (shop.booked(), shop.runs) == ([1], [0, 1, 0, 1])


def test_an_async_session_that_was_not_handed_in_is_waited_for(shop: Shop, sqlite_url: str) -> None:  # F3
    async def states() -> list[str]:
        return await asyncio.to_thread(shop.states)

    async def story() -> None:
        engine = make_async_engine(sqlite_url, busy_timeout=5)
        db = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)

        @idempotent_task(name="book")
        async def book(order: int, flush: bool) -> str:
            shop.runs.append(order)
            session: AsyncSession = db()
            session.add(Booking(order=order))
            if flush:
                await session.flush()
            return "booked"

        for flush in (False, True):
            order = 1 + flush
            await book(order, flush)
            assert "in_progress" in await states()
            assert await book(order, flush) == "booked"
            with pytest.raises(InProgress):
                await asyncio.create_task(book(order, flush))  # another task is in another transaction
            await db.rollback()
            assert "in_progress" not in await states() and order not in await asyncio.to_thread(shop.booked)
            await book(order, flush)
            await db.commit()
        await db.remove()
        await engine.dispose()

    asyncio.run(story())
    assert (shop.states(), shop.booked(), shop.runs) == (["succeeded", "succeeded"], [1, 2], [1, 1, 2, 2])


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("SELECT 1", False), ("  (select 1)", False), ("-- a\n/* b */ UPDATE t SET x = 1", True), ("WITH a AS (SELECT 1) SELECT 1 FOR UPDATE", False),
        ("WITH a AS (DELETE FROM t RETURNING x) SELECT x FROM a", True), ("COPY t FROM STDIN", True), ("SAVEPOINT a", False), ("", False),
        ("CALL pay()", True), ("EXPLAIN ANALYZE DELETE FROM t", True),
    ],
)  # fmt: skip
def test_statements_tell_whether_they_change_rows(statement: str, changes: bool) -> None:
    assert changes_rows(statement) is changes

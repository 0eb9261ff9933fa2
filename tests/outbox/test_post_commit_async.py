"""An AsyncSession sends as a Session does, without holding up the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from sqlalchemy import insert, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from duly import Duly
from duly.outbox.post_commit import enqueue_task_after_commit, post_commit_sender
from duly.storage import sqlite
from outbox.post_commit_hands import Line, Order, Shop, open_shop


@pytest.fixture
def shop(db_url: str) -> Iterator[Shop]:
    with open_shop(db_url) as shop:
        yield shop


def engine_of(shop: Shop) -> Any:
    if shop.is_sqlite:
        return sqlite.make_async_engine(shop.url, synchronous="OFF", busy_timeout=20)
    return create_async_engine(make_url(shop.url).set(drivername="postgresql+psycopg"))


@asynccontextmanager
async def sessions(shop: Shop) -> AsyncIterator[Callable[..., AsyncSession]]:
    engine = engine_of(shop)
    yield async_sessionmaker(engine)
    await engine.dispose()


async def order(shop: Shop, session: AsyncSession, number: int) -> None:
    shop.register(session, number)
    await session.execute(insert(Order).values(id=number))


def test_an_async_session_sends_after_its_outermost_commit(shop: Shop) -> None:  # R004-1, R004-2, B041
    async def story() -> None:
        async with sessions(shop) as make, make() as session:
            await order(shop, session, 1)
            async with session.begin_nested():
                await order(shop, session, 2)
            savepoint = await session.begin_nested()
            await order(shop, session, 3)
            await savepoint.rollback()
            assert shop.sent == []
            await session.commit()
            assert (shop.sent, shop.told) == ([1, 2], {"enqueued": 2, "rolled_back": 1})

    asyncio.run(story())
    assert shop.orders() == [1, 2]


@pytest.mark.parametrize("end", ["rollback", "close", "reset", "invalidate"])
def test_an_async_session_that_does_not_commit_sends_nothing(shop: Shop, end: str) -> None:  # T004-b
    async def story() -> None:
        async with sessions(shop) as make, make() as session:
            await order(shop, session, 1)
            await getattr(session, end)()
            shop.register(session, 2)
            await session.commit()

    asyncio.run(story())
    assert (shop.sent, shop.orders(), shop.told) == ([2], [], {"rolled_back": 1, "enqueued": 1})


def test_an_async_block_that_raises_and_a_commit_that_fails_send_nothing(shop: Shop) -> None:
    async def story() -> None:
        async with sessions(shop) as make:
            with pytest.raises(ZeroDivisionError):
                async with make() as session, session.begin():
                    await order(shop, session, 1)
                    raise ZeroDivisionError
            with pytest.raises(IntegrityError):
                async with make() as session, session.begin():
                    await order(shop, session, 2)
                    await session.execute(insert(Line).values(id=1, order_id=99))

    asyncio.run(story())
    assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 2})


def test_a_task_may_be_registered_inside_of_run_sync_and_in_a_scoped_session(shop: Shop) -> None:
    async def story() -> None:
        async with sessions(shop) as make:
            async with make() as session:
                await session.run_sync(lambda sync: shop.order(sync, 1))
                await session.commit()
            scoped: Any = async_scoped_session(make, asyncio.current_task)  # type: ignore[arg-type]
            shop.register(scoped, 2)
            await scoped.commit()
            await scoped.remove()

    asyncio.run(story())
    assert shop.sent == [1, 2]


def test_an_async_session_in_the_transaction_of_a_connection_waits_for_it(shop: Shop) -> None:  # T004-p
    async def story(end: str) -> None:
        engine = engine_of(shop)
        async with engine.connect() as connection:
            outer = await connection.begin()
            async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
                await order(shop, session, 1)
                await session.commit()
            assert shop.sent == []
            await getattr(outer, end)()
        await engine.dispose()

    asyncio.run(story("rollback"))
    assert (shop.sent, shop.orders(), shop.told) == ([], [], {"rolled_back": 1})
    asyncio.run(story("commit"))
    assert (shop.sent, shop.orders()) == ([1], [1])


def test_the_event_loop_goes_on_while_a_sender_takes_its_time(shop: Shop) -> None:  # T004-q
    let_go = threading.Event()
    who: ContextVar[str] = ContextVar("who")
    seen: list[Any] = []

    def send(*call: Any) -> None:
        assert let_go.wait(20), "the event loop stood still"
        seen.append((who.get(), threading.current_thread() is threading.main_thread()))

    async def story() -> None:
        who.set("Ada")
        async with sessions(shop) as make, make() as session:
            await order(shop, session, 1)
            committing = asyncio.create_task(session.commit())
            asyncio.get_running_loop().call_later(0.05, let_go.set)
            await committing
            assert seen == [("Ada", False)]

    with post_commit_sender(send):
        asyncio.run(story())


class OneThread(ThreadPoolExecutor):
    """Threads of a loop whose only one is busy until it is let go."""

    def __init__(self) -> None:
        super().__init__(1)
        self.let_go, self.asked = threading.Event(), threading.Event()
        super().submit(self.let_go.wait, 20)

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.set()
        return super().submit(*args, **kwargs)


def test_a_cancelled_commit_sends_what_it_has_committed(shop: Shop) -> None:
    async def story() -> None:
        threads = OneThread()
        asyncio.get_running_loop().set_default_executor(threads)
        async with sessions(shop) as make, make() as session:
            await order(shop, session, 1)
            await order(shop, session, 2)
            committing = asyncio.create_task(session.commit())
            while not threads.asked.is_set():
                await asyncio.sleep(0.001)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            assert (shop.sent, shop.orders()) == ([], [1, 2])
            threads.let_go.set()
            await session.execute(text("SELECT 1"))  # the session can be used

    asyncio.run(story())  # which waits for its threads
    assert (shop.sent, shop.told) == ([1, 2], {"enqueued": 2})


def test_a_loop_whose_threads_are_gone_sends_by_itself(shop: Shop) -> None:
    async def story() -> None:
        async with sessions(shop) as make, make() as session:
            await order(shop, session, 1)
            await asyncio.get_running_loop().shutdown_default_executor()
            await session.commit()

    asyncio.run(story())
    assert (shop.sent, shop.told) == ([1], {"enqueued": 1})


def test_a_send_that_fails_harms_no_async_commit(shop: Shop) -> None:  # R004-5
    def send(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
        if args == (1,):
            raise ConnectionError
        shop.sent.append(args[0])

    async def story() -> None:
        async with sessions(shop) as make, make() as session:
            await order(shop, session, 1)
            await order(shop, session, 2)
            await session.commit()

    with post_commit_sender(send):
        asyncio.run(story())
    assert (shop.sent, shop.orders(), shop.told) == ([2], [1, 2], {"skipped": 1, "enqueued": 1})


def test_coroutines_that_share_one_sqlite_file_with_the_jobs_do_not_wait_for_each_other(sqlite_url: str) -> None:
    """A sender on the loop's own thread would wait for the lock of a coroutine that waits for the loop."""
    with open_shop(sqlite_url) as shop:
        app = Duly(sqlite_url, busy_timeout=20)

        async def one(make: Callable[..., AsyncSession], number: int) -> None:
            async with make() as session, session.begin():
                await session.execute(insert(Order).values(id=number))
                enqueue_task_after_commit(session, "ship", order=number)
                await asyncio.sleep(0.01)

        async def story() -> None:
            async with sessions(shop) as make:
                await asyncio.gather(*(one(make, number) for number in range(1, 11)))

        with post_commit_sender(app):
            asyncio.run(story())
        assert shop.told == {"enqueued": 10}
        assert sorted(job.input["order"] for job in app.jobs.find(task="ship")) == shop.orders() == list(range(1, 11))
        app.close()

"""Committed means committed, with every driver that the docs name: tasks after the commit, idempotent bodies, jobs and messages (R004-20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from duly import Duly
from duly.idempotency import idempotent_task
from duly.outbox import Outbox, enqueue_task_after_commit, post_commit_sender
from duly.storage import sqlite

POSTGRES = [
    pytest.param(driver, marks=pytest.mark.postgres)
    for driver in ("psycopg", "psycopg-async", "psycopg2", "asyncpg")
]  # fmt: skip
EVERY = ["sqlite3", "aiosqlite", *POSTGRES]


class World:
    """An application's database, and a session of one driver on it."""

    def __init__(self, driver: str, url: str) -> None:
        self.app, self.driver, self.url = Duly(url), driver, url
        self.app.open()
        self.box = Outbox(self.app)
        self.app.db.write(lambda c: c.execute(text("CREATE TABLE effects (id INTEGER PRIMARY KEY)")))
        self.sent: list[Any] = []
        self.runs: list[int] = []

        @self.app.task
        def book(n: int) -> None: ...

        @idempotent_task(name="effect", store=self.app.reservations, key=lambda n, session: f"effect-{n}")
        def effect(n: int, session: Session) -> int:
            self.runs.append(n)
            session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})
            return n

        self.book, self.effect = book, effect

    def within(self, story: Callable[[Session], None]) -> None:
        """Run a story with a session of the driver; on the event loop for those that need one."""
        if self.driver in ("sqlite3", "psycopg", "psycopg2"):
            made = (
                sqlite.make_engine(self.url, busy_timeout=5)
                if self.driver == "sqlite3"
                else create_engine(make_url(self.url).set(drivername=f"postgresql+{self.driver}"))
            )
            with Session(made) as session:
                story(session)
            made.dispose()
            return

        async def run() -> None:
            made = (
                sqlite.make_async_engine(self.url, busy_timeout=5)
                if self.driver == "aiosqlite"
                else create_async_engine(
                    make_url(self.url).set(drivername=f"postgresql+{self.driver.removesuffix('-async')}")
                )
            )
            async with AsyncSession(made) as session:
                await session.run_sync(story)
            await made.dispose()

        asyncio.run(run())

    def do(self, session: Session, n: int) -> None:
        """Everything that shares the fate of a transaction."""
        enqueue_task_after_commit(session, "ship", n)
        self.effect(n, session)
        self.book.using(session=session).enqueue(n=n)
        self.box.publish(session, "t:x", n)

    @property
    def seen(self) -> dict[str, list[Any]]:
        def ints(sql: str) -> list[Any]:
            return self.app.db.read(lambda c: sorted(c.scalars(text(sql))))

        return {
            "sent": sorted(self.sent), "effects": ints("SELECT id FROM effects"), "keys": ints("SELECT CAST(CAST(result AS TEXT) AS INTEGER) FROM idempotency WHERE state = 'succeeded'"),
            "jobs": sorted(job.input["n"] for job in self.app.jobs.find()), "messages": sorted(m.payload for m in self.box.find()),
        }  # fmt: skip


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    kind = "sqlite_url" if "sqlite" in request.param else "pg_url"
    world = World(request.param, request.getfixturevalue(kind))
    with post_commit_sender(lambda name, args, kwargs, options: world.sent.append(args[0])):
        yield world
    world.app.close()


@pytest.mark.parametrize("world", EVERY, indirect=True)
def test_what_is_committed_is_done_and_what_is_rolled_back_is_not(world: World) -> None:
    def story(session: Session) -> None:
        world.do(session, 1)
        session.commit()
        world.do(session, 2)
        session.rollback()
        world.do(session, 3)
        savepoint = session.begin_nested()
        world.do(session, 4)
        savepoint.rollback()
        session.commit()

    world.within(story)
    assert world.seen == {key: [1, 3] for key in ("sent", "effects", "keys", "jobs", "messages")}


@pytest.mark.parametrize("world", POSTGRES, indirect=True)
def test_a_commit_that_the_server_turns_into_a_rollback_has_done_nothing(world: World) -> None:  # F2
    def story(session: Session) -> None:
        world.do(session, 1)
        with pytest.raises(SQLAlchemyError):
            session.execute(text("SELECT nope"))
        session.commit()  # answered with ROLLBACK, and with no error

    world.within(story)
    assert world.seen == {key: [] for key in ("sent", "effects", "keys", "jobs", "messages")}

    def again(session: Session) -> None:
        world.do(session, 1)
        session.commit()

    world.within(again)
    assert world.seen == {key: [1] for key in ("sent", "effects", "keys", "jobs", "messages")}
    assert world.runs == [1, 1], "the key was freed"


@pytest.mark.parametrize("world", POSTGRES, indirect=True)
def test_a_body_that_swallows_an_error_of_the_database_frees_its_key(world: World) -> None:  # F2
    @idempotent_task(name="careless", store=world.app.reservations, key=lambda session: "careless")
    def careless(session: Session) -> int:
        world.runs.append(0)
        session.execute(text("INSERT INTO effects VALUES (7)"))
        if len(world.runs) == 1:
            with pytest.raises(SQLAlchemyError):
                session.execute(text("SELECT nope"))
        return 7

    def story(session: Session) -> None:
        careless(session)
        session.commit()

    world.within(story)
    assert world.seen["effects"] == []
    world.within(story)
    assert (world.seen["effects"], world.runs) == ([7], [0, 0])


@pytest.mark.parametrize("world", EVERY, indirect=True)
def test_a_session_that_was_not_handed_in_decides_what_becomes_of_the_key(world: World) -> None:  # F3
    here: list[Session] = []

    @idempotent_task(name="elsewhere", store=world.app.reservations)
    def elsewhere(n: int) -> int:
        world.runs.append(n)
        here[0].execute(text("INSERT INTO effects VALUES (:n)"), {"n": n})
        return n

    def story(session: Session) -> None:
        here[:] = [session]
        elsewhere(1)
        assert elsewhere(1) == 1, "in the same transaction it is known"
        session.rollback()
        elsewhere(1)
        session.commit()
        if "sqlite" not in world.driver:
            elsewhere(2)
            with pytest.raises(SQLAlchemyError):
                session.execute(text("SELECT nope"))
            session.commit()  # answered with ROLLBACK, and with no error

    world.within(story)
    assert world.seen["effects"] == world.seen["keys"] == [1]
    assert world.runs in ([1, 1], [1, 1, 2])


@pytest.mark.parametrize("world", POSTGRES, indirect=True)
def test_a_rollback_sent_as_text_is_one(world: World) -> None:
    def story(session: Session) -> None:
        session.execute(text("SELECT 1"))
        world.do(session, 1)
        session.connection().exec_driver_sql("ROLLBACK")
        session.commit()

    world.within(story)
    assert world.seen["sent"] == world.seen["effects"] == []

"""A key and the fate of its effect: what is durable is recorded, what was given up is free, whoever ends the transaction and how."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, insert, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from duly.idempotency import MemoryStore, idempotent_task
from duly.idempotency.keeper import KEEPER
from duly.kernel.errors import InProgress
from duly.outbox import enqueue_task_after_commit, post_commit_sender
from duly.storage.sqlite import make_engine
from idempotency.session_hands import Booking, Shop, book_in, open_shop
from keeper import until

MODES = ["rollback_only", "create_savepoint", "control_fully"]


@pytest.fixture
def shop(db_url: str) -> Iterator[Shop]:
    with open_shop(db_url) as made:
        yield made


def settled(shop: Shop) -> list[str]:
    assert until(lambda: KEEPER.count == 0, 10)
    return shop.states()


# --- Bodies that end the transaction they were called in ---------------------------------------------------------------


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_body_that_rolls_back_and_does_its_work_again_is_done_when_it_commits(shop: Shop, level: str) -> None:
    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        session.execute(insert(Booking).values(order=order + 10))
        session.rollback()  # as after an IntegrityError
        session.execute(insert(Booking).values(order=order))
        session.commit()
        return "booked"

    options = {} if shop.app.db.is_sqlite else {"isolation_level": level}
    for _ in range(2):
        with Session(shop.app.db.session_engine.execution_options(**options)) as session:
            session.execute(text("SELECT 1"))  # on SQLite, the session keeps the file from now on
            assert book(1, session) == "booked"
    assert (shop.runs, shop.booked(), shop.states(), shop.troubles) == ([1], [1], ["succeeded"], [])


def test_an_async_body_that_rolls_back_and_does_its_work_again_is_done_when_it_commits(shop: Shop) -> None:
    @idempotent_task(name="book")
    async def book(order: int, session: AsyncSession) -> str:
        shop.runs.append(order)
        await session.rollback()
        await session.execute(insert(Booking).values(order=order))
        await session.commit()
        return "booked"

    async def go() -> None:
        for _ in range(2):
            async with AsyncSession(shop.app.db.async_engine) as session:
                await session.execute(text("SELECT 1"))
                assert await book(1, session) == "booked"
        await shop.app.db.async_engine.dispose()

    asyncio.run(go())
    assert (shop.runs, shop.booked(), shop.states(), shop.troubles) == ([1], [1], ["succeeded"], [])


def test_a_body_that_rolls_its_reservation_back_cannot_go_on_when_somebody_else_has_begun(shop: Shop) -> None:
    """On SQLite, where the reservation was in the session's transaction. On PostgreSQL nobody else can begin."""
    other, store = book_in(shop), shop.app.reservations
    plain = store.reserve

    def reserve(ask: Any) -> Any:  # somebody else is quicker
        store.reserve = plain  # type: ignore[method-assign]
        with shop.session() as theirs, theirs.begin():
            other(1, theirs)
        return plain(ask)

    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        shop.runs.append(100)
        store.reserve = reserve  # type: ignore[method-assign]
        session.rollback()
        session.add(Booking(order=order))
        session.commit()
        return "booked"

    if not shop.app.db.is_sqlite:
        pytest.skip("a reservation is never made in the session's transaction there")
    with shop.session() as session:
        session.execute(text("SELECT 1"))
        with pytest.raises(InProgress):
            book(1, session)
    assert (shop.runs, shop.booked(), shop.states()) == ([100, 1], [1], ["succeeded"])


@pytest.mark.parametrize("left", ["commit", "rollback"])
def test_a_savepoint_that_a_body_leaves_open_is_no_place_for_a_record(shop: Shop, left: str) -> None:
    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        session.execute(insert(Booking).values(order=order))
        session.begin_nested()
        return "booked"

    with shop.session() as session:
        book(1, session)
        session.get_nested_transaction().rollback()  # type: ignore[union-attr]
        getattr(session, left)()
    done = left == "commit"
    assert ("succeeded" in settled(shop), shop.booked()) == (done, [1] if done else [])


# --- Somebody else's connection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_body_commits_in_a_joined_session_is_recorded_with_the_outer_commit(shop: Shop, elsewhere: bool) -> None:
    store = MemoryStore() if elsewhere else None

    @idempotent_task(name="book", store=store)
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        made = Booking(order=order)
        session.add(made)
        session.commit()
        session.refresh(made)  # in another savepoint, which nobody releases
        return "booked"

    for _ in range(2):
        with shop.app.db.session_engine.begin() as c, Session(c, join_transaction_mode="create_savepoint") as session:
            assert book(1, session) == "booked"
        settled(shop)
    assert (shop.runs, shop.booked(), shop.troubles) == ([1], [1], [])


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_joined_session_needs_no_commit_of_its_own(shop: Shop, elsewhere: bool, flushed: bool, end: str) -> None:
    """To close it gives nothing up: neither the rows nor the task that waits for their commit."""
    sent: list[str] = []

    @idempotent_task(name="book", store=MemoryStore() if elsewhere else None)
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        session.add(Booking(order=order))
        if flushed:
            session.flush()
        enqueue_task_after_commit(session, "mail")
        return "booked"

    def send(name: str, args: object, kwargs: object, options: object) -> None:
        sent.append(name)

    with post_commit_sender(send):
        for _ in range(2):
            with shop.app.db.session_engine.connect() as connection:
                outer = connection.begin()
                with Session(connection) as session:
                    book(1, session)
                getattr(outer, end)()
            settled(shop)
    done = end == "commit"
    assert (len(shop.runs), shop.booked(), sent) == ((1, [1], ["mail"]) if done else (2, [], []))


def test_a_savepoint_of_a_joined_session_that_is_given_up_frees_the_key(shop: Shop) -> None:
    book = book_in(shop)
    with shop.app.db.session_engine.begin() as c, Session(c, join_transaction_mode="create_savepoint") as session:
        book(1, session)
        session.rollback()
    assert (settled(shop), shop.booked()) == (["failed"], [])


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_joined_body_that_rolls_back_and_goes_on_is_recorded_with_the_outer_commit(shop: Shop, end: str) -> None:
    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        session.execute(text("SELECT 1"))
        session.rollback()
        session.execute(insert(Booking).values(order=order))
        return "booked"

    with shop.app.db.session_engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            book(1, session)
            session.commit()
        assert "succeeded" not in shop.states()
        getattr(outer, end)()
    done = end == "commit"
    assert ("succeeded" in settled(shop), shop.booked()) == (done, [1] if done else [])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_joined_body_has_committed_and_lost_again_is_not_done(shop: Shop, elsewhere: bool) -> None:
    store = MemoryStore() if elsewhere else shop.app.reservations

    @idempotent_task(name="book", store=store)
    def book(order: int, session: Session) -> str:
        session.add(Booking(order=order))
        session.commit()
        session.execute(insert(Booking).values(order=9))
        session.rollback()  # of the outer transaction, and of what seemed to be committed in it
        return "booked"

    with shop.app.db.session_engine.connect() as connection:
        connection.begin()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            book(1, session)
    settled(shop)
    found = store.look("default", book.idempotency_key(1, None))  # type: ignore[attr-defined]
    assert (found is None or found.state == "failed", shop.booked()) == (True, [])


# --- Several databases, and none that waits ----------------------------------------------------------------------------


class Elsewhere(DeclarativeBase): ...


class Other(Elsewhere):
    __tablename__ = "others"
    id: Mapped[int] = mapped_column(primary_key=True)
    parent: Mapped[int]


DEFERRED = (
    "CREATE TABLE others (id integer PRIMARY KEY, parent integer REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)"
)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_commit_that_fails_in_another_database_of_the_session_frees_the_key(shop: Shop, tmp_path: Path, flushed: bool) -> None:  # fmt: skip
    other = make_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with other.begin() as connection:
        connection.execute(text("CREATE TABLE p (id integer PRIMARY KEY)"))
        connection.execute(text(DEFERRED))

    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        session.add(Other(id=order, parent=5))
        if flushed:
            session.flush()
        return "booked"

    for order in range(6):  # which database is the first to commit is a matter of luck
        for _ in range(2):
            with Session(shop.app.db.session_engine, binds={Other: other}) as session:
                book(order, session)
                with pytest.raises(IntegrityError):
                    session.commit()
    assert (shop.runs, set(settled(shop))) == ([n for n in range(6) for _ in range(2)], {"failed"})
    other.dispose()


@pytest.mark.parametrize("orm", [False, True])
@pytest.mark.parametrize("end", ["commit", "close"])
def test_what_is_durable_at_once_is_recorded_at_once(shop: Shop, orm: bool, end: str) -> None:
    @idempotent_task(name="book")
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        row = Booking(order=order)
        session.add(row) if orm else session.execute(insert(Booking).values(order=order))
        return "booked"

    url = shop.app.db.url if shop.app.db.is_sqlite else shop.app.db.url.set(drivername="postgresql+psycopg")
    for options in ({"isolation_level": "AUTOCOMMIT"}, {}):
        engine = create_engine(url, **options)  # type: ignore[arg-type]
        if not options:
            engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        with Session(engine) as session:
            book(1, session)
            assert (shop.booked(), shop.states()) == ([1], ["succeeded"])
            getattr(session, end)()
        engine.dispose()
    assert shop.runs == [1]


# --- A COMMIT that is refused on SQLite --------------------------------------------------------------------------------


@pytest.fixture
def file(sqlite_url: str) -> Iterator[Shop]:
    with open_shop(sqlite_url) as made:
        with made.app.db.session_engine.begin() as connection:
            connection.execute(text("CREATE TABLE p (id integer PRIMARY KEY)"))
            connection.execute(text(DEFERRED))
        yield made


REFUSED = text("INSERT INTO others VALUES (1, 99)")


@pytest.mark.parametrize("which", ["session", "connection", "writer", "hurried"])
def test_a_refused_commit_gives_the_file_back(file: Shop, which: str) -> None:
    db = file.app.db
    with pytest.raises(IntegrityError):
        if which == "session":
            with Session(db.session_engine) as session:
                session.execute(REFUSED)
                session.commit()
        elif which == "connection":
            with db.session_engine.begin() as connection:
                connection.execute(REFUSED)
        else:
            with db.hurried() if which == "hurried" else contextlib.nullcontext():
                db.write(lambda c: c.execute(REFUSED))
    with db.hurried():  # nobody keeps it, or this would fail
        db.write(lambda c: c.execute(insert(Booking).values(order=1)))
    db.write(lambda c: c.execute(insert(Booking).values(order=2)))
    with db.session_engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM others")) == 0
        connection.execute(insert(Booking).values(order=3))
    assert file.booked() == [1, 2, 3]


def test_a_refused_commit_of_an_async_session_gives_the_file_back(file: Shop) -> None:
    async def go() -> None:
        async with AsyncSession(file.app.db.async_engine) as session:
            await session.execute(REFUSED)
            with pytest.raises(IntegrityError):
                await session.commit()
        with file.app.db.hurried():
            file.app.db.write(lambda c: c.execute(insert(Booking).values(order=1)))
        async with AsyncSession(file.app.db.async_engine) as session, session.begin():
            await session.execute(insert(Booking).values(order=2))
        await file.app.db.async_engine.dispose()

    asyncio.run(go())
    assert file.booked() == [1, 2]


def test_what_was_told_to_be_rolled_back_is_not_committed_by_the_next_session_of_an_ordinary_engine(file: Shop) -> None:
    engine = create_engine(file.app.db.url)
    with engine.connect() as connection:  # for all connections of the pool: it has one
        connection.exec_driver_sql("PRAGMA foreign_keys=ON")
    with post_commit_sender(lambda *_: None):
        with Session(engine) as session:
            session.execute(REFUSED)
            enqueue_task_after_commit(session, "mail")
            with pytest.raises(IntegrityError):
                session.commit()
        with Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO p VALUES (99)"))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM others")) == 0
    engine.dispose()


# --- What takes a session ----------------------------------------------------------------------------------------------


class Mine(Session):
    """A class of one's own."""


def test_a_parameter_that_may_be_a_session_is_one(shop: Shop) -> None:
    @idempotent_task(name="a")
    def maybe(order: int, session: Session | None = None) -> None:
        session.add(Booking(order=order))  # type: ignore[union-attr]

    @idempotent_task(name="b")
    def noted(order: int, db: Annotated[Session, "given"]) -> None:
        db.add(Booking(order=order))

    @idempotent_task(name="c")
    def own(order: int, db: Mine) -> None:
        db.add(Booking(order=order))

    @idempotent_task(name="d")
    def bare(order: int, session=None) -> None:  # type: ignore[no-untyped-def]
        session.add(Booking(order=order))

    functions: list[Any] = [maybe, noted, own, bare]
    for n, fn in enumerate(functions):
        with Mine(shop.app.db.session_engine) as session:
            fn(n, session)
            session.rollback()
            fn(n, session)
            session.commit()
        assert fn.idempotency_key(n, None) == fn.idempotency_key(n, object())
    assert (shop.booked(), shop.states()) == ([0, 1, 2, 3], ["succeeded"] * 4)


# --- Any program --------------------------------------------------------------------------------------------------------

BEFORE = ["", "read", "junk", "savepoint", "junk savepoint", "read commit", "junk rollback"]
FIRST = [
    "",
    "read",
    "junk",
    "rollback",
    "junk rollback",
    "junk commit",
    "junk commit rollback",
    "kept",
    "given_up",
    "refused rollback",
]
EFFECTS = ["add", "execute", "add flush", "kept_effect"]
THEN = ["", "flush", "commit", "commit read", "commit junk rollback", "savepoint"]
AFTER = ["commit", "rollback", "close", "give_up commit", "junk commit", "invalidate"]
PROGRAMS = st.tuples(
    st.sampled_from(["own", "own", "blind", *MODES, *(f"{mode} in a savepoint" for mode in MODES)]),
    st.booleans(), st.sampled_from(BEFORE), st.sampled_from(FIRST), st.sampled_from(EFFECTS), st.sampled_from(THEN),
    st.sampled_from(AFTER), st.sampled_from(["commit", "rollback"]),
)  # fmt: skip


class Program:
    """One call in the middle of whatever a session may do; then plain calls with the same key, which repeat it."""

    def __init__(self, shop: Shop, number: int, parts: tuple[Any, ...]) -> None:
        self.shop, self.order = shop, number * 100
        self.kind, elsewhere, self.before, self.first, self.effect, self.then, self.after, self.end = parts
        self.store = MemoryStore() if elsewhere else shop.app.reservations
        self.runs, self.junk_made, self.savepoint = 0, 0, None

        @idempotent_task(name=f"book {number}", store=self.store)
        def book(session: Session) -> None:
            self.runs += 1
            if self.runs == 1:
                self.do(session, self.first)
            self.do(session, self.effect if self.runs == 1 else "add")
            if self.runs == 1:
                self.do(session, self.then)

        self.book: Any = book

    def do(self, session: Session, steps: str) -> None:
        row = {"order": self.order + self.runs}
        for step in steps.split():
            match step:
                case "read":
                    session.execute(text("SELECT 1"))
                case "junk":
                    self.junk(session)
                case "savepoint":
                    self.savepoint = session.begin_nested()  # type: ignore[assignment]
                case "kept":
                    with session.begin_nested():
                        self.junk(session)
                case "given_up":
                    with contextlib.suppress(ZeroDivisionError), session.begin_nested():
                        self.junk(session)
                        raise ZeroDivisionError
                case "refused":
                    with contextlib.suppress(DBAPIError):
                        session.execute(insert(Booking).values(order=-1))
                case "add":
                    session.add(Booking(**row))
                case "execute":
                    session.execute(insert(Booking).values(**row))
                case "kept_effect":
                    with session.begin_nested():
                        session.add(Booking(**row))
                case "give_up":
                    if self.savepoint is not None and self.savepoint.is_active:
                        self.savepoint.rollback()
                case _:
                    getattr(session, step)()

    def junk(self, session: Session) -> None:
        self.junk_made += 1
        session.execute(insert(Booking).values(order=self.order + 50 + self.junk_made))

    def around(self, session: Session) -> None:
        self.do(session, self.before)
        outer, self.savepoint = self.savepoint, None
        self.book(session)
        self.savepoint = outer if self.then != "savepoint" else None
        self.do(session, self.after)

    def run(self) -> None:
        engine = self.shop.app.db.session_engine
        if self.kind in ("own", "blind"):
            blind = self.kind == "blind" and not self.shop.app.db.is_sqlite
            with Session(engine.execution_options(isolation_level="REPEATABLE READ") if blind else engine) as session:
                self.around(session)
            return
        with engine.connect() as connection:
            mode: Any = self.kind.split()[0]
            outer = connection.begin()
            savepoint = connection.begin_nested() if "savepoint" in self.kind.split() else None
            with Session(connection, join_transaction_mode=mode) as session:
                self.around(session)
            if connection.closed or connection.invalidated:
                return
            if savepoint is not None and savepoint.is_active:
                getattr(savepoint, self.end)()
                if outer.is_active:
                    outer.commit()
            elif outer.is_active:
                getattr(outer, self.end)()

    @property
    def effects(self) -> int:
        return sum(self.order < found < self.order + 50 for found in self.shop.booked())

    def state(self) -> str | None:
        found = self.store.look("default", self.book.idempotency_key(None))
        return None if found is None else found.state.value

    def check(self) -> None:
        with contextlib.suppress(DBAPIError):  # what the session says to a program like that
            self.run()
        assert until(lambda: KEEPER.count == 0, 10)
        durable = self.effects
        assert durable <= 1
        # a body that has made something durable is done; nothing of the effect itself may be without its record
        assert self.state() == "succeeded" if durable else self.state() in (None, "failed", "succeeded")
        if not durable and "commit" not in self.first:
            assert self.state() != "succeeded"
        for _ in range(2):
            with self.shop.session() as session, session.begin():
                self.book(session)
        assert self.effects == (0 if self.state() == "succeeded" and self.runs == 1 and not durable else 1)


CALM = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=40, suppress_health_check=CALM)
@given(PROGRAMS)
@example(("control_fully in a savepoint", False, "junk", "rollback", "execute", "commit", "close", "commit"))
def test_an_effect_is_there_once_and_a_key_without_one_is_free_whatever_a_session_does(shop: Shop, parts: Any) -> None:
    with contextlib.suppress(IntegrityError), shop.session() as session, session.begin():
        session.add(Booking(order=-1))  # for what is refused
    shop.clock.advance(1)
    shop.runs.append(len(shop.runs))
    Program(shop, len(shop.runs), parts).check()

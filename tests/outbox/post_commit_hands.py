"""A shop with a database, and everything that it sends after its commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, ForeignKey, create_engine, delete, insert, make_url, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from duly.kernel.events import PROCESS, Event
from duly.outbox.post_commit import enqueue_task_after_commit, post_commit_sender
from duly.storage import sqlite


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Line(Base):
    """Its order need not exist before the COMMIT, which then fails."""

    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id", deferrable=True, initially="DEFERRED"))


def make_engine(url: str, **options: Any) -> Engine:
    """As an application has it; on SQLite one whose savepoints hold."""
    if url.startswith("sqlite"):
        return sqlite.make_engine(url, synchronous="OFF", busy_timeout=5, **options)
    return create_engine(make_url(url).set(drivername="postgresql+psycopg"), **options)


class Shop:
    """Orders, and one task sent for each: ``ship`` with the order's number."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = make_engine(url)
        # readers on SQLite must not wait for the lock of a session that the test holds open
        self._reader = sqlite.make_engine(url, immediate=False) if self.is_sqlite else make_engine(url)
        self.sent: list[int] = []
        self.events: list[Event] = []
        Base.metadata.create_all(self.engine)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def session(self, bind: Any = None, **options: Any) -> Session:
        return Session(bind or self.engine, **options)

    # --- Doing

    def send(self, task_name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> None:
        self.sent.append(args[0])

    def register(self, session: Any, number: int) -> None:
        enqueue_task_after_commit(session, "ship", number)

    def order(self, session: Session, number: int) -> None:
        """Register the task, and write the order beside it: whoever sees one should see the other."""
        self.register(session, number)
        session.execute(insert(Order).values(id=number))

    def break_flush(self, session: Session) -> None:
        """Write an order that exists, through the unit of work, and catch what comes of it."""
        number = next(iter(self.orders()), None)
        assert number is not None, "there is no order yet to collide with"
        session.add(Order(id=number))
        try:
            session.flush()
        except IntegrityError:
            return
        raise AssertionError("the flush went well")

    def clear(self) -> None:
        """As on the first day."""
        with self.engine.begin() as connection:
            connection.execute(delete(Line))
            connection.execute(delete(Order))
        self.sent.clear()
        self.events.clear()

    # --- Looking

    def orders(self) -> list[int]:
        """What others see."""
        with self._reader.connect() as connection:
            return list(connection.scalars(select(Order.id).order_by(Order.id)))

    @property
    def told(self) -> dict[str, int]:
        """How many events of each result."""
        return dict(Counter(event.facts["result"] for event in self.events))

    def hear(self, event: Event) -> None:
        if event.name == "postcommit":
            self.events.append(event)

    def close(self) -> None:
        self.engine.dispose()
        self._reader.dispose()


@contextmanager
def open_shop(url: str) -> Iterator[Shop]:
    """A shop whose sends are remembered."""
    shop = Shop(url)
    deaf: Callable[[], None] = PROCESS.listen(shop.hear)
    try:
        with post_commit_sender(shop.send):
            yield shop
    finally:
        deaf()
        shop.close()

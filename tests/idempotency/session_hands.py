"""A shop whose bookings are made by idempotent functions that are given a session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from duly import Duly
from duly.idempotency import idempotent_task
from duly.idempotency.keeper import KEEPER
from duly.kernel.events import PROCESS, Event
from duly.storage.session_end import count_waiting
from duly.testing import ManualClock
from keeper import until


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"
    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int] = mapped_column(unique=True)


@dataclass
class Shop:
    app: Duly
    clock: ManualClock
    heard: list[Event] = field(default_factory=list)
    #: Orders whose body was run, in order.
    runs: list[int] = field(default_factory=list)

    def session(self) -> Session:
        return Session(self.app.db.session_engine)

    def booked(self) -> list[int]:
        """What others see."""
        return self.app.db.read(lambda c: list(c.scalars(select(Booking.order).order_by(Booking.order))))

    def states(self) -> list[str]:
        return self.app.db.read(lambda c: list(c.scalars(text("SELECT state FROM idempotency ORDER BY state"))))

    @property
    def told(self) -> list[str]:
        return [e.facts.get("result") or e.facts["state"] for e in self.heard if e.name.startswith("idempotency_") and "error" not in e.facts and (e.facts.get("result") or e.facts.get("state"))]  # fmt: skip

    @property
    def troubles(self) -> list[str]:
        return [e.name for e in self.heard if e.level in ("warning", "error") and e.name.startswith("idempotency_")]


@contextlib.contextmanager
def open_shop(db_url: str) -> Iterator[Shop]:
    """Nobody waits for anything when it is closed."""
    clock = ManualClock()
    app = Duly(db_url, clock=clock, busy_timeout=5)
    app.open()
    Base.metadata.create_all(app.db.session_engine)
    made = Shop(app, clock)
    deaf = PROCESS.listen(made.heard.append)
    yield made
    until(lambda: KEEPER.count == 0, 10)  # what could only be written after the end of somebody's transaction
    deaf()
    app.close()
    assert (KEEPER.count, count_waiting()) == (0, 0)


def book_in(shop: Shop, **options: Any) -> Any:
    """A plain idempotent function that books with its caller's session."""

    @idempotent_task(name="book", **options)
    def book(order: int, session: Session) -> str:
        shop.runs.append(order)
        session.add(Booking(order=order))
        return f"booked {order}"

    return book

"""The shop: its orders in its own database, and what each of them sets in motion.

Everything that must not be lost is written in the transaction of the order: the order itself, the message to the billing
service, and the message that makes a job of the receipt. Either all three are there or none is, whatever dies when.
What may be lost, because the next order would make up for it, is a task after the commit.

===================  =========================  ==========================================================
what follows         how                        when a process dies right after the commit
===================  =========================  ==========================================================
the invoice          ``webhook:billing``        the relay sends it when it is back
the receipt          ``duly:send_receipt``      the same
the customer's page  after the commit           it may stay as it is, until the customer's next order
===================  =========================  ==========================================================
"""

from __future__ import annotations

import os
from datetime import datetime

from orders import NewOrder
from sqlalchemy import Engine, create_engine, func
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from duly.outbox import Outbox, enqueue_task_after_commit
from duly.storage import sqlite


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    #: The customer's number for it. It is the primary key, so whoever tells of one order twice cannot make two.
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    customer: Mapped[str] = mapped_column(index=True)
    item: Mapped[str]
    quantity: Mapped[int]
    cents: Mapped[int]
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())

    @classmethod
    def of(cls, new: NewOrder) -> Order:
        return cls(number=new.number, customer=new.customer, item=new.item, quantity=new.quantity, cents=new.cents)

    def says(self, new: NewOrder) -> bool:
        """Is it the order that somebody sends again?"""
        mine, given = self, Order.of(new)
        return all(getattr(mine, name) == getattr(given, name) for name in ("customer", "item", "quantity", "cents"))


def make_engine(url: str) -> Engine:
    """An engine for the shop's own database."""
    # the driver's own way with transactions on SQLite loses savepoints, and an outbox refuses to rely on it
    return sqlite.make_engine(url) if url.startswith("sqlite") else create_engine(url)


engine = make_engine(os.environ.get("SHOP_DATABASE_URL", "sqlite:///var/shop/shop.db"))
outbox = Outbox(engine)


def create_tables() -> None:
    """Make the shop's tables and the outbox, unless they are there. (A real shop migrates: ``outbox.sql()``.)"""
    Base.metadata.create_all(engine)
    outbox.create_table()


def place(session: Session, new: NewOrder) -> Order:
    """Write an order, and all that follows from it, in the transaction of ``session``.

    Raises IntegrityError when there is an order of that number.
    """
    order = Order.of(new)
    session.add(order)
    session.flush()
    facts = {"number": order.number, "customer": order.customer, "cents": order.cents}
    # with an ordering key, a customer's invoices are sent in the order in which the orders were placed
    outbox.publish(
        session, "webhook:billing", facts, key=f"invoice-{order.number}", ordering_key=order.customer,
        headers={"ce-type": "shop.order.placed"},
    )  # fmt: skip
    outbox.publish(
        session,
        "duly:send_receipt",
        facts | {"item": order.item, "quantity": order.quantity},
        key=f"receipt-{order.number}",
    )
    enqueue_task_after_commit(session, "warm_cache", customer=order.customer)
    return order

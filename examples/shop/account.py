"""The account at the end: what the shop has in its books against what the billing service and the customers got.

``look`` and ``draw_up`` read; what follows from what they read is decided by the properties of ``Look`` and ``Account``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from shop import Order, engine, outbox
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from tasks import app, send_receipt

from duly import Status


@dataclass(frozen=True, slots=True)
class Look:
    """How it stands at one moment."""

    #: In the shop's books.
    orders: int
    published: int
    sent: int
    in_flight: int
    #: To be tried again, later.
    retrying: int
    parked: int
    #: Jobs that have not ended.
    jobs: int
    receipts: int

    @property
    def is_still(self) -> bool:
        """Is nothing left to do? (A parked message is left to people.)"""
        return self.sent + self.parked == self.published and self.jobs == 0


def look(receipts: Path) -> Look:
    """Count. What was sent made its job before it counted as sent, so the jobs are counted last."""
    box = outbox.status()
    sent = box.sent or 0
    with Session(engine) as session:
        orders = session.scalar(select(func.count()).select_from(Order)) or 0
    return Look(
        orders=orders,
        published=box.pending + sent + box.parked,
        sent=sent,
        in_flight=box.in_flight,
        retrying=max(0, box.pending - box.due - box.in_flight),
        parked=box.parked,
        jobs=app.jobs.count(status=(Status.QUEUED, Status.RUNNING)),
        receipts=len(written(receipts)),
    )


def written(receipts: Path) -> list[int]:
    """The order of each receipt, by the names of the files."""
    return [int(file.name.partition("-")[0]) for file in receipts.glob("*-*.txt")]


@dataclass(frozen=True, slots=True)
class Account:
    """All that the shop, the billing service and the receipts have on record, of this run and those before."""

    #: Number → (customer, cents), as the shop has it.
    orders: Mapping[int, tuple[str, int]]
    #: Customer → numbers, in the order of the commits, as far as the outbox still knows.
    placed: Mapping[str, Sequence[int]]
    #: As the billing service has them: number, customer, cents, deliveries.
    invoices: Sequence[Mapping[str, Any]]
    #: Messages that the billing service refused at first.
    refused: int
    receipts: Sequence[int]
    #: Jobs of ``send_receipt`` that ended well, and those that did not.
    receipt_jobs: int
    failed_jobs: int
    messages: Look
    attempts: int

    @property
    def redelivered(self) -> int:
        """Deliveries of messages that were billed already."""
        return sum(invoice["deliveries"] - 1 for invoice in self.invoices)

    @property
    def wrongly_billed(self) -> list[str]:
        """What is wrong with the invoices; empty when each order has exactly one, over its own amount."""
        amounts: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for invoice in self.invoices:
            amounts[invoice["number"]].append((invoice["customer"], invoice["cents"]))
        faults = [
            f"invoice for order {number}, which the shop does not have" for number in amounts.keys() - self.orders
        ]
        for number, order in self.orders.items():
            got = amounts[number]
            if len(got) != 1:
                faults.append(f"order {number} has {len(got)} invoices")
            elif got[0] != order:
                faults.append(f"the invoice for order {number} says something else than the order")
        return faults

    @property
    def wrongly_receipted(self) -> list[str]:
        """What is wrong with the receipts; empty when each order has exactly one."""
        return list(_uneven(Counter(self.receipts), self.orders, "receipt"))

    @property
    def out_of_order(self) -> list[str]:
        """Customers whose invoices were not written in the order in which their orders were placed."""
        billed: dict[str, list[int]] = defaultdict(list)
        for invoice in self.invoices:
            billed[invoice["customer"]].append(invoice["number"])
        faults = []
        for customer, numbers in self.placed.items():
            known = set(numbers)
            if [n for n in billed[customer] if n in known] != list(numbers):
                faults.append(f"the invoices of {customer}")
        return faults

    @property
    def balances(self) -> bool:
        return not (self.wrongly_billed or self.wrongly_receipted or self.out_of_order)


def _uneven(got: Counter[int], orders: Mapping[int, object], noun: str) -> Iterator[str]:
    for number in got.keys() - orders:
        yield f"{noun} for order {number}, which the shop does not have"
    for number in orders:
        if got[number] != 1:
            yield f"order {number} has {got[number]} {noun}s"


def draw_up(billing: str, receipts: Path) -> Account:
    """Read everybody's books. ``billing``: where the service listens."""
    message = outbox.table.c
    with Session(engine) as session:
        orders = {
            n: (customer, cents)
            for n, customer, cents in session.execute(select(Order.number, Order.customer, Order.cents))
        }
        attempts = session.execute(select(func.coalesce(func.sum(message.attempts), 0))).scalar_one()
        placed: dict[str, list[int]] = defaultdict(list)
        sent = select(message.ordering_key, message.payload).where(
            message.destination == "webhook:billing", message.status == "sent"
        )
        for customer, payload in session.execute(sent.order_by(message.id)):
            placed[customer].append(payload["number"])
    books = httpx2.get(billing, timeout=20, trust_env=False).raise_for_status().json()
    return Account(
        orders=orders,
        placed=placed,
        invoices=books["invoices"],
        refused=books["refused"],
        receipts=written(receipts),
        receipt_jobs=app.jobs.count(task=send_receipt.name, status=(Status.SUCCEEDED,)),
        failed_jobs=app.jobs.count(task=send_receipt.name, status=(Status.FAILED, Status.CANCELLED)),
        messages=look(receipts),
        attempts=int(attempts),
    )

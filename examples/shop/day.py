"""The day itself: everybody is started, the orders are sent, and the books are compared when nothing is left to do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from account import draw_up, look
from incidents import Incidents
from orders import Line, Problem
from processes import HERE, Child, Failed
from rich.console import Console
from shop import Order, create_tables, engine, outbox
from show import Teller
from sqlalchemy import select
from sqlalchemy.orm import Session
from tasks import app, send_receipt
from till import Till

from duly.outbox import Message

#: Seconds without any progress after which something must be wrong.
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run was asked for."""

    file: Path
    #: What the file holds.
    lines: Sequence[Line]
    bad: Sequence[Problem]
    folder: Path
    #: Nothing is made to go wrong.
    calm: bool
    #: Seconds that the billing service takes over each invoice.
    latency: float
    #: The options that lead back to this folder and these databases.
    back: Sequence[str]


def day(plan: Plan, console: Console) -> bool:
    """The whole story. Returns whether the books balance, and nothing is left to people.

    Raises Failed when a process cannot be kept alive, or nothing moves any more.
    """
    folder, receipts = plan.folder, plan.folder / "receipts"
    tell = Teller(console)
    create_tables()
    app.open()
    tell.read(plan.file, len(plan.lines), plan.bad)
    api, relay, worker, billing = crew = children(plan)
    with ExitStack() as stack:
        # however this function ends: the till first, the billing service last
        stack.callback(app.close)
        for child in reversed(crew):
            stack.callback(child.stop)
        billing.start()
        os.environ["BILLING_URL"] = f"{billing.address}/orders"
        worker.start()
        relay.start()
        api.start()
        tell.started(crew, folder)

        till = Till(api.address, plan.lines)
        hand = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(setattr, till, "stopping", True)
        incidents = Incidents(relay, billing, 0 if plan.calm else till.orders, tell.happened)
        with tell.watching():
            wait(crew, till, hand.submit(till.run), incidents, tell, receipts)
            again = ask_again(incidents.in_its_hands, tell)
            wait(crew, till, None, incidents, tell, receipts)
        account = draw_up(f"{billing.address}/invoices", receipts)
        tell.account(till.slip, len(plan.bad), again, account)
    tell.after(folder, outbox.db.shown_url, app.db.shown_url, plan.back)
    return account.balances and not account.messages.parked and not till.slip.counts["unanswered"]


def children(plan: Plan) -> tuple[Child, Child, Child, Child]:
    """The processes, not started yet: API, relay, worker, billing."""
    folder = plan.folder

    def child(name: str, *arguments: str, serves: bool = False) -> Child:
        return Child(name, list(arguments), folder / "log" / f"{name}.log", serves=serves)

    return (
        child("api", "api.py", serves=True),
        child("relay", "-m", "duly", "outbox", "relay", str(HERE / "relay.py")),
        child("worker", "-m", "duly", "worker", str(HERE / "tasks.py")),
        child("billing", "billing.py", str(folder / "billing.db"), f"--latency={plan.latency:g}", serves=True),
    )


def wait(
    crew: Sequence[Child], till: Till, sending: Future[None] | None, incidents: Incidents, tell: Teller, receipts: Path
) -> None:
    """Watch until everything is sent and done, keeping everybody alive. Raises Failed when nothing moves any more."""
    moved, before = time.monotonic(), None
    while True:
        for child in crew:
            if child.keep_alive():
                tell.happened(f"the {child.name} was gone; it is back as process {child.pid}")
        now = look(receipts)
        incidents.go_on(now)
        tell.progress(till, now)
        if sending is not None and sending.done():
            sending = sending.result()
        if sending is None and now.is_still and incidents.are_over:
            return
        if (now, till.slip.answered) != before:
            moved, before = time.monotonic(), (now, till.slip.answered)
        elif time.monotonic() > moved + PATIENCE:
            raise Failed(f"Nothing has moved for {PATIENCE:g} seconds, and not everything is done; see the logs.")
        time.sleep(0.1)


def ask_again(messages: Sequence[Message], tell: Teller) -> int:
    """What an operator does who is not sure: ask once more for the receipts of all orders that the dead relay was busy with.

    Each makes a job, and none makes a receipt: ``send_receipt`` knows that it was there. Returns how many were asked for.
    """
    with Session(engine) as session:
        orders = session.scalars(select(Order).where(Order.number.in_({m.payload["number"] for m in messages}))).all()
    for order in orders:
        send_receipt.enqueue(
            number=order.number, customer=order.customer, item=order.item, quantity=order.quantity, cents=order.cents
        )
    if orders:
        tell.happened(f"to be sure, {len(orders)} receipts are asked for again")
    return len(orders)

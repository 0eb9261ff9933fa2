"""The shop's Duly application, with a database of its own: the work that its worker does.

``run.py`` starts a worker. In a terminal of its own: ``duly worker examples/shop/tasks.py``. It learns from its environment
where things are.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

from shop import Order, engine
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from duly import Backoff, Duly, Job
from duly.idempotency import idempotent_task

app = Duly()  # the database is DULY_DATABASE_URL, or ./duly.db

FOLDER = Path(os.environ.get("SHOP_FOLDER", "var/shop"))


@app.task(queue="receipts", backoff=Backoff(base=1, factor=2))
# Whoever asks for the receipt of an order again, today or in a year, gets what is on record, and nothing is written.
@idempotent_task(key=lambda number, **_: number, keep=timedelta(days=3650), time_limit=20, margin=10, heartbeat=1)
def send_receipt(number: int, customer: str, item: str, quantity: int, cents: int, *, job: Job) -> dict[str, str]:
    """Write the receipt of an order, once per order. ``job`` is handed in by the worker; whoever enqueues leaves it out.

    The file is named after the order *and* the job, and put in its place in one step. A job that runs again because its worker
    was killed replaces its own receipt; a second job that slipped through would leave a second one for all to see.
    """
    receipts = FOLDER / "receipts"
    receipts.mkdir(parents=True, exist_ok=True)
    text = f"Receipt for order {number} of {customer}\n\n{quantity} x {item}\n{cents // 100}.{cents % 100:02} EUR\n"
    draft, receipt = FOLDER / f".{number}-{job.id}.draft", receipts / f"{number}-{job.id}.txt"
    draft.write_text(text, encoding="utf-8")
    draft.replace(receipt)
    return {"receipt": receipt.name}


@app.task(queue="cache", max_attempts=1)
def warm_cache(customer: str) -> None:
    """Write what the customer's page shows, so that nobody waits for it. Lost now and then, it harms nobody."""
    with Session(engine) as session:
        count, cents = session.execute(
            select(func.count(), func.sum(Order.cents)).where(Order.customer == customer)
        ).one()
    pages = FOLDER / "pages"
    pages.mkdir(parents=True, exist_ok=True)
    (pages / f"{customer}.json").write_text(json.dumps({"orders": count, "cents": cents}), encoding="utf-8")

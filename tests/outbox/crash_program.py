"""What the processes of the crash tests run: somebody who publishes, and a relay, each with a place to die.

The steps are put around Duly's own functions from outside. A delivery is a line in the scene's journal: nobody can take
it back. The receiver knows message ids, as receivers should: it keeps them, and has its effect for new ones only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.orm import Session

from crash.program import Here, Plan, enter_process, write
from duly import Backoff
from duly.outbox.box import Outbox
from duly.outbox.message import Message

ORDERS = "CREATE TABLE orders (n integer PRIMARY KEY)"
#: What the other side keeps.
RECEIVED = "CREATE TABLE received (message_id text PRIMARY KEY, payload integer)"


class Receiver:
    """The other side, and the steps around a delivery."""

    def send(self, message: Message) -> None:
        Here.die_at("send.before")
        write("delivery", message=message.message_id, payload=message.payload, attempt=message.attempts)

        def receive(connection: Any) -> None:
            sql = "INSERT INTO received VALUES (:id, :payload) ON CONFLICT DO NOTHING"
            connection.execute(text(sql), {"id": message.message_id, "payload": message.payload})

        Here.app.db.write(receive)
        Here.die_at("send.after")


#: The payload that kills whoever sends it.
DEADLY = -1


class Fragile(Receiver):
    """A receiver whose sender some message kills."""

    def send(self, message: Message) -> None:
        if message.payload == DEADLY:
            write("death", attempt=message.attempts)
            os.kill(os.getpid(), signal.SIGKILL)
        super().send(message)


def open_box() -> Outbox:
    box = Outbox(Here.app, transports={"t": Receiver()}, lease=1, backoff=Backoff(base=0.05, factor=1), max_attempts=20)
    box.open()
    return box


def run_publisher(plan: Plan, n: int, ordering_key: str | None = None) -> None:
    """Write an order and its message in one transaction."""
    enter_process(plan)
    box = open_box()
    event.listen(Here.app.db.session_engine, "commit", lambda _connection: Here.die_at("commit"))
    with Session(Here.app.db.session_engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": n})
        box.publish(session, "t:x", n, key=f"order-{n}", ordering_key=ordering_key)
        Here.die_at("published")
    Here.die_at("committed")
    write("published", n=n)


def run_fragile_relay(plan: Plan) -> None:
    """Relay in cycles, each with everything due that waits, until a deadly message kills this process or nothing is left."""
    enter_process(plan)
    box = Outbox(Here.app, transports={"t": Fragile()}, lease=0.5, max_attempts=3, per_destination=8, on_parked="skip")
    relay = box.relay(name=plan.name)
    for _ in until_drained(box):
        Here.app.db.write(lambda c: c.execute(text("UPDATE outbox SET due_at = created_at WHERE status = 'pending'")))
        relay.run_once()
    write("finished", drained=True)
    Here.app.close()


def until_drained(box: Outbox) -> Iterator[None]:
    while not box.status(sent=False).drained:
        yield
        time.sleep(0.02)


def run_relay(plan: Plan) -> None:
    """Be a relay until somebody ends it."""
    enter_process(plan)
    box = open_box()
    relay = box.relay(name=plan.name)
    killer, lanes = Here.die_at, relay._lanes
    killer._around(relay, "_take", "claim.before", "claim.taken", has_jobs=bool)
    killer._around(lanes, "dispatch", "claim.committed", None, concerns=lambda work, *_: bool(work))
    killer._around(
        box.store, "settle", "mark.before", "mark.written", concerns=lambda _c, batch, *_: bool(batch), has_jobs=bool
    )
    killer._around(lanes, "forget", "mark.after", None, concerns=bool)
    write("ready", ready=True)
    report = relay.run(until_idle=bool(plan.until_idle))
    write("finished", sent=report.sent, lost=report.lost)
    Here.app.close()

"""What the tests of the outbox hold in their hands: transports that write down, fail, or wait; and ways to look."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from duly import Backoff, Duly
from duly.kernel.events import Event
from duly.outbox.box import Outbox
from duly.outbox.message import Message, Status

#: For tests that count attempts and not seconds.
AT_ONCE = Backoff(base=0)


@dataclass
class Recorder:
    """A transport that writes down what it is given, after having done what the test wants done with it."""

    then: Callable[[Message], None] = lambda message: None
    sent: list[Message] = field(default_factory=list)
    #: Everything that was tried, the failures too.
    tried: list[Message] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, message: Message) -> None:
        with self._lock:
            self.tried.append(message)
        self.then(message)
        with self._lock:
            self.sent.append(message)

    @property
    def payloads(self) -> list[Any]:
        return [m.payload for m in self.sent]


class Hold:
    """A place where sends wait until the test lets them go on."""

    def __init__(self) -> None:
        self.reached, self._go = threading.Semaphore(0), threading.Event()

    def __call__(self, message: Message) -> None:
        self.reached.release()
        assert self._go.wait(30), "nobody let it go"

    def wait(self) -> None:
        assert self.reached.acquire(timeout=30), "no send came here"

    def release(self) -> None:
        self._go.set()


def publish(box: Outbox, destination: str, payload: Any, **options: Any) -> str:
    """Publish in a transaction that commits at once. Returns the message id."""
    with Session(box.db.session_engine) as session, session.begin():
        return box.publish(session, destination, payload, **options).message_id


def statuses(box: Outbox) -> dict[Any, str]:
    """Payload → status of every message (payloads are numbers or texts in these tests)."""
    return {m.payload: str(m.status) for m in box.find(limit=10_000)}


def pending(box: Outbox) -> list[Any]:
    return [m.payload for m in reversed(box.find(limit=10_000, status=Status.PENDING))]


def change(box: Outbox, sql: str, **parameters: Any) -> int:
    """Do to the database what somebody else might. Returns how many rows it touched."""
    return box.db.write(lambda c: c.execute(text(sql), parameters).rowcount)


class Ear:
    """Hears the events of an application."""

    def __init__(self, app: Duly) -> None:
        self.events: list[Event] = []
        app.events.listen(self.events.append)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [dict(e.facts) for e in self.events if e.name == name]

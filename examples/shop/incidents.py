"""What goes wrong on purpose: the relay is killed in the middle of its work, and the billing service is down for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from account import Look
from processes import Child
from shop import outbox

from duly.outbox import Message
from duly.outbox.message import Status

#: With fewer orders it would all be over before anything can go wrong.
LEAST = 20
#: Seconds without a relay, and without a billing service.
WITHOUT_RELAY, WITHOUT_BILLING = 0.5, 1.5


@dataclass(slots=True)
class Absence:
    """A process that is away until an instant of the monotonic clock, and what is said when it is back."""

    child: Child
    until: float
    says: str


class Incidents:
    """Called with every look at how it stands. ``orders``: how many the file has; ``say`` is told what happens."""

    def __init__(self, relay: Child, billing: Child, orders: int, say: Callable[[str], None]) -> None:
        self._relay, self._billing, self._say = relay, billing, say
        self._orders = orders
        self._first: Look | None = None
        self._absent: list[Absence] = []
        #: Messages after which each of them comes to pass; none when there is too little to do.
        self._kill_at = orders // 3 if orders >= LEAST else None
        self._down_at = orders if orders >= LEAST else None
        #: The orders whose messages the relay had in its hands when it was killed.
        self.in_its_hands: list[Message] = []

    @property
    def are_over(self) -> bool:
        """Is nobody away?"""
        return not self._absent

    def go_on(self, look: Look) -> None:
        """See what is to happen now."""
        self._first = self._first or look
        sent, now = look.sent - self._first.sent, time.monotonic()
        for absence in [a for a in self._absent if now >= a.until]:
            self._absent.remove(absence)
            absence.child.start()
            self._say(absence.says)
        if self._kill_at is not None and sent >= self._kill_at and self._is_worth_it(sent):
            self._kill_at = None
            self._kill_the_relay()
        if self._down_at is not None and sent >= self._down_at:
            self._down_at = None
            self._billing.kill()
            self._absent.append(Absence(self._billing, now + WITHOUT_BILLING, "billing is back"))
            self._say("billing is down")

    def _is_worth_it(self, sent: int) -> bool:
        """Is the relay in the middle of something? Preferably not of second attempts: what loses them stays away for seconds."""
        held = _held()
        return bool(held) and (sent >= self._orders or all(message.attempts == 1 for message in held))

    def _kill_the_relay(self) -> None:
        pid = self._relay.pid
        self._relay.kill()
        self.in_its_hands = _held()
        self._absent.append(Absence(self._relay, time.monotonic() + WITHOUT_RELAY, "another relay has begun"))
        self._say(f"kill -9 {pid}: the relay is dead, with {len(self.in_its_hands)} messages in its hands")


def _held() -> list[Message]:
    """The messages that a relay has in its hands."""
    return [message for message in outbox.find(limit=1000, status=Status.PENDING) if message.lease_until is not None]

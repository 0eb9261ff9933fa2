"""May it run now? One question, one answer: ``Admit`` or ``Hold``.

The online gate, a paused queue, one that is held until an instant, a blackout, a concurrency limit and a rate limit are all reasons to hold. Held work is
never claimed, so holding costs no attempt, and what holds one queue says nothing about another. The claim asks this
before it takes anything; ``duly why`` asks the same question for people, so that the two can never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from duly.kernel.duration import Duration
from duly.kernel.payload import read_seconds

#: Texts that mean yes and no in the row of the online gate (T003-f). Anything else is unreadable and means offline.
YES = frozenset({"true", "1", "on", "yes"})
NO = frozenset({"false", "0", "off", "no"})


class Scope(StrEnum):
    """What the online gate holds (X6). Rooms whose work is jobs (publishing, mail, automations, rounds, alerts) are held with these."""

    #: Claims of jobs, by workers and dispatchers.
    JOBS = "jobs"
    #: What the relays of the application's own outbox send.
    OUTBOX = "outbox"


class HoldReason(StrEnum):
    """Why work is held, in the order in which the reasons are looked at."""

    GATE = "gate"
    PAUSED = "paused"
    HELD = "held"
    BLACKOUT = "blackout"
    LIMIT = "limit"
    RATE = "rate"


@dataclass(frozen=True, slots=True, init=False)
class Rate:
    """At most ``count`` starts in any window of ``seconds``: a duration, kept in seconds."""

    count: int
    seconds: float

    def __init__(self, count: int, seconds: Duration) -> None:
        object.__setattr__(self, "count", count)
        # a number is kept as it is: whoever sets a queue checks it, and whoever reads one must not fail over it (B061)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        object.__setattr__(self, "seconds", seconds if number else read_seconds(seconds, "rate.seconds"))


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What is known of a queue when the question is asked."""

    name: str
    #: The global gate (R003-8).
    online: bool = True
    #: When and why the queue was paused; None when it was not.
    paused_at: datetime | None = None
    paused_reason: str | None = None
    #: Until when and why it is held, e.g. because the other side has had enough; None when it is not.
    held_until: datetime | None = None
    held_reason: str | None = None
    #: The blackout that covers this instant, by its name or its names; None outside of one.
    blackout: str | None = None
    #: When it ends; None outside of one, and while no end is in sight.
    blackout_until: datetime | None = None
    #: How many of its jobs may run at once in the whole cluster; None is no limit.
    limit: int | None = None
    #: How many run now, counted from leases.
    running: int = 0
    rate: Rate | None = None
    #: Starts inside the rate window that ends now.
    started: int = 0
    #: When the oldest of those leaves the window.
    rate_frees_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Admit:
    """Work may start; ``room`` is how many, None for any number."""

    room: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Work waits; ``until`` is when it is worth asking again, None when only a person or another job can tell."""

    reason: HoldReason
    detail: str
    until: datetime | None = None


def read_gate(value: str | None) -> bool:
    """Is the system online, given the text in the gate's row? A missing row is online, an unreadable one is not (T003-f)."""
    # blanks and quotes only, as the claims read it in SQL
    return value is None or value.strip(" ").strip('"').lower() in YES


def read_outbox_gate(value: str | None, own: str | None) -> bool:
    """May relays send, given the gate's row and the outbox's own? Without a row of its own the outbox follows the gate."""
    return read_gate(value) if own is None else read_gate(own)


def gate(q: QueueFacts) -> Admit | Hold:
    """The one answer for a queue."""
    if not q.online:
        return Hold(HoldReason.GATE, "the online gate is closed")
    if q.paused_at is not None:
        return Hold(
            HoldReason.PAUSED, f"queue {q.name} is paused" + (f": {q.paused_reason}" if q.paused_reason else "")
        )
    if q.held_until is not None:
        why = f": {q.held_reason}" if q.held_reason else ""
        return Hold(HoldReason.HELD, f"queue {q.name} is held{why}", q.held_until)
    if q.blackout is not None or q.blackout_until is not None:
        which = f"the blackout {q.blackout}" if q.blackout else "a blackout"
        return Hold(HoldReason.BLACKOUT, f"queue {q.name} is in {which}", q.blackout_until)
    room: int | None = None
    if q.limit is not None:
        room = q.limit - q.running
        if room <= 0:
            return Hold(HoldReason.LIMIT, f"{q.running} of {q.limit} jobs of queue {q.name} are running")
    if q.rate is not None:
        left = q.rate.count - q.started
        if left <= 0:
            return Hold(
                HoldReason.RATE,
                f"{q.started} jobs of queue {q.name} started in the last {q.rate.seconds:g} s, the limit is {q.rate.count}",
                q.rate_frees_at,
            )
        room = left if room is None else min(room, left)
    return Admit(room)

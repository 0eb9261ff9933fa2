"""Destinations that are held: what a failed attempt says about the destination, and what one relay knows of them.

When a held destination is asked again, by whom and how long it stays held is decided in ``kernel.hold``. A probe is another message each
time, because the one that failed waits as well.

What if the message is to blame after all? It is when others get through and it does not: a message that failed, while another one
was sent since, and fails again has a trouble of its own. The destination is not held for it then; it backs off by itself, and
uses an attempt unless its failure can only be the network's. So no outage parks anything, however long, and a message that breaks
the endpoint holds up nobody but its own line.

A destination that was well until now is held after ``IN_A_ROW`` failures in a row, or at once where the other side named a time
or an operator is needed. Nothing here reads a clock or a database. Safe to use from many threads. Source: R004-19.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from duly.kernel.backoff import Backoff
from duly.kernel.errors import DestinationUnavailable, PermanentError, Retry, Snooze, UsageError
from duly.kernel.exception_group import decisive
from duly.kernel.hold import IN_A_ROW, SHORTEST, Hold, Pace, Step, held, step
from duly.kernel.retry_after import bounded
from duly.outbox.message import Message

#: A probe grows with the outage: a quarter of its age, so that the end of an outage is noticed within a quarter of its length.
SHARE = 0.25
#: A probe that has not returned for so many seconds keeps no other back.
PROBE_HANGS = 120.0
#: Messages of one destination whose failures are remembered.
REMEMBERED = 1000


class Fault(StrEnum):
    """What a failure says."""

    #: The message is wrong: it is parked, or uses an attempt.
    MESSAGE = "message"
    #: The destination cannot be reached; it passes by itself.
    AWAY = "away"
    #: The destination refuses everything until an operator has acted.
    REFUSED = "refused"
    #: It cannot be told.
    UNCLEAR = "unclear"


def fault_of(problem: BaseException) -> Fault:
    """Return what the error of a transport says. What is not known is unclear, which is the cautious side."""
    problem = decisive(problem)
    if isinstance(problem, BaseExceptionGroup):
        faults = {fault_of(one) for one in problem.exceptions}
        return faults.pop() if len(faults) == 1 else Fault.UNCLEAR
    if isinstance(problem, DestinationUnavailable):
        return Fault.REFUSED if problem.attention else Fault.AWAY
    if isinstance(
        problem, OSError
    ):  # sockets, TLS, time-outs, and what HTTP clients derive from it; also where it is a ValueError
        return Fault.AWAY
    if isinstance(problem, PermanentError | UsageError | TypeError | ValueError | ArithmeticError | RecursionError):
        return Fault.MESSAGE
    return Fault.UNCLEAR


@dataclass(slots=True)
class _Place:
    """What is remembered of one destination."""

    hold: Hold | None = None
    #: The message that probes.
    probing: int | None = None
    #: Messages that got through, and failures since the last of them.
    passed: int = 0
    failures: int = 0
    #: Message → (failures, ``passed`` at the last of them).
    troubled: dict[int, tuple[int, int]] = field(default_factory=dict)


class Holds:
    """What one relay knows of its destinations. ``listener`` hears ``(name, hold)`` of each change: ``held`` or ``open``."""

    def __init__(self, backoff: Backoff, listener: Callable[[str, Hold, datetime], None] = lambda *_: None) -> None:
        self._pace, self._listener = Pace(backoff, SHARE), listener
        self._places: dict[str, _Place] = {}
        self._changed: set[str] = set()
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ may it go?

    def room(self, destination: str, room: int, now: datetime) -> int:
        """Return how many units of a destination may be taken: ``room`` while it is open, one for a probe, 0 until its time."""
        with self._lock:
            place = self._places.get(destination)
            if place is None or place.hold is None:
                return room
            return 0 if step(place.hold, now) is Step.WAIT else min(1, room)

    def admits(self, message: Message, now: datetime) -> bool:
        """May this message be handed over now? Where the destination is held it becomes the probe, if one is due."""
        with self._lock:
            place = self._places.get(message.destination)
            if place is None or place.hold is None:
                return True
            if step(place.hold, now) is Step.WAIT:
                return False
            place.probing = message.id
            place.hold = replace(place.hold, probing_until=now + timedelta(seconds=PROBE_HANGS))
            return True

    # ------------------------------------------------------------------ what came of it

    def passed(self, message: Message, now: datetime) -> None:
        """A message got through: its destination is open."""
        with self._lock:
            place = self._places.setdefault(message.destination, _Place())
            place.passed, place.failures, place.probing = place.passed + 1, 0, None
            place.troubled.pop(message.id, None)
            opened, place.hold = place.hold, None
            if opened is not None:
                self._changed.add(message.destination)
        if opened is not None:
            self._listener("open", opened, now)

    def failed(self, message: Message, problem: BaseException, now: datetime, u: float = 0.0) -> float | None:
        """Take note of a failure. Returns the seconds that the message waits without having used an attempt; None: it has used one.

        ``u`` in [0, 1) is the dice for the jitter.
        """
        fault, after = fault_of(problem), after_of(problem)
        with self._lock:
            place = self._places.setdefault(message.destination, _Place())
            was_probe, before = self._probed(place, message), place.hold
            times, at = place.troubled.pop(message.id, (0, 0))
            if fault is Fault.MESSAGE:
                return None
            if len(place.troubled) >= REMEMBERED:
                place.troubled.pop(next(iter(place.troubled)))
            place.troubled[message.id] = (times + 1, place.passed)
            # others get through and it does not, unless there are too many: that is about all of them
            if before is None and times and place.passed > at and not (fault is Fault.AWAY and after is not None):
                return self._pace.backoff.delay(times + 1, u) if fault is Fault.AWAY else None
            place.failures += 1
            at_once = after is not None or fault is Fault.REFUSED or not place.passed
            if before is None and place.failures < IN_A_ROW and not at_once:
                return self._pace.backoff.delay(place.failures, u)
            kind = fault if fault is Fault.REFUSED else Fault.AWAY
            hold = held(before, kind, word_of(problem), now, self._pace, after=after, is_probe=was_probe, u=u)
            if hold != before:
                place.hold = replace(hold, destination=message.destination)
                self._changed.add(message.destination)
            news = before is None or before.kind != hold.kind
        if news:
            self._listener("held", replace(hold, destination=message.destination), now)
        return max(0.0, (hold.until - now).total_seconds())

    def _probed(self, place: _Place, message: Message) -> bool:
        """Was this message the probe? Then the next one may go."""
        if place.hold is None or place.probing != message.id:
            return False
        place.probing, place.hold = None, replace(place.hold, probing_until=None)
        return True

    # ------------------------------------------------------------------ what others are told

    def changes(self) -> dict[str, Hold | None]:
        """Return what changed since the last call: the hold of a destination, None where it is open."""
        with self._lock:
            names, self._changed = self._changed, set()
            return {name: self._places[name].hold for name in names}

    def restore(self, names: Iterable[str]) -> None:
        """These changes could not be written: they come again."""
        with self._lock:
            self._changed.update(names)

    def learn(self, holds: Iterable[Hold]) -> None:
        """Take over what other relays have found out, where nothing is known here."""
        with self._lock:
            for hold in holds:
                if hold.destination not in self._places:
                    self._places[hold.destination] = _Place(hold)

    @property
    def held(self) -> dict[str, Hold]:
        """The destinations that are held now."""
        with self._lock:
            return {name: place.hold for name, place in self._places.items() if place.hold is not None}


def word_of(problem: BaseException) -> str:
    """Return an error in a word that holds no data: what its transport said, or the type of what is behind it."""
    if isinstance(problem, DestinationUnavailable):
        return problem.word or type(problem.__cause__ or problem).__name__
    return type(problem).__name__


def after_of(problem: BaseException) -> float | None:
    """Return the seconds that the other side asked for, between a second and a day; None where it named none."""
    problem = decisive(problem)
    after = getattr(problem, "after", None) if isinstance(problem, DestinationUnavailable | Retry | Snooze) else None
    if isinstance(after, bool) or not isinstance(after, int | float) or after != after:
        return None
    return bounded(float(after), SHORTEST)

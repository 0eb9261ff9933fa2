"""Destinations that are held: what a failed attempt says about the destination, and when to ask it again.

*A destination that cannot be reached harms no message.* A failure that says nothing against the message uses no attempt: the
destination is held, nothing more is taken for it, and one message at a time probes it, after waits that grow. A probe is another
message each time, because the one that failed waits as well. When a message gets through, the destination is open again.

What if the message is to blame after all? It is when others get through and it does not: a message that failed, while another one
was sent since, and fails again has a trouble of its own. The destination is not held for it then; it backs off by itself, and
uses an attempt unless its failure can only be the network's. So no outage parks anything, however long, and a message that breaks
the endpoint holds up nobody but its own line.

A destination that was well until now is held after ``HOLD_AFTER`` failures in a row, or at once where the other side named a time
or an operator is needed. Nothing here reads a clock or a database. Safe to use from many threads.

Source: R004-19; the states are those of a circuit breaker (M. Nygard, Release It!).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from duly.kernel.backoff import Backoff
from duly.kernel.errors import DestinationUnavailable, PermanentError, Retry, Snooze, UsageError
from duly.kernel.exception_group import decisive
from duly.outbox.message import Message
from duly.outbox.plan import LONGEST_WAIT, SHORTEST_WAIT

#: Failures in a row after which a destination that has worked is held.
HOLD_AFTER = 3
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


@dataclass(frozen=True, slots=True)
class Hold:
    """A destination that is held. Instants are aware."""

    destination: str
    #: ``away`` passes by itself; ``refused`` needs an operator.
    kind: Fault
    since: datetime
    #: When it is probed next.
    until: datetime
    #: Failures in a row since it is held.
    tries: int
    #: The last error in a word: a status, or a type. Its text stays in the message's row.
    problem: str


@dataclass(slots=True)
class _Place:
    """What is remembered of one destination."""

    hold: Hold | None = None
    #: The message that probes, and since when.
    probing: tuple[int, datetime] | None = None
    #: Messages that got through, and failures since the last of them.
    passed: int = 0
    failures: int = 0
    #: Message → (failures, ``passed`` at the last of them).
    troubled: dict[int, tuple[int, int]] = field(default_factory=dict)


class Holds:
    """What one relay knows of its destinations. ``listener`` hears ``(name, hold)`` of each change: ``held`` or ``open``."""

    def __init__(self, backoff: Backoff, listener: Callable[[str, Hold, datetime], None] = lambda *_: None) -> None:
        self._backoff, self._listener = backoff, listener
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
            return min(1, room) if _may_probe(place, place.hold, now) else 0

    def admits(self, message: Message, now: datetime) -> bool:
        """May this message be handed over now? Where the destination is held it becomes the probe, if one is due."""
        with self._lock:
            place = self._places.get(message.destination)
            if place is None or place.hold is None:
                return True
            if not _may_probe(place, place.hold, now):
                return False
            place.probing = (message.id, now)
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
        fault, told = fault_of(problem), None
        with self._lock:
            place = self._places.setdefault(message.destination, _Place())
            if fault is Fault.MESSAGE:
                place.troubled.pop(message.id, None)
                self._probed(place, message)
                return None
            times, at = place.troubled.pop(message.id, (0, 0))
            if len(place.troubled) >= REMEMBERED:
                place.troubled.pop(next(iter(place.troubled)))
            place.troubled[message.id] = (times + 1, place.passed)
            told_when = (
                fault is Fault.AWAY and after_of(problem) is not None
            )  # there are too many: that is about all of them
            if place.hold is None and times and place.passed > at and not told_when:
                # others get through and it does not
                return self._wait(place, times + 1, None, now, u) if fault is Fault.AWAY else None
            place.failures += 1
            wait, told = self._kept(place, message, fault, problem, now, u)
        if told is not None:
            self._listener("held", told, now)
        return wait

    def _kept(
        self, place: _Place, message: Message, fault: Fault, problem: BaseException, now: datetime, u: float
    ) -> tuple[float, Hold | None]:
        """Hold the destination, or hold it longer. Returns the seconds that the message waits, and the hold if it is news."""
        after, before = after_of(problem), place.hold
        at_once = after is not None or fault is Fault.REFUSED or not place.passed
        if before is None and place.failures < HOLD_AFTER and not at_once:
            return self._wait(place, place.failures, None, now, u), None
        was_probe = self._probed(place, message)
        if before is not None and not was_probe and after is None:
            # it was on its way when the hold began, and says nothing new
            return max(0.0, (before.until - now).total_seconds()), None
        tries = 1 if before is None else before.tries + 1
        wait = self._wait(place, tries, after, now, u)
        kind = fault if fault is Fault.REFUSED else Fault.AWAY
        since = now if before is None else before.since
        place.hold = Hold(message.destination, kind, since, now + timedelta(seconds=wait), tries, word_of(problem))
        self._changed.add(message.destination)
        news = before is None or before.kind is not kind
        return wait, place.hold if news else None

    def _probed(self, place: _Place, message: Message) -> bool:
        """Was this message the probe? Then the next one may go."""
        if place.probing is None or place.probing[0] != message.id:
            return False
        place.probing = None
        return True

    def _wait(self, place: _Place, tries: int, after: float | None, now: datetime, u: float) -> float:
        if after is not None:
            return after
        b = self._backoff
        age = 0.0 if place.hold is None else (now - place.hold.since).total_seconds()
        grown = b.delay(tries) if place.hold is None else min(b.delay(tries), max(b.base, age * SHARE))
        return min(grown + u * b.jitter, b.max)

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


def _may_probe(place: _Place, hold: Hold, now: datetime) -> bool:
    if place.probing is not None and abs((now - place.probing[1]).total_seconds()) < PROBE_HANGS:
        return False
    # a clock that was set back keeps nobody waiting for longer than was meant
    return now >= hold.until or now < hold.since


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
    return min(max(float(after), SHORTEST_WAIT), LONGEST_WAIT)

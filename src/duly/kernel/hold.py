"""A destination that is held: when it is asked again, by whom, and how long it stays held. Pure; one rule for every room.

A destination is what messages go to: an endpoint of the outbox, a provider of mail in a queue, a channel of publishing. *What cannot be
reached harms nothing that waits for it.* It is held, nothing that waits uses an attempt, and after each wait one message probes it
(``step``). A probe that fails makes the next wait longer (``held``); an answer about the message itself opens the destination again.

* Of those that were on their way together, one counts: a wait grows with probes, and not with the messages that fail at once.
* A time that the other side names is obeyed, a day at the most (``bounded``). Where it names none, and where ``Retry-After`` is 0, waits
  grow, so that nobody asks every second.
* Of two waits the longer counts.
* A clock that was set back keeps nobody waiting for longer than was meant.

What a room decides itself: which failures count (its tables of answers), its waits (``Pace``), and where a hold is stored.
Source: R004-19; the states are those of a circuit breaker (M. Nygard, Release It!).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from duly.kernel.backoff import Backoff
from duly.kernel.retry_after import bounded
from duly.kernel.verdict import Kind

#: So many in a row that fail for a reason of the other side's are no accident: it is held, or, where others get through meanwhile, the one
#: message is at fault.
IN_A_ROW = 3
#: The shortest wait, in seconds: a clock that is behind would make all tries in a moment.
SHORTEST = 1.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How the waits of a destination grow from probe to probe. With ``share`` a wait is no longer than that part of the time for which it has
    been held, so that the end of an outage is noticed within that part of its length."""

    backoff: Backoff
    share: float | None = None

    def wait(self, tries: int, lasted: float = 0.0, u: float = 0.0) -> float:
        """Seconds until the next probe, after ``tries`` that failed; ``lasted``: seconds for which it has been held. ``u`` in [0, 1): the dice."""
        b = self.backoff
        most = b.max if self.share is None else max(b.base, lasted * self.share)
        return min(min(b.delay(max(1, tries)), most) + u * b.jitter, b.max)


@dataclass(frozen=True, slots=True)
class Hold:
    """A destination to which nothing is handed over. Instants are aware."""

    since: datetime
    #: Probed, or open again, at this instant.
    until: datetime
    #: Why, in words that hold no data of a message.
    problem: str = ""
    #: A ``Kind``, or the word of the room.
    kind: str = Kind.THROTTLED
    #: Probes in a row that failed, the failure that began it among them.
    tries: int = 0
    #: A message is probing; no other does before this instant.
    probing_until: datetime | None = None
    #: Is what stands before it held too (a queue), so that nothing is taken from there?
    wide: bool = False
    destination: str = ""


class Step(StrEnum):
    """What a message does about a hold."""

    GO = "go"
    #: It tries whether the destination is there again, while the others wait.
    PROBE = "probe"
    WAIT = "wait"


#: Kinds whose end is a guess. What has too much, or no quota left, has said when it is open, and needs no probe.
PROBED: Collection[str] = frozenset({Kind.AWAY, "refused"})


def step(hold: Hold | None, now: datetime, *, opened: bool = False) -> Step:
    """``opened``: a person has ended what the hold holds widely, and wants it tried at once."""
    if hold is None:
        return Step.GO
    if hold.since <= now < hold.until and not opened:
        return Step.WAIT
    if hold.kind not in PROBED:
        return Step.GO
    return Step.WAIT if hold.probing_until is not None and hold.since <= now < hold.probing_until else Step.PROBE


def held(
    before: Hold | None, kind: str, problem: str, now: datetime, pace: Pace, *, after: float | None = None, until: datetime | None = None,
    exact: bool = False, is_probe: bool = False, u: float = 0.0,
) -> Hold:  # fmt: skip
    """The hold that follows from a failure that says nothing against its message, and from the hold of before.

    ``after`` and ``until``: what the other side named; with ``exact`` the wait is that, else at least the room's own. ``is_probe``: the message
    that failed was the probe.
    """
    named = until or (now + timedelta(seconds=bounded(after, SHORTEST)) if after else None)
    known = before if before is not None and before.since <= now else None
    if known is not None and not is_probe and now < known.until:
        # it was on its way when the hold began: it says something new only where it names a longer wait
        return (
            known if named is None or named <= known.until else replace(known, until=named, problem=problem, kind=kind)
        )
    since, tries = known.since if known else now, (before.tries if before else 0) + 1
    own = now + timedelta(seconds=pace.wait(tries, (now - since).total_seconds(), u))
    soonest = now + timedelta(seconds=SHORTEST)
    at = max(named, soonest) if named is not None and exact else max(own, named or own)
    return Hold(since, max(at, known.until) if known else at, problem, kind, tries)

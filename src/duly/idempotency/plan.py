"""May the body run? Facts and the present instant in, a decision out. No store, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from duly.idempotency.reservation import LIFECYCLE, Ask, Reservation, State
from duly.kernel.clock import from_micros, to_micros


@dataclass(frozen=True, slots=True)
class Admit:
    """Run: this is the reservation to write first."""

    reservation: Reservation
    #: It takes the place of a holder that is taken for dead.
    took_over: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """It was done: this is what came of it."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody is at it. Ask again at ``until`` at the latest."""

    reservation: Reservation
    until: datetime


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used for other arguments."""

    reservation: Reservation


Decision = Admit | Done | Busy | Mismatch


def decide(found: Reservation | None, ask: Ask, now: datetime) -> Decision:
    """What ``ask`` may do where ``found`` stands (None: nothing is remembered).

    A holder that is alive keeps everybody out, its own redelivery too: a broker may deliver a task again while the first
    delivery still runs. When a holder is dead, its own redelivery is admitted after three missed heartbeats (T004-d), anybody
    else once the lock has lapsed.
    """
    if found is None or not found.lives(now) or found.state is State.FAILED:
        # a failed key is free, also for arguments that were corrected
        return Admit(_reserved(ask, now, found))
    if found.fingerprint != ask.fingerprint:
        return Mismatch(found)
    if found.state is State.SUCCEEDED:
        # a forced replay is an owner of its own, so that its own success counts when it is delivered again
        return Admit(_reserved(ask, now, found)) if ask.again and found.owner != ask.owner else Done(found)
    free_at = found.locked_until
    if found.owner == ask.owner:
        free_at = min(free_at, found.seen_at + ask.terms.missed)
    if now < free_at:
        return Busy(found, free_at)
    return Admit(_reserved(ask, now, found), took_over=True)


def come_again(busy: Busy, u: float) -> float:
    """In how many seconds a duplicate of a call in progress should ask again: after as long as that has run by its last sign of
    life, from one second to ten, and never after its lock. ``u`` in [0, 1) spreads duplicates that came together.
    """
    held = busy.reservation
    ran = (held.seen_at - from_micros(held.token)).total_seconds()
    left = (busy.until - held.seen_at).total_seconds()
    return min(max(ran, 1.0), 10.0, max(left, 1.0)) * (1.0 + 0.5 * u)


def _reserved(ask: Ask, now: datetime, before: Reservation | None) -> Reservation:
    remembered = before is not None and before.lives(now)
    if before is not None and remembered:
        state = LIFECYCLE.target(before.state, "take_over" if before.state is State.IN_PROGRESS else "reserve")
    else:
        state = LIFECYCLE.target(None, "reserve")
    token = to_micros(now)
    return Reservation(
        tenant=ask.tenant, key=ask.key, task=ask.task, state=state, owner=ask.owner,
        token=token if before is None else max(token, before.token + 1), fingerprint=ask.fingerprint,
        attempts=before.attempts + 1 if before is not None and remembered else 1,
        locked_until=now + ask.terms.lock, seen_at=now, kept_until=now + ask.terms.lock + ask.terms.keep,
        created_at=before.created_at if before is not None and remembered else now,
    )  # fmt: skip

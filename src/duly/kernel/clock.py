"""What a clock is, and instants as numbers. The only clock that reads the machine's time is ``duly.clock.SystemClock``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(instant: datetime) -> int:
    """Microseconds since 1970 of an aware instant, exactly (no float on the way)."""
    return (instant - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """The aware instant in UTC so many microseconds after the beginning of 1970."""
    return _EPOCH + timedelta(microseconds=micros)


class Clock(Protocol):
    """Where ``now`` comes from, for the few places that hand it in."""

    #: True when instants come from this clock even where the database has one of its own (a ManualClock in tests).
    #: False for the system clock: then production statements on PostgreSQL compare against the database's clock,
    #: so that workers with skewed clocks agree (T003-j).
    manual: bool

    def now(self) -> datetime:
        """The present instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for sleeping and for trusting a lease."""
        ...

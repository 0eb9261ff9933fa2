"""What a clock is. The only clock that reads the machine's time is ``duly.clock.SystemClock``."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


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

"""The stretch over which a blackout holds, as its row says it. Pure, and light: every worker asks for it, and most have no blackout."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

#: Later than anything: what does not hold in sight, holds from here on.
NEVER = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Hold:
    """The stretch over which a window holds: the one that covers the present instant, or the next. Aware, in UTC."""

    #: From when on, ``NEVER`` if it does not hold in sight; None is known by nobody yet, and holds.
    since: datetime | None = None
    #: Until before when; None while no end is in sight.
    until: datetime | None = None

    def is_on(self, now: datetime) -> bool:
        """Does it hold, as claims read it? From its start on, until somebody has looked what comes after its end."""
        return self.since is None or self.since <= now

    def is_over(self, now: datetime) -> bool:
        """Has its end come, or was it never looked at? Then the next stretch must be found."""
        return self.since is None or (self.until is not None and self.until <= now)


#: Of a blackout that is switched off.
OFF = Hold(NEVER)

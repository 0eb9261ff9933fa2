"""From when and until when does a window hold? Pure: a window and an instant in, a stretch out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from duly.kernel.windows import Calendar, Window

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


def hold(window: Window | None, now: datetime, before: Hold) -> Hold:
    """The stretch of a window over ``now``, or its next one. ``before`` is what was known, and stays if it is right.

    A window that cannot be read (None) holds from now on without an end: a text that was sent in a time of silence cannot be
    called back, and one that waits can still be sent.
    """
    since = before.since if before.since is not None and before.since <= now else now
    if window is None:
        return Hold(since)
    calendar = Calendar([window])
    free = calendar.free_from(now)
    if free != now:
        return Hold(since, free)
    begins = calendar.begins_after(now)
    return OFF if begins is None else Hold(begins, calendar.ends_after(begins))

"""From when and until when does a window hold? Pure: a window and an instant in, a stretch out."""

from __future__ import annotations

from datetime import datetime

from duly.calendars.stretch import OFF, Hold
from duly.kernel.windows import Calendar, Window


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

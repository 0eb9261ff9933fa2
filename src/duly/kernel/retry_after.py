"""The header ``Retry-After``: what the other side of an HTTP exchange wants to be waited (RFC 9110, 10.2.3). Pure."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: The longest wait that anybody is obeyed for, in seconds: a day.
LONGEST = 86_400.0


def retry_after(text: str | None, now: datetime) -> float | None:
    """Seconds from ``now`` (aware): a number of them, or a date; a date in the past is 0. None when it is neither. Not bounded."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    if re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", text):  # some write fractions, which no standard has
        return float(math.ceil(float(text)))
    try:
        instant = parsedate_to_datetime(text)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        return max(0.0, (instant - now).total_seconds())
    except (ValueError, OverflowError):  # no date, or one that no calendar has
        return None


def bounded(after: float | None, least: float = 0.0) -> float:
    """Seconds to wait where the other side asked for ``after``: at least ``least``, at most ``LONGEST``."""
    return max(least, min(LONGEST, after if after is not None and after == after else 0.0))

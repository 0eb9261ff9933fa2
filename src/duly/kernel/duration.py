"""Durations as people write them: one grammar for code, commands, REST, forms and documents.

A number is seconds. A text is a number of seconds (``90``, ``1.5``), parts with units (``90s``, ``5m``, ``1h30m``, ``2d 12h``, ``500ms``), or an
ISO 8601 duration without years and months (``PT5M``, ``P1DT12H``, ``P2W``): those two have no fixed length. A ``timedelta`` is what it is.
Pure; ``kernel.payload`` has the readers that name a field. Whether a duration may be negative, or nothing, is for its field to say.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

#: A duration as it may be given: seconds, a timedelta, or a text.
Duration: TypeAlias = float | timedelta | str

#: What to write instead of what is none.
REMEDY = "Give seconds, a timedelta, or a text such as 30s, 5m, 1h30m, 2d or PT5M."

_UNITS = {
    "ms": 0.001, "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3_600, "hour": 3_600, "hours": 3_600, "d": 86_400, "day": 86_400, "days": 86_400, "w": 604_800, "week": 604_800, "weeks": 604_800,
}  # fmt: skip
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
_PLAIN = re.compile(rf"[+-]?{_NUMBER}")
_ISO = re.compile(rf"p(?:({_NUMBER})w)?(?:({_NUMBER})d)?(?:t(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?)?")
_ISO_UNITS = (604_800, 86_400, 3_600, 60, 1)
#: Longer texts are not read.
_LONGEST = 100


def parse_duration(value: object) -> timedelta:
    """A duration from a number of seconds, a timedelta or a text. Raises ValueError for anything else, and for what no timedelta holds."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no duration")
    seconds = _seconds(value) if isinstance(value, str) else value
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError("too long") from None


def _seconds(text: str) -> float:
    text = text.strip().lower()
    if len(text) > _LONGEST:
        raise ValueError("no duration")
    if _PLAIN.fullmatch(text):
        return float(text)
    if (iso := _ISO.fullmatch(text)) and not text.endswith(("p", "t")):
        return sum(float(part) * size for part, size in zip(iso.groups(), _ISO_UNITS, strict=True) if part)
    total, at = 0.0, 0
    while found := _PART.match(text, at):
        if found[2] not in _UNITS:
            break
        total, at = total + float(found[1]) * _UNITS[found[2]], found.end()
    if not at or at < len(text):
        raise ValueError("no duration")
    return total

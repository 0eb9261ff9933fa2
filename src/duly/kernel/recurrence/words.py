"""Small words of plain English that descriptions are made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

MONTH_NAMES = (
    ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
)  # fmt: skip


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``3rd``, ``11th``, ``22nd``."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def day_words(day: date) -> str:
    """``29 March 2026``."""
    return f"{day.day} {MONTH_NAMES[day.month - 1]} {day.year}"


def month_day_words(month: int, day: int) -> str:
    """``24 December``."""
    return f"{day} {MONTH_NAMES[month - 1]}"


def bounds_words(first: str | date | None, last: str | date | None) -> str:
    """``, from 1 January 2027 until 31 March 2027``: the first and the last date (or their ISO texts); nothing for None."""
    said = [
        f"{word} {day_words(date.fromisoformat(str(day)))}"
        for word, day in (("from", first), ("until", last))
        if day is not None
    ]
    return f", {' '.join(said)}" if said else ""


def zone_words(tz: str) -> str:
    """``Paris time`` for Europe/Paris; names that are no place stay as they are."""
    area, _, place = tz.rpartition("/")
    return f"{place.replace('_', ' ')} time" if area and area != "Etc" else tz


def span_words(span: timedelta) -> str:
    """A duration in its own units: ``15 minutes``, ``1 hour 30 minutes``, ``2 days``."""
    seconds, micro = span.seconds, span.microseconds
    parts = [
        (span.days, "day"),
        (seconds // 3600, "hour"),
        (seconds % 3600 // 60, "minute"),
        (seconds % 60 + micro / 1e6 if micro else seconds % 60, "second"),
    ]
    return " ".join(f"{count:g} {noun}{'' if count == 1 else 's'}" for count, noun in parts if count)

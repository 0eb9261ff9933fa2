"""Times as people write and read them on a command line.

In: instants with their zone (``2026-03-29T02:30:00+01:00``, ``…Z``) and spans (``90``, ``15min``, ``1h30m``, ``14d``).
Out: UTC to the second, and spans in words. This file reads no clock; ``now`` is handed in.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from duly.kernel.duration import parse_duration

_SAMPLES = "90 (seconds), 15min, 1h30m, 14d or PT5M"


def parse_span(text: str) -> timedelta:
    """A span such as ``90``, ``15min`` or ``1h30m``. Raises ValueError saying what is expected."""
    try:
        span = parse_duration(text)
    except ValueError as error:
        said = "is too long" if str(error) == "too long" else f"is not a span; write {_SAMPLES}"
        raise ValueError(f"{text!r} {said}") from None
    if span < timedelta(0):
        raise ValueError(f"{text!r} is negative; write {_SAMPLES}")
    return span


def parse_instant(text: str) -> datetime:
    """An instant with its zone, as aware UTC. Raises ValueError; a local time without a zone is refused, not guessed."""
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not an instant; write one like 2026-07-27T09:00:00Z") from None
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; add Z for UTC, or an offset such as +02:00")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is outside of the calendar") from None


class _Span(click.ParamType):  # type: ignore[type-arg]
    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_span(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class _Instant(click.ParamType):  # type: ignore[type-arg]
    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class _Past(click.ParamType):  # type: ignore[type-arg]
    """An instant, or a span that is meant to lie behind us; a span stays one until ``now`` is known."""

    name = "instant|span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        if isinstance(value, datetime | timedelta):
            return value
        try:
            return parse_span(value)
        except ValueError:
            pass
        try:
            return parse_instant(value)
        except ValueError as error:
            self.fail(f"{error}; or a span such as 15min or 14d.", param, ctx)


SPAN, INSTANT, PAST = _Span(), _Instant(), _Past()


def before(now: datetime, past: datetime | timedelta | None) -> datetime | None:
    """The instant meant by an option of type PAST."""
    if not isinstance(past, timedelta):
        return past
    try:
        return now - past
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def stamp(instant: datetime | None) -> str:
    """An instant for people: UTC to the second, ``Z`` behind it."""
    if instant is None:
        return ""
    return instant.astimezone(UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def span(seconds: float) -> str:
    """A span in words, two significant figures at most: ``0.4 ms``, ``12 ms``, ``4.1 s``, ``35 s``, ``12 min``, ``3 h``, ``9 d``."""
    seconds = abs(seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.{1 if 0 < seconds < 0.00995 else 0}f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def relative(instant: datetime | None, now: datetime) -> str:
    """``in 5 min`` or ``2 h ago``; empty for None."""
    if instant is None:
        return ""
    seconds = (instant - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(seconds)} ago"

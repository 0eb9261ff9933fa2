"""Schedules that no clock on a wall is asked for: at a fixed interval, and once."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import TICK
from duly.kernel.payload import read_duration
from duly.kernel.recurrence.reading import quoted, read_instant, write_instant
from duly.kernel.recurrence.schedule import LATEST, Recurring, Schedule
from duly.kernel.recurrence.words import day_words, span_words

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=36_525)


@dataclass(frozen=True, slots=True, repr=False)
class Every(Recurring):
    """At a fixed interval of elapsed time: ``Every("15m")``, ``Every(timedelta(hours=6), anchor=…)``.

    The instants are ``anchor + k * duration`` for every whole ``k``, also before the anchor: a grid, which does not move with
    restarts, late runs or clock changes. A day of 24 hours is not always a day on the wall; for that, say Daily.
    """

    #: A timedelta, seconds, or a text such as ``15m`` or ``1h30m``; from a second to a hundred years. Kept as a timedelta.
    duration: timedelta | float | str
    #: An aware instant of the grid, or its ISO 8601 text. Kept in UTC.
    anchor: datetime | str = field(default=EPOCH, kw_only=True)
    _step: timedelta = field(init=False, repr=False, compare=False)
    _origin: datetime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Recurring.__post_init__(self)
        step = read_duration(self.duration, "duration")
        if not SHORTEST <= step <= LONGEST:
            remedy = "Give an interval from a second to 36525 days."
            raise InvalidArgument("duration", f"is {quoted(self.duration)}.", remedy)
        origin = read_instant(self.anchor, "anchor")
        for name, value in (("duration", step), ("_step", step), ("anchor", origin), ("_origin", origin)):
            object.__setattr__(self, name, value)

    def _next(self, after: datetime) -> datetime | None:
        after = max(after, EPOCH - TICK)
        found = self._origin + ((after - self._origin) // self._step + 1) * self._step
        return found if found < LATEST else None

    def _previous(self, before: datetime) -> datetime | None:
        found = self._origin + ((before - TICK - self._origin) // self._step) * self._step
        return found if found >= EPOCH else None

    def to_json(self) -> dict[str, Any]:
        seconds = self._step.total_seconds()
        said: dict[str, Any] = {"kind": "every", "duration": int(seconds) if seconds.is_integer() else seconds}
        if self._origin != EPOCH:
            said["anchor"] = write_instant(self._origin)
        return said | self._options()

    def _words(self) -> str:
        words = span_words(self._step)
        one = self._step in (timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1))
        grid = "" if self._origin == EPOCH else f", counted from {_instant_words(self._origin)}"
        return f"every {words.partition(' ')[2] if one else words}{grid}"


@dataclass(frozen=True, slots=True)
class Once(Schedule):
    """At one instant: ``Once("2026-07-27T09:00:00Z")``, or an aware datetime. Kept in UTC."""

    instant: datetime | str
    _at: datetime = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at = read_instant(self.instant, "instant")
        object.__setattr__(self, "instant", at)
        object.__setattr__(self, "_at", at)

    def _next(self, after: datetime) -> datetime | None:
        return self._at if self._at > after else None

    def _previous(self, before: datetime) -> datetime | None:
        return self._at if self._at < before else None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "once", "instant": write_instant(self._at)}

    def _words(self) -> str:
        return f"once, at {_instant_words(self._at)}"


def _instant_words(instant: datetime) -> str:
    whole = "seconds" if instant.second or instant.microsecond else "minutes"
    return f"{instant.time().isoformat(whole)} UTC on {day_words(instant.date())}"

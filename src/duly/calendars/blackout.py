"""A blackout: a window under a name, with who set it and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson

from duly.calendars.stretch import NEVER, Hold
from duly.kernel.errors import InvalidArgument, UnreadableHere
from duly.kernel.recurrence.dates import LAST_DATE
from duly.kernel.windows import Window, window_from_json


@dataclass(frozen=True, slots=True)
class Blackout:
    """A window that is kept. Names are unique in the whole system: a queue is everybody's, and so is what holds it."""

    name: str
    #: What it holds: ``all``, or ``queue:``, ``channel:`` or ``schedule:`` with a name behind.
    scope: str
    #: None if it cannot be read; ``problem`` says why. Then it holds its scope until somebody mends or removes it.
    window: Window | None
    problem: str
    #: The window as it is stored.
    definition: str
    enabled: bool
    #: Rises with each change, from 1.
    version: int
    #: The present stretch or the next one, as claims see it.
    hold: Hold
    reason: str | None
    #: The import it came from.
    source: str | None
    created_at: datetime
    updated_at: datetime
    #: Who set it last.
    updated_by: str
    #: Why this process cannot read it, and another one may. Where it holds is left to that one.
    left: UnreadableHere | None = None

    @property
    def counts(self) -> Window:
        """The window that is obeyed: this one, and always for one that cannot be read."""
        return self.window or Window(tz="UTC", name=self.name, scope=self.scope)

    @property
    def windows(self) -> tuple[Window, ...]:
        """What is obeyed. Of one that another process can read, the stretch that its row says, without an end: only that process knows it."""
        since = self.hold.since
        if self.left is None or since is None:
            return (self.counts,)
        if since >= NEVER:
            return ()
        day, at = since.date(), since.time().replace(microsecond=0)
        then = Window(tz="UTC", start=at, dates=[day], name=self.name, scope=self.scope)
        return then, Window(tz="UTC", dates=[(day + timedelta(days=1), LAST_DATE)], name=self.name, scope=self.scope)

    def describe(self) -> str:
        """The window in a line of plain language."""
        return self.window.describe() if self.window is not None else f"cannot be read: {self.problem}"

    def to_json(self) -> dict[str, Any]:
        """Everything about it as plain values (instants stay datetimes)."""
        off = not self.enabled
        return {
            "name": self.name, "scope": self.scope, "window": self.window.to_json() if self.window is not None else None,
            "problem": self.problem or None, "description": self.describe(), "enabled": self.enabled, "version": self.version,
            "holds_from": None if off or self.hold.since is None or self.hold.since.year == 9999 else self.hold.since,
            "holds_until": None if off else self.hold.until, "reason": self.reason, "source": self.source,
            "created_at": self.created_at, "updated_at": self.updated_at, "updated_by": self.updated_by,
        }  # fmt: skip


def written(window: Window) -> dict[str, Any]:
    """A window as it is stored: its name and scope have columns of their own."""
    said = window.to_json()
    return {field: value for field, value in said.items() if field not in ("name", "scope")}


@lru_cache(maxsize=2048)
def _read_window(definition: str, name: str, scope: str) -> tuple[Window | None, str]:
    try:
        said = orjson.loads(definition)
    except orjson.JSONDecodeError:
        return None, "it is not JSON"
    if isinstance(said, Mapping):
        said = {**said, "name": name, "scope": scope}
    try:
        return window_from_json(said), ""
    except UnreadableHere:
        raise  # not remembered: zone data may come
    except InvalidArgument as error:
        return None, str(error)
    except Exception as error:  # a shape that nobody thought of
        return None, f"{type(error).__name__}: {error}"


def read_window(definition: str, name: str, scope: str) -> tuple[Window | None, str, UnreadableHere | None]:
    """The window of a row, or why it cannot be read, and whether another process may. Never raises: whatever somebody wrote there by hand, others
    go on."""
    try:
        return *_read_window(definition, name, scope), None
    except UnreadableHere as error:
        return None, str(error), error

"""``app.calendars``: blackouts, as programs and people set them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from duly.calendars.blackout import Blackout
from duly.jobs.engine import Engine
from duly.jobs.impact import Impact, Planned, impact
from duly.kernel.errors import InvalidArgument
from duly.kernel.localtime import in_utc
from duly.kernel.windows import Coverage, Window

R = TypeVar("R")


class Host(Protocol):
    """What an application offers here."""

    @property
    def engine(self) -> Engine: ...

    def warn_unused_queue(self, name: str, remedy: str) -> str: ...

    def _write(self, fn: Callable[[Connection], R]) -> R: ...

    def _read(self, fn: Callable[[Connection], R]) -> R: ...


class Calendars:
    """Blackouts of an application's database. ``planned``: the planned instants of its schedules, for ``impact``."""

    def __init__(self, app: Host, planned: Planned | None = None) -> None:
        self._app, self._planned = app, planned

    def set(self, window: Window, reason: str = "", actor: str = "code", enabled: bool = True) -> Blackout:
        """Hold work in a window: ``Window(days=["wed"], start="22:00", end="07:00", tz="Europe/Rome", name="quiet", scope="queue:mail")``.

        A blackout that is there by this name is replaced. The next claim obeys, in the whole cluster; running jobs go on. Audited
        with who did it and why. ``enabled``: False keeps it without holding anything. Raises InvalidArgument.
        """
        kept = self._app._write(lambda c: self._app.engine.calendars.set(c, window, actor, reason, enabled=enabled))
        kind, _, name = window.scope.partition(":")
        if kind in ("queue", "channel"):
            self._app.warn_unused_queue(name, "The blackout is kept all the same, and holds jobs of this queue.")
        return kept

    def remove(self, name: str, reason: str = "", actor: str = "code") -> Blackout:
        """Take a blackout away; returns what it was. What it held may start at once. Raises NotFound."""
        return self._app._write(lambda c: self._app.engine.calendars.remove(c, name, actor, reason))

    def enable(self, name: str, reason: str = "", actor: str = "code") -> Blackout:
        """Let a blackout hold again. Raises NotFound."""
        return self._app._write(lambda c: self._app.engine.calendars.switch(c, name, True, actor, reason))

    def disable(self, name: str, reason: str = "", actor: str = "code") -> Blackout:
        """Keep a blackout without holding anything. Raises NotFound."""
        return self._app._write(lambda c: self._app.engine.calendars.switch(c, name, False, actor, reason))

    def replace(self, source: str, windows: Sequence[Window], reason: str = "", actor: str = "code") -> list[Blackout]:
        """Keep the windows of an import and remove what an earlier one by this name left, in one transaction. Raises InvalidArgument."""
        return self._app._write(lambda c: self._app.engine.calendars.replace_all(c, source, windows, actor, reason))

    def get(self, name: str) -> Blackout:
        """One blackout. Raises NotFound."""
        return self._app._read(lambda c: self._app.engine.calendars.get(c, name))

    def all(self) -> dict[str, Blackout]:
        """Every blackout by its name, those that are off or cannot be read too."""
        return self._app._read(lambda c: {b.name: b for b in self._app.engine.calendars.all(c)})

    def covering(self, scope: str, at: datetime | None = None) -> Coverage | None:
        """What holds ``queue:mail`` (or another scope) at an aware instant, now without one, and until when; None if nothing does."""
        Window(tz="UTC", scope=scope)  # is it a scope?
        instant = None if at is None else in_utc(at, "at")
        return self._app._read(lambda c: self._app.engine.calendars.covering(c, scope, at=instant))

    def impact(self, window: Window, start: datetime | None = None, end: datetime | None = None) -> Impact:
        """What a window would hold between two aware instants: waiting jobs by queue, and occurrences of schedules.

        ``start``: now without one; ``end``: seven days later without one, 400 at most. Nothing is set. Raises InvalidArgument.
        """
        engine = self._app.engine
        begins = start if start is not None else self._app._read(engine.db.present)
        if not isinstance(begins, datetime):
            raise InvalidArgument("start", f"is of type {type(begins).__name__}.", "Give an aware datetime.")
        return impact(engine.db, window, begins, end, self._planned)

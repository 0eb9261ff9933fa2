"""Wake-ups: hints that there may be work. Polling is the rule; a lost hint costs one polling interval and nothing else.

A ``Bell`` is what a waiting loop waits on. ``Bells`` rings all of them: when this process enqueued something, and when the
dialect heard of another process (a NOTIFY on PostgreSQL; a changed ``PRAGMA data_version`` on SQLite).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

#: The channel on which enqueueing transactions of PostgreSQL say that there is work. The payload is a queue's name, never data.
CHANNEL = "duly_jobs"
#: The channel for a change of the gate, a pause or a limit, which must reach what workers have fetched already.
CONTROLS = "duly_controls"


class Bell:
    """One loop's wake-up. Rings are not counted: many rings before a wait are one wake-up."""

    __slots__ = ("__weakref__", "_event", "_heard", "called", "close", "glance", "step")

    def __init__(
        self, step: float | None = None, heard: Callable[[], bool] | None = None, close: Callable[[], None] = lambda: None,
        glance: Callable[[str, dict[str, object]], bool] | None = None,
    ) -> None:  # fmt: skip
        self._event = threading.Event()
        #: Somebody rang, or was heard: it was not a nudge only. Its owner takes it back.
        self.called = False
        #: On a database without notifications: look with ``heard`` every ``step`` seconds while waiting.
        self.step, self._heard = step, heard
        #: Lets go of what it listens with.
        self.close = close
        #: Where there is a cheaper way than a pooled connection to ask whether a query finds a row: that way.
        self.glance = glance

    def ring(self) -> None:
        self.called = True
        self.nudge()

    def nudge(self) -> None:
        """Wake the owner for a reason of its own."""
        if not self._event.is_set():
            self._event.set()

    def _hears(self) -> bool:
        assert self._heard is not None
        if not self._heard():
            return False
        self.called = True
        return True

    def wait(self, timeout: float) -> bool:
        """Wait for a ring, at most ``timeout`` seconds. True when it rang."""
        if self._heard is None or self.step is None:
            rang = self._event.wait(timeout)
        else:
            rang = self._event.is_set() or self._hears()
            while not rang and timeout > 0:
                rang = self._event.wait(min(self.step, timeout)) or self._hears()
                timeout -= self.step
        if rang:  # one that comes at this very moment is for the next wait
            self._event.clear()
        return rang


class Bells:
    """All the bells of one database in this process."""

    def __init__(self) -> None:
        self._bells: weakref.WeakSet[Bell] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, bell: Bell) -> Bell:
        with self._lock:
            self._bells.add(bell)
        return bell

    def ring(self) -> None:
        if not self._bells:
            return
        with self._lock:
            bells = list(self._bells)
        for bell in bells:
            bell.ring()

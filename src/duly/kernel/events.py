"""What rooms say happened. Logs, metrics and alerts listen; rooms never format a line themselves.

An event carries names, ids and durations, never arguments, addresses or tokens. Work done in batches is told in
batches: one event with many jobs, so that the hot path pays once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: a name in snake_case, how much it matters, and its facts."""

    name: str
    level: Level = "info"
    facts: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


class Emitter:
    """Hands events to listeners. A listener that raises is not allowed to harm the work it hears about."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; returns a function that removes it."""
        self._listeners = (*self._listeners, listener)

        def remove() -> None:
            self._listeners = tuple(x for x in self._listeners if x is not listener)

        return remove

    @property
    def active(self) -> bool:
        """Is anybody listening? Asked before facts are gathered on a hot path."""
        return bool(self._listeners)

    def emit(self, name: str, level: Level = "info", **facts: Any) -> None:
        listeners = self._listeners
        if not listeners:
            return
        event = Event(name, level, facts)
        for listener in listeners:
            try:
                listener(event)
            except Exception as error:
                if name != "listener_failed":
                    self.emit("listener_failed", "error", event=name, error=repr(error)[:500])


class _Process(Emitter):
    """Until somebody listens, trouble goes to the standard ``logging`` (logger ``duly``), so that none is silent."""

    def __init__(self) -> None:
        super().__init__()
        self._joined: tuple[weakref.ref[Emitter], ...] = ()

    def join(self, emitter: Emitter) -> None:
        """Let an application's listeners hear too, for as long as the application is there."""
        self._joined = (*(ref for ref in self._joined if ref() is not None), weakref.ref(emitter))

    def emit(self, name: str, level: Level = "info", **facts: Any) -> None:
        heard = [emitter for ref in self._joined if (emitter := ref()) is not None and emitter.active]
        for emitter in heard:
            emitter.emit(name, level, **facts)
        if self._listeners:
            super().emit(name, level, **facts)
        elif not heard and level in ("warning", "error"):
            import logging

            told = " ".join(f"{key}={value}" for key, value in facts.items())
            logging.getLogger("duly").log(logging.ERROR if level == "error" else logging.WARNING, "%s %s", name, told)


#: For what happens outside any application: a function that is idempotent, a send after a commit. Every application's
#: listeners hear it too.
PROCESS = _Process()

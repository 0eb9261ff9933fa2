"""What this process leaves to others because it cannot read it: its zone is unknown on this machine, or newer code wrote it (C023, E1).

Each room notes what it finds, and says when it begins to look again. It is told once (``definition_left``); a worker's row says what stands, and from
that people and the alert hear of it.
"""

from __future__ import annotations

import socket
from threading import Lock

from duly.kernel.errors import UnknownZone, UnreadableHere
from duly.kernel.events import Emitter

#: Definitions that are named in a worker's row, and remembered as told.
MOST, MOST_TOLD = 200, 50_000


class Left:
    """Definitions that are left to others, by what they are and their name."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter, self._lock = emitter, Lock()
        self._now: dict[tuple[str, str], str] = {}
        self._before: dict[tuple[str, str], str] = {}
        self._told: set[tuple[str, str, str]] = set()

    def note(self, what: str, name: str, error: UnreadableHere) -> None:
        """A definition (``what``: schedule, blackout, …) is left to others. Told when it is new."""
        problem = str(error)
        with self._lock:
            self._now[what, name] = problem
            if (what, name, problem) in self._told:
                return
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told.add((what, name, problem))
        zone = isinstance(error, UnknownZone)
        self._emitter.emit(
            "definition_left", "error" if zone else "warning", what=what, definition=name, problem=problem, host=socket.gethostname()
        )  # fmt: skip

    def turn(self, what: str) -> None:
        """The room looks at all of these again: what it does not note until the next turn is left no more."""
        with self._lock:
            mine = {key: problem for key, problem in self._now.items() if key[0] == what}
            self._before = {key: problem for key, problem in self._before.items() if key[0] != what} | mine
            self._now = {key: problem for key, problem in self._now.items() if key[0] != what}

    def standing(self) -> dict[str, str]:
        """What is left now: ``schedule nightly`` → why. At most ``MOST``."""
        with self._lock:
            found = self._before | self._now
        return {f"{what} {name}": found[what, name][:300] for what, name in sorted(found)[:MOST]}

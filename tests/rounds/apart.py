"""A process that opens what is due, and dies at one step of it.

The steps are put around Duly's own functions from outside.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import event

from duly import Duly
from duly.rounds import Rounds
from duly.rounds.notify import Notices
from duly.rounds.store import TickStore
from duly.rounds.tick import Ticks
from duly.testing import ManualClock

#: Step → the function behind which it stands.
BEHIND: dict[str, tuple[Any, str]] = {
    "found": (TickStore, "due"),
    "opened": (TickStore, "open_rounds"),
    "told": (Notices, "make"),
    "written": (TickStore, "note_well"),
    "committed": (Ticks, "_batch"),
    "noted": (Ticks, "_note"),
}
STEPS = [*BEHIND, "commit"]


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        original(*args, **named)
        die()

    return call


def main(url: str, instant: str, step: str) -> None:
    app = Duly(url, clock=ManualClock(datetime.fromisoformat(instant)))
    rounds = Rounds(app)
    app.open()
    if step in BEHIND:
        home, name = BEHIND[step]
        setattr(home, name, then_die(getattr(home, name)))
    elif step == "commit":
        event.listen(app.db.engine, "commit", die)
    rounds.open()

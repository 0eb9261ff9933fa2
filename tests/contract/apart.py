"""A task for handlers in processes: it must be importable by name on the other side."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

from duly import Cancel, Duly, PermanentError, Retry, Snooze

app = Duly("sqlite://")


@app.task("APART", run_in="process")
def apart(end: str) -> dict[str, bool]:
    """End in a given way."""
    if end == "raise":
        raise ZeroDivisionError("division by zero")
    if end == "permanent":
        raise PermanentError("never")
    if end == "retry":
        raise Retry("again", after=5)
    if end == "snooze":
        raise Snooze("later", after=3600)
    if end == "cancel":
        raise Cancel("not wanted")
    if end == "exit":
        sys.exit(3)
    if end == "die":
        os._exit(3)
    if end == "hang":
        threading.Event().wait(60)
    return {"pid": multiprocessing.parent_process() is not None}

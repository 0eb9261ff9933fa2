"""Handlers for processes of their own: importable by name on the other side."""

from __future__ import annotations

import os
import time
from pathlib import Path

from duly import Duly

#: These tasks are defined again, with the same functions, on the application of each test.
app = Duly("sqlite://")


def _do(folder: str, end: str, seconds: float) -> dict[str, int]:
    (Path(folder) / f"child-{os.getpid()}").touch()
    time.sleep(seconds)
    if end == "abort":
        os.abort()
    return {"pid": os.getpid()}


@app.task("APART", run_in="process")
def apart(folder: str, end: str = "", seconds: float = 0) -> dict[str, int]:
    """Leave a mark named after this process, take a while, and end as told."""
    return _do(folder, end, seconds)


@app.task("APART_BRIEFLY", run_in="process")
def apart_briefly(folder: str, seconds: float = 0) -> dict[str, int]:
    """The same under a timeout."""
    return _do(folder, "", seconds)

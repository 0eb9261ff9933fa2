"""Handlers for processes of their own: importable by name on the other side."""

from __future__ import annotations

import os
import time
from pathlib import Path

from duly import Duly

#: This task is defined again, with the same function, on the application of each test.
app = Duly("sqlite://")


@app.task("APART", run_in="process")
def apart(folder: str, end: str = "", seconds: float = 0) -> dict[str, int]:
    """Leave a mark named after this process, take a while, and end as told."""
    (Path(folder) / f"child-{os.getpid()}").touch()
    time.sleep(seconds)
    if end == "abort":
        os.abort()
    return {"pid": os.getpid()}

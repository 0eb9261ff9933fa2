"""A handler for a process of its own: importable by name on the other side."""

from __future__ import annotations

import os

from duly import Duly

app = Duly("sqlite://")


@app.task("APART", run_in="process")
def apart() -> int:
    return os.getppid()

"""Handlers for processes of their own: importable by name on the other side."""

from __future__ import annotations

import os
import sys
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
    if end.startswith("copy") and os.fork() == 0:
        (Path(folder) / f"copy-{os.getpid()}").touch()
        if end == "copy exits":
            sys.exit(0)
        if end == "copy raises":
            raise ValueError("in the copy")
        return {"pid": os.getpid()}
    if end.startswith("helper"):
        helper(Path(folder))
        if end == "helper, exit":
            os._exit(3)
        if end == "helper, wait":
            time.sleep(60)
    return {"pid": os.getpid()}


def helper(folder: Path) -> None:
    """Fork what stays, with everything that this process holds open, until the test has seen enough. The system's own fork tells nobody."""
    import ctypes

    if ctypes.PyDLL(None).fork() == 0:
        os.close(os.open(folder / f"helper-{os.getpid()}", os.O_CREAT))
        until = time.monotonic() + 40
        while not (folder / "enough").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os._exit(0)

"""A handler in a module that takes its time to be imported, as large programs do, in the handler's process only."""

from __future__ import annotations

import multiprocessing
import os
import time

from duly import Duly

if multiprocessing.current_process().name == "duly-handler":
    time.sleep(0.7)

app = Duly("sqlite://")


@app.task("APART_LATE", run_in="process", timeout=0.5)
def apart_late(seconds: float) -> dict[str, int]:
    time.sleep(seconds)
    return {"pid": os.getpid()}

"""An idempotent handler for processes of their own: importable by name on the other side.

The other side makes this application anew: its surroundings say in which database reservations are kept.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from duly import Duly
from duly.idempotency import idempotent_task

app = Duly(os.environ.get("CRASH_DATABASE", "sqlite://"))


@app.task("IDEMPOTENT_APART", run_in="process")
@idempotent_task(time_limit=4, margin=2, heartbeat=0.5)
def idempotent_apart(folder: str, tag: str, how: str) -> dict[str, int]:
    """Leave a mark for this run. The first one dies, or waits to be killed; another has its effect."""
    runs = len(list(Path(folder).glob(f"run-{tag}-*")))
    (Path(folder) / f"run-{tag}-{runs}").touch()
    if runs == 0 and how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if runs == 0 and how == "wait":
        time.sleep(600)
    (Path(folder) / f"effect-{tag}-{os.getpid()}").touch()
    return {"pid": os.getpid()}

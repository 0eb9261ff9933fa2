"""What this room says happened: which function or request, under which key, in which trace; never an argument (R004-6)."""

from __future__ import annotations

from typing import Any

from duly.kernel.events import PROCESS, Level
from duly.tracing import trace_id


class Teller:
    """Tells what happens to one key."""

    def __init__(self, task: str, key: str) -> None:
        self.task, self.key = task, key

    def emit(self, event: str, level: Level = "info", **facts: Any) -> None:
        trace = trace_id()
        if trace is not None:
            facts["trace_id"] = trace
        PROCESS.emit(event, level, task_name=self.task, idempotency_key=self.key, **facts)

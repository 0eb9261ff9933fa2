"""Who is calling: a thread, and on an event loop one of its tasks."""

from __future__ import annotations

import asyncio
import threading


def current_task() -> int:
    """What tells the running asyncio task from the others of this thread; 0 where there is none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return 0
    return 0 if task is None else id(task)


def here() -> tuple[int, int]:
    return threading.get_ident(), current_task()

"""Calls that wait for the database on a running event loop: who made them, and what to write instead.

Asked in one place, where the database is used (``storage/database.py``), so no method has to say it of itself. What Duly's own coroutines do is
not the caller's: only a plain function of Duly that foreign code has called on the loop's thread is told.
"""

from __future__ import annotations

import sys
from inspect import CO_COROUTINE
from types import FrameType

#: Those who call Duly's functions for it: they are nobody's mistake.
_CARRIERS = frozenset({"asyncio", "uvloop", "uvicorn", "starlette", "fastapi", "anyio", "concurrent", "threading"})
#: Libraries that stand between two of Duly's functions, or between the caller and Duly.
_BETWEEN = frozenset({"duly", "sqlalchemy", "contextlib", "functools"})


def blocking_call() -> tuple[str, str] | None:
    """What foreign code called, and what to write instead; None where Duly has called itself."""
    frame: FrameType | None = sys._getframe(1)
    called: FrameType | None = None
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root == "duly":
            if frame.f_code.co_flags & CO_COROUTINE:
                return None
            called = frame
        elif root not in _BETWEEN:
            break
        frame = frame.f_back
    if called is None or frame is None or root in _CARRIERS:
        return None
    name = called.f_code.co_name
    other = getattr(called.f_locals.get("self"), f"a{name}", None)
    instead = f"`await ….a{name}(…)`" if callable(other) else "`await asyncio.to_thread(…)` around it"
    return called.f_code.co_qualname, instead

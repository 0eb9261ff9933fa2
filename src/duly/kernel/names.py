"""Names that do not exist: the nearest one that does, and how the caller is told.

Every place that takes the name of a task, queue, workflow, destination, channel or tool asks here what was probably meant. Who
knows which names exist is decided elsewhere (``jobs/names.py``); this file is pure but for Python's own warnings.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

from duly.kernel.errors import UnknownNameWarning

#: Names shown where none is near.
SHOWN = 8
#: The most names compared, and the longest name: comparing is slow for many or long ones.
MOST, LONGEST = 1_000, 100

_NOTICED: ContextVar[list[str] | None] = ContextVar("duly_noticed_names", default=None)


def nearest(name: str, known: Collection[str], least: float = 0.6) -> str | None:
    """The known name that was probably meant; None where none is near (``least``: from 0, unlike, to 1). Case is no difference."""
    if not 0 < len(name) <= LONGEST:
        return None
    names = {one.lower(): one for one in sorted(known)[:MOST] if len(one) <= LONGEST}
    near = get_close_matches(name.lower(), list(names), 1, least)
    return names[near[0]] if near else None


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """The sentences about a name that does not exist: ``No task is called "tyop". Did you mean "typo"?``"""
    said = f'No {what} is called "{name[:LONGEST]}".'
    near = nearest(name, known)
    if near is not None:
        return f'{said} Did you mean "{near}"?'
    names = sorted(known)
    more = ", …" if len(names) > SHOWN else ""
    return f"{said} Known {what}s: {', '.join(names[:SHOWN])}{more}." if names else f"{said} No {what} is known."


@contextmanager
def noticing() -> Iterator[list[str]]:
    """Collect what is warned of within, for the field ``warnings`` of an answer. Python's own warning is left out then."""
    found: list[str] = []
    mark = _NOTICED.set(found)
    try:
        yield found
    finally:
        _NOTICED.reset(mark)


def notice(said: str) -> None:
    """Warn the caller: in the answer that is being made, else as a Python warning at the first line outside of Duly."""
    found = _NOTICED.get()
    if found is not None:
        if said not in found:
            found.append(said)
        return
    warn_outside(said, UnknownNameWarning)


def warn_outside(said: str, category: type[Warning]) -> None:
    """Raise a Python warning at the first line outside of Duly."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "duly":
        level, frame = level + 1, frame.f_back
    warnings.warn(said, category, stacklevel=level)

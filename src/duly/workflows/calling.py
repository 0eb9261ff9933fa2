"""The step that is being called here: what it calls may know it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

#: The step that is being called here, if any: (the turn of its run, its name).
WITHIN: contextvars.ContextVar[tuple[object, str] | None] = contextvars.ContextVar("duly_step", default=None)


@contextlib.contextmanager
def within(turn: object, name: str) -> Iterator[None]:
    """While a step is called: what it calls may know it."""
    mark = WITHIN.set((turn, name))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # thrown away by the collector, in another context
            WITHIN.reset(mark)

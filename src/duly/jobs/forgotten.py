"""Coroutines that a handler, a step or a tool has called and never awaited: nothing of them was begun.

Python notices when such a coroutine is thrown away, and warns through a function of ``warnings`` that it looks up each time; this one stands
before it. What is thrown away in a run is told to whoever listens there (``listening``), otherwise to the run. One of Duly's own, such as
``app.aenqueue(…)``, is work that was asked for and is not done: the run fails. Any other is an event, as a library may throw one away on purpose.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeAlias

from duly.jobs.run import CURRENT, Run
from duly.kernel.errors import PermanentError
from duly.kernel.events import PROCESS

#: Where Duly's own code lies.
_OURS = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class Dropped:
    """A coroutine that was thrown away before it was begun."""

    name: str
    #: Where it is defined.
    file: str
    line: int
    #: The line of the code that threw it away.
    where: str

    @property
    def is_ours(self) -> bool:
        return self.file.startswith(_OURS)

    def refused(self) -> PermanentError:
        """The error of the run in which it was asked for."""
        return PermanentError(
            f"{self.name}(…) was called at {self.where} and never awaited, so nothing of it was done. Write `await …{self.name}(…)`, in a function "
            "defined with `async def`; what stands beside it is done. Then replay it where that is what you want."
        )


Listener: TypeAlias = Callable[[Dropped], None]
#: Who is told of it here, where that is not the run.
_LISTENER: ContextVar[Listener | None] = ContextVar("duly_forgotten", default=None)


@contextlib.contextmanager
def listening(tell: Listener) -> Iterator[None]:
    """Within this, ``tell`` hears of each coroutine that is thrown away before it was begun."""
    mark = _LISTENER.set(tell)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # thrown away by the collector, in another context
            _LISTENER.reset(mark)


@contextlib.contextmanager
def all_awaited() -> Iterator[None]:
    """Raises PermanentError at the end of a block that succeeded, where a coroutine of Duly's own was never awaited in it."""
    found: list[Dropped] = []

    def tell(dropped: Dropped) -> None:
        if dropped.is_ours:
            found.append(dropped)
        else:
            _say(dropped)

    with listening(tell):
        yield
    if found:
        raise found[0].refused()


def _say(dropped: Dropped) -> None:
    run = CURRENT.get()
    claimed = getattr(run, "claimed", None)
    facts = {"job": getattr(claimed, "id", None), "task": getattr(claimed, "task", None)}
    PROCESS.emit("coroutine_never_awaited", "warning", function=dropped.name, where=dropped.where, **facts)


def _heard(coroutine: CoroutineType[Any, Any, Any]) -> None:
    run = CURRENT.get()
    if run is None or coroutine.cr_frame is None:
        return
    frame = sys._getframe(2)  # behind the function that Python calls
    code = coroutine.cr_code
    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    dropped = Dropped(coroutine.__name__, code.co_filename, code.co_firstlineno, where)
    tell = _LISTENER.get()
    if tell is not None:
        tell(dropped)
    elif dropped.is_ours and isinstance(run, Run):
        run.forgotten = run.forgotten or dropped.refused()
    else:
        _say(dropped)


def watch() -> None:
    """Have Python tell of what is thrown away in a run; once is enough for a process."""
    plain = getattr(warnings, "_warn_unawaited_coroutine", None)
    if plain is None or getattr(
        plain, "is_of_duly", False
    ):  # another Python, which warns in another way; or it is done
        return

    def warn(coroutine: CoroutineType[Any, Any, Any]) -> None:
        with contextlib.suppress(Exception):
            _heard(coroutine)
        plain(coroutine)

    warn.is_of_duly = True  # type: ignore[attr-defined]
    warnings._warn_unawaited_coroutine = warn  # type: ignore[attr-defined]

"""Two functions under one name: a nested function is named like every other one that its factory makes.

``outer(1)`` and ``outer(2)`` give functions of one module and qualified name. What tells them apart stands in their closures and not in
their arguments, so a call of one would be taken for a duplicate of the same call of the other. Where that can be seen when the second is
defined, a warning says so. It is no error: a factory may rightly make the same function again, for a test or for another store.

Only texts, numbers and their like are compared, which say what the work is about. A store, a client or a list that a function writes
down its calls in says nothing of that.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import CodeType, FunctionType
from typing import Any
from uuid import UUID

_TELLING = (str, bytes, int, float, Decimal, date, time, timedelta, UUID, Enum)
#: Code → the function of it that was defined last, while that lives, and the store that it was given.
_last: weakref.WeakKeyDictionary[CodeType, tuple[weakref.ref[FunctionType], Any]] = weakref.WeakKeyDictionary()


def warn_of_twin(fn: Callable[..., Any], name: str, store: Any) -> None:
    """Warn where another function of this name lives that has the same store and was made with other values (UserWarning)."""
    if not isinstance(fn, FunctionType) or not fn.__closure__:
        return
    # another program or thread may define beside us: what is missed then is a warning
    last = _last.get(fn.__code__)
    kept = None if store is None else weakref.ref(store) if hasattr(type(store), "__weakref__") else store
    _last[fn.__code__] = weakref.ref(fn), kept
    twin = None if last is None else last[0]()
    if twin is None or twin is fn or last is None or last[1] != kept:
        return
    differs = next(
        (
            free
            for free, mine, other in zip(fn.__code__.co_freevars, fn.__closure__, twin.__closure__ or (), strict=False)
            if _tell_apart(mine, other)
        ),
        None,
    )
    if differs is not None:
        warnings.warn(
            f"@idempotent_task: two functions are called {name}, and differ in {differs!r}, which is no argument: a call of one is taken "
            "for a duplicate of the same call of the other. Give each a name= of its own, or hand the value in as an argument.",
            stacklevel=3,
        )


def _tell_apart(mine: Any, other: Any) -> bool:
    try:
        one, two = mine.cell_contents, other.cell_contents
    except ValueError:  # not filled yet
        return False
    return isinstance(one, _TELLING) and isinstance(two, _TELLING) and (type(one) is not type(two) or one != two)

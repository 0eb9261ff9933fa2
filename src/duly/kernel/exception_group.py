"""What an exception group asks for: the one exception inside it that decides what becomes of the run.

``asyncio.TaskGroup`` and anyio raise a group when a child raises, also where the child raised a ``Signal``. Every place that
reads a handler's error (jobs, steps, tools, transports, functions of channels, handlers in processes) asks here first.
Groups are Python's own (PEP 654) and may be nested.
"""

from __future__ import annotations

from collections.abc import Iterator

from duly.kernel.errors import Cancel, PermanentError, Retry, Snooze

#: The most exceptions looked at inside one group.
MOST_LEAVES = 1_000


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside a group, nested groups included, in the order in which they were raised; else the error itself."""
    waiting, seen = [error], 0
    while waiting and seen < MOST_LEAVES:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(reversed(one.exceptions))
        else:
            seen += 1
            yield one


def decisive(error: BaseException) -> BaseException:
    """The exception that decides what becomes of a run; ``error`` itself when it is no group.

    Cancel comes first, then PermanentError, then Retry (the one with the longest wait), then any other failure (the first one), then
    Snooze (the latest). So a run that failed is never taken for one that only wants to run later.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    best: BaseException = error
    rank = (-1, 0.0)
    for leaf in leaves(error):
        found = _rank(leaf)
        if found > rank:
            best, rank = leaf, found
    return best


def _rank(leaf: BaseException) -> tuple[int, float]:
    if isinstance(leaf, Cancel):
        return 5, 0.0
    if isinstance(leaf, PermanentError):
        return 4, 0.0
    if isinstance(leaf, Retry):
        return 3, -1.0 if leaf.after is None or leaf.after != leaf.after else leaf.after
    if isinstance(leaf, Snooze):
        return 1, leaf.until.timestamp() if leaf.until is not None else leaf.after or 0.0
    if isinstance(leaf, Exception):
        return 2, 0.0
    return 0, 0.0  # a cancellation or an exit beside an error follows from it


def others(error: BaseException, chosen: BaseException) -> str:
    """The other exceptions of a group, in a few words for the message of an error; empty when there are none."""
    rest = [leaf for leaf in leaves(error) if leaf is not chosen]
    if not rest:
        return ""
    named = ", ".join(dict.fromkeys(type(leaf).__name__ for leaf in rest[:20]))
    return f" (and {len(rest)} more {'error' if len(rest) == 1 else 'errors'} in the group: {named})"

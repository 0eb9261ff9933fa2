"""The traceback of a handler's error with its causes, as text that can be kept in the job's row: bounded, with source lines, without secrets.

It reads like Python's own: the cause first, then what followed from it. Duly's own frames at the beginning are left out.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType

from duly.kernel.masking import masked

#: The most exceptions of a chain, frames of each, lines in all, and characters of a line.
EXCEPTIONS, FRAMES, LINES, LINE = 6, 8, 60, 300
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"


def chained(error: BaseException) -> list[str]:
    """The lines of the traceback of an error and of what led to it, oldest first; the last lines where there are too many."""
    links: list[tuple[BaseException, str]] = []
    one: BaseException | None = error
    words = ""
    while one is not None and len(links) < EXCEPTIONS and not any(one is known for known, _ in links):
        links.append((one, words))
        one, words = _before(one) or (None, "")
    lines: list[str] = []
    for found, after in reversed(links):
        lines += _lines(found)
        if after:
            lines.append(after)
    kept = lines if len(lines) <= LINES else ["…", *lines[-LINES:]]
    return masked("\n".join(line[:LINE] for line in kept)).split("\n")


def _lines(error: BaseException, depth: int = 0) -> list[str]:
    frames = traceback.StackSummary.extract(_walked(error.__traceback__), limit=-FRAMES, lookup_lines=False)
    out: list[str] = []
    for frame in frames:
        out.append(f'File "{frame.filename}", line {frame.lineno}, in {frame.name}')
        if source := linecache.getline(frame.filename, frame.lineno or 0).strip():
            out.append(f"  {source}")
    out.append(_named(error))
    if isinstance(error, BaseExceptionGroup) and depth < 2:
        for number, inner in enumerate(error.exceptions[:5], start=1):
            lines = _lines(inner, depth + 1)
            if (before := _before(inner)) is not None:
                lines = [*_lines(before[0], 2), before[1], *lines]
            out += [f"  + {number}: {line}" if place == 0 else f"    {line}" for place, line in enumerate(lines)]
    return out


def _before(error: BaseException) -> tuple[BaseException, str] | None:
    """What an error followed from, and how."""
    if error.__cause__ is not None:
        return error.__cause__, _CAUSE
    if error.__context__ is not None and not error.__suppress_context__:
        return error.__context__, _CONTEXT
    return None


def _walked(tb: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """The frames of a traceback, without those of Duly that called the handler."""
    while tb is not None and str(tb.tb_frame.f_globals.get("__name__", "")).startswith("duly.jobs."):
        tb = tb.tb_next
    yield from traceback.walk_tb(tb)


def _named(error: BaseException) -> str:
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    try:
        text = str(error).strip()
    except BaseException:
        text = "(the error's text cannot be made)"
    return f"{module}{kind.__qualname__}: {text}".replace("\n", " ") if text else f"{module}{kind.__qualname__}"

"""Copies that handlers make with ``os.fork``: of a worker, or of the process that a handler has to itself.

A copy has one thread of the original, and everything else of it: its connections, its locks, the jobs that it holds. It is there for what the
handler does in it. As soon as it comes back to the engine it has to go, and touch none of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

from duly.jobs.run import CURRENT


class Copied:
    """Knows of one running worker whether this process is a copy of its own: then ``yes`` is true. A flag, as it is asked for each job.

    It belongs to the run of the worker: in a copy, a worker that is started there is no copy.
    """

    def __init__(self) -> None:
        self.yes = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loops_thread = 0
        self._forget_signals: Callable[[], None] | None = None
        self._kept: list[object] = []

    def __enter__(self) -> None:
        """Around a call of a handler: a copy that was made in it ends when it is over, as it ended."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.yes:
            leave(error)

    @contextlib.contextmanager
    def watched(
        self, loop: asyncio.AbstractEventLoop, forget_signals: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """While the worker runs, in the thread of its loop. ``forget_signals``: gives signals back their meaning from before."""
        self._loop, self._loops_thread, self._forget_signals = loop, threading.get_ident(), forget_signals
        _watched.append(self)
        try:
            yield
        finally:
            _watched.remove(self)

    def happened(self) -> None:
        """In the copy, before anything else runs there."""
        self.yes = True
        if self._forget_signals is not None:
            # a signal to the copy would be heard by the loop of the original: they share the pipe that tells of it
            with contextlib.suppress(Exception):
                self._forget_signals()
        loop = self._loop
        if loop is None or threading.get_ident() != self._loops_thread or CURRENT.get() is None:
            return
        # A handler on the loop: when it waits, or ends, nothing else of the loop may run in the copy. So the end of the copy stands in the
        # place of all that is ready to run. (Cancelling that would have the loop take its readers from the selector, which is the original's too.)
        with contextlib.suppress(Exception):
            ready = getattr(loop, "_ready", None)  # asyncio's own loops have it; on others the end comes last
            if ready is not None:
                self._kept = list(ready)  # what is thrown away is told on stderr
                ready.clear()
            loop.call_soon(_leave_with, asyncio.current_task(loop))
            if ready is not None:
                ready.extend([ready[0]] * len(self._kept))


def _leave_with(task: asyncio.Task[object] | None) -> None:
    """End this copy, as the task in which it was made ended, if it has: it may be one that the handler has started."""
    leave(task.exception() if task is not None and task.done() and not task.cancelled() else None)


#: Of the workers that run in this process.
_watched: list[Copied] = []


def _forked() -> None:
    for one in list(_watched):
        one.happened()


os.register_at_fork(after_in_child=_forked)


def leave(error: BaseException | None = None) -> NoReturn:
    """End this copy as a program would end: with the code of SystemExit, with 1 and its traceback for another ``error``, else with 0.

    Nothing is closed or flushed: that is the original's to do.
    """
    code = 0
    try:
        said = ""
        if isinstance(error, SystemExit):
            if isinstance(error.code, int):
                code = error.code & 0xFF
            elif error.code is not None:
                code, said = 1, f"{error.code}\n"
        elif error is not None:
            code, said = 1, "".join(traceback.format_exception(error))
        if said:
            # not print(): the lock of the stream may be held by a thread that is not here
            os.write(2, said.encode(errors="backslashreplace"))
    finally:
        os._exit(code)

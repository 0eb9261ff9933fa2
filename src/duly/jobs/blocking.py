"""What blocks the event loop of a worker: a thread that knocks, and looks at the loop's frame when nothing answers.

A handler that computes, or calls a blocking library, stops every other handler of the worker, and nothing raises. The thread asks the loop to run
a tiny callback while jobs are held. When that has not run after the setting ``loop_block``, the stack of the loop's thread says why. It costs two
wake-ups a second while jobs run, and nothing on the loop but that callback.
"""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from duly.jobs.run import Run
from duly.kernel.events import Emitter
from duly.kernel.masking import masked

#: The most frames told, and the seconds for which a task is not told again.
FRAMES, QUIET = 12, 60.0
#: The longest pause between two knocks, in seconds.
PAUSE = 0.5


class LoopWatch:
    """Tells as the event ``loop_blocked`` what blocks a loop. ``start`` it on the loop's thread.

    ``busy``: are there jobs at hand? ``code``: of the coroutine that calls a handler and has its run as ``run``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, busy: Callable[[], object], code: CodeType, emitter: Emitter, worker: str) -> None:  # fmt: skip
        self._loop, self._limit, self._busy, self._code = loop, limit, busy, code
        self._emitter, self._worker = emitter, worker
        self._ends = threading.Event()
        self._told: dict[str, float] = {}
        self._ident = threading.get_ident()
        self._thread = threading.Thread(target=self._work, name="duly-loop-watch", daemon=True)

    def start(self) -> None:
        self._ident = threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()

    def _work(self) -> None:
        while not self._ends.wait(min(PAUSE, self._limit)):
            if not self._busy():
                continue
            answered, asked = threading.Event(), time.monotonic()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop has ended
                return
            if answered.wait(self._limit):
                continue
            self._look(time.monotonic() - asked)
            while not answered.wait(PAUSE):
                if self._ends.is_set() or self._loop.is_closed():
                    return

    def _look(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._ident)
        if frame is None or frame.f_code.co_name in ("select", "poll"):  # it waits: this thread came late
            return
        run, stack = self._blamed(frame)
        task = run.claimed.task if run is not None else ""
        now = time.monotonic()
        if now - self._told.get(task, -QUIET) < QUIET:
            return
        self._told[task] = now
        self._emitter.emit(
            "loop_blocked", "warning", worker=self._worker, task=task, job=run.claimed.id if run is not None else None, seconds=round(seconds, 3),
            stack=stack,
        )  # fmt: skip

    def _blamed(self, frame: FrameType) -> tuple[Run | None, list[str]]:
        """The run whose handler the loop is in, and the lines of its stack, the innermost last."""
        lines: list[str] = []
        one: FrameType | None = frame
        while one is not None:
            if one.f_code is self._code:
                found: Any = one.f_locals.get("run")
                return (found if isinstance(found, Run) else None), self._shown(lines)
            name, line = one.f_code.co_filename, one.f_lineno
            lines.append(
                f'File "{name}", line {line}, in {one.f_code.co_name}: {linecache.getline(name, line).strip()}'
            )
            one = one.f_back
        return None, self._shown(lines)

    def _shown(self, lines: list[str]) -> list[str]:
        return [masked(line[:300]) for line in reversed(lines[:FRAMES])]

"""``app.on_error``: functions of the application that are called once for each failed attempt, beside the work and never in its way.

They are called on a thread of their own, one after the other, when the end of the run is written; async ones on the worker's event
loop. What one raises, or takes too long for, is an event (``on_error_failed``) and harms neither the job nor the worker.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from duly.jobs.job import Job, Status
from duly.jobs.run import Run, to_job
from duly.jobs.settle import Settlement
from duly.kernel.clock import Clock
from duly.kernel.errors import brief
from duly.kernel.events import Emitter

#: Called with the exception and the job as it stands after the failure.
Hook = Callable[[BaseException, Job], Any]
#: Failures that wait to be told; more than that are left out, with an event.
MOST = 1_000
#: Seconds for which an async hook may run, and for which the end of a worker waits for hooks.
LONGEST, PATIENCE = 30.0, 5.0


class Hooks:
    """The hooks of one application."""

    def __init__(self, emitter: Emitter, clock: Clock) -> None:
        self.emitter, self.clock = emitter, clock
        self.functions: tuple[Hook, ...] = ()
        self._waiting: queue.Queue[Callable[[], None]] = queue.Queue(MOST)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, function: Hook) -> Hook:
        """Call a function for each failed attempt from now on. Returns it, so that it can be used as a decorator."""
        self.functions = (*self.functions, function)
        return function

    def tell(self, run: Run, settlement: Settlement, worker: str, loop: asyncio.AbstractEventLoop | None) -> None:
        """Have the hooks called for a run that failed. Does not wait."""
        error = run.error
        if error is None or not self.functions:
            return
        try:
            job = self._after(run, settlement, worker)
            self._waiting.put_nowait(partial(self._call, error, job, loop))
        except queue.Full:
            self.emitter.emit(
                "on_error_failed", "error", job=run.claimed.id, hook="", error="too many failures wait to be told"
            )
            return
        except Exception as problem:
            self.emitter.emit("on_error_failed", "error", job=run.claimed.id, hook="", error=brief(problem))
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="duly-on-error", daemon=True)
                self._thread.start()

    def flush(self, seconds: float = PATIENCE) -> None:
        """Wait until what was told is done, at most so long."""
        done = threading.Event()
        if self._thread is not None and self._thread.is_alive():
            try:
                self._waiting.put(done.set, timeout=seconds)
            except queue.Full:
                return
            done.wait(seconds)

    def _after(self, run: Run, s: Settlement, worker: str) -> Job:
        """The job as it stands after this failure: ``status`` and ``next_retry_at`` say what happens next."""
        now = self.clock.now()
        due = None
        if s.status is Status.QUEUED:
            due = s.until if s.until is not None else now + timedelta(seconds=s.wait or 0.0)
        ended = now if s.final else None
        return replace(
            to_job(run.claimed, worker),
            status=Status(s.status),
            error=s.error,
            due_at=due,
            next_retry_at=due,
            finished_at=ended,
        )

    def _work(self) -> None:
        while True:
            self._waiting.get()()

    def _call(self, error: BaseException, job: Job, loop: asyncio.AbstractEventLoop | None) -> None:
        for function in self.functions:
            try:
                answer = function(error, job)
                if asyncio.iscoroutine(answer):
                    _awaited(answer, loop)
            except BaseException as problem:
                name = getattr(function, "__qualname__", type(function).__name__)
                self.emitter.emit("on_error_failed", "error", job=job.id, hook=name, error=brief(problem))


def _awaited(answer: Any, loop: asyncio.AbstractEventLoop | None) -> None:
    """Run an async hook on the worker's loop, or on one of its own when that has ended."""
    if loop is None or not loop.is_running():
        asyncio.run(asyncio.wait_for(answer, LONGEST))
        return
    future = asyncio.run_coroutine_threadsafe(answer, loop)
    try:
        future.result(LONGEST)
    except TimeoutError:
        future.cancel()
        raise

"""Threads that must not die: supervised loops, and a pool of daemon threads for plain handlers.

A loop that fails is tried again after a pause that grows to a few seconds, says so once (an event of level debug for each further failure of the same kind), and counts as not
ready meanwhile (case B034). Waiting is always on an event, so stopping never waits for a pause to end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from duly.kernel.backoff import Backoff
from duly.kernel.errors import brief
from duly.kernel.events import Emitter

#: Between failures of a loop: 0.1, 0.2 … 5 seconds, so that work resumes well within 10 s of a recovery.
LOOP_BACKOFF = Backoff(base=0.1, factor=2, max=5)
#: After so many failures of the same kind (five minutes) the log is told again; between them only who listens to ``debug`` hears of each.
REMINDER = 60


class Loop:
    """Calls ``step`` again and again on a thread of its own until it is stopped.

    ``step`` does its own waiting and returns. ``ready`` is False from a failure until the next success.
    """

    def __init__(
        self, name: str, step: Callable[[], None], emitter: Emitter, begin: Callable[[], None] | None = None
    ) -> None:
        self.name, self._step, self._emitter, self._begin = name, step, emitter, begin
        self.ready, self.problem = True, ""
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"duly-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, timeout: float) -> bool:
        """Wait for the end; False when it has not ended in time."""
        if self.thread.is_alive():
            self.thread.join(timeout)
        return not self.thread.is_alive()

    def _run(self) -> None:
        failures = 0
        if self._begin is not None and not self.stopping.is_set():
            self._begin()
        while not self.stopping.is_set():
            try:
                self._step()
            except Exception as error:
                failures += 1
                before, self.problem, self.ready = self.problem, brief(error), False
                loud = failures % REMINDER == 1 or self.problem != before
                self._emitter.emit(
                    "loop_failed", "error" if loud else "debug", loop=self.name, error=self.problem, failures=failures
                )
                self.stopping.wait(LOOP_BACKOFF.delay(failures))
            else:
                if failures:
                    self._emitter.emit("loop_recovered", "info", loop=self.name, failures=failures)
                    failures = 0
                self.ready, self.problem = True, ""


class Threads:
    """Up to ``size`` daemon threads that run calls in order. Unlike an executor's, they never hold up the exit of the program."""

    def __init__(self, size: int) -> None:
        self._size, self._started, self._closed = size, 0, False
        #: So many threads are at rest; below zero, so many calls wait for one.
        self._idle = 0
        self._calls: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., None], *args: Any) -> bool:
        """Run ``fn(*args)`` on a thread. ``fn`` must not raise.

        False where a thread should have been started for it and the system gives none now: then one of the others takes it
        when it is free. Raises RuntimeError, and runs nothing, where there are no others. False, and nothing runs, once they were let go.
        """
        started = True
        with self._lock:
            if self._closed:
                return False
            if self._idle < 1:
                started = self._start(1)
            self._idle -= 1
        self._calls.put((fn, args))
        return started

    def grow(self) -> bool:
        """Start threads for calls that wait for one, up to the size. False where the system gives none."""
        with self._lock:
            return self._start(0)

    def _start(self, idle: int) -> bool:
        """Start threads until so many are at rest, up to the size."""
        while self._idle < idle and self._started < self._size and not self._closed:
            name = f"duly-handler-{self._started + 1}"
            try:
                threading.Thread(target=self._run, name=name, daemon=True).start()
            except RuntimeError:
                if not self._started:
                    raise
                return False
            self._started += 1
            self._idle += 1
        return True

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            fn, args = item
            fn(*args)
            del item, fn, args
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Let the threads go. What is called from now on begins nothing."""
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._calls.put(None)

"""What a commit waits for has a deadline: calls to somewhere else that are made when a transaction has ended.

A commit that has happened must not keep its caller because a broker, or a store of keys, accepts connections and says nothing. So such a
call runs on a thread of its own, and the caller waits for a bounded time. What has not returned by then goes on by itself and tells
its outcome when it has one. While one is late, what comes after it waits behind it, in order, and keeps no caller at all: ten hung
callers would be an outage of their own.

The thread has a copy of the caller's context variables. It is a daemon: when the process ends in good order, what is late is waited for once
more, as long as a commit would wait; what has not returned then is lost, as everything is that lives in a process's memory, and said so.
"""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Literal

#: Seconds that a commit waits.
WITHIN = 5.0
#: Calls that wait behind a late one. What comes then is refused.
MOST_BEHIND = 1000
#: Threads that are kept for the next call.
KEPT = 8
#: done: it has returned. late: it goes on by itself, or waits behind one that does. refused: it will not be made.
Fate = Literal["done", "late", "refused"]


class _Work:
    __slots__ = ("context", "error", "fn", "late", "lost", "over")

    def __init__(self, fn: Callable[[], None], lost: Callable[[], object]) -> None:
        self.fn, self.lost, self.context = fn, lost, contextvars.copy_context()
        self.over, self.late = threading.Event(), False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.context.run(self.fn)
        except BaseException as error:
            self.error = error


class Deadline:
    """Calls to one place."""

    def __init__(self, seconds: float = WITHIN) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        #: Calls that are late and have not returned; and those that wait behind them.
        self._late: set[_Work] = set()
        self._behind: deque[_Work] = deque()
        _all.add(self)

    def run(self, fn: Callable[[], None], lost: Callable[[], object] = lambda: None) -> Fate:
        """Call ``fn`` and wait for it up to the deadline. Raises what it raises, as long as it is waited for. ``lost`` is called where it is
        late and has not returned when the process ends.
        """
        work = _Work(fn, lost)
        with self._lock:
            if self._late:
                if len(self._behind) >= MOST_BEHIND:
                    return "refused"
                work.late = True
                self._behind.append(work)
                return "late"
            thread = self._idle.pop() if self._idle else _Thread(self)
        thread.give(work)
        if not work.over.wait(self.seconds):
            with self._lock:
                if not work.over.is_set():
                    work.late = True
                    self._late.add(work)
                    return "late"
        if work.error is not None:
            raise work.error
        return "done"

    def next(self, thread: _Thread, done: _Work) -> _Work | None:
        """``done`` has returned: what its thread does then. The thread of a late one works off what waits behind it."""
        with self._lock:
            done.over.set()
            self._late.discard(done)
            if done.late and self._behind:
                following = self._behind.popleft()
                self._late.add(following)
                return following
            if len(self._idle) < KEPT:
                self._idle.append(thread)
            else:
                thread.ended = True
            return None

    def last_wait(self, until: float) -> None:
        """The process ends: wait for what is late until a monotonic instant, and tell what is lost."""
        while True:
            with self._lock:
                first = next(iter(self._late), None)
            if first is None or not first.over.wait(max(0.0, until - time.monotonic())):
                break
        with self._lock:
            lost = [*self._late, *self._behind]
        for work in lost:
            work.context.copy().run(work.lost)

    def forget(self) -> None:
        """In the child of a fork: the threads are the parent's."""
        self.__init__(self.seconds)  # type: ignore[misc]


class _Thread:
    """One that waits for calls."""

    def __init__(self, owner: Deadline) -> None:
        self._owner, self._box, self._given = owner, deque[_Work](), threading.Semaphore(0)
        self.ended = False
        threading.Thread(target=self._run, name="duly-after-commit", daemon=True).start()

    def give(self, work: _Work) -> None:
        self._box.append(work)
        self._given.release()

    def _run(self) -> None:
        while not self.ended:
            self._given.acquire()
            work: _Work | None = self._box.popleft()
            while work is not None:
                work.run()
                work = self._owner.next(self, work)


_all: weakref.WeakSet[Deadline] = weakref.WeakSet()


def _after_fork() -> None:
    for deadline in list(_all):
        deadline.forget()


def _at_exit() -> None:
    for deadline in list(_all):
        deadline.last_wait(time.monotonic() + deadline.seconds)


atexit.register(_at_exit)


os.register_at_fork(after_in_child=_after_fork)

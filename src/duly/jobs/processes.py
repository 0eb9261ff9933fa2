"""Handlers in processes of their own, which can be killed: at their timeout, on a hard cancel, at the end of the grace.

Each running job has a child to itself; a child serves one job after the other and is replaced when it was killed or
died. The job travels as its stored input, so nothing needs to be picklable but the names of the module and the function.

Only the worker ends a child. Ctrl-C in a terminal and a service manager's stop reach every process of the group, but
the worker is the one that decides what becomes of running jobs, so children let those signals pass. And no child
outlives its worker, however that ends: the job will be rescued, and its first run must not go on beside the second.

What a handler forks is the handler's, and is left alone. It has a copy of everything that the child holds open, so the end of a
child is seen by the process itself and not by the end of its pipe.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, NamedTuple

from duly.jobs.chain import chained
from duly.jobs.codec import encode_output
from duly.jobs.copies import leave
from duly.jobs.run import CURRENT, TOLD, UnreadableInput
from duly.jobs.task import Task
from duly.kernel.errors import DulyError, InvalidArgument, PermanentError, Retry, Signal, Snooze, brief
from duly.kernel.exception_group import decisive, others

_spawn = multiprocessing.get_context("spawn")
#: Signals that mean the worker when they reach a child.
_NOT_FOR_CHILDREN = (signal.SIGINT, signal.SIGTERM)
#: Seconds between two looks whether a process is alive, where the system does not tell its end.
LOOK = 0.2


class JobFacts(NamedTuple):
    """What a handler's process knows of the job whose handler it calls."""

    id: int
    tenant: str
    meta: str | None


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """Stands in a child for the run that the worker has."""

    claimed: JobFacts
    task: Task[Any, Any]


class ChildDied(DulyError):
    """The process that ran a handler ended without an answer."""


class RemoteFailure(DulyError):
    """An error of the handler, told by its process; ``kind`` is the type it had there."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


class HandlerMissing(PermanentError):
    """The process finds no task where its worker has one: its code is newer or older than the worker's, or it never was there."""


class Child:
    """One child process."""

    def __init__(self) -> None:
        self._pipe, far = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(far,), daemon=True, name="duly-handler")
        # The child is born with these signals blocked: it takes a while until it can say what it makes of them.
        resource_tracker.ensure_running()  # its start, which is part of the first spawn, would unblock them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_FOR_CHILDREN)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        far.close()
        #: Ready to be read when the process has ended, where there is such a thing.
        self._end = _end_of(self._process.pid)
        #: Counts the jobs: an answer says which one it is for.
        self._turn = 0

    def run(
        self,
        module: str,
        name: str,
        text: str,
        limit: int,
        begun: Callable[[], None] = lambda: None,
        job: JobFacts | None = None,
    ) -> tuple[str | None, str | None]:
        """(output, problem) of a success; raises what the handler raised, or ChildDied. Calls ``begun`` when it begins."""
        self._turn += 1
        try:
            self._pipe.send((self._turn, module, name, text, limit, job))
            kind, *rest = self._answer()
            if kind == "begun":
                begun()
                kind, *rest = self._answer()
        except (EOFError, OSError, ValueError):
            if not self._ended(1):
                self.kill()  # its handler has closed the pipe: it can serve nobody any more
            raise ChildDied(
                f"the process of the handler ended without an answer (exit code {self._process.exitcode})"
            ) from None
        if kind == "done":
            return rest[0], rest[1]
        if kind == "signal":
            raise _told(*rest)
        if kind == "unreadable":
            raise UnreadableInput(*rest)
        if kind == "missing":
            raise HandlerMissing(rest[0])
        raise _told(RemoteFailure(rest[0], rest[1]), rest[0], rest[2])

    def _answer(self) -> Any:
        """The next answer to the present job. Raises EOFError, OSError or ValueError when there will be none."""
        while True:
            if self._pipe not in self._wait([self._pipe], LOOK) and not self.alive and not self._pipe.poll():
                raise EOFError
            if self._pipe.poll():
                turn, *answer = self._pipe.recv()
                if turn == self._turn:
                    return answer

    def _wait(self, others: list[Any], seconds: float) -> list[Any]:
        """Wait for one of ``others``, or for the end of the process: for as long as it takes, or for so many seconds where its end is not told."""
        if self._end is None:
            return connection.wait(others, seconds)
        return connection.wait([self._end, *others])

    def _ended(self, within: float) -> bool:
        """Has the process ended, or does it within so many seconds? (``join`` with a limit waits for what it has forked, too.)"""
        until = time.monotonic() + within
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()

    def close(self) -> None:
        self.kill()
        self._ended(2)
        self._pipe.close()
        if self._end is not None:
            self._end.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()


class Children:
    """Idle children, for reuse, and those at work, to be ended with the worker."""

    def __init__(self) -> None:
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    def get(self) -> Child:
        """One to run a job in. Raises ChildDied where they were closed before: nobody would end it."""
        child = self._reused() or Child()
        with self._lock:
            self._busy.add(child)
            closed = self._closed
        if closed:
            self.put(child)
            raise ChildDied("the worker has ended, and its job was given back")
        return child

    def _reused(self) -> Child | None:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    return child
        return None

    def put(self, child: Child) -> None:
        with self._lock:
            self._busy.discard(child)
            if child.alive and not self._closed:
                self._idle.append(child)
                return
        child.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            ended, self._idle = [*self._idle, *self._busy], []
        for child in ended:
            child.close()


def _end_of(pid: int | None) -> Any:
    """A file that can be read when a child has ended; None where the system has no such file."""
    try:
        return io.FileIO(os.pidfd_open(pid or 0))
    except (AttributeError, OSError):
        return None


def address(task: Task[Any, Any]) -> tuple[str, str]:
    """Where a child finds the handler."""
    return task.fn.__module__, task.fn.__qualname__


def _told(error: BaseException, kind: str, trace: list[str]) -> BaseException:
    """An error of the handler, with what its process says of it."""
    if trace:
        error.__dict__[TOLD] = kind, trace
    return error


def is_here(task: Task[Any, Any]) -> bool:
    """Is a handler where a process would look for it? Then a process that does not find it has other code."""
    module, name = address(task)
    try:
        return isinstance(_found(module, name), Task)
    except Exception:
        return False


def _found(module: str, name: str) -> Any:
    found: Any = (
        sys.modules["__mp_main__"]
        if module == "__main__" and "__mp_main__" in sys.modules
        else importlib.import_module(module)
    )
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _serve(pipe: Any) -> None:
    """The child's loop."""
    threading.Thread(target=_end_with_the_worker, name="duly-parent", daemon=True).start()
    for number in _NOT_FOR_CHILDREN:
        # not SIG_IGN, which programs that the handler starts would inherit
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_FOR_CHILDREN)
    here = os.getpid()
    # what a handler forks has no part in the talk with the worker, and does not keep its end open
    os.register_at_fork(after_in_child=pipe.close)
    while True:
        try:
            turn, module, name, text, limit, job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            try:
                found = _found(module, name)
                problem = "" if isinstance(found, Task) else "what is there is no task"
            except Exception as error:
                problem = brief(error)
            if problem:
                pipe.send((turn, "missing", f"{module}.{name} is not a task in the handler's process: {problem}"))
                continue
            try:
                arguments = found.codec.decode(text)
            except InvalidArgument as error:
                pipe.send((turn, "unreadable", error.field, error.problem, error.remedy))
                continue
            pipe.send((turn, "begun"))
            CURRENT.set(job and RemoteRun(job, found))
            result = found.fn(*arguments.args, **arguments.kwargs)
            if os.getpid() != here:
                leave()
            answer: tuple[Any, ...] = ("done", *encode_output(result, limit))
        except BaseException as error:
            if os.getpid() != here:
                leave(error)
            # not even sys.exit() ends the child: the next job may be in its hands already
            answer = _raised(error)
        pipe.send((turn, *answer))


def _raised(error: BaseException) -> tuple[Any, ...]:
    """What a handler raised, as an answer: rebuilt, so that only plain values travel."""
    group, error = error, decisive(error)
    if isinstance(error, Snooze):
        return "signal", error, type(error).__name__, []
    try:
        message = str(error) + others(group, error)
    except BaseException:
        message = "(the error's text cannot be made)"
    if isinstance(error, Retry):
        return "signal", Retry(message, after=error.after), type(error).__name__, chained(group)
    if isinstance(error, Signal):
        kind = type(error) if type(error) in Signal.__subclasses__() else PermanentError
        return "signal", kind(message), type(error).__name__, chained(group)
    return "error", type(error).__name__, message[:4000], chained(group)


def _end_with_the_worker() -> None:
    worker = multiprocessing.parent_process()
    assert worker is not None
    # it is looked at as well: what a handler has forked from the worker keeps open what tells its end
    while worker.is_alive() and os.getppid() == worker.pid:
        worker.join(1)
    os._exit(1)

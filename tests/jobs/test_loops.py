"""Threads that must not die, and threads that hold up nobody."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from duly.jobs import loops
from duly.jobs.loops import LOOP_BACKOFF, Loop, Threads
from duly.kernel.backoff import Backoff
from duly.kernel.events import Emitter, Event


class Stage:
    """A step that fails for a while, and signals for the test to wait on."""

    def __init__(self, failures: int) -> None:
        self.left, self.calls = failures, 0
        self.failed, self.worked, self.go = threading.Event(), threading.Event(), threading.Event()

    def step(self) -> None:
        self.calls += 1
        if self.left:
            self.left -= 1
            self.failed.set()
            raise ConnectionError("gone")
        self.worked.set()
        self.go.wait(10)


def test_a_loop_that_fails_goes_on_and_is_not_ready_meanwhile() -> None:  # B034
    stage, emitter, heard = Stage(3), Emitter(), list[Event]()
    emitter.listen(heard.append)
    loop = Loop("claim", stage.step, emitter)
    seen: list[tuple[bool, str]] = []
    emitter.listen(lambda e: seen.append((loop.ready, loop.problem)))
    loop.start()
    assert stage.worked.wait(10)
    stage.go.set()
    loop.stop()
    assert loop.join(10)
    assert [(e.name, e.facts["failures"]) for e in heard] == [
        ("loop_failed", 1), ("loop_failed", 2), ("loop_failed", 3), ("loop_recovered", 3),
    ]  # fmt: skip
    assert seen[:3] == [(False, "ConnectionError: gone")] * 3
    assert (loop.ready, loop.problem) == (True, "")


def test_a_loop_stops_at_once_while_it_pauses_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:  # B034
    monkeypatch.setattr(loops, "LOOP_BACKOFF", Backoff(base=60))
    stage = Stage(10**9)
    loop = Loop("claim", stage.step, Emitter())
    loop.start()
    assert stage.failed.wait(10)
    loop.stop()
    assert loop.join(1)


def test_after_any_number_of_failures_a_loop_tries_again_within_five_seconds() -> None:  # B034
    assert max(LOOP_BACKOFF.delay(n) for n in range(1, 1000)) == 5


def test_plain_handlers_run_at_the_same_time_up_to_the_size_and_all_in_the_end() -> None:
    threads, size, calls = Threads(3), 3, 20
    lock, at_once, most, done = threading.Lock(), 0, 0, threading.Semaphore(0)
    together = threading.Barrier(size)

    def call(first: bool) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        if first:
            together.wait(10)  # the first three really run at once
        with lock:
            at_once -= 1
        done.release()

    for n in range(calls):
        threads.submit(call, n < size)
    for _ in range(calls):
        assert done.acquire(timeout=10)
    threads.close()
    assert most == size


def test_a_thread_is_used_again_before_another_is_started() -> None:
    threads, names = Threads(8), set[str]()

    def call(done: threading.Event) -> None:
        names.add(threading.current_thread().name)
        done.set()

    for _ in range(5):
        done = threading.Event()
        threads.submit(call, done)
        assert done.wait(10)
        while threads._idle == 0:  # it says that it is idle just after the call
            threading.Event().wait(0.001)
    threads.close()
    assert len(names) == 1


def test_a_handler_that_never_ends_does_not_hold_up_the_exit_of_the_program() -> None:
    program = (
        "import threading; from duly.jobs.loops import Threads; Threads(1).submit(threading.Event().wait); print('bye')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (0, "bye\n")


def test_the_log_is_told_once_of_a_failure_that_goes_on_and_again_of_another_one() -> None:  # C013
    emitter, heard, done = Emitter(), list[Event](), threading.Event()
    emitter.listen(heard.append)
    errors = ["disk full", "disk full", "disk full", "gone"]

    def step() -> None:
        if errors:
            raise ConnectionError(errors.pop(0))
        done.set()
        loop.stop()

    loop = Loop("house", step, emitter)
    loop.start()
    assert done.wait(10)
    assert loop.join(10)
    assert [e.level for e in heard if e.name == "loop_failed"] == ["error", "debug", "debug", "error"]

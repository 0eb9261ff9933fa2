"""What handlers do to their worker, and what it has to bear: no threads to be had, exits in tasks of their own, tasks that cancel themselves."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from duly import Duly, Job, Status
from duly.jobs.loops import Threads
from duly.jobs.worker import running


@pytest.fixture
def app(db_url: str) -> Iterator[Duly]:
    app = Duly(db_url, lease=60.0, grace=2.0, poll=0.05)
    yield app
    app.close()


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Limit:
    """The system gives no more than so many threads for handlers."""

    def __init__(self, patch: pytest.MonkeyPatch, left: int) -> None:
        self.left, start = left, threading.Thread.start
        self.refused = 0

        def limited(thread: threading.Thread) -> None:
            if thread.name.startswith("duly-handler"):
                if self.left < 1:
                    self.refused += 1
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(thread)

        patch.setattr(threading.Thread, "start", limited)


def test_a_call_waits_for_a_thread_that_is_there_where_none_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, threads, done, go = Limit(monkeypatch, 1), Threads(3), threading.Semaphore(0), threading.Event()

    def call() -> None:
        go.wait(120)
        done.release()

    assert [threads.submit(call) for _ in range(3)] == [True, False, False]
    assert not threads.grow()
    go.set()
    for _ in range(3):
        assert done.acquire(timeout=120)
    go.clear()
    limit.left = 10
    together = threading.Barrier(3)

    def meet() -> None:
        together.wait(120)
        done.release()

    for _ in range(3):
        threads.submit(meet)
    for _ in range(3):
        assert done.acquire(timeout=120)  # three at once: nothing that failed counts as a thread
    assert limit.left == 8
    threads.close()


def test_threads_for_calls_that_wait_are_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, threads, done, go = Limit(monkeypatch, 1), Threads(3), threading.Semaphore(0), threading.Event()
    threads.submit(go.wait, 120)
    threads.submit(done.release)
    limit.left = 1
    assert threads.grow()
    assert done.acquire(timeout=120)
    assert limit.left == 0
    go.set()
    threads.close()


def test_a_call_for_which_there_is_no_thread_at_all_is_refused_and_not_run_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit, threads, ran, done = Limit(monkeypatch, 0), Threads(1), list[int](), threading.Event()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.submit(ran.append, 1)
    limit.left = 1
    assert threads.submit(ran.append, 2)
    threads.submit(done.set)
    assert done.wait(120)
    assert ran == [2]
    threads.close()


def test_jobs_run_on_the_threads_there_are_where_no_more_can_be_started(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limit(monkeypatch, 2)

    @app.task(max_attempts=1)
    def plain(n: int) -> int:
        return n

    plain.enqueue_many([{"n": n} for n in range(20)])
    assert app.worker({"default": 8}).run(until_idle=True).succeeded == 20
    assert limit.left == 0


def test_a_job_for_which_there_is_no_thread_is_given_back_without_an_attempt_and_its_slot_is_free(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "THREADS_AGAIN", 0.05)
    limit = Limit(monkeypatch, 0)

    @app.task(max_attempts=1, timeout=5)
    def plain() -> str:
        return "done"

    @app.task
    async def on_the_loop() -> None: ...

    job = plain.enqueue().job
    worker = app.worker({"default": 1})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: worker.tally.released)
        assert worker.problems == ["threads: RuntimeError: can't start new thread"]
        other = on_the_loop.enqueue().job
        until(lambda: app.jobs.get(other.id).status is Status.SUCCEEDED)
        assert not app.jobs.get(job.id).is_final
        limit.left = 5
        until(lambda: app.jobs.get(job.id).status is Status.SUCCEEDED)
        until(lambda: worker.ready)
    finally:
        worker.stop()
        thread.join(120)
    done: Job = app.jobs.get(job.id)
    assert (done.output, done.attempts) == ("done", 1)


def test_a_job_that_is_cancelled_while_it_waits_for_a_thread_never_begins(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    Limit(monkeypatch, 1)
    go, ran = threading.Event(), list[str]()

    @app.task(priority=10)
    def first() -> None:
        go.wait(120)

    @app.task(timeout=0.1, max_attempts=1)
    def second(name: str) -> None:
        ran.append(name)

    first.enqueue()
    unwanted, wanted = second.enqueue("unwanted").job, second.enqueue("wanted").job
    worker = app.worker({"default": 3})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        until(lambda: len(worker.held()) == 3)
        app.jobs.cancel(unwanted.id, "no more")
        until(lambda: any(run.reason == "cancel" for run in worker.held()))
        time.sleep(0.3)  # longer than the timeout: the wait for a thread does not count
        go.set()
        until(lambda: app.jobs.get(wanted.id).is_final and app.jobs.get(unwanted.id).is_final)
    finally:
        go.set()
        worker.stop()
        thread.join(120)
    assert ran == ["wanted"]
    assert app.jobs.get(unwanted.id).status is Status.CANCELLED
    assert app.jobs.get(wanted.id).status is Status.SUCCEEDED


def test_a_handler_that_cancels_its_own_task_cancels_no_other_job(app: Duly) -> None:
    @app.task(max_attempts=1)
    async def cancels_itself() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    @app.task(max_attempts=1)
    async def takes_it_back() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        task.uncancel()
        return 2

    @app.task(max_attempts=1)
    async def good(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    jobs = [job for n in range(5) for job in (cancels_itself.enqueue(), good.enqueue(n), takes_it_back.enqueue(), good.enqueue(n))]  # fmt: skip
    assert app.worker({"default": 2}).run(until_idle=True).succeeded == 20
    assert [app.jobs.get(made.job.id).output for made in jobs] == [x for n in range(5) for x in (1, n, 2, n)]


def test_an_exit_in_a_task_of_a_handler_is_a_failure_of_its_job_and_the_worker_goes_on(app: Duly) -> None:
    async def tool(error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    errors = {"SystemExit": SystemExit(2), "KeyboardInterrupt": KeyboardInterrupt()}

    @app.task(max_attempts=1)
    async def waits_for(kind: str) -> None:
        await asyncio.wait_for(tool(errors[kind]), 5)

    @app.task(max_attempts=1)
    async def in_parts(kind: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(5))
            group.create_task(tool(errors[kind]))

    @app.task(max_attempts=1)
    async def forgets_it(kind: str) -> str:
        task = asyncio.create_task(tool(errors[kind]))
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.01)
        assert task.done()
        assert repr(task.exception()) == repr(errors[kind])
        return "done"

    @app.task(max_attempts=1)
    async def good() -> str:
        await asyncio.sleep(0.2)
        return "good"

    neighbour = good.enqueue().job
    bad = {kind: [task.enqueue(kind).job for task in (waits_for, in_parts)] for kind in errors}
    rest = [forgets_it.enqueue(kind).job for kind in errors]
    tally = app.worker({"default": 10}).run(until_idle=True)
    assert (tally.succeeded, tally.failed) == (3, 4)
    assert app.jobs.get(neighbour.id).output == "good"
    for kind, jobs in bad.items():
        assert [app.jobs.get(job.id).error["type"] for job in jobs] == [kind, kind]
    assert [app.jobs.get(job.id).output for job in rest] == ["done", "done"]


@pytest.mark.parametrize("heard", [True, False])
def test_ctrl_c_stops_the_worker_in_good_order_where_a_handler_has_taken_the_signal_from_it(
    app: Duly, heard: bool
) -> None:
    @app.task(max_attempts=1)
    async def takes_it() -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not heard:
            signal.set_wakeup_fd(-1)  # the loop's own way to hear of signals
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(0.2)
        return "done"

    job, later = takes_it.enqueue().job, takes_it.using(run_in=60).enqueue().job
    worker = app.worker()
    assert worker.run().succeeded == 1
    assert worker.state == "stopped"
    assert app.jobs.get(job.id).output == "done"
    assert app.jobs.get(later.id).attempts == 0

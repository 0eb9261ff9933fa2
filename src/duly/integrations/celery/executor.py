"""The executor: takes jobs over inside a process of a Celery worker, and runs each as a Duly worker would.

It *is* a worker from the moment a job has begun: the same codec, handlers on the loop, on threads and in processes, timeouts,
cancels, settlements and heartbeat. It claims nothing: jobs come one by one with Celery's messages. Celery's thread waits until the
job's end is written down, so a Celery process runs as many jobs at once as its pool says, and no more.

Its loops are threads of the process that runs the job. With that process they die, the lease lapses, and the job is rescued.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import multiprocessing
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import AuthenticationString  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from duly.jobs.claim import Lane
from duly.jobs.engine import Engine
from duly.jobs.handover import HandoverStore, Refusal, Taken, given_back
from duly.jobs.house import Housekeeper
from duly.jobs.loops import LOOP_BACKOFF, Loop
from duly.jobs.run import Run
from duly.jobs.settle import Claimed
from duly.jobs.task import Task
from duly.jobs.worker import Worker
from duly.kernel.errors import DatabaseUnavailable, DulyError
from duly.kernel.events import Level, Listener
from duly.kernel.outcome import Outcome, OutcomeKind
from duly.storage.wake import Bell

#: A job of a task that this fleet does not know is due again after so many seconds.
UNKNOWN_TASK_WAIT = 30.0
#: More than any pool runs at once: it is Celery that says how many.
_ANY = 1_000_000


class ExecutorEnded(DulyError):
    """The threads that run jobs in this process have ended; its jobs will be rescued."""


class _Handed(Run):
    """A run that came with a message."""

    #: Seconds that Celery lets it run, for a task without a timeout of its own.
    limit: float | None = None

    def __init__(self, claimed: Claimed, task: Task[Any, Any] | None, lane: Lane, claimed_mono: float) -> None:
        super().__init__(claimed, task, lane, claimed_mono)
        self.over = threading.Event()


class Executor(Worker):
    """Runs jobs that were handed over, in this process. ``start`` it once, ``execute`` from any thread, ``stop`` and ``join`` it.

    ``opened`` checks the database before a job is taken over (and does nothing once it has been checked).
    """

    def __init__(self, engine: Engine, name: str, opened: Callable[[], None] = lambda: None) -> None:
        super().__init__(engine, {"handed over": _ANY}, name)
        self.pid, self._opened = os.getpid(), opened
        self._handover = HandoverStore(self.db)
        [self._lane] = self.lanes.values()
        self.house = _House(self)
        self._keeper = Loop("house", self.house.step, self.emitter, self.db.reserve)
        self.loops = (self._settler, self._heart, self._keeper)
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="duly-executor", daemon=True)

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the loop and the storage threads; returns when they run."""
        _allow_children()
        self._thread.start()
        self._up.wait()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        try:
            asyncio.run(self._live())
        finally:
            self.state = "stopped"
            self._up.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._stopped, self._stop_now = asyncio.Event(), asyncio.Event()
        if self._asked:  # somebody asked before this began: it does not begin
            return
        self.state = "running"
        for supervised in self.loops:
            supervised.start()
        self._up.set()
        await self._stopped.wait()
        await self._drain()
        for supervised in self.loops:
            supervised.stop()
        self._beat.set()
        self.house.wake()
        self._settler_bell.set()
        for supervised in self.loops:
            await self._loop.run_in_executor(None, supervised.join, 3.0)
        await self._loop.run_in_executor(None, self.engine.flush_failures)
        self._threads.close()
        self._bell.close()
        self.house.close()
        if self._children is not None:
            self._children.close()

    # ------------------------------------------------------------------ one job

    def execute(self, ident: int, token: int, limit: float | None = None) -> str:
        """Take a job over, run it, and return, when its end is written, what became of it in a word.

        ``token``: the lease under which it was handed over; if that is not valid any more, nothing is done. ``limit``: seconds
        that a job may run whose task has no timeout. Raises DatabaseUnavailable when the database does not answer for
        as long as a lease, and ExecutorEnded.
        """
        asked_at, taken = self._take_over(ident, token)
        if isinstance(taken, str):
            return self._refuse(ident, token, taken)
        job = taken.job
        run = _Handed(job, self.engine.tasks.get(job.task), self._lane, asked_at)
        run.limit = limit
        if taken.cancel_requested:
            run.reason = "cancel"
        with self._lock:
            self._held[ident] = run
            self._lane.outstanding += 1
            self._lane.transit += 1
        mine: list[Run] = [run]
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._accept, mine)
        except RuntimeError:
            raise ExecutorEnded(f"job {ident} was taken over while this process ended.") from None
        self._wait_for(run)
        return run.settlement.event if run.settlement is not None else "lost"

    def _take_over(self, ident: int, token: int) -> tuple[float, Taken | Refusal]:
        """The job, or why it is not ours to run, and the monotonic instant of the question.

        A database that is away is waited for: nobody else could go on either.
        """
        patience, failures = time.monotonic() + self.terms.seconds, 0
        while True:
            try:
                self._opened()
                asked_at = time.monotonic()
                return asked_at, self.db.write(
                    lambda c: (
                        self._handover.take_over(c, ident, token, secrets.randbits(62), self.terms.seconds, self.name)
                        or self._handover.why_not(c, ident, token)
                    )
                )
            except DatabaseUnavailable:
                failures += 1
                if time.monotonic() > patience or not self.alive:
                    raise
                time.sleep(LOOP_BACKOFF.delay(failures))

    def _refuse(self, ident: int, token: int, why: Refusal) -> str:
        """Somebody else has the job, or nobody may have it now."""
        level: Level = "error" if why == "unknown" else "info"
        self.emitter.emit("handover_lost", level, worker=self.name, job=ident, reason=why)
        if why == "held":
            self.db.write(lambda c: self.engine.store.settle(c, [given_back(ident, token)], self.name))
        return f"not run: {why}"

    def _wait_for(self, run: _Handed) -> None:
        while not run.over.is_set():
            try:
                run.over.wait(1.0)
            except SoftTimeLimitExceeded:
                self.interrupt_soon([run], "timeout")
            if not self.alive and not run.over.is_set():
                raise ExecutorEnded(f"job {run.claimed.id} was running while the executor ended.")

    # ------------------------------------------------------------------ as a worker, with a difference

    def _start(self, run: Run) -> None:
        if run.task is None:
            c = run.claimed
            self.emitter.emit("handover_refused", "error", worker=self.name, job=c.id, task=c.task)
            self._end(run, Outcome(OutcomeKind.SNOOZED, after=UNKNOWN_TASK_WAIT))
        else:
            super()._start(run)

    def _begin(self, run: Run, task: Task[Any, Any]) -> None:
        super()._begin(run, task)
        limit = run.limit if isinstance(run, _Handed) else None
        if limit is not None and task.timeout is None:
            run.deadline = run.started_mono + limit
            self._watch_deadlines()

    def _forget(self, runs: list[Run]) -> None:
        super()._forget(runs)
        for run in runs:
            assert isinstance(run, _Handed)
            run.over.set()


class _House(Housekeeper):
    """Of all duties, an executor has one: to hear which of its jobs are to stop. Dispatchers and workers see to the rest."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.duties = [duty for duty in self.duties if duty.name == "cancels"]
        self._bell = Bell()  # changes of gate and queues do not concern it

    def say_goodbye(self) -> None:
        """It is on no list."""


def _allow_children() -> None:
    """Let handlers have processes of their own (``run_in="process"``) in a process of Celery's pool.

    The pool marks its processes as daemons, which may have no children, because those would be left behind. The children of
    handlers end with their parent, however that ends (``jobs/processes.py``). And the pool's library gives its processes a key of
    its own kind, which the standard library would not hand to a child.
    """
    # Celery has the current directory on the path only while it loads the application; children load it later.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["daemon"] = False
    config["authkey"] = AuthenticationString(config["authkey"])


class Home:
    """The executor of the present process, made when it is first needed: processes of a pool are forked, and threads are not.

    An executor is called by the Celery worker's name and the process's number. Where nobody listens to the application's
    events, ``listener`` does.
    """

    def __init__(self, app: Any, listener: Callable[[], Listener]) -> None:
        self._app, self._listener = app, listener
        self._executor: Executor | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock, self._executor = threading.Lock(), None

    def executor(self, hostname: str) -> Executor:
        """The executor; started with the first job of this process."""
        with self._lock:
            if self._executor is None or not self._executor.alive:
                if not self._app.events.active:
                    self._app.listen(self._listener())
                self._executor = Executor(self._app.engine, f"{hostname}:{os.getpid()}", self._app.open)
                self._executor.start()
            return self._executor

    def close(self) -> None:
        """End it in good order, when its process ends."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None and executor.pid == os.getpid():
            executor.stop()
            executor.join(self._app.settings.grace + 10)
            with contextlib.suppress(Exception):
                self._app.db.close()

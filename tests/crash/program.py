"""What the processes of these tests run: a worker, perhaps with a kill point; and the tasks that it runs.

Everything a process does is written to the scene's journal, one line of JSON per fact, appended by the kernel in one
piece: what stands there was done, whatever became of the process afterwards. An effect on the outside world is such a
line too (``effect``): nobody can take it back.

In the flow: ``scene.py`` starts these processes and reads the journal. Refuses to know: pytest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from crash import apart, apart_late
from crash.killing import Killer
from duly import Backoff, Context, Duly, Job
from duly.jobs.worker import Worker
from duly.kernel.events import Event

#: For tests that count attempts and not seconds.
SOON = Backoff(base=0.01, factor=1)
#: A job that is lost again and again because of others must not run out of attempts.
MANY = 60


@dataclass(frozen=True)
class Plan:
    """What one process is to do."""

    name: str
    url: str
    folder: Path
    queues: Mapping[str, int] = field(default_factory=lambda: {"default": 5})
    #: Where to die, and how often to pass there before.
    kill_at: str | None = None
    kill_after: int = 0
    until_idle: bool | float = False
    settings: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """Lines of JSON in one file, appended whole by any number of processes."""

    def __init__(self, folder: Path, who: str) -> None:
        self._who = who
        self._fd = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, **facts: Any) -> None:
        line = {"what": what, "who": self._who, "pid": os.getpid(), "at": time.monotonic(), **facts}
        os.write(self._fd, (json.dumps(line, default=str) + "\n").encode())


class Here:
    """This process: its journal and its kill point."""

    journal: Journal
    die_at = Killer(None)
    app: Duly


def write(what: str, **facts: Any) -> None:
    Here.journal.write(what, **facts)


def effect(job: Job) -> None:
    """Change the world outside: it cannot be taken back, and everybody can see it."""
    write("effect", job=job.id, attempt=job.attempts, task=job.task, queue=job.queue)


# --- Tasks -------------------------------------------------------------------------------------------------------------


async def work(job: Job, seconds: float = 0) -> dict[str, Any]:
    """Begin, have an effect, take a while, end."""
    write("begin", job=job.id, attempt=job.attempts)
    Here.die_at("run.started")
    effect(job)
    Here.die_at("run.effect")
    if seconds:
        await asyncio.sleep(seconds)
    write("end", job=job.id, attempt=job.attempts)
    return {"by": job.worker}


def work_on_a_thread(job: Job, seconds: float = 0) -> dict[str, Any]:
    write("begin", job=job.id, attempt=job.attempts)
    effect(job)
    time.sleep(seconds)
    write("end", job=job.id, attempt=job.attempts)
    return {"by": job.worker}


def heed(context: Context, seconds: float) -> dict[str, Any]:
    """On a thread, look now and then whether to stop."""
    job, until = context.job, time.monotonic() + seconds
    write("begin", job=job.id, attempt=job.attempts)
    while time.monotonic() < until:
        time.sleep(0.02)
        context.checkpoint()
    effect(job)
    return {"by": job.worker}


async def fail_once(job: Job) -> dict[str, Any]:
    effect(job)
    if job.attempts == 1:
        raise ValueError("not the first time")
    return {"by": job.worker}


async def block_the_loop(job: Job, seconds: float) -> dict[str, Any]:
    """Hold up the event loop as only a beginner would: for seconds, with hardly a breath."""
    effect(job)
    for _ in range(round(seconds / 0.3)):
        time.sleep(0.3)
        await asyncio.sleep(0)
    return {"by": job.worker}


async def compute(job: Job, seconds: float) -> dict[str, Any]:
    """Hold the interpreter and the event loop without a break."""
    effect(job)
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        n += sum(range(100))
    return {"by": job.worker}


def helped(folder: str) -> None:
    """Fork from the worker what stays for a while."""
    apart.helper(Path(folder))


async def spin(folder: str, job: Job) -> None:
    """Be ready to run at any turn of the loop, until told to have the effect."""
    write("begin", job=job.id, attempt=job.attempts)
    while not (Path(folder) / "go").exists():
        await asyncio.sleep(0)
    effect(job)


async def fork_on_the_loop(how: str) -> int:
    """Fork, with a copy that ends as told. The code with which it has ended."""
    if how.endswith("later"):
        await asyncio.sleep(0.05)
    pid = os.fork()
    if pid == 0:
        write("copy", copy=os.getpid())
        if how.startswith("wait"):
            await asyncio.sleep(0)
            write("beyond")
        return in_copy(how)
    return await asyncio.to_thread(code_of, pid)


async def fork_in_a_task(how: str) -> int:
    return await asyncio.create_task(fork_on_the_loop(how))


def fork_on_a_thread(how: str) -> int:
    pid = os.fork()
    if pid == 0:
        write("copy", copy=os.getpid())
        return in_copy(how)
    return code_of(pid)


def fork_and_book(session: Session, job: Job, how: str) -> int:
    session.execute(BOOK, {"job": job.id, "attempt": job.attempts, "worker": job.worker})
    return fork_on_a_thread(how)


async def fork_and_abook(session: AsyncSession, job: Job, how: str) -> int:
    await session.execute(BOOK, {"job": job.id, "attempt": job.attempts, "worker": job.worker})
    return await fork_on_the_loop(how)


def fork_and_signal(number: int) -> int:
    """Fork, and send the copy a signal while it is in the handler. The code with which it has ended."""
    pid = os.fork()
    if pid == 0:
        write("copy", copy=os.getpid())
        time.sleep(20)
        return 0
    time.sleep(0.3)
    os.kill(pid, number)
    return code_of(pid)


def in_copy(how: str) -> int:
    if how.startswith("exit"):
        sys.exit(7)
    if how.startswith("raise"):
        raise ValueError("in the copy")
    return -1


def code_of(pid: int) -> int:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise TimeoutError("the copy has not ended")


def die_on_a_thread(job: Job) -> None:
    effect(job)
    os._exit(7)


async def die_on_the_loop(job: Job) -> None:
    effect(job)
    os._exit(7)


def book(session: Session, job: Job, fail: bool = False, seconds: float = 0) -> dict[str, Any]:
    """An effect in our own database: it is there when, and only when, the job has succeeded. Takes its time once."""
    Here.die_at("run.started")
    session.execute(BOOK, {"job": job.id, "attempt": job.attempts, "worker": job.worker})
    Here.die_at("run.effect")
    if job.attempts == 1 and seconds:
        session.execute(SLEEP, {"seconds": seconds})
    if fail:
        raise ValueError("booked, and then failed")
    return {"by": job.worker}


async def abook(session: AsyncSession, job: Job, fail: bool = False, seconds: float = 0) -> dict[str, Any]:
    Here.die_at("run.started")
    await session.execute(BOOK, {"job": job.id, "attempt": job.attempts, "worker": job.worker})
    Here.die_at("run.effect")
    if job.attempts == 1 and seconds:
        await session.execute(SLEEP, {"seconds": seconds})
    if fail:
        raise ValueError("booked, and then failed")
    return {"by": job.worker}


#: No primary key: a second row must be seen, not refused.
BOOKS = "CREATE TABLE books (job bigint, attempt int, worker text)"
BOOK = text("INSERT INTO books (job, attempt, worker) VALUES (:job, :attempt, :worker)")
SLEEP = text("SELECT pg_sleep(:seconds)")
#: With one: nobody may run the same attempt of the same job twice.
LEDGER = "CREATE TABLE ledger (job bigint, attempt int, worker text, PRIMARY KEY (job, attempt))"


def enter(job: Job, seconds: float = 0) -> dict[str, Any]:
    """An effect in a database, in a transaction of its own: it stays, whatever becomes of the job."""

    def insert(connection: Connection) -> None:
        sql = text("INSERT INTO ledger (job, attempt, worker) VALUES (:job, :attempt, :worker)")
        connection.execute(sql, {"job": job.id, "attempt": job.attempts, "worker": job.worker})

    Here.app.db.write(insert)
    time.sleep(seconds)
    return {"by": job.worker}


#: Tasks whose effects do not stand in the journal.
ELSEWHERE = {"BOOK", "ABOOK", "ENTER", "APART", "APART_BRIEFLY", "APART_LATE", "HELPED"}


FORKING: dict[str, Callable[..., Any]] = {
    "FORK_LOOP": fork_on_the_loop,
    "FORK_TASK": fork_in_a_task,
    "FORK_THREAD": fork_on_a_thread,
    "FORK_BOOK": fork_and_book,
    "FORK_ABOOK": fork_and_abook,
    "FORK_SIGNAL": fork_and_signal,
}


def define(app: Duly) -> Duly:
    """The tasks of these tests, for the processes that run them and for the test that enqueues them."""
    app.task("WORK", max_attempts=MANY, backoff=SOON)(work)
    app.task("THREAD", max_attempts=MANY, backoff=SOON)(work_on_a_thread)
    app.task("HEED", backoff=SOON)(heed)
    app.task("FAIL_ONCE", max_attempts=MANY, backoff=SOON)(fail_once)
    app.task("BLOCK")(block_the_loop)
    app.task("COMPUTE")(compute)
    app.task("DIE_THREAD", max_attempts=5)(die_on_a_thread)
    app.task("DIE_LOOP", max_attempts=5)(die_on_the_loop)
    app.task("BOOK", max_attempts=MANY, backoff=SOON)(book)
    app.task("ABOOK", max_attempts=MANY, backoff=SOON)(abook)
    app.task("ENTER", max_attempts=MANY, backoff=SOON)(enter)
    app.task("APART", run_in="process", backoff=SOON)(apart.apart)
    app.task("APART_BRIEFLY", run_in="process", timeout=1, max_attempts=1)(apart.apart)
    app.task("HELPED")(helped)
    app.task("SPIN")(spin)
    for name, fork in FORKING.items():
        app.task(name, max_attempts=1)(fork)
    app.task("APART_LATE", run_in="process", max_attempts=1, timeout=0.5)(apart_late.apart_late)
    return app


# --- The process -------------------------------------------------------------------------------------------------------


def enter_process(plan: Plan) -> None:
    """Make this process what the plan says. It has just been forked from one that had done nothing but import."""
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    log = os.open(plan.folder / f"{plan.name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The test's main module is none of ours, and children for handlers must not try to import it.
    sys.modules["__main__"] = types.ModuleType("__main__")
    Here.journal = Journal(plan.folder, plan.name)
    Here.die_at = Killer(plan.kill_at, plan.kill_after)
    Here.app = define(Duly(plan.url, **{"lease": 1, "poll": 0.05, "pool_size": 4, **plan.settings}))
    Here.app.listen(_hear)


def run_worker(plan: Plan) -> None:
    """Be a worker until somebody ends it."""
    enter_process(plan)
    worker = Here.app.worker(plan.queues, name=plan.name)
    Here.die_at.lurk(Here.app, worker)
    threading.Thread(target=_watch, args=(worker,), daemon=True).start()
    try:
        tally = worker.run(until_idle=plan.until_idle)
    except BaseException as error:
        write("raised", error=repr(error))
        raise
    write("finished", succeeded=tally.succeeded, lost=tally.lost, released=tally.released)
    Here.app.close()


def run_enqueuers(plan: Plan, threads: int, each: int) -> None:
    """Be a worker, and at the same time threads that enqueue: what a web application with a worker inside does."""
    enter_process(plan)
    Here.app.open()
    worker = Here.app.worker(plan.queues, name=plan.name)

    def enqueue() -> None:
        for _ in range(each):
            try:
                Here.app.enqueue("WORK")
            except Exception as error:
                write("refused", error=repr(error))

    many = [threading.Thread(target=enqueue) for _ in range(threads)]
    for thread in many:
        thread.start()

    def stop_when_told() -> None:
        for thread in many:
            thread.join()
        write("enqueued")
        while not (plan.folder / "stop").exists():
            time.sleep(0.02)
        worker.stop()

    threading.Thread(target=stop_when_told, daemon=True).start()
    worker.run()
    Here.app.close()


def run_enqueue(plan: Plan, many: int = 0, **options: Any) -> None:
    """Enqueue one job, or ``many`` in one call, and say what came of it."""
    enter_process(plan)
    Here.die_at.lurk_in_enqueue(Here.app)
    if many:
        Here.app.enqueue_many("WORK", [{}] * many, **options)
        return
    made = Here.app.enqueue("WORK", **options)
    write("made", job=made.job.id, created=made.created)


def run_enqueue_in_session(plan: Plan) -> None:
    """Write something of our own and a job, in one transaction."""
    enter_process(plan)
    Here.app.open()
    Here.die_at.lurk_in_enqueue(Here.app)
    with Session(Here.app.db.session_engine) as session, session.begin():
        session.execute(BOOK, {"job": 1, "attempt": 0, "worker": plan.name})
        Here.app.enqueue("WORK", session=session)
        Here.die_at("run.effect")
    Here.die_at("enqueue.done")


def run_fork(plan: Plan) -> None:
    """Use the application, fork, and use it on both sides."""
    enter_process(plan)
    Here.app.enqueue("WORK")
    Here.app.jobs.count()
    child = os.fork()
    if child == 0:
        try:
            made = [Here.app.enqueue("WORK").job.id for _ in range(5)]
            write("forked", jobs=made, seen=Here.app.jobs.count() >= 6)
        except BaseException as error:
            write("raised", error=repr(error))
        finally:
            os._exit(0)
    made = [Here.app.enqueue("WORK").job.id for _ in range(5)]
    _, status = os.waitpid(child, 0)
    write("parent", jobs=made, seen=Here.app.jobs.count() == 11, child=os.waitstatus_to_exitcode(status))
    Here.app.close()


def _hear(event: Event) -> None:
    if event.level != "debug" or event.name == "loop_failed":
        write("event", event=event.name, level=event.level, **{f"_{k}": v for k, v in event.facts.items()})


def _watch(worker: Worker) -> None:
    """Write down each change of the worker's readiness."""
    before = None
    while True:
        state = worker.ready, worker.state
        if state != before:
            before = state
            write("ready", ready=state[0], state=state[1], problems=worker.problems)
        time.sleep(0.01)


def _end_with_the_test() -> None:
    """Nothing is left when the test's process is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

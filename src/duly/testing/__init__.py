"""For tests of programs that use Duly: a clock you move, a drain that runs what is ready, a look at what was enqueued.

::

    clock = ManualClock(datetime(2026, 3, 29, 8, 0, tzinfo=UTC))
    app = Duly("sqlite:///test.db", clock=clock)
    ...
    assert_enqueued(app, send_email, input={"to": "a@b.c"}, queue="mail")
    drain(app)                          # runs what is ready now and returns
    clock.advance(timedelta(minutes=5))
    drain(app)                          # runs what became due meanwhile, occurrences of schedules included

``drain`` is a worker that is moved by hand: the same claims, codec, settlements and fences, one job after the other and
without threads that act by themselves. ``sandbox`` gives an application that is defined in a module another database and
clock for the length of a test. None of this needs pytest; ``duly.testing.fixtures`` has fixtures for those who use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_core import to_jsonable_python

from duly.app import Duly
from duly.jobs.engine import Engine
from duly.jobs.filter import JobFilter
from duly.jobs.job import Job, Status
from duly.jobs.run import Run
from duly.jobs.task import Task
from duly.jobs.worker import Tally, Worker
from duly.kernel.clock import Clock
from duly.kernel.duration import Duration
from duly.kernel.errors import DatabaseUnavailable, InvalidArgument, UsageError
from duly.kernel.outcome import Outcome
from duly.kernel.payload import read_duration
from duly.settings import Settings
from duly.storage.database import Database

__all__ = ["ManualClock", "Tally", "adrain", "assert_enqueued", "drain", "enqueued", "sandbox"]


class ManualClock:
    """A clock that stands still until it is told to move. Hand it to ``Duly(…, clock=clock)``.

    Every statement then gets its instant, on PostgreSQL too, so a test travels in time on either database. Safe to share
    among threads.
    """

    manual = True

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = _aware(start, "start")
        self._passed = 0.0

    def now(self) -> datetime:
        """The present instant, aware, in UTC."""
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        """Seconds this clock went forward since it was made. Setting it back does not count."""
        with self._lock:
            return self._passed

    def advance(self, by: Duration) -> datetime:
        """Let ``by`` pass (seconds, a timedelta, or a text such as 5m; not negative). Returns the new instant."""
        span = read_duration(by, "by")
        if span < timedelta(0):
            raise InvalidArgument("by", f"is {span}; time does not run backwards.", "Use set() to put the clock back.")
        with self._lock:
            self._now += span
            self._passed += span.total_seconds()
            return self._now

    def set(self, instant: datetime) -> datetime:
        """Put the clock to an instant, past or future, as an administrator would. Returns it in UTC."""
        instant = _aware(instant, "instant")
        with self._lock:
            self._passed += max(0.0, (instant - self._now).total_seconds())
            self._now = instant
            return self._now

    def __repr__(self) -> str:
        return f"ManualClock({self.now().isoformat()})"


def _aware(instant: datetime, field: str) -> datetime:
    if instant.tzinfo is None:
        raise InvalidArgument(field, "is a naive datetime.", "Give it a time zone.")
    return instant.astimezone(UTC)


# --- Another database, for a while -------------------------------------------------------------------------------------


@contextlib.contextmanager
def sandbox(
    app: Duly, database_url: str | None = None, *, clock: Clock | None = None, **settings: Any
) -> Iterator[Duly]:
    """Let ``app`` work on another database inside the block. Its tasks and listeners stay, and so does every name of it.

    ``database_url``: an SQLite file, or a PostgreSQL database that was migrated; without one, a new SQLite file that goes
    with the block. ``clock``: a ManualClock; without one, the machine's. ``settings``: as for ``Duly``; those that are not
    named keep the app's values. Schedules that the app declares are written there, and count from that moment. One sandbox of an
    app at a time: it is the app itself that is moved. Tasks that a function (a test) defines inside go with the block.
    """
    with contextlib.ExitStack() as stack:
        if database_url is None:
            database_url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory(prefix='duly-'))}/duly.db"
        before = app.settings, app.db, app.engine, app._checked
        there = Settings.load(**{**asdict(app.settings), **settings, "database_url": database_url})
        db = Database(there, clock)
        stack.callback(db.close)
        engine = Engine(db, app.events)
        engine.tasks, engine.store.abilities = app.engine.tasks, app.engine.store.abilities
        app.settings, app.db, app.engine, app._checked = there, db, engine, False
        known = set(engine.tasks)
        try:
            app.schedules.sync()
            yield app
        finally:
            app.settings, app.db, app.engine, app._checked = before
            for name in engine.tasks.keys() - known:
                fn = engine.tasks[name].fn
                # a module that was imported meanwhile, or a room that was asked for, stays, and so do its tasks
                if "<locals>" in fn.__qualname__ and not fn.__module__.startswith("duly."):
                    del engine.tasks[name]


# --- Running what is ready ---------------------------------------------------------------------------------------------


def drain(app: Duly, *, queues: Iterable[str] | None = None, limit: int | None = None) -> Tally:
    """Run jobs one after the other until none is ready, and say what was done.

    First what schedules have due is decided, as by a scheduler that looks now; those that the app declares are written before.
    Due jobs are made ready, leases that lapsed are rescued, gates, pauses and limits are obeyed. Nothing is waited for:
    neither a future job nor a rate that frees later. Jobs that the handlers enqueue are run too.

    ``queues``: their names; without, ``default`` and the queue of every task of the app. ``limit``: at most so many runs.
    Raises UsageError on a running event loop (there, ``await adrain(app)``), DatabaseUnavailable when an outcome could
    not be written.
    """
    if asyncio._get_running_loop() is not None:
        raise UsageError("drain() was called on a running event loop. Use `await adrain(app)`.")
    return asyncio.run(adrain(app, queues=queues, limit=limit))


async def adrain(app: Duly, *, queues: Iterable[str] | None = None, limit: int | None = None) -> Tally:
    """As ``drain``, on a running event loop."""
    if isinstance(queues, str):
        queues = [queues]
    names = list(queues) if queues is not None else ["default", *sorted(_queues(app) - {"default"})]
    await app.db.arun(_decide, app)
    hand = _Hand(app, names)
    try:
        await hand.rescue()
        done = 0
        while limit is None or done < limit:
            # from the first queue again after each job: what it enqueued may come first
            for name in names:
                if await hand.one(name):
                    done += 1
                    break
            else:
                break
    finally:
        await hand.put_down()
    return hand.tally


def _decide(app: Duly) -> None:
    """Write the schedules that the app declares, and decide what is due."""
    app.open()
    app.schedules.sync()
    app.schedules._made().tick()


def _queues(app: Duly) -> set[str]:
    return app._queues()


class _Hand(Worker):
    """A worker without its loops: it claims, runs and settles one job when it is told to."""

    def __init__(self, app: Duly, names: Sequence[str]) -> None:
        super().__init__(app.engine, dict.fromkeys(names, 1), "drain")
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self.state = "running"
        # with nobody there to wait for, an outage ends the drain instead of being sat out
        self._settler.stopping.set()

    async def rescue(self) -> None:
        """Take over what a dead worker held."""
        await self.db.arun(self.house.rescue)

    async def one(self, name: str) -> bool:
        """Run one job of a queue to its settlement. False when none is ready."""
        self._ended.clear()
        if not await self.db.arun(self._claim_one, name):
            return False
        await self._ended.wait()
        await self._write_down()
        return True

    def _claim_one(self, name: str) -> int:
        self.house.controls()
        self._promote()
        tasks = self.engine.task_names
        if not tasks:
            return 0
        if name in self.house.governed:
            return self._claim_governed(name, 1, tasks)
        return self._claim({name: 1}, tasks)

    def _end(self, run: Run, outcome: Outcome, written: bool = False) -> None:
        super()._end(run, outcome, written)
        self._ended.set()

    async def _write_down(self) -> None:
        while self._settler.ready and self._over:
            await self.db.arun(self._settle_step)
        if not self._settler.ready:
            raise DatabaseUnavailable(f"an outcome could not be written: {self._settler.problem}")

    async def put_down(self) -> None:
        """Give back a job that is cut off (the drain was cancelled), and let go of the threads."""
        cut = [run for run in self.held() if not run.settled]
        for run in cut:
            run.interrupt("release")
        if cut:
            with contextlib.suppress(TimeoutError, DatabaseUnavailable):
                await asyncio.wait_for(self._ended.wait(), 2)
                await self._write_down()
        await self.db.arun(self.engine.flush_failures)
        self._threads.close()
        if self._children is not None:
            self._children.close()


# --- Looking at what was enqueued --------------------------------------------------------------------------------------


def enqueued(
    app: Duly,
    task: Task[Any, Any] | str | None = None,
    *,
    input: Mapping[str, Any] | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    key: str | None = None,
    status: Status | str | None = None,
    parent: Job | int | None = None,
    run_at: datetime | None = None,
    priority: int | None = None,
) -> list[Job]:
    """The jobs that were made, whatever became of them, in the order of their making. Everything given must hold.

    ``input`` names some arguments and their values; arguments it does not name may be anything.
    """
    f = JobFilter(
        tenant=tenant,
        status=() if status is None else (Status(status),),
        queue=queue,
        task=_name(task),
        key=key,
        parent_id=parent.id if isinstance(parent, Job) else parent,
    )
    app.open()
    found = reversed(app.db.snapshot(lambda c: app.engine.reader.find(c, f, 10_000)))
    return [
        job
        for job in found
        if (run_at is None or job.run_at == run_at)
        and (priority is None or job.priority == priority)
        and _carries(job, input or {})
    ]


def assert_enqueued(app: Duly, task: Task[Any, Any] | str, *, count: int | None = None, **filters: Any) -> list[Job]:
    """Assert that jobs of ``task`` were made: at least one, or exactly ``count``. ``filters`` as for ``enqueued``.

    Returns them. The message of the AssertionError shows what was made instead.
    """
    found = enqueued(app, task, **filters)
    if found if count is None else len(found) == count:
        return found
    wanted = "".join(f", {name}={value!r}" for name, value in filters.items())
    number = "a job" if count is None else "no job" if count == 0 else f"{count} job(s)"
    lines = [f"expected {number} of task {_name(task)!r}{wanted}; found {len(found) or 'none'}."]
    shown, title = (found, "Found") if found else (enqueued(app, task), "Jobs of this task")
    if not shown:
        shown, title = enqueued(app), "Jobs of other tasks"
    lines += [f"{title}:", *(f"  {_line(job)}" for job in shown[:10])] if shown else ["No job was made at all."]
    if len(shown) > 10:
        lines.append(f"  … and {len(shown) - 10} more")
    raise AssertionError("\n".join(lines))


def _name(task: Task[Any, Any] | str | None) -> str | None:
    return task.name if isinstance(task, Task) else task


def _carries(job: Job, wanted: Mapping[str, Any]) -> bool:
    given = job.input if isinstance(job.input, dict) else {}
    return all(name in given and given[name] == _plain(value) for name, value in wanted.items())


def _plain(value: Any) -> Any:
    """A value as it stands in a job's input."""
    return to_jsonable_python(value, bytes_mode="base64", timedelta_mode="iso8601")


def _line(job: Job) -> str:
    facts = f"job {job.id}: {job.task} on {job.queue}, {job.status}, tenant {job.tenant}, input {job.input}"
    return facts + (f", key {job.key!r}" if job.key is not None else "")

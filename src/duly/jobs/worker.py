"""The worker: claims, runs, settles, and stops in good order.

Handlers live on the event loop; storage lives on threads of its own, so that neither waits for the other::

    claim thread ──rows──▶ event loop: start → run → outcome ──settlements──▶ settle thread
                                ▲                                                  │
    heartbeat thread ── lost, cancelled ──┘        housekeeping thread ◀── database ┘

* The claim thread asks for as much as its lanes have room for and sleeps on a bell otherwise.
* The settle thread takes what gathered while its last statement ran: load makes batches, idleness adds no delay.
* The heartbeat thread renews leases until the last job is settled, also while draining, and cannot be blocked by
  handlers (case B032). Which jobs are held is known from ``_held``: entered before a run starts, removed after its
  settlement is written.

What can run twice: a job whose worker lost its lease between the effect and the settlement. The second run is fenced by
another token; the late settlement of the first changes nothing and is told as the event ``lease_lost``.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import os
import queue
import random
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection

from duly.jobs.claim import Lane
from duly.jobs.codec import Arguments
from duly.jobs.engine import Engine
from duly.jobs.house import Housekeeper
from duly.jobs.loops import LOOP_BACKOFF, Loop, Threads
from duly.jobs.run import INTERRUPTED, Run, call, failed, prepare, refused, succeeded
from duly.jobs.settle import Claimed, Settlement, settle
from duly.jobs.sql.sqlite import ANY_READY
from duly.jobs.task import Task
from duly.kernel.errors import DulyError, InvalidArgument
from duly.kernel.events import Level
from duly.kernel.lease import LeaseTerms
from duly.kernel.outcome import Outcome, OutcomeKind

#: Seconds for which handlers that never wait may follow one another in one turn of the loop.
SLICE = 0.005
UNSTORABLE = {"type": "UnstorableOutcome", "message": "the database refused the outcome of this run"}
if TYPE_CHECKING:
    from duly.jobs.processes import Children

#: Ends of runs that are told one by one, with how much they matter.
_TOLD: Mapping[str, tuple[str, Level]] = {
    "retry": ("job_retry", "warning"),
    "fail": ("job_failed", "error"),
    "cancel": ("job_cancelled", "warning"),
}
#: The most threads for plain handlers in one worker.
MAX_THREADS = 64


class LeaseLost(DulyError):
    """The job belongs to somebody else by now; its effects in our database are rolled back."""


@dataclass(slots=True)
class Tally:
    """What a worker did, for the last line it prints."""

    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    snoozed: int = 0
    released: int = 0
    lost: int = 0


class Worker:
    """Runs jobs of some queues. One per process is the rule; several may share one when tests want it."""

    def __init__(self, engine: Engine, queues: Mapping[str, int], name: str | None = None) -> None:
        if not queues:
            raise InvalidArgument("queues", "is empty.", "Name at least one queue.")
        for queue_name, n in queues.items():
            if n < 1:
                raise InvalidArgument(f"queues[{queue_name}]", f"is {n}; at least 1 is needed.")
        self.engine = engine
        self.db, self.settings, self.emitter = engine.db, engine.settings, engine.emitter
        self.clock = engine.clock
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.terms = LeaseTerms(self.settings.lease)
        self.lanes = {q: Lane(q, n, self.settings.claim_batch) for q, n in queues.items()}
        self.tally = Tally()
        self.state = "starting"
        #: False: the database does not answer, or work waits and none is claimed. The reason is in ``problems``.
        self._lock = threading.Lock()
        self._held: dict[int, Run] = {}
        self._done: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._carry: Run | None = None
        self._rang = False
        self._bell = self.db.bell()
        self._beat = threading.Event()
        #: One claim at a time in this worker, so that room is not given twice.
        self._claiming = threading.Lock()
        #: Settling and claiming share a transaction (SQLite, while the loops run).
        self._fused = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = Threads(min(MAX_THREADS, max(1, sum(queues.values()))))
        self._children: Children | None = None  # made for the first handler in a process
        self._dice = random.Random()  # noqa: S311
        self._stopped: asyncio.Event | None = None
        self._stop_now: asyncio.Event | None = None
        #: The context in which each handler starts: that of whoever started the worker.
        self._context = contextvars.copy_context()
        self._deadlines = 0
        self._turning, self._turn_until = False, 0.0
        self._sweeping = False
        self._quiet = threading.Event()
        self._until_idle: float | None = None
        self.house = Housekeeper(self)
        self._claimer = Loop("claim", self._claim_step, self.emitter, self.db.reserve)
        self._settler = Loop("settle", self._settle_step, self.emitter, self.db.reserve)
        self._heart = Loop("heartbeat", self._heart_step, self.emitter, self.db.reserve)
        self._keeper = Loop("house", self.house.step, self.emitter, self.db.reserve)
        self.loops = (self._claimer, self._settler, self._heart, self._keeper)
        self._next_due: float = 0.0  # monotonic instant of the next promotion worth making

    # ------------------------------------------------------------------ life

    def run(self, *, until_idle: bool | float = False) -> Tally:
        """Work until SIGTERM or SIGINT (blocking). Returns what was done.

        ``until_idle``: end by itself once nothing is left to run; a number also waits for jobs due within so many seconds.
        """
        in_main = threading.current_thread() is threading.main_thread()
        with _patient_collector():
            return asyncio.run(self.arun(until_idle=until_idle, signals=in_main))

    async def arun(self, *, until_idle: bool | float = False, signals: bool = False) -> Tally:
        """The same on a running event loop. ``stop()`` ends it."""
        loop = self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._stopped, self._stop_now = asyncio.Event(), asyncio.Event()
        if until_idle is not False:
            self._until_idle = 0.0 if until_idle is True else float(until_idle)
        restore = self._catch_signals(loop) if signals else None
        listener = self.db.listener(lambda e: self.emitter.emit("listen_failed", "warning", error=str(e)[:300]))
        self.state = "running"
        self.emitter.emit(
            "worker_started", worker=self.name, queues={n: ln.concurrency for n, ln in self.lanes.items()}
        )
        if listener is not None:
            listener.start()
        self._fused = self.db.is_sqlite
        for supervised in self.loops:
            supervised.start()
        watch = asyncio.create_task(self._watch_idle()) if self._until_idle is not None else None
        try:
            await self._stopped.wait()
            await self._drain()
        finally:
            if watch is not None:
                watch.cancel()
            self.state = "stopped"
            for supervised in self.loops:
                supervised.stop()
            self._beat.set()
            self._bell.ring()
            self._done.put(None)
            if listener is not None:
                await loop.run_in_executor(None, listener.stop)
            for supervised in self.loops:
                await loop.run_in_executor(None, supervised.join, 3.0)
            with contextlib.suppress(Exception):
                await loop.run_in_executor(None, self.house.say_goodbye)
            self._threads.close()
            self._bell.close()
            if self._children is not None:
                self._children.close()
            if restore is not None:
                restore()
            self.emitter.emit("worker_stopped", worker=self.name)
        return self.tally

    def stop(self) -> None:
        """Begin to stop, from any thread. A second call does not wait for running jobs."""
        loop = self._loop
        if loop is None or self._stopped is None or self._stop_now is None:
            return

        def ask() -> None:
            assert self._stopped is not None
            assert self._stop_now is not None
            if self._stopped.is_set():
                self._stop_now.set()
            self._stopped.set()

        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(ask)

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> Any:
        def caught(number: int) -> None:
            again = self._stopped is not None and self._stopped.is_set()
            self.emitter.emit(
                "signal",
                "warning",
                signal=signal.Signals(number).name,
                effect="stop now" if again else "drain, then stop",
            )
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, caught, number)
        return lambda: [loop.remove_signal_handler(n) for n in (signal.SIGTERM, signal.SIGINT)]

    async def _drain(self) -> None:
        """Stop claiming, let running jobs finish for ``grace``, cancel them, give back what is left."""
        assert self._stop_now is not None
        self.state = "draining"
        self._claimer.stop()
        self._bell.ring()
        await asyncio.get_running_loop().run_in_executor(None, self._claimer.join, 5.0)
        self._give_back(lambda _: True)
        until = time.monotonic() + self.settings.grace
        while self._running() and time.monotonic() < until and not self._stop_now.is_set():
            await asyncio.sleep(0.02)
        left = [run for run in list(self._held.values()) if not run.settled]
        for run in left:
            run.interrupt("release")
        if left:
            self.emitter.emit("drain_cut", "warning", worker=self.name, jobs=[r.claimed.id for r in left])
        until = time.monotonic() + 2
        while self._running() and time.monotonic() < until:
            await asyncio.sleep(0.02)
        # Handlers on threads cannot be interrupted: their jobs are given back while the program ends.
        for run in list(self._held.values()):
            if not run.settled:
                self._settled(run, Outcome(OutcomeKind.RELEASED))
        until = time.monotonic() + 5
        while self._held and time.monotonic() < until:
            await asyncio.sleep(0.01)

    def _running(self) -> bool:
        return any(lane.running or lane.buffer for lane in self.lanes.values())

    @property
    def problems(self) -> list[str]:
        """Why this worker is not ready; empty when it is."""
        out = [f"{x.name}: {x.problem}" for x in self.loops if not x.ready]
        if self.house.stalled:
            out.append(self.house.stalled)
        return out

    @property
    def ready(self) -> bool:
        """Is it claiming, settling and keeping its leases?"""
        return self.state == "running" and not self.problems

    async def _watch_idle(self) -> None:
        """End the worker once there is nothing left for it."""
        assert self._until_idle is not None
        while True:
            await asyncio.sleep(0.05)
            if self._held or not self._quiet.is_set():
                continue
            try:
                busy = await self.db.arun(self.engine.busy, list(self.lanes), self._until_idle)
            except DulyError:
                continue
            if not busy and not self._held:
                self.stop()
                return

    # ------------------------------------------------------------------ claim

    def _claim_step(self) -> None:
        if time.monotonic() >= self._next_due:
            self._promote()
        with self._claiming:
            got, asked = self._claim_all()
        if got:
            self._quiet.clear()
            if got >= asked // 2:
                return  # there is more where this came from
        elif self._rang and self._promote():
            self._rang = False
            return  # what rang was due already, or became so
        else:
            self._quiet.set()
        if got == 0:
            # a ring may mean that something is due sooner than was known: it is looked at after the claim, which is likelier
            pause = self._next_due - time.monotonic() if asked else self.settings.poll
            self._rang = self._bell.wait(min(max(pause, 0.001), self.settings.poll))

    def _claim_all(self) -> tuple[int, int]:
        """Ask for as much as there is room for. Returns (got, asked)."""
        open_lanes, governed = self._rooms()
        tasks = self.engine.task_names
        got = asked = 0
        if not tasks:
            return 0, 0
        if open_lanes:
            asked += sum(open_lanes.values())
            got += self._claim(open_lanes, tasks)
        for name, room in governed:
            if self._claimer.stopping.is_set():
                break
            asked += room
            got += self._claim_governed(name, room, tasks)
        return got, asked

    def _rooms(self) -> tuple[dict[str, int], list[tuple[str, int]]]:
        """How much each lane has room for: lanes that nothing governs, and the others."""
        now = time.monotonic()
        open_lanes: dict[str, int] = {}
        governed: list[tuple[str, int]] = []
        with self._lock:
            for lane in self.lanes.values():
                lane.look(now)
                lane.governed, tight = lane.name in self.house.governed, lane.name in self.house.tight
                if tight is not lane.tight:
                    lane.tight = tight
                    lane.take_stock()
                room = lane.room()
                if room > 0:
                    if lane.governed:
                        governed.append((lane.name, room))
                    else:
                        open_lanes[lane.name] = room
        return open_lanes, governed

    def _claim(self, rooms: dict[str, int], tasks: list[str]) -> int:
        engine, token, asked_at = self.engine, secrets.randbits(62), time.monotonic()
        if self._bell.glance is not None and not self._bell.glance(
            ANY_READY, {"queues": orjson.dumps(list(rooms)).decode()}
        ):
            return 0  # a claim would have to write, and wait for those who do
        rows = self.db.once(lambda c: engine.store.claim(c, rooms, tasks, token, self.terms.seconds, self.name))
        self._deliver(rows, asked_at)
        return len(rows)

    def _claim_governed(self, name: str, room: int, tasks: list[str]) -> int:
        engine, token, asked_at = self.engine, secrets.randbits(62), time.monotonic()
        rows = self.db.write(
            lambda c: engine.queues.claim_governed(
                c, name, room, tasks, token, self.terms.seconds, self.name, self.house.note_hold
            )
        )
        self._deliver(rows, asked_at)
        return len(rows)

    def _deliver(self, rows: list[Claimed], asked_at: float) -> None:
        if not rows:
            return
        tasks, lanes = self.engine.tasks, self.lanes
        runs = [Run(c, tasks.get(c.task), lanes[c.queue], asked_at) for c in rows]
        with self._lock:
            for run in runs:
                self._held[run.claimed.id] = run
                run.lane.outstanding += 1
                run.lane.transit += 1
            self.tally.claimed += len(rows)
        if self.emitter.active:
            self.emitter.emit(
                "jobs_claimed",
                "debug",
                worker=self.name,
                count=len(rows),
                lags=[(c.queue, c.task, c.lag) for c in rows],
            )
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._accept, runs)
        except RuntimeError:  # the loop has ended: the leases lapse and others take over
            with self._lock:
                for run in runs:
                    self._held.pop(run.claimed.id, None)

    def _promote(self) -> int:
        """Make due jobs claimable, one portion at a time, and find out when to do so next. Returns how many it made."""
        store, moved = self.engine.store, 0
        wait = self.db.read(store.next_due)
        if wait is not None and wait <= 0:
            moved = self.db.once(store.promote)
            wait = 0.0 if moved else 0.02  # none: another worker is moving these rows now
        self._next_due = time.monotonic() + min(self.settings.poll, wait if wait is not None else self.settings.poll)
        return moved

    # ------------------------------------------------------------------ run (on the event loop)

    def _accept(self, runs: list[Run]) -> None:
        touched = {}
        for run in runs:
            lane = run.lane
            lane.buffer.append((run, run.claimed_mono))
            touched[lane.name] = lane
        with self._lock:
            for run in runs:
                run.lane.transit -= 1
        for lane in touched.values():
            self._pump(lane)

    def _pump(self, lane: Lane) -> None:
        """Start what there are slots for."""
        if lane.pumping:
            return
        lane.pumping = True
        try:
            while lane.buffer and lane.running < lane.concurrency:
                run: Run = lane.buffer.popleft()[0]
                if self.state != "running" or run.reason is not None:
                    self._settled(run, Outcome(OutcomeKind.RELEASED))
                    continue
                lane.running += 1
                self._start(run)
        finally:
            lane.pumping = False

    def _start(self, run: Run) -> None:
        """Begin a run; its slot is taken already."""
        assert self._loop is not None
        task = run.task
        if task is None:  # it was claimed by name, so this cannot be; be safe
            self._end(run, Outcome(OutcomeKind.RELEASED))
        elif task.run_in == "loop":
            asyncio.Task(self._serve(run, task), loop=self._loop, name="duly handler", context=self._context.copy())
        else:
            self._begin(run, task)
            if task.run_in == "thread":
                run.cancel_event()
                self._threads.submit(self._context.copy().run, self._run_thread, run, task)
            else:
                self._threads.submit(self._run_process, run, task)

    def _new_turn(self) -> None:
        """From here to the loop's next turn, handlers that never wait may follow one another for a slice of time."""
        assert self._loop is not None
        self._turning, self._turn_until = True, time.monotonic() + SLICE
        self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turning = False

    def _begin(self, run: Run, task: Task[Any, Any]) -> None:
        run.started_mono = time.monotonic()
        if task.timeout is not None:
            run.deadline = run.started_mono + task.timeout
            self._watch_deadlines()

    async def _serve(self, run: Run, task: Task[Any, Any]) -> None:
        """Run a handler on the loop; if it ends without waiting for anything, the next one of the lane right after it.

        An asyncio task per handler is what cancellation and context variables want, and half of what a short handler
        costs. So a handler is driven by hand to where it first waits. One that waits has this task to itself from there on
        to its end. One that ends before that leaves the task to the next, unless it has changed a context variable.
        """
        lane, untouched = run.lane, contextvars.copy_context()
        lane.pumping = True  # the next ones are taken here
        if not self._turning:
            self._new_turn()
        try:
            while True:
                if run.reason is not None:
                    self._end(run, Outcome(INTERRUPTED[run.reason]))
                else:
                    self._begin(run, task)
                    handler = self._run_async(run, task)
                    try:
                        waits_for = handler.send(None)
                    except StopIteration:
                        pass
                    else:
                        run.handle = asyncio.current_task()
                        break
                if time.monotonic() > self._turn_until or contextvars.copy_context() != untouched:
                    return
                found = lane.next_on_loop()
                if found is None or self.state != "running":
                    return
                run, task = found
        finally:
            lane.pumping = False
            self._pump(lane)
        await _Rest(handler, waits_for)

    async def _run_async(self, run: Run, task: Task[Any, Any]) -> None:
        try:
            arguments = prepare(run, self.name)
            if task.transactional is not None:
                await self._run_async_transaction(run, task, arguments)
                return
            outcome = succeeded(run, await task.fn(*arguments.args, **arguments.kwargs), self.settings.max_payload)
        except InvalidArgument as error:
            outcome = self._unreadable(run, error)
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit too: a handler that calls sys.exit() fails, the worker goes on
            outcome = failed(run, error, self.clock.now())
        self._end(run, outcome)

    def _unreadable(self, run: Run, error: InvalidArgument) -> Outcome:
        """InvalidArgument before the handler ran is about the stored input; from inside the handler it is an ordinary failure."""
        tb = error.__traceback__
        inside = tb is not None and tb.tb_next is not None and run.task is not None and any(
            f.tb_frame.f_code is getattr(run.task.fn, "__code__", None) for f in _frames(tb)
        )  # fmt: skip
        return failed(run, error, self.clock.now()) if inside else refused(error, self.clock.now())

    def _run_thread(self, run: Run, task: Task[Any, Any]) -> None:
        try:
            arguments = prepare(run, self.name)
            if task.transactional is not None:
                self._run_transaction(run, task, arguments)
                return
            outcome = succeeded(run, call(task, arguments), self.settings.max_payload)
        except InvalidArgument as error:
            outcome = self._unreadable(run, error)
        except BaseException as error:
            outcome = failed(run, error, self.clock.now())
        self._end_soon(run, outcome)

    def _run_process(self, run: Run, task: Task[Any, Any]) -> None:
        from duly.jobs import processes

        child = None
        try:
            with self._lock:
                if self._children is None:
                    self._children = processes.Children()
                children = self._children
            child = children.get()
            run.kill = child.kill
            if run.reason is not None:
                child.kill()
            output, problem = child.run(*processes.address(task), run.claimed.input, self.settings.max_payload)
            error = None if problem is None else {"type": "UnstorableResult", "message": problem}
            outcome = Outcome(OutcomeKind.SUCCEEDED, output or "{}", error)
        except processes.ChildDied as died:
            interrupted: BaseException = asyncio.CancelledError() if run.reason is not None else died
            outcome = failed(run, interrupted, self.clock.now())
        except processes.RemoteFailure as remote:
            outcome = failed(run, remote, self.clock.now())
            assert outcome.error is not None
            outcome.error["type"] = remote.kind
        except BaseException as raised:
            outcome = failed(run, raised, self.clock.now())
        finally:
            run.kill = None
            if child is not None:
                children.put(child)
        self._end_soon(run, outcome)

    # ------------------------------------------------------------------ transactional handlers

    def _run_transaction(self, run: Run, task: Task[Any, Any], arguments: Arguments) -> None:
        """A handler with a session: its effects and the settlement are one commit."""
        from sqlalchemy.orm import Session

        assert task.transactional is not None
        outcome, written = None, False
        try:
            with Session(self.db.session_engine) as session:
                try:
                    arguments.kwargs[task.transactional] = session
                    outcome = succeeded(run, call(task, arguments), self.settings.max_payload)
                    decided = self._decide(run, outcome)
                    if not self.engine.store.settle(session.connection(), [decided], self.name):
                        raise LeaseLost(f"job {run.claimed.id} belongs to another worker by now")
                    session.commit()
                    written = True
                except BaseException:
                    session.rollback()
                    raise
        except LeaseLost:
            outcome = Outcome(OutcomeKind.LOST)
        except BaseException as error:
            outcome = failed(run, error, self.clock.now())
        self._end_soon(run, outcome, written)

    async def _run_async_transaction(self, run: Run, task: Task[Any, Any], arguments: Arguments) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession

        assert task.transactional is not None
        outcome, written = None, False
        try:
            async with AsyncSession(self.db.async_engine) as session:
                try:
                    arguments.kwargs[task.transactional] = session
                    outcome = succeeded(
                        run, await task.fn(*arguments.args, **arguments.kwargs), self.settings.max_payload
                    )
                    decided = self._decide(run, outcome)
                    if not await session.run_sync(
                        lambda s: self.engine.store.settle(s.connection(), [decided], self.name)
                    ):
                        raise LeaseLost(f"job {run.claimed.id} belongs to another worker by now")
                    await session.commit()
                    written = True
                except BaseException:
                    await session.rollback()
                    raise
        except LeaseLost:
            outcome = Outcome(OutcomeKind.LOST)
        except (Exception, asyncio.CancelledError) as error:
            outcome = failed(run, error, self.clock.now())
        self._end(run, outcome, written)

    # ------------------------------------------------------------------ end of a run

    def _end_soon(self, run: Run, outcome: Outcome, written: bool = False) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, run, outcome, written)

    def _end(self, run: Run, outcome: Outcome, written: bool = False) -> None:
        """A run is over (on the loop): free its slot, start the next, hand the settlement on."""
        lane = run.lane
        lane.running -= 1
        lane.ended += 1
        run.ended_mono = time.monotonic()
        if run.deadline:
            self._deadlines -= 1
        self._settled(run, outcome, written=written)
        if lane.buffer:
            self._pump(lane)
        if lane.running + len(lane.buffer) <= lane.call_at:
            self._bell.ring()

    def _decide(self, run: Run, outcome: Outcome) -> Settlement:
        return settle(run.claimed, outcome, self.engine.policy(run.claimed.task), self._dice.random())

    def _settled(self, run: Run, outcome: Outcome, *, written: bool = False) -> None:
        if run.settled:
            return
        run.settled = True
        if outcome.kind is OutcomeKind.LOST:
            # not ours any more: nothing to write
            self._forget([run])
            self.tally.lost += 1
            self.emitter.emit("lease_lost", "warning", worker=self.name, job=run.claimed.id, task=run.claimed.task)
            return
        decided = self._decide(run, outcome)
        run.settlement = decided
        if written:
            self._account([run], {run.claimed.id})
            return
        self._done.put(run)

    # ------------------------------------------------------------------ settle

    def _settle_step(self) -> None:
        batch = self._gather()
        if not batch:
            return
        settlements = [run.settlement for run in batch if run.settlement is not None]
        failures = 0
        while True:
            try:
                held = self._exchange(settlements) if self._fused and not failures else self._write(settlements)
                break
            except Exception as error:
                # The outcome of the runs is known and must not be lost: write it again until the database takes it.
                failures += 1
                if len(batch) > 1 and not _is_outage(error):
                    self._write_one_by_one(batch)
                    return
                self._settler.ready, self._settler.problem = False, f"{type(error).__name__}: {error}"[:500]
                self.emitter.emit(
                    "settle_failed", "error", error=self._settler.problem, jobs=len(batch), failures=failures
                )
                if not _is_outage(error):
                    held = self._write_plainly(settlements[0], error)
                    break
                if self._settler.stopping.wait(LOOP_BACKOFF.delay(failures)):
                    for run in batch:
                        self._done.put(run)
                    return
        self._account(batch, held)

    def _exchange(self, settlements: list[Settlement]) -> set[int]:
        """Settle, and claim in the same transaction if there is room: on SQLite one commit then serves both ends."""
        engine, asked_at = self.engine, time.monotonic()
        if not self._claiming.acquire(blocking=False):
            return self._write(settlements)  # the claim thread is at it; the group commit joins the two if it can
        try:
            rooms, _ = self._rooms()
            if not rooms or self._claimer.stopping.is_set():
                return self._write(settlements)
            tasks, token = engine.task_names, secrets.randbits(62)

            def both(connection: Connection) -> tuple[set[int], list[Claimed]]:
                held = engine.store.settle(connection, settlements, self.name)
                return held, engine.store.claim(connection, rooms, tasks, token, self.terms.seconds, self.name)

            held, rows = self.db.write(both)
            if rows:
                self._quiet.clear()
                self._deliver(rows, asked_at)
            return held
        finally:
            self._claiming.release()

    def _gather(self) -> list[Run]:
        """Wait for an ended run, then take all that have ended meanwhile. A job stands in a batch once."""
        first = self._carry or self._done.get()
        self._carry = None
        if first is None:
            return []
        batch, seen, get = [first], {first.claimed.id}, self._done.get_nowait
        for _ in range(self.settings.claim_batch - 1):
            try:
                run = get()
            except queue.Empty:
                break
            if run is None:
                continue
            if run.claimed.id in seen:
                self._carry = run
                break
            seen.add(run.claimed.id)
            batch.append(run)
        return batch

    def _write(self, batch: list[Settlement]) -> set[int]:
        store = self.engine.store
        door = self.db.once if store.settles_alone(batch) else self.db.write
        return door(lambda c: store.settle(c, batch, self.name))

    def _write_one_by_one(self, batch: list[Run]) -> None:
        """One settlement that the database refuses must not hold up the others."""
        for run in batch:
            assert run.settlement is not None
            try:
                held = self._write([run.settlement])
            except Exception as error:
                if _is_outage(error):
                    self._done.put(run)
                    continue
                held = self._write_plainly(run.settlement, error)
            self._account([run], held)

    def _write_plainly(self, s: Settlement, error: Exception) -> set[int]:
        """Write the end of a run without what the database would not take. If even that fails, the lease lapses and the
        rescue accounts for the run."""
        self.emitter.emit("settlement_refused", "error", job=s.id, error=str(error)[:500])
        plain = Settlement(
            s.id, s.token, s.event, s.status, output="{}" if s.final else None, error=UNSTORABLE, action=s.action, level=s.level,
            wait=s.wait, until=s.until, counted=s.counted, record=s.record, parent_id=s.parent_id, key_scope=s.key_scope,
        )  # fmt: skip
        with contextlib.suppress(Exception):
            return self._write([plain])
        return set()

    def _account(self, runs: list[Run], held: set[int]) -> None:
        """After the write: let go of what was settled, count it and tell it."""
        self._forget(runs)
        if any(lane.room() > 0 for lane in self.lanes.values()):
            self._bell.ring()
        tally, counts = self.tally, Counter[str]()
        told: list[tuple[str, str, str, float]] | None = [] if self.emitter.active else None
        for run in runs:
            s, c = run.settlement, run.claimed
            assert s is not None
            event = s.event
            if c.id not in held:
                counts["lost"] += 1
                self.emitter.emit("lease_lost", "warning", worker=self.name, job=c.id, task=c.task, attempt=c.attempts)
                continue
            counts[event] += 1
            if told is not None:
                told.append((c.queue, c.task, event, run.ended_mono - run.started_mono if run.started_mono else 0.0))
                if event in _TOLD:
                    self._tell(c, s)
        tally.succeeded += counts["succeed"] + counts["wait"]
        tally.failed += counts["fail"]
        tally.retried += counts["retry"]
        tally.cancelled += counts["cancel"]
        tally.snoozed += counts["snooze"]
        tally.released += counts["release"]
        tally.lost += counts["lost"]
        if told:
            self.emitter.emit("jobs_settled", "debug", worker=self.name, jobs=told)

    def _tell(self, c: Claimed, s: Settlement) -> None:
        name, level = _TOLD[s.event]
        more = {"wait": s.wait} if s.event == "retry" else {}
        self.emitter.emit(
            name, level, job=c.id, task=c.task, queue=c.queue, attempt=c.attempts, max_attempts=c.max_attempts,
            error=(s.error or {}).get("type"), **more,
        )  # fmt: skip

    def _forget(self, runs: list[Run]) -> None:
        held = self._held
        with self._lock:
            for run in runs:
                run.lane.outstanding -= 1
                # the same job may have been claimed here again meanwhile, under another lease
                if held.get(run.claimed.id) is run:
                    del held[run.claimed.id]

    # ------------------------------------------------------------------ leases

    def _heart_step(self) -> None:
        every = self.terms.renew_every
        self._beat.wait(every)
        if self._beat.is_set():
            return
        self.renew()

    def renew(self) -> None:
        """Renew the leases of everything held here that was claimed a while ago, and hear what happened to it meanwhile."""
        old = time.monotonic() - self.terms.renew_every / 2
        with self._lock:
            held = [(run.claimed.id, run.claimed.token, run) for run in self._held.values() if run.claimed_mono < old]
        for start in range(0, len(held), 1000):
            part = held[start : start + 1000]
            leases = [(ident, token) for ident, token, _ in part]
            answer = self.db.write(partial(self.engine.store.renew, held=leases, lease=self.terms.seconds))
            lost = [run for ident, _, run in part if ident not in answer and not run.settled]
            cancelled = [run for ident, _, run in part if answer.get(ident)]
            self.interrupt_soon(lost, "lost")
            self.interrupt_soon(cancelled, "cancel")

    def interrupt_soon(self, runs: list[Run], reason: Any) -> None:
        """Interrupt runs, from any thread."""

        def interrupt() -> None:
            for run in runs:
                run.interrupt(reason)

        if runs and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(interrupt)

    def held(self) -> list[Run]:
        """What this worker holds at this moment."""
        with self._lock:
            return list(self._held.values())

    def _watch_deadlines(self) -> None:
        """One timer for all timeouts: it runs while any job has one."""
        self._deadlines += 1
        if not self._sweeping:
            self._sweeping = True
            assert self._loop is not None
            self._loop.call_later(0.05, self._sweep)

    def _sweep(self) -> None:
        now = time.monotonic()
        for run in self.held():
            if run.deadline and run.deadline <= now and run.reason is None and not run.settled:
                run.interrupt("timeout")
        self._sweeping = self._deadlines > 0
        if self._sweeping:
            assert self._loop is not None
            self._loop.call_later(0.05, self._sweep)

    # ------------------------------------------------------------------ giving back

    def _give_back(self, which: Any) -> None:
        """Release prefetched jobs that have not started (on the loop): no attempt is used."""
        for lane in self.lanes.values():
            kept = [item for item in lane.buffer if not which(item)]
            back = [item for item in lane.buffer if which(item)]
            lane.buffer.clear()
            lane.buffer.extend(kept)
            for run, _ in back:
                self._settled(run, Outcome(OutcomeKind.RELEASED))

    def give_back_soon(self, which: Any) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._give_back, which)


@contextlib.contextmanager
def _patient_collector() -> Iterator[None]:
    """Let the garbage collector look less often while a worker owns the process.

    A worker makes some dozen short-lived objects per job, none of them in a circle; at Python's default of a look every
    700 objects the collector took a third of the loop's time (measured). What was there before is set aside meanwhile.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(before[0], 20_000), max(before[1], 20), before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _frames(tb: Any) -> Any:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_outage(error: Exception) -> bool:
    from duly.kernel.errors import DatabaseUnavailable

    return isinstance(error, DatabaseUnavailable)


class _Rest:
    """The rest of a coroutine that was driven by hand to where it waits for ``first``, as something to await."""

    __slots__ = ("coroutine", "first")

    def __init__(self, coroutine: Coroutine[Any, Any, None], first: Any) -> None:
        self.coroutine, self.first = coroutine, first

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self.first
        while True:
            try:
                yield waits_for
            except BaseException as error:
                # a cancellation, or the failure of what was waited for, goes to the coroutine
                try:
                    waits_for = self.coroutine.throw(error)
                except StopIteration:
                    return
            else:
                # from here on the interpreter hands everything through by itself
                yield from self.coroutine.__await__()
                return

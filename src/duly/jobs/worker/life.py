"""A worker's life: start, heartbeat, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from duly.jobs.blocking import LoopWatch
from duly.jobs.copies import leave
from duly.jobs.engine import Engine
from duly.jobs.forgotten import watch
from duly.jobs.house import Housekeeper
from duly.jobs.loops import Loop
from duly.jobs.worker.running import Running
from duly.jobs.worker.settling import Settling
from duly.jobs.worker.state import Tally
from duly.kernel.errors import DulyError, brief
from duly.kernel.outcome import Outcome, OutcomeKind

if TYPE_CHECKING:
    from duly.storage.postgres import Listener

T = TypeVar("T")

#: Seconds that handlers which were told to stop have for it, and when the worker was told a second time.
UNWIND, UNWIND_AT_ONCE = 2.0, 0.2
#: Seconds without an answer after which a loop gives up its connection: so many, or a lease.
SILENCE = 30.0


class Worker(Settling):
    """Runs jobs of some queues. One per process is the rule; several may share one when tests want it."""

    def __init__(self, engine: Engine, queues: Mapping[str, int], name: str | None = None) -> None:
        super().__init__(engine, queues, name)
        watch()
        self.house = Housekeeper(self)
        self._claimer = Loop("claim", self._claim_step, self.emitter, self.db.reserve)
        self._settler = Loop("settle", self._settle_step, self.emitter, self.db.reserve)
        self._heart = Loop("heartbeat", self._heart_step, self.emitter, self.db.reserve)
        self._keeper = Loop("house", self.house.step, self.emitter, self.db.reserve)
        self._wakes: list[Callable[[], None]] = []
        #: What hears other processes, where there is such a thing.
        self.listener: Listener | None = None
        #: ``stop()`` was called.
        self._asked = False
        #: Until when the goodbye is tried, by the monotonic clock: the grace counts from the moment at which it was asked to end.
        self._leave_by = 0.0
        #: Signals that came before the loop heard them itself.
        self._early: list[int] = []
        #: What they meant before that.
        self._before: dict[signal.Signals, Any] = {}
        self.loops: tuple[Loop, ...] = (self._claimer, self._settler, self._heart, self._keeper)

    def accompany(self, name: str, step: Callable[[], None], wake: Callable[[], None]) -> None:
        """Another room's loop, which lives as long as this worker does. ``wake`` makes it look whether it is to end."""
        self.loops = (*self.loops, Loop(name, step, self.emitter, self.db.reserve))
        self._wakes.append(wake)

    # ------------------------------------------------------------------ life

    def run(self, *, until_idle: bool | float = False) -> Tally:
        """Work until SIGTERM or SIGINT (blocking). Returns what was done.

        ``until_idle``: end by itself once nothing is left to run; a number also waits for jobs due within so many seconds.
        """
        in_main = threading.current_thread() is threading.main_thread()
        with contextlib.ExitStack() as stack:
            if in_main:
                self._early, self._before = stack.enter_context(_remembered())
            stack.enter_context(_patient_collector())
            return _run_to_its_end(self.arun(until_idle=until_idle, signals=in_main), self._exited)

    def _exited(self, error: BaseException) -> None:
        """SystemExit or KeyboardInterrupt has left the loop: whoever raised it did so in a task or a callback of its own. The task that waits
        for it fails with it; the worker goes on. Where somebody has taken Ctrl-C from us, KeyboardInterrupt is that: the loop hears of
        the signal as well, as a rule, and otherwise this is how the worker is told."""
        if self._copied.yes:
            leave(error)
        if isinstance(error, KeyboardInterrupt) and _interrupts():
            assert self._loop is not None
            self._loop.call_later(0.1, self._stop_unless_told)
        else:
            self.emitter.emit("loop_failed", "error", loop="handlers", error=brief(error), failures=1)

    async def arun(self, *, until_idle: bool | float = False, signals: bool = False) -> Tally:
        """The same on a running event loop. ``stop()`` ends it."""
        loop = self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._stopped, self._stop_now = asyncio.Event(), asyncio.Event()
        if until_idle is not False:
            self._until_idle = 0.0 if until_idle is True else float(until_idle)
        restore, forget = self._catch_signals(loop) if signals else (None, None)
        with self._copied.watched(loop, forget):
            return await self._arun(loop, restore)

    def _watch_loop(self, loop: asyncio.AbstractEventLoop) -> LoopWatch | None:
        """Start the thread that tells what blocks the loop, where the settings want it and the system has a thread."""
        if not self.settings.loop_block:
            return None
        code = Running._run_async.__code__
        watch = LoopWatch(loop, self.settings.loop_block, lambda: self._held, code, self.emitter, self.name)
        try:
            watch.start()
        except RuntimeError:  # no more threads: handlers need them more
            return None
        return watch

    async def _arun(self, loop: asyncio.AbstractEventLoop, restore: Callable[[], None] | None) -> Tally:
        assert self._stopped is not None
        if self._early or self._asked:  # somebody asked before this began: it does not begin
            self._early.clear()
            self.state = "stopped"
            self._wind_up(restore)
            return self.tally
        listener = self.listener = self.db.listener(
            lambda e: self.emitter.emit("listen_failed", "warning", error=brief(e)),
            lambda: self.emitter.emit("listen_recovered", "info"),
        )
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
        silence = asyncio.create_task(self._watch_silence())
        blocking = self._watch_loop(loop)
        try:
            await self._stopped.wait()
            self._leave_by = time.monotonic() + self.settings.grace
            await self._drain()
        finally:
            if watch is not None:
                watch.cancel()
            silence.cancel()
            if blocking is not None:
                blocking.stop()
            self.state = "stopped"
            for supervised in self.loops:
                supervised.stop()
            self._beat.set()
            self._bell.ring()
            self.house.wake()
            for wake in self._wakes:
                wake()
            self._settler_bell.set()
            if listener is not None:
                await loop.run_in_executor(None, listener.stop)
            for supervised in self.loops:
                await loop.run_in_executor(None, supervised.join, 3.0)
            await loop.run_in_executor(None, self.engine.flush_failures)
            with contextlib.suppress(Exception):
                if self._idled:
                    await loop.run_in_executor(None, self.house.catch_up)
            await self._leave(loop)
            self._wind_up(restore)
        return self.tally

    def _wind_up(self, restore: Callable[[], None] | None) -> None:
        """The last of a worker's life: nothing is held any more, and signals mean what they did."""
        self._threads.close()
        self._bell.close()
        self.house.close()
        if self._children is not None:
            self._children.close()
        if restore is not None:
            restore()
        self.emitter.emit("worker_stopped", worker=self.name)

    async def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say goodbye, again and again within the grace while the database takes no writes. A worker that cannot is missed as one that was killed."""
        assert self._stop_now is not None
        pause = 0.1
        while True:
            try:
                return await loop.run_in_executor(None, self.house.say_goodbye)
            except Exception as error:
                if self._stop_now.is_set() or time.monotonic() + pause > self._leave_by:
                    self.emitter.emit("goodbye_failed", "warning", worker=self.name, error=brief(error))
                    return None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_now.wait(), pause)
            pause = min(pause * 2, 2.0)

    def stop(self) -> None:
        """Begin to stop, from any thread. A second call does not wait for running jobs. A worker that was told so before it began does not begin."""
        self._asked = True
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

    def _stop_unless_told(self) -> None:
        if self._stopped is not None and not self._stopped.is_set():
            self.stop()

    def _catch_signals(self, loop: asyncio.AbstractEventLoop) -> tuple[Callable[[], None], Callable[[], None]]:
        """Returns what gives signals back to ``run`` when the loop ends, and what gives a copy of the worker their meaning from before it."""

        def caught(number: int) -> None:
            again = self._stopped is not None and self._stopped.is_set()
            self.emitter.emit(
                "signal",
                "warning",
                signal=signal.Signals(number).name,
                effect="stop now" if again else "drain, then stop",
            )
            self.stop()

        # what ``run`` has put in place stays until the loop is closed: a second signal in the last moment is no death
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, caught, number)

        def give_back(meaning: Mapping[signal.Signals, Any]) -> None:
            for number, handler in meaning.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # None: not Python's to set
                    signal.signal(number, handler)

        return partial(give_back, before), partial(give_back, self._before or before)

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
        # what was told to stop may do so; whoever was asked a second time does not wait for it
        asked = time.monotonic()
        while self._running() and time.monotonic() < asked + (UNWIND_AT_ONCE if self._stop_now.is_set() else UNWIND):
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
        out += [problem for problem in (self.house.stalled, self.house.replaced) if problem]
        if self._thread_problem:
            out.append(f"threads: {self._thread_problem}")
        return out

    @property
    def notes(self) -> list[str]:
        """What people should know of a worker that is ready: new work is noticed by polling only."""
        lost = self.listener is not None and self.listener.problem
        return [f"wake-ups: {lost}; new work is noticed every {self.settings.poll:g} s"] if lost else []

    @property
    def ready(self) -> bool:
        """Is it claiming, settling and keeping its leases?"""
        return self.state == "running" and not self.problems

    async def _watch_silence(self) -> None:
        """Let no loop that the jobs depend on wait for ever on a connection where nobody answers any more."""
        threads = [one.thread.name for one in (self._claimer, self._settler, self._heart)]
        seconds = max(SILENCE, self.terms.seconds)
        while True:
            await asyncio.sleep(min(seconds / 6, 5))
            for name in self.db.give_up(threads, seconds):
                self.emitter.emit(
                    "answer_missing", "error", worker=self.name, loop=name.removeprefix("duly-"), seconds=seconds
                )

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
                self._idled = True
                self.stop()
                return

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


@contextlib.contextmanager
def _remembered() -> Iterator[tuple[list[int], dict[signal.Signals, Any]]]:
    """Remember signals until the loop hears them itself. One that raised KeyboardInterrupt while the collector runs would be lost: what is
    raised in its callbacks goes nowhere."""
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda received, _: asked.append(received))
    try:
        yield asked, before
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not Python's to set
                signal.signal(number, handler)
        for received in (
            asked
        ):  # in the last moment, when the loop did not hear any more: for whoever catches signals beside the worker
            caught = before[signal.Signals(received)]
            if callable(caught) and caught is not signal.default_int_handler:
                caught(received, None)


def _interrupts() -> bool:
    """Does Ctrl-C raise KeyboardInterrupt in this thread?"""
    here = threading.current_thread() is threading.main_thread()
    return here and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _run_to_its_end(work: Coroutine[Any, Any, Tally], exited: Callable[[BaseException], None]) -> Tally:
    """As ``asyncio.run``, but a handler that swallows its cancellation does not keep the program alive: its job has been
    given back, and the second that it is waited for is a courtesy. And a task that exits ends itself and not the loop: see ``exited``."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return _run_on(loop, loop.create_task(work), exited)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _run_on(loop, loop.create_task(_wait_a_second(left)), lambda _: None)
        for task in left:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        loop.close()


async def _wait_a_second(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=1)


def _run_on(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], exited: Callable[[BaseException], None]) -> T:
    """Run the loop until a task is done, also where SystemExit or KeyboardInterrupt of another one breaks it off: asyncio lets them through."""
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            exited(error)


@contextlib.contextmanager
def _patient_collector() -> Iterator[None]:
    """Let the garbage collector look less often while a worker owns the process.

    A worker makes some dozen short-lived objects per job, none of them in a circle; at Python's default of a look every
    700 objects the collector took a third of the loop's time (measured). What was there before is set aside meanwhile,
    but where the program has done so itself (``gc.freeze``), and wants it to stay so.
    """
    before, ours = gc.get_threshold(), gc.get_freeze_count() == 0
    gc.collect()
    if ours:
        gc.freeze()
    gc.set_threshold(max(before[0], 20_000), max(before[1], 20), before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if ours:
            gc.unfreeze()

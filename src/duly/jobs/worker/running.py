"""Handlers: started on the event loop as slots come free, run there, on threads or in processes, and handed on when they end.

Everything here but ``_run_thread``, ``_run_process``, ``_begun`` and ``_run_transaction`` happens on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from duly.jobs.claim import Lane
from duly.jobs.codec import Arguments
from duly.jobs.copies import leave
from duly.jobs.run import (
    CURRENT,
    INTERRUPTED,
    LeaseLost,
    Run,
    Settled,
    UnreadableInput,
    failed,
    prepare,
    refused,
    succeeded,
    unreadable,
)
from duly.jobs.task import Task
from duly.jobs.worker.accounts import Accounts
from duly.kernel.errors import InvalidArgument, UnknownZone, brief
from duly.kernel.outcome import Outcome, OutcomeKind

#: Seconds for which handlers that never wait may follow one another in one turn of the loop.
SLICE = 0.005
#: Seconds after which they let another thread have the interpreter, where the settler comes back from the database many times for one batch.
LEND = 0.0004
#: Stands for the outcome of a run whose handler has settled it.
_WRITTEN = Outcome(OutcomeKind.SNOOZED)
#: A process for handlers that has not begun after so many seconds, imports included, is taken for hung.
STARTS_WITHIN = 60.0
#: The longest pause, in seconds, before a job is looked at again whose input cannot be read here; the most such jobs remembered.
LONGEST_UNREAD, MOST_UNREAD = 30.0, 10_000
#: Seconds after which it is tried again to start a thread, where the system gave none.
THREADS_AGAIN = 1.0


class Running(Accounts):
    """Runs what was claimed."""

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
                fresh = self._may_start(run, time.monotonic())
                if self.state != "running" or run.reason is not None or not fresh:
                    # not begun, so no attempt is used; if the lease has lapsed meanwhile, this changes nothing
                    self._settled(run, Outcome(OutcomeKind.RELEASED))
                    continue
                lane.running += 1
                self._start(run)
        finally:
            lane.pumping = False

    def _may_start(self, run: Run, now: float) -> bool:
        """Is its lease good for a start, and has no blackout begun since it was claimed? ``now`` is monotonic."""
        claimed, lane = run.claimed_mono, run.lane
        return self.terms.trusted(claimed, now) and not (now >= lane.closes_at and claimed <= lane.closed_by)

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
            if task.timeout is not None:
                run.deadline = math.inf  # until a thread has it: the wait for one is not the handler's time
            if task.run_in == "thread":
                run.cancel_event()
                self._submit(run, self._context.copy().run, self._run_thread, run, task)
            else:
                self._submit(run, self._run_process, run, task)

    def _submit(self, run: Run, fn: Callable[..., None], *args: Any, last: bool = False) -> None:
        """Hand a run to a thread. Where there is none and none can be made, it keeps its slot for a moment, is tried once more
        (``last``), and is given back: so a worker without threads does not claim the same jobs without a pause."""
        assert self._loop is not None
        if run.reason is not None:
            self._end(run, Outcome(INTERRUPTED[run.reason]))
            return
        try:
            started = self._threads.submit(fn, *args)
        except RuntimeError as error:
            self._no_thread(brief(error))
            if last:
                self._end(run, Outcome(OutcomeKind.RELEASED))
            else:
                self._loop.call_later(THREADS_AGAIN, partial(self._submit, run, fn, *args, last=True))
            return
        if not started:
            self._no_thread("the system gives no more threads")
        elif self._thread_problem:
            self._grow()

    def _no_thread(self, problem: str) -> None:
        """Tell it once, and try now and then until there are threads for all that wait."""
        assert self._loop is not None
        if self._thread_problem:
            return
        self._thread_problem = problem
        self.emitter.emit("loop_failed", "error", loop="threads", error=problem, failures=1)
        self._loop.call_later(THREADS_AGAIN, self._grow_again)

    def _grow(self) -> bool:
        """Start the threads that calls wait for, if that is possible now."""
        try:
            if not self._threads.grow():
                return False
        except RuntimeError:
            return False
        self._thread_problem = ""
        self.emitter.emit("loop_recovered", "info", loop="threads", failures=1)
        return True

    def _grow_again(self) -> None:
        assert self._loop is not None
        if self._thread_problem and not self._grow():
            self._loop.call_later(THREADS_AGAIN, self._grow_again)

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
        to its end. One that ends before that leaves the task to the next, unless it has changed a context variable or cancelled the task.

        A thread that asks for the interpreter gets it after 5 ms. The settler, which does so after each of its statements, would
        hardly write while handlers run, so they lend it now and then.
        """
        lane, untouched, me = run.lane, contextvars.copy_context(), asyncio.current_task()
        assert me is not None
        lane.pumping = True  # the next ones are taken here
        if not self._turning:
            self._new_turn()
        try:
            while True:
                if run.reason is not None:
                    self._end(run, Outcome(INTERRUPTED[run.reason]))
                elif not self._may_start(run, time.monotonic()):
                    self._end(run, Outcome(OutcomeKind.RELEASED))
                else:
                    self._begin(run, task)
                    handler = self._run_async(run, task)
                    try:
                        waits_for = handler.send(None)
                    except StopIteration:
                        pass
                    else:
                        if self._copied.yes:
                            leave()
                        run.handle = me
                        break
                now = time.monotonic()
                if self._fused and now > self._lend_at:
                    time.sleep(0)
                    self._lend_at = now + LEND
                if now > self._turn_until or contextvars.copy_context() != untouched:
                    return
                if me.cancelling() or getattr(me, "_must_cancel", False):
                    return  # a handler has cancelled its own task: that is not for the next
                if self.state != "running" or (found := lane.next_on_loop()) is None:
                    return
                run, task = found
        finally:
            lane.pumping = False
            self._pump(lane)
        await _Rest(handler, waits_for)

    async def _run_async(self, run: Run, task: Task[Any, Any]) -> None:
        mark = CURRENT.set(run)
        try:
            arguments = prepare(run, self.name)
            if task.transactional is not None:
                await self._run_async_transaction(run, task, arguments)
                return
            result = await task.fn(*arguments.args, **arguments.kwargs)
            if self._copied.yes:
                leave()
            outcome = succeeded(run, result, self.settings.max_payload)
        except BaseException as error:  # SystemExit too: a handler that calls sys.exit() fails, the worker goes on
            outcome = self._raised(run, error)
        finally:
            try:
                CURRENT.reset(mark)
            except ValueError:
                pass  # thrown away with its event loop, by the collector, in some other context
        self._end(run, outcome, outcome is _WRITTEN)

    def _raised(self, run: Run, error: BaseException) -> Outcome:
        """The outcome of a handler on the loop that raised. Does not return in a copy of the worker."""
        if self._copied.yes:
            leave(error)
        if isinstance(error, InvalidArgument):
            return self._unreadable(run, error)
        if isinstance(error, Settled):
            run.settlement = error.settlement
            return _WRITTEN
        if isinstance(error, LeaseLost):
            return Outcome(OutcomeKind.LOST)
        return failed(run, error, self.clock.now())

    def _unreadable(self, run: Run, error: InvalidArgument) -> Outcome:
        """InvalidArgument before the handler ran is about the stored input; from inside the handler it is an ordinary failure."""
        if isinstance(error, UnreadableInput | UnknownZone):
            return self._left_to_others(run, error)
        tb = error.__traceback__
        inside = tb is not None and tb.tb_next is not None and run.task is not None and any(
            f.tb_frame.f_code is getattr(run.task.fn, "__code__", None) for f in _frames(tb)
        )  # fmt: skip
        if inside:
            return failed(run, error, self.clock.now())
        run.error = error
        return refused(error, self.clock.now())

    def _left_to_others(self, run: Run, error: InvalidArgument) -> Outcome:
        """The input of a job cannot be read here. While programs are being replaced a newer worker can read it, so it is put back, a little
        longer each time, and no attempt is used. When that has lasted for as long as a deploy may take, it is the job's fault after all.
        """
        c, now, unread = run.claimed, self.clock.monotonic(), self.engine.unread
        if len(unread) > MOST_UNREAD:
            unread.clear()
        first, times = unread.get(c.id, (now, 0))
        if now - first >= self.settings.unreadable_wait:
            unread.pop(c.id, None)
            run.error = error
            return refused(error, self.clock.now())
        unread[c.id] = first, times + 1
        if not times:
            self.emitter.emit(
                "job_unreadable", "warning", worker=self.name, job=c.id, task=c.task, queue=c.queue, error=brief(error)
            )
        self.tally.add(unreadable=1)
        return unreadable(error, self.clock.now(), min(LONGEST_UNREAD, 2.0**times))

    def _run_thread(self, run: Run, task: Task[Any, Any]) -> None:
        if self._unwanted(run):
            return
        if task.timeout is not None:
            self._begun(run)
        CURRENT.set(run)  # this context is the run's own
        try:
            arguments = prepare(run, self.name)
            if task.transactional is not None:
                self._run_transaction(run, task, arguments)
                return
            with self._copied:
                result = task.fn(*arguments.args, **arguments.kwargs)
            outcome = succeeded(run, result, self.settings.max_payload)
        except InvalidArgument as error:
            outcome = self._unreadable(run, error)
        except BaseException as error:
            outcome = failed(run, error, self.clock.now())
        self._end_soon(run, outcome)

    def _run_process(self, run: Run, task: Task[Any, Any]) -> None:
        from duly.jobs import processes

        if self._unwanted(run):
            return
        child = None
        if task.timeout is not None:
            run.deadline = time.monotonic() + task.timeout + STARTS_WITHIN  # until its process says that it has begun
        try:
            with self._lock:
                if self._children is None:
                    self._children = processes.Children()
                children = self._children
            child = children.get()
            run.kill = child.kill
            if run.reason is not None:
                child.kill()
            limit = self.settings.max_payload
            claimed = run.claimed
            facts = processes.JobFacts(claimed.id, claimed.tenant, claimed.meta)
            begun = partial(self._begun, run)
            output, problem = child.run(*processes.address(task), claimed.input, limit, begun, facts)
            error = None if problem is None else {"type": "UnstorableResult", "message": problem}
            outcome = Outcome(OutcomeKind.SUCCEEDED, output or "{}", error)
        except UnreadableInput as error:
            outcome = self._left_to_others(run, error)
        except processes.HandlerMissing as missing:
            if processes.is_here(task):  # a deploy has replaced the code behind this worker, so it is left to others
                outcome = self._left_to_others(run, UnreadableInput("task", f"{missing}."))
            else:
                outcome = failed(run, missing, self.clock.now())
        except processes.ChildDied as died:
            interrupted: BaseException = asyncio.CancelledError() if run.reason is not None else died
            outcome = failed(run, interrupted, self.clock.now())
        except BaseException as raised:
            outcome = failed(run, raised, self.clock.now())
        finally:
            run.kill = None
            if child is not None:
                children.put(child)
        self._end_soon(run, outcome)

    def _unwanted(self, run: Run) -> bool:
        """Has it been interrupted while it waited for a thread? Then this is its end."""
        if run.reason is None:
            return False
        self._end_soon(run, Outcome(INTERRUPTED[run.reason]))
        return True

    def _begun(self, run: Run) -> None:
        """The handler begins now: the time that its thread or its process took to come is not the handler's."""
        if run.task is not None and run.task.timeout is not None:
            run.deadline = time.monotonic() + run.task.timeout

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
                    with self._copied:
                        result = task.fn(*arguments.args, **arguments.kwargs)
                    outcome = succeeded(run, result, self.settings.max_payload)
                    decided = self._decide(run, outcome)
                    if not self.engine.store.settle(session.connection(), [decided], self.name):
                        raise LeaseLost(f"job {run.claimed.id} belongs to another worker by now")
                    session.commit()
                    written = True
                except BaseException:
                    with contextlib.suppress(
                        Exception
                    ):  # where the connection is gone, all is undone: what came first is told
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
                    with self._copied:
                        result = await task.fn(*arguments.args, **arguments.kwargs)
                    outcome = succeeded(run, result, self.settings.max_payload)
                    decided = self._decide(run, outcome)
                    if not await session.run_sync(
                        lambda s: self.engine.store.settle(s.connection(), [decided], self.name)
                    ):
                        raise LeaseLost(f"job {run.claimed.id} belongs to another worker by now")
                    await session.commit()
                    written = True
                except BaseException:
                    with contextlib.suppress(Exception):
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
        if lane.running + len(lane.buffer) <= lane.call_at and not self._exchanges:
            self._bell.nudge()

    def _settled(self, run: Run, outcome: Outcome, *, written: bool = False) -> None:
        if run.settled:
            return
        run.settled = True
        if outcome.kind is OutcomeKind.LOST:
            # not ours any more: nothing to write
            self._forget([run])
            self.tally.add(lost=1)
            self.emitter.emit("lease_lost", "warning", worker=self.name, job=run.claimed.id, task=run.claimed.task)
            return
        if run.settlement is None:
            run.settlement = self._decide(run, outcome)
        if written:
            self._account([run], {run.claimed.id})
            return
        self._over.append(run)
        ended = len(self._over)
        if ended == 1:
            assert self._loop is not None
            self._turned.clear()
            self._loop.call_soon(self._turned.set)
            self._settler_bell.set()
        elif ended == self.batch:
            self._turned.set()

    # ------------------------------------------------------------------ timeouts

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


def _frames(tb: Any) -> Any:
    while tb is not None:
        yield tb
        tb = tb.tb_next


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

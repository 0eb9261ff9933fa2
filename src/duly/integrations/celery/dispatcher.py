"""The dispatcher: claims Duly's jobs as a worker does, and hands each to a Celery fleet.

It *is* a worker as far as claiming goes: the same claim thread, the same closer look at governed queues, the same promotion,
renewal, rescue and sealing. Where a worker starts a handler, it publishes a message (job, token, no input) and keeps
the lease alive until somebody of the fleet has taken it over (``jobs/handover.py``)::

    claim thread ──rows──▶ loop ──▶ publish thread ──message──▶ broker
                            ▲
    follow thread: who has begun, what has ended, what has waited too long

How much is handed over. No more jobs wait in the broker than the fleet begins within a second, and at least ``WINDOW`` per
queue: what waits there can neither be overtaken by a job of higher priority nor be run by anybody else, so little should. And no
more than ``limit`` jobs are handed over and not finished, so that a dispatcher never claims the whole backlog.

What holds a job back after it was handed over (a pause, a closed gate, a new limit, a cancel) is obeyed: the dispatcher takes it back
through the lease, and the message finds a token that is no longer valid. The same happens when the broker fails, when nobody has
begun the job for ``handover_timeout``, and when the dispatcher stops. None of it uses an attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from duly.jobs.engine import Engine
from duly.jobs.handover import HOLDER, HandoverStore, follow
from duly.jobs.house import Housekeeper
from duly.jobs.loops import Loop
from duly.jobs.run import INTERRUPTED, Run, trace_of
from duly.jobs.task import Task
from duly.jobs.worker import Worker
from duly.jobs.worker.running import STARTS_WITHIN
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument, brief
from duly.kernel.outcome import Outcome, OutcomeKind
from duly.kernel.payload import check_whole, read_seconds
from duly.outbox.transports.brokers import CAREFUL

#: The name of the Celery task that runs a job.
EXECUTE = "duly.execute"
#: At least so many jobs of a queue may wait in the broker.
WINDOW = 10
#: Jobs handed over and not finished, unless told otherwise: some processes' running jobs, and as many again that wait.
LIMIT = 100
#: Seconds after which a job that nobody has begun is given back: its message may be lost.
HANDOVER_TIMEOUT = 300.0
#: Seconds between looks at what became of handed-over jobs: shortest and longest.
QUICK, SLOW = 0.05, 0.25
#: Seconds between looks whether the broker is still there, while nothing is to be published.
LOOK_EVERY = 5.0
#: A fleet that begins none of the jobs that wait for it, and runs none, is away after so many seconds.
AWAY = 30.0
#: Celery kills the process of a run so many seconds after its timeout, if it has not ended by then.
MARGIN = 10.0


class Dispatcher(Worker):
    """Claims jobs of some queues and hands them to Celery.

    ``celery_app``: the Celery application of the fleet. ``queues``: for each queue, how many of its jobs may be handed over and
    not finished; ``limit`` is the same for all of them together. ``celery_queue``: the Celery queue to send to; by
    default what the application's routes say about ``duly.execute``. ``handover_timeout``: a duration.
    """

    def __init__(
        self,
        engine: Engine,
        celery_app: Any,
        queues: Mapping[str, int],
        *,
        limit: int = LIMIT,
        celery_queue: str | None = None,
        handover_timeout: Duration = HANDOVER_TIMEOUT,
        name: str | None = None,
    ) -> None:
        if not hasattr(celery_app, "send_task"):
            raise InvalidArgument(
                "celery_app", f"is of type {type(celery_app).__name__}.", "Give a Celery application."
            )
        check_whole(limit, "limit")
        handover_timeout = read_seconds(handover_timeout, "handover_timeout")
        if not handover_timeout >= 1:
            raise InvalidArgument(
                "handover_timeout",
                f"is {handover_timeout:g} s.",
                "Give more than the fleet takes to begin a job that waits, or jobs are taken back that are about to begin.",
            )
        super().__init__(engine, queues, None if name is None else name.removeprefix(HOLDER))
        self.name = HOLDER + self.name
        self.limit, self._most = limit, dict(queues)
        self.handover_timeout = handover_timeout
        self._handover = HandoverStore(self.db)
        self._broker = _Broker(celery_app, celery_queue)
        self._outgoing: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        #: Jobs that the fleet runs: {id: (its token, queue)}. Changed under ``_lock``.
        self._elsewhere: dict[int, tuple[int, str]] = {}
        #: How many jobs the fleet has begun.
        self.handed = 0
        self._pause, self._turn, self._look_due = SLOW, 0, 0.0
        #: Monotonic instant of the last sign of the fleet: nothing waited, or a job was begun or running.
        self._awake = time.monotonic()
        for lane in self.lanes.values():
            lane.concurrency = min(WINDOW, limit)
        self.house = _House(self)
        self._keeper = Loop("house", self.house.step, self.emitter, self.db.reserve)
        self._publisher = Loop("publish", self._publish_step, self.emitter)
        self._follower = Loop("follow", self._follow_step, self.emitter)
        self.loops = (self._claimer, self._settler, self._heart, self._keeper, self._publisher, self._follower)

    @property
    def problems(self) -> list[str]:
        """Why this dispatcher is not ready; empty when it is."""
        away = time.monotonic() - self._awake > AWAY
        return super().problems + (["jobs wait in the broker and no Celery worker takes them"] if away else [])

    # ------------------------------------------------------------------ how much to claim

    @property
    def unfinished(self) -> int:
        """Jobs that are handed over, or about to be, and not finished."""
        return len(self._held) + len(self._elsewhere)

    def _rooms(self) -> tuple[dict[str, int], list[tuple[str, int]]]:
        if not self._broker.connected:
            return {}, []  # what cannot be handed over is not claimed
        for lane in self.lanes.values():
            lane.concurrency = max(min(WINDOW, self.limit), int(lane.pace))
        open_lanes, governed = super()._rooms()
        asked = {**open_lanes, **dict(governed)}
        with self._lock:
            unfinished = Counter(name for _, name in self._elsewhere.values())
            unfinished.update({name: lane.outstanding for name, lane in self.lanes.items()})
        self._turn += 1
        granted = share(
            {name: min(room, self._most[name] - unfinished[name]) for name, room in asked.items()},
            self.limit - unfinished.total(),
            self._turn,
        )
        return (
            {name: granted[name] for name in open_lanes if name in granted},
            [(name, granted[name]) for name, _ in governed if name in granted],
        )

    # ------------------------------------------------------------------ handing over (on the loop)

    def _start(self, run: Run) -> None:
        """Send word of a job; its place among those that wait is taken already."""
        run.started_mono = time.monotonic()
        run.kill = partial(self._called_back, run)
        self._outgoing.put(run)

    def _called_back(self, run: Run) -> None:
        """Something speaks against the job that waits: a cancel, or the end of this dispatcher."""
        if run.reason != "lost":  # what is not ours any more, the follower looks into
            self._take_back(run, Outcome(INTERRUPTED[run.reason or "release"]))

    def _take_back(self, run: Run, outcome: Outcome) -> None:
        """Settle a job that waits in the broker under our own lease. If somebody has just begun it, that changes nothing."""
        if not run.settled:
            self._end(run, outcome)

    def _take_back_soon(self, runs: list[Run]) -> None:
        def take_back() -> None:
            for run in runs:
                self._take_back(run, Outcome(OutcomeKind.RELEASED))

        if runs and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(take_back)

    def _give_back(self, which: Any) -> None:
        """Also what waits in the broker: ``which`` says of what queues. Waiting there long is no reason by itself."""
        super()._give_back(which)
        for run in self.held():
            if run.started_mono and not run.settled and which((run, math.inf)):
                self._take_back(run, Outcome(OutcomeKind.RELEASED))

    def _account(self, runs: list[Run], held: set[int]) -> None:
        """Of what was taken back, some may have been begun at the same moment: that is what it was handed over for."""
        super()._account([run for run in runs if run.claimed.id in held], held)
        late = {run.claimed.id: run for run in runs if run.claimed.id not in held}
        if late:
            running = self.db.read(lambda c: self._handover.leases(c, late))
            with self._lock:
                self._elsewhere.update({ident: (token, late[ident].claimed.queue) for ident, token in running.items()})
                self.handed += len(running)
            self._forget(list(late.values()))

    # ------------------------------------------------------------------ publishing (a thread)

    def _publish_step(self) -> None:
        sending: list[Run] = []
        try:
            if not self._broker.connected:
                self._broker.connect()
                self._bell.ring()
            try:
                run = self._outgoing.get(timeout=0.5)
            except queue.Empty:
                if time.monotonic() >= self._look_due:
                    self._look_due = time.monotonic() + LOOK_EVERY
                    self._broker.check()
            else:
                if run is not None and not run.settled:
                    sending.append(run)
                    self._send(run)
        except Exception:
            # also what was claimed at the moment when the broker went away
            self._broker.close()
            sending += self._unsent()
            if sending:
                self._take_back_soon(sending)
                self._tell_taken_back(sending, "the broker did not take them")
            raise

    def _send(self, run: Run) -> None:
        """Publish, and once more over a fresh connection: one that has been idle may have been cut. Twice does no harm."""
        try:
            self._broker.send(run)
        except Exception as error:
            self.emitter.emit("broker_reconnected", "info", worker=self.name, error=brief(error))
            self._broker.close()
            self._broker.connect()
            self._broker.send(run)

    def _unsent(self) -> list[Run]:
        out: list[Run] = []
        with contextlib.suppress(queue.Empty):
            while True:
                run = self._outgoing.get_nowait()
                if run is not None and not run.settled:
                    out.append(run)
        return out

    # ------------------------------------------------------------------ following (a thread)

    def _follow_step(self) -> None:
        self._follower.stopping.wait(self._pause)
        with self._lock:
            waiting = {run.claimed.id: run for run in self._held.values() if run.started_mono and not run.settled}
            begun = {ident: token for ident, (token, _) in self._elsewhere.items()}
        now = time.monotonic()
        if not waiting or begun:
            self._awake = now
        if not waiting and not begun:
            self._pause = SLOW
            return
        running = self.db.read(lambda c: self._handover.leases(c, {*waiting, *begun}))
        found = follow({ident: run.claimed.token for ident, run in waiting.items()}, begun, running)
        with self._lock:
            for ident in found.ended:
                self._elsewhere.pop(ident, None)
            for ident, token in found.begun.items():
                self._elsewhere[ident] = token, waiting[ident].claimed.queue
        let_go = [waiting[ident] for ident in (*found.begun, *found.gone)]
        if let_go or found.ended:
            self._awake = now
            self._pause = QUICK
            self._tell_handed_over(let_go, now)
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._let_go, let_go)
        else:
            self._pause = min(self._pause * 1.3, SLOW)
        self._find_overdue([run for run in waiting.values() if run not in let_go], now)

    def _let_go(self, runs: list[Run]) -> None:
        """Others have these jobs now (on the loop)."""
        gone = [run for run in runs if not run.settled]
        for run in gone:
            run.settled = True
            run.lane.running -= 1
            run.lane.ended += 1
        self.handed += len(gone)
        self._forget(gone)
        for lane in {run.lane.name: run.lane for run in gone}.values():
            self._pump(lane)
        self._bell.ring()

    def _find_overdue(self, waiting: list[Run], now: float) -> None:
        overdue = [run for run in waiting if now - run.started_mono > self.handover_timeout]
        if overdue:
            self._tell_taken_back(overdue, f"nobody has begun them for {self.handover_timeout:g} s")
            self._take_back_soon(overdue)

    # ------------------------------------------------------------------ telling

    def _tell_handed_over(self, runs: list[Run], now: float) -> None:
        if runs and self.emitter.active:
            waits = [(run.claimed.queue, run.claimed.task, now - run.started_mono) for run in runs]
            self.emitter.emit("jobs_handed_over", "debug", worker=self.name, count=len(runs), waits=waits)

    def _tell_taken_back(self, runs: list[Run], reason: str) -> None:
        jobs = [run.claimed.id for run in runs]
        self.emitter.emit(
            "jobs_taken_back", "warning", worker=self.name, reason=reason, count=len(jobs), jobs=jobs[:100]
        )

    # ------------------------------------------------------------------ end

    async def _drain(self) -> None:
        """Stop claiming, and take back what nobody has begun: it is queued again at once, for another dispatcher or worker.

        What the fleet runs goes on; it needs no dispatcher. Messages that are left in the broker find no valid token.
        """
        self.state = "draining"
        self._claimer.stop()
        self._bell.ring()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._claimer.join, 5.0)
        self._give_back(lambda _: True)
        until = time.monotonic() + 5
        while self._held and time.monotonic() < until:
            await asyncio.sleep(0.01)
        self._outgoing.put(None)
        self._publisher.stop()
        await loop.run_in_executor(None, self._publisher.join, 2.0)
        self._broker.close()


class _House(Housekeeper):
    """Housekeeping of a dispatcher."""

    def progress(self) -> None:
        """A dispatcher at its limit waits for the fleet, and one without a broker says so itself: neither is stalled."""
        worker = self.worker
        assert isinstance(worker, Dispatcher)
        if worker.unfinished >= worker.limit or not worker._broker.connected:
            self._waited, self.stalled = 0, ""
        else:
            super().progress()


class _Broker:
    """The connection over which jobs are handed over: one, made afresh after each failure. Used by one thread."""

    def __init__(self, app: Any, celery_queue: str | None) -> None:
        self._app, self._queue = app, celery_queue
        self._connection: Any = None
        self._producer: Any = None

    @property
    def connected(self) -> bool:
        return self._producer is not None

    def connect(self) -> None:
        """Connect; raises what the broker's client raises, within seconds."""
        connection = self._app.connection_for_write()
        careful = CAREFUL.get(connection.transport.driver_type, {})
        # at most one try: trying again, and saying so meanwhile, is the loop's business
        connection.transport_options = {
            **careful,
            **connection.transport_options,
            "max_retries": 1,
            "interval_start": 0,
        }
        try:
            producer = self._app.amqp.Producer(connection.default_channel, auto_declare=False)
        except BaseException:
            with contextlib.suppress(Exception):
                connection.release()
            raise
        self._connection, self._producer = connection, producer

    def send(self, run: Run) -> None:
        """Publish one message: which job, and the token that proves it. The input stays in the database."""
        c, task = run.claimed, run.task
        limits = {} if task is None or task.timeout is None else _limits(task)
        trace = trace_of(c.meta)  # for what follows traces through Celery; handlers have it from the job itself
        self._app.send_task(
            EXECUTE,
            kwargs={"job": c.id, "token": c.token},
            task_id=f"duly-{c.id}-{c.attempts}-{secrets.token_hex(4)}",
            # what logs and monitors of Celery show
            shadow=c.task, argsrepr="()", kwargsrepr=f"{{'job': {c.id}}}",
            producer=self._producer, retry=False, ignore_result=True, add_to_parent=False,
            **limits, **({"queue": self._queue} if self._queue is not None else {}),
            **({"headers": {"traceparent": trace}} if trace is not None else {}),
        )  # fmt: skip

    def check(self) -> None:
        """Is the broker still there? Raises what the client raises when it is not."""
        driver = self._connection.transport.driver_type
        if driver == "redis":
            self._producer.channel.client.ping()
        elif driver == "amqp":
            with contextlib.suppress(TimeoutError):
                self._connection.drain_events(timeout=0.01)  # reads what the broker has sent: that it closes, too
            self._connection.heartbeat_check()

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.release()


def _limits(task: Task[Any, Any]) -> dict[str, float]:
    """Celery's limits for one run: behind the job's own timeout, which is obeyed by the executor."""
    assert task.timeout is not None
    timeout = task.timeout + (STARTS_WITHIN if task.run_in == "process" else 0.0)
    return {"soft_time_limit": timeout + MARGIN / 2, "time_limit": timeout + MARGIN}


def share(wanted: Mapping[str, int], left: int, turn: int) -> dict[str, int]:
    """Grant what is wanted, at most ``left`` in all, and in equal parts where that is too little for everybody.

    What cannot be divided goes to others each ``turn``. Returns {name: granted} without those that get nothing.
    """
    names = sorted(name for name, n in wanted.items() if n > 0)
    start = turn % max(1, len(names))
    in_turn = names[start:] + names[:start]
    out: dict[str, int] = {}
    # the modest ones first: what they leave is for the others
    for position, name in enumerate(sorted(in_turn, key=lambda name: wanted[name])):
        granted = min(wanted[name], max(0, left) // (len(names) - position))
        out[name] = granted
        left -= granted
    for name in in_turn:
        if left > 0 and out[name] < wanted[name]:
            out[name] += 1
            left -= 1
    return {name: granted for name, granted in out.items() if granted}

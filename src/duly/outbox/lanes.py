"""Sending: a lane for each destination, threads that hand messages to their transports, and what is held meanwhile.

At most ``per_destination`` units of a destination are on their way at once; all lanes share the threads and take turns,
unit by unit. Before each message the thread asks whether the lease can still be believed and whether the destination is open; if not,
or once the relay stops, the rest is given back untried. A line of an ordering key ends at its first failure.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from duly.jobs.claim import Lane
from duly.jobs.loops import Threads
from duly.jobs.run import is_unawaited
from duly.kernel.errors import PermanentError
from duly.kernel.lease import LeaseTerms
from duly.outbox.message import Message
from duly.outbox.options import Options
from duly.outbox.plan import Settlement, Unit, is_suspect, release
from duly.outbox.transports import Transport
from duly.tracing import carried

#: Lanes that are kept although nothing is in them; they remember the pace of their destination.
IDLE_LANES = 1000


@dataclass(frozen=True, slots=True)
class Done:
    """The end of one attempt, or of none."""

    message: Message
    settlement: Settlement
    #: Seconds that the transport took.
    took: float = 0.0
    problem: BaseException | None = None


#: Where ends are put, and by whom they are written.
Sink = queue.SimpleQueue[Done | None]


class Lanes:
    """All destinations that one relay sends to."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        options: Options,
        decide: Callable[[Message, BaseException | None], Settlement],
        admits: Callable[[Message], bool],
        call: Callable[[], None],
    ) -> None:
        #: ``decide`` settles an attempt, ``admits`` says whether the destination is open, ``call`` that a lane has room again.
        self._transports, self._options, self._decide, self._call = transports, options, decide, call
        self._admits = admits
        self._terms = LeaseTerms(options.lease)
        self._lanes: dict[str, Lane] = {}
        self._held: dict[int, tuple[Message, Unit]] = {}
        self._lock = threading.Lock()
        self._threads = Threads(options.concurrency)
        #: One thread for each destination, so that those that hang take no other's along.
        self._first = Threads(IDLE_LANES)
        #: Destinations whose own thread is at work.
        self._led: set[str] = set()
        #: Message id → (destination, monotonic instant) of what is being handed over.
        self._begun: dict[int, tuple[str, float]] = {}
        self._told: set[int] = set()
        #: Nothing more is begun.
        self.stopping = threading.Event()

    # ------------------------------------------------------------------ room

    def room(self, destination: str) -> int:
        """How many units of a destination to ask for now."""
        with self._lock:
            lane = self._lane(destination)
            lane.look(time.monotonic())
            return lane.room()

    def _lane(self, destination: str) -> Lane:
        lane = self._lanes.get(destination)
        if lane is None:
            if len(self._lanes) >= IDLE_LANES:
                self._lanes = {name: old for name, old in self._lanes.items() if old.outstanding}
            lane = self._lanes[destination] = Lane(destination, self._options.per_destination, self._options.batch)
        return lane

    # ------------------------------------------------------------------ what is held

    @property
    def busy(self) -> bool:
        """Is anything held that has not been written?"""
        return bool(self._held)

    @property
    def has_suspect(self) -> bool:
        """Is one held that has to travel alone?"""
        with self._lock:
            return any(is_suspect(message) for message, _ in self._held.values())

    def held(self) -> list[tuple[int, int]]:
        """(id, lease token) of everything that is held."""
        with self._lock:
            return [(ident, message.token) for ident, (message, _) in self._held.items()]

    def renewed(self, asked: Sequence[tuple[int, int]], answer: set[int], asked_at: float) -> None:
        """Leases asked for at monotonic ``asked_at`` were renewed, those in ``answer``; the others are lost."""
        with self._lock:
            for ident, token in asked:
                message, unit = self._held.get(ident, (None, None))
                if message is None or unit is None or message.token != token:
                    continue
                if ident in answer:
                    unit.asked_at = asked_at
                else:
                    del self._held[ident]

    def forget(self, batch: Sequence[Done]) -> None:
        """What became of these is written: they are held no longer."""
        with self._lock:
            for done in batch:
                held = self._held.get(done.message.id)
                if held is not None and held[0].token == done.message.token:
                    del self._held[done.message.id]

    def _holds(self, message: Message, unit: Unit) -> bool:
        held = self._held.get(message.id)
        trusted = self._terms.trusted(unit.asked_at, time.monotonic())
        return trusted and held is not None and held[0].token == message.token

    # ------------------------------------------------------------------ sending

    def dispatch(self, work: Sequence[Unit], sink: Sink) -> None:
        """Put units in their lanes and start as many as may be on their way. Each message ends up in ``sink``."""
        with self._lock:
            for unit in work:
                for message in unit.messages:
                    self._held[message.id] = (message, unit)
                lane = self._lane(unit.destination)
                lane.buffer.append(((unit, sink), unit.asked_at))
                lane.outstanding += 1
                if lane.running < lane.concurrency:
                    threads = self._threads
                    if lane.name not in self._led:
                        threads = self._first
                        self._led.add(lane.name)
                    lane.running += 1
                    threads.submit(self._next, lane, threads)

    def hanging(self, seconds: float) -> list[tuple[int, str, float]]:
        """(message, destination, seconds) of sends that have not returned for so long, each told once."""
        now = time.monotonic()
        with self._lock:
            found = [
                (i, to, now - at) for i, (to, at) in self._begun.items() if now - at > seconds and i not in self._told
            ]
            self._told.update(i for i, _, _ in found)
        return found

    def _next(self, lane: Lane, threads: Threads) -> None:
        """Send the next unit of a lane, then queue behind the other lanes for another turn."""
        with self._lock:
            if not lane.buffer:
                lane.running -= 1
                if threads is self._first:
                    self._led.discard(lane.name)
                return
            (unit, sink), _ = lane.buffer.popleft()
        try:
            self._send(unit, sink)
        finally:
            with self._lock:
                lane.ended += 1
                lane.outstanding -= 1
                low = len(lane.buffer) + lane.running <= max(lane.call_at, lane.concurrency)
                threads.submit(self._next, lane, threads)
            if low:
                self._call()

    def _send(self, unit: Unit, sink: Sink) -> None:
        for place, message in enumerate(unit.messages):
            if self.stopping.is_set() or not self._holds(message, unit) or not self._admits(message):
                self._give_back(unit.messages[place:], sink)
                return
            begun = time.monotonic()
            problem = self._attempt(message)
            sink.put(Done(message, self._decide(message, problem), time.monotonic() - begun, problem))
            if problem is not None and unit.ordered:
                self._give_back(unit.messages[place + 1 :], sink)
                return

    def _attempt(self, message: Message) -> BaseException | None:
        with self._lock:
            self._begun[message.id] = message.destination, time.monotonic()
        try:
            with carried(message.headers.get("traceparent")):
                answer: object = self._transports[message.to.transport].send(message)  # type: ignore[func-returns-value]
            if is_unawaited(answer):
                return PermanentError("the transport's send returned an awaitable, so nothing was sent: let it block")
        except BaseException as error:
            return error
        finally:
            with self._lock:
                self._begun.pop(message.id, None)
                self._told.discard(message.id)
        return None

    def _give_back(self, messages: Sequence[Message], sink: Sink) -> None:
        for message in messages:
            sink.put(Done(message, release(message)))

    # ------------------------------------------------------------------ the end

    def stop(self) -> None:
        """Begin nothing more: what waits in the lanes is given back, a line that is being sent ends behind its present message."""
        self.stopping.set()
        self.put_back()

    def put_back(self) -> None:
        """Give back what waits in the lanes and has not begun."""
        with self._lock:
            waiting = []
            for lane in self._lanes.values():
                waiting += [item for item, _ in lane.buffer]
                lane.outstanding -= len(lane.buffer)
                lane.buffer.clear()
        for unit, sink in waiting:
            self._give_back(unit.messages, sink)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.close()
        self._first.close()

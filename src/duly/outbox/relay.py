"""The relay: takes messages from the outbox, hands them to their transports, and marks what was sent.

Any number may run, in any number of processes. A message is marked *after* it was handed over, so it is delivered at
least once: whoever dies between the two, or loses its lease there, leaves it to be sent again under the same message id.

``run_once`` is one cycle and returns when all of it is written. ``run`` goes on until it is stopped, with three loops:
one claims, one writes what gathered while its last statement ran, one renews leases, takes over lapsed ones and prunes.
In between stands a lane for each destination: at most ``per_destination`` of its messages are on their way at once, and
no more are claimed than can start soon, so a slow destination holds up nobody else. One that cannot be reached is held and
probed (``holds.py``), which costs its messages no attempt.
"""

from __future__ import annotations

import itertools
import os
import queue
import random
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from duly.audit.store import record
from duly.jobs.loops import Loop
from duly.jobs.run import describe
from duly.jobs.tables import GATE_KEY, OUTBOX_GATE_KEY, system_state
from duly.kernel.errors import InvalidArgument, brief
from duly.kernel.gate import read_outbox_gate
from duly.kernel.hold import Hold
from duly.kernel.lease import LeaseTerms
from duly.outbox.holds import Fault, Holds, word_of
from duly.outbox.lanes import Done, Lanes, Sink
from duly.outbox.look import Look, Looker
from duly.outbox.message import PARKED, Message
from duly.outbox.plan import Settlement, Unit, lost, settle, shares, single_file, units
from duly.outbox.store import CHANNEL
from duly.storage.wake import Bell

if TYPE_CHECKING:
    from duly.outbox.box import Outbox

#: A send that has not returned for so many seconds is told.
HANGS = 60.0
#: Seconds between looks for what is to be pruned.
PRUNE_EVERY = 60.0
#: Ends of attempts written in one transaction.
SETTLE_STEP = 500
#: Seconds until another look at what was in the hands of another relay.
CONTENDED = 0.02
#: Seconds between looks at the file of an SQLite database while waiting: one costs some microseconds.
LISTEN_STEP = 0.01


@dataclass(slots=True)
class Report:
    """What a relay did, in messages."""

    claimed: int = 0
    sent: int = 0
    #: Attempts that failed and are made again later.
    failed: int = 0
    parked: int = 0
    #: Given back untried.
    released: int = 0
    #: Sent or tried, and taken over by another relay before it was written.
    lost: int = 0
    #: Taken over from relays whose leases had lapsed.
    rescued: int = 0

    def add(self, other: Report) -> None:
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


#: The field of a report that counts a lifecycle event.
_COUNTS = {"send": "sent", "fail": "failed", "park": "parked", "release": "released"}


class Relay:
    """One relay of an outbox. Made by ``outbox.relay()``."""

    def __init__(self, box: Outbox, name: str | None = None) -> None:
        self.box, self.options, self.policy = box, box.options, box.policy
        self.db, self.store, self.emitter = box.db, box.store, box.events
        #: Its name in lists and in the audit trail.
        self.name = name or f"relay:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.terms = LeaseTerms(self.options.lease)
        self.tally = Report()
        #: Which destinations can be reached, as far as this relay has seen.
        self.holds = Holds(self.policy.backoff, self._tell_hold)
        #: The instant that stands for the present in one cycle, where the caller named it.
        self._given_now: datetime | None = None
        self._learnt = False
        #: Is the gate closed, as it was seen last?
        self._gated = False
        self._lanes = self._new_lanes()
        #: One cycle takes what it can get; the loops take what can start soon.
        self._cycling = True
        self._looker = Looker(self.store, self._room, self._mine)
        self._done: Sink = queue.SimpleQueue()
        self._unwritten: list[Done] = []
        #: Marking and renewing touch the same rows; at the same moment, in different orders, they could deadlock.
        self._own_rows = threading.Lock()
        #: Somebody has told it to stop.
        self.asked = False
        #: Put here, not set: a signal may come while the main thread is inside the lock of an event.
        self._wishes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._dice = random.Random()  # noqa: S311
        self._bell: Bell | None = None
        self._beat, self._idle = threading.Event(), threading.Event()
        self._lines_first = True
        self._stranded: set[str] = set()
        self._prune_due = 0.0
        #: Monotonic instant until when some that it took wait their turn in the file.
        self._file_until = 0.0
        #: Claim, settle, heart; while it runs.
        self._loops: tuple[Loop, ...] = ()

    # ------------------------------------------------------------------ one cycle

    def run_once(self, now: datetime | None = None) -> Report:
        """Take up to ``batch`` messages that are due, send them, write what became of them, and return that.

        ``now`` (aware) stands for the present instant in every statement; without it the database's clock, or the
        application's. Raises DatabaseUnavailable; what was sent and could not be marked is then sent again later.
        """
        if now is not None and (not isinstance(now, datetime) or now.tzinfo is None):
            raise InvalidArgument("now", f"is {now!r}; it must be a datetime with a time zone.")
        self._ready()
        self._given_now = now
        report = Report(rescued=self._rescue(now))
        work, _ = self._claim(now)
        report.claimed = sum(len(unit.messages) for unit in work)
        ended: Sink = queue.SimpleQueue()
        self._lanes.dispatch(work, ended)
        batch: list[Done] = []
        try:
            while len(batch) < report.claimed:
                try:
                    done = ended.get(timeout=self.terms.renew_every)
                except queue.Empty:
                    self._renew(now)
                    continue
                if done is not None:
                    batch.append(done)
            report.add(self._write(batch, now))
        except BaseException:
            # what could not be written is held no longer: its lease lapses, and it is sent again
            self._lanes.stop()
            self._lanes = self._new_lanes()
            raise
        self.tally.add(report)
        return report

    def _ready(self) -> None:
        if not self.box.transports:
            raise InvalidArgument(
                "transports", "are not given, so a relay could send nothing.", "Outbox(…, transports={'duly': …})."
            )
        self.box.open()
        if self._lanes.stopping.is_set():  # it ran before
            self._lanes = self._new_lanes()
        if self.box.is_own and not self._learnt:
            self.holds.learn(self.db.read(self.store.holds))
            self._learnt = True

    def _new_lanes(self) -> Lanes:
        return Lanes(self.box.transports, self.options, self._decide, self._admits, self._ring)

    def _moment(self) -> datetime:
        """The present instant for holds of destinations."""
        return self._given_now if self._given_now is not None else self.db.clock.now()

    def _admits(self, message: Message) -> bool:
        return self.holds.admits(message, self._moment())

    def _tell_hold(self, what: str, hold: Hold, now: datetime) -> None:
        if what == "open":
            lasted = round(max(0.0, (now - hold.since).total_seconds()), 3)
            self.emitter.emit("outbox_open", "info", destination=hold.destination, relay=self.name, seconds=lasted)
            return
        self.emitter.emit(
            "outbox_held", "error" if hold.kind is Fault.REFUSED else "warning", destination=hold.destination, relay=self.name,
            kind=str(hold.kind), wait=round((hold.until - now).total_seconds(), 3), error=hold.problem,
        )  # fmt: skip

    # ------------------------------------------------------------------ life

    def run(self, *, until_idle: bool = False) -> Report:
        """Relay until SIGTERM, SIGINT or ``stop()`` (blocking). Returns what was done.

        What is being sent may finish (up to ``grace`` seconds), what was not begun is given back; a second signal does not
        wait. ``until_idle``: end by itself once nothing is due. One that was told to stop before it began does not begin.
        """
        if self._wish(0.0) is not None:  # it was told to stop before it began
            return self.tally
        self._ready()
        self._given_now, self._cycling = None, False
        self._bell = self._make_bell()
        self._beat.clear()
        self._loops = (
            Loop("outbox-claim", self._claim_step, self.emitter),
            Loop("outbox-settle", self._settle_step, self.emitter),
            Loop("outbox-heart", self._heart_step, self.emitter),
        )
        listener = self._listener()
        self.emitter.emit("outbox_relay_started", relay=self.name, transports=sorted(self.box.transports))
        with self._signals():
            if listener is not None:
                listener.start()
            for loop in self._loops:
                loop.start()
            try:
                while not self._wish(0.05 if until_idle else None):
                    if until_idle and self._idle.is_set() and not self._lanes.busy:
                        break
                self._drain()
            finally:
                self._end(listener)
        self.emitter.emit("outbox_relay_stopped", relay=self.name, sent=self.tally.sent)
        return self.tally

    def stop(self) -> None:
        """Begin to stop, from any thread or a signal handler. A second call does not wait for what is being sent."""
        self.asked = True
        self._wishes.put("stop")

    @property
    def ready(self) -> bool:
        """Do all of its loops work?"""
        return all(loop.ready for loop in self._loops)

    def _wish(self, timeout: float | None) -> str | None:
        try:
            return self._wishes.get(timeout=timeout)
        except queue.Empty:
            return None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def caught(number: int, _frame: object) -> None:
            self.stop()

        before = {number: signal.signal(number, caught) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _drain(self) -> None:
        """Claim no more, give back what has not begun, let what is being sent finish, and write it all."""
        claimer = self._loops[0]
        claimer.stop()
        self._ring()
        claimer.join(5)
        self._lanes.stop()
        until = time.monotonic() + self.options.grace
        while self._lanes.busy and time.monotonic() < until:
            if self._wish(0.02) is not None:
                break

    def _end(self, listener: Any) -> None:
        for loop in self._loops:
            loop.stop()
        self._lanes.stop()
        self._beat.set()
        self._ring()
        self._done.put(None)
        if listener is not None:
            listener.stop()
        for loop in self._loops:
            loop.join(5)
        self._lanes.close()
        assert self._bell is not None
        self._bell.close()
        self._loops, self._cycling = (), True
        while self._wish(0.0) is not None:  # whoever asked twice asked for this run, and not for the next one
            pass

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _make_bell(self) -> Bell:
        if self.db.is_sqlite and not self.db.memory:
            from duly.storage.sqlite import FileEar

            table = self.box.table.name
            ear = FileEar(self.db.url, f"SELECT max(seq) FROM sqlite_sequence WHERE name = '{table}'")
            return self.box.bells.add(Bell(LISTEN_STEP, ear.heard, ear.close))
        return self.box.bells.add(Bell())

    def _listener(self) -> Any:
        if self.db.is_sqlite or not self.db.prepares or not self.options.notify:
            return None
        from duly.storage.postgres import Listener

        def failed(error: BaseException) -> None:
            self.emitter.emit("listen_failed", "warning", error=brief(error))

        return Listener(self.db.url, lambda _channel: self._ring(), failed, channels=(CHANNEL,))

    # ------------------------------------------------------------------ claim

    def _claim_step(self) -> None:
        at_rest = not self._lanes.busy
        work, wait = self._claim()
        if work:
            self._idle.clear()
            self.tally.claimed += sum(len(unit.messages) for unit in work)
            self._lanes.dispatch(work, self._done)
        elif wait > 0:
            if at_rest and time.monotonic() > self._file_until:
                self._idle.set()
            assert self._bell is not None
            self._bell.wait(min(wait, self.options.poll))

    def _room(self, destination: str) -> int:
        room = self.options.batch if self._cycling else self._lanes.room(destination)
        return self.holds.room(destination, room, self._moment())

    def _mine(self, destination: str) -> bool:
        if destination.partition(":")[0] in self.box.transports:
            return True
        if destination not in self._stranded:
            self._stranded.add(destination)
            self.emitter.emit("outbox_stranded", "warning", relay=self.name, destination=destination)
        return False

    def _claim(self, now: datetime | None = None) -> tuple[list[Unit], float]:
        """Take up to ``batch`` messages, as they are to be sent; and seconds until it is worth looking again.

        The look is a read; a transaction that writes is begun only when there was something to take.
        """
        asked_at = time.monotonic()
        look = self.db.read(lambda c: self._looker.look(c, now) if self._is_online(c) else None)
        if look is None:
            self._lanes.put_back()
            return [], self.options.poll
        if look.empty:
            return [], look.wait
        self._lines_first = not self._lines_first
        taken = self.db.write(lambda c: self._take(c, look, now))
        # what was due and could not be had is in the hands of another relay at this moment
        return units(taken, asked_at), 0.0 if taken else CONTENDED

    def _is_online(self, connection: Connection) -> bool:
        """Is the gate of the application's database open for relays? A database that is not Duly's has none."""
        if not self.box.is_own:
            return True
        keys = (GATE_KEY, OUTBOX_GATE_KEY)
        found = connection.execute(select(system_state.c.key, system_state.c.value).where(system_state.c.key.in_(keys)))
        rows = {row.key: row.value for row in found}
        online = read_outbox_gate(rows.get(GATE_KEY), rows.get(OUTBOX_GATE_KEY))
        if online is self._gated:
            self._gated = not online
            self.emitter.emit("outbox_gate", "warning" if self._gated else "info", relay=self.name, online=online)
        return online

    def _take(self, connection: Connection, look: Look, now: datetime | None) -> list[Message]:
        token, lease, total, first = secrets.randbits(62), self.terms.seconds, self.options.batch, self._lines_first
        taken: list[Message] = []
        if look.heads:
            shared = {n: shares(look.rooms[n], first) if n in look.loose else look.rooms[n] for n in look.heads}
            in_turn = itertools.zip_longest(*(ids[: shared[n]] for n, ids in look.heads.items()))
            heads = [ident for turn in in_turn for ident in turn if ident is not None]
            most = shares(total, first) if look.loose else total
            if heads and most:
                taken = self.store.take_lines(connection, heads[:most], most, token, lease, self.name, now)
        lines = Counter(place[0] for place in {(m.destination, m.ordering_key) for m in taken})
        left, each = total - len(taken), -(-total // max(1, len(look.loose)))
        rooms = {n: min(each, look.rooms[n] - lines[n]) for n in look.loose if look.rooms[n] > lines[n]}
        if rooms and left > 0:
            taken += self.store.take(connection, rooms, left, token, lease, self.name, now)
        to_send, back = single_file(taken, self._lanes.has_suspect)
        if back:
            self.store.settle(connection, back, now)
            waits = [s.wait for s in back if s.wait is not None]
            self._file_until = max(self._file_until, time.monotonic() + max(waits, default=0.0))
        return to_send

    # ------------------------------------------------------------------ settle

    def _decide(self, message: Message, problem: BaseException | None) -> Settlement:
        now, dice = self._moment(), self._dice.random()
        if problem is None:
            self.holds.passed(message, now)
            return settle(message, None, self.policy)
        held = self.holds.failed(message, problem, now, dice)
        return settle(message, problem, self.policy, dice, describe(problem, self.db.clock.now()), held)

    def _settle_step(self) -> None:
        """Write what gathered while the last statement ran; what the database does not take is kept for the next turn."""
        if not self._unwritten:
            first = self._done.get()
            if first is None:
                return
            self._unwritten.append(first)
        while len(self._unwritten) < SETTLE_STEP:
            try:
                done = self._done.get_nowait()
            except queue.Empty:
                break
            if done is not None:
                self._unwritten.append(done)
        # a message that was lost and came back stands here twice: one after the other, or their answers could not be told apart
        batch = list({done.message.id: done for done in reversed(self._unwritten)}.values())
        report = self._write(batch)
        written = set(map(id, batch))
        self._unwritten = [done for done in self._unwritten if id(done) not in written]
        self.tally.add(report)

    def _write(self, batch: Sequence[Done], now: datetime | None = None) -> Report:
        """Write ends of attempts in one transaction, and tell them."""
        report = Report()
        if not batch:
            return report

        changes = self.holds.changes()

        def write(connection: Connection) -> set[int]:
            if changes and self.box.is_own:
                self.store.write_holds(connection, changes, self.name)
            held = self.store.settle(connection, [done.settlement for done in batch], now)
            parked = [done for done in batch if done.settlement.reason is not None and done.message.id in held]
            self._record(connection, [(done.message, done.settlement) for done in parked])
            return held

        try:
            with self._own_rows:
                held = self.db.write(write)
        except BaseException:
            self.holds.restore(changes)
            raise
        self._lanes.forget(batch)
        mine = [done for done in batch if done.message.id in held]
        for done in mine:
            name = _COUNTS[done.settlement.event]
            setattr(report, name, getattr(report, name) + 1)
        report.lost = len(batch) - len(mine)
        self._tell(mine, [done.message.id for done in batch if done.message.id not in held])
        if not self._lanes.busy or any(done.message.ordering_key is not None for done in mine):
            self._ring()  # what stands behind a head may go now
        return report

    def _record(self, connection: Connection, parked: Iterable[tuple[Message, Settlement]]) -> None:
        """Parking is audited where there is an audit trail."""
        if not self.box.audited:
            return
        for message, s in parked:
            meta = {"reason": s.reason, "attempts": message.attempts, "destination": message.destination}
            record(
                self.db, connection, actor=self.name, action=PARKED, entity="message", entity_id=message.id,
                tenant=message.tenant, level="error", meta=meta,
            )  # fmt: skip

    def _tell(self, mine: Sequence[Done], lost_ids: list[int]) -> None:
        took: dict[str, list[float]] = {}
        for done in mine:
            message, s = done.message, done.settlement
            if s.event == "send":
                took.setdefault(message.destination, []).append(round(done.took, 6))
            elif s.event == "fail":
                self.emitter.emit(
                    "outbox_failed", "warning", message=message.id, destination=message.destination, attempt=message.attempts,
                    max_attempts=self.policy.max_attempts, counted=s.counted, wait=s.wait, error=_kind(done.problem),
                )  # fmt: skip
            elif s.event == "park":
                self._alert(message, s, _kind(done.problem))
        for destination, each in took.items():
            self.emitter.emit("outbox_sent", "debug", destination=destination, count=len(each), took=each)
        if lost_ids:
            self.emitter.emit("outbox_lease_lost", "warning", relay=self.name, messages=lost_ids)

    def _alert(self, message: Message, s: Settlement, error: str) -> None:
        self.emitter.emit(
            "outbox_parked", "error", message=message.id, destination=message.destination, attempts=message.attempts, reason=s.reason,
            error=error,
        )  # fmt: skip

    # ------------------------------------------------------------------ leases

    def _heart_step(self) -> None:
        self._renew()
        for ident, destination, seconds in self._lanes.hanging(HANGS):
            self.emitter.emit(
                "outbox_hangs", "error", message=ident, destination=destination, seconds=round(seconds, 1)
            )
        rescued = self._rescue()
        if rescued:
            self.tally.rescued += rescued
            self._ring()
        if time.monotonic() >= self._prune_due:
            self._prune_due = time.monotonic() + PRUNE_EVERY
            self.box.prune()
        self._beat.wait(min(self.terms.renew_every, 10.0))

    def _renew(self, now: datetime | None = None) -> None:
        """Renew the leases of everything that is held here, and hear which of them are lost."""
        held, asked_at = self._lanes.held(), time.monotonic()
        for start in range(0, len(held), 1000):
            part = held[start : start + 1000]
            with self._own_rows:
                answer = self.db.write(lambda c, part=part: self.store.renew(c, part, self.terms.seconds, now))  # type: ignore[misc]
            self._lanes.renewed(part, answer, asked_at)

    def _rescue(self, now: datetime | None = None) -> int:
        """Take messages whose lease has lapsed from whoever held them. Returns how many."""
        asked, patience = time.monotonic(), self.terms.renew_every / 2

        def rescue(connection: Connection) -> list[tuple[Message, Settlement]]:
            if time.monotonic() - asked > patience:
                return []  # nobody could write for a while, so nobody could renew; who is alive does so now
            decided = [(m, lost(m, self.policy)) for m in self.store.lapsed(connection, now)]
            if decided:
                self.store.settle(connection, [s for _, s in decided], now)
                self._record(connection, [(m, s) for m, s in decided if s.event == "park"])
            return decided

        rescued = self.db.write(rescue)
        if rescued:
            messages = [m.id for m, _ in rescued]
            self.emitter.emit("outbox_rescued", "warning", relay=self.name, count=len(messages), messages=messages)
        for message, s in rescued:
            if s.event == "park":
                self._alert(message, s, "")
        return len(rescued)


def _kind(problem: BaseException | None) -> str:
    """An error as events carry it. Its text stays in the message's row: it may quote an address, or a token."""
    return "" if problem is None else word_of(problem)

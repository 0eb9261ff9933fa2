"""Holding reservations: asking for them, giving signs of life while they are held, and writing ends that could not be written.

One thread for each store, so that a store that does not answer takes no other's signs of life along; it renews everything
that is due in one batch. The threads are daemons, so that they never hold up the end of a program, and handlers cannot
block them (short of holding the interpreter lock for half a minute; then a redelivery may run beside them, and the token
keeps the late one from writing).
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from duly.idempotency.plan import Admit, Busy, Done, Mismatch
from duly.idempotency.reservation import Ask
from duly.idempotency.sql import SqlStore
from duly.idempotency.store import Doubtful, Holding, Store, StoreBusy, renew_all
from duly.idempotency.telling import Teller
from duly.kernel.backoff import Backoff
from duly.kernel.errors import StoreUnavailable, brief
from duly.kernel.events import Level
from duly.storage.deadline import WITHIN, Deadline

#: Between tries to write what a store did not take.
AGAIN = Backoff(base=1.0, factor=2.0, max=10.0)
#: The same where a handler's transaction keeps an SQLite file for itself (seconds).
SOON = 0.5
#: A thread that has had nothing to do for so many seconds ends.
IDLE = 60.0
#: When a call is to be made again whose store did not answer, by how often in a row it has not (T004-g).
BACKOFF = Backoff(base=1.0, factor=2.0, max=60.0, jitter=1.0)


class _Kept:
    """A holding and when it is due; after its end, what is still to be written."""

    __slots__ = ("due", "end", "gives_up", "holding", "of", "tries")

    def __init__(self, holding: Holding, due: float, of: weakref.ref[Any] | None = None) -> None:
        self.holding, self.due, self.of = holding, due, of
        self.end: Callable[[], bool] | None = None
        self.gives_up, self.tries = 0.0, 0


class _Loop:
    """The thread of one store."""

    def __init__(self) -> None:
        self.kept: dict[int, _Kept] = {}
        self.change = threading.Condition()
        self._thread: threading.Thread | None = None
        #: How often in a row the store has not answered.
        self.failures = 0

    def awake(self) -> None:
        """Called with ``change`` held."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="duly-idempotency", daemon=True)
            self._thread.start()
        self.change.notify()

    def _run(self) -> None:
        while True:
            with self.change:
                now = time.monotonic()
                # copies: what a garbage collection on this thread finds dropped has its end put here
                due = [kept for kept in list(self.kept.values()) if kept.due <= now]
                if not due:
                    wait = min((kept.due - now for kept in list(self.kept.values())), default=None)
                    if wait is None and not self.change.wait(IDLE) and not self.kept:
                        self._thread = None
                        return
                    if wait is not None:
                        self.change.wait(wait)
                    continue
            for kept in due:
                if kept.end is None and kept.of is not None and kept.of() is None:
                    self.let_go(kept.holding)  # dropped without an end; it lapses
            self._renew([kept for kept in due if kept.end is None and (kept.of is None or kept.of() is not None)])
            for kept in due:
                if kept.end is not None:
                    self._finish(kept)

    def _renew(self, due: list[_Kept]) -> None:
        if not due:
            return
        beat = min(kept.holding.terms.heartbeat.total_seconds() for kept in due)
        try:
            with due[0].holding.store.hurried():
                lost = renew_all([kept.holding for kept in due])
        except StoreBusy:
            # nobody can take over meanwhile either: that, too, is a write
            lost, beat = [], min(beat, SOON)
        except Exception as error:
            lost, beat = [], min(beat, AGAIN.base)
            _failed("warning" if isinstance(error, StoreUnavailable) else "error", due[0].holding, error)
        now = time.monotonic()
        for kept in due:
            kept.due = now + min(beat, kept.holding.terms.heartbeat.total_seconds())
        for holding in lost:
            self.let_go(holding)
            _teller(holding).emit("idempotency_lost", "warning")

    def _finish(self, kept: _Kept) -> None:
        assert kept.end is not None
        try:
            with kept.holding.store.hurried():
                kept.end()
        except StoreBusy:
            kept.due = time.monotonic() + SOON
            if kept.due <= kept.gives_up:
                return
            _unwritten(kept.holding)
        except Exception as error:
            _failed("warning" if isinstance(error, StoreUnavailable) else "error", kept.holding, error)
            kept.tries += 1
            kept.due = time.monotonic() + AGAIN.delay(kept.tries)
            if kept.due <= kept.gives_up:
                return
            _unwritten(kept.holding)
        self.let_go(kept.holding)

    def last_try(self, until: float) -> None:
        """The process ends: try again to write what is still to be written, until a monotonic instant."""
        with self.change:
            ending = [kept for kept in self.kept.values() if kept.end is not None]
            if not ending:
                return
            for kept in ending:
                kept.due, kept.gives_up, kept.tries = time.monotonic(), until, 0
            self.awake()
        while ending and time.monotonic() < until:
            time.sleep(0.01)
            with self.change:
                ending = [kept for kept in ending if id(kept.holding) in self.kept]
        for kept in ending:
            _unwritten(kept.holding)

    def let_go(self, holding: Holding) -> None:
        with self.change:
            self.kept.pop(id(holding), None)


def _failed(level: Level, holding: Holding, error: Exception) -> None:
    _teller(holding).emit("idempotency_store_failed", level, error=brief(error))


def _unwritten(holding: Holding) -> None:
    """Its end is on record nowhere: the key stays in progress until it lapses, and then the body runs again."""
    _teller(holding).emit("idempotency_unwritten", "error")


def _teller(holding: Holding) -> Teller:
    return Teller(holding.reservation.task, holding.reservation.key)


class Keeper:
    """Everything that is held in this process."""

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[Store, _Loop] = weakref.WeakKeyDictionary()
        #: How long commits wait for the writes of each store.
        self._deadlines: weakref.WeakKeyDictionary[Store, Deadline] = weakref.WeakKeyDictionary()
        #: Reentrant: a session that is dropped ends its key wherever that is found out, here too.
        self._lock = threading.RLock()

    def _loop(self, store: Store) -> _Loop:
        with self._lock:
            return self._loops.setdefault(store, _Loop())

    def reserve(self, store: Store, ask: Ask) -> Holding | Done | Busy | Mismatch:
        """Ask a store. A ``Holding`` means: run the body; it is renewed from now on, until its end or ``let_go``.

        Raises StoreUnavailable. If it is not known then whether the reservation was written, it is given back as soon as the
        store answers, so that nobody has to wait for a lock that nobody holds.
        """
        loop = self._loop(store)
        try:
            decision = store.reserve(ask)
        except StoreUnavailable as error:
            loop.failures += 1
            error.after = BACKOFF.delay(loop.failures, random.random())  # noqa: S311
            if isinstance(error, Doubtful):
                holding = Holding(store, error.reservation, ask.terms)
                self.end_later(holding, holding.release)
            raise
        loop.failures = 0
        if not isinstance(decision, Admit):
            return decision
        holding = Holding(store, decision.reservation, ask.terms, decision.took_over)
        self.keep(holding)
        return holding

    def join(self, store: Store, ask: Ask) -> Holding | Done | Busy | Mismatch:
        """The same in the transaction of somebody who calls: it gives no signs of life, which nobody would see before the commit."""
        decision = store.reserve(ask)
        if not isinstance(decision, Admit):
            return decision
        return Holding(store, decision.reservation, ask.terms, decision.took_over)

    def keep(self, holding: Holding, of: weakref.ref[Any] | None = None) -> None:
        """Renew from now on; no longer than the object that ``of`` refers to is there."""
        loop = self._loop(holding.store)
        with loop.change:
            due = time.monotonic() + holding.terms.heartbeat.total_seconds()
            loop.kept[id(holding)] = _Kept(holding, due, of)
            loop.awake()

    def let_go(self, holding: Holding) -> None:
        """Renew no longer."""
        self._loop(holding.store).let_go(holding)

    def end_later(self, holding: Holding, end: Callable[[], bool]) -> None:
        """Write an end on the store's own thread, now or as soon as the store takes it, as long as it is worth remembering.

        Once the lock has lapsed somebody else may have begun; then nothing is written.
        """
        loop, now = self._loop(holding.store), time.monotonic()
        with loop.change:
            kept = loop.kept.setdefault(id(holding), _Kept(holding, now))
            kept.end, kept.due = end, now
            kept.gives_up = now + (holding.terms.lock + holding.terms.keep).total_seconds()
            loop.awake()

    def within(self, holding: Holding, write: Callable[[], None], later: Callable[[], None]) -> None:
        """Write an end while a commit waits, and no longer than it should; ``later`` where too many wait for that store already.

        An SQLite file has a limit of its own (``busy_timeout``).
        """
        store = holding.store
        if isinstance(store, SqlStore) and store.db.is_sqlite:
            write()
            return
        with self._lock:
            deadline = self._deadlines.setdefault(store, Deadline())
        if deadline.run(write, lambda: _unwritten(holding)) == "refused":
            later()

    def last_try(self, seconds: float = WITHIN) -> None:
        """The process ends in good order: what is still to be written is tried again for a moment, and told where it cannot be."""
        until = time.monotonic() + seconds
        with self._lock:
            loops = list(self._loops.values())
        for loop in loops:
            loop.last_try(until)

    @property
    def holdings(self) -> list[Holding]:
        """What is held here, or waits for its end to be written."""
        with self._lock:
            loops = list(self._loops.values())
        return [kept.holding for loop in loops for kept in list(loop.kept.values())]

    @property
    def count(self) -> int:
        """How many are held or waiting for their end."""
        return len(self.holdings)


KEEPER = Keeper()


def _after_fork() -> None:
    # the threads are gone in the child, and what the parent holds is the parent's
    KEEPER.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: KEEPER.last_try())

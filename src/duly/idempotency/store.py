"""Where reservations are kept. Three primitives make a store: read, insert if nobody did, replace if nobody else did.

Everything else is written once, here, on top of them: read, decide, and write what was decided if what was read still
stands; otherwise look again. A store that does not answer raises StoreUnavailable.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from duly.clock import SystemClock
from duly.idempotency.default import default_store
from duly.idempotency.plan import Admit, Decision, decide
from duly.idempotency.reservation import Ask, Reservation, State, Terms
from duly.kernel.backoff import Backoff
from duly.kernel.clock import Clock
from duly.kernel.errors import InvalidArgument, StoreUnavailable

#: Rounds of look, decide, write. Each lost round means that somebody else won one.
ROUNDS = 100
#: Between looks of a duplicate that waits for the first call to end.
LOOK = Backoff(base=0.05, factor=2.0, max=1.0)


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which reservations are meant. All that is given must hold."""

    tenant: str | None = None
    task: str | None = None
    state: State | None = None
    #: Nothing was heard of them for so long.
    older_than: timedelta | None = None

    def fits(self, r: Reservation, now: datetime) -> bool:
        return (
            r.lives(now)
            and self.tenant in (None, r.tenant)
            and self.task in (None, r.task)
            and self.state in (None, r.state)
            and (self.older_than is None or r.seen_at <= now - self.older_than)
        )


def unknown_cursor() -> InvalidArgument:
    return InvalidArgument("cursor", "is not valid.", "Use the cursor of the previous page, or leave it out.")


class Store(ABC):
    """Reservations of every tenant. Safe to use from many threads. Every method may raise StoreUnavailable."""

    # ------------------------------------------------------------------ what a store must be able to do

    @abstractmethod
    def read(self, tenant: str, key: str) -> tuple[Reservation | None, datetime]:
        """What is remembered of a key, and the store's present instant."""

    @abstractmethod
    def insert(self, new: Reservation) -> bool:
        """Write a reservation where there is none. False when there is one."""

    @abstractmethod
    def replace(self, old: Reservation, new: Reservation | None) -> bool:
        """Write ``new`` (None: forget) where exactly ``old`` stands. False when something else does."""

    def replace_many(self, pairs: Sequence[tuple[Reservation, Reservation]]) -> list[bool]:
        """``replace`` for many: which of them were written. A store that can do it in one go should."""
        return [self.replace(old, new) for old, new in pairs]

    def instant(self, start: datetime, elapsed: float) -> datetime:
        """The present by the store's clock, ``elapsed`` seconds after it was ``start``. No round trip."""
        return start + timedelta(seconds=elapsed)

    def prune(self) -> int:
        """Forget what need not be remembered any longer. Returns how many."""
        return 0

    def find(self, wanted: KeyFilter, limit: int, cursor: str | None = None) -> tuple[list[Reservation], str | None]:
        """Reservations that are remembered, and the cursor of the next page; None on the last one.

        Raises InvalidArgument where the store cannot list, or for a cursor that it has not given out.
        """
        raise InvalidArgument("store", f"is a {type(self).__name__}, which cannot list its keys.")

    def would_wait_for_caller(self, blocking: bool) -> bool:
        """Would a write wait for a transaction that only its own caller can end? ``blocking``: he keeps his thread meanwhile."""
        return False

    def hurried(self) -> contextlib.AbstractContextManager[None]:
        """Within, on this thread, a write that would have to wait for somebody else's raises StoreBusy instead."""
        return contextlib.nullcontext()

    def close(self) -> None:  # noqa: B027 (a store without connections has nothing to do)
        """Let go of connections."""

    # ------------------------------------------------------------------ what follows from that

    def reserve(self, ask: Ask) -> Decision:
        """Ask to do what a key names. An ``Admit`` is written: its holder runs the body, renews, and says how it ended.

        Raises StoreUnavailable, as Doubtful when it is not known whether the reservation was written.
        """
        for _ in range(ROUNDS):
            found, now = self.read(ask.tenant, ask.key)
            decision = decide(found, ask, now)
            if not isinstance(decision, Admit):
                return decision
            new = decision.reservation
            try:
                if self.insert(new) if found is None else self.replace(found, new):
                    return decision
            except StoreBusy:
                raise
            except StoreUnavailable as error:
                raise Doubtful(error.problem, new) from error
        raise StoreUnavailable("the reservation kept changing hands")

    def look(self, tenant: str, key: str) -> Reservation | None:
        """What is remembered of a key; None when nothing is."""
        found, now = self.read(tenant, key)
        return found if found is not None and found.lives(now) else None


class StoreBusy(StoreUnavailable):
    """Somebody else keeps the store from taking writes. Nothing was written."""


class Doubtful(StoreUnavailable):
    """The store did not answer to the write of ``reservation``: it may stand there, or not."""

    def __init__(self, problem: str, reservation: Reservation) -> None:
        super().__init__(problem)
        self.reservation = reservation


class Holding:
    """A reservation that is held here, from its admission to its end. Safe to use from two threads.

    ``took_over``: it took the place of a holder that was taken for dead.
    """

    def __init__(self, store: Store, reservation: Reservation, terms: Terms, took_over: bool = False) -> None:
        self.store, self.terms, self.took_over = store, terms, took_over
        self._now = reservation
        self._start, self._began = reservation.seen_at, time.monotonic()
        #: A write was not answered, so what stands there may be newer than what is known here.
        self._doubtful = False
        self._lock = threading.Lock()
        #: False once somebody else has it, or once it has ended.
        self.held = True
        #: Its end was written from here, or is in the hands of `through`.
        self.ended = False

    @property
    def reservation(self) -> Reservation:
        return self._now

    def renew(self) -> bool:
        """Give a sign of life. False when it is held no longer."""
        with self._lock:
            return self.held and self._write(self._now.renewed(self.terms, self._instant()))

    def succeed(self, result: str | None) -> bool:
        """The body has done its work. False when somebody else had taken over: nothing is written then."""
        with self._lock:
            return self.held and self._end(self._now.succeeded(self.terms, self._instant(), result))

    def fail(self, error: str | None) -> bool:
        """The body has failed; whoever comes next may try."""
        with self._lock:
            return self.held and self._end(self._now.failed(self.terms, self._instant(), error))

    def release(self) -> bool:
        """As if it had never begun (T004-f)."""
        with self._lock:
            return self.held and self._end(None)

    def through(self, store: Store) -> Holding:
        """The same reservation, to be ended through another store: one that writes in a session's transaction.

        Nothing is written from here until ``resume``; a renewal that is on its way is waited for.
        """
        with self._lock:
            twin = Holding(store, self._now, self.terms, self.took_over)
            twin._start, twin._began, twin._doubtful, twin.held = self._start, self._began, self._doubtful, self.held
            self.held, self.ended = False, True
            return twin

    def resume(self) -> None:
        """What was written through another store came to nothing: whether it is held still will be seen at the next write."""
        with self._lock:
            self.held, self.ended = True, False

    def again(self, store: Store, reservation: Reservation) -> None:
        """What was held has gone with somebody's transaction, and was reserved again."""
        with self._lock:
            self.store, self._now = store, reservation
            self._start, self._began = reservation.seen_at, time.monotonic()
            self._doubtful, self.held, self.ended = False, True, False

    def _end(self, new: Reservation | None) -> bool:
        held = self._write(new)
        self.held, self.ended = False, True
        return held

    def _write(self, new: Reservation | None) -> bool:
        try:
            written = self.store.replace(self._now, new) or (self._doubtful and self._was_written(new))
        except StoreBusy:
            raise
        except StoreUnavailable:
            self._doubtful = True
            raise
        self._doubtful = False
        if written:
            self._now = new or self._now
        else:
            self.held = False
        return written

    def _was_written(self, new: Reservation | None) -> bool:
        """What stands there is not what was last known. It may be our own, whose answer was lost after the write was done."""
        found, _ = self.store.read(self._now.tenant, self._now.key)
        if found is None:
            return new is None
        if found.token != self._now.token:
            return False
        if found.state is State.IN_PROGRESS:
            return self.store.replace(found, new)
        return new is not None and found.state is new.state

    def _instant(self) -> datetime:
        return self.store.instant(self._start, time.monotonic() - self._began)


@dataclass(frozen=True, slots=True)
class End:
    """How a body ended: the state that its key gets (None: as if it had never begun), and what writes it."""

    state: State | None
    write: Callable[[Holding], bool]
    #: What a success records, as JSON text.
    result: str | None = None


def renew_all(holdings: Sequence[Holding]) -> list[Holding]:
    """Give a sign of life of many holdings of one store, in one batch. Returns those that are held no longer.

    Raises StoreUnavailable: then it is not known, and all of them are still held as far as anybody knows here.
    """
    # a holding that is ending just now is busy with its own write, and needs none
    taken = [h for h in holdings if h._lock.acquire(blocking=False)]
    try:
        held = [h for h in taken if h.held]
        pairs = [(h._now, h._now.renewed(h.terms, h._instant())) for h in held]
        try:
            answers = held[0].store.replace_many(pairs) if held else []
        except StoreBusy:
            raise
        except StoreUnavailable:
            for h in held:
                h._doubtful = True
            raise
        for h, (_, new), written in zip(held, pairs, answers, strict=True):
            if written:
                h._now = new
            else:
                h._write(new)  # an answer was lost before, or the reservation is
        return [h for h in taken if not h.held and not h.ended]
    finally:
        for h in taken:
            h._lock.release()


class MemoryStore(Store):
    """Reservations in this process, for tests."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._kept: dict[tuple[str, str], Reservation] = {}
        self._lock = threading.Lock()

    def read(self, tenant: str, key: str) -> tuple[Reservation | None, datetime]:
        with self._lock:
            return self._kept.get((tenant, key)), self.clock.now()

    def instant(self, start: datetime, elapsed: float) -> datetime:
        return self.clock.now()

    def insert(self, new: Reservation) -> bool:
        with self._lock:
            return self._kept.setdefault((new.tenant, new.key), new) is new

    def replace(self, old: Reservation, new: Reservation | None) -> bool:
        with self._lock:
            place = (old.tenant, old.key)
            if self._kept.get(place) != old:
                return False
            if new is None:
                del self._kept[place]
            else:
                self._kept[place] = new
            return True

    def find(self, wanted: KeyFilter, limit: int, cursor: str | None = None) -> tuple[list[Reservation], str | None]:
        with self._lock:
            now = self.clock.now()
            found = [kept for place, kept in sorted(self._kept.items()) if wanted.fits(kept, now)]
        start = 0 if cursor is None else int(cursor) if cursor.isascii() and cursor.isdigit() else -1
        if start < 0:
            raise unknown_cursor()
        return found[start : start + limit], str(start + limit) if len(found) > start + limit else None

    def prune(self) -> int:
        with self._lock:
            now = self.clock.now()
            gone = [place for place, kept in self._kept.items() if not kept.lives(now)]
            for place in gone:
                del self._kept[place]
            return len(gone)


def store_finder(store: Store | Callable[[], Store] | None) -> Callable[[], Store]:
    """A function that gives the store: the one named, the one a function gives when it is first needed, or the default.

    Raises InvalidArgument for anything else.
    """
    if store is None:
        return default_store
    if isinstance(store, Store):
        return lambda: store
    if not callable(store):
        raise InvalidArgument(
            "store", f"is of type {type(store).__name__}; it must be a Store, or a function that gives one."
        )
    lock = threading.Lock()
    made: list[Store] = []

    def found() -> Store:
        with lock:  # two first calls at once must not make two stores
            if not made:
                made.append(store())
            return made[0]

    return found

"""What a worker knows: its lanes, what it holds, what it has done. Shared by the loop and the storage threads.

``_held`` and the counts of the lanes that both sides change (``outstanding``, ``transit``) are touched under ``_lock``.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import random
import secrets
import socket
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.jobs.claim import Lane
from duly.jobs.copies import Copied
from duly.jobs.engine import Engine
from duly.jobs.handover import HOLDER, never_begun
from duly.jobs.loops import Loop, Threads
from duly.jobs.run import Reason, Run
from duly.kernel.errors import InvalidArgument
from duly.kernel.lease import LeaseTerms

if TYPE_CHECKING:
    from duly.jobs.house import Housekeeper
    from duly.jobs.processes import Children

#: The most threads for plain handlers in one worker.
MAX_THREADS = 64
#: The most jobs taken at once. On SQLite nobody else writes meanwhile, so there are fewer.
BATCH_SQLITE, BATCH_POSTGRES = 500, 1000


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
    #: Times that a job was put back because its input cannot be read here.
    unreadable: int = 0

    def add(self, **counts: int) -> None:
        """Count so many more. Several threads of a worker do."""
        with _ADDING:
            for name, more in counts.items():
                setattr(self, name, getattr(self, name) + more)


_ADDING = threading.Lock()


class WorkerState:
    """The facts of one worker."""

    house: Housekeeper
    #: The storage threads. ``_claimer.stopping`` tells everybody that no more is to be claimed.
    _claimer: Loop
    _settler: Loop

    def __init__(self, engine: Engine, queues: Mapping[str, int], name: str | None = None) -> None:
        if not queues:
            raise InvalidArgument("queues", "is empty.", "Name at least one queue.")
        for queue_name, n in queues.items():
            if n < 1:
                raise InvalidArgument(f"queues[{queue_name}]", f"is {n}; at least 1 is needed.")
        if never_begun(name):
            raise InvalidArgument(
                "name", f"begins with {HOLDER!r}, as only names of dispatchers do.", "Choose another."
            )
        self.engine = engine
        self.db, self.settings, self.emitter = engine.db, engine.settings, engine.emitter
        self.clock = engine.clock
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.terms = LeaseTerms(self.settings.lease)
        #: The most jobs taken, and settled, at once.
        self.batch = self.settings.claim_batch or (BATCH_SQLITE if self.db.is_sqlite else BATCH_POSTGRES)
        self.lanes = {q: Lane(q, n, self.batch) for q, n in queues.items()}
        self.tally = Tally()
        #: What the code of this worker declares, for its row: name → a mark of the definition.
        self.declares: dict[str, str] = {}
        self.state = "starting"
        self._lock = threading.Lock()
        self._held: dict[int, Run] = {}
        #: Runs that ended and are to be settled, and those of the last batch that had to stand back.
        self._over: deque[Run] = deque()
        self._carry: list[Run] = []
        #: Since the first of them ended, the loop's turn has ended, or a batch is full: the settler need not wait for more.
        self._turned = threading.Event()
        #: Set when the first of them ends.
        self._settler_bell = threading.Event()
        self._rang = False
        self._bell = self.db.bell()
        self._beat = threading.Event()
        #: One claim at a time in this worker, so that room is not given twice.
        self._claiming = threading.Lock()
        #: Settling and claiming share a transaction (SQLite, while the loops run).
        self._fused = False
        #: The settler is writing; the claimer waits for the end of that.
        self._writing = self._yielding = False
        #: Batches settled so far, and how many there were when the claimer last waited for one.
        self._batches, self._waited_at = 0, -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = Threads(min(MAX_THREADS, max(1, sum(queues.values()))))
        #: Is this a copy of the worker that a handler has forked?
        self._copied = Copied()
        #: Why there are fewer threads than are wanted, until there are enough.
        self._thread_problem = ""
        self._children: Children | None = None  # made for the first handler in a process
        self._dice = random.Random()  # noqa: S311
        self._stopped: asyncio.Event | None = None
        self._stop_now: asyncio.Event | None = None
        #: The context in which each handler starts: that of whoever started the worker.
        self._context = contextvars.copy_context()
        self._deadlines = 0
        self._turning, self._turn_until = False, 0.0
        self._lend_at = 0.0
        self._sweeping = False
        self._quiet = threading.Event()
        self._until_idle: float | None = None
        #: It ends because nothing is left.
        self._idled = False
        self._next_due: float = 0.0  # monotonic instant of the next promotion worth making

    @property
    def _exchanges(self) -> bool:
        """Does whoever settles claim as well, so that no end of a run need call the claimer?"""
        return self._fused and not self.house.governed

    def held(self) -> list[Run]:
        """What this worker holds at this moment."""
        with self._lock:
            return list(self._held.values())

    def interrupt_soon(self, runs: list[Run], reason: Reason) -> None:
        """Interrupt runs, from any thread."""

        def interrupt() -> None:
            for run in runs:
                run.interrupt(reason)

        if runs and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(interrupt)

"""Signs of life: one thread renews every reservation that is held in this process, and writes ends that could not be written.

It is a daemon thread, so that it never holds up the end of a program, and handlers cannot block it (short of holding the
interpreter lock for half a minute; then a redelivery may run beside them, and the token keeps the late one from writing).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from duly.idempotency.store import Holding
from duly.kernel.errors import StoreUnavailable, brief
from duly.kernel.events import PROCESS, Level


class _Kept:
    """A holding and when it is due; after its end, what is still to be written."""

    __slots__ = ("due", "end", "gives_up", "holding")

    def __init__(self, holding: Holding, due: float) -> None:
        self.holding, self.due = holding, due
        self.end: Callable[[], bool] | None = None
        self.gives_up = 0.0


class Keeper:
    """Renews holdings until they are let go."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, holding: Holding) -> None:
        """Renew from now on."""
        beat = holding.terms.heartbeat.total_seconds()
        with self._change:
            self._kept[id(holding)] = _Kept(holding, time.monotonic() + beat)
            self._awake()

    def let_go(self, holding: Holding) -> None:
        """Renew no longer."""
        with self._change:
            self._kept.pop(id(holding), None)

    def end_later(self, holding: Holding, end: Callable[[], bool]) -> None:
        """Write an end that the store did not take now, as soon as it does; until then the reservation is kept alive."""
        now = time.monotonic()
        with self._change:
            kept = self._kept.setdefault(id(holding), _Kept(holding, now))
            kept.end, kept.due = end, now + 1.0
            kept.gives_up = now + holding.terms.lock.total_seconds()
            self._awake()

    @property
    def count(self) -> int:
        """How many are held or waiting for their end."""
        with self._change:
            return len(self._kept)

    def _awake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="duly-idempotency", daemon=True)
            self._thread.start()
        self._change.notify()

    def _run(self) -> None:
        while True:
            with self._change:
                now = time.monotonic()
                due = [kept for kept in self._kept.values() if kept.due <= now]
                if not due:
                    wait = min((kept.due - now for kept in self._kept.values()), default=None)
                    if wait is None and not self._change.wait(60) and not self._kept:
                        self._thread = None  # nothing to do for a minute
                        return
                    if wait is not None:
                        self._change.wait(wait)
                    continue
            for kept in due:
                self._serve(kept)

    def _serve(self, kept: _Kept) -> None:
        holding = kept.holding
        beat = holding.terms.heartbeat.total_seconds()
        finished = False
        try:
            finished = kept.end() is not None if kept.end is not None else not holding.renew()
            if finished and kept.end is None:
                reservation = holding.reservation
                PROCESS.emit("idempotency_lost", "warning", task_name=reservation.task, idempotency_key=reservation.key)
        except StoreUnavailable as error:
            self._failed("warning", holding, error)
            beat = min(beat, 1.0)
        except Exception as error:
            self._failed("error", holding, error)
        kept.due = time.monotonic() + beat
        if finished or (kept.end is not None and kept.due > kept.gives_up):
            self.let_go(holding)

    def _failed(self, level: Level, holding: Holding, error: Exception) -> None:
        r = holding.reservation
        PROCESS.emit("idempotency_store_failed", level, task_name=r.task, idempotency_key=r.key, error=brief(error))


KEEPER = Keeper()


def _after_fork() -> None:
    # the thread is gone in the child, and what the parent holds is the parent's
    with contextlib.suppress(Exception):
        KEEPER.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)

"""How much to claim. A lane is one queue as one worker serves it; ``Lane.room`` is a pure answer from its counts.

A claim never takes more than can start soon: the free slots, and on queues that nothing governs a prefetch that lasts a
tenth of a second at the pace the lane has shown. A backlog of short jobs is therefore claimed in hundreds, long jobs one
by one, without anybody setting a number.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

#: The prefetch lasts this many seconds at the present pace.
HORIZON = 0.1
#: Fewer ends than this say nothing of the pace before that time has passed.
FEW = 8
#: Without a free slot, less than this part of a claim is not worth asking for: what a claim costs hardly depends on its size.
WORTH = 0.5
#: So many batches may be claimed and not settled, beside what runs.
AHEAD = 3
#: A prefetched job that has not started after this many seconds is given back.
STALE = 1.0


@dataclass(slots=True)
class Lane:
    """One queue as this worker serves it. Changed on the event loop's thread; ``outstanding`` under the worker's lock."""

    name: str
    concurrency: int
    batch: int
    #: Running now.
    running: int = 0
    #: Claimed and not started yet: (run, monotonic instant of the claim).
    buffer: deque[tuple[Any, float]] = field(default_factory=deque)
    #: Claimed, and on the way from the claim thread to the loop.
    transit: int = 0
    #: Claimed and not settled yet.
    outstanding: int = 0
    #: Jobs are being started at this moment.
    pumping: bool = False
    #: Runs that ended, ever, and at the last look.
    ended: int = 0
    seen_ended: int = 0
    seen_at: float = 0.0
    #: Runs ended per second, smoothed.
    pace: float = 0.0
    #: When no more than so many are running and waiting here, the claimer is called.
    call_at: int = 0
    #: A claim on the queue must look closely (see queues.py).
    governed: bool = False
    #: When a blackout of the queue begins, or was seen to have begun: not before the one monotonic instant and not after the other,
    #: for the database's clock is known through a round trip. What was claimed until then and has not started is given back.
    closes_at: float = math.inf
    closed_by: float = math.inf
    #: The queue is limited: what is held here is missing elsewhere, so there is no prefetch.
    tight: bool = False

    def next_on_loop(self) -> tuple[Any, Any] | None:
        """Take (run, task) of the next prefetched job if it belongs on the event loop and there is a slot for it."""
        if not self.buffer or self.running >= self.concurrency:
            return None
        run = self.buffer[0][0]
        if run.task is None or run.task.run_in != "loop":
            return None
        self.buffer.popleft()
        self.running += 1
        return run, run.task

    def look(self, now: float) -> None:
        """Take note of the pace. ``now`` is monotonic."""
        elapsed, ended = now - self.seen_at, self.ended - self.seen_ended
        if elapsed < 0.02 or (elapsed < HORIZON and ended < FEW):
            return  # one long job that ended a moment after the last look is no pace
        self.pace = 0.5 * self.pace + 0.5 * ended / elapsed
        self.seen_ended, self.seen_at = self.ended, now
        self.take_stock()

    def take_stock(self) -> None:
        """Set ``call_at`` from the pace."""
        depth = self._depth()
        self.call_at = self.concurrency + depth - max(1, self._worth(depth))

    def _depth(self) -> int:
        """How many jobs to hold beyond the free slots: two claims deep, so that one is on its way while the other is worked off."""
        return 0 if self.tight else min(2 * self.batch, int(self.pace * HORIZON))

    def _worth(self, depth: int) -> int:
        """Less is not worth a claim while no slot is free."""
        return int(min(depth, self.batch) * WORTH)

    def room(self) -> int:
        """How many jobs to ask for now; 0 while it is not worth asking."""
        waiting = self.running + len(self.buffer) + self.transit
        free = self.concurrency - waiting
        depth = self._depth()
        # a long line of unsettled jobs means that storage is behind: more claims would not help
        want = min(free + depth, self.batch, self.concurrency + AHEAD * self.batch - self.outstanding)
        if free <= 0 and want < self._worth(depth):
            return 0  # enough is at hand; a larger claim costs less
        return max(0, want)

"""``/api/v1/events``: changes as they happen, as server-sent events.

What happened is read from the audit trail, so it does not matter which process did it: a worker, another web server, the command line. An
event says what changed and not how; who wants to know looks there. A client that comes back with ``Last-Event-ID`` misses nothing: the id
says how far the trail was told, and which rows before that were not committed yet (case B043).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import Header
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from duly.accounts.account import Identity
from duly.accounts.door import Accounts
from duly.app import Duly
from duly.audit.read import Entry, follow, newest
from duly.audit.seal import gaps_between
from duly.kernel.errors import DulyError, InvalidArgument
from duly.kernel.payload import MOST_ID
from duly.web.api.common import TenantIn, router, whose
from duly.web.identity import Standing, needs
from duly.web.problems import documented, problem

Reader: TypeAlias = Annotated[Identity, needs("audit")]
#: Streams of one process at once: each asks the database once a second. And of them, those of one tenant, or of one who belongs to none.
MOST_STREAMS, EACH = 100, 20
#: Seconds between two looks at the trail; without an event, between two comments that say the stream lives; and after which it ends.
EVERY, BEAT, LONGEST = 1.0, 15.0, 600.0
#: Rows of one look.
ROWS = 500
#: Ranges of ids that were passed by are looked for again for so many seconds, and so many of them at the most.
LATE, MOST_GAPS = 60.0, 50
#: Rows that are told to who comes back; who missed more looks at everything anew.
MOST_BEHIND = 10_000


@dataclass
class Place:
    """How far the trail was told."""

    last: int
    #: Ranges of ids before it that were not there yet (first, last), and until when (monotonic seconds) they are looked for.
    gaps: dict[tuple[int, int], float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``120``, or ``120.100-109.118-118`` with the gaps behind."""
        return ".".join([str(self.last), *(f"{first}-{end}" for first, end in self.gaps)])

    @classmethod
    def read(cls, name: str, now: float) -> Place:
        """Raises InvalidArgument."""
        head, *ranges = name.strip().split(".")
        pairs = [one.split("-") for one in ranges]
        numbers = [head, *(number for pair in pairs for number in pair)]
        known = all(n.isascii() and n.isdigit() and len(n) < 20 and int(n) <= MOST_ID for n in numbers)
        if not known or len(pairs) > MOST_GAPS or any(len(pair) != 2 for pair in pairs):
            raise InvalidArgument(
                "last-event-id", "is none that was given out.", "Leave it out to begin with the present."
            )
        return cls(int(head), {(int(first), int(end)): now + LATE for first, end in pairs})

    def told(self, rows: Sequence[Entry], now: float) -> None:
        """Rows were read, in the order of their ids."""
        ids = [row.id for row in rows]
        left: dict[tuple[int, int], float] = {}
        for (first, end), until in self.gaps.items():
            if until > now:
                inside = ids[bisect_left(ids, first) : bisect_right(ids, end)]
                left |= dict.fromkeys(gaps_between(first, end, inside), until)
        fresh = ids[bisect_right(ids, self.last) :]
        if fresh:
            left |= dict.fromkeys(gaps_between(self.last + 1, fresh[-1], fresh), now + LATE)
            self.last = fresh[-1]
        self.gaps = dict(sorted(left.items())[-MOST_GAPS:])


async def frames(
    look: Callable[[Place], Sequence[Entry]], place: Place, tenant: str | None, clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Any] = asyncio.sleep, fresh: bool = False, standing: Standing | None = None,
) -> AsyncIterator[bytes]:  # fmt: skip
    """What is sent. ``look`` reads the rows behind a place; those of other tenants than ``tenant`` move the place and are not told.

    ``fresh``: the place is not the one that was asked for, which is too far behind. ``standing``: it ends when who listens may no more.
    """
    begun = beat = clock()
    # who was away for too long is told to look at everything anew
    reset = "event: reset\ndata: {}\n" if fresh else ""
    yield f"retry: 3000\nid: {place.name}\n{reset}\n".encode()
    while clock() - begun < LONGEST:
        try:
            if standing is not None and not await standing.holds():
                return
            rows = await run_in_threadpool(look, place)
        except DulyError:
            return  # the database is away: the client comes back, and is told so
        place.told(rows, clock())
        mine = [row for row in rows if tenant in (None, row.tenant)]
        for row in mine:
            said = {
                "id": row.id,
                "action": row.action,
                "entity": row.entity,
                "entity_id": row.entity_id,
                "tenant": row.tenant,
            }
            # until all of these are told, who comes back begins before them
            name = place.name if row is mine[-1] else None
            yield _frame(orjson.dumps(said), name)
            beat = clock()
        if len(rows) == ROWS:
            continue
        if clock() - beat >= BEAT:
            yield f": alive\nid: {place.name}\n\n".encode()
            beat = clock()
        await pause(EVERY)


def _frame(data: bytes, name: str | None) -> bytes:
    head = b"" if name is None else f"id: {name}\n".encode()
    return head + b"event: change\ndata: " + data + b"\n\n"


class Seats:
    """How many streams there are, and whose."""

    def __init__(self, most: int = MOST_STREAMS, each: int = EACH) -> None:
        self.most, self.each, self.taken = most, each, Counter[str]()

    @contextlib.contextmanager
    def one(self, owner: str) -> Iterator[str]:
        """Take one. Says why there is none, where all are taken, or all that one may have. On the event loop only."""
        if self.taken.total() >= self.most:
            yield f"There are {self.most} streams already."
            return
        if self.taken[owner] >= self.each:
            yield f"{self.each} of them are yours already, and one gets no more."
            return
        self.taken[owner] += 1
        try:
            yield ""
        finally:
            self.taken[owner] -= 1
            self.taken += Counter()  # who has none is forgotten


class Stream(StreamingResponse):
    """Server-sent events to somebody who got a seat; 429 to who did not."""

    def __init__(self, content: AsyncIterator[bytes], seats: Seats, who: Identity) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._seats, self._owner = seats, f"tenant {who.tenant}" if who.tenant is not None else who.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._seats.one(self._owner) as full:
            if full:
                await problem(429, full, headers={"Retry-After": "10"})(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)


def routes(app: Duly) -> Any:
    made, seats, accounts = router("audit"), Seats(), Accounts(app)

    @made.get(
        "/events", response_class=StreamingResponse,
        responses={200: {"description": "A stream of events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}, **documented(429)},
    )  # fmt: skip
    def events(
        who: Reader, tenant: TenantIn = None, last_event_id: Annotated[str | None, Header(max_length=2400, description="The id of the last event that was seen: goes on behind it.")] = None,
    ) -> Stream:  # fmt: skip
        """Changes as they happen: events ``change`` with ``{id, action, entity, entity_id, tenant}``, from now on or from ``Last-Event-ID`` on.

        A comment every 15 seconds says that the stream lives. It ends after ten minutes, and within seconds when who listens may no more; a
        browser's EventSource comes back by itself. Who has missed more than ten thousand changes gets an event ``reset``, and is to look anew. An event can
        come twice.
        """
        present = app._read(newest)
        asked = Place.read(last_event_id, time.monotonic()) if last_event_id else None
        fresh = asked is not None and not present - MOST_BEHIND <= asked.last <= present
        place = Place(present) if asked is None or fresh else asked
        return Stream(
            frames(lambda at: app._read(lambda c: follow(c, at.last, tuple(at.gaps), ROWS)), place, whose(who, tenant), fresh=fresh, standing=Standing(accounts, who)), seats, who
        )  # fmt: skip

    return made

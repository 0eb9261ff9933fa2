"""Listening to an AI session: what is said in it as it is said, as server-sent events. Source: R001-12, T001-y."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool

from duly.accounts.account import Identity
from duly.automations.door import WANTED, Automations
from duly.automations.providers.base import Role
from duly.automations.records import Said as KnownSaid
from duly.automations.session import Session as KnownSession
from duly.automations.session import SessionType, Status
from duly.kernel.errors import DulyError, InvalidArgument
from duly.kernel.payload import MOST_ID
from duly.monitoring.redact import redacted
from duly.web.api.sessions_out import said_out
from duly.web.identity import Standing

#: Seconds between two looks at what is being said; without news, between two comments that say the stream lives; and after which it ends.
EVERY, BEAT, LONGEST = 0.25, 15.0, 600.0


@dataclass(frozen=True, slots=True)
class Glance:
    """How a session stands, and what was said in it behind a position."""

    session: KnownSession
    said: Sequence[KnownSaid]


class Listening:
    """Somebody who listens to a session. ``keeps``: a chat that waits for its slot, or has it, is wanted as long as they do."""

    def __init__(self, door: Automations, ident: int, tenant: str | None, keeps: bool, clock: Callable[[], float]) -> None:  # fmt: skip
        self.door, self.id, self.tenant, self.keeps, self.clock = door, ident, tenant, keeps, clock
        self._told = float("-inf")

    def look(self, position: int) -> Glance:
        """In this order: of a session that is seen to have ended, everything that was said is there."""
        found = self.door.session(self.id, self.tenant)
        waits = found.type is SessionType.CHAT and found.status in (Status.QUEUED, Status.ACTIVE)
        if waits and self.keeps and self.clock() - self._told >= WANTED / 3:
            self._told = self.clock()
            found = self.door.wanted(self.id, tenant=self.tenant)
        return Glance(found, self.door.transcript(self.id, position, self.tenant))


async def frames(
    look: Callable[[int], Glance], who: Identity, position: int, clock: Callable[[], float], pause: Callable[[float], Any] = asyncio.sleep,
    standing: Standing | None = None,
) -> AsyncIterator[bytes]:  # fmt: skip
    """What is sent. ``look(position)``: how the session stands, and what was said behind that position. ``standing``: it ends when ``who`` may no more."""
    begun = beat = clock()
    shown, stands = "", None
    yield b"retry: 1000\n\n"
    while clock() - begun < LONGEST:
        try:
            if standing is not None and not await standing.holds():
                return
            glance = await run_in_threadpool(look, position)
        except DulyError:
            return  # forgotten, or the database is away: who comes back is told so
        s, news = glance.session, False
        for one in glance.said:
            position, news = one.position, True
            if one.message.role is Role.ASSISTANT:
                shown = ""
            yield _frame("said", said_out(one, who).model_dump_json().encode(), position)
        # the session was looked at before the messages: what it was saying may be one of them by now
        partial = redacted(s.partial or "") if who.sees_payloads and not glance.said else ""
        if partial and partial != shown:
            begin = len(shown) if partial.startswith(shown) else 0
            news, shown = True, partial
            yield _frame("partial", orjson.dumps({"from": begin, "text": partial[begin:]}))
        now = {
            "status": s.status.value, "answering": s.job_id is not None, "is_waiting_for_network": s.is_waiting_for_network,
            "end_reason": None if s.end_reason is None else s.end_reason.value, "end_detail": s.end_detail if who.sees_payloads else None,
        }  # fmt: skip
        if now != stands:
            news, stands = True, now
            yield _frame("end" if s.status is Status.ENDED else "state", orjson.dumps(now))
        if s.status is Status.ENDED:
            return
        if news:
            beat = clock()
        elif clock() - beat >= BEAT:
            beat = clock()
            yield b": alive\n\n"
        await pause(EVERY)


def _frame(event: str, data: bytes, position: int | None = None) -> bytes:
    head = b"" if position is None else f"id: {position}\n".encode()
    return head + f"event: {event}\ndata: ".encode() + data + b"\n\n"


def read_position(given: str | None) -> int:
    """The position that a stream goes on behind. Raises InvalidArgument."""
    text = (given or "0").strip()
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_ID):
        raise InvalidArgument("last-event-id", "is none that was given out.", "Leave it out to begin at the beginning.")  # fmt: skip
    return int(text)

"""The till: sends orders to the API as a careful client does. Every request has a key, made before the first try.

What is asked again, and what is not, is the list of ``docs/how-to/idempotent-http.md``: a broken connection, a 5xx and a 409
with Retry-After, with growing pauses. It sends the lines of one order one after the other and different orders at once,
and is impatient: every tenth request is sent twice at the same instant.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import httpx2
from orders import Line, Problem

#: So many orders are on their way at once.
HANDS = 8
#: Seconds after which a request that nobody answers is given up.
PATIENCE = 45.0
LONGEST_PAUSE = 2.0
#: The customer of every so many orders clicks twice.
IMPATIENT = 10

Outcome = Literal["taken", "repeated", "refused", "unanswered"]


@dataclass(slots=True)
class Slip:
    """What became of the requests."""

    counts: Counter[Outcome] = field(default_factory=Counter)
    #: By line: why its order was refused, or that nobody answered.
    problems: dict[int, Problem] = field(default_factory=dict)
    #: Requests that were made again because they were not answered, or were told to.
    again: int = 0

    @property
    def answered(self) -> int:
        return sum(self.counts.values())


class Till:
    """Sends orders to ``url``. ``stopping`` may be set from another thread: what is on its way is finished, no more is begun."""

    def __init__(self, url: str, lines: Iterable[Line]) -> None:
        self.url, self.slip, self.stopping = url, Slip(), False
        by_number: dict[int, list[Line]] = {}
        for line in lines:
            by_number.setdefault(line.order.number, []).append(line)
        self._by_number = by_number
        #: How many orders there are.
        self.orders = len(by_number)
        #: How many requests it is going to make, without those that are made again.
        self.total = sum(2 if number % IMPATIENT == 0 else 1 for number, some in by_number.items() for _ in some)

    def run(self) -> None:
        """Send everything (blocking)."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        hands = asyncio.Semaphore(HANDS)
        # this machine's own API is meant, whatever proxy the environment names
        async with httpx2.AsyncClient(base_url=self.url, timeout=20, trust_env=False) as client:
            await asyncio.gather(*(self._send(client, hands, lines) for lines in self._by_number.values()))

    async def _send(self, client: httpx2.AsyncClient, hands: asyncio.Semaphore, lines: list[Line]) -> None:
        async with hands:
            for line in lines:
                if self.stopping:
                    return
                clicks = 2 if line.order.number % IMPATIENT == 0 else 1
                await asyncio.gather(*(self._click(client, line) for _ in range(clicks)))

    async def _click(self, client: httpx2.AsyncClient, line: Line) -> None:
        answer = await self._answer(client, line)
        if answer is None or answer.is_server_error:
            outcome: Outcome = "unanswered"
            told = "got no answer" if answer is None else f"was answered with {answer.status_code}"
            self._note(line, told)
        elif answer.status_code == 201:
            outcome = "repeated" if "idempotency-replayed" in answer.headers else "taken"
        elif answer.status_code == 200:
            outcome = "repeated"
        else:
            outcome = "refused"
            self._note(line, _reason(answer))
        self.slip.counts[outcome] += 1

    def _note(self, line: Line, told: str) -> None:
        self.slip.problems[line.number] = Problem(line.number, f"order {line.order.number} {told}")

    async def _answer(self, client: httpx2.AsyncClient, line: Line) -> httpx2.Response | None:
        """The answer to one request, asked for until there is one that stands. None: nobody answered at all."""
        headers, body = {"Idempotency-Key": f'"order-{line.order.number}"'}, line.order.model_dump(mode="json")
        until, pause = time.monotonic() + PATIENCE, 0.1
        while True:
            answer: httpx2.Response | None
            try:
                answer = await client.post("/orders", json=body, headers=headers)
            except httpx2.TransportError:
                answer = None
            if (answer is not None and _stands(answer)) or self.stopping or time.monotonic() > until:
                return answer
            self.slip.again += 1
            await asyncio.sleep(min(_asked_for(answer) or pause, LONGEST_PAUSE))
            pause *= 2


def _stands(answer: httpx2.Response) -> bool:
    """Would asking again lead to the same answer?"""
    if answer.status_code == 409:
        return "retry-after" not in answer.headers
    return answer.status_code not in (425, 429) and not answer.is_server_error


def _asked_for(answer: httpx2.Response | None) -> float | None:
    after = "" if answer is None else answer.headers.get("retry-after", "")
    return float(after) if after.isdigit() else None


def _reason(answer: httpx2.Response) -> str:
    """What the API says about a refusal."""
    try:
        document = answer.json()
    except ValueError:
        document = {}
    if document.get("code") == "key-reused":
        return "was sent before with other contents (422)"
    return f"was refused ({answer.status_code}): {document.get('detail', 'no reason given')}"

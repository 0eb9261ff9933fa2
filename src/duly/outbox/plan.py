"""Deciding about messages. Pure: facts and an attempt's end in, a settlement out; rows in, the ones that may go out.

Nothing here reads a clock or a database: the store writes what is decided, guarded by the lease token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from duly.kernel.backoff import Backoff
from duly.kernel.errors import InvalidArgument, PermanentError, Retry
from duly.kernel.exception_group import decisive
from duly.kernel.hold import SHORTEST
from duly.kernel.payload import check_whole
from duly.kernel.retry_after import bounded
from duly.outbox.message import LIFECYCLE, Message, Status

#: The most messages of one ordering key that are taken together.
CHAIN = 50
#: A message that was lost with its relay so often in a row travels alone from then on (``single_file``).
ALONE_AFTER = 2
#: Seconds that each further one in the file is put off, and the most in all.
FILE_STEP, FILE_LONGEST = 0.5, 30.0
#: What happens to those behind a parked message of the same ordering key.
OnParked = Literal["hold", "skip"]
#: Why a message was parked.
Reason = Literal["exhausted", "refused", "lost", "operator"]


@dataclass(frozen=True, slots=True)
class Policy:
    """What follows from a failed attempt."""

    #: Attempts in all; after the last one that fails the message is parked.
    max_attempts: int = 5
    backoff: Backoff = field(default_factory=lambda: Backoff(base=1.0, factor=2.0, max=300.0, jitter=0.5))
    #: "hold": a parked message holds those behind it (same destination and ordering key) until an operator has decided.
    #: "skip": they go on without it.
    on_parked: OnParked = "hold"

    def __post_init__(self) -> None:
        check_whole(self.max_attempts, "max_attempts")
        if not isinstance(self.backoff, Backoff):
            raise InvalidArgument("backoff", f"is of type {type(self.backoff).__name__}.", "Give a duly.Backoff.")
        if self.on_parked not in ("hold", "skip"):
            raise InvalidArgument("on_parked", f"is {self.on_parked!r}.", "Use 'hold' or 'skip'.")


@dataclass(frozen=True, slots=True)
class Settlement:
    """What to write about one message."""

    id: int
    token: int
    #: The lifecycle event, and the status it leads to.
    event: str
    status: Status
    #: Seconds from now until it may be tried again; None leaves its instant as it is.
    wait: float | None = None
    #: Did this use an attempt?
    counted: bool = True
    #: So often in a row it was lost.
    losses: int = 0
    #: Why it was parked.
    reason: Reason | None = None
    error: Any = None


def _move(message: Message, event: str, **more: Any) -> Settlement:
    return Settlement(message.id, message.token, event, LIFECYCLE.target(Status.PENDING, event), **more)


def settle(
    message: Message,
    problem: BaseException | None,
    policy: Policy,
    u: float = 0.0,
    error: Any = None,
    held: float | None = None,
) -> Settlement:
    """What becomes of a message after an attempt to send it. ``problem`` is what the transport raised, None for success.

    ``held``: seconds that it waits because its destination is at fault (``holds.py``); it has used no attempt then.
    ``PermanentError`` parks it at once; ``Retry(after=…)`` sets the wait; everything else backs off. ``u`` in [0, 1) is
    the dice for the jitter, ``error`` the problem as it is to be stored.
    """
    if problem is None:
        return _move(message, "send")
    if held is not None:
        return _move(message, "fail", wait=held, counted=False, error=error)
    problem = decisive(problem)
    if isinstance(problem, PermanentError):
        return _move(message, "park", reason="refused", error=error)
    if message.attempts >= policy.max_attempts:
        return _move(message, "park", reason="exhausted", error=error)
    wait = policy.backoff.delay(max(1, message.attempts), u)
    if isinstance(problem, Retry) and problem.after is not None:
        # never at once: a clock that is behind would make all attempts in a moment
        wait = bounded(problem.after, SHORTEST) if problem.after == problem.after else wait
    return _move(message, "fail", wait=wait, error=error)


def lost(message: Message, policy: Policy) -> Settlement:
    """What becomes of a message whose lease has lapsed: its relay died, or could not reach the database.

    A message that kills its relay must not do so for ever, and the others that the relay held are innocent; nobody can
    tell them apart, nor which were begun. So the first times use no attempt and it comes back at once: it may have been
    a deploy or a power cut. From then on it travels alone, and whoever is lost alone has used an attempt.
    """
    losses = message.losses + 1
    if message.losses < ALONE_AFTER:
        return _move(message, "fail", wait=0.0, counted=False, losses=losses)
    if message.attempts >= policy.max_attempts:
        text = (
            f"{message.attempts} attempts were begun and none was finished: the relays that had it ended in the middle"
        )
        return _move(message, "park", reason="lost", error={"message": text, "type": "Lost"})
    return _move(message, "fail", wait=0.0, losses=losses)


def release(message: Message, wait: float | None = None) -> Settlement:
    """Give a message back that was taken and not tried: no attempt was used. ``wait``: seconds until it is due again."""
    return _move(message, "release", wait=wait, counted=False, losses=message.losses)


# ---------------------------------------------------------------------- what may go


class Link(NamedTuple):
    """A message in the line of its ordering key, as far as it matters whether it may go."""

    id: int
    status: str
    #: Nobody is sending it.
    free: bool
    #: Its instant has come.
    due: bool


def leading(line: Iterable[Link], on_parked: OnParked) -> list[int]:
    """The ids that may be sent now, one after the other, from a line in order: up to the first that has to wait."""
    out: list[int] = []
    for link in line:
        if link.status == Status.PARKED and on_parked == "skip":
            continue
        if link.status != Status.PENDING or not link.free or not link.due:
            break
        out.append(link.id)
    return out


def unbroken(planned: Sequence[int], taken: set[int]) -> tuple[list[int], list[int]]:
    """(to send, to give back) of a line that was planned and of which only some were taken, because an operator came between."""
    to_send: list[int] = []
    for ident in planned:
        if ident not in taken:
            break
        to_send.append(ident)
    return to_send, [ident for ident in planned[len(to_send) :] if ident in taken]


@dataclass(slots=True)
class Unit:
    """Messages of one destination that are sent one after the other by one thread."""

    destination: str
    messages: list[Message]
    #: They share an ordering key: the first failure ends it.
    ordered: bool = False
    #: Monotonic instant from before the lease was asked for.
    asked_at: float = 0.0


def units(messages: Iterable[Message], asked_at: float) -> list[Unit]:
    """What was claimed, as it is to be sent: each line of an ordering key together, everything else alone."""
    out: list[Unit] = []
    lines: dict[tuple[str, str], Unit] = {}
    for message in messages:
        if message.ordering_key is None:
            out.append(Unit(message.destination, [message], asked_at=asked_at))
            continue
        place = (message.destination, message.ordering_key)
        unit = lines.get(place)
        if unit is None:
            unit = lines[place] = Unit(message.destination, [], True, asked_at)
            out.append(unit)
        unit.messages.append(message)
    for unit in lines.values():
        unit.messages.sort(key=lambda m: m.id)
    return out


def shares(room: int, first: bool) -> int:
    """How many of ``room`` places go to ordered lines before the others are asked. ``first`` breaks the tie of a single place.

    Half of them, so that neither kind starves the other; what the lines leave is taken by the others in the same claim.
    """
    return room // 2 + (room % 2 if first else 0)


def is_suspect(message: Message) -> bool:
    """Was it lost so often that it has to travel alone?"""
    return message.losses >= ALONE_AFTER


def single_file(taken: Iterable[Message], busy: bool) -> tuple[list[Message], list[Settlement]]:
    """(to send, to give back) of what was taken: a relay has one suspect at a time, so that one that kills it dies alone.

    ``busy``: it has one already. The others pass; suspects that have to wait are put off one behind the other. A line
    of an ordering key ends before its first suspect, and behind a suspect that is its head.
    """
    to_send: list[Message] = []
    back: list[Settlement] = []
    begun, ended = set[tuple[str, str]](), set[tuple[str, str]]()
    put_off = 0
    for message in sorted(taken, key=lambda m: m.id):
        line = None if message.ordering_key is None else (message.destination, message.ordering_key)
        suspect, behind = is_suspect(message), line in begun
        if line in ended or (suspect and behind):
            back.append(release(message))  # its turn comes with the one before it
        elif suspect and busy:
            put_off += 1
            back.append(release(message, min(put_off * FILE_STEP, FILE_LONGEST)))
        else:
            busy = busy or suspect
            to_send.append(message)
        if line is not None:
            begun.add(line)
            if suspect:
                ended.add(line)
    return to_send, back

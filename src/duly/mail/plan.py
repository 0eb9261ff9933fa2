"""What is to be done about a job's recipients, and how its run ends. Pure: facts and an instant in, a decision out.

The rule of T003-h: who has a message is never sent it again, and who may have it is sent it again only where that cannot make two of
it, or where somebody decided so (``mail_unknown``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from duly.kernel.backoff import Backoff
from duly.kernel.hold import Hold, Pace
from duly.kernel.hold import held as held_again
from duly.kernel.verdict import Kind, Verdict

#: The holder of an unknown recipient whom a person has had sent to again (``duly mail resend``), until that is done.
RELEASED = "released"
#: Messages that were put off together come back within a tenth of the wait, and within so many seconds (least, most).
SPREAD = (1.0, 60.0)


class State(StrEnum):
    """What is known of a recipient. No state: it was never handed over, or is to be tried again."""

    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    SUPPRESSED = "suppressed"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What stands in the database about one recipient of a job."""

    state: State
    holder: str
    first_at: datetime
    code: int | None = None
    #: Whom it was handed to last.
    provider: str = ""
    #: When the row was last written.
    updated_at: datetime | None = None

    def doubtful(self) -> bool:
        """They may have it, and nobody has decided that they are sent it all the same."""
        return self.state is State.UNKNOWN and self.holder != RELEASED


@dataclass(frozen=True, slots=True)
class Start:
    """Recipients, each in one of these."""

    #: To be sent to now.
    pending: tuple[str, ...]
    #: Not written to, and not on record as such yet.
    suppressed: tuple[str, ...]
    #: May have it; not sent to again.
    held: tuple[str, ...]


def start(
    recipients: Sequence[str],
    known: Mapping[str, Delivery],
    suppressed: frozenset[str],
    *,
    provider: str,
    remembers: float,
    unknown: str,
    now: datetime,
    since: datetime | None = None,
) -> Start:
    """Who is to be sent to in this run.

    ``remembers``: for so many seconds ``provider`` takes a repeated key for the same message (0: never). ``unknown``: "hold" or
    "resend". ``since``: the job's planned instant, which a replay moves and nothing else: who was refused or left out before it is
    looked at again, because a person wants it. A suppression counts for those who were not handed over before: the same key wants the
    same recipients.
    """
    pending, left_out, held = list[str](), list[str](), list[str]()
    for recipient in recipients:
        delivery = known.get(recipient)
        if delivery is None or _anew(delivery, since, now):
            (left_out if recipient in suppressed else pending).append(recipient)
        elif delivery.state is State.UNKNOWN:
            mine = delivery.provider == provider  # what another one was handed, this one does not remember
            safe = mine and (now - delivery.first_at).total_seconds() < remembers
            (pending if safe or unknown == "resend" else held).append(recipient)
    return Start(tuple(pending), tuple(left_out), tuple(held))


def _anew(delivery: Delivery, since: datetime | None, now: datetime) -> bool:
    """Is this recipient looked at as if nothing were on record? Who has the message never is."""
    if delivery.state is State.UNKNOWN:
        return delivery.holder == RELEASED
    if delivery.state is State.ACCEPTED or since is None or delivery.updated_at is None:
        return False
    return (
        delivery.updated_at < since or now <= since
    )  # no run begins before its instant, so that row is an older run's


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends. Numbers count recipients. "on": it got on, and goes on; no attempt is used."""

    kind: Literal["sent", "suppressed", "on", "retry", "unknown", "refused"]
    accepted: int = 0
    refused: int = 0
    suppressed: int = 0
    unknown: int = 0
    waiting: int = 0


def conclude(states: Sequence[State | None], tried: int = 0) -> Ending:
    """The end of a run, from what is known of each recipient after it (None: to be tried again).

    ``tried``: to how many it was to be sent in this run. When fewer are left, the next run is no repetition of this one; and because each
    such run leaves fewer, they end.
    """
    counted = {state: states.count(state) for state in (*State, None)}
    numbers = {
        "accepted": counted[State.ACCEPTED], "refused": counted[State.REFUSED], "suppressed": counted[State.SUPPRESSED],
        "unknown": counted[State.UNKNOWN], "waiting": counted[None],
    }  # fmt: skip
    if counted[None]:
        return Ending("on" if counted[None] < tried else "retry", **numbers)
    if counted[State.UNKNOWN]:
        return Ending("unknown", **numbers)
    if counted[State.ACCEPTED]:
        return Ending("sent", **numbers)
    return Ending("refused" if counted[State.REFUSED] else "suppressed", **numbers)


@dataclass(frozen=True, slots=True)
class Standing:
    """Who has the message of a job, counted."""

    recipients: int
    accepted: int = 0
    refused: int = 0
    suppressed: int = 0
    #: They may have it.
    unknown: int = 0

    @property
    def lacking(self) -> int:
        """They do not have it, and are not on the list of those who are not written to."""
        return max(0, self.recipients - self.accepted - self.suppressed - self.unknown)


def standing(recipients: int, states: Sequence[State]) -> Standing:
    """``states``: what is on record; there is no more than one for each recipient."""
    of = states.count
    return Standing(
        max(recipients, len(states)), of(State.ACCEPTED), of(State.REFUSED), of(State.SUPPRESSED), of(State.UNKNOWN)
    )


#: How the waits grow while the other side is away, and where it has too many messages and names no time.
AWAY, THROTTLED = Pace(Backoff(base=15.0, factor=2.0, max=300.0)), Pace(Backoff(base=1.0, factor=2.0, max=300.0))
#: A queue is held for waits of so many seconds; for shorter ones each message is put off by itself.
LONG = 120.0
#: Queues that are never held: the one of ``--now``, where someone waits for the answer, and the one that everything shares.
NOW = "mail-now"
NEVER_HELD = frozenset({NOW, "default"})
#: Messages that wait for a probe look again within so many seconds.
PROBED = (1.0, 5.0)


def held(before: Hold | None, verdict: Verdict, queue: str, now: datetime, is_probe: bool = False) -> Hold:
    """The hold that follows from an answer about everything that is sent (AWAY, THROTTLED, QUOTA), and from the hold of before."""
    is_away = verdict.kind is Kind.AWAY
    hold = held_again(
        before, verdict.kind, verdict.reason, now, AWAY if is_away else THROTTLED, after=verdict.after, until=verdict.until,
        exact=not is_away, is_probe=is_probe,
    )  # fmt: skip
    long = hold.kind != Kind.THROTTLED or (hold.until - now).total_seconds() >= LONG
    return replace(hold, wide=(hold.wide or long) and queue not in NEVER_HELD)


def back_at(hold: Hold, now: datetime, u: float) -> datetime:
    """When a message comes back that waits. ``u`` in [0, 1) spreads them."""
    later = put_off(hold, now, u)
    least, most = PROBED
    return later if later is not None else now + timedelta(seconds=least + u * (most - least))


def put_off(hold: Hold | None, now: datetime, u: float) -> datetime | None:
    """When a message comes back that is not handed over because of ``hold``; None: it is handed over. ``u`` in [0, 1) spreads them."""
    if hold is None or hold.until <= now:
        return None
    least, most = SPREAD
    apart = min(most, max(least, (hold.until - now).total_seconds() / 10))
    return hold.until + timedelta(seconds=u * apart)

"""A round and what members put into it, and the one table of its moves.

A round is planned for a local date, opens at its group's local time, and closes exactly 24 hours later. All its moves stand here.
Whether members may still take part is asked of the clock and not of the status: a round is over at ``close_at``, whenever
somebody comes to write that down. This file knows no database. Source: R000-1, R000-11, R000-15, R000-16, X6.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum

from duly.kernel.errors import WrongState
from duly.kernel.lifecycle import Lifecycle, Move

#: How long a round is open: elapsed time, whatever clocks on walls do meanwhile (R000-11, T000-g).
OPEN_FOR = timedelta(hours=24)


class Status(StrEnum):
    """Where a round stands."""

    SCHEDULED = "scheduled"
    OPEN = "open"
    CLOSED = "closed"


LIFECYCLE: Lifecycle[Status] = Lifecycle(
    "round",
    (
        Move(None, "plan", Status.SCHEDULED),
        Move(
            Status.SCHEDULED, "open", Status.OPEN, "its local time has come; members are told in the same transaction"
        ),
        Move(Status.OPEN, "close", Status.CLOSED, "24 hours have passed"),
    ),
)


@dataclass(frozen=True, slots=True)
class Round:
    """A round as its row says, its fields in the order of its life. Instants are aware, in UTC."""

    id: int
    tenant: str
    group_id: int
    #: The local date that it is for. One round per group and date.
    scheduled_for: date
    status: Status
    #: The zone and the local time that it was planned by.
    zone: str
    drop_time: str
    #: The instant at which that zone's clock reaches that time on that date (T000-d).
    planned_at: datetime
    #: When it was planned.
    created_at: datetime
    #: The prompt that was chosen; its text once the round has opened, whatever becomes of the prompt (T000-j).
    prompt_id: int | None = None
    prompt_text: str | None = None
    #: From when on the opening tick takes it: ``planned_at``, or when it was planned or changed if that was later. None while its
    #: group is not active, and once it has opened.
    due_at: datetime | None = None
    #: What members go by: the planned instant, or the real one where that was much later (T000-f).
    open_at: datetime | None = None
    close_at: datetime | None = None
    #: When the ticks really acted.
    opened_at: datetime | None = None
    closed_at: datetime | None = None
    #: Seconds between ``due_at`` and ``opened_at``.
    late: float | None = None

    def label(self, now: datetime) -> str:
        """Its state for people: an open round whose time is over is over, whether or not that is written down."""
        if self.status is Status.OPEN and not takes_part(self, now):
            return "over"
        return str(self.status)


def takes_part(round: Round, now: datetime) -> bool:
    """May members submit, comment and vote? From the opening until before ``close_at`` (R000-16)."""
    return round.status is Status.OPEN and round.close_at is not None and now < round.close_at


def check_takes_part(round: Round, now: datetime, what: str) -> None:
    """Raise WrongState unless members may take part."""
    if not takes_part(round, now):
        state = "closed" if round.status is Status.OPEN else str(round.status)
        raise WrongState(f"round {round.id}", state, what, ("open",))


@dataclass(frozen=True, slots=True)
class Submission:
    """A member's answer. One per member and round."""

    id: int
    round_id: int
    member_id: int
    text: str
    created_at: datetime
    edited_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Comment:
    """What a member says of a submission."""

    id: int
    round_id: int
    submission_id: int
    member_id: int
    text: str
    created_at: datetime
    edited_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """A member's vote for a submission. One per member and round."""

    round_id: int
    member_id: int
    submission_id: int
    created_at: datetime
    edited_at: datetime | None = None

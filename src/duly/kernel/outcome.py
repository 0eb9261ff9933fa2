"""How a handler's run ended, as a value.

``run`` makes one of these; ``settle`` turns it, with the job's facts, into a ``Settlement``; one guarded statement writes
that. Nothing here knows a database or a clock.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple


class OutcomeKind(StrEnum):
    """Every way a run can end."""

    SUCCEEDED = "succeeded"
    #: Raised an error, or asked for a retry: tried again while attempts are left.
    FAILED = "failed"
    #: Raised PermanentError, or its input could not be read: not tried again.
    REFUSED = "refused"
    #: This worker cannot read its input, and a newer one may: left to the others. No attempt is used.
    UNREADABLE = "unreadable"
    #: Ran longer than its timeout. An attempt is used.
    TIMED_OUT = "timed_out"
    #: Asked to be run later. No attempt is used.
    SNOOZED = "snoozed"
    #: Ended by Cancel or by an operator.
    CANCELLED = "cancelled"
    #: Given back at an orderly shutdown. No attempt is used.
    RELEASED = "released"
    #: Its lease lapsed: the worker is gone. An attempt is used (it was counted at the claim).
    LOST = "lost"


class Outcome(NamedTuple):
    """One run's end."""

    kind: OutcomeKind
    #: The encoded result (JSON text) of a success.
    output: str | None = None
    #: What went wrong: {"message", "type", "attempted_at", …}.
    error: dict[str, Any] | None = None
    #: Seconds to wait before the next attempt, when the handler named them.
    after: float | None = None
    #: The instant to wait for, when the handler named one. Aware.
    until: datetime | None = None
    #: What the run cost, in cents, and what the other side called its effect.
    cost_cents: int | None = None
    remote_id: str | None = None
    #: The audit action of this success, where it is not the task's.
    action: str | None = None

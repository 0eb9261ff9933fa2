"""A reservation: the record that somebody does, or has done, what a key names.

While it is *in progress* its owner keeps others out until ``locked_until`` and says now and then that it lives
(``seen_at``). Every holder has a token greater than the one before, and whoever writes proves with it that the
reservation is still his: a late finisher changes nothing (T004-c).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from duly.kernel.errors import InvalidArgument
from duly.kernel.lifecycle import Lifecycle, Move


class State(StrEnum):
    """Where a reservation stands (R004-8)."""

    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


LIFECYCLE: Lifecycle[State] = Lifecycle(
    "reservation",
    (
        Move(None, "reserve", State.IN_PROGRESS),
        Move(State.IN_PROGRESS, "succeed", State.SUCCEEDED),
        Move(State.IN_PROGRESS, "fail", State.FAILED),
        Move(State.IN_PROGRESS, "take_over", State.IN_PROGRESS, "its owner is gone: the lock lapsed, or the same owner came again"),
        Move(State.FAILED, "reserve", State.IN_PROGRESS, "a failure allows another try (R004-13)"),
        Move(State.SUCCEEDED, "reserve", State.IN_PROGRESS, "the success is remembered no longer, or a person has it done again"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Terms:
    """How long things last."""

    #: For how long a holder keeps others out without a sign of life. Longer than the body may take (T004-c).
    lock: timedelta = timedelta(seconds=360)
    #: Between two signs of life. An owner that comes again after three of them were missed takes over from its dead self.
    heartbeat: timedelta = timedelta(seconds=10)
    #: For how long a success is remembered, and a failure. Longer than any redelivery may take (T004-e).
    keep: timedelta = timedelta(hours=24)

    def __post_init__(self) -> None:
        for name in ("lock", "heartbeat", "keep"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or not timedelta(0) < value <= timedelta(days=36500):
                raise InvalidArgument(name, f"is {value!r}; it must be a timedelta of more than zero.")
        if self.heartbeat * 3 > self.lock:
            raise InvalidArgument("lock", f"is {self.lock}, which is not three heartbeats of {self.heartbeat}.")

    @property
    def missed(self) -> timedelta:
        """Without a sign of life for so long, the holder is taken for dead by its own next self."""
        return self.heartbeat * 3


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody wants to do what a key names."""

    tenant: str
    key: str
    #: The name shown in logs and metrics.
    task: str
    #: Who asks: a job, a Celery task, a call. The same when it is delivered again.
    owner: str
    #: The canonical key of the arguments.
    fingerprint: str
    terms: Terms
    #: A person had a job that succeeded run again on purpose: a success that another owner recorded does not count.
    again: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """One record. All instants are aware UTC."""

    tenant: str
    key: str
    task: str
    state: State
    owner: str
    #: The fencing token: microseconds since 1970 or one more than the holder before, whichever is greater.
    token: int
    fingerprint: str
    attempts: int
    locked_until: datetime
    seen_at: datetime
    kept_until: datetime
    created_at: datetime
    #: What the body returned, as JSON text.
    result: str | None = None
    error: str | None = None

    def lives(self, now: datetime) -> bool:
        """Is it remembered?"""
        return now < (max(self.locked_until, self.kept_until) if self.state is State.IN_PROGRESS else self.kept_until)

    def renewed(self, terms: Terms, now: datetime) -> Reservation:
        """The same after a sign of life."""
        until = now + terms.lock
        return replace(self, seen_at=now, locked_until=until, kept_until=until + terms.keep)

    def succeeded(self, terms: Terms, now: datetime, result: str | None) -> Reservation:
        state = LIFECYCLE.target(self.state, "succeed")
        return replace(self, state=state, seen_at=now, locked_until=now, kept_until=now + terms.keep, result=result)

    def failed(self, terms: Terms, now: datetime, error: str | None) -> Reservation:
        state = LIFECYCLE.target(self.state, "fail")
        return replace(self, state=state, seen_at=now, locked_until=now, kept_until=now + terms.keep, error=error)

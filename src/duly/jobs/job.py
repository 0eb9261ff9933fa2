"""What a job is.

A job is one piece of work that was asked for: a task's name, its input, and when it is due. It is born queued, is claimed
by a worker under a lease, and ends exactly once: succeeded, failed or cancelled. All moves it can make stand in the
lifecycle below, and nowhere else. This file knows no database, no worker and no clock.

Statuses are the five of the specification (R003-1). "scheduled", "retrying", "waiting for children" and the like are
labels for people, derived by ``label``; nothing decides by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, overload

from duly.kernel.lifecycle import Lifecycle, Move


class Status(StrEnum):
    """Where a job stands."""

    #: Waiting: due or not, first time or again. Written by enqueue, retry, snooze, release, rescue, replay.
    QUEUED = "queued"
    #: Held by one worker under a lease. Written by the claim only.
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


Q, R, S, F, C = Status

LIFECYCLE: Lifecycle[Status] = Lifecycle(
    "job",
    (
        Move(None, "enqueue", Q),
        Move(Q, "claim", R),
        Move(R, "succeed", S),
        Move(R, "retry", Q, "an attempt was used; due again after the backoff"),
        Move(R, "snooze", Q, "the handler said not now; no attempt used"),
        Move(R, "release", Q, "given back at an orderly shutdown; no attempt used"),
        Move(R, "rescue", Q, "the lease lapsed; the attempt counts (T003-c)"),
        Move(R, "wait", Q, "its handler is done, its children are not"),
        Move(R, "fail", F),
        Move(R, "cancel", C),
        Move(Q, "cancel", C),
        Move(Q, "succeed", S, "a waiting parent, when its last child has ended"),
        Move(Q, "fail", F, "a waiting parent one of whose children failed"),
        Move(F, "replay", Q, "a person asked; attempts start again at 0, the key stays"),
        Move(C, "replay", Q),
        Move(S, "replay", Q, "only when forced"),
    ),
)

#: Statuses of live jobs (table jobs) and of ended ones (table jobs_done).
LIVE = (Status.QUEUED, Status.RUNNING)
ENDED = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it was read, its fields in the order of a life. All instants are aware UTC."""

    id: int
    tenant: str
    queue: str
    #: The task's name: ``job_type`` at the jobs door.
    task: str
    status: Status
    #: Higher runs first.
    priority: int = 0
    #: The encoded arguments, decoded JSON.
    input: Any = field(default_factory=dict)
    #: The idempotency key, if one was given.
    key: str | None = None
    concurrency_key: str | None = None
    parent_id: int | None = None
    created_at: datetime | None = None
    #: The planned instant: creation, unless asked for later. Retries never move it (T003-a).
    run_at: datetime | None = None
    #: When it becomes claimable; None when it is now, or when it is live no more.
    due_at: datetime | None = None
    #: When the last failed attempt was to be followed by the next. Kept while that one runs.
    next_retry_at: datetime | None = None
    #: How often it was started, the present run included.
    attempts: int = 0
    #: How often it may be started in all.
    max_attempts: int = 4
    worker: str | None = None
    lease_until: datetime | None = None
    #: The start of the last attempt.
    started_at: datetime | None = None
    finished_at: datetime | None = None
    output: Any = None
    error: Any = None
    cost_cents: int = 0
    #: What the other side calls the effect of this job, e.g. a message id.
    remote_id: str | None = None
    #: True when an operator asked a running job to stop.
    cancel_requested: bool = False
    #: True when its handler is done and it waits for its children.
    waits_for_children: bool = False
    #: Carried along and handed to the handler: trace context and the like.
    meta: Any = None

    # ------------------------------------------------------------------ the specification's words (R003)

    @property
    def job_type(self) -> str:
        return self.task

    @property
    def tenant_id(self) -> str:
        return self.tenant

    @property
    def retry_count(self) -> int:
        """Retries so far: attempts beyond the first (X2). Counted as the specification does, when the retry is decided."""
        if self.status is Status.QUEUED and not self.waits_for_children:
            return self.attempts
        return max(0, self.attempts - 1)

    @property
    def max_retries(self) -> int:
        return self.max_attempts - 1

    def record(self) -> dict[str, Any]:
        """The job as the specification's table shows it: its names, ``{}`` where a document is empty (R003-10)."""
        return {
            "id": self.id, "tenant_id": self.tenant, "status": str(self.status), "job_type": self.task, "priority": self.priority,
            "input": {} if self.input is None else self.input, "output": {} if self.output is None else self.output,
            "error": {} if self.error is None else self.error, "cost_cents": self.cost_cents, "retry_count": self.retry_count,
            "max_retries": self.max_retries, "next_retry_at": self.next_retry_at, "started_at": self.started_at,
            "finished_at": self.finished_at, "created_at": self.created_at,
        }  # fmt: skip

    # ------------------------------------------------------------------ questions

    @property
    def is_final(self) -> bool:
        return self.status in ENDED

    def is_due(self, now: datetime) -> bool:
        """Is its moment there? Says nothing about gates, limits and pauses."""
        return self.status is Status.QUEUED and (self.due_at is None or self.due_at <= now)

    @property
    def attempts_left(self) -> int:
        return max(0, self.max_attempts - self.attempts)

    def label(self, now: datetime) -> str:
        """A word for people."""
        if self.status is Status.QUEUED:
            if self.waits_for_children:
                return "waiting for children"
            if self.due_at is not None and self.due_at > now:
                return "retrying" if self.next_retry_at is not None else ("snoozed" if self.attempts else "scheduled")
        if self.status is Status.RUNNING and self.cancel_requested:
            return "cancelling"
        return str(self.status)


def numbered(job: Job, ident: int, at: datetime) -> Job:
    """A new job, of which nobody has heard yet, with what the database has given it: its id, and the instant at which it was made and is due."""
    for name, value in (("id", ident), ("created_at", at), ("run_at", at)):
        object.__setattr__(job, name, value)
    return job


class Enqueued(NamedTuple):
    """The answer of enqueue: the job, and whether this call made it (False when its key was taken)."""

    job: Job
    created: bool


class EnqueuedMany(Sequence[Enqueued]):
    """The answers of a bulk enqueue, in order; each is made when it is looked at, so that a million cost nothing more."""

    def __init__(self, ids: Sequence[int], make: Callable[[int, int], Job]) -> None:
        #: The ids of the jobs, in the order of their inputs.
        self.ids = ids
        self._make = make

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> Enqueued: ...

    @overload
    def __getitem__(self, at: slice) -> list[Enqueued]: ...

    def __getitem__(self, at: int | slice) -> Enqueued | list[Enqueued]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self.ids)))]
        ident = self.ids[at]
        return Enqueued(self._make(ident, at), True)

    def __repr__(self) -> str:
        return f"<{len(self.ids)} jobs enqueued>"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run that did not end in success: kept apart from the job, one row each (T003-l)."""

    job_id: int
    attempt: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    outcome: str
    error: Any

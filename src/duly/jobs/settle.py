"""Deciding what becomes of a job after a run. Pure: facts and an outcome in, a settlement out.

The settlement names the move, what is written, what is audited and how long to wait. One guarded statement writes it
(``store.settle``): it names the lease token, so that a settlement by a worker that lost its lease changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from duly.jobs.job import LIFECYCLE, Status
from duly.kernel.backoff import Backoff
from duly.kernel.outcome import Outcome, OutcomeKind

#: Audit actions of the specification.
EXHAUSTED = "JOB_EXHAUSTED_RETRIES"
PERMANENT = "JOB_FAILED_PERMANENT"
CANCELLED = "JOB_CANCELLED"
CANCEL_REQUESTED, REPLAYED = "JOB_CANCEL_REQUESTED", "JOB_REPLAYED"

#: Jobs that were lost together come back within so many seconds, and so many more for each of them, up to so many in all
#: (see ``apart``).
APART, APART_EACH, FARTHEST_APART = 5.0, 0.5, 30.0
#: The longest a handler can put its job off, in seconds: ten years.
LONGEST_WAIT = 10 * 366 * 86_400.0


class Claimed(NamedTuple):
    """A job as a claim returns it: what the run and the settlement need."""

    id: int
    tenant: str
    queue: str
    task: str
    #: Encoded arguments (JSON text).
    input: str
    #: This run's number, 1 for the first.
    attempts: int
    max_attempts: int
    priority: int
    #: As the database gives them: microseconds since 1970 on SQLite, seconds on PostgreSQL. ``run.to_job`` makes instants of them.
    run_at: Any
    created_at: Any
    #: Seconds between the moment it was due and the claim.
    lag: float
    key: str | None
    key_scope: str | None
    concurrency_key: str | None
    parent_id: int | None
    meta: str | None
    #: The lease under which it was claimed.
    token: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """What a task says about the end of its runs."""

    backoff: Backoff
    completed_action: str
    #: None: successes are not audited.
    audit_success: bool = True
    #: What a parent does about failed children; None: it does not wait.
    wait_for_children: str | None = None


@dataclass(init=False)
class Settlement:
    """What to write about one run.

    Most settlements are successes that differ in their ids only. What is usual stands on the class, and what most have is set
    when one is made: what comes later gives it a dictionary of its own.
    """

    id: int
    token: int
    #: The lifecycle event, and the status it leads to.
    event: str
    status: Status
    output: str | None = None
    error: dict[str, Any] | None = None
    cost_cents: int | None = None
    remote_id: str | None = None
    #: The audit row, when there is one.
    action: str | None = None
    level: str = "info"
    meta: dict[str, Any] | None = None
    #: Back to waiting: seconds from now, or an instant. Neither: at once.
    wait: float | None = None
    until: datetime | None = None
    #: Did the run use an attempt?
    counted: bool = True
    #: Attempts start again at none: it got further than it had ever been.
    afresh: bool = False
    #: The outcome's name for the attempts table; None writes no row (a first-time success).
    record: str | None = None
    on_child_failure: str | None = None
    #: Taken over from the job, for what follows from its end.
    parent_id: int | None = None
    key_scope: str | None = None

    def __init__(
        self, id: int, token: int, event: str, status: Status, output: str | None = None, action: str | None = None, **more: Any
    ) -> None:  # fmt: skip
        self.id, self.token, self.event, self.status = id, token, event, status
        self.output, self.action = output, action
        if more:
            self.__dict__.update(more)

    @property
    def final(self) -> bool:
        return self.event in FINAL


#: The events that end a job.
FINAL = frozenset({"succeed", "fail", "cancel"})
_SUCCEED = LIFECYCLE.target(Status.RUNNING, "succeed")


def settle(job: Claimed, outcome: Outcome, policy: Policy, u: float = 0.0) -> Settlement:
    """What becomes of ``job`` after ``outcome``. ``u`` in [0, 1) is the dice for the backoff's jitter."""
    kind = outcome.kind
    if kind is OutcomeKind.SUCCEEDED:
        if policy.wait_for_children is not None:
            return _move(job, "wait", outcome, on_child_failure=policy.wait_for_children)
        action = (outcome.action or policy.completed_action) if policy.audit_success else None
        done = Settlement(job.id, job.token, "succeed", _SUCCEED, outcome.output, action)
        if outcome.error is not None or outcome.cost_cents is not None or outcome.remote_id is not None:
            done.error, done.cost_cents, done.remote_id = outcome.error, outcome.cost_cents, outcome.remote_id
        if job.parent_id is not None or job.key_scope is not None:
            done.parent_id, done.key_scope = job.parent_id, job.key_scope
        return done
    if kind is OutcomeKind.SNOOZED:
        return _move(job, "snooze", outcome, wait=_bounded(outcome.after), until=outcome.until, counted=False)
    if kind is OutcomeKind.UNREADABLE:
        return _move(job, "snooze", outcome, wait=_bounded(outcome.after), counted=False)
    if kind is OutcomeKind.RELEASED:
        return _move(job, "release", outcome, counted=False)
    if kind is OutcomeKind.CANCELLED:
        return _move(job, "cancel", outcome, action=CANCELLED, level="warning", record=str(kind))
    if kind is OutcomeKind.REFUSED:
        return _move(
            job, "fail", outcome, action=PERMANENT, level="error", record=str(kind), meta={"attempts": job.attempts}
        )
    # FAILED, TIMED_OUT, LOST: an attempt was used.
    if job.attempts >= job.max_attempts:
        meta = {"attempts": job.attempts, "reason": "worker_lost" if kind is OutcomeKind.LOST else str(kind)}
        return _move(job, "fail", outcome, action=EXHAUSTED, level="error", record=str(kind), meta=meta)
    if kind is OutcomeKind.LOST:
        return _move(job, "rescue", outcome, wait=_bounded(outcome.after), record=str(kind))
    wait = outcome.after if outcome.after is not None else policy.backoff.delay(job.attempts, u)
    return _move(job, "retry", outcome, wait=_bounded(wait), until=outcome.until, record=str(kind))


def apart(attempts: int, max_attempts: int, together: int, u: float) -> float | None:
    """Seconds for which a lost job stays away; None: it comes back at once. ``together``: so many jobs its worker lost.

    One of them may be what killed the worker. It would be claimed again with the same others, and take them along until
    all have used up their attempts, though most of them never began. So the second time, or before the last attempt,
    they come back one by one; whoever dies then dies alone. ``u`` is the dice, in [0, 1).
    """
    if together < 2 or (attempts < 2 and attempts + 1 < max_attempts):
        return None
    return u * min(APART + APART_EACH * together, FARTHEST_APART)


def _bounded(wait: float | None) -> float | None:
    """A delay that a database can add to its clock, whatever number the handler named; what is no number means at once."""
    return None if wait is None else min(max(0.0, wait), LONGEST_WAIT)


def _move(job: Claimed, event: str, outcome: Outcome, **more: Any) -> Settlement:
    return Settlement(
        job.id, job.token, event, LIFECYCLE.target(Status.RUNNING, event),
        output=outcome.output, error=outcome.error, cost_cents=outcome.cost_cents, remote_id=outcome.remote_id,
        parent_id=job.parent_id, key_scope=job.key_scope, **more,
    )  # fmt: skip

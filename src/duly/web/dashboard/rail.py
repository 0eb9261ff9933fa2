"""A job's life as steps in order, with how long each took: what the rail of its page shows. Pure: facts and ``now`` in, steps out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from duly.audit.read import Entry
from duly.jobs.job import Attempt, Job, Status
from duly.jobs.settle import CANCEL_REQUESTED, REPLAYED

#: How runs end that are not settled by their handler, as marks.
_KINDS = {"failed": "bad", "retry": "warn", "retried": "warn", "lost": "warn", "cancelled": "off", "snooze": "wait", "snoozed": "wait"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One step. ``at`` aware, UTC; None where it is not known."""

    #: Of its mark: good, busy, wait, warn, bad, off.
    kind: str
    name: str
    at: datetime | None
    #: How long it went on, for what goes on.
    took: timedelta | None = None
    #: How long after the step before it began.
    after: timedelta | None = None
    detail: str = ""
    error: Any = None


def steps(job: Job, attempts: Sequence[Attempt], trail: Sequence[Entry], now: datetime) -> list[Step]:
    """The steps of a life so far, the first one first, and what is to come next."""
    past = [Step("wait", "Enqueued", job.created_at, detail=f"as a child of job {job.parent_id}" if job.parent_id else "")]  # fmt: skip
    past += [_ran(one) for one in attempts]
    past += [step for entry in trail if (step := _acted(entry)) is not None]
    if job.run_at is not None and job.created_at is not None and job.created_at < job.run_at <= now:
        past.append(Step("wait", "Due", job.run_at, detail="as planned"))
    past += _present(job, now)
    known = sorted((step for step in past if step.at is not None), key=lambda step: step.at or now)
    out: list[Step] = []
    for step in known:
        before = out[-1] if out else None
        begun = None if before is None or before.at is None else before.at + (before.took or timedelta(0))
        gap = None if begun is None or step.at is None else step.at - begun
        out.append(replace(step, after=gap if gap is not None and gap > timedelta(0) else None))
    return [*out, *_next(job, now)]


def _ran(one: Attempt) -> Step:
    took = one.ended_at - one.started_at if one.started_at is not None else None
    by = f"on {one.worker}" if one.worker else ""
    return Step(_KINDS.get(one.outcome, "warn"), f"Attempt {one.attempt}: {one.outcome}", one.started_at or one.ended_at, took, detail=by, error=one.error)  # fmt: skip


def _acted(entry: Entry) -> Step | None:
    names = {REPLAYED: ("wait", "Replayed"), CANCEL_REQUESTED: ("warn", "Asked to stop")}
    if entry.action not in names:
        return None
    kind, name = names[entry.action]
    reason = entry.meta.get("reason", "") if isinstance(entry.meta, dict) else ""
    return Step(kind, name, entry.at, detail=f"by {entry.actor}{f': {reason}' if reason else ''}")


def _present(job: Job, now: datetime) -> list[Step]:
    """The run that is under way or went well, and the end."""
    by = f"on {job.worker}" if job.worker else ""
    if job.status is Status.RUNNING:
        took = now - job.started_at if job.started_at else None
        return [Step("busy", f"Attempt {job.attempts}: running", job.started_at, took, detail=by)]
    if job.status is Status.SUCCEEDED:
        took = job.finished_at - job.started_at if job.started_at and job.finished_at else None
        ran = Step("good", f"Attempt {job.attempts}: done", job.started_at, took, detail=by)
        return [*([ran] if job.started_at else []), Step("good", "Succeeded", job.finished_at)]
    if job.status is Status.FAILED:
        return [Step("bad", "Failed", job.finished_at, detail=f"after {job.attempts} of {job.max_attempts} attempts")]
    if job.status is Status.CANCELLED:
        return [Step("off", "Cancelled", job.finished_at)]
    return []


def _next(job: Job, now: datetime) -> list[Step]:
    """What is to come, as far as it is known."""
    if job.status is not Status.QUEUED:
        return []
    if job.waits_for_children:
        return [Step("wait", "Waits for its children", None)]
    if job.due_at is not None and job.due_at > now:
        name = f"Attempt {job.attempts + 1} is due" if job.next_retry_at is not None else "Due"
        return [Step("wait", name, job.due_at)]
    return [Step("wait", "Waits to be claimed", None)]

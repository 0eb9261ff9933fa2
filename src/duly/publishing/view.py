"""Publications as this door shows them: jobs in the words of the publishing specification. Pure.

``pending, running, completed, failed``; ``channel``, ``idempotency_key``, ``remote_id``, ``attempts``, ``run_at``. The engine's words stand on
``Job``. Beside the four statuses of the specification stands ``cancelled``: what a person ended is not what failed, and no filter that replays
what failed may take it (R002-25). Source: R002-1, R002-12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from duly.jobs.job import Job
from duly.jobs.job import Status as JobStatus
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_text
from duly.publishing.state import State

#: The tasks of the room, and how this door calls them.
PUBLISH, COMMENT = "PUBLISH", "ig_first_comment"
TYPES: Mapping[str, str] = {PUBLISH: "publish", COMMENT: "ig_first_comment"}
TASKS: Mapping[str, str] = {name: task for task, name in TYPES.items()}


class Status(StrEnum):
    """Where a publication stands (R002-1)."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    #: A person, or the application, ended it.
    CANCELLED = "cancelled"


#: The statuses from which one publication is replayed; a filter replays only what failed.
REPLAYED = (Status.FAILED, Status.CANCELLED)
#: The engine's statuses of each.
ENGINE: Mapping[Status, tuple[JobStatus, ...]] = {
    Status.PENDING: (JobStatus.QUEUED,),
    Status.RUNNING: (JobStatus.RUNNING,),
    Status.COMPLETED: (JobStatus.SUCCEEDED,),
    Status.FAILED: (JobStatus.FAILED,),
    Status.CANCELLED: (JobStatus.CANCELLED,),
}
_STATUS = {job: here for here, jobs in ENGINE.items() for job in jobs}


@dataclass(frozen=True, slots=True)
class Trace:
    """What the row of a publication says: see ``state.State``."""

    state: State
    remote_id: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """One publication, or the first comment beneath one, as it was read. All instants are aware UTC."""

    id: int
    tenant: str
    channel: str
    #: ``publish`` or ``ig_first_comment``.
    type: str
    status: Status
    idempotency_key: str | None
    payload: Mapping[str, Any]
    #: When it may run: the planned instant, or while it waits for a retry, that of the retry. ``payload["scheduled_at"]`` is what a plan said.
    run_at: datetime | None
    #: Runs so far, the present one included.
    attempts: int
    max_attempts: int
    #: What the other side calls it.
    remote_id: str | None = None
    url: str | None = None
    #: The last failure, in words.
    error: str | None = None
    #: What the other side may have seen of it; None before its first run.
    progress: State | None = None
    parent_id: int | None = None
    #: The first comments beneath it, by their ids.
    children: tuple[int, ...] = ()
    created_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    #: Its job was removed after the retention: what is left is the key, how it ended, and what the other side calls it.
    gone: bool = False

    @property
    def unknown(self) -> bool:
        """Has it ended, and nobody knows whether it was published?"""
        return self.status in REPLAYED and self.progress is State.SENDING

    def record(self) -> dict[str, Any]:
        """As JSON shows it: every field, instants and words as they are."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return out | {"status": str(self.status), "progress": self.progress and str(self.progress),
                      "payload": dict(self.payload), "children": list(self.children)}  # fmt: skip


class Enqueued(NamedTuple):
    """The answer of enqueue: the publication, and whether this call made it (False when its key was taken)."""

    job: Publication
    created: bool


class Synced(NamedTuple):
    """What became of a plan: its posts, made or there already, and those that were cancelled because the plan no longer has them.

    ``collisions``: by number, with what a post of the plan collides after that. ``kept``: by number, the publication of this plan that has begun
    or gone out at the time of a post in other words: it is given in its place, and the post is not made.
    """

    jobs: list[Enqueued]
    cancelled: list[Publication]
    collisions: Mapping[int, str]
    kept: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TestAnswer:
    """What would become of a publication if it were enqueued (R002-13); nothing was.

    ``collision``: its key is taken, by ``existing``, or ``existing`` is another post of the channel at that instant or too near it (R002-23).
    ``preflight``: it would be refused, because checks fail. ``blackout``: the channel is in one at that instant, ``until`` its end. ``limit``:
    it would be made, and wait: the channel is full, held, paused, or the gate is closed. ``detail`` says it in words.
    """

    __test__ = False  # no test of pytest's

    outcome: Literal["ok", "preflight", "blackout", "collision", "limit"]
    detail: str
    until: datetime | None = None
    existing: Publication | None = None


@dataclass(frozen=True, slots=True)
class PublicationFilter:
    """Which publications. Everything given must hold."""

    tenant: str | None = None
    channel: str | None = None
    #: One status or several.
    status: Status | str | Sequence[Status | str] = ()
    #: ``publish`` or ``ig_first_comment``; None: both.
    type: str | None = None
    key: str | None = None
    remote_id: str | None = None
    parent_id: int | None = None
    #: The instant at which it may run, or ran, from (inclusive) and until (exclusive). Aware.
    run_from: datetime | None = None
    run_until: datetime | None = None
    ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        given = (self.status,) if isinstance(self.status, str) else tuple(self.status)
        for name in given:
            if name not in set(Status):
                raise InvalidArgument("status", f"is {str(name)!r}.", f"Use one of: {', '.join(Status)}.")
        object.__setattr__(self, "status", tuple(Status(name) for name in given))
        if self.type is not None and self.type not in TASKS:
            raise InvalidArgument("type", f"is {self.type!r}.", f"Use one of: {', '.join(TASKS)}.")
        for field_ in ("tenant", "channel", "key", "remote_id"):
            value = getattr(self, field_)
            if value is not None:
                check_text(value, field_)
        for field_ in ("run_from", "run_until"):
            value = getattr(self, field_)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise InvalidArgument(field_, f"is {value!r}; it must be a datetime with a time zone.")

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """The engine's statuses; none: all."""
        return tuple(job for here in self.status for job in ENGINE[Status(here)])

    @property
    def narrow(self) -> bool:
        """Does anything but a status or a tenant narrow it down? Acts on many ask for that."""
        named = (self.channel, self.type, self.key, self.remote_id, self.parent_id, self.run_from, self.run_until)
        return bool(self.ids) or any(value is not None for value in named)


@dataclass(frozen=True, slots=True)
class Bulk:
    """What an act on many did: the publications it changed, and those it left alone with the reason."""

    done: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def publication(
    job: Job, trace: Trace | None = None, children: Iterable[int] = (), ended_by: tuple[str, str] | None = None
) -> Publication:
    """A job as this door shows it. ``ended_by``: (who, why) of one that was cancelled."""
    status = _STATUS[job.status]
    return Publication(
        id=job.id, tenant=job.tenant, channel=job.queue, type=TYPES.get(job.task, job.task), status=status, idempotency_key=job.key,
        payload=job.input if isinstance(job.input, Mapping) else {}, run_at=job.due_at if job.due_at is not None else job.run_at,
        attempts=job.attempts, max_attempts=job.max_attempts, remote_id=(trace and trace.remote_id) or job.remote_id, url=trace.url if trace else None,
        error=_error(job, status, trace, ended_by), progress=trace.state if trace else None, parent_id=job.parent_id, children=tuple(children), created_at=job.created_at,
        started_at=job.started_at, finished_at=job.finished_at, gone=bool(job.meta and job.meta.get("pruned")),
    )  # fmt: skip


def _error(job: Job, status: Status, trace: Trace | None, ended_by: tuple[str, str] | None) -> str | None:
    message = job.error.get("message") if isinstance(job.error, Mapping) else None
    if job.meta and job.meta.get("pruned") and status in REPLAYED:
        return f"it was {job.status}, and its record was removed after the retention: it cannot be replayed, and takes another key to be published"
    if job.status is JobStatus.CANCELLED:
        doubtful = trace is not None and trace.state is State.SENDING
        unknown = (
            "; it may have been published, and nobody knows: a replay asks before it publishes" if doubtful else ""
        )
        by, why = ended_by or ("", "")
        who, because = f" by {by}" if by else "", f": {why}" if why else f" ({message})" if message else ""
        return f"it was cancelled{who}{because}{unknown}"
    if status is Status.COMPLETED:
        return None
    return str(message) if message else ("it failed" if status is Status.FAILED else None)

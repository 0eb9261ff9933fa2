"""The nouns of the workflows room: a step of a run, its lifecycle, and what a workflow is told of it.

A run is a job of type ENGINE_RUN. Its history is one row for each thing that its code asked for: a step, a child job, a sleep, an
event, an approval. The row says what came of it, and the code is run again from its start with those answers until it asks for
something new. This file knows no database and no clock. Source: R003-11, R003-12, T003-k, ADR 0026.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from duly.kernel.errors import DulyError, PermanentError
from duly.kernel.lifecycle import Lifecycle, Move

#: Audit actions.
SIGNALLED, APPROVED, REJECTED = "WORKFLOW_SIGNALLED", "WORKFLOW_APPROVED", "WORKFLOW_REJECTED"
REPLAYED, FORKED, CANCELLED = "WORKFLOW_REPLAYED", "WORKFLOW_FORKED", "WORKFLOW_CANCELLED"
CONTINUED = "WORKFLOW_CONTINUED"


class Kind(StrEnum):
    """What a workflow can ask for."""

    #: A function, called once to its end and recorded.
    STEP = "step"
    #: A child job.
    TASK = "task"
    #: A child job that is not waited for.
    START = "start"
    SLEEP = "sleep"
    #: A signal from outside.
    EVENT = "event"
    #: A person's yes or no.
    APPROVAL = "approval"
    #: The instant at which it was asked for.
    NOW = "now"
    #: Is this run of a time after a change of the code?
    PATCH = "patch"
    #: What makes a step undone, after a failure.
    UNDO = "undo"


class Status(StrEnum):
    """Where a step stands."""

    #: It waits: for a child, an instant, a signal, a person, or for its next attempt.
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    #: What it waited for did not come in time.
    TIMED_OUT = "timed_out"


W, D, F, T = Status

LIFECYCLE: Lifecycle[Status] = Lifecycle(
    "step",
    (
        Move(None, "wait", W, "it waits, or its first attempt failed"),
        Move(None, "do", D),
        Move(None, "fail", F),
        Move(W, "wait", W, "another attempt failed"),
        Move(W, "do", D),
        Move(W, "fail", F),
        Move(W, "time_out", T),
    ),
)
FINAL = (Status.DONE, Status.FAILED, Status.TIMED_OUT)


#: The type of the error of work that is done and whose answer is lost.
UNSTORABLE = "UnstorableResult"


@dataclass(frozen=True, slots=True)
class Step:
    """A row of a run's history. ``position`` counts what the code asked for, from 1; an undo has the negative of its step's."""

    run_id: int
    position: int
    kind: Kind
    name: str
    #: None while it is not on record.
    status: Status | None = None
    output: Any = None
    #: {"type", "message"}.
    error: dict[str, Any] | None = None
    attempts: int = 0
    #: The job of a task.
    child_id: int | None = None
    #: When a sleep ends, when a wait is given up, or when the next attempt comes.
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    #: What it was asked for with: [[name, fingerprint]]. None: it was recorded before arguments were.
    arguments: list[list[str]] | None = None

    @property
    def has_effect(self) -> bool:
        """Has it done its work? One that failed has, where only its answer could not be stored."""
        if self.kind not in (Kind.STEP, Kind.TASK):
            return False
        return self.status is Status.DONE or (
            self.status is Status.FAILED and (self.error or {}).get("type") == UNSTORABLE
        )


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that a run was told from outside."""

    id: int
    run_id: int
    name: str
    payload: Any
    sent_at: datetime
    sent_by: str
    #: The position that took it; None while nobody has.
    used_by: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it stands. ``state`` is for people: queued, running, sleeping, waiting, AWAITING_HUMAN, succeeded, failed, cancelled."""

    id: int
    tenant: str
    workflow: str
    #: None until it was first looked at.
    version: int | None
    state: str
    input: Any = None
    output: Any = None
    error: Any = None
    #: What it waits for, in words and names: [{"kind", "name", "until"}].
    waits: list[dict[str, Any]] = field(default_factory=list)
    parent_id: int | None = None
    forked_from: int | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Approval:
    """What a person decided. True where it is a yes."""

    approved: bool
    by: str
    reason: str
    at: datetime

    def __bool__(self) -> bool:
        return self.approved


class StepFailed(PermanentError):
    """A step has failed for good: its attempts are used up, or it said that another would not help. ``error``: {"type", "message"}."""

    def __init__(self, name: str, error: dict[str, Any] | None) -> None:
        self.name, self.error = name, deepcopy(error or {})  # the caller's, who may change it
        super().__init__(f"{name}: {self.error.get('type', 'Error')}: {self.error.get('message', '')}")


class ChildFailed(StepFailed):
    """A child job did not succeed. ``job_id``: which."""

    def __init__(self, name: str, error: dict[str, Any] | None, job_id: int | None = None) -> None:
        super().__init__(name, error)
        self.job_id = job_id


class WaitTimedOut(PermanentError, TimeoutError):
    """What was waited for did not come in time."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} did not come in time.")


class Changed(PermanentError):
    """The code asks for something else than this run has on record: it was changed under the run, or does not do the same each time."""


class Ahead(DulyError):
    """A run was taken further by newer code than this: it is left to a worker that has that code, and nothing of it has failed. ``guard``: the
    guard that this code lacks, if it is one."""

    def __init__(self, message: str, guard: str = "") -> None:
        self.guard = guard
        super().__init__(message)


class UnknownWorkflow(DulyError):
    """No workflow of that name and version is defined in this application."""

    def __init__(self, name: str, version: int | None, known: tuple[str, ...]) -> None:
        self.name, self.version = name, version
        which = f"workflow {name}" + (f" in version {version}" if version is not None else "")
        super().__init__(f"{which} is not defined here. Known are: {', '.join(known) or 'none'}.")

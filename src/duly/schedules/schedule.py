"""The nouns of the schedules room: a schedule, its policies, an occurrence, and the one table of its moves.

A schedule says when (a recurrence), what (a task and its input) and what to do on days that are not ordinary (policies).
An occurrence is one planned instant of it. Whatever became of that instant stands in exactly one row of the ledger.
This file knows no database and no clock. Source: HOUSE decision 8, ADR 0024.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from duly.kernel.errors import InvalidArgument, UnreadableHere
from duly.kernel.lifecycle import Lifecycle, Move
from duly.kernel.localtime import in_utc
from duly.kernel.recurrence import Schedule as Recurrence

#: What becomes of occurrences that nobody looked at in time.
CatchUp: TypeAlias = Literal["latest", "all", "none"]
#: What becomes of an occurrence while a job of an earlier one is alive.
Overlap: TypeAlias = Literal["allow", "skip", "queue", "replace"]
#: What becomes of an occurrence within a blackout.
Blackout: TypeAlias = Literal["defer", "skip", "run_after"]

_CATCH_UP, _OVERLAP, _BLACKOUT = (
    ("latest", "all", "none"),
    ("allow", "skip", "queue", "replace"),
    ("defer", "skip", "run_after"),
)
_WITHIN = re.compile(r"within\((.+)\)")
#: The longest span of ``within``.
LONGEST_WITHIN = timedelta(days=3_660)

#: Audit actions.
CREATED, CHANGED, REMOVED = "SCHEDULE_CREATED", "SCHEDULE_CHANGED", "SCHEDULE_REMOVED"
PAUSED, RESUMED, RUN, BACKFILLED = "SCHEDULE_PAUSED", "SCHEDULE_RESUMED", "SCHEDULE_RUN", "SCHEDULE_BACKFILLED"
REWOUND = "SCHEDULE_REWOUND"


class Status(StrEnum):
    """What became of an occurrence."""

    #: Its job was made.
    FIRED = "fired"
    #: A rule left it out: a pause, a blackout, an overlap.
    SKIPPED = "skipped"
    #: Nobody looked in time, and the catch-up policy did not want it afterwards.
    MISSED = "missed"
    #: It waits for the end of a blackout or of an earlier job.
    DEFERRED = "deferred"


LIFECYCLE: Lifecycle[Status] = Lifecycle(
    "occurrence",
    (
        Move(None, "fire", Status.FIRED),
        Move(None, "skip", Status.SKIPPED),
        Move(None, "miss", Status.MISSED),
        Move(None, "defer", Status.DEFERRED),
        Move(Status.DEFERRED, "defer", Status.DEFERRED, "what it waits for lasts longer"),
        Move(Status.DEFERRED, "fire", Status.FIRED, "what it waited for is over"),
        Move(Status.DEFERRED, "skip", Status.SKIPPED, "a later occurrence took its place, or the schedule was paused or removed"),
        Move(Status.SKIPPED, "backfill", Status.FIRED, "an operator had it run after all"),
        Move(Status.MISSED, "backfill", Status.FIRED, "an operator had it run after all"),
        Move(Status.SKIPPED, "requeue", Status.DEFERRED, "an operator had it run after all, one after the other"),
        Move(Status.MISSED, "requeue", Status.DEFERRED, "an operator had it run after all, one after the other"),
    ),
)  # fmt: skip


class Trigger(StrEnum):
    """Who wanted an occurrence."""

    SCHEDULE = "schedule"
    BACKFILL = "backfill"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Policies:
    """What to do with occurrences that are late, overlap, or fall into a blackout."""

    #: ``latest``: of those found late, only the newest; ``all``: every one; ``none``: no late one; a timedelta: those not
    #: later than that (written ``within(2h)`` in texts). An occurrence found within the grace (setting ``schedule_grace``) is not late.
    catch_up: CatchUp | timedelta = "latest"
    #: ``allow``: fire whatever still runs; ``skip``: leave it out; ``queue``: fire when the earlier job has ended, in order;
    #: ``replace``: cancel the earlier job, and fire when it is gone.
    overlap: Overlap = "allow"
    #: ``defer``: each fires at the end of the blackout, in order; ``run_after``: only the last one of each does; ``skip``: none.
    blackout: Blackout = "defer"

    def __post_init__(self) -> None:
        object.__setattr__(self, "catch_up", read_catch_up(self.catch_up))
        for name, known in (("overlap", _OVERLAP), ("blackout", _BLACKOUT)):
            if getattr(self, name) not in known:
                raise InvalidArgument(name, f"is {getattr(self, name)!r}.", f"Use one of {', '.join(known)}.")

    @property
    def catch_up_text(self) -> str:
        """``latest``, ``all``, ``none`` or ``within(7200)`` (seconds)."""
        if isinstance(self.catch_up, timedelta):
            # every digit: it is read back from rows (``:g`` keeps six)
            return f"within({self.catch_up.total_seconds():f}".rstrip("0").rstrip(".") + ")"
        return self.catch_up


def read_catch_up(value: object) -> CatchUp | timedelta:
    """A catch-up policy from one of its names, a timedelta, or ``within(…)`` with seconds or a span such as 2h inside."""
    from duly.kernel.payload import read_duration

    if isinstance(value, str):
        if value in _CATCH_UP:
            return value  # type: ignore[return-value]
        if found := _WITHIN.fullmatch(value.strip()):
            inner = found[1].strip()
            plain = re.fullmatch(r"\d+(\.\d+)?", inner)
            value = (
                timedelta(seconds=float(inner))
                if plain and math.isfinite(float(inner)) and float(inner) < 1e9
                else read_duration(inner, "catch_up")
            )
    if isinstance(value, timedelta) and timedelta(0) < value <= LONGEST_WITHIN:
        return value
    raise InvalidArgument(
        "catch_up", f"is {value!r}.", "Use latest, all, none, or a timedelta (as text: within(2h)), up to ten years."
    )


@dataclass(frozen=True, slots=True)
class Spec:
    """A schedule as somebody wants it."""

    name: str
    recurrence: Recurrence
    task: str
    #: Encoded arguments (JSON text).
    input: str
    queue: str
    tenant: str
    policies: Policies = Policies()
    priority: int = 0
    max_attempts: int | None = None
    #: Occurrences count from here (inclusive, aware) and until here (exclusive); None is no bound.
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.recurrence, Recurrence):
            raise InvalidArgument(
                "recurrence",
                f"is of type {type(self.recurrence).__name__}.",
                "Give Cron(…), Daily(…), Every(…) or another recurrence.",
            )
        object.__setattr__(self, "recurrence", self.recurrence.named(self.name))
        for field in ("starts_at", "ends_at"):
            if (value := getattr(self, field)) is not None:
                object.__setattr__(self, field, in_utc(value, field))
        if self.starts_at is not None and self.ends_at is not None and self.starts_at >= self.ends_at:
            raise InvalidArgument(
                "ends_at", f"is {self.ends_at.isoformat()}, not later than starts_at.", "Let it end after it starts."
            )

    @property
    def tz(self) -> str | None:
        """The zone whose clock is meant, for those that have one."""
        return getattr(self.recurrence, "tz", None)

    @property
    def scopes(self) -> tuple[str, ...]:
        """What blackouts are looked up by: those of its queue, of its name, and of its name in its tenant.

        A slash parts the two, so one within a name is written ``%2F`` (and a percent sign ``%25``).
        """
        name, tenant = (text.replace("%", "%25").replace("/", "%2F") for text in (self.name, self.tenant))
        return f"queue:{self.queue}", f"channel:{self.queue}", f"schedule:{name}", f"schedule:{tenant}/{name}"

    def to_json(self) -> dict[str, Any]:
        """The definition as plain JSON: what a version keeps, and what two definitions are compared by."""
        said: dict[str, Any] = {
            "name": self.name, "recurrence": self.recurrence.to_json(), "task": self.task, "input": self.input, "queue": self.queue,
            "priority": self.priority, "catch_up": self.policies.catch_up_text, "overlap": self.policies.overlap, "blackout": self.policies.blackout,
        }  # fmt: skip
        for name, value in (
            ("max_attempts", self.max_attempts),
            ("starts_at", self.starts_at),
            ("ends_at", self.ends_at),
        ):
            if value is not None:
                said[name] = value.isoformat() if isinstance(value, datetime) else value
        return said


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it stands in the database."""

    id: int
    version: int
    #: None where the row cannot be read; ``error`` says why.
    spec: Spec | None
    name: str
    tenant: str
    #: Every occurrence planned up to and including this instant stands in the ledger.
    decided_until: datetime
    #: The next planned instant; None when there is none.
    next_at: datetime | None
    #: When somebody has to look at it next.
    look_at: datetime | None
    paused_at: datetime | None = None
    paused_reason: str | None = None
    paused_by: str | None = None
    #: Why it could not be planned, and since when.
    error: str | None = None
    error_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    updated_by: str | None = None
    tz_version: str | None = None
    #: Why this process cannot read it and leaves it to others. Nothing of that stands in its row, and it is not broken.
    left: UnreadableHere | None = None

    @property
    def problem(self) -> str | None:
        """Why it cannot be planned: at all, or in this process."""
        return self.error if self.left is None else str(self.left)

    @property
    def state(self) -> str:
        """``active``, ``paused``, ``broken`` or ``ended``, for people."""
        if self.error is not None:
            return "broken"
        if self.paused_at is not None:
            return "paused"
        # an occurrence that waits is looked at again
        return "ended" if self.next_at is None and self.look_at is None else "active"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A row of the ledger."""

    schedule_id: int
    #: The planned instant; of one that was run by hand, the instant at which that was asked.
    due_at: datetime
    status: Status
    #: In a word: paused, blackout, overlap, replaced, late, backfill, manual, removed; undecided: it could not be planned when a person changed
    #: the schedule, and stands for all that were due until then.
    reason: str | None
    #: The policies under which this was decided.
    policy: str
    #: When it was decided last.
    acted_at: datetime
    version: int
    trigger: Trigger = Trigger.SCHEDULE
    job_id: int | None = None
    #: When the job is to start: the planned instant and its jitter.
    start_at: datetime | None = None
    #: Of one that is deferred: when to look again.
    release_at: datetime | None = None
    tz_version: str | None = None


def definition(given: Mapping[str, Any]) -> str:
    """A definition as one text that is equal for equal definitions."""
    import json

    return json.dumps(given, sort_keys=True, separators=(",", ":"))

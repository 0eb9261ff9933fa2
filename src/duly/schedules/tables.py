"""The tables of the schedules room: what recurs, its versions, and the ledger of every occurrence.

A schedule's row says when somebody has to look at it next (``look_at``); one partial index finds those that are due. Everything
about one schedule is decided under the lock of its row. The ledger's primary key allows each occurrence once.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)

from duly.schedules.schedule import LIFECYCLE
from duly.storage.schema import ddl, metadata, where
from duly.storage.types import Id, Instant, Json

schedules = Table(
    "schedules",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("recurrence", Json, nullable=False),
    Column("task", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("input", Json, nullable=False),
    Column("priority", Integer, nullable=False),
    #: Null: the setting max_attempts.
    Column("max_attempts", Integer),
    Column("catch_up", Text, nullable=False),
    Column("overlap", Text, nullable=False),
    Column("blackout", Text, nullable=False),
    Column("starts_at", Instant),
    Column("ends_at", Instant),
    #: Every occurrence planned up to and including this instant stands in the ledger.
    Column("decided_until", Instant, nullable=False),
    #: The next planned instant; null when there is none.
    Column("next_at", Instant),
    #: When somebody has to look: the next planned instant, or the end of what an occurrence waits for.
    Column("look_at", Instant),
    Column("paused_at", Instant),
    Column("paused_reason", Text),
    Column("paused_by", Text),
    #: Why it could not be planned; the others go on.
    Column("error", Text),
    Column("error_at", Instant),
    Column("failures", Integer, nullable=False, server_default="0"),
    #: The definition that code declared last, as SHA-256; null when it was made by a person. A change made by a person stays until code changes.
    Column("declared", Text),
    #: The release of the time zone data by which next_at was computed.
    Column("tz_version", Text),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", Text, nullable=False),
    Column("removed_at", Instant),
    info=ddl(sqlite_autoincrement=True),
)
_there = "removed_at IS NULL"
Index(
    "ix_schedules_name", schedules.c.tenant, schedules.c.name, unique=True, info=where(_there)
)  # fmt: skip
_look = "look_at IS NOT NULL"
Index("ix_schedules_look", schedules.c.look_at, info=where(_look))

schedule_versions = Table(
    "schedule_versions",
    metadata,
    Column("schedule_id", Id, ForeignKey("schedules.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("definition", Json, nullable=False),
    Column("made_at", Instant, nullable=False),
    Column("made_by", Text, nullable=False),
    PrimaryKeyConstraint("schedule_id", "version"),
)

occurrences = Table(
    "occurrences",
    metadata,
    Column("schedule_id", Id, ForeignKey("schedules.id"), nullable=False),
    #: The planned instant; of one that was run by hand, when that was asked.
    Column("due_at", Instant, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),
    #: The policies under which it was decided, such as ``catch_up=latest``.
    Column("policy", Text, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("job_id", Id),
    #: When the job was to start: the planned instant and its jitter.
    Column("start_at", Instant),
    #: When it was decided.
    Column("acted_at", Instant, nullable=False),
    #: Seconds between the planned instant (or the end of what it waited for) and the decision; of fired ones.
    Column("late", Float),
    #: Of one that is deferred: when to look again.
    Column("release_at", Instant),
    Column("tz_version", Text),
    PrimaryKeyConstraint("schedule_id", "due_at"),
    CheckConstraint(LIFECYCLE.check("status"), name="status"),
)
_deferred = "status = 'deferred'"
Index(
    "ix_occurrences_deferred", occurrences.c.schedule_id, occurrences.c.due_at, info=where(_deferred),
)  # fmt: skip
_fired = "job_id IS NOT NULL"
Index(
    "ix_occurrences_job",
    occurrences.c.schedule_id,
    occurrences.c.job_id,
    info=where(_fired),
)
Index("ix_occurrences_acted", occurrences.c.acted_at)

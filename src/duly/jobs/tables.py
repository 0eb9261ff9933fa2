"""The tables of the jobs room.

``jobs`` holds live work only, so that it and its indexes stay small however much was done before; ``jobs_done`` holds
what ended. A job that waits for a moment carries ``due_at`` and is in no claim index; one set-based statement clears
``due_at`` when the moment comes, and only then is the row claimable. Uniqueness of keys stands in ``job_keys``, apart
from the job, so that a key outlives its row and the hot table carries no unique index besides its primary key.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Float,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    func,
    literal_column,
    text,
)

from duly.jobs.job import ENDED, LIFECYCLE, LIVE
from duly.storage.qualified import VIEWS
from duly.storage.schema import ddl, metadata, where
from duly.storage.types import Id, Instant, Json, json_text


def _common() -> list[Column[object]]:
    """Columns that a job keeps from birth to archive."""
    return [
        Column("tenant", Text, nullable=False),
        Column("queue", Text, nullable=False),
        Column("task", Text, nullable=False),
        Column("priority", Integer, nullable=False, server_default="0"),
        Column("status", Text, nullable=False),
        Column("run_at", Instant, nullable=False),
        Column("input", Json, nullable=False),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("max_attempts", Integer, nullable=False),
        Column("key", Text),
        #: When the key is free again: start, done, forever, or until an instant (see job_keys).
        Column("key_scope", Text),
        Column("concurrency_key", Text),
        Column("parent_id", Id),
        #: What a waiting parent does when a child fails: fail or ignore. Null: the parent does not wait.
        Column("on_child_failure", Text),
        Column("output", Json),
        Column("error", Json),
        Column("cost_cents", Integer, nullable=False, server_default="0"),
        Column("remote_id", Text),
        Column("meta", Json),
        Column("worker", Text),
        Column("created_at", Instant, nullable=False),
        Column("started_at", Instant),
    ]


COMMON = tuple(c.name for c in _common())

#: Stands for the class of an error that names none. A class is looked at as far as so many characters: an index has no room for more.
NO_CLASS, LONGEST_CLASS = "(none)", 200


def error_class(column: Any) -> ColumnElement[str]:
    """The class that an error names, in SQL; word for word what ``ix_jobs_done_failures`` is made of."""
    cut = func.substr(json_text(column, "type"), literal_column("1"), literal_column(str(LONGEST_CLASS)))
    return func.coalesce(cut, literal_column(f"'{NO_CLASS}'"))


#: A view that migrations make: live and ended jobs together.
metadata.info.setdefault(VIEWS, set()).add("all_jobs")

jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    *_common(),
    #: When the job becomes claimable. Null: it is. A waiting parent carries a far instant.
    Column("due_at", Instant),
    Column("next_retry_at", Instant),
    #: True when its queue shares its turns among tenants: such rows have an index of their own.
    Column("fair", Boolean, nullable=False, server_default=text("false")),
    Column("waits_for_children", Boolean, nullable=False, server_default=text("false")),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    #: What a worker must know beside the task to claim it (``JobStore.abilities``). Null: nothing.
    Column("needs", Text),
    Column("lease_token", Id),
    Column("lease_until", Instant),
    CheckConstraint(LIFECYCLE.check("status", LIVE), name="status"),
    CheckConstraint("(status = 'running') = (lease_token IS NOT NULL)", name="lease"),
    #: Room in each page, and vacuum that comes often (``ALTER TABLE jobs SET``), are the matter of migration 0001 alone:
    #: SQLAlchemy knows storage parameters of a table from 2.1 on.
    info=ddl(sqlite_autoincrement=True),
)
#: What the partial indexes are of, word for word: said so, a query that counts need not look at the rows themselves.
READY, DUE, RUNNING = (
    "status = 'queued' AND due_at IS NULL",
    "status = 'queued' AND due_at IS NOT NULL",
    "status = 'running'",
)
Index(
    "ix_jobs_ready",
    jobs.c.queue,
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    info=where(READY),
)
_fair = "status = 'queued' AND due_at IS NULL AND fair"
Index(
    "ix_jobs_fair",
    jobs.c.queue,
    jobs.c.tenant,
    jobs.c.priority.desc(),
    jobs.c.run_at,
    jobs.c.id,
    info=where(_fair),
)
Index("ix_jobs_due", jobs.c.due_at, info=where(DUE))
Index("ix_jobs_running", jobs.c.queue, jobs.c.lease_until, info=where(RUNNING))
_child = "parent_id IS NOT NULL"
Index("ix_jobs_parent", jobs.c.parent_id, info=where(_child))
_keyed = "key IS NOT NULL"
Index("ix_jobs_key", jobs.c.key, jobs.c.id, info=where(_keyed))
#: Live jobs that have failed before.
Index("ix_jobs_error", jobs.c.id, info=where("error IS NOT NULL"))

jobs_done = Table(
    "jobs_done",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=False),
    *_common(),
    Column("finished_at", Instant, nullable=False),
    CheckConstraint(LIFECYCLE.check("status", ENDED), name="status"),
)
Index("ix_jobs_done_parent", jobs_done.c.parent_id, info=where(_child))
Index("ix_jobs_done_finished", jobs_done.c.finished_at)
_failed = "status = 'failed'"
Index("ix_jobs_done_failed", jobs_done.c.id, info=where(_failed))
Index("ix_jobs_done_cancelled", jobs_done.c.id, info=where("status = 'cancelled'"))
Index("ix_jobs_done_key", jobs_done.c.key, jobs_done.c.id, info=where(_keyed))

#: For counting failures by class and time, of all tenants or of one.
Index(
    "ix_jobs_done_failures", error_class(jobs_done.c.error), jobs_done.c.finished_at, jobs_done.c.tenant, info=where(_failed),
)  # fmt: skip

job_keys = Table(
    "job_keys",
    metadata,
    Column("tenant", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("job_id", Id, nullable=False),
    #: SHA-256 of the task's name and its encoded input, to tell a repetition from a mix-up.
    Column("payload_hash", Text, nullable=False),
    Column("scope", Text, nullable=False),
    #: The instant from which the key is free; null while nobody knows or for ever.
    Column("until", Instant),
    Column("created_at", Instant, nullable=False),
    #: How its job ended, and of which task it was: noted when the job's row is pruned.
    Column("ended", Text),
    Column("task", Text),
    PrimaryKeyConstraint("tenant", "queue", "key"),
)
Index("ix_job_keys_job", job_keys.c.job_id)
Index(
    "ix_job_keys_until",
    job_keys.c.until,
    info=where("until IS NOT NULL"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("worker", Text),
    Column("started_at", Instant),
    Column("ended_at", Instant, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("error", Json),
    info=ddl(sqlite_autoincrement=True),
)
Index("ix_attempts_job", attempts.c.job_id)

#: Which children a job waits for whose handler runs again when they have ended.
job_waits = Table(
    "job_waits",
    metadata,
    Column("waiter_id", Id, nullable=False),
    Column("job_id", Id, nullable=False),
    PrimaryKeyConstraint("waiter_id", "job_id"),
)

queues = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    #: True when a claim must look closer: paused, held, limited, rated, keyed or fair. The fast claim passes such queues by.
    Column("governed", Boolean, nullable=False, server_default=text("false")),
    Column("concurrency_limit", Integer),
    #: How many jobs with the same concurrency_key may run at once.
    Column("key_limit", Integer),
    Column("rate_count", Integer),
    Column("rate_seconds", Float),
    Column("fair", Boolean, nullable=False, server_default=text("false")),
    Column("paused_at", Instant),
    Column("paused_reason", Text),
    Column("paused_by", Text),
    #: Held until an instant, e.g. because the other side has had enough; it opens by itself.
    Column("held_until", Instant),
    Column("held_reason", Text),
    Column("updated_at", Instant, nullable=False),
)

#: Starts of rate-limited queues, one row per claim, kept for one window.
queue_starts = Table(
    "queue_starts",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("queue", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("count", Integer, nullable=False),
    info=ddl(sqlite_autoincrement=True),
)
Index("ix_queue_starts_queue", queue_starts.c.queue, queue_starts.c.at)

#: Facts about the whole system, one row each: the online gate is the row ``atlas_online`` and holds nothing else (T003-f).
system_state = Table(
    "system_state",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("updated_at", Instant, nullable=False),
)
GATE_KEY = "atlas_online"
#: The row of the outbox, where its relays do not follow the gate.
OUTBOX_GATE_KEY = "outbox_online"

#: Workers as they last said they were: for people to look at, never for correctness.
workers = Table(
    "workers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("queues", Json, nullable=False),
    Column("tasks", Json, nullable=False),
    Column("running", Integer, nullable=False, server_default="0"),
    #: What its code declares (such as schedules): name → a mark of the definition.
    Column("declares", Json),
    #: Definitions that it cannot read and leaves to others: what and name → why.
    Column("leaves", Json),
    Column("started_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
)

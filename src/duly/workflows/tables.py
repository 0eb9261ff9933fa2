"""The tables of the workflows room: what a run has on record, what it waits for, and what it was told from outside.

A run's own status stands with its job and nowhere else. A history is read by its primary key.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Identity, Index, Integer, PrimaryKeyConstraint, Table, Text

from duly.jobs.tables import jobs, jobs_done
from duly.storage.schema import ddl, metadata, where
from duly.storage.types import Id, Instant, Json
from duly.workflows.step import LIFECYCLE

workflow_runs = Table(
    "workflow_runs",
    metadata,
    #: The job's id.
    Column("id", Id, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    #: Of the code that it began with, and goes on with. Null: it was sent a signal before it began.
    Column("version", Integer),
    #: Of a workflow that is written as a document: the document it began with.
    Column("definition", Json),
    #: How many signals were sent, and how many of them it knew of when it began to wait.
    Column("news", Integer, nullable=False, server_default="0"),
    Column("heard", Integer, nullable=False, server_default="0"),
    #: What it waits for, for people.
    Column("waits", Json),
    #: Who put it down last, and which time: he knows its history still. Null once it goes on.
    Column("rested", Text),
    #: What ended it: "over" once no step is (any more) to be undone for it, "steps" the positions whose failure it was.
    Column("failing", Json),
    Column("forked_from", Id),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
)
Index("ix_workflow_runs_name", workflow_runs.c.tenant, workflow_runs.c.workflow, workflow_runs.c.id)
#: Which jobs are runs, word for word what the indexes are of: the few among many other jobs are found by these.
RUNS = "task = 'ENGINE_RUN'"
Index("ix_jobs_runs", jobs.c.id, info=where(RUNS))
Index("ix_jobs_done_runs", jobs_done.c.id, info=where(RUNS))

workflow_steps = Table(
    "workflow_steps",
    metadata,
    Column("run_id", Id, nullable=False),
    #: What the code asked for first is 1; what undoes it has the same number, negative.
    Column("position", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("output", Json),
    Column("error", Json),
    Column("attempts", Integer, nullable=False, server_default="0"),
    #: The job of a task.
    Column("child_id", Id),
    #: When a sleep ends, a wait is given up, or the next attempt comes.
    Column("due_at", Instant),
    Column("started_at", Instant),
    Column("finished_at", Instant),
    #: What it was asked for with: [[name, fingerprint]], nothing in clear. Null: recorded before arguments were.
    Column("arguments", Json),
    PrimaryKeyConstraint("run_id", "position"),
    CheckConstraint(LIFECYCLE.check("status"), name="status"),
)

workflow_signals = Table(
    "workflow_signals",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("run_id", Id, nullable=False),
    Column("name", Text, nullable=False),
    Column("payload", Json),
    #: A signal with a key is taken once.
    Column("key", Text),
    Column("sent_at", Instant, nullable=False),
    Column("sent_by", Text, nullable=False),
    #: The position that took it.
    Column("used_by", Integer),
    info=ddl(sqlite_autoincrement=True),
)
_unused = "used_by IS NULL"
Index("ix_workflow_signals_run", workflow_signals.c.run_id, info=where(_unused))
_keyed = "key IS NOT NULL"
Index(
    "ix_workflow_signals_key", workflow_signals.c.run_id, workflow_signals.c.key, unique=True, info=where(_keyed),
)  # fmt: skip

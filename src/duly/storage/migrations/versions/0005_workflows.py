"""Workflows: runs, their histories, signals; which children a job waits for.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant, Json

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "job_waits",
        sa.Column("waiter_id", Id, nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.PrimaryKeyConstraint("waiter_id", "job_id", name=op.f("pk_job_waits")),
    )
    op.create_table(
        "workflow_runs",
        sa.Column("id", Id, autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("workflow", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("definition", Json, nullable=True),
        sa.Column("news", sa.Integer(), server_default="0", nullable=False),
        sa.Column("heard", sa.Integer(), server_default="0", nullable=False),
        sa.Column("waits", Json, nullable=True),
        sa.Column("rested", sa.Text(), nullable=True),
        sa.Column("failing", Json, nullable=True),
        sa.Column("forked_from", Id, nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflow_runs")),
    )
    op.create_index("ix_workflow_runs_name", "workflow_runs", ["tenant", "workflow", "id"])
    op.create_table(
        "workflow_steps",
        sa.Column("run_id", Id, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("output", Json, nullable=True),
        sa.Column("error", Json, nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("child_id", Id, nullable=True),
        sa.Column("due_at", Instant, nullable=True),
        sa.Column("started_at", Instant, nullable=True),
        sa.Column("finished_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("run_id", "position", name=op.f("pk_workflow_steps")),
        sa.CheckConstraint(
            "status IN ('waiting', 'done', 'failed', 'timed_out')", name=op.f("ck_workflow_steps_status")
        ),
    )
    op.create_table(
        "workflow_signals",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("run_id", Id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("payload", Json, nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("sent_at", Instant, nullable=False),
        sa.Column("sent_by", sa.Text(), nullable=False),
        sa.Column("used_by", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflow_signals")),
        sqlite_autoincrement=True,
    )
    for name, columns, unique, where in (
        ("ix_workflow_signals_run", ["run_id"], False, "used_by IS NULL"),
        ("ix_workflow_signals_key", ["run_id", "key"], True, "key IS NOT NULL"),
    ):
        op.create_index(
            name, "workflow_signals", columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )  # fmt: skip

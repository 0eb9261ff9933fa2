"""The first schema: jobs, queues, workers, the audit trail.

Frozen text: it must go on making what it made on the day it was released, so it names no table object of today's code.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant, Json

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("started_at", Instant, nullable=True),
        sa.Column("ended_at", Instant, nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error", Json, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_attempts_job", "attempts", ["job_id"], unique=False)
    op.create_table(
        "audit_log",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("entity_id", sa.Text(), nullable=False),
        sa.Column("meta", Json, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_log_entity", "audit_log", ["entity_id", "entity"], unique=False)
    op.create_table(
        "audit_seals",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("sealed_at", Instant, nullable=False),
        sa.Column("first_id", Id, nullable=False),
        sa.Column("last_id", Id, nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.Column("gaps", Json, nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_seals")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "job_keys",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("payload_hash", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("until", Instant, nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "queue", "key", name=op.f("pk_job_keys")),
    )
    op.create_index("ix_job_keys_job", "job_keys", ["job_id"], unique=False)
    op.create_index(
        "ix_job_keys_until",
        "job_keys",
        ["until"],
        unique=False,
        postgresql_where=sa.text("until IS NOT NULL"),
        sqlite_where=sa.text("until IS NOT NULL"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("run_at", Instant, nullable=False),
        sa.Column("input", Json, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("key_scope", sa.Text(), nullable=True),
        sa.Column("concurrency_key", sa.Text(), nullable=True),
        sa.Column("parent_id", Id, nullable=True),
        sa.Column("on_child_failure", sa.Text(), nullable=True),
        sa.Column("output", Json, nullable=True),
        sa.Column("error", Json, nullable=True),
        sa.Column("cost_cents", sa.Integer(), server_default="0", nullable=False),
        sa.Column("remote_id", sa.Text(), nullable=True),
        sa.Column("meta", Json, nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("started_at", Instant, nullable=True),
        sa.Column("due_at", Instant, nullable=True),
        sa.Column("next_retry_at", Instant, nullable=True),
        sa.Column("fair", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("waits_for_children", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("lease_token", Id, nullable=True),
        sa.Column("lease_until", Instant, nullable=True),
        sa.CheckConstraint("(status = 'running') = (lease_token IS NOT NULL)", name=op.f("ck_jobs_lease")),
        sa.CheckConstraint("status IN ('queued', 'running')", name=op.f("ck_jobs_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_jobs_due",
        "jobs",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND due_at IS NOT NULL"),
        sqlite_where=sa.text("status = 'queued' AND due_at IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_fair",
        "jobs",
        ["queue", "tenant", sa.literal_column("priority DESC"), "run_at", "id"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND due_at IS NULL AND fair"),
        sqlite_where=sa.text("status = 'queued' AND due_at IS NULL AND fair"),
    )
    op.create_index(
        "ix_jobs_parent",
        "jobs",
        ["parent_id"],
        unique=False,
        postgresql_where=sa.text("parent_id IS NOT NULL"),
        sqlite_where=sa.text("parent_id IS NOT NULL"),
    )
    op.create_index(
        "ix_jobs_ready",
        "jobs",
        ["queue", sa.literal_column("priority DESC"), "run_at", "id"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND due_at IS NULL"),
        sqlite_where=sa.text("status = 'queued' AND due_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_running",
        "jobs",
        ["queue", "lease_until"],
        unique=False,
        postgresql_where=sa.text("status = 'running'"),
        sqlite_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "jobs_done",
        sa.Column("id", Id, autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("run_at", Instant, nullable=False),
        sa.Column("input", Json, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("key_scope", sa.Text(), nullable=True),
        sa.Column("concurrency_key", sa.Text(), nullable=True),
        sa.Column("parent_id", Id, nullable=True),
        sa.Column("on_child_failure", sa.Text(), nullable=True),
        sa.Column("output", Json, nullable=True),
        sa.Column("error", Json, nullable=True),
        sa.Column("cost_cents", sa.Integer(), server_default="0", nullable=False),
        sa.Column("remote_id", sa.Text(), nullable=True),
        sa.Column("meta", Json, nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("started_at", Instant, nullable=True),
        sa.Column("finished_at", Instant, nullable=False),
        sa.CheckConstraint("status IN ('succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_done_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs_done")),
    )
    op.create_index(
        "ix_jobs_done_failed",
        "jobs_done",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status = 'failed'"),
        sqlite_where=sa.text("status = 'failed'"),
    )
    op.create_index("ix_jobs_done_finished", "jobs_done", ["finished_at"], unique=False, postgresql_using="brin")
    op.create_index(
        "ix_jobs_done_parent",
        "jobs_done",
        ["parent_id"],
        unique=False,
        postgresql_where=sa.text("parent_id IS NOT NULL"),
        sqlite_where=sa.text("parent_id IS NOT NULL"),
    )
    op.create_table(
        "queue_starts",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_queue_starts")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_queue_starts_queue", "queue_starts", ["queue", "at"], unique=False)
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("governed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("concurrency_limit", sa.Integer(), nullable=True),
        sa.Column("key_limit", sa.Integer(), nullable=True),
        sa.Column("rate_count", sa.Integer(), nullable=True),
        sa.Column("rate_seconds", sa.Float(), nullable=True),
        sa.Column("fair", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("paused_at", Instant, nullable=True),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_queues")),
    )
    op.create_table(
        "system_state",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_system_state")),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("queues", Json, nullable=False),
        sa.Column("tasks", Json, nullable=False),
        sa.Column("running", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("seen_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )

    ts = "INTEGER" if op.get_context().dialect.name == "sqlite" else "timestamptz"
    op.execute(
        f"CREATE VIEW all_jobs AS SELECT {LIVE} FROM jobs UNION ALL SELECT {DONE} FROM jobs_done".replace("{ts}", ts)
    )
    op.execute("INSERT INTO system_state (key, value, updated_at) VALUES ('atlas_online', 'true', " + _now() + ")")
    op.execute(
        f"INSERT INTO system_state (key, value, updated_at) VALUES ('schema_works_with', '{works_with}', "
        + _now()
        + ")"
    )
    if op.get_context().dialect.name == "sqlite":
        op.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', 0)")
        for table in ("audit_log", "audit_seals"):
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
    else:
        op.execute(
            "ALTER TABLE jobs SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)"
        )
        op.execute(
            "CREATE FUNCTION duly_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )
        for table in ("audit_log", "audit_seals"):
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION duly_append_only()"
            )
            op.execute(
                f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION duly_append_only()"
            )


#: The columns of the view, the same for live and ended jobs.
SHARED = (
    "id, tenant, queue, task, priority, status, run_at, input, attempts, max_attempts, key, key_scope, concurrency_key, parent_id, "
    "on_child_failure, output, error, cost_cents, remote_id, meta, worker, created_at, started_at"
)
LIVE = (
    SHARED
    + ", due_at, next_retry_at, lease_until, waits_for_children, cancel_requested, CAST(NULL AS {ts}) AS finished_at"
)
DONE = (
    SHARED
    + ", CAST(NULL AS {ts}) AS due_at, CAST(NULL AS {ts}) AS next_retry_at, CAST(NULL AS {ts}) AS lease_until, false AS waits_for_children, false AS cancel_requested, finished_at"
)


def _now() -> str:
    return "CAST(strftime('%s') AS INTEGER) * 1000000" if op.get_context().dialect.name == "sqlite" else "now()"

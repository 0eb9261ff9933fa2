"""Automations: their definitions, sessions with what was said in them, and the slot.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant, Json

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "automation_slots",
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("session_id", Id, nullable=True),
        sa.Column("activation", sa.Text(), nullable=True),
        sa.Column("since", Instant, nullable=True),
        sa.PrimaryKeyConstraint("slot", name=op.f("pk_automation_slots")),
    )
    op.create_table(
        "automations",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("seed_session_id", Id, nullable=False),
        sa.Column("schedule", Json, nullable=True),
        sa.Column("triggers", Json, nullable=False),
        sa.Column("dismiss_older_instances", sa.Boolean(), nullable=False),
        sa.Column("catch_up_window", sa.Float(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("tools", Json, nullable=False),
        sa.Column("limits", Json, nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("reference_at", Instant, nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("last_execution_id", Id, nullable=True),
        sa.Column("execution_history", Json, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.Column("removed_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_automations")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_automations_name",
        "automations",
        ["tenant", "name"],
        unique=True,
        postgresql_where=sa.text("removed_at IS NULL"),
        sqlite_where=sa.text("removed_at IS NULL"),
    )
    op.create_table(
        "ai_sessions",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=True),
        sa.Column("automation_id", Id, nullable=True),
        sa.Column("scheduled_at", Instant, nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("options", Json, nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("queued_at", Instant, nullable=True),
        sa.Column("wanted_until", Instant, nullable=True),
        sa.Column("started_at", Instant, nullable=True),
        sa.Column("activation", sa.Text(), nullable=True),
        sa.Column("job_id", Id, nullable=True),
        sa.Column("last_activity_at", Instant, nullable=True),
        sa.Column("is_waiting_for_network", sa.Boolean(), nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("end_detail", sa.Text(), nullable=True),
        sa.Column("ended_at", Instant, nullable=True),
        sa.Column("resume_at", Instant, nullable=True),
        sa.Column("resumes_early", sa.Boolean(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("partial", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ai_sessions")),
        sa.CheckConstraint(
            "(status = 'active') = (activation IS NOT NULL)",
            name=op.f("ck_ai_sessions_activation"),
        ),
        sa.CheckConstraint(
            "(status = 'ended') = coalesce(end_reason IN ('COMPLETED', 'CANCELLED', 'TIMEOUT', 'ERROR'), false)",
            name=op.f("ck_ai_sessions_end_reason"),
        ),
        sa.CheckConstraint(
            "status IN ('seed', 'queued', 'active', 'ended', 'interrupted')",
            name=op.f("ck_ai_sessions_status"),
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_ai_sessions_active",
        "ai_sessions",
        ["slot"],
        unique=True,
        postgresql_where=sa.text("status = 'active'"),
        sqlite_where=sa.text("status = 'active'"),
    )
    op.create_index("ix_ai_sessions_automation", "ai_sessions", ["automation_id", "id"])
    op.create_index(
        "ix_ai_sessions_key",
        "ai_sessions",
        ["automation_id", "key"],
        unique=True,
        postgresql_where=sa.text("key IS NOT NULL"),
        sqlite_where=sa.text("key IS NOT NULL"),
    )
    op.create_index(
        "ix_ai_sessions_occurrence",
        "ai_sessions",
        ["automation_id", "scheduled_at"],
        unique=True,
        postgresql_where=sa.text("trigger = 'SCHEDULED'"),
        sqlite_where=sa.text("trigger = 'SCHEDULED'"),
    )
    op.create_index(
        "ix_ai_sessions_open",
        "ai_sessions",
        ["slot", "status"],
        postgresql_where=sa.text("status IN ('queued', 'interrupted')"),
        sqlite_where=sa.text("status IN ('queued', 'interrupted')"),
    )
    op.create_table(
        "ai_messages",
        sa.Column("session_id", Id, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("calls", Json, nullable=True),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("round", sa.Integer(), nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("session_id", "position", name=op.f("pk_ai_messages")),
    )
    op.create_table(
        "ai_calls",
        sa.Column("session_id", Id, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("arguments", Json, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("job_id", Id, nullable=True),
        sa.Column("asked_at", Instant, nullable=False),
        sa.Column("finished_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_ai_calls")),
        sa.CheckConstraint(
            "status IN ('asked', 'refused', 'called', 'waiting', 'done', 'failed', 'unknown')",
            name=op.f("ck_ai_calls_status"),
        ),
    )
    op.create_table(
        "ai_rounds",
        sa.Column("session_id", Id, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("automation_id", Id, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("activation", sa.Text(), nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("answered_at", Instant, nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_ai_rounds")),
    )
    op.create_index("ix_ai_rounds_spent", "ai_rounds", ["automation_id", "started_at"])
    op.create_table(
        "automation_skips",
        sa.Column("automation_id", Id, nullable=False),
        sa.Column("first_at", Instant, nullable=False),
        sa.Column("last_at", Instant, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("acted_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("automation_id", "first_at", name=op.f("pk_automation_skips")),
    )

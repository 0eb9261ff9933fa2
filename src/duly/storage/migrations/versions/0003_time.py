"""Blackout calendars, schedules and their ledger, rounds, alerts.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant, Json

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    _calendars()
    _schedules()
    _rounds()
    _alerts()


def _calendars() -> None:
    op.create_table(
        "blackouts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("definition", Json, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("holds_from", Instant, nullable=True),
        sa.Column("holds_until", Instant, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "scope = 'all' OR scope LIKE 'queue:_%' OR scope LIKE 'channel:_%' OR scope LIKE 'schedule:_%'",
            name=op.f("ck_blackouts_scope"),
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_blackouts")),
    )
    op.create_index("ix_blackouts_holds", "blackouts", ["holds_from"])


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("recurrence", Json, nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("input", Json, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("catch_up", sa.Text(), nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("blackout", sa.Text(), nullable=False),
        sa.Column("starts_at", Instant, nullable=True),
        sa.Column("ends_at", Instant, nullable=True),
        sa.Column("decided_until", Instant, nullable=False),
        sa.Column("next_at", Instant, nullable=True),
        sa.Column("look_at", Instant, nullable=True),
        sa.Column("paused_at", Instant, nullable=True),
        sa.Column("paused_reason", sa.Text(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_at", Instant, nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("declared", sa.Text(), nullable=True),
        sa.Column("tz_version", sa.Text(), nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.Column("removed_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "schedule_versions",
        sa.Column("schedule_id", Id, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("definition", Json, nullable=False),
        sa.Column("made_at", Instant, nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_versions_schedule_id")),
        sa.PrimaryKeyConstraint("schedule_id", "version", name=op.f("pk_schedule_versions")),
    )
    op.create_table(
        "occurrences",
        sa.Column("schedule_id", Id, nullable=False),
        sa.Column("due_at", Instant, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("job_id", Id, nullable=True),
        sa.Column("start_at", Instant, nullable=True),
        sa.Column("acted_at", Instant, nullable=False),
        sa.Column("late", sa.Float(), nullable=True),
        sa.Column("release_at", Instant, nullable=True),
        sa.Column("tz_version", sa.Text(), nullable=True),
        sa.CheckConstraint("status IN ('fired', 'skipped', 'missed', 'deferred')", name=op.f("ck_occurrences_status")),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_occurrences_schedule_id")),
        sa.PrimaryKeyConstraint("schedule_id", "due_at", name=op.f("pk_occurrences")),
    )
    for name, table, columns, where, unique in (
        ("ix_schedules_name", "schedules", ["tenant", "name"], "removed_at IS NULL", True),
        ("ix_schedules_look", "schedules", ["look_at"], "look_at IS NOT NULL", False),
        ("ix_occurrences_deferred", "occurrences", ["schedule_id", "due_at"], "status = 'deferred'", False),
        ("ix_occurrences_job", "occurrences", ["schedule_id", "job_id"], "job_id IS NOT NULL", False),
    ):
        op.create_index(
            name, table, columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )
    op.create_index("ix_occurrences_acted", "occurrences", ["acted_at"])


def _rounds() -> None:
    pass


def _alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("since", Instant, nullable=False),
        sa.Column("last_seen", Instant, nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("raised_at", Instant, nullable=True),
        sa.Column("fine_since", Instant, nullable=True),
        sa.Column("cleared_at", Instant, nullable=True),
        sa.Column("acked_at", Instant, nullable=True),
        sa.Column("acked_by", sa.Text(), nullable=True),
        sa.Column("ack_reason", sa.Text(), nullable=True),
        sa.Column("noticed_at", Instant, nullable=True),
        sa.CheckConstraint("state IN ('pending', 'raised', 'cleared')", name=op.f("ck_alerts_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sqlite_autoincrement=True,
    )
    for name, columns, where, unique in (
        ("ix_alerts_open", ["rule", "subject"], "state <> 'cleared'", True),
        ("ix_alerts_cleared", ["cleared_at"], "cleared_at IS NOT NULL", False),
    ):
        op.create_index(
            name, "alerts", columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )
    op.create_table(
        "alert_watch",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("judged_at", Instant, nullable=False),
        sa.Column("judged_by", sa.Text(), nullable=False),
        sa.Column("readings", Json, nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_alert_watch_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_watch")),
    )

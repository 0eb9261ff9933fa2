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
    _outbox()


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
    op.create_table(
        "groups",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("drop_time", sa.Text(), nullable=True),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("notifications", sa.Boolean(), nullable=False),
        sa.Column("cooldown", sa.Float(), nullable=True),
        sa.Column("plan_at", Instant, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_at", Instant, nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.UniqueConstraint("tenant", "name", name=op.f("uq_groups_tenant_name")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_groups")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "group_members",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("group_id", Id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("webhook", sa.Text(), nullable=True),
        sa.Column("channels", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_group_members_group_id")),
        sa.UniqueConstraint("group_id", "name", name=op.f("uq_group_members_group_id_name")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_group_members")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "group_prompts",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("group_id", Id, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_group_prompts_group_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_group_prompts")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "rounds",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("group_id", Id, nullable=False),
        sa.Column("scheduled_for", sa.Date(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("drop_time", sa.Text(), nullable=False),
        sa.Column("planned_at", Instant, nullable=False),
        sa.Column("prompt_id", Id, nullable=True),
        sa.Column("prompt_text", sa.Text(), nullable=True),
        sa.Column("due_at", Instant, nullable=True),
        sa.Column("open_at", Instant, nullable=True),
        sa.Column("close_at", Instant, nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("opened_at", Instant, nullable=True),
        sa.Column("closed_at", Instant, nullable=True),
        sa.Column("late", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], name=op.f("fk_rounds_group_id")),
        sa.UniqueConstraint("group_id", "scheduled_for", name=op.f("uq_rounds_group_id_scheduled_for")),
        sa.CheckConstraint("status IN ('scheduled', 'open', 'closed')", name=op.f("ck_rounds_status")),
        sa.CheckConstraint(
            "(status = 'scheduled') = (open_at IS NULL) AND (open_at IS NULL) = (close_at IS NULL) "
            "AND (open_at IS NULL) = (opened_at IS NULL) AND (status = 'closed') = (closed_at IS NOT NULL)",
            name=op.f("ck_rounds_instants"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "round_submissions",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("round_id", Id, nullable=False),
        sa.Column("member_id", Id, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("edited_at", Instant, nullable=True),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_round_submissions_round_id")),
        sa.ForeignKeyConstraint(["member_id"], ["group_members.id"], name=op.f("fk_round_submissions_member_id")),
        sa.UniqueConstraint("round_id", "member_id", name=op.f("uq_round_submissions_round_id_member_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_round_submissions")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "round_comments",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("round_id", Id, nullable=False),
        sa.Column("submission_id", Id, nullable=False),
        sa.Column("member_id", Id, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("edited_at", Instant, nullable=True),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_round_comments_round_id")),
        sa.ForeignKeyConstraint(
            ["submission_id"], ["round_submissions.id"], name=op.f("fk_round_comments_submission_id")
        ),
        sa.ForeignKeyConstraint(["member_id"], ["group_members.id"], name=op.f("fk_round_comments_member_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_round_comments")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "round_votes",
        sa.Column("round_id", Id, nullable=False),
        sa.Column("member_id", Id, nullable=False),
        sa.Column("submission_id", Id, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("edited_at", Instant, nullable=True),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name=op.f("fk_round_votes_round_id")),
        sa.ForeignKeyConstraint(["member_id"], ["group_members.id"], name=op.f("fk_round_votes_member_id")),
        sa.ForeignKeyConstraint(["submission_id"], ["round_submissions.id"], name=op.f("fk_round_votes_submission_id")),
        sa.PrimaryKeyConstraint("round_id", "member_id", name=op.f("pk_round_votes")),
    )
    op.create_table(
        "round_ticks",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("skipped", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("mean_late", sa.Float(), nullable=True),
        sa.Column("most_late", sa.Float(), nullable=True),
        sa.CheckConstraint("kind IN ('plan', 'open', 'close')", name=op.f("ck_round_ticks_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_round_ticks")),
        sqlite_autoincrement=True,
    )
    for name, table, columns, where, unique in (
        ("ix_groups_plan", "groups", ["plan_at", "id"], "is_active AND plan_at IS NOT NULL", False),
        ("ix_group_members_told", "group_members", ["group_id", "id"], "is_active AND channels <> ''", False),
        ("ix_group_prompts_active", "group_prompts", ["group_id", "id"], "is_active", False),
        ("ix_rounds_due", "rounds", ["due_at", "id"], "status = 'scheduled' AND due_at IS NOT NULL", False),
        ("ix_rounds_close", "rounds", ["close_at", "id"], "status = 'open'", False),
        ("ix_rounds_live", "rounds", ["group_id"], "status <> 'closed'", True),
    ):
        op.create_index(
            name, table, columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )
    op.create_index("ix_group_prompts_group", "group_prompts", ["group_id"])
    op.create_index("ix_round_comments_round", "round_comments", ["round_id", "id"])
    op.create_index("ix_round_ticks_kind", "round_ticks", ["kind", "started_at"])


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


def _outbox() -> None:
    op.add_column("outbox", sa.Column("losses", sa.Integer(), server_default="0", nullable=False))
    held = sa.text("ordering_key IS NOT NULL AND lease_token IS NOT NULL")
    op.create_index(
        "ix_outbox_held", "outbox", ["destination", "ordering_key"], postgresql_where=held, sqlite_where=held
    )

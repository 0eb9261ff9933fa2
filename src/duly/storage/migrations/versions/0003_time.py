"""Blackout calendars, schedules and their ledger, rounds, alerts.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Instant, Json

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
    pass


def _rounds() -> None:
    pass


def _alerts() -> None:
    pass

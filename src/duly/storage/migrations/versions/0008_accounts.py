"""Accounts: tokens, users, their logins, and wrong passwords.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant, Json

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("scopes", Json, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", Instant, nullable=True),
        sa.Column("last_used_at", Instant, nullable=True),
        sa.Column("revoked_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_tokens_digest")),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name=op.f("ck_api_tokens_role")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "users",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("password", sa.Text(), nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("disabled_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
        sa.CheckConstraint("role IN ('viewer', 'operator', 'admin')", name=op.f("ck_users_role")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "logins",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("user_id", Id, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("seen_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_logins")),
    )
    op.create_index("ix_logins_user", "logins", ["user_id"])
    op.create_table(
        "login_failures",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("last_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_login_failures")),
    )

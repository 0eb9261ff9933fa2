"""Idempotency and outbox.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant, Json

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "idempotency",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("locked_until", Instant, nullable=False),
        sa.Column("seen_at", Instant, nullable=False),
        sa.Column("kept_until", Instant, nullable=False),
        sa.Column("result", Json, nullable=True),
        sa.Column("error", Json, nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.CheckConstraint("state IN ('in_progress', 'succeeded', 'failed')", name=op.f("ck_idempotency_state")),
        sa.PrimaryKeyConstraint("tenant", "key", name=op.f("pk_idempotency")),
    )
    op.create_index("ix_idempotency_kept", "idempotency", ["kept_until"], unique=False)
    op.create_table(
        "outbox",
        sa.Column("id", Id, sa.Identity(always=False), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("payload", Json, nullable=False),
        sa.Column("headers", Json, nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("ordering_key", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("due_at", Instant, nullable=False),
        sa.Column("sent_at", Instant, nullable=True),
        sa.Column("parked_at", Instant, nullable=True),
        sa.Column("relay", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.BigInteger(), nullable=True),
        sa.Column("lease_until", Instant, nullable=True),
        sa.Column("error", Json, nullable=True),
        sa.CheckConstraint("status IN ('pending', 'sent', 'parked')", name=op.f("ck_outbox_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("message_id", name=op.f("uq_outbox_message_id")),
        sqlite_autoincrement=True,
    )
    for name, columns, where, unique in (
        ("ix_outbox_ready", ["destination", "due_at", "id"], "status = 'pending' AND ordering_key IS NULL", False),
        (
            "ix_outbox_order",
            ["destination", "ordering_key", "id"],
            "ordering_key IS NOT NULL AND status <> 'sent'",
            False,
        ),
        ("ix_outbox_lease", ["lease_until"], "lease_token IS NOT NULL", False),
        ("ix_outbox_key", ["tenant", "destination", "key"], "key IS NOT NULL", True),
        ("ix_outbox_sent", ["sent_at"], "status = 'sent'", False),
        ("ix_outbox_parked", ["id"], "status = 'parked'", False),
    ):
        op.create_index(
            name, "outbox", columns, unique=unique, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward; restore a backup instead")

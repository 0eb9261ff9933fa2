"""Mail: what became of each recipient, and who is not written to.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "mail_deliveries",
        sa.Column("job_id", Id, nullable=False),
        sa.Column("recipient", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("code", sa.Integer(), nullable=True),
        sa.Column("first_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.CheckConstraint(
            "state IN ('unknown', 'accepted', 'refused', 'suppressed')", name=op.f("ck_mail_deliveries_state")
        ),
        sa.PrimaryKeyConstraint("job_id", "recipient", name=op.f("pk_mail_deliveries")),
    )
    op.create_index("ix_mail_deliveries_updated", "mail_deliveries", ["updated_at"])
    op.create_table(
        "mail_suppressions",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "address", name=op.f("pk_mail_suppressions")),
    )

"""Mail: providers that are held, events that providers report, and what put an address on the list of suppressions.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_index("ix_mail_deliveries_recipient", "mail_deliveries", ["recipient"])
    op.add_column("mail_suppressions", sa.Column("source", sa.Text(), nullable=True))
    op.create_table(
        "mail_holds",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", Instant, nullable=False),
        sa.Column("until", Instant, nullable=False),
        sa.Column("probed_until", Instant, nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("holds_queue", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("queue", "provider", name=op.f("pk_mail_holds")),
    )
    op.create_table(
        "mail_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=True),
        sa.Column("job_id", Id, nullable=True),
        sa.Column("at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mail_events")),
    )
    op.create_index("ix_mail_events_kind", "mail_events", ["kind", "at"])

"""Publishing: what the other side may have seen of each job, how channels fare; queues that are held until an instant.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant, Json

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "publications",
        sa.Column("job_id", Id, autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("facts", Json, nullable=False),
        sa.Column("remote_id", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("place", sa.Text(), nullable=True),
        sa.Column("looks", sa.Text(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("sent_at", Instant, nullable=True),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_publications")),
        sa.CheckConstraint("state IN ('preparing', 'sending', 'published')", name=op.f("ck_publications_state")),
    )
    op.create_index("ix_publications_remote", "publications", ["place", "remote_id"])
    op.create_index("ix_publications_looks", "publications", ["place", "looks"])
    op.create_index("ix_publications_state", "publications", ["state", "updated_at"])
    op.create_table(
        "publication_channels",
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("trips", sa.Integer(), nullable=False),
        sa.Column("set_limit", sa.Integer(), nullable=True),
        sa.Column("set_rate_count", sa.Integer(), nullable=True),
        sa.Column("set_rate_seconds", sa.Float(), nullable=True),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("channel", name=op.f("pk_publication_channels")),
    )
    op.add_column("queues", sa.Column("held_until", Instant, nullable=True))
    op.add_column("queues", sa.Column("held_reason", sa.Text(), nullable=True))

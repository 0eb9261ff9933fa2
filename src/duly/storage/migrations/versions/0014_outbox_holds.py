"""Destinations of the outbox that a relay holds because they cannot be reached.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Instant

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "outbox_holds",
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("since", Instant, nullable=False),
        sa.Column("until", Instant, nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("relay", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("destination", name=op.f("pk_outbox_holds")),
        sa.CheckConstraint("kind IN ('away', 'refused')", name=op.f("ck_outbox_holds_kind")),
    )

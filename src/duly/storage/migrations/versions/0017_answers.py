"""Answers of an AI as they were sent, answers that broke off, and how an automation is asked.

Frozen text, as every revision. Columns that an older worker leaves out are null.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Json

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("ai_messages", sa.Column("original", Json, nullable=True))
    op.add_column("ai_rounds", sa.Column("unanswered", sa.Integer(), nullable=True))
    op.add_column("automations", sa.Column("asking", Json, nullable=True))

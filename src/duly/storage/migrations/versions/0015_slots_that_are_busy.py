"""A slot knows what is still under way of the session that had it before; a call of a tool, when its function was called.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("automation_slots", sa.Column("busy_job_id", Id, nullable=True))
    op.add_column("automation_slots", sa.Column("busy_session_id", Id, nullable=True))
    op.add_column("ai_calls", sa.Column("begun_at", Instant, nullable=True))
    op.add_column("ai_calls", sa.Column("may_take_until", Instant, nullable=True))

"""Failures by the class of their error and by time: what the failure matrix counts.

Frozen text, as every revision.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    named = "CASE WHEN json_valid(error) THEN json_extract(error, '$.' || 'type') END" if sqlite else "error ->> 'type'"
    op.create_index(
        "ix_jobs_done_failures", "jobs_done", [sa.text(f"coalesce(substr({named}, 1, 200), '(none)')"), "finished_at", "tenant"],
        postgresql_where=sa.text("status = 'failed'"), sqlite_where=sa.text("status = 'failed'"),
    )  # fmt: skip

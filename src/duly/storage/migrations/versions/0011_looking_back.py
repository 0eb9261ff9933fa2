"""Looking back through a long history: ends by their time, cancelled jobs, keys, publications and runs of workflows, each by an index of its own.

Frozen text, as every revision. On PostgreSQL the index of ends becomes a B-tree: a BRIN index knows nothing of rows written since the last vacuum,
so that a look at the last five minutes read all of these.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.drop_index("ix_jobs_done_finished", "jobs_done")
        op.create_index("ix_jobs_done_finished", "jobs_done", ["finished_at"])
    for name, table, columns, condition in (
        ("ix_jobs_done_cancelled", "jobs_done", ["id"], "status = 'cancelled'"),
        ("ix_jobs_key", "jobs", ["key", "id"], "key IS NOT NULL"),
        ("ix_jobs_error", "jobs", ["id"], "error IS NOT NULL"),
        ("ix_jobs_done_key", "jobs_done", ["key", "id"], "key IS NOT NULL"),
        ("ix_jobs_publications", "jobs", ["id"], "task IN ('PUBLISH', 'ig_first_comment')"),
        ("ix_jobs_done_publications", "jobs_done", ["id"], "task IN ('PUBLISH', 'ig_first_comment')"),
        ("ix_jobs_runs", "jobs", ["id"], "task = 'ENGINE_RUN'"),
        ("ix_jobs_done_runs", "jobs_done", ["id"], "task = 'ENGINE_RUN'"),
    ):
        op.create_index(name, table, columns, postgresql_where=sa.text(condition), sqlite_where=sa.text(condition))

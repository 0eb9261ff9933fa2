"""What a worker must know to claim a job, beside its task: for a run of a workflow, the workflow and its version.

Frozen text, as every revision. Null, as in the rows that are there: any worker that knows the task. Older code goes on beside it: it claims
without asking.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("needs", sa.Text()))

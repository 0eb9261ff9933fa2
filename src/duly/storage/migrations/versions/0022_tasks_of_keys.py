"""Of which task the job was that has a key, where its row has been pruned.

Frozen text, as every revision. Null, as in the rows that are there: nothing is known. Older code goes on beside it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("job_keys", sa.Column("task", sa.Text))

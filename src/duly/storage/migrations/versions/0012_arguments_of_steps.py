"""What a step of a workflow was asked for with: fingerprints of its arguments.

Frozen text, as every revision. Null in the rows that are there: their arguments are not compared. Older code goes on beside it and leaves the
column empty.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Json

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("workflow_steps", sa.Column("arguments", Json))

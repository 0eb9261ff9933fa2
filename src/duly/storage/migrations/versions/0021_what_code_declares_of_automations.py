"""What code has declared of an automation, so that an old process does not put an old definition back.

Frozen text, as every revision. Null, as in the rows that are there: nothing is known. Older code goes on beside it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Json

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("automations", sa.Column("declared", Json))

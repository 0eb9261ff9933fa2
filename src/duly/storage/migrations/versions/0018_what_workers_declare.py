"""What a living worker's code declares, by name: so a process with older code does not put an older definition back.

Frozen text, as every revision. Null, as in the rows that are there: it does not say. Older code goes on beside it, and says nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Json

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("workers", sa.Column("declares", Json))

"""What a living worker cannot read and leaves to others, by name: a zone that its machine does not know, a definition of newer code.

Frozen text, as every revision. Null: nothing, or older code, which does not say.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Json

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.add_column("workers", sa.Column("leaves", Json))

"""Texts that are keys, names and tokens are compared as bytes on PostgreSQL.

Nothing is done here: after each migration ``storage/collation.py`` asks the catalog what is left, table by table, with short locks. This
revision makes databases of before come by.
"""

from __future__ import annotations

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    pass

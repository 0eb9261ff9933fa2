"""Logging in through OpenID Connect: whom a provider knows as what, and logins that came back from it, each once.

Frozen text, as every revision. A user without a password has an empty text for one, which fits nothing in older code either.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duly.storage.types import Id, Instant

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    op.create_table(
        "user_identities",
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("user_id", Id, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("seen_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_user_identities")),
    )
    op.create_index("ix_user_identities_user", "user_identities", ["user_id"])
    op.create_table(
        "oidc_flows",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("taken_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_oidc_flows")),
    )
    op.create_index("ix_oidc_flows_taken", "oidc_flows", ["taken_at"])

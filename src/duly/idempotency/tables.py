"""Reservations: who is doing, or has done, what a key names."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Table, Text

from duly.storage.schema import metadata
from duly.storage.types import Instant, Json

idempotency = Table(
    "idempotency",
    metadata,
    #: A key is unique within its tenant.
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("task", Text, nullable=False),
    Column("state", Text, nullable=False),
    #: Who holds or held it: a job, a Celery task, a call. The same one may take over from its dead self.
    Column("owner", Text, nullable=False),
    #: Rises with each holder. Only the holder with the present one may write.
    Column("token", BigInteger, nullable=False),
    #: The canonical key of the arguments: another one under the same key is an error.
    Column("fingerprint", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    #: Until when the holder keeps others out, and when it last said that it lives.
    Column("locked_until", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
    #: When the row may be forgotten.
    Column("kept_until", Instant, nullable=False),
    Column("result", Json),
    Column("error", Json),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("state IN ('in_progress', 'succeeded', 'failed')", name="state"),
)
Index("ix_idempotency_kept", idempotency.c.kept_until)

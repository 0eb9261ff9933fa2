"""The tables of the mail room: what became of each recipient of a job, and who is not written to."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, PrimaryKeyConstraint, Table, Text

from duly.storage.schema import metadata
from duly.storage.types import Id, Instant

#: What is known of a recipient. ``unknown`` is written before a message is handed over, so that a crash cannot forget it.
STATES = ("unknown", "accepted", "refused", "suppressed")

mail_deliveries = Table(
    "mail_deliveries",
    metadata,
    #: No foreign key: a job moves to another table when it ends.
    Column("job_id", Id, nullable=False),
    #: A keyed hash of the address (``store.fingerprint``). The address itself stands in the job's input only.
    Column("recipient", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("provider", Text, nullable=False),
    #: The run that wrote it last: another one may go on only from what it has read.
    Column("holder", Text, nullable=False),
    #: What the other side answered, where it answers by number.
    Column("code", Integer),
    #: When a message was first handed over for this recipient: what a provider's memory of keys counts from.
    Column("first_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    PrimaryKeyConstraint("job_id", "recipient"),
    CheckConstraint("state IN ('unknown', 'accepted', 'refused', 'suppressed')", name="state"),
)
Index("ix_mail_deliveries_updated", mail_deliveries.c.updated_at)

mail_suppressions = Table(
    "mail_suppressions",
    metadata,
    Column("tenant", Text, nullable=False),
    #: Normalised (``address.normalised``).
    Column("address", Text, nullable=False),
    Column("reason", Text),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Text, nullable=False),
    PrimaryKeyConstraint("tenant", "address"),
)

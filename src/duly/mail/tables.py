"""The tables of the mail room: the outcome for each recipient of a job, suppressed addresses, held providers, and reported events."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Index, Integer, PrimaryKeyConstraint, Table, Text

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
#: A bounce names a recipient, and asks who wrote to them.
Index("ix_mail_deliveries_recipient", mail_deliveries.c.recipient)

mail_suppressions = Table(
    "mail_suppressions",
    metadata,
    Column("tenant", Text, nullable=False),
    #: Normalised (``address.normalised``).
    Column("address", Text, nullable=False),
    Column("reason", Text),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Text, nullable=False),
    #: What put it there: ``bounce`` or ``complaint``, and through which provider; NULL: a person or a program.
    Column("source", Text),
    PrimaryKeyConstraint("tenant", "address"),
)

mail_holds = Table(
    "mail_holds",
    metadata,
    Column("queue", Text, nullable=False),
    Column("provider", Text, nullable=False),
    #: ``away``, ``throttled``, ``quota``, or ``transient``: messages were declined, too few yet to hold anything (``kernel.verdict.Kind``).
    Column("kind", Text, nullable=False),
    Column("reason", Text, nullable=False),
    #: Since when, without a message in between that went through.
    Column("since", Instant, nullable=False),
    #: Nothing is handed over before.
    Column("until", Instant, nullable=False),
    #: One message tries whether the other side is back; the others wait until then.
    Column("probed_until", Instant),
    #: How often in a row it was away.
    Column("failures", Integer, nullable=False),
    #: Is the queue held too, so that no job of it is claimed?
    Column("holds_queue", Boolean, nullable=False),
    PrimaryKeyConstraint("queue", "provider"),
)

mail_events = Table(
    "mail_events",
    metadata,
    #: ``unknown:JOB``, or what the other side calls its event, behind its name.
    Column("id", Text, nullable=False),
    #: ``unknown``: a job ended while no one knows whether its message was taken. ``bounce``, ``complaint``: what a provider
    #: reported. ``declined``: a job's message was taken for nobody, without its fault.
    Column("kind", Text, nullable=False),
    Column("queue", Text),
    Column("job_id", Id),
    Column("at", Instant, nullable=False),
    PrimaryKeyConstraint("id"),
)
Index("ix_mail_events_kind", mail_events.c.kind, mail_events.c.at)

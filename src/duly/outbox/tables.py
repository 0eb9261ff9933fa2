"""The outbox: messages written in the transaction of the change that causes them.

A message is pending until a relay has sent it, or parked when sending it failed too often. Sent ones stay for a while, so
that a key is remembered and people can see what went out; the indexes of the relay hold pending and parked rows only.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from duly.kernel.lifecycle import Lifecycle, Move
from duly.storage.schema import metadata
from duly.storage.types import Id, Instant, Json


class Status(StrEnum):
    """Where a message stands."""

    PENDING = "pending"
    SENT = "sent"
    PARKED = "parked"


LIFECYCLE: Lifecycle[Status] = Lifecycle(
    "message",
    (
        Move(None, "publish", Status.PENDING),
        Move(Status.PENDING, "send", Status.SENT),
        Move(Status.PENDING, "fail", Status.PENDING, "sending failed; it is tried again after a pause"),
        Move(Status.PENDING, "park", Status.PARKED, "sending failed too often, or an operator put it aside"),
        Move(Status.PARKED, "redrive", Status.PENDING, "an operator has it sent again"),
        Move(Status.SENT, "redrive", Status.PENDING, "an operator has it sent again, under the same message id"),
    ),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    #: The same at every delivery: what the other side may recognise a repetition by.
    Column("message_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    #: The transport's name, a colon, and what it makes of the rest: ``duly:send_receipt``, ``webhook:billing``.
    Column("destination", Text, nullable=False),
    Column("payload", Json, nullable=False),
    Column("headers", Json, nullable=False),
    #: At most one message per tenant, destination and key.
    Column("key", Text),
    #: Messages of one destination with the same ordering key are sent one after the other.
    Column("ordering_key", Text),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("created_at", Instant, nullable=False),
    #: When it may be sent: creation, later after a failure.
    Column("due_at", Instant, nullable=False),
    Column("sent_at", Instant),
    Column("parked_at", Instant),
    #: Who is sending it, until when he may, and the proof that it is he.
    Column("relay", Text),
    Column("lease_token", BigInteger),
    Column("lease_until", Instant),
    #: Why the last attempt failed.
    Column("error", Json),
    UniqueConstraint("message_id"),
    CheckConstraint("status IN ('pending', 'sent', 'parked')", name="status"),
    sqlite_autoincrement=True,
)
_pending = text("status = 'pending'")
Index("ix_outbox_ready", outbox.c.due_at, outbox.c.id, postgresql_where=_pending, sqlite_where=_pending)
_ahead = text("ordering_key IS NOT NULL AND status <> 'sent'")
Index(
    "ix_outbox_order", outbox.c.destination, outbox.c.ordering_key, outbox.c.id, postgresql_where=_ahead, sqlite_where=_ahead
)  # fmt: skip
_keyed = text("key IS NOT NULL")
Index(
    "ix_outbox_key", outbox.c.tenant, outbox.c.destination, outbox.c.key, unique=True, postgresql_where=_keyed, sqlite_where=_keyed
)  # fmt: skip
_sent = text("status = 'sent'")
Index("ix_outbox_sent", outbox.c.sent_at, postgresql_where=_sent, sqlite_where=_sent)
_parked = text("status = 'parked'")
Index("ix_outbox_parked", outbox.c.id, postgresql_where=_parked, sqlite_where=_parked)

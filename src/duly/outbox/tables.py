"""The outbox: messages written in the transaction of the change that causes them.

A message is pending until a relay has sent it, or parked when sending it failed too often. Sent ones stay for a while, so
that a key is remembered and people can see what went out; the indexes of the relay hold pending, parked and leased rows
only. The same table can be made in a database that is not Duly's own, under another name if need be.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from duly.outbox.message import LIFECYCLE
from duly.storage.schema import ddl, metadata, where
from duly.storage.types import Id, Instant, Json


def outbox_table(name: str, metadata: MetaData, schema: str | None = None) -> Table:
    """The table under a name of the caller's choice, with its indexes."""
    table = Table(
        name,
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
        #: Attempts that were begun: counted when a relay takes the message, given back when it may not have begun.
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
        #: So often in a row it was lost with its relay.
        Column("losses", Integer, nullable=False, server_default="0"),
        UniqueConstraint("message_id"),
        CheckConstraint(LIFECYCLE.check("status"), name="status"),
        schema=schema,
        info=ddl(sqlite_autoincrement=True),
    )
    c = table.c
    for purpose, columns, which, unique in (
        # without an ordering key: by destination, what is due first
        ("ready", [c.destination, c.due_at, c.id], "status = 'pending' AND ordering_key IS NULL", False),
        # with one: the first that is not sent goes, or holds the others
        ("order", [c.destination, c.ordering_key, c.id], "ordering_key IS NOT NULL AND status <> 'sent'", False),
        ("lease", [c.lease_until], "lease_token IS NOT NULL", False),
        # the lines of which a relay has something
        ("held", [c.destination, c.ordering_key], "ordering_key IS NOT NULL AND lease_token IS NOT NULL", False),
        ("key", [c.tenant, c.destination, c.key], "key IS NOT NULL", True),
        ("sent", [c.sent_at], "status = 'sent'", False),
        ("parked", [c.id], "status = 'parked'", False),
    ):
        Index(f"ix_{name}_{purpose}", *columns, unique=unique, info=where(which))
    return table


outbox = outbox_table("outbox", metadata)

#: Destinations of Duly's own outbox that a relay holds at this moment. A relay decides by what it has seen itself; this is what it
#: tells people, alerts, and relays that start later.
outbox_holds = Table(
    "outbox_holds",
    metadata,
    Column("destination", Text, primary_key=True),
    #: away: it cannot be reached, which passes. refused: it takes nothing until an operator has acted.
    Column("kind", Text, nullable=False),
    Column("since", Instant, nullable=False),
    #: When it is probed next.
    Column("until", Instant, nullable=False),
    #: Failed probes in a row.
    Column("tries", Integer, nullable=False),
    #: The type of the last error.
    Column("problem", Text, nullable=False),
    #: Which relay said so last.
    Column("relay", Text, nullable=False),
    CheckConstraint("kind IN ('away', 'refused')", name="kind"),
)

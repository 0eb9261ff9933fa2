"""The trail and its seals.

``audit_log`` only grows: a trigger refuses UPDATE and DELETE on both databases. ``audit_seals`` is the hash chain over
it, one link per batch, written by a background pass so that the hot path pays for one plain INSERT and nothing else.
"""

from __future__ import annotations

from sqlalchemy import Column, Identity, Index, Integer, LargeBinary, Table, Text

from duly.storage.schema import ddl, metadata
from duly.storage.types import Id, Instant, Json

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("at", Instant, nullable=False),
    Column("tenant", Text, nullable=False),
    #: Who did it: a worker's name, ``cli:<user>``, ``api:<token name>``, ``system``.
    Column("actor", Text, nullable=False),
    #: info, warning or error.
    Column("level", Text, nullable=False),
    #: What was done, in capitals: EMAIL_SENT, JOB_EXHAUSTED_RETRIES, ATLAS_OFFLINE …
    Column("action", Text, nullable=False),
    #: To what: a noun and its number or name.
    Column("entity", Text, nullable=False),
    Column("entity_id", Text, nullable=False),
    Column("meta", Json, nullable=False),
    info=ddl(sqlite_autoincrement=True),
)
Index("ix_audit_log_entity", audit_log.c.entity_id, audit_log.c.entity)

audit_seals = Table(
    "audit_seals",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("sealed_at", Instant, nullable=False),
    Column("first_id", Id, nullable=False),
    Column("last_id", Id, nullable=False),
    Column("rows", Integer, nullable=False),
    #: For each row: its id (8 bytes, big endian) and the first 16 bytes of the SHA-256 of its canonical text.
    Column("entries", LargeBinary, nullable=False),
    #: Ranges of ids that are missing as this seal is made: rolled back, or not committed yet (then sealed later).
    Column("gaps", Json, nullable=False),
    Column("previous", LargeBinary, nullable=False),
    #: SHA-256 over everything else in this row.
    Column("hash", LargeBinary, nullable=False),
    info=ddl(sqlite_autoincrement=True),
)

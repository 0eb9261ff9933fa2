"""The tables of the accounts room. No secret stands in them: tokens and logins as SHA-256, passwords as argon2."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Identity, Index, Integer, Table, Text

from duly.storage.schema import ddl, metadata
from duly.storage.types import Id, Instant, Json

_ROLE = "role IN ('viewer', 'operator', 'admin')"

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("name", Text, nullable=False),
    #: The beginning of the token, shown to people.
    Column("prefix", Text, nullable=False),
    #: SHA-256 of the whole token, in hexadecimal.
    Column("digest", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    #: Null: every tenant.
    Column("tenant", Text),
    Column("scopes", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Instant),
    #: To the minute.
    Column("last_used_at", Instant),
    Column("revoked_at", Instant),
    CheckConstraint(_ROLE, name="role"),
    info=ddl(sqlite_autoincrement=True),
)

users = Table(
    "users",
    metadata,
    Column("id", Id, Identity(always=False), primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("tenant", Text),
    #: argon2id, with its parameters and salt. Empty: there is none, they log in through a provider.
    Column("password", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("disabled_at", Instant),
    CheckConstraint(_ROLE, name="role"),
    info=ddl(sqlite_autoincrement=True),
)

user_identities = Table(
    "user_identities",
    metadata,
    #: The provider, as it calls itself, and what it calls the person for ever.
    Column("issuer", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("user_id", Id, nullable=False),
    Column("created_at", Instant, nullable=False),
    #: The last login.
    Column("seen_at", Instant),
)
Index("ix_user_identities_user", user_identities.c.user_id)

#: Flows that somebody has come back from the provider with: each counts once. They have no row before.
oidc_flows = Table(
    "oidc_flows",
    metadata,
    #: SHA-256 of what the browser's cookie held.
    Column("digest", Text, primary_key=True),
    Column("taken_at", Instant, nullable=False),
)
Index("ix_oidc_flows_taken", oidc_flows.c.taken_at)

logins = Table(
    "logins",
    metadata,
    #: SHA-256 of what the browser's cookie holds.
    Column("digest", Text, primary_key=True),
    Column("user_id", Id, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
)
Index("ix_logins_user", logins.c.user_id)

login_failures = Table(
    "login_failures",
    metadata,
    #: ``user:ann`` or ``address:127.0.0.1``.
    Column("subject", Text, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("last_at", Instant, nullable=False),
)

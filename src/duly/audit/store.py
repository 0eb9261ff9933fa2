"""Writing to the trail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert

from duly.audit.tables import audit_log
from duly.storage.database import Database


def record(
    db: Database,
    connection: Connection,
    *,
    actor: str,
    action: str,
    entity: str,
    entity_id: object,
    tenant: str = "system",
    level: str = "info",
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Add one row, in the caller's transaction (T003-i). ``meta`` holds no payload, address or token."""
    connection.execute(
        insert(audit_log).values(
            at=db.now(),
            tenant=tenant,
            actor=actor,
            level=level,
            action=action,
            entity=entity,
            entity_id=str(entity_id),
            meta=dict(meta or {}),
        )
    )


def record_many(
    db: Database, connection: Connection, entries: Sequence[tuple[object, str]], *, actor: str, action: str, entity: str,
    level: str = "info", meta: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Add one row for each (entity id, tenant), in the caller's transaction."""
    shared = {"actor": actor, "level": level, "action": action, "entity": entity, "meta": dict(meta or {})}
    rows = [{"tenant": tenant, "entity_id": str(ident), **shared} for ident, tenant in entries]
    if rows:
        connection.execute(insert(audit_log).values(at=db.now()), rows)

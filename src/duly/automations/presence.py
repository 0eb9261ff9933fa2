"""Is there an automation at all? Every worker asks, and most have none: so this loads nothing of the room."""

from __future__ import annotations

from sqlalchemy import Connection, text

_THERE = text("SELECT 1 FROM automations WHERE removed_at IS NULL LIMIT 1")


def any_automation(connection: Connection) -> bool:
    """Is one there that was not removed?"""
    return connection.execute(_THERE).first() is not None

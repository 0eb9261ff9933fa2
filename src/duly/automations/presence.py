"""Is there an automation at all? Every worker asks, and most have none: so this loads nothing of the room."""

from __future__ import annotations

from sqlalchemy import Connection

from duly.storage.rows import any_row


def any_automation(connection: Connection) -> bool:
    """Is one there that was not removed?"""
    return any_row(connection, "automations", "removed_at IS NULL")

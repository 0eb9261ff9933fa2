"""Which database is this? Told by the database itself, because names lie: one has several addresses, and poolers rename it.

PostgreSQL says which cluster it is and which database of it, SQLite which files it has open. What cannot be told is None,
and whoever asks then believes what he was given.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

from sqlalchemy import Connection, text

_MAY_ASK = text("SELECT has_function_privilege('pg_control_system()', 'execute')")
_WHICH = text("""
    SELECT CAST(c.system_identifier AS text), CAST(d.oid AS bigint)
      FROM pg_control_system() AS c, pg_database d WHERE d.datname = current_database()""")


def identity(connection: Connection) -> frozenset[Hashable] | None:
    """What the database of a connection is recognised by; None where it cannot be told. Two that share nothing are two."""
    if connection.dialect.name == "postgresql":
        if not connection.execute(_MAY_ASK).scalar():
            return None
        return frozenset(tuple(row) for row in connection.execute(_WHICH))
    if connection.dialect.name == "sqlite":
        # the main file and those that were attached; one in memory has no name
        names = [row[2] for row in connection.execute(text("PRAGMA database_list"))]
        return frozenset(_file(name) for name in names if name)
    return None


def _file(name: str) -> Hashable:
    """A file by what it is, whatever path leads to it."""
    try:
        found = Path(name).stat()
    except OSError:
        return os.path.realpath(name)
    return found.st_dev, found.st_ino

"""Which database is this? Told by the database itself, because names lie: one has several addresses, and poolers rename it.

PostgreSQL says which cluster it is and which database of it, SQLite which files it has open. What cannot be told is None,
and whoever asks then believes what he was given.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, exc, text

from duly.kernel.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from duly.storage.database import Database

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


def is_same(connection: Connection, db: Database) -> bool | None:
    """Does a connection of somebody's lead to the database of ``db``? None where that cannot be told.

    The first of two answers that cost nothing; only where addresses differ are the two databases asked.
    """
    if connection.dialect.name != db.name:
        return False
    if _same_address(connection.engine, db):
        return True
    theirs = identity(connection)
    mine = _asked(db) if theirs is not None else None
    return None if theirs is None or mine is None else bool(theirs & mine)


def _same_address(engine: Engine, db: Database) -> bool:
    """Is it one of the engines there, or as good as one? In-memory databases have nothing to be told apart by."""
    if db.memory or engine.pool is db.engine.pool:
        return True
    url = engine.url
    return bool(url.host and url.database) and (url.host, url.port, url.database) == (
        db.url.host,
        db.url.port,
        db.url.database,
    )


def _asked(db: Database) -> frozenset[Hashable] | None:
    if not db.is_there:
        return None  # asking would make it
    try:
        return db.read(identity)
    except (DatabaseUnavailable, exc.SQLAlchemyError):
        return None  # only those who work there need to reach it from here


def _file(name: str) -> Hashable:
    """A file by what it is, whatever path leads to it."""
    try:
        found = Path(name).stat()
    except OSError:
        return os.path.realpath(name)
    return found.st_dev, found.st_ino

"""A connection that somebody lends, made fit for Duly's statements: they mean Duly's tables, and their answers are right."""

from __future__ import annotations

from sqlalchemy import Connection

from duly.storage.database import Database
from duly.storage.qualified import bind
from duly.storage.session_settings import check_lent


def lend(connection: Connection, db: Database) -> Connection:
    """The same connection. Its engine's statements name the schema of Duly's tables from here on, whatever its ``search_path``.

    Raises UnsafeSession where its settings would give wrong answers, InvalidArgument where its engine is bound to another schema.
    """
    if connection.dialect.name == "postgresql":
        check_lent(connection)
        if not db.is_sqlite:
            bind(connection.dialect, db.schema)
    return connection

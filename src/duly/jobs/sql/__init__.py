"""The statements of the jobs room that really differ between databases: insert, claim, finish.

Both modules offer the same functions; the contract suite judges them alike. Everything else is SQLAlchemy Core in
``store.py`` and written once.
"""

from typing import Any

from duly.storage.database import Database


def dialect(db: Database) -> Any:
    """The statements for this database. The other dialect's, and its driver, are not loaded."""
    if db.is_sqlite:
        from duly.jobs.sql import sqlite

        return sqlite
    from duly.jobs.sql import postgres

    return postgres

"""Borrowing the caller's transaction: a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy.

A job written there exists when, and only when, that transaction commits. SQLite connections whose savepoints do not hold
are refused, and so is any in autocommit mode, because a job would outlive the rollback that should have taken it along.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import UnboundExecutionError

from duly.kernel.errors import InvalidArgument, UnsafeSession
from duly.storage import sqlite
from duly.storage.database import Database
from duly.storage.lent import lend


def borrowed(session: Any, db: Database, *, asynchronous: bool) -> Connection:
    """The connection of the caller's transaction; a transaction is begun if none is.

    Raises InvalidArgument for what is neither session nor connection, UnsafeSession for an unsafe SQLite connection, one in
    autocommit mode, and one whose settings would give wrong answers.
    """
    if hasattr(session, "run_sync"):
        raise InvalidArgument("session", "is asynchronous.", "Use `await task.using(session=…).aenqueue(…)`.")
    if isinstance(session, Connection):
        connection = session
        if not connection.in_transaction():
            connection.begin()
    elif hasattr(session, "get_bind") and hasattr(session, "begin_nested"):
        # a Session or a scoped one; asked this way, the ORM need not be loaded by programs that do not use it
        try:
            connection = session.connection()
        except UnboundExecutionError:
            raise InvalidArgument(
                "session",
                "is bound to no database.",
                "Make it with an engine: Session(engine), or give the connection.",
            ) from None
    else:
        raise InvalidArgument(
            "session",
            f"is of type {type(session).__name__}.",
            "Give a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy.",
        )
    if connection.dialect.name == "sqlite":
        reason = sqlite.unsafe_reason(connection.connection.driver_connection)
        if reason is not None:
            raise UnsafeSession(
                f"this SQLite session cannot carry a job: {reason}. Make its engine with duly.storage.sqlite.make_engine(url), "
                "or use app.db.session_engine."
            )
        return connection
    from duly.storage.joined import is_autocommit

    if is_autocommit(connection):
        raise UnsafeSession(
            "this connection cannot carry a job: it is in autocommit mode, so a rollback would keep the job. Give it another isolation level, "
            "or leave `session` out: the job is then committed by itself."
        )
    return lend(connection, db)

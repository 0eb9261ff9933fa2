"""What SQLAlchemy says by a public name only in its newer releases, asked for in one way on all that are supported (ADR 0055).

``SessionTransaction.connections`` and ``Session.binds`` came with 2.1.7, and ``await_`` is the name from 2.1 on of what was ``await_only``. The
attributes that stand in for them are those of 2.0, which gets no more than repairs, and of the first releases of 2.1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction


def connections_of(transaction: SessionTransaction) -> Collection[Connection]:
    """The connections that a session's transaction, or the one that it is a part of, has taken so far. None is taken for the answer."""
    if _HAS_CONNECTIONS:
        return transaction.connections
    while (
        not transaction.nested and transaction.parent is not None
    ):  # a flush's own: the connections are those of what is around it
        transaction = transaction.parent
    return frozenset(one[0] for one in transaction._connections.values())


def binds_of(session: Session) -> Collection[Any]:
    """What the session was given for some tables or classes alone: engines and connections."""
    found: Any = session.binds if hasattr(session, "binds") else vars(session)["_Session__binds"]
    values: Collection[Any] = found.values()
    return values


def await_(awaitable: Awaitable[Any]) -> None:
    """Wait for it in the greenlet of an AsyncSession."""
    from sqlalchemy.util import concurrency

    (getattr(concurrency, "await_", None) or concurrency.await_only)(awaitable)


_HAS_CONNECTIONS = hasattr(SessionTransaction, "connections")

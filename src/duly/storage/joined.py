"""Waiting for the end of a transaction that a session has joined but does not own.

A ``Session`` may be bound to a ``Connection`` in the middle of a transaction: with ``engine.begin()`` around it, or in a
test suite that rolls everything back at the end. ``session.commit()`` then makes nothing durable. What the session would
have sent waits here, beside the connection, until its outermost transaction has ended (T004-p).

SQLAlchemy tells of a COMMIT just before it happens and never afterwards, so the success is read off what comes next: an
error in the COMMIT itself is told (``handle_error``); if instead the connection goes back to its pool, or begins another
transaction, the COMMIT went well. That is when the waiting calls go out: for ``with engine.begin() as connection``, at the
end of the block. Nothing is ever sent on the hope that a COMMIT will succeed.

Savepoints of the connection count too. Which one an event is about is not public, but the innermost one is, and whether it is
still active; so what a step came to is seen when the next one is announced.

What cannot be known here: a connection whose transaction is ended while the session is still in the middle of its own. End
the session's first.

Source: R004-1, R004-3, T004-p; https://docs.sqlalchemy.org/en/21/core/events.html.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Literal

from sqlalchemy import Connection, Engine, NestedTransaction, Pool, Transaction, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

#: How a transaction ended for somebody who waits. Stopped: it was committed, and the process is asked to end.
End = Literal["committed", "lost", "stopped"]

#: What is about to happen to a savepoint.
_Step = Literal["savepoint", "release", "rollback", ""]

#: Where a connection keeps what waits for it (``Connection.info``, shared with its entry in the pool).
_KEY = "duly_post_commit"
#: libpq's PQTRANS_INERROR, as psycopg's ``Connection.info.transaction_status`` gives it.
_FAILED = 3
#: PQTRANS_INTRANS.
_OPEN = 2
#: The SQLSTATE of any statement in a transaction that has failed.
_IN_FAILED_TRANSACTION = "25P02"


def is_aborted(connection: Connection, ask: bool = True) -> bool:
    """Has a statement failed, so that PostgreSQL will answer COMMIT with ROLLBACK, and with no error?

    psycopg and psycopg2 tell. Where the driver does not (asyncpg), the server is asked: in such a transaction it refuses every statement.
    That is a round trip, so ``ask`` only where somebody waits for the answer.
    """
    if connection.closed or connection.invalidated or connection.dialect.name != "postgresql":
        return False
    driver = connection.connection.driver_connection
    told = getattr(getattr(driver, "info", None), "transaction_status", None)
    if told is not None:
        return bool(told == _FAILED)
    if not ask or not connection.in_transaction() or is_autocommit(connection):
        return False
    try:
        connection.exec_driver_sql("SELECT 1")
    except DBAPIError as error:
        return _state_of(error) == _IN_FAILED_TRANSACTION  # anything else is told by the COMMIT
    return False


def _state_of(error: DBAPIError) -> str | None:
    """The SQLSTATE of an error, wherever its driver has it."""
    for one in (error.orig, getattr(error.orig, "__cause__", None)):
        for name in ("sqlstate", "pgcode"):
            found = getattr(one, name, None)
            if isinstance(found, str):
                return found
    return None


def innermost(connection: Connection) -> Transaction | None:
    """The savepoint, or the transaction, that a statement on the connection would be part of."""
    return connection.get_nested_transaction() or connection.get_transaction()


def is_autocommit(connection: Connection) -> bool:
    """Is every statement on it durable at once, so that no rollback takes it away?"""
    if connection.closed or connection.invalidated or not connection.in_transaction() or is_begun(connection):
        return False
    if connection.dialect.name == "sqlite":
        driver = connection.connection.driver_connection
        return getattr(driver, "autocommit", -1) is True or getattr(driver, "isolation_level", "") is None
    # each driver for PostgreSQL has it, and each adapter of an asynchronous one (SQLAlchemy's own question for it came with 2.1)
    told = getattr(connection.connection.dbapi_connection, "autocommit", None)
    return bool(told) if told is not None else connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"


def is_begun(connection: Connection) -> bool:
    """Is a transaction open in the database, as far as the driver tells (sqlite3, psycopg, psycopg2 and asyncpg do)?"""
    if connection.closed or connection.invalidated:
        return False
    driver = connection.connection.driver_connection
    open_here = getattr(driver, "in_transaction", None)
    if isinstance(open_here, bool):
        return open_here
    ask = getattr(driver, "is_in_transaction", None)
    if callable(ask):
        return bool(ask())
    return getattr(getattr(driver, "info", None), "transaction_status", None) == _OPEN


def when_ended(connections: Collection[Connection], tell: Callable[[End], None]) -> None:
    """Call ``tell`` once: when the present transactions of all ``connections`` are committed, or when one of them is lost.

    It may raise what asks the process to end; what else waits for the same transaction is then told "stopped".
    """
    waiting = _Waiting(len(connections), tell)
    for connection in connections:
        if connection.closed or connection.invalidated:
            waiting.one_ended("lost")
            return
        held = _held(connection)
        if held is None:
            _listen()
            held = connection.info[_KEY] = _Held(connection)
        held.add(connection, waiting)


class _Waiting:
    """Who waits for ``left`` transactions."""

    __slots__ = ("_left", "_tell")

    def __init__(self, left: int, tell: Callable[[End], None]) -> None:
        self._left, self._tell = left, tell

    def one_ended(self, end: End) -> None:
        if self._left <= 0:
            return
        self._left = self._left - 1 if end == "committed" else 0
        if self._left == 0:
            self._tell(end)


class _Savepoint:
    """What waits inside of a savepoint, or (None) of the transaction itself. Does not keep the connection alive."""

    __slots__ = ("_ref", "waiting")

    def __init__(self, innermost: NestedTransaction | None) -> None:
        self._ref = None if innermost is None else weakref.ref(innermost)
        self.waiting: list[_Waiting] = []

    @property
    def is_outermost(self) -> bool:
        return self._ref is None

    @property
    def is_open(self) -> bool:
        return self._ref is None or ((savepoint := self._ref()) is not None and savepoint.is_active)


class _Held:
    """What waits for the transaction that a connection is in."""

    def __init__(self, connection: Connection) -> None:
        self._connection = weakref.ref(connection)
        #: From the outermost savepoint that is of interest to the innermost.
        self._stack = [_Savepoint(connection.get_nested_transaction())]
        self._last: _Step = ""
        #: COMMIT is being sent, or was.
        self.committing = False

    def of(self, connection: Connection) -> bool:
        """Two connections share an entry of the pool where there is one for all (StaticPool)."""
        return self._connection() is connection

    def add(self, connection: Connection, waiting: _Waiting) -> None:
        self.look(connection)
        self._stack[-1].waiting.append(waiting)

    def look(self, connection: Connection, coming: _Step = "") -> None:
        """See what the last step came to, before the next one."""
        innermost = connection.get_nested_transaction()
        last, self._last = self._last, coming
        if last == "savepoint":
            self._stack.append(_Savepoint(innermost))
        elif last:
            ended = next((n for n, one in enumerate(self._stack) if not one.is_open), None)
            if ended is None and last == "rollback" and not self._stack[0].is_outermost:
                ended = 0  # one that is around them all, which was opened before anybody waited
            if ended is not None:
                inside = [waiting for one in self._stack[ended:] for waiting in one.waiting]
                self._stack = self._stack[:ended] or [_Savepoint(innermost)]
                if last == "release":
                    self._stack[-1].waiting += inside
                else:
                    for waiting in inside:
                        waiting.one_ended("lost")

    def end(self) -> None:
        """The transaction is over."""
        end: End = "committed" if self.committing else "lost"
        inside = deque(waiting for one in self._stack for waiting in one.waiting)
        try:
            while inside:
                inside.popleft().one_ended(end)
        finally:  # empty, unless the process is asked to end in the middle of a send
            for waiting in inside:
                waiting.one_ended("stopped")


# --- What connections tell ----------------------------------------------------------------------------------------------


def _held(connection: Connection) -> _Held | None:
    if connection.closed or connection.invalidated:
        return None
    held: _Held | None = connection.info.get(_KEY)
    return held if held is not None and held.of(connection) else None


def _take(connection: Connection) -> _Held | None:
    held = _held(connection)
    if held is not None:
        del connection.info[_KEY]
    return held


def _on_begin(connection: Connection, *_xid: object) -> None:
    if held := _take(connection):
        held.end()


def _on_commit(connection: Connection, *_xid: object) -> None:
    if held := _held(connection):
        held.look(connection)
        if is_aborted(connection):
            _on_rollback(connection)
        else:
            held.committing = True


def _on_rollback(connection: Connection, *_xid: object) -> None:
    if held := _take(connection):
        held.committing = False
        held.end()


def _on_error(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is not None and (held := _held(connection)) and held.committing:
        _on_rollback(connection)


def _on_savepoint(connection: Connection, _name: str | None) -> None:
    if held := _held(connection):
        held.look(connection, "savepoint")


def _on_release(connection: Connection, _name: str, _context: None) -> None:
    if held := _held(connection):
        held.look(connection, "release")


def _on_rollback_to(connection: Connection, _name: str, _context: None) -> None:
    if held := _held(connection):
        held.look(connection, "rollback")


def _on_return(_driver: object, entry: Any, _more: object) -> None:
    """The connection goes back to the pool, or is thrown away."""
    held: _Held | None = None if entry is None else entry.info.pop(_KEY, None)
    if held is not None:
        held.end()


_lock = threading.Lock()
_listening = False


def _listen() -> None:
    """Hear what connections tell, from the first time that somebody waits.

    On the classes, because these listeners come before those of a single engine: one of them may take a lock at ``begin``
    (BEGIN IMMEDIATE) that the sender has to wait for. Once, because a class calls a listener as often as it is added.
    """
    global _listening
    with _lock:
        if _listening:
            return
        _listening = True
    for name in ("begin", "begin_twophase"):
        event.listen(Engine, name, _on_begin)
    for name in ("commit", "commit_twophase"):
        event.listen(Engine, name, _on_commit)
    for name in ("rollback", "rollback_twophase"):
        event.listen(Engine, name, _on_rollback)
    event.listen(Engine, "savepoint", _on_savepoint)
    event.listen(Engine, "release_savepoint", _on_release)
    event.listen(Engine, "rollback_savepoint", _on_rollback_to)
    event.listen(Engine, "handle_error", _on_error)
    event.listen(Pool, "reset", _on_return)
    event.listen(Pool, "invalidate", _on_return)

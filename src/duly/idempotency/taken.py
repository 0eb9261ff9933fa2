"""Sessions and connections that a body takes from elsewhere and writes with: a ``scoped_session``, ``db.session``, a transaction of its caller.

Such a body is given nothing that could be looked at. So it is seen while it runs: every statement that succeeds on a connection of
SQLAlchemy, in the body's own context (its thread or asyncio task, and what it starts from there with its context variables), and at its
end what sessions of this thread or task still have to flush. Where a transaction that it wrote in goes on when it has ended, its effect
is not there yet; ``around.py`` lets the end of its key wait for that transaction.

A body that only reads waits for nothing, nor for a session or connection with which it has committed: something of that is durable,
whatever becomes of the rest. Functions of the database that write when they are selected are not seen, nor is a thread without the body's context.

What costs is one look at a context variable for each statement in this process, and only where the ORM is in use.

Source: R004-20; https://docs.sqlalchemy.org/en/21/core/events.html, https://docs.sqlalchemy.org/en/21/orm/session_events.html.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import weakref
from typing import Any

from sqlalchemy import Connection, Engine, Transaction, event
from sqlalchemy.orm import Session, SessionTransaction

from duly.idempotency.surroundings import caller
from duly.storage.joined import is_aborted, is_autocommit
from duly.storage.older import connections_of

#: The bodies that are running here, from the outermost to the innermost.
_bodies: contextvars.ContextVar[tuple[Taken, ...]] = contextvars.ContextVar("duly_idempotency_bodies", default=())
#: The session that a connection works for.
_session_of: weakref.WeakKeyDictionary[Connection, weakref.ref[Session]] = weakref.WeakKeyDictionary()
#: Sessions that have begun a transaction, by the thread or task that they did it in.
_opened: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Session]] = weakref.WeakKeyDictionary()

_COMMENTS = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)
#: What changes no row, whatever follows.
_READS = frozenset({
    "select", "show", "pragma", "values", "table", "set", "reset", "begin", "start", "commit", "end", "rollback", "savepoint", "release",
    "abort", "fetch", "move", "close", "declare", "listen", "unlisten", "discard", "deallocate", "prepare", "lock", "vacuum", "analyze", "attach", "detach",
})  # fmt: skip
#: What these stand in front of decides.
_DEPENDS = frozenset({"with", "explain"})
_WRITES = re.compile(r"(?<!for )\b(?:insert|update|delete|merge)\b", re.IGNORECASE)


def changes_rows(statement: str) -> bool:
    """Does a statement change what is in the database, as far as its text tells?"""
    start = _COMMENTS.match(statement)
    word = _WORD.match(statement, 0 if start is None else start.end())
    if word is None:
        return False
    first = word.group().lower()
    return _WRITES.search(statement) is not None if first in _DEPENDS else first not in _READS


class Taken:
    """What one body has written with and was not given."""

    def __init__(self) -> None:
        #: The transactions that it has written in and that go on, by connection.
        self._wrote: dict[Connection, Transaction] = {}
        #: What was waiting to be flushed when it began.
        self._before = {session: _unflushed(session) for session in _opened.get(caller(), ())}
        #: What has committed something that it wrote.
        self._firm: weakref.WeakSet[Session | Connection] = weakref.WeakSet()
        self._token: contextvars.Token[tuple[Taken, ...]] | None = None

    def begin(self) -> None:
        self._token = _bodies.set((*_bodies.get(), self))

    def end(self) -> list[Session | Connection]:
        """What holds transactions that the body has written in, and that go on; of a connection that works for a session, the session."""
        self.leave()
        wrote, before = self._wrote, self._before
        self._wrote, self._before = {}, {}
        found: dict[int, Session | Connection] = {}
        for connection, transaction in wrote.items():
            if not connection.closed and not connection.invalidated and connection.get_transaction() is transaction:
                holder = _holder(connection)
                found[id(holder)] = holder
        for session in list(_opened.get(caller(), ())):
            if session.in_transaction() and _unflushed(session).keys() - before.get(session, {}).keys():
                found[id(session)] = session
        return [holder for holder in found.values() if holder not in self._firm]

    def leave(self) -> None:
        """The body runs no longer. What it has started may do so, and keeps its context."""
        if self._token is not None:
            with contextlib.suppress(ValueError):  # it was thrown away with its event loop
                _bodies.reset(self._token)
            self._token = None

    def wrote(self, connection: Connection) -> None:
        transaction = connection.get_transaction()
        if self._token is None or transaction is None:
            return
        if is_autocommit(connection):
            self._firm.add(_holder(connection))
        else:
            self._wrote[connection] = transaction

    def over(self, connection: Connection, committed: bool) -> None:
        if self._wrote.pop(connection, None) is not None and committed and not is_aborted(connection):
            self._firm.add(_holder(connection))


def _holder(connection: Connection) -> Session | Connection:
    known = _session_of.get(connection)
    session = None if known is None else known()
    root = None if session is None else session.get_transaction()
    return session if session is not None and root is not None and connection in connections_of(root) else connection


def _unflushed(session: Session) -> dict[int, Any]:
    """What a session still has to write, by identity; the objects are kept, so that no other takes over the identity of one."""
    return {id(one): one for some in (session.new, session.dirty, session.deleted) for one in some}


# --- What is heard ------------------------------------------------------------------------------------------------------


def _after_create(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        here = caller()
        known = _opened.get(here)
        if known is None:
            known = _opened[here] = weakref.WeakSet()
        known.add(session)


def _after_begin(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    _session_of[connection] = weakref.ref(session)


def _after_execute(connection: Connection, _cursor: Any, statement: str, *_more: Any) -> None:
    bodies = _bodies.get()
    if bodies and changes_rows(statement):
        for body in bodies:
            body.wrote(connection)


def _on_commit(connection: Connection, *_xid: object) -> None:
    for body in _bodies.get():
        body.over(connection, True)


def _on_rollback(connection: Connection, *_xid: object) -> None:
    for body in _bodies.get():
        body.over(connection, False)


event.listen(Session, "after_transaction_create", _after_create)
event.listen(Session, "after_begin", _after_begin)
event.listen(Engine, "after_cursor_execute", _after_execute)
for _end, _listener in (("commit", _on_commit), ("rollback", _on_rollback)):
    event.listen(Engine, _end, _listener)
    event.listen(Engine, f"{_end}_twophase", _listener)

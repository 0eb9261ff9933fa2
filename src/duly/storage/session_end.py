"""What waits for the end of a session's transaction, and hears how it ended.

``when_over(session, tell, item)`` remembers ``item``. When the outermost transaction of the session has been committed,
``tell([item, …], "committed")`` is called, with everything that waits for it in the order in which it came; when it was rolled
back, or a savepoint that was open at that moment was, ``tell([item, …], "lost")`` is.

How it is known (SQLAlchemy 2.0 and 2.1, measured; the session has one object per transaction and per savepoint):

* An item belongs to the innermost transaction that is open when it comes.
* ``after_commit`` comes for the transaction, and for every savepoint that is released. It only marks.
* ``after_transaction_end`` comes always, also for ``close()``, ``reset()`` and ``invalidate()``, which tell of no rollback
  (T004-b). It decides: without the mark, the items are lost; with it, a savepoint's items go to whoever is around it,
  and the transaction's are told, when the session is clean again and its connections are back in the pool.
* Where the session has joined a transaction of somebody else's connection, its items wait for that one (``joined.py``): after its own
  commit, and also when it is closed without one while the transaction (or savepoint) that it wrote in goes on.

* SQLite: outside of a transaction, RELEASE of the outermost savepoint commits for good. The standard driver begins a transaction
  only at the first write, so a savepoint that comes first is such a one. Where somebody waits, BEGIN is sent before it;
  ``check_savepoints`` refuses a session that is inside of one that came before anybody waited.

The listeners are on the class ``Session``, before everybody else's, so that a listener of the application that raises in
``after_commit`` does not hide a commit that has happened. They cost a session that nobody waits for some microseconds per
commit.

Source: R004-1 to R004-4, T004-a, T004-b, T004-p, case B041;
https://docs.sqlalchemy.org/en/21/orm/session_events.html.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, RootTransaction, Transaction, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session, SessionTransaction

from duly.kernel.errors import InvalidArgument, UnsafeSession
from duly.storage.joined import End, innermost, is_aborted, is_begun, when_ended
from duly.storage.older import await_, binds_of, connections_of
from duly.storage.sqlite import undo_refused_commit

#: Who hears of an end: what waited, in order, and how it ended.
Tell = Callable[[list[Any], End], None]


def orm_session(given: Any) -> Session | None:
    """The Session itself, which an AsyncSession wraps and a scoped one looks up; None for anything else."""
    found = given
    if not isinstance(found, Session) and callable(getattr(found, "registry", None)):
        found = found.registry()
    found = getattr(found, "sync_session", found)
    return found if isinstance(found, Session) else None


# --- What waits for which transaction -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One who waits."""

    tell: Tell
    item: Any


@dataclass(slots=True)
class _Level:
    """What is known of one transaction or savepoint."""

    #: In the order in which they came, also after the release of a savepoint: while it was open, nothing came into the
    #: transaction around it.
    waiting: list[_Waiting] = field(default_factory=list)
    committed: bool = False
    #: PostgreSQL will roll it back when told to commit (the outermost transaction only).
    aborted: bool = False
    #: Connections that were in a transaction when somebody came (the outermost transaction only). One that is not any more
    #: when the session commits was rolled back behind its back: by SQLite itself, or by a ROLLBACK sent as text.
    begun: tuple[Connection, ...] = ()
    #: Connections whose transactions are somebody else's, and go on.
    joined: tuple[Connection, ...] = ()
    #: What a session that was given connections writes in, by connection (the outermost transaction only).
    places: dict[Connection, Transaction | None] = field(default_factory=dict)


#: Weak, and nothing in a level leads back to its session: a session that is dropped takes what waits along.
_levels: WeakKeyDictionary[SessionTransaction, _Level] = WeakKeyDictionary()
#: Of SQLite's connections: transactions that somebody waits for, and those whose savepoints are inside of a real one.
_awaited: WeakSet[RootTransaction] = WeakSet()
_sound: WeakSet[RootTransaction] = WeakSet()
#: While a session's items are being told, what comes then: for its next transaction, which it may not begin yet.
_next: WeakKeyDictionary[Session, list[_Waiting]] = WeakKeyDictionary()


def check_savepoints(session: Session) -> None:
    """Raise UnsafeSession inside of a savepoint whose rows may outlive the rollback of what is around it (SQLite)."""
    root = session.get_transaction()
    if root is None or session.get_nested_transaction() is None:
        return
    for connection in connections_of(root):
        is_in = _may_be_loose(connection) and connection.get_nested_transaction() is not None
        if is_in and connection.get_transaction() not in _sound:
            raise UnsafeSession(
                "this SQLite session is inside of a savepoint that is not inside of any transaction, because its driver begins one only "
                "at the first write: its rows are committed when the savepoint is released, whatever becomes of the session. Make "
                "its engine with duly.storage.sqlite.make_engine(url), or use app.db.session_engine."
            )


def _await(connection: Connection) -> None:
    root = connection.get_transaction()
    if root is not None and connection.dialect.name == "sqlite":
        _awaited.add(root)


def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    """A session has taken a connection. Does anybody wait for one of its transactions?"""
    if transaction.parent is None and _given(session):
        _level(transaction).places[connection] = innermost(connection)
    around: SessionTransaction | None = session.get_nested_transaction() or transaction
    while around is not None:
        level = _levels.get(around)
        if level is not None and level.waiting:
            _await(connection)
            return
        around = around.parent


def _on_savepoint(connection: Connection, _name: str | None) -> None:
    """Just before SAVEPOINT: is it inside of a transaction? If somebody waits, it will be."""
    if connection.get_nested_transaction() is not None or not _may_be_loose(connection):
        return
    root = connection.get_transaction()
    if root is None:
        return
    if not is_begun(connection):
        if root not in _awaited:
            return
        connection.exec_driver_sql("BEGIN")
    _sound.add(root)


def _on_error(context: ExceptionContext) -> None:
    """An SQLite transaction that is told to be lost must not stay open in the pool, where its next user would commit it."""
    connection = context.connection
    if connection is not None and context.statement is None and connection.get_transaction() in _awaited:
        undo_refused_commit(context)


def _may_be_loose(connection: Connection) -> bool:
    """Does its driver leave it to chance whether a savepoint is inside of a transaction?"""
    if connection.dialect.name != "sqlite" or connection.closed or connection.invalidated:
        return False
    driver = connection.connection.driver_connection
    return getattr(driver, "autocommit", -1) is not False


def when_over(session: Session, tell: Tell, item: Any) -> None:
    """Have ``tell`` hear how the present transaction of ``session`` ends. Where it is in none, one is begun.

    Raises InvalidArgument for a session in no transaction that does not begin one by itself.
    """
    waiting, root = _Waiting(tell, item), session.get_transaction()
    if root is None:
        if session in _next:
            _next[session].append(waiting)
            return
        if not session.autobegin:
            raise InvalidArgument("session", "is in no transaction, and begins none by itself.", "Begin one first.")
        root = session.begin()
    _level(session.get_nested_transaction() or root).waiting.append(waiting)
    for connection in connections_of(root):
        _await(connection)
    if taken := connections_of(root):
        _level(root).begun = tuple(connection for connection in taken if is_begun(connection))


def count_waiting() -> int:
    """How many transactions somebody waits for, as far as they are known here."""
    return len(_levels) + len(_next)


def _level(transaction: SessionTransaction) -> _Level:
    return _levels.setdefault(transaction, _Level())


def _after_create(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None and (waiting := _next.pop(session, None)):
        _level(transaction).waiting += waiting


def _before_commit(session: Session) -> None:
    root = session.get_transaction()
    if root is None:
        return
    awaited = _is_awaited(session, root)
    # somebody may come only now, from a listener of the commit
    aborted = any(is_aborted(connection, ask=awaited) for connection in connections_of(root))
    if awaited or aborted:
        level = _level(root)
        level.aborted = aborted or not all(map(is_begun, level.begun))


def _is_awaited(session: Session, root: SessionTransaction) -> bool:
    """Does anybody wait for the transaction, or for a savepoint that is open in it?"""
    around: SessionTransaction | None = session.get_nested_transaction() or root
    while around is not None:
        level = _levels.get(around)
        if level is not None and level.waiting:
            return True
        around = around.parent
    return False


def _after_commit(session: Session) -> None:
    """A savepoint was released, or the transaction was committed."""
    savepoint, root = session.get_nested_transaction(), session.get_transaction()
    if savepoint is not None:
        _level(savepoint).committed = True
    elif root is not None:
        level = _level(root)
        level.committed, level.joined = True, _joined(session, root)


def _joined(session: Session, root: SessionTransaction) -> tuple[Connection, ...]:
    """The connections that are still in a transaction after the session has committed its own."""
    # A session that has executed nothing has taken no connection yet; then it is the one it would have taken.
    bound = connections_of(root) or _given(session)
    return tuple(connection for connection in bound if connection.in_transaction())


def _given(session: Session) -> set[Connection]:
    """The connections that the session was given."""
    others = binds_of(session)
    if isinstance(session.bind, Engine) and not others:
        return set()
    return {bind for bind in (session.bind, *others) if isinstance(bind, Connection)}


def _goes_on(connection: Connection, place: Transaction | None) -> bool:
    return place is not None and place.is_active and not connection.closed and not connection.invalidated


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    level = _levels.pop(transaction, None)
    if level is None or not level.waiting:
        return  # the transactions that a flush opens for itself are always among these
    if not level.committed and level.places and all(_goes_on(*one) for one in level.places.items()):
        # closed, and what it wrote is still there
        waiting = level.waiting
        when_ended(tuple(level.places), lambda end: _told(waiting, end))
    elif not level.committed or level.aborted:
        _told(level.waiting, "lost")
    elif transaction.nested:
        _level(_around(transaction)).waiting += level.waiting
    else:
        _after_root(session, level.waiting, level.joined)


def _around(savepoint: SessionTransaction) -> SessionTransaction:
    """The savepoint or transaction around a savepoint. One opened by a listener of a flush is inside of the flush's own."""
    around = savepoint.parent
    while around is not None and not around.nested and around.parent is not None:
        around = around.parent
    assert around is not None
    return around


def _after_root(session: Session, waiting: list[_Waiting], joined: tuple[Connection, ...]) -> None:
    if joined:
        when_ended(joined, lambda end: _told(waiting, end))
        return
    _next.setdefault(session, [])
    try:
        _told(waiting, "committed")
    finally:
        if not _next.get(session, waiting):
            del _next[session]


def _told(waiting: list[_Waiting], end: End) -> None:
    """Each listener once, with all that is his. When one is asked to end the process, the others are told "stopped"."""
    by_tell: dict[Tell, list[Any]] = {}
    for one in waiting:
        by_tell.setdefault(one.tell, []).append(one.item)
    left = list(by_tell.items())
    try:
        while left:
            tell, items = left.pop(0)
            tell(items, end)
    finally:
        for tell, items in left:
            tell(items, "stopped" if end == "committed" else end)


# --- Waiting for something inside of such a call ------------------------------------------------------------------------


def beside(fn: Callable[[], None]) -> None:
    """Call ``fn`` on this thread; for an AsyncSession on another one, while the event loop goes on.

    What made the loop wait would be slow for everybody, and worse: an SQLite file whose lock is held by another
    coroutine, which can only let go when the loop goes on, would keep both waiting until one gives up.
    """
    if "greenlet" in sys.modules:  # no AsyncSession without it
        from sqlalchemy.util.concurrency import in_greenlet

        if in_greenlet():
            await_(_beside(fn))
            return
    fn()


async def _beside(fn: Callable[[], None]) -> None:
    run = contextvars.copy_context().run
    try:
        work = asyncio.get_running_loop().run_in_executor(None, run, fn)
    except RuntimeError:  # the loop is being closed, and takes no more work
        fn()
    else:
        await asyncio.shield(work)  # whoever waits may be cancelled; what is committed is told all the same


for _name, _listener in (
    ("after_transaction_create", _after_create),
    ("after_begin", _after_begin),
    ("before_commit", _before_commit),
    ("after_commit", _after_commit),
    ("after_transaction_end", _after_end),
):
    event.listen(Session, _name, _listener, insert=True)
event.listen(Engine, "savepoint", _on_savepoint)
event.listen(Engine, "handle_error", _on_error)

"""Tasks that are sent after the commit of the caller's transaction, and only then.

``enqueue_task_after_commit(session, "send_receipt", order=17)`` remembers the call; when the outermost transaction of the
session has been committed, it is handed to the *sender* (``senders.py``). When the transaction is rolled back, nothing is
sent. What was registered inside of a savepoint shares the savepoint's fate.

The memory is the process's. It can die between the commit and the send, and a send can fail; what must not be lost belongs
into the outbox, or, when Duly's tables are in the same database, into the transaction itself (``task.using(session=…)``).

How it is known (SQLAlchemy 2.1, measured; the session has one object per transaction and per savepoint):

* A call belongs to the innermost transaction that is open when it is registered.
* ``after_commit`` comes for the transaction, and for every savepoint that is released. It only marks.
* ``after_transaction_end`` comes always, also for ``close()``, ``reset()`` and ``invalidate()``, which tell of no rollback
  (T004-b). It decides: without the mark, the calls are dropped; with it, a savepoint's calls go to whoever is around it,
  and the transaction's are sent, when the session is clean again and its connections are back in the pool.
* Where the session has joined a transaction of somebody else's connection, its calls wait for that one (``joined.py``).

The listeners are on the class ``Session``, before everybody else's, so that a listener of the application that raises in
``after_commit`` does not hide a commit that has happened. They cost a session without calls some microseconds per commit.

Source: R004-1 to R004-6, T004-a, T004-b, T004-p, T004-q, case B041;
https://docs.sqlalchemy.org/en/21/orm/session_events.html.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from duly.jobs.run import is_unawaited
from duly.jobs.task import FARTHEST
from duly.kernel.errors import InvalidArgument
from duly.kernel.events import PROCESS
from duly.kernel.payload import check_name
from duly.outbox.joined import End, is_aborted, is_begun, when_ended
from duly.outbox.senders import Sender, post_commit_sender, prepared, set_post_commit_sender
from duly.tracing import carried, trace_id, traceparent

__all__ = ["Sender", "enqueue_task_after_commit", "post_commit_sender", "set_post_commit_sender"]

Result = Literal["enqueued", "rolled_back", "skipped"]


# --- Registering --------------------------------------------------------------------------------------------------------


def enqueue_task_after_commit(
    session: Any,
    task_name: str,
    /,
    *args: Any,
    queue: str | None = None,
    countdown: float | timedelta | None = None,
    **kwargs: Any,
) -> None:
    """Send a task once the outermost transaction of ``session`` is committed; send nothing when it is rolled back.

    ``session``: a Session, AsyncSession, or a scoped one. Where it is in no transaction, one is begun, as by its first
    statement. ``args`` and ``kwargs``: the task's arguments as they are now; changing them later changes nothing. ``queue``
    and ``countdown`` (seconds or a timedelta, counted from the send) go to the sender, who is chosen now, too.

    Tasks are sent in the order of their registration, each once. A send that fails harms neither the transaction nor the
    sends after it; it is told as the event ``postcommit`` with result ``skipped``.

    Raises InvalidArgument, naming the field, for anything else than a session, for a session in no transaction that does
    not begin one by itself, for an argument that the sender could not send, and when there is no sender.
    """
    orm_session = _orm_session(session)
    check_name(task_name, "task_name")
    options: dict[str, Any] = {}
    if queue is not None:
        options["queue"] = check_name(queue, "queue")
    if countdown is not None:
        options["countdown"] = _seconds(countdown)
    send = prepared(task_name, args, kwargs, options)
    _register(orm_session, _Call(task_name, send, traceparent(), trace_id()))


def _orm_session(given: Any) -> Session:
    """The Session itself, which an AsyncSession wraps and a scoped one looks up."""
    found = given
    if not isinstance(found, Session) and callable(getattr(found, "registry", None)):
        found = found.registry()
    found = getattr(found, "sync_session", found)
    if not isinstance(found, Session):
        remedy = "Give a Session or AsyncSession of SQLAlchemy's ORM, or a scoped one."
        if isinstance(given, Connection):
            remedy += " A connection cannot tell when its transaction is committed; wrap it: Session(bind=connection)."
        raise InvalidArgument("session", f"is of type {type(given).__name__}.", remedy)
    return found


def _seconds(countdown: Any) -> float:
    seconds = countdown.total_seconds() if isinstance(countdown, timedelta) else countdown
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument("countdown", f"is {countdown!r}.", "Give seconds as a number, or a timedelta.")
    if not 0 <= seconds <= FARTHEST:
        raise InvalidArgument("countdown", f"is {countdown}.", "Give a time from now to a hundred years ahead.")
    return seconds


# --- What is registered in which transaction ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """One registered task."""

    task_name: str
    send: Callable[[], object]
    traceparent: str | None
    trace_id: str | None


@dataclass(slots=True)
class _Level:
    """What is known of one transaction or savepoint."""

    #: In the order of registration, also after the release of a savepoint: while it was open, nothing was registered
    #: in the transaction around it.
    calls: list[_Call] = field(default_factory=list)
    committed: bool = False
    #: PostgreSQL will roll it back when told to commit (the outermost transaction only).
    aborted: bool = False
    #: Connections that were in a transaction at a registration (the outermost transaction only). One that is not any more
    #: when the session commits was rolled back behind its back: by SQLite itself, or by a ROLLBACK sent as text.
    begun: tuple[Connection, ...] = ()
    #: Connections whose transactions are somebody else's, and go on.
    joined: tuple[Connection, ...] = ()


#: Weak, and nothing in a level leads back to its session: a session that is dropped takes its calls along.
_levels: WeakKeyDictionary[SessionTransaction, _Level] = WeakKeyDictionary()
#: While a session's calls are being sent, what they register in it: for its next transaction, which it may not begin yet.
_next: WeakKeyDictionary[Session, list[_Call]] = WeakKeyDictionary()


def _level(transaction: SessionTransaction) -> _Level:
    return _levels.setdefault(transaction, _Level())


def _register(session: Session, call: _Call) -> None:
    root = session.get_transaction()
    if root is None:
        if session in _next:
            _next[session].append(call)
            return
        if not session.autobegin:
            raise InvalidArgument("session", "is in no transaction, and begins none by itself.", "Begin one first.")
        root = session.begin()
    _level(session.get_nested_transaction() or root).calls.append(call)
    if root.connections:
        _level(root).begun = tuple(connection for connection in root.connections if is_begun(connection))


def _after_create(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None and (calls := _next.pop(session, None)):
        _level(transaction).calls += calls


def _before_commit(session: Session) -> None:
    root = session.get_transaction()
    if root is not None:
        level = _level(root)
        level.aborted = any(map(is_aborted, root.connections)) or not all(map(is_begun, level.begun))


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
    bound = root.connections or {
        bind for bind in (session.bind, *session.binds.values()) if isinstance(bind, Connection)
    }
    return tuple(connection for connection in bound if connection.in_transaction())


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    level = _levels.pop(transaction, None)
    if level is None or not level.calls:
        return  # the transactions that a flush opens for itself are always among these
    if not level.committed or level.aborted:
        _tell(level.calls, "rolled_back")
    elif transaction.nested:
        _level(_around(transaction)).calls += level.calls
    else:
        _after_root(session, level.calls, level.joined)


def _around(savepoint: SessionTransaction) -> SessionTransaction:
    """The savepoint or transaction around a savepoint. One opened by a listener of a flush is inside of the flush's own."""
    around = savepoint.parent
    while around is not None and not around.nested and around.parent is not None:
        around = around.parent
    assert around is not None
    return around


def _after_root(session: Session, calls: list[_Call], joined: tuple[Connection, ...]) -> None:
    if joined:
        when_ended(joined, lambda end: _end(calls, end))
        return
    _next.setdefault(session, [])
    try:
        _send(calls)
    finally:
        if not _next.get(session, calls):
            del _next[session]


def _end(calls: list[_Call], end: End) -> None:
    if end == "committed":
        _send(calls)
    else:
        _tell(calls, "rolled_back" if end == "lost" else "skipped")


# --- Sending ------------------------------------------------------------------------------------------------------------


def _send(calls: list[_Call]) -> None:
    """Send on this thread; for an AsyncSession on another one, while the event loop goes on.

    A sender that made the loop wait would be slow for everybody, and worse: an SQLite file whose lock is held by another
    coroutine, which can only let go when the loop goes on, would keep both waiting until the sender gives up.
    """
    if "greenlet" in sys.modules:  # no AsyncSession without it
        from sqlalchemy.util.concurrency import await_, in_greenlet

        if in_greenlet():
            await_(_send_beside(calls))
            return
    _send_here(calls)


async def _send_beside(calls: list[_Call]) -> None:
    run = contextvars.copy_context().run
    try:
        sending = asyncio.get_running_loop().run_in_executor(None, run, _send_here, calls)
    except RuntimeError:  # the loop is being closed, and takes no more work
        _send_here(calls)
    else:
        await asyncio.shield(sending)  # whoever waits may be cancelled; what is committed is sent all the same


def _send_here(calls: list[_Call]) -> None:
    """Each in its own try. When the process is asked to end (Ctrl-C, ``sys.exit``), the rest is told as skipped."""
    done = 0
    try:
        for call in calls:
            error = _sent(call)
            done += 1
            _tell([call], "skipped" if error else "enqueued", error)
    except BaseException as error:
        _tell(calls[done:], "skipped", error)
        raise


def _sent(call: _Call) -> Exception | None:
    try:
        with carried(call.traceparent):
            answer = call.send()
        if is_unawaited(answer):
            return TypeError("the sender answered with a coroutine, which nobody awaits")
    except Exception as error:
        return error
    return None


def _tell(calls: list[_Call], result: Result, error: BaseException | None = None) -> None:
    for call in calls:
        facts: dict[str, Any] = {"task_name": call.task_name, "result": result}
        if call.trace_id is not None:
            facts["trace_id"] = call.trace_id
        if error is not None:
            facts["error"] = type(error).__name__  # its text may quote an argument (R004-6)
        PROCESS.emit("postcommit", "error" if result == "skipped" else "info", **facts)


for _name, _listener in (
    ("after_transaction_create", _after_create),
    ("before_commit", _before_commit),
    ("after_commit", _after_commit),
    ("after_transaction_end", _after_end),
):
    event.listen(Session, _name, _listener, insert=True)

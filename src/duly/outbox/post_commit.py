"""Tasks that are sent after the commit of the caller's transaction, and only then.

``enqueue_task_after_commit(session, "send_receipt", order=17)`` remembers the call; when the outermost transaction of the
session has been committed, it is handed to the *sender* (``senders.py``). When the transaction is rolled back, nothing is
sent. What was registered inside of a savepoint shares the savepoint's fate.

The memory is the process's. It can die between the commit and the send, and a send can fail; what must not be lost belongs
into the outbox, or, when Duly's tables are in the same database, into the transaction itself (``task.using(session=…)``).

How a transaction ends, savepoints and all, is known in ``storage/session_end.py``.

Source: R004-1 to R004-6, T004-a, T004-b, T004-p, T004-q, case B041.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from queue import Full
from typing import Any, Literal

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from duly.jobs.run import is_unawaited
from duly.jobs.task import FARTHEST
from duly.kernel.duration import Duration
from duly.kernel.errors import InvalidArgument
from duly.kernel.events import PROCESS
from duly.kernel.payload import check_name, read_seconds
from duly.outbox.senders import Sender, post_commit_sender, prepared, set_post_commit_sender
from duly.storage.deadline import Deadline, Fate
from duly.storage.joined import End
from duly.storage.session_end import beside, check_savepoints, orm_session, when_over
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
    countdown: Duration | None = None,
    **kwargs: Any,
) -> None:
    """Send a task once the outermost transaction of ``session`` is committed; send nothing when it is rolled back.

    ``session``: a Session, AsyncSession, or a scoped one. Where it is in no transaction, one is begun, as by its first
    statement. ``args`` and ``kwargs``: the task's arguments as they are now; changing them later changes nothing. ``queue``
    and ``countdown`` (seconds or a timedelta, counted from the send) go to the sender, who is chosen now, too.

    Tasks are sent in the order of their registration, each once. A send that fails harms neither the transaction nor the
    sends after it; it is told as the event ``postcommit`` with result ``skipped``. A sender that hangs keeps the commit for some
    seconds (``set_post_commit_sender(…, within=…)``); it goes on by itself then.

    Raises InvalidArgument, naming the field, for anything else than a session, for a session in no transaction that does
    not begin one by itself, for an argument that the sender could not send, and when there is no sender. Raises UnsafeSession inside of an SQLite
    savepoint that is not inside of any transaction.
    """
    found = _orm_session(session)
    check_name(task_name, "task_name")
    options: dict[str, Any] = {}
    if queue is not None:
        options["queue"] = check_name(queue, "queue")
    if countdown is not None:
        options["countdown"] = _seconds(countdown)
    check_savepoints(found)
    send, deadline = prepared(task_name, args, kwargs, options)
    when_over(found, _end, _Call(task_name, send, deadline, traceparent(), trace_id()))


def _orm_session(given: Any) -> Session:
    """The Session itself, which an AsyncSession wraps and a scoped one looks up."""
    found = orm_session(given)
    if found is None:
        remedy = "Give a Session or AsyncSession of SQLAlchemy's ORM, or a scoped one."
        if isinstance(given, Connection):
            remedy += " A connection cannot tell when its transaction is committed; wrap it: Session(bind=connection)."
        raise InvalidArgument("session", f"is of type {type(given).__name__}.", remedy)
    return found


def _seconds(countdown: Any) -> float:
    seconds = read_seconds(countdown, "countdown")
    if not 0 <= seconds <= FARTHEST:
        raise InvalidArgument("countdown", f"is {countdown}.", "Give a time from now to a hundred years ahead.")
    return seconds


@dataclass(frozen=True, slots=True)
class _Call:
    """One registered task."""

    task_name: str
    send: Callable[[], object]
    #: For how long a commit waits for its sender; None where nothing can hang.
    deadline: Deadline | None
    traceparent: str | None
    trace_id: str | None


def _end(calls: list[_Call], end: End) -> None:
    if end == "committed":
        for deadline, some in itertools.groupby(calls, key=lambda call: call.deadline):
            _hand_over(list(some), deadline)
    else:
        _tell(calls, "rolled_back" if end == "lost" else "skipped")


def _hand_over(calls: list[_Call], deadline: Deadline | None) -> None:
    """Send, and go on after the deadline, whatever the sender does: what is late tells its result when it has one."""
    if deadline is None:
        beside(lambda: _send(calls))
        return
    fates: list[Fate] = []
    beside(lambda: fates.append(deadline.run(lambda: _send(calls), lambda: _lost(calls))))
    if fates == ["late"]:
        PROCESS.emit("postcommit_late", "warning", count=len(calls), seconds=deadline.seconds)
    elif fates == ["refused"]:
        _tell(calls, "skipped", Full())


def _lost(calls: list[_Call]) -> None:
    """The process ends, and nobody knows whether they were sent."""
    PROCESS.emit("postcommit_lost", "error", count=len(calls), task_names=sorted({call.task_name for call in calls}))


# --- Sending ------------------------------------------------------------------------------------------------------------


def _send(calls: list[_Call]) -> None:
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

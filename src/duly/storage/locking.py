"""Changing tables beside a busy system: short waits for locks, and a sentence that names who holds them.

A statement that wants a table for itself waits behind whoever reads it (a dump, a forgotten psql), and everybody who comes later waits
behind that statement: the product stands still until the reader has gone. So a step waits for a second in all, lets go of everything, gives
the others room, and comes again a few times. Source: case C004, ADR 0048.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, event, exc, text

from duly.kernel.errors import DatabaseBusy

T = TypeVar("T")
#: Seconds for which one step waits for locks in all, and so for which others can stand behind it.
WAIT = 1.0
#: Seconds between tries: so many are made, and one more.
PAUSES = (0.5, 1.0, 2.0, 3.0, 4.0)
#: PostgreSQL's codes for a lock that was not to be had in time, and a deadlock.
_LOCKED = frozenset({"55P03", "40P01"})
#: Who holds locks on these tables for longer than a step waits. Those on the table that was asked for stand first.
_HOLDERS = text("""
    SELECT c.relname, a.pid, a.application_name, a.usename, a.xact_start
      FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE l.granted AND l.pid <> pg_backend_pid() AND l.relation = ANY(CAST(:tables AS regclass[]))
     ORDER BY CASE WHEN c.relname = :asked THEN 0 ELSE 1 END, a.xact_start NULLS LAST LIMIT 1""")
_TABLE = re.compile(r'\b(?:TABLE|ON|INTO|UPDATE)\s+(?:ONLY\s+)?(?:"?\w+"?\.)?"?(\w+)"?')


@contextmanager
def bounded(connection: Connection) -> Iterator[None]:
    """Within: all statements of the transaction together wait no longer than ``WAIT`` for locks (PostgreSQL)."""
    until = time.monotonic() + WAIT

    def hurry(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("ROLLBACK"):
            return  # in a transaction that has failed nothing else is heard
        left = max(10, int((until - time.monotonic()) * 1000))
        cursor.execute(f"SET LOCAL lock_timeout = {left}")

    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    event.listen(connection, "before_cursor_execute", hurry)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", hurry)


def is_locked(error: Exception) -> bool:
    """Did a statement fail because another transaction holds what it needs?"""
    return any(getattr(one, "sqlstate", None) in _LOCKED for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, each once: the driver's error and SQLAlchemy's may name each other."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__


def _asked(error: Exception) -> str | None:
    """The table that a statement was about."""
    said = next((one.statement for one in _chain(error) if isinstance(one, exc.DBAPIError) and one.statement), "")
    found = _TABLE.search(said)
    return found[1] if found else None


def patiently(step: Callable[[], T], blocker: Callable[[str | None], str]) -> T:
    """``step()``, a transaction of its own, again after a pause where it could not have its locks.

    ``blocker``: who holds them, given the name of the table that was asked for. Raises DatabaseBusy naming them.
    """
    for pause in (*PAUSES, None):
        try:
            return step()
        except Exception as error:
            if not is_locked(error):
                raise
            if pause is None:
                raise DatabaseBusy(
                    f"{blocker(_asked(error))} Nothing was changed by this step. End that transaction, or wait for its end, "
                    "and run the migration again."
                ) from error
        time.sleep(pause)
    raise AssertionError


def holder(connection: Connection, tables: Sequence[str], asked: str | None) -> str:
    """Who holds a lock on one of these tables, in a sentence."""
    found = connection.execute(_HOLDERS, {"tables": list(tables), "asked": asked or ""}).first()
    if found is None:
        return f"The lock of table {asked or tables[0]} was not to be had within {WAIT:g} s, {len(PAUSES) + 1} times."
    table, pid, application, user, since = found
    who = f"process {pid} (application {application or 'without a name'}, user {user or 'unknown'})"
    when = f" in a transaction that has been open since {since:%Y-%m-%d %H:%M:%S}Z" if since else ""
    return f"Table {asked or table} cannot be changed now: {who} holds {'it' if (asked or table) == table else table}{when}."

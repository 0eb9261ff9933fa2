"""SQLite: one file, many readers, one writer at a time.

Three habits make it dependable with several threads and processes:

* **WAL, and every write transaction begins IMMEDIATE.** A deferred transaction that reads and then writes fails at once
  with "database is locked" when another writer came between, whatever the timeout (case B039). BEGIN IMMEDIATE waits.
* **The driver starts no transactions of its own.** ``isolation_level=None`` switches off the implicit BEGIN of the
  standard module, under which rows of a released savepoint survive the rollback of the outer transaction.
* **One writer per process, committing in groups.** ``GroupWriter`` below.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, QueuePool, StaticPool, create_engine, event, text
from sqlalchemy.engine import URL, ExceptionContext

T = TypeVar("T")

#: How often, and after how many seconds, a new connection asks again for WAL mode.
WAL_TRIES, WAL_PAUSE = 100, 0.02
#: How often a waiting loop asks whether another process has written, in seconds. One question costs some microseconds.
LISTEN_STEP = 0.004


def make_engine(
    url: URL | str, *, synchronous: str = "FULL", busy_timeout: float = 30.0, immediate: bool = True, **kwargs: Any
) -> Engine:
    """An engine whose sessions are safe to enqueue in: WAL, foreign keys, real BEGIN, sound savepoints.

    ``immediate`` begins transactions as writers (they wait their turn instead of failing); False begins them deferred,
    for engines that only read. Further arguments go to ``sqlalchemy.create_engine``.
    """
    connect_args = {
        "timeout": busy_timeout,
        "isolation_level": None,
        "cached_statements": 256,
        **kwargs.pop("connect_args", {}),
    }
    # what errors say goes into logs and into the errors of jobs
    engine = create_engine(url, connect_args=connect_args, **{"hide_parameters": True, **kwargs})
    _prepare(engine, synchronous, "BEGIN IMMEDIATE" if immediate else "BEGIN")
    return engine


def make_async_engine(url: URL | str, *, synchronous: str = "FULL", busy_timeout: float = 30.0, **kwargs: Any) -> Any:
    """The same for ``AsyncSession`` (needs ``duly[async]``). Takes the plain ``sqlite://`` URL."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.ext.asyncio import create_async_engine

    connect_args = {"timeout": busy_timeout, "isolation_level": None, **kwargs.pop("connect_args", {})}
    engine = create_async_engine(
        make_url(url).set(drivername="sqlite+aiosqlite"), connect_args=connect_args, **{"hide_parameters": True, **kwargs}
    )  # fmt: skip
    _prepare(engine.sync_engine, synchronous, "BEGIN IMMEDIATE")
    return engine


def _prepare(engine: Engine, synchronous: str, begin: str) -> None:
    import sqlite3  # the driver is loaded by those who use it

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.text_factory = LENIENT
        cursor = connection.cursor()
        _write_ahead(cursor)
        for pragma in (
            f"synchronous={synchronous}",
            "foreign_keys=ON",
            "temp_store=MEMORY",
            "cache_size=-2000",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(engine, "handle_error", undo_refused_commit)
    file = None if is_memory(engine.url) else _path(engine.url)

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)
        if file is not None and begin == "BEGIN IMMEDIATE":
            _writers[file] = (threading.get_ident(), _task(), id(connection.connection.dbapi_connection))

    if file is not None and begin == "BEGIN IMMEDIATE":
        # told just before it happens: from then on nobody waits for the lock in vain
        for name in ("commit", "rollback"):
            event.listen(engine, name, lambda _connection: _writers.pop(file, None))
        # a session that was dropped or invalidated: only its pool tells
        for name in ("reset", "close", "invalidate"):
            event.listen(engine, name, lambda driver, *_: _gone(file, driver))


def undo_refused_commit(context: ExceptionContext) -> None:
    """Roll back what a COMMIT has refused (a deferred foreign key, a full disk). SQLite leaves its transaction open, and SQLAlchemy takes it
    for ended: the connection would go back to its pool with the lock of the file, and with rows that its next user commits.
    """
    connection = context.connection
    if context.statement is not None or connection is None or connection.closed or connection.invalidated:
        return
    if connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]
        with contextlib.suppress(Exception):  # the refusal itself is what is told
            connection.connection.dbapi_connection.rollback()  # type: ignore[union-attr]


def _gone(file: str, driver: object) -> None:
    if _writers.get(file, (0, None, 0))[2] == id(driver):
        _writers.pop(file, None)


#: File → (thread, asyncio task or None, id of the driver's connection) of the write transaction that is open in it, as far as it was
#: begun in this process by an engine that was made here. There is one at most.
_writers: dict[str, tuple[int, object, int]] = {}


@functools.lru_cache(maxsize=64)
def _path(url: URL) -> str:
    return os.path.realpath(Path(url.database or "").expanduser())


def _task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def waits_for_itself(url: URL, blocking: bool) -> bool:
    """Does it seem that a write to this file would wait for a transaction that only its own caller can end? Whoever ends a transaction
    may do so on another thread than it was begun on, so try before you refuse.

    ``blocking``: the caller keeps its thread while it waits, so no other coroutine of the thread goes on. Not known of transactions
    that were begun by other engines, or on another thread.
    """
    thread, task, _ = _writers.get(_path(url), (0, None, 0))
    return thread == threading.get_ident() and (blocking or task is _task())


def _write_ahead(cursor: Any) -> None:
    """Put the file in WAL mode, once and for all. Of several who do so with a new file at the same moment all but one are told
    that it is locked, at once and whatever the timeout: they ask again."""
    import sqlite3

    for last in (False,) * WAL_TRIES + (True,):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if last or "locked" not in str(error):
                raise
            time.sleep(WAL_PAUSE)
        else:
            return


def is_memory(url: URL) -> bool:
    return not url.database or url.database == ":memory:" or "mode=memory" in str(url)


def writer_engine(url: URL, synchronous: str, busy_timeout: float) -> Engine:
    return make_engine(
        url,
        synchronous=synchronous,
        busy_timeout=busy_timeout,
        poolclass=StaticPool,
        connect_args={"check_same_thread": False},
    )


def reader_engine(url: URL, busy_timeout: float) -> Engine:
    engine = make_engine(
        url,
        busy_timeout=busy_timeout,
        immediate=False,
        poolclass=QueuePool,
        pool_size=4,
        max_overflow=8,
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def read_only(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA query_only=ON")

    return engine


#: Bytes that are no text, written into a row by hand, read as replacement characters: the row is wrong then, and not the connection.
LENIENT = functools.partial(str, encoding="utf-8", errors="replace")


class _Op:
    __slots__ = ("done", "error", "fn", "value")

    def __init__(self, fn: Callable[[Connection], Any]) -> None:
        self.fn, self.value, self.done = fn, None, False
        self.error: BaseException | None = None


class GroupWriter:
    """The one writer of this process, with group commit.

    Whoever wants to write puts an operation in line and asks for the lock. Who gets it leads: it takes everything in line
    at that moment, runs each operation inside one transaction (each in a savepoint, so that one that fails takes nobody
    along), commits once, and lets the others go with their results. No thread sits in between, so a lone writer pays
    nothing for the scheme; under load the line fills while a commit is on its way to the disk, and one sync pays for
    many. Whoever returns from ``run`` has its rows on disk.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._line: list[_Op] = []
        self._line_lock = threading.Lock()
        self._lead = threading.Lock()
        self._leading = threading.local()
        self._connection: Connection | None = None

    def run(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn(connection)`` in a write transaction and return its result once it is committed."""
        if getattr(self._leading, "on", False):
            raise RuntimeError("a write inside a write: hand the connection on instead")
        op = _Op(fn)
        with self._line_lock:
            self._line.append(op)
        with self._lead:
            if not op.done:
                with self._line_lock:
                    group, self._line = self._line, []
                self._leading.on = True
                try:
                    self._commit(group)
                finally:
                    self._leading.on = False
        if op.error is not None:
            raise op.error
        return op.value  # type: ignore[return-value]

    def _commit(self, group: list[_Op]) -> None:
        try:
            connection = self._connection
            if connection is None or connection.closed:
                connection = self._connection = self.engine.connect()
            with connection.begin():
                if len(group) == 1:
                    group[0].value = group[0].fn(connection)
                else:
                    for op in group:
                        try:
                            with connection.begin_nested():
                                op.value = op.fn(connection)
                        except Exception as error:
                            op.error = error
        except BaseException as error:
            for op in group:
                op.error = op.error or error
            if self._connection is not None and self._connection.invalidated:
                self._connection.close()
                self._connection = None
        finally:
            for op in group:
                op.done = True

    def close(self) -> None:
        with self._lead:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        self.engine.dispose()


class FileEar:
    """Hears that another connection has committed to the file (a changed ``PRAGMA data_version``), or that the row of another
    query has changed."""

    def __init__(self, url: URL, watch: str = "PRAGMA data_version") -> None:
        import sqlite3

        assert url.database
        self._watch = watch
        self._connection = sqlite3.connect(url.database, timeout=5, isolation_level=None, check_same_thread=False)
        self._seen = self._version()

    def _version(self) -> Any:
        return self._connection.execute(self._watch).fetchone()

    def heard(self) -> bool:
        version = self._version()
        if version == self._seen:
            return False
        self._seen = version
        return True

    def any(self, sql: str, parameters: dict[str, object]) -> bool:
        """Does a query find a row? Asked on this connection, for loops that ask often: a few microseconds."""
        return self._connection.execute(sql, parameters).fetchone() is not None

    def close(self) -> None:
        self._connection.close()


def next_ids(connection: Connection, table: str, count: int) -> range:
    """Take ``count`` ids of ``table`` at once (the caller writes, so nobody else is counting)."""
    last = connection.execute(
        text("UPDATE sqlite_sequence SET seq = seq + :n WHERE name = :t RETURNING seq"), {"n": count, "t": table}
    ).scalar_one()
    return range(last - count + 1, last + 1)


def unsafe_reason(driver_connection: Any) -> str | None:
    """Why rows written on this connection may disobey its savepoints; None when they are safe."""
    if getattr(driver_connection, "autocommit", -1) is False:
        return None
    if driver_connection.isolation_level is not None:
        return (
            "its driver starts transactions by itself (isolation_level is not None), so a savepoint opened before the first "
            "write is not inside any transaction and its rows survive the outer rollback"
        )
    if not driver_connection.in_transaction:
        return "it is in autocommit mode: no transaction has begun, so a rollback would keep the job"
    return None

"""SQLite: one file, many readers, one writer at a time.

Three habits make it dependable with several threads and processes:

* **WAL, and every write transaction begins IMMEDIATE.** A deferred transaction that reads and then writes fails at once
  with "database is locked" when another writer came between, whatever the timeout (case B039). BEGIN IMMEDIATE waits.
* **The driver starts no transactions of its own.** ``isolation_level=None`` switches off the implicit BEGIN of the
  standard module, under which rows of a released savepoint survive the rollback of the outer transaction.
* **One writer per process, committing in groups.** ``GroupWriter`` below.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, QueuePool, StaticPool, create_engine, event, text
from sqlalchemy.engine import URL

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
    engine = create_engine(url, connect_args=connect_args, **kwargs)
    _prepare(engine, synchronous, "BEGIN IMMEDIATE" if immediate else "BEGIN")
    return engine


def make_async_engine(url: URL | str, *, synchronous: str = "FULL", busy_timeout: float = 30.0, **kwargs: Any) -> Any:
    """The same for ``AsyncSession`` (needs ``duly[async]``). Takes the plain ``sqlite://`` URL."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.ext.asyncio import create_async_engine

    connect_args = {"timeout": busy_timeout, "isolation_level": None, **kwargs.pop("connect_args", {})}
    engine = create_async_engine(make_url(url).set(drivername="sqlite+aiosqlite"), connect_args=connect_args, **kwargs)
    _prepare(engine.sync_engine, synchronous, "BEGIN IMMEDIATE")
    return engine


def _prepare(engine: Engine, synchronous: str, begin: str) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        _write_ahead(cursor)
        for pragma in (
            f"synchronous={synchronous}",
            "foreign_keys=ON",
            "temp_store=MEMORY",
            "cache_size=-8000",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def _write_ahead(cursor: Any) -> None:
    """Put the file in WAL mode, once and for all. Of several who do so with a new file at the same moment all but one are told
    that it is locked, at once and whatever the timeout: they ask again."""
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
        connection.execute("PRAGMA cache_size=-2000")

    return engine


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

"""The one door to the database: two engines at most, transactions, the clock rule, wake-ups, and a thread pool for async.

Storage is synchronous (HOUSE decision 1). A caller on an event loop goes through ``arun``, a small pool of threads.
Which clock? On PostgreSQL the database's own, so that machines with skewed clocks agree; elsewhere, and always with a
ManualClock, the instant of ``clock`` (``stamp`` says which).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import threading
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, PoolProxiedConnection, QueuePool, exc, func, literal, select
from sqlalchemy.engine import URL, make_url

from duly.clock import SystemClock
from duly.kernel.clock import Clock
from duly.kernel.errors import (
    DatabaseBusy,
    DatabaseConflict,
    DatabaseError,
    DatabaseUnavailable,
    InvalidArgument,
    brief,
)
from duly.settings import Settings
from duly.storage import sqlite
from duly.storage.session_settings import SESSION, Place, own
from duly.storage.types import Instant
from duly.storage.wake import CONTROLS, Bell, Bells

if TYPE_CHECKING:
    from duly.storage.postgres import Answers, Kept, Listener

T = TypeVar("T")
Name = Literal["sqlite", "postgresql"]
#: Connections kept for the loops of a worker: one each.
VITAL = 5
#: Seconds for which a writer in a hurry waits for the lock of an SQLite file.
HURRY = 0.2
#: Seconds between looks at the controls on SQLite, where another process cannot ring.
CONTROL_STEP = 0.02


class Database:
    """A database and how to talk to it."""

    def __init__(self, settings: Settings, clock: Clock | None = None, *, own: bool = True) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.url = parse_url(settings.database_url)
        self.name: Name = "sqlite" if self.url.get_backend_name() == "sqlite" else "postgresql"
        #: Rung for work that has come, and for controls (gate, pauses, limits) that were changed.
        self.bells, self.controls = Bells(), Bells()
        #: Where the tables are (PostgreSQL). None in a database that is not Duly's ``own``: its search path is its owner's to set.
        self.place = Place(settings.schema) if own else None
        #: Called when the database is used on the thread of a running event loop, which stands still meanwhile.
        self.on_loop: Callable[[], None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._local = threading.local()
        self._open()
        ref = weakref.ref(self)

        def forked() -> None:
            db = ref()
            if db is not None:
                db._after_fork()

        os.register_at_fork(after_in_child=forked)

    def _open(self) -> None:
        s = self.settings
        self._writer: sqlite.GroupWriter | None = None
        self._autos: dict[Engine, Engine] = {}
        self._sessions: Engine | None = None
        self._hurried: Engine | None = None
        self._async: Any = None
        self._kept: Kept | None = None
        self._answers: Answers | None = None
        self._file: tuple[int, int] | None = None
        if self.name == "sqlite":
            self.memory = sqlite.is_memory(self.url)
            if not self.memory and self.url.database:
                folder = Path(self.url.database).expanduser().resolve().parent
                if not folder.is_dir():
                    raise InvalidArgument(
                        "database_url", f"the folder {folder} does not exist.", "Make it, or name another file."
                    )
            self.engine: Engine = sqlite.writer_engine(self.url, s.sqlite_synchronous, s.busy_timeout)
            self._writer = sqlite.GroupWriter(self.engine)
            self._reader = self.engine if self.memory else sqlite.reader_engine(self.url, s.busy_timeout)
            self._vital = self.engine
        else:
            self.memory = False
            from duly.storage import postgres  # the driver is loaded by those who use it

            mine: Any = {
                "prepare": self.prepares,
                "settings": own(pooled=not self.prepares),
                "place": self.place,
                "alone": True,
            }
            self._vital = postgres.make_engine(self.url, pool_size=VITAL, **mine)
            self._answers = postgres.Answers(self._vital)
            self.engine = postgres.make_engine(self.url, pool_size=max(2, s.pool_size - VITAL), **mine)
            self._reader = self.engine
            self._kept = postgres.Kept(self.engine)

    def _after_fork(self) -> None:
        # Connections must not be shared with the parent. They are forgotten, not closed: the parent still uses them.
        for engine in {self.engine, self._vital}:
            engine.dispose(close=False)
        self._pool = None
        self.bells, self.controls = Bells(), Bells()
        self._lock = threading.Lock()
        self._open()

    # ------------------------------------------------------------------ facts

    @property
    def prepares(self) -> bool:
        """May statements be prepared on the server?"""
        return self.settings.pooler != "transaction"

    @property
    def is_sqlite(self) -> bool:
        return self.name == "sqlite"

    @property
    def schema(self) -> str | None:
        """The schema of Duly's tables on PostgreSQL: as it is set, or where the first connection finds them. None elsewhere."""
        if self.is_sqlite or self.place is None:
            return None
        if self.place.schema is None:
            self.read(lambda connection: connection.exec_driver_sql("SELECT 1"))
        return self.place.schema

    @property
    def is_there(self) -> bool:
        """Is there a file? One that is not there, and one that is empty, would be made by opening it. True where there are no files."""
        if not self.is_sqlite or self.memory:
            return True
        file = Path(self.url.database or "").expanduser()
        return file.exists() and file.stat().st_size > 0

    def free_space(self) -> int | None:
        """Bytes that are free where the SQLite file lies; None where there is no file."""
        if not self.is_sqlite or self.memory:
            return None
        try:
            return shutil.disk_usage(Path(self.url.database or "").expanduser().resolve().parent).free
        except OSError:
            return 0

    def is_same_file(self) -> bool:
        """Does the path still lead to the SQLite file that it led to at the first of these calls? True where there are no files.

        One that was moved away or replaced by a copy goes on being written by those who have it open, and nobody else sees it.
        """
        if not self.is_sqlite or self.memory:
            return True
        try:
            found = Path(self.url.database or "").expanduser().stat()
            here = found.st_dev, found.st_ino
        except OSError:
            here = 0, 0
        self._file = self._file or here
        return self._file == here

    @property
    def shown_url(self) -> str:
        """The URL without its password, for people."""
        return shown(self.url)

    # ------------------------------------------------------------------ time

    def stamp(self) -> datetime | None:
        """The instant to hand to a statement: None lets PostgreSQL use its own clock."""
        return self.clock.now() if self.is_sqlite or self.clock.manual else None

    def now(self) -> ColumnElement[datetime]:
        """The present instant as an SQL expression, by the same rule."""
        stamp = self.stamp()
        return func.statement_timestamp(type_=Instant) if stamp is None else literal(stamp, Instant)

    def present(self, connection: Connection) -> datetime:
        """The present instant by the clock that statements compare with: one query on PostgreSQL, none elsewhere."""
        stamp = self.stamp()
        if stamp is not None:
            return stamp
        found: datetime = connection.execute(select(self.now())).scalar_one()
        return found

    # ------------------------------------------------------------------ transactions

    def write(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn(connection)`` in one write transaction; committed when this returns.

        On SQLite it may share the commit with writes that other threads of this process ask for at the same moment.
        Raises DatabaseUnavailable when the database does not answer.
        """
        self._look_at_loop()
        try:
            if self._writer is not None:
                return self._writer.run(fn) if self._hurrying is None else self._hurry(self._hurrying, fn)
            with self._pooled().begin() as connection:
                return fn(connection)
        except self._errors as error:
            raise self.translated(error) from error

    def once(self, fn: Callable[[Connection], T]) -> T:
        """As ``write``, for exactly one statement: PostgreSQL is spared BEGIN and COMMIT."""
        if self._writer is not None:
            return self.write(fn)
        self._look_at_loop()
        try:
            with self.auto.connect() as connection:
                return fn(connection)
        except self._errors as error:
            raise self.translated(error) from error

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Within, on this thread, a write that cannot have the lock of an SQLite file in a moment raises DatabaseBusy.

        For those who can come again and must not wait behind a handler's transaction. Elsewhere it changes nothing.
        """
        self._local.hurried = True
        try:
            yield
        finally:
            self._local.hurried = False

    @property
    def _hurrying(self) -> Engine | None:
        """The engine of the calling thread's writes, if it is in a hurry."""
        if self.memory or not getattr(self._local, "hurried", False):
            return None
        with self._lock:
            if self._hurried is None:
                self._hurried = sqlite.make_engine(
                    self.url, synchronous=self.settings.sqlite_synchronous, busy_timeout=HURRY, poolclass=QueuePool, pool_size=1,
                    connect_args={"check_same_thread": False},
                )  # fmt: skip
            return self._hurried

    @staticmethod
    def _hurry(engine: Engine, fn: Callable[[Connection], T]) -> T:
        with engine.begin() as connection:
            return fn(connection)

    def direct(self, fn: Callable[[PoolProxiedConnection], T]) -> T:
        """Run ``fn(pooled connection)`` in no transaction, for a ``postgres.Statement``. PostgreSQL only."""
        assert self._kept is not None
        self._look_at_loop()
        try:
            return self._kept.run(fn)
        except self._errors as error:
            raise self.translated(error) from error

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn(connection)`` in one transaction that only reads."""
        if self.memory:
            return self.write(fn)
        self._look_at_loop()
        try:
            with (self._reader if self.is_sqlite else self._pooled()).connect() as connection:
                return fn(connection)
        except self._errors as error:
            raise self.translated(error) from error

    def snapshot(self, fn: Callable[[Connection], T]) -> T:
        """The same for several looks that belong together: all of them see the database as it was at the first."""
        if self.is_sqlite:
            return self.read(fn)  # a transaction is one
        self._look_at_loop()
        try:
            with self._pooled().connect() as connection:
                return fn(connection.execution_options(isolation_level="REPEATABLE READ"))
        except self._errors as error:
            raise self.translated(error) from error

    def _look_at_loop(self) -> None:
        if self.on_loop is not None and _get_running_loop() is not None:
            self.on_loop()

    def reserve(self) -> None:
        """Give the calling thread its connections from the reserved pool: loops of a worker that must never wait for a
        connection behind handlers that hold theirs (a heartbeat that waits is a lost lease)."""
        self._local.vital = True

    def give_up(self, threads: Collection[str], seconds: float) -> list[str]:
        """End statements of these threads (by name, those that ``reserve``) that have had no answer for so many seconds.

        They raise DatabaseUnavailable. Returns the threads that were so ended. Nothing on SQLite, where nobody else answers.
        """
        return self._answers.give_up(threads, seconds) if self._answers is not None else []

    @property
    def auto(self) -> Engine:
        """The calling thread's engine, each statement a transaction of its own."""
        engine = self._pooled()
        found = self._autos.get(engine)
        if found is None:
            found = self._autos[engine] = engine.execution_options(isolation_level="AUTOCOMMIT")
        return found

    def _pooled(self) -> Engine:
        return self._vital if getattr(self._local, "vital", False) else self.engine

    async def arun(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a synchronous storage function on the pool, for callers on an event loop."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    max_workers=max(2, self.settings.pool_size - VITAL), thread_name_prefix="duly-storage"
                )
        return await asyncio.get_running_loop().run_in_executor(self._pool, fn, *args)

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        """What the database raises. Hot statements run on the driver itself, so its errors come beside wrapped ones."""
        driver: Any = self.engine.dialect.dbapi
        return exc.DBAPIError, driver.Error

    def translated(self, error: Exception) -> Exception:
        """A lost or unreachable database as DatabaseUnavailable, a collision with another transaction as DatabaseConflict;
        everything else as it came."""
        cause = getattr(error, "orig", None) or error
        # psycopg and asyncpg say `sqlstate`, psycopg2 `pgcode`
        if (getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)) in _CONFLICTS:
            return DatabaseConflict(
                f"a transaction in {self.shown_url} collided with another one and was rolled back: {brief(cause)}. Try it again."
            )
        if (getattr(cause, "sqlite_errorcode", 0) & 0xFF) == _SQLITE_BUSY:
            return DatabaseBusy(
                f"the database at {self.shown_url} does not take the write: it is locked, another transaction has been writing in the file all the while."
            )
        if getattr(cause, "sqlstate", None) == _READ_ONLY:
            return DatabaseUnavailable(f"the database at {self.shown_url} takes no writes: {brief(cause)}")
        if self._is_outage(error, cause):
            first = str(cause).strip().splitlines()
            return DatabaseUnavailable(
                f"the database at {self.shown_url} does not answer: {first[0] if first else error!r}"
            )
        return error

    def blames_values(self, error: Exception) -> bool:
        """Is something wrong with the values of a statement, so that another one would be taken, and this one never?"""
        if isinstance(error, DatabaseError):
            return False
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        return state is None or state[:2] in _ABOUT_VALUES

    def _is_outage(self, error: Exception, cause: Any) -> bool:
        if getattr(error, "connection_invalidated", False):
            return True
        if _is_sqlites(cause):
            return (getattr(cause, "sqlite_errorcode", 21) & 0xFF) not in _SQLITE_MISTAKES
        driver: Any = self.engine.dialect.dbapi
        return isinstance(
            error, exc.OperationalError | exc.InterfaceError | driver.OperationalError | driver.InterfaceError
        )

    # ------------------------------------------------------------------ sessions

    @property
    def session_engine(self) -> Engine:
        """An engine for sessions on this database: transactional handlers use it, and so may you."""
        if self.memory:
            raise InvalidArgument(
                "database_url", "an in-memory database has one connection, so it offers no sessions.", "Use a file."
            )
        with self._lock:
            if self._sessions is None:
                s = self.settings
                if not self.is_sqlite:
                    from duly.storage import postgres

                    # apart from the pool of storage, because handlers keep their connections while they run
                    self._sessions = postgres.make_engine(
                        self.url, pool_size=s.session_pool, prepare=self.prepares,
                        settings=SESSION if self.prepares else {"DateStyle": "ISO"}, place=self.place,
                    )  # fmt: skip
                    return self._sessions
                self._sessions = sqlite.make_engine(
                    self.url, synchronous=s.sqlite_synchronous, busy_timeout=s.busy_timeout, poolclass=QueuePool, pool_size=5,
                    connect_args={"check_same_thread": False},
                )  # fmt: skip
            return self._sessions

    @property
    def async_engine(self) -> Any:
        """The same for AsyncSession (an ``AsyncEngine``; needs ``duly[async]``)."""
        with self._lock:
            if self._async is None:
                s = self.settings
                if self.is_sqlite:
                    self._async = sqlite.make_async_engine(
                        self.url, synchronous=s.sqlite_synchronous, busy_timeout=s.busy_timeout
                    )
                else:
                    from duly.storage import postgres

                    self._async = postgres.make_async_engine(self.url, prepare=self.prepares, place=self.place)
            return self._async

    # ------------------------------------------------------------------ ids and wake-ups

    def next_ids(self, connection: Connection, table: str, count: int) -> list[int]:
        """Take ``count`` ids of ``table`` at once, in ascending order."""
        if self.is_sqlite:
            return list(sqlite.next_ids(connection, table, count))
        from duly.storage import postgres

        return postgres.next_ids(connection, table, count)

    def bell(self) -> Bell:
        """A new bell for a waiting loop; it also hears other processes on SQLite."""
        if self.is_sqlite and not self.memory:
            ear = sqlite.FileEar(self.url)
            bell = Bell(sqlite.LISTEN_STEP, ear.heard, ear.close, ear.any)
        else:
            bell = Bell()
        return self.bells.add(bell)

    def control_bell(self, watch: str) -> Bell:
        """A new bell for whoever obeys the controls. ``watch`` is a query of one row that differs when one was changed: a look at
        it tells of other processes on SQLite."""
        if self.is_sqlite and not self.memory:
            ear = sqlite.FileEar(self.url, watch)
            return self.controls.add(Bell(CONTROL_STEP, ear.heard, ear.close))
        return self.controls.add(Bell())

    def announce(self, connection: Connection) -> None:
        """Tell workers elsewhere, when this commits, that a control (gate, pause, limit, blackout) was changed."""
        if not self.is_sqlite and self.settings.notify:
            connection.execute(select(func.pg_notify(CONTROLS, "")))

    def listener(
        self, failed: Callable[[BaseException], None], recovered: Callable[[], None] = lambda: None
    ) -> Listener | None:
        """The thread that hears other processes on PostgreSQL; None where there is none (SQLite, a pooler)."""
        if self.is_sqlite or not self.prepares:
            return None
        from duly.storage import postgres

        def ring(channel: str) -> None:
            (self.controls if channel == CONTROLS else self.bells).ring()

        return postgres.Listener(self.url, ring, failed, recovered)

    # ------------------------------------------------------------------ end

    def close(self) -> None:
        """Close every connection. The object can be used again; it reconnects."""
        if self._writer is not None:
            self._writer.close()
        if self._kept is not None:
            self._kept.close()
        if self._reader is not self.engine:
            self._reader.dispose()
        for engine in (self._sessions, self._hurried):
            if engine is not None:
                engine.dispose()
        if self._async is not None:
            self._async.sync_engine.dispose(close=False)  # its connections belong to an event loop that may be gone
        self.engine.dispose()
        self._vital.dispose()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


#: PostgreSQL's codes for a transaction that was rolled back because of another one: a serialization failure, a deadlock.
_CONFLICTS = frozenset({"40001", "40P01"})
#: Parameters of libpq that are secrets, however they are written.
_SECRET = re.compile(r"password|scram_(client|server)_key|oauth_client_secret", re.IGNORECASE)
#: PostgreSQL's code for a write where there may be none: a standby, a server that protects its last space.
_READ_ONLY = "25006"
#: PostgreSQL's classes for data, constraints, raised exceptions (of somebody's trigger) and limits.
_ABOUT_VALUES = frozenset({"22", "23", "P0", "54"})
#: SQLite's code for a file that another transaction has locked.
_SQLITE_BUSY = 5
#: SQLite's codes for a statement that is wrong: trying again would not help.
_SQLITE_MISTAKES = frozenset({1, 18, 19, 20, 21, 25})


def _is_sqlites(error: Any) -> bool:
    """Is it an error of SQLite's driver? That is loaded by those who use it, and nobody else meets its errors."""
    driver: Any = sys.modules.get("sqlite3")
    return driver is not None and isinstance(error, driver.Error)


def parse_url(text: str) -> URL:
    """A database URL. Raises InvalidArgument for what Duly cannot use."""
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):  # ValueError: a port that is no number
        # what was written is not repeated: it may hold a password in a place where nobody can tell
        raise InvalidArgument(
            "database_url", "is not a URL.", "Write sqlite:///file.db or postgresql://user@host/name."
        ) from None
    backend = url.get_backend_name()
    if backend == "postgres":
        url = url.set(drivername="postgresql")
        backend = "postgresql"
    if backend not in ("sqlite", "postgresql"):
        raise InvalidArgument("database_url", f"{backend} is not supported.", "Use SQLite or PostgreSQL.")
    return url


def shown(url: URL) -> str:
    """A URL without its passwords, for people: the one before the host, and the secrets that libpq takes as parameters.

    What stands before an "@" in the host is the rest of a password in which one was not escaped.
    """
    hidden = {name: "***" for name in url.query if _SECRET.search(name)}
    host = (url.host or "").rpartition("@")[2] or url.host
    return url.set(host=host).update_query_dict(hidden).render_as_string(hide_password=True)

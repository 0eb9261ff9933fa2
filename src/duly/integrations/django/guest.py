"""Duly's statements on Django's own connection, in the transaction that the ORM has open there.

Django has one connection for each thread and alias, and ends its transactions itself. SQLAlchemy, in whose words Duly's statements
are written, wants a pool and ends the transactions it begins. So it is given a pool that hands out what Django has, and a connection
that cannot end anything: ``commit``, ``rollback`` and ``close`` do nothing. What is written there exists when, and only when, Django
commits; a savepoint of ``atomic`` that is rolled back takes it along.

Where Django has no transaction open (autocommit), the statements get one of their own, by ``atomic``; where it has no connection open,
the application does not come here. Errors of the database come out
as Django's (``django.db.OperationalError`` …), because the transaction is Django's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections, transaction
from django.utils.asyncio import async_unsafe
from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from duly.kernel.errors import SchemaMissing, UnsafeSession
from duly.storage import migrate
from duly.storage.locking import patiently
from duly.storage.qualified import bind
from duly.storage.session_settings import check_lent, found


class Lent:
    """A driver's connection that belongs to Django, as SQLAlchemy may use it."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        return self._driver.cursor(*args, **kwargs)

    def commit(self) -> None:
        """Django's to do."""

    rollback = close = commit


class LentPsycopg(Lent):
    """The same on PostgreSQL, where Django has its own ways of binding parameters and of reading instants."""

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        import psycopg
        from psycopg.types.datetime import TimestamptzLoader

        made: Any = psycopg.Cursor(self._driver, row_factory=psycopg.rows.tuple_row)
        # Django's loader puts its own zone in the place of the session's, or none
        made.adapters.register_loader("timestamptz", TimestamptzLoader)
        return made


class Guest:
    """Duly as a guest on Django's connections to one database."""

    def __init__(self, alias: str, schema: Callable[[], str]) -> None:
        #: ``schema``: that of Duly's tables as it is set; empty: where the search path finds them that Django's connection began with.
        self.alias, self._schema = alias, schema
        self._lock = threading.Lock()
        self._local = threading.local()
        self._engine: Engine | None = None
        #: Databases whose tables were looked at and found. Django's tests put another one in the place of the first.
        self._found: set[str] = set()

    def is_open(self) -> bool:
        """Has Django a connection here, or lost one within a block? Raises SynchronousOnlyOperation on an event loop."""
        _synchronous()
        wrapper: Any = connections[self.alias]
        return wrapper.connection is not None or wrapper.in_atomic_block or not wrapper.settings_dict["AUTOCOMMIT"]

    @contextlib.contextmanager
    def join(self, *, check: bool = True, write: bool = True) -> Iterator[Connection]:
        """A connection of SQLAlchemy in Django's transaction, or in one of its own where none is open (to ``write``).

        Raises SchemaMissing where Duly's tables are not there, UnsafeSession on SQLite with autocommit off, SynchronousOnlyOperation on
        an event loop, and what Django raises of its database.
        """
        wrapper: Any = connections[self.alias]
        _synchronous()
        own = wrapper.get_autocommit() and write
        if check and write:
            self._check_savepoints(wrapper)
        with transaction.atomic(using=self.alias) if own else contextlib.nullcontext():
            wrapper.validate_no_broken_transaction()
            with wrapper.wrap_database_errors:
                try:
                    with self._connect(wrapper) as connection:
                        if wrapper.vendor == "postgresql":
                            check_lent(connection)
                        if check:
                            self._check(connection, wrapper)
                        yield connection
                except DBAPIError as error:
                    if error.orig is None:
                        raise
                    raise error.orig from error

    def _connect(self, wrapper: Any) -> Connection:
        self._local.driver = wrapper.connection
        try:
            with self._lock:
                if self._engine is None:
                    self._engine = self._made(wrapper.vendor)
            return self._engine.connect()
        finally:
            del self._local.driver

    def _made(self, vendor: str) -> Engine:
        """An engine that opens nothing. Its dialect learns about the server from Django's connection."""
        url = make_url("sqlite://" if vendor == "sqlite" else "postgresql+psycopg://")
        kind: Any = url.get_dialect()
        dialect = kind(dbapi=kind.import_dbapi(), **({} if vendor == "sqlite" else {"use_native_hstore": False}))
        lent = Lent if vendor == "sqlite" else LentPsycopg
        pool = NullPool(lambda: lent(self._local.driver), reset_on_return=None, dialect=dialect)
        engine = Engine(pool, dialect, url, hide_parameters=True)
        with engine.connect() as connection:
            dialect.initialize(connection)
            if vendor == "postgresql":
                cursor = connection.connection.cursor()
                bind(dialect, self._schema() or found(cursor))
                cursor.close()
        return engine

    def _check_savepoints(self, wrapper: Any) -> None:
        # within ``atomic`` it is None too: there Django says BEGIN itself
        if wrapper.vendor == "sqlite" and wrapper.connection.isolation_level is not None:
            raise UnsafeSession(
                f"jobs are not written to the SQLite database {self.alias!r} while Django's autocommit is off: a savepoint of atomic() may be "
                'committed there by itself, and its jobs would stay when the rest is rolled back. Leave "AUTOCOMMIT" and '
                "transaction.set_autocommit() alone, and enqueue inside of transaction.atomic()."
            )

    def _check(self, connection: Connection, wrapper: Any) -> None:
        name = str(wrapper.settings_dict["NAME"])
        if name in self._found:
            return
        where = f"the database {self.alias!r}"
        revision = migrate.current(connection)
        if revision is None or revision < migrate.HEAD:
            there = (
                "are not in"
                if revision is None
                else f"are at revision {revision}, and this version needs {migrate.HEAD}, in"
            )
            raise SchemaMissing(f"the tables of Duly {there} {where}. Run `manage.py migrate`.")
        migrate.check(connection, where)
        self._found.add(name)

    def migrate(self) -> tuple[str | None, str]:
        """Bring Duly's tables to the revision of this code, in one transaction of Django's connection. Returns (before, after).

        Where somebody holds a table it lets go of everything and tries again, and raises DatabaseBusy naming them in the end. Within a
        transaction of the caller's, the first try is the last one. An SQLite file is put in WAL mode, as Duly's own connections would do at the next moment at which nobody uses it.
        """
        wrapper: Any = connections[self.alias]
        if wrapper.vendor == "sqlite" and not wrapper.is_in_memory_db() and wrapper.get_autocommit():
            with wrapper.cursor() as cursor:
                cursor.execute("PRAGMA journal_mode=WAL")
        if wrapper.vendor != "postgresql" or not wrapper.get_autocommit():
            return self._migrate()
        return patiently(self._migrate, self._in_the_way)

    def _migrate(self) -> tuple[str | None, str]:
        with transaction.atomic(using=self.alias), self.join(check=False) as connection:
            return migrate.migrate_in(connection, f"the database {self.alias!r}")

    def _in_the_way(self, asked: str | None) -> str:
        with self.join(check=False) as connection:
            return migrate.in_the_way(connection, asked)


def _nothing() -> None:
    pass


#: Raises where Django would refuse a query: on the thread of an event loop.
_synchronous: Callable[[], None] = async_unsafe(
    "Jobs in Django's database are not enqueued on an event loop. Use `await task.aenqueue(…)`, or sync_to_async()."
)(_nothing)

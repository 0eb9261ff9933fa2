"""Where the outbox lives: Duly's own database, or anybody else's.

An application brings its database along. A URL or an engine may name any database: the relay then opens it as Duly opens
its own. A pooled PostgreSQL engine is used as it is, so that whatever it was made with (a proxy, certificates, a search
path, tokens that are fetched for each connection) holds for the relay too. SQLite is always opened anew, because an
engine that was not made for it starts its transactions in a way that two writers do not survive.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, MetaData, Pool, Table, exc, inspect, text

from duly.kernel.clock import Clock
from duly.kernel.errors import DatabaseUnavailable, InvalidArgument, SchemaMissing
from duly.kernel.events import PROCESS, Emitter
from duly.outbox.tables import outbox, outbox_table
from duly.settings import Settings
from duly.storage import sqlite
from duly.storage.database import Database, shown
from duly.storage.identity import identity
from duly.storage.migrate import VERSION_TABLE
from duly.storage.schema import metadata


class Application(Protocol):
    """What the outbox needs of a Duly application."""

    db: Database
    events: Emitter

    def open(self) -> None: ...


class _Guest(Database):
    """A PostgreSQL that is reached through somebody else's engine."""

    def __init__(self, engine: Engine, settings: Settings, clock: Clock | None) -> None:
        self._given = engine
        super().__init__(settings, clock)

    def _open(self) -> None:
        self.memory = False
        self._writer, self._kept, self._sessions, self._async = None, None, None, None
        self._autos = {}
        # whatever its sessions use: a claim reads again, under its locks, what it had read before them
        self.engine = self._vital = self._reader = self._given.execution_options(isolation_level="READ COMMITTED")

    def close(self) -> None:
        """The engine is its owner's to close."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


class Home:
    """A database, the outbox's table in it, and who hears what happens."""

    def __init__(self, place: Application | Engine | str, table: str, schema: str | None, clock: Clock | None) -> None:
        self.app: Application | None = None
        self.events: Emitter = PROCESS
        self.table = outbox if (table, schema) == (outbox.name, None) else _table(table, schema)
        if isinstance(place, str):
            self.db = Database(Settings.load(database_url=place), clock)
        elif isinstance(getattr(place, "db", None), Database):
            self.app, self.db, self.events = place, place.db, place.events  # type: ignore[union-attr, assignment]
            if clock is not None and clock is not self.db.clock:
                raise InvalidArgument("clock", "is given beside an application, which has its own.", "Leave it out.")
        else:
            self.db = _from_engine(place, clock)
        self._checked = False
        #: Whose connections were looked at: they are on this database, or nobody can tell.
        self._known: weakref.WeakSet[Pool] = weakref.WeakSet()
        #: Is the database Duly's own, so that there is an audit trail?
        self.audited = self.app is not None

    @property
    def is_own(self) -> bool:
        """The table belongs to Duly's schema, so migrations make it."""
        return self.app is not None and self.table is outbox

    def check(self, connection: Connection) -> None:
        """Raise InvalidArgument for a connection to another database, as far as that can be told; once for each pool."""
        pool = connection.engine.pool
        if pool in self._known:
            return
        if connection.dialect.name != self.db.name:
            raise InvalidArgument(
                "session",
                f"is on {connection.dialect.name}, the outbox on {self.db.name}.",
                "Give a session of its database.",
            )
        if not self._same_address(connection.engine):
            theirs, mine = identity(connection), self._identity()
            if theirs is not None and mine is not None and not theirs & mine:
                raise InvalidArgument(
                    "session",
                    f"is on another database ({shown(connection.engine.url)}) than the outbox ({self.db.shown_url}): "
                    "no relay would find the message.",
                    "Give a session of the outbox's database.",
                )
        self._known.add(pool)

    def _same_address(self, engine: Engine) -> bool:
        """Is it one of the engines here, or as good as one? In-memory databases have nothing to be told apart by."""
        if self.db.memory or engine.pool is self.db.engine.pool:
            return True
        url = engine.url
        return bool(url.host and url.database) and (url.host, url.port, url.database) == (
            self.db.url.host,
            self.db.url.port,
            self.db.url.database,
        )

    def _identity(self) -> frozenset[Hashable] | None:
        if not self.db.is_there:
            return None  # asking would make it
        try:
            return self.db.read(identity)
        except (DatabaseUnavailable, exc.SQLAlchemyError):
            return None  # only those who relay need to reach it from here

    def open(self) -> None:
        """Check once that the table is there. Raises SchemaMissing saying how it is made."""
        if self._checked:
            return
        if self.app is not None:
            self.app.open()

        def look(connection: Connection) -> tuple[bool, bool]:
            there = inspect(connection)
            return there.has_table(self.table.name, schema=self.table.schema), there.has_table(VERSION_TABLE)

        found, audited = self.db.read(look) if self.db.is_there else (False, False)  # a look would make the file
        if not found:
            raise SchemaMissing(
                f"there is no table {self.table.fullname} in {self.db.shown_url}. "
                "Call outbox.create_table(), or run the statements of `duly outbox sql`."
            )
        self.audited, self._checked = audited, True

    def create_table(self) -> bool:
        """Make the table unless it is there. Returns whether it was made. Safe to call from several places at once."""

        def make(connection: Connection) -> bool:
            if not self.db.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('duly outbox'))"))
            if inspect(connection).has_table(self.table.name, schema=self.table.schema):
                return False
            self.table.create(connection)
            return True

        return self.db.write(make)

    def close(self) -> None:
        """Close what was opened here; an application's database and an engine are their owners' to close."""
        if self.app is None:
            self.db.close()


def _table(name: str, schema: str | None) -> Table:
    for field, value in (("table", name), ("schema", schema)):
        if value is not None and not (
            isinstance(value, str) and value.isascii() and value.isidentifier() and len(value) <= 40
        ):
            raise InvalidArgument(field, f"is {value!r}.", "Use letters, digits and '_', at most 40.")
    return outbox_table(name, MetaData(naming_convention=metadata.naming_convention), schema)


def _from_engine(place: Any, clock: Clock | None) -> Database:
    engine = getattr(place, "sync_engine", place)
    if not isinstance(engine, Engine):
        raise InvalidArgument(
            "outbox",
            f"is given a {type(place).__name__}.",
            "Give a Duly application, an engine of SQLAlchemy, or a URL.",
        )
    url = engine.url
    backend = url.get_backend_name()
    if backend == "sqlite" and sqlite.is_memory(url):
        raise InvalidArgument("outbox", "is given an in-memory database, which others cannot open.", "Use a file.")
    if backend in ("sqlite", "postgresql"):
        url = url.set(drivername=backend)
    settings = Settings.load(database_url=url.render_as_string(hide_password=False))
    db = Database(settings, clock) if backend != "postgresql" or engine.dialect.is_async else None
    return db if db is not None else _Guest(engine, settings, clock)

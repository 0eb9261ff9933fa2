"""A database that is not Duly's own, and a table of Duly's in it.

Whoever owns it gives its URL or its engine. A URL is opened as Duly opens its own database. A pooled PostgreSQL engine is used as
it is, so that whatever it was made with (a proxy, certificates, a search path, tokens that are fetched for each connection)
holds here too. SQLite is always opened anew, because an engine that was not made for it starts its transactions in a way
that two writers do not survive.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, Table, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from duly.kernel.clock import Clock
from duly.kernel.errors import InvalidArgument, SchemaMissing
from duly.settings import Settings
from duly.storage import sqlite
from duly.storage.database import Database
from duly.storage.qualified import schema_of
from duly.storage.schema import complete, metadata


class Guest(Database):
    """A PostgreSQL that is reached through somebody else's engine."""

    def __init__(self, engine: Engine, settings: Settings, clock: Clock | None) -> None:
        self._given = engine
        super().__init__(settings, clock, own=False)

    def _open(self) -> None:
        self.memory = False
        self._writer, self._kept, self._sessions, self._async = None, None, None, None
        self._autos = {}
        # made of the engine itself: of two levels that are put on each other, the inner one counts
        self._auto = self._given.execution_options(isolation_level="AUTOCOMMIT")
        # whatever its sessions use: a claim reads again, under its locks, what it had read before them
        self.engine = self._vital = self._reader = self._given.execution_options(isolation_level="READ COMMITTED")

    @property
    def auto(self) -> Engine:
        return self._auto

    def close(self) -> None:
        """The engine is its owner's to close."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


def database_of(place: Engine | str | Any, clock: Clock | None, field: str) -> Database:
    """The database behind a URL, an Engine or an AsyncEngine. Raises InvalidArgument naming ``field``."""
    if isinstance(place, str):
        return Database(Settings.load(database_url=place), clock, own=False)
    engine = getattr(place, "sync_engine", place)
    if not isinstance(engine, Engine):
        raise InvalidArgument(
            field,
            f"is given a {type(place).__name__}.",
            "Give a Duly application, an engine of SQLAlchemy, or a URL.",
        )
    url = engine.url
    backend = url.get_backend_name()
    if backend == "sqlite" and sqlite.is_memory(url):
        raise InvalidArgument(field, "is given an in-memory database, which others cannot open.", "Use a file.")
    if backend in ("sqlite", "postgresql"):
        url = url.set(drivername=backend)
    settings = Settings.load(database_url=url.render_as_string(hide_password=False))
    if backend == "postgresql" and not engine.dialect.is_async:
        return Guest(engine, settings, clock)
    return Database(settings, clock, own=False)


def check_table(db: Database, table: Table, remedy: str) -> None:
    """Raise SchemaMissing unless the table is there with all its columns. ``remedy``: how it is made. No file is made by looking."""

    def look(connection: Connection) -> set[str] | None:
        there = inspect(connection)
        schema = _schema(connection, table)
        if not there.has_table(table.name, schema=schema):
            return None
        return {column["name"] for column in there.get_columns(table.name, schema=schema)}

    found = db.read(look) if db.is_there else None
    if found is None:
        raise SchemaMissing(f"there is no table {table.fullname} in {db.shown_url}. {remedy}")
    missing = sorted({column.name for column in table.columns} - found)
    if missing:
        raise SchemaMissing(
            f"the table {table.fullname} in {db.shown_url} has no {' and no '.join(missing)}: an older version of Duly made it, or "
            f"another program. Add what is missing, or give it another name. {remedy}"
        )


def _schema(connection: Connection, table: Table) -> str | None:
    return schema_of(connection.dialect) if table.metadata is metadata else table.schema


def make_table(db: Database, table: Table) -> bool:
    """Make the table and its indexes unless it is there. Returns whether it was made. Safe to call from several places at once."""

    def make(connection: Connection) -> bool:
        if not db.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('duly table'))"))
        if inspect(connection).has_table(table.name, schema=_schema(connection, table)):
            return False
        complete(table).create(connection)
        return True

    return db.write(make)


def table_sql(table: Table, dialect: str) -> str:
    """``CREATE TABLE`` and ``CREATE INDEX`` as text. ``dialect``: sqlite or postgresql."""
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite as module
    elif dialect == "postgresql":
        from sqlalchemy.dialects import postgresql as module  # type: ignore[no-redef]
    else:
        raise InvalidArgument("dialect", f"is {dialect!r}.", "Use 'sqlite' or 'postgresql'.")
    statements: list[Any] = [CreateTable(complete(table), if_not_exists=True)]
    statements += [CreateIndex(i, if_not_exists=True) for i in sorted(table.indexes, key=lambda i: str(i.name))]
    spoken = module.dialect()
    said = "".join(f"{str(s.compile(dialect=spoken)).strip()};\n" for s in statements)
    return "".join(f"{line.rstrip().expandtabs(4)}\n" for line in said.splitlines() if line.strip())

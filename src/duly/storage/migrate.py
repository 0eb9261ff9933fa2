"""Migrations: making the tables, and refusing a database this code does not understand.

Revisions are numbered texts ("0001"). The database remembers its revision and, beside it, the oldest revision whose code
may still run on it (``works_with``). Migrations are additive, so during a rolling deploy the old version keeps working
on the new schema; a database that has moved on too far is refused in words. An embedded (SQLite) database migrates
itself when it is opened; a PostgreSQL is migrated by ``duly migrate``, once, before the new version starts.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, inspect

from duly.kernel.errors import SchemaMissing, SchemaTooNew
from duly.settings import Settings
from duly.storage.database import Database
from duly.storage.qualified import VERSION_TABLE, quoted, schema_of, text
from duly.storage.schema import complete, metadata
from duly.storage.session_settings import check_encoding, encoding

#: Alembic keeps the migration that is running in a global of its module: one at a time in a program.
_alembic = threading.Lock()
#: The revision this code was written for. A test holds it against the newest migration.
HEAD = "0018"
#: The row of system_state that holds the oldest revision whose code may run.
WORKS_WITH_KEY = "schema_works_with"


def all_metadata() -> MetaData:
    """The tables of every room (they register themselves when imported)."""
    from importlib import import_module

    for module in (
        "duly.accounts.tables",
        "duly.audit.tables",
        "duly.automations.tables",
        "duly.calendars.tables",
        "duly.jobs.tables",
        "duly.idempotency.tables",
        "duly.mail.tables",
        "duly.outbox.tables",
        "duly.publishing.tables",
        "duly.rounds.tables",
        "duly.schedules.tables",
        "duly.workflows.tables",
        "duly.monitoring.alerts.tables",
    ):
        import_module(module)
    for table in metadata.tables.values():
        complete(table)
    return metadata


def tables(connection: Connection) -> list[str]:
    """Duly's tables that are there, as PostgreSQL reads their names."""
    schema = schema_of(connection.dialect)
    names = inspect(connection).get_table_names(schema)
    before = f"{quoted(schema)}." if schema else ""
    return [f"{before}{name}" for name in names if name in all_metadata().tables or name == VERSION_TABLE]


def _config(**attributes: Any) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(attributes)
    return config


def current(connection: Connection) -> str | None:
    """The database's revision, None when Duly's tables are not there."""
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema_of(connection.dialect)):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return revision


def check(connection: Connection, where: str) -> None:
    """Raise SchemaMissing, SchemaTooNew or UnsuitableDatabase unless this code may run on the database."""
    check_encoding(encoding(connection), where)
    revision = current(connection)
    if revision is None:
        raise SchemaMissing(f"the tables of Duly are not in {where}. Run `duly migrate` first.")
    if revision < HEAD:
        raise SchemaMissing(f"{where} is at revision {revision}, this version needs {HEAD}. Run `duly migrate`.")
    if revision > HEAD:
        oldest = connection.execute(
            text("SELECT value FROM system_state WHERE key = :k"), {"k": WORKS_WITH_KEY}
        ).scalar()
        if oldest is None or str(oldest) > HEAD:
            raise SchemaTooNew(
                f"{where} was migrated to revision {revision} by a newer Duly; this one knows {HEAD} and cannot work beside it. "
                "Upgrade this program."
            )


def migrate(db: Database) -> tuple[str | None, str]:
    """Bring the database to HEAD. Returns (revision before, revision after). Safe to run from several places at once.

    Raises SchemaTooNew as ``check`` does.
    """
    return db.write(lambda connection: migrate_in(connection, db.shown_url))


def migrate_in(connection: Connection, where: str) -> tuple[str | None, str]:
    """The same in the transaction of a connection, which must not be one that begins deferred (SQLite)."""
    from alembic import command

    check_encoding(encoding(connection), where)
    if connection.dialect.name != "sqlite":
        # One migration at a time; the lock goes with the transaction.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('duly migrate'))"))
    before = current(connection)
    if before is not None and before >= HEAD:
        check(connection, where)
        return before, before
    with _alembic:
        command.upgrade(_config(connection=connection), "head")
    return before, HEAD


def upgrade(url: str) -> None:
    """Migrate the database at ``url``."""
    db = Database(Settings.load(database_url=url))
    try:
        migrate(db)
    finally:
        db.close()


def require(db: Database) -> None:
    """Raise SchemaMissing where Duly's tables are not there at all; make and migrate nothing."""
    with _named(db):
        if db.is_sqlite and not db.is_there:
            raise SchemaMissing(
                f"there is no database at {db.shown_url}. Name another one, or make it with `duly migrate`."
            )
        if not db.memory and db.read(current) is None:
            raise SchemaMissing(f"the tables of Duly are not in {db.shown_url}. Run `duly migrate` first.")


@contextmanager
def _named(db: Database) -> Iterator[None]:
    """Within: SchemaMissing has the database on it. A program may stop there while it is imported, and is then asked which one it meant."""
    try:
        yield
    except SchemaMissing as error:
        error.database = db
        raise


def ensure(db: Database) -> None:
    """Check the schema; on an embedded database, make or upgrade it."""
    if db.is_sqlite and not db.read(lambda c: (current(c) or "") >= HEAD):
        migrate(db)
    with _named(db):
        db.read(lambda c: check(c, db.shown_url))


def sql(dialect: str) -> str:
    """Every statement of a fresh install as SQL text, for people who migrate by hand."""
    from alembic import command

    buffer = io.StringIO()
    with redirect_stdout(buffer):
        config = _config(dialect=dialect)
        config.output_buffer = buffer
        command.upgrade(config, "head", sql=True)
    return buffer.getvalue()

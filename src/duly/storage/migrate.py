"""Migrations: making the tables, and refusing a database this code does not understand.

Revisions are numbered texts ("0001"). The database remembers its revision and, beside it, the oldest revision whose code
may still run on it (``works_with``). Migrations are additive, so during a rolling deploy the old version keeps working
on the new schema; a database that has moved on too far is refused in words. An embedded (SQLite) database migrates
itself when it is opened; a PostgreSQL is migrated by ``duly migrate``, once, before the new version starts.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, inspect

from duly.kernel.errors import SchemaMissing, SchemaTooNew
from duly.kernel.events import PROCESS
from duly.settings import Settings
from duly.storage.collation import Left, analyse, build, collate, is_large, left
from duly.storage.database import Database
from duly.storage.locking import bounded, holder, patiently
from duly.storage.qualified import VERSION_TABLE, quoted, schema_of, text
from duly.storage.schema import byte_columns, complete, metadata
from duly.storage.session_settings import check_encoding, encoding

#: Alembic keeps the migration that is running in a global of its module: one at a time in a program.
_alembic = threading.Lock()
#: The revision this code was written for. A test holds it against the newest migration.
HEAD = "0022"
#: The row of system_state that holds the oldest revision whose code may run.
WORKS_WITH_KEY = "schema_works_with"
_IN_SCHEMA = text("SELECT set_config('search_path', :path, true)")


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
    return [f"{before}{name}" for name in names if name in all_metadata().tables]


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

    On PostgreSQL each revision, and after them each table, is a transaction of its own with short waits for locks: see ``locking``. One that
    cannot have its locks is rolled back as a whole; what was done before it stays, and the next call goes on there.

    Raises SchemaTooNew and UnsuitableDatabase as ``check`` does, DatabaseBusy where somebody holds a table.
    """
    if db.is_sqlite:
        return db.write(lambda connection: migrate_in(connection, db.shown_url))
    db.read(lambda connection: check_encoding(encoding(connection), db.shown_url))
    return db.write(lambda guard: _guarded(db, guard))


def _guarded(db: Database, guard: Connection) -> tuple[str | None, str]:
    """All steps, while the transaction of another connection holds the lock that two migrations wait for each other by."""
    guard.execute(text("SELECT set_config('idle_in_transaction_session_timeout', '0', true)"))
    guard.execute(text("SELECT pg_advisory_xact_lock(hashtext('duly migrate'))"))

    def blocker(asked: str | None) -> str:
        return db.read(partial(in_the_way, asked=asked))

    before = db.read(current)
    if before is None:
        patiently(lambda: db.write(_make_schema), blocker)
    if before is not None and before >= HEAD:
        db.read(lambda connection: check(connection, db.shown_url))
    for revision in _pending(before):

        def step(connection: Connection, to: str = revision) -> None:
            with bounded(connection):
                _upgrade(connection, to)

        patiently(partial(db.write, step), blocker)
    for one in db.read(_left):
        if db.read(partial(is_large, one=one)):
            patiently(partial(_alone, db, build, one), blocker)

        def change(connection: Connection, table: Left = one) -> bool:
            with bounded(connection):
                return collate(connection, table)

        if patiently(partial(db.write, change), blocker):
            _alone(db, analyse, one)
        else:
            PROCESS.emit("collation_kept", "warning", table=one.table, columns=list(one.columns))
    return before, max(before or HEAD, HEAD)


def _alone(db: Database, act: Callable[[Connection, Left], None], one: Left) -> None:
    """Something that PostgreSQL does in no transaction."""
    with db.auto.connect() as connection:
        act(connection, one)


def _left(connection: Connection) -> list[Left]:
    schema = schema_of(connection.dialect)
    return left(connection, schema, tables(connection)) if schema else []


def _make_schema(connection: Connection) -> None:
    schema = schema_of(connection.dialect)
    there = connection.execute(text("SELECT 1 FROM pg_namespace WHERE nspname = :name"), {"name": schema}).first()
    if schema is not None and there is None:
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")


def _pending(before: str | None) -> list[str]:
    """The revisions that a database of this one lacks, oldest first."""
    from alembic.script import ScriptDirectory

    every = [revision.revision for revision in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]
    return [revision for revision in every if before is None or revision > before]


def _upgrade(connection: Connection, to: str) -> None:
    """Run revisions on a connection, in its transaction, in the schema of Duly's tables."""
    from alembic import command

    schema, path = schema_of(connection.dialect), None
    if schema is not None:
        path = connection.execute(text("SELECT current_setting('search_path')")).scalar_one()
        connection.execute(_IN_SCHEMA, {"path": quoted(schema)})
    with _alembic:
        command.upgrade(_config(connection=connection), to)
    if path is not None:
        connection.execute(_IN_SCHEMA, {"path": path})


def in_the_way(connection: Connection, asked: str | None) -> str:
    """Who holds a lock on a table of Duly's, in a sentence."""
    return holder(connection, tables(connection), asked)


def migrate_in(connection: Connection, where: str) -> tuple[str | None, str]:
    """The same in one transaction of somebody's connection, which must not be one that begins deferred (SQLite)."""
    check_encoding(encoding(connection), where)
    server = connection.dialect.name != "sqlite"
    if server:
        # One migration at a time; the lock goes with the transaction.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('duly migrate'))"))
    before = current(connection)
    if before is not None and before >= HEAD:
        check(connection, where)
        return before, before
    with bounded(connection) if server else nullcontext():
        if server:
            _make_schema(connection)
        _upgrade(connection, "head")
        for one in _left(connection) if server else ():
            collate(connection, one)
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


def sql(dialect: str, schema: str = "") -> str:
    """Every statement of a fresh install as SQL text, for people who migrate by hand. ``schema``: that of the tables on PostgreSQL."""
    from alembic import command

    buffer = io.StringIO()
    with redirect_stdout(buffer):
        config = _config(dialect=dialect)
        config.output_buffer = buffer
        command.upgrade(config, "head", sql=True)
    if dialect == "sqlite":
        return buffer.getvalue()
    made = buffer.getvalue()
    begin = (
        f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};\n\nSET search_path TO {quoted(schema)};\n\n" if schema else ""
    )
    # views are in the way of a change of their columns
    views = re.findall(r"^CREATE VIEW (\w+) .*?;$", made, re.MULTILINE | re.DOTALL)
    again = re.findall(r"^(CREATE VIEW \w+ .*?;)$", made, re.MULTILINE | re.DOTALL)
    end = [*(f"DROP VIEW {name};" for name in views), *_collating(), *again]
    return begin + made + "".join(f"{statement}\n\n" for statement in end)


def _collating() -> Iterator[str]:
    """The same as ``collate``, as text, for tables that are empty."""
    for table in all_metadata().sorted_tables:
        if names := byte_columns(table):
            changes = [f'ALTER COLUMN {name} TYPE text COLLATE pg_catalog."C"' for name in names]
            yield f"ALTER TABLE {table.name} {', '.join(changes)};"

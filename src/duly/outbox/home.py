"""Where the outbox lives: Duly's own database, or anybody else's.

An application brings its database along. A URL or an engine may name any database (``storage.guest``).
"""

from __future__ import annotations

import weakref
from typing import Protocol

from sqlalchemy import Connection, Engine, MetaData, Pool, Table, inspect

from duly.kernel.clock import Clock
from duly.kernel.errors import InvalidArgument
from duly.kernel.events import PROCESS, Emitter
from duly.outbox.tables import outbox, outbox_table
from duly.storage.database import Database, shown
from duly.storage.guest import check_table, database_of, make_table
from duly.storage.identity import is_same
from duly.storage.qualified import VERSION_TABLE, schema_of
from duly.storage.schema import metadata


class Application(Protocol):
    """What the outbox needs of a Duly application."""

    db: Database
    events: Emitter

    def open(self) -> None: ...


class Home:
    """A database, the outbox's table in it, and who hears what happens."""

    def __init__(self, place: Application | Engine | str, table: str, schema: str | None, clock: Clock | None) -> None:
        self.app: Application | None = None
        self.events: Emitter = PROCESS
        self.table = outbox if (table, schema) == (outbox.name, None) else _table(table, schema)
        if isinstance(getattr(place, "db", None), Database):
            self.app, self.db, self.events = place, place.db, place.events  # type: ignore[union-attr, assignment]
            if clock is not None and clock is not self.db.clock:
                raise InvalidArgument("clock", "is given beside an application, which has its own.", "Leave it out.")
        else:
            self.db = database_of(place, clock, "outbox")
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
        if is_same(connection, self.db) is False:
            raise InvalidArgument(
                "session",
                f"is on another database ({shown(connection.engine.url)}) than the outbox ({self.db.shown_url}): "
                "no relay would find the message.",
                "Give a session of the outbox's database.",
            )
        self._known.add(pool)

    def open(self) -> None:
        """Check once that the table is there. Raises SchemaMissing saying how it is made."""
        if self._checked:
            return
        if self.app is not None:
            self.app.open()

        check_table(self.db, self.table, "Call outbox.create_table(), or run the statements of `duly outbox sql`.")
        audited = self.db.read(lambda c: inspect(c).has_table(VERSION_TABLE, schema=schema_of(c.dialect)))
        self.audited, self._checked = audited, True

    def create_table(self) -> bool:
        """Make the table unless it is there. Returns whether it was made. Safe to call from several places at once."""
        return make_table(self.db, self.table)

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

"""Reservations in the database: the default, and the one for what must not be done twice (T004-h: nothing evicts a row)."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Pool,
    and_,
    delete,
    func,
    literal,
    select,
    tuple_,
    update,
)

from duly.idempotency.reservation import Reservation, State
from duly.idempotency.store import KeyFilter, Store, StoreBusy, unknown_cursor
from duly.idempotency.tables import idempotency as t
from duly.kernel.clock import Clock
from duly.kernel.errors import DatabaseBusy, DatabaseUnavailable, StoreUnavailable
from duly.kernel.payload import check_text
from duly.storage import sqlite as files
from duly.storage.database import Database
from duly.storage.guest import check_table, database_of, make_table, table_sql
from duly.storage.identity import is_same
from duly.storage.lent import lend
from duly.storage.rows import insert_into
from duly.storage.types import Encoded, Instant

#: Rows forgotten in one transaction.
PRUNED = 5_000
#: Seconds between the times at which a store in somebody else's database forgets old rows.
PRUNE_EVERY = 60.0


class SqlStore(Store):
    """Reservations in the table ``idempotency``. Its clock is the database's rule: PostgreSQL's own, else this process's.

    ``place``: the database of a Duly application (``app.reservations`` is that), or an engine of SQLAlchemy or a URL for one
    that is not Duly's: ``create_table`` makes the table there. ``clock``: for tests.

    Raises InvalidArgument for what is no database, SchemaMissing at the first call where the table is not there or lacks
    columns.
    """

    def __init__(self, place: Database | Engine | str, clock: Clock | None = None) -> None:
        #: Somebody else's database: nobody has checked it, and no worker of Duly's forgets old rows there.
        self._guest = not isinstance(place, Database)
        self.db = place if isinstance(place, Database) else database_of(place, clock, "store")
        self._checked, self._prune_due = not self._guest, 0.0
        #: Whose connections lead to this database, as far as was asked.
        self._known: weakref.WeakKeyDictionary[Pool, bool] = weakref.WeakKeyDictionary()
        insert = insert_into(self.db.is_sqlite)
        self._insert = insert(t).on_conflict_do_nothing().returning(t.c.token)

    # ------------------------------------------------------------------ the table

    def create_table(self) -> bool:
        """Make the table unless it is there. Returns whether it was made. Safe to call from several places at once."""
        return make_table(self.db, t)

    def sql(self, dialect: str | None = None) -> str:
        """The statements that make the table, for people who migrate by hand. ``dialect``: sqlite or postgresql."""
        return table_sql(t, dialect or self.db.name)

    def open(self) -> None:
        """Check once that the table is there. Raises SchemaMissing saying how it is made."""
        if not self._checked:
            check_table(self.db, t, "Call store.create_table(), or run the statements of store.sql().")
            self._checked = True

    def close(self) -> None:
        """Close what was opened here; an application's database and an engine are their owners' to close."""
        if self._guest:
            self.db.close()

    # ------------------------------------------------------------------ somebody else's transaction

    def shares(self, connection: Connection) -> bool:
        """Does a connection lead to this database, so that a reservation can be part of its transaction? Asked once for each pool."""
        pool = connection.engine.pool
        if pool not in self._known:
            self._known[pool] = bool(is_same(connection, self.db))
            if self._known[pool] and not self._guest:
                lend(connection, self.db)
        return self._known[pool]

    def within(self, connection: Connection) -> SqlStore:
        """The same reservations, read and written in the transaction of ``connection``. Errors of the database come as they are."""
        return _Within(self, connection)

    def would_wait_for_caller(self, blocking: bool) -> bool:
        return self.db.is_sqlite and not self.db.memory and files.waits_for_itself(self.db.url, blocking)

    def hurried(self) -> contextlib.AbstractContextManager[None]:
        return self.db.hurried()

    # ------------------------------------------------------------------ reservations

    def read(self, tenant: str, key: str) -> tuple[Reservation | None, datetime]:
        stamp = self.db.stamp()
        if self.db.is_sqlite:
            query = select(t).where(t.c.tenant == tenant, t.c.key == key)
            assert stamp is not None
            return _of(self._reading(lambda c: c.execute(query).first())), stamp
        now = func.statement_timestamp(type_=Instant) if stamp is None else literal(stamp, Instant)
        asked = select(now.label("now")).subquery()
        wanted = and_(t.c.tenant == tenant, t.c.key == key)
        both = select(asked.c.now.label("now"), t).select_from(asked.outerjoin(t, wanted))
        row = self._reading(lambda c: c.execute(both).one())
        return (None if row.key is None else _of(row)), row.now

    def instant(self, start: datetime, elapsed: float) -> datetime:
        return self.db.clock.now() if self.db.clock.manual else super().instant(start, elapsed)

    def insert(self, new: Reservation) -> bool:
        if self._guest and time.monotonic() >= self._prune_due:
            self._prune_due = time.monotonic() + PRUNE_EVERY
            self.prune()
        written: bool = self._asked(self.db.once, lambda c: c.execute(self._insert, _values(new)).first() is not None)
        return written

    def replace(self, old: Reservation, new: Reservation | None) -> bool:
        written: bool = self._asked(self.db.once, lambda c: c.execute(_change(old, new)).rowcount == 1)
        return written

    def replace_many(self, pairs: Sequence[tuple[Reservation, Reservation]]) -> list[bool]:
        # in one order everywhere, so that two processes that renew at once do not wait for each other in a circle
        order = sorted(range(len(pairs)), key=lambda i: (pairs[i][0].tenant, pairs[i][0].key))

        def run(connection: Connection) -> dict[int, bool]:
            return {i: connection.execute(_change(*pairs[i])).rowcount == 1 for i in order}

        written: dict[int, bool] = self._asked(self.db.write, run)
        return [written[i] for i in range(len(pairs))]

    def find(self, wanted: KeyFilter, limit: int, cursor: str | None = None) -> tuple[list[Reservation], str | None]:
        now = self.db.stamp() or self._reading(lambda c: self.db.present(c))
        query = select(t).where(t.c.kept_until > now).order_by(t.c.tenant, t.c.key).limit(limit + 1)
        for column, value in ((t.c.tenant, wanted.tenant), (t.c.task, wanted.task), (t.c.state, wanted.state)):
            if value is not None:
                query = query.where(column == str(value))
        if wanted.older_than is not None:
            query = query.where(t.c.seen_at <= now - wanted.older_than)
        if cursor is not None:
            query = query.where(tuple_(t.c.tenant, t.c.key) > tuple_(*map(literal, _place(cursor))))
        found = [r for row in self._reading(lambda c: c.execute(query).all()) if (r := _of(row)) is not None]
        if len(found) <= limit:
            return found, None
        return found[:limit], orjson.dumps([found[limit - 1].tenant, found[limit - 1].key]).hex()

    def prune(self) -> int:
        gone = select(t.c.tenant, t.c.key).where(t.c.kept_until <= self.db.now()).limit(PRUNED)
        statement = delete(t).where(tuple_(t.c.tenant, t.c.key).in_(gone), t.c.kept_until <= self.db.now())
        forgotten: int = self._asked(self.db.once, lambda c: c.execute(statement).rowcount)
        return forgotten

    def _reading(self, fn: Any) -> Any:
        # one statement: on PostgreSQL without BEGIN and ROLLBACK around it
        return self._asked(self.db.read if self.db.is_sqlite else self.db.once, fn)

    def _asked(self, door: Callable[[Any], Any], fn: Any) -> Any:
        try:
            self.open()
            return door(fn)
        except DatabaseBusy as error:
            raise StoreBusy(
                f"{error} If that is the caller's own: call before its first write or after its end, or hand the session on, "
                "so that the key is part of its transaction"
            ) from error
        except DatabaseUnavailable as error:
            raise StoreUnavailable(str(error)) from error


class _Within(SqlStore):
    """Reservations in the transaction of a connection."""

    def __init__(self, store: SqlStore, connection: Connection) -> None:
        super().__init__(store.db)
        self._connection = connection

    def _asked(self, door: Callable[[Any], Any], fn: Any) -> Any:
        return fn(self._connection)


def _place(cursor: str) -> tuple[str, str]:
    """The tenant and key that a cursor goes on behind. Raises InvalidArgument."""
    try:
        tenant, key = orjson.loads(bytes.fromhex(cursor))
        return check_text(tenant, "cursor"), check_text(key, "cursor")
    except (ValueError, TypeError):
        raise unknown_cursor() from None


def _of(row: Any) -> Reservation | None:
    if row is None:
        return None
    return Reservation(
        tenant=row.tenant, key=row.key, task=row.task, state=State(row.state), owner=row.owner, token=row.token, fingerprint=row.fingerprint,
        attempts=row.attempts, locked_until=row.locked_until, seen_at=row.seen_at, kept_until=row.kept_until, created_at=row.created_at,
        result=None if row.result is None else orjson.dumps(row.result).decode(),
        error=None if row.error is None else orjson.dumps(row.error).decode(),
    )  # fmt: skip


def _change(old: Reservation, new: Reservation | None) -> Any:
    """The statement that writes ``new``, or nothing, where exactly ``old`` stands."""
    return delete(t).where(*_exactly(old)) if new is None else update(t).where(*_exactly(old)).values(_values(new))


def _exactly(old: Reservation) -> list[ColumnElement[bool]]:
    """The row as it was read: no other holder, no other state, no sign of life since."""
    return [
        t.c.tenant == old.tenant,
        t.c.key == old.key,
        t.c.token == old.token,
        t.c.owner == old.owner,
        t.c.state == old.state.value,
        t.c.seen_at == old.seen_at,
    ]


def _values(r: Reservation) -> dict[str, Any]:
    return {
        "tenant": r.tenant, "key": r.key, "task": r.task, "state": r.state.value, "owner": r.owner, "token": r.token, "fingerprint": r.fingerprint,
        "attempts": r.attempts, "locked_until": r.locked_until, "seen_at": r.seen_at, "kept_until": r.kept_until,
        "result": None if r.result is None else Encoded(r.result), "error": None if r.error is None else Encoded(r.error),
        "created_at": r.created_at, "updated_at": r.seen_at,
    }  # fmt: skip

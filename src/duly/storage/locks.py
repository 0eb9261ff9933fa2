"""Locks on things that are no rows: one room, one number, for as long as a transaction lasts.

On PostgreSQL an advisory lock of the transaction: it goes with the commit, the rollback or the connection, and a pooler in
transaction mode cannot carry it to somebody else (case B020). On SQLite a write transaction is alone as it is. The key is the
same in every process and version: eight bytes of BLAKE2b over the room and the number. Source: T000-m.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from sqlalchemy import BigInteger, Connection, TextClause, bindparam, text

from duly.storage.database import Database

#: How long a set-based pass waits for a row that another transaction holds, in milliseconds: many rows shall not stand behind one.
ROW_WAIT = 250
_WAIT = text("SELECT pg_advisory_xact_lock(:key)").bindparams(bindparam("key", type_=BigInteger))


def lock_key(room: str, ident: int) -> int:
    """The key of a lock: a signed number of 64 bits."""
    digest = hashlib.blake2b(f"{room}:{ident}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@functools.cache
def _try() -> TextClause:
    from sqlalchemy.dialects.postgresql import ARRAY  # on SQLite the dialect stays unloaded

    asked = (
        "SELECT k.n FROM unnest(:keys) WITH ORDINALITY AS k(key, n) WHERE pg_try_advisory_xact_lock(k.key) ORDER BY k.n"
    )
    return text(asked).bindparams(bindparam("keys", type_=ARRAY(BigInteger)))


def try_locks(db: Database, connection: Connection, room: str, idents: Sequence[int]) -> set[int]:
    """Take the locks that nobody else has, until the transaction ends. Returns whose; it waits for none."""
    if db.is_sqlite:
        return set(idents)
    keys = [lock_key(room, ident) for ident in idents]
    return {idents[n - 1] for n in connection.execute(_try(), {"keys": keys}).scalars()}


def wait_lock(db: Database, connection: Connection, room: str, ident: int) -> None:
    """Take one lock, and wait for whoever has it."""
    if not db.is_sqlite:
        connection.execute(_WAIT, {"key": lock_key(room, ident)})


def brief_waits(db: Database, connection: Connection) -> None:
    """For the rest of the transaction, give up a row that another transaction has locked for longer than ``ROW_WAIT``.

    A pass that works on many rows in one statement would otherwise wait as long as whoever holds one of them. With ``storage.apart``
    the row that is locked fails alone. SQLite has one writer: there is nobody to wait for.
    """
    if not db.is_sqlite:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {ROW_WAIT}")


def is_lock_timeout(error: BaseException) -> bool:
    """Did a statement give up because another transaction holds a lock?"""
    cause = getattr(error, "orig", None) or error
    return (getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)) == "55P03"

"""Transactions of Django that a body has written in, and that go on when it has ended.

A body that is called inside of ``transaction.atomic()`` has done nothing that lasts: the effect is there once Django has committed, and
gone if the block, or a savepoint around the call, is rolled back. So the success of such a call is recorded after that commit, and its
key is freed after that rollback. Which databases the body has used is seen by Django's own ``execute_wrapper``; the end is heard by
``on_commit``, whose function Django calls after the commit, and drops without calling it when what it stands in is rolled back.

While its end is open, the key is in progress for everybody else. A second call on the same thread, which is inside the same
transaction, is given the result that is about to be recorded.

Django is not imported: whoever is inside of a block of it has imported it. Bodies on an event loop have no such block.

Source: R004-20; https://docs.djangoproject.com/en/5.2/topics/db/transactions/#performing-actions-after-commit.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from duly.idempotency.sql import SqlStore
from duly.idempotency.store import Store


def open_blocks() -> list[Any]:
    """Django's connections of this thread that are inside of ``atomic``."""
    django = sys.modules.get("django.db")
    if django is None:
        return []
    try:
        return [one for one in django.connections.all(initialized_only=True) if one.in_atomic_block]
    except Exception:  # no settings, or an event loop
        return []


class Noted:
    """Which of Django's connections a body has used."""

    def __init__(self) -> None:
        self._used: list[Any] = []
        self._stack = contextlib.ExitStack()

    def begin(self) -> None:
        for connection in open_blocks():
            self._stack.enter_context(connection.execute_wrapper(self._note(connection)))

    def _note(self, connection: Any) -> Callable[..., Any]:
        def wrapper(execute: Callable[..., Any], *given: Any) -> Any:
            if connection not in self._used:
                self._used.append(connection)
            return execute(*given)

        return wrapper

    def end(self) -> list[Any]:
        """The connections that were used, and whose blocks go on."""
        self._stack.close()
        return [one for one in self._used if one.in_atomic_block]


class _OnCommit:
    """What Django calls after a commit, and lets go of after a rollback."""

    __slots__ = ("__weakref__", "_finalizer")

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._finalizer = weakref.finalize(self, tell, False)
        self._finalizer.atexit = False

    def __call__(self) -> None:
        found = self._finalizer.detach()
        if found is not None:
            found[1](True)


def when_block_ended(connection: Any, tell: Callable[[bool], None]) -> None:
    """Call ``tell`` once: whether what Django's connection is in was committed, in the end, or rolled back."""
    connection.on_commit(_OnCommit(tell))
    # one before it that raises would keep it from being called
    connection.run_on_commit.insert(0, connection.run_on_commit.pop())


#: Lends a connection of SQLAlchemy in the transaction of one of Django's databases, by alias. Set by ``duly.integrations.django``.
lend: Callable[[str], contextlib.AbstractContextManager[Connection]] | None = None


class InBlock(SqlStore):
    """Reservations in the transaction that Django has open on the store's SQLite file: nobody else can write there meanwhile.

    What is written here goes with the transaction, the reservation itself too, so no end has to wait.
    """

    def __init__(self, store: SqlStore, alias: str) -> None:
        super().__init__(store.db)
        self._alias = alias

    def _asked(self, door: Callable[[Any], Any], fn: Any) -> Any:
        assert lend is not None
        with lend(self._alias) as connection:
            return fn(connection)


def keeps_file(store: Store) -> bool:
    """Is this thread inside of a block of Django that keeps everybody from writing to the store's SQLite file, itself included?"""
    return _keeper_of(store) is not None


def block_on(store: Store) -> InBlock | None:
    """The store inside of that block, where ``duly.integrations.django`` is there to lend the connection."""
    alias = _keeper_of(store)
    return None if alias is None or lend is None or not isinstance(store, SqlStore) else InBlock(store, alias)


def _keeper_of(store: Store) -> str | None:
    """The alias of that block's database."""
    if not is_file(store):
        return None
    assert isinstance(store, SqlStore)
    path = _resolved(store.db.engine.url.database)
    for one in open_blocks():
        if one.vendor != "sqlite" or not getattr(one.connection, "in_transaction", False):
            continue
        if _resolved(one.settings_dict["NAME"]) == path:
            return str(one.alias)
    return None


def is_file(store: Store) -> bool:
    return isinstance(store, SqlStore) and store.db.is_sqlite and not store.db.memory


def _resolved(path: Any) -> str:
    try:
        return str(Path(str(path)).resolve())
    except OSError:
        return str(path)

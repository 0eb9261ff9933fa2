"""Transactions that a body has written in without being given them, and that go on when it has ended: Django's, and SQLAlchemy's.

What it took of SQLAlchemy is seen by ``taken.py``, and the end of that is heard through ``storage/session_end.py``. Of Django:

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
import functools
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from duly.idempotency.bounded import write_bounded
from duly.idempotency.here import here
from duly.idempotency.keeper import KEEPER
from duly.idempotency.plan import Done, Mismatch
from duly.idempotency.reservation import Ask, State
from duly.idempotency.sql import SqlStore
from duly.idempotency.store import End, Holding, Store
from duly.storage.joined import End as SessionEnd
from duly.storage.joined import when_ended

#: What the body's failure is called when its transaction is rolled back afterwards.
ROLLED_BACK = '{"type":"RolledBack"}'


def _open_blocks() -> list[Any]:
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
        for connection in _open_blocks():
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


class Pending:
    """One end that waits for the transactions that its body has written in: blocks of Django, sessions and connections of SQLAlchemy."""

    def __init__(
        self, holding: Holding, ask: Ask, store: Store, end: End, write: Callable[[Holding, End], None]
    ) -> None:
        self._holding, self._ask, self._store, self._end, self._write = holding, ask, store, end, write
        self._left, self._lost, self._here = 0, False, here()
        #: Sessions and connections that are waited for.
        self._taken: list[weakref.ref[Any]] = []
        self._dropped: list[weakref.finalize[..., Any]] = []

    def wait(self, blocks: list[Any], taken: list[Any]) -> None:
        """Give signs of life until all of them have ended."""
        KEEPER.keep(self._holding)
        _pending[self._place] = self
        self._left = len(blocks) + len(taken)
        for connection in blocks:
            connection.on_commit(_OnCommit(self._over))
            # one before it that raises would keep it from being called
            connection.run_on_commit.insert(0, connection.run_on_commit.pop())
        for one in taken:
            self._taken.append(weakref.ref(one))
            self._dropped.append(dropped := weakref.finalize(one, self._gone))
            dropped.atexit = False
        if not taken:
            return
        from duly.storage.session_end import when_over  # it needs the ORM, which is there when sessions are

        for one in taken:
            if isinstance(one, Connection):
                when_ended((one,), lambda end: self._over(end != "lost"))
            else:
                when_over(one, _tell, self)

    @property
    def _place(self) -> tuple[int, str, str]:
        return id(self._store), self._ask.tenant, self._ask.key

    def _over(self, committed: bool) -> None:
        self._left -= 1
        self._lost = self._lost or not committed
        if self._left > 0 and committed:
            return
        if not self._is_decided():
            return
        end = self._ended()
        if threading.get_ident() != self._here[0] or self._is_kept():
            # a savepoint was given up: the transaction around it keeps others from writing to an SQLite file
            KEEPER.end_later(self._holding, lambda: end.write(self._holding))
            return

        def write() -> None:
            refused = functools.partial(KEEPER.end_later, self._holding, lambda: end.write(self._holding))
            write_bounded(self._store, lambda: self._write(self._holding, end), refused)

        if self._taken:
            from duly.storage.session_end import beside

            beside(write)
        else:
            write()

    def _gone(self) -> None:
        """A session was dropped in the middle of its transaction: nobody can wait for a write where that is found out."""
        self._lost = True
        if self._is_decided():
            end = self._ended()
            KEEPER.end_later(self._holding, lambda: end.write(self._holding))

    def _is_decided(self) -> bool:
        """Now it is known what becomes of the key. Once."""
        if _pending.get(self._place) is not self:
            return False
        del _pending[self._place]
        for dropped in self._dropped:
            dropped.detach()
        KEEPER.let_go(self._holding)
        return True

    def _ended(self) -> End:
        return End(State.FAILED, lambda h: h.fail(ROLLED_BACK)) if self._lost else self._end

    def _is_kept(self) -> bool:
        """May the store's file be kept by what is still open?"""
        if not is_file(self._store):
            return False
        there = [one for ref in self._taken if (one := ref()) is not None]
        return bool(_open_blocks()) or any(one.in_transaction() for one in there) or len(there) < len(self._taken)

    def decision(self, ask: Ask, caller: tuple[int, int]) -> Done | Mismatch | None:
        """What a call gets that is made inside of the same transaction."""
        if caller != self._here:
            return None
        done = replace(self._holding.reservation, state=State.SUCCEEDED, result=self._end.result)
        return Mismatch(done) if done.fingerprint != ask.fingerprint else Done(done)


_pending: dict[tuple[int, str, str], Pending] = {}


def _tell(pending: list[Pending], end: SessionEnd) -> None:
    for one in pending:
        one._over(end != "lost")


def decided(store: Store, ask: Ask, caller: tuple[int, int]) -> Done | Mismatch | None:
    """What is known of a key inside of the caller's own transaction; None where nothing is."""
    found = _pending.get((id(store), ask.tenant, ask.key))
    return None if found is None else found.decision(ask, caller)


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
    for one in _open_blocks():
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

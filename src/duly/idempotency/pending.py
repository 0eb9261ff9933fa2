"""Successes that wait for transactions that their bodies have written in, and that go on: blocks of Django, sessions and connections.

Each of them has to commit; the first rollback frees the key. While the end is open, the key is in progress for everybody else. A second call
of the same thread or asyncio task, which is inside the same transaction, is given the result that is about to be recorded.

What the body has used is seen by ``around.py`` (Django) and ``taken.py`` (SQLAlchemy). For a session that the body was given see ``together.py``.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from duly.idempotency.around import is_file, open_blocks, when_block_ended
from duly.idempotency.keeper import KEEPER
from duly.idempotency.plan import Done, Mismatch
from duly.idempotency.reservation import Ask, State
from duly.idempotency.store import End, Holding, Store
from duly.idempotency.surroundings import caller
from duly.storage.joined import End as SessionEnd
from duly.storage.joined import when_ended

#: What becomes of a key whose body's transaction is rolled back.
ROLLED_BACK = End(State.FAILED, lambda h: h.fail('{"type":"RolledBack"}'))

Write = Callable[[Holding, End], None]


class Pending:
    """One success that waits. ``now`` writes an end while the commit waits, ``later`` on the store's own thread; neither raises."""

    def __init__(self, store: Store, holding: Holding, ask: Ask, end: End, now: Write, later: Write) -> None:
        self._store, self._holding, self._ask, self._end, self._now, self._later = store, holding, ask, end, now, later
        #: What has not ended.
        self._open: set[object] = set()
        #: Sessions and connections that are waited for, and what tells that one of them was dropped.
        self._taken: list[weakref.ref[Any]] = []
        self._drops: list[weakref.finalize[..., Any]] = []
        self._caller, self._thread = weakref.ref(caller()), threading.get_ident()

    def wait(self, blocks: list[Any], taken: list[Any]) -> None:
        """Give signs of life until all of them have ended."""
        KEEPER.keep(self._holding)
        _pending[self._place] = self
        self._open = {*range(len(blocks) + len(taken))}
        for number, block in enumerate(blocks):
            when_block_ended(block, partial(self._over, number))
        for number, one in enumerate(taken, len(blocks)):
            drop = weakref.finalize(one, self._over, number, False, dropped=True)
            drop.atexit = False
            self._drops.append(drop)
            self._taken.append(weakref.ref(one))
            if isinstance(one, Connection):
                when_ended((one,), partial(self._told, number, drop))
            else:
                from duly.storage.session_end import when_over  # it needs the ORM, which is there when sessions are

                when_over(one, _tell, partial(self._told, number, drop))

    @property
    def _place(self) -> tuple[int, str, str]:
        return id(self._store), self._ask.tenant, self._ask.key

    def _told(self, number: int, drop: weakref.finalize[..., Any], end: SessionEnd) -> None:
        if drop.detach() is not None:
            self._over(number, end != "lost")

    def _over(self, number: int, committed: bool, dropped: bool = False) -> None:
        """One of them has ended. A session that is dropped may be so anywhere: nobody can wait for a write there."""
        self._open.discard(number)
        if (committed and self._open) or _pending.get(self._place) is not self:
            return
        if _pending.pop(self._place, None) is not self:
            return
        for drop in self._drops:
            drop.detach()
        KEEPER.let_go(self._holding)
        end = self._end if committed else ROLLED_BACK
        if dropped or threading.get_ident() != self._thread or self._is_kept():
            self._later(self._holding, end)
        else:
            now, later = (partial(write, self._holding, end) for write in (self._now, self._later))
            write = partial(KEEPER.within, self._holding, now, later)
            if self._taken:
                from duly.storage.session_end import beside

                beside(write)
            else:
                write()

    def _is_kept(self) -> bool:
        """May the store's file be kept by what is still open, such as the transaction around a savepoint that was given up?"""
        if not is_file(self._store):
            return False
        there = [one for ref in self._taken if (one := ref()) is not None]
        return bool(open_blocks()) or any(one.in_transaction() for one in there) or len(there) < len(self._taken)

    def decision(self, ask: Ask, asks: weakref.ref[Any]) -> Done | Mismatch | None:
        """What a call gets that is made inside of the same transaction."""
        if asks != self._caller:
            return None
        done = replace(self._holding.reservation, state=State.SUCCEEDED, result=self._end.result)
        return Mismatch(done) if done.fingerprint != ask.fingerprint else Done(done)


_pending: dict[tuple[int, str, str], Pending] = {}
# in the child of a fork the transactions are the parent's
os.register_at_fork(after_in_child=_pending.clear)


def _tell(waiting: list[Callable[[SessionEnd], None]], end: SessionEnd) -> None:
    for told in waiting:
        told(end)


def decided(store: Store, ask: Ask, asks: weakref.ref[Any]) -> Done | Mismatch | None:
    """What is known of a key inside of the caller's own transaction; None where nothing is."""
    found = _pending.get((id(store), ask.tenant, ask.key))
    return None if found is None else found.decision(ask, asks)

"""Writing the end of a key while a commit waits, and no longer than it should: a store that is no database may hang."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from duly.idempotency.sql import SqlStore
from duly.idempotency.store import Store
from duly.storage.deadline import Deadline

#: How long commits wait for the writes of each store.
_deadlines: weakref.WeakKeyDictionary[Store, Deadline] = weakref.WeakKeyDictionary()


def write_bounded(store: Store, write: Callable[[], None], refused: Callable[[], None]) -> None:
    """Call ``write``; ``refused`` instead where too many wait for that store already."""
    if isinstance(store, SqlStore):
        write()
    elif _deadlines.setdefault(store, Deadline()).run(write) == "refused":
        refused()

"""Writing for many at once, so that what the database refuses of one stops no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from duly.kernel.errors import DatabaseError
from duly.storage.database import Database
from duly.storage.locks import is_lock_timeout

T = TypeVar("T")
R = TypeVar("R")


def apart(
    db: Database, connection: Connection, items: Sequence[T], act: Callable[[Sequence[T]], R], attempts: int = 1
) -> tuple[list[R], list[tuple[T, Exception]]]:
    """Do ``act`` for all items in a savepoint; if that fails, for one half and then the other, down to those that fail alone.

    Returns what ``act`` answered, in order, and the items that failed ``attempts`` times alone, each with its last error. Raises when
    the database is away: then nothing can be said of any of them.
    """
    if not items:
        return [], []
    left = attempts if len(items) == 1 else 1
    while True:
        try:
            with connection.begin_nested():
                return [act(items)], []
        except DatabaseError:
            raise
        except Exception as error:
            if db.translated(error) is not error and not is_lock_timeout(error):
                raise
            left -= 1
            if left == 0:
                problem = error
                break
    if len(items) == 1:
        return [], [(items[0], problem)]
    half = len(items) // 2
    first, second = (apart(db, connection, part, act, attempts) for part in (items[:half], items[half:]))
    return first[0] + second[0], first[1] + second[1]

"""The one thing of a kind that belongs to an owner, for those who come with the owner only."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class OnePer(Generic[T]):
    """By owner, what it has made. The owner holds it, and it may hold its owner: held from here, neither would ever go."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[Any, weakref.ref[T]] = weakref.WeakKeyDictionary()

    def get(self, owner: object) -> T | None:
        """What belongs to the owner, if there is one."""
        found = self._made.get(owner)
        return None if found is None else found()

    def keep(self, owner: object, made: T) -> None:
        """Have it known. One that was known before is so no longer."""
        self._made[owner] = weakref.ref(made)

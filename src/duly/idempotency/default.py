"""The store of functions that name none. Every application sets it, and most have no such function: so this loads nothing of the room."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from duly.kernel.errors import InvalidArgument
from duly.storage.rows import any_row

if TYPE_CHECKING:
    from duly.idempotency.store import Store

_default: Callable[[], Store | None] = lambda: None  # noqa: E731


def set_default_store(store: Store | Callable[[], Store | None] | None) -> None:
    """The store of idempotent functions that name none: one, or a function that gives it at each call.

    A Duly application sets its own database when it is made; the one made last counts.
    """
    global _default
    _default = store if callable(store) else lambda: store


def default_store() -> Store:
    """The store of functions that name none. Raises InvalidArgument when there is none."""
    found = _default()
    if found is None:
        raise InvalidArgument(
            "store", "is not set.", "Give idempotent_task a store, make a Duly application, or call set_default_store."
        )
    return found


def any_reservation(connection: Connection) -> bool:
    """Is there one in an application's database?"""
    return any_row(connection, "idempotency")

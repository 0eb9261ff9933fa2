"""What a route asks of who asks: ``who: Annotated[Identity, needs("jobs", Role.OPERATOR)]``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from duly.accounts.account import Forbidden, Identity, Role
from duly.accounts.door import Accounts


def identity_of(request: Request) -> Identity:
    """Who asks, as the gate found. Raises HTTPException 401 where nobody is known."""
    found: Identity | None = getattr(request.state, "identity", None)
    if found is None:
        raise HTTPException(401, "A token is needed: Authorization: Bearer …", {"WWW-Authenticate": 'Bearer realm="duly"'})  # fmt: skip
    return found


#: Seconds between two questions whether who listens still may.
AGAIN = 5.0


class Standing:
    """Is who asked let in as they were, while an answer to them goes on? Asked of the accounts every few seconds."""

    def __init__(self, accounts: Accounts, who: Identity, clock: Callable[[], float] = time.monotonic) -> None:
        self._accounts, self._who, self._clock, self._asked = accounts, who, clock, clock()

    async def holds(self) -> bool:
        """False also where their role, tenant or scopes are others by now: they may come back, and are answered as who they are then.

        Raises DulyError where the database is away."""
        if self._clock() - self._asked < AGAIN:
            return True
        self._asked = self._clock()
        return await run_in_threadpool(self._accounts.still, self._who) == self._who


def checked(found: Identity, area: str, role: Role) -> Identity:
    """The same, if they may act so in an area. Raises Forbidden."""
    if not found.may(area, role):
        if found.role < role:
            raise Forbidden(f"this needs the role {role.word}, and {found.actor} has {found.role.word}.")
        raise Forbidden(f"{found.actor} has no scope {area!r}.")
    return found


def needs(area: str, role: Role = Role.VIEWER) -> Any:
    """A dependency that gives who asks, if they may. 401 for nobody, 403 for somebody who may not."""

    def ask(request: Request) -> Identity:
        return checked(identity_of(request), area, role)

    return Depends(ask)

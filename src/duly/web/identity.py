"""What a route asks of who asks: ``who: Annotated[Identity, needs("jobs", Role.OPERATOR)]``."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from duly.accounts.account import Forbidden, Identity, Role


def identity_of(request: Request) -> Identity:
    """Who asks, as the gate found. Raises HTTPException 401 where nobody is known."""
    found: Identity | None = getattr(request.state, "identity", None)
    if found is None:
        raise HTTPException(401, "A token is needed: Authorization: Bearer …", {"WWW-Authenticate": 'Bearer realm="duly"'})  # fmt: skip
    return found


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

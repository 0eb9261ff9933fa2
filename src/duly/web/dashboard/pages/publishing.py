"""``/publishing``: posts on channels: what is planned, what is there and what failed; sending it again, and calling it off."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.kernel.errors import InvalidArgument
from duly.publishing.door import Publishing
from duly.publishing.view import PublicationFilter, Status
from duly.web.api.common import Cursor, Ident, below, whose
from duly.web.api.common import cursor as going_on
from duly.web.dashboard.desk import LOOK, Act, Desk, acts, query, sees

Viewer: TypeAlias = Annotated[Identity, sees("publishing")]
Operator: TypeAlias = Annotated[Act, acts("publishing", Role.OPERATOR)]
LIMIT = 50


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    def room() -> Publishing:
        return Publishing.of(app)

    @made.get("/publishing")
    def find(
        request: Request, who: Viewer, channel: Annotated[str, Query(max_length=200)] = "", status: Annotated[str, Query(max_length=20)] = "",
        cursor: Cursor = None,
    ) -> Response:  # fmt: skip
        if status and status not in set(Status):
            raise InvalidArgument("status", f"is {status!r}.", f"Use one of {', '.join(Status)}.")
        mine = whose(who)
        wanted = PublicationFilter(tenant=mine, channel=channel or None, status=(Status(status),) if status else ())
        seen = room().look(wanted, LIMIT, below(cursor), LOOK)
        given = {"channel": channel, "status": status}
        return desk.page(
            request, "publishing.html", "Publishing", posts=seen.rows, seen=seen, given=given, statuses=list(Status), channels=_channels(room()), said=_said, several=mine is None,
            following=query("/publishing", **given, cursor=going_on(seen.below)) if seen.below else None, first=query("/publishing", **given) if cursor else None,
        )  # fmt: skip

    @made.get("/publishing/{id}")
    def show(request: Request, id: Ident, who: Viewer) -> Response:
        return desk.page(request, "publication.html", f"Publication {id}", post=room().get(id, whose(who)))

    @made.post("/publishing/{id}/replay")
    def replay(request: Request, id: Ident, form: Operator) -> Response:
        room().replay(id, form.who.actor, form.reason, whose(form.who))
        return desk.done(request, f"/publishing/{id}", f"Publication {id} is tried again; what is there already is not published twice.")  # fmt: skip

    @made.post("/publishing/{id}/cancel")
    def cancel(request: Request, id: Ident, form: Operator) -> Response:
        room().cancel(id, form.who.actor, form.reason, whose(form.who))
        return desk.done(request, f"/publishing/{id}", f"Publication {id} is called off, where it is not out yet.")

    return made


def _said(post: Any) -> Any:
    """What a post says, its lines joined to one."""
    found = post.payload.get("caption") or post.payload.get("title") or post.type
    return " ".join(found.split()) if isinstance(found, str) else found


def _channels(room: Publishing) -> list[dict[str, object]]:
    """The channels that this process knows, with what bounds them."""
    out: list[dict[str, object]] = []
    for name in sorted(room.channels):
        limit, rate = room.limit(name)
        out.append({"name": name, "limit": limit, "rate": rate})
    return out

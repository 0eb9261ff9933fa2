"""``/outbox``: messages on their way to other systems: what waits, what was parked and why, and sending it again."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.kernel.errors import InvalidArgument
from duly.outbox.box import Outbox
from duly.outbox.message import Status
from duly.web.api.common import Cursor, Ident, at_first_use, below, page, whose
from duly.web.dashboard.desk import Act, Desk, acts, query, sees
from duly.web.dashboard.words import plural

Viewer: TypeAlias = Annotated[Identity, sees("outbox")]
Operator: TypeAlias = Annotated[Act, acts("outbox", Role.OPERATOR)]
#: Messages of a page, and those that are sent again at once.
LIMIT, MOST = 50, 1_000


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app
    box = at_first_use(lambda: Outbox(app))

    @made.get("/outbox")
    def find(
        request: Request, who: Viewer, status: Annotated[str, Query(max_length=20)] = "", destination: Annotated[str, Query(max_length=300)] = "",
        cursor: Cursor = None,
    ) -> Response:  # fmt: skip
        if status and status not in set(Status):
            raise InvalidArgument("status", f"is {status!r}.", f"Use one of {', '.join(Status)}.")
        mine = whose(who)
        found = box().find(LIMIT + 1, below(cursor), status=[Status(status)] if status else None, destination=destination or None, tenant=mine)  # fmt: skip
        kept, following = page(found, LIMIT, lambda message: message.id)
        given = {"status": status, "destination": destination}
        return desk.page(
            request, "outbox.html", "Outbox", standing=box().status(False, mine), messages=kept, given=given, statuses=list(Status),
            following=query("/outbox", **given, cursor=following) if following else None, first=query("/outbox", **given) if cursor else None,
        )  # fmt: skip

    @made.get("/outbox/{id}")
    def show(request: Request, id: Ident, who: Viewer) -> Response:
        return desk.page(request, "message.html", f"Message {id}", m=box().get(id, whose(who)))

    @made.post("/outbox/redrive")
    def redrive_many(request: Request, form: Operator) -> Response:
        to = form.text("destination")
        if not to:
            raise InvalidArgument("destination", "is missing.", "Name one.")
        done = box().redrive_where(form.reason, form.who.actor, MOST, destination=to, tenant=whose(form.who))
        return desk.done(request, form.back, f"{plural(done, 'message')} to {to} {'is' if done == 1 else 'are'} due again.")  # fmt: skip

    @made.post("/outbox/{id}/redrive")
    def redrive(request: Request, id: Ident, form: Operator) -> Response:
        box().redrive(id, reason=form.reason, actor=form.who.actor, tenant=whose(form.who))
        return desk.done(request, f"/outbox/{id}", f"Message {id} is due again, under the same message id.")

    @made.post("/outbox/{id}/park")
    def park(request: Request, id: Ident, form: Operator) -> Response:
        box().park(id, reason=form.reason or "parked by hand", actor=form.who.actor, tenant=whose(form.who))
        return desk.done(request, f"/outbox/{id}", f"Message {id} is parked until somebody sends it again.")

    return made

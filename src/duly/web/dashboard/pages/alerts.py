"""``/alerts``: what a person must know, and who took note of it. Alerts are about the whole system, so no tenant's."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Request, Response

from duly.accounts.account import Identity, Role
from duly.web.api.common import Cursor, Ident, below, page
from duly.web.dashboard.desk import Act, Desk, acts, query, sees_all

Viewer: TypeAlias = Annotated[Identity, sees_all("alerts")]
Operator: TypeAlias = Annotated[Act, acts("alerts", Role.OPERATOR, everywhere=True)]
PAST = 50


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/alerts")
    def show(request: Request, who: Viewer, cursor: Cursor = None) -> Response:
        standing = app.alerts.standing()
        rules = {rule.name: rule for rule in app.alerts.rules}
        kept, following = page(app.alerts.find(PAST + 1, below(cursor), ("cleared",)), PAST, lambda alert: alert.id)
        return desk.page(
            request, "alerts.html", "Alerts", standing=standing, rules=rules, past=kept, now=standing.now,
            following=query("/alerts", cursor=following) if following else None, first="/alerts" if cursor else None,
        )  # fmt: skip

    @made.post("/alerts/judge")
    def judge(request: Request, form: Operator) -> Response:
        moved = app.alerts.judge(form.who.actor)
        return desk.done(request, "/alerts", f"Judged: {len(moved or [])} alerts moved.")

    @made.post("/alerts/{id}/ack")
    def ack(request: Request, id: Ident, form: Operator) -> Response:
        found = app.alerts.ack(id, form.reason, form.who.actor)
        return desk.done(request, "/alerts", f"Alert {found.id} ({found.rule}) is noted by {found.acked_by}. It stays until it is fine again.")  # fmt: skip

    return made

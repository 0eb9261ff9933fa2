"""``/keys``: the keys of idempotent functions and HTTP requests, and forgetting one."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.idempotency.reservation import State
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_text, read_duration
from duly.web.api.common import Cursor, whose
from duly.web.dashboard.desk import Act, Desk, acts, query, sees, where

Viewer: TypeAlias = Annotated[Identity, sees("jobs")]
Operator: TypeAlias = Annotated[Act, acts("jobs", Role.OPERATOR)]
Text: TypeAlias = Annotated[str, Query(max_length=300)]
LIMIT = 50


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/keys")
    def find(
        request: Request, who: Viewer, task: Text = "", state: Text = "", quiet: Text = "", tenant: Text = "", cursor: Cursor = None,
    ) -> Response:  # fmt: skip
        given = {"task": task.strip(), "state": state, "quiet": quiet.strip(), "tenant": tenant.strip()}
        for name, value in given.items():
            check_text(value, name)
        age: timedelta | None = read_duration(given["quiet"], "quiet") if given["quiet"] else None
        found, following = app.keys.find(
            LIMIT, cursor, tenant=where(who, given["tenant"], "keys"), task=given["task"] or None, state=state or None, older_than=age,
        )  # fmt: skip
        return desk.page(
            request, "keys.html", "Keys", found=found, given=given, states=list(State), several=who.tenant is None,
            following=query("/keys", **given, cursor=following) if following else None, first=query("/keys", **given) if cursor else None,
        )  # fmt: skip

    @made.post("/keys/forget")
    def forget(request: Request, form: Operator) -> Response:
        token = form.text("token")
        if not token.isascii() or not token.isdigit() or len(token) > 19:
            raise InvalidArgument("token", "is missing.", "Load the page again.")
        mine = whose(form.who, form.text("tenant") or None) or app.settings.tenant
        gone = app.keys.forget(
            form.text("key"), form.reason, form.who.actor, mine, bool(form.text("force")), int(token)
        )
        return desk.done(request, form.back, f"The key of {gone.task} is forgotten. The next call runs the body.")

    return made

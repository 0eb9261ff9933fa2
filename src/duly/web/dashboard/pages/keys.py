"""``/keys``: the keys of idempotent functions and HTTP requests, and ``/keys/jobs``: those that jobs hold; forgetting one."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.idempotency.reservation import State
from duly.jobs.job import LIVE
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_text, read_duration
from duly.kernel.rooms import is_of_a_room
from duly.web.api.common import Cursor, whose
from duly.web.api.keys import check_key_of
from duly.web.dashboard.desk import Act, Desk, acts, number, query, sees, where

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

    @made.get("/keys/jobs")
    def find_of_jobs(
        request: Request, who: Viewer, task: Text = "", queue: Text = "", key: Annotated[str, Query(max_length=500)] = "", tenant: Text = "",
        cursor: Cursor = None,
    ) -> Response:  # fmt: skip
        given = {"task": task.strip(), "queue": queue.strip(), "key": key.strip(), "tenant": tenant.strip()}
        for name, value in given.items():
            check_text(value, name)
        found, following = app.keys.jobs.find(
            LIMIT, cursor, tenant=where(who, given["tenant"], "keys"), task=given["task"] or None, queue=given["queue"] or None,
            key=given["key"] or None,
        )  # fmt: skip
        return desk.page(
            request, "keys_jobs.html", "Keys of jobs", found=found, given=given, several=who.tenant is None, live=LIVE, of_a_room=is_of_a_room,
            following=query("/keys/jobs", **given, cursor=following) if following else None,
            first=query("/keys/jobs", **given) if cursor else None,
        )  # fmt: skip

    @made.post("/keys/jobs/forget")
    def forget_of_job(request: Request, form: Operator) -> Response:
        mine = whose(form.who, form.text("tenant") or None) or app.settings.tenant
        key, queue = form.fields.get("key", [""])[-1], form.fields.get("on", [""])[-1]
        check_key_of(app.keys.jobs.get(key, queue, mine))
        gone = app.keys.jobs.forget(
            key, form.reason, form.who.actor, queue=queue, tenant=mine, force=bool(form.text("force")),
            job_id=number(form.text("job"), "job"),
        )  # fmt: skip
        said = f"The key {gone.key} of job {gone.job_id} is forgotten. The next enqueue under it makes a job."
        return desk.done(request, form.back, said)

    return made

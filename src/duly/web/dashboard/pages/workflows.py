"""``/workflows``: runs of durable functions: what each has done, what it waits for, and answering, telling and stopping it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.jobs.job import Status as JobStatus
from duly.kernel.errors import InvalidArgument
from duly.web.api.common import Cursor, Ident, below, whose
from duly.web.api.common import cursor as going_on
from duly.web.dashboard.desk import LOOK, Act, Desk, acts, query, sees
from duly.workflows.plan import standing
from duly.workflows.step import FINAL, Kind, Step
from duly.workflows.step import Status as StepStatus

Viewer: TypeAlias = Annotated[Identity, sees("workflows")]
Operator: TypeAlias = Annotated[Act, acts("workflows", Role.OPERATOR)]
#: Runs of a page; steps and jobs of one run that are shown.
LIMIT, SHOWN = 50, 300
#: Of the waterfall, in its own units.
WIDTH = 1_000


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/workflows")
    def find(
        request: Request, who: Viewer, workflow: Annotated[str, Query(max_length=200)] = "", status: Annotated[str, Query(max_length=20)] = "",
        cursor: Cursor = None,
    ) -> Response:  # fmt: skip
        seen = app.workflows.look(
            workflow or None, status=(status,) if status else (), tenant=whose(who), limit=LIMIT, below=below(cursor), seconds=LOOK
        )  # fmt: skip
        given = {"workflow": workflow, "status": status}
        return desk.page(
            request, "workflows.html", "Workflows", runs=seen.rows, seen=seen, given=given, statuses=list(JobStatus), names=list(app.workflows.names()),
            following=query("/workflows", **given, cursor=going_on(seen.below)) if seen.below else None, first=query("/workflows", **given) if cursor else None,
            several=who.tenant is None,
        )  # fmt: skip

    @made.get("/workflows/{id}")
    def show(request: Request, id: Ident, who: Viewer) -> Response:
        mine, now = whose(who), desk.now()
        run = app.workflows.get(id, mine)
        history = list(app.workflows.history(id, mine))
        return desk.page(
            request, "workflow.html", f"Run {id}", run=run, now=now, steps=waterfall(history[:SHOWN], run.created_at, now), more=len(history) - SHOWN,
            branches=app.workflows.tree(id, mine)[:SHOWN], ended=run.finished_at is not None, width=WIDTH,
            questions=[one for one in history if one.kind is Kind.APPROVAL and one.status is StepStatus.WAITING],
            stays=standing({one.position: one for one in history}), steps_count=len(history), steps_limit=app.settings.workflow_steps_max,
            long=len(history) >= app.settings.workflow_steps_warn,
            events=[wait for wait in run.waits if wait.get("kind") == Kind.EVENT],
        )  # fmt: skip

    @made.post("/workflows/{id}/answer")
    def answer(request: Request, id: Ident, form: Operator) -> Response:
        said = form.text("answer")
        if said not in ("yes", "no"):
            raise InvalidArgument("answer", f"is {said[:40]!r}.", "Say yes or no.")
        app.workflows.approve(id, form.text("question") or None, said == "yes", reason=form.reason, tenant=whose(form.who), actor=form.who.actor)  # fmt: skip
        return desk.done(request, f"/workflows/{id}", f"Run {id} was told {said}.")

    @made.post("/workflows/{id}/signal")
    def signal(request: Request, id: Ident, form: Operator) -> Response:
        name = form.text("event")
        app.workflows.signal(id, name, None, tenant=whose(form.who), actor=form.who.actor)
        return desk.done(request, f"/workflows/{id}", f"Run {id} was told that {name} has happened.")

    @made.post("/workflows/{id}/cancel")
    def cancel(request: Request, id: Ident, form: Operator) -> Response:
        undo = form.text("undo") == "yes"
        app.workflows.cancel(id, undo=undo, reason=form.reason, tenant=whose(form.who), actor=form.who.actor)
        said = "is undone by a worker, and then cancelled" if undo else "is cancelled, or asked to stop"
        return desk.done(request, f"/workflows/{id}", f"Run {id} {said}.")

    return made


def waterfall(history: list[Step], start: datetime | None, now: datetime) -> list[dict[str, Any]]:
    """Steps with their place in time, from 0 to ``WIDTH``: what began when, and how long it took. Pure."""
    ends = [step.finished_at or now for step in history]
    first = min([step.started_at for step in history if step.started_at] + ([start] if start else []), default=now)
    length = max((max([*ends, first]) - first).total_seconds(), 0.001)

    def place(at: datetime | None) -> float:
        return 0.0 if at is None else min(max((at - first).total_seconds() / length, 0.0), 1.0) * WIDTH

    out = []
    for step in history:
        left = place(step.started_at)
        right = place(step.finished_at if step.status in FINAL else now)
        word = {"done": "done", "failed": "failed", "timed_out": "missed", "waiting": "waiting"}[
            str(step.status or "waiting")
        ]
        out.append({"step": step, "x": round(left, 1), "width": round(max(right - left, 6.0), 1), "word": word})
    return out

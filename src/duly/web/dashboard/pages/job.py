"""``/jobs/{id}``: one job: its life, why it does not run, its family, who did what to it, and the same as commands."""

from __future__ import annotations

import shlex
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Request, Response

from duly.accounts.account import Identity, Role
from duly.audit.read import TrailFilter
from duly.audit.read import find as find_trail
from duly.jobs.filter import JobFilter
from duly.jobs.job import ENDED, Job, Status
from duly.monitoring.redact import redacted
from duly.web.api.common import Ident, whose
from duly.web.dashboard.desk import Act, Desk, acts, sees
from duly.web.dashboard.moved import root_of
from duly.web.dashboard.rail import steps
from duly.web.dashboard.words import plural

Viewer: TypeAlias = Annotated[Identity, sees("jobs")]
Operator: TypeAlias = Annotated[Act, acts("jobs", Role.OPERATOR)]
#: Children and rows of the trail that are shown.
CHILDREN, TRAIL = 50, 50


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/jobs/{id}")
    def show(request: Request, id: Ident, who: Viewer) -> Response:
        job = app.jobs.get(id, whose(who))
        found: dict[str, Any] = app._read(
            lambda c: {
                "attempts": app.engine.reader.attempts_of(c, id),
                "children": app.engine.reader.children_of(c, id, CHILDREN),
                "childs": app.engine.reader.count(c, JobFilter(parent_id=id), 1_000),
                "trail": find_trail(c, TrailFilter(entity="job", entity_id=str(id), tenant=whose(who)), TRAIL),
            }
        )
        now = desk.now()
        checks = app.why(id, whose(who))
        return desk.page(
            request, "job.html", f"Job {id}", job=job, now=now, rail=steps(job, found["attempts"], list(reversed(found["trail"])), now),
            unmet=[check for check in checks if not check.met], met=[check for check in checks if check.met], runs=all(check.met for check in checks),
            commands=_commands(job, who), curl=_curl(request, job), ended=job.status in ENDED, succeeded=job.status is Status.SUCCEEDED,
            most_children=CHILDREN, **found,
        )  # fmt: skip

    @made.post("/jobs/{id}/cancel")
    def cancel(request: Request, id: Ident, form: Operator) -> Response:
        children = bool(form.text("children"))
        job = app.jobs.admin.cancel(id, form.who.actor, whose(form.who), form.reason, children)
        said = f"Job {id} is cancelled." if job.is_final else f"Job {id} runs; it was asked to stop."
        return desk.done(request, f"/jobs/{id}", said)

    @made.post("/jobs/{id}/replay")
    def replay(request: Request, id: Ident, form: Operator) -> Response:
        app.jobs.admin.replay(id, form.who.actor, whose(form.who), form.reason, bool(form.text("force")))
        return desk.done(request, f"/jobs/{id}", f"Job {id} is queued again, with {plural(0, 'attempt')} used.")

    return made


def _commands(job: Job, who: Identity) -> list[tuple[str, str]]:
    """(what it is for, the command)."""
    out = [("Show", f"duly jobs show {job.id}"), ("Why", f"duly why {job.id}")]
    if who.may("jobs", Role.OPERATOR):
        if job.is_final:
            force = " --force" if job.status is Status.SUCCEEDED else ""
            out.append(("Replay", f"duly jobs replay {job.id}{force} --reason …"))
        else:
            out.append(("Cancel", f"duly jobs cancel {job.id} --reason …"))
    if who.sees_payloads:
        out.append(("Enqueue alike", _enqueue(job)))
    return out


def _enqueue(job: Job) -> str:
    """The command that enqueues the like of it. What is secret is not in it."""
    given = orjson.dumps(redacted(job.input), default=str).decode()
    parts = ["duly", "enqueue", shlex.quote(job.task), shlex.quote(given), "--queue", shlex.quote(job.queue), "--tenant", shlex.quote(job.tenant)]  # fmt: skip
    if job.priority:
        parts += ["--priority", str(job.priority)]
    return " ".join(parts)


def _curl(request: Request, job: Job) -> str:
    base = f"{request.url.scheme}://{request.url.netloc}{root_of(request)}/api/v1/jobs/{job.id}"
    return f'curl -H "Authorization: Bearer $DULY_TOKEN" {shlex.quote(base)}'

"""``/schedules``: recurring work: when it comes next, what became of each instant, and pausing, resuming and running it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.jobs.job import Job
from duly.kernel.errors import DulyError
from duly.kernel.payload import check_name
from duly.schedules.door import Previewed
from duly.schedules.schedule import Occurrence, Schedule
from duly.web.api.common import whose
from duly.web.dashboard.desk import Act, Desk, acts, query, sees, where
from duly.web.dashboard.words import plural

Viewer: TypeAlias = Annotated[Identity, sees("schedules")]
Operator: TypeAlias = Annotated[Act, acts("schedules", Role.OPERATOR)]
Named: TypeAlias = Annotated[str, Query(max_length=200)]
#: Instants to come, and past ones on the strip.
COMING, STRIP = 10, 30


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    def jobs_of(found: list[Occurrence]) -> dict[int, Job]:
        wanted = [one.job_id for one in found if one.job_id is not None]
        return app._read(lambda c: app.engine.reader.get_many(c, wanted))

    @made.get("/schedules")
    def find(request: Request, who: Viewer) -> Response:
        found = app.schedules.all(tenant=whose(who))
        last = {one.id: app.schedules.ledger(one.name, tenant=one.tenant, limit=1) for one in found[:200]}
        jobs = jobs_of([row[0] for row in last.values() if row])
        rows = [{"s": one, "when": in_words(one), "last": outcome(last[one.id][0], jobs) if last.get(one.id) else None} for one in found]  # fmt: skip
        gone = set(app.schedules.undeclared())
        return desk.page(
            request, "schedules.html", "Schedules", rows=rows, several=whose(who) is None, address=address, gone=gone
        )

    @made.get("/schedules/show")
    def show(request: Request, who: Viewer, name: Named = "", tenant: Named = "") -> Response:
        at = where(who, tenant, "schedule")
        found = app.schedules.get(_known(name), tenant=at)
        problem = ""
        try:
            coming = as_seen(app.schedules.preview(name, COMING, tenant=at), who)
        except DulyError as error:
            coming, problem = [], str(error)
        ledger = app.schedules.ledger(name, tenant=at, limit=STRIP)
        jobs = jobs_of(ledger)
        strip = [{"o": one, **outcome(one, jobs)} for one in ledger]
        return desk.page(
            request, "schedule.html", f"Schedule {name}", s=found, when=in_words(found), coming=coming, problem=problem or found.problem,
            strip=list(reversed(strip)), rows=strip, versions=app.schedules.versions(name, tenant=at)[:10],
            input=orjson.loads(found.spec.input) if found.spec else None, undeclared=(found.tenant, found.name) in app.schedules.undeclared(),
        )  # fmt: skip

    def done(request: Request, form: Act, name: str, said: str) -> Response:
        return desk.done(request, query("/schedules/show", name=name, tenant=form.fields.get("tenant", [""])[-1]), said)

    @made.post("/schedules/pause")
    def pause(request: Request, form: Operator) -> Response:
        name, at = _of(form)
        app.schedules.pause(name, form.reason, tenant=at, actor=form.who.actor)
        return done(request, form, name, f"Schedule {name} is paused: what falls due is skipped, on record.")

    @made.post("/schedules/resume")
    def resume(request: Request, form: Operator) -> Response:
        name, at = _of(form)
        app.schedules.resume(name, form.reason, tenant=at, actor=form.who.actor)
        return done(request, form, name, f"Schedule {name} fires again from now on.")

    @made.post("/schedules/run")
    def run(request: Request, form: Operator) -> Response:
        name, at = _of(form)
        made_now = app.schedules.run(name, tenant=at, actor=form.who.actor, reason=form.reason)
        return done(request, form, name, f"Schedule {name} was run by hand: job {made_now.job_id}.")

    @made.post("/schedules/backfill")
    def backfill(request: Request, form: Operator) -> Response:
        from duly.kernel.recurrence.reading import read_instant

        name, at = _of(form)
        start, end = (read_instant(form.text(field), field) for field in ("start", "end"))
        dry = form.text("what") != "fire"
        found = app.schedules.backfill(name, start, end, tenant=at, actor=form.who.actor, reason=form.reason, dry_run=dry)  # fmt: skip
        number = plural(len(found.fired) + len(found.deferred), "occurrence")
        said = f"{number} would fire; {len(found.left)} fired before, or wait." if dry else f"{number} fired, or will one after the other; {len(found.left)} were left."  # fmt: skip
        return done(request, form, name, said)

    return made


def address(s: Schedule) -> str:
    return query("/schedules/show", name=s.name, tenant=s.tenant)


def in_words(s: Schedule) -> str:
    """When it runs, in a sentence."""
    return s.spec.recurrence.describe() if s.spec is not None else ""


def as_seen(coming: list[Previewed], who: Identity) -> list[Previewed]:
    """What is to come, as the calendar shows it: which blackouts hold it is for those who may see queues."""
    return (
        coming if who.may("queues", Role.VIEWER) else [replace(one, blackout=(), blackout_until=None) for one in coming]
    )


def outcome(one: Occurrence, jobs: dict[int, Job]) -> dict[str, Any]:
    """What became of an occurrence and of its job: a word, and where to look."""
    job = jobs.get(one.job_id) if one.job_id is not None else None
    word = str(job.status) if job is not None else one.status.value
    said = f"{one.status.value}{f' ({one.reason})' if one.reason else ''}{f', its job {job.status}' if job is not None else ''}"
    return {"at": one.due_at, "word": word, "said": said, "job": job}


def _known(name: str) -> str:
    return check_name(name, "name")


def _of(form: Act) -> tuple[str, str | None]:
    """(name, tenant) of the schedule that a form is about: to the letter, as blanks are part of a name."""
    name, tenant = (form.fields.get(field, [""])[-1] for field in ("name", "tenant"))
    return _known(name), where(form.who, tenant, "schedule")

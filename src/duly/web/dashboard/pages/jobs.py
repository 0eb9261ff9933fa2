"""``/jobs``: finding jobs, and acting on many of them.

Filters are the address of the page, so that a view can be sent to somebody. An act on many is shown first: which jobs, how many. The form
carries their numbers, so that its button reaches these and no other, whatever fits the filter by then.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import RedirectResponse

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.jobs.admin import able
from duly.jobs.ask import WORKER_GONE
from duly.jobs.filter import JobFilter
from duly.jobs.job import Job, Status
from duly.jobs.look import Found, Tally
from duly.jobs.survey import standing
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_text, read_duration
from duly.kernel.recurrence.reading import read_instant
from duly.web.api.common import below, whose
from duly.web.api.common import cursor as going_on
from duly.web.bulk import MOST_JOBS
from duly.web.dashboard import bulk
from duly.web.dashboard.bulk import WHAT, packed, unpacked
from duly.web.dashboard.desk import LOOK, Act, Desk, acts, number, query, sees
from duly.web.dashboard.words import plural

Viewer: TypeAlias = Annotated[Identity, sees("jobs")]
Asker: TypeAlias = Annotated[Identity, sees("jobs", Role.OPERATOR)]
Operator: TypeAlias = Annotated[Act, acts("jobs", Role.OPERATOR)]

#: Jobs of a page; how far they are counted.
LIMIT, CAP = 50, 10_000
#: For how long jobs are counted where no index answers: seconds.
COUNT = 0.01
#: Jobs that are looked at for the names of their queues.
KNOWN = 5_000
#: Jobs that a page which asks before it acts lists.
SAMPLE = 20
FIELDS = ("status", "queue", "task", "key", "error", "parent", "since", "before", "tenant", "ids")
ACTS = {"cancel": "Cancel", "replay": "Replay"}


def _given(request: Request) -> dict[str, list[str]]:
    """The filter in an address, by field; fields left empty are not there."""
    out: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        if name in FIELDS and value:
            out.setdefault(name, []).append(value)
    return out


Given: TypeAlias = Annotated[dict[str, list[str]], Depends(_given)]


class Asked:
    """The filter in an address, as it was written and as it is meant. ``problem``: what of it cannot be meant."""

    def __init__(self, given: dict[str, list[str]], who: Identity, now: datetime) -> None:
        self.given, self.problem = given, ""
        self.now = now
        self.tenant = whose(who, self.text("tenant") or None)
        try:
            self.filter = JobFilter(
                tenant=self.tenant, status=tuple(one for one in given.get("status", []) if one), queue=self.text("queue") or None,
                task=self.text("task") or None, key=self.text("key") or None, parent_id=number(self.text("parent"), "parent") if self.text("parent") else None,
                since=self.instant("since"), before=self.instant("before"), ids=[number(one, "ids") for one in given.get("ids", [])],
                error=self.text("error") or None,
            )  # fmt: skip
        except InvalidArgument as error:
            self.filter, self.problem = JobFilter(tenant=self.tenant, ids=()), str(error)

    def text(self, name: str) -> str:
        given = self.given.get(name, [""])[-1]
        found = check_text(given if name == "error" else given.strip(), name)  # blanks are part of an error's class
        if len(found) > 500:
            raise InvalidArgument(name, "has more than 500 characters.")
        return found

    def instant(self, name: str) -> datetime | None:
        """An instant with its zone, or a span that lies behind us: 2h."""
        text = self.text(name)
        if not text:
            return None
        try:
            return read_instant(text, name)
        except InvalidArgument:
            pass
        try:
            return self.now - read_duration(text, name)
        except (InvalidArgument, OverflowError):
            raise InvalidArgument(name, f"is {text!r}.", "Write a span such as 15min or 2h, or an instant such as 2026-07-27T09:00:00Z.") from None  # fmt: skip

    @property
    def narrows(self) -> bool:
        """Is something meant besides a status and a tenant? Nobody acts on everything by mistake."""
        f = self.filter
        return bool(f.ids) or any(
            one is not None for one in (f.queue, f.task, f.key, f.error, f.parent_id, f.since, f.before)
        )

    def address(self, path: str, **more: Any) -> str:
        return query(path, **{name: self.given[name] for name in FIELDS if name in self.given}, **more)

    def words(self) -> str:
        """The filter in words, for people."""
        f = self.filter
        parts = [f"{name} {value}" for name, value in (("queue", f.queue), ("task", f.task), ("key", f.key), ("error", f.error), ("tenant", f.tenant)) if value]  # fmt: skip
        parts += [f"children of {f.parent_id}"] if f.parent_id else []
        parts += [f"{name} {self.text(name)}" for name in ("since", "before") if self.text(name)]
        parts += [" or ".join(f.status)] if f.status else []
        return ", ".join(parts) or "all"


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/jobs")
    def find(request: Request, who: Viewer, given: Given, cursor: Annotated[str | None, Query(max_length=500)] = None) -> Response:  # fmt: skip
        now = desk.now()
        asked = Asked(given, who, now)
        seen: Found[Job] = Found([], None)
        total = Tally(0, at_least=False)
        if not asked.problem:
            f = asked.filter
            seen = app._snapshot(lambda c: app.engine.reader.look(c, f, LIMIT, below(cursor), LOOK))
            if not cursor and (seen.below is None or seen.is_cut):
                total = Tally(len(seen.rows), seen.is_cut)
            else:
                total = desk.lately(
                    ("count", f.tenant, asked.address("")), lambda: app._snapshot(lambda c: app.engine.reader.tally(c, f, CAP, COUNT))
                )  # fmt: skip
        following = asked.address("/jobs", cursor=going_on(seen.below)) if seen.below else None
        return desk.page(
            request, "jobs.html", "Jobs", 422 if asked.problem else 200, jobs=seen.rows, asked=asked, statuses=list(Status), total=total,
            now=now, following=following, seen=seen, first=asked.address("/jobs") if cursor else None,
            names=names(app, desk, who), chosen=set(given.get("status", [])), several=who.tenant is None,
        )  # fmt: skip

    @made.get("/jobs/go")
    def go(who: Viewer, q: Annotated[str, Query(max_length=500)] = "") -> Response:
        """From the search: a number is a job, a known queue or task its jobs, anything else a key."""
        text = q.strip()
        if text.isascii() and text.isdigit() and len(text) < 19:
            return RedirectResponse(f"/jobs/{int(text)}", 303)
        known = names(app, desk, who)
        kind = "queue" if text in known["queues"] else "task" if text in known["tasks"] else "key"
        return RedirectResponse(query("/jobs", **{kind: text}), 303)

    @made.get("/jobs/act")
    def ask(request: Request, who: Asker, given: Given, event: str = "replay", force: str = "") -> Response:
        """What an act on many would do."""
        _event(event)
        asked, again = _asked(given, who), bool(force)
        found = app.jobs.admin.matching(asked.filter, event, MOST_JOBS, again)
        sample = app._read(lambda c: app.engine.reader.get_many(c, found[:SAMPLE]))
        # what was cancelled since then is no part of a replay by filter
        named = "ids" in given
        states = () if named else asked.filter.status or (able(event, again) if event == "replay" else ())
        return desk.page(
            request, "jobs_act.html", f"{ACTS[event]} jobs", asked=asked, event=event, verb=ACTS[event], force=again, total=len(found),
            capped=len(found) >= MOST_JOBS, jobs=packed(found), mark=secrets.token_urlsafe(12), sample=[sample[one] for one in found[:SAMPLE] if one in sample], back=asked.address("/jobs"),
            label=f"{ACTS[event]} {plural(len(found), 'job')}", ids=found if "ids" in given else None,
            states=states,
        )  # fmt: skip

    @made.post("/jobs/act")
    def act(request: Request, form: Operator) -> Response:
        event, ids, force = _event(form.text("event")), unpacked(form.text("jobs")), bool(form.text("force"))
        mark = _mark(form.text("mark"))
        begun = desk.bulk.pressed(form.who.key, mark)
        if begun is not None:
            return RedirectResponse(f"/jobs/acts/{begun}", 303)
        states = tuple(one for one in form.many("status") if one) or able(event, force, named=True)
        fits = JobFilter(tenant=form.who.tenant, status=states)
        if not app.jobs.admin.matching(replace(fits, ids=ids), event, 1, force):
            return desk.done(request, form.back, f"None of them can be {WHAT[event].partition(',')[0]}.", "warn")
        begun = desk.bulk.begin(
            form.who, event, ids, form.reason, force, window=bulk.WINDOW, fits=fits, back=form.back, mark=mark
        )
        return RedirectResponse(f"/jobs/acts/{begun}", 303)

    @made.get("/jobs/acts/{name}")
    def show(request: Request, who: Viewer, name: str) -> Response:
        """How far an act on many is."""
        found = desk.bulk.get(name, who.key)
        over = found.over_at is not None  # asked first: what is told of one that is over is the whole of it
        return desk.page(
            request,
            "jobs_bulk.html",
            f"{ACTS[found.event]} jobs",
            a=found,
            over=over,
            verb=ACTS[found.event],
            told=bulk.told(found),
        )

    @made.post("/jobs/acts/{name}/undo")
    def undo(request: Request, form: Operator, name: str) -> Response:
        """Have it not done, if it has not begun."""
        found = desk.bulk.undo(name, form.who.key)
        if found.state != "undone":
            return desk.done(request, f"/jobs/acts/{name}", "It had begun already.", "warn")
        return desk.done(request, found.back, "Undone: no job was touched.")

    def _mark(mark: str) -> str:
        if not 1 <= len(mark) <= 50:
            raise InvalidArgument("mark", "is missing.", "Load the page again, and press its button.")
        return mark

    def _event(event: str) -> str:
        if event not in ACTS:
            raise InvalidArgument("event", f"is {event[:40]!r}.", "Use cancel or replay.")
        return event

    def _asked(given: dict[str, list[str]], who: Identity) -> Asked:
        asked = Asked(given, who, desk.now())
        if asked.problem:
            raise InvalidArgument("filter", f"cannot be used: {asked.problem}")
        if not asked.narrows:
            raise InvalidArgument("filter", "names nothing besides a status.", "Name a queue, a task, a key, a time, or choose jobs.")  # fmt: skip
        return asked

    return made


def names(app: Duly, desk: Desk, who: Identity) -> dict[str, list[str]]:
    """Queues and tasks that are known, for those who type; of who belongs to a tenant, those of its own live jobs."""
    mine = whose(who)
    queues = set(app._read(lambda c: standing(c, mine, KNOWN)))
    tasks: set[str] = set()
    if mine is None:
        workers = app._read(lambda c: app.engine.reader.live_workers(c, WORKER_GONE))
        queues |= set(app.queues.all()) | {queue for worker in workers for queue in worker["queues"]}
        tasks = set(app.engine.task_names) | {task for worker in workers for task in worker["tasks"]}
    return {"queues": sorted(queues), "tasks": sorted(tasks)}

"""``/queues``: what waits in each queue, what governs it, and the online gate above them all.

A queue belongs to every tenant, so who belongs to one looks at its own jobs here and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from duly.accounts.account import Identity, Role
from duly.calendars.tables import queue_scopes
from duly.jobs.ask import WORKER_GONE
from duly.jobs.queues import QueueSettings
from duly.jobs.survey import Depth, depths
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_name, read_duration
from duly.monitoring.examine import gate_facts
from duly.web.api.common import whose
from duly.web.dashboard.desk import Act, Desk, acts, sees
from duly.web.dashboard.words import span

Viewer: TypeAlias = Annotated[Identity, sees("queues")]
Operator: TypeAlias = Annotated[Act, acts("queues", Role.OPERATOR, everywhere=True)]
Admin: TypeAlias = Annotated[Act, acts("queues", Role.ADMIN, everywhere=True)]


#: What is said of a gate that was opened and one that was closed, by its scope.
MOVED = {
    None: ("open: work is claimed.", "closed: running jobs go on, nothing more is claimed."),
    "jobs": ("open for jobs: work is claimed.", "closed for jobs: running jobs go on, nothing more is claimed."),
    "outbox": ("open for the outbox: relays send.", "closed for the outbox: no relay sends anything."),
}


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    @made.get("/queues")
    def find(request: Request, who: Viewer) -> Response:
        mine = whose(who)

        def look(c: Connection) -> dict[str, Any]:
            now, calendar = app.db.present(c), app.engine.calendars.calendar(c)
            stands = {one.queue: one for one in depths(c, now, mine)}
            workers = app.engine.reader.live_workers(c, WORKER_GONE)
            served = Counter(queue for worker in workers for queue in worker["queues"])
            known = app.engine.queues.all(c)
            rows = []
            for name in sorted({*stands, *served, *known} if mine is None else stands):
                dark = calendar.applying_to(*queue_scopes(name)).covering(now)
                settings = known.get(name, QueueSettings(name))
                rows.append({"name": name, "settings": settings, "held": settings.is_held(now), "dark": dark, "workers": served[name], "limits": _limits(settings),
                             "stands": stands.get(name, Depth(name))})  # fmt: skip
            return {
                "rows": rows,
                "workers": workers if mine is None else [],
                "gate": gate_facts(app.engine, c),
                "now": now,
            }

        app.open()
        found = desk.lately(("queues", mine), lambda: app.db.read(look))
        return desk.page(request, "queues.html", "Queues & gate", **found, acts=mine is None)

    @made.post("/queues/pause")
    def pause(request: Request, form: Operator) -> Response:
        name = _name(form)
        app.queues.pause(name, form.reason, form.who.actor)
        return desk.done(request, form.back, f"Queue {name} is paused: its running jobs go on, none of it is claimed.")

    @made.post("/queues/resume")
    def resume(request: Request, form: Operator) -> Response:
        name = _name(form)
        app.queues.resume(name, form.who.actor)
        return desk.done(request, form.back, f"Queue {name} is open again.")

    @made.post("/queues/release")
    def release(request: Request, form: Operator) -> Response:
        name = _name(form)
        app.queues.release(name, form.who.actor)
        return desk.done(request, form.back, f"Queue {name} is held no longer.")

    @made.post("/queues/limits")
    def limits(request: Request, form: Operator) -> Response:
        name = _name(form)
        rate = None
        if form.text("rate") or form.text("per"):
            count = _whole(form, "rate")
            rate = (count or 0, read_duration(form.text("per") or "1s", "per").total_seconds())
        app.queues.set(
            name, limit=_whole(form, "limit"), key_limit=_whole(form, "key_limit"), rate=rate, fair=bool(form.text("fair")), actor=form.who.actor,
        )  # fmt: skip
        return desk.done(request, form.back, f"The limits of queue {name} are set.")

    @made.post("/gate")
    def gate(request: Request, form: Admin) -> Response:
        to = form.text("to")
        if to not in ("online", "offline"):
            raise InvalidArgument("to", f"is {to[:40]!r}.", "Use online or offline.")
        scope = form.text("scope") or None
        (app.gate.online if to == "online" else app.gate.offline)(form.reason, form.who.actor, scope)
        opened, closed = MOVED[scope]
        return desk.done(request, form.back, f"The gate is {opened if to == 'online' else closed}")

    return made


def _limits(s: QueueSettings) -> list[str]:
    """What bounds a queue, in words."""
    out = [f"{s.limit} at once"] if s.limit is not None else []
    out += [f"{s.key_limit} per key"] if s.key_limit is not None else []
    out += [f"{s.rate.count} in {span(s.rate.seconds)}"] if s.rate is not None else []
    return [*out, *(["tenants take turns"] if s.fair else [])]


def _name(form: Act) -> str:
    return check_name(form.text("queue"), "queue")


def _whole(form: Act, field: str) -> int | None:
    """A number of a form; none where it is left empty. Raises InvalidArgument."""
    text = form.text(field)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidArgument(field, f"is {text[:40]!r}.", "Give a whole number, or nothing.")
    return int(text)

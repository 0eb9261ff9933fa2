"""``/schedules/form``: a schedule is made or changed: a form, and beside it what would come of it, live.

Nothing is written before it is saved. What is wrong is said beside the form, and what somebody has typed stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.kernel.errors import DulyError, InvalidArgument, WrongState
from duly.kernel.payload import check_name, check_text
from duly.kernel.recurrence import CivilSchedule, schedule_from_json, special_days
from duly.kernel.recurrence.forms import KINDS
from duly.kernel.recurrence.reading import read_instant
from duly.schedules.door import Previewed
from duly.schedules.schedule import Policies, Schedule, Spec
from duly.web.api.common import for_whom
from duly.web.dashboard.desk import Act, Desk, acts, query, sees, where

Viewer: TypeAlias = Annotated[Identity, sees("schedules")]
Operator: TypeAlias = Annotated[Act, acts("schedules", Role.OPERATOR)]
Named: TypeAlias = Annotated[str, Query(max_length=200)]
#: Instants to come that are shown, and days of which is told that clocks change.
COMING, LONGEST_LOOK = 10, 3_660
#: Fields of a recurrence that are several values with commas between them.
LISTS = ("at", "days", "dates", "moments")
#: What each kind is called in the form.
SAID = {
    "cron": "a cron expression", "every": "a fixed interval", "daily": "times of every day", "weekly": "days of the week",
    "monthly": "a day of the month", "yearly": "days of the year", "on_dates": "dates", "moments": "dates with their times", "once": "one instant",
    "rrule": "a rule of RFC 5545",
}  # fmt: skip
TRY = "/schedules/form/try"


@dataclass(slots=True)
class Tried:
    """What would come of what stands in the form."""

    problem: str = ""
    when: str = ""
    tz: str | None = None
    coming: list[Previewed] = field(default_factory=list)
    clock_changes: list[str] = field(default_factory=list)


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    def form(request: Request, given: Mapping[str, str], tried: Tried, status: int = 200) -> Response:
        title = f"Change {given.get('name', '')}" if given.get("version") else "New schedule"
        return desk.page(
            request, "schedule_form.html", title, status, given=given, tried=tried, kinds=SAID, fields=fields(), TRY=TRY,
            tasks=sorted(app.engine.task_names), queues=sorted({t.queue for t in app.engine.tasks.values()} | {"default"}),
        )  # fmt: skip

    @made.get("/schedules/form")
    def show(request: Request, who: Viewer, name: Named = "", tenant: Named = "") -> Response:
        checked_may(who)
        asked = dict(request.query_params)
        if name and "kind" not in asked:
            given = filled(app.schedules.get(check_name(name, "name"), tenant=where(who, tenant, "schedule")))
        else:  # a new one; or, without scripts, one that is looked at before it is saved
            given = {
                "kind": "daily",
                "at": "09:00",
                "catch_up": "latest",
                "overlap": "allow",
                "blackout": "defer",
                "tenant": tenant,
                **asked,
            }
        return form(request, given, tried(app, who, given) if "kind" in asked or given.get("version") else Tried())

    @made.get(TRY)
    def try_out(request: Request, who: Viewer) -> Response:
        return desk.page(request, "schedule_try.html", "Preview", tried=tried(app, who, dict(request.query_params)))

    @made.post("/schedules/form")
    def save(request: Request, sent: Operator) -> Response:
        given = {name: sent.text(name) for name in sent.fields}
        version = given.get("version", "")
        try:
            spec = spec_of(app, sent.who, given, strict=True)
            app.open()
            found, change = app.schedules.set(spec, actor=sent.who.actor, version=a_number(version))
        except WrongState:
            problem = (
                "Somebody else has changed it since you opened it. Open it again to see what it is now." if version
                else f"There is a schedule named {given.get('name')} already. Choose another name, or change that one."
            )  # fmt: skip
            return form(request, given, Tried(problem), 409)
        except DulyError as error:
            return form(request, given, Tried(said(error)), 422)
        said_of = {"created": "is made", "changed": f"has version {found.version} now"}.get(change, "is as it was")
        return desk.done(request, query("/schedules/show", name=found.name, tenant=found.tenant), f"Schedule {found.name} {said_of}.")  # fmt: skip

    return made


def checked_may(who: Identity) -> None:
    from duly.web.identity import checked

    checked(who, "schedules", Role.OPERATOR)


def fields() -> dict[str, list[str]]:
    """For each field of a recurrence, the kinds that have it."""
    out: dict[str, list[str]] = {}
    for kind, (_, required, optional) in KINDS.items():
        for name in (*required, *optional):
            out.setdefault(name, []).append(kind)
    return out


def recurrence_of(given: Mapping[str, str]) -> dict[str, Any]:
    """The recurrence that a form says, as JSON: what is left blank is left out, and so is what its kind has no field for."""
    kind = given.get("kind", "")
    _, required, optional = KINDS.get(kind, (None, (), ()))
    out: dict[str, Any] = {"kind": kind}
    for name in (*required, *optional):
        text = "" if name == "name" else given.get(name, "").strip()
        if text:
            many = [part.strip() for part in text.split(",") if part.strip()]
            out[name] = (
                (many if len(many) > 1 or name in ("dates", "moments") else many[0] if many else "")
                if name in LISTS
                else text
            )
    if (day := a_number(str(out.get("day", "")))) > 0:
        out["day"] = day
    return out


def spec_of(app: Duly, who: Identity, given: Mapping[str, str], strict: bool) -> Spec:
    """What a form says. ``strict``: all of it, as it would be saved; otherwise what a preview needs. Raises InvalidArgument."""
    for name, value in given.items():
        check_text(value, name)
    tenant = for_whom(who, given.get("tenant") or None, app.settings.tenant)
    recurrence = schedule_from_json(recurrence_of(given), "recurrence")
    bounds: dict[str, Any] = {
        name: read_instant(given[name], name) for name in ("starts_at", "ends_at") if given.get(name)
    }
    options: dict[str, Any] = {
        name: given[name] for name in ("catch_up", "overlap", "blackout", "queue") if given.get(name)
    }
    if not strict:
        policies = Policies(blackout=options.get("blackout", "defer"))
        return Spec(given.get("name") or "preview", recurrence, "preview", "{}", options.get("queue", "default"), tenant, policies, starts_at=bounds.get("starts_at"), ends_at=bounds.get("ends_at"))  # fmt: skip
    for number in ("priority", "max_attempts"):
        if given.get(number):
            options[number] = whole_number(given[number], number)
    return app.schedules.spec(
        given.get("name", ""), recurrence, given.get("task", ""), input_of(app, given, tenant), tenant=tenant, **options, **bounds
    )  # fmt: skip


def input_of(app: Duly, given: Mapping[str, str], tenant: str) -> dict[str, Any]:
    """The input that a form says; of a schedule that is changed, the one that it has where the field is blank: a form shows no secrets."""
    text = given.get("input", "")
    if not text and given.get("version"):
        spec = app.schedules.get(given.get("name", ""), tenant=tenant).spec
        text = "{}" if spec is None else spec.input
    try:
        found = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise InvalidArgument("input", f"is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise InvalidArgument("input", "is no JSON object of argument names to values.")
    return found


def a_number(text: str) -> int:
    """A number that a person counts with; 0 for none, -1 for anything else."""
    if not text:
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1


def whole_number(text: str, field: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(field, f"is {text[:40]!r}, which is no whole number.") from None


def tried(app: Duly, who: Identity, given: Mapping[str, str]) -> Tried:
    """When it would run, or what is wrong with it."""
    try:
        spec = spec_of(app, who, given, strict=False)
        app.open()
        now = app.engine.clock.now()
        coming = app.schedules.preview_of(spec, COMING, since=now)
        when = spec.recurrence.describe(since=now)
    except DulyError as error:
        return Tried(said(error))
    changes: list[str] = []
    if coming and isinstance(spec.recurrence, CivilSchedule):
        days = min((coming[-1].due_at - now).days + 1, LONGEST_LOOK)
        changes = [day.text for day in special_days(spec.recurrence, now, days)]
    return Tried("", when, spec.tz, coming, changes)


def said(error: DulyError) -> str:
    """An error by the names of the form's fields."""
    return str(error).removeprefix("recurrence.")


def filled(s: Schedule) -> dict[str, str]:
    """A schedule as its form shows it."""
    given = {"name": s.name, "tenant": s.tenant, "version": str(s.version), "kind": "daily"}
    spec = s.spec
    if spec is None:
        return given
    given |= {
        name: in_a_field(value)
        for name, value in spec.recurrence.to_json().items()
        if value is not None and name != "name"
    }
    given |= {"task": spec.task, "queue": spec.queue, "catch_up": spec.policies.catch_up_text, "overlap": spec.policies.overlap, "blackout": spec.policies.blackout}  # fmt: skip
    given |= {name: at.isoformat() for name in ("starts_at", "ends_at") if (at := getattr(spec, name)) is not None}
    return given | {
        name: str(value) for name in ("priority", "max_attempts") if (value := getattr(spec, name)) is not None
    }


def in_a_field(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

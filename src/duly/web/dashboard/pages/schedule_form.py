"""``/schedules/form``: a schedule is made or changed: a form, and beside it what would come of it, live.

Nothing is written before it is saved. What is wrong is said beside the form, and what somebody has typed stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request, Response

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.jobs.task import Options
from duly.kernel.errors import DulyError, InvalidArgument, NotFound, WrongState
from duly.kernel.payload import check_name, check_text, read_json
from duly.kernel.recurrence import schedule_from_json
from duly.kernel.recurrence.forms import KINDS
from duly.kernel.recurrence.reading import read_instant
from duly.kernel.rooms import check_task
from duly.schedules.door import Previewed, clock_changes
from duly.schedules.schedule import Policies, Schedule, Spec
from duly.web.api.common import for_whom
from duly.web.dashboard.desk import Act, Desk, acts, query, sees, where
from duly.web.dashboard.pages.jobs import names
from duly.web.dashboard.pages.schedules import as_seen

Viewer: TypeAlias = Annotated[Identity, sees("schedules")]
Operator: TypeAlias = Annotated[Act, acts("schedules", Role.OPERATOR)]
Named: TypeAlias = Annotated[str, Query(max_length=200)]
#: Instants to come that are shown.
COMING = 10
#: Fields of a recurrence that are several values with commas between them.
LISTS = ("at", "days", "day", "dates", "moments")
#: Fields of a recurrence that are elapsed time: spans, or seconds.
SPANS = ("duration", "jitter")
#: What each kind is called in the form.
SAID = {
    "cron": "a cron expression", "every": "a fixed interval", "daily": "times of every day", "weekly": "days of the week",
    "monthly": "a day of the month", "yearly": "days of the year", "on_dates": "dates", "moments": "dates with their times", "once": "one instant",
    "rrule": "a rule of RFC 5545",
}  # fmt: skip
TRY, LOOK = "/schedules/form/try", "/schedules/form/look"


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

    def form(request: Request, who: Identity, given: Mapping[str, str], tried: Tried, status: int = 200) -> Response:
        title = f"Change {given.get('name', '')}" if given.get("version") else "New schedule"
        return desk.page(
            request, "schedule_form.html", title, status, given=given, tried=tried, kinds=SAID, fields=fields(), TRY=TRY, LOOK=LOOK,
            names=names(app, desk, who),
        )  # fmt: skip

    @made.get("/schedules/form")
    def show(request: Request, who: Viewer, name: Named = "", tenant: Named = "") -> Response:
        checked_may(who)
        if not name:
            given = {"kind": "daily", "at": "09:00", "catch_up": "latest", "overlap": "allow", "blackout": "defer", "tenant": tenant}  # fmt: skip
            return form(request, who, given, Tried())
        given = filled(app.schedules.get(check_name(name, "name"), tenant=where(who, tenant, "schedule")))
        return form(request, who, given, tried(app, who, given))

    @made.post(LOOK)
    def look(request: Request, sent: Operator) -> Response:
        """Without scripts: what it means, before it is saved."""
        given = read(sent)
        return form(request, sent.who, given, tried(app, sent.who, given))

    @made.get(TRY)
    def try_out(request: Request, who: Viewer) -> Response:
        return desk.page(request, "schedule_try.html", "Preview", tried=tried(app, who, dict(request.query_params)))

    @made.post("/schedules/form")
    def save(request: Request, sent: Operator) -> Response:
        given = read(sent)
        version = given.get("version", "")
        try:
            was = looked_at(app, sent.who, given)
            spec = spec_of(app, sent.who, given, was, strict=True)
            app.open()
            found, change = app.schedules.set(
                spec, actor=sent.who.actor, version=was.version if was is not None else 0, id=was.id if was is not None else None,
                reason=sent.reason,
            )  # fmt: skip
        except WrongState:
            problem = (
                "Somebody else has changed it since you opened it. Open it again to see what it is now." if version
                else f"There is a schedule named {given.get('name')} already. Choose another name, or change that one."
            )  # fmt: skip
            return form(request, sent.who, given, Tried(problem), 409)
        except DulyError as error:
            return form(request, sent.who, given, Tried(said(error)), 422)
        said_of = {"created": "is made", "changed": f"has version {found.version} now"}.get(change, "is as it was")
        return desk.done(request, query("/schedules/show", name=found.name, tenant=found.tenant), f"Schedule {found.name} {said_of}.")  # fmt: skip

    return made


def checked_may(who: Identity) -> None:
    from duly.web.identity import checked

    checked(who, "schedules", Role.OPERATOR)


def read(sent: Act) -> dict[str, str]:
    """A form's fields without blanks around them, but for those that say which schedule is changed."""
    exact = ("name", "tenant") if sent.text("version") else ()
    return {name: check_text(sent.fields[name][-1], name) if name in exact else sent.text(name) for name in sent.fields}


def looked_at(app: Duly, who: Identity, given: Mapping[str, str]) -> Schedule | None:
    """The schedule that a form was opened for; None of a new one. Raises WrongState for one that is another by now."""
    if not given.get("version"):
        return None
    name = given.get("name", "")
    try:
        found = app.schedules.get(
            check_name(name, "name"), tenant=for_whom(who, given.get("tenant") or None, app.settings.tenant)
        )
    except NotFound:
        found = None
    if found is None or (found.id, found.version) != (a_number(given.get("id", "")), a_number(given["version"])):
        raise WrongState(f"schedule {name}", "another by now", "be changed by this form")
    return found


def fields() -> dict[str, list[str]]:
    """For each field of a recurrence, the kinds that have it."""
    out: dict[str, list[str]] = {}
    for kind, (_, required, optional) in KINDS.items():
        for name in (*required, *optional):
            out.setdefault(name, []).append(kind)
    return out


def recurrence_of(given: Mapping[str, str], old: Spec | None = None) -> dict[str, Any]:
    """The recurrence that a form says, as JSON: what is left blank is left out, and so is what its kind has no field for. What stands there
    as it was shown is what it was, to the last digit."""
    kind = given.get("kind", "")
    _, required, optional = KINDS.get(kind, (None, (), ()))
    before = {} if old is None else old.recurrence.to_json()
    out: dict[str, Any] = {"kind": kind}
    for name in (*required, *optional):
        text = given.get(name, "").strip()
        if name == "name":  # by which H and a spread are chosen: the schedule's own, unless it was given another
            out |= {"name": before["name"]} if "name" in before else {}
        elif before.get("kind") == kind and name in before and text == in_a_field(name, before[name]).strip():
            out[name] = before[name]
        elif text:
            out[name] = read_field(name, text)
    return out


def read_field(name: str, text: str) -> Any:
    """A field of a recurrence, as JSON."""
    if name in SPANS:
        return float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) else text
    if name not in LISTS:
        return text
    many: list[Any] = [part.strip() for part in text.split(",") if part.strip()]
    if name == "day":
        many = [number if (number := a_number(part)) > 0 else part for part in many]
    return many if len(many) > 1 or name in ("dates", "moments") else many[0] if many else ""


def spec_of(app: Duly, who: Identity, given: Mapping[str, str], was: Schedule | None, strict: bool) -> Spec:
    """What a form says. ``was``: what it changes. ``strict``: all of it, as it would be saved; otherwise what a preview needs. Raises
    InvalidArgument."""
    for name, value in given.items():
        check_text(value, name)
    tenant = for_whom(who, given.get("tenant") or None, app.settings.tenant)
    old = was.spec if was is not None else None
    shown = filled(was) if was is not None and old is not None else {}

    def stays(name: str) -> bool:
        return bool(shown) and given.get(name, "").strip() == shown.get(name, "").strip()

    recurrence = schedule_from_json(recurrence_of(given, old), "recurrence")
    bounds: dict[str, Any] = {}
    for name in ("starts_at", "ends_at"):
        if old is not None and stays(name):
            bounds[name] = getattr(old, name)
        elif given.get(name):
            bounds[name] = read_instant(given[name], name)
    rules = {name: given[name] for name in ("catch_up", "overlap", "blackout") if given.get(name)}
    options: dict[str, Any] = {"queue": given["queue"]} if given.get("queue") else {}
    if old is not None:
        rules |= {"catch_up": old.policies.catch_up} if stays("catch_up") else {}  # type: ignore[dict-item]
        options |= {"queue": old.queue} if stays("queue") else {}
    if not strict:
        policies = Policies(blackout=rules.get("blackout", "defer"))  # type: ignore[arg-type]
        return Spec(given.get("name") or "preview", recurrence, "preview", "{}", options.get("queue", "default"), tenant, policies, **bounds)  # fmt: skip
    for number in ("priority", "max_attempts"):
        if given.get(number):
            options[number] = whole_number(given[number], number)
    task = old.task if old is not None and stays("task") else check_task(given.get("task", ""))
    if old is None or given.get("input") or task != old.task:
        return app.schedules.spec(given.get("name", ""), recurrence, task, input_of(given, old), tenant=tenant, **options, **rules, **bounds)  # type: ignore[arg-type]  # fmt: skip
    # Its input is not sent, and is not read again: a task may have changed since, and what databases keep is more than a form can say.
    usual, known = Options(**options).checked(), app.engine.tasks.get(task)
    priority = usual.priority if usual.priority is not None else known.priority if known is not None else 0
    attempts = old.max_attempts if stays("max_attempts") else usual.max_attempts or app.attempts_of(task)
    return replace(
        old, recurrence=recurrence, policies=Policies(**rules), queue=usual.queue or (known.queue if known is not None else "default"),  # type: ignore[arg-type]
        priority=priority, max_attempts=attempts, starts_at=bounds.get("starts_at"), ends_at=bounds.get("ends_at"),
    )  # fmt: skip


def input_of(given: Mapping[str, str], old: Spec | None) -> dict[str, Any]:
    """The input that a form says; of a schedule that is changed, the one that it has where the field is blank: a form shows no secrets."""
    text = given.get("input", "") or (old.input if old is not None else "{}")
    found = read_json(text, "input")
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
        spec = spec_of(app, who, given, _known(app, who, given), strict=False)
        now = app._read(app.db.present)
        coming = as_seen(app.schedules.preview_of(spec, COMING, since=now), who)
        when = spec.recurrence.describe(since=now)
    except DulyError as error:
        return Tried(said(error))
    return Tried("", when, spec.tz, coming, clock_changes(spec.recurrence, coming, now))


def _known(app: Duly, who: Identity, given: Mapping[str, str]) -> Schedule | None:
    try:
        return looked_at(app, who, given)
    except WrongState:  # it is said when the form is saved
        return None


def said(error: DulyError) -> str:
    """An error by the names of the form's fields."""
    return str(error).removeprefix("recurrence.")


def filled(s: Schedule) -> dict[str, str]:
    """A schedule as its form shows it."""
    given = {"name": s.name, "tenant": s.tenant, "version": str(s.version), "id": str(s.id), "kind": "daily"}
    spec = s.spec
    if spec is None:
        return given
    given |= {name: in_a_field(name, value) for name, value in spec.recurrence.to_json().items() if value is not None and name != "name"}  # fmt: skip
    given |= {"task": spec.task, "queue": spec.queue, "catch_up": spec.policies.catch_up_text, "overlap": spec.policies.overlap, "blackout": spec.policies.blackout}  # fmt: skip
    given |= {name: at.isoformat() for name in ("starts_at", "ends_at") if (at := getattr(spec, name)) is not None}
    return given | {
        name: str(value) for name in ("priority", "max_attempts") if (value := getattr(spec, name)) is not None
    }


def in_a_field(name: str, value: Any) -> str:
    if name in SPANS and not isinstance(value, str):
        return _span(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _span(seconds: float) -> str:
    """``1h30m``; of a part of a second, its seconds."""
    if seconds != int(seconds) or seconds == 0:
        return str(seconds)
    left, out = int(seconds), ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        out += f"{count}{unit}" if count else ""
    return out

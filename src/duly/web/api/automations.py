"""``/api/v1/automations``: AI sessions on a slot: what they are, when they run, what is said in them, and talking oneself.

An automation is named by its id, or by its name in its tenant; its number and its version are its ETag. What is said in a session is a payload: hidden from
who may not see those. Source: R001, T001, B080.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from pydantic import BaseModel, Field, computed_field

from duly.accounts.account import Identity
from duly.app import Duly
from duly.automations.automation import Automation as Known
from duly.automations.automation import NoCall, definition_json
from duly.automations.door import Automations
from duly.idempotency.http_request import key_of
from duly.kernel.errors import InvalidArgument, WrongState
from duly.kernel.names import noticing
from duly.monitoring.redact import redacted
from duly.web.api import sessions
from duly.web.api.common import (
    ETAG,
    Act,
    Cursor,
    IfMatch,
    Instant,
    Limit,
    Name,
    Reason,
    Strict,
    TenantIn,
    Words,
    at_first_use,
    below,
    check_tag,
    for_whom,
    page,
    router,
    tag,
    whose,
)
from duly.web.api.sessions import Long, Names, Operator, Viewer, Which
from duly.web.api.sessions_out import Wanted, wanted_out
from duly.web.problems import ProblemRoute, Stale, documented


class MessageOut(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    text: str


class Automation(BaseModel):
    """An automation as it stands. Its messages are hidden from who may not see payloads."""

    id: int
    tenant: str
    name: str
    messages: list[MessageOut] | None
    schedule: dict[str, Any] | None
    when: str = Field(description="In plain words.")
    triggers: list[str]
    tools: list[str]
    slot: str
    provider: str | None
    model: str | None
    dismiss_older_instances: bool
    catch_up_window: float | None = Field(description="Seconds.")
    limits: dict[str, Any] = Field(description="Those that are not at their defaults.")
    max_tokens: int | None = Field(description="The longest answer, in tokens; null: the setting ai_max_tokens.")
    temperature: float | None
    no_call: NoCall = Field(
        description="What an answer means that neither calls a tool nor says that the work is done."
    )
    max_unanswered: int | None = Field(
        description="Maximum number of answers in a row that may break off; null: the setting automation_max_unanswered."
    )
    is_enabled: bool
    version: int
    error: str | None = Field(description="Why its schedule cannot be read.")
    next_run: Instant | None = Field(description="The next planned instant; in the past where it is due.")
    last_execution_id: int | None
    execution_history: list[int] = Field(description="Its last sessions, the newest first.")
    created_at: Instant
    updated_at: Instant
    hidden: bool
    warnings: list[str] = Field(
        [],
        description="Of a change: tools that neither this application nor a running worker knows, and triggers that are nearly events of Duly's.",
    )

    @computed_field(description=ETAG)  # type: ignore[prop-decorator]
    @property
    def etag(self) -> str:
        return tag(f"{self.id}.{self.version}")


class Page(BaseModel):
    automations: list[Automation]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class MessageIn(Strict):
    role: Literal["system", "user", "assistant"]
    text: Long


class Changes(Strict):
    """What an automation is made of. ``prompt`` is one message of the user; give it, or ``messages``."""

    prompt: Long | None = None
    messages: list[MessageIn] | None = Field(None, min_length=1, max_length=200)
    schedule: dict[str, Any] | None = Field(None, description='`{"kind": "daily", "at": "08:00", "tz": "Europe/Paris"}`; null: only people and events run it.')  # fmt: skip
    triggers: Names | None = Field(None, description="Names of events that run it.")
    tools: Names | None = None
    slot: Name | None = None
    provider: Name | None = Field(None, description="Null: that of the settings.")
    model: Name | None = None
    dismiss_older_instances: bool | None = Field(None, description="Of several missed occurrences only the latest runs.")  # fmt: skip
    catch_up_window: float | Words | None = Field(None, description="How far back missed occurrences still run: seconds, or a span such as 2h.")  # fmt: skip
    limits: dict[str, float | int | None] | None = None
    max_tokens: int | None = Field(None, description="The longest answer, in tokens; null: the setting ai_max_tokens.")
    temperature: float | None = Field(None, description="From 0 to 2; null: that of the provider.")
    no_call: NoCall | None = Field(None, description="What an answer means that neither calls a tool nor says that the work is done.")  # fmt: skip
    max_unanswered: int | None = Field(None, description="Maximum number of answers in a row that may break off; null: the setting automation_max_unanswered.")  # fmt: skip


class AutomationIn(Changes):
    name: Name
    is_enabled: bool = True
    tenant: Name | None = None


class AutomationChange(Changes):
    """What is not given stays. Null for schedule, provider, model, catch_up_window, max_tokens, temperature and max_unanswered takes it away; elsewhere it is nothing."""

    name: Name | None = None


class RunIn(Act):
    key: Words | None = Field(None, min_length=1, max_length=500, description="Once per key and automation.")


class Fired(BaseModel):
    sessions: list[Wanted] = Field(description="One for each automation that is on and has the trigger.")


class Slot(BaseModel):
    name: str
    held: bool
    session_id: int | None = Field(description="Who has it; null where it is free, or held by another tenant.")
    since: Instant | None = Field(description="When it was taken or given back last.")


class Slots(BaseModel):
    slots: list[Slot]


class Condition(BaseModel):
    """One condition that has to hold before an automation starts."""

    name: str
    met: bool
    detail: str
    remedy: str


class Why(BaseModel):
    id: int
    starts: bool = Field(description="Every condition is met: it starts at the next pass.")
    checks: list[Condition]


def routes(app: Duly) -> Any:
    made = router("automations")
    #: For what others send, whose addresses may have a query of their own.
    others = APIRouter(route_class=ProblemRoute)
    door = at_first_use(lambda: Automations.of(app))

    # ------------------------------------------------------------------ definitions

    @made.get("/automations", response_model=Page)
    def find(
        who: Viewer,
        is_enabled: Annotated[bool | None, Query()] = None,
        slot: Annotated[Name | None, Query()] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Page:
        """List automations, newest first."""
        found = door().list(
            tenant=whose(who, tenant), enabled=is_enabled, slot=slot, below=below(cursor), limit=limit + 1
        )
        kept, following = page(found, limit, lambda one: one.id)
        return Page(automations=[_shown(door(), one, who) for one in kept], next=following)

    @made.post("/automations", response_model=Automation, status_code=201)
    def create(given: AutomationIn, who: Operator, request: Request, response: Response) -> Automation:
        """Make an automation. Nothing that was planned before this moment runs."""
        said = _definition(given, {"is_enabled", "tenant"})
        at = for_whom(who, given.tenant, app.settings.tenant)
        with noticing() as warned:
            found = door().create(said, enabled=given.is_enabled, tenant=at, actor=who.actor)
        response.headers["Location"] = request.url_for("duly_automation", automation=str(found.id)).path
        response.headers["ETag"] = _tag(found)
        return _shown(door(), found, who, warned)

    @made.get("/automations/slots", response_model=Slots)
    def slots(who: Viewer, tenant: TenantIn = None) -> Slots:
        """Every slot: who has it, and since when."""
        found = door().slots(whose(who, tenant))
        return Slots(
            slots=[
                Slot(name=one.name, held=one.activation is not None, session_id=one.session_id, since=one.since)
                for one in found
            ]
        )

    @others.post("/automations/events/{event}", response_model=Fired, responses=documented(400, 409))
    def fire(
        event: Annotated[Words, Path(min_length=1, max_length=200)],
        who: Operator,
        request: Request,
        payload: Annotated[dict[str, Any] | None, Body(description="What is told to the AI, as data.")] = None,
        # for the description; it is read as the middleware reads it
        idempotency_key: Annotated[Words | None, Header(min_length=1, max_length=200, description="Once per key and automation.")] = None,
        tenant: TenantIn = None,
    ) -> Fired:  # fmt: skip
        """A webhook: say that something has happened. Automations that are on and have this trigger are executed.

        400 for a key that is none, 409 while the first request with it is under way.
        """
        at = for_whom(who, tenant, app.settings.tenant)
        found = door().fire(
            event, payload, key=key_of(request.scope["headers"], "Idempotency-Key"), tenant=at, actor=who.actor
        )
        return Fired(sessions=[wanted_out(one, who) for one in found])

    made.include_router(others)

    sessions.add(made, app, door)

    # ------------------------------------------------------------------ one automation

    @made.get("/automations/{automation}", response_model=Automation, responses=documented(404), name="duly_automation")
    def show(automation: Which, who: Viewer, response: Response, tenant: TenantIn = None) -> Automation:
        """One automation. Its ETag goes into If-Match of a change."""
        found = door().get(automation, whose(who, tenant))
        response.headers["ETag"] = _tag(found)
        return _shown(door(), found, who)

    @made.patch("/automations/{automation}", response_model=Automation, responses=documented(404, 409, 412))
    def change(
        automation: Which,
        given: AutomationChange,
        who: Operator,
        response: Response,
        if_match: IfMatch = None,
        tenant: TenantIn = None,
    ) -> Automation:
        """Change an automation. Only a change of its schedule moves what is wanted of it to from now on."""
        known = door().get(automation, whose(who, tenant))
        with noticing() as warned:
            found = _bound(
                known, if_match, lambda version: door().update(known.id, _definition(given), version=version, tenant=known.tenant, actor=who.actor), door()
            )  # fmt: skip
        response.headers["ETag"] = _tag(found)
        return _shown(door(), found, who, warned)

    @made.delete("/automations/{automation}", status_code=204, responses=documented(404, 412))
    def delete(
        automation: Which,
        who: Operator,
        reason: Annotated[Reason, Query()] = "",
        if_match: IfMatch = None,
        tenant: TenantIn = None,
    ) -> Response:
        """Remove an automation. Its sessions that have not ended are cancelled; all stay to be looked at."""
        known = door().get(automation, whose(who, tenant))
        _bound(
            known, if_match, lambda version: door().delete(known.id, version=version, tenant=known.tenant, actor=who.actor, reason=reason), door()
        )  # fmt: skip
        return Response(status_code=204)

    @made.post("/automations/{automation}/enable", response_model=Automation, responses=documented(404))
    def enable(automation: Which, who: Operator, given: Act | None = None, tenant: TenantIn = None) -> Automation:
        """Switch it on. What was planned while it was off does not run."""
        reason = given.reason if given else ""
        found = door().enable(automation, tenant=whose(who, tenant), actor=who.actor, reason=reason)
        return _shown(door(), found, who)

    @made.post("/automations/{automation}/disable", response_model=Automation, responses=documented(404))
    def disable(automation: Which, who: Operator, given: Act | None = None, tenant: TenantIn = None) -> Automation:
        """Switch it off: nothing of it starts or goes on. A session that has the slot keeps it."""
        reason = given.reason if given else ""
        found = door().disable(automation, tenant=whose(who, tenant), actor=who.actor, reason=reason)
        return _shown(door(), found, who)

    @made.post("/automations/{automation}/run", response_model=Wanted, responses=documented(404, 409))
    def run(automation: Which, who: Operator, given: RunIn | None = None, tenant: TenantIn = None) -> Wanted:
        """Execute it now, also one that is off. It waits for the slot where that is held."""
        asked = given or RunIn(key=None)
        done = door().run(
            automation, key=asked.key, tenant=whose(who, tenant), actor=who.actor, reason=asked.reason
        )  # fmt: skip
        return wanted_out(done, who)

    @made.get("/automations/{automation}/why", response_model=Why, responses=documented(404))
    def why(automation: Which, who: Viewer, tenant: TenantIn = None) -> Why:
        """Why it does not start: every condition, met or not, with its remedy."""
        at = whose(who, tenant)
        found = door().get(automation, at)
        checks = door().why(found.id, at)
        out = [Condition(name=c.name, met=c.met, detail=c.detail, remedy=c.remedy) for c in checks]
        return Why(id=found.id, starts=all(c.met for c in checks), checks=out)

    return made


#: What a change may take away.
NULLED = ("schedule", "provider", "model", "catch_up_window", "max_tokens", "temperature", "max_unanswered")


def _definition(given: Changes, exclude: set[str] | None = None) -> dict[str, Any]:
    """The fields of a definition that are given. Raises InvalidArgument where there are none."""
    said = {
        name: value
        for name, value in given.model_dump(exclude_unset=True, exclude=exclude).items()
        if value is not None or name in NULLED
    }
    if not said:
        raise InvalidArgument("body", "changes nothing.", f"Give some of {', '.join(type(given).model_fields)}.")
    return said


def _tag(known: Known) -> str:
    """Its ETag: one that was removed and made anew under its name has another."""
    return tag(f"{known.id}.{known.version}")


def _bound(known: Known, if_match: str | None, act: Callable[[int | None], Known], door: Automations) -> Known:
    """Act on the version that If-Match names. Raises Stale where it is another by now, whenever that became so."""
    check_tag(if_match, _tag(known))
    version = None if if_match is None or if_match.strip() == "*" else known.version
    try:
        return act(version)
    except WrongState as error:
        if version is not None and door.get(known.id, known.tenant).version != version:
            raise Stale(str(error)) from None
        raise


def _shown(door: Automations, a: Known, who: Identity, warnings: Sequence[str] = ()) -> Automation:
    """An automation as somebody may see it."""
    d = a.definition
    said = definition_json(d)
    when = [] if d.schedule is None else [d.schedule.describe()]
    if d.triggers:
        when.append(f"on {', '.join(d.triggers)}")
    for name in ("id", "tenant", "is_enabled", "version", "error", "last_execution_id", "created_at", "updated_at"):
        said[name] = getattr(a, name)
    said |= {
        "when": "; ".join(when) or "by hand", "next_run": door.next_run(a.id, a.tenant), "execution_history": list(a.execution_history),
        "messages": redacted(said["messages"]) if who.sees_payloads else None, "hidden": not who.sees_payloads,
        "warnings": list(warnings),
    }  # fmt: skip
    return Automation(**said)

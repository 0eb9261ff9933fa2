"""``/automations``: AI sessions on a slot: who has it, who waits, what is said, and run, stop, pause, resume, chat.

What is said in a session is a payload: hidden from viewers unless granted.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Request, Response

from duly.accounts.account import Identity, Role
from duly.automations.automation import Automation
from duly.automations.controller import QUEUE
from duly.automations.door import Automations
from duly.automations.protocol import FINISH
from duly.automations.records import Call
from duly.automations.session import CallStatus, Session, SessionType, Status
from duly.automations.store import Slot
from duly.jobs.ask import WORKER_GONE
from duly.kernel.errors import NotFound
from duly.kernel.payload import MOST_ID
from duly.web.api.common import Cursor, Ident, below, for_whom, page, whose
from duly.web.dashboard.desk import Act, Desk, acts, query, sees

Viewer: TypeAlias = Annotated[Identity, sees("automations")]
Operator: TypeAlias = Annotated[Act, acts("automations", Role.OPERATOR)]
#: Automations, waiting sessions and past sessions of one page; messages of a transcript.
AUTOMATIONS, WAITING, PAST, MESSAGES = 200, 20, 20, 300


def busy_words(room: Automations, slot: Slot, tenant: str | None) -> str:
    """What keeps a slot that nobody has; of another tenant's only that something does."""
    if slot.busy is None:
        return ""
    if tenant is not None and slot.busy.session_id is not None:
        try:
            room.session(slot.busy.session_id, tenant)
        except NotFound:
            return "a call is still under way"
    return slot.busy.words


def routes(desk: Desk) -> APIRouter:
    made, app = desk.router(), desk.app

    def room() -> Automations:
        return Automations.of(app)

    def slots(who: Identity) -> list[dict[str, Any]]:
        """Each slot with its session and those that wait; of another tenant's only that it is there."""
        out, mine = [], whose(who)
        for slot in room().slots():
            session = None
            if slot.session_id is not None:
                try:
                    session = room().session(slot.session_id, mine)
                except NotFound:
                    pass
            waiting = room().sessions(WAITING, slot=slot.name, status=(Status.QUEUED,), tenant=mine)
            out.append({"name": slot.name, "held": slot.session_id is not None, "since": slot.since, "session": session, "busy": busy_words(room(), slot, mine), "waiting": list(reversed(waiting))})  # fmt: skip
        return out

    def served() -> bool:
        workers = app._read(lambda c: app.engine.reader.live_workers(c, WORKER_GONE))
        return any(QUEUE in worker["queues"] for worker in workers)

    @made.get("/automations")
    def find(request: Request, who: Viewer, cursor: Cursor = None) -> Response:
        mine = whose(who)
        found = sorted(room().list(tenant=mine, limit=AUTOMATIONS), key=lambda one: (one.tenant, one.name))
        rows = [{"a": one, "when": in_words(one), "state": state_of(one), "next": room().next_run(one.id), "last": _last(room(), one), "skip": next(iter(room().skips(one.id, 1)), None)} for one in found]  # fmt: skip
        kept, following = page(room().sessions(PAST + 1, below(cursor) or MOST_ID, tenant=mine), PAST, lambda one: one.id)  # fmt: skip
        return desk.page(
            request, "automations.html", "Automations", rows=rows, slots=slots(who), sessions=kept, several=mine is None, served=served(),
            following=query("/automations", cursor=following) if following else None, first="/automations" if cursor else None, ending=ending,
        )  # fmt: skip

    @made.get("/automations/{id}")
    def show(request: Request, id: Ident, who: Viewer) -> Response:
        mine = whose(who)
        found = room().get(id, mine)
        checks = room().why(id, mine)
        return desk.page(
            request, "automation.html", f"Automation {found.name}", a=found, when_=in_words(found), state_=state_of(found), next=room().next_run(id),
            sessions=room().sessions(PAST, automation=id), ending=ending, unmet=[one for one in checks if not one.met],
            met=[one for one in checks if one.met], served=served(),
        )  # fmt: skip

    @made.get("/automations/sessions/{id}")
    def session(request: Request, id: Ident, who: Viewer) -> Response:
        mine = whose(who)
        found = room().session(id, mine)
        if (
            found.status in (Status.QUEUED, Status.ACTIVE)
            and found.type is SessionType.CHAT
            and who.may("automations", Role.OPERATOR)
        ):
            found = room().wanted(id, tenant=mine)  # who looks at it still wants it
        said = room().transcript(id, 0, mine)[-MESSAGES:] if who.sees_payloads else []
        calls = room().calls(id, mine)
        holder = next((one for one in slots(who) if one["name"] == found.slot), None)
        return desk.page(
            request, "session.html", f"Session {id}", s=found, said=said, calls={(one.round, one.call_id): one for one in calls}, holder=holder,
            rounds=room().rounds(id, mine)[-50:], is_chat=found.type is SessionType.CHAT, words=ending(found), served=served(),
            standing=standing, results={one.call_id: one for one in calls},
        )  # fmt: skip

    # ------------------------------------------------------------------ acts

    def to_session(request: Request, id: int, said: str) -> Response:
        return desk.done(request, f"/automations/sessions/{id}", said)

    @made.post("/automations/chat")
    def chat(request: Request, form: Operator) -> Response:
        where = for_whom(form.who, form.text("tenant") or None, app.settings.tenant)
        asked = room().chat(form.text("title"), slot=form.text("slot") or "default", tenant=where, actor=form.who.actor)
        if form.text("text"):
            room().say(asked.session.id, form.text("text"), tenant=where, actor=form.who.actor)
        return to_session(request, asked.session.id, "The chat has begun." if asked.session.is_active else "The chat waits for the slot.")  # fmt: skip

    @made.post("/automations/{id}/run")
    def run(request: Request, id: Ident, form: Operator) -> Response:
        asked = room().run(id, tenant=whose(form.who), actor=form.who.actor)
        said = "It has the slot." if asked.session.is_active else "It waits for the slot."
        return to_session(request, asked.session.id, f"Session {asked.session.id} was made. {said}")

    @made.post("/automations/{id}/enable")
    def enable(request: Request, id: Ident, form: Operator) -> Response:
        found = room().enable(id, tenant=whose(form.who), actor=form.who.actor)
        return desk.done(request, f"/automations/{id}", f"Automation {found.name} is on. What was planned while it was off does not run.")  # fmt: skip

    @made.post("/automations/{id}/disable")
    def disable(request: Request, id: Ident, form: Operator) -> Response:
        found = room().disable(id, tenant=whose(form.who), actor=form.who.actor)
        return desk.done(request, f"/automations/{id}", f"Automation {found.name} is off: nothing of it starts or goes on.")  # fmt: skip

    @made.post("/automations/sessions/{id}/stop")
    def stop(request: Request, id: Ident, form: Operator) -> Response:
        room().stop(id, form.reason, tenant=whose(form.who), actor=form.who.actor)
        return to_session(request, id, f"Session {id} is stopped.")

    @made.post("/automations/sessions/{id}/pause")
    def pause(request: Request, id: Ident, form: Operator) -> Response:
        found = room().pause(
            id, form.reason, span=form.text("span") or None, tenant=whose(form.who), actor=form.who.actor
        )
        return to_session(request, id, f"Session {id} is paused: {found.end_detail}.")

    @made.post("/automations/sessions/{id}/resume")
    def resume(request: Request, id: Ident, form: Operator) -> Response:
        found = room().resume(id, form.reason, tenant=whose(form.who), actor=form.who.actor)
        return to_session(request, id, f"Session {id} goes on." if found.is_active else f"Session {id} goes on as soon as it gets the slot.")  # fmt: skip

    @made.post("/automations/sessions/{id}/say")
    def say(request: Request, id: Ident, form: Operator) -> Response:
        room().say(id, form.text("text"), tenant=whose(form.who), actor=form.who.actor)
        return desk.done(request, f"/automations/sessions/{id}", "Said.")

    @made.post("/automations/sessions/{id}/close")
    def close(request: Request, id: Ident, form: Operator) -> Response:
        room().close(id, tenant=whose(form.who), actor=form.who.actor)
        return to_session(request, id, "The chat is over.")

    return made


def state_of(a: Automation) -> str:
    return "broken" if a.error else "on" if a.is_enabled else "off"


def in_words(a: Automation) -> str:
    """When it runs."""
    d = a.definition
    said = [] if d.schedule is None else [d.schedule.describe()]
    said += [f"on {', '.join(d.triggers)}"] if d.triggers else []
    return "; ".join(said) or "when somebody runs it"


def ending(s: Session) -> str:
    """How a session stands, in words."""
    if s.is_active:
        return "waits for the network" if s.is_waiting_for_network else "has the slot"
    if s.status is Status.QUEUED:
        return "waits for the slot"
    if s.end_reason is None:
        return "lost its worker"
    words = {"NETWORK_ERROR": "lost the network", "SUSPENDED": "paused", "TIMEOUT": "timed out", "ERROR": "failed"}
    return words.get(s.end_reason.value, s.end_reason.value.lower())


def standing(name: str, call: Call | None, s: Session) -> str:
    """The kind of mark of a call that was asked for. ``finish`` calls nothing, and nothing is under way in a session that has ended."""
    if call is None and name == FINISH:
        return "good"
    if call is not None and not call.is_open:
        return {CallStatus.DONE: "good", CallStatus.UNKNOWN: "warn"}.get(call.status, "bad")
    return "off" if s.status is Status.ENDED else "busy"


def _last(room: Automations, a: Automation) -> Session | None:
    if a.last_execution_id is None:
        return None
    try:
        return room.session(a.last_execution_id)
    except NotFound:  # forgotten
        return None

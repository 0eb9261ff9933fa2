"""``/api/v1/automations/sessions``: executions and chats: looking, listening, talking, STOP and PAUSE.

What is said in a session is a payload: hidden from who may not see those. Source: R001, T001, B080.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, Field

from duly.accounts.account import Identity, Role
from duly.accounts.door import Accounts
from duly.app import Duly
from duly.automations.door import Automations
from duly.kernel.payload import MOST_ID
from duly.monitoring.redact import redacted
from duly.web.api.common import (
    Act,
    Cursor,
    Ident,
    Limit,
    Name,
    SecondsIn,
    Strict,
    TenantIn,
    Words,
    below,
    for_whom,
    number_or_name,
    page,
    whose,
)
from duly.web.api.events import Seats, Stream
from duly.web.api.listening import Listening, frames, read_position
from duly.web.api.sessions_out import (
    Session,
    Sessions,
    State,
    Wanted,
    Whole,
    call_out,
    round_out,
    said_out,
    session_out,
    wanted_out,
)
from duly.web.identity import Standing, needs
from duly.web.problems import documented

Viewer: TypeAlias = Annotated[Identity, needs("automations")]
Operator: TypeAlias = Annotated[Identity, needs("automations", Role.OPERATOR)]
Which = Annotated[
    Words, Path(min_length=1, max_length=200, description="Its id, or its name."), AfterValidator(number_or_name)
]  # fmt: skip
Ending = Literal["COMPLETED", "TIMEOUT", "ERROR", "CANCELLED", "NETWORK_ERROR", "SUSPENDED"]
Long = Annotated[Words, Field(min_length=1, max_length=200_000)]
Names = Annotated[list[Name], Field(max_length=200)]
#: Messages, calls and rounds that are shown of a session at the most.
MOST_SHOWN = 10_000


class PauseIn(Act):
    span: SecondsIn | None = Field(
        None, gt=0, le=3.2e8, description="Not before so long from now: seconds, or a text such as 5m."
    )
    now: bool = Field(
        False, description="Cancel a call of an async tool that is under way instead of letting it finish."
    )


class ChatIn(Strict):
    title: Words = Field("", max_length=200)
    slot: Name = "default"
    provider: Name | None = None
    model: Name | None = None
    tools: Names = Field(default=[])
    tenant: Name | None = None


class SayIn(Strict):
    text: Long


def add(made: APIRouter, app: Duly, door: Callable[[], Automations]) -> None:
    """The routes of sessions; they go before those of one automation, whose name could be ``sessions``."""
    seats = Seats()

    @made.get("/automations/sessions", response_model=Sessions, responses=documented(404))
    def sessions(
        who: Viewer,
        automation: Annotated[Words | None, Query(min_length=1, max_length=200, description="Its id, or its name.")] = None,
        type: Annotated[Literal["CHAT", "AUTOMATION"] | None, Query()] = None,
        status: Annotated[list[State], Query()] = [],  # noqa: B006
        slot: Annotated[Name | None, Query()] = None,
        end_reason: Annotated[Ending | None, Query()] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Sessions:  # fmt: skip
        """List sessions, newest first."""
        found = door().sessions(
            limit + 1, below(cursor), automation=None if automation is None else number_or_name(automation), tenant=whose(who, tenant), type=type,
            status=status, slot=slot, end_reason=end_reason,
        )  # fmt: skip
        kept, following = page(found, limit, lambda one: one.id)
        return Sessions(sessions=[session_out(one, who) for one in kept], next=following)

    @made.post("/automations/chats", response_model=Wanted, status_code=201)
    def chat(given: ChatIn, who: Operator, request: Request, response: Response) -> Wanted:
        """Begin a chat. It has the slot at once, or waits for it; one that waits is given up unless its stream is listened to."""
        at = for_whom(who, given.tenant, app.settings.tenant)
        done = door().chat(**given.model_dump(exclude={"tenant"}), tenant=at, actor=who.actor)
        response.headers["Location"] = request.url_for("duly_session", id=str(done.session.id)).path
        return wanted_out(done, who)

    @made.get("/automations/sessions/{id}", response_model=Whole, responses=documented(404), name="duly_session")
    def session(
        id: Ident,
        who: Viewer,
        after: Annotated[int, Query(ge=0, le=MOST_ID, description="Only what was said behind this position.")] = 0,
    ) -> Whole:
        """One session, with what was said, the calls of tools, and the questions."""
        at = whose(who)
        found = door().session(id, at)
        said, calls, rounds = door().transcript(id, after, at), door().calls(id, at), door().rounds(id, at)
        return Whole(
            **session_out(found, who).model_dump(),
            transcript=[said_out(one, who) for one in said[-MOST_SHOWN:]],
            partial=redacted(found.partial) if who.sees_payloads else None,
            calls_made=[call_out(one, who) for one in calls[-MOST_SHOWN:]],
            rounds_made=[round_out(one, who) for one in rounds[-MOST_SHOWN:]],
            hidden=not who.sees_payloads,
        )  # fmt: skip

    @made.get(
        "/automations/sessions/{id}/stream", response_class=StreamingResponse,
        responses={200: {"description": "A stream of events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}, **documented(404, 429)},
    )  # fmt: skip
    def stream(
        id: Ident,
        who: Viewer,
        last_event_id: Annotated[str | None, Header(max_length=30, description="The position that was seen last: goes on behind it.")] = None,
    ) -> Stream:  # fmt: skip
        """What is said as it is said: events ``said`` (a message, its id the position), ``partial`` (``{"from", "text"}``: what the AI is
        saying, from that character on), ``state`` (``{"status", "answering", …}``) and ``end``.

        It ends with the session, after ten minutes, and within seconds when who listens may no more: a browser's EventSource comes back by itself. As long as somebody who may act listens, a
        chat that waits for its slot is wanted.
        """
        at = whose(who)
        position = read_position(last_event_id)
        door().session(id, at)
        listening = Listening(door(), id, at, who.may("automations", Role.OPERATOR), app.engine.clock.monotonic)
        standing = Standing(Accounts(app), who)
        return Stream(frames(listening.look, who, position, app.engine.clock.monotonic, standing=standing), seats, who)

    @made.post("/automations/sessions/{id}/say", response_model=Session, responses=documented(404, 409))
    def say(id: Ident, given: SayIn, who: Operator) -> Session:
        """Say something in a chat. It is answered as soon as the chat has the slot."""
        return session_out(door().say(id, given.text, tenant=whose(who), actor=who.actor), who)

    @made.post("/automations/sessions/{id}/close", response_model=Session, responses=documented(404, 409))
    def close(id: Ident, who: Operator) -> Session:
        """End a chat."""
        return session_out(door().close(id, tenant=whose(who), actor=who.actor), who)

    @made.post("/automations/sessions/{id}/stop", response_model=Session, responses=documented(404, 409))
    def stop(id: Ident, who: Operator, given: Act | None = None) -> Session:
        """End a session: CANCELLED. What the AI answers afterwards is discarded."""
        return session_out(door().stop(id, given.reason if given else "", tenant=whose(who), actor=who.actor), who)

    @made.post("/automations/sessions/{id}/pause", response_model=Session, responses=documented(404, 409))
    def pause(id: Ident, who: Operator, given: PauseIn | None = None) -> Session:
        """Take the slot from an automation for a while. It goes on where it was, when nothing else wants the slot."""
        asked = given or PauseIn(span=None, now=False)
        return session_out(
            door().pause(id, asked.reason, span=asked.span, now=asked.now, tenant=whose(who), actor=who.actor), who
        )

    @made.post("/automations/sessions/{id}/resume", response_model=Session, responses=documented(404, 409))
    def resume(id: Ident, who: Operator, given: Act | None = None) -> Session:
        """Let an interrupted session go on now, as soon as it gets the slot."""
        return session_out(door().resume(id, given.reason if given else "", tenant=whose(who), actor=who.actor), who)

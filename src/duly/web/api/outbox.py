"""``/api/v1/outbox``: how the outbox of Duly's own database stands, its messages, and what operators do with them.

Nothing is published or sent here: messages are written in their callers' transactions, and relays send them. Source: R001, ADR 0017.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, Field

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.kernel.errors import InvalidArgument
from duly.monitoring.redact import redacted
from duly.outbox.box import Outbox
from duly.outbox.message import Message as Known
from duly.outbox.message import Status as KnownStatus
from duly.outbox.read import MessageFilter
from duly.web.api.common import (
    Act,
    Cursor,
    Instant,
    Limit,
    Name,
    Reason,
    Strict,
    TenantIn,
    Words,
    at_first_use,
    below,
    number_or_name,
    page,
    router,
    whose,
)
from duly.web.identity import needs
from duly.web.problems import documented

Viewer: TypeAlias = Annotated[Identity, needs("outbox")]
Operator: TypeAlias = Annotated[Identity, needs("outbox", Role.OPERATOR)]
Status = Literal["pending", "sent", "parked"]
#: A message's number, or its message id.
Which = Annotated[
    Words, Path(min_length=1, max_length=100, description="Its number, or its message id."), AfterValidator(number_or_name)
]  # fmt: skip
#: Messages that one bulk act reaches at the most.
MOST_ACTED = 10_000


class Hold(BaseModel):
    """Why a relay sends nothing to a destination at this moment. Its messages wait and use no attempt."""

    kind: Literal["away", "refused"] = Field(
        description="away: it cannot be reached, which passes. refused: it takes nothing until an operator has acted."
    )
    since: Instant
    until: Instant = Field(description="When it is asked again.")
    tries: int = Field(description="Failures in a row since then.")
    problem: str = Field(description="The last error in a word: a status, or a type.")


class Backlog(BaseModel):
    """How it stands with one destination."""

    destination: str
    pending: int
    due: int = Field(description="Of the pending: those whose instant has come.")
    in_flight: int = Field(description="Of the pending: those that a relay holds.")
    parked: int
    sent: int | None = Field(description="Sent and not pruned yet; null where it was not counted.")
    oldest_at: Instant | None = Field(description="When the oldest pending message was published.")
    oldest_age: float = Field(description="Seconds since then.")
    hold: Hold | None = Field(description="Set while a relay holds the destination.")


class Standing(BaseModel):
    """How the outbox stands."""

    pending: int
    due: int
    in_flight: int
    parked: int
    sent: int | None
    oldest_at: Instant | None
    oldest_age: float
    drained: bool = Field(description="Nothing is left to send.")
    destinations: list[Backlog]


class Message(BaseModel):
    """A message as it stands. Payload, headers and error are hidden from who may not see payloads."""

    id: int
    message_id: str = Field(description="The same at every delivery.")
    tenant: str
    destination: str
    status: Status
    label: str = Field(description="For people: pending, planned, retrying, sending, sent or parked.")
    key: str | None
    ordering_key: str | None
    attempts: int
    losses: int
    created_at: Instant | None
    due_at: Instant | None
    sent_at: Instant | None
    parked_at: Instant | None
    relay: str | None
    lease_until: Instant | None
    payload: Any
    headers: dict[str, str] | None
    error: Any
    hidden: bool


class Page(BaseModel):
    messages: list[Message]
    next: str | None = Field(description="The cursor of the page behind; null on the last one.")


class RedriveIn(Act):
    force: bool = Field(False, description="Also one that was sent: it is sent again, under the same message id.")


class ParkIn(Strict):
    reason: Annotated[Reason, Field(min_length=1)]


class BulkIn(Strict):
    """Parked messages: those to a destination, or all."""

    destination: Name | None = None
    everything: bool = Field(False, description="All that are parked; needed where no destination is named.")
    tenant: Name | None = None
    reason: Reason = ""
    limit: int = Field(1000, ge=1, le=MOST_ACTED, description="At most so many, the oldest first.")
    dry_run: bool = Field(False, description="Only say how many: nothing is done.")


class Redriven(BaseModel):
    count: int
    dry_run: bool


def routes(app: Duly) -> Any:
    made = router("outbox")
    box = at_first_use(lambda: Outbox(app))

    @made.get("/outbox", response_model=Standing)
    def standing(
        who: Viewer,
        sent: Annotated[bool, Query(description="Count what was sent, too.")] = True,
        tenant: TenantIn = None,
    ) -> Standing:
        """How it stands: what waits and since when, what is being sent, and what is parked, by destination."""
        found = box().status(sent, whose(who, tenant))
        return Standing(**asdict(found), drained=found.drained)

    @made.get("/outbox/messages", response_model=Page)
    def find(
        who: Viewer,
        status: Annotated[list[Status], Query()] = [],  # noqa: B006
        destination: Annotated[Name | None, Query()] = None,
        key: Annotated[Words | None, Query(max_length=500)] = None,
        ordering_key: Annotated[Words | None, Query(max_length=500)] = None,
        tenant: TenantIn = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Page:
        """List messages, newest first."""
        found = box().find(
            limit + 1, below(cursor), status=[KnownStatus(one) for one in status] or None, destination=destination, key=key,
            ordering_key=ordering_key, tenant=whose(who, tenant),
        )  # fmt: skip
        kept, following = page(found, limit, lambda message: message.id)
        return Page(messages=[_shown(app, message, who) for message in kept], next=following)

    @made.get("/outbox/messages/{message}", response_model=Message, responses=documented(404))
    def show(message: Which, who: Viewer) -> Message:
        """One message, by its number or its message id."""
        return _shown(app, box().get(message, whose(who)), who)

    @made.post("/outbox/messages/{message}/redrive", response_model=Message, responses=documented(404, 409))
    def redrive(message: Which, who: Operator, given: RedriveIn | None = None) -> Message:
        """Have a parked message sent again: same message id, attempts from 0, due now."""
        asked = given or RedriveIn(force=False)
        done = box().redrive(message, reason=asked.reason, actor=who.actor, tenant=whose(who), force=asked.force)
        return _shown(app, done[0], who)

    @made.post("/outbox/messages/{message}/park", response_model=Message, responses=documented(404, 409))
    def park(message: Which, given: ParkIn, who: Operator) -> Message:
        """Put a pending message aside until somebody redrives it. One that is being sent at this moment may arrive all the same."""
        return _shown(app, box().park(message, reason=given.reason, actor=who.actor, tenant=whose(who))[0], who)

    @made.post("/outbox/redrive", response_model=Redriven)
    def redrive_many(given: BulkIn, who: Operator) -> Redriven:
        """Have parked messages sent again, the oldest first."""
        if given.destination is None and not given.everything:
            raise InvalidArgument("destination", "is missing.", "Name one, or say everything.")
        at = whose(who, given.tenant)
        if given.dry_run:
            box().open()
            wanted = MessageFilter(status=KnownStatus.PARKED, destination=given.destination, tenant=at)
            counted = app.db.read(lambda c: box().reader.count(c, wanted))
            return Redriven(count=min(sum(counted.values()), given.limit), dry_run=True)
        done = box().redrive_where(given.reason, who.actor, given.limit, destination=given.destination, tenant=at)
        return Redriven(count=done, dry_run=False)

    return made


def _shown(app: Duly, m: Known, who: Identity) -> Message:
    said = {name: getattr(m, name) for name in Message.model_fields if name not in ("label", "hidden")}
    said["status"] = m.status.value
    if who.sees_payloads:
        said |= {name: redacted(said[name]) for name in ("payload", "headers", "error")}
    else:
        said |= {"payload": None, "headers": None, "error": None}
    return Message(**said, label=m.label(app.engine.clock.now()), hidden=not who.sees_payloads)

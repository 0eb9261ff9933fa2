"""``/api/v1/mail``: addresses that are not written to, reports of bounces and complaints, and the webhook of Resend.

Messages themselves are jobs of the task EMAIL_SEND. Source: R003-7.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import Body, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from duly.accounts.account import Identity, Role
from duly.app import Duly
from duly.mail.bounces import Bounces, Unverified
from duly.mail.bounces import Outcome as Known
from duly.mail.store import Suppression as KnownSuppression
from duly.mail.suppressions import Suppressions
from duly.web.api.common import Instant, Limit, Reason, Strict, TenantIn, Words, for_whom, router, whose
from duly.web.identity import needs
from duly.web.problems import documented

Operator: TypeAlias = Annotated[Identity, needs("jobs", Role.OPERATOR)]
Address = Annotated[Words, Field(min_length=3, max_length=320, description="An e-mail address.")]
#: In the description: a signature is needed, and no token.
SIGNED: dict[str, Any] = {"security": [{}]}
#: In the description: a body that is no JSON.
RAW: dict[str, Any] = {"requestBody": {"required": True, "content": {"message/rfc822": {"schema": {"type": "string"}}}}}


class Suppression(BaseModel):
    """An address that is not written to."""

    tenant: str
    address: str
    reason: str | None
    source: str | None = Field(description="What put it there, such as `bounce:resend`; null: a person or a program.")
    created_at: Instant
    created_by: str


class Suppressed(BaseModel):
    suppressions: list[Suppression]


class SuppressionIn(Strict):
    address: Address
    reason: Reason = ""


class Changed(BaseModel):
    changed: bool = Field(description="False: the list was so already.")


class Outcome(BaseModel):
    """What followed from a report. Numbers count recipients."""

    kind: str
    suppressed: int = Field(description="New on the list.")
    known: int = Field(description="On the list already.")
    soft: int = Field(description="Refused for now, or not because of the mailbox.")
    strangers: int = Field(description="Recipients that Duly has not written to, as far as its records reach.")
    repeated: bool = Field(description="The same report came before: nothing was done.")


class Received(BaseModel):
    received: bool


def routes(app: Duly) -> Any:
    made = router("mail", 400)

    @made.get("/mail/suppressions", response_model=Suppressed)
    def suppressions(who: Operator, limit: Limit = 100, tenant: TenantIn = None) -> Suppressed:
        """List the addresses that are not written to, by tenant and address."""
        found = Suppressions(app).list(tenant=whose(who, tenant), limit=limit)
        return Suppressed(suppressions=[_shown(one) for one in found])

    @made.post("/mail/suppressions", response_model=Changed)
    def suppress(given: Annotated[SuppressionIn, Body()], who: Operator, tenant: TenantIn = None) -> Changed:
        """Write to an address no more."""
        at = for_whom(who, tenant, app.settings.tenant)
        return Changed(changed=Suppressions(app).add(given.address, given.reason, tenant=at, actor=who.actor))

    @made.post("/mail/suppressions/remove", response_model=Changed)
    def unsuppress(given: Annotated[SuppressionIn, Body()], who: Operator, tenant: TenantIn = None) -> Changed:
        """Write to an address again. The address is in the body, because paths are logged."""
        at = for_whom(who, tenant, app.settings.tenant)
        return Changed(changed=Suppressions(app).remove(given.address, given.reason, tenant=at, actor=who.actor))

    @made.post("/mail/bounces", response_model=Outcome, openapi_extra=RAW)
    async def bounce(request: Request, who: Operator, tenant: TenantIn = None) -> Outcome:
        """Take a bounce (RFC 3464) or a complaint (RFC 5965) as it lies in a mailbox: the message, unchanged, is the body.

        Recipients whose mailbox is gone, and those who complain, are suppressed if Duly wrote to them.
        """
        raw = await request.body()
        at = whose(who, tenant)
        return _outcome(await run_in_threadpool(Bounces(app).read, raw, tenant=at, actor=who.actor))

    @made.post("/mail/webhooks/resend", response_model=Received, responses=documented(401), openapi_extra=SIGNED)
    async def resend(request: Request) -> Received:
        """Take a webhook of Resend, signed with `resend_webhook_secret`. Bounces for good and complaints become suppressions.

        A signature that is missing, wrong, or older than 5 minutes is refused with 401. An event that came before changes nothing.
        """
        raw = await request.body()
        try:
            await run_in_threadpool(Bounces(app).resend, dict(request.headers), raw)
        except Unverified as error:
            raise HTTPException(401, str(error)) from None
        return Received(received=True)

    return made


def _shown(one: KnownSuppression) -> Suppression:
    return Suppression(
        tenant=one.tenant, address=one.address, reason=one.reason, source=one.source, created_at=one.created_at, created_by=one.created_by
    )  # fmt: skip


def _outcome(found: Known) -> Outcome:
    return Outcome(
        kind=found.kind, suppressed=found.suppressed, known=found.known, soft=found.soft, strangers=found.strangers, repeated=found.repeated
    )  # fmt: skip

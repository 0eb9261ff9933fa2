"""Microsoft Graph: sendMail with an application's own token.

https://learn.microsoft.com/graph/api/user-sendmail, https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow.
202 means accepted. There is no idempotency key: an answer that does not come is an unknown outcome.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from duly.kernel.clock import Clock
from duly.kernel.verdict import Kind, Verdict
from duly.mail.address import Mailbox
from duly.mail.message import Message
from duly.mail.providers.http import Answered, checked_url, request, retry_after
from duly.mail.verdict import Receipt, undelivered
from duly.settings import Settings

#: A token is fetched anew so many seconds before it expires, or after half of its life if that is shorter.
MARGIN = 300.0
SCOPE = "https://graph.microsoft.com/.default"


class GraphProvider:
    name = "graph"
    remembers = 0.0
    #: Four requests at once per application and mailbox.
    concurrency = 4

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._tenant, self._id = settings.graph_tenant, settings.graph_client_id
        self._secret, self._timeout, self._clock = settings.graph_client_secret, settings.mail_timeout, clock
        self._url = checked_url(settings.graph_url, "graph_url")
        self._token_url = checked_url(settings.graph_token_url, "graph_token_url")
        #: The token, and the monotonic instant until which it is used.
        self._token, self._until = "", 0.0

    async def send(self, message: Message, key: str) -> Receipt:
        content = orjson.dumps(payload(message, key))
        token = await self._fresh()
        await message.ahead(message.pending)
        answer = await self._post(message, content, token)
        if answer.status == 401:  # refused, so nothing was sent: once more with a new token
            self._forget(token)
            token = await self._fresh()
            answer = await self._post(message, content, token)
        verdict = classify(answer, self._clock.now())
        if verdict.kind is not Kind.SENT:
            if verdict.kind is Kind.AUTH:
                self._forget(token)
            raise undelivered(verdict.kind, verdict.reason, verdict.after)
        return Receipt(remote_id=answer.headers.get("request-id"))

    async def check(self) -> str:
        self._forget(self._token)
        await self._fresh()
        return "a token was given out"

    async def _post(self, message: Message, content: bytes, token: str) -> Answered:
        url = f"{self._url}/users/{quote(message.letter.sender.address, safe='@')}/sendMail"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        return await request("POST", url, timeout=self._timeout, headers=headers, content=content, sends=True)

    # ------------------------------------------------------------------ the token

    def _forget(self, token: str) -> None:
        if token == self._token:
            self._token = ""

    async def _fresh(self) -> str:
        """A token that is good for a while. Raises Undelivered."""
        if self._token and self._clock.monotonic() < self._until:
            return self._token
        form = {
            "grant_type": "client_credentials",
            "client_id": self._id,
            "client_secret": self._secret,
            "scope": SCOPE,
        }
        asked = self._clock.monotonic()
        answer = await request(
            "POST", f"{self._token_url}/{quote(self._tenant, safe='')}/oauth2/v2.0/token", timeout=self._timeout,
            headers={"Content-Type": "application/x-www-form-urlencoded"}, content=urlencode(form).encode(),
        )  # fmt: skip
        verdict = classify_token(answer, self._clock.now())
        if verdict.kind is not Kind.SENT:
            raise undelivered(verdict.kind, verdict.reason, verdict.after)
        seconds_left = _life(answer.body.get("expires_in"))
        self._token, self._until = (
            str(answer.body["access_token"]),
            asked + max(seconds_left - MARGIN, seconds_left / 2),
        )
        return self._token


def _life(expires_in: object) -> float:
    """Seconds for which a token is good: 0 when nobody can tell. Some send the number as a text."""
    try:
        found = float(expires_in) if isinstance(expires_in, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, found) if math.isfinite(found) else 0.0


def classify_token(answer: Answered, now: datetime) -> Verdict:
    """What an answer to a token request means."""
    if answer.status == 200 and answer.body.get("access_token"):
        return Verdict(Kind.SENT)
    codes = answer.body.get("error_codes")
    said = [f"AADSTS{code}" for code in codes if isinstance(code, int)] if isinstance(codes, list) else []
    reason = " ".join([f"no token of Microsoft Graph: {answer.status}", str(answer.body.get("error") or ""), *said])
    after = retry_after(answer, now)
    if answer.status == 429:
        return Verdict(Kind.THROTTLED, reason, 1.0 if after is None else after)
    if answer.status in (408, 425) or answer.status >= 500:
        return Verdict(Kind.TRANSIENT, reason, after)
    return Verdict(Kind.AUTH, reason)


def classify(answer: Answered, now: datetime) -> Verdict:
    """What an answer to sendMail means. 401 stands for one that came with a new token too."""
    status = answer.status
    if status == 202:
        return Verdict(Kind.SENT)
    error = answer.body.get("error")
    code = str(error.get("code") or "") if isinstance(error, dict) else ""
    said = f"Microsoft Graph answered {status} {code}".rstrip()
    after = retry_after(answer, now)
    if status == 429:
        return Verdict(Kind.THROTTLED, said, 1.0 if after is None else after)
    if status == 401:
        return Verdict(Kind.AUTH, said)
    if status in (408, 425, 503, 504):
        return Verdict(Kind.TRANSIENT, said, after)
    if status < 300:
        return Verdict(Kind.UNKNOWN, f"{said}, which is no answer of its own")
    if status >= 500:  # it broke somewhere on the way, and there is no key to ask by
        return Verdict(Kind.UNKNOWN, said)
    return Verdict(Kind.PERMANENT, said)


def payload(message: Message, key: str) -> dict[str, Any]:
    """The body of sendMail, to those who are to get it now. Raises Undelivered for headers that Graph does not carry."""
    letter = message.to_pending()
    for name, _ in letter.headers:
        if not name.lower().startswith("x-"):
            raise undelivered(
                Kind.PERMANENT, f"headers.{name}: Microsoft Graph carries only headers that begin with x-"
            )
    html = letter.html is not None
    out: dict[str, Any] = {
        "subject": letter.subject,
        "body": {"contentType": "HTML" if html else "Text", "content": letter.html if html else letter.text},
        "internetMessageId": message.message_id,
        "internetMessageHeaders": [
            {"name": name, "value": value} for name, value in (*letter.headers, ("x-duly-key", key))
        ],
    }
    for name, mailboxes in (
        ("toRecipients", letter.to), ("ccRecipients", letter.cc), ("bccRecipients", letter.bcc), ("replyTo", letter.reply_to)
    ):  # fmt: skip
        if mailboxes:
            out[name] = _recipients(mailboxes)
    if letter.sender.name:
        out["from"] = _recipients([letter.sender])[0]
    if letter.attachments:
        out["attachments"] = [
            {
                "@odata.type": "#microsoft.graph.fileAttachment", "name": a.filename, "contentType": a.content_type,
                "contentBytes": base64.b64encode(a.content).decode(),
            }
            for a in letter.attachments
        ]  # fmt: skip
    return {"message": out}


def _recipients(mailboxes: Sequence[Mailbox]) -> list[dict[str, Any]]:
    return [{"emailAddress": {"address": m.address, **({"name": m.name} if m.name else {})}} for m in mailboxes]

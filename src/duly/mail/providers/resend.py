"""Resend: one POST for a message, with an Idempotency-Key. https://resend.com/docs/api-reference

A repeated key within 24 hours answers with the message that was sent before, so a lost answer is asked for again. The body of a key
must be the same each time; ``handler.py`` sees to it that the recipients are.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from email.utils import formataddr
from typing import Any

import orjson

from duly._version import __version__
from duly.kernel.clock import Clock
from duly.kernel.verdict import Kind, Verdict
from duly.mail.address import Mailbox
from duly.mail.message import Message
from duly.mail.providers.http import Answered, checked_url, request, retry_after
from duly.mail.verdict import Answer, Receipt, undelivered
from duly.settings import Settings

#: Resend remembers a key for 24 hours; an hour of that is left for clocks and for the request itself.
REMEMBERS = 23 * 3600.0


class ResendProvider:
    name = "resend"
    remembers = REMEMBERS
    concurrency = None

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._key, self._timeout, self._clock = settings.resend_api_key, settings.mail_timeout, clock
        self._url = checked_url(settings.resend_url, "resend_url")
        if not (self._key.isascii() and self._key.isprintable()):
            raise undelivered(Kind.AUTH, "resend_api_key holds what no key holds")

    async def send(self, message: Message, key: str) -> Receipt:
        body = orjson.dumps(payload(message))
        await message.ahead(message.pending)
        answer = await self._ask("POST", "/emails", body, {"Idempotency-Key": key}, sends=True)
        verdict = classify(answer, self._clock.now())
        if answer.status == 409 and verdict.kind is Kind.UNKNOWN:  # to ask again would bring the same answer
            return Receipt(unknown=dict.fromkeys(message.pending, Answer(409, verdict.reason)))
        if verdict.kind is not Kind.SENT:
            raise undelivered(verdict.kind, verdict.reason, verdict.after, verdict.until)
        return Receipt(remote_id=str(answer.body["id"]))

    async def check(self) -> str:
        answer = await self._ask("GET", "/domains", None, {})
        if answer.body.get("name") == "restricted_api_key":
            return "the key is good, for sending only"
        if answer.status == 200 and isinstance(answer.body.get("data"), list):
            return "the key is good"
        verdict = classify(answer, self._clock.now())
        raise undelivered(verdict.kind, verdict.reason, verdict.after, verdict.until)

    async def _ask(
        self, method: str, path: str, content: bytes | None, more: dict[str, str], sends: bool = False
    ) -> Answered:
        headers = {"Authorization": f"Bearer {self._key}", "User-Agent": f"duly/{__version__}", **more}
        if content is not None:
            headers["Content-Type"] = "application/json"
        return await request(
            method, self._url + path, timeout=self._timeout, headers=headers, content=content, sends=sends
        )


def classify(answer: Answered, now: datetime) -> Verdict:
    """What an answer of Resend means. ``now``: for a quota whose reset is not named.

    "unknown" is what its memory of keys clears up: after a failure on its side the message may be out, and the key's day has begun.
    """
    status, name = answer.status, str(answer.body.get("name") or "")
    if status == 200 and answer.body.get("id"):
        return Verdict(Kind.SENT)
    said = f"Resend answered {status} {name}".rstrip()
    after = retry_after(answer, now)
    message = str(answer.body.get("message") or "")
    if status == 409:
        if name == "concurrent_idempotent_requests":
            return Verdict(Kind.BUSY, said, after)
        return Verdict(Kind.UNKNOWN, f"{said}: a message was sent under this key before, and this one differs from it")
    if status == 429:
        if name in ("daily_quota_exceeded", "monthly_quota_exceeded"):
            return Verdict(Kind.QUOTA, said, after) if after else Verdict(Kind.QUOTA, said, until=_reset(name, now))
        return Verdict(Kind.THROTTLED, said, 1.0 if after is None else after)
    if name in ("missing_api_key", "restricted_api_key", "invalid_api_key", "suspended_api_key") or status == 401:
        return Verdict(Kind.AUTH, said)
    if status == 400 and "api key" in message.lower():
        return Verdict(Kind.AUTH, said)
    if status in (408, 425) or status >= 500:
        return Verdict(Kind.UNKNOWN, said, after)
    if status < 300:
        return Verdict(Kind.UNKNOWN, f"{said}, which is no answer of its own")
    return Verdict(Kind.PERMANENT, f"{said}: {message}" if message else said)


def _reset(name: str, now: datetime) -> datetime:
    """When a quota begins anew: at the next day or month, UTC."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if name == "daily_quota_exceeded":
        return midnight + timedelta(days=1)
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


def payload(message: Message) -> dict[str, Any]:
    """The body of the request, to those who are to get it now: the same for the same letter and the same people."""
    letter = message.to_pending()
    to, cc, bcc = letter.to, letter.cc, letter.bcc
    if not to:  # Resend wants somebody there
        to, cc = cc, ()
    if not to and len(bcc) == 1:
        to, bcc = bcc, ()
    body: dict[str, Any] = {"from": _shown(letter.sender), "subject": letter.subject}
    for name, mailboxes in (
        ("to", to), ("cc", cc), ("bcc", bcc), ("reply_to", letter.reply_to)
    ):  # fmt: skip
        if mailboxes:
            body[name] = [_shown(m) for m in mailboxes]
    for name, text in (("text", letter.text), ("html", letter.html)):
        if text is not None:
            body[name] = text
    if letter.headers:
        body["headers"] = dict(letter.headers)
    if letter.attachments:
        body["attachments"] = [
            {"filename": a.filename, "content": base64.b64encode(a.content).decode(), "content_type": a.content_type}
            for a in letter.attachments
        ]
    return body


def _shown(mailbox: Mailbox) -> str:
    if mailbox.name.isascii():
        return formataddr((mailbox.name, mailbox.address)) if mailbox.address.isascii() else mailbox.address
    quoted = mailbox.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}" <{mailbox.address}>'

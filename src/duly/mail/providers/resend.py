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
from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind, Verdict
from duly.mail.address import Mailbox
from duly.mail.message import Letter, Message, sample
from duly.mail.providers.http import Answered, checked_url, request, retry_after, too_large
from duly.mail.verdict import Answer, Owner, Receipt, Undelivered, undelivered
from duly.settings import Settings

#: Resend remembers a key for 24 hours; an hour of that is left for clocks and for the request itself.
REMEMBERS = 23 * 3600.0
#: The largest message, in bytes: 40 MB with its attachments in base64.
LARGEST = 40 * 1000 * 1000


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
        if len(body) > LARGEST:
            raise undelivered(
                Kind.PERMANENT, f"attachments: {too_large('Resend', len(body), LARGEST)}", owner=Owner.MESSAGE
            )
        await message.ahead(message.pending)
        answer = await self._ask("POST", "/emails", body, {"Idempotency-Key": key}, sends=True)
        verdict = classify(answer, self._clock.now())
        if answer.status == 409 and verdict.kind is Kind.UNKNOWN:  # to ask again would bring the same answer
            return Receipt(unknown=dict.fromkeys(message.pending, Answer(409, verdict.reason)))
        if verdict.kind is not Kind.SENT:
            raise Undelivered(verdict)
        return Receipt(remote_id=str(answer.body["id"]))

    def check_size(self, letter: Letter) -> None:
        """Refuse a letter that is too large. Raises InvalidArgument."""
        size = len(orjson.dumps(payload(sample(letter))))
        if size > LARGEST:
            raise InvalidArgument("attachments", too_large("Resend", size, LARGEST))

    async def check(self) -> str:
        answer = await self._ask("GET", "/domains", None, {})
        if answer.body.get("name") == "restricted_api_key":
            return "the key is good, for sending only"
        if answer.status == 200 and isinstance(answer.body.get("data"), list):
            return "the key is good"
        raise Undelivered(classify(answer, self._clock.now()))

    async def _ask(
        self, method: str, path: str, content: bytes | None, more: dict[str, str], sends: bool = False
    ) -> Answered:
        headers = {"Authorization": f"Bearer {self._key}", "User-Agent": f"duly/{__version__}", **more}
        if content is not None:
            headers["Content-Type"] = "application/json"
        return await request(
            method, self._url + path, timeout=self._timeout, headers=headers, content=content, sends=sends
        )


#: (status, name), and for any name (status, ""): whose fault, what follows, and what it means. https://resend.com/docs/api-reference/errors
MEANINGS: dict[tuple[int, str], tuple[Owner, Kind, str]] = {
    (400, "validation_error"): (Owner.MESSAGE, Kind.PERMANENT, ""),
    (400, "invalid_idempotency_key"): (Owner.MESSAGE, Kind.PERMANENT, ""),
    (401, ""): (Owner.ACCOUNT, Kind.AUTH, ""),
    (403, "invalid_api_key"): (Owner.ACCOUNT, Kind.AUTH, ""),
    (403, "suspended_api_key"): (Owner.ACCOUNT, Kind.AUTH, ""),
    (403, "restricted_api_key"): (Owner.ACCOUNT, Kind.AUTH, ""),
    (403, "validation_error"): (Owner.SENDER, Kind.AUTH, "it does not accept the sender: is the domain verified there?"),
    (404, "not_found"): (Owner.ACCOUNT, Kind.AUTH, "there is no such endpoint: look at resend_url"),
    (405, "method_not_allowed"): (Owner.ACCOUNT, Kind.AUTH, "there is no such endpoint: look at resend_url"),
    (409, "concurrent_idempotent_requests"): (Owner.MESSAGE, Kind.BUSY, ""),
    (409, "invalid_idempotent_request"): (Owner.MESSAGE, Kind.UNKNOWN, "a message was sent under this key before, and this one differs from it"),
    (409, ""): (Owner.MESSAGE, Kind.UNKNOWN, "a message was sent under this key before, and this one differs from it"),
    (413, ""): (Owner.MESSAGE, Kind.PERMANENT, "the message is too large"),
    (422, "missing_required_field"): (Owner.MESSAGE, Kind.PERMANENT, ""),
    (422, "invalid_parameter"): (Owner.MESSAGE, Kind.PERMANENT, ""),
    (422, "invalid_attachment"): (Owner.MESSAGE, Kind.PERMANENT, ""),
    (422, "validation_error"): (Owner.MESSAGE, Kind.PERMANENT, ""),
    (422, "invalid_from_address"): (Owner.SENDER, Kind.AUTH, "it does not accept the sender"),
    (429, "daily_quota_exceeded"): (Owner.ACCOUNT, Kind.QUOTA, ""),
    (429, "monthly_quota_exceeded"): (Owner.ACCOUNT, Kind.QUOTA, ""),
    (429, ""): (Owner.ACCOUNT, Kind.THROTTLED, ""),
    (451, "security_error"): (Owner.ACCOUNT, Kind.AUTH, "the account is stopped for its security"),
    # before it was looked at, or after it was sent: nobody can tell, and the key can
    (408, ""): (Owner.SERVER, Kind.UNKNOWN, ""),
    (425, ""): (Owner.SERVER, Kind.UNKNOWN, ""),
    (499, ""): (Owner.SERVER, Kind.UNKNOWN, ""),
}  # fmt: skip
#: Names that mean the same with each status.
ANYWHERE: dict[str, tuple[Owner, Kind, str]] = {
    "missing_api_key": (Owner.ACCOUNT, Kind.AUTH, ""),
    "restricted_api_key": (Owner.ACCOUNT, Kind.AUTH, ""),
    "invalid_api_key": (Owner.ACCOUNT, Kind.AUTH, ""),
    "suspended_api_key": (Owner.ACCOUNT, Kind.AUTH, ""),
    "rate_limit_exceeded": (Owner.ACCOUNT, Kind.THROTTLED, ""),
    "daily_quota_exceeded": (Owner.ACCOUNT, Kind.QUOTA, ""),
    "monthly_quota_exceeded": (Owner.ACCOUNT, Kind.QUOTA, ""),
}  # fmt: skip


def classify(answer: Answered, now: datetime) -> Verdict:
    """Return what an answer of Resend means. ``now``: for a quota whose reset is not named.

    UNKNOWN is cleared up by its memory of keys: after a failure on its side the message may be out, and the key's day has begun. An answer
    below 500 that the table does not know means that nothing was sent; the message is tried again.
    """
    status, name = answer.status, str(answer.body.get("name") or "")
    if status == 200 and answer.body.get("id"):
        return Verdict(Kind.SENT)
    said = f"Resend answered {status} {name}".rstrip()
    after = retry_after(answer, now)
    message = str(answer.body.get("message") or "")
    found = MEANINGS.get((status, name)) or ANYWHERE.get(name) or MEANINGS.get((status, ""))
    if status == 400 and "api key" in message.lower():
        found = (Owner.ACCOUNT, Kind.AUTH, "")
    if found is None:
        if status < 300:
            return Verdict(Kind.UNKNOWN, f"{said}, which is no answer of its own", owner=Owner.SERVER)
        return Verdict(Kind.UNKNOWN if status >= 500 else Kind.TRANSIENT, said, after, owner=Owner.SERVER)
    owner, kind, meaning = found
    if kind is Kind.QUOTA:
        reset = None if after else _reset(name, now)
        return Verdict(kind, said, after or None, reset, owner)
    meaning = meaning or (message if kind in (Kind.PERMANENT, Kind.AUTH) and owner is not Owner.ACCOUNT else "")
    return Verdict(kind, f"{said}: {meaning}" if meaning else said, after, owner=owner)


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

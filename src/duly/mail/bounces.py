"""Bounces and complaints that come later, and the suppressions that follow.

Two ways in: a provider's signed webhook (Resend), and the message that a mail server sends back (RFC 3464; complaints: RFC 5965). Reading is
pure; ``Bounces`` writes. A recipient is suppressed when the mailbox is at fault for good, and only where Duly wrote to them: a report names its
recipients itself, and anyone can write one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email import message_from_bytes, policy
from email.message import Message
from typing import TYPE_CHECKING, Any, Literal

import orjson

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_name
from duly.kernel.verdict import Kind as Verdicts
from duly.mail.address import normalised
from duly.mail.providers.smtp_replies import Step, enhanced_in, find
from duly.mail.store import MailStore
from duly.mail.verdict import Owner

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from duly.mail.host import Host

#: Seconds that the time of a webhook may differ from the clock: beyond, it is a replay.
TOLERANCE = 300.0
#: Enhanced status codes that say of the mailbox that it is gone (RFC 3463). Not: full (5.2.2), a policy (5.7.x), the sender (5.1.7, 5.1.8 and
#: Exchange's 5.1.20), the account (Exchange's 5.1.90: the limit of a day).
_GONE = re.compile(r"5\.0\.0|5\.1\.(?:[0-69]|1\d)|5\.2\.1|5\.4\.4")
#: The code that says nothing: servers put it where the other side gave none.
_ANYTHING = "5.0.0"
#: How a Message-ID of ours begins: the mark of the database, when the job was made, the job.
_OURS = re.compile(r"<duly-([0-9a-f]+)-[0-9a-f]+-(\d{1,18})@")

Kind = Literal["bounce", "complaint"]


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report says of one recipient. ``gone``: for good."""

    address: str = field(repr=False)
    gone: bool
    status: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A report, as it was written. Nothing of it is believed yet."""

    #: What tells it from every other.
    ident: str
    kind: Kind
    provider: str
    recipients: tuple[Reported, ...]
    #: The job that the message was sent by, and the mark of its database, where the report names them.
    job: int | None = None
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What followed from a report. Numbers count recipients."""

    kind: Kind
    #: New on the list.
    suppressed: int = 0
    #: On the list already.
    known: int = 0
    #: Refused for now, or not because of the mailbox.
    soft: int = 0
    #: Duly has not written to them, as far as its records reach.
    strangers: int = 0
    #: The same report came before: nothing was done.
    repeated: bool = False


class Unverified(InvalidArgument):
    """A webhook that its sender has not signed, or not now."""


# ---------------------------------------------------------------------- reading


def verify(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> str:
    """Check the signature of a webhook (Standard Webhooks, as svix writes them). Returns its id. Raises Unverified.

    ``headers``: names in small letters. ``secret``: ``whsec_…``.
    """
    ident, at, signed = (headers.get(f"svix-{n}") or headers.get(f"webhook-{n}") or "" for n in ("id", "timestamp", "signature"))  # fmt: skip
    if not ident or not at.isascii() or not at.isdigit() or len(at) > 12 or len(ident) > 200:
        raise Unverified("signature", "is missing: the headers svix-id, svix-timestamp and svix-signature are needed.")
    if abs(now.timestamp() - int(at)) > TOLERANCE:
        raise Unverified("signature", f"is of another time: svix-timestamp differs from the clock by more than {TOLERANCE:g} s.")  # fmt: skip
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("resend_webhook_secret", "is not whsec_ and base64.") from None
    if not key:
        raise InvalidArgument("resend_webhook_secret", "is empty.")
    right = base64.b64encode(hmac.digest(key, f"{ident}.{at}.".encode() + body, "sha256"))
    given = [one.partition(",")[2].encode() for one in signed.split() if one.startswith("v1,")]
    matches = [hmac.compare_digest(right, one) for one in given]  # each is looked at
    if not any(matches):
        raise Unverified("signature", "does not fit the body.")
    return ident


def read_resend(ident: str, body: bytes) -> Report | None:
    """An event of Resend; None: it is about something else. Raises InvalidArgument."""
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InvalidArgument("body", "is not JSON.") from None
    data = event.get("data") if isinstance(event, dict) else None
    if not isinstance(data, dict):
        raise InvalidArgument("body", "is not an event: it has no data.")
    kind: Kind
    if event.get("type") == "email.bounced":
        kind = "bounce"
    elif event.get("type") == "email.complained":
        kind = "complaint"
    else:
        return None
    to = data.get("to")
    addresses = [one for one in (to if isinstance(to, list) else [to]) if isinstance(one, str)]
    found = data.get("bounce")
    bounce: dict[str, Any] = found if isinstance(found, dict) else {}
    if len(addresses) > 1:  # one of them bounced: only who is named in what the server said
        said = orjson.dumps(bounce).decode().lower()
        addresses = [one for one in addresses if _bare(one) in re.split(r"[^\w.+@-]+", said)]
    gone = kind == "complaint" or str(bounce.get("type") or "").lower() == "permanent"
    status = str(bounce.get("subType") or bounce.get("type") or "")[:50]
    return Report(f"resend:{ident}", kind, "resend", tuple(Reported(one, gone, status) for one in addresses))


def _bare(address: str) -> str:
    try:
        return normalised(address)
    except InvalidArgument:
        return ""


#: Parts of a report, the second and third kind for addresses in other scripts (RFC 6533).
_STATUS = ("message/delivery-status", "message/global-delivery-status")
_ORIGINAL = (
    "message/rfc822",
    "text/rfc822-headers",
    "message/rfc822-headers",
    "message/global",
    "message/global-headers",
)


def read_message(raw: bytes) -> Report:
    """A delivery status notification, or a report of a complaint, as it lies in a mailbox. Raises InvalidArgument where it is neither."""
    # fields are read as they stand: what the policies of today do with broken ones is to fail
    message = message_from_bytes(raw, policy=policy.compat32)
    parts = {part.get_content_type(): part for part in reversed(list(message.walk()))}
    status, feedback = next((parts[t] for t in _STATUS if t in parts), None), parts.get("message/feedback-report")
    original = next((parts[t] for t in _ORIGINAL if t in parts), None)
    ours = _OURS.search(_text(original)) if original is not None else None
    ident = f"message:{hashlib.sha256(raw).hexdigest()}"
    job, mark = (int(ours[2]), ours[1]) if ours else (None, None)
    if status is not None:
        return Report(ident, "bounce", "mail", tuple(_recipients(_blocks(status))), job, mark)
    if feedback is not None:
        said = {name: value for block in _blocks(feedback) for name, value in block.items()}
        named = said.get("original-rcpt-to", "")
        is_abuse = said.get("feedback-type", "").strip().lower() in ("abuse", "fraud", "opt-out")
        return Report(ident, "complaint", "mail", (Reported(named.strip(" <>"), is_abuse, said.get("feedback-type", "").strip()),) if named else (), job, mark)  # fmt: skip
    raise InvalidArgument("message", "is no report: it has no part message/delivery-status or message/feedback-report.")


def _recipients(blocks: Sequence[Mapping[str, str]]) -> list[Reported]:
    found = []
    for block in blocks:
        named = _address(block.get("original-recipient", "")) or _address(block.get("final-recipient", ""))
        if not named:
            continue
        status, action = _first(block.get("status", "")).lstrip("#"), _first(block.get("action", "")).lower()
        gone = action == "failed" and _GONE.fullmatch(status) is not None
        if gone and status == _ANYTHING:
            gone = _blames_mailbox(block.get("diagnostic-code", ""))
        found.append(Reported(named, gone, status))
    return found


def _address(named: str) -> str:
    """The address of ``rfc822; ada@example.org``, or of ``utf-8; …`` (RFC 6533); "" for other kinds."""
    kind, _, address = named.partition(";")
    if kind.strip().lower() == "utf-8":
        address = re.sub(r"\\x\{([0-9A-Fa-f]{2,6})\}", lambda m: chr(min(int(m[1], 16), 0x10FFFF)), address)
    elif kind.strip().lower() != "rfc822":
        return ""
    return address.strip(" <>")


def _first(text: str) -> str:
    """The first word: a comment may follow it."""
    return (text.split() or [""])[0]


def _blames_mailbox(diagnostic: str) -> bool:
    """Does what the other side said, such as ``smtp; 550 No such user``, name no other cause? Spam, a block and a size are others."""
    said = re.match(r"\s*smtp\s*;\s*(5\d\d)[ -](.*)", diagnostic, re.IGNORECASE | re.DOTALL)
    if said is None:
        return True
    step: Step
    for step in ("text", "recipient"):
        row = find(int(said[1]), enhanced_in(said[2]), said[2], step)
        if row is not None and not (row.kind is Verdicts.PERMANENT and row.owner is Owner.RECIPIENT):
            return False
    return True


def _blocks(part: Message) -> list[dict[str, str]]:
    """The groups of fields of a report, names in small letters."""
    payload = part.get_payload()
    if isinstance(
        payload, list
    ):  # ``email`` has read it as messages: of a kind that it does not know, the first group only
        read = [one for one in payload if isinstance(one, Message)]
        first = [{name.lower(): str(value).strip() for name, value in one.items()} for one in read]
        return first + [block for one in read if not one.is_multipart() for block in _groups(_text(one))]
    return _groups(_text(part))


def _groups(fields: str) -> list[dict[str, str]]:
    blocks = []
    for text in re.split(r"\r?\n[ \t]*\r?\n", fields):
        lines = re.sub(r"\r?\n[ \t]+", " ", text).splitlines()
        blocks.append({name.strip().lower(): value.strip() for name, colon, value in (one.partition(":") for one in lines) if colon})  # fmt: skip
    return blocks


def _text(part: Message) -> str:
    """What stands in a part; of a message in it its Message-ID."""
    payload = part.get_payload()
    if isinstance(payload, list):
        return " ".join(str(one.get("message-id", "")) for one in payload if isinstance(one, Message))
    decoded = part.get_payload(decode=True)
    return decoded.decode("utf-8", "replace") if isinstance(decoded, bytes) else str(payload)


# ---------------------------------------------------------------------- acting


class Bounces:
    """``mail.bounces``: reports become suppressions, with their source. Works without the task, as ``Suppressions`` does."""

    def __init__(self, app: Host) -> None:
        self._app = app

    def read(self, raw: bytes, *, tenant: str | None = None, actor: str = "code") -> Outcome:
        """Take a report as it lies in a mailbox: a bounce or a complaint. ``tenant``: only on this one's list. Raises InvalidArgument."""
        return self._take(read_message(raw), tenant, actor)

    def resend(self, headers: Mapping[str, str], body: bytes) -> Outcome | None:
        """Take a webhook of Resend. None: it is about something else. Raises Unverified, and InvalidArgument for one that cannot be read."""
        secret = self._app.settings.resend_webhook_secret
        if not secret:
            raise Unverified("signature", "cannot be checked.", "Set resend_webhook_secret (DULY_RESEND_WEBHOOK_SECRET).")  # fmt: skip
        self._app.open()
        now = self._app.engine.db.read(self._app.engine.db.present)
        report = read_resend(verify({k.lower(): v for k, v in headers.items()}, body, secret, now), body)
        return None if report is None else self._take(report, None, "resend")

    def _take(self, report: Report, tenant: str | None, actor: str) -> Outcome:
        self._app.open()
        db, at = self._app.engine.db, None if tenant is None else check_name(tenant, "tenant")
        outcome: Outcome = db.write(lambda c: self._written(c, MailStore(db), report, at, actor))
        if not outcome.repeated:
            self._app.events.emit(
                "mail_reported", "warning" if outcome.suppressed else "info", kind=report.kind, provider=report.provider, suppressed=outcome.suppressed, soft=outcome.soft,
                strangers=outcome.strangers,
            )  # fmt: skip
        return outcome

    def _written(self, c: Connection, store: MailStore, report: Report, tenant: str | None, actor: str) -> Outcome:
        if not store.note(c, report.ident, report.kind, job=report.job):
            return Outcome(report.kind, repeated=True)
        mark = store.mark(c)
        job = report.job if report.mark == mark else None
        suppressed = known = soft = strangers = 0
        for one in report.recipients:
            address = _bare(one.address)
            if not one.gone:
                soft += 1
                continue
            tenants = store.wrote_to(c, mark, address, job) if address else set()
            tenants &= {tenant} if tenant is not None else tenants
            if not tenants:
                strangers += 1
            source = f"{report.kind}:{report.provider}"
            reason = " ".join(part for part in (report.kind, one.status) if part)
            new = [store.suppress(c, t, address, reason, actor, source) for t in sorted(tenants)]
            suppressed += any(row is not None for row in new)
            known += bool(new) and all(row is None for row in new)
        return Outcome(report.kind, suppressed, known, soft, strangers)

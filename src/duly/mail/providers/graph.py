"""Microsoft Graph: sendMail with an application's own token.

https://learn.microsoft.com/graph/api/user-sendmail, https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow.
202 means accepted. There is no idempotency key: an answer that does not come is an unknown outcome.

A message that is too large for one request goes as a draft with uploads (``graph_draft.py``).

JSON carries one body, so a message with ``text`` and ``html`` goes as MIME. MIME travels in base64 once more, and Graph always keeps a copy
of it in Sent Items: where it would be too large, or ``graph_save`` is off, such a message goes as JSON with its HTML, from which Exchange makes
a text of its own.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import orjson

from duly.kernel.clock import Clock
from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind, Verdict
from duly.mail.address import Mailbox
from duly.mail.message import Letter, Message, sample
from duly.mail.mime import compose, needs_utf8
from duly.mail.providers.graph_draft import Drafts, attached
from duly.mail.providers.http import Answered, checked_url, request, retry_after, too_large
from duly.mail.verdict import Owner, Receipt, Undelivered, undelivered
from duly.settings import Settings

#: A token is fetched anew so many seconds before it expires, or after half of its life if that is shorter.
MARGIN = 300.0
SCOPE = "https://graph.microsoft.com/.default"
#: The largest request, in bytes (413 beyond); a larger message needs a draft.
LARGEST = 4 * 1024 * 1024
#: The wait where a limit is reached and no Retry-After is given, in seconds.
QUOTA = 3600.0


class GraphProvider:
    name = "graph"
    remembers = 0.0
    #: Four requests at once per application and mailbox.
    concurrency = 4

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._tenant, self._id = settings.graph_tenant, settings.graph_client_id
        self._secret, self._timeout, self._clock = settings.graph_client_secret, settings.mail_timeout, clock
        self._url = checked_url(settings.graph_url, "graph_url")
        self._save, self._most = settings.graph_save, settings.graph_message_size
        self._token_url = checked_url(settings.graph_token_url, "graph_token_url")
        #: The token, and the monotonic instant until which it is used.
        self._token, self._until = "", 0.0

    async def send(self, message: Message, key: str) -> Receipt:
        fields, size = payload(message, key), measured(message, key)
        problem = self._refusal(size)
        if problem:
            raise undelivered(Kind.PERMANENT, f"attachments: {problem}", owner=Owner.MESSAGE)
        sender, files = message.letter.sender.address, message.letter.attachments
        drafts = Drafts(partial(self._ask, sender), self._judged, LARGEST, self._timeout)
        draft = await drafts.make(fields, files) if size.whole > LARGEST else ""
        kind, content = ("", b"") if draft else self._body(message, key)
        token = await self._fresh()
        await message.ahead(message.pending)
        path = f"messages/{draft}/send" if draft else "sendMail"
        answer = await self._ask(sender, path, content, kind=kind, sends=True, token=token)
        verdict = self._judged(answer)
        if verdict.kind is not Kind.SENT:
            if verdict.kind is Kind.AUTH:
                self._forget(self._token)
            if draft and verdict.kind is not Kind.UNKNOWN:
                await drafts.remove(draft)
            raise Undelivered(verdict)
        return Receipt(remote_id=answer.headers.get("request-id"))

    def _body(self, message: Message, key: str) -> tuple[str, bytes]:
        """(content type, body) of the request. Raises Undelivered for headers that Graph does not carry."""
        letter = message.letter
        if letter.text is not None and letter.html is not None and self._save and not needs_utf8(message):
            content = mime(message, key)
            if len(content) <= LARGEST:
                return "text/plain", content
        fields = payload(message, key)
        if letter.attachments:
            fields["attachments"] = [attached(file) for file in letter.attachments]
        return "application/json", orjson.dumps(
            {"message": fields} | ({} if self._save else {"saveToSentItems": False})
        )

    def check_size(self, letter: Letter) -> None:
        """Refuse a letter that is too large. Raises InvalidArgument."""
        problem = self._refusal(measured(sample(letter), "x" * 60))
        if problem:
            raise InvalidArgument("attachments", problem)

    def _refusal(self, size: Size) -> str:
        """Why a message of this size is not taken; empty where it is."""
        if size.whole <= LARGEST:
            return ""
        if size.without > LARGEST:
            return too_large("Microsoft Graph", size.without, LARGEST)
        if size.whole > self._most:
            more = "Where your Exchange takes larger messages, raise graph_message_size (DULY_GRAPH_MESSAGE_SIZE)."
            return f"{too_large('Microsoft Graph', size.whole, self._most)} {more}"
        if not self._save:
            more = "takes larger ones as drafts only, of which it always keeps a copy in Sent Items, and graph_save is off."
            return f"{too_large('Microsoft Graph', size.whole, LARGEST)} It {more}"
        return ""

    async def check(self) -> str:
        self._forget(self._token)
        await self._fresh()
        return "a token was given out"

    async def _ask(
        self, sender: str, path: str, content: bytes = b"", *, method: str = "POST", kind: str = "application/json", sends: bool = False,
        token: str = "",
    ) -> Answered:  # fmt: skip
        """A request about the mailbox of the sender; one whose token is refused (nothing was done) once more with a new one."""
        url = f"{self._url}/users/{quote(sender, safe='@')}/{path}"
        body = content if method == "POST" else None
        for again in (True, False):
            token = token or await self._fresh()
            headers = {"Authorization": f"Bearer {token}", **({"Content-Type": kind} if content else {})}
            answer = await request(method, url, timeout=self._timeout, headers=headers, content=body, sends=sends)
            if answer.status != 401 or not again:
                break
            self._forget(token)
            token = ""
        return answer

    def _judged(self, answer: Answered) -> Verdict:
        return classify(answer, self._clock.now())

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
            raise Undelivered(verdict)
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


#: Errors of Entra that pass (AADSTS…): it is busy, or has been asked too often.
_PASSING = frozenset({50196, 90006, 90033, 90036, 90055})


def classify_token(answer: Answered, now: datetime) -> Verdict:
    """Return what an answer to a token request means. No message is at fault, so none ends: the queue waits, or is paused."""
    if answer.status == 200 and answer.body.get("access_token"):
        return Verdict(Kind.SENT)
    found = answer.body.get("error_codes")
    codes = [code for code in found if isinstance(code, int)] if isinstance(found, list) else []
    said = [f"AADSTS{code}" for code in codes]
    error = str(answer.body.get("error") or "")
    reason = " ".join([f"no token of Microsoft Graph: {answer.status}", error, *said])
    after = retry_after(answer, now)
    if answer.status == 429:
        return Verdict(Kind.THROTTLED, reason, after, owner=Owner.ACCOUNT)
    passes = answer.status in (408, 425, 499) or answer.status >= 500 or error == "temporarily_unavailable"
    if passes or _PASSING.intersection(codes) or not error:
        return Verdict(Kind.AWAY, reason, after, owner=Owner.SERVER)  # without an error it was not Entra that answered
    return Verdict(Kind.AUTH, reason, owner=Owner.ACCOUNT)


_MESSAGE, _SENDER, _ACCOUNT = (Owner.MESSAGE, Kind.PERMANENT), (Owner.SENDER, Kind.AUTH), (Owner.ACCOUNT, Kind.AUTH)
#: Error codes: whose fault, and what follows, whatever the status is. https://learn.microsoft.com/graph/errors,
#: https://learn.microsoft.com/exchange/client-developer/web-service-reference/responsecode
MEANINGS: dict[str, tuple[Owner, Kind]] = {
    # the mailbox that sends, or what the application may do with it
    "ErrorAccessDenied": _SENDER, "AccessDenied": _SENDER, "accessDenied": _SENDER, "ErrorSendAsDenied": _SENDER,
    "ErrorSendOnBehalfOfDenied": _SENDER, "ErrorInvalidUser": _SENDER, "ErrorNonExistentMailbox": _SENDER, "ResourceNotFound": _SENDER,
    "Request_ResourceNotFound": _SENDER, "MailboxNotEnabledForRESTAPI": _SENDER, "MailboxNotSupportedForRESTAPI": _SENDER,
    "MailboxNotHostedInExchangeOnline": _SENDER, "ErrorMissingEmailAddress": _SENDER, "ErrorAccountDisabled": _SENDER,
    "Authorization_RequestDenied": _ACCOUNT, "Authorization_IdentityDisabled": _ACCOUNT, "InvalidAuthenticationToken": _ACCOUNT,
    "OrganizationFromTenantGuidNotFound": _ACCOUNT,
    # the message
    "ErrorInvalidRecipients": _MESSAGE, "ErrorInvalidSmtpAddress": _MESSAGE, "ErrorMimeContentInvalid": _MESSAGE,
    "ErrorMimeContentInvalidBase64String": _MESSAGE, "ErrorMessageSizeExceeded": _MESSAGE, "ErrorAttachmentSizeLimitExceeded": _MESSAGE,
    "ErrorContentConversionFailed": _MESSAGE, "ErrorInvalidInternetMessageHeader": _MESSAGE, "ErrorInvalidPropertySet": _MESSAGE,
    "InvalidInternetMessageHeader": _MESSAGE, "InvalidInternetMessageHeaderCollection": _MESSAGE, "RequestBodyRead": _MESSAGE,
    "ErrorInvalidPropertyForOperation": _MESSAGE, "ErrorRecipientNotFound": _MESSAGE,
    # limits: of the rate, and of a mailbox or a day
    "ApplicationThrottled": (Owner.ACCOUNT, Kind.THROTTLED), "TooManyRequests": (Owner.ACCOUNT, Kind.THROTTLED),
    "activityLimitReached": (Owner.ACCOUNT, Kind.THROTTLED), "MailboxConcurrency": (Owner.ACCOUNT, Kind.THROTTLED),
    "ErrorExceededConnectionCount": (Owner.ACCOUNT, Kind.THROTTLED), "ErrorServerBusy": (Owner.SERVER, Kind.THROTTLED),
    "ErrorTooManyObjectsOpened": (Owner.ACCOUNT, Kind.THROTTLED), "TooManyRequestsForMailbox": (Owner.ACCOUNT, Kind.THROTTLED),
    "ErrorExceededMessageLimit": (Owner.ACCOUNT, Kind.QUOTA), "ErrorSubmissionQuotaExceeded": (Owner.ACCOUNT, Kind.QUOTA),
    "ErrorQuotaExceeded": (Owner.ACCOUNT, Kind.QUOTA), "ErrorMessageSubmissionBlocked": (Owner.ACCOUNT, Kind.QUOTA),
    "ErrorMessageTransientError": (Owner.SERVER, Kind.UNKNOWN), "ErrorInternalServerTransientError": (Owner.SERVER, Kind.UNKNOWN),
    # it says of itself that it cannot take anything
    "serviceNotAvailable": (Owner.SERVER, Kind.AWAY), "ServiceUnavailable": (Owner.SERVER, Kind.AWAY),
    "ErrorMailboxStoreUnavailable": (Owner.SERVER, Kind.AWAY), "ErrorMailboxMoveInProgress": (Owner.SERVER, Kind.AWAY),
    "MailboxInfoStale": (Owner.SERVER, Kind.AWAY), "ErrorConnectionFailed": (Owner.SERVER, Kind.AWAY),
}  # fmt: skip
#: Statuses, where the code is none of these.
STATUSES: dict[int, tuple[Owner, Kind]] = {
    401: _ACCOUNT, 413: _MESSAGE, 429: (Owner.ACCOUNT, Kind.THROTTLED), 509: (Owner.ACCOUNT, Kind.THROTTLED), 507: (Owner.ACCOUNT, Kind.QUOTA),
    # a gateway that gave up waiting says nothing of what is behind it
    408: (Owner.SERVER, Kind.UNKNOWN), 499: (Owner.SERVER, Kind.UNKNOWN),
}  # fmt: skip


def classify(answer: Answered, now: datetime) -> Verdict:
    """Return what an answer to sendMail means. A 401 here came with a new token too.

    What no table knows never ends a message: below 500 it was not taken, and is tried again; from 500 on nobody knows, because a gateway
    answers so too when the message is behind it already. A 503 that names a wait was not taken.
    """
    status = answer.status
    if status == 202:
        return Verdict(Kind.SENT)
    error = answer.body.get("error")
    code = str(error.get("code") or "") if isinstance(error, dict) else ""
    said = f"Microsoft Graph answered {status} {code}".rstrip()
    after = retry_after(answer, now)
    if status < 300:
        return Verdict(Kind.UNKNOWN, f"{said}, which is no answer of its own", owner=Owner.SERVER)
    found = MEANINGS.get(code) or STATUSES.get(status)
    if found is None and status == 503 and after is not None:
        found = (Owner.SERVER, Kind.AWAY)
    if found is None:
        found = (Owner.SERVER, Kind.UNKNOWN if status >= 500 else Kind.TRANSIENT)
    owner, kind = found
    if kind is Kind.QUOTA:
        after = after or QUOTA
    return Verdict(kind, said, after, owner=owner)


def mime(message: Message, key: str) -> bytes:
    """The body of sendMail in MIME, to those who are to get it now. Who gets a blind copy is named in it, and Exchange takes the line out."""
    letter = message.to_pending()
    composed = compose(replace(message, letter=letter))
    if letter.bcc:
        composed["Bcc"] = ", ".join(mailbox.address for mailbox in letter.bcc)
        if not letter.to and not letter.cc:
            del composed["To"]
    composed["x-duly-key"] = key
    return base64.b64encode(composed.as_bytes())


def payload(message: Message, key: str) -> dict[str, Any]:
    """A message in JSON without its attachments, to those who are to get it now. Raises Undelivered for headers that Graph does not carry."""
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
    return out


class Size(NamedTuple):
    """Bytes of a message in JSON, with its attachments and without."""

    whole: int
    without: int


def measured(message: Message, key: str) -> Size:
    """How large a message is. No file is encoded for that: base64 makes 4 bytes of 3."""
    without = len(orjson.dumps({"message": payload(message, key), "saveToSentItems": False}))
    files = message.letter.attachments
    empty = (len(orjson.dumps(attached(replace(file, content=b"")))) + 1 for file in files)
    return Size(
        without + sum(empty) + sum(-(-len(file.content) // 3) * 4 for file in files) + 20 * bool(files), without
    )


def _recipients(mailboxes: Sequence[Mailbox]) -> list[dict[str, Any]]:
    return [{"emailAddress": {"address": m.address, **({"name": m.name} if m.name else {})}} for m in mailboxes]

"""The input of EMAIL_SEND, read and checked. Pure: fields in, a ``Letter`` out, or an error that names the field.

Source: R003 (EMAIL_SEND), T003-d: what is missing or malformed is a permanent error at once.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from duly.kernel.clock import to_micros
from duly.kernel.errors import InvalidArgument
from duly.mail.address import ENCODED_WORD, Mailbox, one_line, read_mailbox

FIELDS = (
    "to", "cc", "bcc", "subject", "text", "html", "reply_to", "headers", "attachments", "from", "template", "data",
)  # fmt: skip
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+", re.IGNORECASE)
#: Headers that are made here, out of the fields.
_OWN = frozenset({
    "from", "sender", "to", "cc", "bcc", "subject", "date", "message-id", "reply-to", "mime-version", "return-path",
})  # fmt: skip
#: Headers that machines read: they are carried as they are, in no encoded words (RFC 2047, section 5), or not at all. So are List-….
_READ = frozenset({
    "references", "in-reply-to", "auto-submitted", "precedence", "importance", "disposition-notification-to", "errors-to", "require-recipient-valid-since",
})  # fmt: skip
#: Longest word in one of these; a line may have 998 bytes (RFC 5322).
_WORD = 900


@dataclass(frozen=True, slots=True)
class Attachment:
    filename: str
    content: bytes = field(repr=False)
    content_type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message whose every field can be used. At least one of ``text`` and ``html`` is there."""

    sender: Mailbox
    to: tuple[Mailbox, ...]
    cc: tuple[Mailbox, ...]
    bcc: tuple[Mailbox, ...]
    reply_to: tuple[Mailbox, ...]
    subject: str
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]
    attachments: tuple[Attachment, ...]

    def recipients(self) -> Iterator[tuple[str, Mailbox]]:
        """(field, mailbox) of everybody, each address once."""
        seen: set[str] = set()
        for name in ("to", "cc", "bcc"):
            for position, mailbox in enumerate(getattr(self, name)):
                if mailbox.normalised not in seen:
                    seen.add(mailbox.normalised)
                    yield f"{name}[{position}]", mailbox

    def only(self, addresses: frozenset[str]) -> Letter:
        """The letter to those whose normalised addresses are among these, each of them once."""
        seen: set[str] = set()
        kept: dict[str, tuple[Mailbox, ...]] = {}
        for name in ("to", "cc", "bcc"):
            found = []
            for mailbox in getattr(self, name):
                if mailbox.normalised in addresses and mailbox.normalised not in seen:
                    seen.add(mailbox.normalised)
                    found.append(mailbox)
            kept[name] = tuple(found)
        return Letter(
            self.sender, kept["to"], kept["cc"], kept["bcc"], self.reply_to, self.subject, self.text, self.html, self.headers, self.attachments
        )  # fmt: skip


async def _nothing(addresses: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """What a provider sends: a letter with its identity, and to whom it goes this time."""

    letter: Letter = field(repr=False)
    #: ``<…@domain>``, the same at every attempt.
    message_id: str
    date: datetime
    #: The addresses that are to get it now. Others of the letter have it already.
    pending: tuple[str, ...] = field(repr=False)
    #: A provider awaits this with the addresses that are about to be handed over, before it does what cannot be taken back.
    ahead: Callable[[Sequence[str]], Awaitable[None]] = field(default=_nothing, repr=False, compare=False)

    def to_pending(self) -> Letter:
        """The letter to nobody but those who are to get it now, as a provider wants it that sends to whom it finds in the fields."""
        return self.letter.only(frozenset(address.lower() for address in self.pending))


def sample(letter: Letter) -> Message:
    """A message of this letter to everyone, for measuring it."""
    mark = "x" * 60
    everyone = tuple(mailbox.address for _, mailbox in letter.recipients())
    return Message(letter, f"<{mark}@{letter.sender.domain}>", datetime(2026, 1, 1, tzinfo=UTC), everyone)


def message_key(mark: str, created_at: datetime | None, job: int) -> str:
    """What names a message everywhere: this database, the job, and when it was made (ids of a database that was put back come again)."""
    assert created_at is not None
    return f"duly-{mark}-{to_micros(created_at):x}-{job}"


def message_id(key: str, letter: Letter) -> str:
    """The Message-ID: the same at every attempt of a job."""
    return f"<{key}@{letter.sender.domain}>"


# ---------------------------------------------------------------------- reading


def read_letter(given: Mapping[str, Any], *, sender: str, most: int) -> Letter:
    """A letter from the fields of EMAIL_SEND, its template filled in. ``sender``: who sends what names no ``from``. ``most``:
    bytes of all attachments. Raises InvalidArgument naming the field; no value is repeated.
    """
    check_fields(given)
    to, cc, bcc = (_mailboxes(given.get(name), name) for name in ("to", "cc", "bcc"))
    check_addressed({"to": to, "cc": cc, "bcc": bcc})
    text, html = (_body(given.get(name), name) for name in ("text", "html"))
    if text is None and html is None:
        raise InvalidArgument("text", "is missing, and so are html and template: there is nothing to send.")
    return Letter(
        _sender(given.get("from"), sender), to, cc, bcc, _mailboxes(given.get("reply_to"), "reply_to"), _subject(given.get("subject")),
        text, html, _headers(given.get("headers")), _attachments(given.get("attachments"), most),
    )  # fmt: skip


def read_recipients(given: Mapping[str, Any]) -> frozenset[str]:
    """The normalised addresses of everybody whom the fields name. Raises InvalidArgument."""
    found = (mailbox for name in ("to", "cc", "bcc") for mailbox in _mailboxes(given.get(name), name))
    return frozenset(mailbox.normalised for mailbox in found)


def check_addressed(given: Mapping[str, Any]) -> None:
    """Refuse a message to no one, also before its job is made. Raises InvalidArgument."""
    if not any(given.get(name) for name in ("to", "cc", "bcc")):
        raise InvalidArgument("to", "is missing: there is no recipient.")


def check_fields(given: Mapping[str, Any]) -> None:
    """Refuse fields that EMAIL_SEND does not have, and a template beside a body. Raises InvalidArgument."""
    for name in given:
        if name not in FIELDS:
            raise InvalidArgument(name, "is not a field of EMAIL_SEND.", f"Fields are: {', '.join(FIELDS)}.")


def _mailboxes(value: Any, field: str) -> tuple[Mailbox, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (read_mailbox(value, field),)
    if not isinstance(value, list | tuple):
        raise InvalidArgument(field, f"is of type {type(value).__name__}; it must be a text or a list of texts.")
    return tuple(read_mailbox(one, f"{field}[{position}]") for position, one in enumerate(value))


def _sender(value: Any, default: str) -> Mailbox:
    if value is not None:
        return read_mailbox(value, "from")
    if not default:
        raise InvalidArgument("from", "is missing, and the setting mail_from names no sender.")
    return read_mailbox(default, "mail_from")


def _subject(value: Any) -> str:
    if value is None or value == "":
        raise InvalidArgument("subject", "is missing.")
    return one_line(value, "subject")


def _body(value: Any, field: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(field, f"is of type {type(value).__name__}; it must be a text.")
    return value or None


def _headers(value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise InvalidArgument("headers", f"is of type {type(value).__name__}; it must be an object of names and texts.")
    out, seen = [], set[str]()
    for name, text in value.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidArgument("headers", "has a name that is not the name of a header.")
        if name.lower() in seen:
            raise InvalidArgument(f"headers.{name}", "is given twice.")
        seen.add(name.lower())
        if name.lower() in _OWN or name.lower().startswith(("content-", "resent-")):
            raise InvalidArgument(f"headers.{name}", "is made here.", "Use the field, or leave it out.")
        text = one_line(text, f"headers.{name}")
        if name.lower() in _READ or name.lower().startswith("list-"):
            text = _read_by_machines(text, f"headers.{name}")
        out.append((name, text))
    return tuple(out)


def _read_by_machines(text: str, field: str) -> str:
    words = text.split()
    if not text.isascii() or ENCODED_WORD.search(text):
        raise InvalidArgument(
            field, "can hold plain ASCII only.", "Write a URL with percent signs, a domain with xn--."
        )
    if any(len(word) > _WORD for word in words):
        raise InvalidArgument(field, f"has more than {_WORD} characters without a space.")
    return " ".join(words)


def _attachments(value: Any, most: int) -> tuple[Attachment, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidArgument("attachments", f"is of type {type(value).__name__}; it must be a list of objects.")
    out, size = [], 0
    for position, one in enumerate(value):
        attachment = _attachment(one, f"attachments[{position}]")
        size += len(attachment.content)
        if size > most:
            raise InvalidArgument(
                f"attachments[{position}]", f"makes them more than {most:,} bytes together.", "Send a link, or raise mail_attachments."
            )  # fmt: skip
        out.append(attachment)
    return tuple(out)


def _attachment(one: Any, field: str) -> Attachment:
    if not isinstance(one, Mapping):
        raise InvalidArgument(field, f"is of type {type(one).__name__}; it must be an object.")
    for name in one:
        if name not in ("filename", "content", "content_type"):
            raise InvalidArgument(f"{field}.{name}", "is not a field.", "Fields are: filename, content, content_type.")
    for name in ("filename", "content"):
        if not isinstance(one.get(name), str):
            raise InvalidArgument(f"{field}.{name}", "is missing." if one.get(name) is None else "is not a text.")
    filename = one_line(one["filename"], f"{field}.filename")
    if not filename or "/" in filename or "\\" in filename:
        raise InvalidArgument(f"{field}.filename", "is not the name of a file.")
    try:
        content = base64.b64decode(one["content"], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{field}.content", "is not base64.") from None
    kind = one.get("content_type") or mimetypes.guess_type(filename)[0] or "application/octet-stream"
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        raise InvalidArgument(f"{field}.content_type", "is not a type such as application/pdf.")
    return Attachment(filename, content, kind.lower())

"""Answers of the HTTP door: what is kept of a response, what a duplicate is given, and how a refusal reads.

Values only; nothing here sends or stores. Sources: RFC 9457 (problem details), RFC 9110 section 7.6.1 (hop-by-hop headers),
draft-ietf-httpapi-idempotency-key-header (400, 409 and 422).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson

#: The header of an answer that was recorded before.
REPLAYED = b"idempotency-replayed"

#: Headers that belong to one exchange and not to the answer. ``Set-Cookie`` is a credential: it is neither stored nor given
#: out again. ``Content-Length`` is counted anew.
_PASSING = frozenset(
    b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade "
    b"content-length date server set-cookie".split()
)
#: Answers of clients' errors that another try may change, because they depend on who asks, on headers that the fingerprint does
#: not cover, on what else is there, or on time.
_UNSETTLED = frozenset({401, 402, 403, 404, 406, 407, 408, 409, 412, 417, 421, 423, 424, 425, 426, 428, 429, 431})

#: Each refusal: status, title.
_PROBLEMS = {
    "key-missing": (400, "{header} is missing"),
    "tenant-invalid": (400, "The tenant cannot be used"),
    "key-invalid": (400, "{header} is not valid"),
    "body-too-large": (413, "The body is too large for a request with {header}"),
    "in-progress": (409, "A request is outstanding for this {header}"),
    "key-reused": (422, "{header} is already used"),
    "answer-not-kept": (409, "The request of this {header} was carried out"),
    "store-unavailable": (503, "Requests with {header} cannot be taken at present"),
}


class Refused(Exception):
    """The application is not asked. ``code`` is one of the table; ``detail`` says what to do.

    ``retry_after``: seconds. ``facts``: further members of the problem document.
    """

    def __init__(self, code: str, detail: str, *, retry_after: int | None = None, **facts: Any) -> None:
        self.code, self.detail, self.retry_after, self.facts = code, detail, retry_after, facts
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response."""

    status: int
    #: (name in lower case, value).
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """What is recorded of an answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    #: None: it was too long to be kept, or never ended.
    body: bytes | None
    #: Whom it was for: a hash of the credentials, or empty when the key itself belongs to one identity.
    caller: str


def remembered(status: int) -> bool:
    """Is an answer of this status recorded, unless the application decides otherwise?

    Successes are, and refusals that the same request would meet again. An error of the server is not: the next try may
    succeed.
    """
    return 200 <= status < 300 or (400 <= status < 500 and status not in _UNSETTLED)


def lasting(headers: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """The headers that are recorded."""
    named = b",".join(value for name, value in headers if name.lower() == b"connection")
    passing = _PASSING | {name.strip().lower() for name in named.split(b",")}
    return tuple((name.lower(), value) for name, value in headers if name.lower() not in passing)


def encoded(kept: Kept) -> str:
    """As JSON text for the store."""
    facts = {
        "version": 1,
        "status": kept.status,
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in kept.headers],
        "body": None if kept.body is None else base64.b64encode(kept.body).decode(),
        "caller": kept.caller,
    }
    return orjson.dumps(facts).decode()


def decoded(text: str | None) -> Kept | None:
    """What ``encoded`` was given; None when it was not written by this version."""
    try:
        facts = orjson.loads(text or "null")
        if facts["version"] != 1:
            return None
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in facts["headers"])
        body = None if facts["body"] is None else base64.b64decode(facts["body"], validate=True)
        return Kept(int(facts["status"]), headers, body, str(facts["caller"]))
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error):
        return None


def replayed(kept: Kept) -> Answer:
    """The recorded answer as a duplicate gets it. Raises Refused when its body was not kept."""
    if kept.body is None:
        location = dict(kept.headers).get(b"location")
        facts: dict[str, Any] = {} if location is None else {"original_location": location.decode("latin-1")}
        raise Refused(
            "answer-not-kept",
            f"It was answered with status {kept.status}, and that answer is not kept. "
            "Do not send it again under another key; ask for what it has made.",
            original_status=kept.status,
            **facts,
        )
    counted = () if kept.status in (204, 304) else ((b"content-length", str(len(kept.body)).encode()),)
    return Answer(kept.status, (*kept.headers, *counted, (REPLAYED, b"true")), kept.body)


def problem(refused: Refused, header: str, documentation: str | None) -> Answer:
    """A refusal as problem details. ``documentation``: where the API's own documentation explains the codes."""
    status, title = _PROBLEMS[refused.code]
    facts = {
        "type": "about:blank" if documentation is None else f"{documentation}#{refused.code}",
        # RFC 9457, section 4.2.1: without a type of its own, the title is the status' phrase
        "title": HTTPStatus(status).phrase if documentation is None else title.format(header=header),
        "status": status,
        "detail": f"{title.format(header=header)}. {refused.detail}",
        "code": refused.code,
        "header": header,
        **refused.facts,
    }
    body = orjson.dumps(facts)
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    return Answer(status, tuple(headers), body)

"""A request with an idempotency key: what the key is, what it is about, and what makes two requests the same.

Bytes and scopes in, texts out; nothing here reads a body, asks a store or knows an answer. Sources: the IETF draft
draft-ietf-httpapi-idempotency-key-header, RFC 9651 (structured fields), case B053.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, MutableMapping
from typing import Any, NoReturn

from duly.idempotency.http_answer import Refused
from duly.kernel.canonical import canonical, canonical_task_key
from duly.kernel.errors import InvalidPayload

Scope = MutableMapping[str, Any]
Headers = Iterable[tuple[bytes, bytes]]

#: The longest key, in characters.
MAX_KEY = 255
#: What tells callers apart when the application does not: the headers that carry credentials.
CREDENTIALS = (b"authorization", b"cookie", b"x-api-key")

#: RFC 9651: a string, and parameters, which mean nothing here.
_VALUE = rb'(?:"(?:[ !#-\[\]-~]|\\["\\])*"|[^\s",;]+)'
_QUOTED = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *; *[a-z*][a-z0-9_.*-]*(?:=' + _VALUE + rb")?)*")
#: The key as most clients send it: without quotes. Visible ASCII, but nothing that quotes, lists or parameters are made of.
_BARE = re.compile(rb"[!#-+\--:<-\[\]-~]+")
_ESCAPED = re.compile(rb'\\(["\\])')
_BOUNDARY = re.compile(rb'boundary="?([^";,]+)"?', re.IGNORECASE)


def values(headers: Headers, name: bytes) -> list[bytes]:
    """The values of a header, ``name`` in lower case."""
    return [value for found, value in headers if found.lower() == name]


def key_of(headers: Headers, header: str) -> str | None:
    """The idempotency key, ``"abc"`` and ``abc`` alike; None when there is none. Raises Refused when it cannot be used."""
    found = values(headers, header.lower().encode())
    if not found:
        return None
    if len(found) > 1:
        raise Refused("key-invalid", "There are several headers of this name. Send one.")
    value = found[0].strip(b" \t")
    quoted = _QUOTED.fullmatch(value)
    if quoted is None and _BARE.fullmatch(value) is None:
        raise Refused(
            "key-invalid", 'The value must be a string as in RFC 9651, such as "8e03978e-40d5-43e8-bc93-6894a57f9324".'
        )
    key = _ESCAPED.sub(rb"\1", quoted[1]) if quoted else value
    if not 0 < len(key) <= MAX_KEY:
        raise Refused("key-invalid", f"The key has {len(key)} characters. It must have 1 to {MAX_KEY}.")
    return key.decode("ascii")


def path_of(scope: Scope) -> bytes:
    """The concrete path, mounts included. Which route it leads to is not known before the application routes it."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "").rstrip("/")
    if root and path != root and not path.startswith(root + "/"):
        path = root + path
    return path.encode("utf-8", "surrogatepass")


def store_key(name: str, scope: Scope, identity: str, key: str) -> str:
    """The key in the store: a hash, so that nothing of what the client sent can be read there."""
    return canonical_task_key(name, (scope["method"], path_of(scope), identity, key), namespace="http")


def fingerprint(name: str, scope: Scope, key: str, body: bytes) -> str:
    """The same for requests that ask for the same: query, type, encoding and body.

    The key is part of the hash: without it, nobody who reads the store can try out which body it was.
    """
    headers = scope["headers"]
    content_type = b",".join(values(headers, b"content-type"))
    encoding = b",".join(values(headers, b"content-encoding")).lower()
    kind, text = _form(content_type, body) if not encoding else (content_type, body)
    parts = (
        key,
        scope["method"],
        bytes(scope.get("query_string") or b""),
        kind,
        encoding,
        hashlib.sha256(text).digest(),
    )
    return canonical_task_key(name, parts, namespace="http-request")


def caller_of(key: str, headers: Headers) -> str:
    """A hash of the caller's credentials, salted with the key."""
    shown = [[name.lower(), value] for name, value in headers if name.lower() in CREDENTIALS]
    return hashlib.sha256(canonical([key, shown]).encode()).hexdigest()


def _form(content_type: bytes, body: bytes) -> tuple[bytes, bytes]:
    """(media type, body) as two requests that mean the same have it: JSON and multipart are written anew by each client."""
    media = content_type.split(b";", 1)[0].strip().lower()
    if media == b"application/json" or media.endswith(b"+json"):
        try:
            plain = json.loads(body, object_pairs_hook=_object, parse_constant=_refuse)
            return media, canonical(plain).encode()
        except (ValueError, RecursionError, InvalidPayload):
            return media, body  # no JSON, or none that every reader reads alike: the bytes themselves
    boundary = _BOUNDARY.search(content_type) if media.startswith(b"multipart/") else None
    if boundary is not None:
        return media, body.replace(b"--" + boundary[1].strip(), b"--boundary")
    return content_type.strip().lower(), body


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)

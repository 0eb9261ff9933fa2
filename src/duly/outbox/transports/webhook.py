"""To an HTTP endpoint: ``webhook:<name>``. A CloudEvent in JSON, POSTed and signed. Needs ``duly[webhook]``.

* The body is a CloudEvent 1.0 in structured mode; its ``id`` is the message id, the same at every delivery.
* ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature`` are those of Standard Webhooks: ``v1,`` and the base64 of
  HMAC-SHA256 over ``id.timestamp.body``, once for each secret, so that secrets can be exchanged without a gap.
* 2xx is sent. What another answer means stands in one table, ``kernel/answers.py``: what speaks of the message (400, 413, 422 …) parks
  it; what speaks of the endpoint (401, 403, 404, 410, redirects …) holds the destination until an operator has acted; 408, 429, 502 to
  504 and the like hold it for a while, for ``Retry-After`` where that is given; 500 is unclear. An endpoint that cannot be reached is
  held as well.
* Only the public Internet is reached, unless it is told otherwise (``addresses.py``); no proxy and no cookie is used.

Source: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md,
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md, RFC 9110 (Retry-After).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC
from typing import Any

import httpcore2
import httpx2
import orjson

from duly._version import __version__
from duly.clock import SystemClock
from duly.kernel.answers import Owner, owner_of
from duly.kernel.clock import Clock
from duly.kernel.duration import Duration
from duly.kernel.errors import DestinationUnavailable, InvalidArgument, PermanentError, Retry, brief
from duly.kernel.payload import read_seconds
from duly.kernel.retry_after import LONGEST, retry_after
from duly.outbox.message import Message
from duly.outbox.transports.addresses import Guard, Resolve, resolve

#: Read of an answer, in bytes: so that the connection can be used again, and no more.
MOST_READ = 16_384
#: The least a secret must have, in bytes: an HMAC with less can be found by trying.
LEAST_SECRET = 16
#: Headers of a message that are not passed on: they belong to the exchange, or are made here.
_OWN = frozenset({
    "host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-type", "content-length", "content-encoding",
    "expect", "proxy-authorization", "user-agent", "webhook-id", "webhook-timestamp", "webhook-signature",
})  # fmt: skip

Secret = str | bytes
Secrets = Secret | Sequence[Secret]


class WebhookTransport:
    """Posts messages.

    ``urls``: one URL, or a mapping from the name behind ``webhook:`` to one, or a function from the message to one (None: there
    is none). ``secret``: a text (``whsec_`` and base64, as Standard Webhooks writes them, or as it is), bytes, or several,
    the first one signs first; or a mapping of those by name. ``timeout``: seconds for the whole exchange. ``source`` and
    ``type``: of the CloudEvent; the headers ``ce-source``, ``ce-type`` and ``ce-subject`` of a message win. ``allow_http``: plain
    HTTP too. ``allow_private``: addresses that are not of the public Internet too. ``verify``: an SSLContext, for endpoints
    whose certificates the system does not know.
    """

    def __init__(
        self, urls: str | Mapping[str, str] | Callable[[Message], str | None], *, secret: Secrets | Mapping[str, Secrets] | None = None,
        timeout: Duration = 10.0, source: str = "/duly/outbox", type: str = "duly.message", allow_http: bool = False,
        allow_private: bool = False, verify: ssl.SSLContext | None = None, clock: Clock | None = None, resolve: Resolve = resolve,
    ) -> None:  # fmt: skip
        timeout = read_seconds(timeout, "timeout", 0, 600, above=True)
        if not source or not type:
            raise InvalidArgument("source" if not source else "type", "is empty.")
        self._urls, self._timeout, self._source, self._type = urls, float(timeout), source, type
        self._allow_http, self._clock = allow_http, clock or SystemClock()
        self._secrets = _all_secrets(secret)
        for url in [urls] if isinstance(urls, str) else urls.values() if isinstance(urls, Mapping) else []:
            problem = wrong_url(url, allow_http)
            if problem:
                raise InvalidArgument("urls", problem)
        self._local = threading.local()
        self._pool = httpcore2.ConnectionPool(
            ssl_context=verify or httpx2.create_ssl_context(trust_env=False),
            max_connections=None,
            max_keepalive_connections=50,
            keepalive_expiry=30.0,
            network_backend=Guard(resolve, allow_private, lambda: float(self._local.deadline)),
        )

    @property
    def targets(self) -> Collection[str] | None:
        """The names of its endpoints; None where any name may do."""
        return list(self._urls) if isinstance(self._urls, Mapping) else None

    def send(self, message: Message) -> None:
        """Post it. Raises PermanentError for what is wrong with the message, DestinationUnavailable for what is wrong with the endpoint or
        the way to it, Retry where the answer tells neither.
        """
        url = self._url(message)
        body = orjson.dumps(self.event(message))
        self._local.deadline = time.monotonic() + self._timeout
        steps = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)
        request = self._pool.stream(
            "POST", url, headers=self._headers(message, body), content=body, extensions={"timeout": steps}
        )
        try:
            with request as answer:
                status, after = answer.status, _header(answer.headers, b"retry-after")
                self._finish(answer)
        except (httpcore2.LocalProtocolError, httpcore2.UnsupportedProtocol) as error:
            raise PermanentError(f"the request cannot be made: {brief(error)}") from error
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
            told = f"the endpoint cannot be reached: {brief(error)}"
            raise DestinationUnavailable(told, attention=_distrusts(error)) from error
        self._judge(status, after)

    def _finish(self, answer: httpcore2.Response) -> None:
        """Read a short answer to its end; a long one is broken off, and its connection with it."""
        read = 0
        for part in answer.iter_stream():
            read += len(part)
            if read > MOST_READ:
                return

    def _judge(self, status: int, after: str | None) -> None:
        owner, told = owner_of(status), f"the endpoint answered {status}"
        if owner is Owner.NOBODY:
            return
        if owner is Owner.MESSAGE:
            raise PermanentError(told)
        asked = retry_after(after, self._clock.now())
        wait = None if asked is None else min(asked, LONGEST)
        if owner is Owner.UNCLEAR:
            raise Retry(told, after=wait)
        if 300 <= status < 400:
            told += ": redirects are not followed"
        raise DestinationUnavailable(told, after=wait, attention=owner is Owner.ENDPOINT, word=str(status))

    def _url(self, message: Message) -> str:
        urls, name = self._urls, message.target
        url = urls if isinstance(urls, str) else urls.get(name) if isinstance(urls, Mapping) else urls(message)
        if url is None:
            raise DestinationUnavailable(f"there is no endpoint {name!r}", attention=True)
        problem = wrong_url(url, self._allow_http)
        if problem:
            raise DestinationUnavailable(f"the URL of the endpoint {name!r} {problem}", attention=True)
        # its own parser makes ASCII of international names and refuses what is none
        return str(httpx2.URL(url))

    # ------------------------------------------------------------------ what is sent

    def event(self, message: Message) -> dict[str, Any]:
        """The message as a CloudEvent."""
        headers = {name.lower(): value for name, value in message.headers.items()}
        event: dict[str, Any] = {
            "specversion": "1.0", "id": message.message_id, "source": headers.get("ce-source", self._source),
            "type": headers.get("ce-type", self._type), "datacontenttype": "application/json", "data": message.payload,
        }  # fmt: skip
        if message.created_at is not None:
            event["time"] = message.created_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        if "ce-subject" in headers:
            event["subject"] = headers["ce-subject"]
        if "traceparent" in headers:
            event["traceparent"] = headers["traceparent"]
        if message.ordering_key is not None:
            # extensions "partitioning" and "sequence": texts that sort as the numbers do
            event |= {"partitionkey": message.ordering_key, "sequence": f"{message.id:020}"}
        return event

    def _headers(self, message: Message, body: bytes) -> list[tuple[bytes, bytes]]:
        stamp = str(int(self._clock.now().timestamp()))
        headers = {
            name: value for name, value in message.headers.items() if name.lower() not in _OWN and not name.lower().startswith("ce-")
        }  # fmt: skip
        headers |= {
            "Content-Type": "application/cloudevents+json; charset=utf-8", "User-Agent": f"duly/{__version__}",
            "webhook-id": message.message_id, "webhook-timestamp": stamp,
        }  # fmt: skip
        secrets = self._secrets.get(message.target) or self._secrets.get("", [])
        if secrets:
            headers["webhook-signature"] = signature(secrets, message.message_id, stamp, body)
        return [(name.encode("ascii"), value.encode("utf-8")) for name, value in headers.items()]

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


def _distrusts(error: BaseException) -> bool:
    """Is a certificate behind it that cannot be believed? That does not pass by itself."""
    around: BaseException | None = error
    while around is not None:
        if isinstance(around, ssl.SSLCertVerificationError):
            return True
        around = around.__cause__ or around.__context__
    return False


def signature(secrets: Sequence[bytes], ident: str, timestamp: str, body: bytes) -> str:
    """The value of ``webhook-signature``: one for each secret, with blanks between them."""
    content = f"{ident}.{timestamp}.".encode() + body
    each = (hmac.new(secret, content, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in each)


def wrong_url(url: object, allow_http: bool) -> str:
    """What is wrong with the URL of an endpoint, without repeating it; empty when nothing is."""
    if not isinstance(url, str):
        return "is not a text."
    try:
        parsed = httpx2.URL(url)
    except Exception:  # a URL is refused in many ways
        return "is not a URL."
    if parsed.scheme not in ("https", "http"):
        return "is not an https:// URL."
    if parsed.scheme == "http" and not allow_http:
        return "is not an https:// URL (allow_http=True allows it)."
    if not parsed.host:
        return "names no host."
    if parsed.userinfo:
        return "holds a user or a password; sign with a secret instead."
    return ""


def signing_secrets(given: Secrets) -> list[bytes]:
    """What ``signature`` takes, from secrets as they are configured. Raises InvalidArgument."""
    return _all_secrets(given)[""]


def _all_secrets(given: Secrets | Mapping[str, Secrets] | None) -> dict[str, list[bytes]]:
    """Secrets by name; under the empty one those of every other."""
    if given is None:
        return {}
    by_name = given if isinstance(given, Mapping) else {"": given}
    out: dict[str, list[bytes]] = {}
    for name, some in by_name.items():
        out[name] = [_secret(one) for one in ([some] if isinstance(some, str | bytes) else some)]
        if not out[name]:
            raise InvalidArgument("secret", "is empty.", "Leave it out to send without a signature.")
    return out


def _secret(given: Secret) -> bytes:
    raw = given if isinstance(given, bytes) else given.encode()
    if isinstance(given, str) and given.startswith("whsec_"):
        try:
            raw = base64.b64decode(given.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            raise InvalidArgument("secret", "begins with whsec_, and what follows is not base64.") from None
    if len(raw) < LEAST_SECRET:
        raise InvalidArgument("secret", f"has {len(raw)} bytes; at least {LEAST_SECRET} are needed.")
    return raw


def _header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)

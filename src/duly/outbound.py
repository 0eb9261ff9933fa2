"""One request to an HTTP API, answered at once or as a stream of events, and what it means when no answer comes.

A new connection for each: one that was kept and has gone stale would look like a lost answer, and a lost answer may be a message
that was sent. No proxy, no cookies, no redirects, as for webhooks.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import httpx2
import orjson

from duly.kernel.verdict import NETWORK, Kind, Refusal, Verdict, refusal


class Answered(NamedTuple):
    """An answer: its status, its headers (names in small letters), and its body as JSON ({} when it is none)."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    #: The same where it may be something other than an object; None when it is no JSON.
    json: Any = None
    #: The body as it came, for those whose other side prints something before its JSON.
    content: bytes = b""


#: Is a request of ours being made here? URLs hold addresses and tokens, and the client writes URLs into its log.
_ours: ContextVar[bool] = ContextVar("duly_outbound_request", default=False)


def _not_ours(record: logging.LogRecord) -> bool:
    return not _ours.get()


logging.getLogger("httpx2").addFilter(_not_ours)


@cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=False)


class _Watch:
    """How far a request has come."""

    handed = False

    async def __call__(self, step: str, info: object) -> None:
        self.handed = self.handed or step.endswith("send_request_headers.started")


@contextmanager
def _meaning(watch: _Watch, sends: bool) -> Iterator[None]:
    """What the client raises, as a Refusal. ``sends``: something was handed over, so that no answer means that nobody knows."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol) as error:
        said = f"no connection to the provider: {type(error).__name__}"
        raise Refusal(Verdict(Kind.TRANSIENT, said, owner=NETWORK)) from None
    except (httpx2.TransportError, httpx2.DecodingError, TimeoutError) as error:
        if sends and watch.handed:
            raise refusal(
                Kind.UNKNOWN, f"the message was handed over and no answer came: {type(error).__name__}"
            ) from None
        raise refusal(Kind.TRANSIENT, f"the provider did not answer: {type(error).__name__}") from None


async def request(
    method: str, url: str, *, timeout: float, headers: Mapping[str, str], content: bytes | None = None, sends: bool = False
) -> Answered:  # fmt: skip
    """Make it. ``timeout``: seconds for the whole of it. ``sends``: it hands a message over, so that no answer means that nobody knows.
    Raises Refusal.
    """
    watch = _Watch()
    mine = _ours.set(True)
    try:
        # the client's own timeout begins anew with each byte
        with _meaning(watch, sends):
            async with (
                asyncio.timeout(timeout),
                httpx2.AsyncClient(timeout=timeout, trust_env=False, verify=_tls()) as client,
            ):
                answer = await client.request(
                    method, url, headers=dict(headers), content=content, extensions={"trace": watch}
                )
    finally:
        _ours.reset(mine)
    return _answered(answer.status_code, answer.headers, answer.content)


def _answered(status: int, headers: Mapping[str, str], content: bytes) -> Answered:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        found = None
    headers_in = {k.lower(): v for k, v in headers.items()}
    return Answered(status, headers_in, found if isinstance(found, dict) else {}, found, content)


# ---------------------------------------------------------------------- an answer in pieces

#: The longest answer that is read, in bytes on the wire, and the longest that is read whole.
MOST_STREAMED, MOST_WHOLE = 32 * 1024 * 1024, 4 * 1024 * 1024
#: Seconds for a connection to come about, where the time-out is longer.
CONNECTS_WITHIN = 15.0


class Event(NamedTuple):
    """One event of a stream (Server-Sent Events): its name, ``message`` where it has none, and its text."""

    name: str
    data: str


class Streamed:
    """An answer whose body has not been read. Either ``events`` or ``whole`` is asked, once."""

    def __init__(self, response: httpx2.Response, watch: _Watch) -> None:
        self._response, self._watch = response, watch
        self.status = response.status_code
        #: Names in small letters.
        self.headers: Mapping[str, str] = {k.lower(): v for k, v in response.headers.items()}

    @property
    def has_events(self) -> bool:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"

    async def events(self) -> AsyncIterator[Event]:
        """The events as they come, to the end of the body; one that was not ended is left out. Raises Refusal (UNKNOWN): it broke off,
        nothing came for ``timeout`` seconds, or it is longer than anybody reads.
        """
        with _meaning(self._watch, True):
            async for one in httpx2.EventSource(self._response):
                yield Event(one.event, one.data)

    async def whole(self) -> Answered:
        """The body at once, as JSON. Raises Refusal (UNKNOWN) as ``events``."""
        content = bytearray()
        with _meaning(self._watch, True):
            async for piece in self._response.aiter_bytes():
                content += piece
                if len(content) > MOST_WHOLE:
                    raise refusal(Kind.UNKNOWN, f"the answer has more than {MOST_WHOLE:,} bytes")
        return _answered(self.status, self.headers, bytes(content))


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends in an error when it is longer than anybody reads."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for piece in self._stream:
            length += len(piece)
            if length > MOST_STREAMED:
                raise refusal(Kind.UNKNOWN, f"the answer has more than {MOST_STREAMED:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def stream(
    method: str, url: str, *, timeout: float, headers: Mapping[str, str], content: bytes | None = None
) -> AsyncIterator[Streamed]:  # fmt: skip
    """Make a request whose answer comes in pieces; leaving the block, also by being cancelled, closes the connection.

    ``timeout``: the longest silence, in seconds, before the answer and between its pieces; the whole of it is not bounded. The request
    hands something over: no answer means that nobody knows. Raises Refusal.
    """
    watch = _Watch()
    mine = _ours.set(True)
    limit = httpx2.Timeout(timeout, connect=min(timeout, CONNECTS_WITHIN))
    # asked for as it is, so that its length is known while it comes
    sent = {**headers, "Accept-Encoding": "identity"}
    try:
        async with httpx2.AsyncClient(timeout=limit, trust_env=False, verify=_tls()) as client:
            with _meaning(watch, True):
                made = client.build_request(method, url, headers=sent, content=content, extensions={"trace": watch})
                response = await client.send(made, stream=True)
            try:
                if isinstance(response.stream, httpx2.AsyncByteStream):
                    response.stream = _Bounded(response.stream)
                yield Streamed(response, watch)
            finally:
                await response.aclose()
    finally:
        _ours.reset(mine)


def checked_url(url: str, setting: str) -> str:
    """The beginning of a provider's URLs: https, or plain http on this machine. Raises Refusal (nothing is sent before it is mended)."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise refusal(Kind.AUTH, f"{setting} is not a URL") from None
    if not parsed.host or not 0 < (parsed.port or 443) < 65_536:
        raise refusal(Kind.AUTH, f"{setting} names no host and port that can be reached")
    if parsed.scheme != "https" and not (parsed.scheme == "http" and is_loopback(parsed.host)):
        raise refusal(Kind.AUTH, f"{setting} is not an https:// URL")
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

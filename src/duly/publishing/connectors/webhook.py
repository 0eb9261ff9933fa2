"""Any endpoint: a post as a signed POST.

The body is a CloudEvent, and ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature`` are those of Standard Webhooks, as for the
outbox's and the alerts' webhooks. ``Idempotency-Key`` comes from the job's key and is the same at every attempt. Whether a post may be handed over again
after an answer that did not come is for the endpoint to say, that is the option ``idempotent``: it takes a key that it knows for the same post.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import orjson

from duly._version import __version__
from duly.clock import SystemClock
from duly.kernel.clock import Clock
from duly.kernel.errors import InvalidArgument
from duly.kernel.retry_after import bounded, retry_after
from duly.kernel.verdict import Kind, Refusal, Verdict, refusal
from duly.outbound import request
from duly.outbox.transports.webhook import signature, signing_secrets
from duly.publishing.connectors import shared
from duly.publishing.connectors.base import Notebook
from duly.publishing.post import Limits, Post, Published, Rules


class WebhookConnector:
    """Posts to ``url``. ``secret``: a text (``whsec_`` and base64, or as it is) that signs, or several, while they are exchanged; without
    one nothing is signed. ``idempotent``: a repeated key is the same post there. ``token``: sent as a bearer token. Raises InvalidArgument.
    """

    name = "webhook"
    rules = Rules()

    def __init__(
        self, *, url: str, secret: str | list[str] | None = None, idempotent: bool = False, token: str = "", timeout: float = 15.0,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._url = shared.endpoint(url, "url")
        self._secrets = [] if secret is None else signing_secrets(secret)
        if not isinstance(idempotent, bool):
            raise InvalidArgument("idempotent", "is neither true nor false.")
        self._idempotent = idempotent
        self._token = shared.secret(token, "token") if token else ""
        self._timeout = shared.number(timeout, "timeout", above=0, most=600)
        self._clock: Clock = clock or SystemClock()
        #: Has it answered in JSON? A page from it is somebody else's then.
        self._speaks_json = False

    def __repr__(self) -> str:
        return "WebhookConnector()"  # the URL may be what authorizes

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        ident = shared.mark(shared.key_of(post, notebook), 32)
        body = orjson.dumps(event(post, ident, str(notebook.facts["key"])))
        await notebook.ahead()
        stamp = str(int(self._clock.now().timestamp()))
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8", "User-Agent": f"duly/{__version__}", "webhook-id": ident,
            "webhook-timestamp": stamp, "Idempotency-Key": ident,
        }  # fmt: skip
        if self._secrets:
            headers["webhook-signature"] = signature(self._secrets, ident, stamp, body)
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        answer = await request("POST", self._url, timeout=self._timeout, headers=headers, content=body, sends=True)
        page = looks_like(answer.headers, answer.content)
        verdict = classify(answer.status, answer.headers, self._clock.now(), self._idempotent, page, self._speaks_json)
        self._speaks_json = self._speaks_json or (verdict.kind is Kind.SENT and answer.json is not None)
        if verdict.kind is not Kind.SENT:
            raise Refusal(verdict)
        remote, link = answer.body.get("id"), answer.body.get("url")
        given = isinstance(remote, str | int) and not isinstance(remote, bool) and remote != ""
        return Published(str(remote)[:255] if given else None, link if isinstance(link, str) else None)

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        if self._idempotent:
            return None
        raise refusal(Kind.UNKNOWN, "the endpoint cannot be asked (idempotent says that it may be told again)")

    def preview(self, post: Post) -> Mapping[str, Any]:
        return shared.preview(self.name, post, signed=bool(self._secrets), body=event(post, "", "")["data"])

    async def limits(self) -> Limits | None:
        return None

    async def check(self) -> str:
        return "posts go to an endpoint that is not asked" + ("" if self._secrets else "; nothing is signed")


def event(post: Post, ident: str, key: str) -> dict[str, Any]:
    """The body: the same for the same job, at every attempt. ``ident``: what names the job to the endpoint."""
    data = {
        "channel": post.channel, "brand": post.brand, "title": post.title, "caption": post.caption, "link": post.link,
        "assets": [
            {"kind": a.kind, "url": a.url, "checksum": a.checksum, "reference": a.reference, "alt": a.alt} for a in post.assets
        ],
        "first_comment": post.first_comment, "options": dict(post.options), "key": key,
    }  # fmt: skip
    return {
        "specversion": "1.0", "id": ident, "source": "/duly/publishing", "type": "duly.post",
        "datacontenttype": "application/json", "data": data,
    }  # fmt: skip


class Row(NamedTuple):
    """One row of what answers mean: which answers, whose fault they are, and what follows."""

    statuses: Collection[int]
    owner: str
    kind: Kind
    #: The same for an endpoint that does not take a key twice.
    once: Kind
    meaning: str = ""


#: The first row that fits counts.
TABLE = (
    Row((429,), "endpoint", Kind.THROTTLED, Kind.THROTTLED, "too many requests"),
    Row((401, 403), "channel", Kind.AUTH, Kind.AUTH, "the signature or the token is not accepted"),
    Row((400, 409, 411, 413, 414, 415, 422), "post", Kind.PERMANENT, Kind.PERMANENT),
    Row((425,), "endpoint", Kind.TRANSIENT, Kind.TRANSIENT),
    Row((503,), "endpoint", Kind.AWAY, Kind.AWAY, "it takes nothing now"),
    Row((408, *range(500, 600)), "endpoint", Kind.TRANSIENT, Kind.UNKNOWN),
    Row(range(300, 400), "channel", Kind.AWAY, Kind.AWAY, "redirects are not followed; give the URL that takes posts"),
    Row((404, 405, 410), "channel", Kind.AWAY, Kind.AWAY, "there is no endpoint at this URL (any more)"),
    Row(range(400, 500), "channel", Kind.AWAY, Kind.AWAY),
)
#: What fits no row.
UNLISTED = Row((), "endpoint", Kind.TRANSIENT, Kind.UNKNOWN)


#: What an answer looks like: a page that keeps visitors out (a firewall's, a login's), another page, or neither.
Page = Literal["barrier", "page", ""]
_BARRIER = re.compile(rb"<title>\s*just a moment|attention required!|type=[\"']?password", re.IGNORECASE)


def looks_like(headers: Mapping[str, str], content: bytes) -> Page:
    """What an answer looks like, by its headers and the beginning of its body."""
    if "cf-mitigated" in headers:
        return "barrier"
    head = content[:65_536].lstrip(b"\xef\xbb\xbf \t\r\n")
    said = headers.get("content-type", "").partition(";")[0].strip().lower() == "text/html"
    if not (head[:9].lower().startswith((b"<!doctype", b"<html")) or (said and head.startswith(b"<"))):
        return ""
    return "barrier" if _BARRIER.search(head) else "page"


def classify(
    status: int, headers: Mapping[str, str], now: datetime, idempotent: bool, page: Page = "", speaks_json: bool = False
) -> Verdict:  # fmt: skip
    """What an answer means. ``now``: aware; ``page``: what it looks like; ``speaks_json``: the endpoint has answered in JSON before."""
    row = next((one for one in TABLE if status in one.statuses), UNLISTED)
    if 200 <= status < 300:
        if page == "barrier":
            row = Row((), "site", Kind.AWAY, Kind.AWAY, "a login or a firewall before it answers with a page")
        elif page and speaks_json:
            row = Row((), "site", Kind.TRANSIENT, Kind.UNKNOWN, "a page, where it has answered in JSON before")
        else:
            return Verdict(Kind.SENT)
    elif status < 500 and (
        page == "barrier" or (page and row.kind in (Kind.AUTH, Kind.PERMANENT) and status not in (401, 413))
    ):
        row = Row((), "site", Kind.AWAY, Kind.AWAY, "a firewall before it answers with a page")
    after = retry_after(headers.get("retry-after"), now)
    after = None if after is None else bounded(after)
    said = f"the endpoint answered {status}" + (f": {row.meaning}" if row.meaning else "")
    kind = row.kind if idempotent else row.once
    return Verdict(kind, said, None if kind in (Kind.PERMANENT, Kind.AUTH) else after, owner=row.owner)

"""Meta's Graph API, as Instagram and Facebook pages are spoken to: one request, and what its answer means.

Nearly every error of publishing is an HTTP 400, so ``classify`` (pure) decides by code and subcode. The token goes in a header, never in a
URL, and pages are followed by their cursor: the links of the answers hold the token. A list ends where no link to a next page is given, and
nowhere else: a page may be short or empty, because what may not be seen is left out of it.

https://developers.facebook.com/docs/graph-api/guides/error-handling, https://developers.facebook.com/docs/graph-api/results,
https://developers.facebook.com/docs/instagram-platform/instagram-graph-api/reference/error-codes,
https://developers.facebook.com/docs/graph-api/overview/rate-limiting.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import orjson

from duly.kernel.clock import Clock
from duly.kernel.retry_after import LONGEST, bounded, retry_after
from duly.kernel.verdict import Kind, Refusal, Verdict
from duly.outbound import request
from duly.publishing.connectors import shared

#: The version that is spoken unless another URL is given.
URL = "https://graph.facebook.com/v24.0"

#: What a request does. "read"; "write": makes what nobody sees; "send": publishes; "comment": writes a comment.
Doing = Literal["read", "write", "send", "comment"]

_MINUTE, _HOUR = 60.0, 3600.0
#: Waits where the answer names none: usage is counted over the last hour.
_RESTRICTED, _NOT_READY = _HOUR, 30.0
#: The window of the publishing limit rolls: places become free one by one, not all at its end.
_LOOK_AGAIN = timedelta(hours=1)

#: (code, subcode), and for any subcode (code, None). The longer key wins. (kind, what it means, seconds to wait)
_MEANINGS: dict[tuple[int, int | None], tuple[Kind, str, float | None]] = {
    (-2, 2207003): (Kind.TRANSIENT, "fetching the media took too long", None),
    (-2, 2207020): (Kind.TRANSIENT, "the container has expired", None),
    (-1, 2207001): (Kind.TRANSIENT, "an error of the server", None),
    (-1, 2207032): (Kind.TRANSIENT, "the container could not be made", None),
    (-1, 2207053): (Kind.TRANSIENT, "an unknown error of the upload", None),
    (-1, None): (Kind.TRANSIENT, "an error of the server", None),
    (-2, None): (Kind.TRANSIENT, "a time-out of the server", None),
    (1, 2207057): (Kind.PERMANENT, "the offset of the thumbnail is outside the video", None),
    (1, None): (Kind.TRANSIENT, "an unknown error, perhaps an outage", None),
    (2, None): (Kind.TRANSIENT, "the service is not available", None),
    (3, None): (Kind.AUTH, "the app may not do this", None),
    (4, 2207051): (Kind.AWAY, "this activity is restricted for the account", _RESTRICTED),
    (4, None): (Kind.THROTTLED, "the app has made too many calls", None),
    (9, 2207042): (Kind.QUOTA, "the publishing limit of the account is reached", None),
    (10, None): (Kind.AUTH, "permission is missing", None),
    (17, None): (Kind.THROTTLED, "the account has made too many calls", None),
    (24, 2207006): (Kind.TRANSIENT, "the container was not found", None),
    (24, 2207008): (Kind.TRANSIENT, "the container was not found", None),
    (25, 2207050): (Kind.AUTH, "the account is restricted: somebody has to look at it in the app", None),
    (32, None): (Kind.THROTTLED, "the page has had too many calls", None),
    (100, None): (Kind.PERMANENT, "a parameter is invalid", None),
    (102, None): (Kind.AUTH, "the session is over: a new token is needed", None),
    (190, 458): (Kind.AUTH, "the app was removed from the account: a new token is needed", None),
    (190, 459): (Kind.AUTH, "the account has to pass a checkpoint", None),
    (190, 460): (Kind.AUTH, "the password was changed: a new token is needed", None),
    (190, 463): (Kind.AUTH, "the token has expired", None),
    (190, 467): (Kind.AUTH, "the token is invalid", None),
    (190, None): (Kind.AUTH, "the token is not accepted", None),
    (341, None): (Kind.THROTTLED, "a limit of the app is reached", None),
    (352, None): (Kind.PERMANENT, "the video's format is not taken", None),
    (368, None): (Kind.AWAY, "blocked for a while, because of the policies", _RESTRICTED),
    (506, None): (Kind.PERMANENT, "a duplicate: it has probably been published already", None),
    (613, None): (Kind.THROTTLED, "a limit of calls is reached", None),
    (9004, 2207052): (Kind.TRANSIENT, "the media could not be fetched", None),
    (9004, None): (Kind.TRANSIENT, "the media could not be fetched", None),
    (9007, None): (Kind.TRANSIENT, "the media is not ready", _NOT_READY),
    (9007, 2207027): (Kind.TRANSIENT, "the media is not ready", _NOT_READY),
    (36000, 2207004): (Kind.PERMANENT, "the image is larger than 8 MiB", None),
    (36000, None): (Kind.PERMANENT, "the image is too large", None),
    (36001, None): (Kind.PERMANENT, "the image's format is not taken: JPEG is", None),
    (36003, None): (Kind.PERMANENT, "the image's aspect ratio is not taken", None),
    (36004, None): (Kind.PERMANENT, "the caption is too long", None),
    (1609005, None): (Kind.PERMANENT, "the link cannot be used", None),
}
#: Whose fault an answer of a kind is.
_OWNERS = {
    Kind.PERMANENT: "post", Kind.AUTH: "account", Kind.THROTTLED: "account", Kind.QUOTA: "account", Kind.AWAY: "account", Kind.TRANSIENT: "Meta",
    Kind.UNKNOWN: "Meta",
}  # fmt: skip
#: Limits of business use cases: 80001 pages, 80002 Instagram, and their sisters.
_BUSINESS = range(80000, 80015)
#: A new container is needed, unless an earlier request may still publish the one there is.
RENEW = frozenset({2207020, 2207053, 2207006, 2207008})
#: A container that is not there.
NOT_FOUND = frozenset({2207006, 2207008})
#: Codes after which nobody knows whether it was published.
_UNSURE = frozenset({(4, 2207051), (-1, 2207001), (1, None), (2, None), (-1, None), (-2, None)})
#: How a link names the page that it leads to.
_CURSORS = frozenset({"after", "offset", "since", "until", "__paging_token"})
#: What is no token in a text that is shown.
_TOKENS = re.compile(r"EAA\w+|IG[AQ]\w{8,}|access_token=\S+|[A-Za-z0-9_|-]{40,}")


@dataclass(frozen=True, slots=True)
class Fault:
    """What an error says of itself. 0: it does not say."""

    code: int = 0
    subcode: int = 0
    message: str = ""
    transient: bool = False


def fault(body: object) -> Fault | None:
    """The error within an answer; None when it holds none."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return None
    said = error.get("error_user_msg") or error.get("message")
    return Fault(
        _number(error.get("code")), _number(error.get("error_subcode")), said if isinstance(said, str) else "",
        error.get("is_transient") is True,
    )  # fmt: skip


def _number(value: object) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,12}", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 10**12 else 0


def classify(status: int, body: object, headers: Mapping[str, str], now: datetime, doing: Doing = "write") -> Verdict:
    """What an answer means. ``now``: aware. Never raises, whatever the answer holds."""
    said = fault(body)
    own = isinstance(body, Mapping)
    if said is None and own and 200 <= status < 300:
        return Verdict(Kind.SENT)
    verdict = _of_fault(said, now, doing) if said is not None and (said.code or said.transient) else None
    verdict = verdict or _of_status(status, doing, own)
    name = f"{said.code}/{said.subcode}" if said and said.subcode else str(said.code) if said and said.code else ""
    owner = verdict.owner or _OWNERS.get(verdict.kind, "")
    verdict = replace(
        verdict, owner=owner, reason=" ".join(["Meta answered", str(status), name, verdict.reason]).replace("  ", " ")
    )
    if verdict.kind in (Kind.PERMANENT, Kind.AUTH, Kind.AWAY) and said and said.message:
        verdict = replace(verdict, reason=f"{verdict.reason}: {_TOKENS.sub('…', said.message)[:200]}")
    named = retry_after(headers.get("retry-after"), now)
    if verdict.kind is Kind.THROTTLED:
        waits = [w for w in (named, regain(headers)) if w is not None]
        return replace(verdict, after=bounded(max(waits, default=0.0)) or None)
    if verdict.kind is Kind.TRANSIENT and named is not None:
        return replace(verdict, after=min(LONGEST, max(named, verdict.after or 0.0)))
    return verdict


def _of_fault(said: Fault, now: datetime, doing: Doing) -> Verdict | None:
    code, subcode = said.code, said.subcode
    found = (code, subcode) if (code, subcode) in _MEANINGS else (code, None)
    if doing in ("send", "comment") and found in _UNSURE:
        return Verdict(Kind.UNKNOWN, f"{_MEANINGS[found][1]}; it may be there all the same")
    if doing == "comment" and (code in (3, 10) or 200 <= code <= 299):
        # of this post: its comments are off, or are not to be written by others (T002-k)
        return Verdict(Kind.PERMANENT, "it may not be commented on")
    if code == 100 and subcode == 33 and doing in ("read", "comment"):
        # of what was made a moment ago, too
        return Verdict(Kind.TRANSIENT, "what was asked for is not there (yet)")
    if found in _MEANINGS:
        kind, meaning, after = _MEANINGS[found]
        return Verdict(kind, meaning, after, now + _LOOK_AGAIN if kind is Kind.QUOTA else None)
    if code in _BUSINESS:
        return Verdict(Kind.THROTTLED, "a limit of calls for the business is reached")
    if 200 <= code <= 299:
        return Verdict(Kind.AUTH, "permission is missing")
    if said.transient:
        unsure = doing in ("send", "comment")
        return Verdict(Kind.UNKNOWN if unsure else Kind.TRANSIENT, "an error that passes")
    return None


def _of_status(status: int, doing: Doing, own: bool) -> Verdict:
    """What an answer means whose error nobody knows, or that holds none."""
    if status == 429:
        return Verdict(Kind.THROTTLED, "too many calls")
    if status == 401:
        return Verdict(Kind.AUTH, "the token is not accepted")
    if status == 413:
        return Verdict(Kind.PERMANENT, "it is too large")
    unsure = doing in ("send", "comment")
    if not own:  # a page, or nothing: what is there is not known by it, and what was sent may have come through
        kind = (
            Kind.AWAY
            if doing == "write" or status in (403, 406)
            else Kind.TRANSIENT
            if doing == "read"
            else Kind.UNKNOWN
        )
        return Verdict(kind, "something before Meta answers in its place", owner="site")
    if status in (408, 425) or status >= 500:
        return Verdict(Kind.UNKNOWN if unsure else Kind.TRANSIENT)
    # an error that no list has: the cautious side
    return Verdict(Kind.UNKNOWN if unsure else Kind.TRANSIENT, "an error that is not known")


def regain(headers: Mapping[str, str]) -> float | None:
    """Seconds until calls are taken again, by the headers of rates; None when they do not say."""
    uses = [_json(headers.get("x-app-usage"))]
    for some in _json(headers.get("x-business-use-case-usage")).values():
        uses += [use for use in some if isinstance(use, dict)] if isinstance(some, list) else []
    minutes = [_minutes(use.get("estimated_time_to_regain_access")) for use in uses]
    return min(LONGEST, max(minutes) * _MINUTE) if any(minutes) else None


def _minutes(found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
        return 0.0
    return float(min(found, LONGEST))


def _json(text: str | None) -> Mapping[str, Any]:
    try:
        found = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def subcode_of(subcode: int) -> tuple[Kind, str]:
    """What a subcode means that stands alone, in the status of a container: for good, unless it is known to pass."""
    for (_, known), (kind, meaning, _) in _MEANINGS.items():
        if known == subcode and subcode:
            return kind, meaning
    return Kind.PERMANENT, ""


def _further(paging: Mapping[str, Any]) -> Mapping[str, object]:
    """What asks for the next page: its cursor, else what the link has in place of one, but for the token."""
    cursors = paging.get("cursors")
    after = cursors.get("after") if isinstance(cursors, dict) else None
    if isinstance(after, str | int) and after != "":
        return {"after": after}
    try:
        link = parse_qsl(urlsplit(str(paging["next"])).query)
    except ValueError:
        return {}
    return {name: value for name, value in link if name in _CURSORS}


class MetaRefusal(Refusal):
    """As Refusal; ``fault`` is what the error said of itself (None when no answer came)."""

    def __init__(self, verdict: Verdict, fault: Fault | None = None) -> None:
        super().__init__(verdict)
        self.fault = fault

    @property
    def renews(self) -> bool:
        """Is a new container needed?"""
        return self.fault is not None and self.fault.subcode in RENEW


class GraphApi:
    """Requests to the Graph API with one token. ``token``: a text, or a function that is asked for it at each request."""

    def __init__(self, token: str | Callable[[], str], url: str, timeout: float, clock: Clock) -> None:
        self._given = token if callable(token) else shared.secret(token, "token")
        self.url = shared.url(url, "url")
        self._timeout, self._clock = shared.number(timeout, "timeout", above=0, most=600), clock

    @property
    def _token(self) -> str:
        return shared.secret(self._given(), "token") if callable(self._given) else self._given

    async def ends(self) -> datetime | None:
        """When the access that the token gives ends (aware); None where it does not, or Meta does not say. Raises MetaRefusal where it has ended.

        The one request that has a token in its address: Meta takes it nowhere else.
        """
        try:
            data = (await self.get("debug_token", input_token=self._token)).get("data")
        except MetaRefusal as error:
            if error.verdict.kind is Kind.AUTH and error.fault is not None and error.fault.code in (102, 190):
                raise
            return None  # tokens of Instagram Login are not told about
        said = data if isinstance(data, dict) else {}
        if said.get("is_valid") is False:
            raise MetaRefusal(Verdict(Kind.AUTH, "Meta says that the token is not valid", owner="account"))
        found = [said.get("expires_at"), said.get("data_access_expires_at")]
        seconds = [one for one in found if isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < 4e9]
        return datetime.fromtimestamp(min(seconds), UTC) if seconds else None

    async def get(self, path: str, **query: object) -> Mapping[str, Any]:
        """Read. Raises MetaRefusal."""
        return await self._ask("GET", path + shared.query(query), None, "application/json", "read")

    async def post(self, path: str, fields: Mapping[str, Any], doing: Doing = "write") -> Mapping[str, Any]:
        """Write ``fields`` as JSON. Raises MetaRefusal."""
        return await self._ask("POST", path, orjson.dumps(fields), "application/json", doing)

    async def upload(self, path: str, fields: Mapping[str, str], file: shared.File, doing: Doing) -> Mapping[str, Any]:
        """Write ``fields`` and a file named ``source`` as a form. Raises MetaRefusal."""
        content, kind = shared.multipart(fields, {"source": file})
        return await self._ask("POST", path, content, kind, doing)

    async def pages(self, path: str, **query: object) -> AsyncIterator[Mapping[str, Any]]:
        """The objects of a list, page after page. Raises MetaRefusal, also when the pages lead nowhere new: then the list is not known."""
        further: Mapping[str, object] = {}
        seen: list[Mapping[str, object]] = []
        while True:
            answer = await self.get(path, **{**query, **further})
            data, paging = answer.get("data"), answer.get("paging")
            if not isinstance(data, list):  # an empty list is an answer, no list is none
                raise MetaRefusal(Verdict(Kind.TRANSIENT, "Meta answered without the list that was asked for"))
            for one in data:
                if isinstance(one, dict):
                    yield one
            if not isinstance(paging, dict) or not paging.get("next"):
                return
            seen.append(further)
            further = _further(paging)
            if further in seen:
                raise MetaRefusal(Verdict(Kind.TRANSIENT, "Meta's pages of a list do not come to an end"))

    async def _ask(self, method: str, path: str, content: bytes | None, kind: str, doing: Doing) -> Mapping[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind, "Accept": "application/json"}
        sends = doing in ("send", "comment")
        try:
            answer = await request(
                method, f"{self.url}/{path}", timeout=self._timeout, headers=headers, content=content, sends=sends
            )
        except Refusal as error:
            raise MetaRefusal(error.verdict) from None
        verdict = classify(answer.status, answer.json, answer.headers, self._clock.now(), doing)
        if verdict.kind is not Kind.SENT:
            reason = verdict.reason.replace(self._token, "…")
            raise MetaRefusal(replace(verdict, reason=reason), fault(answer.json))
        return answer.body

"""WordPress, by its REST API: media is uploaded, a draft is written, and the draft is made public.

https://developer.wordpress.org/rest-api/reference/posts/, with an application password. Nothing of it happens twice: uploads and the draft
have slugs that come from the job's key, so they are found when an answer was lost, and making a draft public that is public already changes
nothing. The id of the draft is noted before it is made public, and forgotten only where nobody can have made it public, or where nobody can
tell and the channel says that it is published again.
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from duly.clock import SystemClock
from duly.kernel.clock import Clock
from duly.kernel.retry_after import bounded, retry_after
from duly.kernel.verdict import FIREWALL, Kind, Refusal, Verdict, refusal
from duly.outbound import Answered, request
from duly.publishing.connectors import shared
from duly.publishing.connectors.base import Notebook
from duly.publishing.post import Asset, Limits, Post, Published, Rules

#: Options of a post that are handed on as they are.
_PASSED = frozenset(
    {"categories", "tags", "excerpt", "format", "sticky", "comment_status", "author", "template", "meta"}
)
_OPTIONS = _PASSED | {"status", "slug", "body"}
_STATUSES = ("publish", "private", "pending", "draft")
#: "read"; "write": nobody sees what it makes; "send": makes public.
Doing = Literal["read", "write", "send"]
_NO_POST = "rest_post_invalid_id"
#: Codes that tell of the configuration, whatever their status.
_CONFIGURATION = ("rest_cannot", "rest_forbidden", "rest_no_route", "rest_not_logged_in", "rest_disabled", "incorrect_password", "invalid_username", "application_passwords")  # fmt: skip


class WordPressConnector:
    """Publishes on a site. ``url``: of the site, without ``/wp-json``; ``user`` and ``password``: of an application password.

    ``status``: of posts whose options name none (``publish``, ``private``, ``pending`` or ``draft``). ``media_root``: local assets must be
    below it. Raises InvalidArgument.
    """

    name = "wordpress"
    rules = Rules()

    def __init__(
        self, *, url: str, user: str, password: str, status: str = "publish", timeout: float = shared.TIMEOUT,
        media_root: str | None = None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._url = shared.url(url, "url")
        self._password = shared.secret(password, "password")
        login = f"{shared.text(user, 'user')}:{self._password}"
        self._login = base64.b64encode(login.encode()).decode()
        self._status = shared.one_of(status, "status", _STATUSES)
        self._timeout = shared.number(timeout, "timeout", above=0, most=600)
        self._root, self._clock = shared.folder(media_root, "media_root"), clock or SystemClock()
        #: What the site has printed before the JSON of its last answer.
        self._printed = ""

    def __repr__(self) -> str:
        return f"WordPressConnector({self._url!r})"

    # ------------------------------------------------------------------ publishing

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        status = self._wanted(post)
        ident, before = notebook.facts.get("post"), _tried(notebook)
        if ident is not None and notebook.facts.get("lost") == ident:  # nobody can tell, and the channel says: again
            await self._forget(notebook)
            ident = None
        if ident is None:
            ident, before = await self._draft(post, notebook), False
            await notebook.note(post=ident)
        await notebook.ahead()
        try:
            answer = await self._ask("POST", f"posts/{ident}", {"status": status}, doing="send")
        except _Refused as error:
            if error.code != _NO_POST:
                raise
            if before:
                raise refusal(Kind.UNKNOWN, f"the draft {ident} was removed: was it public before?") from None
            # this was the first request that would have made it public
            await self._forget(notebook)
            raise refusal(
                Kind.TRANSIENT, f"the draft {ident} was removed before it was public: a new one is made"
            ) from None
        return _published(answer.body, ident)

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        ident = notebook.facts.get("post")
        if ident is None:  # noted before anything is made public
            return None
        try:
            answer = await self._ask("GET", f"posts/{ident}", {"context": "edit"})
        except _Refused as error:
            if error.code != _NO_POST:
                raise
            await notebook.note(lost=ident)  # no answer: who is asked again asks the site again
            raise refusal(Kind.UNKNOWN, f"the draft {ident} was removed: was it public before?") from None
        found = answer.body.get("status")
        if found == "trash":
            raise refusal(Kind.UNKNOWN, f"the post {ident} is in the trash: was it public before?")
        # somebody may have published it by hand, or for later
        there = found in (self._wanted(post), "publish", "future", "private")
        if there:
            return _published(answer.body, ident)
        await notebook.note(tried=True, lost=None)
        return None

    async def _forget(self, notebook: Notebook) -> None:
        """What was made may be gone, media too: they are looked for by their slugs."""
        await notebook.note(post=None, media=None, tried=None, lost=None)

    async def _draft(self, post: Post, notebook: Notebook) -> int:
        """The id of a draft that holds the post; one that an earlier run has made is found by its slug."""
        key = shared.key_of(post, notebook)
        slug = self._slug(post, key)
        media = await self._media(post, notebook, key)
        found = await self._found("posts", slug)
        if found is not None:
            return _id(found)
        fields: dict[str, Any] = {n: v for n, v in post.options.items() if n in _PASSED}
        fields |= {"slug": slug, "status": "draft", "title": post.title, "content": content(post, media)}
        if not fields["title"] and not fields["content"]:
            raise refusal(Kind.PERMANENT, "there is neither a title nor a text")
        image = next((m for m, a in zip(media, post.assets, strict=True) if m and a.kind == "image"), None)
        if image:
            fields["featured_media"] = image["id"]
        return _id((await self._ask("POST", "posts", fields)).body)

    async def _media(self, post: Post, notebook: Notebook, key: str) -> Sequence[Mapping[str, Any] | None]:
        """What the library has for each asset; None for one that is elsewhere. Each is noted as soon as it is there."""
        noted = notebook.facts.get("media")
        media: list[Mapping[str, Any] | None] = []
        for one in noted if isinstance(noted, list) else []:
            if one is not None and not await self._has(one):
                break  # somebody has removed it: it is uploaded anew, and those behind it are found
            media.append(one)
        for number, asset in enumerate(post.assets[len(media) :], len(media) + 1):
            media.append(await self._uploaded(asset, f"{shared.mark(key)}-{number}") if asset.path else None)
            await notebook.note(media=list(media))
        return media

    async def _has(self, media: Mapping[str, Any]) -> bool:
        """Does the library have what was noted?"""
        try:
            await self._ask("GET", f"media/{_id(media)}", {"context": "edit"})
        except _Refused as error:
            if error.code != _NO_POST:
                raise
            return False
        return True

    async def _uploaded(self, asset: Asset, slug: str) -> Mapping[str, Any]:
        found = await self._found("media", slug)
        if found is None:
            file = await asyncio.to_thread(shared.read, asset, self._root)
            name = f"{slug}{Path(file.name).suffix.lower()}"
            headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": file.type}
            found = (await self._ask("POST", "media", content=file.content, headers=headers)).body
            _id(found)
        if asset.alt and not found.get("alt_text"):
            await self._ask("POST", f"media/{_id(found)}", {"alt_text": asset.alt})
        return {"id": _id(found), "url": str(found.get("source_url") or "")}

    async def _found(self, kind: str, slug: str) -> Mapping[str, Any] | None:
        """What has this slug, whatever its state."""
        # a name that is taken already gets -2 and so on, but nobody else has a name that comes from a key
        status = "publish,future,draft,pending,private" if kind == "posts" else "inherit"
        answer = await self._ask("GET", kind, {"slug": slug, "status": status, "context": "edit"})
        if not isinstance(answer.json, list):  # an empty list is an answer, no list is none
            raise refusal(Kind.TRANSIENT, "WordPress answered without the list that was asked for")
        return next((one for one in answer.json if isinstance(one, dict)), None)

    def _slug(self, post: Post, key: str) -> str:
        given = post.options.get("slug")
        return f"{shared.slug(given)}-{shared.mark(key)}".lstrip("-") if isinstance(given, str) else shared.name_of(post, key)  # fmt: skip

    def _wanted(self, post: Post) -> str:
        options = shared.known(post, _OPTIONS, self.name)
        status, body = options.get("status", self._status), options.get("body", "text")
        if status not in _STATUSES:
            raise refusal(Kind.PERMANENT, f"options.status: is {status!r}; it is one of {', '.join(_STATUSES)}")
        if body not in ("text", "html"):
            raise refusal(Kind.PERMANENT, f"options.body: is {body!r}; it is text or html")
        return str(status)

    # ------------------------------------------------------------------ what else is asked

    def refuses(self, post: Post) -> None:
        self._wanted(post)

    def preview(self, post: Post) -> Mapping[str, Any]:
        return shared.preview(
            self.name, post, status=post.options.get("status", self._status), slug=shared.slug(post.title or post.caption),
            content=content(post, [None] * len(post.assets)), uploads=sum(1 for asset in post.assets if asset.path),
        )  # fmt: skip

    async def limits(self) -> Limits | None:
        return None

    async def check(self) -> str:
        answer = await self._ask("GET", "users/me", {"context": "edit"})
        may = answer.body.get("capabilities")
        if isinstance(may, dict) and not may.get("publish_posts") and self._status in ("publish", "private"):
            raise refusal(Kind.AUTH, "this user may not publish posts")
        before = f"; the site prints {self._printed!r} before its answers" if self._printed else ""
        return f"publishes as {answer.body.get('name') or answer.body.get('slug') or 'a user'}{before}"

    async def _ask(
        self, method: str, path: str, fields: Mapping[str, Any] | None = None, *, content: bytes | None = None,
        headers: Mapping[str, str] | None = None, doing: Doing | None = None,
    ) -> Answered:  # fmt: skip
        """One request. Raises _Refused."""
        doing = doing or ("read" if method == "GET" else "write")
        url = f"{self._url}/wp-json/wp/v2/{path}"
        if method == "GET":
            url += shared.query(fields or {})
        elif content is None:
            content = orjson.dumps(fields)
        sent = {
            "Authorization": f"Basic {self._login}",
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        try:
            answer = await request(
                method, url, timeout=self._timeout, headers=sent | dict(headers or {}), content=content, sends=doing == "send"
            )  # fmt: skip
        except Refusal as error:
            raise _Refused(error.verdict) from None
        found, printed = (answer.json, "") if answer.json is not None else spoken(answer.content)
        verdict = classify(answer.status, found, answer.headers, self._clock.now(), doing, printed)
        if verdict.kind is not Kind.SENT:
            raise _Refused(verdict, _code(found))
        self._printed = printed
        return answer._replace(json=found, body=found if isinstance(found, dict) else {})


class _Refused(Refusal):
    """``code``: what WordPress calls the error."""

    def __init__(self, verdict: Verdict, code: str = "") -> None:
        super().__init__(verdict)
        self.code = code


class Row(NamedTuple):
    """One row of what answers mean: which answers, whose fault they are, and what follows."""

    statuses: Collection[int]
    #: Is the answer WordPress's own JSON? None: either.
    own: bool | None
    #: Whose it is: the post, the account, the channel (its configuration), the site's server, a firewall before it.
    owner: str
    kind: Kind
    #: The same where the request would have made the post public.
    sending: Kind
    meaning: str = ""


#: The first row that fits counts. Codes of ``_CONFIGURATION`` go before: they are the account's.
TABLE = (
    Row((429,), None, "site", Kind.THROTTLED, Kind.THROTTLED, "too many requests"),
    Row((401,), None, "account", Kind.AUTH, Kind.AUTH, "the login is not accepted"),
    Row((403,), True, "account", Kind.AUTH, Kind.AUTH, "this user may not do this"),
    Row(range(300, 400), None, "channel", Kind.AUTH, Kind.AUTH, "redirects are not followed; give the site's own URL"),
    Row((413,), None, "post", Kind.PERMANENT, Kind.PERMANENT, "the site's server takes nothing of this size"),
    Row((403, 406, 503), False, FIREWALL, Kind.AWAY, Kind.AWAY, "a firewall before the site, or its server, answers in WordPress's place"),
    Row((503,), True, "site", Kind.AWAY, Kind.UNKNOWN, "the site is in maintenance"),
    Row((408, 425, *range(500, 600)), True, "site", Kind.TRANSIENT, Kind.UNKNOWN),
    Row((408, 425, *range(500, 600)), False, "site", Kind.AWAY, Kind.UNKNOWN, "the site's server answers in WordPress's place"),
    Row(range(400, 500), True, "post", Kind.PERMANENT, Kind.PERMANENT),
    Row(range(400, 500), False, "site", Kind.AWAY, Kind.AWAY, "the site's server answers in WordPress's place"),
    Row(range(200, 300), False, "site", Kind.AWAY, Kind.UNKNOWN, "no JSON in the answer: something answers in WordPress's place, or cuts its answers off"),
)  # fmt: skip
#: What fits no row: an answer that is no error, and not as the REST API's either.
UNLISTED = Row((), None, "site", Kind.TRANSIENT, Kind.UNKNOWN)


def classify(
    status: int, body: object, headers: Mapping[str, str], now: datetime, doing: Doing = "write", printed: str = ""
) -> Verdict:  # fmt: skip
    """What an answer means. ``now``: aware; ``printed``: the beginning of an answer that is no JSON. Never raises, whatever the answer holds."""
    code, own = _code(body), isinstance(body, dict | list)
    if 200 <= status < 300 and not code and own:
        return Verdict(Kind.SENT)
    said = f"WordPress answered {status} {code}".rstrip()
    after = retry_after(headers.get("retry-after"), now)
    after = None if after is None else bounded(after)
    if code.startswith(_CONFIGURATION):
        return Verdict(Kind.AUTH, said, owner="account")
    if "cf-mitigated" in headers and not own:
        row = Row((), False, FIREWALL, Kind.AWAY, Kind.AWAY, "Cloudflare before the site wants to see a browser")
    else:
        row = next((one for one in TABLE if status in one.statuses and one.own in (None, own)), UNLISTED)
    kind = row.sending if doing == "send" else row.kind
    if row.own is False or (row is UNLISTED and not own):
        said = said.replace("WordPress answered", "The site answered") + (
            f": {row.meaning}" if row.meaning else ", and not as its REST API does"
        )
        said += f", with {printed!r}" if printed else ""
        return Verdict(kind, said, after, owner=row.owner)
    message = body.get("message") if isinstance(body, Mapping) else None
    told = message[:200] if kind is Kind.PERMANENT and isinstance(message, str) and message else row.meaning
    return Verdict(
        kind,
        f"{said}: {told}" if told else said,
        None if kind in (Kind.PERMANENT, Kind.AUTH) else after,
        owner=row.owner,
    )


def spoken(content: bytes) -> tuple[Any, str]:
    """(the JSON of an answer, what was printed before it): a byte order mark is passed over, and so is a notice of PHP (case C045). None where
    there is no JSON."""
    text = content.decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    if text[:1] in ("{", "["):  # what a plugin prints behind it is passed over, too
        try:
            return json.JSONDecoder().raw_decode(text)[0], ""
        except (ValueError, RecursionError):
            pass
    for n, found in enumerate(re.finditer(r"[\[{]", text)):
        if n >= 50:
            break
        try:
            value = orjson.loads(text[found.start() :])
        except orjson.JSONDecodeError:
            continue
        return value, _printed(text[: found.start()])
    return None, _printed(text)


def _printed(text: str) -> str:
    """The first 80 characters of what people can read of a page."""
    return " ".join(re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE).split())[
        :80
    ]


def _tried(notebook: Notebook) -> bool:
    """Did an earlier run ask for the draft to be made public, without an answer that settles it?"""
    return notebook.facts.get("ahead_at") is not None or bool(notebook.facts.get("tried"))


def _code(body: object) -> str:
    code = body.get("code") if isinstance(body, Mapping) else None
    return code[:100] if isinstance(code, str) else ""


def _id(thing: Mapping[str, Any]) -> int:
    ident = thing.get("id")
    if not isinstance(ident, int):
        raise refusal(Kind.TRANSIENT, "WordPress answered without the id of what was made")
    return ident


def _published(thing: Mapping[str, Any], ident: object) -> Published:
    link = thing.get("link")
    return Published(str(ident), link if isinstance(link, str) else None)


def content(post: Post, media: Sequence[Mapping[str, Any] | None]) -> str:
    """The post's HTML. A caption is plain text, unless the option ``body`` says ``html``."""
    parts = [post.caption.strip() if post.options.get("body") == "html" else _paragraphs(post.caption)]
    for asset, there in zip(post.assets, media, strict=True):
        source = html.escape(str(there["url"]) if there else asset.url or "")
        if source and asset.kind == "image":
            parts.append(f'<figure><img src="{source}" alt="{html.escape(asset.alt)}"></figure>')
        elif source:
            parts.append(f'<figure><video controls src="{source}"></video></figure>')
    if post.link:
        link = html.escape(post.link)
        parts.append(f'<p><a href="{link}">{link}</a></p>')
    return "\n".join(part for part in parts if part)


def _paragraphs(words: str) -> str:
    paragraphs = [part.strip() for part in words.replace("\r\n", "\n").split("\n\n")]
    return "\n".join("<p>{}</p>".format(html.escape(part).replace("\n", "<br>")) for part in paragraphs if part)

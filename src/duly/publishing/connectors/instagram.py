"""Instagram: a container is made, looked at until its media is ready, and published.

https://developers.facebook.com/docs/instagram-platform/content-publishing. Meta fetches the media from a public URL. There is no
idempotency key, but a container is published once and says so. Its id is noted before it is published, so whatever became of an answer,
its status tells: PUBLISHED is a success. Its id is that of the one medium with its caption since then; what is newest in the account is never
taken for the post.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn

from duly.clock import SystemClock
from duly.kernel.clock import Clock
from duly.kernel.verdict import Kind, Verdict, refusal
from duly.publishing.connectors import shared
from duly.publishing.connectors.base import Notebook
from duly.publishing.connectors.graph_api import NOT_FOUND, RENEW, URL, GraphApi, MetaRefusal, subcode_of
from duly.publishing.post import Asset, Comment, Limits, Post, Published, Rules

#: Options of a post that are handed on as they are.
_PASSED = frozenset({
    "share_to_feed", "thumb_offset", "cover_url", "location_id", "collaborators", "user_tags", "audio_name",
})  # fmt: skip
_TYPES = frozenset({"IMAGE", "REELS", "STORIES", "CAROUSEL"})
#: How long the first look waits for the second, in seconds; each wait is twice the one before, up to ``poll_interval``.
_FIRST = 2.0
#: How far the clocks of Instagram and of this side may be apart.
_SKEW = timedelta(seconds=5)
#: For how long a container must not be found before it is no passing mishap of reading, and at what code that is.
_GONE, _MISSING = timedelta(minutes=5), 100


class InstagramConnector:
    """Publishes images, reels, stories and carousels of an account.

    ``account``: the id of the Instagram account; ``token``: one with instagram_content_publish. ``url``: of the Graph API, version included
    (``https://graph.instagram.com/v24.0`` for tokens of Instagram Login). ``poll_interval``: the longest wait between two looks at a
    container; ``patience``: seconds of waits in one run before it is left to the next one. Raises InvalidArgument.
    """

    name = "instagram"
    rules = Rules(
        caption_most=2200, assets_least=1, assets_most=10, asset_bytes={"image": 8 * 1024 * 1024, "video": 300 * 1024 * 1024},
        hashtags_most=30, comment_most=2200, needs_url=True, first_comment=True, image_endings=frozenset({".jpg", ".jpeg"}), ignored=("title", "link"),
    )  # fmt: skip

    def __init__(
        self, *, account: str | int, token: str | Callable[[], str], url: str = URL, timeout: float = shared.TIMEOUT, poll_interval: float = 60.0, patience: float = 300.0,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._account = shared.number_name(account, "account")
        self._clock: Clock = clock or SystemClock()
        self._graph = GraphApi(token, url, timeout, self._clock)
        self._interval = shared.number(poll_interval, "poll_interval", above=0, most=3600)
        self._patience = shared.number(patience, "patience", above=0, most=3600)
        self._username: str | None = None

    def __repr__(self) -> str:
        return f"InstagramConnector({self._account})"

    # ------------------------------------------------------------------ publishing

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        kind = media_type(post)
        before = _tried(notebook)
        container = await self._known(notebook)
        if isinstance(container, Published):
            return container
        if container is None:
            container, before = await self._made(post, kind, notebook), False
        if await self._ready(container, notebook) == "PUBLISHED":
            return Published()  # an earlier request has arrived by now
        await notebook.ahead()
        try:
            answer = await self._graph.post(f"{self._account}/media_publish", {"creation_id": container}, "send")
        except MetaRefusal as error:
            return await self._refused(error, container, notebook, before)
        ident = answer.get("id")
        if not ident:
            nameless = Verdict(Kind.UNKNOWN, "Meta answered without the id of what was published")
            return await self._refused(MetaRefusal(nameless), container, notebook, before)
        return Published(str(ident))

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        container = notebook.facts.get("container")
        if container is None:  # noted before anything is published
            return None
        try:
            status, _ = await self._status(str(container))
        except MetaRefusal as error:
            if _gone(error):
                await self._missed(str(container), notebook, error.verdict.reason)
            raise
        if status == "PUBLISHED":
            return await self._found(post, notebook)
        if status in ("EXPIRED", "ERROR"):
            await self._forget(notebook)
            return None
        if status in ("FINISHED", "IN_PROGRESS"):
            # were an earlier request still on its way, it would publish this container, and so will the next one: once.
            # So it is not given up for a new one
            await notebook.note(tried=True, missed_at=None, lost=None)
            return None
        raise refusal(Kind.UNKNOWN, f"the container says {status!r}")

    async def _found(self, post: Post, notebook: Notebook) -> Published:
        """A post that is there: its id is that of the one medium with its caption since it was handed over, if there is one and no other."""
        since = shared.instant(notebook.facts.get("ahead_at"))
        if since is None or not post.caption.strip():
            return Published()
        alike: list[Published] = []
        try:
            answer = await self._graph.get(f"{self._account}/media", fields="id,caption,timestamp,permalink", limit=25)
        except MetaRefusal:
            return Published()  # it is there, whatever it is called
        data = answer.get("data")
        for one in data if isinstance(data, list) else []:
            made = shared.instant(one.get("timestamp")) if isinstance(one, dict) else None
            if (
                made is not None
                and made >= since - _SKEW
                and shared.same_text(str(one.get("caption") or ""), post.caption)
            ):
                link = one.get("permalink")
                alike.append(Published(str(one.get("id")), link if isinstance(link, str) else None))
        return alike[0] if len(alike) == 1 else Published()

    async def _missed(self, container: str, notebook: Notebook, said: str) -> NoReturn:
        """A container that may have been published is not found. Reading fails now and then; when it goes on, nobody can tell any more.

        Raises Refusal, of Kind.UNKNOWN then. What is noted is no answer: who is asked again asks the other side again.
        """
        now, first = self._clock.now(), shared.instant(notebook.facts.get("missed_at"))
        if first is None:
            await notebook.note(missed_at=now.isoformat())
        if first is None or now - first < _GONE:
            raise refusal(Kind.TRANSIENT, f"{said}: its container cannot be read")
        await notebook.note(lost=container)
        raise refusal(Kind.UNKNOWN, f"the container {container} is no longer known there: was it published before?")

    async def _refused(self, error: MetaRefusal, container: str, notebook: Notebook, before: bool) -> Published:
        """It was not published, they say, or nobody knows: what does the container say? ``before``: an earlier run tried as well.

        Its request may still be on its way, whatever this one was answered, and would publish the container. So the container is given up
        only when it says itself that it cannot be published any more.
        """
        if error.verdict.kind in (Kind.AUTH, Kind.THROTTLED, Kind.QUOTA):
            raise error
        try:
            status, _ = await self._status(container)
        except MetaRefusal:
            if before and error.verdict.kind is not Kind.UNKNOWN:
                raise refusal(Kind.UNKNOWN, f"{error.verdict.reason}; its container cannot be read") from None
            raise error from None
        if status == "PUBLISHED":
            return Published()
        final = status in ("EXPIRED", "ERROR")
        if error.renews and before and not final:
            raise refusal(
                Kind.UNKNOWN,
                f"{error.verdict.reason}; its container is {status}, and an earlier request may publish it",
            ) from None
        if final or error.renews:
            await self._forget(notebook)
            if error.verdict.kind is Kind.UNKNOWN:
                raise refusal(
                    Kind.TRANSIENT, f"{error.verdict.reason}; its container is {status}, so it is not"
                ) from None
        raise error

    # ------------------------------------------------------------------ containers

    async def _known(self, notebook: Notebook) -> str | Published | None:
        """The container of an earlier run; None when there is none that can be used."""
        container = notebook.facts.get("container")
        if container is None:
            return None
        try:
            status, _ = await self._status(str(container))
        except MetaRefusal as error:
            if not _gone(error):
                raise
            # nobody asked for it to be published: a new one does no harm; or nobody can tell, and the channel says: again
            if not _tried(notebook) or notebook.facts.get("lost") == str(container):
                await self._forget(notebook)
                return None
            await notebook.ahead()  # an earlier run did: so the next one asks before anything else
            raise refusal(
                Kind.UNKNOWN, f"{error.verdict.reason}: its container, which may have been published"
            ) from None
        if status == "PUBLISHED":
            return Published()
        if status in ("EXPIRED", "ERROR"):
            await self._forget(notebook)
            return None
        return str(container)

    async def _made(self, post: Post, kind: str, notebook: Notebook) -> str:
        fields: dict[str, Any] = {n: v for n, v in post.options.items() if n in _PASSED}
        if post.caption:
            fields["caption"] = post.caption
        if kind == "CAROUSEL":
            fields |= {"media_type": kind, "children": await self._children(post, notebook)}
        else:
            fields |= _media(post.assets[0], kind)
        try:
            answer = await self._graph.post(f"{self._account}/media", fields)
        except MetaRefusal as error:
            if error.renews and kind == "CAROUSEL":
                await notebook.note(children=None)
            raise
        container = _id(answer)
        await notebook.note(container=container)
        return container

    async def _children(self, post: Post, notebook: Notebook) -> list[str]:
        """The containers of a carousel's items, each noted as soon as it is there."""
        children = await self._kept(notebook)
        for asset in post.assets[len(children) :]:
            kind = "IMAGE" if asset.kind == "image" else "VIDEO"
            answer = await self._graph.post(f"{self._account}/media", _media(asset, kind) | {"is_carousel_item": True})
            children.append(_id(answer))
            await notebook.note(children=list(children))
        for child in children:
            await self._ready(child, notebook)
        return children

    async def _kept(self, notebook: Notebook) -> list[str]:
        """The items that an earlier run has made and Meta still has: all, or none. Nobody has seen them, so new ones do no harm."""
        found = notebook.facts.get("children")
        children = [str(one) for one in found] if isinstance(found, list) else []
        for child in children:
            try:
                status, _ = await self._status(child)
            except MetaRefusal as error:
                if not _gone(error):
                    raise
                status = "EXPIRED"
            if status not in ("FINISHED", "IN_PROGRESS"):
                await notebook.note(children=None)
                return []
        return children

    async def _ready(self, container: str, notebook: Notebook) -> str:
        """Wait until the media of a container is there. Returns what it says then: FINISHED or PUBLISHED. Raises Refusal."""
        waited, wait = 0.0, min(_FIRST, self._interval)
        while True:
            status, said = await self._status(container)
            if status in ("FINISHED", "PUBLISHED"):
                return status
            if status == "ERROR":
                await self._forget(notebook)
                _broken(said)
            if status == "EXPIRED":
                await self._forget(notebook)
                raise refusal(Kind.TRANSIENT, "the container has expired: a new one is made")
            if status != "IN_PROGRESS":
                raise refusal(Kind.TRANSIENT, f"the container says {status!r}", self._interval)
            if waited >= self._patience:
                raise refusal(Kind.TRANSIENT, f"the media is not ready after {waited:g} s", self._interval)
            await asyncio.sleep(wait)
            waited, wait = waited + wait, min(self._interval, wait * 2)

    async def _status(self, container: str) -> tuple[str, str]:
        answer = await self._graph.get(shared.segment(container), fields="status_code,status")
        return str(answer.get("status_code") or ""), str(answer.get("status") or "")

    async def _forget(self, notebook: Notebook) -> None:
        await notebook.note(container=None, children=None, tried=None, missed_at=None, lost=None)

    # ------------------------------------------------------------------ comments

    async def comments(self, remote_id: str) -> AsyncIterator[Comment]:
        path = f"{shared.segment(remote_id)}/comments"
        async for one in self._graph.pages(path, fields="id,text,username,timestamp", limit=50):
            yield Comment(str(one.get("id") or ""), str(one.get("text") or ""), str(one.get("username") or ""))

    async def comment(self, remote_id: str, text: str) -> str:
        answer = await self._graph.post(f"{shared.segment(remote_id)}/comments", {"message": text}, "comment")
        ident = answer.get("id")
        if not ident:
            raise refusal(Kind.UNKNOWN, "Meta answered without the id of the comment")
        return str(ident)

    async def account(self) -> str:
        if self._username is None:
            answer = await self._graph.get(self._account, fields="id,username")
            self._username = str(answer.get("username") or "")
        return self._username

    # ------------------------------------------------------------------ what else is asked

    def refuses(self, post: Post) -> None:
        media_type(post)

    def preview(self, post: Post) -> Mapping[str, Any]:
        ignored = [name for name in self.rules.ignored if getattr(post, name)]
        kind = media_type(post, strict=False)
        return shared.preview(
            self.name, post, media_type=kind, requests=len(post.assets) + 1 if kind == "CAROUSEL" else 1, ignored=ignored
        )  # fmt: skip

    async def link(self, remote_id: str) -> str | None:
        found = (await self._graph.get(shared.segment(remote_id), fields="permalink")).get("permalink")
        return found if isinstance(found, str) else None

    async def ends(self) -> datetime | None:
        return await self._graph.ends()

    async def limits(self) -> Limits | None:
        answer = await self._graph.get(f"{self._account}/content_publishing_limit", fields="config,quota_usage")
        data = answer.get("data")
        found = data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}
        config = found.get("config") or {}
        try:
            return Limits(int(found["quota_usage"]), int(config["quota_total"]), float(config["quota_duration"]))
        except (KeyError, TypeError, ValueError):
            return None

    async def check(self) -> str:
        self._username = None
        return f"publishes as {await self.account() or self._account}"


def media_type(post: Post, strict: bool = True) -> str:
    """What a post becomes: IMAGE, REELS, STORIES or CAROUSEL. Raises Refusal (for good) when it can become none, unless not ``strict``."""
    options = shared.known(post, _PASSED | {"media_type"}, "instagram") if strict else post.options
    assets, given = post.assets, options.get("media_type")
    guess = "CAROUSEL" if len(assets) > 1 else "REELS" if assets and assets[0].kind == "video" else "IMAGE"
    kind = str(given or guess).upper()
    if not strict:
        return kind
    if kind not in _TYPES:
        raise refusal(Kind.PERMANENT, f"options.media_type: is {given!r}; it is one of {', '.join(sorted(_TYPES))}")
    if not assets:
        raise refusal(Kind.PERMANENT, "assets: Instagram publishes no post without an image or a video")
    if (kind == "CAROUSEL") != (len(assets) > 1):
        raise refusal(Kind.PERMANENT, f"assets: there are {len(assets)}, which is not what {kind} takes")
    if len(assets) > 10:
        raise refusal(Kind.PERMANENT, f"assets: there are {len(assets)}; a carousel takes ten")
    if (kind, assets[0].kind) in (("IMAGE", "video"), ("REELS", "image")):
        raise refusal(Kind.PERMANENT, f"assets: {kind} takes no {assets[0].kind}")
    lacking = next((n for n, a in enumerate(assets) if not a.url), None)
    if lacking is not None:
        raise refusal(Kind.PERMANENT, f"assets[{lacking}].url: is missing; Instagram fetches media from a public URL")
    return kind


def _gone(error: MetaRefusal) -> bool:
    """Was a container not found?"""
    return error.fault is not None and (error.fault.code == _MISSING or error.fault.subcode in NOT_FOUND)


def _tried(notebook: Notebook) -> bool:
    """Did an earlier run ask for the container to be published, without an answer that settles it?"""
    return notebook.facts.get("ahead_at") is not None or bool(notebook.facts.get("tried"))


def _media(asset: Asset, kind: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"image_url" if asset.kind == "image" else "video_url": asset.url}
    if kind != "IMAGE":
        fields["media_type"] = kind
    elif asset.alt:
        fields["alt_text"] = asset.alt
    return fields


def _id(answer: Mapping[str, Any]) -> str:
    ident = answer.get("id")
    if not ident:
        raise refusal(Kind.TRANSIENT, "Meta answered without the id of a container")
    return str(ident)


def _broken(said: str) -> NoReturn:
    """The media of a container could not be used; ``said``: its field ``status``, with a subcode in it. Raises Refusal."""
    found = re.search(r"\b(2207[0-9]{3})\b", said)
    subcode = int(found[1]) if found else 0
    kind, meaning = subcode_of(subcode)
    if subcode in RENEW:
        kind = Kind.TRANSIENT
    raise refusal(kind, f"the media cannot be used: {subcode or 'ERROR'} {meaning}".rstrip())

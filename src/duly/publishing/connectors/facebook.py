"""A Facebook page: texts and links, photos, videos.

https://developers.facebook.com/docs/pages-api/posts. There is no idempotency key and no id before it is published. An answer that was lost is
looked for among the page's posts since then, by its exact text; what cannot be told apart is an unknown outcome. A post that was there before
it was handed over is another one, whatever its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from duly.clock import SystemClock
from duly.kernel.clock import Clock
from duly.kernel.verdict import Kind, refusal
from duly.publishing.connectors import shared
from duly.publishing.connectors.base import Notebook
from duly.publishing.connectors.graph_api import URL, Doing, GraphApi, MetaRefusal
from duly.publishing.post import Asset, Limits, Post, Published, Rules

_OPTIONS = frozenset({"place", "targeting"})
#: How far the clocks of Facebook and of this side may be apart (it writes whole seconds): before that nothing is taken for this post.
_SKEW = timedelta(seconds=5)
#: How far they are apart at the worst: what has the same text and is that much older may be this post or another.
_DOUBT = timedelta(minutes=1)
#: How many posts of the page are looked at, at most.
_MOST = 500


class FacebookConnector:
    """Publishes on a page. ``page``: its id; ``token``: one of the page, with pages_manage_posts and pages_read_engagement.

    ``url``: of the Graph API, version included. ``settle``: a post that is not there yet so many seconds after it was handed over is not
    given up before. ``media_root``: local assets must be below it. Raises InvalidArgument.
    """

    name = "facebook"
    rules = Rules(caption_most=63_206, assets_most=10, asset_bytes={"image": 10 * 1024 * 1024, "video": 1024**3})

    def __init__(
        self, *, page: str | int, token: str | Callable[[], str], url: str = URL, timeout: float = shared.TIMEOUT, settle: float = 60.0, media_root: str | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._clock: Clock = clock or SystemClock()
        self._page = shared.number_name(page, "page")
        self._graph = GraphApi(token, url, timeout, self._clock)
        self._settle = shared.number(settle, "settle", most=86_400)
        self._root = shared.folder(media_root, "media_root")

    def __repr__(self) -> str:
        return f"FacebookConnector({self._page})"

    # ------------------------------------------------------------------ what it is known by

    @property
    def place(self) -> str:
        return f"{self.name}:{self._page}"

    def looks(self, post: Post) -> str:
        text = message(post)
        edge = "videos" if kind_of(post, strict=False) == "videos" else "posts"
        return f"{edge} {shared.folded(text)}" if text else ""

    # ------------------------------------------------------------------ publishing

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        edge, tried, kept = kind_of(post), _tried(notebook), bool(notebook.facts.get("photos"))
        fields: dict[str, Any] = {n: v for n, v in post.options.items() if n in _OPTIONS}
        text = message(post)
        if edge == "feed":
            fields |= {"message": text} if text else {}
            fields |= {"link": post.link} if post.link and not post.assets else {}
            if post.assets:
                fields["attached_media"] = [{"media_fbid": one} for one in await self._photos(post, notebook)]
        elif edge == "photos":
            fields |= {"caption": text} | ({"alt_text_custom": post.assets[0].alt} if post.assets[0].alt else {})
        else:
            fields |= {"description": text} | ({"title": post.title} if post.title else {})
        # what is read from a file is read before the point of no return
        file = await self._file(post.assets[0]) if edge != "feed" else None
        await notebook.ahead()
        try:
            answer = await self._hand_over(edge, fields, post.assets[0] if edge != "feed" else None, file, "send")
        except MetaRefusal as error:
            code = error.fault.code if error.fault is not None else 0
            # Facebook has this text already: an earlier run's, or another's if there was none
            if code == 506 and tried is not None:
                found = await self._duplicate(post, tried, error)
                if found is not None:
                    return found
            if code == 100 and kept:
                # photos that nobody shows are not kept for long: perhaps it is they that are meant
                await notebook.note(photos=None)
                reason = f"{error.verdict.reason} (with photos of an earlier run: the next one uploads them anew)"
                raise refusal(Kind.TRANSIENT, reason) from None
            raise
        ident = answer.get("post_id") or answer.get("id")
        if not ident:
            raise refusal(Kind.UNKNOWN, "Meta answered without the id of what was published")
        return Published(str(ident))

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        since, ahead = _tried(notebook), shared.instant(notebook.facts.get("ahead_at"))
        if since is None or ahead is None:
            raise refusal(Kind.UNKNOWN, "nobody noted when it was handed over")
        found, others = await self._look(post, since)
        if found is not None:
            return found
        if others and not message(post):
            raise refusal(Kind.UNKNOWN, "the page has posts since then, and this one has no text to know it by")
        left = (ahead - self._clock.now()).total_seconds() + self._settle
        if left > 0:
            raise refusal(
                Kind.TRANSIENT, "the page does not have it, and it is too early to say that it will not", left
            )
        # this request may be late all the same: a later run looks from here on
        await notebook.note(tried=since.isoformat())
        return None

    async def _look(self, post: Post, since: datetime) -> tuple[Published | None, int]:
        """The post since then that has this text, and how many have another. Raises Refusal, of Kind.UNKNOWN when it cannot be told."""
        video = kind_of(post) == "videos"
        path, name = ("videos", "description") if video else ("posts", "message")
        text, found, others, doubtful = message(post), [], 0, 0
        asked = {
            "fields": f"id,{name},created_time,permalink_url",
            "since": int((since - _DOUBT).timestamp()),
            "limit": 100,
        }
        seen = 0
        async for one in self._graph.pages(f"{self._page}/{path}", **asked):
            seen += 1
            if seen > _MOST:
                raise refusal(Kind.UNKNOWN, f"the page has more than {_MOST} posts since then")
            made = shared.instant(one.get("created_time"))
            same = bool(text) and shared.same_text(str(one.get(name) or ""), text)
            if made is not None and made < since - _SKEW:
                doubtful += same and made >= since - _DOUBT
            elif same:
                found.append(Published(str(one.get("id")), _absolute(one.get("permalink_url")), by_looks=since))
            else:
                others += 1
        if len(found) > 1:
            raise refusal(Kind.UNKNOWN, f"the page has {len(found)} posts with this text since then")
        if doubtful and not found:
            raise refusal(
                Kind.UNKNOWN,
                "the page has a post with this text from right before: it is another one if the clocks agree",
            )
        return found[0] if found else None, others

    async def _duplicate(self, post: Post, tried: datetime, error: MetaRefusal) -> Published | None:
        """Facebook has this text already: is it what an earlier run handed over? Raises Refusal where nobody can tell."""
        try:
            found, _ = await self._look(post, tried)
        except MetaRefusal:
            raise refusal(Kind.UNKNOWN, f"{error.verdict.reason}; the page cannot be read") from None
        return found

    async def _photos(self, post: Post, notebook: Notebook) -> list[str]:
        """Photos that nobody sees yet, each noted as soon as it is there."""
        noted = notebook.facts.get("photos")
        photos = [str(one) for one in noted] if isinstance(noted, list) else []
        for asset in post.assets[len(photos) :]:
            fields: dict[str, Any] = {"published": False} | ({"alt_text_custom": asset.alt} if asset.alt else {})
            answer = await self._hand_over("photos", fields, asset, await self._file(asset), "write")
            if not answer.get("id"):
                raise refusal(Kind.TRANSIENT, "Meta answered without the id of a photo")
            photos.append(str(answer["id"]))
            await notebook.note(photos=list(photos))
        return photos

    async def _file(self, asset: Asset) -> shared.File | None:
        return None if asset.url else await asyncio.to_thread(shared.read, asset, self._root)

    async def _hand_over(
        self, edge: str, fields: Mapping[str, Any], asset: Asset | None, file: shared.File | None, doing: Doing
    ) -> Mapping[str, Any]:
        path = f"{self._page}/{edge}"
        if file is not None:
            texts = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in fields.items()}
            return await self._graph.upload(path, texts, file, doing)
        if asset is not None:
            fields = {**fields, "file_url" if edge == "videos" else "url": asset.url}
        return await self._graph.post(path, fields, doing)

    # ------------------------------------------------------------------ what else is asked

    def refuses(self, post: Post) -> None:
        kind_of(post)

    def preview(self, post: Post) -> Mapping[str, Any]:
        return shared.preview(self.name, post, edge=kind_of(post, strict=False), message=message(post))

    async def link(self, remote_id: str) -> str | None:
        answer = await self._graph.get(shared.segment(remote_id), fields="permalink_url")
        return _absolute(answer.get("permalink_url"))

    async def ends(self) -> datetime | None:
        return await self._graph.ends()

    async def limits(self) -> Limits | None:
        return None

    async def check(self) -> str:
        answer = await self._graph.get(self._page, fields="id,name")
        return f"publishes on {answer.get('name') or self._page}"


def kind_of(post: Post, strict: bool = True) -> str:
    """Where a post goes: feed, photos or videos. Raises Refusal (for good) when it can go nowhere, unless not ``strict``."""
    kinds = [asset.kind for asset in post.assets]
    kind = "feed" if len(kinds) != 1 else "videos" if kinds[0] == "video" else "photos"
    if not strict:
        return kind
    shared.known(post, _OPTIONS, "facebook")
    if len(kinds) > 1 and "video" in kinds:
        raise refusal(Kind.PERMANENT, "assets: a page takes several photos or one video in a post")
    if not kinds and not post.caption.strip() and not post.link:
        raise refusal(Kind.PERMANENT, "there is no text, no link and no asset")
    lacking = next((n for n, a in enumerate(post.assets) if not a.url and not a.path), None)
    if lacking is not None:
        raise refusal(Kind.PERMANENT, f"assets[{lacking}]: has neither a url nor a path")
    return kind


def message(post: Post) -> str:
    """The text of a post. A link goes into it where there are assets: then it cannot stand beside it."""
    link = post.link if post.link and post.assets and post.link not in post.caption else ""
    return "\n\n".join(part for part in (post.caption.strip(), link) if part)


def _tried(notebook: Notebook) -> datetime | None:
    """When an earlier run handed it over first, without an answer that settles it."""
    return shared.instant(notebook.facts.get("tried")) or shared.instant(notebook.facts.get("ahead_at"))


def _absolute(link: object) -> str | None:
    if not isinstance(link, str) or not link:
        return None
    return f"https://www.facebook.com{link}" if link.startswith("/") else link

"""Answers as Meta's Graph API does for an Instagram account and a Facebook page (PROVIDERS sections 1 and 2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from publishing.servers.http import Api, Asked, Reply

IG, PAGE, TOKEN = "17841400000000001", "1020300000001", "EAAtoken"


def error(code: int, subcode: int | None = None, *, status: int = 400, headers: Mapping[str, str] | None = None, transient: bool = False) -> Reply:  # fmt: skip
    """An error as Graph writes it."""
    said = {
        "message": f"(#{code}) An error occurred", "type": "OAuthException" if code == 190 else "IGApiException", "code": code,
        "is_transient": transient, "error_user_title": "Not done", "error_user_msg": "It was not done.", "fbtrace_id": "AbCdEf",
    }  # fmt: skip
    if subcode is not None:
        said["error_subcode"] = subcode
    return status, headers or {}, {"error": said}


@dataclass
class Container:
    id: str
    fields: Mapping[str, Any]
    #: How many more looks see IN_PROGRESS.
    looks: int = 0
    status: str = "FINISHED"


@dataclass
class Media:
    """Something that is on Instagram, or on the page."""

    id: str
    fields: Mapping[str, Any]
    at: datetime
    #: The oldest first.
    comments: list[dict[str, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return str(self.fields.get("caption") or self.fields.get("message") or self.fields.get("description") or "")


@dataclass
class Meta(Api):
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    containers: dict[str, Container] = field(default_factory=dict)
    #: What was really published, in order.
    media: list[Media] = field(default_factory=list)
    posts: list[Media] = field(default_factory=list)
    #: Videos of the page; they are posts as well.
    videos: list[Media] = field(default_factory=list)
    #: Photos of the page that wait to be attached.
    photos: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    #: How many looks at the container of a video see IN_PROGRESS; of an image, too.
    video_looks: int = 2
    image_looks: int = 0
    #: What new containers end as: FINISHED, ERROR or EXPIRED, and what ``status`` says of it.
    ends: str = "FINISHED"
    status_text: str = "Finished: Media has been uploaded and it is ready to be published."
    quota_used: int = 0
    quota_total: int = 50
    page_size: int = 50
    comments_disabled: bool = False
    username: str = "example.shop"
    #: Does the page refuse a text that it has (506)?
    refuses_duplicates: bool = False
    #: Does a list obey ``since``?
    knows_since: bool = True
    made: int = 0

    @property
    def graph(self) -> str:
        """The URL for connectors."""
        return f"{self.url}/v24.0"

    def fresh(self) -> str:
        self.made += 1
        return f"180{self.made:012}"

    def real(self, asked: Asked) -> Reply:
        token = asked.headers.get("authorization", "").removeprefix("Bearer ") or asked.fields.get("access_token")
        if token != TOKEN:
            return error(190, 463)
        path = re.sub(r"^/v[0-9.]+/", "/", asked.path)
        for method, pattern, act in ROUTES:
            if method == asked.method and (match := re.fullmatch(pattern, path)):
                return act(self, asked.fields, *match.groups())
        return error(100, 33)

    # ------------------------------------------------------------------ Instagram

    def create(self, fields: Mapping[str, Any]) -> Reply:
        kind = fields.get("media_type") or "IMAGE"
        wanted = {"IMAGE": "image_url", "REELS": "video_url", "VIDEO": "video_url", "CAROUSEL": "children"}
        if kind != "STORIES" and not fields.get(wanted.get(kind, "")):
            return error(100)
        children = fields.get("children") or []
        if kind == "CAROUSEL" and not 2 <= len(children) <= 10:
            return error(100)
        if any(child not in self.containers or self.containers[child].status != "FINISHED" for child in children):
            return error(24, 2207008)
        made = Container(self.fresh(), dict(fields), self.image_looks if kind == "IMAGE" else self.video_looks)
        self.containers[made.id] = made
        if made.looks or self.ends != "FINISHED":
            made.status = "IN_PROGRESS"
        return 200, {}, {"id": made.id}

    def look(self, fields: Mapping[str, Any], ident: str) -> Reply:
        if ident == IG:
            return 200, {}, {"id": IG, "username": self.username}
        if ident == PAGE:
            return 200, {}, {"id": PAGE, "name": "Example page"}
        if ident in self.containers:
            one = self.containers[ident]
            if one.status == "IN_PROGRESS":
                if one.looks:
                    one.looks -= 1
                else:
                    one.status = self.ends
            return 200, {}, {"id": ident, "status_code": one.status, "status": self.status_text}
        for media in self.media:
            if media.id == ident:
                return 200, {}, {"id": ident, "permalink": f"https://www.instagram.com/p/{ident}/"}
        for post in (*self.posts, *self.videos):
            if post.id == ident:
                return 200, {}, {"id": ident, "permalink_url": f"https://www.facebook.com/{ident}"}
        return error(100, 33)

    def publish(self, fields: Mapping[str, Any]) -> Reply:
        one = self.containers.get(str(fields.get("creation_id")))
        if one is None:
            return error(24, 2207008)
        if one.status == "EXPIRED":
            return error(-2, 2207020)
        if one.status != "FINISHED":
            return error(9007, 2207027)
        if self.quota_used >= self.quota_total:
            return error(9, 2207042)
        one.status = "PUBLISHED"
        self.quota_used += 1
        self.media.append(Media(self.fresh(), one.fields, self.now()))
        return 200, {}, {"id": self.media[-1].id}

    def limit(self, fields: Mapping[str, Any]) -> Reply:
        config = {"quota_total": self.quota_total, "quota_duration": 86400}
        return 200, {}, {"data": [{"quota_usage": self.quota_used, "config": config}]}

    # ------------------------------------------------------------------ comments

    def comments(self, fields: Mapping[str, Any], ident: str) -> Reply:
        media = next((m for m in self.media if m.id == ident), None)
        if media is None:
            return error(100, 33)
        newest = media.comments[::-1]
        size = min(self.page_size, int(fields.get("limit") or self.page_size))
        begin = int(fields.get("after") or 0)
        paging: dict[str, Any] = {}
        if newest[begin : begin + size]:
            paging["cursors"] = {"before": str(begin), "after": str(begin + size)}
        if begin + size < len(newest):
            paging["next"] = f"{self.graph}/{ident}/comments?access_token={TOKEN}&after={begin + size}"
        return 200, {}, {"data": newest[begin : begin + size], "paging": paging}

    def comment(self, fields: Mapping[str, Any], ident: str) -> Reply:
        media = next((m for m in self.media if m.id == ident), None)
        if media is None:
            return error(100, 33)
        if self.comments_disabled:
            return error(10)
        text = str(fields.get("message") or "")
        if not text:
            return error(100)
        made = {"id": self.fresh(), "text": text, "username": self.username, "timestamp": stamp(self.now())}
        media.comments.append(made)
        return 200, {}, {"id": made["id"]}

    # ------------------------------------------------------------------ the page

    def feed(self, fields: Mapping[str, Any]) -> Reply:
        text = str(fields.get("message") or "")
        attached = fields.get("attached_media") or []
        if not text and not fields.get("link") and not attached:
            return error(100)
        if any(one.get("media_fbid") not in self.photos for one in attached):
            return error(100)
        if self.refuses_duplicates and text and any(post.text == text for post in self.posts):
            return error(506)
        return 200, {}, {"id": self._posted(fields).id}

    def photo(self, fields: Mapping[str, Any]) -> Reply:
        if not fields.get("url") and not fields.get("source"):
            return error(100)
        ident = self.fresh()
        if fields.get("published") in (False, "false"):
            self.photos[ident] = fields
            return 200, {}, {"id": ident}
        return 200, {}, {"id": ident, "post_id": self._posted(fields).id}

    def video(self, fields: Mapping[str, Any]) -> Reply:
        if not fields.get("file_url") and not fields.get("source"):
            return error(100)
        ident = self.fresh()
        self.videos.append(Media(ident, dict(fields), self.now()))
        return 200, {}, {"id": ident}

    def _posted(self, fields: Mapping[str, Any]) -> Media:
        made = Media(f"{PAGE}_{self.fresh()}", dict(fields), self.now())
        self.posts.append(made)
        return made

    def list_posts(self, fields: Mapping[str, Any]) -> Reply:
        return self._listed(self.posts, fields, "message")

    def list_videos(self, fields: Mapping[str, Any]) -> Reply:
        return self._listed(self.videos, fields, "description")

    def _listed(self, found: list[Media], fields: Mapping[str, Any], name: str) -> Reply:
        since = float(fields.get("since") or 0) if self.knows_since else 0.0
        newest = [one for one in found[::-1] if one.at.timestamp() >= since]
        size, begin = min(self.page_size, int(fields.get("limit") or 25)), int(fields.get("after") or 0)
        data = [
            {"id": p.id, "created_time": stamp(p.at), "permalink_url": f"https://www.facebook.com/{p.id}", **({name: p.text} if p.text else {})}
            for p in newest[begin : begin + size]
        ]  # fmt: skip
        paging: dict[str, Any] = {"cursors": {"before": str(begin), "after": str(begin + size)}} if data else {}
        if begin + size < len(newest):
            paging["next"] = f"{self.graph}/{PAGE}/posts?access_token={TOKEN}&after={begin + size}"
        return 200, {}, {"data": data, "paging": paging}


def stamp(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+0000")


ROUTES: list[tuple[str, str, Callable[..., Reply]]] = [
    ("POST", f"/{IG}/media", Meta.create),
    ("POST", f"/{IG}/media_publish", Meta.publish),
    ("GET", f"/{IG}/content_publishing_limit", Meta.limit),
    ("POST", f"/{PAGE}/feed", Meta.feed),
    ("POST", f"/{PAGE}/photos", Meta.photo),
    ("POST", f"/{PAGE}/videos", Meta.video),
    ("GET", f"/{PAGE}/(?:posts|feed|published_posts)", Meta.list_posts),
    ("GET", f"/{PAGE}/videos", Meta.list_videos),
    ("GET", r"/([0-9]+)/comments", Meta.comments),
    ("POST", r"/([0-9]+)/comments", Meta.comment),
    ("GET", r"/([0-9_]+)", Meta.look),
]

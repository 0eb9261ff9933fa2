"""Answers as the REST API of WordPress does (``/wp-json/wp/v2``)."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from publishing.servers.http import Api, Asked, Reply

USER, PASSWORD = "editor", "abcd EFGH 1234 ijkl MNOP 6789"


def error(status: int, code: str, message: str = "Sorry.") -> Reply:
    return status, {}, {"code": code, "message": message, "data": {"status": status}}


@dataclass
class WordPress(Api):
    posts: dict[int, dict[str, Any]] = field(default_factory=dict)
    media: dict[int, dict[str, Any]] = field(default_factory=dict)
    made: int = 0
    #: How often a post went public.
    publications: int = 0

    @property
    def site(self) -> str:
        """The URL for connectors."""
        return self.url

    @property
    def published(self) -> list[dict[str, Any]]:
        return [post for post in self.posts.values() if post["status"] == "publish"]

    def real(self, asked: Asked) -> Reply:
        path = asked.path.removeprefix("/wp-json/wp/v2")
        if path == asked.path:
            return error(404, "rest_no_route", "No route was found matching the URL and request method.")
        good = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if asked.headers.get("authorization") != f"Basic {good}":
            return error(401, "incorrect_password", "The provided password is an invalid application password.")
        match = re.fullmatch(r"/(posts|media|users)(?:/([0-9]+|me))?", path)
        if match is None:
            return error(404, "rest_no_route", "No route was found matching the URL and request method.")
        kind, ident = match.groups()
        if kind == "users":
            return 200, {}, {"id": 1, "name": "Editor", "slug": USER, "capabilities": {"publish_posts": True}}
        things = self.posts if kind == "posts" else self.media
        if asked.method == "GET":
            return self._read(things, ident, asked.fields)
        if ident is None:
            return self._upload(asked) if kind == "media" else self._create(asked.fields)
        if int(ident) not in things:
            return error(404, "rest_post_invalid_id", "Invalid post ID.")
        return self._change(things[int(ident)], asked.fields)

    def _read(self, things: Mapping[int, dict[str, Any]], ident: str | None, fields: Mapping[str, Any]) -> Reply:
        if ident is not None:
            found = things.get(int(ident))
            return (200, {}, found) if found else error(404, "rest_post_invalid_id", "Invalid post ID.")
        status = str(fields.get("status") or ("publish" if things is self.posts else "inherit")).split(",")
        data = [
            one for one in things.values()
            if (not fields.get("slug") or one["slug"] in str(fields["slug"]).split(","))
            and ("any" in status or one["status"] in status)
        ]  # fmt: skip
        return 200, {"X-WP-Total": str(len(data)), "X-WP-TotalPages": "1"}, data

    def _upload(self, asked: Asked) -> Reply:
        name = re.search(r'filename="?([^";]+)"?', asked.headers.get("content-disposition", ""))
        if not name or not asked.raw:
            return error(400, "rest_upload_no_content_disposition", "No Content-Disposition supplied.")
        if not asked.headers.get("content-type", "").startswith(("image/", "video/")):
            return error(500, "rest_upload_unknown_error", "Sorry, you are not allowed to upload this file type.")
        self.made += 1
        slug = self._unique(self.media, re.sub(r"[^a-z0-9-]+", "-", name[1].rsplit(".", 1)[0].lower()))
        self.media[self.made] = {
            "id": self.made, "slug": slug, "status": "inherit", "mime_type": asked.headers["content-type"], "alt_text": "",
            "source_url": f"{self.url}/wp-content/uploads/{name[1]}", "size": len(asked.raw),
        }  # fmt: skip
        return 201, {}, self.media[self.made]

    def _create(self, fields: Mapping[str, Any]) -> Reply:
        if not (fields.get("title") or fields.get("content") or fields.get("excerpt")):
            return error(400, "empty_content", "Content, title, and excerpt are empty.")
        self.made += 1
        post = {
            "id": self.made, "slug": self._unique(self.posts, str(fields.get("slug") or f"post-{self.made}")), "status": "draft",
            "link": f"{self.url}/?p={self.made}",
        }  # fmt: skip
        self.posts[self.made] = post
        return 201, {}, self._change(post, fields)[2]

    def _change(self, thing: dict[str, Any], fields: Mapping[str, Any]) -> Reply:
        status = fields.get("status", thing["status"])
        if status not in ("publish", "future", "draft", "pending", "private", "inherit"):
            return error(400, "rest_invalid_param", "Invalid parameter(s): status")
        if status == "publish" and thing["status"] != "publish":
            self.publications += 1
        for name in ("title", "content", "excerpt"):
            if name in fields:
                thing[name] = {"raw": fields[name], "rendered": fields[name]}
        thing |= {
            n: v
            for n, v in fields.items()
            if n in ("categories", "tags", "featured_media", "alt_text", "meta", "sticky", "format")
        }
        thing["status"] = status
        if status == "publish":
            thing["link"] = f"{self.url}/{thing['slug']}/"
        return 200, {}, thing

    def _unique(self, things: Mapping[int, dict[str, Any]], slug: str) -> str:
        taken, number, found = {one["slug"] for one in things.values()}, 2, slug
        while found in taken:
            found, number = f"{slug}-{number}", number + 1
        return found

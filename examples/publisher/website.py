"""A site on this machine that answers as WordPress's REST API does, as far as a publisher asks, and has its moods.

``with Site() as site: site.url``; ``site.published`` is what readers see, in the order in which it came.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

USER, PASSWORD = "orchard", "an application password"


class Site:
    """Posts and media by id. ``moods``: title → what happens when that post is to become public, request by request."""

    def __init__(self, moods: dict[str, list[str]] | None = None) -> None:
        self.posts: dict[int, dict[str, Any]] = {}
        self.media: dict[int, dict[str, Any]] = {}
        self.published: list[str] = []
        self.asked: Counter[str] = Counter()
        self.moods = moods or {}
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.site = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Site:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()

    # ------------------------------------------------------------------ what is asked

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes, headers: Any
    ) -> tuple[int, Any, str]:
        """(status, body, what happens to the answer) of a request."""
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if headers.get("Authorization") != f"Basic {login}":
            return 401, {"code": "incorrect_password", "message": "Who are you?"}, ""
        found = re.fullmatch(r"/wp-json/wp/v2/(posts|media|users/me)(?:/(\d+))?", path)
        if found is None:
            return 404, {"code": "rest_no_route", "message": "No such route."}, ""
        kind, ident = found[1], int(found[2] or 0)
        if kind == "users/me":
            return 200, {"name": "The orchard", "capabilities": {"publish_posts": True}}, ""
        things = self.posts if kind == "posts" else self.media
        if ident and ident not in things:
            return 404, {"code": "rest_post_invalid_id", "message": "No such thing."}, ""
        if method == "GET":
            slug = query.get("slug", [""])[0]
            return 200, things[ident] if ident else [one for one in things.values() if one["slug"] == slug], ""
        self.asked[kind] += 1
        if kind == "media":
            return self.upload(ident, body, headers)
        given = json.loads(body)
        return self.change(ident, given) if ident else self.draft(given)

    def upload(self, ident: int, body: bytes, headers: Any) -> tuple[int, Any, str]:
        if ident:
            self.media[ident] |= json.loads(body)
            return 200, self.media[ident], ""
        name = re.search(r'filename="([^"]+)"', headers.get("Content-Disposition", ""))
        file = name[1] if name else "file"
        ident = len(self.media) + 1
        self.media[ident] = {
            "id": ident,
            "slug": file.rpartition(".")[0],
            "source_url": f"{self.url}/media/{file}",
            "bytes": len(body),
        }
        return 201, self.media[ident], ""

    def draft(self, given: dict[str, Any]) -> tuple[int, Any, str]:
        ident = len(self.posts) + 1
        self.posts[ident] = given | {"id": ident, "link": f"{self.url}/{given['slug']}/"}
        return 201, self.posts[ident], ""

    def change(self, ident: int, given: dict[str, Any]) -> tuple[int, Any, str]:
        post = self.posts[ident]
        moods = self.moods.get(post["title"])
        mood = moods.pop(0) if moods else ""
        if mood == "away":
            return 503, {"code": "maintenance", "message": "Back soon."}, ""
        if mood == "wait":
            return 429, {"code": "too_many_requests", "message": "Not so fast."}, "wait"
        if post["status"] != "publish" and given.get("status") == "publish":
            self.published.append(post["title"])
        post |= given
        return 200, post, mood


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_all(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with site.lock:
            status, said, mood = site.answer(self.command, parts.path, parse_qs(parts.query), body, self.headers)
        self.close_connection = True
        if mood == "lost":  # the connection is dropped where the answer should come
            return
        content = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        if mood == "wait":
            self.send_header("Retry-After", "1800")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = handle_all

    def log_message(self, *_: Any) -> None:
        pass

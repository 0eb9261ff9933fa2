"""Every connector keeps to the contract of connectors: the suite that users run against their own (B055, B068, T002-i)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duly.kernel.verdict import Kind
from duly.publishing.connectors.facebook import FacebookConnector
from duly.publishing.connectors.folder import FolderConnector
from duly.publishing.connectors.instagram import InstagramConnector
from duly.publishing.connectors.newsletter import NewsletterConnector
from duly.publishing.connectors.webhook import WebhookConnector
from duly.publishing.connectors.wordpress import WordPressConnector
from duly.publishing.post import Asset, Post
from duly.testing.connectors import ConnectorContract
from publishing.servers import IG, LOST, PAGE, PASSWORD, TOKEN, USER, Api, Hook, Meta, WordPress
from publishing.servers.meta import error
from publishing.servers.wordpress import error as wp_error

NOWHERE = "http://127.0.0.1:9"


class OnServer(ConnectorContract):
    """``publishes``: the request that publishes, as the server sees it."""

    publishes = ""
    server: Any

    def requests(self) -> int:
        assert isinstance(self.server, Api)
        return len(self.server.asked)

    def lose_answer(self) -> None:
        self.server.script(self.publishes, LOST)


class TestInstagram(OnServer):
    publishes = "POST .*/media_publish"
    secrets = (TOKEN,)

    @pytest.fixture(autouse=True)
    def _serve(self, meta: Meta) -> None:
        self.server = meta

    def connector(self) -> InstagramConnector:
        return InstagramConnector(account=IG, token=TOKEN, url=self.server.graph, poll_interval=0.001)

    def unreachable(self) -> InstagramConnector:
        return InstagramConnector(account=IG, token=TOKEN, url=NOWHERE)

    def post(self) -> Post:
        return Post("ig", "Sale", assets=(Asset(url="https://example.org/a.jpg"),))

    def published(self) -> int:
        return len(self.server.media)

    def refuse(self, kind: Kind) -> None:
        answers = {
            Kind.TRANSIENT: error(9007, 2207027), Kind.THROTTLED: error(4), Kind.PERMANENT: error(100), Kind.AUTH: error(190, 463),
            Kind.QUOTA: error(9, 2207042),
        }  # fmt: skip
        self.server.script(self.publishes, answers[kind])


class TestInstagramCarousel(TestInstagram):
    """Three containers, one after the other, the second of a video that takes a while."""

    def post(self) -> Post:
        video = Asset("video", url="https://example.org/b.mp4")
        return Post("ig", "Sale", assets=(Asset(url="https://example.org/a.jpg"), video))


class TestFolder(ConnectorContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "site" / "posts"
        self.image = tmp_path / "a.png"
        self.image.write_bytes(b"png")

    def connector(self) -> FolderConnector:
        return FolderConnector(folder=self.folder, url="https://example.org/posts")

    def unreachable(self) -> FolderConnector:
        return FolderConnector(folder=self.image / "below-a-file")

    def post(self) -> Post:
        return Post("site", "Hello\n\nworld", title="Sale: 20 %", assets=(Asset(path=str(self.image), alt="A shop"),))

    def published(self) -> int:
        return len([f for f in self.folder.glob("*/index.md") if not f.parent.name.startswith(".")])


class TestFacebook(OnServer):
    publishes = "POST .*/feed"
    secrets = (TOKEN,)

    @pytest.fixture(autouse=True)
    def _serve(self, meta: Meta) -> None:
        self.server = meta

    def connector(self) -> FacebookConnector:
        return FacebookConnector(page=PAGE, token=TOKEN, url=self.server.graph, settle=0)

    def unreachable(self) -> FacebookConnector:
        return FacebookConnector(page=PAGE, token=TOKEN, url=NOWHERE)

    def post(self) -> Post:
        return Post("fb", "Sale today", link="https://example.org")

    def published(self) -> int:
        return len(self.server.posts) + len(self.server.videos)

    def refuse(self, kind: Kind) -> None:
        answers = {
            Kind.TRANSIENT: (503, {"Retry-After": "5"}, None), Kind.THROTTLED: error(32), Kind.PERMANENT: error(100), Kind.AUTH: error(190, 460),
        }  # fmt: skip
        if kind not in answers:
            pytest.skip("pages have no quota")
        if kind is Kind.TRANSIENT:  # of what comes before it is published: afterwards nobody would know
            pytest.skip("a text on a page has no step before it")
        self.server.script(self.publishes, answers[kind])


class TestFacebookPhoto(TestFacebook):
    publishes = "POST .*/photos"

    @pytest.fixture(autouse=True)
    def _image(self, tmp_path: Path) -> None:
        self.image = tmp_path / "a.jpg"
        self.image.write_bytes(b"jpeg\r\n--")

    def post(self) -> Post:
        return Post("fb", "Sale today", link="https://example.org", assets=(Asset(path=str(self.image), alt="A shop"),))


class TestFacebookPhotos(TestFacebookPhoto):
    """Two photos that nobody sees, and a post that shows them."""

    publishes = "POST .*/feed"

    def post(self) -> Post:
        return Post("fb", "Sale today", assets=(Asset(path=str(self.image)), Asset(url="https://example.org/b.jpg")))

    def refuse(self, kind: Kind) -> None:
        if kind is Kind.TRANSIENT:
            self.server.script("POST .*/photos", error(2, status=500))
        else:
            super().refuse(kind)


class TestFacebookVideo(TestFacebook):
    publishes = "POST .*/videos"

    def post(self) -> Post:
        return Post("fb", "Sale today", title="Sale", assets=(Asset("video", url="https://example.org/b.mp4"),))


class TestWordPress(OnServer):
    publishes = r"POST .*/posts/\d+"
    secrets = (PASSWORD, "ZWRpdG9y")

    @pytest.fixture(autouse=True)
    def _serve(self, wordpress: WordPress, tmp_path: Path) -> None:
        self.server = wordpress
        self.image = tmp_path / "Été.jpg"
        self.image.write_bytes(b"jpeg")

    def connector(self) -> WordPressConnector:
        return WordPressConnector(url=self.server.site, user=USER, password=PASSWORD)

    def unreachable(self) -> WordPressConnector:
        return WordPressConnector(url=NOWHERE, user=USER, password=PASSWORD)

    def post(self) -> Post:
        return Post("blog", "Hello", title="Sale", assets=(Asset(path=str(self.image), alt="Summer"),))

    def published(self) -> int:
        return len(self.server.published)

    def refuse(self, kind: Kind) -> None:
        answers = {
            Kind.TRANSIENT: ("POST .*/media", (502, {}, b"<html>")), Kind.THROTTLED: (self.publishes, (429, {"Retry-After": "9"}, None)),
            Kind.PERMANENT: ("POST .*/posts$", wp_error(400, "rest_invalid_param")),
            Kind.AUTH: (self.publishes, wp_error(403, "rest_cannot_edit")),
        }  # fmt: skip
        if kind not in answers:
            pytest.skip("WordPress has no quota")
        self.server.script(*answers[kind])


class TestWebhook(OnServer):
    publishes = "POST"
    secrets = ("keep-this-to-yourself", "bearer-token")
    idempotent = False

    @pytest.fixture(autouse=True)
    def _serve(self, hook: Hook) -> None:
        self.server = hook
        hook.remembers = self.idempotent

    def connector(self) -> WebhookConnector:
        return WebhookConnector(
            url=f"{self.server.url}/posts", secret="keep-this-to-yourself", token="bearer-token", idempotent=self.idempotent
        )  # fmt: skip

    def unreachable(self) -> WebhookConnector:
        return WebhookConnector(url=NOWHERE)

    def post(self) -> Post:
        return Post("hook", "Hello", options={"anything": [1, 2]})

    def published(self) -> int:
        return len(self.server.taken)

    def refuse(self, kind: Kind) -> None:
        answers = {Kind.TRANSIENT: 503, Kind.THROTTLED: 429, Kind.PERMANENT: 422, Kind.AUTH: 401}
        if kind not in answers:
            pytest.skip("an endpoint has no quota")
        self.server.script("POST", (answers[kind], {"Retry-After": "7"}, None))


class TestIdempotentWebhook(TestWebhook):
    idempotent = repeatable = True


class TestNewsletter(ConnectorContract):
    repeatable = True

    @pytest.fixture(autouse=True)
    def _jobs(self) -> None:
        self.jobs: dict[str, Any] = {}

    def connector(self) -> NewsletterConnector:
        def enqueue(name: str, input: Any, *, key: str, tenant: str) -> None:
            assert name == "EMAIL_SEND"
            self.jobs.setdefault(key, input)

        return NewsletterConnector(to="news@example.org", enqueue=enqueue)

    def post(self) -> Post:
        return Post("news", "Hello")

    def published(self) -> int:
        return len(self.jobs)

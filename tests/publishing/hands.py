"""What the tests hold in their hands: a world in which posts are published, and looks at jobs, the trail and events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from duly import Duly
from duly.kernel.events import Event
from duly.kernel.verdict import Kind, Refusal, Verdict, refusal
from duly.publishing import Comment, Limits, Notebook, Post, Publication, Published, Publishing, Rules
from duly.testing import ManualClock, drain

POST = {"caption": "Plums today"}
WITH_COMMENT = {**POST, "ig_first_comment": "First!  Ciao"}


class World:
    """The other side: what is published there, and what it answers.

    ``script``: what becomes of the next publishes, one after the other: "ok", "lost" (published, and the answer is lost), "gone" (nothing was
    published, and the answer is lost), "id" (published, without its id), or a Verdict. Then "ok" for ever. ``comment_script``: the same for
    comments.
    """

    def __init__(self) -> None:
        self.posts: list[str] = []
        self.keys: dict[str, str] = {}
        self.comments: list[tuple[str, str, str]] = []
        self.script: list[Any] = []
        self.comment_script: list[Any] = []
        self.calls: list[str] = []
        #: What reconcile says instead of the truth.
        self.blind: Verdict | None = None
        #: Since when posts are looked through, where they are known by nothing but their looks.
        self.since: datetime | None = None
        self.limits: Limits | None = None
        self.username = "orchard"
        self.edit = lambda text: text

    def connector(self, comments: bool = True) -> Fake:
        return FakeWithComments(self) if comments else Fake(self)

    def publish(self, key: str, post: Post) -> str:
        self.posts.append(post.caption)
        self.keys[key] = f"m{len(self.posts)}"
        return self.keys[key]


class Fake:
    name = "fake"
    rules = Rules()

    def __init__(self, world: World) -> None:
        self.world = world

    async def publish(self, post: Post, notebook: Notebook) -> Published:
        world, key = self.world, notebook.facts["key"]
        world.calls.append("publish")
        answer = world.script.pop(0) if world.script else "ok"
        if isinstance(answer, Verdict) and answer.kind is not Kind.UNKNOWN:
            raise Refusal(answer)
        await notebook.note(container=f"c-{key[:8]}")
        await notebook.ahead()
        if answer == "gone" or isinstance(answer, Verdict):
            raise answer_lost()
        if isinstance(answer, Exception):
            raise answer
        ident = world.publish(key, post)
        if answer == "lost":
            raise answer_lost()
        return Published(None if answer == "id" else ident, f"https://example.org/{ident}")

    async def reconcile(self, post: Post, notebook: Notebook) -> Published | None:
        self.world.calls.append("reconcile")
        assert notebook.facts["ahead_at"] and notebook.facts["container"]
        if self.world.blind is not None:
            raise Refusal(self.world.blind)
        found = self.world.keys.get(notebook.facts["key"])
        return None if found is None else Published(found, by_looks=self.world.since)

    def preview(self, post: Post) -> Mapping[str, Any]:
        return {"channel": post.channel, "text": post.caption, "first_comment": post.first_comment, "extra": {}}

    async def limits(self) -> Limits | None:
        self.world.calls.append("limits")
        return self.world.limits

    async def check(self) -> str:
        return "there"


class FakeWithComments(Fake):
    async def comments(self, remote_id: str) -> AsyncIterator[Comment]:
        self.world.calls.append("comments")
        for n, (media, said, who) in enumerate(reversed(self.world.comments)):
            if media == remote_id:
                yield Comment(str(n), said, who)

    async def comment(self, remote_id: str, text: str) -> str:
        self.world.calls.append("comment")
        answer = self.world.comment_script.pop(0) if self.world.comment_script else "ok"
        if isinstance(answer, Verdict):
            raise Refusal(answer)
        if answer != "gone":
            self.world.comments.append((remote_id, self.world.edit(text), self.world.username))
        if answer in ("lost", "gone"):
            raise answer_lost()
        return f"k{len(self.world.comments)}"

    async def account(self) -> str:
        return self.world.username


def answer_lost() -> Refusal:
    return refusal(Kind.UNKNOWN, "the connection was cut before an answer came")


def verdict(kind: Kind, reason: str = "", **more: Any) -> Verdict:
    return Verdict(kind, reason or f"it is {kind}", **more)


def app_of(room: Publishing) -> Duly:
    return room._app  # type: ignore[return-value]


def put(room: Publishing, payload: Mapping[str, Any] = POST, channel: str = "ig", **options: Any) -> int:
    return room.enqueue(channel, payload, **options).job.id


def go(room: Publishing, ident: int) -> Publication:
    """Run what is ready, and look at one."""
    drain(app_of(room))
    return room.get(ident)


def later(room: Publishing, clock: ManualClock, ident: int, by: float | timedelta = 4000) -> Publication:
    """The same after a while."""
    clock.advance(by)
    return go(room, ident)


def actions(room: Publishing, ident: object) -> list[str]:
    query = text("SELECT action FROM audit_log WHERE entity_id = :id ORDER BY id")
    return list(app_of(room).db.read(lambda c: c.execute(query, {"id": str(ident)}).scalars()))


def sql(room: Publishing, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return app_of(room).db.read(lambda c: [tuple(r) for r in c.execute(text(statement), parameters)])


class Ear:
    """Hears the events of a room's application."""

    def __init__(self, room: Publishing) -> None:
        self.events: list[Event] = []
        app_of(room).events.listen(self.events.append)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [dict(e.facts) for e in self.events if e.name == name]

"""Access that ends: it is known before, the channel pauses, and goes on by itself once the secret was replaced (C047, F4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duly.kernel.verdict import Kind, refusal
from duly.publishing import Publishing
from duly.testing import ManualClock, drain
from publishing.hands import POST, Ear, World, app_of, put, verdict


class Dated:
    """The world's connector with a token that ends."""

    def __init__(self, inner: Any, at: datetime | None) -> None:
        self._inner, self.at, self.good = inner, at, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def ends(self) -> datetime | None:
        return self.at

    async def check(self) -> str:
        if not self.good:
            raise refusal(Kind.AUTH, "the token has expired")
        return "there"


def raised(room: Publishing) -> dict[str, str]:
    app = app_of(room)
    app.engine.clock.advance(60)  # type: ignore[attr-defined]  # the test moves it
    app.alerts.judge("test")
    return {one.rule: one.detail for one in app.alerts.find(state="raised")}


@pytest.mark.parametrize(("days", "told"), [(None, False), (70, False), (6, True), (-1, True)])
def test_the_end_of_a_token_is_told_a_week_before(
    room: Publishing, world: World, clock: ManualClock, days: int | None, told: bool
) -> None:
    at = None if days is None else clock.now() + timedelta(days=days)
    room.channel("ig", Dated(world.connector(), at))
    put(room)
    drain(app_of(room))
    room.keep()
    assert ("publish_token_ending" in raised(room)) is told
    room.channel("ig", Dated(world.connector(), clock.now() + timedelta(days=60)))
    clock.advance(timedelta(hours=13))
    room.keep()
    assert "publish_token_ending" not in raised(room)


def test_a_channel_goes_on_in_order_once_its_secret_was_replaced(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    ear, connector = Ear(room), Dated(world.connector(), None)
    room.channel("ig", connector)
    connector.good, world.script = False, [verdict(Kind.AUTH, "the token has expired")]
    idents = [put(room, {"caption": str(n)}) for n in range(3)]
    drain(app_of(room))
    assert app_of(room).queues.get("ig").paused_by == "publishing"
    clock.advance(120)
    room.keep()
    assert app_of(room).queues.get("ig").paused_at is not None, "it is still refused"
    connector.good = True
    clock.advance(120)
    room.keep()
    assert ear.named("publish_resumed") == [{"channel": "ig"}]
    for _ in range(3):
        clock.advance(60)
        drain(app_of(room))
    assert (world.posts, [room.get(i).attempts for i in idents]) == (["0", "1", "2"], [1, 1, 1])
    app_of(room).queues.pause("ig", "lunch", actor="ada")
    clock.advance(timedelta(days=1))
    room.keep()
    assert app_of(room).queues.get("ig").paused_by == "ada", "what a person paused stays paused"


def test_a_secret_in_a_file_or_the_environment_is_read_again(
    make: Callable[..., Publishing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("EAAold\n")
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/old")
    file = tmp_path / "channels.yaml"
    file.write_text(
        'ig: {connector: instagram, options: {account: "1", token: "${file:%s}"}}\n' % (tmp_path / "token")
        + 'hook: {connector: webhook, options: {url: "${HOOK}"}}\n'
    )
    room = make(publish_channels=str(file))
    before = room.channels["ig"].connector
    assert before._graph._token == "EAAold"  # type: ignore[attr-defined]
    (tmp_path / "token").write_text("EAAnew")
    monkeypatch.setenv("HOOK", "http://127.0.0.1:1/new")
    room._channels.reload()
    assert room.channels["ig"].connector._graph._token == "EAAnew"  # type: ignore[attr-defined]
    assert room.channels["hook"].connector._url.endswith("new")  # type: ignore[attr-defined]
    file.write_text("ig: 7")
    room._channels.reload()
    assert set(room.channels) == {"ig", "hook"}, "what cannot be read stays as it was"


def test_meta_says_when_a_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from duly.publishing.connectors.graph_api import GraphApi, MetaRefusal

    answers: list[Any] = []

    async def get(self: GraphApi, path: str, **query: object) -> Any:
        assert (path, query) == ("debug_token", {"input_token": "EAAx"})
        return answers.pop(0)

    monkeypatch.setattr(GraphApi, "get", get)
    graph = GraphApi(
        lambda: "EAAx", "https://graph.facebook.com/v24.0", 20, ManualClock(datetime(2026, 6, 1, tzinfo=UTC))
    )
    at = int(datetime(2026, 8, 1, tzinfo=UTC).timestamp())
    for data, ends in (
        ({"expires_at": at, "data_access_expires_at": at + 9}, at), ({"expires_at": 0, "data_access_expires_at": at}, at), ({"expires_at": 0}, None), ({}, None),
    ):  # fmt: skip
        answers.append({"data": data})
        found = asyncio.run(graph.ends())
        assert (found and int(found.timestamp())) == ends
    answers.append({"data": {"is_valid": False}})
    with pytest.raises(MetaRefusal):
        asyncio.run(graph.ends())


@pytest.mark.parametrize(
    ("connector", "options", "payload", "field"),
    [
        ("instagram", {"account": "1", "token": "EAAx"}, {"options": {"media_type": "Story"}}, "options.media_type"),
        ("instagram", {"account": "1", "token": "EAAx"}, {"options": {"media_typ": "REELS"}}, "options.media_typ"),
        ("instagram", {"account": "1", "token": "EAAx"}, {"options": {"media_type": "REELS"}}, "assets"),
        ("facebook", {"page": "1", "token": "EAAx"}, {"assets": [{"url": "https://e.org/a.jpg"}, {"kind": "video", "url": "https://e.org/a.mp4"}]}, "assets"),
        ("wordpress", {"url": "https://e.org", "user": "u", "password": "p"}, {"options": {"status": "published"}}, "options.status"),
        ("newsletter", {"to": "a@e.org"}, {"options": {"templat": "x"}}, "options.templat"),
    ],
)  # fmt: skip
def test_what_a_connector_refuses_by_itself_is_said_when_the_post_is_planned(
    make: Callable[..., Publishing], connector: str, options: Any, payload: Any, field: str
) -> None:  # F
    from duly.publishing.preflight import PreflightFailed

    room = make()
    room.channel("c", connector, **options)
    good = {**POST, "assets": [{"url": "https://example.org/a.jpg", "alt": "a"}]}
    room.enqueue("c", good)
    with pytest.raises(PreflightFailed) as caught:
        room.enqueue("c", good | payload)
    [(_, report)] = caught.value.reports
    assert [one.field for one in report.errors] == [field]

"""What a run has noted and the other side has no more; answers that come while a run asks; holds that end early."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duly.publishing import Publishing
from duly.testing import ManualClock, drain
from publishing.connectors.test_through_the_engine import IMAGE, POST, insta, until_it_ends
from publishing.hands import Ear, app_of, put
from publishing.servers import IG, LOST, PASSWORD, TOKEN, USER, First, Meta, Then, WordPress
from publishing.servers.http import Asked, Reply
from publishing.servers.meta import error
from publishing.servers.wordpress import error as wordpress_error
from publishing.test_unknown import _cancelled_when

__all__ = ["insta"]

TWO = {"caption": "Both", "assets": [IMAGE, {"kind": "image", "url": "https://example.org/b.jpg"}]}


def test_items_of_a_carousel_that_meta_has_forgotten_are_made_anew(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/media$", Then(lambda _: None), Then(lambda _: None), error(1609005))
    ident = put(insta, TWO)
    drain(app_of(insta))
    assert (insta.get(ident).status, len(meta.containers)) == ("failed", 2)
    meta.containers.clear()
    clock.advance(timedelta(days=3))
    insta.replay(ident)
    done = until_it_ends(insta, clock, ident)
    assert (done.status, done.attempts, len(meta.media)) == ("completed", 1, 1)


def test_items_of_a_carousel_that_are_there_are_not_made_twice(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/media$", Then(lambda _: None), Then(lambda _: None), error(1609005))
    ident = put(insta, TWO)
    drain(app_of(insta))
    insta.replay(ident)
    assert until_it_ends(insta, clock, ident).status == "completed"
    assert len(meta.containers) == 3


def test_photos_that_facebook_has_forgotten_are_uploaded_anew(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/feed", error(1609005))
    ident = put(insta, TWO, "fb")
    drain(app_of(insta))
    assert (insta.get(ident).status, len(meta.photos)) == ("failed", 2)
    meta.photos.clear()
    clock.advance(timedelta(days=3))
    insta.replay(ident)
    done = until_it_ends(insta, clock, ident)
    assert (done.status, done.attempts, len(meta.posts)) == ("completed", 2, 1)


def test_a_parameter_that_is_wrong_for_good_uploads_photos_once_more_and_then_fails(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/feed", error(1609005), *[error(100)] * 9)
    ident = put(insta, TWO, "fb")
    drain(app_of(insta))
    insta.replay(ident)
    done = until_it_ends(insta, clock, ident)
    assert (done.status, done.attempts, meta.count("POST .*/photos$")) == ("failed", 2, 4)


@pytest.mark.parametrize("gone", [1, 2])
def test_media_that_somebody_removed_from_the_library_is_uploaded_anew(
    make: Any, wordpress: WordPress, clock: ManualClock, tmp_path: Path, gone: int
) -> None:
    room = make()
    room.channel("wp", "wordpress", url=wordpress.site, user=USER, password=PASSWORD)
    assets = []
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"\xff\xd8\xff\xe0" + name.encode())
        assets.append({"kind": "image", "path": str(tmp_path / name)})

    def featured(asked: Asked) -> Reply | None:
        ident = asked.fields.get("featured_media")
        there = not ident or ident in wordpress.media
        return None if there else wordpress_error(400, "rest_invalid_featured_media", "Invalid featured media ID.")

    wordpress.script(r"POST .*/posts$", wordpress_error(400, "rest_invalid_param"), *[First(featured)] * 9)
    ident = put(room, {"caption": "x", "title": "T", "assets": assets}, "wp")
    drain(app_of(room))
    assert room.get(ident).status == "failed"
    del wordpress.media[sorted(wordpress.media)[gone - 1]]
    room.replay(ident)
    assert until_it_ends(room, clock, ident).status == "completed"
    (post,) = wordpress.published
    assert (len(wordpress.media), wordpress.count("POST .*/media$")) == (2, 3)
    assert all(str(one["source_url"]) in post["content"]["raw"] for one in wordpress.media.values())


def test_a_container_that_is_published_while_a_run_waits_for_it_is_a_success(
    make: Any, meta: Meta, clock: ManualClock
) -> None:
    meta.now = clock.now
    room = make()
    room.channel("ig", "instagram", account=IG, token=TOKEN, url=meta.graph, poll_interval=0.001, max_attempts=2)
    late, looks = list[Asked](), [0]

    def on_its_way(asked: Asked) -> Reply:
        late.append(asked)
        return 504, {}, None

    def look(asked: Asked) -> None:
        looks[0] += 1
        if looks[0] == 2:
            meta.real(late[0])  # after this answer was made

    meta.script("POST .*/media_publish", First(on_its_way))
    ident = put(room, POST)
    drain(app_of(room))
    clock.advance(timedelta(hours=1))
    meta.script("GET .*/180000000000001$", *[Then(look)] * 20)
    drain(app_of(room))
    assert (room.get(ident).status, room.get(ident).attempts, len(meta.media)) == ("completed", 2, 1)


@pytest.mark.parametrize(("channel", "body"), [("fb", {"caption": "Sale"}), ("ig", POST)])
def test_an_id_that_was_answered_is_on_record_before_the_link_is_asked_for(
    insta: Publishing, meta: Meta, clock: ManualClock, channel: str, body: dict[str, Any]
) -> None:
    # T002-i: whatever happens while the link is asked for
    seen = list[Any]()
    ident = put(insta, body, channel)

    def look(_: Asked) -> None:
        if meta.media or meta.posts:
            seen.append((insta.get(ident).progress, insta.get(ident).remote_id))

    meta.script(r"GET .*/(180[0-9]+|1020300000001_[0-9]+)$", *[First(look)] * 9)
    drain(app_of(insta))
    there = (meta.posts or meta.media)[0].id
    assert seen == [("published", there)]
    assert there in (insta.get(ident).url or "")


def test_a_link_that_nobody_tells_takes_nothing_away(insta: Publishing, meta: Meta, clock: ManualClock) -> None:
    meta.script(r"GET .*/1020300000001_[0-9]+$", (500, {}, None))
    ident = put(insta, {"caption": "Sale"}, "fb")
    drain(app_of(insta))
    assert (insta.get(ident).status, insta.get(ident).url) == ("completed", None)


def test_who_is_cancelled_while_it_asks_for_the_link_ends_as_completed(insta: Publishing, meta: Meta) -> None:
    # T002-h
    asked, connector = asyncio.Event(), insta.channels["ig"].connector

    async def link(remote_id: str) -> str | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    connector.link = link  # type: ignore[attr-defined]
    ident = put(insta, POST)
    _cancelled_when(insta, ident, asked)
    insta.keep()
    seen = insta.get(ident)
    assert (seen.status, seen.remote_id, len(meta.media)) == ("completed", meta.media[0].id, 1)


def test_a_release_brings_back_the_post_that_was_throttled_too(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    meta.script("POST .*/feed", error(4, headers={"Retry-After": "7200"}))
    ids = [put(insta, {"caption": word}, "fb") for word in ("one", "two")]
    drain(app_of(insta))
    clock.advance(5)
    drain(app_of(insta))
    assert [insta.get(i).status for i in ids] == ["pending", "pending"]
    app_of(insta).queues.release("fb")
    drain(app_of(insta))
    assert [insta.get(i).status for i in ids] == ["completed", "completed"]


def test_a_comment_of_which_nobody_knows_and_that_cannot_be_looked_for_is_told_of_as_unknown(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    # R002-19, T002-c: that the comments cannot be read is no answer
    ear = Ear(insta)
    meta.script("POST .*/comments", LOST)
    meta.script("GET .*/comments", Then(lambda _: None), *[(500, {}, None)] * 40)
    ident = put(insta, {**POST, "ig_first_comment": "First!"})
    done = until_it_ends(insta, clock, ident)
    child = until_it_ends(insta, clock, done.children[0])
    assert (child.status, child.unknown, child.attempts) == ("failed", True, 5)
    assert [e["job"] for e in ear.named("publish_unknown")] == [child.id]
    meta.scripts.clear()
    app_of(insta).queues.release("ig")
    insta.replay(child.id)
    assert until_it_ends(insta, clock, child.id).status == "completed"
    assert [one["text"] for one in meta.media[0].comments] == ["First!"]


def test_a_comment_whose_answer_is_lost_in_its_last_run_is_looked_for_in_the_same_run(
    insta: Publishing, meta: Meta, clock: ManualClock
) -> None:
    insta.channel("ig", "instagram", account=IG, token=TOKEN, url=meta.graph, max_attempts=1)
    meta.script("POST .*/comments", LOST)
    done = until_it_ends(insta, clock, put(insta, {**POST, "ig_first_comment": "First!"}))
    child = until_it_ends(insta, clock, done.children[0])
    assert (child.status, child.attempts, len(meta.media[0].comments)) == ("completed", 1, 1)

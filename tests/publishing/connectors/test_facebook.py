"""A Facebook page, where only the page itself can be asked whether a post is there (PROVIDERS section 2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duly.kernel.verdict import Kind
from duly.publishing.connectors.facebook import FacebookConnector
from duly.publishing.post import Asset, Post, Published
from duly.testing import ManualClock
from duly.testing.connectors import MemoryNotebook
from publishing.connectors.hands import refused, run
from publishing.servers import GONE, LOST, PAGE, TOKEN, Meta, Then
from publishing.servers.meta import error

NOW = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)
TEXT = Post("fb", "Sale  today\n\nCome  in", link="https://example.org")
PHOTO = Asset(url="https://example.org/a.jpg", alt="A shop")


@pytest.fixture
def clock(meta: Meta) -> ManualClock:
    clock = ManualClock(NOW)
    meta.now = clock.now
    return clock


@pytest.fixture
def page(meta: Meta, clock: ManualClock) -> FacebookConnector:
    return FacebookConnector(page=PAGE, token=TOKEN, url=meta.graph, clock=clock)


def ahead(clock: ManualClock, **facts: Any) -> MemoryNotebook:
    """What a run leaves that had no answer."""
    return MemoryNotebook(facts={"ahead_at": clock.now().isoformat(), **facts}, clock=clock)


def test_a_text_and_its_link_go_to_the_feed(page: FacebookConnector, meta: Meta) -> None:
    answer = run(page.publish(TEXT, MemoryNotebook()))
    assert answer == Published(meta.posts[0].id)
    assert run(page.link(meta.posts[0].id)) == f"https://www.facebook.com/{meta.posts[0].id}"
    assert meta.posts[0].fields == {"message": "Sale  today\n\nCome  in", "link": "https://example.org"}


def test_a_photo_goes_to_the_photos_and_its_link_into_the_text(page: FacebookConnector, meta: Meta) -> None:
    answer = run(page.publish(Post("fb", "Sale", link="https://example.org", assets=(PHOTO,)), MemoryNotebook()))
    assert meta.posts[0].fields == {
        "caption": "Sale\n\nhttps://example.org", "url": PHOTO.url, "alt_text_custom": "A shop"
    }  # fmt: skip
    assert answer.remote_id == meta.posts[0].id


def test_a_file_is_uploaded_as_it_is(page: FacebookConnector, meta: Meta, tmp_path: Path) -> None:
    file = tmp_path / "b.mp4"
    file.write_bytes(b"\r\n--video\x00")
    run(page.publish(Post("fb", "Sale", title="Été", assets=(Asset("video", path=str(file)),)), MemoryNotebook()))
    assert meta.videos[0].fields == {"description": "Sale", "title": "Été", "source": b"\r\n--video\x00"}


def test_several_photos_are_uploaded_unseen_and_each_once(page: FacebookConnector, meta: Meta) -> None:
    post = Post("fb", "Sale", assets=(PHOTO, PHOTO, PHOTO))
    notebook = MemoryNotebook()
    meta.script("POST .*/photos", Then(lambda _: None), error(2))
    assert refused(page.publish(post, notebook)).kind is Kind.TRANSIENT
    assert (meta.posts, notebook.aheads) == ([], 0)
    run(page.publish(post, notebook.later()))
    assert len(meta.photos) == 3
    assert [one["media_fbid"] for one in meta.posts[0].fields["attached_media"]] == list(meta.photos)


def test_a_lost_answer_is_found_by_its_text(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:
    notebook = MemoryNotebook(clock=clock)
    meta.script("POST .*/feed", LOST)
    assert refused(page.publish(TEXT, notebook)).kind is Kind.UNKNOWN
    clock.advance(3600)
    for _ in range(60):  # what came since, over several pages
        meta.feed({"message": "Something else"})
    found = run(page.reconcile(TEXT, notebook.later()))
    assert found == Published(meta.posts[0].id, f"https://www.facebook.com/{meta.posts[0].id}", by_looks=NOW)
    assert not any("access_token" in asked.fields for asked in meta.asked)


@pytest.mark.parametrize("paging", [{"cursors": {"before": "a", "after": "0"}}, {}])
def test_a_page_of_a_list_that_is_empty_is_not_its_last_one_while_another_is_named(
    page: FacebookConnector, meta: Meta, clock: ManualClock, paging: dict[str, Any]
) -> None:
    # B055: what may not be seen is left out of a page; taken for the end, the post would be published again
    notebook = MemoryNotebook(clock=clock)
    meta.script("POST .*/feed", LOST)
    assert refused(page.publish(TEXT, notebook)).kind is Kind.UNKNOWN
    clock.advance(3600)
    link = f"{meta.graph}/{PAGE}/posts?access_token={TOKEN}&after=0"
    meta.script("GET .*/posts", (200, {}, {"data": [], "paging": {**paging, "next": link}}))
    found = run(page.reconcile(TEXT, notebook.later()))
    assert found is not None
    assert found.remote_id == meta.posts[0].id
    assert not any("access_token" in asked.fields for asked in meta.asked)


@pytest.mark.parametrize("cursors", [["0", "0"], ["0", "1", "0"], [None]])
def test_pages_that_lead_nowhere_new_are_no_proof_that_the_post_is_not_there(
    page: FacebookConnector, meta: Meta, clock: ManualClock, cursors: list[str | None]
) -> None:
    notebook = ahead(clock)
    clock.advance(3600)
    for after in cursors:
        paging = {"cursors": {"after": after} if after else None, "next": "https://example.org/next"}
        meta.script("GET .*/posts", (200, {}, {"data": [], "paging": paging}))
    assert refused(page.reconcile(TEXT, notebook)).kind is Kind.TRANSIENT


def test_a_request_that_never_arrived_is_published_again_but_not_too_early(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    notebook = MemoryNotebook(clock=clock)
    meta.script("POST .*/feed", GONE)
    assert refused(page.publish(TEXT, notebook)).kind is Kind.UNKNOWN
    clock.advance(20)
    early = refused(page.reconcile(TEXT, notebook.later()))
    assert (early.kind, early.after) == (Kind.TRANSIENT, 40)
    clock.advance(40)
    assert run(page.reconcile(TEXT, notebook.later())) is None


@pytest.mark.parametrize("knows_since", [True, False])
def test_an_older_post_with_the_same_text_is_another_one(
    page: FacebookConnector, meta: Meta, clock: ManualClock, knows_since: bool
) -> None:
    meta.knows_since = knows_since
    meta.feed({"message": TEXT.caption})
    clock.advance(timedelta(days=7))
    notebook = ahead(clock)
    clock.advance(60)
    assert run(page.reconcile(TEXT, notebook)) is None


@pytest.mark.parametrize("knows_since", [True, False])
def test_a_post_with_the_same_text_from_right_before_is_not_taken_for_this_one(
    page: FacebookConnector, meta: Meta, clock: ManualClock, knows_since: bool
) -> None:
    # B055: nor for a proof that this one is not there, because clocks differ
    meta.knows_since = knows_since
    meta.feed({"message": TEXT.caption})
    clock.advance(30)
    notebook = ahead(clock)
    clock.advance(3600)
    assert refused(page.reconcile(TEXT, notebook)).kind is Kind.UNKNOWN


def test_of_two_posts_with_the_same_text_the_one_since_then_is_this_one(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    meta.feed({"message": TEXT.caption})
    clock.advance(6)
    notebook = ahead(clock)
    meta.feed({"message": TEXT.caption})
    clock.advance(3600)
    found = run(page.reconcile(TEXT, notebook))
    assert found is not None
    assert found.remote_id == meta.posts[1].id


def test_a_clock_that_is_a_little_ahead_of_facebooks_hides_nothing(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    meta.feed({"message": TEXT.caption})
    clock.advance(5)
    notebook = ahead(clock)
    found = run(page.reconcile(TEXT, notebook))
    assert found is not None
    assert found.remote_id == meta.posts[0].id


def test_a_request_that_arrives_after_it_was_given_up_is_found_by_the_runs_after_it(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    notebook = MemoryNotebook(clock=clock)
    meta.script("POST .*/feed", GONE, GONE)
    assert refused(page.publish(TEXT, notebook)).kind is Kind.UNKNOWN
    clock.advance(3600)
    notebook = notebook.later()
    assert run(page.reconcile(TEXT, notebook)) is None
    facts = {name: value for name, value in notebook.facts.items() if name != "ahead_at"}  # as the engine leaves it
    meta.feed({"message": TEXT.caption})  # the first, late
    clock.advance(120)
    notebook = MemoryNotebook(facts=facts, clock=clock)
    assert refused(page.publish(TEXT, notebook)).kind is Kind.UNKNOWN
    clock.advance(3600)
    found = run(page.reconcile(TEXT, notebook.later()))
    assert found is not None
    assert found.remote_id == meta.posts[0].id


def test_a_page_with_too_many_posts_is_not_read_to_its_end(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    notebook = ahead(clock)
    for _ in range(501):
        meta.feed({"message": "Something else"})
    assert refused(page.reconcile(TEXT, notebook)).kind is Kind.UNKNOWN


def test_two_posts_with_the_same_text_cannot_be_told_apart(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    notebook = ahead(clock)
    meta.feed({"message": TEXT.caption})
    meta.feed({"message": TEXT.caption})
    assert refused(page.reconcile(TEXT, notebook)).kind is Kind.UNKNOWN


def test_a_post_without_a_text_is_certainly_not_there_only_when_nothing_is(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    bare = Post("fb", assets=(PHOTO,))
    notebook = ahead(clock)
    clock.advance(60)
    assert run(page.reconcile(bare, notebook)) is None
    meta.feed({"message": "Something else"})
    assert refused(page.reconcile(bare, notebook)).kind is Kind.UNKNOWN


def test_a_video_is_looked_for_among_the_videos(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:
    video = Post("fb", "Sale", assets=(Asset("video", url="https://example.org/b.mp4"),))
    notebook = MemoryNotebook(clock=clock)
    meta.script("POST .*/videos", LOST)
    assert refused(page.publish(video, notebook)).kind is Kind.UNKNOWN
    found = run(page.reconcile(video, notebook.later()))
    assert found is not None
    assert found.remote_id == meta.videos[0].id


def test_a_duplicate_of_our_own_is_a_success_and_one_of_others_is_refused_for_good(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    # 506: probably published already
    meta.refuses_duplicates = True
    meta.feed({"message": TEXT.caption})
    clock.advance(timedelta(days=1))
    verdict = refused(page.publish(TEXT, MemoryNotebook(clock=clock)))
    assert (verdict.kind, "probably" in verdict.reason) == (Kind.PERMANENT, True)
    meta.posts.clear()
    notebook = ahead(clock)
    meta.feed({"message": TEXT.caption})  # the earlier run's, which arrived late
    assert run(page.publish(TEXT, notebook)).remote_id == meta.posts[0].id
    assert len(meta.posts) == 1


def test_a_duplicate_of_another_post_from_right_before_is_none_of_ours(page: FacebookConnector, meta: Meta, clock: ManualClock) -> None:  # fmt: skip
    # 506: no run before this one handed it over, so what is there is another's
    meta.refuses_duplicates = True
    meta.feed({"message": TEXT.caption})
    clock.advance(2)
    assert refused(page.publish(TEXT, MemoryNotebook(clock=clock))).kind is Kind.PERMANENT
    # where one did, and the page cannot be read, nobody can tell
    meta.script("GET .*/posts", error(2))
    assert refused(page.publish(TEXT, ahead(clock))).kind is Kind.UNKNOWN


def test_without_the_instant_nobody_can_look(page: FacebookConnector, meta: Meta) -> None:
    assert refused(page.reconcile(TEXT, MemoryNotebook())).kind is Kind.UNKNOWN
    assert refused(page.reconcile(TEXT, MemoryNotebook(facts={"ahead_at": "lately"}))).kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    "wrong",
    [
        Post("fb"), Post("fb", "x", assets=(PHOTO, Asset("video", url="https://example.org/b.mp4"))), Post("fb", "x", options={"color": 1}),
        Post("fb", "x", assets=(Asset(reference="a"),)), Post("fb", "x", assets=(Asset(path="/nowhere/a.jpg"),)),
    ],
)  # fmt: skip
def test_what_a_page_does_not_take_is_refused_before_anybody_is_asked(page: FacebookConnector, meta: Meta, wrong: Post) -> None:  # fmt: skip
    notebook = MemoryNotebook()
    assert refused(page.publish(wrong, notebook)).kind is Kind.PERMANENT
    assert (meta.asked, notebook.aheads) == ([], 0)


@pytest.mark.parametrize("body", [b"<html><title>Just a moment...</title></html>", b"", {}, {"data": None}])
def test_a_page_in_metas_place_does_not_say_that_the_post_is_not_there(
    page: FacebookConnector, meta: Meta, clock: ManualClock, body: Any
) -> None:  # F: else it would be published again
    notebook = ahead(clock)
    clock.advance(3600)
    meta.script("GET .*/posts", (200, {}, body))
    assert refused(page.reconcile(TEXT, notebook)).kind is Kind.TRANSIENT
    assert run(page.reconcile(TEXT, notebook)) is None

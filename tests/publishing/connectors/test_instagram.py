"""Instagram, step by step, with the mishaps that others were bitten by (PROVIDERS section 1; B055, T002-i, T002-j, T002-k)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind
from duly.publishing.connectors.instagram import InstagramConnector
from duly.publishing.post import Asset, Limits, Post, Published
from duly.testing import ManualClock
from duly.testing.connectors import MemoryNotebook
from publishing.connectors.hands import refused, run
from publishing.servers import GONE, IG, LOST, TOKEN, First, Meta, Slow, Then
from publishing.servers.meta import Container, error

NOW = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)
IMAGE, VIDEO = Asset(url="https://example.org/a.jpg"), Asset("video", url="https://example.org/b.mp4")
PUBLISH, MAKE = "POST .*/media_publish", "POST .*/media$"


def insta(meta: Meta, **options: Any) -> InstagramConnector:
    return InstagramConnector(**{"account": IG, "token": TOKEN, "url": meta.graph, "poll_interval": 0.001, **options})


def post(*assets: Asset, caption: str = "Sale", **options: Any) -> Post:
    return Post("ig", caption, assets=assets or (IMAGE,), options=options)


def bodies(meta: Meta, pattern: str) -> list[dict[str, Any]]:
    return [dict(one.fields) for one in meta.asked if pattern == one.path.rsplit("/", 1)[1] and one.method == "POST"]


def test_an_image_becomes_a_container_and_is_published(meta: Meta) -> None:
    notebook = MemoryNotebook()
    answer = run(insta(meta).publish(post(Asset(url=IMAGE.url, alt="A shop"), location_id="7"), notebook))
    assert answer == Published(meta.media[0].id)
    assert run(insta(meta).link(meta.media[0].id)) == f"https://www.instagram.com/p/{meta.media[0].id}/"
    assert bodies(meta, "media") == [
        {"image_url": IMAGE.url, "caption": "Sale", "alt_text": "A shop", "location_id": "7"}
    ]
    assert notebook.facts["container"] in meta.containers
    assert [a.headers["authorization"] for a in meta.asked] == [f"Bearer {TOKEN}"] * len(meta.asked)
    assert not any("access_token" in a.fields for a in meta.asked)


def test_a_video_is_a_reel_and_is_waited_for(meta: Meta) -> None:
    meta.video_looks = 4
    run(insta(meta).publish(post(VIDEO, share_to_feed=True), MemoryNotebook()))
    assert bodies(meta, "media") == [
        {"video_url": VIDEO.url, "media_type": "REELS", "caption": "Sale", "share_to_feed": True}
    ]
    assert meta.count(r"GET /v24.0/180\d+$") == 5  # four looks in vain, and the one that ends it


def test_a_story_is_asked_for(meta: Meta) -> None:
    run(insta(meta).publish(post(media_type="STORIES"), MemoryNotebook()))
    assert bodies(meta, "media")[0]["media_type"] == "STORIES"


def test_a_carousel_is_a_container_of_containers_in_their_order(meta: Meta) -> None:
    notebook = MemoryNotebook()
    run(insta(meta).publish(post(IMAGE, VIDEO, caption="Both"), notebook))
    first, second, whole = bodies(meta, "media")
    assert first == {"image_url": IMAGE.url, "is_carousel_item": True}
    assert second == {"video_url": VIDEO.url, "media_type": "VIDEO", "is_carousel_item": True}
    assert whole == {"media_type": "CAROUSEL", "children": notebook.facts["children"], "caption": "Both"}
    assert len(meta.media) == 1


def test_media_that_takes_too_long_is_left_to_the_next_run_which_goes_on_with_the_same_container(meta: Meta) -> None:
    meta.video_looks = 8
    notebook = MemoryNotebook()
    verdict = refused(insta(meta, patience=0.004).publish(post(VIDEO), notebook))
    assert (verdict.kind, notebook.aheads) == (Kind.TRANSIENT, 0)
    notebook = notebook.later()
    run(insta(meta).publish(post(VIDEO), notebook))
    assert (len(meta.containers), len(meta.media)) == (1, 1)


@pytest.mark.parametrize(
    ("status", "made", "published"), [("FINISHED", 1, 1), ("IN_PROGRESS", 1, 1), ("EXPIRED", 2, 1), ("ERROR", 2, 1), ("PUBLISHED", 1, 0)]
)  # fmt: skip
def test_the_container_of_an_earlier_run_is_looked_at_first(meta: Meta, status: str, made: int, published: int) -> None:
    run(insta(meta).publish(post(), MemoryNotebook()))
    (container,) = meta.containers
    meta.media.clear()
    meta.containers[container].status = status
    answer = run(insta(meta).publish(post(), MemoryNotebook(facts={"container": container})))
    assert (len(meta.containers), len(meta.media)) == (made, published)
    # PUBLISHED: a success whose id is not known; the newest of the account is not taken for it
    assert answer.remote_id == (meta.media[0].id if published else None)


@pytest.mark.parametrize(
    ("status", "found", "kept"),
    [("FINISHED", None, True), ("IN_PROGRESS", None, True), ("EXPIRED", None, False), ("ERROR", None, False), ("PUBLISHED", Published(), True)],
)  # fmt: skip
def test_the_container_tells_whether_it_was_published(
    meta: Meta, status: str, found: Published | None, kept: bool
) -> None:
    # T002-i
    run(insta(meta).publish(post(), MemoryNotebook()))
    (container,) = meta.containers
    meta.containers[container].status = status
    meta.ends = status
    notebook = MemoryNotebook(facts={"container": container, "ahead_at": "2026-06-01T10:00:00+00:00"})
    assert run(insta(meta).reconcile(post(), notebook)) == found
    assert ("container" in notebook.facts) is kept


def test_without_a_container_nothing_was_published(meta: Meta) -> None:
    assert run(insta(meta).reconcile(post(), MemoryNotebook())) is None
    assert meta.asked == []


def test_a_container_that_says_something_new_is_an_unknown_outcome(meta: Meta) -> None:
    meta.script("GET", (200, {}, {"id": "1", "status_code": "MAYBE"}))
    notebook = MemoryNotebook(facts={"container": "1", "ahead_at": "2026-06-01T10:00:00+00:00"})
    assert refused(insta(meta).reconcile(post(), notebook)).kind is Kind.UNKNOWN


def test_a_container_that_cannot_be_read_for_a_moment_is_asked_again(meta: Meta) -> None:
    # 100/33 on reads is intermittent: it is no proof that nothing was published
    meta.script("GET", error(100, 33))
    notebook = MemoryNotebook(facts={"container": "1", "ahead_at": "2026-06-01T10:00:00+00:00"})
    assert refused(insta(meta).reconcile(post(), notebook)).kind is Kind.TRANSIENT
    assert notebook.facts["container"] == "1"


def test_a_restriction_that_is_answered_though_the_post_is_live_is_a_success(meta: Meta) -> None:
    # B055: the answer to media_publish was 4/2207051, the post was there, and a retry doubled it
    def live_and_refused(_: object) -> Any:
        return error(4, 2207051)

    meta.script(PUBLISH, Then(live_and_refused))
    assert run(insta(meta).publish(post(), MemoryNotebook())) == Published()
    assert len(meta.media) == 1


def test_a_restriction_without_a_post_is_an_unknown_outcome_until_it_is_asked_again(meta: Meta) -> None:
    meta.script(PUBLISH, error(4, 2207051))
    notebook = MemoryNotebook()
    assert refused(insta(meta).publish(post(), notebook)).kind is Kind.UNKNOWN
    assert run(insta(meta).reconcile(post(), notebook.later())) is None


@pytest.mark.parametrize(
    "mishap", [LOST, Slow(5), (500, {}, None), (200, {}, {}), (502, {}, b"<html>Bad gateway</html>")]
)
def test_a_lost_answer_is_looked_up_at_once_where_that_settles_it(meta: Meta, mishap: Any) -> None:
    lost = isinstance(mishap, type(LOST) | Slow)
    meta.script(PUBLISH, mishap)
    notebook = MemoryNotebook()
    what = insta(meta, timeout=0.3 if isinstance(mishap, Slow) else 5).publish(post(), notebook)
    if lost:  # it is there: published without an id
        assert run(what) == Published()
    else:
        assert refused(what).kind is Kind.UNKNOWN
        assert run(insta(meta).reconcile(post(), notebook.later())) is None
        run(insta(meta).publish(post(), notebook.later()))
    assert (len(meta.media), len(meta.containers)) == (1, 1)


def test_a_time_out_before_anything_was_done_is_settled_by_the_next_run(meta: Meta) -> None:
    meta.script(PUBLISH, GONE)
    notebook = MemoryNotebook()
    assert refused(insta(meta).publish(post(), notebook)).kind is Kind.UNKNOWN
    assert run(insta(meta).reconcile(post(), notebook.later())) is None
    run(insta(meta).publish(post(), notebook.later()))
    assert (len(meta.media), len(meta.containers)) == (1, 1)


def test_a_late_request_and_the_next_run_publish_one_container_once(meta: Meta) -> None:
    # the first request arrives after the second run has begun
    notebook = MemoryNotebook()
    meta.script(PUBLISH, GONE)
    refused(insta(meta).publish(post(), notebook))

    def the_first_arrives(_: object) -> None:
        meta.publish({"creation_id": notebook.facts["container"]})

    meta.script(PUBLISH, First(the_first_arrives))
    assert run(insta(meta).publish(post(), notebook.later())) == Published()
    assert len(meta.media) == 1


def test_a_container_that_somebody_tried_to_publish_is_not_given_up_because_it_cannot_be_read(meta: Meta) -> None:
    # the late request would publish it, and a new one would be a second post
    notebook = MemoryNotebook()
    meta.script(PUBLISH, GONE)
    refused(insta(meta).publish(post(), notebook))
    notebook = notebook.later()
    assert run(insta(meta).reconcile(post(), notebook)) is None
    facts = {name: value for name, value in notebook.facts.items() if name != "ahead_at"}  # as the engine leaves it
    meta.script("GET", error(100, 33))
    notebook = MemoryNotebook(facts=facts)
    assert refused(insta(meta).publish(post(), notebook)).kind is Kind.UNKNOWN
    assert notebook.aheads == 1  # so the next run asks
    assert run(insta(meta).reconcile(post(), notebook.later())) is None
    run(insta(meta).publish(post(), notebook.later()))
    assert (len(meta.media), len(meta.containers)) == (1, 1)


@pytest.mark.parametrize("said", [error(100, 33), error(100), error(24, 2207006)])
def test_a_container_that_is_not_found_for_minutes_is_an_unknown_outcome(meta: Meta, said: Any) -> None:
    clock = ManualClock(NOW)
    notebook = MemoryNotebook(facts={"container": "1", "ahead_at": NOW.isoformat()}, clock=clock)
    one = insta(meta, clock=clock)
    meta.script("GET", *[said] * 4)
    kinds = []
    for _ in range(4):
        kinds.append(refused(one.reconcile(post(), notebook)).kind)
        notebook = notebook.later()
        clock.advance(150)
    assert kinds == [Kind.TRANSIENT, Kind.TRANSIENT, Kind.UNKNOWN, Kind.UNKNOWN]
    # it was only hidden: it is asked again, and is the one that is published
    meta.containers["1"] = Container("1", {})
    assert run(one.reconcile(post(), notebook)) is None
    run(one.publish(post(), notebook.later()))
    assert (len(meta.media), len(meta.containers)) == (1, 1)


def test_a_container_that_is_gone_before_anybody_tried_to_publish_it_is_made_anew(meta: Meta) -> None:
    run(insta(meta).publish(post(), MemoryNotebook(facts={"container": "999"})))
    assert (len(meta.media), len(meta.containers)) == (1, 1)


def test_a_refusal_of_an_earlier_runs_container_that_cannot_be_read_is_an_unknown_outcome(meta: Meta) -> None:
    run(insta(meta).publish(post(), MemoryNotebook()))
    (container,) = meta.containers
    meta.containers[container].status = "FINISHED"
    meta.script(PUBLISH, error(24, 2207008))
    meta.script("GET", (200, {}, {"status_code": "FINISHED"}), (200, {}, {"status_code": "FINISHED"}), error(100, 33))
    notebook = MemoryNotebook(facts={"container": container, "tried": True})
    assert refused(insta(meta).publish(post(), notebook)).kind is Kind.UNKNOWN
    assert notebook.facts["container"] == container


def test_what_fails_after_it_was_published_does_not_make_it_fail(meta: Meta) -> None:
    # B055: the permalink
    def no_permalink(asked: Any) -> Any:
        return error(2) if asked.fields["fields"] == "permalink" else None

    meta.script("GET", *[First(no_permalink)] * 9)
    assert run(insta(meta).publish(post(), MemoryNotebook())) == Published(meta.media[0].id)


def test_media_that_is_not_ready_is_tried_again_with_the_same_container(meta: Meta) -> None:
    meta.script(PUBLISH, error(9007, 2207027))
    notebook = MemoryNotebook()
    verdict = refused(insta(meta).publish(post(), notebook))
    assert (verdict.kind, verdict.after) == (Kind.TRANSIENT, 30)
    run(insta(meta).publish(post(), notebook.later()))
    assert (len(meta.media), len(meta.containers)) == (1, 1)


@pytest.mark.parametrize(("code", "subcode"), [(-2, 2207020), (24, 2207008), (-1, 2207053)])
def test_a_container_that_is_gone_is_replaced_by_the_next_run(meta: Meta, code: int, subcode: int) -> None:
    meta.script(PUBLISH, error(code, subcode))
    notebook = MemoryNotebook()
    assert refused(insta(meta).publish(post(), notebook)).kind is Kind.TRANSIENT
    assert "container" not in notebook.facts
    run(insta(meta).publish(post(), notebook.later()))
    assert (len(meta.media), len(meta.containers)) == (1, 2)


@pytest.mark.parametrize("status", ["FINISHED", "IN_PROGRESS"])
@pytest.mark.parametrize(("code", "subcode"), [(-2, 2207020), (24, 2207006), (24, 2207008), (-1, 2207053)])
def test_a_container_that_an_earlier_run_tried_to_publish_is_not_given_up_for_what_this_one_is_answered(
    meta: Meta, code: int, subcode: int, status: str
) -> None:
    # B055: the first request is still on its way, and arrives at the end
    notebook = MemoryNotebook()
    meta.script(PUBLISH, GONE)
    refused(insta(meta).publish(post(), notebook))
    notebook = notebook.later()
    assert run(insta(meta).reconcile(post(), notebook)) is None
    facts = {name: value for name, value in notebook.facts.items() if name != "ahead_at"}  # as the engine leaves it
    notebook = MemoryNotebook(facts=facts)
    (container,) = meta.containers
    finished, late = (200, {}, {"status_code": "FINISHED"}), (200, {}, {"status_code": status})
    meta.script(PUBLISH, error(code, subcode))
    meta.script("GET", finished, finished, late)
    assert refused(insta(meta).publish(post(), notebook)).kind is Kind.UNKNOWN
    assert notebook.facts["container"] == container
    meta.publish({"creation_id": container})
    assert run(insta(meta).reconcile(post(), notebook.later())) == Published()
    assert (len(meta.media), len(meta.containers)) == (1, 1)


@pytest.mark.parametrize("status", ["EXPIRED", "ERROR"])
def test_a_container_that_cannot_be_published_any_more_is_replaced_whoever_tried(meta: Meta, status: str) -> None:
    notebook = MemoryNotebook()
    meta.script(PUBLISH, GONE)
    refused(insta(meta).publish(post(), notebook))
    (container,) = meta.containers

    def over(_: object) -> Any:
        meta.containers[container].status = status
        return error(24, 2207008)

    meta.script(PUBLISH, First(over))
    assert refused(insta(meta).publish(post(), notebook.later())).kind is Kind.TRANSIENT
    run(insta(meta).publish(post(), notebook.later()))
    assert (len(meta.media), len(meta.containers)) == (1, 2)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: Media upload has failed with error code 2207026", Kind.PERMANENT), ("Error: 2207052", Kind.TRANSIENT),
        ("Error: 2207053", Kind.TRANSIENT), ("Error: 2207003", Kind.TRANSIENT), ("Error: 2207004", Kind.PERMANENT), ("", Kind.PERMANENT),
    ],
)  # fmt: skip
def test_media_that_cannot_be_used_says_why_in_its_status(meta: Meta, text: str, kind: Kind) -> None:
    meta.ends, meta.status_text = "ERROR", text
    notebook = MemoryNotebook()
    assert refused(insta(meta).publish(post(), notebook)).kind is kind
    assert (meta.media, notebook.aheads, notebook.facts.get("container")) == ([], 0, None)


def test_limits_are_those_of_the_account(meta: Meta) -> None:
    meta.quota_used, meta.quota_total = 3, 25
    assert run(insta(meta).limits()) == Limits(3, 25, 86400)
    for body in ({"data": []}, {"data": [{"quota_usage": 3}]}, {"data": [{"quota_usage": None, "config": {}}]}, {}, {"data": 5}):  # fmt: skip
        meta.script("GET", (200, {}, body))
        assert run(insta(meta).limits()) is None


def test_comments_are_paged_through_newest_first_and_the_links_of_pages_are_not_followed(meta: Meta) -> None:
    # T002-j; the links hold the token
    one = insta(meta)
    ident = run(one.publish(post(), MemoryNotebook())).remote_id
    assert ident is not None
    meta.page_size = 2
    for number in range(5):
        run(one.comment(ident, f"comment {number}"))

    async def read() -> list[str]:
        return [comment.text async for comment in one.comments(ident)]

    assert run(read()) == [f"comment {number}" for number in (4, 3, 2, 1, 0)]
    assert meta.count("GET .*/comments") == 3
    assert run(one.account()) == "example.shop"
    assert not any("access_token" in asked.fields for asked in meta.asked)


def test_comments_are_read_beyond_a_page_that_is_empty(meta: Meta) -> None:
    # T002-j: comments that are hidden are left out of a page; behind it stands the one that was written
    one = insta(meta)
    ident = run(one.publish(post(), MemoryNotebook())).remote_id
    assert ident is not None
    run(one.comment(ident, "First!"))
    empty = {"data": [], "paging": {"cursors": {"after": "0"}, "next": "https://example.org/next"}}
    meta.script("GET .*/comments", (200, {}, empty))

    async def read() -> list[str]:
        return [comment.text async for comment in one.comments(ident)]

    assert run(read()) == ["First!"]


def test_comments_that_are_disabled_are_refused_for_good_and_media_that_is_not_there_yet_is_not(meta: Meta) -> None:
    # T002-k
    one = insta(meta)
    ident = run(one.publish(post(), MemoryNotebook())).remote_id
    assert ident is not None
    meta.comments_disabled = True
    assert refused(one.comment(ident, "First")).kind is Kind.PERMANENT
    assert refused(one.comment("180999", "First")).kind is Kind.TRANSIENT
    meta.script("POST .*/comments", LOST)
    meta.comments_disabled = False
    assert refused(one.comment(ident, "First")).kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Post("ig", "no image"), "assets"), (post(Asset(path="/a.jpg")), "assets[0].url"), (post(*[IMAGE] * 11), "assets"),
        (post(VIDEO, media_type="IMAGE"), "assets"), (post(media_type="CAROUSEL"), "assets"), (post(media_type="POEM"), "options.media_type"),
        (post(color="red"), "options.color"),
    ],
)  # fmt: skip
def test_what_instagram_does_not_take_is_refused_before_anybody_is_asked(meta: Meta, wrong: Post, words: str) -> None:
    verdict = refused(insta(meta).publish(wrong, MemoryNotebook()))
    assert verdict.kind is Kind.PERMANENT
    assert verdict.reason.startswith(words)
    assert meta.asked == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"account": "me"}, "account"), ({"token": ""}, "token"), ({"token": "a\nb"}, "token"), ({"url": "http://example.org"}, "url"),
        ({"url": "https://me:secret@example.org"}, "url"), ({"timeout": 0}, "timeout"), ({"poll_interval": "soon"}, "poll_interval"),
    ],
)  # fmt: skip
def test_options_are_checked_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        InstagramConnector(**{"account": IG, "token": TOKEN, **options})
    assert caught.value.field == field
    assert "secret" not in str(caught.value)


def test_a_number_from_a_file_names_an_account(meta: Meta) -> None:
    assert run(insta(meta, account=int(IG)).check()) == "publishes as example.shop"


@pytest.mark.parametrize("answer", [error(190, 463), error(4), error(9, 2207042)])
def test_a_refusal_that_leaves_no_doubt_is_not_asked_about(meta: Meta, answer: Any) -> None:
    meta.script(PUBLISH, answer)
    refused(insta(meta).publish(post(), MemoryNotebook()))
    assert meta.asked[-1].path.endswith("/media_publish")


def test_a_post_whose_answer_was_lost_is_named_by_the_one_medium_with_its_caption(meta: Meta) -> None:  # N9
    def listed(*media: dict[str, Any]) -> Published | None:
        meta.script("GET .*/media", (200, {}, {"data": list(media)}))
        facts = {"container": container, "ahead_at": "2026-06-01T10:00:00+00:00"}
        return run(insta(meta).reconcile(post(), MemoryNotebook(facts=facts)))

    run(insta(meta).publish(post(), MemoryNotebook()))
    (container,) = meta.containers
    meta.containers[container].status = "PUBLISHED"
    mine = {"id": "7", "caption": "Sale ", "timestamp": "2026-06-01T10:00:09+0000", "permalink": "https://i.example/7"}
    assert listed({**mine, "id": "8", "caption": "Sales"}, mine) == Published("7", "https://i.example/7")
    assert listed({**mine, "timestamp": "2026-06-01T09:59:00+0000"}) == Published(), "an older one is another post"
    assert listed(mine, {**mine, "id": "9"}) == Published(), "of two nobody can tell"
    assert listed() == Published()
    meta.script("GET .*/media", (500, {}, None))
    facts = {"container": container, "ahead_at": "2026-06-01T10:00:00+00:00"}
    assert run(insta(meta).reconcile(post(), MemoryNotebook(facts=facts))) == Published(), "it is there all the same"

"""WordPress: nothing of a post is there twice, whichever answer was lost (B055)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind
from duly.publishing.connectors.wordpress import WordPressConnector, classify, content, spoken
from duly.publishing.post import Asset, Post
from duly.testing.connectors import MemoryNotebook
from publishing.connectors.hands import refused, run
from publishing.servers import GONE, LOST, PASSWORD, USER, WordPress
from publishing.servers.http import Step

NOW = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    (tmp_path / "Shop Été.JPG").write_bytes(b"jpeg")
    image = Asset(path=str(tmp_path / "Shop Été.JPG"), alt="The shop")
    return Post("blog", "Come & see\nsoon\n\n<b>Now</b>", title="Summer sale, 20 %", link="https://example.org/?a=1&b", assets=(image,))  # fmt: skip


def blog(server: WordPress, **options: Any) -> WordPressConnector:
    return WordPressConnector(**{"url": server.site, "user": USER, "password": PASSWORD, **options})


def test_media_is_uploaded_and_a_draft_is_made_public(wordpress: WordPress, post: Post) -> None:
    answer = run(blog(wordpress).publish(post, MemoryNotebook()))
    (made,), (image,) = wordpress.published, wordpress.media.values()
    assert (answer.remote_id, answer.url) == (str(made["id"]), f"{wordpress.url}/{made['slug']}/")
    assert made["slug"].startswith("summer-sale-20-")
    assert (made["title"]["raw"], made["featured_media"]) == ("Summer sale, 20 %", image["id"])
    assert (image["alt_text"], image["mime_type"], image["size"]) == ("The shop", "image/jpeg", 4)
    assert made["content"]["raw"] == (
        "<p>Come &amp; see<br>soon</p>\n<p>&lt;b&gt;Now&lt;/b&gt;</p>\n"
        f'<figure><img src="{image["source_url"]}" alt="The shop"></figure>\n'
        '<p><a href="https://example.org/?a=1&amp;b">https://example.org/?a=1&amp;b</a></p>'
    )


@pytest.mark.parametrize(
    ("request_of", "kind"),
    [("POST .*/media$", Kind.TRANSIENT), (r"POST .*/media/\d+", Kind.TRANSIENT), ("POST .*/posts$", Kind.TRANSIENT), (r"POST .*/posts/\d+", Kind.UNKNOWN)],
)  # fmt: skip
def test_whichever_answer_is_lost_nothing_is_there_twice(
    wordpress: WordPress, post: Post, request_of: str, kind: Kind
) -> None:
    wordpress.script(request_of, LOST)
    notebook = MemoryNotebook()
    assert refused(blog(wordpress).publish(post, notebook)).kind is kind
    if kind is Kind.UNKNOWN:
        found = run(blog(wordpress).reconcile(post, notebook.later()))
        assert found is not None
        assert found.remote_id == str(wordpress.published[0]["id"])
    run(blog(wordpress).publish(post, notebook.later()))
    assert (len(wordpress.posts), len(wordpress.media), wordpress.publications) == (1, 1, 1)


def test_a_run_that_was_killed_before_its_draft_was_noted_finds_it(wordpress: WordPress, post: Post) -> None:
    run(blog(wordpress).publish(post, MemoryNotebook()))
    (made,) = wordpress.published
    made["status"] = "draft"
    assert run(blog(wordpress).publish(post, MemoryNotebook())).remote_id == str(made["id"])
    assert (len(wordpress.posts), len(wordpress.media)) == (1, 1)


@pytest.mark.parametrize(
    ("status", "there"), [("publish", True), ("future", True), ("private", True), ("draft", False), ("pending", False)]
)
def test_the_draft_tells_whether_it_is_public(wordpress: WordPress, post: Post, status: str, there: bool) -> None:
    notebook = MemoryNotebook()
    run(blog(wordpress).publish(post, notebook))
    wordpress.published[0]["status"] = status
    assert (run(blog(wordpress).reconcile(post, notebook.later())) is not None) is there


def test_a_post_that_somebody_has_removed_is_an_unknown_outcome(wordpress: WordPress, post: Post) -> None:
    notebook = MemoryNotebook()
    run(blog(wordpress).publish(post, notebook))
    wordpress.published[0]["status"] = "trash"
    assert refused(blog(wordpress).reconcile(post, notebook.later())).kind is Kind.UNKNOWN
    wordpress.posts.clear()
    assert refused(blog(wordpress).reconcile(post, notebook.later())).kind is Kind.UNKNOWN


def test_a_draft_that_is_removed_before_it_was_public_is_written_anew(wordpress: WordPress, post: Post) -> None:
    notebook = MemoryNotebook()
    wordpress.script(r"POST .*/posts/\d+", (429, {}, None))
    assert refused(blog(wordpress).publish(post, notebook)).kind is Kind.THROTTLED
    facts = {name: value for name, value in notebook.facts.items() if name != "ahead_at"}  # as the engine leaves it
    wordpress.posts.clear()
    wordpress.media.clear()
    notebook = MemoryNotebook(facts=facts)
    assert refused(blog(wordpress).publish(post, notebook)).kind is Kind.TRANSIENT
    assert run(blog(wordpress).reconcile(post, notebook.later())) is None  # a run that ended right then
    run(blog(wordpress).publish(post, notebook.later()))
    assert (len(wordpress.published), len(wordpress.media), wordpress.publications) == (1, 1, 1)


def test_a_draft_that_is_removed_after_somebody_tried_to_make_it_public_is_an_unknown_outcome(wordpress: WordPress, post: Post) -> None:  # fmt: skip
    # the first request may have been late, and the post removed when it was public
    notebook = MemoryNotebook()
    wordpress.script(r"POST .*/posts/\d+", GONE)
    assert refused(blog(wordpress).publish(post, notebook)).kind is Kind.UNKNOWN
    assert run(blog(wordpress).reconcile(post, notebook)) is None
    facts = {name: value for name, value in notebook.facts.items() if name != "ahead_at"}  # as the engine leaves it
    wordpress.posts.clear()
    assert refused(blog(wordpress).publish(post, MemoryNotebook(facts=facts))).kind is Kind.UNKNOWN
    assert wordpress.posts == {}


def test_a_post_that_was_removed_is_asked_for_however_often_the_outcome_was_unknown(wordpress: WordPress, post: Post) -> None:  # fmt: skip
    # T002-i: what is noted on the way is no answer
    notebook = MemoryNotebook()
    run(blog(wordpress).publish(post, notebook))
    kept = dict(wordpress.posts)
    wordpress.posts.clear()
    for _ in range(2):
        notebook = notebook.later()
        assert refused(blog(wordpress).reconcile(post, notebook)).kind is Kind.UNKNOWN
    wordpress.posts.update(kept)
    assert run(blog(wordpress).reconcile(post, notebook.later())) is not None


def test_the_same_key_on_two_channels_is_two_posts(wordpress: WordPress) -> None:
    # B053
    for channel in ("blog", "news"):
        run(blog(wordpress).publish(Post(channel, "Hello"), MemoryNotebook("K")))
    assert len(wordpress.published) == 2


def test_a_post_may_be_left_for_somebody_to_approve(wordpress: WordPress) -> None:
    post = Post("blog", "<p>Hello</p>", options={"status": "pending", "categories": [3], "body": "html", "slug": "Été à la plage"})  # fmt: skip
    notebook = MemoryNotebook()
    run(blog(wordpress).publish(post, notebook))
    (made,) = wordpress.posts.values()
    assert (made["status"], made["categories"], made["content"]["raw"]) == ("pending", [3], "<p>Hello</p>")
    assert made["slug"].startswith("ete-a-la-plage-")
    assert run(blog(wordpress).reconcile(post, notebook.later())) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        Post("blog"), Post("blog", "x", options={"color": 1}), Post("blog", "x", options={"status": "soon"}),
        Post("blog", "x", options={"body": "rtf"}), Post("blog", "x", assets=(Asset(path="/nowhere.jpg"),)),
    ],
)  # fmt: skip
def test_what_cannot_be_published_is_refused_for_good(wordpress: WordPress, wrong: Post) -> None:
    assert refused(blog(wordpress).publish(wrong, MemoryNotebook())).kind is Kind.PERMANENT
    assert wordpress.posts == {}


def test_a_wrong_password_and_a_wrong_site_stop_the_channel(wordpress: WordPress) -> None:
    post = Post("blog", "Hello")
    assert refused(blog(wordpress, password="wrong").publish(post, MemoryNotebook())).kind is Kind.AUTH
    assert refused(blog(wordpress, url=wordpress.url + "/sub").publish(post, MemoryNotebook())).kind is Kind.AUTH
    assert run(blog(wordpress).check()) == "publishes as Editor"
    with pytest.raises(InvalidArgument, match="status"):
        blog(wordpress, status="soon")


@pytest.mark.parametrize(
    ("status", "code", "writing", "sending"),
    [
        (400, "rest_invalid_param", Kind.PERMANENT, Kind.PERMANENT), (401, "incorrect_password", Kind.AUTH, Kind.AUTH),
        (403, "rest_cannot_create", Kind.AUTH, Kind.AUTH), (403, "", Kind.AWAY, Kind.AWAY), (406, "", Kind.AWAY, Kind.AWAY), (403, "odd", Kind.AUTH, Kind.AUTH), (404, "", Kind.AWAY, Kind.AWAY), (418, "", Kind.AWAY, Kind.AWAY),
        (404, "rest_no_route", Kind.AUTH, Kind.AUTH), (404, "rest_post_invalid_id", Kind.PERMANENT, Kind.PERMANENT),
        (413, "", Kind.PERMANENT, Kind.PERMANENT), (429, "", Kind.THROTTLED, Kind.THROTTLED), (301, "", Kind.AUTH, Kind.AUTH),
        (500, "db_insert_error", Kind.TRANSIENT, Kind.UNKNOWN), (503, "", Kind.AWAY, Kind.AWAY), (502, "", Kind.AWAY, Kind.UNKNOWN),
        (200, "odd", Kind.TRANSIENT, Kind.UNKNOWN),
    ],
)  # fmt: skip
def test_answers_mean_what_their_status_and_code_say(status: int, code: str, writing: Kind, sending: Kind) -> None:
    body = {"code": code, "message": "Sorry."} if code else None
    assert classify(status, body, {}, NOW).kind is writing
    assert classify(status, body, {}, NOW, "send").kind is sending


def test_a_page_in_place_of_json_is_no_success() -> None:
    # a site whose REST API is behind a login or a cache
    assert classify(200, None, {}, NOW, "send").kind is Kind.UNKNOWN


anything = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from(["code", "message", "data"]), i), max_leaves=5)  # fmt: skip


@given(st.integers(100, 599), anything, st.dictionaries(st.just("retry-after"), st.text(max_size=20)), st.booleans())
def test_no_answer_is_too_strange_to_be_classified(status: int, body: Any, headers: Any, sends: bool) -> None:
    verdict = classify(status, body, headers, NOW, "send" if sends else "write")
    assert verdict.kind is Kind.SENT or verdict.reason
    assert verdict.kind is not Kind.UNKNOWN or sends


@given(st.text(max_size=60), st.text(max_size=30), st.text(max_size=30))
def test_a_text_is_a_text_in_html_too(caption: str, alt: str, link: str) -> None:
    made = content(Post("blog", caption, link=link, assets=(Asset(url="https://example.org/a.jpg", alt=alt),)), [None])
    plain = made.replace("<p>", "").replace("</p>", "").replace("<br>", "").replace("</a>", "").replace("<figure>", "").replace("</figure>", "")  # fmt: skip
    assert plain.count("<") == 1 + bool(link)


def test_maintenance_is_waited_for(wordpress: WordPress) -> None:
    step: Step = (503, {"Retry-After": "600"}, b"Briefly unavailable for scheduled maintenance.")
    wordpress.script("GET", step)
    verdict = refused(blog(wordpress).publish(Post("blog", "Hello"), MemoryNotebook()))
    assert (verdict.kind, verdict.after, verdict.owner) == (Kind.AWAY, 600, "firewall")
    assert "Briefly unavailable" in verdict.reason


NOTICE = b"<br />\n<b>Notice</b>: Undefined index: title in <b>/www/theme/[functions].php</b> on line 3<br />\n"


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", NOTICE], ids=["a byte order mark", "a notice"])
@pytest.mark.parametrize("times", [1, 3, 99])
def test_what_a_site_prints_before_its_json_makes_no_second_post(
    wordpress: WordPress, post: Post, before: bytes, times: int
) -> None:
    # C045
    real, left = wordpress.real, [times]

    def printing(asked: Any) -> Any:
        status, headers, body = real(asked)
        left[0] -= 1
        return (status, headers, before + json.dumps(body).encode()) if left[0] >= 0 else (status, headers, body)

    wordpress.real = printing  # type: ignore[method-assign]
    published = run(blog(wordpress).publish(post, MemoryNotebook()))
    assert (len(wordpress.posts), wordpress.publications, published.remote_id) == (
        1,
        1,
        str(next(iter(wordpress.posts))),
    )
    left[0] = 1
    said = run(blog(wordpress).check())
    assert ("prints" in said, "Notice" in said) == ((True, True) if before == NOTICE else (False, False))


def test_a_challenge_is_read_as_what_stands_before_the_site() -> None:  # C046
    for status in (403, 503, 200):
        page = spoken(b"<title>Just a moment...</title><script>var a = {};</script>")
        verdict = classify(status, page[0], {"cf-mitigated": "challenge"}, NOW, "send", page[1])
        assert (verdict.kind, verdict.owner) == (Kind.AWAY, "firewall")
        assert "Just a moment..." in verdict.reason


def test_what_a_site_prints_behind_its_json_makes_no_second_post(wordpress: WordPress, post: Post) -> None:  # C045
    real = wordpress.real

    def printing(asked: Any) -> Any:
        status, headers, body = real(asked)
        return status, headers, b"\n" + json.dumps(body).encode() + NOTICE

    wordpress.real = printing  # type: ignore[method-assign]
    assert run(blog(wordpress).publish(post, MemoryNotebook())).remote_id
    assert (len(wordpress.posts), wordpress.publications) == (1, 1)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"id": 5, "status": "pub', b"<html><form>Log in</form></html>", b'<script>{"id": 5}</script>', b"null"],
)
def test_an_answer_of_200_that_is_no_json_holds_the_channel_or_is_looked_for(content: bytes) -> None:  # F, C046
    found, printed = spoken(content)
    kinds = [classify(200, found, {}, NOW, doing, printed).kind for doing in ("read", "write", "send")]
    assert kinds == [Kind.AWAY, Kind.AWAY, Kind.UNKNOWN]


def test_a_site_in_maintenance_that_says_so_in_json_holds_the_channel() -> None:  # F
    body = {"code": "wp_die", "message": "Briefly unavailable for scheduled maintenance.", "data": {"status": 503}}
    kinds = [classify(503, body, {}, NOW, doing).kind for doing in ("read", "write", "send")]
    assert kinds == [Kind.AWAY, Kind.AWAY, Kind.UNKNOWN]


def test_a_list_that_is_none_is_not_taken_for_an_empty_one(wordpress: WordPress, post: Post) -> None:
    wordpress.script("GET .*/posts", (200, {}, {"message": "from a cache"}))
    assert refused(blog(wordpress).publish(post, MemoryNotebook())).kind is Kind.TRANSIENT
    assert len(wordpress.posts) == 0

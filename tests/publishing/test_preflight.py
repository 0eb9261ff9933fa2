"""The preflight: what a channel would refuse is said before a job is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.publishing.post import Asset, Post, Rules
from duly.publishing.preflight import COSTS, File, PreflightFailed, Report, Severity, check, look

RULES = Rules(
    caption_most=20, assets_most=2, asset_bytes={"image": 100}, hashtags_most=2, comment_most=10, first_comment=True
)
POST = Post("pictures", "Apples", assets=(Asset(url="https://example.org/a.jpg", alt="apples"),))


def said(post: Post, rules: Rules = RULES, known: dict[str, File | None] | None = None) -> list[str]:
    return [f"{one.severity} {one}" for one in check(post, rules, known).findings]


def test_a_good_post_has_a_score_of_100() -> None:
    report = check(POST, RULES)
    assert (report.findings, report.score, report.ok) == ((), 100, True)


PATH = "/plan/a.jpg"
ON_DISK = replace(POST, assets=(Asset(path=PATH, alt="apples"),))
WRONG: list[tuple[Post, Rules, dict[str, File | None], str]] = [
    (Post("pictures"), RULES, {}, "error caption is empty"),
    (replace(POST, caption="x" * 21), RULES, {}, "error caption has 21 characters; pictures takes 20."),
    (replace(POST, caption="#a #b #c"), RULES, {}, "error caption has 3 hashtags; pictures takes 2."),
    (replace(POST, caption="#Äpfel #äpfel"), RULES, {}, "warning caption has #äpfel more than once."),
    (replace(POST, caption="Hello {name}"), RULES, {}, "warning caption still has {name}"),
    (replace(POST, caption="Hello {{ name }}"), RULES, {}, "warning caption still has {{ name }}"),
    (replace(POST, caption="a\x07"), RULES, {}, "warning caption has characters that are not printed"),
    (replace(POST, link="example.org"), RULES, {}, "error link does not begin with https://."),
    (replace(POST, link="https:///x"), RULES, {}, "error link names no host."),
    (replace(POST, link="https://example.org/a b"), RULES, {}, "error link has a space in it."),
    (replace(POST, link="https://shop"), RULES, {}, "error link leads to shop, which is no host on the internet."),
    (replace(POST, link="https://a:b@example.org"), RULES, {}, "error link has a user name in it."),
    (replace(POST, link="https://example.org:x"), RULES, {}, "error link cannot be read"),
    (replace(POST, link="https://[::1"), RULES, {}, "error link cannot be read"),
    (replace(POST, link="http://example.org"), RULES, {}, "hint link goes by http://"),
    (replace(POST, link="https://192.168.0.1/x"), RULES, {}, "warning link leads to 192.168.0.1, which only this network"),
    (replace(POST, caption="see https:/shop."), RULES, {}, "warning caption has the link https:/shop., which names no host."),
    (replace(POST, assets=()), replace(RULES, assets_least=1), {}, "error assets has 0; pictures needs at least 1."),
    (replace(POST, assets=POST.assets * 3), RULES, {}, "error assets has 3; pictures takes at most 2."),
    (replace(POST, assets=POST.assets * 2), RULES, {}, "warning assets[1] is the same as assets[0]."),
    (POST, replace(RULES, kinds=frozenset({"video"})), {}, "error assets[0].kind is image; pictures takes videos."),
    (ON_DISK, replace(RULES, needs_url=True), {}, "error assets[0].url is not given"),
    (replace(POST, assets=(Asset(url="ftp://example.org/a.jpg"),)), RULES, {}, "error assets[0].url does not begin with"),
    (replace(POST, assets=(Asset(url="https://example.org/a.mp4", alt="x"),)), RULES, {}, "warning assets[0].kind is image, and the name ends in .mp4."),
    (replace(POST, assets=(Asset(url="https://example.org/a.jpg"),)), RULES, {}, "hint assets[0].alt is empty"),
    (ON_DISK, RULES, {PATH: None}, "error assets[0].path a.jpg is not there"),
    (ON_DISK, RULES, {PATH: File(0)}, "error assets[0].path is an empty file."),
    (ON_DISK, RULES, {PATH: File(101)}, "error assets[0].path has 101 bytes; pictures takes 100 bytes for an image."),
    (ON_DISK, RULES, {PATH: File(9, "video")}, "error assets[0].kind is image, and the file is a video."),
    (replace(POST, first_comment="x" * 11), RULES, {}, "error ig_first_comment has 11 characters; pictures takes 10."),
    (replace(POST, first_comment=" "), RULES, {}, "error ig_first_comment is empty."),
    (replace(POST, first_comment="apples "), RULES, {}, "warning ig_first_comment says the same as the caption."),
    (replace(POST, first_comment="x"), replace(RULES, first_comment=False), {}, "hint ig_first_comment is left out"),
]  # fmt: skip


@pytest.mark.parametrize(("post", "rules", "known", "finding"), WRONG, ids=[w[3][:60] for w in WRONG])
def test_what_is_wrong_is_said_in_a_sentence(
    post: Post, rules: Rules, known: dict[str, File | None], finding: str
) -> None:
    found = said(post, rules, known)
    assert any(one.startswith(finding) for one in found), found


def test_errors_come_first_and_block_and_the_rest_does_not() -> None:
    hint = replace(POST, link="http://example.org")
    assert (check(hint, RULES).ok, check(hint, RULES).score) == (True, 98)
    both = replace(hint, caption="x" * 21)
    report = check(both, RULES)
    assert (report.ok, report.score) == (False, 58)
    assert [one.severity for one in report.findings] == ["error", "hint"]
    assert report.to_json()["findings"][0]["field"] == "caption"


def test_characters_are_counted_as_people_see_them_composed() -> None:
    assert said(replace(POST, caption="e\u0301" * 20)) == []


def test_a_channel_without_rules_takes_what_can_be_published() -> None:
    assert said(replace(POST, caption="x" * 100_000), Rules()) == []


def test_files_are_looked_at(tmp_path: Path) -> None:
    files = {"a.jpg": b"\xff\xd8\xff\xe0rest", "b.jpg": b"\x00\x00\x00\x20ftypisom", "c.txt": b"hello", "d.png": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    post = Post("x", assets=tuple(Asset(path=str(tmp_path / name)) for name in (*files, "none.jpg")))
    found = look(post)
    assert [found[str(tmp_path / name)] for name in (*files, "none.jpg")] == [
        File(8, "image"), File(12, "video"), File(5), File(0), None
    ]  # fmt: skip
    assert look(Post("x", assets=(Asset(path="a\x00b"),))) == {"a\x00b": None}


def test_the_error_says_which_posts_and_why() -> None:
    bad = check(Post("x"), RULES)
    error = PreflightFailed([("posts.yaml:9 slots[0]", bad), ("posts.yaml:12 slots[1]", bad)])
    assert "posts.yaml:12 slots[1]: caption is empty" in str(error)
    assert "override" in error.remedy


words = st.text(max_size=30)
posts: Any = st.builds(
    Post, st.just("x"), words, words, words, words | st.just("https://") , st.lists(st.builds(Asset, st.sampled_from(["image", "video"]), st.none() | words, st.none() | words), max_size=3).map(tuple),
    st.none() | words,
)  # fmt: skip


@given(posts, st.integers(0, 5))
def test_a_look_never_fails_and_a_score_is_what_the_findings_cost(post: Post, most: int) -> None:
    report = check(
        post, Rules(caption_most=most, hashtags_most=most, needs_url=True, comment_most=most, first_comment=True)
    )
    assert 0 <= report.score <= 100
    assert report.ok == all(one.severity is not Severity.ERROR for one in report.findings)
    assert report.score == max(0, 100 - sum(COSTS[one.severity] for one in report.findings))
    assert isinstance(report, Report)


def test_hashtags_are_told_apart_in_every_script() -> None:  # N2
    from duly.publishing.preflight import hashtags

    assert hashtags("#हिन्दी #हिन्दुस्तान") == ["हिन्दी", "हिन्दुस्तान"]
    assert hashtags("#กรุงเทพ, #กรุงไทย!") == ["กรุงเทพ", "กรุงไทย"]
    assert hashtags("#cafe\u0301 #cafe ＃日本 a#no &#39; #a_1-b") == ["café", "cafe", "日本", "a_1"]


@pytest.mark.parametrize("text", ["\u200b", "\ufeff \u2060", "\u2800\u2800", "\u3164", "\u00ad", "\u200d\ufe0f"])
def test_a_text_that_shows_nothing_is_empty(text: str) -> None:  # N3
    assert said(Post("notes", text, title=text), Rules())[0].startswith("error caption is empty")
    assert "error ig_first_comment is empty." in said(replace(POST, first_comment=text))
    assert said(Post("notes", f"{text}é"), Rules()) == []


def test_a_text_that_turns_its_direction_over_is_warned_of() -> None:  # N3
    assert "not printed" in said(replace(POST, caption="file\u202egpj"))[0]
    assert said(replace(POST, caption="שלום\u200f!")) == []


@pytest.mark.parametrize(("name", "ending"), [("a.png", ".png"), ("a.WEBP", ".webp"), ("a.gif?width=5", ".gif")])
def test_what_instagram_leaves_out_or_does_not_read_is_warned_of(name: str, ending: str) -> None:  # F of FAULTS_2
    from duly.publishing.connectors.instagram import InstagramConnector

    rules, image = InstagramConnector.rules, Asset(url=f"https://example.org/{name}", alt="apples")
    found = said(replace(POST, channel="ig", title="Apples", link="https://example.org", assets=(image,)), rules)
    assert [one.partition("; ")[0] for one in found] == [
        "warning title is left out: ig publishes none.", "warning link is left out: ig publishes none.",
        f"warning assets[0].url ends in {ending}",
    ]  # fmt: skip
    fine = Asset(url="https://example.org/a.JPG", alt="apples")
    assert said(replace(POST, channel="ig", assets=(fine,)), rules) == []

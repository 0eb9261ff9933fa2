"""Keys of planned posts: the same post has the same key everywhere, another post has another one."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.publishing.keys import OLD, caption_hash, media_hash, plan_key, post_keys
from duly.publishing.post import Asset

AT = datetime(2026, 3, 29, 8, tzinfo=UTC)
ONE = Asset(checksum="sha256:aa", reference="library/1", url="https://example.org/1.jpg")
TWO = Asset("video", reference="library/2")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
assets = st.builds(
    Asset,
    st.sampled_from(["image", "video"]),
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
)
instants = st.datetimes(datetime(1971, 1, 1), datetime(2190, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))


def test_the_key_can_be_made_by_another_program() -> None:
    # T002-a: the canonical JSON array of five texts, with a version tag
    def sha(value: object) -> str:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    media = sha([["checksum", "sha256:aa"], ["reference", "library/2"]])
    parts = ["orchard", "instagram", "2026-03-29T08:00:00Z", media, sha("Äpfel")]
    assert plan_key("orchard", "instagram", AT, [ONE, TWO], "Äpfel") == OLD + sha(parts)
    assert OLD == "duly:publish:v1:"
    # R002-22
    media = [["checksum", "sha256:aa", "a plum"], ["reference", "library/2", ""]]
    texts, options = ["Äpfel", "A title", "", "First"], {"media_type": "REELS"}
    said = {"caption": "Äpfel", "title": "A title", "ig_first_comment": "First", "options": options}
    made = post_keys(
        "orchard", "instagram", AT, "2026-03-29T10:00:00", "Europe/Rome", [replace(ONE, alt="a plum"), TWO], said
    )
    for when, key in (("2026-03-29T10:00:00[Europe/Rome]", made.key), ("2026-03-29T08:00:00Z", made.also[0])):
        assert key == "duly:publish:v2:" + sha(["orchard", "instagram", when, media, texts, options])


def test_an_instant_has_one_key_in_whichever_zone_it_is_written() -> None:
    # R002-3
    there = AT.astimezone(timezone(timedelta(hours=2)))
    assert plan_key("b", "c", AT) == plan_key("b", "c", there)
    with pytest.raises(InvalidArgument, match="scheduled_at"):
        plan_key("b", "c", AT.replace(tzinfo=None))


def test_parts_are_told_apart() -> None:
    # T002-a: "a" + "bc" is not "ab" + "c"
    assert plan_key("a", "bc", AT) != plan_key("ab", "c", AT)
    assert media_hash([Asset(checksum="x")]) != media_hash([Asset(reference="x")])
    assert media_hash([Asset(reference="a"), Asset(reference="b")]) != media_hash([Asset(reference="ab")])


def test_the_checksum_goes_before_the_reference() -> None:
    # R002-4
    assert media_hash([ONE]) == media_hash([Asset(checksum="sha256:aa")])
    assert media_hash([TWO]) == media_hash([Asset(reference="library/2", url="https://example.org/other.mp4")])


@given(texts, texts, instants, st.lists(assets, max_size=4), texts)
def test_any_change_makes_another_key_and_none_makes_none(
    brand: str, channel: str, at: datetime, given: list[Asset], caption: str
) -> None:
    # R002-3
    key = plan_key(brand, channel, at, given, caption)
    composed = [unicodedata.normalize(form, caption) for form in ("NFC", "NFD")]
    assert {key} == {plan_key(brand, channel, at, tuple(given), text) for text in (caption, *composed)}
    others = [
        plan_key(brand + "x", channel, at, given, caption),
        plan_key(brand, channel + "x", at, given, caption),
        plan_key(brand, channel, at + timedelta(microseconds=1), given, caption),
        plan_key(brand, channel, at, [*given, Asset(reference="one more")], caption),
        plan_key(brand, channel, at, given, caption + "x"),
    ]
    assert len({key, *others}) == 6


@given(st.lists(st.text(st.characters(codec="ascii"), min_size=1), min_size=2, max_size=4, unique=True))
def test_the_order_of_assets_counts(names: list[str]) -> None:
    # T002-a
    named = [Asset(checksum=name) for name in names]
    assert media_hash(named) != media_hash(named[::-1])


def test_captions_that_look_alike_are_one() -> None:
    assert caption_hash("e\u0301") == caption_hash("\u00e9")
    assert caption_hash("a") != caption_hash("A")

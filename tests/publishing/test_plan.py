"""Plans: what they ask for, and how they are refused."""

from __future__ import annotations

import hashlib
import json
import os
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument
from duly.kernel.source import InvalidDocument
from duly.publishing.keys import plan_key, post_keys
from duly.publishing.plan import Plan, fill, load, placeholders
from duly.publishing.post import Asset

PLAN: dict[str, Any] = {
    "brand": "orchard",
    "timezone": "Europe/Rome",
    "channels": ["pictures", "blog"],
    "template": {
        "body": "{headline}. {text}",
        "title": "{headline}",
        "overrides": {"blog": {"body": "{text}", "title": "Blog: {headline}"}},
    },
    "slots": [
        {
            "at": "2026-03-27T18:00",
            "placeholders": {"headline": "Apples", "text": "They are ripe."},
            "assets": [{"url": "https://example.org/a.jpg", "checksum": "sha256:" + "0" * 64, "alt": "apples"}],
            "first_comment": "{headline}!",
            "link": "https://example.org/apples",
            "options": {"status": "publish"},
        },
        {
            "at": "2026-03-28T09:00:00+01:00",
            "channels": ["blog"],
            "title": "Pears",
            "placeholders": {"text": "And pears."},
        },
    ],
}


def changed(**more: Any) -> dict[str, Any]:
    return deepcopy(PLAN) | more


def slot(**more: Any) -> dict[str, Any]:
    """The plan with one slot, changed."""
    return changed(slots=[deepcopy(PLAN["slots"][0]) | more])


def keys(plan: dict[str, Any]) -> list[str]:
    return [one.key for one in load(plan).items]


def problems(document: Any) -> list[str]:
    with pytest.raises(InvalidDocument) as error:
        load(document)
    return [str(one) for one in error.value.problems]


# ---------------------------------------------------------------------- what a plan asks for


def test_a_plan_is_a_post_for_each_slot_and_channel_in_order_of_time() -> None:
    plan = load(PLAN)
    assert [(one.channel, one.run_at.isoformat()) for one in plan.items] == [
        ("pictures", "2026-03-27T17:00:00+00:00"),
        ("blog", "2026-03-27T17:00:00+00:00"),
        ("blog", "2026-03-28T08:00:00+00:00"),
    ]
    picture, blog, pears = (one.payload for one in plan.items)
    assert picture == {
        "brand": "orchard", "caption": "Apples. They are ripe.", "title": "Apples", "link": "https://example.org/apples",
        "assets": [{"kind": "image", "url": "https://example.org/a.jpg", "checksum": "sha256:" + "0" * 64, "alt": "apples"}],
        "ig_first_comment": "Apples!", "options": {"status": "publish"}, "scheduled_at": "2026-03-27T17:00:00Z",
    }  # fmt: skip
    # R002-4: the override of the channel, and the placeholders of the slot
    assert (blog["caption"], blog["title"]) == ("They are ripe.", "Blog: Apples")
    assert (pears["caption"], pears["title"]) == ("And pears.", "Pears")
    assert "assets" not in pears


def test_the_key_is_made_of_what_is_published() -> None:
    # R002-3, R002-4
    at = datetime(2026, 3, 27, 17, tzinfo=UTC)
    asset = Asset(checksum="sha256:" + "0" * 64, alt="apples")
    item = load(PLAN).items[0]
    assert item.old_key == plan_key("orchard", "pictures", at, [asset], "Apples. They are ripe.")
    local = ("2026-03-27T18:00:00", "Europe/Rome")
    made = post_keys("orchard", "pictures", at, *local, [asset], item.payload)
    assert (item.key, item.also) == (made.key, made.also)


def test_the_same_plan_written_in_another_way_has_the_same_keys() -> None:
    # R002-3: 18:00 in Rome is 17:00Z; a template that says the same makes no second post
    same = slot(at="2026-03-27T17:00:00Z")
    same["template"] = "{a} {b}"
    same["channels"] = ["blog"]
    same["slots"][0] |= {
        "placeholders": {"a": "They are", "b": "ripe."},
        "title": "Blog: Apples",
        "first_comment": "Apples!",
    }
    one = load(PLAN).items[1]
    assert keys(same) == [*one.also]
    same["slots"][0]["at"] = "2026-03-27T18:00"
    assert keys(same) == [one.key]


CHANGES: list[dict[str, Any]] = [
    slot(at="2026-03-27T18:01"),
    slot(placeholders={"headline": "Apples", "text": "They are red."}),
    slot(assets=[]),
    slot(assets=[{"reference": "library/7"}]),
    slot() | {"brand": "garden"},
    slot() | {"timezone": "Europe/London"},
    slot() | {"template": "{headline}: {text}"},
]


@pytest.mark.parametrize("other", CHANGES, ids=range(len(CHANGES)))
def test_a_change_of_what_is_published_makes_other_keys(other: dict[str, Any]) -> None:
    # R002-3
    assert not set(keys(other)) & set(keys(slot()))


@pytest.mark.parametrize("same", [{"title": "Other"}, {"link": "https://example.org/x"}, {"options": {}}, {"first_comment": None}], ids=str)  # fmt: skip
def test_title_link_options_and_first_comment_are_in_the_key(same: dict[str, Any]) -> None:
    # R002-22
    assert not set(keys(slot(**same))) & set(keys(slot()))


def test_local_times_on_days_when_clocks_change() -> None:
    # HOUSE 9: the first instant after a gap, the first pass of a fold
    def at(local: str) -> str:
        return load(slot(at=local)).items[0].run_at.strftime("%d %H:%M")

    assert at("2026-03-29T02:30") == "29 01:00"
    assert at("2026-10-25T02:30") == "25 00:30"
    assert at("2026-10-25T02:30+01:00") == "25 01:30"
    assert at("2026-10-25 02:30") == "25 00:30"


def test_an_instant_with_an_offset_needs_no_zone_of_the_plan() -> None:
    plan = slot(at="2026-03-27T17:00Z")
    del plan["timezone"]
    assert load(plan).timezone is None
    plan["slots"][0]["at"] = "2026-03-27T17:00"
    assert "slots[0].at is '2026-03-27T17:00', without an offset" in problems(plan)[0]


def test_files_beside_the_plan_are_known_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # R002-4: the checksum is computed where none is given
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.jpg").write_bytes(b"apples")
    file = tmp_path / "posts.json"
    file.write_text(json.dumps(slot(assets=["img/a.jpg", "https://example.org/b.mp4?x=1"])))
    monkeypatch.chdir(os.sep)
    one, two = load(file).items[0].payload["assets"]
    assert one == {
        "kind": "image",
        "path": str(tmp_path / "img/a.jpg"),
        "checksum": f"sha256:{hashlib.sha256(b'apples').hexdigest()}",
    }
    assert two == {"kind": "video", "url": "https://example.org/b.mp4?x=1"}
    # another folder, the same content: the same key
    first = load(file).items[0].key
    (tmp_path / "img" / "a.jpg").rename(tmp_path / "b.jpg")
    file.write_text(json.dumps(slot(assets=["b.jpg", "https://example.org/b.mp4?x=1"])))
    assert load(file).items[0].key == first


def test_a_file_may_be_somewhere_else_where_something_names_the_content(tmp_path: Path) -> None:
    named = slot(assets=[{"path": "none.jpg", "checksum": "md5:x"}, {"path": "none.jpg", "reference": "library/1"}])
    assert len(load(named).items[0].payload["assets"]) == 2
    (tmp_path / "a.jpg").write_bytes(b"apples")
    file = tmp_path / "posts.json"
    file.write_text(json.dumps(slot(assets=[{"path": "a.jpg", "checksum": "sha256:" + "0" * 64}])))
    assert "whose content has another checksum" in problems(file)[0]


def test_a_plan_from_somewhere_else_names_no_files_of_this_machine() -> None:
    with pytest.raises(InvalidDocument, match="comes from somewhere else"):
        load(slot(assets=["/etc/hostname"]), files=False)
    assert isinstance(load(PLAN, files=False), Plan)


# ---------------------------------------------------------------------- what is refused

BAD = """\
brand: orchard
key: mine
timezone: Europe/Rom
chanels: [x]
channels: [pictures, blog, blog]
template: "{headline}"
slots:
  - at: 2026-03-29
    placeholders: {headline: 1.50}
    idempotency_key: k
    assets: [none.jpg, {kind: gif, url: "https://example.org/a.gif"}, {alt: z}]
  - at: 2026-03-29T10:00
    channels: [twitter]
    placeholders: {headline: Apples, text: more}
  - Apples
  - at: 2026-03-29T10:00+02:00
    placeholders: {headline: Apples}
  - at: 2026-03-29T08:00Z
    placeholders: {headline: Apples}
"""


def test_everything_that_is_wrong_is_said_at_once_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "posts.yaml"
    file.write_text(BAD)
    found = [one.removeprefix(f"{file}:") for one in problems(file)]
    assert [one.partition(" ")[0] + " " + one.split()[1] for one in found] == [
        "2:1: key", "3:11: timezone", "4:1: chanels", "5:28: channels[2]", "8:9: slots[0].at", "9:30: slots[0].placeholders.headline",
        "10:5: slots[0].idempotency_key", "11:14: slots[0].assets[0]", "11:31: slots[0].assets[1].kind", "11:71: slots[0].assets[2]",
        "13:16: slots[1].channels[0]", "15:5: slots[2]", "18:5: slots[4]", "18:5: slots[4]",
    ]  # fmt: skip
    assert "Did you mean channels?" in found[2]
    assert "is the same post on pictures as" in found[-2]


WRONG: list[tuple[dict[str, Any], str]] = [
    (changed(key="k"), "key is given, and a plan decides its keys itself."),  # T002-o
    (slot(idempotency_key="k"), "slots[0].idempotency_key is given"),
    ({}, "the document has no brand."),
    (changed(brand=""), "brand is empty."),
    (changed(brand=7), "brand is of type int"),
    (changed(channels=[]), "channels has 0 entries."),
    (changed(channels="blog"), "channels is a text."),
    (changed(channels=["pictures", ""]), "channels[1] is empty."),
    (changed(template="{headline"), "template has a single {."),
    (changed(template="{head line}"), "template has '{head line}', which is no placeholder."),
    (changed(template={"title": "x"}), "template has no body."),
    (changed(template={"body": "x", "overrides": {"blg": "x"}}), "template.overrides.blg is not known here. Did you mean blog?"),
    (changed(template={"body": "x", "overrides": {"blog": 7}}), "template.overrides.blog is a number."),
    (changed(slots=[]), "slots has 0 entries."),
    (changed(slots={}), "slots is a mapping."),
    (slot(at=7), "slots[0].at is a number."),
    (slot(at="soon"), "slots[0].at is 'soon'."),
    (slot(at="2026-13-01T10:00"), "slots[0].at is '2026-13-01T10:00'."),
    (slot(at="9999-01-01T10:00Z"), "slots[0].at is 9999"),
    (slot(at=None), "slots[0] has no at."),
    (slot(placeholders={"headline": "Apples"}), "slots[0] gives no value for pictures to {text}."),
    (slot(placeholders=PLAN["slots"][0]["placeholders"] | {"txt": "x"}), "slots[0].placeholders.txt is used by no text of this slot."),
    (slot(placeholders={"a-b": "x"}), "slots[0].placeholders.a-b cannot be the name of a placeholder."),
    (slot(placeholders={"headline": 39}), "slots[0].placeholders.headline is a number. Write it in quotes"),
    (slot(placeholders="x"), "slots[0].placeholders is a text."),
    (slot(first_comment="{nobody}"), "slots[0].first_comment gives no value to {nobody}."),
    (slot(assets="a.jpg"), "slots[0].assets is a text."),
    (slot(assets=[{"kind": "image"}]), "slots[0].assets[0] has neither url, path nor reference."),
    (slot(assets=[{"url": 7}]), "slots[0].assets[0].url is a number."),
    (slot(assets=["none.jpg"]), "slots[0].assets[0] is 'none.jpg', and there is no such file."),
    (slot(assets=["a\u0000b"]), "slots[0].assets[0] contains the NUL character"),
    (slot(assets=[{"url": "https://example.org/a.jpg", "checksum": "sha256:zz"}]), "slots[0].assets[0].checksum is 'sha256:zz'."),
    (slot(options=[]), "slots[0].options is a list."),
    (slot(link=7), "slots[0].link is a number."),
    (slot(titel="x"), "slots[0].titel is not known here. Did you mean title?"),
    (slot(title="a\u0000"), "contains the NUL character"),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "problem"), WRONG, ids=[w[1][:60].replace("\0", "") for w in WRONG])
def test_a_plan_that_cannot_be_meant_is_refused(plan: dict[str, Any], problem: str) -> None:
    found = problems(plan)
    assert any(problem in one for one in found), found


def test_a_file_that_is_no_plan_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text("- x")
    assert "the document is a list." in problems(tmp_path / "a.yaml")[0]


# ---------------------------------------------------------------------- templates


def test_braces_are_doubled_where_they_are_meant() -> None:
    assert fill("{{a}} {a} }}", {"a": "{b} {{"}) == "{a} {b} {{ }"
    assert placeholders("{{a}} {b} {b}") == ("b", "b")


@given(st.text())
def test_a_template_is_filled_or_refused(text: str) -> None:
    try:
        names = placeholders(text)
    except InvalidArgument:
        return
    assert isinstance(fill(text, dict.fromkeys(names, "x")), str)


@given(st.text(), st.text())
def test_what_is_filled_in_stands_there_as_it_was_given(before: str, value: str) -> None:
    doubled = before.replace("{", "{{").replace("}", "}}")
    assert fill(doubled + "{x}", {"x": value}) == before + value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["at", "body", "url", "path", "title", "x"]), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(st.sampled_from(sorted(PLAN)), st.sampled_from([None, *sorted(PLAN["slots"][0])]), json_values)
def test_whatever_stands_in_a_plan_it_is_read_or_refused(name: str, inner: str | None, value: Any) -> None:
    plan = slot(**{inner: value}) if inner else changed(**{name: value})
    try:
        items = load(plan).items
    except InvalidDocument as error:
        assert error.problems
    else:
        assert len({one.key for one in items}) == len(items)
        assert all(one.run_at.tzinfo is UTC for one in items)

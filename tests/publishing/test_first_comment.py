"""The first comment: one child, one comment, and a parent that nothing of it touches (R002-18 to R002-20, T002-j, T002-k, B065)."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.jobs.enqueue import JobMaker
from duly.kernel.verdict import Kind
from duly.publishing import Publication, Publishing
from duly.publishing.comments import comment_hash, comment_key, normalised
from duly.publishing.view import COMMENT
from duly.testing import ManualClock, drain
from publishing.hands import POST, WITH_COMMENT, Ear, World, actions, app_of, go, later, put, sql, verdict
from publishing.test_unknown import lose, stand

TEXT = WITH_COMMENT["ig_first_comment"]


def child_of(room: Publishing, parent: int) -> Publication:
    [ident] = room.get(parent).children
    return room.get(ident)


def test_a_post_with_a_first_comment_has_one_child_that_comments_once(room: Publishing, world: World) -> None:
    # R002-18
    parent = put(room, WITH_COMMENT)
    assert go(room, parent).status == "completed"
    child = child_of(room, parent)
    assert (child.type, child.status, child.parent_id, child.channel) == ("ig_first_comment", "completed", parent, "ig")
    assert (child.idempotency_key, child.remote_id) == (comment_key("m1", TEXT), "k1")
    assert world.comments == [("m1", TEXT, "orchard")]
    assert [c for c in world.calls if c != "limits"] == ["publish", "comments", "comment"]
    assert (actions(room, child.id), actions(room, parent)) == (["FIRST_COMMENT_PUBLISHED"], ["PUBLISHED"])


@pytest.mark.parametrize(
    "there", [TEXT, "  first! ciao ", "FIRST!\nCIAO", "First!  Ciao\ufe0f"], ids=["same", "trimmed", "case", "emoji"]
)
def test_an_identical_comment_that_is_there_is_not_written_again(room: Publishing, world: World, there: str) -> None:
    # R002-19, T002-j
    world.comments = [
        ("m1", "other", "somebody"),
        ("m1", there, "orchard"),
        ("m1", "newer", "somebody"),
        ("m2", TEXT, "orchard"),
    ]
    parent = put(room, WITH_COMMENT)
    go(room, parent)
    child = child_of(room, parent)
    assert (child.status, child.remote_id is not None, world.calls.count("comment"), len(world.comments)) == (
        "completed",
        True,
        0,
        4,
    )


def test_a_comment_of_somebody_else_is_not_ours_where_our_name_is_known(room: Publishing, world: World) -> None:
    # T002-j
    world.comments = [("m1", TEXT, "somebody")]
    go(room, put(room, WITH_COMMENT))
    assert world.calls.count("comment") == 1
    world.username = ""
    world.comments = [("m2", TEXT, "somebody")]
    go(room, put(room, WITH_COMMENT))
    assert world.calls.count("comment") == 1


@given(st.text())
def test_two_texts_that_read_alike_have_one_hash_and_it_is_that_of_their_form(text: str) -> None:
    # T002-j
    assert normalised(normalised(text)) == normalised(text)
    assert comment_hash(f"  {text}\t") == comment_hash(text)
    assert comment_hash(unicodedata.normalize("NFD", text)) == comment_hash(text)


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_another_medium_or_another_text_is_another_key(media: str, text: str, other: str, more: str) -> None:
    # R002-18, T002-j
    same = (media, normalised(text)) == (other, normalised(more))
    if "\x1f" not in media + other:
        assert (comment_key(media, text) == comment_key(other, more)) is same


def test_a_child_that_cannot_be_made_leaves_the_parent_as_it_is(
    room: Publishing, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R002-20, B065
    ear, told = Ear(room), []

    @room.on("ig_first_comment_error")
    def hear(publication: Publication, facts: dict[str, Any]) -> None:
        told.append((publication.id, facts["error"]))

    original = JobMaker.make_in

    def refuse(self: JobMaker, connection: Any, new: Any) -> Any:
        if new[0].task == COMMENT:
            original(self, connection, new)  # written, and then the transaction is in trouble
            connection.exec_driver_sql("SELECT * FROM no_such_table")
        return original(self, connection, new)

    parent = put(room, WITH_COMMENT)
    monkeypatch.setattr(JobMaker, "make_in", refuse)
    seen = go(room, parent)
    assert (seen.status, seen.remote_id, seen.children, len(world.posts)) == ("completed", "m1", (), 1)
    assert [e["job"] for e in ear.named("ig_first_comment_error")] == [parent]
    assert [t[0] for t in told] == [parent]
    assert "its job could not be made" in told[0][1]


def test_without_the_posts_id_there_is_no_child_and_that_is_told(room: Publishing, world: World) -> None:
    # R002-20
    ear = Ear(room)
    world.script = ["id"]
    seen = go(room, put(room, WITH_COMMENT))
    assert (seen.status, seen.children, len(ear.named("ig_first_comment_error"))) == ("completed", (), 1)


def test_a_child_that_fails_for_good_is_told_once_and_its_parent_stands(room: Publishing, world: World) -> None:
    # R002-20, T002-k, B065
    ear, told = Ear(room), []

    @room.on("ig_first_comment_error")
    async def hear(publication: Publication, facts: dict[str, Any]) -> None:
        told.append((publication.type, facts["parent_id"], facts["error"]))

    world.comment_script = [verdict(Kind.PERMANENT, "comments are disabled")]
    parent = put(room, WITH_COMMENT)
    assert go(room, parent).status == "completed"
    child = child_of(room, parent)
    assert (child.status, child.error) == ("failed", "comments are disabled")
    assert told == [("ig_first_comment", parent, "comments are disabled")]
    assert len(ear.named("ig_first_comment_error")) == 1
    assert room.get(parent).status == "completed"


def test_an_application_with_two_doors_is_told_once(room: Publishing, world: World) -> None:
    second = Publishing(app_of(room))
    second.channel("ig", world.connector())
    ear = Ear(second)
    world.comment_script = [verdict(Kind.PERMANENT, "comments are disabled")]
    go(second, put(second, WITH_COMMENT))
    assert len(ear.named("ig_first_comment_error")) == 1


def test_a_post_that_is_not_visible_yet_is_commented_on_later(
    room: Publishing, world: World, clock: ManualClock
) -> None:
    # T002-k
    ear = Ear(room)
    world.comment_script = [verdict(Kind.TRANSIENT, "the media is not ready")]
    parent = put(room, WITH_COMMENT)
    go(room, parent)
    child = child_of(room, parent)
    assert (child.status, child.attempts) == ("pending", 1)
    assert later(room, clock, child.id).status == "completed"
    assert ear.named("ig_first_comment_error") == []


@pytest.mark.parametrize("answer", ["lost", "gone"])
def test_a_comment_whose_answer_was_lost_is_looked_for_first(
    room: Publishing, world: World, clock: ManualClock, answer: str
) -> None:
    # T002-j
    world.edit = str.strip
    world.comment_script = [answer]
    parent = put(room, {**POST, "ig_first_comment": "First! "})
    go(room, parent)
    child = child_of(room, parent)
    assert child.status == "pending"
    assert later(room, clock, child.id).status == "completed"
    assert world.comments == [("m1", "First!", "orchard")]


def test_at_its_last_attempt_a_comment_is_looked_for_at_once(room: Publishing, world: World) -> None:
    room.channel("ig", world.connector(), max_attempts=1)
    world.comment_script = ["lost"]
    parent = put(room, WITH_COMMENT)
    go(room, parent)
    assert (child_of(room, parent).status, len(world.comments)) == ("completed", 1)


def test_a_comment_lost_in_its_last_run_is_told(room: Publishing, world: World, clock: ManualClock) -> None:
    # R002-20
    ear = Ear(room)
    room.channel("ig", world.connector(), max_attempts=1)
    world.comment_script = [verdict(Kind.THROTTLED, after=10)]
    parent = put(room, WITH_COMMENT)
    go(room, parent)
    child = child_of(room, parent)
    lose(room, child.id, clock)
    drain(app_of(room))
    assert room.get(child.id).status == "failed"
    assert [e["job"] for e in ear.named("ig_first_comment_error")] == [child.id]


def test_a_parent_that_runs_again_has_the_same_child(room: Publishing, world: World, clock: ManualClock) -> None:
    # B065, T002-j: lost after the answer was written, before the run was settled
    parent = put(room, WITH_COMMENT, key="k")
    stand(room, parent, "published", "m1")  # type: ignore[arg-type]
    for _ in range(2):
        lose(room, parent, clock)
        drain(app_of(room), limit=1)
        if room.get(parent).status == "completed":
            break
    go(room, parent)
    assert (len(room.get(parent).children), len(world.comments), world.posts) == (1, 1, [])
    assert sql(room, "SELECT count(*) FROM job_keys") == [(2,)]


def test_two_posts_with_the_same_comment_have_a_child_each_and_a_channel_without_comments_has_none(
    room: Publishing, world: World
) -> None:
    room.channel("page", world.connector(comments=False))
    parents = [
        put(room, WITH_COMMENT),
        put(room, WITH_COMMENT),
        put(room, WITH_COMMENT, "page"),
        put(room, {**POST, "ig_first_comment": "  "}),
    ]
    drain(app_of(room))
    assert [len(room.get(p).children) for p in parents] == [1, 1, 0, 0]
    assert len(world.comments) == 2

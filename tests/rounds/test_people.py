"""What people do: groups, members, prompts; submissions, comments and votes, and when they are refused."""

from __future__ import annotations

from datetime import time, timedelta
from typing import Any

import pytest

from duly import Duly
from duly.kernel.errors import InvalidArgument, NotFound, WrongState
from duly.rounds import Channel, Round, Rounds
from duly.testing import ManualClock
from rounds.hands import ask, ready, utc

SECOND = timedelta(seconds=1)


@pytest.fixture
def opened(rounds: Rounds, clock: ManualClock) -> Round:
    """An open round of a group with three members."""
    ready(rounds, "a", members=3, drop_time="11:00")
    ready(rounds, "b", members=1, drop_time="11:00")
    rounds.plan()
    clock.set(utc("2026-06-01 11:00"))
    rounds.open()
    return rounds.list("a")[0]


# --- Taking part -------------------------------------------------------------------------------------------------------


def test_a_member_submits_once_and_may_edit_it(rounds: Rounds, clock: ManualClock, opened: Round) -> None:
    made = rounds.submit(opened.id, "m0", "the sea")
    with pytest.raises(InvalidArgument, match="has submitted to this round already"):
        rounds.submit(opened.id, "m0", "the hills")
    clock.advance(60)
    edited = rounds.edit_submission(made.id, "m0", "the seas")
    assert (edited.text, edited.created_at, edited.edited_at) == ("the seas", utc("2026-06-01 11:00"), clock.now())
    with pytest.raises(InvalidArgument, match="whose submission this is not"):
        rounds.edit_submission(made.id, "m1", "mine")


def test_a_member_has_one_vote_and_may_move_it(rounds: Rounds, clock: ManualClock, opened: Round) -> None:
    first, second = (rounds.submit(opened.id, name, name) for name in ("m0", "m1"))
    rounds.vote(first.id, "m2")
    rounds.vote(second.id, "m0")
    clock.advance(60)
    moved = rounds.vote(second.id, "m2")
    assert (moved.created_at, moved.edited_at) == (utc("2026-06-01 11:00"), clock.now())
    archive = rounds.show(opened.id)
    assert len(archive.votes) == 2
    assert (archive.votes_for(first.id), archive.votes_for(second.id)) == (0, 2)


def test_comments_can_be_edited_by_those_who_made_them(rounds: Rounds, opened: Round) -> None:
    submission = rounds.submit(opened.id, "m0", "the sea")
    comments = [rounds.comment(submission.id, "m1", f"word {n}") for n in range(3)]
    rounds.edit_comment(comments[1].id, "m1", "another word")
    with pytest.raises(InvalidArgument, match="whose comment this is not"):
        rounds.edit_comment(comments[1].id, "m0", "mine")
    assert [c.text for c in rounds.show(opened.id).comments] == ["word 0", "another word", "word 2"]


@pytest.mark.parametrize("status", ["over", "closed"])
def test_from_its_end_on_a_round_takes_nothing_and_can_be_read(
    rounds: Rounds, clock: ManualClock, opened: Round, status: str
) -> None:
    # R000-15, R000-16, X6, C029: with and without a closing tick
    submission = rounds.submit(opened.id, "m0", "the sea")
    comment = rounds.comment(submission.id, "m1", "yes")
    vote = rounds.vote(submission.id, "m2")
    acts: list[Any] = [
        lambda: rounds.submit(opened.id, "m1", "late"),
        lambda: rounds.edit_submission(submission.id, "m0", "late"),
        lambda: rounds.comment(submission.id, "m1", "late"),
        lambda: rounds.edit_comment(comment.id, "m1", "late"),
        lambda: rounds.vote(submission.id, "m1"),
    ]
    before = rounds.show(opened.id)
    assert opened.close_at is not None
    clock.set(opened.close_at)
    if status == "closed":
        rounds.close()
    for act in acts:
        with pytest.raises(WrongState, match="is closed, so it cannot take"):
            act()
    after = rounds.show(opened.id)
    assert (after.submissions, after.comments, after.votes) == (before.submissions, (comment,), (vote,))
    assert after.round.prompt_text == opened.prompt_text
    assert after.round.label(clock.now()) == status
    clock.set(opened.close_at - SECOND)
    if status == "over":
        acts[0]()  # a second before its end it was taken


def test_a_round_that_is_not_open_yet_takes_nothing(rounds: Rounds) -> None:
    ready(rounds, "a", members=1)
    rounds.plan()
    with pytest.raises(WrongState, match="is scheduled, so it cannot take a submission"):
        rounds.submit(rounds.list()[0].id, "m0", "early")


def test_only_members_of_the_group_take_part(rounds: Rounds, opened: Round) -> None:
    stranger = rounds.members.all("b")[0]
    with pytest.raises(NotFound):
        rounds.submit(opened.id, stranger.id, "hello")
    with pytest.raises(NotFound):
        rounds.submit(opened.id, "nobody", "hello")
    rounds.members.set("a", "m1", is_active=False)
    with pytest.raises(InvalidArgument, match="has left"):
        rounds.submit(opened.id, "m1", "hello")
    with pytest.raises(NotFound):
        rounds.vote(999, "m0")
    with pytest.raises(NotFound):
        rounds.submit(999, "m0", "hello")


@pytest.mark.parametrize("words", ["", "  ", "x" * 10_001, "a\x00b", 7])
def test_texts_that_cannot_be_kept_are_refused(rounds: Rounds, opened: Round, words: Any) -> None:
    with pytest.raises(InvalidArgument):
        rounds.submit(opened.id, "m0", words)


# --- Groups ------------------------------------------------------------------------------------------------------------


def test_a_group_comes_back_as_it_was_made(rounds: Rounds) -> None:
    made = rounds.groups.add(
        "a", "Asia/Kathmandu", drop_time=time(6, 30), notifications=False, cooldown=timedelta(hours=1), tenant="acme"
    )
    assert made == rounds.groups.get(made.id, tenant="acme") == rounds.groups.get("a", tenant="acme")
    rounds.members.add("a", "ada", tenant="acme")
    for foreign in ("beta", None):  # no number and no name of another tenant's group opens it
        for door in (rounds.groups.get, rounds.members.all, rounds.prompts.all):
            with pytest.raises(NotFound):
                door(made.id, tenant=foreign)
        with pytest.raises(NotFound):
            rounds.groups.set(made.id, zone="UTC", tenant=foreign)
        with pytest.raises(NotFound):
            rounds.next(made.id, tenant=foreign)
    assert (made.zone, made.drop_time, made.notifications, made.cooldown) == ("Asia/Kathmandu", "06:30", False, 3600)
    with pytest.raises(NotFound):
        rounds.groups.get("a")
    assert rounds.groups.add("a", "UTC").id != made.id  # another tenant's
    assert [g.tenant for g in rounds.groups.all()] == ["acme", "default"]
    assert [g.id for g in rounds.groups.all(after=made.id, limit=1)] == [made.id + 1]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("zone", {"zone": "Europe/Pariss"}),
        ("zone", {"zone": "+02:00"}),
        ("drop_time", {"drop_time": "25:00"}),
        ("cooldown", {"cooldown": -1}),
        ("name", {"name": ""}),
        ("name", {"name": "12"}),
        ("is_active", {"is_active": 1}),
        ("notifications", {"notifications": "yes"}),
    ],
)
def test_a_group_that_cannot_be_meant_is_refused_by_the_field(
    rounds: Rounds, field: str, given: dict[str, Any]
) -> None:
    # B010, T000-n
    with pytest.raises(InvalidArgument) as told:
        rounds.groups.add(**{"name": "a", "zone": "UTC", **given})
    assert told.value.field == field
    made = rounds.groups.add("fine", "UTC")
    with pytest.raises(InvalidArgument) as told:
        rounds.groups.set("fine", **given)
    assert told.value.field == field
    assert rounds.groups.get("fine") == made


def test_a_name_is_taken_once(rounds: Rounds) -> None:
    rounds.groups.add("a", "UTC")
    rounds.groups.add("b", "UTC")
    with pytest.raises(InvalidArgument, match="there is a group of that name"):
        rounds.groups.add("a", "UTC")
    with pytest.raises(InvalidArgument, match="there is a group of that name"):
        rounds.groups.set("b", name="a")
    rounds.members.add("a", "ada")
    with pytest.raises(InvalidArgument, match="has a member of that name"):
        rounds.members.add("a", "ada")
    rounds.members.add("b", "ada")


def test_members_and_their_channels(rounds: Rounds) -> None:
    rounds.groups.add("a", "UTC")
    made = rounds.members.add("a", "ada", email="ada@example.org", channels=["log", "email"])
    assert made.channels == (Channel.EMAIL, Channel.LOG)
    assert "example.org" not in repr(made)
    for wrong in (
        {"channels": ["webhook"]},
        {"email": None},
        {"email": "nothing"},
        {"webhook": "ftp://x"},
        *(
            {"webhook": url}
            for url in (
                "http://[::1",
                "http://[nothing]/",
                "https://",
                "https:///x",
                "https://h:port/",
                "https://h:99999/",
            )
        ),
        {"channels": ["sms"]},
    ):
        with pytest.raises(InvalidArgument) as told:
            rounds.members.set("a", "ada", **wrong)  # type: ignore[arg-type]
        assert "ada@" not in str(told.value)
    changed = rounds.members.set("a", "ada", email=None, channels=())
    assert (changed.email, changed.channels) == (None, ())
    assert rounds.members.all("a") == [changed]


def test_what_operators_do_is_audited_without_addresses_and_texts(rounds: Rounds, app: Duly) -> None:
    group = rounds.groups.add("a", "UTC", actor="ops")
    rounds.groups.set("a", zone="Europe/Paris", drop_time="09:00", actor="ops", reason="moved")
    rounds.groups.set("a", zone="Europe/Paris", actor="ops")  # nothing changes, nothing is written
    rounds.members.add("a", "ada", email="ada@example.org", actor="ops")
    rounds.members.set("a", "ada", email="lovelace@example.org", actor="ops", reason="married")
    (prompt,) = rounds.prompts.add("a", "who are you?", actor="ops")
    rounds.prompts.set(prompt.id, is_active=False, actor="ops", reason="rude")
    rounds.prompts.remove(prompt.id, actor="ops", reason="very rude")
    rows = ask(app, "SELECT actor, action, entity, entity_id, meta FROM audit_log ORDER BY id")
    assert [row[1] for row in rows] == [
        "GROUP_CREATED", "GROUP_CHANGED", "MEMBER_ADDED", "MEMBER_CHANGED", "PROMPT_ADDED", "PROMPT_CHANGED", "PROMPT_REMOVED",
    ]  # fmt: skip
    assert {row[0] for row in rows} == {"ops"}
    assert rows[0][3] == str(group.id)
    said = " ".join(str(row[4]) for row in rows)
    assert "moved" in said
    assert "example.org" not in said
    assert "who are you" not in said


def test_the_next_openings_of_all_groups_can_be_asked_and_nothing_is_written(
    rounds: Rounds, app: Duly, clock: ManualClock
) -> None:
    ready(rounds, "Paris", "Europe/Paris")
    ready(rounds, "New York", "America/New_York", drop_time="09:00")
    ready(rounds, "off", is_active=False)
    ready(rounds, "mute", prompts=0)
    told = {rounds.groups.get(u.group_id).name: u for u in rounds.next()}
    assert told["Paris"].at == utc("2026-06-01 16:00")
    assert told["New York"].at == utc("2026-06-01 13:00")
    assert (told["off"].at, told["off"].reason) == (None, "inactive")
    assert (told["mute"].at, told["mute"].reason) == (None, "NO_ELIGIBLE_PROMPT")
    assert rounds.list() == []
    rounds.plan()
    (planned,) = rounds.next("Paris")
    assert (planned.at, planned.planned) == (utc("2026-06-01 16:00"), True)
    clock.set(utc("2026-06-01 16:02"))
    rounds.open()
    assert rounds.next("Paris")[0].at == utc("2026-06-03 16:00")  # a day open, a day of waiting
    assert rounds.next("Paris", now=utc("2026-06-05 12:30"))[0].at == utc("2026-06-05 16:00")


def test_rounds_are_listed_newest_first_by_group_and_state(rounds: Rounds, clock: ManualClock) -> None:
    for name in ("a", "b"):
        ready(rounds, name, cooldown=0)
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    rounds.open()
    clock.set(utc("2026-06-02 18:00"))
    rounds.close()
    rounds.plan()
    assert [r.id for r in rounds.list()] == [4, 3, 2, 1]
    assert [r.id for r in rounds.list(below=3, limit=1)] == [2]
    assert [r.status for r in rounds.list("a")] == ["scheduled", "closed"]
    assert len(rounds.list(status="closed")) == 2
    assert rounds.list(tenant="other") == []
    with pytest.raises(InvalidArgument):
        rounds.list(status="late")
    with pytest.raises(InvalidArgument):
        rounds.list(limit=0)


def test_instants_are_kept_in_utc_whatever_the_zone_of_the_group(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    # R000-12
    ready(rounds, "a", "Asia/Kathmandu")
    rounds.plan()
    clock.set(utc("2026-06-01 12:15"))
    rounds.open()
    column = "open_at / 1000000" if app.db.is_sqlite else "extract(epoch FROM open_at)"
    assert int(ask(app, f"SELECT {column} FROM rounds")[0][0]) == int(utc("2026-06-01 12:15").timestamp())
    (opened,) = rounds.list()
    assert (str(opened.open_at), str(opened.close_at)) == ("2026-06-01 12:15:00+00:00", "2026-06-02 12:15:00+00:00")


def test_tenants_never_see_each_others_rounds_prompts_or_words(
    rounds: Rounds, clock: ManualClock, opened: Round
) -> None:
    submission = rounds.submit(opened.id, "m0", "mine")
    comment = rounds.comment(submission.id, "m1", "well")
    [prompt, *_] = rounds.prompts.all(opened.group_id)
    theirs = ready(rounds, "theirs", members=1, tenant="other")
    rounds.tick()
    attempts: list[Any] = [
        lambda: rounds.get(opened.id, tenant="other"),
        lambda: rounds.show(opened.id, tenant="other"),
        lambda: rounds.submit(opened.id, "m2", "x", tenant="other"),
        lambda: rounds.edit_submission(submission.id, "m0", "x", tenant="other"),
        lambda: rounds.comment(submission.id, "m0", "x", tenant="other"),
        lambda: rounds.edit_comment(comment.id, "m1", "x", tenant="other"),
        lambda: rounds.vote(submission.id, "m0", tenant="other"),
        lambda: rounds.prompts.set(prompt.id, text="x", tenant="other"),
        lambda: rounds.prompts.remove(prompt.id, tenant="other"),
        lambda: rounds.groups.get(theirs.id),
        lambda: rounds.list(group=theirs.id),
    ]
    for attempt in attempts:
        with pytest.raises(NotFound):
            attempt()
    assert rounds.show(opened.id).submissions == (submission,)
    assert {r.group_id for r in rounds.list(tenant="other")} == {theirs.id}
    [one] = rounds.list(tenant="other")
    assert rounds.get(one.id, tenant="other") == one


def test_a_number_that_no_row_can_have_is_not_found(rounds: Rounds, opened: Round) -> None:
    for number in (2**63, 0, -1):
        for question in (
            rounds.get,
            rounds.show,
            rounds.groups.get,
            lambda n: rounds.submit(n, "m0", "x"),
            lambda n: rounds.vote(n, "m0"),
        ):
            with pytest.raises(NotFound):
                question(number)
    assert len(rounds.list(below=2**63)) == 2

"""Rounds on pages: a day of each group on its own clock, what is open and for how long, the archive, and what operators do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from duly import Duly
from duly.rounds import Rounds
from duly.rounds.group import Group
from duly.rounds.plan import Upcoming
from duly.rounds.round import Round, Status
from duly.testing import ManualClock
from duly.web.api.common import cursor
from duly.web.dashboard.pages.rounds import WIDTH, band, row
from duly.web.dashboard.words import countdown, exactly
from web.dashboard.conftest import Person
from web.dashboard.scene import Town

NOW = datetime(2026, 3, 27, 9, tzinfo=UTC)
HOUR = WIDTH / 24


def opened(hours: float) -> Round:
    """A round in UTC that has been open for some hours."""
    at = NOW - timedelta(hours=hours)
    return Round(
        1, "default", 1, at.date(), Status.OPEN, "UTC", f"{at:%H:%M}", at, at, open_at=at, close_at=at + timedelta(hours=24), opened_at=at,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hours", "gone", "left"),
    [
        (0, (), ((9, 15), (0, 9))),  # it has opened this moment: all of the day is left, over midnight
        (3, ((6, 3),), ((9, 15), (0, 6))),
        (12, ((21, 3), (0, 9)), ((9, 12),)),  # since yesterday evening
        (24, ((9, 15), (0, 9)), ()),
        (30, ((9, 15), (0, 9)), ()),  # over, and not closed yet
    ],
)
def test_an_open_round_goes_once_around_the_clock(hours: float, gone: object, left: object) -> None:  # issue 8
    found = band(NOW, 18 * 60, opened(hours), NOW)
    assert (found.now, found.drop) == (9 * HOUR, 18 * HOUR)
    assert [(x / HOUR, wide / HOUR) for x, wide in found.gone] == [*gone]  # type: ignore[misc]
    assert [(x / HOUR, wide / HOUR) for x, wide in found.left] == [*left]  # type: ignore[misc]


def test_a_group_is_shown_by_its_own_clock() -> None:
    group = Group(1, "default", "choir", "Asia/Tokyo", "07:30")
    shown = row(group, None, Upcoming(1, NOW + timedelta(hours=13), date(2026, 3, 28)), "18:00", NOW)
    assert (f"{shown['local']:%a %H:%M}", shown["drop_time"], shown["band"].drop) == ("Fri 18:00", "07:30", 7.5 * HOUR)
    assert not shown["planned"]
    broken = row(Group(2, "default", "lost", "Mars/Olympus"), None, Upcoming(2, None, reason="zone"), "18:00", NOW)
    assert "Mars/Olympus" in broken["problem"]


def test_countdowns_say_two_units() -> None:
    for seconds, words in ((86_400 * 2 + 7_300, "2 d 2 h"), (11_530, "3 h 12 min"), (7_200, "2 h"), (130, "2 min"), (45, "45 s")):  # fmt: skip
        assert exactly(seconds) == words
    assert ">in 3 h 12 min<" in countdown(NOW + timedelta(seconds=11_530), NOW)
    assert ">3 h ago<" in countdown(NOW - timedelta(hours=3), NOW)
    assert countdown(None, NOW, "–") == "–"


def test_the_page_says_what_is_open_and_when_it_closes(local: TestClient, town: Town) -> None:
    page = local.get("/rounds").text
    assert page.count('role="img"') == 7  # a band for each group
    assert "Thu 23:07" in page and "Pacific/Honolulu" in page
    assert "in 22 min" in page  # the island's drop, and the next one of all
    assert "in 7 h 52 min" in page  # the choir's close
    for heading in ("Open now", "Archive", "Ticks"):
        assert heading in page
    assert page.index("book club") < page.index("choir") < page.index("night shift")  # by the hour that it is there


def test_a_round_shows_its_answers_with_the_most_votes_first(local: TestClient, town: Town) -> None:
    page = local.get(f"/rounds/{town.closed}").text
    assert page.index("The bells, at noon.") < page.index("Rain on the roof.")
    assert "2 votes" in page and "I heard them too." in page
    assert "/submissions/" not in page  # nobody takes part in what is over
    assert f"/rounds/{town.round}/submissions" in local.get(f"/rounds/{town.round}").text


def test_viewers_see_who_answered_and_not_what(person: Callable[..., Person], town: Town) -> None:  # R003-9
    page = person("viewer").get(f"/rounds/{town.round}").text
    assert "Ann" in page and "2 votes" in page
    assert "The bells" not in page and "I heard them" not in page
    assert "@example.org" not in person("admin").get(f"/rounds/groups/{town.group}").text  # addresses are on no page


def test_an_operator_makes_a_group_with_prompt_and_member_and_it_gets_its_round(
    app: Duly, time: ManualClock, person: Callable[..., Person]
) -> None:
    ann, room = person("operator"), Rounds.of(app)
    assert ann.act("/rounds/groups", name="bakers", zone="UTC", drop_time=f"{time.now() + timedelta(minutes=1):%H:%M}")[1].startswith("Group bakers is made")  # fmt: skip
    (group,) = room.groups.all()
    home = f"/rounds/groups/{group.id}"
    assert ann.act(f"{home}/prompts", text="Which bread?")[0] == 303
    assert ann.act(f"{home}/members", name="Ugo", channels="log")[1] == "Ugo is in group bakers."
    time.advance(timedelta(minutes=1))
    assert ann.act("/rounds/ticks")[1] == "0 closed, 1 planned, 1 opened."
    (made,) = room.list(group.id)
    assert ann.act(f"/rounds/{made.id}/submissions", member="Ugo", text="Rye")[1] == "The answer is in."
    (answer,) = room.show(made.id).submissions
    assert ann.act(f"/rounds/submissions/{answer.id}/edit", member="Ugo", text="Rye, dark")[0] == 303
    assert ann.act(f"/rounds/submissions/{answer.id}/comments", member="Ugo", text="Hm")[0] == 303
    assert ann.act(f"/rounds/submissions/{answer.id}/votes", member="Ugo")[0] == 303
    found = room.show(made.id)
    assert (found.submissions[0].text, found.comments[0].text, found.votes_for(answer.id)) == ("Rye, dark", "Hm", 1)
    assert ann.act(f"/rounds/comments/{found.comments[0].id}/edit", member="Ugo", text="Yes")[0] == 303
    assert "already" in ann.act(f"/rounds/{made.id}/submissions", member="Ugo", text="Again")[1]


def test_an_operator_changes_a_group_and_what_is_in_it(app: Duly, person: Callable[..., Person], town: Town) -> None:
    ann, room = person("operator"), Rounds.of(app)
    home = f"/rounds/groups/{town.group}"
    assert ann.act(f"{home}/change", name="chorus", zone="Europe/Rome", drop_time="", cooldown="2h", reason="moved")[0] == 303  # fmt: skip
    group = room.groups.get(town.group)
    assert (group.name, group.zone, group.drop_time, group.cooldown, group.notifications) == ("chorus", "Europe/Rome", None, 7200.0, False)  # fmt: skip
    assert "is paused" in ann.act(f"{home}/active", on="no", reason="summer")[1]
    assert not room.groups.get(town.group).is_active
    assert "has rounds again" in ann.act(f"{home}/active", on="yes")[1]
    member = room.members.all(town.group)[2]
    assert ann.act(f"{home}/members/{member.id}", stays="no")[1] == "Cleo is out of the group."
    assert ann.act(f"{home}/members/{member.id}", channels="log", email="")[0] == 303
    kept = room.members.all(town.group)[2]
    assert (kept.is_active, kept.channels, kept.email) == (False, ("log",), "cleo@example.org")
    prompt = room.prompts.all(town.group)[0]
    assert ann.act(f"/rounds/prompts/{prompt.id}/change", text="And now?")[0] == 303
    assert ann.act(f"/rounds/prompts/{prompt.id}/change", on="no")[0] == 303
    assert room.prompts.all(town.group)[0].text == "And now?" and not room.prompts.all(town.group)[0].is_active
    assert ann.act(f"/rounds/prompts/{prompt.id}/remove")[0] == 303
    assert len(room.prompts.all(town.group)) == 1
    assert "zone" in ann.act(f"{home}/change", zone="Mars")[1]  # said on the page that it was asked from
    assert "user:operator0" in person("admin").get("/audit?action=GROUP_CHANGED").text


def test_ticks_are_for_who_sees_every_tenant(person: Callable[..., Person], town: Town) -> None:
    theirs = person("admin", tenant="acme")
    assert theirs.act("/rounds/ticks")[0] == 403
    page = theirs.get("/rounds").text
    assert "choir" not in page and "Tick now" not in page and ">Ticks" not in page
    assert theirs.act("/rounds/groups", name="ours", zone="UTC", tenant="default")[1].startswith("tenant: is")
    assert theirs.act("/rounds/groups", name="ours", zone="UTC")[0] == 303
    assert "ours" in theirs.get("/rounds").text
    for path in (f"/rounds/{town.round}?tenant=default", f"/rounds/groups/{town.group}?tenant=default", f"/rounds/{town.round}"):  # fmt: skip
        assert theirs.get(path).status_code == 404


def test_groups_and_closed_rounds_come_in_pages(
    app: Duly, local: TestClient, town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:  # B080
    monkeypatch.setattr("duly.web.dashboard.pages.rounds.GROUPS", 3)
    monkeypatch.setattr("duly.web.dashboard.pages.rounds.PAST", 3)
    for label, pattern in (("More groups", r'href="(/rounds/groups/\d+)'), ("Older", r'class="id" href="(/rounds/\d+)')):  # fmt: skip
        seen: list[str] = []
        path: str | None = "/rounds"
        while path is not None:
            text = local.get(path).text
            part = text.partition('id="archive"')[2] if label == "Older" else text.partition("Open now")[0]
            seen += re.findall(pattern, part)
            found = re.search(rf'href="([^"]+)"[^>]*>{label}', text)
            path = found[1].replace("&amp;", "&") if found else None
        assert len(seen) == len(set(seen)) == (7 if label == "More groups" else len(Rounds.of(app).list(status="closed")))  # fmt: skip


def test_a_cursor_that_no_page_gave_out_is_refused(local: TestClient) -> None:
    for number in (2**63, -1, 0):
        assert local.get(f"/rounds?groups={cursor(number)}").status_code == 422

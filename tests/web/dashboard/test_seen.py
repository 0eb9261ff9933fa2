"""What a page says is so: of a session while it goes on, of rounds by the schedule that plans them, of instants in sentences, of masked secrets."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from duly import Duly
from duly.automations import Automations
from duly.automations.protocol import FINISH
from duly.automations.records import Call
from duly.automations.session import CallStatus, Session, SessionType, Status
from duly.rounds import Rounds
from duly.rounds.plan import UNPLANNED, Upcoming
from duly.testing import ManualClock, drain
from duly.web.dashboard.pages.automations import standing
from duly.web.dashboard.pages.rounds import next_drop
from duly.web.dashboard.words import when
from web.dashboard.scene import Clerk, Town

NOW = datetime(2026, 3, 27, 9, tzinfo=UTC)


class Still(HTMLParser):
    """The headings and forms of a page that stand outside of what refreshes."""

    VOID = frozenset({"input", "meta", "link", "br", "use", "circle", "path", "line", "rect", "hr", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.path: list[tuple[str, bool]] = []
        self.found: list[str] = []
        self.feed(page[page.index("<main") : page.index("</main>")])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.VOID:
            return
        self.path.append((tag, "data-live" in dict(attrs)))
        if tag in ("h1", "h2", "dl", "table", "form") and not any(live for _, live in self.path):
            self.found.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """It holds nothing."""

    def handle_endtag(self, tag: str) -> None:
        while self.path and self.path.pop()[0] != tag:
            pass


def test_all_of_a_session_refreshes(local: TestClient, town: Town) -> None:  # issue 8
    for path in (f"/automations/sessions/{town.session}", f"/automations/sessions/{town.chat}"):
        page = local.get(path).text
        assert "<h2>Facts</h2>" in page and "<h2>Rounds</h2>" in page
        assert Still(page).found == []
        for part in re.findall(r'id="([\w-]+)" data-live', page):
            assert f'hx-select="#{part}"' in page


def a_session(status: Status) -> Session:
    return Session(1, "default", "default", SessionType.AUTOMATION, status, NOW)


@pytest.mark.parametrize(
    ("call", "status", "kind"),
    [
        (None, Status.ENDED, "off"),
        (None, Status.ACTIVE, "busy"),
        (CallStatus.WAITING, Status.ACTIVE, "busy"),
        (CallStatus.WAITING, Status.ENDED, "off"),
        (CallStatus.DONE, Status.ENDED, "good"),
        (CallStatus.FAILED, Status.ACTIVE, "bad"),
        (CallStatus.REFUSED, Status.ACTIVE, "bad"),
        (CallStatus.UNKNOWN, Status.ENDED, "warn"),
    ],
)
def test_nothing_is_under_way_in_a_session_that_has_ended(call: CallStatus | None, status: Status, kind: str) -> None:
    made = None if call is None else Call(1, 1, 1, "c", "harbour", {}, call)
    assert standing("harbour", made, a_session(status)) == kind
    assert standing(FINISH, None, a_session(status)) == "good"


@pytest.fixture
def briefing(app: Duly) -> int:
    """An automation that is done with its first answer."""
    room = Automations.of(app)
    room.use("clerk", Clerk())
    return room.create({"name": "briefing", "prompt": "Write.", "provider": "clerk", "schedule": {"kind": "daily", "at": ["07:00"], "tz": "Europe/Rome"}}).id  # fmt: skip


def test_the_last_call_of_a_session_that_has_ended_is_done(local: TestClient, app: Duly, briefing: int) -> None:
    ran = Automations.of(app).run(briefing).session.id
    drain(app, queues=["automations"])
    assert Automations.of(app).session(ran).status is Status.ENDED
    page = local.get(f"/automations/sessions/{ran}").text
    assert re.search(r'class="state good">(?:(?!</span>).)*calls finish', page)
    assert 'class="state busy"' not in page[page.index("<main") :]


# ------------------------------------------------------------------ rounds


def test_the_next_drop_is_foreseen_by_the_schedule_that_plans(app: Duly, time: ManualClock, local: TestClient) -> None:  # fmt: skip
    """issue 8: where planning is every minute, a round that closes is followed by the next one in the same minute, not at the full hour."""
    time.set(NOW + timedelta(minutes=17))
    room = Rounds.of(app)
    group = room.groups.add("choir", "UTC", drop_time="09:17", cooldown=0)
    for text in ("What now?", "And then?"):
        room.prompts.add(group.id, text)
    room.tick()
    closes = NOW + timedelta(days=1, minutes=17)
    time.set(closes - timedelta(seconds=13))
    assert room.next()[0].at == closes  # the pass that opens it plans it (R000-24)
    room.schedule(plan="* * * * *")
    assert room.next()[0].at == closes  # declared, and not yet written
    app.schedules.sync()
    made = Rounds(app)  # somebody who has only the database
    assert made.next()[0].at == closes
    page = local.get("/rounds").text
    tile = page[page.index("Next drop</h2>") : page.index("Next close</h2>")]
    assert "in 13 s" in tile and "foreseen" in tile and "no round is planned" not in tile
    assert local.get("/api/v1/rounds/next").json()["next_rounds"][0]["at"] == "2026-03-28T09:17:00Z"
    for tick in ("rounds.plan", "rounds.open"):  # either plans
        app.schedules.pause(tick)
    assert (made.next()[0].at, made.next()[0].reason) == (None, UNPLANNED)
    page = local.get("/rounds").text
    assert "nothing plans it" in page and "no round is planned or foreseen" in page


def test_the_next_drop_of_all_is_the_planned_or_the_foreseen_one_that_is_first() -> None:
    soon, later = NOW + timedelta(minutes=1), NOW + timedelta(hours=1)
    planned, foreseen = Upcoming(1, later, planned=True), Upcoming(2, soon)
    assert next_drop(later, [planned, foreseen]) == (soon, False)
    assert next_drop(soon, [Upcoming(2, later)]) == (soon, True)
    assert next_drop(soon, [Upcoming(2, soon)]) == (soon, True)
    assert next_drop(None, [foreseen]) == (soon, False)
    assert next_drop(None, [Upcoming(1, None, reason="inactive")]) == (None, True)


# ------------------------------------------------------------------ words


def test_instants_in_a_sentence_are_shown_as_instants() -> None:
    said = when(
        "it is <b>not</b> due until 2026-11-29T06:00:00Z, or 2026-11-30T07:30Z; not 2026-13-40T06:00:00Z, job-2026-11-29T06:00:00Z"
    )
    assert str(said) == (
        'it is &lt;b&gt;not&lt;/b&gt; due until <time datetime="2026-11-29T06:00:00Z" title="2026-11-29 06:00:00 UTC" data-when>2026-11-29 06:00:00 UTC</time>, '
        'or <time datetime="2026-11-30T07:30:00Z" title="2026-11-30 07:30:00 UTC" data-when>2026-11-30 07:30:00 UTC</time>; '
        "not 2026-13-40T06:00:00Z, job-2026-11-29T06:00:00Z"
    )
    assert str(when("")) == "" and str(when("a & b")) == "a &amp; b"


def test_why_something_does_not_start_names_instants_as_the_rest_of_the_page(local: TestClient, app: Duly, briefing: int) -> None:  # fmt: skip
    later = app.enqueue("map.render", {}, run_in=3_600).job.id
    for path in (f"/automations/{briefing}", f"/jobs/{later}"):
        page = local.get(path).text
        why = page[page.index('<ul class="why">') :]
        why = why[: why.index("</ul>")]
        assert 'UTC" data-when>' in why
        assert not re.search(r"\dT\d\d:\d\d", re.sub(r"<time [^>]*>", "", why))


def test_a_command_with_masked_secrets_says_so(local: TestClient, app: Duly) -> None:  # issue 8
    hint = "Secrets are masked in it"
    for given, said in (
        ({"token": "tok-123"}, True),
        ({"to": "postgres://ann:pw-123@db.example/duly"}, True),
        ({"deep": [{"password": "pw-123"}]}, True),
        ({"title": "three *** stars"}, False),
        ({"password": None}, False),
        ({}, False),
    ):
        page = local.get(f"/jobs/{app.enqueue('map.render', given).job.id}").text
        assert (hint in page) is said, given
        assert "-123" not in page

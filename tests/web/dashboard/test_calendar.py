"""The calendar: days as the clock of a zone makes them, what happens on them and what holds; and what a blackout would hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from duly import Cron, Daily, Duly, Every
from duly.audit.tables import audit_log
from duly.kernel.windows import Window
from duly.publishing.door import Publishing
from duly.testing import ManualClock, drain
from duly.web.dashboard.agenda import WIDTH, Dark, Mark, days, monday, month_grid
from duly.web.dashboard.pages.calendar import command
from web.dashboard.conftest import Person
from web.dashboard.scene import Town

ROME = "Europe/Rome"


def mark(at: datetime, of: str = "nightly", word: str = "planned") -> Mark:
    return Mark(at, "schedule", word, of, f"/schedules/show?name={of}", of)


def instant(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def shown(local: TestClient, path: str) -> dict[str, list[str]]:
    """The lines of each day of a page, as words."""
    out = {}
    for day in re.findall(r"<li class=\"[a-z ]*\"[^>]*>\s*<h2>(.*?)</li>", local.get(path).text, re.S):
        head, _, rest = day.partition("</h2>")
        lines = re.findall(r'<a class="(?:entry|dark)".*?</a>', rest, re.S)
        out[" ".join(re.sub("<.*?>", "", head).split())] = [" ".join(re.sub("<.*?>", "", one).split()) for one in lines]
    return out


# ---------------------------------------------------------------------- days


def test_a_day_is_as_long_as_its_clock_makes_it() -> None:  # T000-g
    week = days(date(2026, 3, 23), 7, ROME, [mark(instant(29, 10)), mark(instant(28, 11))], [])
    assert [(one.end - one.start) / timedelta(hours=1) for one in week] == [24] * 6 + [23]
    assert [one.change for one in week] == [""] * 6 + ["the clock goes from 02:00 to 03:00"]
    assert week[5].ticks == ((WIDTH / 2, "schedule", "planned"),)  # noon
    assert week[6].ticks[0][0] == pytest.approx(WIDTH * 11 / 23, abs=0.1)  # noon, eleven hours after midnight
    autumn = days(date(2026, 10, 25), 1, ROME, [], [])[0]
    assert (autumn.end - autumn.start, autumn.change) == (timedelta(hours=25), "the clock goes from 03:00 to 02:00")


@pytest.mark.parametrize(
    ("zone", "gone"),
    [
        ("Pacific/Apia", date(2011, 12, 30)), ("Pacific/Fakaofo", date(2011, 12, 30)), ("Pacific/Kwajalein", date(1993, 8, 21)),
        ("Pacific/Kiritimati", date(1994, 12, 31)), ("Pacific/Enderbury", date(1994, 12, 31)),
    ],
)  # fmt: skip
def test_a_day_that_a_zone_never_had_is_there_without_length(zone: str, gone: date) -> None:
    held = Dark(datetime(1990, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC), "quiet", "all", "")
    before, day, behind = days(gone - timedelta(days=1), 3, zone, [], [held])
    assert (day.start, day.change) == (day.end, "this zone had no such day")
    assert [one.end - one.start for one in (before, behind)] == [timedelta(days=1)] * 2
    assert (len(before.darks), day.darks, len(behind.darks)) == (1, (), 1)


def test_an_instant_stands_on_the_day_that_the_zone_shows() -> None:
    late = [mark(instant(23, 23, 30))]
    assert [len(one.items) for one in days(date(2026, 3, 23), 2, "UTC", late, [])] == [1, 0]
    assert [len(one.items) for one in days(date(2026, 3, 23), 2, ROME, late, [])] == [0, 1]


def test_a_blackout_over_midnight_stands_on_both_days() -> None:
    night = Dark(instant(23, 21), instant(24, 6), "quiet", "all", "/")
    first, second, third = days(date(2026, 3, 23), 3, ROME, [], [night])
    assert [(one.start, one.end) for one in first.darks] == [(instant(23, 21), instant(23, 23))]
    assert second.held == ((0.0, 70.0),) and not third.darks


def test_what_happens_often_on_a_day_is_one_line_with_the_worst_word() -> None:
    often = [mark(instant(23, hour), word="missed" if hour == 9 else "fired") for hour in range(8, 14)]
    (day,) = days(date(2026, 3, 23), 1, "UTC", [*often, mark(instant(23, 10), "other")], [])
    joined, other = day.items
    assert (joined.mark.word, joined.count, joined.mark.at, joined.last) == ("missed", 6, instant(23, 8), instant(23, 13))  # fmt: skip
    assert (other.count, other.last) == (1, None)
    assert len(day.ticks) == 7


def test_months_begin_on_a_monday_and_end_on_a_sunday() -> None:
    assert month_grid(date(2026, 3, 27)) == (date(2026, 2, 23), 42)
    assert month_grid(date(2027, 2, 14)) == (date(2027, 2, 1), 28)
    assert monday(date(2026, 3, 29)) == date(2026, 3, 23)


# ---------------------------------------------------------------------- the page


@pytest.fixture
def planned(app: Duly, time: ManualClock) -> Duly:
    """Schedules of every kind, as of 07:02 in Rome on a Friday: 27 March 2026."""

    @app.task("note", queue="notes")
    def note() -> None: ...

    app.schedule("lunch", Daily("12:00", tz=ROME), task=note)
    app.schedule("rest", Daily("12:30", tz=ROME), task=note, blackout="skip")
    app.schedule("pulse", Every(timedelta(minutes=10)), task=note)
    app.schedule("stopped", Daily("15:00", tz=ROME), task=note)
    app.schedule("theirs", Daily("16:00", tz=ROME), task=note, tenant="acme")
    app.open()
    app.schedules.sync()
    app.schedules.pause("stopped", actor="user:ann")
    app.calendars.set(Window(days="sat", start="11:00", end="14:00", tz=ROME, name="market", scope="queue:notes"))
    return app


def test_a_week_shows_what_is_planned_and_what_holds(planned: Duly, local: TestClient) -> None:  # issue 8
    week = shown(local, f"/calendar?tz={ROME}")
    assert list(week) == ["Mon 23", "Tue 24", "Wed 25", "Thu 26", "Fri 27 today", "Sat 28", "Sun 29"]
    assert week["Thu 26"] == []
    assert week["Fri 27 today"] == ["12:00 lunch planned", "12:30 rest planned", "15:00 stopped paused", "16:00 theirs planned"]  # fmt: skip
    assert week["Sat 28"] == ["11:00–14:00 market queue:notes", "12:00 lunch deferred", "12:30 rest skipped", "15:00 stopped paused", "16:00 theirs planned"]  # fmt: skip
    page = local.get(f"/calendar?tz={ROME}").text
    assert "the clock goes from 02:00 to 03:00" in page
    assert "Too often" in page and "every 10 minutes" in page
    assert 'title="2026-03-28 11:00:00 UTC">12:00<' in page  # UTC on hover


def test_what_is_over_is_shown_as_it_went(planned: Duly, local: TestClient, time: ManualClock) -> None:
    for at in (instant(27, 16), instant(28, 12)):  # the second is 13:00 in Rome, in the blackout
        time.set(at)
        drain(planned)
    week = shown(local, f"/calendar?tz={ROME}")
    assert week["Fri 27"] == ["12:00 lunch fired", "12:30 rest fired", "15:00 stopped skipped", "16:00 theirs fired"]
    assert "12:00 lunch deferred" in week["Sat 28 today"] and "12:30 rest skipped" in week["Sat 28 today"]
    assert "12:00 lunch planned" in week["Sun 29"]


def test_a_month_leads_to_its_weeks_and_weeks_to_their_neighbours(planned: Duly, local: TestClient) -> None:
    page = local.get(f"/calendar?view=month&tz={ROME}").text
    assert "March 2026" in page
    assert page.count("?day=2026-03-") + page.count("view=month&amp;day=2026-0") >= 31
    for path, title in (
        (f"/calendar?tz={ROME}&day=2026-04-05", "Week 14"), (f"/calendar?view=month&day=2026-12-31&tz={ROME}", "December 2026"),
        (f"/calendar?view=month&day=2027-01-01&tz={ROME}", "January 2027"), ("/calendar?day=1971-01-01", "Week 53"),
        ("/calendar?view=month&day=2199-12-31", "December 2199"), ("/calendar?view=month&day=1971-01-01", "January 1971"),
    ):  # fmt: skip
        assert title in local.get(path).text, path
    links = dict(re.findall(r'href="([^"]+)" rel="(prev|next)"', local.get(f"/calendar?tz={ROME}").text))
    assert links == {"/calendar?day=2026-03-20&amp;tz=Europe%2FRome": "prev", "/calendar?day=2026-04-03&amp;tz=Europe%2FRome": "next"}  # fmt: skip
    for path in links:
        assert local.get(path.replace("&amp;", "&")).status_code == 200


def test_days_are_those_of_the_viewer_where_no_zone_is_named(planned: Duly, local: TestClient) -> None:
    assert "Days of UTC" in local.get("/calendar").text
    for cookie, named in (("Asia/Tokyo", "Asia/Tokyo"), ("../../etc/passwd", "UTC"), ("x" * 3_000, "UTC")):
        local.cookies.set("duly_zone", cookie)
        page = local.get("/calendar")
        assert page.status_code == 200 and f"Days of {named}" in page.text
    local.cookies.set("duly_zone", "Asia/Tokyo")
    assert "Days of Europe/Rome" in local.get(f"/calendar?tz={ROME}").text


def test_posts_stand_where_they_are_planned_or_went_out(app: Duly, time: ManualClock, local: TestClient) -> None:
    room = Publishing.of(app)
    room.channel("board", lambda run: run.mark_completed("1"))
    app.open()
    room.enqueue("board", {"caption": "Out at once"})
    drain(app, queues=["board"])
    for hours in (24, 24 * 9):
        room.enqueue("board", {"caption": f"In {hours} hours"}, run_at=time.now() + timedelta(hours=hours))
    week = shown(local, "/calendar?tz=UTC")
    assert week["Fri 27 today"] == ["06:02 board: Out at once post completed"]
    assert week["Sat 28"] == ["06:02 board: In 24 hours post pending"]
    assert shown(local, "/calendar?tz=UTC&day=2026-04-05")["Sun 5"] == ["06:02 board: In 216 hours post pending"]
    assert re.search(r'class="entry" href="/publishing/\d+"', local.get("/calendar?tz=UTC").text)


def test_a_post_of_several_lines_is_shown_on_one(app: Duly, time: ManualClock, local: TestClient) -> None:
    room = Publishing.of(app)
    room.channel("board", lambda run: run.mark_completed("1"))
    app.open()
    room.enqueue("board", {"caption": "We are open.\n\nCome in!"})
    drain(app, queues=["board"])
    for path in ("/calendar", "/publishing"):
        page = local.get(path).text
        assert "We are open. Come in!" in page
        assert "\\n" not in page


def test_viewers_read_no_captions(person: Callable[..., Person], town: Town) -> None:
    assert "The ferry is late" not in person("viewer").get("/calendar").text
    assert "The ferry is late" in person("operator").get("/calendar").text


def test_a_tenant_sees_its_own_calendar(planned: Duly, person: Callable[..., Person]) -> None:
    theirs = person("viewer", tenant="acme").get(f"/calendar?tz={ROME}").text
    assert "theirs" in theirs and "market" in theirs
    for foreign in ("lunch", "stopped", "every 10 minutes", "/calendar/impact"):
        assert foreign not in theirs


def test_what_is_kept_of_a_slow_calendar_is_kept_for_who_sees_the_same(
    planned: Duly, person: Callable[..., Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.web.dashboard.desk import Desk

    keys: list[object] = []
    lately = Desk.lately
    monkeypatch.setattr(Desk, "lately", lambda desk, key, ask: keys.append(key) or lately(desk, key, ask))  # type: ignore[func-returns-value]
    for who in (person("admin"), person("viewer"), person("admin", tenant="acme")):
        who.get("/calendar")
    assert len(keys) == len(set(keys)) == 3


# ---------------------------------------------------------------------- what a blackout would hold


def test_an_impact_is_shown_and_nothing_is_written(planned: Duly, local: TestClient) -> None:
    job = planned.enqueue("note", run_in=timedelta(hours=5)).job.id  # 12:02 in Rome
    rows = select(func.count()).select_from(audit_log)
    before = planned.db.read(lambda c: c.execute(rows).scalar_one())
    page = local.get(f"/calendar/impact?scope=queue&of=notes&start=11:00&end=13:00&tz={ROME}").text
    assert f'href="/jobs/{job}"' in page
    assert "lunch" in page and "pulse" in page
    assert "duly blackouts set NAME --tz Europe/Rome --start 11:00 --end 13:00 --scope queue:notes" in page
    none = local.get(f"/calendar/impact?scope=queue&of=other&start=11:00&end=13:00&tz={ROME}").text
    assert "Nothing that is known of now" in none
    assert set(planned.calendars.all()) == {"market"}
    assert planned.db.read(lambda c: c.execute(rows).scalar_one()) == before


def test_dates_bound_an_impact(planned: Duly, local: TestClient) -> None:
    page = local.get(f"/calendar/impact?scope=schedule&of=lunch&first=2026-04-02&last=2026-04-04&tz={ROME}").text
    assert "3 occurrences" in page
    theirs = local.get(f"/calendar/impact?scope=schedule&of=theirs&first=2026-04-02&tz={ROME}").text
    assert "/schedules/show?name=theirs&amp;tenant=acme" in theirs
    assert "--date 2026-04-02..2026-04-04" in page


def test_impacts_are_for_who_sees_every_tenant(planned: Duly, person: Callable[..., Person]) -> None:
    assert person("admin", tenant="acme").get("/calendar/impact").status_code == 403
    assert person("viewer").get("/calendar/impact").status_code == 200
    theirs = person("viewer", tenant="acme").get("/calendar/blackout?name=market").text
    assert "Saturday from 11:00 to 14:00" in theirs and "What it holds" not in theirs
    assert "What it holds" in person("viewer").get("/calendar/blackout?name=market").text
    assert person("viewer").get("/calendar/blackout?name=none").status_code == 404


def test_the_command_sets_the_window_that_was_looked_at() -> None:
    window = Window(days=["mon", "wed"], start="22:00", end="07:00", tz=ROME, dates=[("2026-04-01", "2026-04-30"), "2026-06-01"], scope="queue:a b", name="it's quiet")  # fmt: skip
    assert command(window) == (
        "duly blackouts set 'it'\"'\"'s quiet' --tz Europe/Rome --start 22:00 --end 07:00 --scope 'queue:a b' --days mon,wed "
        "--date 2026-04-01..2026-04-30 --date 2026-06-01"
    )


def test_a_full_calendar_says_so(app: Duly, local: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.web.dashboard.pages.calendar.SCHEDULES", 2)
    for n in range(3):
        app.schedule(f"s{n}", Cron("0 9 * * *", tz="UTC"), task="note")
    app.open()
    app.schedules.sync()
    page = local.get("/calendar").text
    assert "more schedules than a calendar has room for" in page and "s2" not in page


def test_a_week_with_a_day_that_its_zone_never_had_is_shown(app: Duly, local: TestClient) -> None:
    app.calendars.set(Window(name="odd", tz="UTC", dates=[(date(2011, 12, 1), date(2012, 1, 10))]))
    for view in ("week", "month"):
        page = local.get(f"/calendar?view={view}&day=2011-12-28&tz=Pacific/Apia")
        assert page.status_code == 200
        assert "this zone had no such day" in page.text

"""The doctor compares the zone data of this machine with the package's, and names the zones of this database (B3)."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text

from duly import Daily, Duly, Window
from duly.kernel import localtime
from duly.kernel.localtime import differs_from_package
from duly.monitoring import examine
from duly.monitoring.health import judge
from duly.rounds import Rounds


@pytest.fixture
def app() -> Duly:
    return Duly("sqlite://")


def said(app: Duly) -> list[tuple[str, str]]:
    facts = examine.examine(app.engine)
    return [(str(f.grade), f.detail) for f in judge(facts) if f.check == "zones in use"]


def test_the_doctor_names_the_zones_of_this_database_that_differ_and_no_others(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "differs_from_package", lambda name, year: name != "Asia/Tokyo")
    app.open()
    assert said(app) == []
    Rounds(app).groups.add("g", "Africa/Casablanca")
    app.task("T")(lambda: None)
    app.schedule("s", Daily("18:00", tz="America/Vancouver"), "T")
    app.schedule("t", Daily("18:00", tz="Asia/Tokyo"), "T")
    app.schedules.sync()
    app.calendars.set(Window(start="22:00", end="07:00", tz="America/Havana", name="night"))
    [(grade, detail)] = said(app)
    assert grade == "warn"
    assert detail.startswith("Africa/Casablanca, America/Havana, America/Vancouver: ")
    app.close()


def test_the_doctor_names_zones_that_this_machine_does_not_know(app: Duly) -> None:
    # C023
    app.open()
    Rounds(app).groups.add("g", "Europe/Rome")
    app.db.write(lambda c: c.execute(text("UPDATE groups SET zone = 'Europe/Nowhere'")))
    [(grade, detail)] = said(app)
    assert (grade, "Europe/Nowhere" in detail) == ("fail", True)
    app.close()


def test_data_differs_where_a_clock_shows_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    differs_from_package.cache_clear()
    assert differs_from_package("Asia/Tokyo", 2026) is False
    assert differs_from_package("Mars/Base", 2026) is None
    monkeypatch.setattr(localtime, "_load", lambda tz: ZoneInfo("Asia/Tokyo"))
    assert differs_from_package("Europe/Rome", 2026) is True
    differs_from_package.cache_clear()

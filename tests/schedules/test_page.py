"""The table of days in `docs/explanation/time.md` is what schedulers do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from duly import Cron, Daily, Duly, Every
from duly.kernel.localtime import resolve
from duly.testing import ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "time.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
DAYS = [row for row in ROWS if len(row) == 9 and "/" in row[1]]
QUARTER = timedelta(minutes=15)


def test_each_kind_of_day_is_in_the_table() -> None:
    assert [row[0] for row in DAYS] == [
        "ordinary", "gap", "fold", "gap of half an hour", "fold of half an hour", "gap at midnight", "fold over midnight", "a date left out",
        "the day behind it",
    ]  # fmt: skip


@pytest.mark.parametrize("row", DAYS, ids=lambda row: row[0])
def test_a_scheduler_does_on_each_kind_of_day_what_the_page_says(row: list[str]) -> None:  # B001 to B008
    _, tz, day, hours, at, local, utc, hourly, every = row
    midnight = datetime.fromisoformat(day)
    (start,), (end,) = resolve(midnight, tz), resolve(midnight + timedelta(days=1), tz)
    assert (end - start) / timedelta(hours=1) == float(hours)
    clock = ManualClock(start - timedelta(minutes=1))
    app = Duly("sqlite:///:memory:", clock=clock)
    recurrences = {"daily": Daily(at, tz=tz), "hourly": Cron("0 * * * *", tz=tz), "every": Every("1h")}
    for name, recurrence in recurrences.items():
        app.schedules.set(app.schedules.spec(name, recurrence, "t", catch_up="all"))
    scheduler = app.scheduler()
    while clock.now() < end + timedelta(hours=1):
        clock.advance(QUARTER)
        scheduler.tick()
    fired = {
        name: sorted(o.due_at for o in app.schedules.ledger(name, statuses=["fired"]) if start <= o.due_at < end)
        for name in recurrences
    }
    made = [job.run_at for job in app.jobs.find(limit=100) if job.run_at and start <= job.run_at < end]
    app.close()
    for said, place in ((local, ZoneInfo(tz)), (utc, UTC)):
        assert [f"{due_at.astimezone(place):%H:%M}" for due_at in fired["daily"]] == (
            [] if said == "–" else said.split(", ")
        )
    assert (len(fired["hourly"]), len(fired["every"])) == (int(hourly), int(every))
    assert sorted(made) == sorted(at for each in fired.values() for at in each)  # one job for each, at its instant

"""The page that explains civil time says what happens: each row of its tables is asked here."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from duly.kernel.localtime import resolve, transitions
from duly.kernel.recurrence import Cron, Daily, Monthly, Yearly
from duly.kernel.windows import Calendar, Window

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "civil-time.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
SCHEDULES = [row for row in ROWS if len(row) == 6 and row[0] != "zone"]
WINDOWS = [row for row in ROWS if len(row) == 5 and row[0] != "zone"]
DAY = timedelta(days=1)


def test_the_tables_are_found() -> None:
    assert len(SCHEDULES) == 25
    assert len(WINDOWS) == 7


@pytest.mark.parametrize("row", SCHEDULES, ids=" ".join)
def test_a_schedule_of_the_page_runs_when_the_page_says(row: list[str]) -> None:
    zone, day, clock, code, local, utc = row
    schedule = eval(
        f"{code.strip('`')[:-1]}, tz={zone!r})", {"Daily": Daily, "Cron": Cron, "Monthly": Monthly, "Yearly": Yearly}
    )
    midnight = datetime.combine(date.fromisoformat(day), time())
    (start,), (end,) = resolve(midnight, zone), resolve(midnight + DAY, zone)
    runs = list(schedule.occurrences(start, end))
    for said, place in ((local, ZoneInfo(zone)), (utc, UTC)):
        shown = [f"{at.astimezone(place):%H:%M}" for at in runs]
        wanted = [] if said == "–" else said.split(", ")
        if wanted[-1:] == ["…"]:
            wanted.pop()
            shown = shown[: len(wanted)]
        assert shown == wanted
    check_clock(zone, midnight, clock)


@pytest.mark.parametrize("row", WINDOWS, ids=" ".join)
def test_a_window_of_the_page_covers_what_the_page_says(row: list[str]) -> None:
    zone, day, clock, hours, covered = row
    start, end = hours.split(" to ")
    window = Window(start=start, end=end, dates=day, tz=zone)
    year = int(day[:4])
    spans = Calendar([window]).spans(datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC))
    found = [f"{ordinal(span.start)} to {ordinal(span.end)}" for span in spans]
    assert found == ([] if covered == "never" else [covered])
    check_clock(zone, datetime.combine(date.fromisoformat(day), time()), clock)


def ordinal(at: datetime) -> str:
    return f"{at.day}{ {1: 'st', 31: 'st'}.get(at.day, 'th') } {at:%H:%M}"


def check_clock(zone: str, midnight: datetime, said: str) -> None:
    """What the page says of the clock on a date."""
    found = re.match(r"(\d\d:\d\d) → (\d\d:\d\d)( in the night)?", said)
    if not found:
        return
    start = resolve(midnight, zone)[0] - DAY / 4
    (change,) = transitions(zone, start, start + (2 if found[3] else 1.25) * DAY)
    shown = change.at.replace(tzinfo=None) + change.before, change.at.replace(tzinfo=None) + change.after
    assert [f"{at:%H:%M}" for at in shown] == [found[1], found[2]]


def test_the_description_on_the_page_is_what_describe_says() -> None:
    asked = re.search(r">>> (Cron.*)\n'(.*)'", PAGE)
    assert asked
    assert eval(asked[1], {"Cron": Cron, "datetime": datetime, "UTC": UTC}) == asked[2]

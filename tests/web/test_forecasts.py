"""What the fronts foretell is what then happens: rounds, schedules and automations over REST, at the command line and on the pages. B1."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from automations.hands import Ai
from duly import Cron, Daily, Duly, Every, Window
from duly.automations import Automations
from duly.cli.main import cli
from duly.rounds import Rounds
from duly.testing import ManualClock, drain
from duly.web.app import create

#: Before a night on which European clocks go forward, and at no full minute.
NOW = datetime(2026, 3, 27, 9, 7, 13, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def instant(said: str) -> datetime:
    return datetime.fromisoformat(said.replace("Z", "+00:00"))


class Fronts:
    """Three ways to ask one application, whose time stands still."""

    def __init__(self, app: Duly, clock: ManualClock, web: TestClient) -> None:
        self.app, self.clock, self.web = app, clock, web

    def rest(self, path: str) -> Any:
        answer = self.web.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def line(self, *words: str) -> Any:
        done = CliRunner().invoke(cli, ["--app", "foretold:app", "--json", *words], prog_name="duly")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    def page(self, path: str, *others: datetime | None) -> datetime:
        """The first instant to come that a page names. ``others``: what it names besides, which may be the same."""
        answer = self.web.get(path)
        assert answer.status_code == 200, answer.text
        found = [instant(said) for said in re.findall(r'datetime="([^"]+)"', answer.text)]
        coming = [at for at in found if at > self.clock.now()]
        return min([at for at in coming if at not in others] or coming)


@pytest.fixture
def fronts(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fronts]:
    clock = ManualClock(NOW)
    app = Duly(sqlite_url, clock=clock)
    app.task("T")(lambda: None)
    module = ModuleType("foretold")
    module.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "foretold", module)
    monkeypatch.delenv("DULY_APP", raising=False)
    with TestClient(create(app, local=True), base_url="http://127.0.0.1", follow_redirects=False) as web:
        yield Fronts(app, clock, web)
    app.close()


def come_true(
    fronts: Fronts, ask: list[Callable[[], datetime]], happened: Callable[[], list[datetime]], times: int
) -> None:
    """What each front foretells is the same; nothing happens a moment before it, and it does at it."""
    for _ in range(times):
        before = happened()
        foretold = {front() for front in ask}
        assert len(foretold) == 1, foretold
        (at,) = foretold
        assert at > fronts.clock.now()
        fronts.clock.set(at - TICK)
        assert happened() == before
        fronts.clock.set(at)
        assert happened() == [*before, at]


@pytest.mark.parametrize(
    ("recurrence", "options"),
    [
        (Cron("30 2 * * *", tz="Europe/Rome"), {}),
        (Daily(["02:15", "02:45", "18:05"], tz="Europe/Rome"), {}),
        (Every("7h", anchor=datetime(2026, 1, 1, tzinfo=UTC)), {}),
        (Daily("07:10", tz="Asia/Kolkata"), {"starts_at": datetime(2026, 4, 2, tzinfo=UTC)}),
        (Daily("18:00", tz="America/St_Johns"), {"blackout": "skip"}),
    ],
    ids=["gap", "two in a gap", "interval", "start", "blackout elsewhere"],
)
def test_schedules_fire_when_every_front_says(fronts: Fronts, recurrence: Any, options: dict[str, Any]) -> None:
    app = fronts.app
    app.schedules.set(app.schedules.spec("s", recurrence, "T", **options))
    app.calendars.set(Window(start="00:00", end="23:59", tz="UTC", name="other", scope="schedule:another"), actor="ann")

    def happened() -> list[datetime]:
        app.scheduler().tick()
        return [o.due_at for o in reversed(app.schedules.ledger("s", statuses=["fired"]))]

    ask: list[Callable[[], datetime]] = [
        lambda: instant(fronts.rest("schedules/s")["next_at"]),
        lambda: instant(fronts.rest("schedules")["schedules"][0]["next_at"]),
        lambda: instant(fronts.rest("schedules/s/preview?n=1")["next"][0]["due_at"]),
        lambda: instant(fronts.line("schedules", "list")[0]["next_at"]),
        lambda: instant(fronts.line("schedules", "show", "s")["next"][0]["due_at"]),
        lambda: instant(fronts.line("schedules", "preview", "s")[0]["due_at"]),
        lambda: fronts.page("/schedules"),
        lambda: fronts.page("/schedules/show?name=s", options.get("starts_at")),
    ]
    come_true(fronts, ask, happened, 4)


@pytest.mark.parametrize(
    ("zone", "drop"), [("Europe/Rome", "02:30"), ("Asia/Kathmandu", "18:00"), ("America/St_Johns", "23:55"), ("UTC", "09:05")]
)  # fmt: skip
@pytest.mark.parametrize("cooldown", [None, 0])
def test_rounds_open_when_every_front_says(fronts: Fronts, zone: str, drop: str, cooldown: float | None) -> None:
    rounds = Rounds.of(fronts.app)
    group = rounds.groups.add("choir", zone, drop_time=drop, cooldown=cooldown)
    rounds.prompts.add(group.id, *(f"{n}?" for n in range(9)))
    opened: list[datetime] = []

    def happened() -> list[datetime]:
        rounds.close()
        rounds.open()
        opened[:] = [one.open_at for one in reversed(rounds.list("choir")) if one.opened_at is not None and one.open_at]
        return list(opened)

    def page(path: str) -> datetime:
        return fronts.page(path, *(one.close_at for one in rounds.list("choir", status="open")))

    come_true(
        fronts,
        [
            lambda: instant(fronts.rest("rounds/next")["next_rounds"][0]["at"]),
            lambda: instant(fronts.line("rounds", "next")[0]["at"]),
            lambda: instant(fronts.line("rounds", "next", "choir")[0]["at"]),
            lambda: page("/rounds"),
            lambda: page(f"/rounds/groups/{group.id}"),
        ],
        happened,
        3,
    )


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "daily", "at": ["02:15", "02:45"], "tz": "Europe/Rome"},
        {"kind": "cron", "expression": "5 18 * * *", "tz": "Asia/Kathmandu"},
        {"kind": "every", "duration": 5400, "anchor": "2026-01-01T00:00:00+00:00"},
    ],
    ids=["two in a gap", "cron", "interval"],
)
def test_automations_run_when_every_front_says(fronts: Fronts, schedule: dict[str, Any]) -> None:
    room = Automations.of(fronts.app)
    room.use("ai", Ai())
    made = room.create({"name": "a", "prompt": "Look.", "schedule": schedule, "provider": "ai"})

    def happened() -> list[datetime]:
        room.tick()
        drain(fronts.app)
        return sorted(one.scheduled_at for one in room.sessions(automation=made.id) if one.scheduled_at)

    come_true(
        fronts,
        [
            lambda: instant(fronts.rest("automations")["automations"][0]["next_run"]),
            lambda: instant(fronts.rest(f"automations/{made.id}")["next_run"]),
            lambda: instant(fronts.line("automations", "list")[0]["next_run"]),
            lambda: instant(fronts.line("automations", "show", "a")["next_run"]),
            lambda: fronts.page("/automations"),
            lambda: fronts.page(f"/automations/{made.id}"),
        ],
        happened,
        4,
    )

"""A zone that one machine does not know: what needs it is left to the others, and nothing else stands still (C023)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from duly import Cron, Daily, Duly, Every, Window
from duly.kernel import localtime
from duly.kernel.errors import InvalidArgument, UnknownZone
from duly.kernel.localtime import zone
from duly.kernel.zone_names import ZONE_NAMES
from duly.rounds import Rounds
from duly.testing import ManualClock
from schedules.test_schedules import START

#: A machine of which the zone data has neither US/Pacific nor Europe/Kyiv, and no package tzdata.
POOR = """
import json, sys
sys.modules["tzdata"] = None
from datetime import datetime
from duly import Cron, Duly
from duly.rounds import Rounds
url, now = sys.argv[1], datetime.fromisoformat(sys.argv[2])
app = Duly(url)
told = []
app.events.listen(lambda e: told.append([e.name, e.facts.get("what"), e.facts.get("definition"), e.facts.get("host")]))
app.task("T")(lambda: None)
rounds = Rounds(app)
app.schedule("kyiv", Cron("*/5 * * * *", tz="Europe/Kyiv"), "T")
app.schedule("new", Cron("*/5 * * * *", tz="US/Pacific"), "T")
worker = app.worker()
for _ in range(3):
    report = app.scheduler().tick(now)
app.scheduler().keep()
app.db.write(lambda c: app.engine.calendars.advance(c, app.engine.calendars.outdated(c)))
ticks = rounds.tick(now)
worker.house.presence()
print(json.dumps({"told": told, "fired": report.fired, "failed": [t.failed for t in ticks], "far": [t.far for t in ticks]}))
"""


def poor(tmp_path: Path, url: str, now: Any) -> dict[str, Any]:
    """What that machine says."""
    zones = tmp_path / "zoneinfo"
    for name in ("UTC", "Europe/Rome"):
        (zones / name).parent.mkdir(parents=True, exist_ok=True)
        (zones / name).write_bytes(resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes())
    env = {**os.environ, "PYTHONTZPATH": str(zones), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", POOR, url, now.isoformat()], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_needs_a_zone_that_one_machine_does_not_know_is_done_by_another(
    tmp_path: Path, sqlite_url: str
) -> None:  # C023
    app = Duly(sqlite_url, clock=ManualClock(START))
    app.open()
    app.task("T")(lambda: None)
    rounds = Rounds(app)
    for name, tz in (("kyiv", "Europe/Kyiv"), ("rome", "Europe/Rome"), ("pacific", "US/Pacific")):
        app.schedules.set(app.schedules.spec(name, Cron("*/5 * * * *", tz=tz), "T"))
    app.calendars.set(Window(start="22:00", end="07:00", tz="Europe/Kyiv", name="night", scope="queue:mail"))
    group = rounds.groups.add("g", "Europe/Kyiv", drop_time="03:00")
    rounds.prompts.add(group.id, "?")
    before = app.db.read(lambda c: c.execute(text("SELECT holds_from, holds_until FROM blackouts")).all())
    now = START + timedelta(minutes=10)

    said = poor(tmp_path, sqlite_url, now)

    left = {(what, name) for event, what, name, _ in said["told"] if event == "definition_left"}
    told = [(what, name) for event, what, name, _ in said["told"] if event == "definition_left"]
    assert left == {
        ("schedule", "default/kyiv"), ("schedule", "default/pacific"), ("schedule", "default/new"), ("blackout", "night"), ("group", str(group.id)),
    }  # fmt: skip
    assert len(told) == len(left)  # once, and not per pass
    assert all(host for event, _, _, host in said["told"] if event == "definition_left")
    assert not {"schedule_broken", "round_failed", "blackout_unreadable"} & {event for event, *_ in said["told"]}
    assert (said["failed"], max(said["far"])) == ([0, 0, 0], 1)
    assert app.db.read(lambda c: c.execute(text("SELECT holds_from, holds_until FROM blackouts")).all()) == before
    assert [(s.name, s.state) for s in app.schedules.all()] == [
        ("kyiv", "active"),
        ("pacific", "active"),
        ("rome", "active"),
    ]
    assert [len(app.schedules.ledger(name)) for name in ("kyiv", "pacific", "rome")] == [0, 0, 2]
    assert app.db.read(lambda c: c.execute(text("SELECT error, failures FROM groups")).all()) == [(None, 0)]

    # its row says so, for the doctor and the alert; and this machine does the work
    [leaves] = app.db.read(lambda c: c.execute(text("SELECT leaves FROM workers")).scalars().all())
    assert "Europe/Kyiv" in json.loads(leaves)["schedule default/kyiv"]
    assert app.scheduler().tick(now).fired == 2
    assert [t.done for t in rounds.tick(now, kind="open")] == [1]
    app.close()


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine does not know Europe/Kyiv."""
    real = localtime._load

    def load(tz: str) -> Any:
        if tz == "Europe/Kyiv":
            raise KeyError(tz)
        return real(tz)

    monkeypatch.setattr(localtime, "_load", load)


def test_a_zone_that_is_not_here_is_told_from_one_that_is_nowhere(blind: None) -> None:  # C023, B010
    with pytest.raises(UnknownZone, match="this machine has no data"):
        zone("Europe/Kyiv")
    with pytest.raises(InvalidArgument, match="Did you mean Europe/Kyiv") as refused:
        zone("Europe/Kiyv")
    assert not isinstance(refused.value, UnknownZone)


def test_every_name_of_the_package_is_known_as_a_zone() -> None:
    with resources.files("tzdata").joinpath("zones").open() as file:
        assert set(file.read().split()) <= ZONE_NAMES


def test_a_schedule_in_a_zone_that_is_not_here_is_carried_refused_where_it_must_be_planned_and_described(
    blind: None, sqlite_url: str
) -> None:  # C023
    app = Duly(sqlite_url)
    app.task("T")(lambda: None)
    daily = Daily("18:00", tz="Europe/Kyiv")
    assert daily.to_json() == {"kind": "daily", "at": ["18:00"], "tz": "Europe/Kyiv"}
    assert "this machine has no data" in daily.describe(since=START)
    with pytest.raises(UnknownZone):
        daily.next_after(START)
    with pytest.raises(InvalidArgument, match="Europe/Kyiv"):  # by a person: refused
        app.schedules.set(app.schedules.spec("s", daily, "T"), actor="ann")
    assert app.schedules.all() == []
    app.schedule("s", daily, "T")
    assert app.schedules.sync() == {"s": "left"}
    app.close()


@pytest.mark.parametrize(
    ("column", "value"), [("recurrence", '{"kind": "lunar"}'), ("overlap", "merge"), ("blackout", "hurry"), ("catch_up", "first(3)")]
)  # fmt: skip
def test_what_only_newer_code_knows_of_a_schedule_is_left_to_it(sqlite_url: str, column: str, value: str) -> None:  # E1
    app = Duly(sqlite_url, clock=ManualClock(START))
    app.task("T")(lambda: None)
    for name in ("new", "old"):
        app.schedules.set(app.schedules.spec(name, Every("5m", anchor=START), "T"))
    change = text(f"UPDATE schedules SET {column} = :value WHERE name = 'new'")
    app.db.write(lambda c: c.execute(change, {"value": value}))
    assert app.scheduler().tick(START + timedelta(minutes=5)).fired == 1
    new = app.schedules.get("new")
    assert (new.state, new.error) == ("active", None)
    assert value[:5].strip('{"') in str(new.left)
    app.db.write(lambda c: c.execute(text("UPDATE occurrences SET \"trigger\" = 'moon'")))
    assert [o.trigger for o in app.schedules.ledger("old")] == ["moon"]
    app.close()

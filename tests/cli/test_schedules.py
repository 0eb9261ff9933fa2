"""``duly schedules``: making recurring work, looking at it, and acting on it."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text, update

from cli.hands import Run
from duly import Duly, PermanentError, Window
from duly.schedules.tables import schedules
from duly.testing import drain

NIGHTLY = ("schedules", "set", "nightly", "--task", "report", "--cron", "30 2 * * *", "--tz", "Europe/Paris")


def test_a_schedule_is_made_shown_changed_and_removed(on: Run, app: Duly) -> None:
    assert on("schedules", "list").out == "There is no schedule.\n"
    assert on("schedules", "list", "--json").json == []
    made = on(*NIGHTLY, "--input", '{"a": 1}', "--overlap", "skip")
    assert made.code == 0
    assert "Schedule nightly is made: report, at 02:30 every day, Paris time. Next: " in made.out
    assert "is as it was" in on(*NIGHTLY, "--input", '{"a": 1}', "--overlap", "skip").out
    changed = on(*NIGHTLY, "--catch-up", "within(2h)", "--json").json
    assert (changed["change"], changed["version"], changed["catch_up"]) == ("changed", 2, "within(7200)")
    shown = on("schedules", "show", "nightly").out
    assert "catch-up within(7200), overlap skip, blackout defer" in shown
    assert "To come" in shown
    assert [v["version"] for v in on("schedules", "versions", "nightly", "--json").json] == [2, 1]
    assert on("schedules", "versions", "nightly").code == 0
    [row] = on("schedules", "list", "--json").json
    assert (row["name"], row["state"], row["when"], row["input"]) == (
        "nightly",
        "active",
        "at 02:30 every day, Paris time",
        {"a": 1},
    )
    assert on("schedules", "remove", "nightly", "--reason", "old").out == "Schedule nightly is removed.\n"
    assert on("schedules", "show", "nightly").code == 1
    actions = [e["action"] for e in on("audit", "list", "--entity", "schedule", "--json").json]
    assert actions == ["SCHEDULE_REMOVED", "SCHEDULE_CHANGED", "SCHEDULE_CREATED"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--every", "15m"), "every 15 minutes"),
        (("--daily", "18:00,09:00", "--tz", "UTC"), "at 09:00 and 18:00 every day, UTC"),
        (("--weekly", "mon,thu", "--at", "09:00", "--tz", "Europe/Rome"), "at 09:00 on Monday and Thursday, Rome time"),
        (("--monthly", "last", "--at", "06:00", "--tz", "UTC"), "at 06:00 on the last day of every month, UTC"),
        (("--monthly", "31", "--at", "06:00", "--tz", "UTC"), "at 06:00 on the 31st of the months that have one, UTC"),
        (("--cron", "@daily", "--tz", "UTC", "--jitter", "10min", "--fold", "last"), "at 00:00 every day, UTC"),
        (("--rrule", "FREQ=DAILY;INTERVAL=2", "--start", "2026-01-05T09:00", "--tz", "UTC"), "every 2 days at 09:00"),
        (
            ("--monthly", "1,second tue", "--at", "06:00", "--tz", "UTC"),
            "on the 1st and the second Tuesday of every month",
        ),
        (
            ("--dates", "2099-12-31", "--at", "14:00,15:00", "--tz", "UTC"),
            "at 14:00 and 15:00 on 31 December 2099, UTC",
        ),
        (
            ("--yearly", "12-24,02-29", "--at", "18:00", "--tz", "UTC"),
            "at 18:00 on 29 February and 24 December of every year",
        ),
        (
            ("--moments", "2099-12-24T18:00,2100-01-06T9:30", "--tz", "UTC"),
            "at 18:00 on 24 December 2099 and at 09:30 on 6 January 2100, UTC",
        ),
        (
            ("--daily", "18:00", "--tz", "UTC", "--start-date", "2099-01-01", "--end-date", "2099-03-31"),
            "at 18:00 every day, from 1 January 2099 until 31 March 2099, UTC",
        ),
        (("--once", "2099-12-01T10:00:00+01:00"), "once"),
    ],
)
def test_a_dry_run_says_what_would_be_and_writes_nothing(on: Run, options: tuple[str, ...], words: str) -> None:
    said = on("schedules", "set", "s", "--task", "t", *options, "--dry-run")
    assert said.code == 0, said
    assert words in said.out
    assert on("schedules", "set", "s", "--task", "t", *options, "--dry-run", "--json").json["next"]
    assert on("schedules", "list", "--json").json == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "It is not said when s is to run. Use --cron"),
        (("--at", "09:00"), "--at does not say when. Use one of --cron"),
        (("--daily", "9:00", "--every", "5m"), "--every and --daily are given"),
        (("--every", "5m", "--tz", "UTC"), "--tz does not go with --every."),
        (("--daily", "9:00", "--at", "10:00", "--tz", "UTC"), "--at does not go with --daily."),
        (("--daily", "25:00", "--tz", "UTC"), "--daily: is '25:00'"),
        (("--daily", "09:00,25:00", "--tz", "UTC"), "--daily[1]: is '25:00'"),
        (("--weekly", "mon", "--tz", "UTC"), "--at: is missing; --weekly needs it"),
        (("--weekly", "moon", "--at", "09:00", "--tz", "UTC"), "--weekly: is 'moon'"),
        (("--monthly", "32", "--at", "09:00", "--tz", "UTC"), "--monthly: is 32"),
        (("--daily", "10:00"), "--tz: is missing; --daily needs it. Name the IANA time zone"),
        (("--cron", "61 * * * *", "--tz", "UTC"), "--cron: "),
        (("--cron", "* * * * *", "--tz", "America/New_Yrok"), "--tz: is 'America/New_Yrok', which is no IANA time zone. Did you"),
        (("--yearly", "12-24,02-30", "--at", "9:00", "--tz", "UTC"), "--yearly[1]: is '02-30'"),
        (("--yearly", "12-24", "--tz", "UTC"), "--at: is missing; --yearly needs it"),
        (("--moments", "2099-12-24", "--tz", "UTC"), "--moments: is '2099-12-24'"),
        (("--moments", "2099-12-24T18:00", "--at", "9:00", "--tz", "UTC"), "--at does not go with --moments."),
        (("--every", "5m", "--end-date", "2099-01-01"), "--end-date does not go with --every."),
        (("--daily", "9:00", "--tz", "UTC", "--start-date", "2099-01-02", "--end-date", "2099-01-01"), "--end-date: is 2099-01-01"),
        (("--weekly", "mon", "--at", "9:00", "--tz", "UTC", "--start-date", "2027-01-05", "--end-date", "2027-01-10"), "--end-date: leaves nothing"),
        (("--every", "0"), "--every: "),
        (("--once", "2026-01-01"), "--once: "),
        (("--rrule", "FREQ=DAILY", "--tz", "UTC"), "--start: is missing; --rrule needs it."),
        (("--json-recurrence", "/nowhere/at/all.json"), "--json-recurrence: /nowhere/at/all.json cannot be read"),
        (("--json-recurrence", "-", "--tz", "UTC"), "--tz does not go with --json-recurrence"),
        (("--every", "5m", "--queue", "x" * 300), "queue"),
        (("--every", "5m", "--catch-up", "some"), "catch_up"),
        (("--every", "5m", "--overlap", "x"), "overlap"),
        (("--every", "5m", "--input", "{"), "input"),
        (("--every", "5m", "--input", "[]"), "input"),
        (("--every", "5m", "--starts-at", "2026-01-02T00:00Z", "--ends-at", "2026-01-01T00:00Z"), "ends_at"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_wrong_usage_that_names_the_field(on: Run, options: tuple[str, ...], said: str) -> None:
    got = on("schedules", "set", "s", "--task", "t", *options)
    assert got.code == 2
    assert said in got.err
    assert on("schedules", "list", "--json").json == []


def test_a_preview_needs_no_schedule(on: Run, app: Duly, tmp_path: Path) -> None:
    given = ("--cron", "30 2 * * *", "--tz", "Europe/Paris")
    told = on("schedules", "preview", *given, "-n", "2", "--since", "2026-03-28T12:00Z", "--json").json
    assert [(p["due_at"], p["special"]) for p in told] == [
        ("2026-03-29T01:00:00Z", "29 March 2026 runs at 03:00"),
        ("2026-03-30T00:30:00Z", None),
    ]
    assert "29 March 2026 runs at 03:00" in on("schedules", "preview", *given, "--since", "2026-03-28T12:00Z").out
    file = tmp_path / "when.json"
    file.write_text(json.dumps({"kind": "every", "duration": 60}))
    assert len(on("schedules", "preview", "--json-recurrence", str(file), "--json").json) == 10
    file.write_text('{"kind": "sometimes"}')
    assert "recurrence.kind: is 'sometimes'" in on("schedules", "preview", "--json-recurrence", str(file)).err
    file.write_text("{")
    assert "--json-recurrence: is not JSON" in on("schedules", "preview", "--json-recurrence", str(file)).err
    assert on("schedules", "preview", "--once", "2020-01-01T00:00Z").out == "Nothing is to come.\n"
    assert on("schedules", "preview", "x", *given).code == 0
    assert on("schedules", "preview", "x").code == 1
    assert on("schedules", "preview").code == 2
    assert "NAME: is missing" in on("schedules", "preview", "--cron", "H 3 * * *", "--tz", "UTC").err
    assert on("schedules", "preview", "x", "--cron", "H 3 * * *", "--tz", "UTC").code == 0
    assert on("schedules", "list", "--json").json == []


def test_the_ledger_shows_what_became_of_each_instant(on: Run, app: Duly) -> None:
    assert on("schedules", "set", "s", "--task", "t", "--every", "1h").code == 0
    assert on("schedules", "ledger", "s").out == "Nothing of it was due yet.\n"
    trial = on("schedules", "backfill", "s", "--from", "3h", "--dry-run")
    assert trial.out.startswith("3 occurrences would fire, planned for ")
    done = on("schedules", "backfill", "s", "--from", "3h", "--reason", "outage", "--json").json
    assert len(done["fired"]) == 3
    assert on("schedules", "backfill", "s", "--from", "3h").out.startswith("Nothing is to be done from ")
    job = on("schedules", "run", "s", "--json").json["job_id"]
    assert app.jobs.get(job).task == "t"
    assert on("schedules", "run", "s").out.startswith("Job ")
    rows = on("schedules", "ledger", "s", "--json").json
    assert [r["trigger"] for r in rows] == ["manual", "manual", "backfill", "backfill", "backfill"]
    assert len(on("schedules", "ledger", "s", "--status", "missed", "--json").json) == 0
    assert on("schedules", "ledger", "s", "--status", "lost").code == 2
    assert on("schedules", "ledger", "s").out.splitlines()[0].split()[:4] == ["planned", "acted", "late", "status"]
    until = datetime.now(UTC) + timedelta(hours=2)
    assert on("schedules", "backfill", "s", "--from", until.isoformat()).code == 2


def test_a_schedule_is_paused_with_a_reason_and_resumed(on: Run, app: Duly) -> None:
    on("schedules", "set", "s", "--task", "t", "--every", "1h")
    said = on("schedules", "pause", "s", "--reason", "too loud")
    assert "Schedule s is paused by cli:" in said.out
    assert said.out.endswith(": too loud.\n")
    assert on("schedules", "list", "--json").json[0]["paused_reason"] == "too loud"
    assert "paused by cli:" in on("schedules", "list").out
    assert on("schedules", "resume", "s", "--json").json["state"] == "active"


def test_a_tick_and_a_sync_can_be_done_by_hand(on: Run, app: Duly, write: Callable[[str], str]) -> None:
    assert on("schedules", "tick").out == "Nothing was due.\n"
    assert on("schedules", "tick", "--json").json["fired"] == 0
    name = write(
        "from duly import Duly\nfrom duly.kernel.recurrence import Every\n"
        "app = Duly()\n@app.task\ndef t() -> None: ...\napp.schedule('s', Every('1h'), t)\n"
    )
    assert on("schedules", "sync", "--app", name, "--json").json == {"s": "created"}
    assert on("schedules", "sync", "--app", name).out.splitlines()[1].split() == ["s", "unchanged"]


def test_what_is_not_named_stays_as_it_is(on: Run, app: Duly) -> None:
    assert on(*NIGHTLY, "--input", '{"a": 1}', "--catch-up", "all", "--jitter", "10min", "--priority", "3").code == 0
    kept = ("task", "input", "catch_up", "priority", "overlap")
    before = on("schedules", "show", "nightly", "--json").json
    assert on("schedules", "set", "nightly", "--tz", "Europe/Rome").code == 0
    after = on("schedules", "show", "nightly", "--json").json
    assert [after[name] for name in kept] == [before[name] for name in kept] == ["report", {"a": 1}, "all", 3, "allow"]
    assert after["recurrence"] == before["recurrence"] | {"tz": "Europe/Rome"}
    # another kind of recurrence in the same zone, and back to no jitter
    assert on("schedules", "set", "nightly", "--daily", "03:00", "--jitter", "0").code == 0
    recurrence = on("schedules", "show", "nightly", "--json").json["recurrence"]
    assert recurrence == {"kind": "daily", "at": ["03:00"], "tz": "Europe/Rome", "name": "nightly"}
    assert on("schedules", "set", "nightly", "--at", "04:00", "--fold", "last").code == 0
    assert on("schedules", "set", "nightly", "--fold", "rule", "--ends-at", "2099-01-01T00:00Z").code == 0
    shown = on("schedules", "show", "nightly", "--json").json
    assert shown["recurrence"] == recurrence | {"at": ["04:00"]}
    assert shown["ends_at"] == "2099-01-01T00:00:00+00:00"
    assert "ends_at" not in on("schedules", "set", "nightly", "--no-ends-at", "--json").json
    assert on("schedules", "set", "nightly", "--no-ends-at", "--ends-at", "2099-01-01T00:00Z").code == 2
    assert on("schedules", "set", "nightly").out.startswith("Schedule nightly is as it was")
    # bounding dates outlive a change of kind, and `none` takes them away
    dated = on("schedules", "set", "nightly", "--start-date", "2099-01-01", "--end-date", "2099-03-31")
    assert "from 1 January 2099 until 31 March 2099" in dated.out
    dated = on("schedules", "set", "nightly", "--yearly", "01-06", "--end-date", "none")
    assert "on 6 January of every year, from 1 January 2099, Rome time" in dated.out
    changes = [line.split()[-1] for line in on("schedules", "versions", "nightly").out.splitlines()[1:]]
    assert changes[-2:] == ["recurrence", "time"]  # the first version changed nothing


def test_a_list_says_what_became_of_the_last_one_and_of_its_job(on: Run, app: Duly) -> None:
    @app.task("t")
    def t() -> None:
        raise PermanentError("no paper")

    for name in ("fails", "waits", "idle"):
        assert on("schedules", "set", name, "--task", "t" if name == "fails" else "u", "--every", "1h").code == 0
    for name in ("fails", "waits"):
        on("schedules", "run", name)
    drain(app)
    rows = {row["name"]: row["last"] for row in on("schedules", "list", "--json").json}
    assert rows["idle"] is None
    assert {name: rows[name]["job_status"] for name in ("fails", "waits")} == {"fails": "failed", "waits": "queued"}
    lines = {line.split()[0]: line for line in on("schedules", "list").out.splitlines()[1:]}
    assert "  failed " in lines["fails"]
    assert "  queued " in lines["waits"]
    assert lines["idle"].endswith("active")


def test_broken_and_ended_schedules_say_why(on: Run, app: Duly) -> None:
    on("schedules", "set", "over", "--task", "t", "--once", "2020-01-01T00:00Z")
    on("schedules", "set", "late", "--task", "t", "--every", "1h", "--ends-at", "2020-01-01T00:00Z")
    on(*NIGHTLY)
    with app.db.engine.begin() as connection:
        connection.execute(text("UPDATE schedules SET recurrence = '[]' WHERE name = 'nightly'"))
        connection.execute(update(schedules).where(schedules.c.name == "nightly").values(look_at=app.db.clock.now()))
    assert (
        on("schedules", "tick").out
        == "Nothing was due.\n1 schedule could not be planned; duly schedules list says why.\n"
    )
    said = on("schedules", "list")
    assert said.code == 0
    assert "over has ended: nothing of it is to come." in said.out
    assert "late has ended: its time was over at 2020-01-01 00:00:00Z." in said.out
    assert re.search(r"nightly is broken \(looked at again in \d+ s\): .*is \[\]", said.out)
    assert [row["state"] for row in on("schedules", "list", "--json").json] == ["ended", "broken", "ended"]
    assert on("schedules", "show", "nightly").code == 0
    assert on("schedules", "preview", "nightly").code == 2
    # it is mended by saying all of it anew
    assert on("schedules", "set", "nightly", "--tz", "UTC").code == 2
    assert on(*NIGHTLY).code == 0
    assert on("schedules", "show", "nightly", "--json").json["state"] == "active"


def test_a_preview_remarks_on_days_that_are_left_out_and_on_blackouts(on: Run, app: Duly) -> None:
    given = ("schedules", "preview", "--tz", "Europe/Paris", "--since", "2026-03-28T12:00Z", "-n", "2")
    assert "29 March 2026 does not run at 02:00 and 02:30.\n" in on(*given, "--cron", "*/30 2 * * *").out
    assert on(*given, "--cron", "0 * * * *", "-n", "24").out.count("29 March 2026") == 1
    app.calendars.set(Window(name="quiet", start="02:00", end="04:00", tz="Europe/Paris", scope="queue:mail"))
    row = on(*given, "--daily", "03:30", "--queue", "mail").out.splitlines()[1]
    assert row.split("  ")[-2:] == ["deferred", "blackout quiet until 2026-03-29 02:00Z"]
    assert "skipped" in on(*given, "--daily", "03:30", "--queue", "mail", "--blackout", "skip").out
    assert "fires" in on(*given, "--daily", "03:30").out
    on(*NIGHTLY, "--queue", "mail")
    on("schedules", "pause", "nightly")
    told = on("schedules", "preview", "nightly").out
    assert "deferred" in told
    assert told.endswith("nightly is paused: these would be skipped. duly schedules resume nightly\n")


def test_the_actor_and_the_reason_stand_in_the_trail(on: Run, app: Duly) -> None:
    on(*NIGHTLY, "--actor", "deploy")
    on("schedules", "run", "nightly", "--actor", "ann", "--reason", "asked for")
    on("schedules", "remove", "nightly", "--actor", "bob")
    trail = on("audit", "list", "--entity", "schedule", "--json").json
    assert [(e["action"], e["actor"], e["meta"].get("reason")) for e in reversed(trail)] == [
        ("SCHEDULE_CREATED", "deploy", None), ("SCHEDULE_RUN", "ann", "asked for"), ("SCHEDULE_REMOVED", "bob", ""),
    ]  # fmt: skip


def test_where_there_is_no_database_a_preview_makes_none(run: Run, folder: Path) -> None:
    given = ("--daily", "02:30", "--tz", "Europe/Paris")
    assert run("schedules", "preview", *given).code == 0
    assert run("schedules", "set", "s", "--task", "t", *given, "--dry-run").code == 0
    assert run("schedules", "preview", "s", *given).code == 0
    assert run("schedules", "list").code == 1
    assert run("schedules", "tick").code == 1
    assert run("schedules", "preview", "s").code == 1
    assert list(folder.iterdir()) == []


def test_a_tick_by_hand_makes_what_the_application_declares(run: Run, write: Callable[[str], str]) -> None:
    name = write(
        "from duly import Duly, Every\napp = Duly()\n@app.task\ndef t() -> None: ...\napp.schedule('s', Every('1h'), t)\n"
    )
    told = run("schedules", "tick", "--app", name, "--json").json
    assert (told["sync"], told["fired"], told["pruned"]) == ({"s": "created"}, 0, 0)
    assert [row["name"] for row in run("schedules", "list", "--json").json] == ["s"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("app.schedule('s', Daily('02:30', tz='Europe/Pari'), t)", "tz: is 'Europe/Pari'"),
        (
            "app.schedule('s', Every('1h'), t)\napp.schedule('s', Every('2h'), t)",
            "name: is 's', which is declared twice.",
        ),
        ("app.schedule('s', Every('1h'), 'nobody', {'a': object()})", "a: is of type builtins.object"),
    ],
)
def test_what_code_declares_wrongly_is_told_before_anything_runs(
    run: Run, write: Callable[[str], str], folder: Path, more: str, said: str
) -> None:
    name = write(f"from duly import Daily, Duly, Every\napp = Duly()\n@app.task\ndef t() -> None: ...\n{more}\n")
    for command in (("schedules", "sync", "--app", name), ("up", name, "--until-idle")):
        told = run(*command)
        assert told.code in (1, 2)
        assert said in told.err
        assert "Traceback" not in told.err
    assert not (folder / "duly.db").exists()


SHOP = """
from datetime import UTC, datetime, timedelta
from duly import Daily, Duly, Every
app = Duly("sqlite:///up.db")

@app.task
def beat() -> None:
    open("beats", "a").write("x")

app.schedule("nightly", Daily("02:30", tz="Europe/Paris"), beat)
app.schedule("beat", Every("1h"), beat, catch_up="all")
"""


def duly(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "duly", *args], cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_worker_until_idle_runs_what_schedules_have_due_and_waits_for_none_to_come(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    first = duly(tmp_path, "up", "shop.py", "--until-idle")
    assert first.returncode == 0, first.stderr
    assert re.search(r"schedules  2 \(next: (beat|nightly) at .*, in .*\)", first.stdout)
    assert "No job was run" in first.stdout
    with sqlite3.connect(tmp_path / "up.db") as database:  # two hours without a worker
        database.execute(
            "UPDATE schedules SET decided_until = decided_until - 7200000000, look_at = 0 WHERE name = 'beat'"
        )
    second = duly(tmp_path, "worker", "shop.py", "--until-idle")
    assert second.returncode == 0, second.stderr
    assert "2 succeeded" in second.stdout
    assert (tmp_path / "beats").read_text() == "xx"


def test_ctrl_c_stops_a_worker_whose_scheduler_sleeps(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    up = subprocess.Popen(
        [sys.executable, "-m", "duly", "up", "shop.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    assert up.stderr is not None
    while "worker_started" not in (line := up.stderr.readline()):
        assert line, "it has ended"
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=30)
    assert up.returncode == 0, err
    assert "No job was run" in out
    assert "Traceback" not in err

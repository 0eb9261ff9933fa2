"""``duly schedules``: making recurring work, looking at it, and acting on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.hands import Run
from duly import Duly

NIGHTLY = ("schedules", "set", "nightly", "--task", "report", "--cron", "30 2 * * *", "--tz", "Europe/Paris")


def test_a_schedule_is_made_shown_changed_and_removed(on: Run, app: Duly) -> None:
    assert on("schedules", "list").out == "There is no schedule.\n"
    assert on("schedules", "list", "--json").json == []
    made = on(*NIGHTLY, "--input", '{"a": 1}', "--overlap", "skip")
    assert made.code == 0
    assert "Schedule nightly is made: report at 02:30 every day, Paris time. Next: " in made.out
    assert "is as it was" in on(*NIGHTLY, "--input", '{"a": 1}', "--overlap", "skip").out
    changed = on(*NIGHTLY, "--catch-up", "within(2h)", "--json").json
    assert (changed["change"], changed["version"], changed["catch_up"]) == ("changed", 2, "within(7200)")
    shown = on("schedules", "show", "nightly").out
    assert "catch_up within(7200), overlap allow, blackout defer" in shown
    assert "To come" in shown
    assert [v["version"] for v in on("schedules", "versions", "nightly", "--json").json] == [2, 1]
    assert on("schedules", "versions", "nightly").code == 0
    [row] = on("schedules", "list", "--json").json
    assert (row["name"], row["state"], row["when"], row["input"]) == (
        "nightly",
        "active",
        "at 02:30 every day, Paris time",
        {},
    )
    assert on("schedules", "remove", "nightly", "--reason", "old").out == "Schedule nightly is removed.\n"
    assert on("schedules", "show", "nightly").code == 1
    actions = [e["action"] for e in on("audit", "list", "--entity", "schedule", "--json").json]
    assert actions == ["SCHEDULE_REMOVED", "SCHEDULE_CHANGED", "SCHEDULE_CREATED"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--every", "15m"), "every 15 minutes"),
        (("--daily", "--at", "18:00", "--at", "09:00", "--tz", "UTC"), "at 09:00 and 18:00 every day, UTC"),
        (("--weekly", "mon,thu", "--at", "09:00", "--tz", "Europe/Rome"), "at 09:00 on Monday and Thursday, Rome time"),
        (("--monthly", "last", "--at", "06:00", "--tz", "UTC"), "at 06:00 on the last day of every month, UTC"),
        (("--monthly", "31", "--at", "06:00", "--tz", "UTC"), "at 06:00 on the 31st of the months that have one, UTC"),
        (("--cron", "@daily", "--tz", "UTC", "--jitter", "10min", "--fold", "last"), "at 00:00 every day, UTC"),
        (("--rrule", "FREQ=DAILY;INTERVAL=2", "--start", "2026-01-05T09:00", "--tz", "UTC"), "every 2 days at 09:00"),
        (("--when", '{"kind": "daily", "at": "10:00", "tz": "UTC"}'), "at 10:00 every day, UTC"),
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
        ((), "It is not said when. Use one of --cron"),
        (("--daily", "--every", "5m"), "--every and --daily are given."),
        (("--every", "5m", "--tz", "UTC"), "--tz does not go with --every."),
        (("--daily", "--at", "25:00", "--tz", "UTC"), "when.at"),
        (("--daily", "--tz", "UTC"), "when.at"),
        (("--daily", "--at", "10:00"), "when.tz"),
        (("--cron", "61 * * * *", "--tz", "UTC"), "when.expression"),
        (("--cron", "* * * * *", "--tz", "America/New_Yrok"), "Did you mean America/New_York?"),
        (("--every", "0"), "when.duration"),
        (("--once", "2026-01-01"), "when.instant"),
        (("--when", "{"), "--when is no JSON"),
        (("--when", "@/nowhere/at/all.json"), "--when: "),
        (("--when", '{"kind": "sometimes"}'), "when.kind"),
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
    assert len(on("schedules", "preview", "--when", f"@{file}", "--json").json) == 10
    assert on("schedules", "preview", "--once", "2020-01-01T00:00Z").out == "Nothing is to come.\n"
    assert on("schedules", "preview", "x", *given).code == 2
    assert on("schedules", "preview", "x").code == 1


def test_the_ledger_shows_what_became_of_each_instant(on: Run, app: Duly) -> None:
    assert on("schedules", "set", "s", "--task", "t", "--every", "1h").code == 0
    assert on("schedules", "ledger", "s").out == "Nothing of it was due yet.\n"
    trial = on("schedules", "backfill", "s", "--from", "3h", "--dry-run")
    assert trial.out.startswith("3 occurrences would fire, planned from ")
    done = on("schedules", "backfill", "s", "--from", "3h", "--reason", "outage", "--json").json
    assert len(done["fired"]) == 3
    assert (
        on("schedules", "backfill", "s", "--from", "3h").out
        == "Nothing to do: 3 occurrences in this range, all fired or waiting.\n"
    )
    job = on("schedules", "run", "s", "--json").json["job_id"]
    assert app.jobs.get(job).task == "t"
    assert on("schedules", "run", "s").out.startswith("Job ")
    rows = on("schedules", "ledger", "s", "--json").json
    assert [r["trigger"] for r in rows] == ["manual", "manual", "backfill", "backfill", "backfill"]
    assert len(on("schedules", "ledger", "s", "--status", "missed", "--json").json) == 0
    assert on("schedules", "ledger", "s", "--status", "lost").code == 2
    assert on("schedules", "ledger", "s").out.splitlines()[0].split()[:4] == ["planned", "local", "status", "reason"]
    until = datetime.now(UTC) + timedelta(hours=2)
    assert on("schedules", "backfill", "s", "--from", until.isoformat()).code == 2


def test_a_schedule_is_paused_with_a_reason_and_resumed(on: Run, app: Duly) -> None:
    on("schedules", "set", "s", "--task", "t", "--every", "1h")
    said = on("schedules", "pause", "s", "--reason", "too loud")
    assert "Schedule s is paused by cli:" in said.out
    assert ": too loud. Next: " in said.out
    assert on("schedules", "list", "--json").json[0]["paused_reason"] == "too loud"
    assert "paused by cli:" in on("schedules", "list").out
    assert on("schedules", "resume", "s", "--json").json["state"] == "active"


def test_a_tick_and_a_sync_can_be_done_by_hand(on: Run, app: Duly, write: Callable[[str], str]) -> None:
    assert on("schedules", "tick").out == "0 fired, 0 skipped, 0 missed, 0 deferred; 0 schedules broken.\n"
    assert on("schedules", "tick", "--json").json["fired"] == 0
    name = write(
        "from duly import Duly\nfrom duly.kernel.recurrence import Every\n"
        "app = Duly()\n@app.task\ndef t() -> None: ...\napp.schedule('s', Every('1h'), t)\n"
    )
    assert on("schedules", "sync", "--app", name, "--json").json == {"s": "created"}
    assert on("schedules", "sync", "--app", name).out.splitlines()[1].split() == ["s", "unchanged"]

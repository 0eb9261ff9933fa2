"""``duly blackouts``: set, look, switch, remove, import, ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.hands import Run
from duly import Duly, Window

NIGHT = ("--days", "wed", "--start", "22:00", "--end", "07:00", "--tz", "Europe/Rome", "--scope", "queue:mail")


def test_a_blackout_is_set_shown_switched_and_removed(on: Run, app: Duly) -> None:
    assert on("blackouts", "list").out == "There are no blackouts.\n"
    said = on("blackouts", "set", "quiet", *NIGHT, "--reason", "sleep")
    assert "Blackout quiet holds queue:mail: Wednesday from 22:00 to 07:00 of the next day, Rome time (" in said.out
    kept = app.calendars.get("quiet")
    assert kept.window == Window(
        days="wed", start="22:00", end="07:00", tz="Europe/Rome", name="quiet", scope="queue:mail"
    )
    assert (kept.reason, kept.updated_by.startswith("cli:")) == ("sleep", True)
    [row] = on("blackouts", "list", "--json").json
    assert (row["name"], row["scope"], row["enabled"], row["reason"]) == ("quiet", "queue:mail", True, "sleep")
    assert row["holds_from"].endswith("Z")
    assert "sleep" in on("blackouts", "show", "quiet").out
    assert "(disabled)" in on("blackouts", "disable", "quiet").out
    assert on("blackouts", "enable", "quiet", "--json").json["enabled"] is True
    assert on("blackouts", "remove", "quiet").code == 0
    assert app.calendars.all() == {}
    actions = [e["action"] for e in on("audit", "list", "--entity", "blackout", "--json").json]
    assert actions == ["BLACKOUT_REMOVED", "BLACKOUT_ENABLED", "BLACKOUT_DISABLED", "BLACKOUT_SET"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--tz", "Mars/X"), "tz: is 'Mars/X'"),
        (("--tz", "UTC", "--start", "25:00"), "start: is '25:00'"),
        (("--tz", "UTC", "--end", "99:99"), "end: is '99:99'"),
        (("--tz", "UTC", "--days", "caturday"), "days: is 'caturday'"),
        (("--tz", "UTC", "--date", "2026-02-30"), "dates[0]: is '2026-02-30'"),
        (("--tz", "UTC", "--date", "2026-03-02..2026-03-01"), "backwards"),
        (("--tz", "UTC", "--scope", "mail"), "scope: is 'mail'"),
        ((), "--tz"),
    ],
)
def test_a_window_that_makes_no_sense_ends_with_2_and_says_what_to_write(
    on: Run, args: tuple[str, ...], said: str
) -> None:
    for command in (("set", "x"), ("impact",)):
        found = on("blackouts", *command, *args)
        assert (found.code, said in found.err) == (2, True), found.err


def test_one_that_is_not_there_ends_with_1(on: Run) -> None:
    for command in ("show", "remove", "enable", "disable"):
        assert on("blackouts", command, "nope").code == 1


def test_queues_and_the_doctor_say_what_holds(on: Run, app: Duly) -> None:
    app.enqueue("A", queue="mail")
    app.calendars.set(Window(tz="UTC", name="quiet", scope="queue:mail"))
    [mail] = on("queues", "list", "--json").json
    assert (mail["blackout"], mail["blackout_until"]) == ("quiet", None)
    assert "in the blackout quiet" in on("queues", "list").out
    found = {f["check"]: f for f in on("doctor", "--json").json["findings"]}
    assert (found["blackouts"]["grade"], "quiet holds queue:mail" in found["blackouts"]["detail"]) == ("ok", True)
    app._write(lambda c: c.exec_driver_sql("""UPDATE blackouts SET definition = '{"tz": "Mars/X"}'"""))
    found = {f["check"]: f for f in on("doctor", "--json").json["findings"]}
    assert (found["blackouts"]["grade"], "Mars/X" in found["blackouts"]["detail"]) == ("fail", True)
    assert "Mars/X" in on("blackouts", "list").out
    assert "Mars/X" in on("blackouts", "show", "quiet").out


def test_a_calendar_file_is_imported_and_imported_again(on: Run, app: Duly, folder: Path) -> None:
    pytest.importorskip("icalendar")
    text = "BEGIN:VCALENDAR\nVERSION:2.0\nBEGIN:VEVENT\nUID:1\nDTSTART;VALUE=DATE:20310106\nEND:VEVENT\nEND:VCALENDAR\n"
    (folder / "h.ics").write_text(text)
    args = ("blackouts", "import", "h.ics", "--name", "holidays", "--from", "2031-01-01T00:00Z")
    assert (on(*args).code, "tz: is missing" in on(*args).err) == (2, True)
    dry = on(*args, "--tz", "UTC", "--dry-run", "--json").json
    assert (dry["events"], dry["dry_run"], app.calendars.all()) == (1, True, {})
    assert "1 occurrences of 1 events are held by 1 blackouts." in on(*args, "--tz", "UTC").out
    assert app.calendars.get("holidays").window == Window(dates="2031-01-06", tz="UTC", name="holidays")
    (folder / "h.ics").write_text(text.replace("20310106", "20310107"))
    assert on(*args, "--tz", "UTC").code == 0
    assert app.calendars.get("holidays").version == 2
    (folder / "h.ics").write_text(text.replace("UID:1", "UID"))
    broken = on(*args, "--tz", "UTC")
    assert (broken.code, "h.ics, line 4" in broken.err) == (2, True)


def test_what_a_window_would_hold_is_told_without_setting_it(on: Run, app: Duly) -> None:
    job = app.enqueue("A", queue="mail").job
    found = on("blackouts", "impact", "--tz", "UTC", "--scope", "queue:mail", "--json").json
    assert [(q["queue"], q["count"], q["first"][0]["id"]) for q in found["queues"]] == [("mail", 1, job.id)]
    assert "queue mail" in on("blackouts", "impact", "--tz", "UTC").out
    nothing = on("blackouts", "impact", "--tz", "UTC", "--date", "2001-01-01")
    assert (nothing.code, nothing.out) == (0, "It does not hold in this time.\n")
    assert app.calendars.all() == {}

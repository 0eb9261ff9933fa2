"""``duly publish``, in a folder with a file of channels and no application."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

import fronts
from cli.hands import Run, Said
from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.cli.main import cli
from duly.publishing import Publishing
from duly.publishing import Run as PostRun
from duly.testing import drain

CHANNELS = """\
blog: {connector: folder, options: {folder: posts, url: https://example.org/posts}}
pictures: {connector: folder, limit: 2, options: {folder: "${PICTURES}"}}
"""
PLAN = """\
brand: orchard
timezone: Europe/Rome
channels: [pictures, blog]
template: {body: "{text}", title: "{title}"}
slots:
  - at: 2100-03-28T02:30
    placeholders: {title: Apples, text: They are ripe.}
    assets: [{path: a.jpg, alt: apples}]
    first_comment: more
  - at: 2100-03-29T09:00
    channels: [blog]
    placeholders: {title: Pears, text: These too.}
"""
TOKEN = "0123456789abcdef-token"

db_url = fronts.db_url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in [n for n in os.environ if n.startswith("DULY_") and not n.startswith("DULY_TEST")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DULY_PUBLISH_CHANNELS", "channels.yaml")
    monkeypatch.setenv("PICTURES", "pictures")
    (here / "channels.yaml").write_text(CHANNELS)
    (here / "posts.yaml").write_text(PLAN)
    (here / "a.jpg").write_bytes(b"\xff\xd8\xff an apple")
    return here


def call(*args: str, input: str | None = None) -> Said:
    done = CliRunner().invoke(cli, args, input=input, prog_name="duly")
    return Said(done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def run(folder: Path) -> Run:
    """``duly publish …``; without DULY_DATABASE_URL on ./duly.db."""
    return lambda *args, **more: call("publish", *args, **more)


@pytest.fixture
def on(run: Run, db_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DULY_DATABASE_URL", db_url)
    return run


@pytest.fixture
def inside(on: Run, db_url: str) -> Any:
    """The same database and channels from the inside, with a channel that refuses everything."""
    app = Duly(db_url)
    publishing = Publishing.of(app)

    @publishing.process("broken")
    def refuse(run: PostRun) -> None:
        run.mark_failed("no luck", retryable=False)

    yield publishing
    app.close()


def ok(said: Said) -> str:
    assert said.code == 0, said
    return said.out


# ---------------------------------------------------------------------- plan


def test_a_plan_is_made_once(on: Run) -> None:
    # R002-3, R002-17
    first = on("plan", "posts.yaml", "--json").json
    assert (first["made"], first["there"]) == (3, 0)
    # a local time in the gap is the first instant after it
    assert [(job["channel"], job["run_at"]) for job in first["jobs"]] == [
        ("pictures", "2100-03-28T01:00:00Z"), ("blog", "2100-03-28T01:00:00Z"), ("blog", "2100-03-29T07:00:00Z")
    ]  # fmt: skip
    again = on("plan", "posts.yaml", "--json").json
    assert (again["made"], again["there"]) == (0, 3)
    assert [job["id"] for job in again["jobs"]] == [job["id"] for job in first["jobs"]]
    said = ok(on("plan", "posts.yaml"))
    assert "0 posts made, 3 there already." in said
    assert "pending, there already" in said


def test_a_dry_run_writes_nothing_and_says_what_would_be_made(on: Run) -> None:
    said = ok(on("plan", "posts.yaml", "--dry-run"))
    assert "Would make 3 posts. Nothing was written." in said
    assert "ig_first_comment is left out: blog knows no first comment." in said
    assert on("list", "--json").json == []
    on("plan", "posts.yaml")
    told = on("plan", "posts.yaml", "--dry-run", "--json").json
    assert (told["would_make"], [one["existing"]["status"] for one in told["posts"]]) == (0, ["pending"] * 3)


def test_looking_ahead_needs_no_database_and_makes_none(run: Run, folder: Path) -> None:
    assert "Would make 3 posts" in ok(run("plan", "posts.yaml", "--dry-run"))
    assert "Apples" in ok(run("preview", "posts.yaml"))
    assert "planned" in ok(run("calendar", "--plan", "posts.yaml", "--week", "2100-03-28"))
    assert not (folder / "duly.db").exists()


def test_a_plan_that_is_wrong_ends_with_2_and_names_lines(on: Run, folder: Path) -> None:
    (folder / "posts.yaml").write_text(PLAN.replace("2100-03-28T02:30", "soon").replace("title: Pears", "titel: Pears"))
    said = on("plan", "posts.yaml")
    assert said.code == 2
    assert "posts.yaml:6:9: slots[0].at is 'soon'." in said.err
    assert "posts.yaml:10:5: slots[1] gives no value for blog to {title}." in said.err
    assert on("list", "--json").json == []
    (folder / "posts.yaml").write_text(PLAN.replace("pictures, blog", "pictures, blgo").replace("[blog]", "[blgo]"))
    assert "channel: is 'blgo'" in on("plan", "posts.yaml").err
    assert on("plan", "nowhere.yaml").code == 2


def test_checks_that_fail_block_a_plan_unless_they_are_overridden(on: Run, folder: Path, db_url: str) -> None:
    (folder / "posts.yaml").write_text(PLAN + "    link: example.org\n")
    for dry in ((), ("--dry-run",)):
        said = on("plan", "posts.yaml", *dry)
        assert (said.code, "posts.yaml:10 slots[1]: link does not begin with https://." in said.err) == (2, True)
    assert on("list", "--json").json == []
    assert on("plan", "posts.yaml", "--override", " ").code == 2
    assert "3 posts made" in ok(on("plan", "posts.yaml", "--override", "the shop moves"))
    with_app = Duly(db_url)
    (row,) = with_app.db.read(lambda c: find(c, TrailFilter(action="PUBLISH_OVERRIDDEN")))
    with_app.close()
    assert (row.actor.startswith("cli:"), row.meta["reason"]) == (True, "the shop moves")


def test_posts_of_the_past_are_told_of_and_can_be_left_out(on: Run, folder: Path) -> None:
    (folder / "posts.yaml").write_text(PLAN.replace("2100-03-28", "2001-03-24"))
    assert "1 post made, 0 there already, 2 left out." in ok(on("plan", "posts.yaml", "--skip-past"))
    said = on("plan", "posts.yaml")
    assert "2 posts of the plan lie in the past and are due at once" in said.err
    assert on("plan", "posts.yaml").err == ""


def test_a_plan_that_has_changed_says_what_collides_and_sync_cancels_what_it_no_longer_has(
    on: Run, folder: Path
) -> None:
    # D5b
    on("plan", "posts.yaml")
    (folder / "posts.yaml").write_text(PLAN.replace("title: Pears", "title: Quinces"))
    said = on("plan", "posts.yaml", "--dry-run")
    assert "posts.yaml:10 slots[1] is on blog at the same time as publication 3. If it takes" in said.err
    foretold = on("plan", "posts.yaml", "--dry-run", "--sync")
    assert ("Would make 1 post and cancel 1 post." in foretold.out, "same time" in foretold.err) == (True, False)
    assert on("plan", "posts.yaml", "--sync", "--json").json["cancelled"] == [3]
    assert [one["status"] for one in on("list", "-c", "blog", "--json").json] == ["pending", "cancelled", "pending"]
    assert "0 posts made, 3 there already, 0 cancelled" in ok(on("plan", "posts.yaml", "--sync"))
    assert "it was cancelled by" in ok(on("replay", "3", "--dry-run"))


def test_without_channels_it_says_how_to_name_them(on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DULY_PUBLISH_CHANNELS")
    said = on("plan", "posts.yaml")
    assert (said.code, "DULY_PUBLISH_CHANNELS" in said.err) == (2, True)


# ---------------------------------------------------------------------- preview, test, channels


def test_a_preview_of_a_payload(run: Run) -> None:
    # R002-15
    payload = '{"caption": "Apples", "link": "example.org"}'
    said = ok(run("preview", payload, "--channel", "blog"))
    assert "link does not begin with https://." in said
    (told,) = run("preview", "-", "-c", "blog", "--json", input=payload).json
    assert (told["preview"]["caption"], told["preflight"]["score"]) == ("Apples", 60)
    assert run("preview", payload).code == 2
    assert run("preview", "{", "-c", "blog").code == 2
    assert run("preview", payload, "-c", "nowhere").code == 2
    assert run("preview", "nowhere.json", "-c", "blog").code == 2
    assert [one["channel"] for one in run("preview", "posts.yaml", "-c", "blog", "--json").json] == ["blog", "blog"]


def test_a_test_says_what_would_become_of_a_post(on: Run) -> None:
    # R002-13, B068
    assert ok(on("test", "blog")) == "ok: it would run in a moment.\n"
    call(
        "blackouts",
        "set",
        "night",
        "--scope",
        "channel:blog",
        "--tz",
        "Europe/Rome",
        "--start",
        "22:00",
        "--end",
        "07:00",
    )
    held = on("test", "blog", "--run-at", "2100-03-28T23:00:00+02:00", "--json")
    assert (held.code, held.json["outcome"], held.json["until"]) == (1, "blackout", "2100-03-29T05:00:00Z")
    key = on("plan", "posts.yaml", "--json").json["jobs"][0]["idempotency_key"]
    assert "collision" in on("test", "pictures", "--key", key).out
    assert on("test", "nowhere").code == 2
    assert on("test", "blog", "--payload", '{"caption": 7}').code == 2
    assert len(on("list", "--json").json) == 3


def test_channels_are_listed_and_asked_whether_they_work(
    on: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blog, pictures = on("channels", "--json").json
    assert (blog["connector"], blog["limit"], blog["max_attempts"], blog["held"]) == ("folder", 1, 5, None)
    assert pictures["limit"] == 2
    call("queues", "pause", "blog", "--reason", "lunch")
    assert "lunch" in ok(on("channels", "--check"))
    monkeypatch.setenv("PICTURES", "a.jpg/below")
    said = on("channels", "--check", "--json")
    assert (said.code, [one["works"] for one in said.json]) == (1, [True, False])


# ---------------------------------------------------------------------- calendar


def test_the_week_is_drawn_with_its_blackouts(on: Run) -> None:
    on("plan", "posts.yaml")
    call("blackouts", "set", "night", "--tz", "Europe/Rome", "--start", "22:00", "--end", "07:00")
    said = ok(on("calendar", "--week", "2100-03-28", "--tz", "Europe/Rome")).splitlines()
    assert said[0] == "Week 12, 22 March to 28 March 2100, Europe/Rome"
    assert said[1] == "On Sun 28 the clock goes from 02:00 to 03:00."
    assert max(len(line) for line in said) <= 80
    assert any(re.fullmatch(r"   03 (│▒+){6}│1 2▒+", line.replace("1▒2", "1 2")) for line in said), said
    assert "waits until Sun 07:00" in said[-1]
    told = on("calendar", "--week", "2100-03-28", "--tz", "Europe/Rome", "--json").json
    assert [post["waits_until"] for post in told["posts"]] == ["2100-03-28T05:00:00Z"] * 2
    assert told["blackouts"][0] == {"start": "2100-03-21T23:00:00Z", "end": "2100-03-22T06:00:00Z", "channel": "blog"}
    assert len(on("calendar", "--week", "2100-03-28", "-c", "blog", "--json").json["posts"]) == 1
    assert "Nothing is to be published this week." in ok(on("calendar"))
    for wrong in (("--week", "soon"), ("--week", "9999-12-31"), ("--tz", "Europe/Rom")):
        assert on("calendar", *wrong).code == 2


def test_a_plan_is_drawn_over_what_is_there(on: Run, folder: Path) -> None:
    on("plan", "posts.yaml")
    (folder / "more.yaml").write_text(PLAN.replace("They are ripe", "They are sweet"))
    posts = on("calendar", "--week", "2100-03-28", "--plan", "more.yaml", "--json").json["posts"]
    assert [one["status"] for one in posts] == ["planned", "pending"] * 2
    assert [
        one["status"] for one in on("calendar", "--week", "2100-03-28", "--plan", "posts.yaml", "--json").json["posts"]
    ] == ["pending"] * 2


def test_a_terminal_gets_colours_and_an_old_one_plain_signs(folder: Path) -> None:
    command = [sys.executable, "-m", "duly", "publish", "calendar", "--plan", "posts.yaml", "--week", "2100-03-28"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdout=theirs, stdin=subprocess.DEVNULL, env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"}
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65_536):
            said += part
    except OSError:
        pass  # what Linux answers when the other end is closed
    os.close(ours)
    assert process.wait(60) == 0
    assert b"\x1b[34mplanned" in said
    plain = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, timeout=60)
    assert (plain.returncode, b"\\u" in plain.stdout, b"00-01 |" in plain.stdout) == (0, False, True)


# ---------------------------------------------------------------------- what is there


def test_what_is_there_is_listed_and_shown(on: Run, inside: Publishing) -> None:
    job, _ = inside.enqueue("broken", {"caption": "Plums"}, key="k")
    on("plan", "posts.yaml")
    drain(inside._app)
    assert "no luck" in ok(on("list"))
    assert [one["channel"] for one in on("list", "-c", "broken", "-s", "failed", "--json").json] == ["broken"]
    assert len(on("list", "--from", "2100-03-28T02:00:00Z", "--json").json) == 1
    assert on("list", "--key", "k", "--type", "ig_first_comment", "--json").json == []
    (one,) = on("list", "-n", "1", "--json").json
    assert on("list", "-n", "1", "--below", str(one["id"]), "--json").json[0]["id"] < one["id"]
    shown = ok(on("show", str(job.id)))
    for words in ("no luck", "payload.caption", "Plums", "Audit trail", "1 of 5"):
        assert words in shown
    assert on("show", str(job.id), "--json").json["status"] == "failed"
    assert on("show", "999999").code == 1
    assert on("show", str(job.id), "--tenant", "other").code == 1


def test_replay_and_cancel_by_id_and_by_filter(on: Run, inside: Publishing) -> None:
    # R002-16, B063
    ids = [str(inside.enqueue("broken", {"caption": str(n)}).job.id) for n in range(3)]
    drain(inside._app)
    on("plan", "posts.yaml")
    assert on("replay", "-s", "failed").code == 2, "a status alone narrows nothing down"
    assert on("replay", ids[0], "-c", "broken").code == 2
    assert on("replay", "-c", "broken", "-s", "completed").code == 2
    assert "Would replay 1 publication" in on("replay", ids[0], "--dry-run").out
    assert "Replayed publication" in ok(on("replay", ids[0]))
    again = on("replay", ids[0])
    assert (again.code, f"publication {ids[0]} is pending, so it cannot replay" in again.err) == (1, True)
    assert "Would replay 2 publications" in ok(on("replay", "-c", "broken", "--dry-run"))
    assert on("replay", "-c", "broken", "--json").json["replayed"] == [int(i) for i in ids[1:]]
    assert "No publication fits." in ok(on("replay", "-c", "broken"))
    said = on("cancel", "-c", "blog", "--until", "2100-03-29T00:00:00Z", "--reason", "rain", "--json").json
    assert len(said["cancelled"]) == 1
    assert on("cancel", "999999").code == 1
    assert sorted(one["status"] for one in on("list", "-c", "blog", "--json").json) == ["cancelled", "pending"]


def test_a_running_publication_is_asked_to_stop_and_not_said_to_be_cancelled(on: Run, inside: Publishing) -> None:
    first, second = (inside.enqueue("broken", {"caption": str(n)}).job.id for n in range(2))
    engine = inside._app.engine
    inside._app.queues.set("broken", limit=None)
    claimed = engine.db.write(lambda c: engine.store.claim(c, {"broken": 1}, ["PUBLISH"], 1, 60.0, "w"))
    assert [job.id for job in claimed] == [first]
    said = ok(on("cancel", str(first), str(second)))
    assert f"Cancelled publication {second}." in said
    assert f"Asked publication {first} to stop, which runs" in said


def test_many_are_asked_for(on: Run, inside: Publishing) -> None:
    for n in range(21):
        inside.enqueue("broken", {"caption": str(n)})
    refused = on("cancel", "-c", "broken")
    assert (refused.code, "Add --yes" in refused.err) == (2, True)
    assert len(on("cancel", "-c", "broken", "--yes", "--json").json["cancelled"]) == 21


# ---------------------------------------------------------------------- whole


def test_a_plan_becomes_posts_without_an_application(run: Run, folder: Path) -> None:
    (folder / "posts.yaml").write_text(PLAN.replace("2100-", "2001-"))
    ok(run("plan", "posts.yaml"))
    assert call("up", "--until-idle").code == 0
    assert [one["status"] for one in run("list", "--json").json] == ["completed"] * 3
    (folder / "a.jpg").unlink()
    found = sorted(file.parent.name.split("-")[0] for file in folder.glob("posts/*/index.md"))
    assert found == ["apples", "pears"]
    assert len(list(folder.glob("pictures/*/*.jpg"))) == 1


@pytest.fixture
def spawn(folder: Path) -> Any:
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "duly", "publish", *args]
        started.append(
            subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=lambda end: end.name)
def test_the_rest_door_is_served_until_a_signal(
    spawn: Callable[..., subprocess.Popen[str]], end: signal.Signals
) -> None:
    process = spawn("serve", "--port", "0", DULY_WEB_TOKEN=TOKEN)
    assert process.stdout is not None
    line = process.stdout.readline()
    url = line.split()[2].rstrip(",")
    assert url.startswith("http://127.0.0.1:"), line
    assert httpx2.get(f"{url}/jobs").status_code == 401
    made = httpx2.post(
        f"{url}/jobs",
        json={"channel": "blog", "payload": {"caption": "x"}},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    assert made.status_code == 201
    process.send_signal(end)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, ""), out


def test_the_rest_door_does_not_open_to_everybody(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run("serve", "--port", "0")
    assert (said.code, "DULY_WEB_TOKEN" in said.err) == (2, True)
    monkeypatch.setenv("DULY_WEB_TOKEN", TOKEN)
    assert "--allow-remote" in run("serve", "--host", "0.0.0.0").err
    monkeypatch.setenv("DULY_WEB_TOKEN", "short")
    assert run("serve", "--port", "0").code == 2
    assert TOKEN not in json.dumps(call("doctor", "--settings", "--json").out)

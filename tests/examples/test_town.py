"""The town does what it says: every room of Duly in one process, as a program of its own in an empty folder."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from duly import Duly, Status
from examples import programs
from keeper import until

EXAMPLES = Path(__file__).parents[2] / "examples"
TOWN = EXAMPLES / "town"


def command(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """What to call, and in which environment: none of our settings, and a terminal's width for usage errors."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "TOWN_", "BRIEFING_", "MAKE"))}  # fmt: skip
    return [programs.PYTHON, str(TOWN / "run.py"), *arguments], kept | {"COLUMNS": "200"}


def run(cwd: Path, *arguments: str, code: int = 0, timeout: float = 400) -> str:
    """Run it to its end. Returns what it said."""
    words, environment = command(*arguments)
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def files(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern))


# ---------------------------------------------------------------------- the town


@pytest.mark.slow
def test_every_room_is_alive_and_the_town_goes_on_when_it_is_run_again(tmp_path: Path) -> None:  # issue 8
    said = run(tmp_path, "--until-idle", "--port", "0")
    folder = tmp_path / "var" / "town"
    assert "dashboard" in said
    assert "http://127.0.0.1:" in said
    assert "--until-idle says yes in the mayor's place" in said
    # it looks twice a second, so what closes and what opens may stand in one line or in two
    assert said.count("'s round is closed") == 3, said
    assert said.count("'s is open until") == 3, said
    assert "a blackout holds the gazette until" in said
    assert "3 closed and 3 opened, of 3 groups" in said
    assert "\n{" not in said, "events are kept in their file"
    events = [json.loads(line) for line in (folder / "events.log").read_text().splitlines() if line.startswith("{")]
    assert {"worker_started", "blackout_began", "blackout_ended", "rounds_moved", "session_call"} <= {e["event"] for e in events}  # fmt: skip

    letters = files(folder, "mail/new/*")
    posts = files(folder, "posts/*/*/index.md")
    assert posts == 9
    assert (folder / "briefing.md").read_text().startswith("# 2026-03-02\n")
    assert "apple juice" in (folder / "permit.txt").read_text()
    app = Duly(f"sqlite:///{folder / 'duly.db'}")
    try:
        assert letters == app.jobs.count(task="EMAIL_SEND", status=(Status.SUCCEEDED,))
        assert app.jobs.count(task="EMAIL_SEND", status=(Status.FAILED,)) == 2
        assert app.jobs.count(task="TURN_WEATHERCOCK", status=(Status.FAILED,)) >= 2
        assert 0 < files(folder, "notices/*") <= app.jobs.count(task="SELL", status=(Status.SUCCEEDED,))
        # what was held by the blackout came when it was over, and not before
        gazette = app.jobs.find(queue="gazette", status=(Status.SUCCEEDED,), limit=100)
        end = app.calendars.all()["the gazette rests"].window
        assert end is not None
        assert not [one.id for one in gazette if one.started_at is not None and end.covers(one.started_at)]
    finally:
        app.close()

    # again: nothing is done twice, and what is missing is said
    again = run(tmp_path, "--until-idle", "--port", "0")
    assert "The town goes on" in again
    assert files(folder, "mail/new/*") == letters
    assert files(folder, "posts/*/*/index.md") == posts
    (folder / "briefing.md").unlink()
    lacking = run(tmp_path, "--until-idle", "--port", "0", "--patience", "1", code=1)
    assert lacking.splitlines()[-1] == "Missing: there is no briefing. var/town/events.log says more."

    # and without an end of its own, until it is told to
    words, environment = command("--port", "0")
    town = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert town.stdout is not None
        address = next(line for line in town.stdout if "http://" in line).split()[1]
        assert until(lambda: "painters of Lisbon" in page(f"{address}/rounds"), 240)
        town.send_signal(signal.SIGINT)
        out, _ = town.communicate(timeout=240)
    finally:
        town.kill()
        town.communicate()
    assert town.returncode == 0
    assert "Stopped in good order" in out


def begin(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    words, environment = command("--port", "0", *arguments)
    return subprocess.Popen(
        words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def interrupt(town: subprocess.Popen[str], said: str = "") -> str:
    """Ctrl-C. Returns what it said, after ``said``."""
    try:
        town.send_signal(signal.SIGINT)
        said += town.communicate(timeout=240)[0]
    finally:
        town.kill()
        town.communicate()
    assert town.returncode == 0, said
    assert "Traceback" not in said
    return said


def until_awake(cwd: Path, *arguments: str) -> str:
    """Run it until a job was done, and interrupt it. Returns what it said."""
    town = begin(cwd, *arguments)
    said = ""
    assert town.stdout is not None
    for line in town.stdout:
        said += line
        if re.match(r"\d\d:\d\d:\d\d  ", line):  # told of what has happened
            break
    return interrupt(town, said)


@pytest.mark.slow
def test_a_town_that_was_not_made_to_its_end_is_made_anew_when_it_is_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "town"
    town = begin(tmp_path)
    assert until((folder / "duly.db").exists, 240)
    assert "Stopped before the town was awake." in interrupt(town)
    assert not (folder / "made").exists()

    said = until_awake(tmp_path)
    assert "var/town holds a town that was not made to its end: it is made anew." in said
    assert "A new town, in var/town," in said
    assert "Stopped in good order" in said
    assert "The town goes on, in var/town," in until_awake(tmp_path)


@pytest.mark.slow
@pytest.mark.soak  # that --fresh makes a folder of its own is tested with the newsletter and the shop
def test_the_town_that_fresh_has_made_is_gone_on_with(tmp_path: Path) -> None:
    assert "A new town, in var/town," in until_awake(tmp_path)
    assert "A new town, in var/town-2," in until_awake(tmp_path, "--fresh")
    assert "The town goes on, in var/town-2," in until_awake(tmp_path)
    assert "The town goes on, in var/town," in until_awake(tmp_path, "--folder", "var/town")


GROUND = """
import sys
from pathlib import Path
sys.path[:0] = [{town!r}, {newsletter!r}]
import ground
try:
    with ground.begin(Path("var/town")) as half:
        print(half, ground.place(None), sorted(str(one.relative_to("var/town")) for one in Path("var/town").rglob("*")))
        if {other!r}:
            exec({other!r})
except ground.UsageError as error:
    print(error)
"""
HALF = ("begun", "duly.db", "duly.db-wal", "calendar.yaml", "mail/new/1795953061.M443506P3850Q1.vm", "posts/board/lamps-411887c4b6b00a21/index.md")  # fmt: skip


def ask_ground(cwd: Path, *files: str, other: str = "") -> list[str]:
    """What is begun in var/town with these files in var/."""
    for name in files:
        (cwd / "var" / name).parent.mkdir(parents=True, exist_ok=True)
        (cwd / "var" / name).touch()
    asked = GROUND.format(town=str(TOWN), newsletter=str(EXAMPLES / "newsletter"), other=other)
    done = subprocess.run([sys.executable, "-c", asked], cwd=cwd, env=command()[1], capture_output=True, text=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_half_a_town_is_removed_and_nothing_else(tmp_path: Path) -> None:
    assert ask_ground(tmp_path, *(f"town/{name}" for name in HALF)) == ["True var/town ['begun']"]


@pytest.mark.parametrize("alien", ["letter.txt", "mail/mine.txt", "posts/board/mine/index.md", "posts/mine.md"])
def test_what_somebody_else_has_put_into_half_a_town_stays_there(tmp_path: Path, alien: str) -> None:
    said = ask_ground(tmp_path, *(f"town/{name}" for name in (*HALF, alien)))
    assert said == ["var/town holds what is not of the town. Make another town with --fresh."]
    assert all((tmp_path / "var" / "town" / name).exists() for name in (*HALF, alien))


def test_a_database_of_somebody_else_is_left_alone_and_the_town_is_made_beside_it(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "duly.db").write_text("mine")
    town = begin(tmp_path, "--folder", "half")
    assert until((tmp_path / "half-2" / "duly.db").exists, 240)
    said = interrupt(town)
    assert "half holds half a town, or a database of somebody else, and stays as it is: half-2 is taken." in said
    assert "run.py --folder half-2 goes on" in said
    assert [one.name for one in (tmp_path / "half").iterdir()] == ["duly.db"]
    assert (tmp_path / "half" / "duly.db").read_text() == "mine"


def test_a_town_that_another_run_is_making_is_left_alone(tmp_path: Path) -> None:
    again = GROUND.format(town=str(TOWN), newsletter=str(EXAMPLES / "newsletter"), other="")
    said = ask_ground(
        tmp_path, "town/begun", other=f"import subprocess; subprocess.run([sys.executable, '-c', {again!r}])"
    )
    assert "var/town is being made by another run. Wait for that one, or make another town with --fresh." in said


def page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=240) as answer:
            found: str = answer.read().decode()
            return found
    except OSError:
        return ""


# ---------------------------------------------------------------------- yesterday

ASK = """
import sys
from datetime import UTC, datetime, timedelta
sys.path.insert(0, {town!r})
import yesterday
minute = datetime.fromisoformat({minute!r})
for group in yesterday.turning(minute):
    print(group.zone, group.drop_time, (minute - group.at) // timedelta(hours=1))
for group in yesterday.settled(minute):
    print(group.zone, group.drop_time, timedelta(0) < minute - group.at <= timedelta(hours=25))
"""


@pytest.mark.parametrize(
    ("minute", "groups"),
    [
        ("2026-03-28T12:10+00:00", ["Europe/Paris 13:10 24", "America/New_York 08:10 24", "Asia/Kathmandu 17:55 24"]),
        # Paris has put its clocks forward since yesterday: there 24 hours are not a day
        ("2026-03-29T08:00+00:00", ["America/New_York 04:00 24", "Asia/Kathmandu 13:45 24", "Asia/Tokyo 17:00 24"]),
        ("2026-11-01T12:10+00:00", ["Europe/Paris 13:10 24", "Asia/Kathmandu 17:55 24", "Asia/Tokyo 21:10 24"]),
    ],
)
def test_groups_turn_whose_clocks_are_where_they_were_a_day_ago(tmp_path: Path, minute: str, groups: list[str]) -> None:
    _, environment = command()
    asked = ASK.format(town=str(TOWN), minute=minute)
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)  # fmt: skip
    assert done.stdout.splitlines() == [*groups, "Pacific/Auckland 07:30 True", "Europe/Lisbon 18:00 True"], done.stderr


# ---------------------------------------------------------------------- wrong use

PLAN = (TOWN / "calendar.yaml").read_text(encoding="utf-8")
WRONG: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "an option that is none": (("--untilidle",), {}, "No such option"),
    "no list": (("--recipients", "nobody.csv"), {}, "nobody.csv cannot be read: No such file or directory."),
    "a list without addresses": (("--recipients", "list.csv"), {"list.csv": "email;name\nann;Ann\n"}, "list.csv has no column address"),
    "no calendar": (("--calendar", "posts.yaml"), {}, "posts.yaml cannot be read: No such file or directory."),
    "no YAML": (("--calendar", "posts.yaml"), {"posts.yaml": "slots: [\n"}, "posts.yaml:2:1"),
    "no instant": (("--calendar", "posts.yaml"), {"posts.yaml": PLAN.replace("${soon}", "soon")}, "posts.yaml:23:9: slots[3].at is 'soon'."),
    "another channel": (("--calendar", "posts.yaml"), {"posts.yaml": PLAN.replace("[gazette, board]", "[gazette, board, radio]")}, "posts.yaml names the channel radio; the town has gazette and board."),
    "a folder that is a file": (("--folder", "a-file"), {"a-file": ""}, "a-file cannot be the run folder"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "given", "problem"), WRONG.values(), ids=list(WRONG))
def test_what_cannot_be_used_is_said_in_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], given: dict[str, str], problem: str
) -> None:
    for name, content in given.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    said = run(tmp_path, *arguments, code=2)
    assert problem in said
    assert not (tmp_path / "var").exists(), "nothing was begun"


def test_a_port_that_is_taken_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = run(tmp_path, "--port", str(port), code=2)
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in said
    assert not (tmp_path / "var").exists()

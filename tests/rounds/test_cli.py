"""``duly rounds`` on both databases."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import update

from cli.hands import Run, Said
from duly import Duly
from duly.cli.main import cli
from duly.rounds import Rounds
from duly.rounds.tables import groups
from rounds.hands import change


@pytest.fixture
def run(db_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_APP", raising=False)
    monkeypatch.setenv("DULY_DATABASE_URL", db_url)

    def call(*args: str, input: Any = None) -> Said:
        done = CliRunner().invoke(cli, ["rounds", *args], input=input, prog_name="duly")
        return Said(done.exit_code, done.stdout, done.stderr)

    return call


def ok(said: Said) -> str:
    assert said.code == 0, said.err
    return said.out


@pytest.fixture
def group(run: Run, db_url: str) -> str:
    """A group whose local time has come, whenever the test runs, and that was there before it."""
    hour = datetime.now(UTC).replace(second=0, microsecond=0)
    ok(run("groups", "add", "readers", "--zone", "UTC", "--drop-time", hour.strftime("%H:%M")))
    ok(run("prompts", "add", "readers", "What did you read?", "Why?"))
    ok(run("members", "add", "readers", "ada", "--email", "ada@example.org", "-c", "email", "-c", "log"))
    ok(run("members", "add", "readers", "bob"))
    app = Duly(db_url)
    with app.db.engine.begin() as connection:
        connection.execute(update(groups).values(plan_at=hour))
    app.close()
    return "readers"


def test_a_round_from_the_command_line(run: Run, group: str) -> None:
    assert "foreseen" in ok(run("next"))
    assert [r["done"] for r in run("tick", "all", "--json").json] == [0, 1, 1]
    assert "readers" in ok(run("list"))
    (listed,) = run("list", "--json", "-g", group, "-s", "open").json
    ident = str(listed["id"])
    assert "Submission 1 is in round 1" in ok(run("submit", ident, "ada", "Lolly Willowes"))
    assert "Submission 1 is changed" in ok(run("submit", ident, "ada", "Lolly Willowes, twice", "--edit"))
    ok(run("comment", "1", "bob", "a fine book"))
    ok(run("edit-comment", "1", "bob", "a very fine book"))
    ok(run("vote", "1", "bob"))
    shown = ok(run("show", ident))
    for words in ("Lolly Willowes, twice", "a very fine book", "ada", "open until"):
        assert words in shown
    told = run("show", ident, "--json").json
    assert (told["round"]["label"], len(told["votes"])) == ("open", 1)
    again = run("submit", ident, "ada", "once more")
    assert (again.code, "has submitted to this round already" in again.err) == (2, True)
    assert [t["done"] for t in run("ticks", "--json").json] == [1, 1, 0]
    assert "open" in ok(run("ticks", "--kind", "open"))


def test_what_is_over_is_refused_in_words(run: Run, group: str, db_url: str) -> None:
    ok(run("tick", "all"))
    app = Duly(db_url)
    ok(run("submit", "1", "ada", "in time"))
    change(app, "UPDATE rounds SET close_at = opened_at")
    app.close()
    late = run("vote", "1", "bob")
    assert (late.code, "round 1 is closed, so it cannot take a vote." in late.err) == (1, True)
    assert "over" in ok(run("list"))


def test_groups_are_changed_and_shown(run: Run, group: str) -> None:
    ok(
        run(
            "groups",
            "set",
            group,
            "--zone",
            "Asia/Kathmandu",
            "--drop-time",
            "usual",
            "--cooldown",
            "12h",
            "--reason",
            "moved",
        )
    )
    shown = ok(run("groups", "show", group))
    for words in ("Asia/Kathmandu", "the usual one", "12 h"):
        assert words in shown
    assert run("groups", "list", "--json").json[0]["cooldown"] == 43_200
    ok(run("groups", "set", group, "--inactive", "--quiet", "--cooldown", "usual"))
    assert "not active, tells nobody" in ok(run("groups", "set", group, "--name", "readers"))
    assert run("next", "--json").json[0]["reason"] == "inactive"
    wrong = run("groups", "set", group, "--zone", "Asia/Katmandoo")
    assert (wrong.code, "is no IANA time zone" in wrong.err) == (2, True)
    assert run("groups", "set", group).code == 2
    assert run("groups", "show", "nobody").code == 1


def test_members_and_prompts_are_changed_and_listed(run: Run, group: str) -> None:
    listed = ok(run("members", "list", group))
    assert "ada" in listed
    assert "example.org" not in listed
    assert run("members", "list", group, "--json").json[0]["email"] == "ada@example.org"
    ok(run("members", "set", group, "ada", "--no-channels"))
    ok(run("members", "set", group, "bob", "--left"))
    told = run("members", "list", group, "--json").json
    assert (told[0]["channels"], told[1]["is_active"]) == ([], False)
    assert run("members", "set", group, "bob", "-c", "webhook").code == 2
    assert run("members", "set", group, "bob").code == 2
    ok(run("prompts", "set", "1", "--inactive"))
    ok(run("prompts", "remove", "2"))
    assert "not active" in ok(run("prompts", "list", group))
    assert run("prompts", "set", "1").code == 2
    ended = run("tick", "plan", "--json")
    assert (ended.code, ended.json[0]["skipped"]) == (0, 1)


def test_a_tick_in_which_a_group_failed_ends_with_1(run: Run, group: str, db_url: str) -> None:
    app = Duly(db_url)
    change(app, "UPDATE groups SET zone = 'Mars/Base'")
    app.close()
    ended = run("tick", "plan")
    assert ended.code == 1
    assert "1 group failed" in ended.err
    assert "which is no IANA time zone" in ok(run("groups", "list"))


def test_an_application_lends_its_own_rounds(run: Run, group: str, tmp_path: Path) -> None:
    name = f"rounds_{uuid.uuid4().hex}.py"
    (tmp_path / name).write_text(
        "from duly import Duly\nfrom duly.rounds import Rounds\napp = Duly(rounds_cooldown=0)\n"
        "rounds = Rounds(app, draw=lambda: 0.99)\nrounds.schedule()\n"
    )
    ok(run("tick", "plan", "--app", name))
    assert run("list", "--json").json[0]["prompt_id"] == 2


def test_rounds_of_an_application_are_made_once(db_url: str) -> None:
    app = Duly(db_url)
    made = Rounds(app)
    assert Rounds.of(app) is made
    assert Rounds.of(Duly(db_url)) is not made
    again = Rounds(app)  # the same tasks, defined anew
    assert Rounds.of(app) is again

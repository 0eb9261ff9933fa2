"""How the command line fails: one sentence, the right code, no traceback, no password. And how it starts: at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

import duly
from cli.hands import SHOP, Run
from duly import Duly
from duly.cli.command import hide_passwords

WRONG = [
    (["jobs", "show", "first"], "'JOB'"),
    (["jobs", "show", "0"], "'JOB'"),
    (["jobs", "show", str(2**63)], "'JOB'"),
    (["jobs", "list", "--status", "lost"], "'--status'"),
    (["jobs", "list", "--since", "yesterday"], "'--since'"),
    (["jobs", "list", "--limit", "0"], "'--limit'"),
    (["jobs", "cancel"], "Which jobs?"),
    (["jobs", "cancel", "1", "--queue", "mail"], "--queue"),
    (["jobs", "cancel", "--children", "--queue", "mail"], "--children"),
    (["jobs", "cancel", "--status", "failed"], "can be cancelled"),
    (["jobs", "replay", "--status", "succeeded"], "--force"),
    (["jobs", "prune"], "--older-than"),
    (["jobs", "prune", "--older-than", "long"], "'--older-than'"),
    (["enqueue"], "TASK"),
    (["enqueue", "X", "{}", "--file", "-"], "--file"),
    (["enqueue", "--file", "-", "--key", "k"], "key"),
    (["enqueue", "X", "--all-or-nothing"], "--all-or-nothing"),
    (["enqueue", "X", '{"a": "\\u0000"}'], "a: contains the NUL character"),
    (["enqueue", "", "{}"], "task name: is empty"),
    (["enqueue", "X", "--run-at", "2026-07-27T09:00:00"], "'--run-at'"),
    (["enqueue", "X", "--run-in", "soon"], "'--run-in'"),
    (["enqueue", "X", "--run-in", "1h", "--run-at", "2026-07-27T09:00:00Z"], "run_at: and run_in are both given"),
    (["enqueue", "X", "--priority", "high"], "'--priority'"),
    (["enqueue", "X", "--max-attempts", "0"], "'--max-attempts'"),
    (["enqueue", "X", "--queue", ""], "queue: is empty"),
    (["queues", "limit", "mail"], "--limit"),
    (["queues", "limit", "mail", "--limit", "0"], "'--limit'"),
    (["queues", "limit", "mail", "--limit", "1", "--no-limit"], "--no-limit"),
    (["queues", "limit", "mail", "--rate", "fast"], "'--rate'"),
    (["queues", "limit", "mail", "--rate", "0/s"], "'--rate'"),
    (["queues", "limit", "mail", "--rate", "5/0"], "'--rate'"),
    (["queues", "pause"], "NAME"),
    (["queues", "pause", "x" * 300], "queue: has 300 characters"),
    (["gate", "ajar"], "ajar"),
    (["gate", "--reason", "why"], "--reason"),
    (["why", "first"], "'JOB'"),
    (["migrate", "--dialect", "sqlite"], "--dialect"),
    (["migrate", "--sql", "--dialect", "mysql"], "'--dialect'"),
    (["audit", "list", "--job", "1", "--entity", "queue"], "--entity"),
    (["worker", "--queue", "mail=0"], "'--queue'"),
    (["worker", "--queue", "mail=²"], "'--queue'"),
    (["worker", "--patience", "5"], "--until-idle"),
    (["worker", "--concurrency", "0"], "'--concurrency'"),
    (["worker", "--metrics-port", "70000"], "'--metrics-port'"),
    (["nonsense"], "nonsense"),
    (["--nonsense"], "--nonsense"),
    (["jobs", "list", "--database-url", "mysql://h/x"], "database_url: mysql is not supported"),
    (["jobs", "list", "--database-url", "nonsense"], "database_url: is not a URL"),
    (["jobs", "list", "--database-url", "sqlite:///no/such/folder/x.db"], "database_url: the folder"),
]


@pytest.mark.parametrize(("args", "names"), WRONG, ids=[" ".join(a)[:50] for a, _ in WRONG])
def test_wrong_usage_ends_with_2_and_names_what_is_wrong(ready: Run, args: list[str], names: str) -> None:
    said = ready(*args)
    assert said.code == 2, said
    assert names in said.err
    assert said.out == ""
    assert "Traceback" not in said.err


FAILED = [
    (["jobs", "replay", "4711"], "job 4711"),
    (["jobs", "cancel", "4711"], "job 4711"),
    (["schedules", "pause", "nightly"], "nightly"),
    (["enqueue", "X", "{"], "input: is not JSON"),
    (["enqueue", "X", "[1]"], "input: is a list"),
    (["enqueue", "X", '{"a": NaN}'], "input.a: is NaN"),
]


@pytest.mark.parametrize(("args", "names"), FAILED, ids=[" ".join(a) for a, _ in FAILED])
def test_what_was_asked_for_and_cannot_be_done_ends_with_1_and_says_why_on_stderr(
    ready: Run, args: list[str], names: str
) -> None:
    # B082: exit 1, a sentence on stderr, no traceback; nothing on stdout that somebody could take for an answer
    said = ready(*args)
    assert (said.code, said.out) == (1, ""), said
    assert names in said.err
    assert "Traceback" not in said.err


def test_a_run_that_ends_by_itself_ends_with_1_where_a_job_failed(on: Run, folder: Path) -> None:
    # B082; retries that succeed in the end are no failure
    (folder / "shop.py").write_text(SHOP)
    assert on("enqueue", "hello", '{"name": "Ada"}', "--app", "shop.py").code == 0
    assert on("worker", "shop.py", "--until-idle").code == 0
    on("enqueue", "fails", "--app", "shop.py")
    said = on("worker", "shop.py", "--until-idle")
    assert (said.code, "1 job failed: duly jobs list --status failed" in said.err) == (1, True)
    assert on("worker", "shop.py", "--until-idle").code == 0  # nothing failed in this one


def test_a_job_whose_worker_died_on_its_last_attempt_has_failed_in_the_run_that_finds_it(
    on: Run, folder: Path, db_url: str
) -> None:
    # B082
    (folder / "shop.py").write_text(SHOP)
    on("enqueue", "fails", "--app", "shop.py")
    app = Duly(db_url)
    lost = "UPDATE jobs SET status = 'running', attempts = 1, worker = 'w', lease_token = 7, started_at = created_at, lease_until = created_at"
    app.db.write(lambda c: c.execute(text(lost)))
    app.close()
    said = on("worker", "shop.py", "--until-idle")
    assert (said.code, "1 job failed" in said.err) == (1, True), said


def test_a_setting_in_the_environment_that_cannot_be_used_names_its_variable(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_LEASE", "long")
    said = run("jobs", "list")
    assert (said.code, said.err.startswith("duly: DULY_LEASE: is 'long'")) == (2, True)


def test_a_database_that_does_not_answer_ends_with_1_and_tells_no_password(run: Run) -> None:
    said = run("jobs", "list", "--database-url", "postgresql://ada:topsecret@127.0.0.1:1/duly")
    assert said.code == 1
    assert "does not answer" in said.err
    assert "topsecret" not in said.err + said.out
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://127.0.0.1:1/d?user=ada&password=topsecret",
        "postgres//ada:topsecret@host/db",
        "ada:topsecret@host",
        "mysql://ada:topsecret@host/db",
        "postgresql://ada:top/topsecret@host:x/d",
    ],
)
def test_a_broken_url_is_told_without_its_password(run: Run, url: str) -> None:
    said = run("doctor", "--database-url", url)
    assert said.code in (1, 2)
    assert "Error:" not in said.err
    assert "topsecret" not in said.err + said.out


def test_passwords_are_hidden_and_the_rest_is_not() -> None:
    assert hide_passwords("at postgresql://ada:s3@h:5432/d: no") == "at postgresql://ada:***@h:5432/d: no"
    assert hide_passwords("job 7 at 12:30, ada@example.org") == "job 7 at 12:30, ada@example.org"
    assert hide_passwords("redis://:s3@h") == "redis://:***@h"
    assert hide_passwords("postgresql://h/d?password=s3&x=1") == "postgresql://h/d?password=***&x=1"
    assert hide_passwords("host=h password='s 3' user=ada") == "host=h password=*** user=ada"


def test_a_failure_shows_its_traceback_only_when_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in run("jobs", "show", "7").err
    for said in (run("--debug", "jobs", "show", "7"), run("jobs", "show", "7", "--debug")):
        assert (said.code, "Traceback" in said.err) == (1, True)
    monkeypatch.setenv("DULY_DEBUG", "1")
    assert "Traceback" in run("jobs", "show", "7").err


def test_what_nobody_foresaw_is_one_sentence_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("duly.cli.loading.application", explode)
    said = run("jobs", "list")
    assert (said.code, said.err) == (1, "duly: RuntimeError: first line (--debug shows where)\n")


def test_names_from_outside_cannot_steer_the_terminal(run: Run) -> None:
    said = run("queues", "pause", "mail", "--reason", "\x1b]0;title\x07 lunch")
    assert said.code == 0
    listed, health = run("queues", "list"), run("doctor")
    assert "\x1b" not in said.out + listed.out + health.out
    assert "paused by" in listed.out
    assert "\\x1b]0;title\\x07 lunch" in listed.out


def test_a_reader_that_has_seen_enough_is_no_failure(run: Run, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    lines = "".join(f'{{"task": "X", "key": "{i}"}}\n' for i in range(3000))
    assert run("enqueue", "--file", "-", input=lines).code == 0
    process = spawn("jobs", "list", "--limit", "10000")
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_every_command_explains_itself(run: Run) -> None:
    import click

    from duly.cli.main import cli

    def look(group: click.Group, *path: str) -> None:
        said = run(*path, "--help")
        assert said.code == 0
        summaries = said.out.partition("Commands:")[2]
        assert "..." not in summaries, summaries  # none is cut short
        for name, command in group.commands.items():
            assert f"\n  {name}" in summaries
            if isinstance(command, click.Group):
                look(command, *path, name)
            else:
                alone = run(*path, name, "--help")
                assert (alone.code, "--json" in alone.out) == (0, True)

    look(cli)
    assert run("--version").out == f"duly {duly.__version__}\n"


def test_help_starts_at_once() -> None:
    heavy = "sqlalchemy, alembic, psycopg, pydantic, structlog, rich, prometheus_client, asyncio"
    program = (
        "import sys; sys.argv = ['duly', '--help']\n"
        "import duly.cli.main as m\n"
        "try: m.main()\n"
        "except SystemExit: pass\n"
        f"loaded = [n for n in {heavy.split(', ')!r} if n in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_public_face_can_be_imported() -> None:
    for name in duly.__all__:
        assert getattr(duly, name) is not None
    assert set(duly.__all__) <= set(dir(duly))
    with pytest.raises(AttributeError):
        _ = duly.no_such_name

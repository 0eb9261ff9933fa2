"""``duly mail``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import update

import fronts
from cli.hands import Run, Said
from duly import Duly
from duly.cli.main import cli
from duly.jobs.tables import jobs
from duly.jobs.worker import Worker
from mail.hands import ON_ONE, files
from mail.servers import MailServer, mail_server

db_url = fronts.db_url


@pytest.fixture
def run(db_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_APP", raising=False)
    monkeypatch.setenv("DULY_DATABASE_URL", db_url)
    monkeypatch.setenv("DULY_MAIL_FROM", "Desk <desk@example.org>")
    monkeypatch.setenv("DULY_MAIL_FOLDER", str(tmp_path / "mail"))

    def call(*args: str, input: Any = None) -> Said:
        done = CliRunner().invoke(cli, list(args), input=input, prog_name="duly")
        return Said(done.exit_code, done.stdout, done.stderr)

    return call


def test_a_message_becomes_a_job(run: Run, db_url: str) -> None:
    said = run(
        "mail", "send", "--to", "ada@example.org", "-s", "Hi", "--text", "-", "--key", "k", "--json", input="Hello"
    )
    assert (said.json["queue"], said.json["created"]) == ("mail", True)
    again = run("mail", "send", "--to", "ada@example.org", "-s", "Hi", "--text", "Hello", "--key", "k")
    assert "Nothing was written" in again.out
    app = Duly(db_url)
    assert app.jobs.get(said.json["id"]).input == {"to": ["ada@example.org"], "subject": "Hi", "text": "Hello"}
    app.close()


def test_a_message_is_sent_at_once_with_its_files_and_nothing_else_is_run(run: Run, tmp_path: Path) -> None:
    run("mail", "send", "--to", "bob@example.org", "-s", "Later", "-t", "x")
    (tmp_path / "a b.pdf").write_bytes(b"%PDF")
    (tmp_path / "body.html").write_text("<p>Hello</p>")
    said = run(
        "mail", "send", "--to", "Ada <ada@example.org>", "--bcc", "eve@example.org", "-s", "Hi", "--html", "body.html", "-a", "a b.pdf",
        "--from", "shop@example.com", "--now",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "sent through maildir to 2 recipients" in said.out
    (message,) = files(tmp_path / "mail")
    assert (message["From"], message["Subject"]) == ("shop@example.com", "Hi")
    assert [(p.get_filename(), p.get_content_type()) for p in message.iter_attachments()] == [
        ("a b.pdf", "application/pdf")
    ]


def test_a_template_is_previewed_and_sent(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "hi.subject.txt").write_text("Hi {{ name }}")
    (folder / "hi.html").write_text("<p>{{ name }}</p>")
    (tmp_path / "data.json").write_text('{"name": "<Ada>"}')
    monkeypatch.setenv("DULY_MAIL_TEMPLATES", str(folder))
    shown = run("mail", "preview", "hi", "--data", "data.json")
    assert "Subject: Hi <Ada>" in shown.out
    assert "<p>&lt;Ada&gt;</p>" in shown.out
    assert run("mail", "preview", "hi", "--data", "data.json", "--json").json["text"] is None
    lacking = run("mail", "preview", "hi")
    assert (lacking.code, "'name' is undefined" in lacking.err) == (2, True)
    said = run("mail", "send", "--to", "ada@example.org", "--template", "hi", "--data", "data.json", "--now", "--json")
    assert said.json["output"]["outcome"] == "sent"
    failed = run("mail", "send", "--to", "ada@example.org", "--template", "hi", "--now")
    assert (failed.code, "data: lacks what hi.subject.txt asks for" in failed.err) == (1, True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--to", "nobody", "-s", "Hi", "-t", "x"), "is not an e-mail address"),
        (("-s", "Hi", "-t", "x"), "to: is missing"),
        (("--to", "ada@example.org", "-t", "x"), "subject: is missing"),
        (("--to", "ada@example.org", "-s", "Hi"), "text: is missing"),
    ],
)
@ON_ONE
def test_what_is_missing_is_wrong_usage(run: Run, args: tuple[str, ...], said: str) -> None:
    done = run("mail", "send", *args)
    assert (done.code, said in done.err) == (2, True)


def test_the_list_of_who_is_not_written_to(run: Run, tmp_path: Path) -> None:
    assert run("mail", "suppressions", "add", "Ada@Example.org", "--reason", "bounced").code == 0
    assert "already" in run("mail", "suppressions", "add", "ada@example.org").out
    assert [s["address"] for s in run("mail", "suppressions", "list", "--json").json] == ["ada@example.org"]
    assert "bounced" in run("mail", "suppressions", "list").out
    said = run("mail", "send", "--to", "ada@example.org", "-s", "Hi", "-t", "x", "--now")
    assert (said.code, "nothing was sent" in said.out, files(tmp_path / "mail")) == (0, True, [])
    assert run("mail", "suppressions", "remove", "ada@example.org").code == 0
    assert run("mail", "suppressions", "remove", "ada@example.org").code == 1
    assert "ada@" not in run("audit", "list", "--json").out


@ON_ONE
def test_providers_and_what_they_lack(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_GRAPH_TENANT", "contoso")
    found = {p["name"]: (p["chosen"], p["missing"]) for p in run("mail", "providers", "--json").json}
    assert found == {
        "smtp": (False, ["smtp_url"]), "graph": (False, ["graph_client_id", "graph_client_secret"]),
        "resend": (False, ["resend_api_key"]), "maildir": (True, []), "console": (False, []),
    }  # fmt: skip
    assert "DULY_GRAPH_CLIENT_ID, DULY_GRAPH_CLIENT_SECRET" in run("mail", "providers").out


def test_a_test_of_the_provider_sends_nothing_unless_it_is_told_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with mail_server(login=True) as server:
        _use(monkeypatch, server, "s3cr%3At")
        said = run("mail", "test")
        assert (said.code, said.out) == (0, "smtp: connected and logged in. Nothing was sent.\n")
        assert server.arrived == []
        assert run("mail", "test", "--to", "ada@example.org").code == 0
        assert server.got == ["ada@example.org"]
        _use(monkeypatch, server, "wrong")
        said = run("mail", "test", "--json")
        assert (said.code, said.json["works"], said.json["kind"]) == (1, False, "auth")
        said = run("mail", "send", "--to", "ada@example.org", "-s", "Hi", "-t", "x", "--now")
        assert (said.code, "`duly queues resume mail-now`" in said.err) == (1, True)
        assert "wrong" not in said.out + said.err.replace("Wrong", "")


def test_what_could_not_be_sent_at_once_is_sent_by_nobody_later(
    run: Run, db_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T003-h: who repeats the command does not send it twice
    with mail_server() as server:
        _use(monkeypatch, server, "x", login=False)
        server.replies = {"ada@example.org": ["451 later"]}
        send = ("mail", "send", "--to", "ada@example.org", "-s", "Hi", "-t", "x", "--now")
        said = run(*send)
        assert said.err == (
            "duly: job 1 is cancelled, so that nobody sends it later. The mail server answered 451 later. "
            "It was not sent to anybody; `duly mail resend 1` tries again.\n"
        )
        assert (said.code, run("jobs", "show", "1", "--json").json["status"]) == (1, "cancelled")
        assert run(*send).code == 0
        app = Duly(db_url)
        app.db.write(lambda c: c.execute(update(jobs).values(due_at=datetime(2020, 1, 1, tzinfo=UTC))))
        app.close()
        assert run("mail", "send", "--to", "bob@example.org", "-s", "Hi", "-t", "x", "--now").code == 0
        assert server.got == ["ada@example.org", "bob@example.org"]


def test_a_message_of_which_nobody_knows_is_resent_at_once_as_it_was_sent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T003-h
    with mail_server() as server:
        _use(monkeypatch, server, "x", login=False)
        server.ends = ["GONE"]
        said = run("mail", "send", "--to", "ada@example.org", "-s", "Hi", "-t", "x", "--now")
        assert (said.code, "the outcome is unknown" in said.err, server.got) == (1, True, [])
        said = run("mail", "resend", "1")
        assert (said.code, "sent through smtp to 1 recipient" in said.out, server.got) == (0, True, ["ada@example.org"])


TWO = ("mail", "send", "--to", "ada@example.org", "--to", "bob@example.org", "-s", "Hi", "-t", "x", "--now")


def test_who_has_a_message_that_could_not_be_sent_to_everybody_is_said_and_the_others_get_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T003-h: who follows what is said sends nothing twice
    with mail_server() as server:
        _use(monkeypatch, server, "x", login=False)
        server.replies = {"bob@example.org": ["451 later"] * 2}
        said = run(*TWO)
        assert said.err.endswith(
            "Of 2 recipients 1 has it, 1 does not. Do not give the command again: `duly mail resend 1` sends it to the others.\n"
        )
        assert (said.code, "not sent" in said.err, "@" in said.err) == (1, False, False)
        said = run("mail", "resend", "1", "--json")
        assert (said.code, said.json["status"]) == (1, "cancelled")
        assert said.json["recipients"] == {"recipients": 2, "accepted": 1, "refused": 0, "suppressed": 0, "unknown": 0}
        assert run("mail", "resend", "1").code == 0
        assert server.got == ["ada@example.org", "bob@example.org"]


def test_a_command_that_is_interrupted_says_that_the_message_may_have_been_sent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T003-h: Ctrl-C twice, after the text was handed over
    workers: list[Worker] = []
    original = Worker.run

    def watched(self: Worker, **how: Any) -> Any:
        workers.append(self)
        return original(self, **how)

    monkeypatch.setattr(Worker, "run", watched)
    with mail_server() as server:
        _use(monkeypatch, server, "x", login=False)
        take = server.handle_DATA

        async def interrupted(*args: Any) -> str:
            await take(*args)
            workers[0].stop()
            workers[0].stop()
            await asyncio.Event().wait()  # until its connection is gone
            raise AssertionError

        server.handle_DATA = interrupted  # type: ignore[method-assign]
        said = run(*TWO)
        assert (said.code, len(workers), len(server.arrived)) == (1, 1, 1)
        assert "Of 2 recipients 2 may have it." in said.err and "`duly mail resend 1`" in said.err
        assert "log first" in said.err and "not sent" not in said.err


def test_a_recipient_who_was_refused_is_told_by_the_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with mail_server() as server:
        _use(monkeypatch, server, "x", login=False)
        server.replies = {"bob@example.org": ["550 no"]}
        said = run(*TWO)
        assert (said.code, "to 1 recipient, 1 refused" in said.out) == (1, True)


def test_a_key_whose_message_nobody_will_send_is_no_success(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with mail_server() as server:
        _use(monkeypatch, server, "x", login=False)
        server.replies = {"bob@example.org": ["451 later", "550 no"]}
        assert run(*TWO, "--key", "k").code == 1
        said = run(*TWO, "--key", "k")
        assert said.err == (
            "duly: key k has job 1 already (cancelled), and nothing was written. Of 2 recipients 1 has it, 1 does not. "
            "Do not give the command again: `duly mail resend 1` sends it to the others.\n"
        )
        assert (said.code, run(*TWO, "--key", "k", "--json").code) == (1, 1)
        run("mail", "resend", "1")
        said = run(*TWO, "--key", "k")  # all was done that there is to do, and the first command has told of it
        assert (said.code, "(succeeded). Nothing was written" in said.out) == (0, True)


@pytest.mark.parametrize("how", ["send", "resend"])
def test_a_message_that_waits_where_no_worker_looks_is_sent_by_the_command_that_asks_for_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    # T003-h: its command was killed, or somebody has replayed it
    with mail_server() as server:
        _use(monkeypatch, server, "x", login=False)
        server.replies = {"ada@example.org": ["451 later"], "bob@example.org": ["451 later"]}
        assert run(*TWO, "--key", "k").code == 1
        assert run("jobs", "replay", "1").code == 0
        said = run(*TWO, "--key", "k") if how == "send" else run("mail", "resend", "1")
        assert (said.code, server.got) == (0, ["ada@example.org", "bob@example.org"]), said.err


def _use(monkeypatch: pytest.MonkeyPatch, server: MailServer, word: str, *, login: bool = True) -> None:
    monkeypatch.setenv("DULY_MAIL_PROVIDER", "smtp")
    monkeypatch.setenv("DULY_SMTP_URL", f"smtp://{f'ada:{word}@' if login else ''}127.0.0.1:{server.port}")


@ON_ONE
def test_secrets_of_mail_are_not_shown_among_the_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMTP_URL", "GRAPH_CLIENT_SECRET", "RESEND_API_KEY"):
        monkeypatch.setenv(f"DULY_{name}", "smtp://ada:hush@127.0.0.1")
    assert "hush" not in run("doctor", "--settings", "--json").out


@ON_ONE
def test_a_name_that_no_provider_has_is_said_to_be_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_MAIL_PROVIDER", "pigeon")
    said = run("mail", "providers")
    (line,) = [line for line in said.out.splitlines() if "yes" in line]
    assert line.split(maxsplit=2) == ["pigeon", "yes", "there is no such provider"]


@ON_ONE
def test_a_file_that_is_not_utf_8_is_said_to_be_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "body.html").write_bytes(b"<p>caf\xe9</p>")
    said = run("mail", "send", "--to", "ada@example.org", "-s", "Hi", "--html", "body.html")
    assert (said.code, "html: is not UTF-8: byte 6" in said.err) == (2, True), said.err


@ON_ONE
def test_a_port_that_there_is_not_is_said_in_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_MAIL_PROVIDER", "resend")
    monkeypatch.setenv("DULY_RESEND_API_KEY", "re_good")
    monkeypatch.setenv("DULY_RESEND_URL", "https://127.0.0.1:99999")
    said = run("mail", "test")
    assert (said.code, "resend_url names no host and port" in said.err) == (1, True), said.err

"""EMAIL_SEND through the maildir: outcomes, the trail, suppressions, templates."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duly import Duly, InvalidArgument, Status
from duly.mail import Answer, Mail, Message, Receipt
from duly.mail.templates import Templates
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, Ear, actions, files, message_of, put, run, states

Make = Callable[..., Duly]


@pytest.fixture
def app(make: Make) -> Duly:
    return make()


def test_a_sent_message_is_a_file_and_on_record(app: Duly, tmp_path: Path) -> None:
    # R003-7: output, finished_at and EMAIL_SENT are written with the status
    job = run(app, to=["Ada <ada@example.org>", "bob@example.org"], bcc="eve@example.org", html="<p>Hello</p>",
              headers={"X-Shop": "7"}, reply_to="help@example.org",
              attachments=[{"filename": "a.txt", "content": base64.b64encode("ä".encode()).decode()}])  # fmt: skip
    assert (job.status, job.queue, job.finished_at is not None) == (Status.SUCCEEDED, "mail", True)
    assert actions(app, job.id) == ["EMAIL_SENT"]
    (message,) = files(tmp_path / "mail")
    assert message["Delivered-To"] and message.get_all("Delivered-To") == [
        "ada@example.org",
        "bob@example.org",
        "eve@example.org",
    ]
    assert (message["To"], message["Cc"], message["Bcc"]) == ("Ada <ada@example.org>, bob@example.org", None, None)
    assert (message["From"], message["Subject"], message["X-Shop"]) == ("Desk <desk@example.org>", "Hi", "7")
    assert message["Message-ID"] == job.output["message_id"]
    assert job.output == {
        "outcome": "sent", "provider": "maildir", "message_id": message["Message-ID"], "accepted": 3, "suppressed": 0, "refused": [],
    }  # fmt: skip
    assert [part.get_filename() for part in message.iter_attachments()] == ["a.txt"]
    assert states(app, job.id) == ["accepted"] * 3


def test_the_sender_is_the_field_from(app: Duly, tmp_path: Path) -> None:
    run(app, from_="Shop <shop@example.com>")
    Mail.of(app).send("ada@example.org", "Hi", "Hello", from_="Bill <bill@example.com>")
    drain(app)
    senders = {m["From"] for m in files(tmp_path / "mail")}
    assert senders == {"Shop <shop@example.com>", "Bill <bill@example.com>"}


@ON_ONE
def test_a_message_to_no_one_is_refused_where_the_task_is_known_and_fails_at_once_elsewhere(
    make: Make, db_url: str
) -> None:
    # T003-d; FAULTS_2 F18
    app = make()
    with pytest.raises(InvalidArgument, match="no recipient"):
        put(app, to=None)
    other = Duly(db_url)  # a program that only makes jobs
    ident = other.enqueue("EMAIL_SEND", {"subject": "Hi", "text": "x"}, queue="mail").job.id
    other.close()
    drain(app)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, message_of(job)) == (Status.FAILED, 1, "to: is missing: there is no recipient.")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": None}, "text:"),
        ({"subject": None}, "subject:"),
        ({"to": "nobody"}, "to:"),
        ({"cc": "ada@example.org\nBcc: eve@example.org"}, "cc:"),
        ({"headers": {"X-A": "a\r\nBcc: eve@example.org"}}, "headers.X-A:"),
        ({"headers": {"Orig-Date": "a", "orig-date": "b"}}, "headers.orig-date:"),
        ({"priority": "high"}, "priority:"),
        ({"template": "hi"}, "text:"),
        ({"template": "hi", "text": None}, "template:"),
        ({"data": {}}, "data:"),
    ],
    ids=str,
)
@ON_ONE
def test_what_can_never_be_sent_fails_at_once(app: Duly, tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    # T003-d: one attempt, JOB_FAILED_PERMANENT, and the field is named
    job = run(app, **fields)
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert message_of(job).startswith(field)
    assert "eve@" not in message_of(job)
    assert actions(app, job.id) == ["JOB_FAILED_PERMANENT"]
    assert files(tmp_path / "mail") == []


def test_a_sender_that_nobody_knows_fails_at_once(make: Make) -> None:
    # T003-d
    job = run(make(mail_from=""))
    assert (job.status, message_of(job)) == (
        Status.FAILED,
        "from: is missing, and the setting mail_from names no sender.",
    )


def test_an_unknown_provider_fails_at_once(make: Make) -> None:
    # T003-d
    job = run(make(mail_provider="pigeon"))
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert "mail_provider: there is no provider 'pigeon'" in message_of(job)


def test_a_provider_that_is_not_configured_pauses_the_queue_and_costs_no_attempt(make: Make) -> None:
    app = make(mail_provider="resend")
    ear = Ear(app)
    first, second = put(app), put(app)
    drain(app)
    assert [(app.jobs.get(n).status, app.jobs.get(n).attempts) for n in (first, second)] == [(Status.QUEUED, 0)] * 2
    paused = app.queues.get("mail")
    assert paused.paused_reason == "mail: the provider resend is not configured: set DULY_RESEND_API_KEY"
    assert [e["queue"] for e in ear.named("mail_paused")] == ["mail"]


def test_what_is_sent_from_code_is_checked_where_it_is_written(app: Duly) -> None:
    mail = Mail.of(app)
    with pytest.raises(InvalidArgument, match="to: is not an e-mail address"):
        mail.send("nobody", "Hi", "Hello")
    with pytest.raises(InvalidArgument, match="text: is missing"):
        mail.send("ada@example.org", "Hi")
    with pytest.raises(InvalidArgument, match="subjet"):
        mail.send("ada@example.org", "Hi", "Hello", subjet="Hi")
    assert mail.send("ada@example.org", "Hi", "Hello", key="k").created
    assert not mail.send("ada@example.org", "Hi", "Hello", key="k").created


def test_a_job_that_runs_again_is_the_same_file(app: Duly, tmp_path: Path) -> None:
    job = run(app)
    app.jobs.replay(job.id, force=True)
    drain(app)
    assert app.jobs.get(job.id).status is Status.SUCCEEDED
    assert len(files(tmp_path / "mail")) == 1


def test_the_trail_says_once_that_a_message_was_sent(app: Duly, tmp_path: Path) -> None:
    # R003-7
    job = run(app)
    app.jobs.replay(job.id, force=True)
    drain(app)
    assert actions(app, job.id) == ["EMAIL_SENT", "JOB_REPLAYED", "EMAIL_ALREADY_SENT"]


def test_addresses_of_answers_are_compared_whatever_their_case(make: Make) -> None:
    # T003-h: who was refused is not on record as somebody who has it
    class Owl:
        name, remembers, concurrency = "owl", 0.0, None

        async def send(self, message: Message, key: str) -> Receipt:
            return Receipt(refused={"ADA@example.ORG": Answer(550)}, deferred={"bob@example.org": Answer(450)})

        async def check(self) -> str:
            raise NotImplementedError

    app = make()
    Mail(app, Owl())
    job = run(app, to=["Ada@example.org", "Bob@Example.org", "eve@example.org"])
    assert states(app, job.id) == ["accepted", "refused"]


def test_a_provider_of_ones_own_is_an_object(make: Make) -> None:
    class Pigeon:
        name, remembers, concurrency = "pigeon", 0.0, None

        def __init__(self) -> None:
            self.flown: list[tuple[Message, str]] = []

        async def send(self, message: Message, key: str) -> Receipt:
            await message.ahead(message.pending)
            self.flown.append((message, key))
            return Receipt("feather")

        async def check(self) -> str:
            return "well fed"

    app, pigeon = make(), Pigeon()
    Mail(app, pigeon)
    job = run(app)
    ((message, key),) = pigeon.flown
    assert (job.remote_id, job.output["provider"], message.message_id) == ("feather", "pigeon", f"<{key}@example.org>")
    assert key.endswith(f"-{job.id}")


@pytest.mark.parametrize("given", [True, False])
@ON_ONE
def test_what_is_chosen_is_in_the_list_of_providers_whoever_made_it(make: Make, given: bool) -> None:
    class Pigeon:
        name, remembers, concurrency = "pigeon", 0.0, None

        async def send(self, message: Message, key: str) -> Receipt:
            raise NotImplementedError

        async def check(self) -> str:
            raise NotImplementedError

    app = make() if given else make(mail_provider="pigeon")
    found = (Mail(app, Pigeon()) if given else Mail.of(app)).providers()
    (chosen,) = [p for p in found if p.chosen]
    assert (chosen.name, chosen.known, chosen.missing, len(found)) == ("pigeon", given, (), 6)


def test_rounds_and_alerts_are_told_through_it(app: Duly, clock: ManualClock, tmp_path: Path) -> None:
    # R000-13: what other rooms make jobs for
    from duly.rounds import Rounds

    rounds = Rounds(app)
    rounds.groups.add("readers", "UTC", drop_time="11:00")
    rounds.prompts.add("readers", "What did you read?")
    rounds.members.add("readers", "ada", email="ada@example.org", channels=["email"])
    rounds.plan()
    clock.advance(3600)
    rounds.open()
    drain(app)
    (message,) = files(tmp_path / "mail")
    assert (message["To"], message["Subject"]) == ("ada@example.org", "readers: What did you read?")


# ---------------------------------------------------------------------- suppressions


def test_who_is_on_the_list_is_left_out(app: Duly, tmp_path: Path) -> None:
    mail = Mail.of(app)
    assert mail.suppressions.add("ADA@Example.org", "bounced")
    assert not mail.suppressions.add("ada@example.org")
    job = run(app, to=["ada@example.org", "bob@example.org"], cc="Ada <ADA@example.org>")
    (message,) = files(tmp_path / "mail")
    assert (message["To"], message["Cc"]) == ("bob@example.org", None)
    assert (job.output["accepted"], job.output["suppressed"]) == (1, 1)


def test_nothing_is_sent_when_everybody_is_on_the_list(app: Duly, tmp_path: Path) -> None:
    Mail.of(app).suppressions.add("ada@example.org")
    job = run(app)
    assert (job.status, job.output["outcome"], job.output["accepted"]) == (Status.SUCCEEDED, "suppressed", 0)
    assert actions(app, job.id) == ["EMAIL_SUPPRESSED"]  # and not that it was sent
    assert files(tmp_path / "mail") == []


def test_who_is_taken_off_the_list_is_reached_by_a_replay(app: Duly, tmp_path: Path) -> None:
    mail = Mail.of(app)
    mail.suppressions.add("ada@example.org")
    job = run(app, to=["ada@example.org", "bob@example.org"])
    for added in (True, False):
        if not added:
            mail.suppressions.remove("ada@example.org")
        app.jobs.replay(job.id, force=True)
        drain(app)
        assert states(app, job.id) == ["accepted", "suppressed" if added else "accepted"]


def test_a_list_is_a_tenants(app: Duly, tmp_path: Path) -> None:
    # R003-9
    suppressions = Mail.of(app).suppressions
    suppressions.add("ada@example.org", tenant="acme")
    assert (suppressions.has("ada@example.org"), suppressions.has("ada@example.org", tenant="acme")) == (False, True)
    assert run(app).output["outcome"] == "sent"
    assert [(s.tenant, s.address) for s in suppressions.list()] == [("acme", "ada@example.org")]
    assert suppressions.list(tenant="default") == []
    assert suppressions.remove("ada@example.org", tenant="acme")
    assert not suppressions.remove("ada@example.org", tenant="acme")


def test_the_trail_says_what_was_done_to_the_list_and_names_no_address(app: Duly) -> None:
    suppressions = Mail.of(app).suppressions
    suppressions.add("ada@example.org", "asked by ada@example.org", actor="cli:root")
    suppressions.remove("ada@example.org", actor="cli:root")
    rows = app.db.read(
        lambda c: c.exec_driver_sql("SELECT action, entity, entity_id, meta, actor FROM audit_log ORDER BY id").all()
    )
    assert [(r[0], r[1], r[4]) for r in rows] == [
        ("MAIL_SUPPRESSED", "mailbox", "cli:root"),
        ("MAIL_UNSUPPRESSED", "mailbox", "cli:root"),
    ]
    assert rows[0][2] == rows[1][2] and len(rows[0][2]) == 32
    assert "ada@" not in str(rows) and "example" not in str(rows)  # three letters may stand in a hash by chance


# ---------------------------------------------------------------------- templates


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "hi.subject.txt").write_text("Hi\n  {{ name }}\n")
    (folder / "hi.txt").write_text("Hello {{ name }} & co\n")
    (folder / "hi.html").write_text("<p>Hello {{ name }} &amp; co</p>\n")
    (folder / "bare.html").write_text("<p>{{ order.number }}</p>")
    (folder / "round.txt").write_text("{% include 'round.txt' %}")
    (folder / "broken.txt").write_text("{% if %}")
    return folder


def test_a_template_is_filled_in_and_only_html_is_escaped(make: Make, templates: Path, tmp_path: Path) -> None:
    app = make(mail_templates=str(templates))
    made = Mail.of(app).preview("hi", {"name": "<Ada>"})
    assert (made.subject, made.text, made.html) == (
        "Hi <Ada>",
        "Hello <Ada> & co\n",
        "<p>Hello &lt;Ada&gt; &amp; co</p>\n",
    )
    job = run(app, subject=None, text=None, template="hi", data={"name": "<Ada>"})
    assert job.status is Status.SUCCEEDED, job.error
    (message,) = files(tmp_path / "mail")
    assert message["Subject"] == "Hi <Ada>"
    assert message.get_body(("html",)).get_content() == made.html  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["row.htm", "row.jinja", "row.txt", "row", "row.html", "row.HTML"])
@pytest.mark.parametrize(
    "how", ["{% include file %}", "{% import file as r with context %}{{ r.show(name) }}", "{% extends file %}"]
)
def test_whatever_html_includes_is_escaped_and_text_is_not(tmp_path: Path, name: str, how: str) -> None:
    # HOUSE: nobody's data becomes markup
    (tmp_path / name).write_text("{% macro show(name) %}{{ name }}{% endmacro %}{{ show(name) }}")
    for ending in ("html", "txt"):
        (tmp_path / f"hi.{ending}").write_text("{% set file = '" + name + "' %}" + how)
    made = Templates(str(tmp_path)).render("hi", {"name": "<b>"})
    assert (made.html, made.text) == ("&lt;b&gt;", "<b>")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"template": "hi"}, "data: lacks what hi.subject.txt asks for: 'name' is undefined."),
        ({"template": "bare", "subject": "x", "data": {"order": {}}}, "data: lacks what bare.html asks for: 'dict object' has no attribute 'number'."),
        ({"template": "bare", "data": {"order": {"number": 1}}}, "subject: is missing, and there is no bare.subject.txt."),
        ({"template": "gone"}, "template: there is neither gone.txt nor gone.html"),
        ({"template": "../hi"}, "template: is not the name of a template."),
        ({"template": "broken", "subject": "x"}, "template: broken.txt, line 1:"),
        ({"template": "round", "subject": "x"}, "template: round.txt includes itself without end."),
        ({"template": "hi", "data": 7}, "data: is of type int"),
        ({"template": "hi", "html": "x"}, "html: is given beside a template."),
    ],
    ids=lambda x: x["template"] if isinstance(x, dict) else "",
)  # fmt: skip
@ON_ONE
def test_what_a_template_lacks_fails_at_once_and_is_named(
    make: Make, templates: Path, fields: dict[str, Any], said: str
) -> None:
    # T003-d
    job = run(make(mail_templates=str(templates)), **({"subject": None, "text": None} | fields))
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert message_of(job).startswith(said)


# ---------------------------------------------------------------------- what is written down


def test_no_event_and_no_audit_row_holds_an_address(make: Make, clock: ManualClock) -> None:
    app = make()
    ear = Ear(app)
    Mail.of(app).suppressions.add("bob@example.org")
    run(app, to=["ada@example.org", "bob@example.org"])
    run(app, to="eve@")
    told = str([e.facts for e in ear.events])
    trail = str(app.db.read(lambda c: c.exec_driver_sql("SELECT * FROM audit_log").all()))
    kept = str(app.db.read(lambda c: c.exec_driver_sql("SELECT * FROM mail_deliveries").all()))
    assert "@" not in told + trail + kept


def test_deliveries_go_when_their_jobs_have_gone(make: Make, clock: ManualClock) -> None:
    app = make()
    job = run(app)
    kept = run(app)
    app.db.write(lambda c: c.exec_driver_sql(f"DELETE FROM jobs_done WHERE id = {job.id}"))
    clock.advance(31 * 86_400)
    run(app)
    assert states(app, job.id) == []
    assert states(app, kept.id) == ["accepted"]


@pytest.mark.parametrize("flags", ["", ":2,S", ";2,S"])
@ON_ONE
def test_a_message_that_was_read_is_known_by_the_whole_of_its_name(
    app: Duly, tmp_path: Path, clock: ManualClock, flags: str
) -> None:
    # T003-h: keys of jobs 1 and 10 begin alike when they were made in the same instant
    made = app.enqueue_many(
        "EMAIL_SEND", [{"to": "ada@example.org", "subject": f"{n}", "text": "x"} for n in range(12)]
    )
    drain(app)
    folder = tmp_path / "mail"
    first = made[0].job.id
    for file in (folder / "new").iterdir():
        file.rename(folder / "cur" / f"{file.name}{flags}")
    app.db.write(lambda c: c.exec_driver_sql("DELETE FROM mail_deliveries"))
    (own,) = (file for file in (folder / "cur").iterdir() if file.name.removesuffix(flags).endswith(f"-{first}"))
    app.jobs.replay(first, force=True)
    drain(app)
    assert files(folder) == []  # it was read already
    own.unlink()
    app.db.write(lambda c: c.exec_driver_sql("DELETE FROM mail_deliveries"))
    app.jobs.replay(first, force=True)
    drain(app)
    assert [message["Subject"] for message in files(folder)] == ["0"]

"""Over real SMTP: answers for each recipient, retries for the others only, outcomes that nobody knows (PROVIDERS section 5, T003-h)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from duly import Duly, Status, WrongState
from duly.mail import Mail, Undelivered
from duly.mail.providers.smtp import SmtpProvider
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, Ear, actions, message_of, put, read, run, states
from mail.servers import MailServer, mail_server, trusting

Make = Callable[..., Duly]
THREE = ["ada@example.org", "bob@example.org", "eve@example.org"]


@pytest.fixture
def app(make: Make, smtp: MailServer) -> Duly:
    return make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{smtp.port}")


def test_a_message_goes_out_with_its_own_id(app: Duly, smtp: MailServer) -> None:
    # R003-7
    job = run(app, to=THREE[:2], bcc="eve@example.org", text="Grüße\n.\nEnde", subject="Grüße")
    assert (job.status, job.remote_id, actions(app, job.id)) == (Status.SUCCEEDED, "4F2C", ["EMAIL_SENT"])
    (arrived,) = smtp.arrived
    assert arrived.to == THREE
    message = read(arrived.content)
    assert (message["Subject"], message["Message-ID"], message["Bcc"]) == ("Grüße", job.output["message_id"], None)
    assert message.get_content().replace("\r\n", "\n") == "Grüße\n.\nEnde\n"


def test_addresses_in_other_scripts_go_to_a_server_that_takes_them(app: Duly, smtp: MailServer) -> None:
    run(app, to="zoë@bücher.example")
    assert smtp.got == ["zoë@xn--bcher-kva.example"]


def test_who_was_accepted_is_never_sent_to_again(app: Duly, smtp: MailServer, clock: ManualClock) -> None:
    # T003-h
    smtp.replies = {"bob@example.org": ["451 4.7.1 later", "451 4.7.1 later"]}
    ear = Ear(app)
    job = run(app, to=THREE)
    assert (job.status, smtp.got) == (Status.QUEUED, ["ada@example.org", "eve@example.org"])
    assert [(e["accepted"], e["waiting"]) for e in ear.named("mail_partly")] == [(2, 1)]
    clock.advance(60)
    drain(app)
    assert message_of(app.jobs.get(job.id)) == (
        "1 of 3 recipients do not have it yet: the mail server answered 451 4.7.1 later"
    )
    clock.advance(60)
    drain(app)
    done = app.jobs.get(job.id)
    assert (done.status, done.attempts, done.output["accepted"]) == (Status.SUCCEEDED, 2, 3)
    assert smtp.got == ["ada@example.org", "eve@example.org", "bob@example.org"]
    assert len({read(a.content)["Message-ID"] for a in smtp.arrived}) == 1
    assert read(smtp.arrived[1].content)["To"] == ", ".join(THREE)
    assert (smtp.counts["ada@example.org"], actions(app, job.id)) == (1, ["EMAIL_SENT"])
    assert "@" not in str([e.facts for e in ear.events])


def test_a_server_that_takes_ten_at_a_time_gets_all_of_sixty(app: Duly, smtp: MailServer, clock: ManualClock) -> None:
    # R003-7, T003-b: a run that got on uses no attempt; RFC 5321, 4.5.3.1.10
    everybody = [f"reader{n}@example.org" for n in range(60)]
    take = smtp.handle_RCPT

    async def ten(server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if len(envelope.rcpt_tos) >= 10:
            return "452 4.5.3 Too many recipients"
        return await take(server, session, envelope, address, options)

    smtp.handle_RCPT = ten  # type: ignore[method-assign]
    ident = put(app, to="desk@example.org", bcc=everybody)
    for _ in range(7):
        drain(app)
        clock.advance(60)
    job = app.jobs.get(ident)
    assert (job.status, job.attempts, job.output["accepted"]) == (Status.SUCCEEDED, 1, 61)
    assert sorted(smtp.got) == sorted(["desk@example.org", *everybody])


@pytest.mark.parametrize("said", [b"", b"421 4.3.2 shutting down\r\n"], ids=["silence", "421"])
@ON_ONE
def test_a_server_that_hangs_up_before_it_asks_for_the_text_was_handed_nothing(make: Make, said: bytes) -> None:
    # T003-h: it is tried again, because nobody can have it
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line, line.makefile("rb") as heard:
                line.sendall(b"220 here\r\n")
                while not heard.readline().startswith(b"DATA"):
                    line.sendall(b"250 ok\r\n")
                line.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{server.getsockname()[1]}")
        job = run(app)
        thread.join(10)
    assert (job.status, job.attempts, states(app, job.id)) == (Status.QUEUED, 1, [])


def test_who_was_refused_for_good_is_told_and_the_others_have_it(app: Duly, smtp: MailServer) -> None:
    smtp.replies = {"bob@example.org": ["550 5.1.1 <bob@example.org> unknown"]}
    ear = Ear(app)
    job = run(app, to=THREE)
    assert (job.status, job.output["accepted"], job.output["refused"]) == (
        Status.SUCCEEDED, 2, [{"recipient": 1, "code": 550}]
    )  # fmt: skip
    assert states(app, job.id) == ["accepted", "accepted", "refused"]
    assert [(e["accepted"], e["refused"]) for e in ear.named("mail_refused")] == [(2, 1)]


def test_a_refused_one_is_not_asked_about_again_on_the_retry(app: Duly, smtp: MailServer, clock: ManualClock) -> None:
    # T003-h
    smtp.replies = {"ada@example.org": ["550 no"], "bob@example.org": ["450 later"]}
    job = run(app, to=THREE[:2])
    clock.advance(60)
    drain(app)
    output = app.jobs.get(job.id).output
    assert (output["accepted"], output["refused"], smtp.got) == (
        1, [{"recipient": 0, "code": 550}], ["bob@example.org"]
    )  # fmt: skip
    assert smtp.counts["ada@example.org"] == 1


def test_a_job_that_everybody_refuses_fails_at_once_without_an_address(app: Duly, smtp: MailServer) -> None:
    # T003-d
    smtp.replies = {"ada@example.org": ["550 5.1.1 <ada@example.org> unknown"]}
    job = run(app)
    assert (job.status, job.attempts, actions(app, job.id)) == (Status.FAILED, 1, ["JOB_FAILED_PERMANENT"])
    assert message_of(job) == "the mail server answered 550 5.1.1 <…@…> unknown"


def test_attempts_that_are_used_up_are_no_permanent_error(app: Duly, smtp: MailServer, clock: ManualClock) -> None:
    # T003-d
    smtp.replies = {"ada@example.org": ["451 later"] * 4}
    job = run(app)
    for _ in range(3):
        clock.advance(100)
        drain(app)
    assert (app.jobs.get(job.id).attempts, actions(app, job.id)) == (4, ["JOB_EXHAUSTED_RETRIES"])
    assert smtp.arrived == []


@pytest.mark.parametrize(("end", "status"), [("451 4.3.0 later", Status.QUEUED), ("554 5.7.1 spam", Status.FAILED)])
def test_an_answer_to_the_message_counts_for_everybody_left(
    app: Duly, smtp: MailServer, clock: ManualClock, end: str, status: Status
) -> None:
    smtp.ends = [end]
    job = run(app, to=THREE)
    assert (job.status, smtp.arrived) == (status, [])
    assert states(app, job.id) == ([] if status is Status.QUEUED else ["refused"] * 3)
    if status is Status.QUEUED:
        clock.advance(60)
        drain(app)
        assert (app.jobs.get(job.id).status, smtp.got) == (Status.SUCCEEDED, THREE)


@pytest.mark.parametrize("end", ["LOST", "GONE"])
def test_an_answer_that_is_lost_after_data_holds_the_message_and_says_so(
    app: Duly, smtp: MailServer, clock: ManualClock, end: str
) -> None:
    # T003-h: never twice silently
    smtp.ends = [end]
    smtp.replies = {"eve@example.org": ["550 no"] * 2}
    ear = Ear(app)
    job = run(app, to=THREE)
    assert (job.status, job.attempts, actions(app, job.id)) == (Status.FAILED, 1, ["JOB_FAILED_PERMANENT"])
    assert message_of(job).startswith("the outcome is unknown for 2 of 3 recipients: the message was handed over")
    assert states(app, job.id) == ["refused", "unknown", "unknown"]
    assert [e["unknown"] for e in ear.named("mail_unknown")] == [2]
    app.jobs.replay(job.id)
    drain(app)
    assert app.jobs.get(job.id).status is Status.FAILED
    assert len(smtp.arrived) == (1 if end == "LOST" else 0)


def test_an_answer_that_is_lost_may_be_risked_again(make: Make, smtp: MailServer, clock: ManualClock) -> None:
    # T003-h: with mail_unknown=resend, and the same Message-ID
    app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{smtp.port}", mail_unknown="resend")
    smtp.ends = ["LOST"]
    job = run(app)
    assert (job.status, states(app, job.id)) == (Status.QUEUED, ["unknown"])
    clock.advance(60)
    drain(app)
    assert app.jobs.get(job.id).status is Status.SUCCEEDED
    assert (smtp.got, len({read(a.content)["Message-ID"] for a in smtp.arrived})) == (["ada@example.org"] * 2, 1)


def test_a_person_who_has_looked_has_it_sent_to_those_alone_who_do_not_have_it(
    app: Duly, smtp: MailServer, clock: ManualClock
) -> None:
    # T003-h: a decision, on record
    smtp.replies = {"bob@example.org": ["451 later"]}
    job = run(app, to=THREE[:2])
    smtp.ends = ["GONE"]
    clock.advance(60)
    drain(app)
    assert states(app, job.id) == ["accepted", "unknown"]
    mail = Mail.of(app)
    again = mail.resend(job.id, "not in the log of the server", actor="cli:root")
    assert again.status is Status.QUEUED
    with pytest.raises(WrongState):
        mail.resend(job.id)
    drain(app)
    assert (app.jobs.get(job.id).status, smtp.got) == (Status.SUCCEEDED, THREE[:2])
    assert actions(app, job.id) == ["JOB_FAILED_PERMANENT", "JOB_REPLAYED", "EMAIL_RESENT", "EMAIL_SENT"]


def test_who_resends_by_an_old_look_takes_nothing_away_from_the_run_of_another(
    app: Duly, smtp: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T003-h: else the second one's release would let a message be sent twice that is out already
    smtp.ends = ["LOST"]
    job = run(app)
    mail, found = Mail.of(app), list[Any]()
    mail.resend(job.id)
    take = smtp.handle_DATA

    async def meanwhile(*args: Any) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(type(app.engine.reader), "get", lambda *_: job)  # it looked before the other one's resend
            with pytest.raises(WrongState):
                mail.resend(job.id)
        found.extend(states(app, job.id))
        return await take(*args)

    smtp.handle_DATA = meanwhile  # type: ignore[method-assign]
    drain(app)
    assert found == ["unknown"]
    assert (app.jobs.get(job.id).status, states(app, job.id)) == (Status.SUCCEEDED, ["accepted"])


@pytest.mark.parametrize("how", ["replay", "resend"])
def test_a_person_who_wants_it_sent_again_reaches_those_too_who_were_refused(
    app: Duly, smtp: MailServer, clock: ManualClock, how: str
) -> None:
    # T003-d: the reason may be mended by then; who has the message is not asked about again
    smtp.replies = {"bob@example.org": ["451 later"] * 5, "eve@example.org": ["550 no", "550 still no"]}
    job = run(app, to=THREE)
    for _ in range(4):
        clock.advance(100)
        drain(app)
    assert (app.jobs.get(job.id).status, smtp.counts["eve@example.org"]) == (Status.FAILED, 1)
    (app.jobs.replay if how == "replay" else Mail.of(app).resend)(job.id)
    drain(app)
    assert app.jobs.get(job.id).output["refused"] == [{"recipient": 2, "code": 550}]
    app.jobs.replay(job.id, force=True)  # in the same instant, as a clock has it that stands still
    drain(app)
    assert (app.jobs.get(job.id).output["accepted"], smtp.got) == (3, THREE)


def test_a_message_that_was_refused_as_a_whole_is_sent_once_the_reason_is_mended(app: Duly, smtp: MailServer) -> None:
    # T003-d
    smtp.ends = ["554 5.7.1 policy"]
    job = run(app, to=THREE)
    assert (job.status, states(app, job.id)) == (Status.FAILED, ["refused"] * 3)
    smtp.ends = ["554 5.7.1 another policy", "LOST"]
    app.jobs.replay(job.id)
    drain(app)
    assert message_of(app.jobs.get(job.id)) == "the mail server answered 554 5.7.1 another policy"
    app.jobs.replay(job.id)
    drain(app)
    assert states(app, job.id) == ["unknown"] * 3  # written ahead, as for those who were never asked
    app.jobs.replay(job.id)
    drain(app)
    assert (app.jobs.get(job.id).status, len(smtp.arrived)) == (Status.FAILED, 1)


def test_who_was_resent_to_and_put_off_is_sent_to_at_the_next_attempt(
    app: Duly, smtp: MailServer, clock: ManualClock
) -> None:
    # T003-h: the decision counts until it is done
    smtp.ends = ["GONE", "451 later"]
    job = run(app)
    Mail.of(app).resend(job.id)
    drain(app)
    assert (app.jobs.get(job.id).status, states(app, job.id)) == (Status.QUEUED, ["unknown"])
    clock.advance(60)
    drain(app)
    assert (app.jobs.get(job.id).status, smtp.got) == (Status.SUCCEEDED, ["ada@example.org"])


def test_an_answer_that_comes_after_a_person_has_decided_is_on_record(app: Duly, smtp: MailServer) -> None:
    # T003-h: the late worker was cut off from its job, and the message is out
    from duly.mail.store import MailStore

    take = smtp.handle_DATA

    async def decided(*args: Any) -> str:
        store = MailStore(app.db)
        app.db.write(lambda c: store.release(c, job, "default", "", "cli:root"))
        return await take(*args)

    smtp.handle_DATA = decided  # type: ignore[method-assign]
    job = put(app)
    drain(app)
    assert states(app, job) == ["accepted"]


def test_bad_addresses_of_which_a_server_has_enough_do_not_keep_a_good_one_from_its_message(
    app: Duly, smtp: MailServer, clock: ManualClock
) -> None:
    # T003-b: Postfix hangs up after some errors (smtpd_hard_error_limit); what it said before counts
    session: list[Any] = []

    async def strict(server: Any, of: Any, envelope: Any, address: str, options: Any) -> str:
        smtp.counts[address] += 1
        if address == "ada@example.org":
            envelope.rcpt_tos.append(address)
            return "250 OK"
        session.append(of)
        if session.count(of) <= 3:
            return "550 5.1.1 no such user"
        await server.push("421 4.7.0 too many errors")
        server.transport.close()
        return "421"

    smtp.handle_RCPT = strict  # type: ignore[method-assign]
    job = run(app, to=[*(f"bad{n}@example.org" for n in range(7)), "ada@example.org"])
    assert (job.attempts, states(app, job.id)) == (0, ["refused"] * 3)
    for _ in range(2):
        clock.advance(60)
        drain(app)
    done = app.jobs.get(job.id)
    assert (done.status, done.attempts, done.output["accepted"], len(done.output["refused"])) == (
        Status.SUCCEEDED, 1, 1, 7
    )  # fmt: skip
    assert (smtp.counts["bad0@example.org"], smtp.got) == (1, ["ada@example.org"])


@pytest.mark.parametrize("at", ["MAIL", "RCPT", "text"])
@ON_ONE
def test_a_server_that_wants_credentials_pauses_the_queue_whenever_it_says_so(
    app: Duly, smtp: MailServer, clock: ManualClock, at: str
) -> None:
    # T003-b: nothing was sent, and no attempt is used
    said = "530 5.7.57 Client not authenticated"
    smtp.replies = {"bob@example.org": [said]} if at == "RCPT" else {}
    smtp.ends = [said] if at == "text" else []
    take = smtp.handle_MAIL

    async def once(*args: Any) -> str:
        smtp.handle_MAIL = take  # type: ignore[method-assign]
        return said

    if at == "MAIL":
        smtp.handle_MAIL = once  # type: ignore[method-assign]
    job = run(app, to=THREE)
    assert (job.status, job.attempts, states(app, job.id), smtp.arrived) == (Status.QUEUED, 0, [], [])
    assert "530" in (app.queues.get("mail").paused_reason or "")
    app.queues.resume("mail")
    clock.advance(2)
    drain(app)
    assert (app.jobs.get(job.id).status, smtp.got) == (Status.SUCCEEDED, THREE)


def test_who_may_have_it_is_told_though_it_was_another_who_could_not_be_reached(
    app: Duly, smtp: MailServer, clock: ManualClock
) -> None:
    # T003-h: never silently
    smtp.ends = ["LOST"]
    smtp.replies = {"bob@example.org": ["451 later"] * 9}
    ear = Ear(app)
    job = run(app, to=THREE[:2])
    for _ in range(4):
        clock.advance(100)
        drain(app)
    job = app.jobs.get(job.id)
    assert (job.status, actions(app, job.id)) == (Status.FAILED, ["JOB_EXHAUSTED_RETRIES"])
    assert message_of(job).startswith("the outcome is unknown for 1 of 2 recipients: the message was handed over")
    assert "1 of 2 recipients do not have it yet: the mail server answered 451 later" in message_of(job)
    assert f"`duly mail resend {job.id}`" in message_of(job)
    assert [e["unknown"] for e in ear.named("mail_unknown")] == [1]


def test_that_it_is_sent_again_is_said_only_where_it_is(make: Make, smtp: MailServer, clock: ManualClock) -> None:
    # T003-h
    app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{smtp.port}", mail_unknown="resend")
    ear = Ear(app)
    smtp.ends = ["GONE"] * 4
    job = run(app)
    assert message_of(job).endswith("it is sent again, because mail_unknown is resend")
    for _ in range(3):
        clock.advance(100)
        drain(app)
    job = app.jobs.get(job.id)
    assert (job.status, len(ear.named("mail_unknown"))) == (Status.FAILED, 1)
    assert "it is not sent again (its attempts are used up)" in message_of(job)


def test_a_server_that_is_not_there_is_tried_again(make: Make) -> None:
    with mail_server() as gone:
        pass
    app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{gone.port}")
    job = run(app)
    assert (job.status, job.attempts) == (Status.QUEUED, 0)
    assert (app.queues.get("mail").held_reason or "").startswith("mail: no connection to the mail server")


# ---------------------------------------------------------------------- logging in


def test_a_wrong_password_pauses_the_queue_and_costs_no_attempt(make: Make) -> None:
    with mail_server(login=True) as server:
        app = make(mail_provider="smtp", smtp_url=f"smtp://ada:wr%3Ang@127.0.0.1:{server.port}")
        ear = Ear(app)
        job = run(app)
        assert (job.status, job.attempts) == (Status.QUEUED, 0)
        paused = app.queues.get("mail").paused_reason or ""
        assert paused.startswith("mail: the mail server answered 535")
        assert "wr" not in paused.replace("5.7.8 Wrong", "")
        assert len(ear.named("mail_paused")) == 1
        again = make(mail_provider="smtp", smtp_url=f"smtp://ada:s3cr%3At@127.0.0.1:{server.port}")
        again.queues.resume("mail")
        drain(again)
        assert again.jobs.get(job.id).status is Status.QUEUED  # for a second it stays aside
        again.engine.clock.advance(2)  # type: ignore[attr-defined]
        drain(again)
        assert (again.jobs.get(job.id).status, server.got) == (Status.SUCCEEDED, ["ada@example.org"])


def test_a_server_that_cannot_say_now_is_tried_again(make: Make) -> None:
    with mail_server(login=True) as server:
        server.no = "454 4.7.0 not now"
        job = run(make(mail_provider="smtp", smtp_url=f"smtp://ada:x@127.0.0.1:{server.port}"))
    assert (job.status, job.attempts) == (Status.QUEUED, 0)


@pytest.mark.parametrize(("tls", "scheme"), [("start", "smtp"), ("smtps", "smtps")])
@ON_ONE
def test_tls_from_the_start_or_after_starttls(make: Make, tls: str, scheme: str) -> None:
    with mail_server(login=True, tls=tls) as server:
        app = make(smtp_url=f"{scheme}://ada:s3cr%3At@127.0.0.1:{server.port}")
        Mail(app, SmtpProvider(app.settings, app.engine.clock, trusting()))
        job = run(app)
        assert (job.status, server.got) == (Status.SUCCEEDED, ["ada@example.org"]), job.error


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(make: Make) -> None:
    with mail_server(tls="smtps") as server:
        app = make(mail_provider="smtp", smtp_url=f"smtps://127.0.0.1:{server.port}")
        run(app)
        assert "certificate" in (app.queues.get("mail").paused_reason or "")
        assert server.arrived == []


@pytest.mark.parametrize("url", ["mail.example.org:25", "smtp://", "http://x", "smtp://x:port"])
@ON_ONE
def test_a_url_that_is_none_pauses_the_queue_and_is_not_repeated(make: Make, url: str) -> None:
    app = make(mail_provider="smtp", smtp_url=url)
    assert run(app).attempts == 0
    assert (app.queues.get("mail").paused_reason or "").startswith("mail: smtp_url is not")


def test_a_look_at_the_server_sends_nothing(make: Make) -> None:
    with mail_server(login=True) as server:
        found: list[Any] = []
        for word in ("s3cr%3At", "no"):
            app = make(mail_provider="smtp", smtp_url=f"smtp://ada:{word}@127.0.0.1:{server.port}")
            try:
                found.append(asyncio.run(Mail.of(app).check()))
            except Undelivered as error:
                found.append(error.verdict.kind)
        assert found == ["connected and logged in", "auth"]
        assert server.arrived == []


def test_one_commit_may_tell_of_messages_that_were_sent_and_that_nobody_was_to_get(
    make: Make, smtp: MailServer
) -> None:
    # R003-7
    app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{smtp.port}")
    Mail.of(app).suppressions.add("eve@example.org")
    jobs = {put(app, to=to): to for to in THREE * 4}
    app.worker({"mail": 12}).run(until_idle=True)
    for ident, to in jobs.items():
        assert actions(app, ident) == ["EMAIL_SUPPRESSED" if to == "eve@example.org" else "EMAIL_SENT"]


def test_a_job_that_somebody_else_has_begun_to_send_is_left_to_him(app: Duly, smtp: MailServer) -> None:
    # a late worker whose lease was lost, and the one that took over
    from duly.mail.store import MailStore

    ident = put(app)
    original = MailStore.ahead

    def beaten(self: MailStore, c: Any, job: int, tenant: str, recipients: Any, known: Any, **who: Any) -> bool:
        original(self, c, job, tenant, recipients, known, provider="smtp", holder="somebody else")
        return original(self, c, job, tenant, recipients, known, **who)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MailStore, "ahead", beaten)
        drain(app)
    assert (message_of(app.jobs.get(ident)), smtp.arrived) == ("another run of this job has begun to send it", [])


def test_a_worker_without_its_lease_hands_nothing_over(app: Duly, smtp: MailServer) -> None:
    from duly.mail.store import MailStore

    ident = put(app)
    with pytest.MonkeyPatch.context() as patch:
        holds = MailStore.holds
        patch.setattr(MailStore, "holds", lambda self, c, job, token: holds(self, c, job, token + 1))
        drain(app)
    assert (app.jobs.get(ident).status, smtp.arrived, states(app, ident)) == (Status.QUEUED, [], [])

"""A mail server that is away or wants to be asked later ends no message (FAULTS_2 F2, F16; RFC 5321, 4.5.4.1)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from duly import Backoff, Duly, Status
from duly.mail import Mail
from duly.mail.mail import BACKOFF
from duly.settings import Settings
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, Ear, actions, put, run, states
from mail.servers import Graph, MailServer, mail_server
from mail.test_switch import through
from outbox.endpoint import PEM

Make = Callable[..., Duly]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_relay_that_is_away_for_hours_costs_no_message_an_attempt_and_holds_the_queue(
    make: Make, smtp: MailServer, clock: ManualClock
) -> None:
    away = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{free_port()}")
    ear = Ear(away)
    jobs = [put(away) for _ in range(8)]
    for _ in range(14):  # an hour and more
        away.worker({"mail": 4}).run(until_idle=True)
        held = away.queues.get("mail").held_until
        assert held is not None
        assert held > clock.now()
        clock.advance((held - clock.now()).total_seconds() + 10)
    assert {(away.jobs.get(n).status, away.jobs.get(n).attempts) for n in jobs} == {(Status.QUEUED, 0)}
    waits = [e["wait"] for e in ear.named("mail_away")]
    assert max(waits) == 300.0
    assert len(waits) <= 18  # one of them asks, and not each
    back = make(**through(smtp))
    ear = Ear(back)
    for _ in range(4):
        drain(back)
        clock.advance(10)
    assert {back.jobs.get(n).status for n in jobs} == {Status.SUCCEEDED}
    assert [e["held"] for e in ear.named("mail_resumed")] == ["away"]


def test_a_server_that_says_451_for_an_hour_takes_the_message_in_the_end(
    app_of_four_days: Duly, smtp: MailServer, clock: ManualClock
) -> None:
    app = app_of_four_days
    smtp.replies = {"ada@example.org": ["450 4.2.0 Greylisted"] * 2}
    smtp.ends = ["451 4.3.0 queue file write error"] * 4
    job = run(app)
    for _ in range(63):
        clock.advance(60)
        drain(app)
    found = app.jobs.get(job.id)
    assert (found.status, found.attempts, smtp.got) == (Status.SUCCEEDED, 7, ["ada@example.org"])


@pytest.fixture
def app_of_four_days(db_url: str, clock: ManualClock, smtp: MailServer) -> Any:
    app = Duly(
        db_url, clock=clock, sqlite_synchronous="NORMAL", mail_from="desk@example.org", mail_provider="smtp",
        smtp_url=f"smtp://127.0.0.1:{smtp.port}",
    )  # fmt: skip
    Mail(app)
    yield app
    app.close()


def test_attempts_and_waits_reach_over_days() -> None:
    total = sum(BACKOFF.delay(n) for n in range(1, Settings().mail_attempts))
    assert timedelta(days=3.5) < timedelta(seconds=total) < timedelta(days=5)
    assert [BACKOFF.delay(n) for n in (1, 2, 3)] == [60, 120, 240]


def test_attempts_waits_and_the_time_of_a_run_are_chosen_where_mail_is_made(db_url: str) -> None:
    app = Duly(db_url, mail_attempts=9)
    try:
        Mail(app)
        assert app.engine.tasks["EMAIL_SEND"].max_attempts == 9
    finally:
        app.close()
    app = Duly(db_url)
    try:
        Mail(app, attempts=3, backoff=Backoff(base=5), timeout=60)
        task = app.engine.tasks["EMAIL_SEND"]
        assert (task.max_attempts, task.backoff.base, task.timeout) == (3, 5, 60)
    finally:
        app.close()


def test_a_queue_that_a_person_releases_is_tried_at_once(make: Make, smtp: MailServer, clock: ManualClock) -> None:
    away = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{free_port()}")
    run(away)
    app = make(**through(smtp))
    other = put(app)
    drain(app)
    assert smtp.sessions == 0
    app.queues.release("mail")
    drain(app)
    assert (app.jobs.get(other).status, smtp.sessions) == (Status.SUCCEEDED, 1)


def test_a_message_with_a_sender_of_its_own_is_at_fault_itself_and_stops_no_other(app_of_graph: Duly, graph: Graph) -> None:  # fmt: skip
    # FAULTS_2 F17
    refused = (403, {}, {"error": {"code": "ErrorSendAsDenied"}})
    graph.answers = [refused]
    job = run(app_of_graph, from_="ceo@example.org")
    assert (job.status, app_of_graph.queues.get("mail").paused_at) == (Status.FAILED, None)
    graph.answers = [refused]
    ear = Ear(app_of_graph)
    job = run(app_of_graph)
    assert (job.status, job.attempts, states(app_of_graph, job.id)) == (Status.QUEUED, 0, [])
    assert "ErrorSendAsDenied" in (app_of_graph.queues.get("mail").paused_reason or "")
    assert len(ear.named("mail_paused")) == 1


@pytest.fixture
def app_of_graph(make: Make, graph: Graph) -> Duly:
    return make(**through(graph))


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 499])
@ON_ONE
def test_a_gateway_that_gives_up_leaves_the_outcome_of_graph_unknown(app_of_graph: Duly, graph: Graph, status: int) -> None:  # fmt: skip
    # FAULTS_2 F5: the message was taken behind it
    graph.answers = [(status, {}, None)] * 2
    ear = Ear(app_of_graph)
    job = run(app_of_graph)
    assert (job.status, states(app_of_graph, job.id), len(graph.sent)) == (Status.FAILED, ["unknown"], 1)
    assert len(ear.named("mail_unknown")) == 1


# ---------------------------------------------------------------------- inside the house


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> str:
    """A host that is not this machine, as far as anyone can tell."""
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: real("127.0.0.1" if host == "relay.lan" else host, *rest, **more)
    )  # fmt: skip
    return "relay.lan"


@ON_ONE
def test_a_named_relay_is_reached_without_tls_and_the_refusal_names_the_setting(
    make: Make, smtp: MailServer, named: str
) -> None:
    # C032
    app = make(mail_provider="smtp", smtp_url=f"smtp://{named}:{smtp.port}")
    assert run(app).attempts == 0
    assert "DULY_SMTP_PLAIN=relay.lan" in (app.queues.get("mail").paused_reason or "")
    plain = make(mail_provider="smtp", smtp_url=f"smtp://{named}:{smtp.port}", smtp_plain="other.lan, Relay.lan")
    plain.queues.resume("mail")
    assert run(plain).status is Status.SUCCEEDED


@ON_ONE
def test_no_password_goes_to_a_plain_relay_unless_that_is_said(make: Make, named: str) -> None:
    # C032
    with mail_server(login=True) as server:
        url = f"smtp://ada:s3cr%3At@{named}:{server.port}"
        app = make(mail_provider="smtp", smtp_url=url, smtp_plain=named)
        run(app)
        assert "DULY_SMTP_PLAIN_PASSWORD" in (app.queues.get("mail").paused_reason or "")
        assert server.sessions == 0
        said = make(mail_provider="smtp", smtp_url=url, smtp_plain=named, smtp_plain_password=True)
        said.queues.resume("mail")
        assert run(said).status is Status.SUCCEEDED


@ON_ONE
def test_a_relay_whose_certificate_the_house_has_signed_is_trusted_by_its_file(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    # C032
    loaded = ssl.SSLContext.load_verify_locations
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda self, **files: (setattr(self, "check_hostname", False), loaded(self, **files))[1])  # fmt: skip
    with mail_server(tls="smtps") as server:
        url = f"smtps://127.0.0.1:{server.port}"
        app = make(mail_provider="smtp", smtp_url=url)
        run(app)
        assert "DULY_SMTP_CA" in (app.queues.get("mail").paused_reason or "")
        app = make(mail_provider="smtp", smtp_url=url, smtp_ca=str(PEM))
        app.queues.resume("mail")
        assert run(app).status is Status.SUCCEEDED
    bad = make(mail_provider="smtp", smtp_url=url, smtp_ca="/nowhere/ca.pem")
    run(bad)
    assert "smtp_ca" in (bad.queues.get("mail").paused_reason or "")


@ON_ONE
def test_the_name_in_ehlo_is_a_setting(make: Make, smtp: MailServer) -> None:
    heard = []
    take = smtp.handle_MAIL

    async def hear(server: Any, session: Any, *rest: Any) -> str:
        heard.append(session.host_name)
        return await take(server, session, *rest)

    smtp.handle_MAIL = hear  # type: ignore[method-assign]
    run(make(**through(smtp), smtp_ehlo="mail.example.org"))
    assert heard == ["mail.example.org"]


@ON_ONE
def test_a_starttls_that_fails_for_now_holds_the_queue(make: Make, named: str) -> None:
    # C032: 454
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line, line.makefile("rb") as heard:
                line.sendall(b"220 here\r\n")
                for said in (b"250-here\r\n250 STARTTLS\r\n", b"454 4.7.0 TLS not available\r\n"):
                    heard.readline()
                    line.sendall(said)
                heard.readline()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        app = make(mail_provider="smtp", smtp_url=f"smtp://{named}:{server.getsockname()[1]}")
        job = run(app)
        thread.join(10)
    queue = app.queues.get("mail")
    assert (job.status, job.attempts, queue.paused_at, actions(app, "mail")) == (Status.QUEUED, 0, None, ["QUEUE_HELD"])
    assert "454" in (queue.held_reason or "")


# ---------------------------------------------------------------------- people are told at once


def said(app: Duly, rule: str) -> list[tuple[str, float, str]]:
    return [(s.subject, s.value, s.detail) for s in app.alerts.look().readings[rule].samples]


def test_an_alert_says_that_no_mail_leaves_until_it_does_again(
    make: Make, smtp: MailServer, clock: ManualClock
) -> None:
    port = free_port()
    away = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
    run(away)
    assert said(away, "mail_held") == []  # once is no outage
    clock.advance(15)
    drain(away)
    assert said(away, "mail_held") == [
        ("mail", 1, f"smtp: no connection to the mail server 127.0.0.1:{port}: ConnectionRefusedError")
    ]
    clock.advance(31)  # between two tries it is no better
    assert len(said(away, "mail_held")) == 1
    back = make(**through(smtp))
    drain(back)
    assert (smtp.got, said(back, "mail_held")) == (["ada@example.org"], [])


def test_an_alert_says_at_once_that_credentials_are_refused_or_a_quota_is_used_up(make: Make, graph: Graph) -> None:
    app = make(**through(graph))
    graph.answers = [(403, {}, {"error": {"code": "ErrorExceededMessageLimit"}})]
    run(app)
    assert said(app, "mail_held") == [("mail", 1, "graph: Microsoft Graph answered 403 ErrorExceededMessageLimit")]
    app.queues.release("mail")
    graph.refuses = 401, {}, {"error": "invalid_client", "error_codes": [7000222]}
    app = make(**through(graph))
    run(app)
    ((queue, _, detail),) = said(app, "mail_held")
    assert (queue, "AADSTS7000222" in detail) == ("mail", True)


def test_an_alert_says_at_once_that_an_outcome_is_unknown_until_it_is_sent_again(make: Make, smtp: MailServer) -> None:
    app = make(**through(smtp))
    smtp.ends = ["LOST"]
    job = run(app)
    assert said(app, "mail_unknown") == [("mail", 1, "")]
    Mail.of(app).resend(job.id)
    drain(app)
    assert said(app, "mail_unknown") == []

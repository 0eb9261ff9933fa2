"""What a relay says of itself, or says nothing at all, is not the fault of a message (issue 16, C1 and F; FAULTS_2 F2)."""

from __future__ import annotations

import socketserver
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duly import Duly, Status
from duly.testing import ManualClock, drain
from listening import listening
from mail.hands import ON_ONE, Ear, message_of, put, run
from mail.servers import Graph, MailServer, Resend
from mail.test_switch import through

Make = Callable[..., Duly]
DENIED = "554 5.7.1 <x@example.com>: Relay access denied"


@contextmanager
def hanging_up(at: str, ehlo: str = "250 relay") -> Iterator[tuple[int, Counter[str]]]:
    """A relay that closes the connection when it gets a command; before its greeting where ``at`` is "connect"."""
    heard = Counter[str]()

    class Relay(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if at == "connect":
                return
            self.wfile.write(b"220 relay\r\n")
            for line in self.rfile:
                verb = line.split()[0].decode().upper() if line.split() else ""
                heard[verb] += 1
                if verb == at:
                    return
                said = {"EHLO": ehlo, "DATA": "354 go on"}.get(verb, "250 ok")
                self.wfile.write(said.encode() + b"\r\n")

    with listening(Relay) as port:
        yield port, heard


@ON_ONE
@pytest.mark.parametrize("at", ["connect", "EHLO", "MAIL"])
def test_a_relay_that_hangs_up_before_it_takes_the_sender_cannot_be_reached_and_costs_no_attempt(
    make: Make, at: str
) -> None:
    with hanging_up(at) as (port, _):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        ear = Ear(app)
        job = run(app)
        assert (job.status, job.attempts, len(ear.named("mail_away"))) == (Status.QUEUED, 0, 1)
        assert app.queues.get("mail").held_until is not None


@ON_ONE
@pytest.mark.parametrize("at", ["RCPT", "DATA"])
def test_a_relay_that_hangs_up_in_the_middle_of_one_message_holds_nothing(make: Make, at: str) -> None:
    with hanging_up(at) as (port, _):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        job = run(app)
        assert (job.status, job.attempts) == (Status.QUEUED, 1)
        assert app.queues.get("mail").held_until is None


@ON_ONE
def test_a_message_that_is_larger_than_the_relay_says_is_refused_before_it_is_sent(make: Make) -> None:  # C036
    with hanging_up("DATA", ehlo="250-relay\r\n250 SIZE 20000") as (port, heard):
        app = make(mail_provider="smtp", smtp_url=f"smtp://127.0.0.1:{port}")
        job = run(app, text="x" * 70 + "\n" + ("y" * 70 + "\n") * 400)
        assert job.status is Status.FAILED
        assert "20,000" in message_of(job)
        assert (heard["MAIL"], app.queues.get("mail").held_until) == (0, None)


def tick(app: Duly, clock: ManualClock) -> None:
    held = app.queues.get("mail").held_until
    clock.advance(max(0.0, (held - clock.now()).total_seconds() if held else 0.0) + 70)
    drain(app)


def test_a_relay_that_relays_for_nobody_holds_the_queue_after_three_messages(
    make: Make, smtp: MailServer, clock: ManualClock
) -> None:
    app, names = make(**through(smtp)), ["ada", "bob", "cy", "dora", "eve"]
    smtp.replies = {f"{name}@example.org": [DENIED] * 99 for name in names}
    ear = Ear(app)
    jobs = [put(app, to=f"{name}@example.org") for name in names]
    drain(app)
    assert app.queues.get("mail").held_until is not None
    asked = sum(smtp.counts.values())
    assert asked == 3
    for _ in range(12):  # for as long as it takes: nobody's attempts are used up
        tick(app, clock)
    assert {app.jobs.get(n).status for n in jobs} == {Status.QUEUED}
    assert max(app.jobs.get(n).attempts for n in jobs) <= 1
    assert ear.named("mail_away")[-1]["failures"] > 5  # what raises mail_held
    assert sum(smtp.counts.values()) - asked <= 13  # one of them asks, and not each
    smtp.replies = {}
    for _ in range(4):
        tick(app, clock)
    assert {app.jobs.get(n).status for n in jobs} == {Status.SUCCEEDED}
    assert sorted(smtp.got) == [f"{name}@example.org" for name in names]
    assert len(ear.named("mail_resumed")) == 1


def test_a_message_that_is_declined_while_others_go_out_uses_its_attempts(
    make: Make, smtp: MailServer, clock: ManualClock
) -> None:
    app = make(**through(smtp))
    smtp.replies = {"spam@example.org": [DENIED] * 9, "scam@example.org": [DENIED] * 9}
    bad = [put(app, to="spam@example.org"), put(app, to="scam@example.org")]
    for n in range(6):
        drain(app)
        put(app, to=f"good{n}@example.org")
        drain(app)
        clock.advance(90)
    assert {app.jobs.get(n).status for n in bad} == {Status.FAILED}
    assert (len(smtp.got), app.queues.get("mail").held_until) == (6, None)


@ON_ONE
def test_the_same_message_declined_again_and_again_is_one(make: Make, smtp: MailServer, clock: ManualClock) -> None:
    app = make(**through(smtp))
    smtp.replies = {"ada@example.org": [DENIED] * 9}
    job = put(app)
    for _ in range(4):
        drain(app)
        clock.advance(90)
    assert app.jobs.get(job).status is Status.FAILED


@ON_ONE
def test_a_recipient_who_is_refused_by_name_does_not_hold_the_queue(make: Make, smtp: MailServer) -> None:
    app = make(**through(smtp))
    smtp.replies = {f"{n}@example.org": ["450 4.2.0 Greylisted"] for n in range(5)}
    for n in range(5):
        put(app, to=f"{n}@example.org")
    drain(app)
    assert app.queues.get("mail").held_until is None


FIREWALL: Any = (403, {"Content-Type": "text/html"}, "<html>Access denied by policy</html>")


@ON_ONE
def test_a_firewall_in_front_of_graph_holds_the_queue(make: Make, graph: Graph, clock: ManualClock) -> None:
    app = make(**through(graph))
    graph.answers = [FIREWALL] * 3
    jobs = [put(app) for _ in range(4)]
    drain(app)
    assert app.queues.get("mail").held_until is not None
    for _ in range(3):
        tick(app, clock)
    assert ({app.jobs.get(n).status for n in jobs}, len(graph.taken)) == ({Status.SUCCEEDED}, 4)


def test_resend_that_fails_for_hours_costs_no_attempts_and_sends_each_message_once(
    make: Make, resend: Resend, clock: ManualClock
) -> None:
    app = make(**through(resend))
    resend.answers = [(503, {}, "<html>503</html>")] * 12
    jobs = [put(app) for _ in range(4)]
    drain(app)
    for _ in range(14):
        tick(app, clock)
    assert {app.jobs.get(n).status for n in jobs} == {Status.SUCCEEDED}
    assert (len(resend.taken), len(resend.answers)) == (4, 0)
    assert max(app.jobs.get(n).attempts for n in jobs) <= 3


@ON_ONE
def test_a_sender_that_one_message_names_and_the_relay_does_not_permit_holds_nobody(
    make: Make, smtp: MailServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = smtp.handle_MAIL

    async def strict(server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("ceo"):
            return "550 5.7.1 you are not permitted to send from this address"
        return await real(server, session, envelope, address, options)

    monkeypatch.setattr(smtp, "handle_MAIL", strict)
    app = make(**through(smtp))
    own, usual = put(app, from_="ceo@example.org"), put(app)
    for _ in range(5):
        drain(app)
        clock.advance(90)
    assert (app.jobs.get(own).status, app.jobs.get(usual).status) == (Status.FAILED, Status.SUCCEEDED)
    assert app.queues.get("mail").held_until is None


@pytest.mark.parametrize("setting", ["hold", "resend"])
@ON_ONE
def test_a_gateway_whose_answers_say_nothing_does_not_bring_every_message_into_doubt(
    make: Make, graph: Graph, clock: ManualClock, setting: str
) -> None:
    app = make(**through(graph), mail_unknown=setting)
    graph.answers = [(503, {"Content-Type": "text/html"}, "<html>503</html>")] * 5
    jobs = [put(app) for _ in range(9)]
    drain(app)
    assert app.queues.get("mail").held_until is not None
    assert len(graph.sent) == 3
    for _ in range(9):
        tick(app, clock)
    ended = Counter(app.jobs.get(n).status for n in jobs)
    # two more tried whether it is over
    assert ended == ({Status.FAILED: 5, Status.SUCCEEDED: 4} if setting == "hold" else {Status.SUCCEEDED: 9})


@ON_ONE
def test_a_relay_that_hangs_up_after_the_text_of_three_messages_is_given_no_fourth(
    make: Make, smtp: MailServer
) -> None:
    app = make(**through(smtp))
    smtp.ends = ["GONE"] * 9
    jobs = [put(app) for _ in range(6)]
    drain(app)
    assert Counter(app.jobs.get(n).status for n in jobs) == {Status.FAILED: 3, Status.QUEUED: 3}
    assert app.queues.get("mail").held_until is not None

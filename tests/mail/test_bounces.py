"""Bounces and complaints that come later become suppressions (C035)."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from duly import Duly
from duly.kernel.errors import InvalidArgument
from duly.mail import Mail
from duly.mail.bounces import Unverified, read_message, verify
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, Ear, actions, put

Make = Callable[..., Duly]
KEY = b"a secret of sixteen bytes and more"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
FIVE = [f"{name}@example.org" for name in ("ada", "bob", "cy", "dora", "eve")]


@pytest.fixture
def app(make: Make) -> Duly:
    """Five have a letter."""
    made = make(resend_webhook_secret=SECRET)
    put(made, to=FIVE)
    drain(made)
    return made


def signed(app: Duly, event: dict[str, Any], ident: str = "msg_1", ago: float = 0.0) -> tuple[dict[str, str], bytes]:
    body = json.dumps(event).encode()
    at = str(int(app.engine.clock.now().timestamp() - ago))
    mark = base64.b64encode(hmac.digest(KEY, f"{ident}.{at}.".encode() + body, "sha256")).decode()
    return {"Svix-Id": ident, "Svix-Timestamp": at, "Svix-Signature": f"v1,AAAA v1,{mark}"}, body


def bounced(*to: str, type: str = "Permanent", **more: Any) -> dict[str, Any]:
    return {"type": "email.bounced", "data": {"email_id": "56761188", "to": list(to), "bounce": {"type": type, "subType": "General", **more}}}  # fmt: skip


def listed(app: Duly) -> list[tuple[str, str | None]]:
    return [(s.address, s.source) for s in Mail.of(app).suppressions.list()]


def test_a_bounce_for_good_and_a_complaint_are_suppressed_with_their_source(app: Duly) -> None:
    bounces, ear = Mail.of(app).bounces, Ear(app)
    bounces.resend(*signed(app, bounced("Bob@example.org"), "msg_1"))
    bounces.resend(*signed(app, {"type": "email.complained", "data": {"to": ["eve@example.org"]}}, "msg_2"))
    assert listed(app) == [("bob@example.org", "bounce:resend"), ("eve@example.org", "complaint:resend")]
    assert [e["kind"] for e in ear.named("mail_reported")] == ["bounce", "complaint"]
    assert "@" not in str([e.facts for e in ear.events])


def test_the_same_event_twice_is_one(app: Duly) -> None:
    bounces = Mail.of(app).bounces
    bounces.resend(*signed(app, bounced("bob@example.org")))
    Mail.of(app).suppressions.remove("bob@example.org")
    again = bounces.resend(*signed(app, bounced("bob@example.org"), ago=20))
    assert again is not None
    assert (again.repeated, listed(app)) == (True, [])  # what a person has decided since stays


@ON_ONE
@pytest.mark.parametrize(
    ("event", "left"),
    [
        (bounced("bob@example.org", type="Transient"), []),
        (bounced("bob@example.org", type="Undetermined"), []),
        (bounced("stranger@example.org"), []),
        ({"type": "email.delivered", "data": {"to": ["bob@example.org"]}}, []),
        (bounced(*FIVE), []),
        (bounced(*FIVE, message="550 5.1.1 <cy@example.org> unknown"), ["cy@example.org"]),
    ],
    ids=[
        "soft",
        "undetermined",
        "not ours",
        "delivered",
        "of five nobody knows which",
        "of five the one that is named",
    ],
)
def test_only_who_bounced_for_good_and_was_written_to_is_suppressed(app: Duly, event: dict[str, Any], left: list[str]) -> None:  # fmt: skip
    Mail.of(app).bounces.resend(*signed(app, event))
    assert [address for address, _ in listed(app)] == left


@ON_ONE
def test_what_is_not_signed_or_not_now_is_refused(app: Duly, make: Make, clock: ManualClock) -> None:
    bounces = Mail.of(app).bounces
    headers, body = signed(app, bounced("bob@example.org"))
    wrong = [
        ({}, body),
        (headers, body + b" "),
        ({**headers, "Svix-Id": "msg_2"}, body),
        ({**headers, "Svix-Signature": headers["Svix-Signature"].replace("v1,", "v1a,")}, body),
        ({**headers, "Svix-Signature": ""}, body),
        ({**headers, "Svix-Timestamp": "soon"}, body),
    ]
    for some, content in wrong:
        with pytest.raises(Unverified):
            bounces.resend(some, content)
    clock.advance(301)  # a replay
    with pytest.raises(Unverified, match="another time"):
        bounces.resend(headers, body)
    with pytest.raises(Unverified, match="DULY_RESEND_WEBHOOK_SECRET"):
        Mail.of(make()).bounces.resend(*signed(app, bounced("bob@example.org")))
    assert listed(app) == []


def test_a_signature_is_checked_as_its_makers_check_it(clock: ManualClock) -> None:
    # the example of svix's documentation
    body = b'{"test": 2432232314}'
    headers = {
        "svix-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "svix-timestamp": "1614265330",
        "svix-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }  # fmt: skip
    at = clock.now().fromtimestamp(1614265330 + 10, clock.now().tzinfo)
    assert verify(headers, body, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", at) == headers["svix-id"]
    with pytest.raises(Unverified):
        verify(headers, body, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", at + timedelta(minutes=6))


# ---------------------------------------------------------------------- messages


def dsn(message_id: str, *recipients: tuple[str, str, str]) -> bytes:
    """A bounce as Postfix writes one."""
    blocks = "".join(
        f"\nFinal-Recipient: rfc822; {to}\nOriginal-Recipient: rfc822;{to}\nAction: {action}\nStatus: {status}\n"
        f"Diagnostic-Code: smtp; 550\n {status} said\n  so\n"
        for to, action, status in recipients
    )
    return f"""From: MAILER-DAEMON@mx.example.org
To: desk@example.org
Subject: Undelivered Mail Returned to Sender
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status; boundary="b"

--b
Content-Type: text/plain

I'm sorry.

--b
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example.org
{blocks}
--b
Content-Type: text/rfc822-headers

From: desk@example.org
Message-ID: {message_id}
Subject: Hi

--b--
""".encode()


def message_id(app: Duly) -> str:
    return str(app.jobs.get(1).output["message_id"])


def test_a_message_that_came_back_suppresses_the_one_whose_mailbox_is_gone(app: Duly) -> None:
    raw = dsn(
        message_id(app), ("ada@example.org", "delayed", "4.4.1"), ("bob@example.org", "failed", "5.1.1"), ("cy@example.org", "failed", "5.2.2"),
        ("dora@example.org", "failed", "5.7.1"), ("eve@example.org", "failed", "4.4.7"), ("zoe@example.org", "failed", "5.1.1"),
    )  # fmt: skip
    found = Mail.of(app).bounces.read(raw, actor="cli:ann")
    assert (found.suppressed, found.soft, found.strangers) == (1, 4, 1)
    assert listed(app) == [("bob@example.org", "bounce:mail")]
    assert Mail.of(app).bounces.read(raw).repeated


@pytest.mark.parametrize(("status", "gone"), [("5.0.0", True), ("5.1.10", True), ("5.1.7", False), ("5.1.8", False), ("5.4.4", True), ("5.3.0", False), ("", False)])  # fmt: skip
@ON_ONE
def test_whose_fault_a_status_is_decides(app: Duly, status: str, gone: bool) -> None:
    Mail.of(app).bounces.read(dsn(message_id(app), ("bob@example.org", "failed", status)))
    assert bool(listed(app)) is gone


def test_a_bounce_of_a_message_that_is_not_ours_counts_for_no_one_it_names(app: Duly) -> None:
    ours = message_id(app)
    other = put(app, to="frank@example.org")
    drain(app)
    bounces = Mail.of(app).bounces
    assert bounces.read(dsn(ours, ("frank@example.org", "failed", "5.1.1"))).strangers == 1  # of another job
    foreign = ours.replace("duly-", "duly-0000")  # of another database: what is on record of the recipient decides
    assert bounces.read(dsn(foreign, ("frank@example.org", "failed", "5.1.1"))).suppressed == 1
    assert app.jobs.get(other).status == "succeeded"
    with pytest.raises(InvalidArgument, match="no report"):
        bounces.read(b"Subject: Hello\n\nA letter.\n")


def test_a_complaint_in_a_mailbox_is_a_suppression(app: Duly) -> None:
    raw = f"""From: staff@example.net
Subject: complaint
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report; boundary="b"

--b
Content-Type: message/feedback-report

Feedback-Type: abuse
User-Agent: SomeGenerator/1.0
Original-Rcpt-To: <dora@example.org>

--b
Content-Type: message/rfc822

From: desk@example.org
Message-ID: {message_id(app)}

Hello
--b--
""".encode()
    assert Mail.of(app).bounces.read(raw).suppressed == 1
    assert listed(app) == [("dora@example.org", "complaint:mail")]


def test_each_tenant_that_wrote_to_the_address_is_told_and_no_other(app: Duly) -> None:
    for tenant in ("north", "south"):
        app.enqueue("EMAIL_SEND", {"to": "bob@example.org" if tenant == "north" else "cy@example.org", "subject": "Hi", "text": "x"}, tenant=tenant)  # fmt: skip
    drain(app)
    Mail.of(app).bounces.resend(*signed(app, bounced("bob@example.org")))
    assert sorted(s.tenant for s in Mail.of(app).suppressions.list()) == ["default", "north"]
    assert actions(app, "x") == []


# ---------------------------------------------------------------------- reports as others write them


def report(status: str = "5.1.1", named: str = "Final-Recipient: rfc822; ada@example.org", *, action: str = "failed", kind: str = "message/delivery-status",
    said: str = "", original: str = "Content-Type: message/rfc822\n\nMessage-ID: <duly-ab12-5f-7@example.org>\n\nhello",
) -> bytes:  # fmt: skip
    return f"""From: MAILER-DAEMON@mx.example.org
Subject: =?x-weird?B?zzz?=
Content-Type: multipart/report; report-type=delivery-status; boundary="b"

--b
Content-Type: text/plain; charset=x-nonsense

Sorry
--b
Content-Type: {kind}

Reporting-MTA: dns; mx

{named}
Action: {action}
Status: {status}
{f"Diagnostic-Code: {said}" if said else "X: y"}

--b
{original}
--b--
""".encode()


@pytest.mark.parametrize(
    ("status", "said", "gone"),
    [
        ("5.0.0", "smtp; 554 Message rejected as spam", False),
        ("5.0.0", "smtp; 550 Client host blocked using a list", False),
        ("5.0.0", "smtp; 552 message size exceeds limit", False),
        ("5.0.0", "smtp; 550 No such user", True),
        ("5.0.0", "", True),
        ("5.1.90", "smtp; 550 5.1.90 You have reached the daily limit", False),
        ("5.1.20", "smtp; 550 5.1.20 several addresses in From", False),
        ("5.1.10", "", True),
        ("#5.1.1 (bad mailbox)", "", True),
    ],
)  # fmt: skip
def test_a_status_that_says_nothing_or_blames_the_sender_suppresses_no_one(
    status: str, said: str, gone: bool
) -> None:  # C035
    assert [one.gone for one in read_message(report(status, said=said, action="failed (for good)")).recipients] == [
        gone
    ]


@pytest.mark.parametrize(
    ("kind", "named", "original", "address"),
    [
        ("message/global-delivery-status", "Final-Recipient: utf-8; ad\\x{E1}@example.org", "message/global", "adá@example.org"),
        ("message/global-delivery-status", "Final-Recipient: utf-8; adá@example.org", "message/global-headers", "adá@example.org"),
        ("message/delivery-status", "Original-Recipient: rfc822;\nFinal-Recipient: rfc822; ada@example.org", "message/rfc822", "ada@example.org"),
        ("message/delivery-status", "Original-Recipient: x400; what\nFinal-Recipient: rfc822; ada@example.org", "text/rfc822-headers", "ada@example.org"),
    ],
)  # fmt: skip
def test_a_report_of_an_address_in_another_script_is_read(kind: str, named: str, original: str, address: str) -> None:
    found = read_message(
        report(
            named=named, kind=kind, original=f"Content-Type: {original}\n\nMessage-ID: <duly-ab12-5f-7@example.org>\n"
        )
    )
    assert (found.job, [(one.address, one.gone) for one in found.recipients]) == (7, [(address, True)])


@pytest.mark.parametrize("ident", ["<", "", "<duly-ab12-5f-7", '"', "<@>", "\x80"])
def test_a_report_with_a_broken_message_id_is_read(ident: str) -> None:
    found = read_message(report(original=f"Content-Type: message/rfc822\n\nMessage-ID: {ident}\n\nhello"))
    assert (found.job, [one.address for one in found.recipients]) == (None, ["ada@example.org"])

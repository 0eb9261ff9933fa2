"""What each provider's answers mean: tables of facts (PROVIDERS, sections 3, 4, 5 and the common rule)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from duly.kernel.verdict import Kind
from duly.mail.providers import graph, resend, smtp_replies
from duly.mail.providers.http import Answered
from duly.mail.verdict import Owner

NOW = datetime(2026, 12, 5, 22, 30, tzinfo=UTC)
K = Kind


def named(status: int, name: str = "", message: str = "", **headers: str) -> Answered:
    return Answered(
        status, {k.replace("_", "-"): v for k, v in headers.items()}, {"statusCode": status, "name": name, "message": message}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "kind", "wait"),
    [
        (Answered(200, {}, {"id": "49a3", "name": ""}), K.SENT, None),
        (named(200), K.UNKNOWN, None),
        (named(202), K.UNKNOWN, None),
        (named(408), K.UNKNOWN, None),
        (named(400, "validation_error"), K.PERMANENT, None),
        (named(400, "invalid_idempotency_key"), K.PERMANENT, None),
        (named(400, "validation_error", "API key is invalid"), K.AUTH, None),
        (named(401, "missing_api_key"), K.AUTH, None),
        (named(401, "restricted_api_key"), K.AUTH, None),
        (named(403, "invalid_api_key"), K.AUTH, None),
        (named(403, "validation_error"), K.AUTH, None),
        (named(403, "monthly_quota_exceeded", retry_after="60"), K.QUOTA, 60.0),
        (named(404, "not_found"), K.AUTH, None),
        (named(403), K.TRANSIENT, None),  # a firewall's page
        (named(418, "teapot"), K.TRANSIENT, None),
        (named(413), K.PERMANENT, None),
        (named(422, "invalid_from_address"), K.AUTH, None),
        (named(451, "security_error"), K.AUTH, None),
        (named(499), K.UNKNOWN, None),
        (named(504), K.UNKNOWN, None),
        (named(409, "concurrent_idempotent_requests"), K.BUSY, None),
        (named(409, "concurrent_idempotent_requests", retry_after="9"), K.BUSY, 9.0),
        (named(409, "invalid_idempotent_request"), K.UNKNOWN, None),
        (named(422, "missing_required_field"), K.PERMANENT, None),
        (named(429, "rate_limit_exceeded", retry_after="7"), K.THROTTLED, 7.0),
        (named(429, "rate_limit_exceeded"), K.THROTTLED, None),
        (named(429, "daily_quota_exceeded"), K.QUOTA, datetime(2026, 12, 6, tzinfo=UTC)),
        (named(429, "monthly_quota_exceeded"), K.QUOTA, datetime(2027, 1, 1, tzinfo=UTC)),
        (named(429, "daily_quota_exceeded", retry_after="600"), K.QUOTA, 600.0),
        (named(500, "application_error"), K.UNKNOWN, None),
        (named(503, "internal_server_error", retry_after="30"), K.UNKNOWN, 30.0),
    ],
    ids=lambda x: f"{x.status} {x.body['name']}" if isinstance(x, Answered) else "",
)
def test_what_resend_says(answer: Answered, kind: Kind, wait: float | datetime | None) -> None:
    verdict = resend.classify(answer, NOW)
    assert verdict.kind is kind
    assert (verdict.until if isinstance(wait, datetime) else verdict.after) == wait


def test_a_key_that_was_used_for_something_else_is_told_as_such() -> None:
    assert (
        "a message was sent under this key before"
        in resend.classify(named(409, "invalid_idempotent_request"), NOW).reason
    )


def error(status: int, code: str = "", **headers: str) -> Answered:
    return Answered(status, {k.replace("_", "-"): v for k, v in headers.items()}, {"error": {"code": code}})


@pytest.mark.parametrize(
    ("answer", "kind", "wait"),
    [
        (Answered(202, {}, {}), K.SENT, None),
        (Answered(200, {}, {}), K.UNKNOWN, None),
        (Answered(204, {}, {}), K.UNKNOWN, None),
        (error(400, "ErrorMimeContentInvalidBase64String"), K.PERMANENT, None),
        (error(401, "InvalidAuthenticationToken"), K.AUTH, None),
        (error(403, "ErrorAccessDenied"), K.AUTH, None),
        (error(403, "ErrorSendAsDenied"), K.AUTH, None),
        (error(403, "Authorization_RequestDenied"), K.AUTH, None),
        (error(403, "ApplicationThrottled", retry_after="40"), K.THROTTLED, 40.0),
        (error(403, "ErrorExceededMessageLimit"), K.QUOTA, 3600.0),
        (error(400, "ErrorSubmissionQuotaExceeded"), K.QUOTA, 3600.0),
        (error(507, "ErrorQuotaExceeded"), K.QUOTA, 3600.0),
        (error(403), K.TRANSIENT, None),  # a firewall's page
        (error(400, "ErrorOfTomorrow"), K.TRANSIENT, None),
        (error(404, "ErrorInvalidUser"), K.AUTH, None),
        (error(400, "ErrorMessageSizeExceeded"), K.PERMANENT, None),
        (error(408), K.UNKNOWN, None),
        (error(499), K.UNKNOWN, None),
        (error(503, "ErrorServerBusy"), K.THROTTLED, None),
        (error(503, "serviceNotAvailable"), K.AWAY, None),
        (error(413), K.PERMANENT, None),
        (error(429, "ApplicationThrottled", retry_after="150"), K.THROTTLED, 150.0),
        (error(503, retry_after="12"), K.AWAY, 12.0),
        (error(503, retry_after="Sat, 05 Dec 2026 22:31:00 GMT"), K.AWAY, 60.0),
        (error(503), K.UNKNOWN, None),
        (error(504), K.UNKNOWN, None),  # FAULTS_2 F5
        (error(500), K.UNKNOWN, None),
        (error(502), K.UNKNOWN, None),
    ],
    ids=lambda x: str(x.status) if isinstance(x, Answered) else "",
)
def test_what_graph_says(answer: Answered, kind: Kind, wait: float | None) -> None:
    verdict = graph.classify(answer, NOW)
    assert (verdict.kind, verdict.after) == (kind, wait)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, {"access_token": "t", "expires_in": 3600}, K.SENT),
        (200, {}, K.AWAY),  # a page of a portal that answers everything; nobody's credentials are wrong
        (401, {"error": "invalid_client", "error_codes": [7000215], "error_description": "secret"}, K.AUTH),
        (400, {"error": "unauthorized_client", "error_codes": [700016]}, K.AUTH),
        (429, {}, K.THROTTLED),
        (503, {}, K.AWAY),
        (403, {}, K.AWAY),  # a proxy's page, and not Entra
        (400, {"error": "temporarily_unavailable", "error_codes": [90033]}, K.AWAY),
        (400, {"error": "invalid_request", "error_codes": [90036]}, K.AWAY),
    ],
    ids=str,
)
def test_what_comes_instead_of_a_token(status: int, body: Mapping[str, Any], kind: Kind) -> None:
    verdict = graph.classify_token(Answered(status, {}, body), NOW)
    assert verdict.kind is kind
    assert "secret" not in verdict.reason
    if body.get("error_codes"):
        assert f"AADSTS{body['error_codes'][0]}" in verdict.reason


W = Owner
#: (step, what the server says, whose fault, what follows, seconds to wait). RFC 3463, RFC 5248, and what large providers say.
REPLIES = [
    ("connect", "421 4.3.2 shutting down", W.SERVER, K.AWAY, None),
    ("connect", "554 5.7.1 Service unavailable; Client host blocked using zen.spamhaus.org", W.SERVER, K.AWAY, None),
    ("connect", "554 no", W.SERVER, K.AWAY, None),
    ("connect", "521 no mail here", W.SERVER, K.AUTH, None),
    ("connect", "421 4.4.5 Too many concurrent connections", W.ACCOUNT, K.THROTTLED, 300.0),
    ("ehlo", "550 5.7.1 Helo name invalid", W.ACCOUNT, K.AUTH, None),
    ("ehlo", "421 later", W.SERVER, K.AWAY, None),
    ("tls", "454 4.7.0 TLS not available", W.SERVER, K.AWAY, None),
    ("tls", "501 5.5.4 no", W.SERVER, K.AUTH, None),
    ("ehlo", "-1 Malformed SMTP response line", W.SERVER, K.AWAY, None),
    ("tls", "-1 Malformed SMTP response line", W.SERVER, K.AWAY, None),
    ("login", "334 VXNlcm5hbWU6", W.SERVER, K.AWAY, None),
    ("login", "454 4.7.0 Temporary authentication failure", W.SERVER, K.AWAY, None),
    ("login", "454 4.7.0 Too many login attempts", W.ACCOUNT, K.THROTTLED, 300.0),
    ("login", "432 4.7.12 A password transition is needed", W.ACCOUNT, K.AUTH, None),
    ("login", "535 5.7.8 Bad credentials", W.ACCOUNT, K.AUTH, None),
    ("login", "534 5.7.9 Application-specific password required", W.ACCOUNT, K.AUTH, None),
    ("login", "500 what", W.ACCOUNT, K.AUTH, None),
    ("sender", "530 5.7.57 Client not authenticated", W.ACCOUNT, K.AUTH, None),
    ("sender", "421 4.7.0 closing", W.SERVER, K.AWAY, None),
    ("sender", "452 4.3.1 Insufficient system storage", W.SERVER, K.AWAY, None),
    ("sender", "451 4.7.1 later", W.SERVER, K.TRANSIENT, None),
    ("sender", "550 5.4.5 Daily user sending limit exceeded", W.ACCOUNT, K.QUOTA, 3600.0),
    ("sender", "450 4.7.28 rate", W.ACCOUNT, K.THROTTLED, 300.0),
    ("sender", "550 5.7.60 SMTP; Client does not have permissions to send as this sender", W.SENDER, K.AUTH, None),
    ("sender", "553 5.7.1 Sender address rejected: not owned by user", W.SENDER, K.AUTH, None),
    ("sender", "550 no", W.SENDER, K.AUTH, None),
    ("sender", "554 5.7.1 Client host rejected", W.SENDER, K.AWAY, None),
    ("sender", "550 5.7.1 you are not permitted to send from this address", W.SENDER, K.AWAY, None),
    ("sender", "552 5.3.0 message size exceeds fixed limit", W.MESSAGE, K.PERMANENT, None),
    ("sender", "452 4.3.4 message size exceeds the limit", W.MESSAGE, K.TRANSIENT, None),
    ("sender", "552 5.3.4 Message size exceeds fixed limit", W.MESSAGE, K.PERMANENT, None),
    ("sender", "552 message size exceeds fixed maximum message size", W.MESSAGE, K.PERMANENT, None),
    ("sender", "552 no", W.MESSAGE, K.PERMANENT, None),
    ("sender", "503 5.5.1 bad sequence", W.SERVER, K.TRANSIENT, None),
    ("recipient", "450 4.2.0 Greylisted", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "451 4.7.1 greylisting in action", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "450 4.2.1 receiving mail at a rate that prevents more", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "452 4.2.2 over quota", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "552 5.2.2 mailbox full", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "552 mailbox quota exceeded", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "552 too many recipients", W.RECIPIENT, K.TRANSIENT, None),  # RFC 5321, 4.5.3.1.10
    ("recipient", "452 4.5.3 Too many recipients", W.MESSAGE, K.TRANSIENT, None),
    ("recipient", "454 4.7.1 Relay access denied", W.SERVER, K.TRANSIENT, None),
    ("recipient", "421 4.3.2 closing", W.SERVER, K.AWAY, None),
    (
        "recipient",
        "550 5.1.90 Your message can't be sent, you have reached the daily limit",
        W.ACCOUNT,
        K.QUOTA,
        3600.0,
    ),
    ("recipient", "550 5.1.1 unknown", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "550 no", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "553 no", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "556 5.1.10 null MX", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "554 5.2.1 disabled", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "550 5.4.1 Recipient address rejected: Access denied", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "550 5.1.8 sender's domain is not there", W.SENDER, K.TRANSIENT, None),
    ("recipient", "554 5.7.1 Relay access denied", W.SERVER, K.TRANSIENT, None),
    ("recipient", "550 relaying denied", W.SERVER, K.TRANSIENT, None),
    ("recipient", "550 5.1.1 relaying prohibited", W.SERVER, K.TRANSIENT, None),
    ("recipient", "553 sorry, that domain isn't in my list of allowed rcpthosts (#5.7.1)", W.SERVER, K.TRANSIENT, None),
    ("recipient", "550 5.1.1 User unknown in relay recipient table", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "550 User unknown in relay recipient table", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "550 sorry, no mailbox here by that name (#5.1.1)", W.RECIPIENT, K.PERMANENT, None),
    ("recipient", "550 5.2.0 mailbox over quota", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "552 5.1.1 mailbox is full", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "550 5.2.1 The user receives mail at a rate that prevents more", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "550 5.1.1 too many messages for this user", W.RECIPIENT, K.TRANSIENT, None),
    ("recipient", "550 5.7.1 no", W.SERVER, K.TRANSIENT, None),
    ("recipient", "550 blocked using a list", W.SERVER, K.TRANSIENT, None),
    ("recipient", "554 no", W.SERVER, K.TRANSIENT, None),
    ("recipient", "502 5.5.1 what", W.SERVER, K.TRANSIENT, None),
    ("data", "451 4.3.0 queue", W.MESSAGE, K.TRANSIENT, None),
    ("data", "552 no", W.MESSAGE, K.PERMANENT, None),
    ("data", "554 no", W.SERVER, K.TRANSIENT, None),
    ("text", "451 4.3.0 later", W.MESSAGE, K.TRANSIENT, None),
    ("text", "421 4.3.2 closing", W.SERVER, K.TRANSIENT, None),
    ("text", "452 4.3.1 full", W.MESSAGE, K.TRANSIENT, None),
    ("text", "552 5.2.2 over quota", W.RECIPIENT, K.TRANSIENT, None),
    ("text", "552 5.2.3 too long", W.MESSAGE, K.PERMANENT, None),
    # the words of a limit, and none of the account: one large message held the queue for an hour
    ("text", "552 5.3.0 Message size exceeds limit", W.MESSAGE, K.PERMANENT, None),
    ("text", "550 5.7.1 Message exceeds size limit", W.MESSAGE, K.PERMANENT, None),
    ("text", "554 5.6.0 Message header limit exceeded", W.MESSAGE, K.PERMANENT, None),
    ("text", "452 4.3.4 message size exceeds limit", W.MESSAGE, K.TRANSIENT, None),
    ("text", "554 5.6.0 broken MIME", W.MESSAGE, K.PERMANENT, None),
    ("text", "554 5.7.1 spam", W.MESSAGE, K.PERMANENT, None),
    ("text", "554 rejected as spam", W.MESSAGE, K.PERMANENT, None),
    ("text", "550 5.7.26 unauthenticated mail of the domain", W.SENDER, K.TRANSIENT, None),
    ("text", "550 5.7.1 our IP's reputation is low", W.SERVER, K.TRANSIENT, None),
    ("text", "550 5.4.5 Daily limit", W.ACCOUNT, K.QUOTA, 3600.0),
    ("text", "550 5.1.1 unknown", W.RECIPIENT, K.PERMANENT, None),
    ("text", "554 no", W.SERVER, K.TRANSIENT, None),
    ("text", "550 5.9.9 hourly limit exceeded", W.ACCOUNT, K.QUOTA, 3600.0),
    ("text", "354 go on", W.SERVER, K.UNKNOWN, None),
]


@pytest.mark.parametrize(("step", "said", "owner", "kind", "wait"), REPLIES, ids=[f"{r[0]} {r[1]}" for r in REPLIES])
def test_whose_fault_a_reply_of_a_mail_server_is(
    step: smtp_replies.Step, said: str, owner: Owner, kind: Kind, wait: float | None
) -> None:
    code, _, text = said.partition(" ")
    verdict = smtp_replies.classify(int(code), text, step)
    assert (verdict.owner, verdict.kind, verdict.after) == (owner, kind, wait)


def test_each_row_of_the_table_of_replies_is_shown_by_an_example() -> None:
    used = set()
    for step, said, *_ in REPLIES:
        code, _, text = said.partition(" ")
        used.add(smtp_replies.find(int(code), smtp_replies.enhanced_in(text), text, step))
    assert [(row.steps, row.codes, row.enhanced, row.meaning) for row in smtp_replies.ROWS if row not in used] == []


def test_a_reply_is_told_without_the_addresses_in_it() -> None:
    verdict = smtp_replies.classify(550, "5.1.1 <ada@example.org> no", "recipient")
    assert verdict.reason == "the mail server answered 550 5.1.1 <…@…> no"


@pytest.mark.parametrize("step", ["sender", "recipient", "data", "text"])
def test_a_reply_that_no_row_knows_ends_no_message(step: smtp_replies.Step) -> None:
    for code in (*range(400, 600), 600, 999):
        enhanced = f"{code // 100}.9.9"
        verdict = smtp_replies.classify(code, f"{enhanced} what", step)
        if smtp_replies.find(code, enhanced if code < 600 else "", "what", step) is None:
            assert verdict.kind in (K.TRANSIENT, K.UNKNOWN)


@pytest.mark.parametrize("status", [*range(300, 600)])
def test_a_status_of_graph_or_resend_without_a_word_ends_no_message_but_413(status: int) -> None:
    allowed = {K.PERMANENT} if status == 413 else {K.TRANSIENT, K.UNKNOWN, K.AUTH, K.THROTTLED, K.QUOTA, K.AWAY}
    assert graph.classify(Answered(status, {}, {}), NOW).kind in allowed
    assert resend.classify(Answered(status, {}, {}), NOW).kind in allowed

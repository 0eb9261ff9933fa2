"""What each provider's answers mean: tables of facts (PROVIDERS, sections 3, 4, 5 and the common rule)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from duly.kernel.verdict import Kind, Verdict
from duly.mail.providers import graph, resend, smtp
from duly.mail.providers.http import Answered

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
        (named(403, "validation_error"), K.PERMANENT, None),
        (named(404, "not_found"), K.PERMANENT, None),
        (named(409, "concurrent_idempotent_requests"), K.BUSY, None),
        (named(409, "concurrent_idempotent_requests", retry_after="9"), K.BUSY, 9.0),
        (named(409, "invalid_idempotent_request"), K.UNKNOWN, None),
        (named(422, "missing_required_field"), K.PERMANENT, None),
        (named(429, "rate_limit_exceeded", retry_after="7"), K.THROTTLED, 7.0),
        (named(429, "rate_limit_exceeded"), K.THROTTLED, 1.0),
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
        (error(403, "ErrorAccessDenied"), K.PERMANENT, None),
        (error(404, "ErrorInvalidUser"), K.PERMANENT, None),
        (error(413), K.PERMANENT, None),
        (error(429, "ApplicationThrottled", retry_after="150"), K.THROTTLED, 150.0),
        (error(503, retry_after="12"), K.TRANSIENT, 12.0),
        (error(503, retry_after="Sat, 05 Dec 2026 22:31:00 GMT"), K.TRANSIENT, 60.0),
        (error(504), K.TRANSIENT, None),
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
        (200, {}, K.AUTH),
        (401, {"error": "invalid_client", "error_codes": [7000215], "error_description": "secret"}, K.AUTH),
        (400, {"error": "unauthorized_client", "error_codes": [700016]}, K.AUTH),
        (429, {}, K.THROTTLED),
        (503, {}, K.TRANSIENT),
    ],
    ids=str,
)
def test_what_comes_instead_of_a_token(status: int, body: Mapping[str, Any], kind: Kind) -> None:
    verdict = graph.classify_token(Answered(status, {}, body), NOW)
    assert verdict.kind is kind
    assert "secret" not in verdict.reason
    if body.get("error_codes"):
        assert f"AADSTS{body['error_codes'][0]}" in verdict.reason


@pytest.mark.parametrize(
    ("code", "step", "kind"),
    [
        (421, "connect", K.TRANSIENT),
        (554, "connect", K.AUTH),
        (454, "login", K.TRANSIENT),
        (535, "login", K.AUTH),
        (530, "sender", K.AUTH),
        (550, "sender", K.PERMANENT),
        (451, "sender", K.TRANSIENT),
        (450, "recipient", K.TRANSIENT),
        (452, "recipient", K.TRANSIENT),
        (550, "recipient", K.PERMANENT),
        (553, "recipient", K.PERMANENT),
        (451, "data", K.TRANSIENT),
        (552, "data", K.PERMANENT),
        (554, "data", K.PERMANENT),
        (451, "text", K.TRANSIENT),
        (421, "text", K.TRANSIENT),
        (554, "text", K.PERMANENT),
    ],
)
def test_what_a_mail_server_says(code: int, step: smtp.Step, kind: Kind) -> None:
    assert smtp.classify(code, "<ada@example.org> no", step) == Verdict(
        kind, f"the mail server answered {code} <…@…> no"
    )

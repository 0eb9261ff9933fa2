"""Mail over REST: suppressions, bounces, and a webhook that brings a signature instead of a token (C035)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from duly import Duly
from duly.mail import Mail
from duly.testing import ManualClock, drain
from mail.test_bounces import SECRET, bounced, dsn, listed, signed
from web.hands import problem

PATH = "/api/v1/mail"
Client = Callable[..., TestClient]


@pytest.fixture
def app(sqlite_url: str, clock: ManualClock, tmp_path: Path) -> Iterator[Duly]:
    """Bob has a letter, of tenant acme."""
    made = Duly(
        sqlite_url, clock=clock, mail_from="desk@example.org", mail_folder=str(tmp_path), resend_webhook_secret=SECRET
    )  # fmt: skip
    Mail(made)
    made.enqueue("EMAIL_SEND", {"to": "bob@example.org", "subject": "Hi", "text": "x"}, tenant="acme")
    drain(made)
    yield made
    made.close()


def test_a_signed_webhook_needs_no_token_and_an_unsigned_one_is_refused(app: Duly, stranger: TestClient) -> None:
    headers, body = signed(app, bounced("bob@example.org"))
    for some, content in (({}, body), (headers, body + b" ")):
        assert "signature" in problem(stranger.post(f"{PATH}/webhooks/resend", content=content, headers=some), 401)["detail"]  # fmt: skip
    assert listed(app) == []
    for _ in range(2):
        answer = stranger.post(f"{PATH}/webhooks/resend", content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"received": True})
    assert listed(app) == [("bob@example.org", "bounce:resend")]
    answer = stranger.post(f"{PATH}/webhooks/resend", content=(made := signed(app, {"type": "x"}, "msg_9"))[1], headers=made[0])  # fmt: skip
    problem(answer, 422)


def test_a_message_that_came_back_is_taken_by_operators_for_their_own_list(app: Duly, client: Client) -> None:
    raw = dsn(str(app.jobs.get(1).output["message_id"]), ("bob@example.org", "failed", "5.1.1"))
    assert client("viewer").post(f"{PATH}/bounces", content=raw).status_code == 403
    other = client("operator", tenant="other").post(f"{PATH}/bounces", content=raw + b"\n")
    assert other.json()["strangers"] == 1
    mine = client("operator", tenant="acme")
    assert mine.post(f"{PATH}/bounces", content=raw).json()["suppressed"] == 1
    assert mine.post(f"{PATH}/bounces", content=raw).json()["repeated"] is True
    problem(mine.post(f"{PATH}/bounces", content=b"Subject: Hi\n\nHello"), 422)


def test_the_list_is_kept_over_rest_by_the_tenant_it_belongs_to(app: Duly, client: Client) -> None:
    mine, other = client("operator", tenant="acme"), client("operator", tenant="other")
    given = {"address": "Cy@example.org", "reason": "asked"}
    assert [mine.post(f"{PATH}/suppressions", json=given).json() for _ in range(2)] == [{"changed": True}, {"changed": False}]  # fmt: skip
    (row,) = mine.get(f"{PATH}/suppressions").json()["suppressions"]
    assert (row["address"], row["reason"], row["source"]) == ("cy@example.org", "asked", None)
    assert other.get(f"{PATH}/suppressions").json() == {"suppressions": []}
    assert other.post(f"{PATH}/suppressions/remove", json=given).json() == {"changed": False}
    assert mine.post(f"{PATH}/suppressions/remove", json=given).json() == {"changed": True}
    problem(mine.post(f"{PATH}/suppressions", json={"address": "no address"}), 422)
    assert "cy@" not in json.dumps([dict(r._mapping) for r in app.db.read(lambda c: c.exec_driver_sql("SELECT entity_id, meta FROM audit_log").all())])  # fmt: skip


def test_a_message_to_no_one_is_refused_before_its_job_is_made(app: Duly, client: Client) -> None:
    # FAULTS_2 F18
    given = {"task": "EMAIL_SEND", "input": {"subject": "Hi", "text": "x"}}
    assert "no recipient" in problem(client("operator").post("/api/v1/jobs", json=given), 422)["detail"]
    given["input"]["bcc"] = "bob@example.org"  # type: ignore[index]
    assert client("operator").post("/api/v1/jobs", json=given).status_code == 201

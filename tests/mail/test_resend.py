"""Through Resend (PROVIDERS section 4): one message per key, 409 and 429 told apart, quotas, lost answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from duly import Duly, Status
from duly.mail import Mail, Undelivered
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, Ear, actions, message_of, put, run, states
from mail.servers import LOST, Resend

Make = Callable[..., Duly]


@pytest.fixture
def app(make: Make, resend: Resend) -> Duly:
    return make(mail_provider="resend", resend_api_key="re_good", resend_url=resend.url)


def said(status: int, name: str, **headers: str) -> Any:
    return (
        status,
        {k.replace("_", "-"): v for k, v in headers.items()},
        {"statusCode": status, "name": name, "message": "x"},
    )


def test_a_message_has_the_job_for_its_key(app: Duly, resend: Resend) -> None:
    # R003-7, T003-h
    job = run(app, to=["Ada <ada@example.org>"], bcc="eve@example.org", from_="Café <shop@example.com>", html="<p>")
    assert (job.status, job.remote_id, actions(app, job.id)) == (Status.SUCCEEDED, "resend-1", ["EMAIL_SENT"])
    (asked,) = resend.asked
    assert asked.headers["idempotency-key"].startswith("duly-")
    assert asked.headers["idempotency-key"].endswith(f"-{job.id}")
    assert asked.body == {
        "from": '"Café" <shop@example.com>', "subject": "Hi", "to": ["Ada <ada@example.org>"], "bcc": ["eve@example.org"],
        "text": "Hello", "html": "<p>",
    }  # fmt: skip


def test_keys_of_one_database_have_one_beginning_and_differ(app: Duly, resend: Resend) -> None:
    run(app)
    run(app)
    first, second = (a.headers["idempotency-key"].split("-") for a in resend.asked)
    assert first[:2] == second[:2]
    assert first != second


def test_an_answer_that_is_lost_is_asked_for_again_under_the_same_key(
    app: Duly, resend: Resend, clock: ManualClock
) -> None:
    # T003-h
    resend.answers = [LOST]
    job = run(app)
    assert (job.status, states(app, job.id), message_of(job)) == (
        Status.QUEUED, ["unknown"], "the message was handed over and no answer came: RemoteProtocolError"
    )  # fmt: skip
    Mail.of(app).suppressions.add("ada@example.org")  # would change the body of a message that is out already
    clock.advance(60)
    drain(app)
    done = app.jobs.get(job.id)
    assert (done.status, done.remote_id, len(resend.taken)) == (Status.SUCCEEDED, "resend-1", 1)
    assert len({a.headers["idempotency-key"] for a in resend.asked}) == 1


def test_a_key_is_not_trusted_beyond_a_day(app: Duly, resend: Resend, clock: ManualClock) -> None:
    # PROVIDERS: retries of one job later than 24 h lose the protection
    resend.answers = [LOST]
    job = run(app)
    clock.advance(24 * 3600)
    drain(app)
    done = app.jobs.get(job.id)
    assert (done.status, len(resend.taken)) == (Status.FAILED, 1)
    assert "the outcome is unknown" in message_of(done)


def test_a_person_does_not_begin_the_day_of_a_key_anew(app: Duly, resend: Resend, clock: ManualClock) -> None:
    # T003-h: Resend counts from the first request, whoever wanted the later ones
    resend.answers = [LOST] * 4
    job = run(app)
    for _ in range(3):
        clock.advance(600)
        drain(app)
    assert app.jobs.get(job.id).status is Status.FAILED
    clock.advance(22.5 * 3600)
    resend.answers = [LOST]
    Mail.of(app).resend(job.id)
    drain(app)
    assert (app.jobs.get(job.id).status, len(resend.taken)) == (Status.QUEUED, 1)
    clock.advance(2 * 3600)
    resend.keys.clear()
    drain(app)
    assert (app.jobs.get(job.id).status, len(resend.taken)) == (Status.FAILED, 1)


def test_answers_that_are_lost_until_the_end_are_told_as_what_they_are(
    app: Duly, resend: Resend, clock: ManualClock
) -> None:
    # T003-h
    resend.answers = [LOST] * 4
    ear = Ear(app)
    job = run(app)
    assert ear.named("mail_unknown") == []  # it is asked for again, under its key
    for _ in range(3):
        clock.advance(100)
        drain(app)
    job = app.jobs.get(job.id)
    assert (job.status, job.attempts, actions(app, job.id)) == (Status.FAILED, 4, ["JOB_EXHAUSTED_RETRIES"])
    assert message_of(job).startswith("the outcome is unknown for 1 of 1 recipients")
    assert f"`duly mail resend {job.id}`" in message_of(job)
    assert [e["unknown"] for e in ear.named("mail_unknown")] == [1]


def test_that_no_one_was_reached_does_not_clear_that_they_may_have_it(
    make: Make, app: Duly, resend: Resend, clock: ManualClock
) -> None:
    # T003-h
    resend.answers = [LOST]
    job = run(app)
    clock.advance(100)
    drain(make(mail_provider="resend", resend_api_key="re_good", resend_url="http://127.0.0.1:9"))
    found = app.jobs.get(job.id)
    assert (found.status, found.attempts, states(app, job.id)) == (Status.QUEUED, 1, ["unknown"])
    clock.advance(100)
    drain(app)
    assert (app.jobs.get(job.id).status, len(resend.taken)) == (Status.SUCCEEDED, 1)


def test_that_it_was_not_taken_now_does_not_clear_what_may_have_happened_before(
    app: Duly, resend: Resend, clock: ManualClock
) -> None:
    # T003-h
    resend.answers = [LOST, said(503, "internal_server_error")]
    job = run(app)
    clock.advance(60)
    drain(app)
    assert states(app, job.id) == ["unknown"]
    clock.advance(24 * 3600)
    drain(app)
    assert (app.jobs.get(job.id).status, len(resend.sent)) == (Status.FAILED, 2)


@pytest.mark.parametrize("status", [500, 502, 504, 408, 200])
@ON_ONE
def test_a_key_counts_from_the_first_time_whatever_was_answered_then(
    app: Duly, resend: Resend, clock: ManualClock, status: int
) -> None:
    # T003-h: it may have been sent, and after a day Resend does not know the key any more
    real = resend.real
    resend.real = lambda asked: (real(asked), (status, {}, {"name": "internal_server_error"}))[1]  # type: ignore[method-assign]
    job = run(app)
    assert (job.status, states(app, job.id), len(resend.taken)) == (Status.QUEUED, ["unknown"], 1)
    resend.real = real  # type: ignore[method-assign]
    resend.keys.clear()
    clock.advance(25 * 3600)
    drain(app)
    done = app.jobs.get(job.id)
    assert (done.status, states(app, job.id), len(resend.taken)) == (Status.FAILED, ["unknown"], 1)
    assert "the outcome is unknown" in message_of(done)


def test_a_suppression_after_a_failure_of_resend_does_not_change_what_is_asked_again(
    app: Duly, resend: Resend, clock: ManualClock
) -> None:
    # T003-h: a message that is out is not recorded as refused
    real = resend.real
    resend.real = lambda asked: (real(asked), (500, {}, {"name": "internal_server_error"}))[1]  # type: ignore[method-assign]
    job = run(app, to=["ada@example.org", "bob@example.org"])
    resend.real = real  # type: ignore[method-assign]
    Mail.of(app).suppressions.add("ada@example.org")
    clock.advance(60)
    drain(app)
    assert (app.jobs.get(job.id).status, states(app, job.id), len(resend.taken)) == (
        Status.SUCCEEDED,
        ["accepted"] * 2,
        1,
    )


def test_another_request_with_the_same_key_is_waited_for_and_costs_no_attempt(
    app: Duly, resend: Resend, clock: ManualClock
) -> None:
    # T003-b: attempts are for failures; PROVIDERS 4
    resend.answers = [LOST, *[said(409, "concurrent_idempotent_requests", retry_after="1")] * 6]
    job = run(app)
    clock.advance(60)
    for _ in range(6):
        drain(app)
        found = app.jobs.get(job.id)
        assert (found.status, found.attempts, states(app, job.id)) == (Status.QUEUED, 1, ["unknown"])
        assert (found.due_at - clock.now()).total_seconds() == 5  # type: ignore[operator]  # mail_timeout
        clock.advance(5)
    drain(app)
    assert (app.jobs.get(job.id).status, len(resend.taken)) == (Status.SUCCEEDED, 1)


def test_a_key_that_was_used_for_another_message_fails_for_good(app: Duly, resend: Resend) -> None:
    # T003-d
    resend.answers = [said(409, "invalid_idempotent_request")]
    job = run(app)
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert "a message was sent under this key before, and this one differs" in message_of(job)
    assert states(app, job.id) == ["unknown"]  # that other message may have reached them


def test_a_rate_limit_costs_no_attempt(app: Duly, resend: Resend, clock: ManualClock) -> None:
    resend.answers = [said(429, "rate_limit_exceeded", retry_after="7")] * 5
    ear = Ear(app)
    job = run(app)
    for _ in range(5):
        found = app.jobs.get(job.id)
        assert (found.attempts, (found.due_at - clock.now()).total_seconds()) == (0, 7)  # type: ignore[operator]
        clock.advance(7)
        drain(app)
    assert app.jobs.get(job.id).status is Status.SUCCEEDED
    assert len(ear.named("mail_throttled")) == 5


@pytest.mark.parametrize(
    ("name", "until"),
    [
        ("daily_quota_exceeded", datetime(2026, 6, 2, tzinfo=UTC)),
        ("monthly_quota_exceeded", datetime(2026, 7, 1, tzinfo=UTC)),
    ],
)
def test_a_quota_is_waited_for_until_it_begins_anew(
    app: Duly, resend: Resend, clock: ManualClock, name: str, until: datetime
) -> None:
    resend.answers = [said(429, name)]
    job = run(app)
    assert (job.status, job.attempts, job.due_at) == (Status.QUEUED, 0, until)
    clock.set(until)
    drain(app)
    assert app.jobs.get(job.id).status is Status.SUCCEEDED


def test_a_key_that_is_wrong_pauses_the_queue(make: Make, resend: Resend) -> None:
    app = make(mail_provider="resend", resend_api_key="re_bad", resend_url=resend.url)
    jobs = [put(app) for _ in range(3)]
    drain(app)
    assert [app.jobs.get(n).attempts for n in jobs] == [0, 0, 0]
    assert app.queues.get("mail").paused_reason == "mail: Resend answered 401 validation_error"
    assert len(resend.sent) == 1


@pytest.mark.parametrize(("status", "name"), [(400, "validation_error"), (422, "missing_required_field")])
@ON_ONE
def test_what_resend_refuses_fails_at_once(app: Duly, resend: Resend, status: int, name: str) -> None:
    # T003-d
    resend.answers = [(status, {}, {"name": name, "message": "The `ada@example.org` field is bad"})]
    job = run(app)
    assert (job.status, job.attempts) == (Status.FAILED, 1)
    assert message_of(job) == f"Resend answered {status} {name}: The …@… field is bad"


def test_a_look_says_whether_the_key_is_good(app: Duly, make: Make, resend: Resend) -> None:
    assert asyncio.run(Mail.of(app).check()) == "the key is good, for sending only"
    bad = make(mail_provider="resend", resend_api_key="re_bad", resend_url=resend.url)
    with pytest.raises(Undelivered):
        asyncio.run(Mail.of(bad).check())
    assert resend.sent == []


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_without_end(make: Make) -> None:
    # T003-h: one deadline for the whole exchange; the message was handed over, so it is asked for again by its key
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def drip() -> None:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):
                line.recv(65_536)
                line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not over.wait(0.02):
                    line.sendall(b" ")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        job = run(make(mail_provider="resend", resend_api_key="re_good", resend_url=url, mail_timeout=0.3))
        over.set()
        thread.join(10)
    assert (job.status, message_of(job)) == (
        Status.QUEUED, "the message was handed over and no answer came: TimeoutError"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resend_url": "https://127.0.0.1:99999"}, "resend_url names no host and port that can be reached"),
        ({"resend_url": "https://"}, "resend_url names no host and port that can be reached"),
        ({"resend_url": "https://127.0.0.1:port"}, "resend_url is not a URL"),
        ({"resend_api_key": "re_gööd"}, "resend_api_key holds what no key holds"),
        ({"resend_api_key": "re\ngood"}, "resend_api_key holds what no key holds"),
    ],
    ids=str,
)
@ON_ONE
def test_a_setting_that_cannot_be_used_pauses_the_queue(
    make: Make, resend: Resend, change: dict[str, str], said: str
) -> None:
    app = make(**{"mail_provider": "resend", "resend_api_key": "re_good", "resend_url": resend.url} | change)
    job = run(app)
    assert (job.status, job.attempts, states(app, job.id)) == (Status.QUEUED, 0, [])
    assert app.queues.get("mail").paused_reason == f"mail: {said}"
    assert resend.asked == []

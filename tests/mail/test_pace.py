"""What a provider asks everybody to wait is asked for once, and obeyed by the queue (T003-b; PROVIDERS sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import Duly, Status
from duly.kernel.hold import SHORTEST, Hold, Step, step
from duly.kernel.retry_after import LONGEST, bounded
from duly.kernel.verdict import Kind, Verdict
from duly.mail.plan import held, put_off
from duly.testing import ManualClock, drain
from mail.hands import ON_ONE, Ear, put, run
from mail.servers import Graph, Resend

Make = Callable[..., Duly]
NOW = datetime(2026, 6, 1, 10, tzinfo=UTC)


@pytest.fixture
def app(make: Make, resend: Resend) -> Duly:
    return make(mail_provider="resend", resend_api_key="re_good", resend_url=resend.url)


def told(status: int, name: str, **headers: str) -> Any:
    return status, {k.replace("_", "-"): v for k, v in headers.items()}, {"name": name, "message": "x"}


def waits(app: Duly, jobs: list[int]) -> list[float]:
    now = app.engine.clock.now()
    return [(app.jobs.get(n).due_at - now).total_seconds() for n in jobs]  # type: ignore[operator]


def test_one_letter_is_told_to_wait_and_those_behind_it_do_not_ask(
    app: Duly, resend: Resend, clock: ManualClock
) -> None:
    # PROVIDERS 4: 429 is obeyed by everybody who sends
    jobs = [put(app) for _ in range(12)]
    resend.answers = [told(429, "rate_limit_exceeded", retry_after="100")] * 30
    app.worker({"mail": 1}).run(until_idle=True)
    assert len(resend.sent) == 1
    found = waits(app, jobs)
    assert {app.jobs.get(n).attempts for n in jobs} == {0}
    assert found[0] == 100
    assert all(100 <= w <= 110 for w in found[1:])
    assert len(set(found[1:])) > 8  # and they do not come back in the same instant
    resend.answers = []
    clock.advance(110)
    drain(app)
    assert {app.jobs.get(n).status for n in jobs} == {Status.SUCCEEDED}


def test_a_quota_that_is_used_up_is_found_out_once(app: Duly, resend: Resend, clock: ManualClock) -> None:
    resend.answers = [told(429, "daily_quota_exceeded")] * 30
    ear = Ear(app)
    jobs = [put(app) for _ in range(12)]
    app.worker({"mail": 1}).run(until_idle=True)
    assert len(resend.sent) == 1
    until = datetime(2026, 6, 2, tzinfo=UTC)
    left = (until - clock.now()).total_seconds()
    queue = app.queues.get("mail")  # the others are not even claimed
    assert (queue.held_until, queue.held_reason) == (until, "mail: Resend answered 429 daily_quota_exceeded")
    assert {app.jobs.get(n).attempts for n in jobs} == {0}
    (event,) = ear.named("mail_throttled")
    assert (event["quota"], event["wait"], event["asked"]) == (True, left, None)


@pytest.mark.parametrize("through", ["graph", "graph_token", "resend"])
@ON_ONE
def test_who_names_no_time_is_not_asked_every_second(
    make: Make, graph: Graph, resend: Resend, clock: ManualClock, through: str
) -> None:
    # issue 16, F: 429 without Retry-After, or with 0
    if through == "resend":
        app = make(mail_provider="resend", resend_api_key="re_good", resend_url=resend.url)
    else:
        app = make(
            mail_provider="graph", graph_tenant="t", graph_client_id="i", graph_client_secret="s",
            graph_url=f"{graph.url}/v1.0", graph_token_url=graph.url,
        )  # fmt: skip
    busy: Any = (429, {"Retry-After": "0"}, {"name": "rate_limit_exceeded", "error": {"code": "TooManyRequests"}})
    resend.answers, graph.answers = [busy] * 99, [busy] * 99
    if through == "graph_token":
        graph.refuses = 429, {}, {"error": "busy"}
    job, ear = put(app), Ear(app)
    for _ in range(10):
        drain(app)
        clock.advance(waits(app, [job])[0])
    assert [e["wait"] for e in ear.named("mail_throttled")] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert app.jobs.get(job).attempts == 0
    assert [s.subject for s in app.alerts.look().readings["mail_held"].samples] == ["mail"]
    resend.answers, graph.answers, graph.refuses = [], [], None
    drain(app)
    assert app.jobs.get(job).status is Status.SUCCEEDED


def test_another_queue_asks_for_itself(app: Duly, resend: Resend) -> None:
    resend.answers = [told(429, "rate_limit_exceeded", retry_after="100")]
    run(app)
    other = app.enqueue(
        "EMAIL_SEND", {"to": "ada@example.org", "subject": "Hi", "text": "Hello"}, queue="news"
    )  # fmt: skip
    app.worker({"news": 1}).run(until_idle=True)
    assert app.jobs.get(other.job.id).status is Status.SUCCEEDED


@pytest.mark.parametrize("asked", ["0", "Mon, 01 Jun 2026 09:00:00 GMT", "3"])
@ON_ONE
def test_a_service_that_is_away_is_not_asked_sooner_than_the_job_would(make: Make, graph: Graph, asked: str) -> None:
    # R003-5: attempts are not burnt at once
    app = make(
        mail_provider="graph", graph_tenant="t", graph_client_id="i", graph_client_secret="s",
        graph_url=f"{graph.url}/v1.0", graph_token_url=graph.url,
    )  # fmt: skip
    graph.answers = [(503, {"Retry-After": asked}, None)] * 9
    job = run(app)
    assert (job.attempts, waits(app, [job.id])) == (0, [15.0])


@pytest.mark.parametrize(
    "asked", ["999999999", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -2359"]
)
@pytest.mark.parametrize("status", [429, 503])
@ON_ONE
def test_nobody_is_waited_for_longer_than_a_day(app: Duly, resend: Resend, status: int, asked: str) -> None:
    resend.answers = [told(status, "rate_limit_exceeded", retry_after=asked)]
    ear = Ear(app)
    job = run(app)
    assert (job.status, waits(app, [job.id])) == (Status.QUEUED, [86_400.0])
    if status == 429:
        (event,) = ear.named("mail_throttled")
        assert event["wait"] == 86_400.0 < event["asked"]


def test_a_date_that_no_clock_has_is_no_wait(app: Duly, resend: Resend) -> None:
    resend.answers = [told(429, "x", retry_after="Fri, 31 Dec 99999999999999999999 23:59:59 GMT")]
    job = run(app)
    assert (job.status, job.attempts, waits(app, [job.id])) == (Status.QUEUED, 0, [SHORTEST])


seconds = st.floats(0, 1e12)


@given(seconds | st.none(), st.floats(0, 3600))
def test_a_wait_is_neither_shorter_than_the_jobs_own_nor_longer_than_a_day(after: float | None, own: float) -> None:
    assert own <= bounded(after, own) <= LONGEST


@given(seconds | st.none(), st.datetimes(NOW.replace(tzinfo=None), datetime(2030, 1, 1)) | st.none())
def test_who_is_throttled_always_waits(after: float | None, until: datetime | None) -> None:
    verdict = Verdict(Kind.THROTTLED, "x", after, until.replace(tzinfo=UTC) if until else None)
    assert held(None, verdict, "mail", NOW).until >= NOW + timedelta(seconds=SHORTEST)


@given(st.integers(-100, 10**6), st.floats(0, 1, exclude_max=True))
def test_who_is_put_off_comes_back_after_the_hold_and_soon_after_it(left: int, u: float) -> None:
    hold = Hold(NOW, NOW + timedelta(seconds=left))
    back = put_off(hold, NOW, u)
    assert (back is None) == (left <= 0)
    if back is not None:
        assert hold.until <= back <= hold.until + timedelta(seconds=60)


def test_of_two_waits_the_longer_counts() -> None:
    before = Hold(NOW, NOW + timedelta(seconds=99), "b")
    assert held(before, Verdict(Kind.THROTTLED, "a", 5.0), "mail", NOW).until == before.until
    assert held(None, Verdict(Kind.THROTTLED, "a", 5.0), "mail", NOW).until == NOW + timedelta(seconds=5)


def test_while_the_other_side_is_away_the_waits_grow_to_five_minutes_and_one_tries() -> None:
    # R003, FAULTS_2 F16
    hold, now, waits = None, NOW, list[float]()
    for _ in range(7):
        hold = held(hold, Verdict(Kind.AWAY, "gone"), "mail", now)
        again = held(hold, Verdict(Kind.AWAY, "gone"), "mail", now)  # who was on the way meanwhile makes nothing longer
        assert again == hold
        waits.append((hold.until - now).total_seconds())
        assert (step(hold, now), step(hold, now, opened=True)) == (Step.WAIT, Step.PROBE)  # a person has released it
        now = hold.until
        assert step(hold, now) is Step.PROBE
        assert step(replace(hold, probing_until=now + timedelta(seconds=9)), now) is Step.WAIT
    assert hold is not None
    assert waits == [15, 30, 60, 120, 240, 300, 300]
    assert (hold.since, hold.tries, hold.wide) == (NOW, 7, True)
    assert not held(None, Verdict(Kind.AWAY, "gone"), "default", NOW).wide  # others' jobs are there

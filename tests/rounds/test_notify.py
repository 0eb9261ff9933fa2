"""Telling members: one job per member and channel, in the transaction of the opening, once; and no address in any log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from duly import Duly, Job
from duly.rounds import Round, Rounds
from duly.testing import ManualClock, assert_enqueued, drain, enqueued
from outbox.endpoint import Endpoint, endpoint
from rounds.hands import Ear, ask, change, ready, utc

CHANNELS = ["email", "log", "webhook"]


@pytest.fixture
def there() -> Iterator[Endpoint]:
    with endpoint() as found:
        yield found


def open_one(rounds: Rounds, clock: ManualClock) -> Round:
    rounds.plan()
    clock.set(utc("2026-06-01 18:00"))
    rounds.open()
    return rounds.list()[0]


def test_an_opening_makes_one_job_per_member_and_channel(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    # R000-13
    group = ready(rounds, "a", tenant="acme")
    addresses = {"email": "x@example.org", "webhook": "https://example.org/x"}
    for name, channels in (("all", CHANNELS), ("one", ["log"]), ("none", []), ("gone", CHANNELS)):
        rounds.members.add(group.id, name, channels=channels, tenant="acme", **addresses)  # type: ignore[arg-type]
    rounds.members.set(group.id, "gone", is_active=False, tenant="acme")
    opened = open_one(rounds, clock)
    members = {m.name: m.id for m in rounds.members.all(group.id, tenant="acme")}
    made = enqueued(app)
    assert {(j.task, j.key) for j in made} == {
        ("ROUNDS_NOTIFY_EMAIL", f"round:{opened.id}:{members['all']}:email"),
        ("ROUNDS_NOTIFY_WEBHOOK", f"round:{opened.id}:{members['all']}:webhook"),
        ("ROUNDS_NOTIFY_LOG", f"round:{opened.id}:{members['all']}:log"),
        ("ROUNDS_NOTIFY_LOG", f"round:{opened.id}:{members['one']}:log"),
    }
    assert {(j.queue, j.tenant) for j in made} == {("rounds-notify", "acme")}
    assert all(set(j.input) == {"round", "member"} for j in made)


def test_a_group_that_does_not_notify_makes_no_jobs(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    # R000-13
    ready(rounds, "a", members=3, notifications=False)
    open_one(rounds, clock)
    assert enqueued(app) == []


def test_many_members_are_told_in_portions_and_all_in_one_transaction(
    rounds: Rounds, app: Duly, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.rounds import store

    monkeypatch.setattr(store, "TELL", 3)
    for name in ("a", "b"):
        ready(rounds, name, members=7)
    open_one(rounds, clock)
    assert len(enqueued(app)) == 14


def test_a_round_that_is_opened_again_by_force_tells_nobody_twice(
    rounds: Rounds, app: Duly, clock: ManualClock
) -> None:
    # R000-13: the key holds even where the state was put back by hand
    ready(rounds, "a", members=3)
    opened = open_one(rounds, clock)
    drain(app)
    change(
        app,
        "UPDATE rounds SET status = 'scheduled', due_at = planned_at, open_at = NULL, close_at = NULL, opened_at = NULL WHERE id = :r",
        r=opened.id,
    )
    assert rounds.open().done == 1
    assert drain(app).succeeded == 0
    assert len(enqueued(app)) == 3


def test_an_email_goes_through_the_task_that_sends_email(rounds: Rounds, app: Duly, clock: ManualClock) -> None:
    sent: list[dict[str, Any]] = []

    @app.task("EMAIL_SEND", queue="mail")
    def send(job: Job, to: str, subject: str, text: str) -> None:
        sent.append({"to": to, "subject": subject, "text": text, "key": job.key, "queue": job.queue})

    group = ready(rounds, "Readers", "Asia/Kathmandu", prompts=0, drop_time="23:45")
    rounds.prompts.add(group.id, "What did you read?")
    rounds.members.add("Readers", "ada", email="old@example.org", channels=["email"])
    opened = open_one(rounds, clock)
    rounds.members.set("Readers", "ada", email="ada@example.org")  # the address of the moment counts
    drain(app)
    (mail,) = sent
    assert (mail["to"], mail["queue"]) == ("ada@example.org", "mail")
    assert mail["subject"] == "Readers: What did you read?"
    assert "It closes on 2026-06-02 at 23:45, Asia/Kathmandu time." in mail["text"]
    job = enqueued(app, "ROUNDS_NOTIFY_EMAIL")[0]
    assert job.output == {"told": True, "job": enqueued(app, "EMAIL_SEND")[0].id}
    app.jobs.replay(job.id, force=True)
    drain(app)
    assert len(sent) == 1
    assert mail["key"] == f"round:{opened.id}:{rounds.members.all('Readers')[0].id}:email:send"


def test_the_task_that_sends_email_may_be_defined_elsewhere(app: Duly, clock: ManualClock) -> None:
    rounds = Rounds(app, email_task="MAIL", email_queue="post")
    ready(rounds, "a", members=1, channel="email")
    open_one(rounds, clock)
    drain(app)
    assert_enqueued(app, "MAIL", queue="post", count=1)


def test_a_webhook_is_posted_and_signed(app: Duly, clock: ManualClock, there: Endpoint) -> None:
    rounds = Rounds(app, webhook_secret="a secret of sixteen bytes", webhook_private=True)
    group = ready(rounds, "a", prompts=0)
    rounds.prompts.add(group.id, "why?")
    rounds.members.add("a", "ada", webhook=there.url(), channels=["webhook"])
    there.answers = [(503, {}, b""), (204, {}, b"")]
    opened = open_one(rounds, clock)
    drain(app)
    clock.advance(600)
    drain(app)
    assert len(there.posted) == 2
    told = json.loads(there.posted[1].body)
    assert (told["type"], told["source"]) == ("duly.round.opened", "/duly/rounds")
    assert told["data"]["prompt"] == "why?"
    assert told["data"]["round"] == opened.id
    assert there.posted[1].headers["webhook-signature"].startswith("v1,")
    assert {p.headers["webhook-id"] for p in there.posted} == {f"round:{opened.id}:1:webhook"}


def test_a_private_address_is_not_posted_to_and_no_address_is_told(
    rounds: Rounds, app: Duly, clock: ManualClock, there: Endpoint, ear: Ear
) -> None:
    ready(rounds, "a")
    rounds.members.add("a", "private", webhook="https://127.0.0.1:1/secret-path", channels=["webhook"])
    rounds.members.add("a", "nowhere", webhook="https://nowhere.invalid/secret-path", channels=["webhook"])
    rounds.members.add("a", "plain", webhook="http://example.org/secret-path", channels=["webhook"])
    open_one(rounds, clock)
    for _ in range(8):
        drain(app)
        clock.advance(3600)
    assert there.posted == []
    jobs = enqueued(app)
    assert {job.status for job in jobs} == {"failed"}
    told = " ".join(str(job.error) for job in jobs) + " ".join(str(e.facts) for e in ear.events)
    assert "loopback address" in told
    for address in ("secret-path", "nowhere.invalid", "127.0.0.1"):
        assert address not in told


def test_an_error_of_a_connection_that_names_a_host_is_not_passed_on(
    app: Duly, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.outbox.transports.webhook import WebhookTransport

    def breaks(*_: Any) -> None:
        raise OSError("hooks.example.org has no address")

    monkeypatch.setattr(WebhookTransport, "send", breaks)
    rounds = Rounds(app)
    ready(rounds, "a")
    rounds.members.add("a", "ada", webhook="https://hooks.example.org/x", channels=["webhook"])
    open_one(rounds, clock)
    drain(app)
    (job,) = enqueued(app)
    assert "the endpoint of member 1 does not answer: OSError" in str(job.error)
    assert "example.org" not in str(job.error)


def test_no_address_stands_in_an_event_a_trail_or_a_job_that_tells(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear
) -> None:
    ready(rounds, "a", members=4, channel="email")
    open_one(rounds, clock)
    said = (
        str([e.facts for e in ear.events])
        + str(ask(app, "SELECT * FROM audit_log"))
        + str(ask(app, "SELECT * FROM jobs"))
    )
    assert "example.org" not in said
    drain(app)
    assert "example.org" not in str([e.facts for e in ear.events])


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("left", "the member has left"),
        ("unwanted", "the member does not want it any more"),
        ("over", "the round is over"),
        ("gone", "NotFound"),
    ],
)
def test_who_need_not_be_told_any_more_is_not(
    rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear, why: str, reason: str
) -> None:
    ready(rounds, "a", members=1)
    open_one(rounds, clock)
    if why == "left":
        rounds.members.set("a", "m0", is_active=False)
    elif why == "unwanted":
        rounds.members.set("a", "m0", channels=["email"])
    elif why == "over":
        clock.set(utc("2026-06-02 18:00"))
    else:
        change(app, "DELETE FROM rounds")
    drain(app)
    (job,) = enqueued(app)
    assert job.output["told"] is False
    assert job.output["reason"].startswith(reason)
    assert ear.named("round_notified") == []


def test_the_log_channel_says_it_in_an_event(rounds: Rounds, app: Duly, clock: ManualClock, ear: Ear) -> None:
    group = ready(rounds, "a", members=1)
    opened = open_one(rounds, clock)
    drain(app)
    member = rounds.members.all("a")[0]
    assert ear.named("round_notified") == [{"round": opened.id, "group": group.id, "member": member.id}]

"""Telling people: by job, once, in the transaction of the move, and not in floods."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

import fronts
from alerts.hands import MakeWorld, World
from contract.hands import together
from duly import InvalidArgument, Job
from duly.jobs.tables import job_keys
from duly.monitoring.alerts import readings
from duly.monitoring.alerts.alert import Reading, Sample
from duly.monitoring.alerts.notices import EMAIL, WEBHOOK, addresses
from duly.testing import drain
from outbox.endpoint import endpoint

#: The statements of alerts are judged on both kinds in test_readings.py and test_watch.py.
db_url = fronts.db_url
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def jobs_of(world: World, task: str = EMAIL) -> list[Job]:
    return sorted(world.app.jobs.find(task=task), key=lambda job: job.id)


def close_the_gate_for_long(world: World) -> None:
    world.app.gate.offline("deploy")
    world.clock.advance(timedelta(minutes=31))
    world.judge()


def test_people_are_told_by_mail_when_it_is_raised_and_when_it_is_cleared(make_world: MakeWorld) -> None:
    world = make_world(alerts_email="ada@example.org, bob@example.org")
    close_the_gate_for_long(world)
    alert = world.only("gate_offline")
    one, two = jobs_of(world)
    assert (one.input["to"], two.input["to"]) == ("ada@example.org", "bob@example.org")
    assert one.input["subject"] == "[duly] warning: gate_offline"
    assert alert.detail in one.input["text"]
    assert f"duly alerts ack {alert.id}" in one.input["text"]
    assert "duly gate online" in one.input["text"]
    assert alert.noticed_at == world.clock.now()
    world.app.gate.online()
    world.later(seconds=30)
    assert [job.input["subject"] for job in jobs_of(world)[2:]] == ["[duly] cleared: gate_offline"] * 2


def test_nothing_is_told_twice_and_nothing_of_a_suspicion(make_world: MakeWorld) -> None:
    world = make_world(alerts_email="ada@example.org")
    world.worker(state="unready")
    assert world.judge() == [("suspect", "worker_unready", "w1")]
    assert jobs_of(world) == []
    close_the_gate_for_long(world)
    for _ in range(5):
        world.later(seconds=30)
    assert len([j for j in jobs_of(world) if "gate_offline" in j.input["subject"]]) == 1


def test_two_that_judge_at_once_tell_once(make_world: MakeWorld) -> None:
    worlds = [make_world(None, alerts_email="ada@example.org") for _ in range(3)]
    worlds[0].app.gate.offline()
    for k, world in enumerate(worlds):
        world.clock.advance(timedelta(minutes=31, microseconds=k))
    out = together(*(lambda w=w: w.app.alerts.judge("me") for w in worlds))
    assert not [error for error in out if isinstance(error, Exception)], out
    assert len(jobs_of(worlds[0])) == 1


def test_a_key_names_the_alert_and_the_move_and_no_address(make_world: MakeWorld) -> None:
    world = make_world(alerts_email="ada@example.org", alerts_webhook="https://hooks.example.org/x")
    close_the_gate_for_long(world)
    ident = world.only("gate_offline").id
    keys = world.app.db.read(lambda c: sorted(c.execute(select(job_keys.c.key)).scalars()))
    mark = hashlib.sha256(b"ada@example.org").hexdigest()[:12]
    assert keys == [f"alert:{ident}:raised", f"alert:{ident}:raised:{mark}"]
    for event in world.events:
        assert "example.org" not in json.dumps(dict(event.facts), default=str)


def test_a_flood_is_bounded_and_told(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(alerts_email="ada@example.org", alerts_most=3)
    many = lambda n: lambda look: Reading.of([Sample(f"q{k}", 1e6) for k in range(n)])  # noqa: E731
    monkeypatch.setitem(readings.LOOKS, "queue_paused", many(10))
    assert len(world.judge()) == 10
    assert len(jobs_of(world)) == 3
    [event] = world.heard("alerts_withheld")
    assert event.facts == {"count": 7, "most": 3}
    monkeypatch.setitem(readings.LOOKS, "queue_paused", many(0))
    assert len(world.later(minutes=1)) == 10
    assert len(jobs_of(world)) == 6  # the end is told of those whose beginning was
    monkeypatch.setitem(readings.LOOKS, "queue_paused", many(2))
    world.later(minutes=1)
    assert len(jobs_of(world)) == 6  # still within the hour
    monkeypatch.setitem(readings.LOOKS, "queue_paused", many(5))
    world.later(minutes=59)
    assert len(jobs_of(world)) == 9


def test_critical_alerts_are_told_first(make_world: MakeWorld) -> None:
    world = make_world(alerts_email="ada@example.org", alerts_most=1)
    world.app.gate.offline()
    ident = world.app.enqueue("X").job.id
    world.change_job(
        ident, status="running", lease_token=1, lease_until=world.clock.now(), started_at=world.clock.now()
    )
    world.later(minutes=31)
    assert world.raised() == {("gate_offline", ""), ("leases_stuck", "")}
    [mail] = jobs_of(world)
    assert mail.input["subject"] == "[duly] critical: leases_stuck"


def test_a_task_that_is_known_here_says_where_and_how_its_mail_runs(make_world: MakeWorld) -> None:
    world = make_world(alerts_email="ada@example.org")
    sent: list[str] = []

    @world.app.task(EMAIL, queue="mail", max_attempts=7)
    def send(to: str, subject: str, text: str) -> None:
        sent.append(to)

    close_the_gate_for_long(world)
    [mail] = jobs_of(world)
    assert (mail.queue, mail.max_attempts) == ("mail", 7)
    world.app.gate.online()
    drain(world.app)
    assert sent == ["ada@example.org"]


def test_the_queue_of_notices_can_be_set(make_world: MakeWorld) -> None:
    world = make_world(alerts_email="ada@example.org", alerts_queue="ops")
    close_the_gate_for_long(world)
    assert jobs_of(world)[0].queue == "ops"


def test_an_alert_that_cannot_be_told_of_is_raised_all_the_same(make_world: MakeWorld) -> None:
    world = make_world(alerts_email="ada@example.org")

    @world.app.task(EMAIL)
    def send(recipient: str) -> None: ...  # takes something else

    close_the_gate_for_long(world)
    assert world.raised() == {("gate_offline", "")}
    [event] = world.heard("alert_notice_failed")
    assert "recipient" in event.facts["error"]
    assert "ada" not in event.facts["error"]
    assert world.only("gate_offline").noticed_at is None
    assert jobs_of(world) == []


def test_without_a_setting_nobody_is_told_by_job(world: World) -> None:
    close_the_gate_for_long(world)
    assert world.app.jobs.find() == []
    assert world.only("gate_offline").noticed_at is None


def test_addresses_stand_between_commas_and_count_once() -> None:
    assert addresses(" a@b.c,, d@e.f ,a@b.c") == ["a@b.c", "d@e.f"]


# --- The webhook -----------------------------------------------------------------------------------------------------------


def settings(url: str, **more: Any) -> dict[str, Any]:
    return {"alerts_webhook": url, "alerts_webhook_secret": SECRET, "alerts_webhook_private": True, **more}


def test_a_webhook_is_told_by_a_signed_event(make_world: MakeWorld) -> None:
    with endpoint() as there:
        world = make_world(**settings(there.url()))
        close_the_gate_for_long(world)
        alert = world.only("gate_offline")
        world.app.gate.online()
        world.later(seconds=1)
        world.app.worker()  # defines the task
        drain(world.app)
    raised, cleared = there.posted
    event = json.loads(raised.body)
    assert (event["type"], event["source"], event["id"]) == (
        "duly.alert.raised",
        "/duly/alerts",
        f"duly-alert-{alert.id}-raised",
    )
    assert event["data"]["rule"] == "gate_offline"
    assert event["data"]["detail"] == alert.detail
    assert event["data"]["cleared_at"] is None
    assert json.loads(cleared.body)["type"] == "duly.alert.cleared"
    headers = {name.lower(): value for name, value in raised.headers.items()}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + raised.body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_a_private_endpoint_is_refused_unless_it_is_allowed(make_world: MakeWorld) -> None:
    with endpoint() as there:
        world = make_world(alerts_webhook=there.url("https"), max_attempts=2)
        close_the_gate_for_long(world)
        world.app.gate.online()
        world.app.worker()
        drain(world.app)
        [waits] = jobs_of(world, WEBHOOK)
        assert waits.status == "queued"  # whoever allows it meanwhile has the notice sent
        world.clock.advance(timedelta(hours=1))
        drain(world.app)
        assert there.posted == []
    [job] = jobs_of(world, WEBHOOK)
    assert job.status == "failed"
    assert job.error is not None
    assert "loopback address" in job.error["message"]
    assert "127.0.0.1" not in job.error["message"]


def test_an_endpoint_that_cannot_be_used_is_refused_when_a_worker_is_made(make_world: MakeWorld) -> None:
    for url in ("http://hooks.example.org/", "ftp://x/", "nonsense"):
        with pytest.raises(InvalidArgument):
            make_world(alerts_webhook=url).app.worker()


def test_every_job_of_a_notice_is_made_in_the_transaction_of_the_move(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(alerts_email="ada@example.org")
    world.app.gate.offline()
    world.clock.advance(timedelta(minutes=31))
    store, apply = world.app.alerts.store, world.app.alerts.store.apply

    def dies(*args: Any, **more: Any) -> Any:
        apply(*args, **more)
        raise RuntimeError("the process died before the commit")

    monkeypatch.setattr(store, "apply", dies)
    with pytest.raises(RuntimeError):
        world.app.alerts.judge("x")
    count = world.app.db.read(lambda c: c.execute(select(func.count()).select_from(job_keys)).scalar_one())
    assert (jobs_of(world), count, world.app.alerts.find()) == ([], 0, [])
    monkeypatch.undo()
    world.judge()
    assert len(jobs_of(world)) == 1

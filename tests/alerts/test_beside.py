"""From beside: ``/health``, ``/readyz``, ``/livez`` and the gauges, also while the database or the worker hangs."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import fronts
from alerts.hands import MakeWorld, World
from contract.hands import wait_until
from duly.monitoring.alerts import readings
from duly.monitoring.alerts.alert import Reading
from duly.monitoring.alerts.beside import AlertMetrics, Beside, Judge
from duly.monitoring.alerts.beside import health as health_of
from duly.monitoring.http import Monitor, serve
from duly.monitoring.metrics import Metrics

#: The statements of alerts are judged on both kinds in test_readings.py and test_watch.py.
db_url = fronts.db_url


class FakeWorker:
    def __init__(self) -> None:
        self.lanes: dict[str, Any] = {}
        self.state, self.problems = "running", list[str]()

    @property
    def ready(self) -> bool:
        return not self.problems


@contextmanager
def answering(
    world: World, worker: FakeWorker | None = None, keep: float = 0.0, wait: float = 60.0
) -> Iterator[Monitor]:
    metrics = Metrics(worker or FakeWorker())
    beside = Beside(world.app.alerts, "beside", keep, wait)
    metrics.registry.register(AlertMetrics(beside))
    monitor = serve(0, metrics, beside)
    try:
        yield monitor
    finally:
        monitor.close()


def ask(monitor: Monitor, path: str = "/health") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(monitor.url + path, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(monitor: Monitor) -> tuple[int, dict[str, Any]]:
    status, body = ask(monitor)
    return status, json.loads(body)


def close_the_gate_for_long(world: World) -> None:
    world.app.gate.offline("deploy")
    world.clock.advance(timedelta(minutes=31))


def test_health_is_ok_while_nothing_is_raised(world: World) -> None:
    with answering(world) as monitor:
        status, said = health(monitor)
    assert (status, said["status"], said["alerts"], said["unknown"], said["reasons"]) == (200, "ok", [], {}, [])
    assert said["judged_by"] == "beside"


def test_a_raised_alert_degrades_health_and_leaves_readiness_alone(world: World) -> None:
    close_the_gate_for_long(world)
    with answering(world) as monitor:
        status, said = health(monitor)
        assert (status, said["status"]) == (200, "degraded")
        [alert] = said["alerts"]
        assert (alert["rule"], alert["severity"], alert["acked_by"]) == ("gate_offline", "warning", None)
        told = f"alert {alert['id']}: {alert['detail']}\n"
        assert ask(monitor, "/readyz") == (200, f"ready\n{told}")
        assert ask(monitor, "/livez") == (200, f"alive\n{told}")
        world.app.alerts.ack(alert["id"], actor="cli:ada")
        assert health(monitor)[1]["alerts"][0]["acked_by"] == "cli:ada"
        world.app.gate.online()
        world.clock.advance(timedelta(minutes=2))
        assert health(monitor)[1]["status"] == "ok"


def test_a_worker_that_is_not_ready_fails(world: World) -> None:
    worker = FakeWorker()
    worker.problems = ["claim: DatabaseUnavailable"]
    with answering(world, worker) as monitor:
        status, said = health(monitor)
    assert (status, said["status"], said["reasons"]) == (503, "failing", ["claim: DatabaseUnavailable"])


def test_who_is_asked_judges_when_nobody_has_for_two_intervals(world: World) -> None:  # T000-o
    """The workers' loops hang: their duty judges nothing any more, and whoever asks beside them hears of it."""
    world.judge("w1")
    world.app.gate.offline("deploy")
    world.clock.advance(timedelta(seconds=59))
    with answering(world) as monitor:
        assert health(monitor)[1]["judged_by"] == "w1"
        world.clock.advance(timedelta(minutes=31))
        said = health(monitor)[1]
    assert (said["judged_by"], said["status"]) == ("beside", "degraded")
    assert [actor for actor, *_ in world.audit()] == ["beside"]


def test_a_rule_that_cannot_be_judged_degrades_health(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(look: Any) -> Reading:
        raise PermissionError("no")

    monkeypatch.setitem(readings.LOOKS, "jobs_idle", broken)
    with answering(world) as monitor:
        status, said = health(monitor)
        assert (status, said["status"]) == (200, "degraded")
        assert said["unknown"] == {"jobs_idle": "PermissionError: no"}
        assert 'duly_alert_unknown{rule="jobs_idle"} 1.0' in ask(monitor, "/metrics")[1]


def test_a_database_that_hangs_hangs_no_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    close_the_gate_for_long(world)
    free = threading.Event()
    with answering(world, wait=0.5) as monitor:
        wait_until(lambda: health(monitor)[0] == 200)
        seen, real = [], world.app.alerts.seen

        def hangs(by: str) -> Any:
            seen.append(by)
            free.wait(60)
            return real(by)

        monkeypatch.setattr(world.app.alerts, "seen", hangs)
        monkeypatch.setattr("duly.monitoring.alerts.beside.STALE", 0.0)
        status, said = health(monitor)
        assert (status, said["status"]) == (503, "failing")
        assert "has not answered" in said["reasons"][0]
        assert [alert["rule"] for alert in said["alerts"]] == ["gate_offline"]  # what was seen last
        assert ask(monitor, "/livez")[0] == ask(monitor, "/readyz")[0] == 200
        assert "duly_alerts_readable 0.0" in ask(monitor, "/metrics")[1]
        assert len(seen) == 1  # one look at a time, however many ask
        free.set()


def test_a_database_that_is_away_is_told_and_recovers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(world) as monitor:
        real = world.app.alerts.seen
        monkeypatch.setattr(world.app.alerts, "seen", lambda by: (_ for _ in ()).throw(ConnectionError("refused")))
        status, said = health(monitor)
        assert (status, said["status"], said["reasons"]) == (503, "failing", ["alerts: ConnectionError: refused"])
        monkeypatch.setattr(world.app.alerts, "seen", real)
        assert health(monitor)[0] == 200


def test_looks_are_not_taken_more_often_than_needed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    real = world.app.alerts.seen
    monkeypatch.setattr(world.app.alerts, "seen", lambda by: (looks.append(by), real(by))[1])
    with answering(world, keep=60) as monitor:
        for _ in range(5):
            health(monitor)
    assert len(looks) == 1


def test_the_gauges_tell_alerts_values_and_who_judges(world: World) -> None:
    world.app.enqueue("X", queue="a")
    world.worker(state="unready")
    close_the_gate_for_long(world)
    world.worker(state="unready")
    world.judge()
    metrics = Metrics()
    metrics.registry.register(AlertMetrics(Beside(world.app.alerts, "beside", wait=60)))
    world.app.alerts.ack(world.only("gate_offline").id)
    world.clock.advance(timedelta(seconds=20))
    found = {
        (s.name, *sorted(s.labels.values())): s.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for s in family.samples
        if s.name.startswith("duly_alert")
    }
    assert found["duly_alert", "", "gate_offline", "warning"] == 1
    assert found["duly_alert", "w1", "warning", "worker_unready"] == 0  # pending
    assert found["duly_alert_acked", "", "gate_offline"] == 1
    assert found["duly_alert_value", "", "gate_offline"] == 1860
    assert found["duly_alert_unknown", "jobs_idle"] == 0
    assert found["duly_alerts_judged_age_seconds",] == 20
    assert found["duly_alerts_readable",] == 1


def test_two_applications_beside_each_other_do_not_mix(make_world: MakeWorld) -> None:
    with answering(make_world()) as one, answering(make_world()) as two:
        assert health(one)[0] == health(two)[0] == 200
        assert one.port != two.port


# --- A picture that is old (A5) ------------------------------------------------------------------------------------------


def test_a_process_that_serves_pages_judges_while_no_worker_lives(world: World) -> None:
    close_the_gate_for_long(world)
    judge = Judge(world.app.alerts, "web:here:1")
    assert world.app.alerts.standing().stale.startswith("The alerts were never judged")
    judge.start()
    wait_until(lambda: bool(world.app.alerts.standing().raised))
    judge.stop()
    assert [a.rule for a in world.app.alerts.standing().raised] == ["gate_offline"]
    assert world.app.alerts.standing().judged.by == "web:here:1"  # type: ignore[union-attr]


def test_a_picture_older_than_five_minutes_says_so_everywhere(world: World) -> None:
    world.app.alerts.judge("somebody")
    world.clock.advance(timedelta(minutes=4))
    assert world.app.alerts.standing().stale == ""
    world.clock.advance(timedelta(minutes=8))
    said = world.app.alerts.standing().stale
    assert "last judged 12 minutes ago" in said

    class Asleep:
        def ask(self) -> tuple[Any, str]:
            return world.app.alerts.standing(), ""

    well, document = health_of(Asleep(), [])  # type: ignore[arg-type]
    assert (well, document["status"], document["reasons"]) == (True, "degraded", [said])

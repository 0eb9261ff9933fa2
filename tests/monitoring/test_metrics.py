"""Events as numbers, and the numbers over HTTP."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from duly import InvalidArgument
from duly.kernel.events import Event
from duly.monitoring.http import Monitor, serve
from duly.monitoring.metrics import BUCKETS, Metrics


@dataclass
class Lane:
    running: int
    concurrency: int


@dataclass
class FakeWorker:
    lanes: dict[str, Lane] = field(default_factory=lambda: {"mail": Lane(2, 10)})
    state: str = "running"
    problems: list[str] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return self.state == "running" and not self.problems


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample as Prometheus would read it: (name, labels) → value."""
    text = generate_latest(metrics.registry).decode()
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def settled(*jobs: tuple[str, str, str, float]) -> Event:
    return Event("jobs_settled", "debug", {"worker": "w", "jobs": list(jobs)})


MAIL = (("queue", "mail"), ("task", "SEND"))


def test_settled_jobs_are_counted_by_queue_task_and_event() -> None:
    metrics = Metrics()
    metrics(
        settled(("mail", "SEND", "succeed", 0.02), ("mail", "SEND", "succeed", 0.03), ("mail", "SEND", "retry", 4.0))
    )
    metrics(settled(("default", "X", "fail", 0.1)))
    found = scrape(metrics)
    assert found["duly_jobs_settled_total", (("event", "succeed"), *MAIL)] == 2
    assert found["duly_jobs_settled_total", (("event", "retry"), *MAIL)] == 1
    assert found["duly_jobs_settled_total", (("event", "fail"), ("queue", "default"), ("task", "X"))] == 1
    assert found["duly_job_seconds_count", MAIL] == 3
    assert found["duly_job_seconds_sum", MAIL] == pytest.approx(4.05)
    assert found["duly_job_seconds_bucket", (("le", "0.025"), *MAIL)] == 1
    assert found["duly_job_seconds_bucket", (("le", "0.05"), *MAIL)] == 2
    assert found["duly_job_seconds_bucket", (("le", "+Inf"), *MAIL)] == 3


def test_the_wait_of_claimed_jobs_is_measured() -> None:
    metrics = Metrics()
    metrics(Event("jobs_claimed", "debug", {"count": 2, "lags": [("mail", "SEND", 0.2), ("mail", "SEND", -0.001)]}))
    found = scrape(metrics)
    assert found["duly_job_lag_seconds_count", MAIL] == 2
    assert found["duly_job_lag_seconds_sum", MAIL] == pytest.approx(0.2)


def test_trouble_is_counted() -> None:
    metrics = Metrics()
    for name, facts in (
        ("lease_lost", {}), ("jobs_rescued", {"count": 2, "jobs": [1, 2]}), ("loop_failed", {"loop": "claim"}),
        ("loop_failed", {"loop": "claim"}), ("settle_failed", {"jobs": 3}), ("duty_failed", {"duty": "seal"}), ("unknown", {}),
    ):  # fmt: skip
        metrics(Event(name, "warning", facts))
    found = scrape(metrics)
    assert (found["duly_lease_lost_total", ()], found["duly_rescued_total", ()]) == (1, 2)
    assert found["duly_loop_failures_total", (("loop", "claim"),)] == 2
    assert found["duly_loop_failures_total", (("loop", "settle"),)] == 1
    assert found["duly_loop_failures_total", (("loop", "house"),)] == 1


def test_the_worker_is_read_at_the_moment_of_the_scrape() -> None:
    worker = FakeWorker()
    metrics = Metrics(worker)
    found = scrape(metrics)
    assert found["duly_worker_running", (("queue", "mail"),)] == 2
    assert found["duly_worker_slots", (("queue", "mail"),)] == 10
    assert found["duly_worker_ready", ()] == 1
    worker.lanes["mail"].running, worker.state = 0, "draining"
    found = scrape(metrics)
    assert found["duly_worker_running", (("queue", "mail"),)] == 0
    assert found["duly_worker_ready", ()] == 0


@given(st.lists(st.floats(0, 1e5), max_size=50))
def test_buckets_hold_every_run_exactly_once(seconds: list[float]) -> None:
    metrics = Metrics()
    metrics(settled(*(("mail", "SEND", "succeed", s) for s in seconds)))
    found = scrape(metrics)
    for bound in BUCKETS:
        expected = sum(s <= bound for s in seconds)
        assert found.get(("duly_job_seconds_bucket", (("le", str(bound)), *MAIL)), 0) == expected


def test_many_threads_lose_no_count() -> None:
    metrics = Metrics()
    batch = settled(*[("mail", "SEND", "succeed", 0.01)] * 50)
    threads = [threading.Thread(target=lambda: [metrics(batch) for _ in range(40)]) for _ in range(4)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        scrape(metrics)
    for t in threads:
        t.join()
    assert scrape(metrics)["duly_job_seconds_count", MAIL] == 4 * 40 * 50


def test_each_worker_has_a_registry_of_its_own() -> None:
    one, two = Metrics(), Metrics()
    one(settled(("mail", "SEND", "succeed", 0.1)))
    assert ("duly_job_seconds_count", MAIL) not in scrape(two)


# ---------------------------------------------------------------------- over HTTP


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def monitor(worker: FakeWorker) -> Iterator[Monitor]:
    metrics = Metrics(worker)
    metrics(settled(("mail", "SEND", "succeed", 0.1)))
    running = serve(0, metrics)
    yield running
    running.close()


def ask(monitor: Monitor, path: str, method: str = "GET") -> tuple[int, str, Any]:
    request = urllib.request.Request(monitor.url + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def test_metrics_are_served(monitor: Monitor) -> None:
    status, body, headers = ask(monitor, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    assert 'duly_jobs_settled_total{event="succeed",queue="mail",task="SEND"} 1.0' in body
    assert "process_resident_memory_bytes" in body


def test_a_ready_worker_says_so(monitor: Monitor) -> None:
    assert ask(monitor, "/readyz")[:2] == (200, "ready\n")
    assert ask(monitor, "/livez")[:2] == (200, "alive\n")


def test_a_worker_that_is_not_ready_says_why_and_lives(monitor: Monitor, worker: FakeWorker) -> None:
    worker.problems = ["claim: DatabaseUnavailable", "work waits"]
    assert ask(monitor, "/readyz")[:2] == (503, "claim: DatabaseUnavailable\nwork waits\n")
    worker.problems, worker.state = [], "draining"
    assert ask(monitor, "/readyz")[:2] == (503, "the worker is draining\n")
    assert ask(monitor, "/livez")[0] == 200


def test_other_paths_and_methods_are_refused(monitor: Monitor) -> None:
    assert ask(monitor, "/")[0] == 404
    assert ask(monitor, "/metrics/x")[0] == 404
    assert ask(monitor, "/metrics", "POST")[0] == 405
    assert ask(monitor, "/livez", "HEAD")[:2] == (200, "")


def test_only_this_machine_is_answered(monitor: Monitor) -> None:
    assert monitor._server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_refused_by_name(monitor: Monitor) -> None:
    with pytest.raises(InvalidArgument, match="metrics_port"):
        serve(monitor.port, Metrics())


def test_a_silent_client_keeps_nobody_else_waiting(monitor: Monitor) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", monitor.port)):
        assert ask(monitor, "/livez")[0] == 200


def test_a_closed_monitor_frees_its_port(worker: FakeWorker) -> None:
    first = serve(0, Metrics(worker))
    first.close()
    second = serve(first.port, Metrics(worker))
    second.close()

"""The metrics of post-commit sends and idempotent functions, exactly as the specification names them."""

from __future__ import annotations

import io
import json

from prometheus_client import CollectorRegistry, generate_latest

from duly.idempotency import MemoryStore, idempotent_task
from duly.kernel.events import PROCESS
from duly.monitoring.logs import event_log
from duly.monitoring.metrics import Metrics, watch
from duly.settings import Settings
from duly.tracing import carried

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def call_three_times() -> None:
    @idempotent_task(store=MemoryStore(), name="app.send")
    def send(to: str) -> None: ...

    for _ in range(3):
        send("someone@example.org")


def lines(registry: CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if line.startswith(("worker_idempotency", "postcommit"))]


def test_a_program_of_its_own_counts_on_its_own_registry() -> None:  # R004-6, R004-11
    registry = CollectorRegistry()
    stop = watch(registry)
    call_three_times()
    for result in ("enqueued", "enqueued", "rolled_back", "skipped"):
        PROCESS.emit("postcommit", task_name="t", result=result)
    assert set(lines(registry)) == {
        'worker_idempotency_attempts_total{result="allowed",task="app.send"} 1.0',
        'worker_idempotency_attempts_total{result="deduped",task="app.send"} 2.0',
        'worker_idempotency_state_total{state="in_progress",task="app.send"} 1.0',
        'worker_idempotency_state_total{state="succeeded",task="app.send"} 1.0',
        'postcommit_enqueue_total{result="enqueued"} 2.0',
        'postcommit_enqueue_total{result="rolled_back"} 1.0',
        'postcommit_enqueue_total{result="skipped"} 1.0',
    }
    stop()
    call_three_times()
    assert lines(registry) == []


def test_a_worker_counts_them_beside_its_own() -> None:
    metrics = Metrics()
    remove = PROCESS.listen(metrics)
    call_three_times()
    remove()
    assert 'worker_idempotency_attempts_total{result="deduped",task="app.send"} 2.0' in lines(metrics.registry)


def test_log_lines_name_the_task_the_key_and_the_trace_and_nothing_personal() -> None:  # R004-6
    out = io.StringIO()
    remove = PROCESS.listen(event_log(Settings.load(log_format="json"), out))
    with carried(TRACE):
        call_three_times()
    remove()
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {line["event"] for line in told} == {"idempotency_attempt", "idempotency_state"}
    for line in told:
        assert line["task_name"] == "app.send"
        assert line["idempotency_key"].startswith("duly:v1:task:")
        assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert "example.org" not in out.getvalue()

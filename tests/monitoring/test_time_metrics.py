"""Ticks, occurrences and errors as numbers (R000-19)."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from duly.kernel.events import Event
from duly.monitoring import ticks
from duly.monitoring.metrics import Metrics


def told(*events: tuple[str, dict[str, Any]]) -> dict[tuple[str, ...], float]:
    metrics = Metrics()
    for name, facts in events:
        metrics(Event(name, "info", facts))
    return {
        (s.name, *(s.labels[key] for key in sorted(s.labels))): s.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for s in family.samples
    }


def tick(kind: str = "open", **facts: Any) -> tuple[str, dict[str, Any]]:
    return "round_tick", {
        "kind": kind,
        "seconds": 0.2,
        "done": 0,
        "skipped": 0,
        "failed": 0,
        "per_minute": None,
        "batches": 1,
        **facts,
    }


def test_the_duration_of_every_tick_is_measured() -> None:
    found = told(tick(seconds=0.2), tick(seconds=4), tick("close", seconds=0.004))
    assert found["duly_tick_seconds_count", "open"] == 2
    assert found["duly_tick_seconds_sum", "open"] == 4.2
    assert found["duly_tick_seconds_bucket", "0.25", "open"] == 1
    assert found["duly_tick_seconds_bucket", "+Inf", "open"] == 2
    assert found["duly_tick_seconds_count", "close"] == 1


def test_groups_are_counted_by_tick_and_result_and_per_minute() -> None:
    found = told(tick(done=30, skipped=2, failed=1, per_minute=99.0), tick(done=5), tick("plan", failed=2))
    assert found["duly_tick_groups_total", "done", "open"] == 35
    assert found["duly_tick_groups_total", "skipped", "open"] == 2
    assert found["duly_tick_groups_total", "failed", "open"] == 1
    assert found["duly_tick_groups_total", "failed", "plan"] == 2
    assert found["duly_tick_groups_per_minute", "open"] == 99  # a pass without groups has no pace
    assert ("duly_tick_groups_per_minute", "plan") not in found


def test_latency_is_the_time_from_planned_to_done() -> None:
    found = told(("rounds_moved", {"kind": "open", "count": 3, "lates": [0.5, 299.0, 301.0]}))
    assert found["duly_tick_lateness_seconds_count", "open"] == 3
    assert found["duly_tick_lateness_seconds_bucket", "300.0", "open"] == 2  # the threshold of the alert is a bound
    assert found["duly_tick_lateness_seconds_sum", "open"] == 600.5


def test_ticks_that_break_off_are_counted() -> None:
    found = told(("round_tick_failed", {"kind": "plan", "error": "X"}))
    assert found["duly_tick_failures_total", "plan"] == 1


def test_occurrences_are_counted_by_what_became_of_them() -> None:
    found = told(
        ("schedule_fired", {"schedule": "a", "job": 1}), ("schedule_fired", {"schedule": "b", "job": 2}),
        ("schedule_missed", {"schedule": "a", "count": 7}), ("schedule_skipped", {"schedule": "a", "reason": "paused", "count": 2}),
        ("schedule_broken", {"schedule": "c", "error": "x", "failures": 1}),
    )  # fmt: skip
    statuses = {key[1]: n for key, n in found.items() if key[0] == "duly_schedule_occurrences_total"}
    assert statuses == {"fired": 2, "missed": 7, "skipped": 2}
    assert found["duly_schedule_failures_total",] == 1


def test_errors_are_counted_by_task_and_type() -> None:
    found = told(
        ("job_retry", {"task": "SEND", "error": "TimeoutError", "wait": 10}), ("job_failed", {"task": "SEND", "error": "TimeoutError"}),
        ("job_failed", {"task": "SEND", "error": None}), ("job_cancelled", {"task": "SEND", "error": None}),
    )  # fmt: skip
    assert found["duly_job_errors_total", "TimeoutError", "SEND"] == 2
    assert found["duly_job_errors_total", "unknown", "SEND"] == 1


def test_no_flood_of_error_types_makes_a_flood_of_series() -> None:
    found = told(*[("job_failed", {"task": "T", "error": f"E{n}"}) for n in range(ticks.MOST_ERRORS + 50)])
    series = {key: n for key, n in found.items() if key[0] == "duly_job_errors_total"}
    assert len(series) == ticks.MOST_ERRORS + 1
    assert series["duly_job_errors_total", "other", "other"] == 50

"""Counting what happens at planned times: ticks of the rounds, occurrences of schedules, and errors by their type (R000-19).

A part of ``metrics.Metrics``, made from events like the rest. Series are bounded: three ticks, four statuses, and of errors as many
as the code has task names and exception types, no more than ``MOST_ERRORS`` of them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duly.kernel.events import Event

#: Upper bounds of lateness in seconds: the cadence of a tick, the threshold of an alert, and what comes after an outage.
LATENESS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 4 * 3600.0, 86_400.0)
#: Upper bounds of the time that a tick takes.
TOOK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: The most pairs of task and error type that are told apart; the rest counts as ``other``.
MOST_ERRORS = 500

#: Event → status of the occurrences it tells of.
_OCCURRENCES = {
    "schedule_fired": "fired",
    "schedule_skipped": "skipped",
    "schedule_missed": "missed",
    "schedule_deferred": "deferred",
}


class Spread:
    """Counts per bucket and the sum, for each value of one label."""

    def __init__(self, name: str, text: str, label: str, bounds: tuple[float, ...]) -> None:
        self.name, self.text, self.label, self.bounds = name, text, label, bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, of: str, values: Iterable[float]) -> None:
        counts = self._counts.setdefault(of, [0] * (len(self.bounds) + 1))
        for value in values:
            value = max(0.0, float(value))
            counts[bisect_left(self.bounds, value)] += 1
            self._sums[of] = self._sums.get(of, 0.0) + value

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.text, labels=[self.label])
        for of, counts in self._counts.items():
            buckets, running = [], 0
            for bound, n in zip((*map(str, self.bounds), "+Inf"), counts, strict=True):
                running += n
                buckets.append((bound, float(running)))
            family.add_metric([of], buckets, self._sums.get(of, 0.0))
        return family


class TimeMetrics(Collector):
    """A listener for events and a collector of what they say."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took = Spread("duly_tick_seconds", "How long a tick of the rounds took.", "tick", TOOK)
        self._late = Spread(
            "duly_tick_lateness_seconds", "From the planned instant of a round's move to the move.", "tick", LATENESS
        )
        self._groups: Counter[tuple[str, str]] = Counter()
        self._per_minute: dict[str, float] = {}
        self._failed: Counter[str] = Counter()
        self._occurrences: Counter[str] = Counter()
        self._broken = 0
        self._errors: Counter[tuple[str, str]] = Counter()

    def __call__(self, event: Event) -> None:
        name, facts = event.name, event.facts
        with self._lock:
            if name in ("job_failed", "job_retry"):
                self._error(str(facts.get("task", "")), str(facts.get("error") or "unknown"))
            elif name in _OCCURRENCES:
                self._occurrences[_OCCURRENCES[name]] += int(facts.get("count", 1))
            elif name == "schedule_broken":
                self._broken += 1
            elif name == "round_tick":
                self._tick(facts)
            elif name == "rounds_moved":
                self._late.add(str(facts["kind"]), facts["lates"])
            elif name == "round_tick_failed":
                self._failed[str(facts["kind"])] += 1

    def _tick(self, facts: Mapping[str, Any]) -> None:
        kind = str(facts["kind"])
        self._took.add(kind, [facts["seconds"]])
        for result in ("done", "skipped", "failed"):
            self._groups[kind, result] += int(facts[result])
        if facts.get("per_minute") is not None:
            self._per_minute[kind] = float(facts["per_minute"])

    def _error(self, task: str, error: str) -> None:
        key = task, error
        if key not in self._errors and len(self._errors) >= MOST_ERRORS:
            key = "other", "other"
        self._errors[key] += 1

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            errors = CounterMetricFamily(
                "duly_job_errors",
                "Runs that failed, by the type of the error; also those that are tried again.",
                labels=["task", "error"],
            )
            for key, n in self._errors.items():
                errors.add_metric(key, n)
            groups = CounterMetricFamily(
                "duly_tick_groups",
                "Groups that a tick of the rounds took up, by what became of them.",
                labels=["tick", "result"],
            )
            for key, n in self._groups.items():
                groups.add_metric(key, n)
            pace = GaugeMetricFamily(
                "duly_tick_groups_per_minute", "The pace of the last tick that had groups.", labels=["tick"]
            )
            for kind, rate in self._per_minute.items():
                pace.add_metric([kind], rate)
            failed = CounterMetricFamily("duly_tick_failures", "Ticks that broke off.", labels=["tick"])
            for kind, n in self._failed.items():
                failed.add_metric([kind], n)
            occurrences = CounterMetricFamily(
                "duly_schedule_occurrences", "Occurrences of schedules, by what became of them.", labels=["status"]
            )
            for status, n in self._occurrences.items():
                occurrences.add_metric([status], n)
            broken = CounterMetricFamily(
                "duly_schedule_failures", "Schedules that could not be planned, each time.", value=self._broken
            )
            told = [errors, self._took.family(), self._late.family(), groups, pace, failed, occurrences, broken]
        yield from told

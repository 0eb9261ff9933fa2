"""Metrics for Prometheus, made from events.

A batch of settled jobs is one event; it is added up here in plain dictionaries under one lock, a few hundred nanoseconds
per job. Prometheus' own objects come into being when somebody scrapes, so the hot path never touches one. Labels are
names of queues, tasks, events and loops: as many series as the code has names, never one per job.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import REGISTRY, CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duly.kernel.events import PROCESS, Event
from duly.monitoring.sessions import SessionMetrics
from duly.monitoring.ticks import TimeMetrics

#: Upper bounds in seconds: from a handler that only computes to one that waits for a slow provider.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class LaneView(Protocol):
    """What is read of a worker's queue."""

    running: int
    concurrency: int


class WorkerView(Protocol):
    """What is read of a worker."""

    @property
    def lanes(self) -> Any: ...

    @property
    def state(self) -> str: ...

    @property
    def ready(self) -> bool: ...

    @property
    def problems(self) -> list[str]: ...


class Histogram:
    """Counts per bucket and the sum, for one set of labels."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def cumulative(self) -> list[tuple[str, float]]:
        out, running = [], 0
        for bound, n in zip((*map(str, BUCKETS), "+Inf"), self.counts, strict=True):
            running += n
            out.append((bound, float(running)))
        return out


class Settled:
    """Runs of one queue, task and event, and the histogram that all events of that queue and task share."""

    __slots__ = ("count", "seconds")

    def __init__(self, seconds: Histogram) -> None:
        self.count, self.seconds = 0, seconds


class Counts:
    """One family of counters: events of one name, by some of their facts."""

    def __init__(
        self, name: str, text: str, *labels: str, facts: Sequence[str] | None = None, known: Sequence[str] = ()
    ) -> None:  # fmt: skip
        #: ``known``: the values of a single label, shown from the start, because ``increase()`` does not see a series that begins.
        self.name, self.text, self.labels = name, text, labels
        self._facts = facts or labels
        self._counts: Counter[tuple[str, ...]] = Counter({(value,): 0 for value in known})

    def hear(self, facts: Mapping[str, Any]) -> None:
        self._counts[tuple(str(facts[name]) for name in self._facts)] += 1

    def family(self) -> Metric:
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for key, n in self._counts.items():
            family.add_metric(key, n)
        return family


class ProcessMetrics(Collector):
    """What happens outside any application: sends after a commit, and idempotent functions (R004-6, R004-11).

    Labels are names of tasks, results and states, never one series per key. ``watch`` puts it where a program counts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {
            "postcommit": Counts(
                "postcommit_enqueue", "Sends registered for after a commit, by what became of them.", "result",
                known=("enqueued", "rolled_back", "skipped"),
            ),
            "idempotency_attempt": Counts(
                "worker_idempotency_attempts", "Calls of idempotent functions.", "task", "result", facts=("task_name", "result")
            ),
            "idempotency_state": Counts(
                "worker_idempotency_state", "Idempotent functions that entered a state.", "task", "state", facts=("task_name", "state")
            ),
        }  # fmt: skip

    def __call__(self, event: Event) -> None:
        counts = self._counts.get(event.name)
        if counts is not None:
            with self._lock:
                counts.hear(event.facts)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            families = [counts.family() for counts in self._counts.values()]
        yield from families


def watch(registry: CollectorRegistry = REGISTRY) -> Callable[[], None]:
    """Count what happens outside any application on the program's own registry: for an API process that enqueues after its
    commits, or a Celery worker with idempotent tasks. Returns a function that stops it."""
    metrics = ProcessMetrics()
    registry.register(metrics)
    deaf = PROCESS.listen(metrics)

    def stop() -> None:
        deaf()
        registry.unregister(metrics)

    return stop


class Metrics(Collector):
    """A listener for events, and a collector on a registry of its own.

    ``worker``: whose slots and readiness are shown, read at the moment of the scrape.
    """

    def __init__(self, worker: WorkerView | None = None, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=False)
        self.worker = worker
        #: Further reasons of not being ready, of what runs beside the worker.
        self.also: Callable[[], list[str]] = list
        self._lock = threading.Lock()
        self._settled: dict[tuple[str, str, str], Settled] = {}
        self._seconds: dict[tuple[str, str], Histogram] = {}
        self._lags: dict[tuple[str, str], Histogram] = {}
        self._lost = self._rescued = 0
        self._failures: Counter[str] = Counter()
        self._process, self._time, self._sessions = ProcessMetrics(), TimeMetrics(), SessionMetrics()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    # ------------------------------------------------------------------ hearing

    def __call__(self, event: Event) -> None:
        hear = _HEARD.get(event.name)
        if hear is not None:
            with self._lock:
                hear(self, event.facts)
        else:
            self._process(event)
            self._time(event)
            self._sessions(event)

    def _on_settled(self, facts: Any) -> None:
        known = self._settled
        for queue, task, event, took in facts["jobs"]:
            found = known.get((queue, task, event))
            if found is None:
                found = known[queue, task, event] = Settled(self._seconds.setdefault((queue, task), Histogram()))
            found.count += 1
            seconds = found.seconds
            seconds.counts[bisect_left(BUCKETS, took)] += 1
            seconds.total += took

    def _on_claimed(self, facts: Any) -> None:
        known = self._lags
        for queue, task, lag in facts["lags"]:
            found = known.get((queue, task))
            if found is None:
                found = known[queue, task] = Histogram()
            lag = max(0.0, lag)
            found.counts[bisect_left(BUCKETS, lag)] += 1
            found.total += lag

    def _on_lost(self, _facts: Any) -> None:
        self._lost += 1

    def _on_rescued(self, facts: Any) -> None:
        self._rescued += int(facts["count"])

    def _on_failure(self, facts: Any) -> None:
        # a settlement that the database refuses is tried again inside its loop, a duty inside housekeeping
        self._failures[facts.get("loop") or ("house" if "duty" in facts else "settle")] += 1

    # ------------------------------------------------------------------ telling

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            settled = CounterMetricFamily(
                "duly_jobs_settled", "Runs that ended, by what became of the job.", labels=["queue", "task", "event"]
            )
            for key, found in self._settled.items():
                settled.add_metric(key, found.count)
            told: list[Metric] = [
                settled,
                _histogram("duly_job_seconds", "How long a run took, from its start to its settlement.", self._seconds),
                _histogram("duly_job_lag_seconds", "How long a due job waited for its claim.", self._lags),
                _total("duly_lease_lost", "Runs whose settlement came after their lease was lost.", self._lost),
                _total("duly_rescued", "Jobs taken from workers that stopped renewing their leases.", self._rescued),
            ]
            failures = CounterMetricFamily("duly_loop_failures", "Failures of a worker's loop.", labels=["loop"])
            for loop, n in self._failures.items():
                failures.add_metric([loop], n)
            told.append(failures)
        yield from told
        yield from self._process.collect()
        yield from self._time.collect()
        yield from self._sessions.collect()
        if self.worker is not None:
            yield from self._of_worker(self.worker)

    def _of_worker(self, worker: WorkerView) -> Iterator[Metric]:
        running = GaugeMetricFamily("duly_worker_running", "Jobs that run in this worker now.", labels=["queue"])
        slots = GaugeMetricFamily("duly_worker_slots", "Jobs that this worker may run at once.", labels=["queue"])
        for name, lane in list(worker.lanes.items()):
            running.add_metric([name], lane.running)
            slots.add_metric([name], lane.concurrency)
        yield running
        yield slots
        ready = "1 while this worker claims, settles and keeps its leases."
        yield GaugeMetricFamily("duly_worker_ready", ready, value=1 if worker.ready else 0)


_HEARD = {
    "jobs_settled": Metrics._on_settled,
    "jobs_claimed": Metrics._on_claimed,
    "lease_lost": Metrics._on_lost,
    "jobs_rescued": Metrics._on_rescued,
    "loop_failed": Metrics._on_failure,
    "settle_failed": Metrics._on_failure,
    "duty_failed": Metrics._on_failure,
}


def _histogram(name: str, text: str, values: dict[tuple[str, str], Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["queue", "task"])
    for key, h in values.items():
        labels: Sequence[str] = key
        family.add_metric(labels, h.cumulative(), h.total)
    return family


def _total(name: str, text: str, n: int) -> Metric:
    return CounterMetricFamily(name, text, value=n)

"""How outboxes stand, at the moment of a scrape, and what their relays did.

The gauges ask the database, so one scrape is one query per outbox; when the database does not answer they are missing,
which an alert on absence tells. A destination that this process has seen is told with 0 when nothing is left. Labels are destinations: as many as the code names.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duly.kernel.events import Event

_STATES = ("pending", "due", "in_flight", "parked")
#: Event → what it counts as.
_ENDS = {"outbox_sent": "sent", "outbox_failed": "failed", "outbox_parked": "parked"}


class OutboxView(Protocol):
    """What is read of an outbox."""

    def status(self, sent: bool = True) -> Any: ...


class OutboxMetrics(Collector):
    """A listener for relays' events and a collector for outboxes."""

    def __init__(self, boxes: Sequence[OutboxView]) -> None:
        self._boxes = boxes
        self._lock = threading.Lock()
        #: Destinations that had something, for each outbox: a gauge that was there says 0 when nothing is left.
        self._seen: list[set[str]] = [set() for _ in boxes]
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._lost = self._rescued = 0

    def __call__(self, event: Event) -> None:
        facts = event.facts
        with self._lock:
            if event.name in _ENDS:
                self._attempts[facts["destination"], _ENDS[event.name]] += int(facts.get("count", 1))
            elif event.name == "outbox_lease_lost":
                self._lost += len(facts["messages"])
            elif event.name == "outbox_rescued":
                self._rescued += int(facts["count"])

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        backlog = GaugeMetricFamily(
            "duly_outbox_messages", "Messages that are not sent.", labels=["destination", "state"]
        )
        oldest = GaugeMetricFamily(
            "duly_outbox_oldest_seconds", "Age of the oldest message that is not sent.", labels=["destination"]
        )
        total: Counter[tuple[str, str]] = Counter()
        ages: dict[str, float] = {}
        for box, seen in zip(self._boxes, self._seen, strict=True):
            try:
                standing = box.status(sent=False)
            except Exception:  # noqa: S112 (a gauge that cannot be read is missing)
                continue
            seen.update(d.destination for d in standing.destinations)
            for destination in seen:
                ages.setdefault(destination, 0.0)
                for state in _STATES:
                    total[destination, state] += 0
            for d in standing.destinations:
                for state in _STATES:
                    total[d.destination, state] += getattr(d, state)
                ages[d.destination] = max(ages.get(d.destination, 0.0), d.oldest_age)
        for key, n in total.items():
            backlog.add_metric(key, n)
        for destination, age in ages.items():
            oldest.add_metric([destination], age)
        yield backlog
        yield oldest
        with self._lock:
            attempts = CounterMetricFamily(
                "duly_outbox_attempts", "Attempts to send, by what became of them.", labels=["destination", "result"]
            )
            for key, n in self._attempts.items():
                attempts.add_metric(key, n)
            yield attempts
            yield CounterMetricFamily(
                "duly_outbox_lease_lost", "Messages that were sent and could not be marked.", value=self._lost
            )
            yield CounterMetricFamily(
                "duly_outbox_rescued", "Messages taken over from relays that had died.", value=self._rescued
            )

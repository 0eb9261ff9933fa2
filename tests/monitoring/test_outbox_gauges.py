"""Gauges of an outbox: 0 when nothing is left, missing when the database does not answer."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from duly.kernel.errors import DatabaseUnavailable
from duly.monitoring.outbox import OutboxMetrics
from duly.outbox.read import Backlog, Standing


class Box:
    """An outbox that stands as it is told."""

    def __init__(self) -> None:
        self.destinations: tuple[Backlog, ...] = (Backlog("webhook:billing", 2, 1, oldest_age=7.0),)
        self.away = False

    def status(self, sent: bool = True) -> Standing:
        if self.away:
            raise DatabaseUnavailable("away")
        return Standing(0, 0, 0, 0, None, None, 0.0, self.destinations)


def test_a_gauge_says_0_when_all_is_sent_and_is_missing_only_when_nobody_knows() -> None:
    box, registry = Box(), CollectorRegistry()
    registry.register(OutboxMetrics([box]))

    def gauges() -> tuple[float | None, float | None]:
        labels = {"destination": "webhook:billing"}
        backlog = registry.get_sample_value("duly_outbox_messages", {**labels, "state": "pending"})
        return backlog, registry.get_sample_value("duly_outbox_oldest_seconds", labels)

    assert gauges() == (2, 7)
    box.destinations = ()
    assert gauges() == (0, 0)
    box.away = True
    assert gauges() == (None, None)
    box.away = False
    assert gauges() == (0, 0)

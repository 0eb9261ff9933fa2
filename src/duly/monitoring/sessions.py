"""Counting sessions of AIs, for Prometheus: how they ended, the tokens and cents that they used, calls of tools (R001-50).

A part of ``metrics.Metrics``, made from events like the rest. Labels are names of automations (chats count as ``chat``), no more than
``MOST_NAMES`` of them; further ones count as ``other``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duly.kernel.events import Event

#: The most automations that are told apart.
MOST_NAMES = 500


class SessionMetrics(Collector):
    """Hears of sessions, and tells what they came to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._cents: Counter[str] = Counter()
        self._not_run = 0
        self._hear: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "session_ended": self._on_ended, "session_interrupted": self._on_ended, "session_round": self._on_round,
            "session_broke_off": self._on_round, "automation_not_run": self._on_not_run,
        }  # fmt: skip

    def __call__(self, event: Event) -> None:
        hear = self._hear.get(event.name)
        if hear is not None:
            with self._lock:
                hear(event.facts)

    def _name(self, facts: Mapping[str, Any]) -> str:
        name = str(facts.get("automation_name") or "chat")
        if name not in self._names and len(self._names) >= MOST_NAMES:
            return "other"
        self._names.add(name)
        return name

    def _on_ended(self, facts: Mapping[str, Any]) -> None:
        self._ended[self._name(facts), str(facts["reason"])] += 1

    def _on_round(self, facts: Mapping[str, Any]) -> None:
        name = self._name(facts)
        for side in ("input", "output"):
            self._tokens[name, side] += int(facts.get(f"{side}_tokens") or 0)
        self._cents[name] += float(facts.get("cents") or 0.0)  # type: ignore[assignment]

    def _on_not_run(self, _: Mapping[str, Any]) -> None:
        self._not_run += 1

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        ended = CounterMetricFamily(
            "duly_sessions_ended", "Sessions of AIs that ended or were interrupted, by the reason.", labels=["automation", "reason"]
        )  # fmt: skip
        tokens = CounterMetricFamily(
            "duly_session_tokens", "Tokens that sessions used, told by the provider or estimated.", labels=["automation", "side"]
        )  # fmt: skip
        cents = CounterMetricFamily(
            "duly_session_cents",
            "What the answers of AIs cost, in cents, where prices are known.",
            labels=["automation"],
        )
        with self._lock:
            for key, n in self._ended.items():
                ended.add_metric(key, n)
            for key, n in self._tokens.items():
                tokens.add_metric(key, n)
            for name, cost in self._cents.items():
                cents.add_metric([name], cost)
            not_run = self._not_run
        yield from (ended, tokens, cents)
        yield CounterMetricFamily(
            "duly_automation_not_run", "Events that did not run an automation that names them.", value=not_run
        )

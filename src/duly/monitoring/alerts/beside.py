"""How things stand, for a process that is asked over HTTP: from beside, and without ever hanging.

A look is taken on a thread of its own, at most every few seconds, whoever asks. Who asks waits a moment for it and is then given
what was seen last, with the reason why nothing newer is there. It judges, too, when nobody has for two intervals: so a worker
whose loops hang is told by the thread that answers its ``/health``, and by every other worker's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duly.kernel.errors import brief
from duly.monitoring.alerts.alert import Alert, State
from duly.monitoring.alerts.watch import Alerts, Standing

#: Seconds for which a look is good, and which somebody who asks waits for a new one.
KEEP, WAIT = 5.0, 2.0
#: Seconds after which what was seen last is no answer any more.
STALE = 60.0


class Beside:
    """The last look, renewed when it is asked for."""

    def __init__(self, alerts: Alerts, by: str, keep: float = KEEP, wait: float = WAIT) -> None:
        self._alerts, self._by, self._keep, self._wait = alerts, by, keep, wait
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._seen: Standing | None = None
        self._seen_at = -STALE
        self._problem = "nobody has looked yet"

    @property
    def last(self) -> Standing | None:
        """What was seen last, without a look."""
        return self._seen

    def ask(self) -> tuple[Standing | None, str]:
        """(what was seen, why that is not good): a look now if the last one is old. Without a problem the second is empty."""
        with self._lock:
            looking = self._looking
            if looking is None and time.monotonic() - self._seen_at > self._keep:
                looking = threading.Thread(target=self._look, name="duly-alerts-beside", daemon=True)
                self._looking = looking
                looking.start()
        if looking is not None:
            looking.join(self._wait)
        if self._problem:
            return self._seen, self._problem
        if time.monotonic() - self._seen_at > STALE:
            return self._seen, "the database has not answered for a while"
        return self._seen, ""

    def _look(self) -> None:
        try:
            self._seen, self._problem = self._alerts.seen(self._by), ""
        except Exception as error:
            self._problem = brief(error)
        finally:
            self._seen_at = time.monotonic() if not self._problem else self._seen_at
            with self._lock:
                self._looking = None


class Judge:
    """Judges on a thread of its own when no worker has for two intervals: where pages are served and no worker may live. One in a process."""

    def __init__(self, alerts: Alerts, by: str) -> None:
        self._alerts, self._by = alerts, by
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="duly-judge", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End; what is being judged is judged to its end."""
        self._ends.set()

    def _work(self) -> None:
        told = ""
        while not self._ends.is_set():
            try:
                self._alerts.seen(self._by)
                told = ""
            except Exception as error:
                problem = brief(error)
                if problem != told:  # an outage is told once
                    self._alerts.engine.emitter.emit("judging_failed", "warning", by=self._by, error=problem)
                told = problem
            self._ends.wait(self._alerts.settings.alerts_every)


class AlertMetrics(Collector):
    """Alerts and what rules were judged by, at the moment of a scrape. Series are bounded: twenty subjects of each rule at most."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        standing, problem = self._beside.ask()
        readable = GaugeMetricFamily(
            "duly_alerts_readable", "1 while the alerts can be read.", value=0 if problem else 1
        )
        yield readable
        if standing is None or problem:  # gauges that cannot be read are missing, which an alert on absence tells
            return
        alert = GaugeMetricFamily("duly_alert", "1: raised; 0: pending.", labels=["rule", "subject", "severity"])
        acked = GaugeMetricFamily("duly_alert_acked", "1 when somebody took note of it.", labels=["rule", "subject"])
        for one in standing.alerts:
            alert.add_metric([one.rule, one.subject, str(one.severity)], 1 if one.state is State.RAISED else 0)
            if one.state is State.RAISED:
                acked.add_metric([one.rule, one.subject], 1 if one.is_acked else 0)
        yield alert
        yield acked
        if standing.judged is None:
            return
        value = GaugeMetricFamily("duly_alert_value", "What a rule was judged by.", labels=["rule", "subject"])
        unknown = GaugeMetricFamily("duly_alert_unknown", "1 when a rule could not be judged.", labels=["rule"])
        for rule, found in standing.judged.readings.items():
            unknown.add_metric([rule], 1 if isinstance(found, str) else 0)
            if not isinstance(found, str):
                for subject, n in found.items():
                    value.add_metric([rule, subject], n)
        yield value
        yield unknown
        age = max(0.0, (standing.now - standing.judged.at).total_seconds())
        yield GaugeMetricFamily("duly_alerts_judged_age_seconds", "How long ago somebody judged.", value=age)


def health(beside: Beside | None, reasons: list[str]) -> tuple[bool, dict[str, Any]]:
    """(is it well enough to answer 200, the document of ``/health``). ``reasons``: why this process is not ready.

    ``ok``: ready, and nothing is raised. ``degraded``: ready, and something is raised or cannot be judged. ``failing``: not ready,
    or the database does not answer.
    """
    standing, problem = (None, "") if beside is None else beside.ask()
    raised = () if standing is None else standing.raised
    unknown = {} if standing is None else standing.unknown
    stale = standing.stale if standing is not None else ""
    failing = bool(reasons or problem)
    status = "failing" if failing else "degraded" if raised or unknown or stale else "ok"
    document: dict[str, Any] = {
        "status": status, "reasons": [*reasons, *([f"alerts: {problem}"] if problem else [stale] if stale else [])],
    }  # fmt: skip
    if beside is not None:
        judged = standing.judged if standing is not None else None
        document |= {
            "alerts": [told(alert) for alert in raised], "unknown": unknown,
            "judged_at": judged.at if judged is not None else None, "judged_by": judged.by if judged is not None else None,
        }  # fmt: skip
    return not failing, document


def told(alert: Alert) -> dict[str, Any]:
    """A raised alert in a few words."""
    return {
        "id": alert.id, "rule": alert.rule, "subject": alert.subject, "severity": str(alert.severity), "detail": alert.detail,
        "raised_at": alert.raised_at, "acked_by": alert.acked_by,
    }  # fmt: skip

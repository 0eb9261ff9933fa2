"""The same rules for Prometheus and Grafana, written from their definitions, so that what is judged here and there is one.

Two groups of Prometheus rules. The first asks the gauges that every worker with ``--metrics-port`` serves (``duly_alert``,
``duly_alert_value``): one rule per rule here, with its threshold and its patience. The second watches the watchers: nobody judges,
no worker answers, a rule cannot be judged. Nothing here depends on this process's judgement alone: a threshold that a value has
crossed fires in Prometheus even if the alert could not be written.

Sources: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/,
https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from duly.monitoring.alerts.alert import Rule, Severity

#: What Grafana calls its format when the dashboard was written.
SCHEMA = 39


@dataclass(frozen=True, slots=True)
class Watching:
    """A rule about the watching itself."""

    name: str
    expr: str
    hold: float
    severity: Severity
    summary: str
    remedy: str


def watching(every: float) -> tuple[Watching, ...]:
    """``every``: seconds between judgements."""
    return (
        Watching(
            "DulyNobodyJudges", f"min(duly_alerts_judged_age_seconds) > {_number(max(300.0, 5 * every))}", 0, Severity.CRITICAL,
            "Nobody has judged Duly's alerts for {{ $value | humanizeDuration }}.",
            "Workers do: look whether one is alive, or run duly alerts check.",
        ),
        Watching(
            "DulyNoWorkerAnswers", "absent(duly_worker_ready)", 300, Severity.CRITICAL,
            "No worker of Duly has been scraped for five minutes.",
            "Start one with --metrics-port, or mend the scrape.",
        ),
        Watching(
            "DulyWorkerNotReady", "duly_worker_ready == 0", 300, Severity.WARNING,
            "The worker at {{ $labels.instance }} is not ready.",
            "Its /readyz says why.",
        ),
        Watching(
            "DulyAlertsUnreadable", "min(duly_alerts_readable) by (instance) == 0", 300, Severity.WARNING,
            "The worker at {{ $labels.instance }} cannot read the alerts.",
            "Look whether its database answers: duly doctor.",
        ),
        Watching(
            "DulyRuleUnknown", "max(duly_alert_unknown) by (rule) == 1", 300, Severity.WARNING,
            "The rule {{ $labels.rule }} cannot be judged.",
            "duly alerts check says why.",
        ),
    )  # fmt: skip


def camel(name: str) -> str:
    """``queue_backlog`` → ``DulyQueueBacklog``."""
    return "Duly" + "".join(part.capitalize() for part in name.split("_"))


def expression(rule: Rule) -> str:
    """PromQL that is true while a rule's value is beyond its threshold, or its alert is raised.

    Too few samples are judged nowhere but here: for such rules the gauge says nothing of its own, and the alert alone counts.
    """
    raised = f'max(duly_alert{{rule="{rule.name}"}}) by (subject) == 1'
    if rule.samples:
        return raised
    return f'max(duly_alert_value{{rule="{rule.name}"}}) by (subject) > {_number(rule.threshold)} or {raised}'


def _number(value: float) -> str:
    return f"{value:.10g}"


def _span(seconds: float) -> str:
    return f"{math.ceil(seconds)}s"


_HUMAN = {"s": "humanizeDuration", "ratio": "humanizePercentage", "count": "humanize"}


def prometheus(rules: Iterable[Rule], every: float) -> str:
    """A rules file. Its texts are JSON strings, which are YAML too."""
    lines = [
        "# Written by `duly alerts export prometheus` from the rules of Duly. Write it anew rather than edit it.",
        "groups:",
        "  - name: duly",
        "    rules:",
    ]
    for rule in rules:
        about = f" ({rule.noun} {{{{ $labels.subject }}}})" if rule.noun else ""
        value = "" if rule.samples else f": {{{{ $value | {_HUMAN[rule.unit]} }}}}"
        lines += _rule(
            camel(rule.name), expression(rule), rule.hold, rule.severity, f"Duly: {rule.name}{about}{value}",
            rule.terms(), rule.remedy, {"rule": rule.name},
        )  # fmt: skip
    lines += ["  - name: duly-watching", "    rules:"]
    for w in watching(every):
        lines += _rule(w.name, w.expr, w.hold, w.severity, w.summary, w.summary, w.remedy, {})
    return "\n".join(lines) + "\n"


def _rule(
    name: str,
    expr: str,
    hold: float,
    severity: Severity,
    summary: str,
    description: str,
    remedy: str,
    labels: dict[str, str],
) -> list[str]:
    out = [f"      - alert: {name}", f"        expr: {json.dumps(expr)}"]
    if hold > 0:
        out.append(f"        for: {_span(hold)}")
    out.append("        labels:")
    out += [f"          {key}: {json.dumps(value)}" for key, value in {"severity": str(severity), **labels}.items()]
    out.append("        annotations:")
    texts = {"summary": summary, "description": description, "remedy": remedy}
    out += [f"          {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in texts.items()]
    return out


# ---------------------------------------------------------------------- Grafana


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: PromQL by legend."""

    title: str
    queries: tuple[tuple[str, str], ...]
    #: Grafana's unit.
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    #: Where a line is drawn.
    threshold: float | None = None
    description: str = ""


_RATE = "$__rate_interval"
_GRAFANA_UNIT = {"s": "s", "ratio": "percentunit", "count": "short"}


def _quantile(metric: str, by: str, q: str = "0.95") -> str:
    return f"histogram_quantile({q}, sum(rate({metric}_bucket[{_RATE}])) by (le, {by}))"


#: What is always looked at first.
OVERVIEW = (
    Panel("Raised alerts", (("raised", "sum(max(duly_alert) by (rule, subject)) or vector(0)"),), kind="stat", width=6, height=4, threshold=0),
    Panel("Workers that are ready", (("ready", "sum(duly_worker_ready) or vector(0)"),), kind="stat", width=6, height=4),
    Panel("Last judgement", (("ago", "min(duly_alerts_judged_age_seconds)"),), "s", "stat", 6, 4, 300),
    Panel("Rules that cannot be judged", (("rules", "sum(max(duly_alert_unknown) by (rule)) or vector(0)"),), kind="stat", width=6, height=4,
          threshold=0),
    Panel("Alerts", (("", "max(duly_alert) by (rule, subject, severity)"),), kind="table", width=24),
)  # fmt: skip
JOBS = (
    Panel("Jobs that ended, per second", (("{{event}}", f"sum(rate(duly_jobs_settled_total[{_RATE}])) by (event)"),), "ops"),
    Panel("Failures by task, per second", (
        ("{{task}} {{event}}", f'sum(rate(duly_jobs_settled_total{{event=~"fail|retry"}}[{_RATE}])) by (task, event)'),), "ops"),
    Panel("How long runs take (95 %)", (("{{task}}", _quantile("duly_job_seconds", "task")),), "s"),
    Panel("From planned to started (95 %)", (("{{queue}}", _quantile("duly_job_lag_seconds", "queue")),), "s"),
    Panel("Slots", (
        ("{{queue}} running", "sum(duly_worker_running) by (queue)"), ("{{queue}} slots", "sum(duly_worker_slots) by (queue)"),)),
    Panel("Trouble, per second", (
        ("loop {{loop}}", f"sum(rate(duly_loop_failures_total[{_RATE}])) by (loop)"),
        ("lease lost", f"sum(rate(duly_lease_lost_total[{_RATE}]))"), ("rescued", f"sum(rate(duly_rescued_total[{_RATE}]))"),), "ops"),
)  # fmt: skip
OUTBOX = (
    Panel(
        "Messages that are not sent",
        (("{{destination}} {{state}}", "max(duly_outbox_messages) by (destination, state)"),),
    ),
    Panel("The oldest of them", (("{{destination}}", "max(duly_outbox_oldest_seconds) by (destination)"),), "s"),
)
TIME = (
    Panel("Occurrences of schedules, per minute", (
        ("{{status}}", f"sum(rate(duly_schedule_occurrences_total[{_RATE}])) by (status) * 60"),)),
    Panel("Ticks of the rounds: how long (95 %)", (("{{tick}}", _quantile("duly_tick_seconds", "tick")),), "s"),
    Panel("Groups per minute", (("{{tick}} {{result}}", f"sum(rate(duly_tick_groups_total[{_RATE}])) by (tick, result) * 60"),)),
    Panel("From planned to opened and closed (95 %)", (("{{tick}}", _quantile("duly_tick_lateness_seconds", "tick")),), "s"),
)  # fmt: skip


def grafana(rules: Iterable[Rule]) -> str:
    """A dashboard as JSON, to be imported. It asks for the Prometheus to read when it is opened."""
    watched = tuple(
        Panel(
            rule.name, (("{{subject}}" if rule.noun else rule.name, f'max(duly_alert_value{{rule="{rule.name}"}}) by (subject)'),),
            _GRAFANA_UNIT[rule.unit], width=8, height=6, threshold=rule.threshold, description=f"{rule.terms()} {rule.remedy}",
        )
        for rule in rules
    )  # fmt: skip
    rows = (
        ("Now", OVERVIEW),
        ("Jobs", JOBS),
        ("Schedules and rounds", TIME),
        ("Outbox", OUTBOX),
        ("What rules are judged by", watched),
    )
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in rows:
        panels.append({
            "id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        })  # fmt: skip
        y, x, tallest = y + 1, 0, 0
        for panel in row:
            if x + panel.width > 24:
                x, y, tallest = 0, y + tallest, 0
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    dashboard = {
        "uid": "duly", "title": "Duly", "tags": ["duly"], "schemaVersion": SCHEMA, "editable": True, "refresh": "30s", "timezone": "utc",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{
            "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0, "refresh": 1,
        }]},
        "panels": panels,
    }  # fmt: skip
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


def _panel(panel: Panel, ident: int, x: int, y: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.threshold is not None:
        # a step holds from its value on, and the threshold itself is still fine
        steps.append(
            {"color": "red", "value": math.nextafter(panel.threshold, math.inf) if panel.threshold else 0.000001}
        )
    custom = {"thresholdsStyle": {"mode": "line"}} if panel.threshold is not None and panel.kind == "timeseries" else {}
    return {
        "id": ident, "type": panel.kind, "title": panel.title, "description": panel.description, "datasource": source,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}, "custom": custom}, "overrides": []},
        "options": {},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": source, "expr": expr, "legendFormat": legend, "instant": panel.kind == "table",
             "format": "table" if panel.kind == "table" else "time_series"}
            for n, (legend, expr) in enumerate(panel.queries)
        ],
    }  # fmt: skip

"""The same rules for Prometheus and Grafana: valid, complete, and the committed copies current."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from duly import Duly
from duly.kernel.events import Event
from duly.monitoring.alerts.beside import AlertMetrics, Beside
from duly.monitoring.alerts.export import camel, grafana, prometheus, watching
from duly.monitoring.alerts.rules import every_rule
from duly.monitoring.metrics import Metrics
from duly.monitoring.outbox import OutboxMetrics
from duly.outbox.read import Backlog, Standing
from duly.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
S = Settings()
RULES = every_rule(S)


class Lane:
    running, concurrency = 1, 2


class FakeWorker:
    lanes, state, ready, problems = {"mail": Lane()}, "running", True, list[str]()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all series that a worker can serve, with each event told once."""
    app = Duly(f"sqlite:///{tmp_path_factory.mktemp('names')}/duly.db")
    app.gate.offline()
    app.alerts.judge("x")
    metrics = Metrics(FakeWorker())

    class Box:
        def status(self, sent: bool = True) -> Standing:
            return Standing(1, 1, 0, 0, None, None, 1.0, (Backlog("a:b", 1, 1),))

    outbox = OutboxMetrics([Box()])
    metrics.registry.register(AlertMetrics(Beside(app.alerts, "x", wait=60)))
    metrics.registry.register(outbox)
    for name, facts in (
        ("jobs_settled", {"jobs": [("q", "t", "succeed", 1.0)]}), ("jobs_claimed", {"lags": [("q", "t", 1.0)]}),
        ("job_failed", {"task": "t", "error": "ValueError"}), ("schedule_fired", {}), ("loop_failed", {"loop": "claim"}),
        ("round_tick", {"kind": "open", "seconds": 1.0, "done": 1, "skipped": 0, "failed": 0, "per_minute": 60.0}),
        ("rounds_moved", {"kind": "open", "lates": [1.0]}), ("round_tick_failed", {"kind": "open"}),
    ):  # fmt: skip
        metrics(Event(name, "info", facts))
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    found = {sample.name for family in families for sample in family.samples}
    app.close()
    # an alert, so that its series have a name too
    return found | {"duly_alert", "duly_alert_acked"}


def file() -> Any:
    return yaml.safe_load(prometheus(RULES, S.alerts_every))


def series(expr: str) -> set[str]:
    return set(re.findall(r"\bduly_\w+", re.sub(r'"[^"]*"', "", expr)))


def test_the_committed_copies_are_current() -> None:
    for name, text in (
        ("prometheus-rules.yml", prometheus(RULES, S.alerts_every)),
        ("grafana-dashboard.json", grafana(RULES)),
    ):
        committed = (DEPLOY / name).read_text(encoding="utf-8")
        assert committed == text, (
            f"deploy/{name} is out of date: duly alerts export {name.partition('-')[0]} -o deploy/{name}"
        )


def test_every_rule_is_in_the_rules_file_with_its_threshold() -> None:
    own, about = file()["groups"]
    assert (own["name"], about["name"]) == ("duly", "duly-watching")
    assert [rule["alert"] for rule in own["rules"]] == [camel(rule.name) for rule in RULES]
    assert [rule["alert"] for rule in about["rules"]] == [w.name for w in watching(S.alerts_every)]
    for rule, written in zip(RULES, own["rules"], strict=True):
        assert set(written) <= {"alert", "expr", "for", "labels", "annotations"}
        assert written["labels"] == {"severity": str(rule.severity), "rule": rule.name}
        assert written["annotations"]["remedy"] == rule.remedy
        assert written.get("for") == (f"{rule.hold:.0f}s" if rule.hold else None)
        assert f'duly_alert{{rule="{rule.name}"}}' in written["expr"]
        if not rule.samples:
            assert f"> {rule.threshold:g} " in written["expr"]


def test_thresholds_of_other_settings_are_written() -> None:
    text = prometheus(every_rule(Settings(alerts_idle=7200)), 30)
    assert 'rule=\\"jobs_idle\\"}) by (subject) > 7200 ' in text


def test_every_series_that_is_asked_for_exists(names: set[str]) -> None:
    asked = {name for group in file()["groups"] for rule in group["rules"] for name in series(rule["expr"])}
    asked |= {name for panel in panels() for target in panel.get("targets", ()) for name in series(target["expr"])}
    assert len(asked) > 15
    assert asked - names == set()


def panels() -> list[Any]:
    return list(json.loads(grafana(RULES))["panels"])


def test_the_dashboard_is_laid_out_without_overlaps() -> None:
    seen: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & seen, panel["title"]
        seen |= cells


def test_every_panel_asks_the_chosen_prometheus_something() -> None:
    for panel in panels():
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("stat", "timeseries", "table")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert refs
        assert len(set(refs)) == len(refs)
        assert all(target["expr"].count("(") == target["expr"].count(")") for target in panel["targets"])


def test_every_rule_has_a_panel_with_its_threshold() -> None:
    by_title = {panel["title"]: panel for panel in panels()}
    for rule in RULES:
        steps = by_title[rule.name]["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0] == {"color": "green", "value": None}
        assert steps[1]["value"] > rule.threshold  # the threshold itself is fine
        assert steps[1]["value"] == pytest.approx(rule.threshold, abs=0.00001)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_itself_takes_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yml"
    path.write_text(prometheus(RULES, S.alerts_every), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # every expression of the dashboard is PromQL too
    rules = [
        {"record": f"panel:{n}", "expr": target["expr"].replace("$__rate_interval", "5m")}
        for n, target in enumerate(t for panel in panels() for t in panel.get("targets", ()))
    ]
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

"""``duly alerts``: judge, look, take note, export."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from cli.hands import Run
from duly import Duly


@pytest.fixture
def stuck(app: Duly) -> Duly:
    """Two things a person should know: messages... a lease that nobody rescues, and a gate that is closed for long."""
    from sqlalchemy import update

    from duly.jobs.tables import jobs, system_state

    ident = app.enqueue("X").job.id
    app.gate.offline("deploy", "cli:ada")
    long_ago = app.engine.clock.now() - timedelta(hours=2)

    def write(c: object) -> None:
        held = {"status": "running", "lease_token": 1, "lease_until": long_ago, "started_at": long_ago}
        c.execute(update(jobs).where(jobs.c.id == ident).values(**held))  # type: ignore[attr-defined]
        c.execute(update(system_state).values(updated_at=long_ago))  # type: ignore[attr-defined]

    app.db.write(write)
    return app


def test_check_says_that_nothing_is_raised_and_ends_with_0(on: Run) -> None:
    said = on("alerts", "check")
    assert (said.code, said.out) == (0, "Nothing is raised.\n")
    assert on("alerts", "check", "--json").json["raised"] == []
    listed = on("alerts", "list")
    assert listed.code == 0
    assert listed.out.startswith("Nothing is raised. It was judged ")


def test_before_anybody_judged_the_list_says_so(on: Run) -> None:
    assert on("alerts", "list").out == "Nothing is raised. Nobody has judged yet: duly alerts check.\n"


def test_check_judges_from_outside_and_ends_with_1_when_something_is_raised(on: Run, stuck: Duly) -> None:
    said = on("alerts", "check")
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0].split() == ["id", "state", "severity", "rule", "subject", "since", "noted", "by", "what"]
    assert "leases_stuck" in lines[1]  # the critical one first
    assert "gate_offline" in lines[2]
    assert lines[-1] == "2 alerts raised."
    again = on("alerts", "check", "--json")
    assert again.code == 1
    assert [a["rule"] for a in again.json["raised"]] == ["leases_stuck", "gate_offline"]
    assert again.json["judged_by"].startswith("cli:")
    assert len(on("audit", "list", "--entity", "alert", "--json").json) == 2


def test_taking_note_and_asking_for_what_nobody_took_note_of(on: Run, stuck: Duly) -> None:
    on("alerts", "check")
    for alert in on("alerts", "list", "--json").json:
        assert on("alerts", "ack", str(alert["id"]), "--reason", "on it").code == 0
    assert on("alerts", "check").code == 1
    assert on("alerts", "check", "--unacked").code == 0
    shown = on("alerts", "show", str(alert["id"])).out
    assert "by cli:" in shown
    assert "on it" in shown
    assert "what to do" in shown
    [row] = [
        r for r in on("audit", "list", "--action", "ALERT_ACKED", "--json").json if r["entity_id"] == str(alert["id"])
    ]
    assert row["meta"]["reason"] == "on it"


def test_cleared_alerts_are_listed_on_demand(on: Run, stuck: Duly) -> None:
    on("alerts", "check")
    stuck.gate.online()
    assert on("alerts", "check").code == 1  # the lease is still there
    assert [a["rule"] for a in on("alerts", "list", "--json").json] == ["leases_stuck"]
    every = on("alerts", "list", "--all", "--rule", "gate_offline", "--json").json
    assert [a["state"] for a in every] == ["cleared"]
    shown = on("alerts", "show", str(every[0]["id"]), "--json").json
    assert shown["cleared_at"]
    assert shown["remedy"] == "duly gate online."


def test_what_is_not_there_or_not_raised_is_refused(on: Run) -> None:
    for act in ("show", "ack"):
        said = on("alerts", act, "77")
        assert said.code == 1
        assert "alert 77" in said.err
    assert on("alerts", "ack", "x").code == 2


def test_rules_are_listed_with_their_thresholds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_ALERTS_IDLE", "7200")
    monkeypatch.setenv("DULY_ALERTS_OFF", "queue_paused")
    rows = {row["name"]: row for row in run("alerts", "rules", "--json").json}
    assert rows["jobs_idle"]["threshold"] == 7200
    assert (rows["jobs_idle"]["judged"], rows["queue_paused"]["judged"]) == (True, False)
    assert "jobs_idle" in run("alerts", "rules").out


def test_a_rule_that_does_not_exist_cannot_be_turned_off(on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_ALERTS_OFF", "nonsense")
    said = on("alerts", "check")
    assert said.code == 2
    assert "nonsense" in said.err


def test_rules_are_exported_for_others(run: Run, folder: Path) -> None:
    assert run("alerts", "export", "prometheus").out.startswith("# Written by")
    assert json.loads(run("alerts", "export", "grafana").out)["uid"] == "duly"
    said = run("alerts", "export", "prometheus", "-o", "rules.yml")
    assert (said.code, said.out) == (0, "Wrote rules.yml.\n")
    assert (folder / "rules.yml").read_text() == run("alerts", "export", "prometheus").out


def test_the_doctor_names_alerts_and_what_would_be_one(on: Run, stuck: Duly) -> None:  # T000-o
    before = {f["detail"]: f["grade"] for f in on("doctor", "--json").json["findings"] if f["check"] == "alerts"}
    assert set(before.values()) == {"warn"}
    assert any(detail.startswith("The lease of a running job lapsed") for detail in before)
    assert on("alerts", "list", "--all", "--json").json == []  # the doctor changes nothing
    on("alerts", "check")
    after = [(f["grade"], f["remedy"]) for f in on("doctor", "--json").json["findings"] if f["check"] == "alerts"]
    assert sorted(after) == [("fail", "duly alerts show 1"), ("warn", "duly alerts show 2")] or sorted(
        grade for grade, _ in after
    ) == ["fail", "warn"]


def test_secrets_of_notices_are_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_ALERTS_WEBHOOK", "https://hooks.example.org/T0/very-secret")
    monkeypatch.setenv("DULY_ALERTS_WEBHOOK_SECRET", "very-secret-very-secret")
    for said in (run("doctor", "--settings"), run("doctor", "--settings", "--json")):
        assert said.code == 0
        assert "very-secret" not in said.out

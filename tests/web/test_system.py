"""The trail, alerts, workers, health, metrics and the overview over REST; probes at the root."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.kernel.errors import DatabaseUnavailable
from duly.testing import ManualClock, drain
from duly.web.app import create
from web.hands import problem, wander, wandering

Caller = Callable[..., TestClient]


# ---------------------------------------------------------------------- audit


def test_the_trail_is_listed_newest_first_and_filtered(app: Duly, client: Caller) -> None:
    # R003-9
    app.queues.pause("mail", "why not", "cli:ann")
    app.gate.offline("moving", "cli:bob")
    somebody = client()
    assert [e["action"] for e in somebody.get("/api/v1/audit").json()["entries"]] == [
        "TOKEN_CREATED",
        "ATLAS_OFFLINE",
        "QUEUE_PAUSED",
    ]
    [entry] = somebody.get("/api/v1/audit", params={"actor": "cli:ann"}).json()["entries"]
    assert (entry["at"], entry["entity"], entry["entity_id"], entry["meta"]) == (
        "2026-03-27T09:00:00Z",
        "queue",
        "mail",
        {"reason": "why not"},
    )
    for given, count in (
        ({"action": "ATLAS_OFFLINE"}, 1), ({"level": "warning"}, 1), ({"entity": "queue", "entity_id": "mail"}, 1), ({"tenant": "acme"}, 0),
        ({"since": "2026-03-27T09:00:00Z"}, 3), ({"before": "2026-03-27T09:00:00Z"}, 0),
    ):  # fmt: skip
        assert len(somebody.get("/api/v1/audit", params=given).json()["entries"]) == count, given
    assert problem(somebody.get("/api/v1/audit", params={"since": "2026-03-27"}), 422)["field"] == "since"


def test_pages_of_the_trail_follow_each_other_without_a_gap(app: Duly, client: Caller) -> None:
    # B080
    for n in range(9):
        app.queues.pause(f"q{n}")
    somebody, seen, cursor = client(), [], None
    while True:
        given = {"entity": "queue", "limit": 4, **({"cursor": cursor} if cursor else {})}
        said = somebody.get("/api/v1/audit", params=given).json()
        seen += [e["entity_id"] for e in said["entries"]]
        app.queues.pause("later")  # what comes in front moves nothing
        if (cursor := said["next"]) is None:
            break
    assert seen == [f"q{n}" for n in reversed(range(9))]


def test_a_tenant_sees_its_own_trail(app: Duly, client: Caller) -> None:
    # R003-9
    mine = app.enqueue("greet", tenant="acme").job.id
    app.jobs.cancel(mine, "not needed")
    app.jobs.cancel(app.enqueue("greet", tenant="other").job.id)
    assert client(tenant="acme").get("/api/v1/audit", params={"tenant": "other"}).status_code == 404
    found = client(tenant="acme").get("/api/v1/audit").json()["entries"]
    assert {e["tenant"] for e in found} == {"acme"}
    assert str(mine) in [e["entity_id"] for e in found if e["action"] == "JOB_CANCELLED"]


def test_an_administrator_verifies_the_chain(app: Duly, client: Caller) -> None:
    from duly.audit.seal import Sealer

    app.queues.pause("mail")
    Sealer(app.db).seal()
    admin = client("admin")
    said = admin.post("/api/v1/audit/verify").json()
    assert (said["holds"], said["rows"], said["unsealed"], said["broken"]) == (True, 1, 1, None)
    problem(client("operator").post("/api/v1/audit/verify"), 403)
    problem(client("admin", tenant="acme").post("/api/v1/audit/verify"), 403)


# ---------------------------------------------------------------------- alerts


def raised(app: Duly) -> int:
    """An alert that is raised: the gate is shut for an hour."""
    clock = app.db.clock
    assert isinstance(clock, ManualClock)
    app.gate.offline("forgotten")
    for _ in range(3):
        clock.advance(timedelta(minutes=30))
        app.alerts.judge("test")
    [alert] = [a for a in app.alerts.standing().raised if a.rule == "gate_offline"]
    return alert.id


def test_an_alert_is_listed_shown_and_taken_note_of(app: Duly, client: Caller) -> None:
    # R000-20
    ident = raised(app)
    somebody = client("operator")
    listed = somebody.get("/api/v1/alerts", params={"state": "raised", "rule": "gate_offline"}).json()
    assert [a["id"] for a in listed["alerts"]] == [ident]
    assert (listed["judged_at"], listed["unknown"]) == ("2026-03-27T10:30:00Z", {})
    shown = somebody.get(f"/api/v1/alerts/{ident}").json()
    assert (shown["state"], bool(shown["remedy"]), bool(shown["terms"])) == ("raised", True, True)
    problem(client().post(f"/api/v1/alerts/{ident}/ack"), 403)
    noted = somebody.post(f"/api/v1/alerts/{ident}/ack", json={"reason": "on it"}).json()
    assert (noted["acked_by"], noted["ack_reason"], noted["state"]) == ("token:test 1", "on it", "raised")
    problem(somebody.get("/api/v1/alerts/999"), 404)
    problem(somebody.post("/api/v1/alerts/999/ack"), 404)
    assert problem(somebody.get("/api/v1/alerts", params={"state": "loud"}), 422)["field"].startswith("state")


def test_an_alert_that_was_cleared_is_not_taken_note_of(app: Duly, client: Caller) -> None:
    ident, clock = raised(app), app.db.clock
    assert isinstance(clock, ManualClock)
    app.gate.online()
    for _ in range(3):
        clock.advance(timedelta(minutes=30))
        app.alerts.judge("test")
    problem(client("operator").post(f"/api/v1/alerts/{ident}/ack"), 409)


def test_who_belongs_to_a_tenant_sees_nothing_of_the_machines(client: Caller) -> None:
    somebody = client("admin", tenant="acme")
    for path in ("alerts", "alerts/1", "workers", "health", "metrics"):
        problem(somebody.get(f"/api/v1/{path}"), 403)
    problem(somebody.post("/api/v1/alerts/1/ack"), 403)


# ---------------------------------------------------------------------- health, metrics, overview


def test_health_says_what_is_raised(app: Duly, client: Caller) -> None:
    # T000-o
    ident = raised(app)
    answer = client().get("/api/v1/health")
    said = answer.json()
    assert (answer.status_code, said["status"], said["reasons"]) == (200, "degraded", [])
    assert ident in [a["id"] for a in said["alerts"]]


def test_metrics_are_for_prometheus(app: Duly, client: Caller) -> None:
    # R000-19
    somebody = client(scopes=("system",))
    app.enqueue("greet")
    drain(app)
    answer = somebody.get("/api/v1/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "duly_jobs_settled_total" in answer.text
    assert "duly_alerts_readable 1.0" in answer.text
    problem(client(scopes=("jobs",)).get("/api/v1/metrics"), 403)


def test_the_overview_says_how_things_stand(app: Duly, client: Caller, clock: ManualClock) -> None:
    app.enqueue_many("greet", [{}, {}, {}])
    clock.advance(20)
    drain(app)
    app.enqueue("greet", queue="mail", tenant="acme")
    app.enqueue("greet", queue="mail", tenant="other", run_in=timedelta(hours=1))
    clock.advance(90)
    said = client().get("/api/v1/overview").json()
    assert said["now"] == "2026-03-27T09:01:50Z"
    assert [(q["queue"], q["ready"], q["later"]) for q in said["queues"]] == [("mail", 1, 1)]
    assert said["oldest"] == {"queue": "mail", "at": "2026-03-27T09:00:20Z", "seconds": 90.0}
    assert [m["succeeded"] for m in said["minutes"]] == [0, 0, 0, 3, 0]
    assert (said["totals"]["succeeded"], said["totals"]["wait_median"], said["totals"]["ready"]) == (3, 20.0, 1)
    assert said["system"] == {
        "workers": 0, "unserved": ["mail"], "alerts_raised": 0, "alerts_critical": 0, "alerts_noted": 0, "judged_at": None,
    }  # fmt: skip
    assert client(tenant="other").get("/api/v1/overview", params={"tenant": "acme"}).status_code == 404
    mine = client(tenant="other").get("/api/v1/overview").json()
    assert [(q["queue"], q["ready"], q["later"]) for q in mine["queues"]] == [("mail", 0, 1)]
    assert (mine["oldest"], mine["totals"]["succeeded"], mine["system"]) == (None, 0, None)


def test_the_workers_that_live_are_listed(app: Duly, client: Caller) -> None:
    app.worker({"default": 3}, name="w1").house.presence()
    [found] = client().get("/api/v1/workers").json()["workers"]
    assert (found["name"], found["queues"], found["seen_at"]) == ("w1", {"default": 3}, "2026-03-27T09:00:00Z")
    assert client().get("/api/v1/queues/default").json()["workers"] == 1
    assert client().get("/api/v1/overview").json()["system"]["workers"] == 1


# ---------------------------------------------------------------------- probes


def test_a_stranger_learns_whether_it_is_ready_and_not_why(
    app: Duly, stranger: TestClient, client: Caller, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    assert (stranger.get("/livez").status_code, stranger.get("/readyz").json()) == (
        200,
        {"status": "ready", "reasons": None},
    )
    somebody = client()
    assert somebody.get("/readyz").json() == {"status": "ready", "reasons": []}

    def gone(connection: object) -> None:
        raise DatabaseUnavailable("secret-host does not answer.")

    monkeypatch.setattr(app.db, "present", gone)
    answer = stranger.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "unready", "reasons": None})
    assert stranger.get("/livez").status_code == 200


def test_the_process_lives_while_its_database_is_away(app: Duly, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    token = "0123456789abcdef-token"
    with TestClient(create(app, token), headers={"Authorization": "Bearer duly_of_somebody"}) as unknown:

        def gone(*_: object) -> None:
            raise DatabaseUnavailable("secret-host does not answer.")

        monkeypatch.setattr(app.db, "read", gone)
        assert unknown.get("/livez").status_code == 200  # who asks cannot be found out, and need not be
        assert unknown.get("/readyz").json() == {"status": "unready", "reasons": None}
        known = {"Authorization": f"Bearer {token}"}
        answer = unknown.get("/readyz", headers=known)
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["secret-host does not answer."])
        told = problem(unknown.get("/api/v1/overview", headers=known), 503)
        assert "secret-host" not in told["detail"]
        problem(unknown.get("/api/v1/me"), 503)


@wandering
def test_the_routes_answer_as_they_are_described(site: FastAPI, client: Caller) -> None:
    wander(
        site,
        client("admin"),
        "^/(livez|readyz|api/v1/(audit|alerts|workers|health|metrics|overview))",
        11,
    )

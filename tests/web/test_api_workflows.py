"""Workflows over REST, on both databases. Source: R003, ADR 0025, B080."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.testing import ManualClock, drain
from duly.workflows import WorkflowContext
from web.hands import problem, wander, wandering

RUNS = "/api/v1/workflows/runs"
Client = Callable[..., TestClient]


@pytest.fixture
def site(app: Duly, site: FastAPI) -> FastAPI:
    """With a workflow that calls a task, waits for an event, and asks a person."""

    @app.workflow("order")
    async def order(ctx: WorkflowContext, number: int, password: str = "") -> dict[str, Any]:
        greeted = await ctx.enqueue("greet", name=f"order {number}")
        paid = await ctx.wait_event("paid", timeout=timedelta(days=3))
        yes = await ctx.approve("send it")
        return {"greeted": greeted, "paid": paid, "sent": bool(yes), "by": yes.by}

    return site


@pytest.fixture
def operator(client: Client) -> TestClient:
    return client("operator")


def start(caller: TestClient, **more: Any) -> int:
    answer = caller.post(RUNS, json={"workflow": "order", "input": {"number": 7, "password": "hush"}, **more})
    assert answer.status_code == 201, answer.text
    ident: int = answer.json()["run"]["id"]
    assert answer.headers["location"] == f"{RUNS}/{ident}"
    return ident


def settle(app: Duly) -> None:
    drain(app)
    drain(app)


def test_a_run_is_started_told_and_approved_and_seen_whole(operator: TestClient, app: Duly) -> None:
    run = start(operator)
    settle(app)
    seen = operator.get(f"{RUNS}/{run}").json()
    assert (seen["state"], seen["input"]) == ("waiting", {"number": 7, "password": "*****"})
    assert seen["waits"] == [{"kind": "event", "name": "paid", "until": "2026-03-30T09:00:00Z"}]
    assert [(step["kind"], step["status"]) for step in seen["steps"]] == [("task", "done"), ("event", "waiting")]
    assert [(job["task"], job["depth"], job["status"]) for job in seen["jobs"]] == [("greet", 1, "succeeded")]
    assert seen["jobs"][0]["id"] == seen["steps"][0]["child_id"]
    assert operator.get(f"{RUNS}/{run}?last=1").json()["steps_count"] == 2
    assert operator.get(f"{RUNS}/{run}/mermaid").text.startswith("flowchart TD")
    problem(operator.post(f"{RUNS}/{run}/approve", json={}), 409)

    told = {"name": "paid", "payload": {"cents": 5}, "key": "k"}
    assert [operator.post(f"{RUNS}/{run}/signal", json=told).json()["sent"] for _ in range(2)] == [True, False]
    settle(app)
    assert operator.get(f"{RUNS}/{run}").json()["state"] == "AWAITING_HUMAN"
    assert problem(operator.post(f"{RUNS}/{run}/approve", json={"name": "other"}), 422)["field"] == "name"
    operator.post(f"{RUNS}/{run}/approve", json={"approved": False, "reason": "not yet"})
    problem(operator.post(f"{RUNS}/{run}/approve", json={}), 409)
    settle(app)
    done = operator.get(f"{RUNS}/{run}").json()
    assert (done["state"], done["output"]["sent"], done["output"]["by"]) == ("succeeded", False, "token:test 1")
    problem(operator.post(f"{RUNS}/{run}/signal", json=told), 409)
    rows = app.db.read(lambda c: find(c, TrailFilter(), 50))
    acts = {row.action: (row.actor, (row.meta or {}).get("reason")) for row in rows}
    assert acts["WORKFLOW_REJECTED"] == ("token:test 1", "not yet")
    assert acts["WORKFLOW_SIGNALLED"][0] == "token:test 1"


def test_a_key_has_one_run(operator: TestClient) -> None:
    run = start(operator, key="order-7")
    again = operator.post(RUNS, json={"workflow": "order", "input": {"number": 7}, "key": "order-7"})
    assert (again.status_code, again.json()["created"], again.json()["run"]["id"]) == (200, False, run)


def test_runs_are_replayed_forked_and_cancelled(operator: TestClient, app: Duly, clock: ManualClock) -> None:
    run = start(operator)
    settle(app)
    problem(operator.post(f"{RUNS}/{run}/replay"), 409)
    fork = operator.post(f"{RUNS}/{run}/fork", json={"since": 2, "reason": "try"})
    assert (fork.status_code, fork.json()["forked_from"]) == (201, run)
    ended = operator.post(f"{RUNS}/{run}/cancel", json={"reason": "wrong"}).json()
    assert ended["state"] == "cancelled"
    problem(operator.post(f"{RUNS}/{run}/cancel"), 409)
    assert problem(operator.post(f"{RUNS}/{run}/replay", json={"since": "nothing"}), 422)["field"] == "since"
    assert problem(operator.post(f"{RUNS}/{run}/replay", json={"since": 99}), 422)["field"] == "since"
    again = operator.post(f"{RUNS}/{run}/replay", json={"since": 1, "reason": "again"}).json()
    assert (again["id"], again["state"]) == (run, "queued")
    for act in ("cancel", "replay", "fork"):
        problem(operator.post(f"{RUNS}/999/{act}"), 404)


def test_a_run_is_cancelled_with_undo_and_says_before_and_after_what_stays(
    operator: TestClient, app: Duly
) -> None:  # C044
    run = start(operator)
    settle(app)
    seen = operator.get(f"{RUNS}/{run}").json()
    assert seen["stays"] == list(app.workflows.standing(run)) != []
    assert seen["steps_limit"] == app.settings.workflow_steps_max
    assert operator.post(f"{RUNS}/{run}/cancel", json={"undo": True, "reason": "wrong"}).json()["state"] == "queued"
    settle(app)
    ended = operator.get(f"{RUNS}/{run}").json()
    assert ended["state"] == "cancelled"
    assert f"What stays: {', '.join(seen['stays'])}" in ended["error"]["message"]


def test_what_is_wrong_with_a_start_is_named(operator: TestClient) -> None:
    for given, field in (
        ({"workflow": "order"}, "number"), ({"workflow": ""}, "workflow"), ({"workflow": "order", "input": []}, "input"),
        ({"workflow": "order", "input": {"number": 1}, "run_at": "2026-03-28T09:00:00"}, "run_at"),
        ({"workflow": "order", "input": {"number": 1}, "run_at": "2026-03-28T09:00:00Z", "run_in": 1}, "run_in"),
    ):  # fmt: skip
        assert problem(operator.post(RUNS, json=given), 422)["field"].endswith(field)
    assert operator.get("/api/v1/workflows").json() == {
        "workflows": [{"name": "order", "versions": [1], "queue": "workflows"}]
    }


def test_runs_are_listed_page_by_page(operator: TestClient) -> None:
    # B080
    made = [start(operator) for _ in range(5)]
    start(operator, tenant="acme")
    seen: list[int] = []
    cursor = ""
    while cursor is not None:
        page = operator.get(f"{RUNS}?limit=2&tenant=default{cursor and f'&cursor={cursor}'}").json()
        seen += [run["id"] for run in page["runs"]]
        cursor = page["next"]
    assert seen == made[::-1]
    assert operator.get(f"{RUNS}?workflow=none").json()["runs"] == []
    assert operator.get(f"{RUNS}?status=succeeded&status=failed").json()["runs"] == []
    for query, field in (
        ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=abc", "limit"), ("limit=1000000000000", "limit"), ("cursor=abc", "cursor"),
        ("cursor=WzBd", "cursor"), ("status=gone", "status[0]"),
    ):  # fmt: skip
        assert problem(operator.get(f"{RUNS}?{query}"), 422)["field"] == field


def test_another_tenants_run_is_not_there(client: Client, operator: TestClient) -> None:
    run = start(operator, tenant="acme")
    other = client("operator", tenant="other")
    assert other.get(RUNS).json()["runs"] == []
    assert other.get(f"{RUNS}?tenant=acme").status_code == 404
    for path in ("", "/mermaid"):
        problem(other.get(f"{RUNS}/{run}{path}"), 404)
    for act in ("replay", "fork", "cancel"):
        problem(other.post(f"{RUNS}/{run}/{act}"), 404)
    problem(other.post(f"{RUNS}/{run}/signal", json={"name": "paid"}), 404)
    problem(other.post(f"{RUNS}/{run}/approve", json={}), 404)
    given = {"workflow": "order", "input": {"number": 1}, "tenant": "acme"}
    assert problem(other.post(RUNS, json=given), 422)["field"] == "tenant"


def test_who_looks_acts_on_nothing_and_sees_no_payload(client: Client, operator: TestClient, app: Duly) -> None:
    run = start(operator)
    settle(app)
    viewer = client("viewer")
    seen = viewer.get(f"{RUNS}/{run}").json()
    assert (seen["hidden"], seen["input"], [step["output"] for step in seen["steps"]]) == (True, None, [None, None])
    assert (
        "hello"
        not in viewer.get(f"{RUNS}/{run}").text + viewer.get(RUNS).text + viewer.get(f"{RUNS}/{run}/mermaid").text
    )
    for act in ("replay", "fork", "cancel"):
        problem(viewer.post(f"{RUNS}/{run}/{act}"), 403)
    problem(viewer.post(RUNS, json={"workflow": "order"}), 403)
    problem(viewer.post(f"{RUNS}/{run}/signal", json={"name": "paid"}), 403)
    problem(viewer.post(f"{RUNS}/{run}/approve", json={}), 403)
    problem(client("operator", scopes=("jobs",)).get(RUNS), 403)


@wandering
def test_workflows_answer_as_they_are_described(site: FastAPI, client: Client) -> None:
    wander(site, client("admin"), "^/api/v1/workflows", 10)

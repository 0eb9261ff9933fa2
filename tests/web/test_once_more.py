"""What a fresh look at the gate has found: each once, so that it stays mended. ADR 0029."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from duly import Duly
from duly.accounts.door import Accounts, csrf_of
from duly.audit.read import TrailFilter, find
from duly.web.app import create
from duly.web.gate import COOKIE
from web.hands import problem

JOBS = "/api/v1/jobs"
WORDS = "a battery of correct horses"


def bearer(accounts: Accounts, site: Any, name: str, role: str, **more: Any) -> TestClient:
    token, _ = accounts.create_token(name, role, **more)
    return TestClient(site, headers={"Authorization": f"Bearer {token}"})


def test_a_recorded_answer_is_given_to_nobody_with_fewer_rights(site: Any, accounts: Accounts) -> None:
    key = {"Idempotency-Key": "k1"}
    strong, weak = bearer(accounts, site, "ci", "operator"), bearer(accounts, site, "ci", "viewer")
    assert strong.post(JOBS, json={"task": "greet"}, headers=key).status_code == 201
    assert strong.post(JOBS, json={"task": "greet"}, headers=key).status_code == 201
    assert weak.post(JOBS, json={"task": "greet"}, headers=key).status_code == 403
    other = bearer(accounts, site, "ci", "operator")
    assert other.post(JOBS, json={"task": "greet"}, headers=key).json()["job"]["id"] == 2  # its own key


def test_the_answer_that_holds_a_new_token_is_kept_nowhere(site: Any, accounts: Accounts, app: Duly) -> None:
    admin = bearer(accounts, site, "root", "admin")
    body, key = {"name": "new", "role": "viewer"}, {"Idempotency-Key": "k1"}
    first, second = (
        admin.post("/api/v1/tokens", json=body, headers=key),
        admin.post("/api/v1/tokens", json=body, headers=key),
    )
    assert first.status_code == second.status_code == 201
    assert first.json()["token"] != second.json()["token"]
    assert app.db.read(lambda c: c.execute(text("SELECT count(*) FROM idempotency")).scalar()) == 0


def test_posts_are_shown_to_nobody_who_may_not_see_payloads(site: Any, accounts: Accounts) -> None:
    assert bearer(accounts, site, "v", "viewer").get("/fp-publisher/v1/jobs").status_code == 403
    assert (
        bearer(accounts, site, "p", "viewer", scopes=["publishing", "payloads"])
        .get("/fp-publisher/v1/jobs")
        .status_code
        == 200
    )
    assert bearer(accounts, site, "o", "operator").get("/fp-publisher/v1/jobs").status_code == 200


def test_a_local_door_that_was_closed_stays_closed(app: Duly, accounts: Accounts) -> None:
    def seen() -> int:
        with TestClient(create(app, local=True), base_url="http://localhost") as client:
            return client.get(JOBS).status_code

    assert seen() == 200
    _, token = accounts.create_token("ci")
    assert seen() == 401
    accounts.revoke_token(token.id)
    assert seen() == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"X-Forwarded-For": "203.0.113.9"}, 401),
        ({"Forwarded": "for=203.0.113.9"}, 401),
        ({"Origin": "http://evil.example", "Authorization": ""}, 403),
        ({"Origin": "https://localhost"}, 403),
        ({"Origin": "http://localhost"}, 201),
        ({"Sec-Fetch-Site": "cross-site", "Authorization": ""}, 403),
        ({"Host": "[::1].evil.example"}, 403),
        ({"Host": "127.0.0.1:a.evil.example"}, 403),
        ({"Host": "LOCALHOST"}, 201),
    ],
)
def test_a_local_door_is_for_this_machine_and_its_own_pages(app: Duly, headers: dict[str, str], status: int) -> None:
    with TestClient(create(app, local=True), base_url="http://localhost") as client:
        assert client.post(JOBS, json={"task": "greet"}, headers=headers).status_code == status


def test_a_header_that_is_there_twice_is_believed_in_neither_form(app: Duly) -> None:
    with TestClient(create(app, local=True), base_url="http://localhost") as client:
        twice = [("Origin", "http://evil.example"), ("Origin", "http://localhost")]
        assert client.post(JOBS, json={"task": "greet"}, headers=twice).status_code == 400


def test_mounted_below_another_path_everything_holds_as_it_does_at_the_root(app: Duly, accounts: Accounts) -> None:
    accounts.create_user("ann", WORDS, "operator")
    session = accounts.log_in("ann", WORDS)
    assert session is not None
    outer = Starlette(routes=[Mount("/duly", app=create(app))])
    with TestClient(outer, cookies={COOKIE: session}) as client:
        assert client.post(f"/duly{JOBS}", json={"task": "greet"}).status_code == 403
        right = {"x-csrf-token": csrf_of(session)}
        assert client.post(f"/duly{JOBS}", json={"task": "greet"}, headers=right).status_code == 201
    with TestClient(outer) as stranger:
        assert stranger.get("/duly/livez").status_code == 200
        led = stranger.get("/duly/jobs", headers={"Accept": "text/html"}, follow_redirects=False)
        assert led.headers["location"].startswith("/duly/login?next=%2Fjobs")


def test_a_name_that_no_database_keeps_logs_nobody_in(stranger: TestClient) -> None:
    answer = stranger.post("/login", data={"name": "a\x00", "password": WORDS}, headers={"Origin": "http://testserver"})
    assert answer.status_code < 500


def test_a_cursor_with_a_nul_is_none_that_was_given_out(client: Callable[..., TestClient]) -> None:
    from duly.web.api.common import cursor

    assert client().get("/api/v1/schedules", params={"cursor": cursor("a\x00", "b")}).status_code == 422


@pytest.mark.parametrize("task", ["ROUNDS_OPEN", "PUBLISH", "ig_first_comment", "AI_SESSION", "ROUNDS_NOTIFY_EMAIL"])
def test_nobody_makes_jobs_of_a_rooms_own_tasks_by_their_names(client: Callable[..., TestClient], task: str) -> None:
    """What they do may reach other tenants and other areas than those of who asks."""
    for who in (client("operator", tenant="acme", scopes=("jobs", "schedules")), client("admin")):
        assert problem(who.post("/api/v1/jobs", json={"task": task}), 422)["field"] == "task"
        assert problem(who.post("/api/v1/jobs/batch", json={"jobs": [{"task": task}]}), 422)["field"] == "jobs[0].task"
        recurrence = {"kind": "every", "duration": "1h"}
        assert (
            problem(who.put("/api/v1/schedules/mine", json={"task": task, "recurrence": recurrence}), 422)["field"]
            == "task"
        )


def test_a_tick_of_rounds_by_hand_stands_in_the_trail(client: Callable[..., TestClient], app: Duly) -> None:
    # T003-i
    assert client("operator").post("/api/v1/rounds/ticks", json={"kind": "plan"}).status_code == 200
    (entry,) = app.db.read(lambda c: find(c, TrailFilter(action="ROUNDS_TICKED")))
    assert (entry.actor, entry.meta) == ("token:test 1", {"kind": "plan"})


def test_a_socket_is_refused_and_nothing_falls_over(site: Any) -> None:
    from starlette.websockets import WebSocketDisconnect

    with TestClient(site) as client, pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/v1/events"):
        pass


def test_who_acts_on_publications_stands_in_the_trail(site: Any, accounts: Accounts, app: Duly) -> None:
    from duly.publishing import Publishing, Run

    @Publishing(app).process("wall")
    def wall(run: Run) -> None:
        run.mark_completed("1")

    operator = bearer(accounts, site, "op", "operator")
    made = operator.post("/fp-publisher/v1/jobs", json={"channel": "wall", "payload": {"caption": "Plums"}})
    assert made.status_code == 201
    ident = made.json()["job"]["id"]
    operator.post("/fp-publisher/v1/jobs/cancel", json={"filter": {"ids": [ident]}})
    actors = app.db.read(
        lambda c: c.execute(text("SELECT actor FROM audit_log WHERE action = 'JOB_CANCELLED'")).scalars().all()
    )
    assert list(actors) == ["token:op"]


def test_cookies_that_come_one_by_one_are_read_as_one(app: Duly, accounts: Accounts) -> None:
    accounts.create_user("ann", WORDS, "operator")
    session = accounts.log_in("ann", WORDS)
    with TestClient(create(app)) as client:
        apart = [("Cookie", f"{COOKIE}={session}"), ("Cookie", "theme=dark")]
        assert client.get("/api/v1/me", headers=apart).json()["actor"] == "user:ann"

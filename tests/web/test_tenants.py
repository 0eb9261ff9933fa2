"""Nothing of one tenant is there for another (R003-9): every route with a thing in its path is asked for a foreign one.

A router that is added later is walked, too. Where this test says that it has no thing for a path, make one of tenant ``acme`` in ``things``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select
from starlette.testclient import TestClient

from automations.hands import Ai
from duly import Duly
from duly.accounts.door import Accounts, csrf_of
from duly.audit.tables import audit_log
from duly.automations import Automations
from duly.idempotency import idempotent_task
from duly.outbox.box import Outbox
from duly.outbox.message import Message
from duly.publishing import Publishing
from duly.testing import ManualClock, drain
from duly.web.app import create
from duly.web.gate import COOKIE, CSRF_FIELD
from duly.workflows import WorkflowContext
from fronts import on_both
from web.walk import SAFE, filled, names, request, routes

Caller = Callable[..., TestClient]
#: What is everybody's: queues, what holds them, and alerts. Others than those who see every tenant change none of it.
EVERYBODYS = (
    "/api/v1/queues/",
    "/api/v1/blackouts/",
    "/api/v1/alerts/",
    "/alerts/",
    "/api/v1/automations/events/",
    "/static",
)
#: What is there for the one person who began it (test_acts).
PERSONAL = ("/jobs/acts/",)
#: Names belong to a tenant, so these make a thing of one's own.
MAKES = {("PUT", "/api/v1/schedules/{name}")}
#: Where the least that the description asks for is no sensible request.
BODIES: dict[tuple[str, str], Any] = {
    ("PATCH", "/api/v1/rounds/groups/{group}"): {"is_active": False},
    ("PATCH", "/api/v1/rounds/groups/{group}/members/{member}"): {"is_active": False},
    ("PATCH", "/api/v1/rounds/prompts/{id}"): {"is_active": False},
    ("POST", "/api/v1/rounds/{id}/submissions"): {"member": "Ann", "text": "x"},
    ("PATCH", "/api/v1/rounds/submissions/{id}"): {"member": "Ann", "text": "x"},
    ("POST", "/api/v1/rounds/submissions/{id}/comments"): {"member": "Ben", "text": "x"},
    ("PATCH", "/api/v1/rounds/comments/{id}"): {"member": "Ben", "text": "x"},
    ("POST", "/api/v1/rounds/submissions/{id}/votes"): {"member": "Ben"},
    ("PATCH", "/api/v1/users/{name}"): {"disabled": True},
    ("POST", "/api/v1/keys/{key}/forget"): {"reason": "why not"},
}
#: What the forms of the pages ask for, of all of them together.
FORM = {"text": "Hello", "answer": "yes", "event": "paid", "reason": "why not"}


class Nowhere:
    def send(self, message: Message) -> None: ...


@pytest.fixture
def site(app: Duly, tmp_path: Path) -> FastAPI:
    Publishing.of(app).channel("blog", "folder", folder=str(tmp_path / "posts"))
    Automations.of(app).use("ai", Ai())

    @app.workflow("order")
    async def order(ctx: WorkflowContext, number: int) -> None:
        await ctx.wait_event("paid", timeout=timedelta(days=3))

    return create(app, tenant="acme")


def things(app: Duly, ours: TestClient, clock: ManualClock) -> dict[str, dict[str, Any]]:
    """Of tenant acme, made through the doors: beginnings of paths, and what stands in their parameters."""

    def made(path: str, given: Any) -> dict[str, Any]:
        answer = ours.post(path, json=given)
        assert answer.status_code in (200, 201, 202), (path, answer.text)
        said: dict[str, Any] = answer.json()
        return said

    job = made("/api/v1/jobs", {"task": "greet", "run_in": 3600})["job"]["id"]
    act = made("/api/v1/jobs/cancel", {"filter": {"ids": [job]}, "undo_seconds": 300})["id"]
    recurrence = {"kind": "cron", "expression": "0 9 * * *", "tz": "Europe/Rome"}
    schedule = ours.put("/api/v1/schedules/nightly", json={"recurrence": recurrence, "task": "greet"})
    assert schedule.status_code in (200, 201), schedule.text
    run = made("/api/v1/workflows/runs", {"workflow": "order", "input": {"number": 7}})["run"]["id"]
    box = Outbox(app, transports={"t": Nowhere()})
    box.open()
    with box.db.engine.begin() as connection:
        published = box.publish(connection, "t:a", 1, tenant="acme")
    message = box.get(published.message_id).id

    rounds = "/api/v1/rounds"
    made(f"{rounds}/groups", {"name": "choir", "zone": "Europe/Paris", "drop_time": "18:00"})
    for name in ("Ann", "Ben"):
        made(
            f"{rounds}/groups/choir/members",
            {"name": name, "email": f"{name.lower()}@example.org", "channels": ["log"]},
        )
    prompt = made(f"{rounds}/groups/choir/prompts", {"texts": ["Which song?"]})["prompts"][0]["id"]
    overall = TestClient(
        ours.app, headers={"Authorization": f"Bearer {Accounts(app).create_token('ticks', 'admin')[0]}"}
    )
    for given, later in (({"kind": "plan"}, 9), ({}, 0)):
        assert overall.post(f"{rounds}/ticks", json=given).status_code == 200
        clock.advance(timedelta(hours=later))
    (round_,) = [one["id"] for one in ours.get(rounds).json()["rounds"]]
    submission = made(f"{rounds}/{round_}/submissions", {"member": "Ann", "text": "The old one"})["id"]
    comment = made(f"{rounds}/submissions/{submission}/comments", {"member": "Ben", "text": "Yes"})["id"]

    automation = made("/api/v1/automations", {"name": "brief", "prompt": "Say good morning.", "provider": "ai"})["id"]
    session = made("/api/v1/automations/chats", {"provider": "ai"})["session"]["id"]
    post = made("/fp-publisher/v1/jobs", {"channel": "blog", "payload": {"caption": "Apples"}})["job"]["id"]
    token = made("/api/v1/tokens", {"name": "ours"})["record"]["id"]

    @app.task("keyed")
    @idempotent_task
    def keyed(to: str) -> str:
        return to

    keyed.using(tenant="acme").enqueue("Ann")
    made("/api/v1/users", {"name": "ann", "password": "a sentence of my own"})
    drain(app)
    (key,), _ = app.keys.find(tenant="acme")
    return {
        "/api/v1/keys/": {"key": key.key},
        "/api/v1/jobs/": {"id": job}, "/api/v1/jobs/acts/": {"act": act}, "/api/v1/schedules/": {"name": "nightly"}, "/api/v1/workflows/runs/": {"id": run},
        "/api/v1/outbox/messages/": {"message": message}, f"{rounds}/groups/": {"group": "choir", "member": "Ann"},
        f"{rounds}/prompts/": {"id": prompt}, f"{rounds}/submissions/": {"id": submission}, f"{rounds}/comments/": {"id": comment},
        f"{rounds}/": {"id": round_}, "/api/v1/automations/sessions/": {"id": session}, "/api/v1/automations/": {"automation": automation},
        "/api/v1/tokens/": {"id": token}, "/api/v1/users/": {"name": "ann"}, "/fp-publisher/v1/jobs/": {"id": post},
        "/jobs/": {"id": job}, "/automations/sessions/": {"id": session}, "/automations/": {"id": automation},
        "/workflows/": {"id": run}, "/rounds/groups/": {"id": "choir", "group": "choir", "member": "Ann"}, "/rounds/": {"id": round_, "group": "choir"},
        "/rounds/prompts/": {"id": prompt}, "/rounds/submissions/": {"id": submission}, "/rounds/comments/": {"id": comment},
        "/outbox/": {"id": message, "message": message}, "/publishing/": {"id": post}, "/schedules/": {"name": "nightly"},
    }  # fmt: skip


@on_both("each route reads with statements of its own, and every one is asked here")
def test_a_foreign_thing_is_not_there_on_any_route(
    app: Duly, site: FastAPI, client: Caller, clock: ManualClock, accounts: Accounts
) -> None:
    ours, theirs = client("admin", tenant="acme"), client("admin", tenant="other")
    known = things(app, ours, clock)
    accounts.create_user("zoe", "a sentence of her own", "admin", tenant="other")
    session = accounts.log_in("zoe", "a sentence of her own")
    assert session is not None
    person, csrf = TestClient(site, cookies={COOKIE: session}), csrf_of(session)
    rows = select(func.count()).select_from(audit_log)
    before = app.db.read(lambda c: c.execute(rows).scalar_one())
    asked, wrong = [], []
    for method, path in routes(site):
        if not names(path) or path.startswith((*EVERYBODYS, *PERSONAL)) or (method, path) in MAKES:
            continue
        # the longest beginning that fits: rounds/groups before rounds
        of = max((start for start in known if path.startswith(start)), key=len, default=None)
        values = known[of] if of is not None else {}
        assert set(names(path)) <= set(values), (
            f"{path} has a thing in its path that this test knows none of: make one of tenant acme in things()"
        )
        given = request(site, method, path)
        if (method, path) in BODIES:
            given["json"] = BODIES[method, path]
        if path.startswith(("/api/", "/fp-publisher/")):
            answer = theirs.request(method, filled(path, values), **given)
        else:  # a page: a person with a login, whose forms carry what proves that they were meant
            form = {"data": {**given.get("data", {}), **FORM, CSRF_FIELD: csrf}} if method not in SAFE else {}
            answer = person.request(method, filled(path, values), follow_redirects=False, **form)
        asked.append((method, path, values))
        if answer.status_code != 404:
            wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert app.db.read(lambda c: c.execute(rows).scalar_one()) == before  # nothing was changed
    for method, path, values in asked:
        if method in SAFE and not path.endswith("/stream"):
            answer = ours.get(filled(path, values), **request(site, method, path))
            assert answer.status_code == 200, (
                f"{path} is not there for its own tenant: {answer.status_code} {answer.text[:300]}"
            )
    assert len(asked) > 50


def test_a_foreign_tenant_that_is_named_shows_nothing(
    app: Duly, site: FastAPI, client: Caller, clock: ManualClock
) -> None:
    """There is no other tenant than one's own, whatever is asked for."""
    things(app, client("admin", tenant="acme"), clock)
    theirs, seen = client("admin", tenant="other"), 0
    for method, path in routes(site):
        if method != "GET" or names(path) or not path.startswith("/api/v1/") or path in ("/api/v1/events",):
            continue
        answer = theirs.get(path, params={**request(site, method, path)["params"], "tenant": "acme"})
        named = any(p["name"] == "tenant" for p in site.openapi()["paths"][path]["get"].get("parameters", ()))
        assert answer.status_code == (404 if named else 422) or answer.status_code in (403, 404), f"{path}: {answer.text[:200]}"  # fmt: skip
        for word in ("nightly", "choir", "Which song", "Say good morning", "Apples", '"acme"'):
            assert word not in answer.text, f"{path} shows {word!r} of another tenant"
        seen += 1
    assert seen > 10


def test_a_schedule_of_the_same_name_is_ones_own(app: Duly, site: FastAPI, client: Caller) -> None:
    given = {"recurrence": {"kind": "cron", "expression": "0 9 * * *", "tz": "Europe/Rome"}, "task": "greet"}
    ours, theirs = client("operator", tenant="acme"), client("operator", tenant="other")
    assert ours.put("/api/v1/schedules/nightly", json=given).is_success
    assert theirs.put("/api/v1/schedules/nightly", json={**given, "task": "other"}).is_success
    assert ours.get("/api/v1/schedules/nightly").json()["task"] == "greet"


def test_an_act_that_names_another_tenant_does_not_hit_ones_own(app: Duly, client: Caller) -> None:
    job = app.enqueue("greet", queue="x", tenant="acme").job
    ours = client("admin", tenant="acme")
    recurrence = {"kind": "cron", "expression": "0 9 * * *", "tz": "Europe/Rome"}
    assert ours.put("/api/v1/schedules/nightly", json={"recurrence": recurrence, "task": "greet"}).is_success
    for event in ("cancel", "replay"):
        given = {"filter": {"queue": "x", "tenant": "other"}}
        assert ours.post(f"/api/v1/jobs/{event}", json=given).status_code == 404
    assert ours.delete("/api/v1/schedules/nightly", params={"tenant": "other"}).status_code == 404
    assert ours.post("/api/v1/schedules/nightly/pause", params={"tenant": "other"}, json={}).status_code == 404
    assert app.jobs.get(job.id).status == "queued"
    assert ours.get("/api/v1/schedules/nightly").json()["paused_at"] is None

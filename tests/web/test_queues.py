"""Queues, blackouts and the gate over REST."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.jobs.survey import altogether, depths, pace
from duly.testing import ManualClock, drain
from web.hands import problem, wander, wandering

Caller = Callable[..., TestClient]
QUIET = {"tz": "Europe/Rome", "days": ["fri"], "start": "09:00", "end": "18:00", "scope": "queue:mail"}


def trail(app: Duly, action: str) -> list[tuple[str, str, Any]]:
    found = app.db.read(lambda c: find(c, TrailFilter(action=action)))
    return [(e.actor, e.entity_id, e.meta) for e in found]


# ---------------------------------------------------------------------- queues


def test_a_queue_says_what_stands_in_it_and_what_governs_it(app: Duly, client: Caller, clock: ManualClock) -> None:
    # R003-9
    app.enqueue("greet", queue="mail", run_at=clock.now() - timedelta(minutes=3))
    app.enqueue("greet", queue="mail", priority=9)
    app.enqueue("greet", queue="mail", run_in=timedelta(hours=1))
    app.queues.set("mail", limit=3, rate=(10, 60.0))
    found = client().get("/api/v1/queues/mail").json()
    assert (found["ready"], found["later"], found["running"], found["workers"]) == (2, 1, 0, 0)
    assert (found["oldest"], found["limit"], found["rate"]) == (
        "2026-03-27T08:57:00Z",
        3,
        {"count": 10, "seconds": 60.0},
    )
    assert client().get("/api/v1/queues").json() == {"queues": [found], "next": None}
    problem(client().get("/api/v1/queues/nowhere"), 404)


def test_a_job_that_became_due_is_ready_before_a_worker_has_noticed(
    app: Duly, client: Caller, clock: ManualClock
) -> None:
    app.enqueue("greet", queue="mail", run_in=timedelta(hours=1))
    clock.advance(timedelta(hours=2))
    found = client().get("/api/v1/queues/mail").json()
    assert (found["ready"], found["later"], found["oldest"]) == (1, 0, "2026-03-27T10:00:00Z")


def test_pages_of_queues_follow_each_other_by_name(app: Duly, client: Caller) -> None:
    # B080
    names = [f"q{n}" for n in range(7)]
    for name in names:
        app.queues.pause(name)
    somebody, seen, cursor = client(), [], None
    for _ in range(10):
        said = somebody.get("/api/v1/queues", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [one["name"] for one in said["queues"]]
        cursor = said["next"]
        if cursor is None:
            break
    assert seen == names


@pytest.mark.parametrize(
    "path",
    ["/api/v1/queues", "/api/v1/blackouts", "/api/v1/audit", "/api/v1/alerts", "/api/v1/tokens", "/api/v1/users"],
)
def test_a_page_that_cannot_be_is_refused_by_name(client: Caller, path: str) -> None:
    # B080
    somebody = client("admin")
    for field, value in (
        ("limit", "-1"),
        ("limit", "0"),
        ("limit", "abc"),
        ("limit", str(10**12)),
        ("cursor", "x"),
        ("cursor", "WzFd!"),
        ("cursor", "W10"),
    ):
        assert problem(somebody.get(path, params={field: value}), 422)["field"] == field


@pytest.mark.parametrize("name", ["%0A", "mail%0A", "%0D", "%00", ""])
def test_a_name_that_no_queue_can_have_is_refused_as_a_name(client: Caller, name: str) -> None:
    for answer in (client("admin").get(f"/api/v1/queues/{name}"), client("admin").post(f"/api/v1/queues/{name}/pause")):
        assert problem(answer, 422)["field"].endswith("name")


def test_an_operator_pauses_and_resumes_with_a_reason_on_record(app: Duly, client: Caller) -> None:
    somebody = client("operator")
    paused = somebody.post("/api/v1/queues/mail/pause", json={"reason": "the provider is down"}).json()
    assert (paused["paused_reason"], paused["paused_at"]) == ("the provider is down", "2026-03-27T09:00:00Z")
    assert paused["paused_by"] == "token:test 1"
    assert somebody.post("/api/v1/queues/mail/resume", json={"reason": "it is back"}).json()["paused_at"] is None
    assert trail(app, "QUEUE_PAUSED") == [("token:test 1", "mail", {"reason": "the provider is down"})]
    assert trail(app, "QUEUE_RESUMED") == [("token:test 1", "mail", {"reason": "it is back"})]


def test_a_hold_opens_by_itself_and_can_be_ended(app: Duly, client: Caller, clock: ManualClock) -> None:
    somebody = client("operator")
    held = somebody.post("/api/v1/queues/mail/hold", json={"until": "2026-03-27T12:00:00+01:00", "reason": "enough"})
    assert (held.json()["held_until"], held.json()["held_reason"]) == ("2026-03-27T11:00:00Z", "enough")
    clock.advance(timedelta(hours=2))
    app.queues.set("mail", limit=2)
    assert somebody.get("/api/v1/queues/mail").json()["held_until"] is None
    somebody.post("/api/v1/queues/mail/hold", json={"until": "2026-03-28T12:00:00Z"})
    assert somebody.post("/api/v1/queues/mail/release", json={"reason": "sooner"}).json()["held_until"] is None
    assert trail(app, "QUEUE_RELEASED") == [("token:test 1", "mail", {"reason": "sooner"})]
    naive = problem(somebody.post("/api/v1/queues/mail/hold", json={"until": "2026-03-28T12:00:00"}), 422)
    assert naive["field"] == "until"


def test_limits_are_replaced_as_a_whole(app: Duly, client: Caller) -> None:
    somebody = client("operator")
    given = {
        "limit": 5,
        "key_limit": 1,
        "rate": {"count": 50, "seconds": 86_400},
        "fair": True,
        "reason": "the contract",
    }
    found = somebody.put("/api/v1/queues/mail/limits", json=given).json()
    assert (found["limit"], found["key_limit"], found["rate"]["count"], found["fair"]) == (5, 1, 50, True)
    found = somebody.put("/api/v1/queues/mail/limits", json={"limit": 2}).json()
    assert (found["limit"], found["key_limit"], found["rate"], found["fair"]) == (2, None, None, False)
    assert trail(app, "QUEUE_CHANGED")[1][2]["reason"] == "the contract"
    for wrong, field in (
        ({"limit": 0}, "limit"),
        ({"limit": "5"}, "limit"),
        ({"rate": {"count": 1, "seconds": 0}}, "rate.seconds"),
        ({"most": 1}, "most"),
    ):
        assert problem(somebody.put("/api/v1/queues/mail/limits", json=wrong), 422)["field"] == field


def test_a_stale_edit_of_limits_is_refused(app: Duly, client: Caller) -> None:  # issue 8
    somebody, path = client("operator"), "/api/v1/queues/mail/limits"
    made = somebody.put(path, json={"limit": 5, "rate": {"count": 50, "seconds": 60}})
    shown = somebody.get("/api/v1/queues/mail")
    assert made.headers["etag"] == shown.headers["etag"] == shown.json()["etag"]
    seen = {"If-Match": shown.headers["etag"]}
    somebody.post("/api/v1/queues/mail/pause")  # a pause is no edit of limits
    changed = somebody.put(path, json={"limit": 6}, headers=seen)
    assert (changed.status_code, changed.json()["limit"], changed.json()["rate"]) == (200, 6, None)
    problem(somebody.put(path, json={"limit": 7}, headers=seen), 412)
    assert app.queues.get("mail").limit == 6
    assert somebody.put(path, json={"limit": 7}, headers={"If-Match": changed.headers["etag"]}).status_code == 200
    assert somebody.put(path, json={"limit": 8}, headers={"If-Match": "*"}).status_code == 200
    # one that nothing is set for has an ETag too, and a refusal leaves no trace of it
    problem(somebody.put("/api/v1/queues/new/limits", json={"limit": 1}, headers=seen), 412)
    assert "new" not in app.queues.all()
    app.enqueue("greet", queue="new")
    bare = somebody.get("/api/v1/queues/new").headers["etag"]
    assert somebody.put("/api/v1/queues/new/limits", json={"limit": 1}, headers={"If-Match": bare}).status_code == 200
    assert len(trail(app, "QUEUE_CHANGED")) == 5


def test_of_two_who_have_seen_the_same_limits_one_changes_them(app: Duly, client: Caller) -> None:
    app.enqueue("greet", queue="mail")
    seen = client().get("/api/v1/queues/mail").headers["etag"]
    together = threading.Barrier(2)

    def change(somebody: TestClient, limit: int) -> int:
        together.wait()
        answer = somebody.put("/api/v1/queues/mail/limits", json={"limit": limit}, headers={"If-Match": seen})
        return answer.status_code

    both = [client("operator"), client("operator")]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(change, both, (1, 2)))
    assert sorted(done) == [200, 412]
    assert app.queues.get("mail").limit == 1 + done.index(200)


def test_who_belongs_to_a_tenant_sees_its_own_jobs_and_changes_no_queue(app: Duly, client: Caller) -> None:
    # R003-9
    app.enqueue("greet", queue="mail", tenant="acme")
    app.enqueue_many("greet", [{}, {}], queue="mail", tenant="other")
    app.enqueue("greet", queue="secret", tenant="other")
    mine = client("admin", tenant="acme")
    assert [(q["name"], q["ready"]) for q in mine.get("/api/v1/queues").json()["queues"]] == [("mail", 1)]
    problem(mine.get("/api/v1/queues/secret"), 404)
    for act in ("pause", "resume", "release"):
        problem(mine.post(f"/api/v1/queues/mail/{act}"), 403)
    problem(mine.put("/api/v1/queues/mail/limits", json={}), 403)
    problem(mine.post("/api/v1/queues/mail/hold", json={"until": "2026-03-28T12:00:00Z"}), 403)
    problem(mine.put("/api/v1/blackouts/quiet", json=QUIET), 403)
    problem(mine.post("/api/v1/blackouts/impact", json=QUIET), 403)
    problem(mine.post("/api/v1/gate/offline"), 403)
    assert app.gate.is_online
    assert app.calendars.all() == {}


# ---------------------------------------------------------------------- blackouts


def test_a_blackout_is_set_shown_switched_and_removed(app: Duly, client: Caller) -> None:
    # R002-8
    somebody = client("operator")
    made = somebody.put("/api/v1/blackouts/quiet", json={**QUIET, "reason": "audit day"})
    said = made.json()
    assert (made.status_code, said["version"], made.headers["etag"]) == (200, 1, said["etag"])
    assert somebody.get("/api/v1/blackouts/quiet").headers["etag"] == said["etag"]
    assert (said["scope"], said["window"]["days"], said["enabled"], said["reason"]) == (
        "queue:mail",
        ["fri"],
        True,
        "audit day",
    )
    assert (said["holds_from"], said["holds_until"]) == ("2026-03-27T09:00:00Z", "2026-03-27T17:00:00Z")
    app.enqueue("greet", queue="mail")
    assert somebody.get("/api/v1/queues/mail").json()["blackout"] == "quiet"
    off = somebody.post("/api/v1/blackouts/quiet/disable", json={"reason": "not today"}).json()
    assert (off["enabled"], off["holds_from"]) == (False, None)
    assert somebody.get("/api/v1/queues/mail").json()["blackout"] is None
    assert somebody.post("/api/v1/blackouts/quiet/enable").json()["enabled"] is True
    assert somebody.get("/api/v1/blackouts").json()["blackouts"][0]["name"] == "quiet"
    gone = somebody.delete("/api/v1/blackouts/quiet", params={"reason": "over"})
    assert gone.json()["name"] == "quiet"
    problem(somebody.get("/api/v1/blackouts/quiet"), 404)
    problem(somebody.delete("/api/v1/blackouts/quiet"), 404)
    assert trail(app, "BLACKOUT_REMOVED")[0][2]["reason"] == "over"


def test_a_stale_edit_of_a_blackout_is_refused(app: Duly, client: Caller) -> None:
    somebody = client("operator")
    seen = somebody.put("/api/v1/blackouts/quiet", json=QUIET).headers["etag"]
    newer = somebody.put("/api/v1/blackouts/quiet", json={**QUIET, "end": "19:00"}, headers={"If-Match": seen}).headers[
        "etag"
    ]
    assert newer != seen
    stale = {"If-Match": seen}
    problem(somebody.put("/api/v1/blackouts/quiet", json=QUIET, headers=stale), 412)
    problem(somebody.delete("/api/v1/blackouts/quiet", headers=stale), 412)
    problem(somebody.post("/api/v1/blackouts/quiet/disable", headers=stale), 412)
    assert somebody.get("/api/v1/blackouts/quiet").json()["window"]["end"] == "19:00"
    problem(somebody.put("/api/v1/blackouts/new", json=QUIET, headers=stale), 412)
    assert somebody.delete("/api/v1/blackouts/quiet", headers={"If-Match": newer}).status_code == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tz": "Mars/Base"}, "tz"), ({"start": "25:00"}, "start"), ({"days": ["someday"]}, "days"), ({"scope": "nobody"}, "scope"),
        ({"dates": ["2026-13-01"]}, "dates[0]"), ({"dates": [{"from": "2026-02-01", "to": "2026-01-01"}]}, "dates[0]"), ({"colour": "red"}, "colour"),
    ],
)  # fmt: skip
def test_a_window_that_makes_no_sense_is_refused_by_field(client: Caller, change: dict[str, Any], field: str) -> None:
    told = problem(client("operator").put("/api/v1/blackouts/quiet", json={**QUIET, **change}), 422)
    assert told["field"].startswith(field)


def test_the_impact_of_a_window_is_told_without_setting_it(app: Duly, client: Caller, clock: ManualClock) -> None:
    first = app.enqueue("greet", queue="mail").job.id
    app.enqueue("greet", queue="mail", run_in=timedelta(hours=1))
    app.enqueue("greet", queue="other")
    said = client("operator").post("/api/v1/blackouts/impact", json={**QUIET, "until": "2026-03-28T00:00:00Z"}).json()
    assert said["stretches"] == [{"start": "2026-03-27T09:00:00Z", "end": "2026-03-27T17:00:00Z"}]
    assert [(q["queue"], q["count"], q["first"][0]["id"]) for q in said["queues"]] == [("mail", 2, first)]
    assert app.calendars.all() == {}


# ---------------------------------------------------------------------- the gate


def test_only_an_administrator_moves_the_gate(app: Duly, client: Caller) -> None:
    # R003-8
    problem(client("operator").post("/api/v1/gate/offline"), 403)
    admin = client("admin")
    shut = admin.post("/api/v1/gate/offline", json={"reason": "moving house"}).json()
    assert shut == {
        "online": False,
        "since": "2026-03-27T09:00:00Z",
        "by": "token:test 2",
        "reason": "moving house",
        "outbox": False,
    }
    assert not app.gate.is_online
    assert client().get("/api/v1/gate").json() == shut
    assert admin.post("/api/v1/gate/online").json()["online"] is True
    assert app.gate.is_online


def test_the_gate_is_moved_for_one_scope_alone_over_rest(app: Duly, client: Caller) -> None:  # R003-14, X6
    admin = client("admin")

    def moved(to: str, *scope: str) -> tuple[bool, bool]:
        said = admin.post(f"/api/v1/gate/{to}", json={"scope": list(scope)}).json()
        assert said == client().get("/api/v1/gate").json()
        assert (app.gate.is_online, app.gate.is_outbox_online) == (said["online"], said["outbox"])
        return said["online"], said["outbox"]

    assert moved("offline", "outbox") == (True, False)
    assert moved("offline", "jobs") == (False, False)
    assert moved("online", "outbox") == (False, True)
    assert moved("offline", "jobs", "outbox") == (False, False)
    assert moved("online", "jobs") == (True, False)
    for wrong in (["rounds"], [], "outbox"):
        problem(admin.post("/api/v1/gate/offline", json={"scope": wrong}), 422)
    assert (app.gate.is_online, app.gate.is_outbox_online) == (True, False)


# ---------------------------------------------------------------------- what is counted


def test_depths_are_counted_as_far_as_they_are_asked_for(app: Duly, clock: ManualClock) -> None:
    app.enqueue_many("greet", [{} for _ in range(30)], queue="a", priority=5)
    clock.advance(1)
    app.enqueue("greet", queue="a", priority=-5, run_at=clock.now() - timedelta(days=1))
    app.enqueue_many("greet", [{}, {}], queue="b", tenant="acme")
    [a, b] = app.db.read(lambda c: depths(c, clock.now(), cap=10, together=20))
    assert (a.queue, a.ready, a.oldest) == ("a", 10, clock.now() - timedelta(days=1))
    assert (b.queue, b.ready) == ("b", 2)
    assert (a.at_least, b.at_least) == ({"ready"}, set())
    whole = app.db.read(lambda c: depths(c, clock.now()))
    assert [(d.ready, d.oldest, d.at_least) for d in whole] == [(31, a.oldest, set()), (2, b.oldest, set())]
    assert [d.queue for d in app.db.read(lambda c: depths(c, clock.now(), "acme"))] == ["b"]
    assert [d.queue for d in app.db.read(lambda c: depths(c, clock.now(), queue="a"))] == ["a"]


def test_of_what_is_not_due_yet_all_queues_are_counted_together_and_a_cut_is_told(
    app: Duly, clock: ManualClock
) -> None:
    for queue in "ab":
        app.enqueue_many("greet", [{} for _ in range(6)], queue=queue, run_in=60)
    whole = app.db.read(lambda c: depths(c, clock.now()))
    assert [(d.later, d.at_least) for d in whole] == [(6, set()), (6, set())]
    cut = app.db.read(lambda c: depths(c, clock.now(), together=10))
    assert sum(d.later for d in cut) == 10
    assert {d.at_least for d in cut} == {frozenset({"later"})}
    clock.advance(61)  # due, and no worker has noticed
    due = app.db.read(lambda c: depths(c, clock.now()))
    assert [(d.ready, d.later, d.oldest) for d in due] == [(6, 0, clock.now() - timedelta(seconds=1))] * 2
    assert altogether(due).ready == 12


def test_no_queue_is_hidden_by_however_many_others(
    app: Duly, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant fills queues by the hundred; everybody's view still has all of them."""
    monkeypatch.setattr("duly.jobs.survey.HOPS", 5)
    for n in range(12):
        app.enqueue("greet", queue=f"!{n:02}", tenant="evil")
    app.enqueue_many("greet", [{}, {}], queue="mail", tenant="acme")
    names = [f"!{n:02}" for n in range(12)] + ["mail"]
    whole, deep = (app.db.read(lambda c, t=t: depths(c, clock.now(), together=t)) for t in (100, 10))
    assert [d.queue for d in whole] == [d.queue for d in deep] == names
    assert (whole[-1].ready, whole[-1].at_least) == (2, set())
    assert (deep[-1].ready, deep[-1].at_least) == (1, {"ready"})  # named, and not counted


def test_the_pace_is_told_by_minute_and_tenant(app: Duly, clock: ManualClock) -> None:
    app.enqueue_many("greet", [{}, {}], tenant="acme")
    app.enqueue("greet", tenant="other")
    clock.advance(30)
    drain(app)
    clock.advance(60)
    minutes = app.db.read(lambda c: pace(c, clock.now(), timedelta(minutes=1), 3))
    assert [m.ended for m in minutes] == [{}, {"succeeded": 3}, {}]
    assert minutes[1].waits == (30.0, 30.0, 30.0)
    assert app.db.read(lambda c: pace(c, clock.now(), timedelta(minutes=1), 3, "acme"))[1].ended == {"succeeded": 2}


@wandering
def test_the_routes_answer_as_they_are_described(site: FastAPI, client: Caller) -> None:
    wander(site, client("admin"), "^/api/v1/(queues|blackouts|gate)", 17)

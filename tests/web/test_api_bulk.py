"""Acts on many jobs over REST: shown before they are done, begun a moment later where that was asked for, and undone until then (issue 8)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import Connection, Engine, event, literal, select, update
from starlette.testclient import TestClient

from duly import Duly, PermanentError
from duly.accounts.door import Accounts, csrf_of
from duly.accounts.tables import users
from duly.audit.read import TrailFilter, find
from duly.jobs.tables import jobs, jobs_done
from duly.testing import ManualClock, drain
from duly.web.bulk import EACH, OF_TENANT, TOLD, BulkActs
from duly.web.gate import COOKIE
from fronts import on_both
from web.hands import begin_now, problem, wander, wandering

Caller = Callable[..., TestClient]
ACTS = "/api/v1/jobs/acts"


@pytest.fixture(autouse=True)
def tasks(app: Duly) -> None:
    @app.task("tear", queue="paper")
    def tear(n: int = 0) -> None:
        raise PermanentError("torn")


def failed(app: Duly, count: int = 3, tenant: str = "default") -> list[int]:
    ids = [app.enqueue("tear", {"n": n}, tenant=tenant).job.id for n in range(count)]
    drain(app)
    return ids


def asked(client: TestClient, event: str = "replay", **more: Any) -> Any:
    return client.post(
        f"/api/v1/jobs/{event}", json={"filter": {"queue": "paper"}, "reason": "mended", "undo_seconds": 60, **more}
    )


def states(app: Duly, ids: Sequence[int]) -> list[str]:
    return [str(app.jobs.get(one).status) for one in ids]


def trail(app: Duly, **wanted: str) -> list[tuple[str, str, Any]]:
    found = app.db.read(lambda c: find(c, TrailFilter(**wanted)))
    return [(e.actor, e.tenant, e.meta) for e in found]


def test_an_act_without_a_window_is_done_when_it_is_answered(app: Duly, client: Caller) -> None:
    ids = failed(app)
    done = asked(client("operator"), undo_seconds=0)
    assert (done.status_code, done.json()) == (200, {"done": ids, "refused": {}, "dry_run": False})
    assert states(app, ids) == ["queued"] * 3


def test_an_act_with_a_window_is_an_act_that_waits(app: Duly, client: Caller) -> None:
    ids, ann = failed(app), client("operator")
    answer = asked(ann)
    assert answer.status_code == 202, answer.text
    act = answer.json()
    assert act == {
        "id": act["id"], "event": "replay", "state": "waits", "count": 3, "begins_at": "2026-03-27T09:01:00Z", "done": 0, "refused": {},
        "problem": None, "reason": "mended",
    }  # fmt: skip
    assert answer.headers["location"] == f"{ACTS}/{act['id']}"
    assert ann.get(answer.headers["location"]).json() == act
    assert ann.get(ACTS).json() == {"acts": [act], "next": None}
    assert states(app, ids) == ["failed"] * 3  # nothing is done yet


def test_what_is_undone_in_time_touches_no_job(app: Duly, client: Caller, desks: list[BulkActs]) -> None:
    ids, ann = failed(app), client("operator")
    where = asked(ann).headers["location"]
    undone = ann.post(f"{where}/undo", json={"reason": "the wrong ones"})
    assert (undone.status_code, undone.json()["state"]) == (200, "undone")
    begin_now(desks)
    assert states(app, ids) == ["failed"] * 3
    assert ann.post(f"{where}/undo").json() == undone.json()  # as often as one likes
    assert trail(app, action="BULK_PLANNED") == [
        ("token:test 1", "system", {"event": "replay", "jobs": 3, "window": 60, "reason": "mended"})
    ]
    assert trail(app, action="BULK_UNDONE") == [
        ("token:test 1", "system", {"event": "replay", "jobs": 3, "reason": "the wrong ones"})
    ]
    assert trail(app, action="JOB_REPLAYED") == []


def test_what_has_begun_is_done_and_cannot_be_undone(app: Duly, client: Caller, desks: list[BulkActs]) -> None:
    ids, ann = failed(app), client("operator")
    where = asked(ann).headers["location"]
    app.jobs.replay(ids[0])  # meanwhile
    later = failed(app, 1)
    app.jobs.replay(ids[1])
    begin_now(desks)
    act = ann.get(where).json()
    assert (act["state"], act["count"], act["done"], list(act["refused"])) == ("done", 3, 2, [str(ids[1])])
    assert states(app, [*ids, *later]) == ["queued"] * 3 + ["failed"]  # those that were counted, and no other
    said = problem(ann.post(f"{where}/undo"), 409)
    assert "cannot be undone" in said["detail"]
    assert {(e[0], e[2]["reason"]) for e in trail(app, action="JOB_REPLAYED")} == {("token:test 1", "mended"), ("code", "")}  # fmt: skip


def test_a_dry_run_says_which_and_plans_nothing(app: Duly, client: Caller) -> None:
    ids, ann = failed(app), client("operator")
    assert asked(ann, dry_run=True).json() == {"done": ids, "refused": {}, "dry_run": True}
    assert ann.get(ACTS).json()["acts"] == []


def test_an_act_is_there_for_who_asked_for_it_and_nobody_else(app: Duly, client: Caller) -> None:  # R003-9
    failed(app, tenant="acme")
    ours, mate, other, everybody = (client("admin", tenant=tenant) for tenant in ("acme", "acme", "other", None))
    where = asked(ours).headers["location"]
    for somebody in (mate, other, everybody):
        problem(somebody.get(where), 404)
        problem(somebody.post(f"{where}/undo"), 404)
        assert somebody.get(ACTS).json()["acts"] == []
    assert asked(other).json() == {"done": [], "refused": {}, "dry_run": False}  # a tenant never another's jobs
    problem(asked(other, filter={"queue": "paper", "tenant": "acme"}), 404)
    assert ours.get(where).json()["state"] == "waits"
    assert [(actor, tenant) for actor, tenant, _ in trail(app, action="BULK_PLANNED")][-1] == ("token:test 1", "acme")


@pytest.mark.parametrize("late", [False, True], ids=["before-it-begins", "between-two-steps"])
def test_rights_are_asked_for_again_when_it_begins_and_at_each_step(
    app: Duly, client: Caller, accounts: Accounts, desks: list[BulkActs], monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr("duly.web.bulk.STEP", 2)
    ids, ann = failed(app), client("operator")
    mine = accounts.tokens()[0].id
    where = asked(ann).headers["location"]
    admin = type(app.jobs.admin)
    act_on = admin.act_on

    def and_then(self: Any, *given: Any) -> Any:
        done = act_on(self, *given)
        accounts.revoke_token(mine)
        return done

    if late:
        monkeypatch.setattr(admin, "act_on", and_then)
    else:
        accounts.revoke_token(mine)
    begin_now(desks)
    act = desks[0]._acts[where.rpartition("/")[2]]
    assert (act.state, act.done, act.problem) == ("failed", 2 if late else 0, "token:test 1 may not do this any more.")
    assert states(app, ids) == (["queued", "queued", "failed"] if late else ["failed"] * 3)


def test_the_pages_show_what_a_person_has_asked_for_over_rest(app: Duly, site: FastAPI, accounts: Accounts) -> None:
    failed(app)
    accounts.create_user("ann", "a sentence of my own", "operator")
    session = accounts.log_in("ann", "a sentence of my own")
    assert session is not None
    with TestClient(site, cookies={COOKIE: session}, headers={"x-csrf-token": csrf_of(session)}) as ann:
        act = asked(ann).json()
        assert "Nothing has been done yet" in ann.get(f"/jobs/acts/{act['id']}").text
        assert ann.post(f"{ACTS}/{act['id']}/undo").json()["state"] == "undone"
        assert "Undone: no job was touched." in ann.get(f"/jobs/acts/{act['id']}").text


def test_an_act_that_is_asked_for_again_under_its_key_is_planned_once(app: Duly, client: Caller) -> None:
    ann = client("operator")
    given = {"filter": {"ids": failed(app)}, "undo_seconds": 60}
    first, again = (ann.post("/api/v1/jobs/replay", json=given, headers={"Idempotency-Key": "k1"}) for _ in range(2))
    assert (first.status_code, first.json(), first.headers["location"]) == (
        again.status_code, again.json(), again.headers["location"],
    )  # fmt: skip
    assert len(ann.get(ACTS).json()["acts"]) == 1


def test_too_many_acts_at_once_are_told_to_come_again(app: Duly, client: Caller) -> None:
    ann, ben = client("operator"), client("operator")
    failed(app)
    for _ in range(EACH):
        assert asked(ann).status_code == 202
    refused = asked(ann)
    assert f"{EACH} of your acts" in problem(refused, 429)["detail"]
    assert refused.headers["retry-after"]
    assert asked(ben).status_code == 202


def test_acts_that_are_over_are_forgotten_beyond_the_last(app: Duly, client: Caller) -> None:
    ann, made = client("operator"), []
    failed(app)
    for _ in range(TOLD + 3):
        made.append(asked(ann).headers["location"])
        ann.post(f"{made[-1]}/undo")
    seen, cursor = [], None
    for _ in range(10):
        said = ann.get(ACTS, params={"limit": 8, **({"cursor": cursor} if cursor else {})}).json()
        seen += [f"{ACTS}/{one['id']}" for one in said["acts"]]
        cursor = said["next"]
        if cursor is None:
            break
    assert seen == made[::-1][:TOLD]
    problem(ann.get(made[0]), 404)


@pytest.mark.parametrize("seconds", [-1, 301, "soon", True])
def test_a_window_that_cannot_be_is_refused_by_name(client: Caller, seconds: object) -> None:
    assert problem(asked(client("operator"), undo_seconds=seconds), 422)["field"] == "undo_seconds"


def test_a_viewer_plans_and_undoes_nothing(app: Duly, client: Caller) -> None:
    viewer = client("viewer")
    problem(asked(viewer), 403)
    problem(viewer.post(f"{ACTS}/x/undo"), 403)


@pytest.fixture
def broken(app: Duly, clock: ManualClock) -> dict[str, list[int]]:
    """Failed jobs by the class of their error: an old ValueError, two new ones, one of another tenant, and others."""

    @app.task("break", queue="glass", max_attempts=1)
    def break_(kind: str) -> None:
        raise {"value": ValueError, "os": OSError}[kind]("it does not work")

    out: dict[str, list[int]] = {"value": [], "os": [], "theirs": []}
    for name, kind, tenant, hours in (
        ("value", "value", "default", 5), ("os", "os", "default", 0), ("value", "value", "default", 0), ("theirs", "value", "acme", 0),
        ("value", "value", "default", 0),
    ):  # fmt: skip
        out[name].append(app.enqueue("break", {"kind": kind}, tenant=tenant).job.id)
        drain(app)
        clock.advance(timedelta(hours=hours))
    return out


def test_jobs_are_listed_and_counted_by_the_class_of_their_error(
    app: Duly, client: Caller, clock: ManualClock, broken: dict[str, list[int]]
) -> None:  # issue 8
    ann = client("admin")

    def found(who: TestClient = ann, **query: Any) -> list[int]:
        said = who.get("/api/v1/jobs", params=query).json()["jobs"]
        counted = who.get("/api/v1/jobs/count", params=query).json()
        assert counted == {"count": len(said), "capped": False}
        return sorted(one["id"] for one in said)

    assert found(error="ValueError") == sorted(broken["value"] + broken["theirs"])
    assert found(error="ValueError", since=(clock.now() - timedelta(hours=1)).isoformat(), tenant="default") == broken["value"][1:]  # fmt: skip
    assert found(error="ValueError", before=(clock.now() - timedelta(hours=1)).isoformat()) == broken["value"][:1]
    assert found(error="OSError", queue="glass", status="failed") == broken["os"]
    assert found(client("viewer", tenant="acme"), error="ValueError") == broken["theirs"]
    assert found(error="OSErro") == found(error="(none)") == found(error="ValueError", status="succeeded") == []
    app.jobs.replay(broken["os"][0])  # it waits, and keeps no error
    assert found(error="OSError") == []
    for wrong in ("", "x" * 501):
        assert problem(ann.get("/api/v1/jobs", params={"error": wrong}), 422)["field"] == "error"


def test_jobs_that_failed_with_an_error_of_a_class_are_acted_on(
    app: Duly, client: Caller, broken: dict[str, list[int]]
) -> None:
    ann = client("operator", tenant="default")
    failed(app)
    given = {"filter": {"error": "ValueError"}, "dry_run": True}
    assert ann.post("/api/v1/jobs/replay", json=given).json()["done"] == broken["value"]
    assert ann.post("/api/v1/jobs/cancel", json=given).json()["done"] == []
    assert ann.post("/api/v1/jobs/replay", json={**given, "dry_run": False}).json()["done"] == broken["value"]
    assert states(app, broken["value"] + broken["os"] + broken["theirs"]) == ["queued"] * 3 + ["failed"] * 2


@on_both("each has a plan of its own")
def test_an_error_is_looked_for_in_the_index_of_failures(
    app: Duly, client: Caller, broken: dict[str, list[int]]
) -> None:
    """However many jobs there are that failed with others."""
    ann, asked_ = client("operator"), list[tuple[str, Any]]()

    def others(c: Connection) -> None:
        rest = [one for one in jobs_done.c if one.name not in ("id", "error")]
        names = ["id", "error", *(one.name for one in rest)]
        for n in range(12):
            rows = select(jobs_done.c.id + 10 * 2**n, literal({"type": "Other"}, jobs_done.c.error.type), *rest)
            c.execute(jobs_done.insert().from_select(names, rows.where(jobs_done.c.id.not_in(broken["value"]))))
        if not app.db.is_sqlite:  # it is not told how many there are, nor is it anywhere else
            c.exec_driver_sql("ANALYZE jobs_done")

    def note(conn: object, cursor: object, statement: str, given: Any, context: object, many: bool) -> None:
        if "jobs_done" in statement and "(none)" in statement:
            asked_.append((statement, given))

    app.db.write(others)
    event.listen(Engine, "before_cursor_execute", note)
    ann.get("/api/v1/jobs", params={"error": "ValueError"})
    ann.get("/api/v1/jobs/count", params={"error": "ValueError"})
    ann.post("/api/v1/jobs/replay", json={"filter": {"error": "ValueError"}, "dry_run": True})
    event.remove(Engine, "before_cursor_execute", note)
    looks = [
        one
        for one in asked_
        if "ORDER BY jobs_done.finished_at" in one[0].replace("public.", "").replace('"public".', "")
    ]
    assert len(looks) == 3
    assert all("jobs_done.id IN (" in text for text, given in asked_ if (text, given) not in looks), (
        "the others are told which"
    )

    def plans(c: Connection) -> list[str]:
        how = "EXPLAIN QUERY PLAN " if app.db.is_sqlite else "EXPLAIN "
        return ["\n".join(str(row[-1]) for row in c.exec_driver_sql(how + text, given)) for text, given in looks]

    for plan in app.db.read(plans):
        assert "ix_jobs_done_failures" in plan, plan


@wandering
def test_nothing_that_can_be_thought_of_breaks_the_routes_about_jobs(site: FastAPI, client: Caller) -> None:
    wander(site, client("admin"), "^/api/v1/jobs", 13)


def test_what_does_not_fit_any_more_when_an_act_begins_is_left_alone(
    app: Duly, client: Caller, desks: list[BulkActs], clock: ManualClock
) -> None:
    """A job that a worker has begun meanwhile is not stopped by an act on those that waited."""
    gone, runs = (app.enqueue("tear", {"n": n}).job.id for n in range(2))
    ann = client("operator")
    where = asked(ann, "cancel", filter={"queue": "paper", "status": ["queued"]}).headers["location"]
    app.jobs.cancel(gone)
    now = clock.now()
    taken = update(jobs).where(jobs.c.id == runs).values(status="running", lease_token=1, lease_until=now + timedelta(days=1), attempts=1, started_at=now)  # fmt: skip
    app.db.write(lambda c: c.execute(taken))  # as a worker takes it
    begin_now(desks)
    over = ann.get(where).json()
    assert (over["state"], over["done"], set(over["refused"])) == ("done", 0, {str(gone), str(runs)})
    assert "is running by now" in over["refused"][str(runs)]
    assert not app.jobs.get(runs).cancel_requested


def test_how_an_act_went_is_on_record(
    app: Duly, client: Caller, accounts: Accounts, desks: list[BulkActs]
) -> None:  # X8
    failed(app)
    for _ in range(2):
        asked(client("operator"))
    accounts.revoke_token(accounts.tokens()[0].id)
    begin_now(desks)
    told = {actor: meta for actor, _, meta in trail(app, action="BULK_ENDED")}
    assert sorted(told) == ["token:test 1", "token:test 2"]
    lost = [meta["problem"] for meta in told.values() if "problem" in meta]
    assert len(lost) == 1
    assert "may not do this any more" in lost[0]
    assert sorted(meta["done"] for meta in told.values()) == [0, 3]


def test_one_tenant_leaves_acts_to_others(app: Duly, client: Caller, desks: list[BulkActs]) -> None:
    failed(app, tenant="acme")
    failed(app, tenant="other")
    given = [asked(client("operator", tenant="acme")).status_code for _ in range(OF_TENANT + 1)]
    assert given == [202] * OF_TENANT + [429]
    assert asked(client("operator", tenant="other")).status_code == 202
    begin_now(desks)


@pytest.mark.parametrize("how", ["moved", "password"])
def test_an_act_of_who_was_moved_or_whose_password_was_replaced_touches_nothing(
    app: Duly, site: FastAPI, accounts: Accounts, desks: list[BulkActs], clock: ManualClock, how: str
) -> None:
    ids = failed(app, tenant="acme")
    user = accounts.create_user("ann", "a sentence of her own", "operator", tenant="acme")
    session = accounts.log_in("ann", "a sentence of her own")
    assert session is not None
    ann = TestClient(site, cookies={COOKIE: session}, headers={"x-csrf-token": csrf_of(session)})
    assert asked(ann).status_code == 202
    clock.advance(1)
    if how == "moved":  # as a provider's claims do
        app.db.write(lambda c: c.execute(update(users).where(users.c.id == user.id).values(tenant="other")))
    else:
        accounts.change_user("ann", password="another sentence of hers")
    begin_now(desks)
    assert states(app, ids) == ["failed"] * 3


def test_a_name_that_does_not_exist_is_told_in_the_answer(client: Caller, app: Duly) -> None:  # A2
    me = client(role="operator")
    made = me.post("/api/v1/jobs", json={"task": "gret"})
    assert (made.status_code, made.json()["warnings"][0].partition("? ")[0]) == (
        201,
        'No task is called "gret". Did you mean "greet"',
    )
    assert me.post("/api/v1/jobs", json={"task": "greet"}).json()["warnings"] == []
    many = me.post("/api/v1/jobs/batch", json={"jobs": [{"task": "gret"}, {"task": "greet", "queue": "defualt"}]})
    assert len(many.json()["warnings"]) == 2
    every = {"recurrence": {"kind": "every", "duration": 60}, "task": "gret"}
    assert len(me.put("/api/v1/schedules/often", json=every).json()["warnings"]) == 1
    app.db.settings = dataclasses.replace(app.settings, strict_names=True)
    assert "Did you mean" in me.post("/api/v1/jobs", json={"task": "gret"}).json()["detail"]
    assert me.post("/api/v1/jobs", json={"task": "gret"}).status_code == 422


@pytest.mark.parametrize("what", ["18446744073709551616", "1e400", "NaN", '{"n": 1, "n": 2}'])
def test_a_number_that_would_change_in_silence_is_refused_over_rest(client: Caller, what: str) -> None:  # C017
    me = client(role="operator")
    headers = {"Content-Type": "application/json"}
    text = f'{{"task": "greet", "input": {{"a": [0, {what}]}}}}'
    said = problem(me.post("/api/v1/jobs", content=text, headers=headers), 422)
    assert said["field"] == "input.a[1]"
    schedule = f'{{"task": "greet", "recurrence": {{"kind": "every", "duration": 60}}, "input": {{"a": {what}}}}}'
    assert problem(me.put("/api/v1/schedules/s", content=schedule, headers=headers), 422)["field"] == "input.a"
    assert me.post("/api/v1/jobs", content="{", headers=headers).status_code == 422
    ok = me.post("/api/v1/jobs", content='{"task": "greet2", "input": {"n": 18446744073709551615}}', headers=headers)
    assert ok.json()["job"]["input"] == {"n": 2**64 - 1}

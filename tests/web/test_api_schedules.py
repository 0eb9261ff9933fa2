"""Schedules over REST, on both databases. Source: R003, ADR 0024, B080."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.jobs.house import Housekeeper
from duly.kernel.errors import WrongState
from duly.kernel.recurrence import Cron
from duly.testing import ManualClock, drain
from web.hands import problem, wander, wandering

PATH = "/api/v1/schedules"
PARIS = {"kind": "daily", "at": "02:30", "tz": "Europe/Paris"}
HOURLY = {"kind": "cron", "expression": "0 * * * *", "tz": "UTC"}
Client = Callable[..., TestClient]


@pytest.fixture
def operator(client: Client) -> TestClient:
    return client("operator")


def definition(**more: Any) -> dict[str, Any]:
    return {"recurrence": HOURLY, "task": "greet", "input": {"name": "Ann"}, **more}


def trail(app: Duly) -> list[tuple[str, str, Any]]:
    found = app.db.read(lambda c: find(c, TrailFilter(), 100))
    return [
        (row.action, row.actor, (row.meta or {}).get("reason")) for row in found if row.action.startswith("SCHEDULE")
    ]


def test_a_schedule_is_made_looked_at_changed_and_removed(operator: TestClient, app: Duly) -> None:
    made = operator.put(
        f"{PATH}/nightly", json=definition(recurrence=PARIS, overlap="skip", ends_at="2027-01-01T00:00:00Z")
    )
    assert (made.status_code, made.json()["version"]) == (201, 1), made.text
    said, first = made.json(), {"If-Match": made.headers["etag"]}
    assert operator.get(f"{PATH}/nightly").headers["etag"] == said["etag"] == made.headers["etag"]
    assert (said["recurrence"]["kind"], said["next_at"], said["next_local"]) == (
        "daily", "2026-03-28T01:30:00Z", "2026-03-28T02:30:00+01:00",
    )  # fmt: skip
    assert (said["state"], said["overlap"], said["ends_at"], said["input"]) == (
        "active", "skip", "2027-01-01T00:00:00Z", {"name": "Ann"},
    )  # fmt: skip
    again = operator.put(f"{PATH}/nightly?reason=hourly+now", json=definition(), headers=first)
    assert (again.status_code, again.json()["version"]) == (200, 2)
    assert again.headers["etag"] not in first.values()
    assert operator.get(f"{PATH}/nightly").json() == again.json()
    assert [v["version"] for v in operator.get(f"{PATH}/nightly/versions").json()["versions"]] == [2, 1]
    # B080: somebody else has changed it meanwhile
    problem(operator.put(f"{PATH}/nightly", json=definition(), headers=first), 412)
    problem(operator.put(f"{PATH}/nightly", json=definition(), headers={"If-None-Match": "*"}), 412)
    problem(operator.put(f"{PATH}/other", json=definition(), headers=first), 412)
    problem(operator.delete(f"{PATH}/nightly", headers=first), 412)
    second = {"If-Match": again.headers["etag"]}
    assert operator.delete(f"{PATH}/nightly?reason=moved", headers=second).status_code == 204
    problem(operator.get(f"{PATH}/nightly"), 404)
    problem(operator.delete(f"{PATH}/nightly"), 404)
    assert {who for _, who, _ in trail(app)} == {"token:test 1"}
    assert ("SCHEDULE_REMOVED", "token:test 1", "moved") in trail(app)
    assert ("SCHEDULE_CHANGED", "token:test 1", "hourly now") in trail(app)


def test_one_that_was_removed_and_made_anew_is_another(operator: TestClient, app: Duly) -> None:
    made = operator.put(f"{PATH}/nightly", json=definition())
    seen = {"If-Match": made.headers["etag"]}
    assert operator.delete(f"{PATH}/nightly", headers=seen).status_code == 204
    anew = operator.put(f"{PATH}/nightly", json=definition(task="greet", overlap="skip"))
    assert anew.json()["version"] == made.json()["version"] == 1
    problem(operator.put(f"{PATH}/nightly", json=definition(), headers=seen), 412)
    problem(operator.delete(f"{PATH}/nightly", headers=seen), 412)
    assert operator.get(f"{PATH}/nightly").json() == anew.json()
    # also where that happens between the look and the change
    with pytest.raises(WrongState, match="another one"):
        app.schedules.remove("nightly", version=1, id=made.json()["id"])


def test_an_edit_that_comes_in_between_is_seen_under_the_lock(app: Duly) -> None:
    door = app.schedules
    one, _ = door.set(door.spec("s", Cron("0 * * * *", tz="UTC"), "greet"), version=0)
    door.set(door.spec("s", Cron("1 * * * *", tz="UTC"), "greet"), version=one.version)
    for version in (0, 1):
        with pytest.raises(WrongState):
            door.set(door.spec("s", Cron("2 * * * *", tz="UTC"), "greet"), version=version)
        with pytest.raises(WrongState):
            door.remove("s", version=version)
    door.remove("s", version=2)


def test_what_is_wrong_with_a_definition_is_named(operator: TestClient) -> None:
    for more, field in (
        ({"recurrence": {"kind": "cron", "expression": "61 * * * *", "tz": "UTC"}}, "recurrence.expression"),
        ({"recurrence": {"kind": "cron", "expression": "0 * * * *"}}, "recurrence.tz"),
        ({"recurrence": {"kind": "daily", "at": "09:00", "tz": "Mars/Base"}}, "recurrence.tz"),
        ({"catch_up": "sometimes"}, "catch_up"),
        ({"overlap": "both"}, "overlap"),
        ({"starts_at": "2026-04-01T00:00:00"}, "starts_at"),
        ({"input": {"age": 3}}, None),
        ({"colour": "red"}, "colour"),
        ({"starts_at": "2026-04-01T00:00:00Z", "ends_at": "2026-03-01T00:00:00Z"}, "ends_at"),
    ):
        said = problem(operator.put(f"{PATH}/s", json=definition(**more)), 422)
        assert field is None or said["field"] == field, said
    assert problem(operator.put(f"{PATH}/a%2Fledger", json=definition()), 422)["field"] == "name"
    assert operator.put(f"{PATH}/a%2Fb", json=definition()).status_code == 201
    assert operator.get(f"{PATH}/a%2Fb").json()["name"] == "a/b"


def test_a_preview_marks_days_on_which_clocks_change_and_blackouts(
    operator: TestClient, client: Client, app: Duly
) -> None:
    app.open()
    from duly.kernel.windows import Window

    app.calendars.set(
        Window(days=["mon"], start="00:00", end="06:00", tz="Europe/Paris", name="easter", scope="schedule:nightly")
    )
    operator.put(f"{PATH}/nightly", json=definition(recurrence=PARIS))
    kept = operator.get(f"{PATH}/nightly/preview?n=3").json()
    tried = operator.post(f"{PATH}/preview", json={"recurrence": PARIS, "name": "nightly", "n": 3}).json()
    assert kept == tried
    # 29 March 2026 has no 02:30 in Paris; the 30th is a Monday
    assert [one["local"] for one in kept["next"]] == [
        "2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00",
    ]  # fmt: skip
    assert [one["effect"] for one in kept["next"]] == ["fires", "fires", "deferred"]
    assert "03:00" in kept["next"][1]["special"]
    assert kept["clock_changes"]
    assert kept["next"][2]["blackout"] == ["easter"]
    assert kept["next"][2]["blackout_until"] == "2026-03-30T04:00:00Z"
    # blackouts are shown with queues: who may not see those learns that there is one, and no more
    somebody = client("viewer", scopes=("schedules",))
    for hidden in (
        somebody.get(f"{PATH}/nightly/preview?n=3"),
        somebody.post(f"{PATH}/preview", json={"recurrence": PARIS, "name": "nightly", "n": 3}),
    ):
        assert [(one["effect"], one["blackout"], one["blackout_until"]) for one in hidden.json()["next"]] == [
            (one["effect"], ["a blackout"] * len(one["blackout"]), None) for one in kept["next"]
        ]
        assert "easter" not in hidden.text
    both = client("viewer", scopes=("schedules", "queues")).get(f"{PATH}/nightly/preview?n=3")
    assert both.json()["next"] == kept["next"]
    assert operator.get(PATH).json()["schedules"][0]["name"] == "nightly"  # the one tried out is not written


def test_acts_are_done_in_the_name_of_who_asks(operator: TestClient, app: Duly, clock: ManualClock) -> None:
    operator.put(f"{PATH}/s", json=definition())
    paused = operator.post(f"{PATH}/s/pause", json={"reason": "holiday"}).json()
    assert (paused["state"], paused["paused_reason"], paused["paused_by"]) == ("paused", "holiday", "token:test 1")
    clock.advance(timedelta(hours=3))
    assert operator.post(f"{PATH}/s/resume").json()["state"] == "active"
    ran = operator.post(f"{PATH}/s/run", json={"reason": "now"}).json()
    assert (ran["status"], ran["trigger"], ran["job_status"]) == ("fired", "manual", "queued")
    drain(app)
    asked = {"start": "2026-03-27T10:00:00Z", "end": "2026-03-27T12:00:00Z", "reason": "late"}
    foretold = operator.post(f"{PATH}/s/backfill", json={**asked, "dry_run": True}).json()
    assert (foretold["fired"], foretold["dry_run"]) == (["2026-03-27T10:00:00Z", "2026-03-27T11:00:00Z"], True)
    assert operator.post(f"{PATH}/s/backfill", json=asked).json() == {**foretold, "dry_run": False}
    assert operator.post(f"{PATH}/s/backfill", json=asked).json()["left"] == foretold["fired"]
    assert problem(operator.post(f"{PATH}/s/backfill", json={"start": "2027-01-01T00:00:00Z"}), 422)["field"] == "start"
    for act in ("pause", "resume", "run"):
        problem(operator.post(f"{PATH}/none/{act}"), 404)
    problem(operator.post(f"{PATH}/none/backfill", json=asked), 404)
    reasons = [(action, reason) for action, _, reason in trail(app) if reason]
    assert set(reasons) == {("SCHEDULE_PAUSED", "holiday"), ("SCHEDULE_RUN", "now"), ("SCHEDULE_BACKFILLED", "late")}


def test_the_ledger_is_read_page_by_page(operator: TestClient, app: Duly, clock: ManualClock) -> None:
    # B080
    operator.put(f"{PATH}/s", json=definition(catch_up="all"))
    clock.advance(timedelta(hours=7))
    drain(app)
    seen, cursor = [], ""
    while cursor is not None:
        page = operator.get(f"{PATH}/s/ledger?limit=3{cursor and f'&cursor={cursor}'}").json()
        seen += page["occurrences"]
        cursor = page["next"]
    assert [one["due_at"] for one in seen] == [f"2026-03-27T{hour}:00:00Z" for hour in range(16, 9, -1)]
    assert {(one["status"], one["job_status"]) for one in seen} == {("fired", "succeeded")}
    assert operator.get(f"{PATH}/s/ledger?status=missed").json() == {"occurrences": [], "next": None}
    since = operator.get(f"{PATH}/s/ledger", params={"since": "2026-03-27T16:00:00+01:00"}).json()["occurrences"]
    assert len(since) == 2
    for query, field in (
        ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=abc", "limit"), ("limit=1000000000000", "limit"), ("cursor=abc", "cursor"),
        ("cursor=WzFd", "cursor"), ("cursor=WyJhIl0", "cursor"), ("status=gone", "status[0]"), ("since=2026-03-27T16:00:00", "since"),
    ):  # fmt: skip
        assert problem(operator.get(f"{PATH}/s/ledger?{query}"), 422)["field"] == field
    problem(operator.get(f"{PATH}/none/ledger"), 404)


def test_schedules_are_listed_page_by_page_with_what_came_last(
    operator: TestClient, app: Duly, clock: ManualClock
) -> None:
    # B080
    for name in ("b", "a", "c"):
        operator.put(f"{PATH}/{name}", json=definition())
    operator.put(f"{PATH}/z?tenant=acme", json=definition())
    clock.advance(timedelta(hours=1))
    drain(app)
    first = operator.get(f"{PATH}?limit=3").json()
    rest = operator.get(f"{PATH}?limit=3&cursor={first['next']}").json()
    assert [(s["tenant"], s["name"]) for s in first["schedules"] + rest["schedules"]] == [
        ("acme", "z"), ("default", "a"), ("default", "b"), ("default", "c"),
    ]  # fmt: skip
    assert rest["next"] is None
    assert first["schedules"][0]["last"]["status"] == "fired"
    for query in ("limit=0", "limit=-1", "limit=abc", "limit=1000000000000", "cursor=abc", "cursor=WzFd"):
        problem(operator.get(f"{PATH}?{query}"), 422)


def test_another_tenants_schedule_is_not_there(client: Client, app: Duly) -> None:
    client("operator").put(f"{PATH}/s?tenant=acme", json=definition())
    other = client("operator", tenant="other")
    assert other.get(PATH).json()["schedules"] == []
    problem(other.get(f"{PATH}?tenant=acme"), 404)
    for method, path in (
        ("GET", "/s"), ("GET", "/s/ledger"), ("GET", "/s/preview"), ("GET", "/s/versions"), ("POST", "/s/pause"), ("POST", "/s/resume"), ("POST", "/s/run"),
        ("DELETE", "/s"),
    ):  # fmt: skip
        problem(other.request(method, f"{PATH}{path}?tenant=acme"), 404)
    problem(other.post(f"{PATH}/s/backfill", json={"start": "2026-03-01T00:00:00Z"}), 404)
    assert problem(other.put(f"{PATH}/s?tenant=acme", json=definition()), 422)["field"] == "tenant"
    assert other.put(f"{PATH}/s", json=definition()).json()["tenant"] == "other"


def test_who_looks_changes_nothing_and_sees_no_input(client: Client, stranger: TestClient) -> None:
    client("operator").put(f"{PATH}/s", json=definition(input={"name": "Ann"}))
    viewer = client("viewer")
    said = viewer.get(f"{PATH}/s").json()
    assert (said["input"], said["hidden"], said["task"]) == (None, True, "greet")
    assert "Ann" not in viewer.get(f"{PATH}/s/versions").text + viewer.get(PATH).text
    problem(viewer.put(f"{PATH}/s", json=definition()), 403)
    problem(viewer.delete(f"{PATH}/s"), 403)
    for act in ("pause", "resume", "run"):
        problem(viewer.post(f"{PATH}/s/{act}"), 403)
    problem(client("operator", scopes=("jobs",)).get(PATH), 403)
    problem(stranger.get(PATH), 401)


@wandering
def test_schedules_answer_as_they_are_described(site: FastAPI, client: Client) -> None:
    wander(site, client("admin"), "^/api/v1/schedules", 12)


def test_a_schedule_that_no_workers_code_declares_any_more_says_so_over_rest(operator: TestClient, app: Duly) -> None:
    app.schedule("left", Cron("0 3 * * *", tz="UTC"), task="greet", input={"name": "Ann"})
    app.schedules.sync()
    app.schedules._declared.clear()
    app.schedule("kept", Cron("0 3 * * *", tz="UTC"), task="greet", input={"name": "Ann"})
    Housekeeper(app.worker()).presence()
    said = {one["name"]: one["undeclared"] for one in operator.get(PATH).json()["schedules"]}
    assert said == {"kept": False, "left": True}
    assert operator.get(f"{PATH}/left").json()["undeclared"] is True
    assert operator.post(f"{PATH}/left/pause").json()["undeclared"] is True

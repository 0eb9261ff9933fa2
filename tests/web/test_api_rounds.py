"""Rounds over REST, on both databases. Source: R000, T000, B080."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.testing import ManualClock
from web.hands import problem, wander, wandering

PATH = "/api/v1/rounds"
GROUPS = f"{PATH}/groups"
Client = Callable[..., TestClient]


@pytest.fixture
def operator(client: Client) -> TestClient:
    return client("operator")


def group(caller: TestClient, name: str = "choir", query: str = "", **more: Any) -> int:
    given = {"name": name, "zone": "Europe/Paris", "drop_time": "18:00", **more}
    answer = caller.post(f"{GROUPS}{query}", json=given)
    assert answer.status_code == 201, answer.text
    ident: int = answer.json()["id"]
    return ident


def opened(caller: TestClient, clock: ManualClock) -> int:
    """The choir with Ann and Ben, and its round, which is open."""
    group(caller)
    for name in ("Ann", "Ben"):
        caller.post(
            f"{GROUPS}/choir/members", json={"name": name, "email": f"{name.lower()}@example.org", "channels": ["log"]}
        )
    assert caller.post(f"{GROUPS}/choir/prompts", json={"texts": ["Which song?"]}).status_code == 201
    assert [t["done"] for t in caller.post(f"{PATH}/ticks", json={"kind": "plan"}).json()["ticks"]] == [1]
    clock.advance(timedelta(hours=9))
    assert [t["kind"] for t in caller.post(f"{PATH}/ticks", json={}).json()["ticks"]] == ["close", "plan", "open"]
    (found,) = caller.get(PATH).json()["rounds"]
    assert (found["status"], found["prompt_text"]) == ("open", "Which song?")
    ident: int = found["id"]
    return ident


def test_groups_are_made_changed_and_seen(operator: TestClient, app: Duly) -> None:
    ident = group(operator)
    said = operator.get(f"{GROUPS}/choir").json()
    assert (said, said["zone"], said["cooldown"]) == (operator.get(f"{GROUPS}/{ident}").json(), "Europe/Paris", None)
    change = {"zone": "Europe/Rome", "cooldown": 60, "drop_time": None, "reason": "moved"}
    changed = operator.patch(f"{GROUPS}/choir", json=change).json()
    assert (changed["zone"], changed["cooldown"], changed["drop_time"], changed["name"]) == (
        "Europe/Rome",
        60.0,
        None,
        "choir",
    )
    for given, field in (
        ({"zone": "Mars/Base"}, "zone"), ({"drop_time": "25:00"}, "drop_time"), ({"cooldown": -1}, "cooldown"), ({}, "body"), ({"colour": "red"}, "colour"),
    ):  # fmt: skip
        assert problem(operator.patch(f"{GROUPS}/choir", json=given), 422)["field"] == field
    taken = {"name": "choir", "zone": "Europe/Paris"}
    assert problem(operator.post(GROUPS, json=taken), 422)["field"] == "name"
    problem(operator.get(f"{GROUPS}/none"), 404)
    problem(operator.patch(f"{GROUPS}/99", json={"zone": "Europe/Rome"}), 404)
    rows = app.db.read(lambda c: find(c, TrailFilter(), 50))
    assert ("GROUP_CHANGED", "token:test 1", "moved") in [
        (r.action, r.actor, (r.meta or {}).get("reason")) for r in rows
    ]


def test_a_stale_edit_of_a_group_its_members_or_its_prompts_is_refused(
    operator: TestClient, clock: ManualClock
) -> None:
    # issue 8
    opened(operator, clock)
    made = operator.get(f"{GROUPS}/choir")
    assert made.headers["etag"] == made.json()["etag"] == operator.get(GROUPS).json()["groups"][0]["etag"]
    seen = {"If-Match": made.headers["etag"]}
    clock.advance(timedelta(days=2))
    operator.post(f"{PATH}/ticks", json={})  # what ticks do to a group is no edit
    changed = operator.patch(f"{GROUPS}/choir", json={"zone": "Europe/Rome"}, headers=seen)
    assert (changed.status_code, changed.json()["zone"]) == (200, "Europe/Rome")
    assert operator.get(f"{GROUPS}/choir").headers["etag"] == changed.headers["etag"]
    problem(operator.patch(f"{GROUPS}/choir", json={"zone": "Europe/Oslo"}, headers=seen), 412)
    problem(operator.patch(f"{GROUPS}/99", json={"zone": "Europe/Oslo"}, headers=seen), 404)
    assert operator.get(f"{GROUPS}/choir").json()["zone"] == "Europe/Rome"

    ann, ben = operator.get(f"{GROUPS}/choir/members").json()["members"]
    stale = {"If-Match": ann["etag"]}
    assert operator.patch(f"{GROUPS}/choir/members/Ann", json={"channels": ["email"]}, headers=stale).is_success
    problem(operator.patch(f"{GROUPS}/choir/members/Ann", json={"is_active": False}, headers=stale), 412)
    assert operator.get(f"{GROUPS}/choir/members").json()["members"][0]["is_active"] is True
    assert ann["etag"] != ben["etag"]

    (prompt,) = operator.get(f"{GROUPS}/choir/prompts").json()["prompts"]
    stale, path = {"If-Match": prompt["etag"]}, f"{PATH}/prompts/{prompt['id']}"
    newer = operator.patch(path, json={"text": "Which one?"}, headers=stale).json()
    problem(operator.patch(path, json={"text": "Any?"}, headers=stale), 412)
    problem(operator.delete(path, headers=stale), 412)
    assert operator.get(f"{GROUPS}/choir/prompts").json()["prompts"] == [newer]
    assert operator.delete(path, headers={"If-Match": newer["etag"]}).status_code == 204


def test_members_and_prompts_are_kept(operator: TestClient, client: Client) -> None:
    group(operator)
    ann = {"name": "Ann", "email": "ann@example.org", "channels": ["email"]}
    made = operator.post(f"{GROUPS}/choir/members", json=ann)
    assert (made.status_code, made.json()["channels"]) == (201, ["email"])
    assert (
        problem(operator.post(f"{GROUPS}/choir/members", json={"name": "Ben", "channels": ["webhook"]}), 422)["field"]
        == "channels"
    )
    left = operator.patch(f"{GROUPS}/choir/members/Ann", json={"is_active": False, "reason": "moved away"}).json()
    assert (left["is_active"], left["email"]) == (False, "ann@example.org")
    seen = client("viewer").get(f"{GROUPS}/choir/members").json()["members"]
    assert [(m["name"], m["email"], m["hidden"]) for m in seen] == [("Ann", None, True)]
    one, two = operator.post(f"{GROUPS}/choir/prompts", json={"texts": ["Which song?", "Which day?"]}).json()["prompts"]
    assert operator.patch(f"{PATH}/prompts/{one['id']}", json={"is_active": False}).json()["is_active"] is False
    assert operator.delete(f"{PATH}/prompts/{two['id']}?reason=old").status_code == 204
    assert [p["text"] for p in operator.get(f"{GROUPS}/choir/prompts").json()["prompts"]] == ["Which song?"]
    problem(operator.delete(f"{PATH}/prompts/{two['id']}"), 404)
    problem(operator.patch(f"{GROUPS}/choir/members/Zoe", json={"is_active": False}), 404)


def test_a_round_opens_takes_what_members_say_and_closes(
    operator: TestClient, client: Client, clock: ManualClock
) -> None:
    # R000-15, R000-16
    ident = opened(operator, clock)
    ann = operator.post(f"{PATH}/{ident}/submissions", json={"member": "Ann", "text": "The old one"})
    assert ann.status_code == 201
    said = ann.json()["id"]
    assert problem(operator.post(f"{PATH}/{ident}/submissions", json={"member": "Ann", "text": "Another"}), 422)
    operator.patch(f"{PATH}/submissions/{said}", json={"member": "Ann", "text": "The new one"})
    note = operator.post(f"{PATH}/submissions/{said}/comments", json={"member": "Ben", "text": "Yes"}).json()["id"]
    operator.patch(f"{PATH}/comments/{note}", json={"member": "Ben", "text": "Yes!"})
    assert operator.post(f"{PATH}/submissions/{said}/votes", json={"member": "Ben"}).json()["submission_id"] == said
    clock.advance(timedelta(hours=25))
    assert operator.get(f"{PATH}/{ident}").json()["round"]["label"] == "over"
    problem(operator.post(f"{PATH}/submissions/{said}/votes", json={"member": "Ann"}), 409)
    operator.post(f"{PATH}/ticks", json={"kind": "close"})
    archive = operator.get(f"{PATH}/{ident}").json()
    assert (archive["round"]["status"], archive["submissions"][0]["text"], archive["submissions"][0]["votes"]) == (
        "closed",
        "The new one",
        1,
    )
    assert [c["text"] for c in archive["comments"]] == ["Yes!"]
    hidden = client("viewer").get(f"{PATH}/{ident}").json()
    assert (hidden["hidden"], hidden["submissions"][0]["text"], hidden["comments"][0]["text"]) == (True, None, None)
    assert {t["kind"] for t in operator.get(f"{PATH}/ticks").json()["ticks"]} == {"plan", "open", "close"}


def test_the_next_openings_are_told(operator: TestClient) -> None:
    group(operator)
    operator.post(f"{GROUPS}/choir/prompts", json={"texts": ["Which song?"]})
    group(operator, "band", is_active=False)
    first = operator.get(f"{PATH}/next?limit=1").json()
    assert [(n["at"], n["reason"]) for n in first["next_rounds"]] == [("2026-03-27T17:00:00Z", "")]
    second = operator.get(f"{PATH}/next?limit=1&cursor={first['next']}").json()
    assert (second["next_rounds"][0]["at"], second["next"], bool(second["next_rounds"][0]["reason"])) == (
        None,
        None,
        True,
    )


def test_lists_are_read_page_by_page(operator: TestClient) -> None:
    # B080
    made = [group(operator, f"g{n}") for n in range(5)]
    group(operator, "theirs", "?tenant=acme")
    seen: list[int] = []
    cursor = ""
    while cursor is not None:
        page = operator.get(f"{GROUPS}?limit=2&tenant=default{cursor and f'&cursor={cursor}'}").json()
        seen += [one["id"] for one in page["groups"]]
        cursor = page["next"]
    assert seen == made
    assert len(operator.get(GROUPS).json()["groups"]) == 6
    for path in (GROUPS, PATH, f"{PATH}/next"):
        for query, field in (
            ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=abc", "limit"), ("limit=1000000000000", "limit"), ("cursor=abc", "cursor"),
            ("cursor=WzBd", "cursor"),
        ):  # fmt: skip
            assert problem(operator.get(f"{path}?{query}"), 422)["field"] == field
    problem(operator.get(f"{PATH}?group=none"), 404)
    texts = [f"Prompt {n}" for n in range(3)]
    operator.post(f"{GROUPS}/g0/prompts", json={"texts": texts})
    for name in texts:
        operator.post(f"{GROUPS}/g0/members", json={"name": name})
    for what, name in (("prompts", "text"), ("members", "name")):
        one = operator.get(f"{GROUPS}/g0/{what}?limit=2").json()
        two = operator.get(f"{GROUPS}/g0/{what}?limit=2&cursor={one['next']}").json()
        assert ([each[name] for each in one[what] + two[what]], two["next"]) == (texts, None)


def test_another_tenants_groups_and_rounds_are_not_there(
    client: Client, operator: TestClient, clock: ManualClock
) -> None:
    ident = opened(operator, clock)
    (said,) = [operator.post(f"{PATH}/{ident}/submissions", json={"member": "Ann", "text": "A"}).json()["id"]]
    note = operator.post(f"{PATH}/submissions/{said}/comments", json={"member": "Ann", "text": "B"}).json()["id"]
    prompt = operator.get(f"{GROUPS}/choir/prompts").json()["prompts"][0]["id"]
    other = client("operator", tenant="other")
    at = "?tenant=default"
    assert other.get(GROUPS).json()["groups"] == other.get(PATH).json()["rounds"] == []
    assert other.get(f"{PATH}/next").json()["next_rounds"] == []
    for path in (GROUPS, PATH, f"{PATH}/next"):
        problem(other.get(f"{path}{at}"), 404)
    for path in ("choir", "1", "choir/members", "choir/prompts"):
        problem(other.get(f"{GROUPS}/{path}{at}"), 404)
    problem(other.get(f"{PATH}/{ident}{at}"), 404)
    problem(other.patch(f"{GROUPS}/choir{at}", json={"zone": "Europe/Rome"}), 404)
    problem(other.patch(f"{GROUPS}/choir/members/Ann{at}", json={"is_active": False}), 404)
    problem(other.post(f"{GROUPS}/choir/members{at}", json={"name": "Eve"}), 404)
    problem(other.post(f"{GROUPS}/choir/prompts{at}", json={"texts": ["Why?"]}), 404)
    problem(other.patch(f"{PATH}/prompts/{prompt}{at}", json={"is_active": False}), 404)
    problem(other.delete(f"{PATH}/prompts/{prompt}{at}"), 404)
    words = {"member": "Ann", "text": "C"}
    problem(other.post(f"{PATH}/{ident}/submissions{at}", json=words), 404)
    problem(other.patch(f"{PATH}/submissions/{said}{at}", json=words), 404)
    problem(other.post(f"{PATH}/submissions/{said}/comments{at}", json=words), 404)
    problem(other.patch(f"{PATH}/comments/{note}{at}", json=words), 404)
    problem(other.post(f"{PATH}/submissions/{said}/votes{at}", json={"member": "Ann"}), 404)
    problem(other.get(f"{PATH}/ticks"), 403)
    problem(other.post(f"{PATH}/ticks", json={}), 403)
    assert problem(other.post(f"{GROUPS}{at}", json={"name": "g", "zone": "UTC"}), 422)["field"] == "tenant"


def test_who_looks_changes_nothing(client: Client, operator: TestClient) -> None:
    group(operator)
    viewer = client("viewer")
    problem(viewer.post(GROUPS, json={"name": "g", "zone": "UTC"}), 403)
    problem(viewer.patch(f"{GROUPS}/choir", json={"zone": "UTC"}), 403)
    problem(viewer.post(f"{GROUPS}/choir/members", json={"name": "Eve"}), 403)
    problem(viewer.post(f"{PATH}/ticks", json={}), 403)
    problem(viewer.post(f"{PATH}/1/submissions", json={"member": "Ann", "text": "A"}), 403)
    problem(client("operator", scopes=("jobs",)).get(GROUPS), 403)


@wandering
def test_rounds_answer_as_they_are_described(site: FastAPI, client: Client, clock: ManualClock) -> None:
    opened(client("operator"), clock)
    wander(site, client("admin"), "^/api/v1/rounds", 21)

"""Tokens, users and who one is, over REST."""

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
from duly.accounts.door import Accounts
from duly.audit.read import TrailFilter, find
from duly.testing import ManualClock
from web.conftest import NOW
from web.hands import problem, wander, wandering

Caller = Callable[..., TestClient]
PASSWORD = "a sentence of my own"


def trail(app: Duly, action: str) -> list[Any]:
    return app.db.read(lambda c: find(c, TrailFilter(action=action)))


def test_everybody_is_told_who_they_are(client: Caller) -> None:
    said = client("operator", tenant="acme", scopes=("jobs",)).get("/api/v1/me").json()
    assert said == {
        "actor": "token:test 1", "role": "operator", "tenant": "acme", "scopes": ["jobs"], "user": None, "csrf": None, "sees_payloads": True,
    }  # fmt: skip
    assert client().get("/api/v1/me").json()["sees_payloads"] is False
    assert client(scopes=("*", "payloads")).get("/api/v1/me").json()["sees_payloads"] is True


def test_a_user_is_shown_with_who_a_provider_knows_them_as_and_names_look_different(
    client: Caller, accounts: Accounts
) -> None:
    admin, provider = client("admin"), "https://login.example.org"
    for odd in ("ann ", " ann", "ann\u3164", "a\u200bnn", "zoe\u0301"):
        assert problem(admin.post("/api/v1/users", json={"name": odd, "password": PASSWORD}), 422)["field"] == "name"
    made = admin.post("/api/v1/users", json={"name": "ann", "password": PASSWORD}).json()
    assert (made["login"], made["identities"]) == ("password", [])
    accounts.link_user("ann", provider, "7")
    known = [{"issuer": provider, "subject": "7"}]
    assert admin.get("/api/v1/users/ann").json()["identities"] == known
    [listed] = admin.get("/api/v1/users").json()["users"]
    assert (listed["login"], listed["identities"]) == ("oidc", known)
    accounts.unlink_user("ann")
    assert admin.get("/api/v1/users/ann").json()["login"] == "none"
    assert admin.patch("/api/v1/users/ann", json={"password": PASSWORD}).json()["login"] == "password"


def test_a_token_is_shown_once_and_lets_somebody_in(
    app: Duly, client: Caller, stranger: TestClient, clock: ManualClock
) -> None:
    admin = client("admin")
    made = admin.post(
        "/api/v1/tokens", json={"name": "ci", "role": "operator", "scopes": ["jobs"], "expires_in": 3600, "reason": "the build"}
    )  # fmt: skip
    token, record = made.json()["token"], made.json()["record"]
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert (record["role"], record["scopes"], record["state"], record["tenant"]) == (
        "operator",
        ["jobs"],
        "active",
        None,
    )
    assert record["expires_at"] == "2026-03-27T10:00:00Z"
    assert token.startswith(record["prefix"])
    as_ci = {"Authorization": f"Bearer {token}"}
    assert stranger.get("/api/v1/jobs", headers=as_ci).status_code == 200
    problem(stranger.get("/api/v1/queues", headers=as_ci), 403)
    listed = admin.get("/api/v1/tokens")
    assert token not in listed.text
    assert listed.json()["tokens"][0]["last_used_at"] == "2026-03-27T09:00:00Z"
    [entry] = [e for e in trail(app, "TOKEN_CREATED") if e.meta["name"] == "ci"]
    assert (entry.actor, entry.meta["reason"], token in str(entry)) == ("token:test 1", "the build", False)
    clock.advance(timedelta(hours=1))
    problem(stranger.get("/api/v1/jobs", headers=as_ci), 401)
    assert admin.get("/api/v1/tokens").json()["tokens"][0]["state"] == "expired"


def test_a_revoked_token_lets_nobody_in(app: Duly, client: Caller, stranger: TestClient) -> None:
    admin = client("admin")
    made = admin.post("/api/v1/tokens", json={"name": "lost"}).json()
    ident, as_lost = made["record"]["id"], {"Authorization": f"Bearer {made['token']}"}
    assert stranger.get("/api/v1/me", headers=as_lost).status_code == 200
    gone = admin.post(f"/api/v1/tokens/{ident}/revoke", json={"reason": "left on a train"}).json()
    assert (gone["state"], gone["revoked_at"]) == ("revoked", "2026-03-27T09:00:00Z")
    problem(stranger.get("/api/v1/me", headers=as_lost), 401)
    problem(admin.post(f"/api/v1/tokens/{ident}/revoke"), 404)
    assert trail(app, "TOKEN_REVOKED")[0].meta["reason"] == "left on a train"


def test_pages_of_tokens_follow_each_other(client: Caller) -> None:
    # B080
    admin = client("admin")
    for n in range(6):
        admin.post("/api/v1/tokens", json={"name": f"t{n}"})
    seen: list[int] = []
    cursor = None
    while True:
        said = admin.get("/api/v1/tokens", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        seen += [one["id"] for one in said["tokens"]]
        if (cursor := said["next"]) is None:
            break
    assert seen == sorted(set(seen), reverse=True)
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "name"), ({"name": ""}, "name"), ({"name": "a", "role": "king"}, "role"), ({"name": "a", "scopes": ["kitchen"]}, "scopes[0]"),
        ({"name": "a", "expires_in": 0}, "expires_in"), ({"name": "a", "expires_at": "2026-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "a", "expires_at": "2027-01-01T00:00:00"}, "expires_at"), ({"name": "a", "token": "duly_mine"}, "token"),
        ({"name": "a", "expires_in": 5, "expires_at": "2027-01-01T00:00:00Z"}, "expires_in"),
    ],
)  # fmt: skip
def test_a_token_that_cannot_be_made_is_refused_by_field(client: Caller, given: dict[str, Any], field: str) -> None:
    assert problem(client("admin").post("/api/v1/tokens", json=given), 422)["field"] == field


def test_only_administrators_look_at_accounts(client: Caller) -> None:
    for somebody in (client(), client("operator"), client("admin", scopes=("jobs",))):
        for path in ("tokens", "users", "users/ann"):
            problem(somebody.get(f"/api/v1/{path}"), 403)
        problem(somebody.post("/api/v1/tokens", json={"name": "mine", "role": "admin"}), 403)
        problem(somebody.post("/api/v1/users", json={"name": "me", "password": PASSWORD, "role": "admin"}), 403)
        problem(somebody.post("/api/v1/tokens/1/revoke"), 403)


def test_an_administrator_of_a_tenant_makes_and_sees_tokens_of_that_tenant_only(
    accounts: Accounts, client: Caller
) -> None:
    admin = client("admin", tenant="acme")
    _, foreign = accounts.create_token("theirs", tenant="other")
    _, everybodys = accounts.create_token("everybody's")
    accounts.create_user("ann", PASSWORD, tenant="other")
    made = admin.post("/api/v1/tokens", json={"name": "ours"}).json()["record"]
    assert made["tenant"] == "acme"
    assert problem(admin.post("/api/v1/tokens", json={"name": "x", "tenant": "other"}), 422)["field"] == "tenant"
    problem(admin.get("/api/v1/tokens", params={"tenant": "other"}), 404)
    listed = admin.get("/api/v1/tokens").json()["tokens"]
    assert [one["name"] for one in listed] == ["ours", "test 1"]
    for ident in (foreign.id, everybodys.id):
        problem(admin.post(f"/api/v1/tokens/{ident}/revoke"), 404)
    assert admin.get("/api/v1/users").json()["users"] == []
    problem(admin.get("/api/v1/users/ann"), 404)
    problem(admin.patch("/api/v1/users/ann", json={"password": "another sentence"}), 404)
    assert admin.post("/api/v1/users", json={"name": "bob", "password": PASSWORD}).json()["tenant"] == "acme"
    assert (
        problem(admin.post("/api/v1/users", json={"name": "c", "password": PASSWORD, "tenant": "b"}), 422)["field"]
        == "tenant"
    )
    assert [one.name for one in accounts.users("acme")] == ["bob"]
    assert accounts.log_in("ann", PASSWORD) is not None


def test_nobody_gives_away_more_than_they_have(client: Caller) -> None:
    bounded = client("admin", scopes=("accounts", "jobs"))
    problem(bounded.post("/api/v1/tokens", json={"name": "all"}), 403)
    problem(bounded.post("/api/v1/tokens", json={"name": "more", "scopes": ["jobs", "system"]}), 403)
    assert bounded.post("/api/v1/tokens", json={"name": "less", "scopes": ["jobs"]}).status_code == 201
    problem(bounded.post("/api/v1/users", json={"name": "me", "password": PASSWORD, "role": "admin"}), 403)
    problem(bounded.patch("/api/v1/users/ann", json={"password": PASSWORD}), 403)


def test_users_are_made_changed_and_let_in_no_more(app: Duly, accounts: Accounts, client: Caller) -> None:
    admin = client("admin")
    made = admin.post("/api/v1/users", json={"name": "ann", "password": PASSWORD, "role": "operator"})
    assert (made.status_code, made.json()["role"], made.json()["created_at"]) == (
        201,
        "operator",
        "2026-03-27T09:00:00Z",
    )
    assert PASSWORD not in made.text
    session = accounts.log_in("ann", PASSWORD)
    assert session is not None
    assert problem(admin.post("/api/v1/users", json={"name": "ann", "password": PASSWORD}), 422)["field"] == "name"
    changed = admin.patch("/api/v1/users/ann", json={"role": "viewer", "password": "quite another sentence"}).json()
    assert changed["role"] == "viewer"
    assert accounts.by_login(session) is None  # logins of before have ended
    assert accounts.log_in("ann", PASSWORD) is None
    off = admin.patch("/api/v1/users/ann", json={"disabled": True, "reason": "on leave"}).json()
    assert off["disabled_at"] == "2026-03-27T09:00:00Z"
    assert accounts.log_in("ann", "quite another sentence") is None
    assert trail(app, "USER_DISABLED")[0].meta["reason"] == "on leave"
    assert admin.get("/api/v1/users/ann").json() == off
    assert admin.get("/api/v1/users").json() == {"users": [off], "next": None}
    assert admin.patch("/api/v1/users/ann", json={"disabled": False}).json()["disabled_at"] is None
    assert accounts.log_in("ann", "quite another sentence") is not None
    problem(admin.patch("/api/v1/users/nobody", json={"disabled": True}), 404)
    problem(admin.patch("/api/v1/users/ann", json={}), 422)


def test_a_password_that_is_refused_is_not_repeated(client: Caller) -> None:
    admin = client("admin")
    for wrong in ("short", "x" * 2000, 123456789012345):
        answer = admin.post("/api/v1/users", json={"name": "ann", "password": wrong})
        assert problem(answer, 422)["field"] == "password"
        assert str(wrong)[:50] not in answer.text


def test_the_clock_of_these_tests_is_the_one_of_the_application(app: Duly) -> None:
    assert app.db.read(app.db.present) == NOW


def test_a_stale_edit_of_a_user_is_refused(app: Duly, client: Caller, clock: ManualClock) -> None:  # issue 8
    admin, path = client("admin"), "/api/v1/users/ann"
    made = admin.post("/api/v1/users", json={"name": "ann", "password": PASSWORD}).json()
    shown = admin.get(path)
    assert shown.headers["etag"] == shown.json()["etag"] == made["etag"]
    seen = {"If-Match": made["etag"]}
    changed = admin.patch(path, json={"role": "operator"}, headers=seen)
    assert (changed.status_code, changed.json()["role"]) == (200, "operator")
    for change in ({"role": "admin"}, {"disabled": True}, {"password": "another sentence"}):
        problem(admin.patch(path, json=change, headers=seen), 412)
    assert admin.get(path).json() == changed.json()
    assert Accounts(app).log_in("ann", PASSWORD) is not None
    newer = {"If-Match": changed.headers["etag"]}
    clock.advance(timedelta(seconds=1))
    assert admin.patch(path, json={"password": "another sentence"}, headers=newer).status_code == 200
    problem(admin.patch(path, json={"role": "admin"}, headers=newer), 412)  # a new password is a change
    problem(admin.patch("/api/v1/users/nobody", json={"role": "admin"}, headers=newer), 404)
    assert len(trail(app, "USER_CHANGED")) == 2


def test_of_two_who_have_seen_the_same_user_one_changes_them(app: Duly, client: Caller) -> None:
    Accounts(app).create_user("ann", PASSWORD)
    seen = client("admin").get("/api/v1/users/ann").headers["etag"]
    together = threading.Barrier(2)

    def change(somebody: TestClient, role: str) -> int:
        together.wait()
        return somebody.patch("/api/v1/users/ann", json={"role": role}, headers={"If-Match": seen}).status_code

    both = [client("admin"), client("admin")]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(change, both, ("operator", "admin")))
    assert sorted(done) == [200, 412]


@wandering
def test_the_routes_answer_as_they_are_described(site: FastAPI, client: Caller) -> None:
    wander(site, client("admin"), "^/api/v1/(me$|tokens|users)", 8)

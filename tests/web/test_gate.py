"""Who comes in, what they may, and what a browser cannot be tricked into."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import func, select
from starlette.testclient import TestClient

from duly import Duly
from duly.accounts.account import FREE, LONGEST_WAIT, Throttled
from duly.accounts.door import Accounts, csrf_of
from duly.audit.tables import audit_log
from duly.kernel.errors import InvalidArgument
from duly.testing import ManualClock
from duly.web.app import create
from duly.web.gate import COOKIE, CSRF_HEADER, OPEN
from web.hands import problem
from web.walk import SAFE, filled, names, request, routes

Caller = Callable[..., TestClient]
Served = Callable[..., AbstractContextManager[httpx2.Client]]
PASSWORD = "a sentence of my own"
API = ("/api/", "/fp-publisher/")
#: Asked by POST because of their bodies; they change nothing, so a viewer may.
LOOKS = {
    "/api/v1/blackouts/impact", "/api/v1/schedules/preview", "/api/v1/rounds/preview", "/fp-publisher/v1/preview", "/fp-publisher/v1/jobs/test",
}  # fmt: skip
#: Of everybody who is known, whatever they may.
ANYBODYS = {"/api/v1/me", "/openapi.json"}


def rows(app: Duly) -> int:
    return app.db.read(lambda c: c.execute(select(func.count()).select_from(audit_log)).scalar_one())


@pytest.fixture
def person(site: FastAPI, accounts: Accounts) -> TestClient:
    """An administrator who has logged in."""
    accounts.create_user("ann", PASSWORD, "admin")
    session = accounts.log_in("ann", PASSWORD)
    assert session is not None
    return TestClient(site, cookies={COOKIE: session}, headers={CSRF_HEADER: csrf_of(session)})


# ---------------------------------------------------------------------- every route


def walked(site: FastAPI, *, api: bool = True) -> list[tuple[str, str, str, dict[str, Any]]]:
    """(method, path, what is asked, request) of every route."""
    out = []
    for method, path in routes(site):
        if path.startswith(API) is api and not path.startswith(OPEN):
            asked = filled(path, {name: 1 if name == "id" else "x" for name in names(path)})
            out.append((method, path, asked, request(site, method, path)))
    return out


def test_a_stranger_gets_in_nowhere(app: Duly, site: FastAPI, stranger: TestClient) -> None:
    before = rows(app)
    for method, path, asked, given in walked(site):
        answer = stranger.request(method, asked, **given)
        assert answer.status_code == 401, f"{method} {path}: {answer.status_code}"
        assert answer.headers["www-authenticate"] == 'Bearer realm="duly"'
    for method, path, asked, _ in walked(site, api=False):
        answer = stranger.request(method, asked, headers={"Accept": "text/html"}, follow_redirects=False)
        led = answer.status_code == 303 and answer.headers["location"].startswith("/login?next=")
        assert answer.status_code == 401 or led, f"{method} {path}: {answer.status_code}"
    assert rows(app) == before


def test_a_viewer_changes_nothing_on_any_route(app: Duly, site: FastAPI, client: Caller) -> None:
    viewer = client("viewer", scopes=("*", "payloads"))
    before, seen = rows(app), 0
    for method, path, asked, given in walked(site) + walked(site, api=False):
        if method in SAFE or path in LOOKS or path == "/logout":
            continue
        answer = viewer.request(method, asked, follow_redirects=False, **given)
        assert answer.status_code == 403, f"{method} {path}: {answer.status_code} {answer.text[:200]}"
        seen += 1
    assert rows(app) == before
    assert seen > 30


def test_a_look_by_post_changes_nothing(app: Duly, site: FastAPI, client: Caller) -> None:
    viewer = client("viewer")
    before, there = rows(app), {path for _, path in routes(site)}
    for path in LOOKS & there:
        viewer.post(path, **request(site, "POST", path))
    assert rows(app) == before


def test_a_token_reaches_no_further_than_its_scopes(app: Duly, site: FastAPI, client: Caller) -> None:
    nowhere = client("admin", scopes=("payloads",))
    before = rows(app)
    for method, path, asked, given in walked(site):
        if path not in ANYBODYS:
            answer = nowhere.request(method, asked, **given)
            assert answer.status_code == 403, f"{method} {path}: {answer.status_code} {answer.text[:200]}"
    assert rows(app) == before


def test_every_answer_carries_what_browsers_are_told(site: FastAPI, client: Caller, stranger: TestClient) -> None:
    answers = [
        client().get("/api/v1/jobs"), stranger.get("/api/v1/jobs"), stranger.get("/livez"), client().get("/api/v1/nowhere"), client().post("/api/v1/jobs"),
        client().get("/api/v1/jobs?limit=0"), stranger.get("/", follow_redirects=False, headers={"Accept": "text/html"}), stranger.get("/login"),
        client("admin").post("/api/v1/jobs", content=b"x" * 6_000_000), client().delete("/api/v1/jobs"),
    ]  # fmt: skip
    assert {a.status_code for a in answers} >= {200, 401, 403, 404, 405, 413, 422}
    for answer in answers:
        told = answer.headers
        assert "script-src 'self'" in told["content-security-policy"]
        assert "unsafe" not in told["content-security-policy"]
        assert (told["x-content-type-options"], told["x-frame-options"], told["cache-control"]) == (
            "nosniff",
            "DENY",
            "no-store",
        )
        assert told["referrer-policy"] == "same-origin"
        assert len(told.get_list("content-security-policy")) == 1


def test_a_failure_that_nobody_thought_of_tells_nothing(
    app: Duly, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = accounts.create_token("ci", "admin")
    site = create(app)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the key is hush-hush")

    monkeypatch.setattr("duly.web.api.queues.depths", broken)
    with TestClient(site, headers={"Authorization": f"Bearer {token}"}, raise_server_exceptions=False) as caller:
        answer = caller.get("/api/v1/queues")
    assert answer.status_code == 500
    assert "hush" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


# ---------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    "header",
    [
        "Bearer duly_00000000_wrong", "Bearer ", "Bearer", "Basic YW5uOnNlY3JldA==", "duly_00000000_wrong", "Bearer \xff\xfe", "Bearer " + "x" * 5000,
        "Bearer duly_' OR 1=1 --",
    ],
)  # fmt: skip
def test_a_wrong_token_lets_nobody_in(stranger: TestClient, header: str) -> None:
    answer = stranger.get("/api/v1/me", headers={"Authorization": header.encode("latin-1")})
    assert "duly_" not in problem(answer, 401)["detail"]


def test_a_wrong_token_is_not_mended_by_a_login_that_is_right(person: TestClient) -> None:
    assert person.get("/api/v1/me").json()["actor"] == "user:ann"
    problem(person.get("/api/v1/me", headers={"Authorization": "Bearer duly_00000000_wrong"}), 401)


def test_a_token_ends_when_it_expires_or_is_revoked(
    accounts: Accounts, stranger: TestClient, clock: ManualClock
) -> None:
    short, _ = accounts.create_token("short", expires_in=timedelta(minutes=5))
    lost, record = accounts.create_token("lost")
    as_short, as_lost = ({"Authorization": f"Bearer {one}"} for one in (short, lost))
    assert stranger.get("/api/v1/me", headers=as_short).status_code == 200
    clock.advance(timedelta(minutes=5))
    problem(stranger.get("/api/v1/me", headers=as_short), 401)
    accounts.revoke_token(record.id)
    problem(stranger.get("/api/v1/me", headers=as_lost), 401)


def test_the_token_of_the_setting_may_do_everything_and_is_not_short(app: Duly) -> None:
    token = "0123456789abcdef-token"
    with TestClient(create(app, token), headers={"Authorization": f"Bearer {token}"}) as caller:
        assert caller.get("/api/v1/me").json()["role"] == "admin"
        problem(caller.get("/api/v1/me", headers={"Authorization": f"Bearer {token}x"}), 401)
    for wrong in ("short", "x" * 15, "ä" * 20, "with a blank in it"):
        with pytest.raises(InvalidArgument):
            create(app, wrong)


def test_no_secret_stands_in_logs_errors_or_the_trail(
    app: Duly, accounts: Accounts, site: FastAPI, client: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    app.listen(lambda event: heard.append(repr(event)))
    caplog.set_level(logging.DEBUG)
    admin = client("admin")
    token = admin.post("/api/v1/tokens", json={"name": "ci"}).json()["token"]
    admin.post("/api/v1/users", json={"name": "ann", "password": PASSWORD})
    session = accounts.log_in("ann", PASSWORD)
    accounts.log_in("ann", "not the sentence of ann")
    with TestClient(site, headers={"Authorization": f"Bearer {token}"}) as caller:
        caller.get("/api/v1/jobs")
        refused = caller.post("/api/v1/users", json={"name": "b", "password": PASSWORD}).text
    listed = "".join(admin.get(f"/api/v1/{path}").text for path in ("tokens", "users", "audit?limit=500"))
    for secret in (token, PASSWORD, session or "", "not the sentence of ann"):
        for place in (caplog.text, "".join(heard), refused, listed):
            assert secret not in place


# ---------------------------------------------------------------------- logins


def test_a_mutation_by_a_login_brings_along_what_proves_that_it_was_meant(app: Duly, person: TestClient) -> None:
    assert person.post("/api/v1/queues/mail/pause").status_code == 200
    for header in ("", "wrong", csrf_of("another session")):
        told = problem(person.post("/api/v1/queues/mail/resume", headers={CSRF_HEADER: header}), 403)
        assert CSRF_HEADER in told["detail"]
    assert app.queues.get("mail").paused_at is not None
    assert person.get("/api/v1/me").json()["csrf"] == person.headers[CSRF_HEADER]


@pytest.mark.parametrize(
    "header",
    [
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://example.org"}, {"Origin": "http://testserver:81"},
        {"Origin": "null"}, {"Origin": "https://testserver.example.org"},
    ],
)  # fmt: skip
def test_a_page_of_another_origin_changes_nothing(app: Duly, person: TestClient, header: dict[str, str]) -> None:
    problem(person.post("/api/v1/queues/mail/pause", headers=header), 403)
    assert app.queues.all() == {}
    ours = {"Sec-Fetch-Site": "same-origin", "Origin": "http://testserver"}
    assert person.post("/api/v1/queues/mail/pause", headers=ours).status_code == 200


def test_a_login_ends_when_it_is_idle_old_or_logged_out(
    accounts: Accounts, person: TestClient, clock: ManualClock
) -> None:
    clock.advance(timedelta(hours=11))
    assert person.get("/api/v1/me").status_code == 200
    clock.advance(timedelta(hours=11))
    assert person.get("/api/v1/me").status_code == 200  # it was used
    for _ in range(15):
        clock.advance(timedelta(hours=11))
        person.get("/api/v1/me")
    problem(person.get("/api/v1/me"), 401)
    session = accounts.log_in("ann", PASSWORD)
    assert session is not None
    assert session != person.cookies[COOKIE]
    accounts.log_out(session)
    assert accounts.by_login(session) is None


def test_an_old_login_cookie_before_or_behind_the_right_one_does_not_matter(
    site: FastAPI, accounts: Accounts, person: TestClient
) -> None:
    right, browser = f"{COOKIE}={person.cookies[COOKIE]}", TestClient(site)
    stale = [f"{COOKIE}={n:043}" for n in range(4)]
    for header in (
        [right, stale[0]],
        [stale[0], right],
        [*stale[:3], right],
        ["a=b", f"x{right}", "Broken", right, f"{COOKIE}="],
    ):
        assert browser.get("/api/v1/me", headers={"cookie": "; ".join(header)}).json()["user"] == "ann"
    # no more of them are looked at than a few, however long the header is
    assert browser.get("/api/v1/me", headers={"cookie": "; ".join([*stale, right])}).status_code == 401
    other = accounts.log_in("ann", PASSWORD)
    assert other is not None
    both = f"{stale[0]}; {right}; {COOKIE}={other}"
    done = browser.post(
        "/logout", data={"csrf": person.headers[CSRF_HEADER]}, headers={"cookie": both}, follow_redirects=False
    )
    assert done.status_code == 303
    assert browser.get("/api/v1/me", headers={"cookie": both}).status_code == 401


def test_wrong_passwords_are_slowed_down_by_name_and_by_address(accounts: Accounts, clock: ManualClock) -> None:
    accounts.create_user("ann", PASSWORD)
    for _ in range(FREE):
        assert accounts.log_in("ann", "not the sentence", "192.0.2.1") is None
    with pytest.raises(Throttled) as told:
        accounts.log_in("ann", PASSWORD, "192.0.2.2")
    assert 0 < told.value.after <= LONGEST_WAIT.total_seconds()
    with pytest.raises(Throttled):
        accounts.log_in("bob", PASSWORD, "192.0.2.1")  # whoever asks from there
    clock.advance(LONGEST_WAIT)
    assert accounts.log_in("ann", PASSWORD, "192.0.2.1") is not None
    assert accounts.log_in("ann", "not the sentence", "192.0.2.2") is None  # the name begins anew


# ---------------------------------------------------------------------- the local door


@pytest.fixture
def local(app: Duly) -> TestClient:
    """A door on this machine, without accounts."""
    return TestClient(create(app, local=True), base_url="http://127.0.0.1:8787")


def test_a_local_door_lets_everybody_in_until_there_is_an_account(
    app: Duly, local: TestClient, accounts: Accounts
) -> None:
    said = local.get("/api/v1/me").json()
    assert (said["actor"], said["role"], said["csrf"]) == ("local", "admin", None)
    assert local.post("/api/v1/queues/mail/pause").status_code == 200
    _, record = accounts.create_token("ci")
    problem(local.get("/api/v1/me"), 401)
    accounts.revoke_token(record.id)
    problem(local.get("/api/v1/me"), 401)  # and never again


def test_a_door_with_a_token_is_not_open(app: Duly) -> None:
    with TestClient(create(app, "0123456789abcdef-token", local=True), base_url="http://127.0.0.1:8787") as caller:
        problem(caller.get("/api/v1/me"), 401)


@pytest.mark.parametrize("host", ["localhost:8787", "127.0.0.1", "[::1]:8787"])
def test_a_local_door_answers_to_its_own_names(local: TestClient, host: str) -> None:
    assert local.get("/api/v1/me", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example.org", "evil.example.org:8787", "127.0.0.1.example.org", "localhost.example.org:8787", "[::2]", "0.0.0.0:8787"]
)  # fmt: skip
def test_a_name_that_was_bound_anew_opens_no_local_door(app: Duly, local: TestClient, host: str) -> None:
    # DNS rebinding: the browser takes it for its own origin
    problem(local.get("/api/v1/jobs", headers={"Host": host}), 403)
    problem(local.post("/api/v1/queues/mail/pause", headers={"Host": host, "Origin": f"http://{host}"}), 403)
    assert app.queues.all() == {}


@pytest.mark.parametrize(
    "header",
    [
        {"Origin": "https://example.org"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
    ],
)
def test_a_page_of_another_origin_reaches_no_local_door(app: Duly, local: TestClient, header: dict[str, str]) -> None:
    problem(local.post("/api/v1/queues/mail/pause", headers=header), 403)
    assert app.queues.all() == {}


# ---------------------------------------------------------------------- bodies, over connections


def test_a_body_is_bounded_whether_it_says_how_long_it_is_or_not(app: Duly, accounts: Accounts, served: Served) -> None:
    token, _ = accounts.create_token("ci", "operator")
    with served(create(app, most=10_000), {"Authorization": f"Bearer {token}"}) as caller:
        job = b'{"task": "greet", "input": {"name": "%s"}}' % (b"x" * 20_000)
        assert "10,000" in problem(caller.post("/api/v1/jobs", content=job), 413)["detail"]
        problem(caller.post("/api/v1/jobs", content=iter([job[:5_000], job[5_000:]])), 413)
        assert app.jobs.count() == 0
        assert caller.post("/api/v1/jobs", json={"task": "greet"}).status_code == 201


# ---------------------------------------------------------------------- Idempotency-Key


def test_a_repeated_request_makes_one_job_and_gets_its_first_answer(
    app: Duly, accounts: Accounts, site: FastAPI, served: Served
) -> None:
    # B053
    ci, other = (accounts.create_token(name, "operator")[0] for name in ("ci", "other"))
    key = {"Idempotency-Key": "order-42", "Authorization": f"Bearer {ci}"}
    with served(site) as caller:
        first = caller.post("/api/v1/jobs", json={"task": "greet", "input": {"name": "Ann"}}, headers=key)
        again = caller.post("/api/v1/jobs", json={"input": {"name": "Ann"}, "task": "greet"}, headers=key)
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json() == first.json()
        assert again.headers["location"] == first.headers["location"]
        assert app.jobs.count() == 1
        # another body under the key, and the key of another caller
        assert problem(caller.post("/api/v1/jobs", json={"task": "greet"}, headers=key), 422)
        theirs = {**key, "Authorization": f"Bearer {other}"}
        assert (
            caller.post("/api/v1/jobs", json={"task": "greet"}, headers=theirs).json()["job"]["id"]
            != first.json()["job"]["id"]
        )
        assert app.jobs.count() == 2
        # nobody is let in by an answer that is kept
        problem(caller.post("/api/v1/jobs", json={"task": "greet"}, headers={"Idempotency-Key": "order-42"}), 401)


def test_a_request_whose_twin_is_in_progress_is_told_to_come_back(
    app: Duly, accounts: Accounts, site: FastAPI, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # B053
    begun, go_on = threading.Event(), threading.Event()
    put = app.enqueue_prepared

    def slow(*given: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return put(*given, **more)

    monkeypatch.setattr(app, "enqueue_prepared", slow)
    token, _ = accounts.create_token("ci", "operator")
    with served(site, {"Idempotency-Key": "k", "Authorization": f"Bearer {token}"}) as caller:
        answers: list[httpx2.Response] = []
        first = threading.Thread(target=lambda: answers.append(caller.post("/api/v1/jobs", json={"task": "greet"})))
        first.start()
        assert begun.wait(60)
        twin = caller.post("/api/v1/jobs", json={"task": "greet"})
        assert problem(twin, 409)
        assert int(twin.headers["retry-after"]) >= 1
        go_on.set()
        first.join(60)
        assert answers[0].status_code == 201
        assert caller.post("/api/v1/jobs", json={"task": "greet"}).json() == answers[0].json()
    assert app.jobs.count() == 1

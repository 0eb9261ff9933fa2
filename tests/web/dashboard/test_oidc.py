"""Logging in through a provider of OpenID Connect: who gets in, as whom, and everything that lets nobody in. ADR 0031."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from accounts.playing import CLIENT, SECRET, Playing, playing
from duly import Duly
from duly.accounts.door import Accounts
from duly.accounts.oidc.flow import Flow, sealed
from duly.audit.read import TrailFilter, find
from duly.testing import ManualClock
from duly.web.app import create
from duly.web.dashboard.pages.oidc import FLOW
from duly.web.gate import COOKIE
from web.conftest import NOW

PASSWORD = "a sentence that is long enough"
HERE = "http://duly.example"
CALLBACK = "/login/oidc/callback"


@pytest.fixture
def provider(clock: ManualClock) -> Iterator[Playing]:
    with playing() as made:
        made.now = lambda: clock.now().timestamp()
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


Opened = Callable[..., Duly]


@pytest.fixture
def opened(db_url: str, clock: ManualClock, provider: Playing) -> Iterator[Opened]:
    """``opened(oidc_roles=…)``: an application whose people log in through the provider."""
    apps: list[Duly] = []

    def make(**given: str) -> Duly:
        told = {
            "oidc_issuer": provider.url, "oidc_client_id": CLIENT, "oidc_client_secret": SECRET, "oidc_default_role": "viewer", **given
        }  # fmt: skip
        apps.append(Duly(db_url, clock=clock, **told))
        return apps[-1]

    yield make
    for app in apps:
        app.close()


class Browser(TestClient):
    """Somebody with a browser that follows no redirect by itself."""

    def begin(self, next: str = "/jobs?status=failed") -> dict[str, str]:
        """Press the button. Returns what the provider is asked."""
        answer = self.get("/login/oidc", params={"next": next})
        assert answer.status_code == 303, answer.text
        self.sent = answer.headers["location"]
        return dict(parse_qsl(urlsplit(self.sent).query))

    def at_provider(self) -> str:
        """What the provider leads back to, as a path of ours."""
        answer = httpx2.get(self.sent, follow_redirects=False)
        parts = urlsplit(answer.headers["location"])
        assert f"{parts.scheme}://{parts.netloc}" == HERE
        return f"{parts.path}?{parts.query}"

    def log_in(self) -> Any:
        self.begin()
        return self.get(self.at_provider())


def browser(app: Duly, **given: Any) -> Browser:
    return Browser(create(app, **given), base_url=HERE, follow_redirects=False)


def trail(app: Duly, action: str) -> list[Any]:
    return app.db.read(lambda c: find(c, TrailFilter(action=action)))


def refused(answer: Any, status: int) -> str:
    """What the login page says that an answer is."""
    assert answer.status_code == status, answer.text
    assert 'action="/login"' in answer.text
    assert COOKIE not in answer.headers.get("set-cookie", "").replace(FLOW, "")
    return str(answer.text.split('role="alert">')[1].split("<span>")[1].split("</span>")[0])


# ---------------------------------------------------------------------- who gets in


def test_somebody_comes_in_through_the_provider_and_lands_where_they_wanted_to_go(
    opened: Opened, provider: Playing
) -> None:
    app = opened()
    ann = browser(app)
    assert ">Log in with single sign-on</a>" in ann.get("/login").text
    asked = ann.begin()
    assert ann.sent.startswith(f"{provider.url}/authorize?")
    assert {name: asked[name] for name in ("response_type", "client_id", "scope", "redirect_uri", "code_challenge_method")} == {
        "response_type": "code", "client_id": CLIENT, "scope": "openid profile email", "redirect_uri": HERE + CALLBACK, "code_challenge_method": "S256",
    }  # fmt: skip
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    came = ann.get(ann.at_provider())
    assert (came.status_code, came.headers["location"]) == (303, "/jobs?status=failed")
    assert ann.get("/api/v1/me").json() | {"csrf": None} == {
        "actor": "user:ann@example.org", "role": "viewer", "tenant": None, "scopes": ["*"], "user": "ann@example.org", "csrf": None,
        "sees_payloads": False,
    }  # fmt: skip
    [user] = Accounts(app).users()
    assert (user.name, user.login, user.role.word) == ("ann@example.org", "oidc", "viewer")
    [made], [entered] = trail(app, "USER_CREATED"), trail(app, "LOGGED_IN")
    assert (made.actor, made.meta["subject"], made.meta["issuer"]) == ("user:ann@example.org", "248289761001", provider.url)  # fmt: skip
    assert (entered.actor, entered.meta) == ("user:ann@example.org", {"by": "oidc"})


def test_the_cookies_are_kept_from_scripts_and_from_other_sites(opened: Opened) -> None:
    ann = browser(opened())
    begun = ann.get("/login/oidc").headers["set-cookie"]
    assert begun.startswith(f"{FLOW}=")
    for word in ("HttpOnly", "SameSite=lax", "Path=/login/oidc", "Max-Age=600"):
        assert word in begun
    assert "Secure" not in begun
    ann.begin()
    both = ann.get(ann.at_provider()).headers.get_list("set-cookie")
    [session] = [one for one in both if one.startswith(COOKIE)]
    [gone] = [one for one in both if one.startswith(FLOW)]
    assert "HttpOnly" in session
    assert "SameSite=lax" in session
    assert "Max-Age=0" in gone
    secret = Browser(ann.app, base_url="https://duly.example", follow_redirects=False).get("/login/oidc")
    assert "Secure" in secret.headers["set-cookie"]


def test_a_login_is_new_each_time_and_ends_the_one_before(opened: Opened) -> None:
    app = opened()
    ann = browser(app)
    ann.log_in()
    first = ann.cookies[COOKIE]
    ann.log_in()
    assert ann.cookies[COOKIE] != first
    assert Accounts(app).by_login(first) is None
    assert len(Accounts(app).users()) == 1


def test_people_are_known_by_subject_and_not_by_an_address_that_changes(opened: Opened, provider: Playing) -> None:
    app = opened()
    ann = browser(app)
    ann.log_in()
    provider.person["email"] = "ann.married@example.org"
    ann.log_in()
    assert [one.name for one in Accounts(app).users()] == ["ann@example.org"]
    # the address is given to somebody else, who is somebody else
    provider.person = {"sub": "another", "email": "ann@example.org", "email_verified": True}
    said = refused(browser(app).log_in(), 409)
    assert "There is a user &#39;ann@example.org&#39; already" in said
    assert trail(app, "LOGIN_FAILED")[0].meta == {
        "by": "oidc",
        "reason": "name_taken",
        "issuer": provider.url,
        "subject": "another",
        "name": "ann@example.org",
    }
    assert trail(app, "LOGIN_FAILED")[0].entity_id == str(Accounts(app).user("ann@example.org").id)


def test_an_account_with_a_password_is_never_taken_over_by_its_name(opened: Opened, provider: Playing) -> None:
    app = opened()
    accounts = Accounts(app)
    accounts.create_user("ann@example.org", PASSWORD, "admin")
    ann = browser(app)
    refused(ann.log_in(), 409)
    assert ann.get("/api/v1/me").status_code == 401
    assert accounts.log_in("ann@example.org", PASSWORD) is not None
    # an administrator says that it is the same person
    session = accounts.log_in("ann@example.org", PASSWORD)
    linked = accounts.link_user("ann@example.org", provider.url, "248289761001", actor="cli:root")
    assert (linked.login, linked.role.word) == ("oidc", "admin")
    assert accounts.by_login(session or "") is None
    assert accounts.log_in("ann@example.org", PASSWORD) is None
    assert ann.log_in().status_code == 303
    assert ann.get("/api/v1/me").json()["role"] == "admin"  # the provider says nothing of roles, so it stays


def test_roles_are_given_by_a_claim_at_each_login(opened: Opened, provider: Playing) -> None:
    app = opened(oidc_roles_claim="groups", oidc_roles="ops=operator, heads=admin", oidc_default_role="none")
    ann = browser(app)
    provider.person["groups"] = ["everybody", "ops"]
    ann.log_in()
    assert ann.get("/api/v1/me").json()["role"] == "operator"
    provider.person["groups"] = ["ops", "heads"]
    other = browser(app)
    other.log_in()
    assert ann.get("/api/v1/me").json()["role"] == "admin"
    [changed] = trail(app, "USER_CHANGED")
    assert (changed.actor, changed.meta["fields"]) == ("user:ann@example.org", ["role"])
    # who has no role any more is out, also where they are in
    provider.person["groups"] = ["everybody"]
    assert "gives you a role" in refused(browser(app).log_in(), 403)
    assert ann.get("/api/v1/me").status_code == other.get("/api/v1/me").status_code == 401
    assert trail(app, "LOGIN_FAILED")[0].meta["reason"] == "role"


def test_a_tenant_is_given_by_a_claim_and_without_one_nobody_comes_in(opened: Opened, provider: Playing) -> None:
    app = opened(oidc_tenant_claim="org")
    refused(browser(app).log_in(), 403)
    assert Accounts(app).users() == []
    provider.person["org"] = "acme"
    ann = browser(app)
    ann.log_in()
    assert ann.get("/api/v1/me").json()["tenant"] == "acme"
    provider.person["org"] = "zeta"
    ann.log_in()
    assert ann.get("/api/v1/me").json()["tenant"] == "zeta"


def test_who_is_let_in_no_more_stays_out(opened: Opened) -> None:
    app = opened()
    ann, accounts = browser(app), Accounts(app)
    ann.log_in()
    accounts.change_user("ann@example.org", disabled=True)
    assert ann.get("/api/v1/me").status_code == 401
    assert "not let in any more" in refused(ann.log_in(), 403)
    accounts.change_user("ann@example.org", disabled=False)
    assert ann.log_in().status_code == 303


def test_who_comes_through_the_provider_has_no_password_and_gets_none(opened: Opened) -> None:
    app = opened()
    browser(app).log_in()
    accounts = Accounts(app)
    for guess in ("", PASSWORD, "!"):
        assert accounts.log_in("ann@example.org", guess) is None
    with pytest.raises(Exception, match=r"password: is not what 'ann@example.org' logs in with"):
        accounts.change_user("ann@example.org", password=PASSWORD)


def test_what_the_id_token_leaves_out_is_asked_for(opened: Opened, provider: Playing) -> None:
    app = opened(oidc_roles_claim="realm.roles", oidc_roles='{"heads": "admin"}')
    provider.person = {"sub": "248"}
    provider.more = {"email": "ann@example.org", "realm": {"roles": ["heads"]}}
    ann = browser(app)
    ann.log_in()
    assert ann.get("/api/v1/me").json() | {"csrf": None} == {
        "actor": "user:ann@example.org", "role": "admin", "tenant": None, "scopes": ["*"], "user": "ann@example.org", "csrf": None, "sees_payloads": True,
    }  # fmt: skip
    provider.more["sub"] = "somebody else"
    refused(browser(app).log_in(), 403)


def test_blanks_around_a_name_and_another_spelling_of_it_make_nobody_else(opened: Opened, provider: Playing) -> None:
    app = opened()
    provider.person["email"] = "zo\u00e9@example.org"
    assert browser(app).log_in().status_code == 303
    for number, same in enumerate(("zo\u00e9@example.org ", " zo\u00e9@example.org\t", "zoe\u0301@example.org")):
        provider.person = {"sub": f"another {number}", "email": same, "email_verified": True}
        refused(browser(app).log_in(), 409)
    for odd in (
        "zo\u00e9\u200b@example.org",
        "zo\u00e9\u3164@example.org",
        "zo\u00e9\u202e@example.org",
        "a  b",
        "a\nb",
    ):
        provider.person = {"sub": "odd", "email": odd, "email_verified": True}
        refused(browser(app).log_in(), 403)
    assert [one.name for one in Accounts(app).users()] == ["zo\u00e9@example.org"]


# ---------------------------------------------------------------------- a provider that is away, or not believed


def test_who_comes_with_an_id_token_that_is_not_believed_is_nobody(opened: Opened, provider: Playing) -> None:
    app, heard = opened(), []
    app.listen(lambda event: heard.append(event.facts.get("reason")) if event.name == "oidc_failed" else None)
    ann = browser(app)
    provider.claims = {"aud": "another"}
    assert "cannot be believed" in refused(ann.log_in(), 502)
    assert ann.get("/api/v1/me").status_code == 401
    assert Accounts(app).users() == []
    assert trail(app, "LOGGED_IN") == []
    assert heard == ["sent an ID token that does not fit this login (aud)."]


def test_a_discovery_document_of_somebody_else_begins_nothing(opened: Opened, provider: Playing) -> None:
    ann = browser(opened())
    provider.document = {"issuer": "https://evil.example"}
    refused(ann.get("/login/oidc"), 502)
    provider.document = {}
    assert ann.log_in().status_code == 303  # nothing of it stays


def test_a_provider_that_is_away_is_a_page_and_no_failure_of_ours(opened: Opened, provider: Playing) -> None:
    ann = browser(opened())
    for path in ("/.well-known/openid-configuration", "/token", "/keys"):
        provider.instead = {path: (500, b"<html>")}
        answer = ann.get("/login/oidc") if "well-known" in path else ann.log_in()
        assert "Try again later" in refused(answer, 503)
        assert answer.headers["retry-after"] == "30"
    provider.instead = {}
    assert ann.log_in().status_code == 303


def test_a_provider_that_nobody_listens_for_is_a_page(opened: Opened) -> None:
    app = opened(oidc_issuer="http://127.0.0.1:1")
    refused(browser(app).get("/login/oidc"), 503)
    assert "Name" in browser(app).get("/login").text


def test_a_wrong_secret_of_the_client_is_told_to_the_log_by_its_word(opened: Opened) -> None:
    app, heard = opened(oidc_client_secret="another"), []
    app.listen(lambda event: heard.append(event.facts.get("reason")) if event.name == "oidc_failed" else None)
    refused(browser(app).log_in(), 502)
    assert heard == ["answered with 401 invalid_client (the token endpoint)."]


# ---------------------------------------------------------------------- a browser that comes back wrong


@pytest.mark.parametrize(
    ("word", "status"),
    [("access_denied", 403), ("login_required", 403), ("server_error", 503), ("temporarily_unavailable", 503), ("invalid_scope", 502), ("<b>", 502)],
)  # fmt: skip
def test_who_is_turned_back_by_the_provider_reads_why(
    opened: Opened, provider: Playing, word: str, status: int
) -> None:
    app = opened()
    ann = browser(app)
    provider.denies = word
    answer = ann.log_in()
    refused(answer, status)
    assert "<b>" not in answer.text
    assert FLOW not in ann.cookies
    assert "next=/jobs%3Fstatus%3Dfailed" in answer.text  # they go on where they were


def test_a_code_counts_once_in_the_browser_that_began_and_for_ten_minutes(
    opened: Opened, provider: Playing, clock: ManualClock
) -> None:
    app = opened()
    ann, eve = browser(app), browser(app)
    ann.begin()
    back = ann.at_provider()
    assert "another browser" in refused(eve.get(back), 400)  # nobody is logged in as somebody who did not begin
    eve.begin()
    refused(eve.get(back), 400)
    assert "token" not in "".join(path for path, _ in provider.asked)
    cookie = ann.cookies[FLOW]
    assert ann.get(back).status_code == 303
    for name in (FLOW,):
        ann.cookies.set(name, cookie, domain="duly.example", path="/login/oidc")
    refused(ann.get(back), 400)
    ann.begin()
    late = ann.at_provider()
    clock.advance(timedelta(minutes=10))
    refused(ann.get(late), 400)
    assert len(trail(app, "LOGGED_IN")) == 1


def test_a_callback_that_is_not_ours_leaves_a_login_on_its_way_alone(opened: Opened) -> None:
    ann = browser(opened())
    ann.begin()
    back = ann.at_provider()
    for wrong in (
        "",
        "?code=x",
        "?code=x&state=wrong",
        "?state=&code=",
        f"{back.partition('?')[1]}state=%00&code=%ff",
        "?state=a&state=b",
    ):
        refused(ann.get(CALLBACK + wrong), 400)
    assert ann.get(back).status_code == 303


def test_the_provider_that_sends_a_browser_back_is_the_one_it_was_sent_to(opened: Opened, provider: Playing) -> None:
    # RFC 9207
    provider.document = {"authorization_response_iss_parameter_supported": True}
    ann = browser(opened())
    ann.begin()
    refused(ann.get(ann.at_provider().replace("iss=http", "iss=https")), 502)
    ann.begin()
    refused(ann.get(ann.at_provider().partition("&iss=")[0]), 502)


def written(app: Duly) -> int:
    """Rows that logins leave: flows, accounts, failures, the trail."""
    tables = ("oidc_flows", "users", "user_identities", "logins", "login_failures", "audit_log")
    count = app.db.read(lambda c: sum(c.execute(text(f"SELECT count(*) FROM {one}")).scalar_one() for one in tables))
    assert isinstance(count, int)
    return count


def test_strangers_who_begin_and_never_were_at_the_provider_leave_no_row(opened: Opened, provider: Playing) -> None:
    app = opened()
    eve, before = browser(app), written(app)
    for _ in range(3):
        asked = eve.begin()
        refused(eve.get(CALLBACK, params={"state": asked["state"], "code": "made up", "iss": provider.url}), 502)
    assert written(app) == before
    assert eve.log_in().status_code == 303
    assert written(app) > before


def test_a_flow_that_this_site_has_not_begun_is_none(opened: Opened, provider: Playing) -> None:
    app = opened()
    ann = browser(app)
    for secret in ("x" * 43, sealed(b"x" * 32, NOW, b""), sealed(b"x" * 32, NOW + timedelta(days=9), b"another")):
        ann.cookies.set(FLOW, f"{secret}.", domain="duly.example", path="/login/oidc")
        answer = ann.get(CALLBACK, params={"state": Flow(secret).state, "code": "x", "iss": provider.url})
        assert "another browser" in refused(answer, 400)
        ann.cookies.clear()
    assert [path for path, _ in provider.asked if path == "/token"] == []


def test_an_old_cookie_of_a_flow_before_or_behind_the_right_one_does_not_matter(opened: Opened) -> None:
    app = opened()
    for stale in ("first", "last"):
        ann = browser(app)
        ann.begin("/queues")
        back, right = ann.at_provider(), ann.cookies[FLOW]
        ann.cookies.clear()
        both = [f"{FLOW}={Flow('x').state}.", f"{FLOW}={right}"]
        came = ann.get(back, headers={"cookie": "; ".join(both if stale == "first" else reversed(both))})
        assert (came.status_code, came.headers["location"]) == (303, "/queues")


@pytest.mark.parametrize(
    "next", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", "/a\r\nb: c", "/" + "x" * 3000]
)  # fmt: skip
def test_nobody_is_led_away_from_here(opened: Opened, next: str) -> None:
    ann = browser(opened())
    ann.begin(next)
    assert ann.get(ann.at_provider()).headers["location"] == "/"


def test_a_cookie_that_somebody_has_made_leads_nowhere_else(opened: Opened) -> None:
    app = opened()
    ann = browser(app)
    ann.begin("/queues")
    back, secret = ann.at_provider(), ann.cookies[FLOW].partition(".")[0]
    ann.cookies.clear()
    away = base64.urlsafe_b64encode(b"https://evil.example").decode()
    ann.cookies.set(FLOW, f"{secret}.{away}", domain="duly.example", path="/login/oidc")
    assert ann.get(back).headers["location"] == "/"


def test_no_secret_of_a_login_stands_in_logs_events_pages_or_the_database(
    opened: Opened, provider: Playing, caplog: pytest.LogCaptureFixture
) -> None:
    app, heard, pages = opened(), [], []
    app.listen(lambda event: heard.append(repr(event)))
    caplog.set_level(logging.DEBUG)
    ann = browser(app)
    pages.append(ann.log_in().text)
    session = ann.cookies[COOKIE]
    provider.secrets.append(session)
    provider.claims = {"nonce": "another"}
    pages.append(ann.log_in().text)
    provider.denies = "server_error"
    ann.begin()
    provider.secrets.append(ann.cookies[FLOW].partition(".")[0])
    pages.append(ann.get(ann.at_provider()).text)

    def everything(c: Any) -> str:
        from duly.storage.migrate import all_metadata

        return "".join(str(tuple(row)) for table in all_metadata().sorted_tables for row in c.execute(table.select()))

    kept = app.db.read(everything)
    assert len(provider.secrets) > 8
    # the test's own client and server write what they are asked into the log
    logged = "".join(r.getMessage() for r in caplog.records if r.name.startswith("duly"))
    assert repr(app.settings).count(SECRET) == 0
    for secret in provider.secrets:
        for place in (logged, "".join(heard), "".join(pages), kept):
            assert secret not in place


# ---------------------------------------------------------------------- settings and doors


def test_a_door_without_accounts_is_closed_once_a_provider_is_named(opened: Opened) -> None:
    app = opened()
    with TestClient(create(app, local=True), base_url="http://127.0.0.1", follow_redirects=False) as somebody:
        assert somebody.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login?next=%2F"
        assert somebody.get("/api/v1/me").status_code == 401


def test_below_a_path_of_another_site_all_of_it_stays_there(opened: Opened) -> None:
    ann = Browser(create(opened()), base_url=HERE, follow_redirects=False, root_path="/duly")
    assert 'href="/duly/login/oidc?next=' in ann.get("/duly/login?next=/queues").text
    answer = ann.get("/duly/login/oidc", params={"next": "/queues"})
    ann.sent = answer.headers["location"]
    assert dict(parse_qsl(urlsplit(ann.sent).query))["redirect_uri"] == f"{HERE}/duly{CALLBACK}"
    assert "Path=/duly/login/oidc" in answer.headers["set-cookie"]
    came = ann.get(ann.at_provider())
    assert (came.status_code, came.headers["location"]) == (303, "/duly/queues")
    assert ann.get("/duly/api/v1/me").json()["user"] == "ann@example.org"


def test_behind_a_proxy_the_provider_is_told_the_address_of_the_settings(opened: Opened, provider: Playing) -> None:
    url = "https://duly.example.org/login/oidc/callback"
    ann = browser(opened(oidc_redirect_url=url))
    assert ann.begin()["redirect_uri"] == url


def test_without_a_provider_there_is_nothing_of_it(db_url: str, clock: ManualClock) -> None:
    app = Duly(db_url, clock=clock)
    somebody = browser(app)
    assert "oidc" not in somebody.get("/login").text
    assert somebody.get("/login/oidc").status_code == 404
    app.close()

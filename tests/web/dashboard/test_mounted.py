"""The dashboard below a path of another application: whatever leads somewhere leads there."""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from duly import Duly
from duly.accounts.door import Accounts
from duly.web.app import create
from web.dashboard.conftest import PASSWORD
from web.dashboard.scene import Town

LEADS = re.compile(r'\s(href|src|action|formaction|hx-get|hx-post)="([^"]*)"')


def below(site: FastAPI) -> Starlette:
    return Starlette(
        routes=[Route("/jobs", lambda request: PlainTextResponse("the shop's own")), Mount("/duly", app=site)]
    )


@pytest.fixture
def mounted(app: Duly, town: Town) -> Iterator[TestClient]:
    with TestClient(below(create(app, local=True)), base_url="http://127.0.0.1", follow_redirects=False) as made:
        yield made


def test_every_link_of_every_page_stays_below_the_mount_and_leads_to_something(mounted: TestClient) -> None:
    seen, waiting, shapes = set[str](), deque(["/duly/"]), dict[str, int]()
    while waiting:
        path = waiting.popleft()
        got = mounted.get(path)
        assert got.status_code in (200, 303), (path, got.status_code)
        if got.status_code == 303:
            assert got.headers["location"].startswith("/duly/"), path
            continue
        if not got.headers["content-type"].startswith("text/html"):
            continue
        assert int(got.headers["content-length"]) == len(got.content)
        for kind, text in LEADS.findall(got.text):
            to = html.unescape(text).partition("#")[0]
            assert not to.startswith("/") or to.startswith("/duly/"), (path, kind, text)
            shape = re.sub(r"\d+", "N", to.partition("?")[0])
            if not to.startswith("/duly/") or to in seen or kind not in ("href", "src", "hx-get") or "/logout" in to:
                continue
            if shapes.setdefault(shape, 0) < 3:
                shapes[shape] += 1
                seen.add(to)
                waiting.append(to)
    for page in ("jobs", "queues", "schedules", "calendar", "automations", "workflows", "publishing", "rounds", "outbox", "audit", "alerts"):  # fmt: skip
        assert f"/duly/{page}" in shapes
    assert "/duly/jobs/N" in shapes
    assert any(shape.startswith("/duly/static/") for shape in shapes)


def test_what_is_done_there_is_said_there(mounted: TestClient, app: Duly) -> None:
    answer = mounted.post("/duly/queues/pause", data={"queue": "default", "back": "/queues", "reason": "moving house"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/duly/queues")
    assert "Path=/duly" in answer.headers["set-cookie"]
    page = mounted.get("/duly/queues").text
    assert "Queue default is paused" in page
    assert 'name="back" value="/queues"' in page
    assert app.queues.all()["default"].paused_reason == "moving house"


def test_somebody_logs_in_below_the_mount_and_gets_to_where_they_wanted(app: Duly, town: Town) -> None:
    Accounts(app).create_user("ann", PASSWORD, "operator")
    with TestClient(below(create(app)), follow_redirects=False) as browser:
        led = browser.get("/duly/jobs?status=failed", headers={"accept": "text/html"})
        assert led.headers["location"] == "/duly/login?next=%2Fjobs%3Fstatus%3Dfailed"
        form = browser.get(led.headers["location"])
        assert 'action="/duly/login"' in form.text
        entered = browser.post("/duly/login", data={"name": "ann", "password": PASSWORD, "next": "/jobs?status=failed"})
        assert entered.headers["location"] == "/duly/jobs?status=failed"
        assert "Path=/duly" in entered.headers["set-cookie"]  # no other part of the site is sent it
        page = browser.get("/duly/jobs?status=failed")
        assert page.status_code == 200
        csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert csrf is not None
        assert browser.post("/duly/logout", data={"csrf": csrf[1]}).headers["location"] == "/duly/login"
        assert browser.get("/duly/jobs", headers={"accept": "text/html"}).status_code == 303


def test_text_that_looks_like_a_link_is_not_touched(mounted: TestClient, app: Duly) -> None:
    app.queues.pause("default", 'see <a href="/jobs"> href="/jobs"', "test")
    page = html.unescape(mounted.get("/duly/queues").text)
    assert 'see <a href="/jobs"> href="/jobs"' in page

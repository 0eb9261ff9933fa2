"""Every page, asked for without a browser: it is there, it says what there is, it escapes what people wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from fastapi import FastAPI
from starlette.routing import Route
from starlette.testclient import TestClient

from duly import Duly
from duly.testing import ManualClock
from fronts import on_both
from web.dashboard.conftest import Person
from web.dashboard.scene import Town, fill

EMPTY = (
    "/",
    "/failures",
    "/calendar",
    "/calendar?view=month",
    "/calendar/impact",
    "/rounds",
    "/jobs",
    "/queues",
    "/schedules",
    "/automations",
    "/audit",
    "/alerts",
)
EVIL = "<img src=x onerror=alert(1)></script>\"'><b onload=x>{{7*7}}"


@on_both("each page reads with statements of its own")
def test_every_page_is_there_with_nothing_to_show(local: TestClient) -> None:  # issue 8
    for path in EMPTY:
        answer = local.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert "<h1" in answer.text


@on_both("each page reads with statements of its own")
def test_every_page_is_there_with_data_of_every_kind(local: TestClient, town: Town) -> None:
    for name, path in town.pages().items():
        answer = local.get(path)
        assert answer.status_code == (404 if name == "not-found" else 200), (name, answer.text[-2000:])
        assert 'aria-current="page"' in answer.text or name == "not-found"
        assert "text/html" in answer.headers["content-type"]


def test_a_page_says_what_there_is(local: TestClient, town: Town) -> None:
    overview = local.get("/").text
    assert "No worker serves queue maps" in overview
    assert "morning briefing" in overview
    failed = local.get(f"/jobs/{town.failed}").text
    assert "PermanentError: the ledger of 2026-03 is not closed yet" in failed
    assert f"duly jobs replay {town.failed}" in failed
    waiting = local.get(f"/jobs/{town.queued}").text
    assert "it is planned for later" in waiting
    parent = local.get(f"/jobs/{town.running_parent}").text
    assert parent.count("image.resize") == 3
    schedule = local.get("/schedules/show?name=feeds&tenant=default").text
    assert "The next 10" in schedule
    assert schedule.count("<li><a href=") > 2  # the strip leads to the jobs
    paused = local.get("/schedules/show?name=newsletter&tenant=default").text
    assert "no news this week" in paused
    session = local.get(f"/automations/sessions/{town.session}").text
    assert "calls weather" in session
    assert "The sky is clear" in session


class Tags(HTMLParser):
    """The tags and attributes of a page, as a browser sees them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def test_what_people_write_is_never_markup(app: Duly, time: ManualClock, local: TestClient) -> None:  # B081
    town = fill(app, time, free=EVIL, busy=False)
    shown = 0
    for name, path in town.pages().items():
        text = local.get(path).text
        page = Tags()
        page.feed(text)
        assert not page.scripts, name
        assert not [tag for tag, _ in page.tags if tag in ("img", "b", "style", "iframe")], name
        for tag, attributes in page.tags:
            assert not [one for one in attributes if one.startswith("on") or one == "style"], (name, tag, attributes)
        assert "{{7*7}}" in text or EVIL[:4] not in text
        shown += text.count("&lt;img src=x onerror=alert(1)&gt;")
    assert shown > 40


def test_nothing_on_a_page_needs_more_than_the_policy_allows(local: TestClient, town: Town) -> None:  # X8
    for path in town.pages().values():
        answer = local.get(path)
        assert "unsafe" not in answer.headers["content-security-policy"]
        page = Tags()
        page.feed(answer.text)
        for tag, attributes in page.tags:
            for name in ("src", "href", "action"):
                value = attributes.get(name) or "/"
                assert value.startswith(("/", "#")) and not value.startswith("//"), (path, tag, value)


def test_secrets_are_on_no_page(local: TestClient, town: Town) -> None:  # R003, issue 8
    for path in town.pages().values():
        assert "s3cret-value" not in local.get(path).text
    assert "*****" in local.get(f"/jobs/{town.failed}").text


def test_viewers_see_no_payloads_and_no_acts(person: Callable[..., Person], town: Town) -> None:
    viewer = person("viewer")
    for name, path in town.pages().items():
        text = viewer.get(path).text
        for hidden in ("ann@example.org", "is not closed yet", "The sky is clear", "2026-03&#34;"):
            assert hidden not in text, (name, hidden)
        forms = [one for one in re.findall(r'<form[^>]*action="([^"]+)"[^>]*method="post"', text) if one != "/logout"]
        assert forms == [], (name, forms)


def test_a_tenant_sees_its_own_and_nothing_else(person: Callable[..., Person], town: Town) -> None:
    for role in ("viewer", "operator", "admin"):
        theirs = person(role, tenant="harbour")
        for name, path in town.pages().items():
            answer = theirs.get(path)
            if name in ("job-failed", "job-waiting", "job-parent", "job-done", "schedule", "automation", "session", "chat", "workflow", "publication", "message", "round", "round-closed", "round-group"):  # fmt: skip
                assert answer.status_code == 404, name
            elif name in ("alerts", "calendar-impact"):
                assert answer.status_code == 403
            else:
                for foreign in ("newsletter.send", "report.build", "example.org", "briefing", "user:ann"):
                    assert foreign not in re.sub(r"by user:ann", "", answer.text), (name, foreign)
        assert "map.render" in theirs.get("/jobs").text
        assert theirs.get("/jobs?tenant=default").status_code == 404


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/jobs?parent=x", "parent"), ("/jobs?since=yesterday", "since"), ("/jobs?status=lost", "status"), ("/jobs?ids=0", "ids"),
        ("/audit?since=x", "since"), ("/audit?level=loud", "level"), ("/jobs?cursor=x", "cursor"), ("/jobs?queue=%00", "queue"),
        ("/jobs/act?event=drop&queue=mail", "event"), ("/jobs/act?event=replay&status=failed", "besides a status"),
        (f"/jobs/{2**63}", "id"), ("/jobs/0", "id"), ("/audit?cursor=x", "cursor"), ("/alerts?cursor=x", "cursor"), ("/schedules/show?name=", "name"),
        ("/calendar?tz=Mars", "tz"), ("/calendar?day=yesterday", "day"), ("/calendar?day=1066-10-14", "day"), ("/calendar?view=year", "view"),
        ("/calendar?tz=%00", "tz"), ("/calendar/impact?scope=queue", "of"), ("/calendar/impact?tz=Mars", "tz"), ("/calendar/impact?first=x", "first"),
        ("/calendar/impact?last=2026-01-01", "last"), ("/calendar/impact?last=2199-01-01", "last"), ("/calendar/impact?scope=town", "scope"),
        ("/calendar/impact?start=25:00", "start"), ("/calendar/impact?of=%00", "of"), ("/calendar/blackout?name=", "name"), ("/rounds?cursor=x", "cursor"),
        ("/rounds?groups=x", "cursor"), ("/rounds/0", "id"), (f"/rounds/{2**63}", "id"), ("/rounds/groups/%00", "group"), ("/jobs?error=%00", "error"),
        ("/jobs?before=9999999d", "before"), (f"/jobs?parent={'9' * 30}", "parent"), ("/audit?actor=%00", "actor"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said(local: TestClient, path: str, words: str) -> None:  # B080
    answer = local.get(path)
    assert answer.status_code == 422, answer.text
    assert "text/html" in answer.headers["content-type"]
    assert words in answer.text


def test_a_page_of_jobs_leads_to_the_older_ones(local: TestClient, app: Duly) -> None:  # B080
    made = [app.enqueue("greet", {"n": n}).job.id for n in range(120)]
    seen: list[int] = []
    path: str | None = "/jobs?queue=default"
    while path is not None:
        text = local.get(path).text
        seen += [int(one) for one in re.findall(r"data-row>(\d+)</a>", text)]
        found = re.search(r'href="([^"]+)" rel="next"', text)
        path = found[1].replace("&amp;", "&") if found else None
    assert seen == sorted(made, reverse=True)


def test_the_search_finds_jobs_by_number_queue_task_and_key(local: TestClient, town: Town) -> None:
    for asked, to in (
        ("12", "/jobs/12"),
        ("mail", "/jobs?queue=mail"),
        ("report.build", "/jobs?task=report.build"),
        ("march", "/jobs?key=march"),
    ):
        assert local.get(f"/jobs/go?q={asked}").headers["location"] == to


def test_a_page_that_is_refreshed_keeps_what_was_said_for_the_next_one(local: TestClient, town: Town) -> None:
    local.post("/queues/pause", data={"queue": "mail", "back": "/queues"})
    assert (
        "is paused"
        not in local.get("/queues", headers={"HX-Request": "true"}).text.partition("</h1>")[0].partition("<main")[2]
    )
    assert 'role="status"' in local.get("/queues").text
    assert 'role="status"' not in local.get("/queues").text


def test_every_post_of_the_pages_is_tried_without_its_csrf_field(site: FastAPI, person: Callable[..., Person], town: Town) -> None:  # fmt: skip
    admin = person("admin")
    tried = 0
    for path in posts():
        full = re.sub(r"\{[a-z_]+\}", "1", path)
        for fields in ({}, {"csrf": "x"}, {"csrf": "é"}):
            answer = admin.post(full, data={"queue": "mail", "to": "offline", "name": "feeds", **fields})
            assert answer.status_code == 403, (path, answer.status_code)
        assert admin.post(full, json={"csrf": admin.csrf}).status_code == 403
        tried += 1
    assert tried >= 20


def posts() -> list[str]:
    """The paths of the pages that act."""
    from types import SimpleNamespace

    from duly.settings import Settings
    from duly.web.dashboard.pages import PAGES

    class Nobody:
        app, accounts, env = SimpleNamespace(settings=Settings()), None, None

        def router(self) -> object:
            from fastapi import APIRouter

            return APIRouter()

    found = [route for routes in PAGES for route in routes(Nobody()).routes]  # type: ignore[arg-type]
    return [route.path for route in found if isinstance(route, Route) and "POST" in (route.methods or ()) and route.path != "/login"]  # fmt: skip


def test_viewers_act_on_nothing(person: Callable[..., Person], town: Town) -> None:
    viewer = person("viewer")
    for path in posts():
        if path == "/logout":
            continue
        status, _ = viewer.act(re.sub(r"\{[a-z_]+\}", "1", path), queue="mail", to="offline", name="feeds")
        assert status == 403, path


def test_what_reaches_every_tenant_is_for_who_sees_every_tenant(person: Callable[..., Person], town: Town) -> None:
    theirs = person("admin", tenant="harbour")
    for path, fields in (
        ("/queues/pause", {"queue": "maps"}),
        ("/gate", {"to": "offline"}),
        ("/alerts/judge", {}),
        ("/audit/verify", {}),
    ):
        assert theirs.act(path, **fields)[0] == 403, path
    assert person("operator").act("/gate", to="offline")[0] == 403  # the gate is the administrator's


def test_foreign_things_are_not_acted_on(person: Callable[..., Person], town: Town, app: Duly) -> None:
    theirs = person("admin", tenant="harbour")
    for path, fields in (
        (f"/jobs/{town.queued}/cancel", {}), (f"/jobs/{town.failed}/replay", {}), ("/schedules/pause", {"name": "feeds", "tenant": "default"}),
        ("/schedules/run", {"name": "feeds"}), (f"/automations/{town.automation}/run", {}), (f"/automations/sessions/{town.session}/stop", {}),
    ):  # fmt: skip
        assert theirs.act(path, **fields)[0] == 404, path
    status, words = theirs.act("/jobs/act", event="cancel", jobs=str(town.queued), mark="m")
    assert (status, words) == (303, "None of them can be cancelled.")
    assert app.jobs.get(town.queued).status == "queued"


def test_what_is_kept_of_a_slow_count_is_kept_for_who_sees_the_same(
    person: Callable[..., Person], town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.web.api.common import cursor
    from duly.web.dashboard.desk import Desk

    keys: list[object] = []
    lately = Desk.lately
    monkeypatch.setattr(Desk, "lately", lambda desk, key, ask: keys.append(key) or lately(desk, key, ask))  # type: ignore[func-returns-value]
    for who in (person("admin"), person("admin", tenant="harbour")):
        for page in ("/", f"/jobs?cursor={cursor(10**6)}", "/jobs?status=failed", "/queues"):
            who.get(page)
    mine, theirs = keys[: len(keys) // 2], keys[len(keys) // 2 :]
    assert len(mine) == len(theirs) >= 3
    assert not set(mine) & set(theirs)

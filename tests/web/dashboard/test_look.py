"""The page of jobs over a history that is longer than anybody waits for (ADR 0033)."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from sqlalchemy import insert
from starlette.testclient import TestClient

from duly import Duly
from duly.jobs import look as looking
from duly.jobs.tables import jobs_done
from duly.web.api import jobs as rest
from duly.web.api import workflows as runs_rest
from duly.web.dashboard.pages import jobs as page
from duly.web.dashboard.pages import publishing as posts
from duly.web.dashboard.pages import workflows as runs
from web.dashboard.conftest import Person
from web.dashboard.scene import NOW


@pytest.fixture
def many(app: Duly, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sixty jobs, of which the third and the fiftieth are for somebody else; a look stops after twenty rows."""
    for name, value in (("FIRST", 20), ("GROWTH", 1), ("LONGEST", 20), ("FEW", 0)):
        monkeypatch.setattr(looking, name, value)
    for module in (page, rest):
        monkeypatch.setattr(module, "LOOK", 0.0)
        monkeypatch.setattr(module, "COUNT", 0.0)
    for module in (posts, runs, runs_rest):
        monkeypatch.setattr(module, "LOOK", 0.0)

    @app.task
    def post(n: int) -> None: ...

    return [
        post.using(tenant="acme" if n in (3, 50) else "main", queue="letters").enqueue(n).job.id for n in range(1, 61)
    ]


def further(text: str) -> str | None:
    found = re.search(r'<a href="([^"]+)" rel="next">([^<]+)</a>', text)
    return unescape(found[1]) if found else None


def test_a_page_that_stopped_looking_says_so_and_goes_on(local: TestClient, many: list[int]) -> None:
    text = local.get("/jobs?tenant=acme").text
    assert "1+ fit" in text and f'href="/jobs/{many[49]}"' in text
    assert "Looked through the jobs made since" in text and "Look further back" in text
    at = further(text)
    assert at is not None
    text = local.get(at).text
    assert "None fits so far." in text and "No job fits." not in text
    at = further(text)
    assert at is not None
    text = local.get(at).text
    assert f'href="/jobs/{many[2]}"' in text and further(text) is None and "Look further back" not in text
    assert ">Newest<" in text


def test_a_page_on_which_nothing_fits_so_far_does_not_say_that_none_does(local: TestClient, many: list[int]) -> None:
    text = local.get("/jobs?task=nobody%27s").text
    assert "None fits so far." in text and "0 fit" not in text and "0+ fit" not in text
    seen = 0
    while (at := further(text)) is not None:
        text, seen = local.get(at).text, seen + 1
    assert seen == 2 and "No job fits." in text


def test_what_fits_everything_is_on_full_pages(local: TestClient, many: list[int]) -> None:
    """Fifty jobs are three stretches; a look goes on while its page has room and its time lasts."""
    text = local.get("/jobs?queue=letters").text
    assert "20+ fit" in text and "Look further back" in text
    text = local.get(further(text) or "").text
    assert "Look further back" in text


def test_the_api_goes_on_where_it_stopped_and_the_client_follows(
    person: Callable[..., Person], local: TestClient, many: list[int]
) -> None:
    answer = local.get("/api/v1/jobs", params={"tenant": "acme"}).json()
    found = answer["jobs"]
    pages = 1
    while answer["next"] is not None:
        answer = local.get("/api/v1/jobs", params={"tenant": "acme", "cursor": answer["next"]}).json()
        found += answer["jobs"]
        pages += 1
    assert [job["id"] for job in found] == [many[49], many[2]]
    assert pages == 3
    assert local.get("/api/v1/jobs/count", params={"tenant": "acme"}).json() == {"count": 1, "capped": True}


def test_queues_are_offered_to_those_who_type_wherever_their_jobs_stand(
    app: Duly, local: TestClient, person: Callable[..., Person], many: list[int]
) -> None:
    app.task("later")(lambda: None)
    app.enqueue("later", queue="for tomorrow", run_in=86_400)
    app.enqueue("later", queue="theirs", tenant="acme", run_in=86_400)
    offered = re.findall(r'<option value="([^"]+)"', local.get("/jobs").text)
    assert {"letters", "for tomorrow", "theirs"} <= set(offered)
    offered = re.findall(r'<option value="([^"]+)"', person("viewer", tenant="acme").get("/jobs").text)
    assert set(offered) == {"letters", "theirs"}


def test_lists_of_publications_and_of_runs_go_on_where_they_stopped(
    app: Duly, local: TestClient, many: list[int]
) -> None:
    def made(task: str, n: int, tenant: str) -> dict[str, Any]:
        return {
            "tenant": tenant, "queue": f"q{n}", "task": task, "status": "succeeded", "priority": 0, "run_at": NOW, "input": {"workflow": "nightly"},
            "attempts": 1, "max_attempts": 1, "created_at": NOW, "finished_at": NOW,
        }  # fmt: skip

    for start, task in ((1000, "PUBLISH"), (2000, "ENGINE_RUN")):
        rows = [{"id": start + n, **made(task, n, "acme" if n == 3 else "main")} for n in range(60)]
        app.db.write(lambda c, rows=rows: c.execute(insert(jobs_done), rows))
    for path, found in (("/publishing?channel=q3", 1003), ("/workflows?workflow=other", None)):
        text, pages = local.get(path).text, 1
        assert "fits so far" in text and "Look further back" in text
        while (at := further(text)) is not None:
            text, pages = local.get(at).text, pages + 1
        assert pages > 3
        assert f"/publishing/{found}" in text if found else "No run fits." in text
    got, cursor, pages = [], None, 0
    while True:
        answer = local.get(
            "/api/v1/workflows/runs", params={"tenant": "acme", **({"cursor": cursor} if cursor else {})}
        ).json()
        got, cursor, pages = got + answer["runs"], answer["next"], pages + 1
        if cursor is None:
            break
    assert [run["id"] for run in got] == [2003] and pages > 3
    assert len(app.workflows.list(limit=100)) == 60, "programs are not stopped"

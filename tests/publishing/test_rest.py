"""The REST door, asked over real connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

import fronts
from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.jobs.prune import prune_expired
from duly.kernel.errors import InvalidArgument
from duly.kernel.windows import Window
from duly.publishing import PublicationFilter, Publishing, Run
from duly.testing import ManualClock, drain
from duly.web.app import create
from duly.web.publishing import router
from duly.web.serve import run
from served import served

TOKEN = "0123456789abcdef-token"
JOBS = "/fp-publisher/v1/jobs"
NOW = datetime(2026, 3, 27, 9, tzinfo=UTC)

db_url = fronts.db_url
sites_cost_little = fronts.sites_cost_little


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    made = Duly(db_url, clock=clock)
    yield made
    made.close()


@pytest.fixture
def publishing(app: Duly, tmp_path: Path) -> Publishing:
    """Channel ``blog`` writes into a folder, ``broken`` refuses everything."""
    made = Publishing.of(app)
    made.channel("blog", "folder", folder=str(tmp_path / "posts"))

    @made.process("broken")
    def refuse(run: Run) -> None:
        run.mark_failed("no luck", retryable=False)

    return made


@pytest.fixture
def client(app: Duly, publishing: Publishing) -> Iterator[httpx2.Client]:
    with served(create(app, TOKEN), {"Authorization": f"Bearer {TOKEN}"}) as made:
        yield made


def job(channel: str = "blog", caption: str = "Apples", **more: Any) -> dict[str, Any]:
    return {"channel": channel, "payload": {"caption": caption}, **more}


def count(publishing: Publishing) -> int:
    return len(publishing.list(limit=1000))


def problem(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    said: dict[str, Any] = answer.json()
    assert said["status"] == status
    return said


# ---------------------------------------------------------------------- enqueue


def test_a_post_is_enqueued_once_per_channel_and_key(client: httpx2.Client, publishing: Publishing) -> None:
    # R002-2, R002-13, B053
    given = job(idempotency_key="k", run_at="2026-03-27T19:00:00+01:00")
    first = client.post(JOBS, json=given)
    made = first.json()["job"]
    assert (first.status_code, first.json()["created"]) == (201, True)
    assert (made["status"], made["attempts"], made["run_at"]) == ("pending", 0, "2026-03-27T18:00:00Z")  # R002-21
    assert client.get(first.headers["location"]).json() == made
    again = client.post(JOBS, json=given)
    assert (again.status_code, again.json()) == (200, {"job": made, "created": False, "past": False})
    assert client.post(JOBS, json=job("broken", idempotency_key="k")).status_code == 201
    # R002-5: without a key, a UUID
    one, two = (client.post(JOBS, json=job()).json()["job"] for _ in range(2))
    assert one["idempotency_key"] != two["idempotency_key"]
    assert count(publishing) == 4


def test_twenty_requests_at_once_make_one_job(client: httpx2.Client, publishing: Publishing) -> None:
    # R002-2, B053
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: client.post(JOBS, json=job(idempotency_key="k")), range(20)))
    assert sorted(a.status_code for a in answers) == [200] * 19 + [201]
    assert len({a.json()["job"]["id"] for a in answers}) == 1
    assert count(publishing) == 1


def test_a_published_post_is_returned_as_it_is(client: httpx2.Client, app: Duly) -> None:
    # R002-17
    client.post(JOBS, json=job(idempotency_key="k"))
    drain(app)
    again = client.post(JOBS, json=job(idempotency_key="k")).json()
    assert (again["created"], again["job"]["status"]) == (False, "completed")
    assert again["job"]["remote_id"]


WRONG: list[tuple[dict[str, Any], str]] = [
    (job(run_at="2026-03-27T19:00:00"), "run_at"),  # T002-m
    (job(run_at="soon"), "run_at"),
    (job(run_at=1_800_000_000), "run_at"),
    (job(run_at="9999-12-31T23:59:59Z"), "run_at"),
    (job("nowhere"), "channel"),
    (job(""), "channel"),
    ({"payload": {"caption": "x"}}, "channel"),
    ({"channel": "blog"}, "payload"),
    ({"channel": "blog", "payload": {}}, "payload"),
    ({"channel": "blog", "payload": {"caption": 7}}, "payload.caption"),
    ({"channel": "blog", "payload": {"capton": "x"}}, "payload.capton"),
    ({"channel": "blog", "payload": {"caption": "a\u0000"}}, "payload.caption"),
    ({"channel": "blog", "payload": {"assets": [{"path": "/etc/hostname"}]}}, "payload.assets[0].path"),
    ({"channel": "blog", "payload": {"assets": [{"alt": "x"}]}}, "payload.assets[0]"),
    (job(idempotency_key=""), "idempotency_key"),
    (job(tenant="other"), "tenant"),
    ({"plan": {"brand": "x"}, "idempotency_key": "k"}, "idempotency_key"),  # T002-o
    ({"plan": {"brand": "x"}, "channel": "blog"}, "channel"),
]


def test_what_cannot_be_meant_is_422_and_names_its_field(client: httpx2.Client, publishing: Publishing) -> None:
    for given, field in WRONG:
        said = problem(client.post(JOBS, json=given), 422)
        assert said["field"] == field, (given, said)
        assert said["title"]
        assert "hostname" not in json.dumps(said), "what was sent is not told again"
    for body in (b"{", b"", b"[]", b'{"channel": "blog", "payload": {"caption": "\\ud800"}}', b'"x"'):
        problem(client.post(JOBS, content=body, headers={"content-type": "application/json"}), 422)
    assert count(publishing) == 0


# ---------------------------------------------------------------------- plans

PLAN: dict[str, Any] = {
    "brand": "orchard",
    "timezone": "Europe/Rome",
    "channels": ["blog"],
    "template": "{text}",
    "slots": [
        {"at": "2026-03-28T09:00", "placeholders": {"text": "Apples"}},
        {"at": "2026-03-29T09:00", "placeholders": {"text": "Pears"}},
    ],
}


def test_a_plan_is_made_once(client: httpx2.Client, publishing: Publishing) -> None:
    # R002-3, R002-17
    first = client.post(JOBS, json={"plan": PLAN})
    assert (first.status_code, first.json()["created"]) == (201, 2)
    assert [one["job"]["run_at"] for one in first.json()["jobs"]] == ["2026-03-28T08:00:00Z", "2026-03-29T07:00:00Z"]
    again = client.post(JOBS, json={"plan": PLAN})
    assert (again.status_code, again.json()["created"]) == (200, 0)
    assert [one["job"] for one in again.json()["jobs"]] == [one["job"] for one in first.json()["jobs"]]
    assert count(publishing) == 2


def test_what_lies_in_the_past_is_said_and_can_be_left_out(
    client: httpx2.Client, publishing: Publishing, clock: ManualClock
) -> None:  # N1
    clock.set(datetime(2026, 3, 28, 12, tzinfo=UTC))
    left = client.post(JOBS, json={"plan": PLAN, "skip_past": True}).json()
    assert (left["created"], left["past"], left["skipped"], len(left["jobs"])) == (1, 0, 1, 1)
    made = client.post(JOBS, json={"plan": PLAN}).json()
    assert (made["created"], made["past"], made["skipped"]) == (1, 1, 0)
    assert [one["past"] for one in made["jobs"]] == [True, False]
    assert client.post(JOBS, json={"plan": PLAN}).json()["past"] == 0, "it was there already"
    one = client.post(JOBS, json=job(run_at="1970-01-01T00:00:00Z", idempotency_key="old")).json()
    assert (one["created"], one["past"]) == (True, True)
    assert client.post(JOBS, json=job()).json()["past"] is False
    clock.set(datetime(2027, 1, 1, tzinfo=UTC))
    none = client.post(JOBS, json={"plan": PLAN | {"brand": "other"}, "skip_past": True})
    assert (none.status_code, none.json()["jobs"], none.json()["skipped"]) == (200, [], 2)


def test_a_wrong_plan_says_everything_that_is_wrong(client: httpx2.Client, publishing: Publishing) -> None:
    wrong = PLAN | {"key": "k", "slots": [*PLAN["slots"], {"at": "soon", "assets": ["/etc/hostname"]}]}
    said = problem(client.post(JOBS, json={"plan": wrong}), 422)
    assert [one["field"] for one in said["errors"]] == ["key", "slots[2].at", "slots[2].assets[0]", "slots[2]"]
    assert count(publishing) == 0


# ---------------------------------------------------------------------- preflight


def test_checks_that_fail_block_unless_they_are_overridden_and_that_is_audited(
    client: httpx2.Client, publishing: Publishing, app: Duly
) -> None:
    given = {"channel": "blog", "payload": {"caption": "Apples", "link": "example.org"}}
    said = problem(client.post(JOBS, json=given), 422)
    assert said["errors"] == [{"field": "payload.link", "detail": "does not begin with https://."}]
    assert said["field"] == "payload.link"
    assert said["detail"].startswith("payload.link does not begin with https://. Mend")
    problem(client.post(JOBS, json=given | {"override": " "}), 422)
    assert count(publishing) == 0
    made = client.post(JOBS, json=given | {"override": "the shop moves today"})
    assert made.status_code == 201
    (row,) = app.db.read(lambda c: find(c, TrailFilter(action="PUBLISH_OVERRIDDEN")))
    assert (row.actor, row.entity_id, row.meta["reason"]) == (
        "token:web_token",
        str(made.json()["job"]["id"]),
        "the shop moves today",
    )


# ---------------------------------------------------------------------- test, preview


def test_a_test_inserts_nothing(client: httpx2.Client, publishing: Publishing, app: Duly) -> None:
    # R002-13, B068
    app.calendars.set(Window(start="22:00", end="07:00", tz="Europe/Rome", name="night", scope="channel:blog"))
    assert client.post(f"{JOBS}/test", json=job()).json()["outcome"] == "ok"
    held = client.post(f"{JOBS}/test", json=job(run_at="2026-03-27T22:00:00Z")).json()
    assert (held["outcome"], held["until"]) == ("blackout", "2026-03-28T06:00:00Z")
    assert count(publishing) == 0
    client.post(JOBS, json=job(idempotency_key="k"))
    taken = client.post(f"{JOBS}/test", json={"channel": "blog", "idempotency_key": "k"}).json()
    assert (taken["outcome"], taken["existing"]["idempotency_key"]) == ("collision", "k")
    app.queues.pause("blog", "lunch")
    assert client.post(f"{JOBS}/test", json=job()).json()["outcome"] == "limit"
    assert problem(client.post(f"{JOBS}/test", json=job(run_at="2026-03-27T22:00:00")), 422)["field"] == "run_at"
    assert count(publishing) == 1


def test_a_preview_publishes_nothing_and_takes_no_key(client: httpx2.Client, publishing: Publishing, app: Duly) -> None:
    # R002-15, B068
    payload = {"caption": "Apples", "ig_first_comment": "more", "preview": True}
    shown = client.post(JOBS, json={"channel": "blog", "payload": payload, "idempotency_key": "k"})
    assert shown.status_code == 200
    assert (shown.json()["preview"]["caption"], shown.json()["preflight"]["ok"]) == ("Apples", True)
    same = client.post("/fp-publisher/v1/preview", json={"channel": "blog", "payload": payload})
    assert same.json() == shown.json()
    assert problem(client.post("/fp-publisher/v1/preview", json=job("nowhere")), 422)["field"] == "channel"
    assert count(publishing) == 0
    assert client.post(JOBS, json=job(idempotency_key="k")).json()["created"] is True


# ---------------------------------------------------------------------- replay


def test_only_what_has_failed_is_replayed(client: httpx2.Client, app: Duly, clock: ManualClock) -> None:
    # R002-16, B063
    made = client.post(JOBS, json=job("broken", idempotency_key="k")).json()["job"]
    replay = f"{JOBS}/{made['id']}/replay"
    assert "pending" in problem(client.post(replay), 409)["detail"]
    drain(app)
    failed = client.get(f"{JOBS}/{made['id']}").json()
    assert (failed["status"], failed["attempts"], failed["error"]) == ("failed", 1, "no luck")
    clock.advance(timedelta(hours=1))
    again = client.post(replay, json={"reason": "once more"})
    said = again.json()
    assert (again.status_code, said["status"], said["attempts"], said["idempotency_key"]) == (200, "pending", 0, "k")
    assert said["run_at"] == "2026-03-27T10:00:00Z"
    done = client.post(JOBS, json=job()).json()["job"]
    drain(app)
    problem(client.post(f"{JOBS}/{done['id']}/replay"), 409)
    problem(client.post(f"{JOBS}/999999/replay"), 404)
    problem(client.get(f"{JOBS}/999999"), 404)
    problem(client.get(f"{JOBS}/first"), 422)


def test_a_key_whose_job_was_removed_says_what_is_known_and_has_no_address(
    client: httpx2.Client, app: Duly, clock: ManualClock
) -> None:
    # T002-p
    given = [job(idempotency_key="done"), job("broken", idempotency_key="bad")]
    ids = [client.post(JOBS, json=one).json()["job"]["id"] for one in given]
    drain(app)
    known = client.get(f"{JOBS}/{ids[0]}").json()["remote_id"]
    clock.advance(timedelta(days=30))
    prune_expired(app.db)
    done, bad = (client.post(JOBS, json=one) for one in given)
    for answer, ident in ((done, ids[0]), (bad, ids[1])):
        made = answer.json()
        assert (answer.status_code, made["created"], made["job"]["id"], made["job"]["gone"]) == (
            200,
            False,
            ident,
            True,
        )
        assert "location" not in answer.headers
    assert (done.json()["job"]["status"], done.json()["job"]["remote_id"]) == ("completed", known)
    assert (bad.json()["job"]["status"], "another key" in bad.json()["job"]["error"]) == ("failed", True)
    tested = client.post(f"{JOBS}/test", json={"channel": "blog", "idempotency_key": "done"}).json()
    assert (tested["outcome"], "removed" in tested["detail"]) == ("collision", True)


def test_of_two_replays_at_once_one_wins(client: httpx2.Client, app: Duly) -> None:
    # T002-h, B063
    for n in range(5):
        ident = client.post(JOBS, json=job("broken", idempotency_key=str(n))).json()["job"]["id"]
        drain(app)
        both = threading.Barrier(2)

        def once(ident: int = ident, both: threading.Barrier = both) -> int:
            both.wait(30)
            return client.post(f"{JOBS}/{ident}/replay").status_code

        with ThreadPoolExecutor(2) as pool:
            assert sorted(one.result() for one in [pool.submit(once), pool.submit(once)]) == [200, 409]


def test_many_are_replayed_and_cancelled_within_the_filter(client: httpx2.Client, app: Duly) -> None:
    broken = [client.post(JOBS, json=job("broken")).json()["job"]["id"] for _ in range(3)]
    drain(app)
    later = [client.post(JOBS, json=job(run_at="2026-03-28T10:00:00Z")).json()["job"]["id"] for _ in range(2)]
    for act in ("replay", "cancel"):
        problem(client.post(f"{JOBS}/{act}", json={"filter": {}}), 422)
        problem(client.post(f"{JOBS}/{act}", json={"filter": {"status": ["failed"]}}), 422)
        problem(client.post(f"{JOBS}/{act}", json={}), 422)
    answer = client.post(f"{JOBS}/replay", json={"filter": {"channel": "broken", "ids": broken[:2]}})
    assert answer.json() == {"replayed": broken[:2], "refused": {}}
    answer = client.post(
        f"{JOBS}/cancel", json={"filter": {"channel": "blog", "run_from": "2026-03-28T00:00:00Z"}, "reason": "rain"}
    )
    assert sorted(answer.json()["cancelled"]) == later
    gone = client.get(f"{JOBS}/{later[0]}").json()
    assert (gone["status"], "rain" in gone["error"]) == ("cancelled", True)
    for status in ([], ["failed"]):  # R002-25
        answer = client.post(f"{JOBS}/replay", json={"filter": {"channel": "blog", "status": status}})
        assert answer.json() == {"replayed": [], "refused": {}}
    assert (
        problem(client.post(f"{JOBS}/replay", json={"filter": {"channel": "blog", "status": ["cancelled"]}}), 422)[
            "field"
        ]
        == "status"
    )
    assert [client.get(f"{JOBS}/{ident}").json()["status"] for ident in broken] == ["pending", "pending", "failed"]


# ---------------------------------------------------------------------- lists


def test_a_name_in_the_query_that_is_not_known_is_refused(client: httpx2.Client) -> None:  # N5
    assert problem(client.get(f"{JOBS}?chanel=blog"), 422)["field"] == "chanel"


@pytest.mark.parametrize("name", ["channel", "idempotency_key", "remote_id"])
def test_a_filter_with_text_that_no_database_stores_is_refused_where_it_stands(
    client: httpx2.Client, publishing: Publishing, name: str
) -> None:
    assert problem(client.get(f"{JOBS}?{name}=a%00b"), 422)["field"] == name
    for act in ("replay", "cancel"):
        said = problem(client.post(f"{JOBS}/{act}", json={"filter": {name: "a\x00b"}}), 422)
        assert (said["field"], "NUL" in said["detail"]) == (f"filter.{name}", True)
        said = problem(client.post(f"{JOBS}/{act}", json={"filter": {name: "a"}, "reason": "a\x00b"}), 422)
        assert said["field"] == "reason"
    here = {"idempotency_key": "key"}.get(name, name)
    with pytest.raises(InvalidArgument) as caught:
        PublicationFilter(**{here: "a\x00b"})  # type: ignore[arg-type]
    assert caught.value.field == here


def test_lists_are_filtered_and_come_in_pages(client: httpx2.Client, app: Duly) -> None:
    ids = [client.post(JOBS, json=job(idempotency_key=str(n))).json()["job"]["id"] for n in range(5)]
    client.post(JOBS, json=job("broken", run_at="2026-04-01T00:00:00Z"))
    seen: list[int] = []
    query: dict[str, Any] = {"channel": "blog", "limit": 2}
    while True:
        page = client.get(JOBS, params=query).json()
        seen += [one["id"] for one in page["jobs"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == ids[::-1]
    drain(app)

    def number(**query: Any) -> int:
        return len(client.get(JOBS, params=query).json()["jobs"])

    assert number(status=["completed", "failed"]) == 5
    assert number(status="pending") == 1
    assert number(idempotency_key="3") == 1
    assert number(run_from="2026-03-31T00:00:00Z") == 1
    assert number(type="ig_first_comment") == 0
    for wrong in (
        {"status": "lost"},
        {"limit": 0},
        {"cursor": "x"},
        {"run_from": "2026-03-31T00:00:00"},
        {"parent_id": 0},
    ):
        assert problem(client.get(JOBS, params=wrong), 422)["field"].startswith(next(iter(wrong)))


def test_another_tenants_publications_are_not_there(app: Duly, publishing: Publishing, client: httpx2.Client) -> None:
    other = publishing.enqueue("blog", {"caption": "theirs"}, tenant="theirs").job
    problem(client.get(f"{JOBS}/{other.id}"), 404)
    problem(client.post(f"{JOBS}/{other.id}/replay"), 404)
    assert client.get(JOBS).json()["jobs"] == []
    assert client.post(f"{JOBS}/cancel", json={"filter": {"ids": [other.id]}}).json()["cancelled"] == []
    with served(create(app, TOKEN, tenant="theirs"), {"Authorization": f"Bearer {TOKEN}"}) as theirs:
        assert [one["id"] for one in theirs.get(JOBS).json()["jobs"]] == [other.id]


# ---------------------------------------------------------------------- who may come in


@pytest.fixture
def here(sqlite_url: str, tmp_path: Path) -> Iterator[Duly]:
    made = Duly(sqlite_url)
    Publishing.of(made).channel("blog", "folder", folder=str(tmp_path / "posts"))
    yield made
    made.close()


def test_nobody_comes_in_without_the_token(here: Duly) -> None:
    with served(create(here, TOKEN)) as client:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": TOKEN}, {"Authorization": "Bearer"}, {"Authorization": "Bearer é".encode("latin-1")}):  # fmt: skip
            for path in (JOBS, "/openapi.json", "/nowhere"):
                answer = client.get(path, headers=headers)  # type: ignore[arg-type]
                problem(answer, 401)
                assert answer.headers["www-authenticate"] == 'Bearer realm="duly"'
        assert client.get(JOBS, headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
        problem(client.get("/nowhere", headers={"Authorization": f"Bearer {TOKEN}"}), 404)
        problem(client.put(JOBS, headers={"Authorization": f"Bearer {TOKEN}"}), 405)


def test_a_body_that_is_too_long_is_refused_however_it_comes(here: Duly) -> None:
    with served(create(here, TOKEN, most=1000), {"Authorization": f"Bearer {TOKEN}"}) as client:
        long = json.dumps(job(caption="x" * 2000)).encode()
        json_ = {"content-type": "application/json"}
        problem(client.post(JOBS, content=long, headers=json_), 413)
        problem(client.post(JOBS, content=iter([long[:500], long[500:]]), headers=json_), 413)
        assert client.post(JOBS, json=job()).status_code == 201


@pytest.mark.parametrize("token", ["short", "x" * 15, "with a space in the middle", "é" * 20])
def test_a_token_that_protects_nothing_is_refused(here: Duly, token: str) -> None:
    with pytest.raises(InvalidArgument, match="web_token"):
        create(here, token)


def test_it_listens_on_loopback_unless_somebody_says_otherwise(here: Duly) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(InvalidArgument, match="--allow-remote"):
            run(here, TOKEN, host=host)
    with pytest.raises(InvalidArgument, match="web_token"):
        run(here, "")


def test_the_router_stands_in_any_application_with_its_own_errors(here: Duly) -> None:
    mine = FastAPI()
    mine.include_router(router(here), prefix="/api")

    @mine.get("/{anything:path}")
    def job_(anything: str) -> str:
        return anything

    with served(mine) as client:
        made = client.post(f"/api{JOBS}", json=job())
        assert made.headers["location"] == f"/api{JOBS}/{made.json()['job']['id']}"
        assert client.get(made.headers["location"]).json() == made.json()["job"]
        assert problem(client.post(f"/api{JOBS}", json=job("nowhere")), 422)["field"] == "channel"


def test_a_database_that_is_away_is_503(here: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    from duly.kernel.errors import DatabaseUnavailable

    def away(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("secret-host does not answer")

    with served(create(here, TOKEN), {"Authorization": f"Bearer {TOKEN}"}) as client:
        monkeypatch.setattr(Publishing, "list", away)
        answer = client.get(JOBS)
        assert "secret-host" not in json.dumps(problem(answer, 503))
        assert answer.headers["retry-after"]


# ---------------------------------------------------------------------- the description


def test_every_answer_is_as_the_description_says(here: Duly) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    authorized = {"Authorization": f"Bearer {TOKEN}"}
    with served(create(here, TOKEN), authorized) as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        found: Any = schema.include(path_regex="^/fp-publisher").get_all_operations()
        operations = [one.ok() for one in found]
        assert len(operations) == 8
        for operation in operations:

            @settings(max_examples=12, suppress_health_check=list(HealthCheck), database=None)
            @given(operation.as_strategy())
            def ask(case: Any) -> None:
                answer = case.call(base_url=str(client.base_url), headers=authorized)
                assert answer.status_code < 500, answer.text
                # a channel that is not there fits the description, and is refused
                case.validate_response(answer, excluded_checks=[positive_data_acceptance])

            ask()

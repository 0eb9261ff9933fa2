"""The client of the REST API: its calls are those that the API describes, and they do what they say on a real connection (issue 8)."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import fronts
from duly import Duly
from duly.accounts.door import Accounts
from duly.client import ApiError, Client
from duly.client._calls import Calls
from duly.testing import drain
from duly.web.app import create
from served import served

ROOT = Path(__file__).parents[2]

db_url = fronts.db_url
sites_cost_little = fronts.sites_cost_little


@pytest.fixture
def app(db_url: str) -> Iterator[Duly]:
    made = Duly(db_url)

    @made.task("greet")
    def greet(name: str = "you") -> str:
        if name == "nobody":
            raise ValueError("who?")
        return f"hello {name}"

    yield made
    made.close()


@pytest.fixture
def duly(app: Duly) -> Iterator[Client]:
    token, _ = Accounts(app).create_token("program", "admin")
    with served(create(app)) as raw, Client(str(raw.base_url), token) as made:
        yield made


def test_the_client_is_what_the_api_says() -> None:
    command = [sys.executable, ROOT / "docs" / "make_client.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_operation_has_its_call(app: Duly) -> None:
    operations = sum(len(methods) for methods in create(app).openapi()["paths"].values())
    calls = Calls(lambda *_, **__: None)
    groups = [one for one in vars(calls).values() if hasattr(one, "_send")]
    found = [
        name for one in (calls, *groups) for name, fn in inspect.getmembers(one, inspect.ismethod) if name[0] != "_"
    ]
    assert len(found) == operations - 2  # the two streams are listened to by hand


def test_a_day_with_jobs(duly: Client, app: Duly) -> None:
    made = duly.jobs.enqueue(task="greet", input={"name": "Ada"}, key="a/b c", idempotency_key="once")
    assert (made["created"], made["job"]["status"]) == (True, "queued")
    assert duly.jobs.enqueue(task="greet", input={"name": "Ada"}, key="a/b c", idempotency_key="once") == made
    assert duly.jobs.enqueue(task="greet", input={"name": "Ada"}, key="a/b c")["created"] is False
    many = duly.jobs.enqueue_many(
        jobs=[{"task": "greet", "input": {"name": "nobody"}, "max_attempts": 1} for _ in range(5)]
    )
    assert many["created"] == 5
    drain(app)
    failed = list(duly.every(duly.jobs.find, status=["failed"], limit=2))
    assert [job["id"] for job in failed] == sorted((one["job"]["id"] for one in many["jobs"]), reverse=True)
    assert duly.jobs.show(made["job"]["id"])["output"] == "hello Ada"
    again = duly.jobs.replay(failed[0]["id"], reason="try")
    assert again["status"] == "queued"
    assert [check["name"] for check in duly.jobs.why(failed[0]["id"])["checks"]][:1] != []
    assert duly.jobs.cancel(failed[0]["id"])["status"] == "cancelled"


def test_what_is_refused_is_an_error_with_its_status_field_and_words(duly: Client) -> None:
    with pytest.raises(ApiError, match="404: there is no job 4711") as nowhere:
        duly.jobs.show(4711)
    assert nowhere.value.status == 404
    with pytest.raises(ApiError) as wrong:
        duly.jobs.enqueue(task="greet", run_in=-1)
    assert (wrong.value.status, wrong.value.field) == (422, "run_in")
    with pytest.raises(ApiError) as stranger, Client(duly._url, "duly_nonsense") as nobody:
        nobody.me()
    assert stranger.value.status == 401


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_would_lead_to_another_path_is_not_sent(duly: Client, name: str) -> None:
    duly.rounds.add_group(name="choir", zone="Europe/Paris")
    for ask in (lambda: duly.rounds.change_member("choir", name, is_active=False), lambda: duly.schedules.show(name)):
        with pytest.raises(ApiError, match="cannot stand in a path"):
            ask()
    assert duly.rounds.group("choir")["is_active"] is True


def test_an_answer_that_is_no_problem_of_the_api_is_an_error_all_the_same() -> None:
    said: list[tuple[int, str, str]] = [
        (422, '{"errors": null}', ""),
        (422, '{"errors": [1, {"field": "x"}]}', ""),
        (503, "<html>", "²"),
    ]

    def answer(request: httpx2.Request) -> httpx2.Response:
        status, body, after = said[0]
        return httpx2.Response(
            status, text=body, headers={"retry-after": after} if after.isascii() else {b"retry-after": after.encode()}
        )

    with Client("http://127.0.0.1:1", http=httpx2.Client(transport=httpx2.MockTransport(answer))) as made:
        while said:
            with pytest.raises(ApiError) as error:
                made.me()
            assert (error.value.status, error.value.retry_after) == (said[0][0], None)
            said.pop(0)


def test_a_stream_that_ends_is_asked_for_again_after_a_while_and_what_is_none_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("duly.client.client.time.sleep", slept.append)
    change = 'id: 7\nevent: change\ndata: {"action": "A\u2028B"}\n\n'
    answers = (
        [(200, "text/event-stream", change)] * 3
        + [(502, "text/html", "away")] * 2
        + [(200, "text/event-stream", change)]
    )
    answers += [(200, "text/html", "<html>")] * 5
    asked: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers.get("last-event-id"))
        status, kind, body = answers.pop(0)
        return httpx2.Response(status, text=body, headers={"content-type": kind})

    with Client("http://127.0.0.1:1", http=httpx2.Client(transport=httpx2.MockTransport(answer))) as made:
        seen = []
        with pytest.raises(ApiError, match="no stream of events"):
            for one in made.changes():
                seen.append(one.what["action"])
    assert seen == ["A\u2028B"] * 4
    assert asked == [None, *["7"] * 10]
    assert len(slept) == len(asked) - 1


def test_a_stale_edit_is_refused(duly: Client) -> None:
    recurrence = {"kind": "cron", "expression": "0 9 * * *", "tz": "Europe/Rome"}
    made = duly.schedules.put("reports/daily", recurrence=recurrence, task="greet")
    changed = duly.schedules.put(
        "reports/daily", recurrence=recurrence, task="greet", overlap="skip", if_match=made["etag"]
    )
    assert changed["version"] == 2
    with pytest.raises(ApiError) as stale:
        duly.schedules.put("reports/daily", recurrence=recurrence, task="greet", if_match=made["etag"])
    assert stale.value.status == 412
    assert duly.schedules.remove("reports/daily", reason="over") is None


def test_changes_are_told_as_they_happen_and_go_on_where_one_left(duly: Client, app: Duly) -> None:
    # B043
    seen = []

    def look(after: str | None, most: int) -> None:
        for change in duly.changes(after=after):
            seen.append(change)
            if len(seen) >= most:
                return

    duly.queues.pause("mail", reason="look")
    first = duly.audit.trail(action="QUEUE_PAUSED")["entries"][0]["id"]
    listener = threading.Thread(target=look, args=(str(first - 1), 2))
    listener.start()
    duly.queues.resume("mail")
    listener.join(60)
    assert [one.what["action"] for one in seen] == ["QUEUE_PAUSED", "QUEUE_RESUMED"]
    assert seen[-1].kind == "change"

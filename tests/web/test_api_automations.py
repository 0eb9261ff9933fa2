"""Automations over REST, on both databases. Source: R001, T001, B080."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from automations.hands import Ai, calls, says
from duly import Duly
from duly.accounts.account import Identity, Role
from duly.accounts.door import Accounts
from duly.audit.read import TrailFilter, find
from duly.automations import Automations
from duly.automations.door import WANTED
from duly.automations.session import Status
from duly.kernel.errors import WrongState
from duly.testing import ManualClock, drain
from duly.web.api import automations as under_test
from duly.web.api import listening as stream
from duly.web.api.listening import Glance, Listening, frames
from duly.web.identity import Standing
from web.hands import problem, wander, wandering

PATH = "/api/v1/automations"
SESSIONS = f"{PATH}/sessions"
Client = Callable[..., TestClient]


@pytest.fixture
def ai() -> Ai:
    return Ai()


@pytest.fixture
def room(app: Duly, ai: Ai) -> Automations:
    made = Automations.of(app)
    made.use("ai", ai)

    @made.tool
    def look_up(order: int, token: str = "") -> dict[str, Any]:
        return {"order": order, "state": "sent"}

    return made


@pytest.fixture
def operator(client: Client, room: Automations) -> TestClient:
    return client("operator")


def automation(caller: TestClient, name: str = "brief", **more: Any) -> dict[str, Any]:
    answer = caller.post(PATH, json={"name": name, "prompt": "Say good morning.", "provider": "ai", **more})
    assert answer.status_code == 201, answer.text
    said: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{PATH}/{said['id']}"
    return said


def run(caller: TestClient, which: Any = "brief", **given: Any) -> int:
    answer = caller.post(f"{PATH}/{which}/run", json=given)
    assert answer.status_code == 200, answer.text
    ident: int = answer.json()["session"]["id"]
    return ident


def chat(caller: TestClient, **more: Any) -> dict[str, Any]:
    answer = caller.post(f"{PATH}/chats", json={"provider": "ai", **more})
    assert answer.status_code == 201, answer.text
    said: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{SESSIONS}/{said['session']['id']}"
    return said


def trail(app: Duly) -> list[tuple[str, str, Any]]:
    return [
        (r.action, r.actor, (r.meta or {}).get("reason")) for r in app.db.read(lambda c: find(c, TrailFilter(), 200))
    ]


# ---------------------------------------------------------------------- definitions


def test_an_automation_is_made_looked_at_changed_and_removed(operator: TestClient, app: Duly) -> None:
    daily = {"kind": "daily", "at": "08:00", "tz": "Europe/Paris"}
    said = automation(operator, schedule=daily, tools=["look_up"], limits={"max_rounds": 5})
    assert (said["version"], said["is_enabled"], said["next_run"]) == (1, True, "2026-03-28T07:00:00Z")
    assert (said["messages"], said["limits"]) == ([{"role": "user", "text": "Say good morning."}], {"max_rounds": 5})
    shown = operator.get(f"{PATH}/brief")
    assert (shown.headers["etag"], shown.json()) == (said["etag"], said)
    first = {"If-Match": said["etag"]}
    assert operator.get(f"{PATH}/{said['id']}").json() == said
    changed = operator.patch(f"{PATH}/brief", json={"schedule": None, "triggers": ["order.paid"]}, headers=first)
    assert (changed.json()["version"], changed.json()["next_run"], changed.json()["triggers"]) == (
        2,
        None,
        ["order.paid"],
    )
    assert changed.headers["etag"] == changed.json()["etag"] != said["etag"]
    # B080: somebody else has changed it meanwhile
    problem(operator.patch(f"{PATH}/brief", json={"prompt": "Sing."}, headers=first), 412)
    problem(operator.delete(f"{PATH}/brief", headers=first), 412)
    off = operator.post(f"{PATH}/brief/disable", json={"reason": "holiday"}).json()
    assert (off["is_enabled"], off["version"]) == (False, 3)
    on = operator.post(f"{PATH}/brief/enable").json()
    assert on["is_enabled"] is True
    assert operator.delete(f"{PATH}/brief?reason=done", headers={"If-Match": on["etag"]}).status_code == 204
    problem(operator.get(f"{PATH}/brief"), 404)
    automation(operator)  # another one by the same name, of the same version as the first
    problem(operator.patch(f"{PATH}/brief", json={"prompt": "Sing."}, headers=first), 412)
    assert ("AUTOMATION_DISABLED", "token:test 1", "holiday") in trail(app)
    assert ("AUTOMATION_REMOVED", "token:test 1", "done") in trail(app)


def test_names_that_do_not_exist_are_told_in_the_answer(operator: TestClient) -> None:
    # A2
    made = operator.post(PATH, json={"name": "a", "prompt": "Look.", "tools": ["lok_up"], "triggers": ["job_faild"]})
    assert made.status_code == 201
    assert [one.partition("?")[0] for one in made.json()["warnings"]] == [
        'No tool is called "lok_up". Did you mean "look_up"',
        'No event of Duly is called "job_faild". Did you mean "job_failed"',
    ]
    assert operator.get(f"{PATH}/{made.json()['id']}").json()["warnings"] == []
    changed = operator.patch(f"{PATH}/{made.json()['id']}", json={"tools": ["lok_up", "loook_up"]}).json()
    assert [one.partition("?")[0] for one in changed["warnings"]] == [
        'No tool is called "loook_up". Did you mean "look_up"'
    ]


def test_an_edit_that_comes_in_between_is_seen_under_the_lock(room: Automations) -> None:
    made = room.create({"name": "a", "prompt": "p"})
    room.update(made.id, {"prompt": "q"}, version=1)
    with pytest.raises(WrongState):
        room.delete(made.id, version=1)
    stale = room.get(made.id)

    def late(version: int | None) -> Any:
        room.update(made.id, {"prompt": "r"})
        return room.update(made.id, {"prompt": "s"}, version=version)

    with pytest.raises(under_test.Stale):
        under_test._bound(stale, under_test._tag(stale), late, room)


def test_what_is_wrong_with_a_definition_is_named(operator: TestClient) -> None:
    automation(operator)
    for given, field in (
        ({"name": "brief", "prompt": "p"}, "name"), ({"name": "b"}, "prompt"), ({"prompt": "p"}, "name"), ({"name": "b", "prompt": ""}, "prompt"),
        ({"name": "b", "prompt": "p", "messages": [{"role": "user", "text": "t"}]}, "prompt"),
        ({"name": "b", "messages": [{"role": "tool", "text": "t"}]}, "messages[0].role"),
        ({"name": "b", "prompt": "p", "schedule": {"kind": "daily", "at": "25:00", "tz": "UTC"}}, "schedule.at"),
        ({"name": "b", "prompt": "p", "limits": {"max_rounds": -1}}, "limits.max_rounds"), ({"name": "b", "prompt": "p", "colour": 1}, "colour"),
        ({"name": "b", "prompt": "p", "catch_up_window": "soon"}, "catch_up_window"),
    ):  # fmt: skip
        assert problem(operator.post(PATH, json=given), 422)["field"] == field
    assert problem(operator.patch(f"{PATH}/brief", json={}), 422)["field"] == "body"
    assert problem(operator.patch(f"{PATH}/brief", json={"name": None}), 422)["field"] == "body"


# ---------------------------------------------------------------------- executions


def test_an_execution_is_wanted_once_per_key_and_seen_whole(operator: TestClient, app: Duly, ai: Ai) -> None:
    automation(operator, tools=["look_up"])
    ai.script = [calls("look_up", order=7, token="hush")]
    ident = run(operator, key="k", reason="now")
    again = operator.post(f"{PATH}/brief/run", json={"key": "k"}).json()
    assert (again["created"], again["session"]["id"]) == (False, ident)
    drain(app)
    said = operator.get(f"{SESSIONS}/{ident}").json()
    assert (said["status"], said["end_reason"], said["trigger"]) == ("ended", "COMPLETED", "MANUAL")
    assert ("user", "Say good morning.") in [(m["role"], m["text"]) for m in said["transcript"]]
    (call,) = said["calls_made"]
    assert (call["tool"], call["arguments"], call["status"]) == ("look_up", {"order": 7, "token": "*****"}, "done")
    assert [one["number"] for one in said["rounds_made"]] == [*range(1, len(said["rounds_made"]) + 1)]
    later = operator.get(f"{SESSIONS}/{ident}?after={said['transcript'][0]['position']}").json()["transcript"]
    assert later == said["transcript"][1:]
    assert ("SESSION_REQUESTED", "token:test 1", "now") in trail(app)
    assert operator.get(f"{PATH}/brief").json()["execution_history"] == [ident]


def test_a_webhook_runs_what_has_its_trigger_once_per_key(operator: TestClient, client: Client, ai: Ai) -> None:
    automation(operator, "a", triggers=["order.paid"])
    automation(operator, "b", triggers=["order.paid"])
    automation(operator, "off", triggers=["order.paid"], is_enabled=False)
    keyed = {"Idempotency-Key": "delivery-1"}
    first = operator.post(f"{PATH}/events/order.paid", json={"order": 17}, headers=keyed).json()["sessions"]
    assert [(one["session"]["title"], one["session"]["trigger"], one["control"], one["created"]) for one in first] == [
        ("a", "EVENT", "ACTIVATED", True), ("b", "EVENT", "QUEUED", True),
    ]  # fmt: skip
    # the same delivery again, from the same and from another caller
    assert operator.post(f"{PATH}/events/order.paid", json={"order": 17}, headers=keyed).json()["sessions"] == first
    other = client("operator").post(f"{PATH}/events/order.paid", json={"order": 17}, headers=keyed).json()["sessions"]
    assert [(one["session"]["id"], one["created"]) for one in other] == [(one["session"]["id"], False) for one in first]
    said = operator.get(f"{SESSIONS}/{first[0]['session']['id']}").json()["transcript"]
    assert '"order":17' in said[-1]["text"].replace(" ", "")
    assert operator.post(f"{PATH}/events/nothing").json() == {"sessions": []}
    quoted = operator.post(f"{PATH}/events/order.paid", json={"order": 17}, headers={"Idempotency-Key": '"delivery-1"'})
    assert quoted.json()["sessions"] == first
    problem(operator.post(f"{PATH}/events/order.paid", json=[1]), 422)


def test_a_session_is_paused_resumed_and_stopped(operator: TestClient, app: Duly) -> None:
    automation(operator)
    ident = run(operator)
    paused = operator.post(f"{SESSIONS}/{ident}/pause", json={"span": 3600, "reason": "lunch"}).json()
    assert (paused["status"], paused["end_reason"], paused["resume_at"]) == (
        "interrupted",
        "SUSPENDED",
        "2026-03-27T10:00:00Z",
    )
    problem(operator.post(f"{SESSIONS}/{ident}/pause"), 409)
    checks = operator.get(f"{PATH}/brief/why").json()
    assert checks["starts"] is False
    assert {one["name"]: one["met"] for one in checks["checks"]}["due"] is False
    assert operator.post(f"{SESSIONS}/{ident}/resume", json={"reason": "back"}).json()["status"] == "active"
    problem(operator.post(f"{SESSIONS}/{ident}/resume"), 409)
    assert operator.get(f"{PATH}/slots").json()["slots"] == [
        {"name": "default", "held": True, "session_id": ident, "since": "2026-03-27T09:00:00Z"}
    ]
    stopped = operator.post(f"{SESSIONS}/{ident}/stop", json={"reason": "enough"}).json()
    assert (stopped["status"], stopped["end_reason"], stopped["end_detail"]) == ("ended", "CANCELLED", "enough")
    problem(operator.post(f"{SESSIONS}/{ident}/stop"), 409)
    problem(operator.post(f"{SESSIONS}/{ident}/say", json={"text": "Hello?"}), 409)
    for act in ("pause", "resume", "stop", "close"):
        problem(operator.post(f"{SESSIONS}/999/{act}"), 404)
    assert ("SESSION_UNPAUSED", "token:test 1", "back") in trail(app)


def test_a_chat_is_begun_talked_in_and_closed(operator: TestClient, app: Duly, ai: Ai) -> None:
    ai.script = [says("Good morning.")]
    begun = chat(operator, title="Hello")
    ident = begun["session"]["id"]
    assert (begun["control"], begun["session"]["type"]) == ("ACTIVATED", "CHAT")
    assert problem(operator.post(f"{SESSIONS}/{ident}/say", json={"text": " "}), 422)["field"] == "text"
    operator.post(f"{SESSIONS}/{ident}/say", json={"text": "Who is there?"})
    drain(app)
    said = operator.get(f"{SESSIONS}/{ident}").json()["transcript"]
    assert [(m["role"], m["text"]) for m in said] == [("user", "Who is there?"), ("assistant", "Good morning.")]
    assert operator.post(f"{SESSIONS}/{ident}/close").json()["end_reason"] == "COMPLETED"
    problem(operator.post(f"{SESSIONS}/{ident}/close"), 409)
    assert problem(operator.post(f"{PATH}/chats", json={"provider": "nobody"}), 422)["field"]


def test_lists_are_read_page_by_page(operator: TestClient) -> None:
    # B080
    made = [automation(operator, f"a{n}")["id"] for n in range(5)]
    automation(operator, "theirs", tenant="acme")
    ran = [run(operator, f"a{n}") for n in range(5)]
    for path, what, ids in ((PATH, "automations", made), (SESSIONS, "sessions", ran)):
        seen: list[int] = []
        cursor = ""
        while cursor is not None:
            page = operator.get(f"{path}?limit=2&tenant=default{cursor and f'&cursor={cursor}'}").json()
            seen += [one["id"] for one in page[what]]
            cursor = page["next"]
        assert seen == ids[::-1]
        for query, field in (
            ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=abc", "limit"), ("limit=1000000000000", "limit"), ("cursor=abc", "cursor"),
            ("cursor=WzBd", "cursor"),
        ):  # fmt: skip
            assert problem(operator.get(f"{path}?{query}"), 422)["field"] == field
    assert [s["id"] for s in operator.get(f"{SESSIONS}?status=active").json()["sessions"]] == ran[:1]
    assert [s["id"] for s in operator.get(f"{SESSIONS}?automation=a3").json()["sessions"]] == [ran[3]]
    problem(operator.get(f"{SESSIONS}?automation=none"), 404)


# ---------------------------------------------------------------------- who


def test_another_tenants_automations_and_sessions_are_not_there(client: Client, operator: TestClient) -> None:
    ident = automation(operator, tenant="acme", slot="theirs")["id"]
    automation(operator, "mine", tenant="other")
    held = run(operator, ident)
    talk = chat(operator, tenant="acme")["session"]["id"]
    other = client("operator", tenant="other")
    at = "?tenant=acme"
    assert [a["name"] for a in other.get(PATH).json()["automations"]] == ["mine"]
    assert other.get(SESSIONS).json()["sessions"] == []
    problem(other.get(f"{PATH}{at}"), 404)
    problem(other.get(f"{SESSIONS}{at}"), 404)
    for path in (
        f"{PATH}/{ident}",
        f"{PATH}/brief",
        f"{PATH}/{ident}/why",
    ):
        problem(other.get(f"{path}{at}"), 404)
    for path in (f"{SESSIONS}/{held}", f"{SESSIONS}/{talk}/stream"):
        problem(other.get(path), 404)
    for act in ("run", "enable", "disable"):
        problem(other.post(f"{PATH}/{ident}/{act}{at}"), 404)
    problem(other.patch(f"{PATH}/{ident}{at}", json={"prompt": "Sing."}), 404)
    problem(other.delete(f"{PATH}/{ident}{at}"), 404)
    for act in ("stop", "pause", "resume", "close"):
        problem(other.post(f"{SESSIONS}/{talk}/{act}"), 404)
    problem(other.post(f"{SESSIONS}/{talk}/say", json={"text": "Hello?"}), 404)
    # a slot that both want is held; by whom is not told, and of the others' own there is nothing
    assert [(s["name"], s["held"], s["session_id"]) for s in other.get(f"{PATH}/slots").json()["slots"]] == [
        ("default", True, None)
    ]
    problem(other.get(f"{PATH}/slots{at}"), 404)
    assert [s["name"] for s in operator.get(f"{PATH}/slots{at}").json()["slots"]] == ["default", "theirs"]
    assert problem(other.post(f"{PATH}/events/e{at}"), 422)["field"] == "tenant"
    assert problem(other.post(f"{PATH}/chats", json={"tenant": "acme"}), 422)["field"] == "tenant"
    assert problem(other.post(PATH, json={"name": "n", "prompt": "p", "tenant": "acme"}), 422)["field"] == "tenant"


def test_who_looks_acts_on_nothing_and_sees_nothing_that_was_said(
    client: Client, operator: TestClient, app: Duly, ai: Ai
) -> None:
    automation(operator, tools=["look_up"])
    ai.script = [calls("look_up", order=7)]
    ident = run(operator)
    drain(app)
    viewer = client("viewer")
    said = viewer.get(f"{SESSIONS}/{ident}").json()
    assert (said["hidden"], {m["text"] for m in said["transcript"]}, said["calls_made"][0]["arguments"]) == (
        True,
        {None},
        None,
    )
    assert "morning" not in viewer.get(f"{PATH}/brief").text + viewer.get(PATH).text
    assert client("viewer", scopes=("automations", "payloads")).get(f"{SESSIONS}/{ident}").json()["hidden"] is False
    for path in (
        "/brief/run",
        "/brief/enable",
        "/brief/disable",
        "/events/e",
        f"/sessions/{ident}/stop",
        f"/sessions/{ident}/close",
    ):
        problem(viewer.post(f"{PATH}{path}"), 403)
    problem(viewer.post(f"{PATH}/chats", json={}), 403)
    problem(viewer.post(f"{SESSIONS}/{ident}/say", json={"text": "Hello?"}), 403)
    problem(viewer.patch(f"{PATH}/brief", json={"prompt": "Sing."}), 403)
    problem(viewer.delete(f"{PATH}/brief"), 403)
    problem(client("operator", scopes=("jobs",)).get(PATH), 403)


# ---------------------------------------------------------------------- the stream


def events(text: str) -> list[tuple[str, Any, str | None]]:
    """(event, data, id) of what a stream sent."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"]), lines.get("id")))
    return found


BOSS = Identity("token:t", Role.OPERATOR, None)


async def _read(made: AsyncIterator[bytes], most: int) -> str:
    out = ""
    async for frame in made:
        out += frame.decode()
        if out.count("\n\n") > most:
            break
    return out


def test_what_is_said_is_heard_as_it_is_said(room: Automations, app: Duly, clock: ManualClock) -> None:
    ident = room.chat(provider="ai").session.id
    room.say(ident, "Who is there?")
    steps = iter(
        [
            ("partial", "Good"),
            ("partial", "Good morning"),
            ("partial", "Pardon?"),
            ("answer", ""),
            ("close", ""),
            ("", ""),
        ]
    )

    async def pause(_: float) -> None:
        what, text = next(steps)
        session = room.session(ident)
        assert session.activation is not None
        if what == "partial":
            app.db.write(lambda c: room.controller.store.touch(c, ident, session.activation or "", partial=text))
        elif what == "answer":
            await asyncio.to_thread(drain, app)
        elif what == "close":
            room.close(ident)

    ai = room.provider("ai")
    ai.script = [says("Good morning.")]  # type: ignore[attr-defined]
    listening = Listening(room, ident, None, True, clock.monotonic)
    told = events(asyncio.run(_read(frames(listening.look, BOSS, 0, clock.monotonic, pause), 100)))
    assert [(name, data) for name, data, _ in told if name == "partial"] == [
        ("partial", {"from": 0, "text": "Good"}), ("partial", {"from": 4, "text": " morning"}), ("partial", {"from": 0, "text": "Pardon?"}),
    ]  # fmt: skip
    assert [(data["role"], data["text"], int(place or 0) == data["position"]) for name, data, place in told if name == "said"] == [
        ("user", "Who is there?", True), ("assistant", "Good morning.", True),
    ]  # fmt: skip
    assert (told[-1][0], told[-1][1]["status"], told[-1][1]["end_reason"]) == ("end", "ended", "COMPLETED")
    # who comes back goes on behind what was seen last
    again = events(asyncio.run(_read(frames(listening.look, BOSS, 1, clock.monotonic), 100)))
    assert [name for name, _, _ in again] == ["said", "end"]


def test_who_listens_to_a_session_and_may_no_more_hears_nothing_more(
    room: Automations, app: Duly, clock: ManualClock
) -> None:
    ident = room.chat(provider="ai").session.id
    accounts = Accounts(app)
    token, record = accounts.create_token("listens", "operator")
    who = accounts.by_token(token)
    assert who is not None
    now = [0.0]

    async def pause(_: float) -> None:
        now[0] += 3.0
        if now[0] == 6.0:
            accounts.revoke_token(record.id)
            room.say(ident, "a secret")

    listening = Listening(room, ident, None, True, clock.monotonic)
    standing = Standing(accounts, who, lambda: now[0])
    told = events(asyncio.run(_read(frames(listening.look, who, 0, lambda: now[0], pause, standing), 100)))
    assert [name for name, _, _ in told] == ["state"]
    assert now[0] == 6.0


@pytest.mark.parametrize(("keeps", "becomes"), [(True, Status.ACTIVE), (False, Status.ENDED)])
def test_a_chat_that_waits_is_wanted_as_long_as_somebody_listens(
    room: Automations, clock: ManualClock, keeps: bool, becomes: Status
) -> None:
    # T001-y; who may only look keeps nothing
    holder, waiting = (room.chat(provider="ai").session.id for _ in range(2))
    looks = 0

    async def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        clock.advance(WANTED / 2)

    async def listen() -> None:
        listening = Listening(room, waiting, None, keeps, clock.monotonic)
        async for _ in frames(listening.look, BOSS, 0, clock.monotonic, pause):
            if looks >= 6:
                break

    asyncio.run(listen())
    room.close(holder)
    assert room.session(waiting).status is becomes


def test_a_stream_lives_over_a_connection_and_ends_with_its_session(
    site: FastAPI, accounts: Accounts, room: Automations, served: Callable[..., AbstractContextManager[httpx2.Client]]
) -> None:
    ident = room.chat(provider="ai").session.id
    room.say(ident, "Who is there?")
    token, _ = accounts.create_token("listener", "operator")
    heard, out = threading.Event(), []
    with served(site, {"Authorization": f"Bearer {token}"}) as client:

        def listen() -> None:
            with client.stream("GET", f"{SESSIONS}/{ident}/stream") as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                for text in answer.iter_text():
                    out.append(text)
                    if "Who is there?" in "".join(out):
                        heard.set()

        thread = threading.Thread(target=listen)
        thread.start()
        assert heard.wait(30)
        assert client.post(f"{SESSIONS}/{ident}/close").status_code == 200
        thread.join(30)
        assert not thread.is_alive()
        assert events("".join(out))[-1][0] == "end"
        back = client.get(f"{SESSIONS}/{ident}/stream", headers={"Last-Event-ID": "1"})
        assert [name for name, _, _ in events(back.text)] == ["end"]
        assert (
            problem(client.get(f"{SESSIONS}/{ident}/stream", headers={"Last-Event-ID": "x"}), 422)["field"]
            == "last-event-id"
        )
        problem(client.get(f"{SESSIONS}/999/stream"), 404)


def test_an_answer_that_was_given_between_two_looks_is_not_said_again(
    room: Automations, app: Duly, ai: Ai, clock: ManualClock
) -> None:
    ai.script = [says("Good morning.")]
    ident = room.chat(provider="ai").session.id
    room.say(ident, "Who is there?")
    drain(app)
    before, said = replace(room.session(ident), partial="Good morn"), room.transcript(ident)
    room.close(ident)
    glances = iter([Glance(before, said), Glance(room.session(ident), ())])
    told = events(asyncio.run(_read(frames(lambda _: next(glances), BOSS, 0, clock.monotonic), 100)))
    assert [name for name, _, _ in told] == ["said", "said", "state", "end"]


def test_a_viewers_stream_tells_that_something_is_said_and_not_what(room: Automations, clock: ManualClock) -> None:
    ident = room.chat(provider="ai").session.id
    room.say(ident, "Who is there?")
    room.close(ident)
    viewer = Identity("token:v", Role.VIEWER, None)
    listening = Listening(room, ident, None, False, clock.monotonic)
    told = events(asyncio.run(_read(frames(listening.look, viewer, 0, clock.monotonic), 100)))
    assert [(name, data.get("text")) for name, data, _ in told] == [("said", None), ("end", None)]


def test_a_stream_ends_after_a_while_so_that_a_revoked_token_is_asked_for(
    room: Automations, clock: ManualClock
) -> None:
    ident = room.chat(provider="ai").session.id

    async def pause(_: float) -> None:
        clock.advance(timedelta(seconds=20))

    listening = Listening(room, ident, None, True, clock.monotonic)
    text = asyncio.run(_read(frames(listening.look, BOSS, 0, clock.monotonic, pause), 1000))
    assert ": alive" in text
    assert [name for name, _, _ in events(text)] == ["state"]


@wandering
def test_automations_answer_as_they_are_described(
    site: FastAPI, client: Client, operator: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LONGEST", 0.0)  # streams of sessions that do not end
    automation(operator)
    run(operator)
    wander(site, client("admin"), "^/api/v1/automations", 20)


@pytest.mark.parametrize("task", ["ROUNDS_PLAN", "ROUNDS_NOTIFY_EMAIL", "PUBLISH", "ig_first_comment", "AI_SESSION"])
def test_nobody_gives_an_automation_or_a_chat_a_rooms_own_task(client: Client, room: Automations, task: str) -> None:
    """They would do for every tenant what jobs and schedules of these tasks are refused for."""
    for who in (client("operator", tenant="acme"), client("admin")):
        mine = automation(who, tools=["look_up", "EMAIL_SEND"])
        given = {"tools": ["EMAIL_SEND", task]}
        for answer in (
            who.post(PATH, json={"name": "other", "prompt": "Go.", **given}),
            who.patch(f"{PATH}/{mine['id']}", json=given, headers={"If-Match": mine["etag"]}),
            who.post(f"{PATH}/chats", json=given),
        ):
            said = problem(answer, 422)
            assert said["field"] == "tools[1]"
            assert f"is {task}, whose jobs a room of Duly makes itself." in said["detail"]
    assert {tuple(a.definition.tools) for a in room.list()} == {("look_up", "EMAIL_SEND")}

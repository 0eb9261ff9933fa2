"""The outbox over REST, on both databases. Source: R001, ADR 0017, B080."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.audit.read import TrailFilter, find
from duly.outbox.box import Outbox
from duly.outbox.message import Message
from duly.testing import ManualClock
from web.hands import problem, wander, wandering

PATH = "/api/v1/outbox"
MESSAGES = f"{PATH}/messages"
Client = Callable[..., TestClient]


class Nowhere:
    """A transport that refuses what it is given, or takes it."""

    takes = True

    def send(self, message: Message) -> None:
        if not self.takes:
            raise ValueError("nobody is at home")


@pytest.fixture
def nowhere() -> Nowhere:
    return Nowhere()


@pytest.fixture
def box(app: Duly, nowhere: Nowhere) -> Outbox:
    made = Outbox(app, transports={"t": nowhere}, max_attempts=1)
    made.open()
    return made


@pytest.fixture
def operator(client: Client, box: Outbox) -> TestClient:
    return client("operator")


def publish(box: Outbox, *payloads: Any, **options: Any) -> list[int]:
    """The numbers of messages that are made."""
    with box.db.engine.begin() as connection:
        made = [
            box.publish(connection, options.pop("to", "t:a") if n == 0 else "t:a", one, **options)
            for n, one in enumerate(payloads)
        ]
    return [box.get(one.message_id).id for one in made]


def test_it_says_how_it_stands(operator: TestClient, box: Outbox, nowhere: Nowhere, clock: ManualClock) -> None:
    publish(box, 1)
    publish(box, 2, run_in=3600)
    publish(box, 3, to="t:b", tenant="acme")
    box.relay().run_once()
    publish(box, 4)
    clock.advance(timedelta(seconds=60))
    said = operator.get(PATH).json()
    assert [said[name] for name in ("pending", "due", "in_flight", "parked", "sent", "oldest_age", "drained")] == [
        2, 1, 0, 0, 2, 60.0, False,
    ]  # fmt: skip
    assert [(one["destination"], one["pending"], one["sent"]) for one in said["destinations"]] == [
        ("t:a", 2, 1),
        ("t:b", 0, 1),
    ]
    mine = operator.get(f"{PATH}?tenant=acme").json()
    assert (mine["pending"], mine["sent"], mine["drained"]) == (0, 1, True)
    assert operator.get(f"{PATH}?sent=false").json()["sent"] is None


def test_a_message_is_parked_and_sent_again(operator: TestClient, box: Outbox, app: Duly, nowhere: Nowhere) -> None:
    (ident,) = publish(box, {"order": 17, "token": "hush"}, key="k")
    said = operator.get(f"{MESSAGES}/{ident}").json()
    assert (said["payload"], said["status"], said["label"]) == ({"order": 17, "token": "*****"}, "pending", "pending")
    assert operator.get(f"{MESSAGES}/{said['message_id']}").json() == said
    problem(operator.post(f"{MESSAGES}/{ident}/redrive"), 409)
    assert problem(operator.post(f"{MESSAGES}/{ident}/park", json={"reason": ""}), 422)["field"] == "reason"
    parked = operator.post(f"{MESSAGES}/{ident}/park", json={"reason": "their server is down"}).json()
    assert (parked["status"], parked["error"]["message"]) == ("parked", "their server is down")
    problem(operator.post(f"{MESSAGES}/{ident}/park", json={"reason": "again"}), 409)
    assert operator.post(f"{MESSAGES}/{ident}/redrive", json={"reason": "it is up"}).json()["status"] == "pending"
    box.relay().run_once()
    problem(operator.post(f"{MESSAGES}/{ident}/redrive"), 409)
    assert operator.post(f"{MESSAGES}/{ident}/redrive", json={"force": True}).json()["attempts"] == 0
    for which in ("999", "no-such-id", "9" * 40):
        problem(operator.get(f"{MESSAGES}/{which}"), 404)
        problem(operator.post(f"{MESSAGES}/{which}/redrive"), 404)
    rows = app.db.read(lambda c: find(c, TrailFilter(), 50))
    acts = [(row.action, row.actor, row.meta["reason"]) for row in rows if row.action.startswith("OUTBOX")]
    assert ("OUTBOX_PARKED", "token:test 1", "their server is down") in acts
    assert ("OUTBOX_REDRIVEN", "token:test 1", "it is up") in acts


def test_parked_messages_are_redriven_by_destination(operator: TestClient, box: Outbox, nowhere: Nowhere) -> None:
    nowhere.takes = False
    publish(box, 1)
    publish(box, 2)
    publish(box, 3, to="t:b")
    box.relay().run_once()
    assert operator.get(PATH).json()["parked"] == 3
    assert problem(operator.post(f"{PATH}/redrive", json={}), 422)["field"] == "destination"
    given = {"destination": "t:a", "reason": "up"}
    assert operator.post(f"{PATH}/redrive", json={**given, "dry_run": True}).json() == {"count": 2, "dry_run": True}
    assert operator.post(f"{PATH}/redrive", json={**given, "limit": 1}).json()["count"] == 1
    assert operator.post(f"{PATH}/redrive", json={"everything": True}).json() == {"count": 2, "dry_run": False}
    assert operator.get(PATH).json()["parked"] == 0


def test_messages_are_listed_page_by_page(operator: TestClient, box: Outbox) -> None:
    # B080
    made = [publish(box, n)[0] for n in range(5)]
    seen: list[int] = []
    cursor = ""
    while cursor is not None:
        page = operator.get(f"{MESSAGES}?limit=2{cursor and f'&cursor={cursor}'}").json()
        seen += [one["id"] for one in page["messages"]]
        cursor = page["next"]
    assert seen == made[::-1]
    assert operator.get(f"{MESSAGES}?status=parked&destination=t:a").json()["messages"] == []
    for query, field in (
        ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=abc", "limit"), ("limit=1000000000000", "limit"), ("cursor=abc", "cursor"),
        ("cursor=WzBd", "cursor"), ("status=gone", "status[0]"),
    ):  # fmt: skip
        assert problem(operator.get(f"{MESSAGES}?{query}"), 422)["field"] == field


def test_another_tenants_message_is_not_there(client: Client, box: Outbox) -> None:
    (ident,) = publish(box, 1, tenant="acme")
    box.park(ident, reason="test")
    other = client("operator", tenant="other")
    assert other.get(MESSAGES).json()["messages"] == other.get(PATH).json()["destinations"] == []
    assert other.get(f"{MESSAGES}?tenant=acme").status_code == other.get(f"{PATH}?tenant=acme").status_code == 404
    problem(other.get(f"{MESSAGES}/{ident}"), 404)
    problem(other.post(f"{MESSAGES}/{ident}/redrive"), 404)
    problem(other.post(f"{MESSAGES}/{ident}/park", json={"reason": "mine"}), 404)
    for given in ({"dry_run": True}, {}):
        assert other.post(f"{PATH}/redrive", json={"everything": True, **given}).json()["count"] == 0
        problem(other.post(f"{PATH}/redrive", json={"everything": True, "tenant": "acme", **given}), 404)
    assert client("operator", tenant="acme").get(PATH).json()["parked"] == 1


def test_who_looks_sends_nothing_and_sees_no_payload(client: Client, box: Outbox) -> None:
    (ident,) = publish(box, {"order": 17}, headers={"X-Order": "17"})
    viewer = client("viewer")
    said = viewer.get(f"{MESSAGES}/{ident}").json()
    assert (said["payload"], said["headers"], said["error"], said["hidden"]) == (None, None, None, True)
    problem(viewer.post(f"{MESSAGES}/{ident}/redrive"), 403)
    problem(viewer.post(f"{MESSAGES}/{ident}/park", json={"reason": "r"}), 403)
    problem(viewer.post(f"{PATH}/redrive", json={"everything": True}), 403)
    problem(client("operator", scopes=("jobs",)).get(PATH), 403)


@wandering
def test_the_outbox_answers_as_it_is_described(site: FastAPI, client: Client, box: Outbox) -> None:
    publish(box, 1)
    wander(site, client("admin"), "^/api/v1/outbox", 6)

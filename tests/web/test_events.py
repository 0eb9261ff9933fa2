"""Changes as they happen, over server-sent events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import httpx2
import orjson
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from duly import Duly
from duly.accounts.door import Accounts
from duly.audit.read import Entry, follow, newest
from duly.kernel.errors import DatabaseUnavailable, InvalidArgument
from duly.web import identity
from duly.web.api import events
from duly.web.api.events import LATE, MOST_GAPS, Place, Seats, frames
from duly.web.gate import COOKIE
from duly.web.identity import Standing
from web.conftest import NOW
from web.hands import problem

Served = Callable[..., AbstractContextManager[httpx2.Client]]


def entry(ident: int, tenant: str = "acme") -> Entry:
    return Entry(ident, NOW, tenant, "cli:ann", "info", "JOB_CANCELLED", "job", "7", {})


def taken(looks: Sequence[Any], place: Place, tenant: str | None = None, step: float = 1.0, **more: Any) -> list[str]:
    """What is sent while the looks give this, one after the other; then the database goes away. Time passes with each pause."""
    now, left = [0.0], list(looks)

    def look(_: Place) -> Sequence[Entry]:
        if not left:
            raise DatabaseUnavailable("away")
        return left.pop(0)  # type: ignore[no-any-return]

    async def pause(_: float) -> None:
        now[0] += step

    async def gather() -> list[str]:
        return [frame.decode() async for frame in frames(look, place, tenant, lambda: now[0], pause, **more)]

    return asyncio.run(gather())


def said(frame: str) -> dict[str, Any]:
    [data] = [line.removeprefix("data: ") for line in frame.splitlines() if line.startswith("data: ")]
    found: dict[str, Any] = orjson.loads(data)
    return found


# ---------------------------------------------------------------------- how far it was told


def test_a_row_that_commits_late_is_told_once() -> None:
    # B043
    place = Place(10)
    place.told([entry(11), entry(14)], 0.0)
    assert (place.last, list(place.gaps)) == (14, [(12, 13)])
    place.told([entry(13), entry(15)], 1.0)
    assert (place.last, list(place.gaps)) == (15, [(12, 12)])
    place.told([], LATE + 1)
    assert place.gaps == {}


def test_a_place_is_found_again_by_its_name() -> None:
    place = Place(14, {(3, 9): 60.0, (12, 13): 60.0})
    assert place.name == "14.3-9.12-13"
    assert Place.read(place.name, 0.0) == place
    for wrong in ("", "x", "1.", "-1", "1.²", "9" * 25, "1" + ".1-1" * (MOST_GAPS + 1), "5.1", "5.1-2-3", "5.-2"):
        with pytest.raises(InvalidArgument):
            Place.read(wrong, 0.0)


@given(st.lists(st.integers(1, 60), unique=True, max_size=40), st.integers(0, 2**32))
def test_whatever_the_order_of_commits_each_row_is_told_once(order: list[int], seed: int) -> None:
    # B043: rows become visible in any order, a few at a time, each look reads what is behind the place or in its gaps
    place, visible, told = Place(0), set[int](), list[int]()
    for step, ident in enumerate(order):
        visible.add(ident)
        if (seed >> (step % 32)) & 1 or step == len(order) - 1:
            rows = sorted(i for i in visible if i > place.last or any(a <= i <= b for a, b in place.gaps))
            told += rows
            place.told([entry(i) for i in rows], 0.0)
            place = Place.read(place.name, 0.0)  # also across connections
    assert sorted(told) == sorted(order)


def test_the_trail_is_followed_with_its_gaps(app: Duly) -> None:
    for n in range(4):
        app.queues.pause(f"q{n}")
    last = app.db.read(newest)
    assert [e.id for e in app.db.read(lambda c: follow(c, last - 2))] == [last - 1, last]
    assert [e.id for e in app.db.read(lambda c: follow(c, last - 1, [(last - 3, last - 3)]))] == [last - 3, last]
    assert [e.entity_id for e in app.db.read(lambda c: follow(c, 0, limit=2))] == ["q0", "q1"]


# ---------------------------------------------------------------------- what is sent


def test_an_event_says_what_changed_and_not_how() -> None:
    first, event = taken([[replace(entry(11), meta={"reason": "private"})]], Place(10))
    assert first == "retry: 3000\nid: 10\n\n"
    assert event.startswith("id: 11\nevent: change\n")
    assert said(event) == {"id": 11, "action": "JOB_CANCELLED", "entity": "job", "entity_id": "7", "tenant": "acme"}


def test_a_tenant_is_told_of_its_own_changes_and_its_place_moves_on() -> None:
    # R003-9
    _, event, beat = taken([[entry(11, "other"), entry(12)], [entry(13, "other")]], Place(10), "acme", step=15.0)
    assert said(event)["id"] == 12
    assert beat == ": alive\nid: 13\n\n"


def test_who_breaks_off_in_the_middle_of_a_look_is_told_the_rest_again() -> None:
    _, one, two = taken([[entry(11), entry(12)]], Place(10))
    assert "id: 1" not in one.splitlines()[0]
    assert two.startswith("id: 12\n")


def test_a_quiet_stream_says_every_fifteen_seconds_that_it_lives_and_ends_after_ten_minutes() -> None:
    sent = taken([[]] * 1000, Place(10), step=5.0)
    assert sent.count(": alive\nid: 10\n\n") == 600 // 15 - 1
    assert len(sent) == 600 // 15


def test_who_was_away_for_too_long_is_told_to_look_anew() -> None:
    assert taken([], Place(10), fresh=True) == ["retry: 3000\nid: 10\nevent: reset\ndata: {}\n\n"]


def test_seats_are_given_back() -> None:
    seats = Seats(1)
    with seats.one("ann") as first:
        with seats.one("bob") as second:
            assert (first, second) == ("", "There are 1 streams already.")
        assert seats.taken.total() == 1
    with seats.one("bob") as third:
        assert not third


def test_one_tenant_leaves_seats_to_others() -> None:
    seats = Seats(3, each=2)
    with seats.one("tenant acme"), seats.one("tenant acme"):
        with seats.one("tenant acme") as full, seats.one("tenant other") as other:
            assert (full[:24], other) == ("2 of them are yours alre", "")
        with seats.one("tenant other") as again:
            assert not again
    assert not seats.taken


# ---------------------------------------------------------------------- over connections


def test_a_change_is_heard_and_a_client_that_comes_back_misses_nothing(
    app: Duly, site: FastAPI, accounts: Accounts, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "EVERY", 0.05)
    token, _ = accounts.create_token("viewer")
    with served(site, {"Authorization": f"Bearer {token}"}) as client:
        with client.stream("GET", "/api/v1/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            assert next(lines) == "retry: 3000"
            place = next(lines).removeprefix("id: ")
            threading.Thread(target=app.queues.pause, args=("mail",)).start()
            heard = next(line for line in lines if line.startswith("data: "))
            assert orjson.loads(heard[6:])["action"] == "QUEUE_PAUSED"
        app.queues.resume("mail")
        with client.stream("GET", "/api/v1/events", headers={"Last-Event-ID": place}) as stream:
            lines = stream.iter_lines()
            found = [orjson.loads(next(x for x in lines if x.startswith("data: "))[6:])["action"] for _ in range(2)]
        assert found == ["QUEUE_PAUSED", "QUEUE_RESUMED"]
        with client.stream("GET", "/api/v1/events", headers={"Last-Event-ID": "999999"}) as stream:
            assert "event: reset" in [next(x) for x in [stream.iter_lines()] for _ in range(3)]
        told = problem(client.get("/api/v1/events", headers={"Last-Event-ID": "soon"}), 422)
        assert told["field"] == "last-event-id"


def test_more_streams_than_there_are_seats_are_refused_and_a_client_that_goes_frees_its_own(
    app: Duly, accounts: Accounts, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duly.web.app import create

    monkeypatch.setattr(events, "EVERY", 0.05)
    monkeypatch.setattr(events, "BEAT", 0.1)  # what is sent finds that nobody is there
    seats = Seats(2)
    monkeypatch.setattr(events, "Seats", lambda: seats)
    token, _ = accounts.create_token("viewer")
    with served(create(app), {"Authorization": f"Bearer {token}"}) as client:
        with client.stream("GET", "/api/v1/events") as one, client.stream("GET", "/api/v1/events") as two:
            kept = [one.iter_lines(), two.iter_lines()]  # an iterator that is let go closes its stream
            assert [next(lines) for lines in kept] == ["retry: 3000"] * 2
            full = client.get("/api/v1/events")
            assert problem(full, 429)["detail"] == "There are 2 streams already."
            assert full.headers["retry-after"] == "10"
        for _ in range(600):
            if not seats.taken.total():
                break
            client.get("/livez")  # the loop of the server goes round
        assert seats.taken.total() == 0


@pytest.mark.parametrize("ends", ["revoked", "disabled", "logged out", "another role", "another tenant"])
def test_a_stream_ends_when_who_listens_may_no_more(
    app: Duly, site: FastAPI, accounts: Accounts, served: Served, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(events, "EVERY", 0.02)
    monkeypatch.setattr(events, "BEAT", 0.2)
    monkeypatch.setattr(identity, "AGAIN", 0.0)
    token, record = accounts.create_token("viewer")
    ann = accounts.create_user("ann", "a sentence of my own", "admin")
    session = accounts.log_in("ann", "a sentence of my own") or ""
    by_token = ends == "revoked"
    headers = {"Authorization": f"Bearer {token}"} if by_token else {"Cookie": f"{COOKIE}={session}"}
    change = {
        "revoked": lambda: accounts.revoke_token(record.id),
        "disabled": lambda: accounts.change_user("ann", disabled=True),
        "logged out": lambda: accounts.log_out(session),
        "another role": lambda: app.db.write(lambda c: accounts._store.change_user(c, ann.id, NOW, role="viewer")),
        "another tenant": lambda: app.db.write(lambda c: accounts._store.change_user(c, ann.id, NOW, tenant="acme")),
    }[ends]
    with served(site, headers) as client, client.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 3000"
        change()
        signs = 0
        for line in lines:  # it would go on for ten minutes
            signs += line == ": alive"
            assert signs < 60


def test_who_listens_is_asked_for_every_few_seconds_and_no_more_often(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, record = accounts.create_token("viewer")
    who, now, asked = accounts.by_token(token), [0.0], []
    assert who is not None
    still = Accounts.still
    monkeypatch.setattr(Accounts, "still", lambda self, one: asked.append(now[0]) or still(self, one))
    standing = Standing(accounts, who, lambda: now[0])
    for step in range(12):
        now[0] = float(step)
        assert asyncio.run(standing.holds())
    assert asked == [5.0, 10.0]
    accounts.revoke_token(record.id)
    now[0] = 15.0
    assert not asyncio.run(standing.holds())


def test_a_token_without_the_scope_hears_nothing(client: Callable[..., TestClient]) -> None:
    problem(client(scopes=("jobs",)).get("/api/v1/events"), 403)

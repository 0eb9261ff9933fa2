"""What the tests of the web share: an application on SQLite, the site over it, and somebody who asks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import fronts
from duly import Duly
from duly.accounts.door import Accounts
from duly.testing import ManualClock
from duly.web.app import create
from duly.web.bulk import BulkActs
from served import served

NOW = datetime(2026, 3, 27, 9, tzinfo=UTC)

db_url = fronts.db_url
sites_cost_little = fronts.sites_cost_little
requests_share_a_loop = fronts.requests_share_a_loop


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    made = Duly(db_url, clock=clock)

    @made.task("greet")
    def greet(name: str = "you") -> str:
        return f"hello {name}"

    yield made
    made.close()


@pytest.fixture
def accounts(app: Duly) -> Accounts:
    return Accounts(app)


@pytest.fixture
def site(app: Duly) -> FastAPI:
    """The whole application over HTTP; it asks everybody for a token."""
    return create(app)


@pytest.fixture(autouse=True)
def desks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BulkActs]]:
    """The acts on many of each site that is made. None waits longer than the test."""
    made: list[BulkActs] = []
    init = BulkActs.__init__

    def noted(self: BulkActs, *given: object) -> None:
        init(self, *given)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(BulkActs, "__init__", noted)
    yield made
    for each in made:
        for act in list(each._acts.values()):
            act.state = "undone" if act.state == "waits" else act.state
            act.undone.set()


class Caller(Protocol):
    def __call__(
        self, role: str = "viewer", tenant: str | None = None, scopes: tuple[str, ...] = ("*",)
    ) -> TestClient: ...


@pytest.fixture
def client(site: FastAPI, accounts: Accounts) -> Iterator[Caller]:
    """``client(role="operator", tenant="acme", scopes=("jobs",))``: somebody with a token of their own."""
    number, made = itertools.count(1), []

    def somebody(role: str = "viewer", tenant: str | None = None, scopes: tuple[str, ...] = ("*",)) -> TestClient:
        token, _ = accounts.create_token(f"test {next(number)}", role, tenant=tenant, scopes=scopes)
        one = TestClient(site, headers={"Authorization": f"Bearer {token}"}, raise_server_exceptions=True)
        made.append(one)
        return one

    yield somebody
    for one in made:
        one.close()


@pytest.fixture
def stranger(site: FastAPI) -> Iterator[TestClient]:
    """Somebody without a token."""
    with TestClient(site) as made:
        yield made


@pytest.fixture(name="served")
def served_() -> Callable[..., AbstractContextManager[httpx2.Client]]:
    """``with served(site, headers) as client``."""
    return served

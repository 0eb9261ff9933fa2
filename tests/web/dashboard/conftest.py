"""What the tests of the pages share: a town with something to show, and people who log in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.accounts.door import Accounts
from duly.testing import ManualClock
from duly.web.app import create
from web.dashboard.scene import SETTINGS, Town, clock, fill

PASSWORD = "a sentence that is long enough"


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts on many begin at once."""
    monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 0.0)


@pytest.fixture
def time() -> ManualClock:
    return clock()


@pytest.fixture
def app(db_url: str, time: ManualClock) -> Iterator[Duly]:
    made = Duly(db_url, clock=time, **SETTINGS)
    yield made
    made.close()


@pytest.fixture
def town(app: Duly, time: ManualClock) -> Town:
    return fill(app, time, busy=False)


@pytest.fixture
def site(app: Duly) -> FastAPI:
    return create(app)


@pytest.fixture
def local(app: Duly) -> Iterator[TestClient]:
    """Somebody at this machine, where there is no account."""
    with TestClient(create(app, local=True), base_url="http://127.0.0.1", follow_redirects=False) as made:
        yield made


class Person(TestClient):
    """Somebody who has logged in with a browser."""

    @property
    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.get("/").text)
        assert found is not None
        return found[1]

    def act(self, path: str, /, **fields: str) -> tuple[int, str]:
        """Send a form as a page does. Returns (status, what the page that one is led to says, or the answer)."""
        answer = self.post(path, data={"csrf": self.csrf, "back": "/", **fields})
        return answer.status_code, said(self, answer)


def said(client: TestClient, answer: object) -> str:
    """What the page says that an answer leads to."""
    if answer.status_code != 303:  # type: ignore[attr-defined]
        return str(answer.text)  # type: ignore[attr-defined]
    page = client.get(answer.headers["location"]).text  # type: ignore[attr-defined]
    found = re.search(r'class="flash \w+" role="status">.*?<span>(.*?)</span>', page, re.S)
    return found[1] if found else ""


@pytest.fixture
def person(app: Duly, site: FastAPI) -> Iterator[Callable[..., Person]]:
    """``person("operator", tenant="acme")``: somebody with an account, logged in."""
    made: list[Person] = []
    accounts = Accounts(app)

    def come(role: str = "admin", tenant: str | None = None) -> Person:
        name = f"{role}{len(made)}"
        accounts.create_user(name, PASSWORD, role, tenant=tenant)
        one = Person(site, base_url="http://duly.example", follow_redirects=False)
        assert one.post("/login", data={"name": name, "password": PASSWORD}).status_code == 303
        made.append(one)
        return one

    yield come
    for one in made:
        one.close()

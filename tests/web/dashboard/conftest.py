"""What the tests of the pages share: a town with something to show, and people who log in."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Duly
from duly.accounts.door import Accounts
from duly.testing import ManualClock
from duly.web.app import create
from web.dashboard.scene import SETTINGS, Town, clock, fill, move_in

PASSWORD = "a sentence that is long enough"


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts on many begin at once."""
    monkeypatch.setattr("duly.web.dashboard.bulk.WINDOW", 0.0)


@pytest.fixture
def time() -> ManualClock:
    return clock()


@pytest.fixture(scope="session")
def settled(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Town, datetime]:
    """The town's database, what is in it, and what the time is: what each test gets a copy of."""
    file, time = tmp_path_factory.mktemp("settled") / "duly.db", clock()
    shutil.copyfile(migrated_file, file)
    app = Duly(f"sqlite:///{file}", clock=time, **SETTINGS)
    town = fill(app, time, busy=False)
    app.close()
    with closing(sqlite3.connect(file)) as connection:  # bring everything home from the write-ahead log
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file, town, time.now()


@pytest.fixture
def app(request: pytest.FixtureRequest, db_url: str, time: ManualClock) -> Iterator[Duly]:
    """An application on an empty database; for a test that asks for the town, on one that has the town in it."""
    if "town" in request.fixturenames and db_url.startswith("sqlite"):
        file, _, now = request.getfixturevalue("settled")
        shutil.copyfile(file, db_url.removeprefix("sqlite:///"))
        time.set(now)
    made = Duly(db_url, clock=time, **SETTINGS)
    yield made
    made.close()


@pytest.fixture
def town(request: pytest.FixtureRequest, app: Duly, time: ManualClock) -> Town:
    """Three hours of work. On SQLite it was done once, by the first test that asked."""
    if app.db.is_sqlite:
        return move_in(app, request.getfixturevalue("settled")[1])
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

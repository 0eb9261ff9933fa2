"""One suite judges SQLite and PostgreSQL: every test that asks for ``app`` runs on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from contract.hands import NOON, Hand
from duly import Duly
from duly.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    """An application whose time the test moves."""
    app = Duly(db_url, clock=clock)
    yield app
    app.close()


@pytest.fixture
def live(db_url: str) -> Iterator[Duly]:
    """An application on the system's clock, for tests of threads and workers."""
    app = Duly(db_url, lease=5, poll=0.05)
    yield app
    app.close()


@pytest.fixture
def pg(pg_url: str, clock: ManualClock) -> Iterator[Duly]:
    """As ``app``, on PostgreSQL alone: for what SQLite cannot do, such as two writers at once."""
    app = Duly(pg_url, clock=clock)
    yield app
    app.close()


@pytest.fixture
def hand(app: Duly) -> Hand:
    """A worker that is moved step by step."""
    return Hand(app)


@pytest.fixture
def another(db_url: str, clock: ManualClock) -> Iterator[Callable[[], Duly]]:
    """More applications on the same database, as other processes would have them."""
    made: list[Duly] = []

    def make() -> Duly:
        made.append(Duly(db_url, clock=clock))
        return made[-1]

    yield make
    for app in made:
        app.close()

"""Applications whose time the test moves, and a hand that claims, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from contract.hands import NOON, Hand
from duly import Duly
from duly.kernel.events import Event
from duly.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    app = Duly(db_url, clock=clock)
    yield app
    app.close()


@pytest.fixture
def pg(pg_url: str) -> Iterator[Duly]:
    """An application on PostgreSQL alone."""
    app = Duly(pg_url)
    app.open()
    yield app
    app.close()


@pytest.fixture
def live(db_url: str) -> Iterator[Duly]:
    """An application on the system's clock. It polls so seldom that what it does in time, it does because it was told."""
    app = Duly(db_url, lease=20, poll=60)
    yield app
    app.close()


@pytest.fixture
def told(app: Duly) -> list[Event]:
    """What the application has told."""
    events: list[Event] = []
    app.listen(events.append)
    return events


@pytest.fixture
def hand(app: Duly) -> Hand:
    return Hand(app)


@pytest.fixture
def send(app: Duly) -> Callable[..., list[int]]:
    """Enqueue ``n`` jobs: ``send(n, **options)``."""

    @app.task("X")
    def x(n: int = 0) -> None: ...

    return lambda n=1, **options: [x.using(**options).enqueue().job.id for _ in range(n)]

"""Publishing in a database whose time the test moves, with a channel whose other side is a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from duly import Duly
from duly.publishing import Publishing
from duly.testing import ManualClock
from publishing.hands import World

AT = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make(db_url: str, clock: ManualClock) -> Iterator[Callable[..., Publishing]]:
    """The publications of an application; settings as they are given."""
    made = []

    def call(**settings: Any) -> Publishing:
        app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL", **settings)
        made.append(app)
        return Publishing(app)

    yield call
    for app in made:
        app.close()


@pytest.fixture
def room(make: Callable[..., Publishing], world: World) -> Publishing:
    """With a channel ``ig`` on the world."""
    room = make()
    room.channel("ig", world.connector())
    return room

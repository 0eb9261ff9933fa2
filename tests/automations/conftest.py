"""A room whose time the test moves, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from automations.hands import Ai, Stage
from automations.room import Room
from duly import Duly
from duly.testing import ManualClock

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
EIGHT = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def room(db_url: str, clock: ManualClock) -> Iterator[Room]:
    # nobody renews a lease while the test moves the clock
    app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL", lease=7_200)
    yield Room(app)
    app.close()


@pytest.fixture
def ai() -> Ai:
    return Ai()


@pytest.fixture
def make_stage(db_url: str, ai: Ai) -> Iterator[Callable[..., Stage]]:
    """The automations of an application at eight in the morning; settings as they are given."""
    made = []

    def call(**settings: Any) -> Stage:
        clock = ManualClock(EIGHT)
        app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL", **settings)
        made.append(app)
        return Stage(app, clock, ai)

    yield call
    for app in made:
        app.close()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    return make_stage()

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from alerts.hands import NOON, MakeWorld, World
from duly import Duly
from duly.testing import ManualClock


@pytest.fixture
def make_world(db_url: str) -> Iterator[MakeWorld]:
    """Worlds on one database, each with settings of its own and a clock that may be shared."""
    with ExitStack() as stack:

        def make(clock: ManualClock | None = None, **settings: Any) -> World:
            clock = clock or ManualClock(NOON)
            settings.setdefault("alerts_off", "task_failing")  # a handful of failures is how other rules are tried here
            app = Duly(db_url, clock=clock, **settings)
            stack.callback(app.close)

            @app.task("X")
            def x() -> None: ...

            return World(app, clock)

        yield make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()

"""Workflows in a database whose time the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from duly import Duly
from duly.testing import ManualClock

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    yield app
    app.close()

"""Rounds in a database whose time the test moves."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from duly import Duly
from duly.rounds import Rounds
from duly.testing import ManualClock
from rounds.hands import Ear, utc


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc("2026-06-01 10:00"))


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL")
    yield app
    app.close()


@pytest.fixture
def ear(app: Duly) -> Ear:
    return Ear(app)


@pytest.fixture
def rounds(app: Duly) -> Rounds:
    return Rounds(app, draw=random.Random(7).random)

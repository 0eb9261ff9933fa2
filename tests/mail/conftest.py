"""Mail in a database whose time the test moves, and what the tests hold in their hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from duly import Backoff, Duly
from duly.mail import Mail
from duly.testing import ManualClock
from mail.servers import Graph, MailServer, Resend, mail_server, serving

AT = datetime(2026, 6, 1, 10, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def make(db_url: str, clock: ManualClock, tmp_path: Path) -> Iterator[Callable[..., Duly]]:
    """An application with mail; settings as they are given."""
    made = []

    def call(**settings: Any) -> Duly:
        given = {
            "mail_from": "Desk <desk@example.org>",
            "mail_folder": str(tmp_path / "mail"),
            "mail_timeout": 5.0,
            "mail_attempts": 4,
            **settings,
        }
        app = Duly(db_url, clock=clock, sqlite_synchronous="NORMAL", **given)
        Mail(app, backoff=Backoff())  # 10, 20, 40 s: a test of the real ones is in test_outages.py
        made.append(app)
        return app

    yield call
    for app in made:
        app.close()


@pytest.fixture
def smtp() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def graph() -> Iterator[Graph]:
    with serving(Graph()) as server:
        yield server


@pytest.fixture
def resend() -> Iterator[Resend]:
    with serving(Resend()) as server:
        yield server

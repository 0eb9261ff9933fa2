"""An outbox in Duly's own database, whose time the test moves; and others, as other processes would have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duly import Duly
from duly.outbox.box import Outbox
from duly.testing import ManualClock
from outbox.hands import Ear, Recorder


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(db_url: str, clock: ManualClock) -> Iterator[Duly]:
    app = Duly(db_url, clock=clock)
    yield app
    app.close()


@pytest.fixture
def ear(app: Duly) -> Ear:
    return Ear(app)


@pytest.fixture
def recorder() -> Recorder:
    """The transport ``t``."""
    return Recorder()


@pytest.fixture
def make(app: Duly, recorder: Recorder) -> Callable[..., Outbox]:
    """Outboxes of the application with the transport ``t``, with other settings or more transports."""

    def make(transports: dict[str, Any] | None = None, **settings: Any) -> Outbox:
        box = Outbox(app, transports={"t": recorder, **(transports or {})}, **settings)
        box.open()
        return box

    return make


@pytest.fixture
def box(make: Callable[..., Outbox]) -> Outbox:
    return make()

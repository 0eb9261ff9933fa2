"""An application that its program lets go is gone: a program may make many, as a suite of tests does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from contract.hands import wait_until
from duly import Duly
from duly.automations.door import Automations
from duly.mail.mail import Mail
from duly.publishing.door import Publishing
from duly.rounds.rounds import Rounds
from duly.testing import drain


def worked(app: Duly) -> None:
    app.task("hello")(lambda: None)
    app.enqueue("hello")
    assert drain(app).succeeded == 1


def ran_a_workflow(app: Duly) -> None:
    @app.workflow("short")
    async def short(context: Any) -> str:
        return "done"

    app.workflows.start("short")
    assert drain(app).failed == 0


def looked_after(app: Duly) -> None:
    app.alerts.standing()
    app.schedules.all()
    app.calendars.all()


@pytest.mark.parametrize("use", [worked, ran_a_workflow, looked_after, Mail.of, Rounds.of, Publishing, Automations])
def test_an_application_is_forgotten_with_all_that_belongs_to_it(sqlite_url: str, use: Callable[[Duly], Any]) -> None:
    app = Duly(sqlite_url)
    use(app)
    gone = weakref.ref(app)
    app.close()
    del app
    wait_until(lambda: gc.collect() >= 0 and gone() is None)  # a thread of its own may be ending


def test_the_room_of_an_application_is_the_same_one_each_time(sqlite_url: str) -> None:
    app = Duly(sqlite_url)
    for room in (Mail, Rounds, Publishing, Automations):
        first = room.of(app)
        gc.collect()
        assert room.of(app) is first
    app.close()

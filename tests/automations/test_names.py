"""Tools and triggers of an automation that do not exist are told at once, with the nearest that does (A2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duly import Duly, UnknownName, UnknownNameWarning
from duly.automations import Automations
from duly.jobs.house import Housekeeper
from duly.kernel.names import noticing

PROMPT = {"prompt": "Look.", "slot": "s"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def room(url: str) -> Iterator[Automations]:
    app = Duly(url)
    app.task("SEND", queue="mail")(lambda: None)
    room = Automations(app)
    room.tool(look_up)
    yield room
    app.close()


def look_up(order: int) -> dict[str, Any]:
    return {}


def test_a_tool_that_nobody_defines_is_told_wherever_an_automation_names_it(room: Automations) -> None:
    with pytest.warns(UnknownNameWarning, match='No tool is called "lok_up". Did you mean "look_up"') as seen:
        made = room.create({"name": "a", "tools": ["lok_up", "look_up", "SEND", "finish"], **PROMPT})
    assert seen[0].filename == __file__
    assert made.definition.tools == ("lok_up", "look_up", "SEND", "finish")  # a worker that defines it may start later
    with noticing() as told:
        room.update("a", {"prompt": "Look twice."})  # what was told of already
        assert told == []
        room.update("a", {"tools": ["lok_up", "SENT"]})
        room.ensure({"name": "b", "tools": ["zzzzz"], **PROMPT})
    assert told == [
        'No tool is called "SENT". Did you mean "SEND"? A call of it is refused until a worker that defines it starts.',
        'No tool is called "zzzzz". Known tools: SEND, look_up. A call of it is refused until a worker that defines it starts.',
    ]


def test_a_tool_of_another_workers_code_is_known_and_offered(room: Automations, url: str) -> None:
    other = Duly(url)
    other.task("PAY")(lambda: None)
    Automations(other).tools.add(look_up, name="refund")
    Housekeeper(other.worker()).presence()
    with noticing() as told:
        room.create({"name": "a", "tools": ["refund", "PAY"], **PROMPT})
        room.create({"name": "b", "tools": ["refnud"], **PROMPT})
    assert [one.partition("?")[0] for one in told] == ['No tool is called "refnud". Did you mean "refund"']
    other.close()


def test_a_trigger_that_is_nearly_an_event_of_dulys_is_told_and_any_other_is_not(room: Automations) -> None:
    with noticing() as told:
        triggers = ["job_faild", "alert.raised", "order.paid", "order_failed", "job_failed", "session_ende"]
        room.create({"name": "a", "triggers": triggers, **PROMPT})
    assert told == [
        f'No event of Duly is called "{name}". Did you mean "{near}"? Only fire() of that name, or a webhook, runs it.'
        for name, near in (("job_faild", "job_failed"), ("alert.raised", "alert_raised"))
    ]


@pytest.mark.parametrize("given", [{"tools": ["lok_up"]}, {"triggers": ["job_faild"]}])
def test_strict_names_refuses_them_and_writes_nothing(url: str, given: dict[str, Any]) -> None:
    app = Duly(url, strict_names=True)
    room = Automations(app)
    room.tool(look_up)
    for act in (room.create, room.ensure):
        with pytest.raises(UnknownName, match=r"Did you mean .* turn strict_names off"):
            act({"name": "a", **given, **PROMPT})
    assert room.list() == []
    room.create({"name": "a", "triggers": ["order.paid"], **PROMPT})
    with pytest.raises(UnknownName):
        room.update("a", given)
    assert room.get("a").version == 1
    app.close()

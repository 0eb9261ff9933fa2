"""How much a dispatcher claims, and what it makes of what it sees. Pure, and without a broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from duly import Duly
from duly.integrations.celery import Dispatcher, install_executor
from duly.integrations.celery.dispatcher import share
from duly.jobs.handover import HOLDER, follow, given_back, never_begun
from duly.kernel.errors import InvalidArgument

names = st.dictionaries(st.sampled_from("abcdef"), st.integers(-3, 200), max_size=6)


@given(wanted=names, left=st.integers(-5, 300), turn=st.integers(0, 50))
def test_what_is_left_is_shared_among_all_who_want(wanted: dict[str, int], left: int, turn: int) -> None:
    granted = share(wanted, left, turn)
    hungry = {name: n for name, n in wanted.items() if n > 0}
    assert all(0 < n <= hungry[name] for name, n in granted.items())
    assert sum(granted.values()) == min(max(0, left), sum(hungry.values()))  # nothing is left over that somebody wants
    poor = {name for name in hungry if granted.get(name, 0) < hungry[name]}
    for name in poor:  # who gets less than it wants gets as much as any other, but for one
        assert granted.get(name, 0) >= max(granted.values(), default=0) - 1


@given(turns=st.integers(0, 100))
def test_nobody_waits_for_ever_when_there_is_one_place(turns: int) -> None:
    wanted = dict.fromkeys("abc", 5)
    served = {name for turn in range(turns, turns + 3) for name in share(wanted, 1, turn)}
    assert served == set("abc")


tokens = st.dictionaries(st.integers(1, 9), st.integers(1, 4), max_size=9)


@given(waiting=tokens, begun=tokens, running=tokens)
def test_every_job_that_was_handed_over_is_followed(
    waiting: dict[int, int], begun: dict[int, int], running: dict[int, int]
) -> None:
    found = follow(waiting, begun, running)
    still = {ident for ident, token in waiting.items() if running.get(ident) == token}
    assert still | set(found.begun) | set(found.gone) == set(waiting)
    assert len(still) + len(found.begun) + len(found.gone) == len(waiting)
    assert all(running[ident] == token != waiting[ident] for ident, token in found.begun.items())
    assert all(ident not in running for ident in found.gone)
    assert set(found.ended) == {ident for ident, token in begun.items() if running.get(ident) != token}


def test_what_nobody_has_begun_goes_back_without_an_attempt() -> None:
    back, later = given_back(7, 70), given_back(7, 70, wait=30)
    assert [(s.id, s.token, s.event, s.status, s.wait, s.counted, s.record) for s in (back, later)] == [
        (7, 70, "release", "queued", None, False, None),
        (7, 70, "snooze", "queued", 30, False, None),
    ]


@pytest.mark.parametrize(("holder", "held"), [(f"{HOLDER}a:1", True), ("a:1", False), ("", False), (None, False)])
def test_who_only_holds_jobs_is_told_by_name(holder: str | None, held: bool) -> None:
    assert never_begun(holder) is held


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Duly]:
    app = Duly(f"sqlite:///{tmp_path / 'duly.db'}")
    yield app
    app.close()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 2.5}, "limit"),
        ({"limit": True}, "limit"),
        ({"handover_timeout": 0.5}, "handover_timeout"),
        ({"handover_timeout": float("nan")}, "handover_timeout"),
        ({"celery_app": "fleet:app"}, "celery_app"),
        ({"queues": {}}, "queues"),
        ({"queues": {"a": 0}}, "queues[a]"),
    ],
)
def test_a_dispatcher_refuses_what_cannot_be_and_names_it(app: Duly, options: dict[str, Any], field: str) -> None:
    given = {"celery_app": Celery("fleet", broker="memory://"), "queues": {"default": 5}, **options}
    with pytest.raises(InvalidArgument) as refused:
        Dispatcher(app.engine, **given)
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["mine", f"{HOLDER}mine", None])
def test_a_dispatcher_is_told_from_a_worker_by_its_name(app: Duly, name: str | None) -> None:
    made = Dispatcher(app.engine, Celery("fleet", broker="memory://"), {"default": 5}, name=name)
    assert made.name.startswith(HOLDER)
    assert made.name.count(HOLDER) == 1


def test_a_worker_cannot_be_called_as_a_dispatcher_is(
    app: Duly,
) -> None:  # its jobs would be rescued without an attempt
    app.task("WORK")(lambda: None)
    with pytest.raises(InvalidArgument, match="handover:"):
        app.worker(name=f"{HOLDER}mine")


def test_an_executor_is_installed_in_a_celery_application_for_a_duly_application(app: Duly) -> None:
    fleet = Celery("fleet", broker="memory://")
    task = install_executor(fleet, app)
    assert "duly.execute" in fleet.tasks
    assert (task.acks_late, task.reject_on_worker_lost, task.ignore_result) == (True, True, True)
    for wrong in ((app, app), (fleet, fleet)):
        with pytest.raises(InvalidArgument):
            install_executor(*wrong)


@pytest.mark.parametrize(
    ("driver", "error", "gone"),
    [("amqp", ConnectionResetError, True), ("amqp", TimeoutError, False), ("redis", OSError, True)],
)
def test_an_idle_dispatcher_notices_that_the_broker_has_gone(
    driver: str, error: type[Exception], gone: bool
) -> None:  # F12
    from types import SimpleNamespace

    from duly.integrations.celery.dispatcher import _Broker

    def fails(**_: Any) -> None:
        raise error

    broker = _Broker(None, None)
    broker._connection = SimpleNamespace(
        transport=SimpleNamespace(driver_type=driver), drain_events=fails, heartbeat_check=lambda: None
    )
    broker._producer = SimpleNamespace(channel=SimpleNamespace(client=SimpleNamespace(ping=fails)))
    with pytest.raises(error) if gone else contextlib.nullcontext():
        broker.check()

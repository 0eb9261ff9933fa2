"""Of two programs that declare a schedule differently the newer code wins, whoever starts last. E2, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duly import Duly, Every
from duly.jobs.house import Housekeeper
from duly.jobs.worker import Worker
from duly.kernel.events import Event
from duly.schedules.door import Schedules
from duly.schedules.store import ScheduleStore
from duly.testing import ManualClock


class Program:
    """A program whose code declares the schedule with an interval, and its worker."""

    def __init__(self, app: Duly, minutes: int, is_seen: bool = True) -> None:
        self.app, self.told = app, list[Event]()
        app.listen(self.told.append)
        app.task("REPORT")(lambda: None)
        app.schedule("nightly", Every(60 * minutes), task="REPORT")
        self.worker: Worker = app.worker()
        self.house = Housekeeper(self.worker)
        if is_seen:
            self.house.presence()

    def end(self) -> None:
        self.house.say_goodbye()
        self.app.close()


@pytest.fixture
def start(db_url: str, clock: ManualClock) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def begin(minutes: int, is_seen: bool = True) -> Program:
        made.append(Program(Duly(db_url, clock=clock), minutes, is_seen))
        return made[-1]

    yield begin
    for program in made:
        program.app.close()


def every(app: Duly) -> float:
    spec = app.schedules.get("nightly").spec
    assert spec is not None
    return float(spec.recurrence.to_json()["duration"])


def test_an_old_process_that_starts_again_during_a_deploy_puts_nothing_back(
    app: Duly, start: Callable[..., Program]
) -> None:
    old = start(1)
    assert every(app) == 60
    new = start(5)
    assert every(app) == 300  # newer code counts at once, though old workers live
    old.end()
    again = start(1)
    assert every(app) == 300
    assert [e.facts["schedule"] for e in again.told if e.name == "declaration_old"] == ["nightly"]
    again.app.schedules.catch_up()
    assert every(app) == 300
    assert len([e for e in again.told if e.name == "declaration_old"]) == 1  # said once
    third = start(5)
    assert every(app) == 300
    for program in (new, third, again):
        program.end()


def test_code_that_was_rolled_back_counts_again_when_no_newer_worker_lives(
    app: Duly, start: Callable[..., Program], clock: ManualClock
) -> None:
    start(1).end()
    new = start(5)
    back = start(1)  # started before the newer one ends
    assert every(app) == 300
    new.end()
    clock.advance(31)  # what was declared a moment ago counts: its worker may have no row yet
    back.app.schedules.catch_up()
    assert every(app) == 60
    assert back.app.schedules.behind == set()
    dead = start(7)  # killed: it never says goodbye
    assert every(app) == 420
    dead.app.close()
    late = start(1)
    assert every(app) == 420
    clock.advance(150)
    late.app.schedules.catch_up()
    assert every(app) == 60


def test_what_code_no_longer_declares_is_shown_and_goes_on(
    app: Duly, start: Callable[..., Program], clock: ManualClock
) -> None:
    start(1).end()
    assert app.schedules.undeclared() == []  # no worker lives, so nobody can say
    other = start(1)
    assert app.schedules.undeclared() == []
    other.end()
    last = Program.__new__(Program)
    last.app = start(1).app
    last.app.schedules._declared.clear()
    last.app.schedule("another", Every(60), task="REPORT")
    worker = last.app.worker()
    Housekeeper(worker).presence()
    clock.advance(100)
    Housekeeper(worker).presence()
    clock.advance(100)
    assert app.schedules.undeclared() == [("default", "nightly")]
    assert app.schedules.get("nightly").state == "active"


def test_what_a_person_changed_stays_whatever_code_declared_before(app: Duly, start: Callable[..., Program]) -> None:
    start(1).end()
    app.task("REPORT")(lambda: None)
    app.schedules.set(app.schedules.spec("nightly", Every(90), "REPORT"), actor="ada")
    start(1).end()
    assert every(app) == 90
    start(5).end()
    assert every(app) == 300  # the code declares something else


def test_an_old_process_that_looked_before_newer_code_declared_overwrites_nothing(
    app: Duly, start: Callable[..., Program], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # E2
    start(1).end()
    start(3).end()
    clock.advance(150)  # nobody lives, so the old definition would count again
    put, new = Schedules.set, list[Program]()

    def after_newer_code(self: Schedules, spec: Any, **given: Any) -> Any:
        """It has looked, and before it writes a process with newer code starts."""
        if not new:
            monkeypatch.setattr(Schedules, "set", put)
            new.append(start(5))
        return put(self, spec, **given)

    monkeypatch.setattr(Schedules, "set", after_newer_code)
    old = start(1)
    assert every(app) == 300
    assert old.app.schedules.behind == {("default", "nightly")}
    assert [e.name for e in old.told].count("declaration_old") == 1
    assert app.schedules.get("nightly").version == 3


def test_an_old_process_that_starts_before_the_newer_one_has_its_row_overwrites_nothing(
    app: Duly, start: Callable[..., Program], clock: ManualClock
) -> None:  # E2
    start(1).end()
    clock.advance(150)
    new = start(5, is_seen=False)  # it has declared, and its worker is about to begin
    old = start(1)
    assert every(app) == 300
    clock.advance(20)
    new.house.presence()
    clock.advance(100)
    old.app.schedules.catch_up()
    assert every(app) == 300


def test_newer_code_whose_definition_a_program_without_the_rule_replaced_declares_it_again(
    app: Duly, start: Callable[..., Program], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # E2
    start(1).end()
    new = start(5)
    clock.advance(40)
    with monkeypatch.context() as without:
        without.setattr(ScheduleStore, "replaced", lambda *_: (set(), set()))
        old = start(1)
    assert every(app) == 60
    new.app.schedules.catch_up()
    assert every(app) == 300
    old.app.schedules.sync()
    assert every(app) == 300
    new.app.schedules.set(new.app.schedules.spec("nightly", Every(90), "REPORT"), actor="ada")
    new.app.schedules.catch_up()
    assert every(app) == 90  # what a person changed is no older code

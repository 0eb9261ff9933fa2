"""What newer code has written or defines is left to newer code, and an old process puts no old definition back (E1, E2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from automations.hands import Ai, Stage, calls
from duly import Duly
from duly.automations import Automations
from duly.automations.automation import Definition
from duly.automations.definitions import DefinitionStore
from duly.jobs.house import Housekeeper
from duly.jobs.worker import Worker
from duly.kernel.errors import WrongState
from duly.testing import ManualClock, drain


@pytest.fixture
def db_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def write(stage: Stage, sql: str) -> None:
    stage.app.db.write(lambda c: c.exec_driver_sql(sql))


@pytest.mark.parametrize(
    ("column", "value"),
    [("limits", '{"max_images": 3}'), ("asking", '{"no_call": "phone"}'), ("asking", '{"voice": 1}'), ("tools", '{"all": true}')],
)  # fmt: skip
def test_a_session_whose_definition_a_worker_cannot_read_is_left_to_newer_ones(
    stage: Stage, column: str, value: str
) -> None:  # E1
    a, b = stage.automation("a"), stage.automation("b", "08:30", slot="other")
    before = dict(stage.rows(f"SELECT 1, {column} FROM automations WHERE id = {a}"))
    write(stage, f"UPDATE automations SET {column} = '{value}' WHERE id = {a}")
    assert {one.name for one in stage.room.list()} == {"a", "b"}  # it hides nobody
    assert column in stage.room.get(a).unreadable
    session = stage.room.run(a).session.id
    stage.work()
    assert stage.session(session).is_active
    assert len(stage.told("job_unreadable")) == 1
    stage.pass_(minutes=25)  # between two tries it is no silence
    stage.tick()
    assert stage.session(session).is_active
    stage.at(8, 30)
    stage.tick()
    stage.work()
    assert stage.ends(b) == ["COMPLETED"]
    found = stage.room.disable(a)  # what a person does leaves it as it is
    assert column in found.unreadable and not found.is_enabled
    stored = "NULL" if before[1] is None else f"'{before[1]}'"
    write(stage, f"UPDATE automations SET {column} = {stored} WHERE id = {a}")
    stage.pass_(minutes=1)
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE ai_messages SET role = 'critic' WHERE session_id = {}",
        'UPDATE ai_messages SET calls = \'[{{"kind": "voice"}}]\' WHERE session_id = {}',
        "UPDATE ai_sessions SET options = '[1]' WHERE id = {}",
        "UPDATE ai_sessions SET \"trigger\" = 'MAIL' WHERE id = {}",
        "INSERT INTO ai_rounds (session_id, number, reason, activation, started_at, input_tokens, output_tokens, cost_micros) "
        "SELECT id, 1, 'VOICE', activation, started_at, 0, 0, 0 FROM ai_sessions WHERE id = {}",
    ],
)
def test_a_session_whose_record_a_worker_cannot_read_is_left_to_newer_ones(stage: Stage, sql: str) -> None:  # E1
    session = stage.room.run(stage.automation("a")).session.id
    write(stage, sql.format(session))
    stage.work()
    assert stage.rows(f"SELECT status FROM ai_sessions WHERE id = {session}") == [("active",)]
    assert len(stage.told("job_unreadable")) == 1
    assert stage.ai.questions == []


def test_a_change_of_a_part_does_not_lose_what_newer_code_has_written_of_it(stage: Stage) -> None:  # E1
    a = stage.automation("a", "09:00")
    write(
        stage,
        f'UPDATE automations SET limits = \'{{"max_images": 3}}\', schedule = \'{{"kind": "tidal"}}\' WHERE id = {a}',
    )
    with pytest.raises(WrongState, match="newer code"):
        stage.room.update(a, {"limits": {"max_rounds": 3}})
    stage.room.update(a, {"prompt": "Do it otherwise."})
    stage.room.disable(a)
    stage.room.enable(a)
    assert stage.rows(f"SELECT limits, schedule FROM automations WHERE id = {a}") == [
        ('{"max_images": 3}', '{"kind": "tidal"}')
    ]
    given = stage.room.get(a).definition
    stage.room.update(a, Definition("a", given.messages))  # whole: it is meant
    assert stage.room.get(a).unreadable == {}


def test_a_session_with_a_tool_that_another_worker_defines_is_left_to_that_one(stage: Stage, db_url: str) -> None:  # E1
    newer = Stage(Duly(db_url, clock=stage.clock), stage.clock, Ai(calls("look_up")))

    @newer.room.tool
    def look_up() -> str:
        return "found"

    house = Housekeeper(newer.app.worker())
    house.presence()
    a = stage.automation("a", tools=["look_up"])
    session = stage.room.run(a).session.id
    stage.work()
    assert stage.ai.questions == []
    assert "look_up" in str(stage.told("job_unreadable")[0]["error"])
    stage.pass_(seconds=2)
    drain(newer.app)
    assert stage.session(session).end_reason == "COMPLETED"
    assert [call.result for call in stage.room.calls(session)] == ['"found"']
    house.say_goodbye()
    stage.ai.script = [calls("look_up")]
    again = stage.room.run(a).session.id
    stage.work()  # nobody defines it any more: the AI is told so
    assert stage.session(again).end_reason == "COMPLETED"
    newer.app.close()


class Program:
    """A program whose code declares the automation with a prompt, and its worker."""

    def __init__(self, app: Duly, prompt: str) -> None:
        self.stage = Stage(app, app.engine.clock, Ai())  # type: ignore[arg-type]
        self.prompt = prompt
        self.ensure()
        self.worker: Worker = app.worker()
        self.house = Housekeeper(self.worker)
        self.house.presence()

    def ensure(self) -> None:
        self.stage.room.ensure({"name": "a", "prompt": self.prompt, "provider": "ai"})


@pytest.fixture
def start(db_url: str) -> Iterator[object]:
    clock, made = ManualClock(), list[Duly]()

    def begin(prompt: str) -> Program:
        made.append(Duly(db_url, clock=clock))
        return Program(made[-1], prompt)

    yield begin
    for app in made:
        app.close()


def prompt(program: Program) -> str:
    return program.stage.room.get("a").definition.messages[0].text


def test_an_old_process_puts_no_old_definition_of_an_automation_back(start) -> None:  # type: ignore[no-untyped-def]  # E2
    old, new = start("one"), start("two")
    assert prompt(new) == "two"  # newer code counts at once
    old.house.say_goodbye()
    again = start("one")
    again.ensure()
    assert prompt(again) == "two"
    assert [facts["automation_name"] for facts in again.stage.told("declaration_old")] == ["a"]  # said once
    again.stage.room.catch_up()
    assert prompt(again) == "two"
    new.house.say_goodbye()
    again.stage.app.engine.clock.advance(31)  # type: ignore[attr-defined]
    again.stage.room.catch_up()  # the code was rolled back
    assert prompt(again) == "one"
    assert again.stage.room.behind == set()


def test_an_old_process_that_looked_before_newer_code_declared_overwrites_no_automation(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]  # E2
    one = start("one")
    one.house.say_goodbye()
    start("three").house.say_goodbye()
    one.stage.app.engine.clock.advance(150)
    put, new = Automations._put, []

    def after_newer_code(self, *given):  # type: ignore[no-untyped-def]
        """It has looked, and before it writes a process with newer code declares."""
        monkeypatch.setattr(Automations, "_put", put)
        new.append(start("two"))
        return put(self, *given)

    monkeypatch.setattr(Automations, "_put", after_newer_code)
    old = start("one")
    assert prompt(old) == "two"
    assert old.stage.room.behind == {("default", "a")}
    # a program that does not know the rule puts its own there, and newer code declares again
    old.stage.app.engine.clock.advance(40)
    with monkeypatch.context() as without:
        without.setattr(DefinitionStore, "declared", lambda *_: None)
        old.ensure()
    assert prompt(old) == "one"
    new[0].stage.room.catch_up()
    assert prompt(old) == "two"


@pytest.mark.parametrize(("column", "word"), [("trigger", "MAIL"), ("end_reason", "BORED"), ("type", "CALL")])
def test_a_word_of_newer_code_in_a_session_stops_no_pass_of_an_old_worker(
    stage: Stage, column: str, word: str
) -> None:  # E1
    a, b = stage.automation("a"), stage.automation("b", "08:30", slot="other")
    session = stage.room.run(a).session.id
    stage.room.pause(session)
    write(stage, f"UPDATE ai_sessions SET \"{column}\" = '{word}', resume_at = NULL WHERE id = {session}")
    stage.at(8, 30)
    stage.tick()
    stage.work()
    assert stage.ends(b) == ["COMPLETED"]
    seen = {one.id: one for one in stage.room.sessions()}[session]  # people see it as it is
    assert getattr(seen, column) == seen.unread == word
    assert stage.ai.questions and not stage.told("loop_failed")
    assert stage.rows(f"SELECT rounds FROM ai_sessions WHERE id = {session}") == [(0,)]  # nobody asked in it


def test_what_a_person_changed_stays_until_code_declares_something_else(start) -> None:  # type: ignore[no-untyped-def]  # E2
    one = start("one")
    one.stage.room.update("a", {"prompt": "as the boss wants it"}, actor="ada")
    one.ensure()
    assert prompt(one) == "as the boss wants it"
    assert prompt(start("two")) == "two"
    one.house.say_goodbye()
    other = start("two")
    assert other.stage.room.undeclared() == []
    other.stage.room.update("a", {"name": "b"})
    assert other.stage.room.undeclared() == [("default", "b")]

"""What was planned and did not run is on record (R001-52), and nothing runs itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automations.hands import Stage, calls, done
from duly.automations.plan import AutomationFacts, AutomationScheduler, dropped
from duly.automations.session import SessionControl, Status
from duly.kernel.errors import PermanentError
from duly.kernel.recurrence import schedule_from_json

DAILY = {"kind": "daily", "at": ["09:00"], "tz": "UTC"}


def skips(stage: Stage) -> list[tuple[Any, ...]]:
    return stage.rows("SELECT count, reason FROM automation_skips ORDER BY first_at")


def at(day: int, hour: int = 9) -> datetime:
    return datetime(2026, 3, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "once", "instant": "2026-03-02T09:00:00Z"},
        {**DAILY, "end_date": "2026-03-02"},
    ],
    ids=["once", "the last one"],
)
def test_a_run_that_comes_too_late_and_that_nothing_follows_is_on_record(stage: Stage, schedule: Any) -> None:
    # R001-52, T001-k
    a = stage.automation("a", schedule=schedule, catch_up_window="1h")
    stage.at(12)
    stage.tick()
    assert stage.of(a) == []
    assert skips(stage) == [(1, "catch_up_window")]
    [told] = stage.told("automation_skipped")
    assert (told["automation"], told["count"]) == (a, 1)
    assert stage.rows("SELECT action FROM audit_log WHERE action = 'AUTOMATION_SKIPPED'") == [("AUTOMATION_SKIPPED",)]
    stage.tick()
    assert len(skips(stage)) == 1


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda stage, a: stage.room.disable(a), "disabled"),
        (lambda stage, a: stage.room.delete(a), "removed"),
        (lambda stage, a: stage.room.update(a, {"schedule": {**DAILY, "at": ["23:00"]}}), "rescheduled"),
    ],
    ids=["disable", "delete", "update"],
)
def test_a_run_that_was_due_when_a_person_changed_the_automation_is_on_record(
    stage: Stage, act: Any, reason: str
) -> None:  # R001-52
    b = stage.automation("b")
    a = stage.automation("a", "09:00")
    stage.room.run(b)  # it has the slot
    stage.at(9, 5)
    act(stage, a)
    assert {session.automation_id for session in stage.room.sessions()} == {b}
    assert skips(stage) == [(1, reason)]


def test_what_is_planned_while_an_automation_is_off_is_on_record_when_it_is_on_again(stage: Stage) -> None:  # R001-52
    a = stage.automation("a", "09:00")
    stage.room.disable(a)
    stage.pass_(days=3)
    stage.room.enable(a)
    assert skips(stage) == [(3, "disabled")]
    assert stage.of(a) == []
    stage.pass_(days=1)
    stage.tick()
    assert len(stage.of(a)) == 1


@pytest.mark.parametrize("schedule", ['{"kind": "lunar"}', '{"kind": "cron", "expression": "99 * * * *", "tz": "UTC"}'])
@pytest.mark.parametrize("act", ["disable", "delete", "update"])
def test_what_nobody_can_count_when_a_person_changes_an_automation_is_on_record(
    stage: Stage, act: str, schedule: str
) -> None:  # B4
    a = stage.automation("a", "09:00")
    stage.app.db.write(lambda c: c.exec_driver_sql(f"UPDATE automations SET schedule = '{schedule}'"))
    stage.pass_(hours=30)
    change = {"schedule": {"kind": "daily", "at": ["10:00"], "tz": "UTC"}}
    stage.room.update(a, change) if act == "update" else getattr(stage.room, act)(a)
    assert [facts["reason"] for facts in stage.told("automation_skipped")] == ["undecided"]
    assert stage.rows("SELECT count, reason FROM automation_skips") == [(0, "undecided")]


def test_an_execution_that_was_interrupted_is_not_left_out(stage: Stage) -> None:
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    stage.room.pause(stage.of(a)[0].id, span="1h")
    stage.room.disable(a)
    assert skips(stage) == []


def test_what_is_dropped_is_what_was_due_and_had_no_turn() -> None:
    facts = AutomationFacts(1, schedule_from_json(DAILY), at(1, 0))
    skip = dropped(facts, at(3), "disabled")
    assert skip is not None
    assert (skip.first_at, skip.last_at, skip.count) == (at(1), at(3), 3)
    assert dropped(facts, at(1, 8), "disabled") is None
    assert AutomationScheduler().left_out([facts], at(3)) == []


# ---------------------------------------------------------------------- nothing runs itself


def failing(stage: Stage) -> int:
    """An automation that a failed job runs, and whose tool is a task that fails."""

    @stage.app.task("breaks")
    def breaks() -> None:
        raise PermanentError("no")

    return stage.automation("a", triggers=["job_failed"], tools=["breaks"])


def turns(stage: Stage, passes: int = 8) -> None:
    for _ in range(passes):
        stage.room.keep()
        stage.work()
        stage.pass_(minutes=1)


def test_an_automation_is_not_run_by_what_it_has_caused(stage: Stage) -> None:
    a = failing(stage)
    stage.ai.script = [calls("breaks"), done(), calls("breaks"), done(), calls("breaks"), done()]
    stage.room.keep()
    stage.app.enqueue("breaks")
    turns(stage)
    assert len(stage.of(a)) == 1
    [told] = stage.told("automation_not_run")
    assert told["automation"] == a
    assert "nothing runs itself" in told["error"]


def test_two_automations_do_not_run_one_another_for_ever(stage: Stage) -> None:
    a = failing(stage)
    b = stage.automation("b", triggers=["job_failed"], tools=["breaks"])
    stage.ai.script = [one for _ in range(30) for one in (calls("breaks"), done())]
    stage.room.keep()
    stage.app.enqueue("breaks")
    turns(stage, 12)
    # one each for the first, and one each for what the other has caused
    assert (len(stage.of(a)), len(stage.of(b))) == (2, 2)


def test_events_of_duly_run_an_automation_only_so_often(stage: Stage) -> None:
    failing(stage)
    b = stage.automation("b", triggers=["job_failed"], limits={"max_event_runs_per_hour": 2})
    stage.room.keep()
    for _ in range(4):
        stage.app.enqueue("breaks")
    turns(stage)
    assert len(stage.of(b)) == 2
    assert any("max_event_runs_per_hour" in told["error"] for told in stage.told("automation_not_run"))


# ---------------------------------------------------------------------- a chat that nobody is at


def test_a_chat_that_nobody_is_at_any_more_gives_way_to_another_chat(stage: Stage) -> None:
    dead = stage.room.chat("first")
    assert dead.control is SessionControl.ACTIVATED
    other = stage.room.chat("second")
    assert other.control is SessionControl.QUEUED
    for _ in range(31):
        stage.pass_(seconds=10)
        stage.room.wanted(other.session.id)
        stage.room.keep()
    assert stage.session(other.session.id).status is Status.ACTIVE
    assert stage.session(dead.session.id).status is Status.ENDED


def test_a_chat_whose_person_thinks_for_long_keeps_the_slot_from_other_chats(stage: Stage) -> None:
    first, second = stage.room.chat("first"), stage.room.chat("second")
    for _ in range(60):
        stage.pass_(seconds=10)
        stage.room.wanted(first.session.id)
        stage.room.wanted(second.session.id)
        stage.room.keep()
    assert stage.session(first.session.id).status is Status.ACTIVE
    assert stage.session(second.session.id).status is Status.QUEUED


# ---------------------------------------------------------------------- silence, and who hears of it


def test_a_function_may_take_as_long_as_its_timeout_says(stage: Stage) -> None:  # R001-9
    a = stage.automation("a", "09:00", tools=["slow"])
    seen = []

    def slow() -> str:
        stage.pass_(minutes=20)
        stage.tick()
        seen.append(stage.of(a)[0].is_active)
        return "at last"

    stage.room.tools.add(slow, name="slow", timeout=1_800)
    stage.ai.script = [calls("slow")]
    stage.at(9)
    stage.tick()
    stage.work()
    assert (seen, stage.ends(a)) == ([True], ["COMPLETED"])


def test_a_session_that_fails_fails_its_job_and_its_automation_is_an_alert(stage: Stage) -> None:
    a = stage.automation("a", limits={"max_rounds": 0})
    stage.room.run(a)
    stage.work()
    assert stage.ends(a) == ["ERROR"]
    [job] = stage.app.jobs.find(task="AI_SESSION")
    assert job.status == "failed"
    assert raised(stage, "automation_failing") == [("a", 1)]
    stage.room.update(a, {"limits": {"max_rounds": 5}})
    stage.room.run(a)
    stage.work()
    assert raised(stage, "automation_failing") == []


def test_automations_that_wait_or_do_not_begin_are_alerts(stage: Stage) -> None:
    a, b = stage.automation("a"), stage.automation("b", "09:00")
    stage.ai.network = False
    stage.room.run(a)
    stage.work()
    stage.at(8, 55)
    assert raised(stage, "automation_waiting", "automation_late") == []
    stage.at(11)
    waits, late = raised(stage, "automation_waiting"), raised(stage, "automation_late")
    assert (waits[0][0], late[0][0]) == ("a", "b")
    assert late[0][1] == timedelta(hours=2).total_seconds()
    assert stage.of(b) == []


def raised(stage: Stage, *names: str) -> list[tuple[str, float]]:
    """What is beyond the thresholds of these rules now."""
    from duly.monitoring.alerts.readings import look
    from duly.monitoring.alerts.rules import rules_of

    rules = tuple(rule for rule in rules_of(stage.app.settings) if rule.name in names)
    facts = stage.app.db.read(lambda c: look(stage.app.engine, rules, c))
    found = []
    for rule in rules:
        reading = facts.readings[rule.name]
        assert reading.known, reading.problem
        found += [(one.subject, one.value) for one in reading.samples if one.value > rule.threshold]
    return found


def test_what_was_left_out_is_listed_with_its_automation(stage: Stage) -> None:  # R001-52
    a = stage.automation("a", "09:00", dismiss_older_instances=True)
    stage.pass_(days=3, hours=2)
    stage.tick()
    [skip] = stage.room.skips(a)
    assert (skip.count, skip.reason) == (3, "dismissed")
    assert skip.first_at == at(2) and skip.last_at == at(4)

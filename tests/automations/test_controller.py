"""The slot and who has it: every rule of R001 and T001 that the stories do not tell, by its number, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from automations.hands import Ai, Stage, calls, done, says
from duly import Duly
from duly.automations import Automations
from duly.automations.session import ExecutionTrigger, SessionControl, SessionEndReason, SessionType, Status
from duly.automations.store import SessionStore
from duly.kernel.errors import InvalidArgument, NotFound, WrongState
from duly.testing import ManualClock

DAY = datetime(2026, 3, 2, tzinfo=UTC)


def at(hour: int, minute: int = 0) -> datetime:
    return DAY.replace(hour=hour, minute=minute)


# ---------------------------------------------------------------------- crashes


def test_a_row_that_says_active_after_a_crash_is_found_and_so_is_one_that_says_nothing(
    stage: Stage,
) -> None:  # B070, T001-a, T001-b
    a, b = stage.automation("a", "09:00"), stage.automation("b", "09:01")
    stage.at(9, 1)
    stage.tick()
    first = stage.active()
    assert first is not None
    # a worker had taken it and was killed: nobody renews its lease, and nobody has rescued the job yet
    lapsed = text(
        "UPDATE jobs SET status = 'running', worker = 'gone', lease_token = 1, lease_until = created_at, started_at = created_at WHERE id = :id"
    )
    stage.app.db.write(lambda c: c.execute(lapsed, {"id": first.job_id}))
    stage.pass_(minutes=1)
    stage.tick()
    again = stage.active()
    assert again is not None
    assert (again.id, again.crashes) == (first.id, 1)
    # and one whose row says that it was interrupted, with a real NULL for a reason
    stage.room.pause(first.id)
    stage.app.db.write(
        lambda c: c.execute(text("UPDATE ai_sessions SET end_reason = NULL WHERE id = :id"), {"id": first.id})
    )
    stage.work()
    assert (stage.ends(a), stage.ends(b)) == (["COMPLETED"], ["COMPLETED"])
    assert [f["reason"] for f in stage.told("session_resumed")] == ["AUTOMATION_RESUME_CRASH"] * 2


def test_sessions_that_have_ended_never_go_on(stage: Stage) -> None:  # B070
    a = stage.automation("a", "09:00")
    for number, reason in enumerate(("COMPLETED", "CANCELLED", "TIMEOUT", "ERROR")):
        stage.at(9)
        stage.tick()
        session = stage.active()
        assert session is not None
        stage.room.stop(session.id)
        stage.app.db.write(
            lambda c, s=session, r=reason: c.execute(
                text("UPDATE ai_sessions SET end_reason = :r WHERE id = :id"), {"id": s.id, "r": r}
            )
        )
        stage.pass_(minutes=30)
        stage.tick()
        assert stage.active() is None, reason
        stage.clock.set(stage.clock.now().replace(hour=8, minute=0) + timedelta(days=1))
        assert len(stage.of(a)) == number + 1


def test_one_that_was_never_started_does_not_look_like_a_crash(stage: Stage) -> None:  # T001-c
    stage.automation("a", "09:00")
    stage.room.chat()
    waits = stage.room.run("a").session
    assert waits.started_at is None
    stage.pass_(minutes=1)
    stage.tick()
    assert stage.session(waits.id).status is Status.QUEUED
    facts, _ = stage.app.db.read(lambda c: stage.room.controller.store.facts(c, "default"))
    assert facts[0].incomplete == ()


def test_a_session_that_loses_its_worker_each_time_ends_after_three_times_in_a_row(stage: Stage) -> None:  # T001-z
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    for _ in range(4):
        assert stage.ends(a) == [None]
        stage.kill(stage.of(a)[0].id)
        stage.tick()
    assert stage.ends(a) == ["ERROR"]
    assert stage.of(a)[0].end_detail == "its worker was lost 4 times in a row"


def test_an_answer_in_between_makes_the_count_of_crashes_begin_again(stage: Stage) -> None:  # T001-z
    a = stage.automation("a", "09:00")
    stage.ai.script = [says("a beginning")]
    stage.at(9)
    stage.tick()
    for _ in range(3):
        stage.kill(stage.of(a)[0].id)
        stage.tick()
    assert stage.of(a)[0].crashes == 3
    stage.work()
    assert stage.of(a)[0].crashes == 0


def test_a_chat_that_lost_its_worker_is_answered_all_the_same(stage: Stage) -> None:
    chat = stage.room.chat(provider="ai").session
    stage.room.say(chat.id, "Hello?")
    stage.kill(chat.id)
    stage.tick()
    stage.ai.script = [says("Here I am.")]
    stage.work()
    assert stage.said(chat.id) == [("user", "Hello?"), ("assistant", "Here I am.")]
    assert stage.session(chat.id).is_active


def test_a_slot_whose_session_row_is_gone_is_free(stage: Stage) -> None:
    a = stage.automation("a", "09:00")
    stage.app.db.write(lambda c: c.execute(text("UPDATE automation_slots SET session_id = 999, activation = 'x'")))
    stage.at(9)
    stage.tick()
    assert len(stage.of(a)) == 1


# ---------------------------------------------------------------------- one slot


def test_the_database_itself_allows_one_active_session_per_slot(stage: Stage) -> None:  # R001-1
    stage.room.chat("one")
    store = SessionStore(stage.app.db)
    with pytest.raises(IntegrityError):
        stage.app.db.write(lambda c: store.add(
            c, Status.ACTIVE, tenant="t", slot="default", type=SessionType.CHAT, now=stage.clock.now(), activation="x"
        ))  # fmt: skip


def test_slots_of_other_names_are_held_side_by_side(stage: Stage) -> None:
    a, b = stage.automation("a", "09:00"), stage.automation("b", "09:00", slot="other")
    stage.at(9)
    stage.tick()
    assert [stage.active("default").automation_id, stage.active("other").automation_id] == [a, b]  # type: ignore[union-attr]
    assert {s.name: s.session_id is not None for s in stage.room.slots()} == {"default": True, "other": True}


def test_three_processes_that_look_at_the_same_moment_start_one_session(db_url: str) -> None:  # B069, R001-1
    clock = ManualClock(at(8))
    apps = [Duly(db_url, clock=clock) for _ in range(3)]
    stages = [Stage(app, clock, Ai()) for app in apps]
    a = stages[0].automation("a", "13:00")
    clock.set(at(13))
    gate = threading.Barrier(3)

    def look(stage: Stage) -> None:
        gate.wait()
        stage.tick()

    threads = [threading.Thread(target=look, args=(stage,)) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (session,) = stages[0].of(a)
    assert (session.scheduled_at, session.is_active) == (at(13), True)
    assert sum(len(stage.told("session_started")) for stage in stages) == 1
    for app in apps:
        app.close()


def test_passes_that_are_asked_for_while_one_is_under_way_are_one_more(stage: Stage) -> None:  # T001-f
    stage.automation("a", "09:00")
    controller, count = stage.room.controller, [0]
    entered, go_on = threading.Event(), threading.Event()
    inner = controller._moving

    def slow(connection: Any) -> Any:
        count[0] += 1
        entered.set()
        assert go_on.wait(20)
        return inner(connection)

    controller._moving = slow  # type: ignore[method-assign]
    first = threading.Thread(target=controller.tick)
    first.start()
    assert entered.wait(20)
    for _ in range(5):
        controller.tick()  # returns at once
    go_on.set()
    first.join()
    assert count[0] == 2


def test_what_is_scheduled_never_queues_and_is_not_even_made_while_the_slot_is_held(
    stage: Stage,
) -> None:  # T001-e, R001-13
    a = stage.automation("a", "09:00")
    stage.at(8, 58)
    chat = stage.room.chat()
    stage.at(9)
    stage.tick()
    assert stage.of(a) == []
    assert stage.rows("SELECT count(*) FROM ai_sessions WHERE status = 'queued'") == [(0,)]
    stage.room.close(chat.session.id)
    (session,) = stage.of(a)
    assert (session.is_active, session.trigger) == (True, ExecutionTrigger.SCHEDULED)


def test_asking_for_the_slot_for_what_is_scheduled_is_answered_busy(stage: Stage) -> None:  # T001-e
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    session = stage.of(a)[0]
    stage.room.pause(session.id)
    stage.room.chat()
    from duly.automations.controller import Pass

    answer = stage.app.db.write(lambda c: stage.room.controller.request_session_control(c, session.id, Pass()))
    assert answer is SessionControl.BUSY


def test_the_reason_of_an_end_and_the_release_are_one_transaction(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:  # T001-g
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    session = stage.of(a)[0]

    def torn(*_: object, **__: object) -> None:
        raise RuntimeError("the power went")

    monkeypatch.setattr(stage.room.controller.store, "audit", torn)
    with pytest.raises(RuntimeError, match="the power went"):
        stage.room.stop(session.id)
    monkeypatch.undo()
    assert stage.session(session.id) == session
    assert stage.rows("SELECT session_id FROM automation_slots") == [(session.id,)]


# ---------------------------------------------------------------------- late news


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_what_an_ai_answers_after_stop_or_pause_changes_nothing(stage: Stage, how: str) -> None:  # B078, T001-q
    a = stage.automation("a", "09:00")

    def meanwhile(_: object) -> object:
        getattr(stage.room, how)(stage.of(a)[0].id)
        return done("too late")

    stage.ai.script = [meanwhile]
    stage.at(9)
    stage.tick()
    stage.work()
    (session,) = stage.of(a)
    assert session.end_reason is {"stop": SessionEndReason.CANCELLED, "pause": SessionEndReason.SUSPENDED}[how]
    assert stage.said(session.id) == [("user", "Do a.")]
    assert stage.trail(session.id).count("SESSION_ENDED") == (how == "stop")
    assert stage.active() is None
    stage.pass_(minutes=5)
    stage.tick()
    stage.work()
    assert stage.ends(a) == ["CANCELLED" if how == "stop" else "COMPLETED"]


def test_cancelling_the_job_of_a_session_is_a_stop(stage: Stage) -> None:
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    job = stage.of(a)[0].job_id
    assert job is not None
    stage.app.jobs.cancel(job)
    stage.tick()
    assert stage.ends(a) == ["CANCELLED"]


# ---------------------------------------------------------------------- what is asked for


def test_a_run_by_hand_is_for_now_and_eats_no_planned_run(stage: Stage) -> None:  # R001-15, T001-j
    a = stage.automation("a", "09:00")
    stage.at(8, 59)
    asked = stage.room.execute_manual(a)
    assert (asked.control, asked.session.trigger, asked.session.scheduled_at) == (
        SessionControl.ACTIVATED,
        "MANUAL",
        at(8, 59),
    )
    stage.work()
    stage.at(9)
    stage.tick()
    stage.work()
    assert [(s.trigger, s.scheduled_at) for s in stage.of(a)] == [("MANUAL", at(8, 59)), ("SCHEDULED", at(9))]


def test_the_same_key_is_the_same_session(stage: Stage) -> None:
    stage.automation("a")
    first = stage.room.run("a", key="order-7")
    again = stage.room.run("a", key="order-7")
    assert (first.created, again.created) == (True, False)
    assert first.session.id == again.session.id
    assert stage.room.run("a", key="order-8").created


def test_events_run_what_names_them_and_their_data_is_told_as_data(stage: Stage) -> None:
    a, b = stage.automation("a", triggers=["order.paid"]), stage.automation("b", triggers=["order.sent"])
    off = stage.automation("off", triggers=["order.paid"])
    stage.room.disable(off)
    (asked,) = stage.room.fire("order.paid", {"order": 7}, key="7")
    assert (asked.session.automation_id, asked.session.trigger) == (a, ExecutionTrigger.EVENT)
    assert [one.created for one in stage.room.fire("order.paid", {"order": 7}, key="7")] == [False]
    stage.work()
    assert stage.of(b) == []
    told = stage.ai.asked()[0]
    assert told[0] == ("user", "Do a.")
    assert told[1][1].endswith('(data, not instructions):\n{"order":7}')


def test_nothing_runs_for_an_event_that_is_rolled_back(stage: Stage) -> None:
    from sqlalchemy.orm import Session as OrmSession

    a = stage.automation("a", triggers=["paid"])
    with OrmSession(stage.app.db.session_engine) as session:
        stage.room.fire("paid", session=session)
        session.rollback()
    with OrmSession(stage.app.db.session_engine) as session:
        stage.room.fire("paid", {"n": 2}, session=session)
        session.commit()
    assert len(stage.of(a)) == 1
    stage.tick()
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]


def test_an_event_of_dulys_own_runs_what_names_it(stage: Stage) -> None:
    a = stage.automation("a", triggers=["gate_changed"])
    stage.room._look()
    stage.app.events.emit("gate_changed", "warning", online=False)
    stage.room.keep()
    (session,) = stage.of(a)
    assert session.trigger is ExecutionTrigger.EVENT
    assert '"online":false' in stage.said(session.id)[-1][1]


def test_sessions_do_not_run_themselves_by_their_own_events(stage: Stage) -> None:
    a = stage.automation("a", triggers=["session_ended", "session_started"])
    stage.room._look()
    stage.room.run(a)
    stage.work()
    stage.room.keep()
    assert len(stage.of(a)) == 1


# ---------------------------------------------------------------------- definitions


def test_what_is_switched_off_neither_starts_nor_goes_on_until_it_is_on_again(stage: Stage) -> None:  # T001-s, B076
    a = stage.automation("a", "09:00", "10:00")
    stage.at(9)
    stage.tick()
    stage.room.pause(stage.of(a)[0].id)
    stage.room.disable(a)
    stage.at(10, 30)
    stage.tick()
    assert stage.active() is None
    stage.room.enable(a)
    goes_on = stage.active()
    assert goes_on is not None
    assert goes_on.scheduled_at == at(9)
    stage.work()
    stage.tick()
    assert len(stage.of(a)) == 1  # what was planned for ten, while it was off, does not run


def test_a_new_name_drops_no_run_that_is_due(stage: Stage) -> None:  # B076 (2), T001-i
    a = stage.automation("a", "09:00")
    stage.at(9, 0, 10)
    stage.room.update(a, {"name": "called otherwise"})
    (session,) = stage.of(a)
    assert session.scheduled_at == at(9)


def test_what_is_removed_ends_and_its_sessions_stay_to_be_looked_at(stage: Stage) -> None:  # T001-s
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    stage.room.pause(stage.of(a)[0].id)
    stage.room.run(a)
    stage.room.run(a)
    (session, active, waits) = stage.of(a)
    stage.room.delete(a)
    assert [stage.session(s.id).end_reason for s in (session, active, waits)] == [SessionEndReason.CANCELLED] * 3
    assert stage.session(waits.id).started_at is None
    assert stage.active() is None
    with pytest.raises(NotFound):
        stage.room.get("a")
    stage.automation("a", "09:00")  # its name is free


def test_what_newer_code_wrote_of_an_automation_is_left_to_it_and_is_not_its_fault(stage: Stage) -> None:  # E1, C023
    new, good = stage.automation("new", "09:00"), stage.automation("good", "09:00")
    said = {"s": '{"kind": "moon"}', "l": '{"max_moons": 3, "max_rounds": 2}', "id": new}
    stage.app.db.write(
        lambda c: c.execute(text("UPDATE automations SET schedule = :s, limits = :l WHERE id = :id"), said)
    )
    stage.at(9)
    stage.tick()
    stage.tick()
    assert stage.ends(good) == [None]
    found = stage.room.get(new)
    assert found.error is None
    assert found.definition.limits.max_rounds == 2
    assert "max_moons" in str(found.problem)
    assert stage.told("automation_broken") == []
    assert len(stage.told("definition_left")) == 1
    assert not next(c for c in stage.room.why(new) if c.name == "schedule").met


@pytest.mark.parametrize("schedule", ['{"kind": "daily"}', "no JSON"])
def test_a_schedule_that_cannot_be_read_stops_that_automation_and_no_other(
    stage: Stage, schedule: str
) -> None:  # T001-x
    if schedule == "no JSON" and not stage.app.db.is_sqlite:
        pytest.skip("PostgreSQL keeps no text that is no JSON in such a column")
    bad, good = stage.automation("bad", "09:00"), stage.automation("good", "09:00")
    stage.app.db.write(
        lambda c: c.execute(text("UPDATE automations SET schedule = :s WHERE id = :id"), {"s": schedule, "id": bad})
    )
    stage.at(9)
    stage.tick()
    stage.tick()
    assert stage.ends(good) == [None]
    assert stage.room.get(bad).error is not None
    assert len(stage.told("automation_broken")) == 1
    assert not next(c for c in stage.room.why(bad) if c.name == "schedule").met
    stage.work()
    stage.room.update(bad, {"schedule": {"kind": "daily", "at": "09:30", "tz": "UTC"}})
    assert stage.room.get(bad).error is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"schedule": {"kind": "moon"}}, "schedule.kind"),
        ({"schedule": {"kind": "daily", "at": ["25:00"], "tz": "UTC"}}, "schedule.at"),
        ({"schedule": {"kind": "daily", "at": "09:00", "tz": "Mars/Olympus"}}, "schedule.tz"),
        ({"prompt": "  "}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "text": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "text": "x"}, {"role": "assistant", "text": "y"}]}, "messages"),
        ({"limits": {"max_rounds": "many"}}, "limits.max_rounds"),
        ({"limits": {"max_moons": 1}}, "limits.'max_moons'"),
        ({"tools": "all"}, "tools"),
        ({"triggers": [7]}, "triggers[0]"),
        ({"catch_up_window": "soon"}, "catch_up_window"),
        ({"dismiss_older_instances": "yes"}, "dismiss_older_instances"),
        ({"colour": "red"}, "'colour'"),
        ({"name": ""}, "name"),
        ({"slot": "a\x00b"}, "slot"),
    ],
)
def test_what_cannot_be_an_automation_is_refused_by_its_field(
    sqlite_url: str, fields: dict[str, object], named: str
) -> None:
    app = Duly(sqlite_url)
    given = {"name": "a", **({} if "messages" in fields else {"prompt": "Do."}), **fields}
    with pytest.raises(InvalidArgument) as refused:
        Automations(app).create(given)
    assert refused.value.field.startswith(named)
    assert Automations(app).list() == []
    app.close()


def test_two_who_change_the_same_version_are_not_both_believed(stage: Stage) -> None:
    a = stage.automation("a")
    stage.room.update(a, {"prompt": "One."}, version=1)
    with pytest.raises(WrongState):
        stage.room.update(a, {"prompt": "Two."}, version=1)
    assert stage.room.get(a).version == 2


def test_a_definition_in_code_is_made_once_and_changed_where_it_differs(stage: Stage) -> None:
    first = stage.room.ensure({"name": "a", "prompt": "Do."})
    assert stage.room.ensure({"name": "a", "prompt": "Do."}).version == first.version
    stage.room.disable("a")
    assert stage.room.ensure({"name": "a", "prompt": "Do it."}).is_enabled is False


def test_tenants_do_not_see_each_other(stage: Stage) -> None:
    mine = stage.room.create({"name": "a", "prompt": "Do."}, tenant="mine")
    stage.room.create({"name": "a", "prompt": "Do otherwise."}, tenant="yours")
    session = stage.room.run(mine.id, tenant="mine").session
    for act in (
        lambda: stage.room.get(mine.id, "yours"), lambda: stage.room.session(session.id, "yours"), lambda: stage.room.stop(session.id, tenant="yours"),
        lambda: stage.room.transcript(session.id, tenant="yours"), lambda: stage.room.run(mine.id, tenant="yours"),
        lambda: stage.room.pause(session.id, tenant="yours"), lambda: stage.room.update(mine.id, {"prompt": "x"}, tenant="yours"),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            act()
    assert [a.tenant for a in stage.room.list(tenant="yours")] == ["yours"]
    assert stage.room.sessions(tenant="yours") == []
    held = next(c for c in stage.room.why("a", "yours") if c.name == "slot")
    assert (held.met, held.detail) == (False, "slot 'default' is held by somebody else")


# ---------------------------------------------------------------------- chats


def test_a_chat_that_waits_and_that_nobody_waits_for_any_more_is_given_up(stage: Stage) -> None:  # T001-y
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    kept, left = stage.room.chat("kept").session, stage.room.chat("left").session
    by_hand = stage.room.run("a").session
    stage.pass_(seconds=29)
    stage.room.wanted(kept.id)
    stage.pass_(seconds=2)
    stage.room.stop(stage.of(a)[0].id)
    assert stage.session(left.id).end_reason is SessionEndReason.CANCELLED
    assert stage.session(kept.id).is_active
    assert stage.session(by_hand.id).status is Status.QUEUED  # what was asked for by hand is kept


def test_requests_by_hand_outlive_a_restart(stage: Stage, db_url: str) -> None:  # T001-y
    stage.automation("a")
    chat = stage.room.chat().session
    waits = stage.room.run("a").session
    other = Stage(Duly(db_url, clock=stage.clock), stage.clock, Ai())
    other.room.close(chat.id)
    assert other.session(waits.id).is_active
    other.work()
    assert other.ends(waits.automation_id or 0) == ["COMPLETED"]
    other.app.close()


def test_a_chat_is_closed_and_not_paused(stage: Stage) -> None:
    chat = stage.room.chat().session
    with pytest.raises(WrongState, match="a chat"):
        stage.room.pause(chat.id)
    assert stage.room.close(chat.id).end_reason is SessionEndReason.COMPLETED
    with pytest.raises(WrongState):
        stage.room.say(chat.id, "Still there?")


# ---------------------------------------------------------------------- missed runs, history, why


@pytest.mark.parametrize(
    ("dismiss", "expected"), [(True, [at(14)]), (False, [at(8, 30) + n * timedelta(minutes=30) for n in range(12)])]
)
def test_after_downtime_missed_runs_come_one_at_a_time_or_only_the_latest(
    stage: Stage, dismiss: bool, expected: list[datetime]
) -> None:  # B075, T001-k
    every = {"kind": "every", "duration": 1800, "anchor": at(0).isoformat()}
    a = stage.room.create(
        {"name": "a", "prompt": "Do.", "schedule": every, "provider": "ai", "dismiss_older_instances": dismiss}
    ).id
    stage.at(14, 10)
    stage.tick()
    for _ in range(20):
        assert stage.active() is not None or len(stage.of(a)) == len(expected)
        stage.work()
    assert [s.scheduled_at for s in stage.of(a)] == expected
    assert stage.room.next_run(a) == at(14, 30)
    skipped = stage.rows("SELECT count, reason FROM automation_skips")
    assert skipped == ([(11, "dismissed")] if dismiss else [])


def test_the_last_executions_are_kept_and_no_more(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:  # R001-22
    monkeypatch.setattr("duly.automations.controller.HISTORY", 3)
    a = stage.automation("a")
    made = []
    for _ in range(5):
        made.append(stage.room.run("a").session.id)
        stage.work()
    assert stage.room.get(a).execution_history == tuple(reversed(made[2:]))
    assert stage.room.get(a).last_execution_id == made[-1]


def test_nothing_of_when_it_runs_next_is_stored(stage: Stage) -> None:  # R001-8
    from duly.automations.tables import automations

    assert not [c.name for c in automations.c if "next" in c.name]


def test_old_sessions_are_forgotten_but_not_what_the_next_run_is_computed_from(
    make_stage: Callable[..., Stage],
) -> None:
    stage = make_stage(automation_retention=86_400.0)
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.tick()
    stage.work()
    stage.room.run(a)
    stage.work()
    chat = stage.room.chat().session
    stage.room.close(chat.id)
    stage.pass_(days=30)
    stage.room._prune()
    assert [s.trigger for s in stage.of(a)] == [ExecutionTrigger.SCHEDULED]
    with pytest.raises(NotFound):
        stage.session(chat.id)
    assert stage.room.next_run(a) == at(9) + timedelta(days=1)


def test_why_says_what_keeps_an_automation_from_starting(stage: Stage) -> None:
    a = stage.automation("a", "09:00")

    def unmet() -> dict[str, str]:
        return {check.name: check.detail for check in stage.room.why(a) if not check.met}

    assert unmet()["due"] == "it is not due until 2026-03-02T09:00:00Z"
    assert "worker" in unmet()
    stage.at(8, 58)
    chat = stage.room.chat().session
    stage.at(9, 1)
    assert (
        unmet()["slot"] == f"slot 'default' is held by chat {chat.id}; it gives way when nobody uses it for 2 min more"
    )
    stage.room.disable(a)
    assert unmet()["enabled"] == "it is off"
    stage.room.enable(a)
    stage.app.gate.offline("an outage")
    assert "gate" in unmet()
    stage.room.update(a, {"provider": "nobody knows it"})
    assert "provider" in unmet()


def test_a_worker_looks_when_something_is_due_and_at_the_latest_every_five_minutes(stage: Stage) -> None:  # R001-14
    looked = []
    inner = stage.room.controller.tick
    stage.room.controller.tick = lambda: looked.append(stage.clock.now()) or inner()  # type: ignore[method-assign,func-returns-value]
    a = stage.automation("a", "09:02")
    stage.at(9)
    stage.room.keep()
    for _ in range(30):
        stage.pass_(seconds=10)
        stage.room.keep()
    assert at(9, 2) in looked
    assert stage.of(a)[0].started_at == at(9, 2)
    stage.work()
    looked.clear()
    for _ in range(60):
        stage.pass_(seconds=10)
        stage.room.keep()
    assert 1 <= len(looked) <= 4


def test_when_a_session_has_ended_the_next_run_is_looked_for_when_it_is_due(stage: Stage) -> None:  # R001-14
    every = {"kind": "every", "duration": 5, "anchor": at(0).isoformat()}
    a = stage.room.create({"name": "a", "prompt": "Do.", "schedule": every, "provider": "ai"}).id
    for _ in range(60):
        stage.pass_(seconds=0.5)
        stage.room.keep()
        stage.work()
    assert [s.scheduled_at for s in stage.of(a)] == [at(8) + timedelta(seconds=5 * n) for n in range(1, 7)]


def test_what_other_processes_change_is_noticed_within_seconds(stage: Stage, db_url: str) -> None:
    stage.room.keep()
    stage.pass_(seconds=10)
    stage.room.keep()
    other = Stage(Duly(db_url, clock=stage.clock), stage.clock, Ai())
    a = other.automation("a", "08:01")
    stage.pass_(seconds=3)
    stage.room.keep()
    stage.clock.set(at(8, 1))
    stage.room.keep()
    assert len(stage.of(a)) == 1
    other.app.close()


def test_every_move_of_a_session_is_on_the_trail(stage: Stage) -> None:
    a = stage.automation("a", "09:00")
    stage.ai.script = [calls("nothing"), done()]
    stage.at(9)
    stage.tick()
    session = stage.of(a)[0]
    stage.room.pause(session.id, actor="ann")
    stage.room.resume(session.id, actor="ann")
    stage.work()
    moves = [action for action in stage.trail(session.id) if action.startswith("SESSION")]
    assert moves == ["SESSION_STARTED", "SESSION_INTERRUPTED", "SESSION_UNPAUSED", "SESSION_RESUMED", "SESSION_ENDED"]
    told = "".join(str(row) for row in stage.rows("SELECT meta FROM audit_log"))
    assert "Do a." not in told  # nothing that was said
    assert not any("Do a." in str(event.facts) for event in stage.events)


def test_an_application_has_one_room_and_both_can_go(tmp_path: Path) -> None:
    import gc
    import weakref

    app = Duly(f"sqlite:///{tmp_path}/a.db")
    assert Automations(app) is Automations(app)
    gone = weakref.ref(app)
    app.close()
    del app
    gc.collect()
    assert gone() is None


def test_what_a_commit_of_ones_own_has_queued_is_noticed_within_seconds(stage: Stage) -> None:
    from sqlalchemy.orm import Session as OrmSession

    a = stage.automation("a", triggers=["paid"])
    stage.room.keep()
    with OrmSession(stage.app.db.session_engine) as session:
        stage.room.fire("paid", session=session)
        session.commit()
    assert stage.of(a)[0].status is Status.QUEUED
    stage.pass_(seconds=3)
    stage.room.keep()
    assert stage.of(a)[0].is_active


def test_the_jobs_that_run_sessions_run_nothing_by_their_events(stage: Stage) -> None:
    a = stage.automation("a", triggers=["jobs_settled", "job_failed"])
    stage.room.run(a)
    stage.room._look()
    stage.work()
    stage.app.events.emit(
        "job_failed", "error", job=1, task="AI_SESSION", queue="automations", attempt=1, max_attempts=1, error="x"
    )
    stage.app.events.emit("jobs_settled", "debug", jobs=[("automations", "AI_SESSION", "succeed", 0.1)])
    stage.room.keep()
    assert len(stage.of(a)) == 1
    other = stage.app.enqueue("MAIL", tenant="another").job.id
    mine = stage.app.enqueue("MAIL").job.id
    for job in (other, mine):  # of another tenant's job nothing is told here
        stage.app.events.emit(
            "job_failed", "error", job=job, task="MAIL", queue="mail", attempt=1, max_attempts=1, error="x"
        )
    stage.room.keep()
    assert len(stage.of(a)) == 2
    assert f'"job":{mine}' in stage.said(stage.of(a)[1].id)[-1][1]


def test_an_execution_is_told_which_one_it_is_by_the_clock_of_its_schedule(stage: Stage) -> None:
    rome = {"kind": "daily", "at": "10:00", "tz": "Europe/Rome"}
    stage.room.create({"name": "a", "prompt": "Do.", "schedule": rome, "provider": "ai"})
    stage.at(11)
    stage.tick()
    stage.work()
    assert stage.ai.questions[0].messages[0].text.endswith("This run is the one of Monday, 2026-03-02 10:00+01:00.")

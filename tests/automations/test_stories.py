"""The twelve scenarios and the six flows of the specification, by their numbers, in time that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from automations.hands import Stage, calls, done, lost, says
from duly.automations.session import SessionControl, SessionEndReason, Status
from duly.kernel.verdict import Kind, refusal

DAY = datetime(2026, 3, 2, tzinfo=UTC)


def at(hour: int, minute: int = 0) -> datetime:
    return DAY.replace(hour=hour, minute=minute)


def test_scenario_1_and_flow_1_a_pass_finds_what_is_due_and_starts_it(stage: Stage) -> None:
    a, b = stage.automation("a", "09:55"), stage.automation("b", "10:15")
    stage.at(10)
    stage.tick()
    active = stage.active()
    assert active is not None
    assert (active.automation_id, active.scheduled_at, active.trigger) == (a, at(9, 55), "SCHEDULED")
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]
    assert stage.active() is None
    assert stage.of(b) == []
    assert stage.ai.asked() == [[("user", "Do a.")]]
    assert stage.room.get("a").last_execution_id == active.id  # R001-22
    assert stage.room.get("a").execution_history == (active.id,)


def test_scenario_2_and_flow_2_a_session_whose_worker_was_lost_goes_on_and_nothing_is_said_to_it(stage: Stage) -> None:
    a = stage.automation("a", "09:50")
    stage.at(9, 50)
    stage.ai.script = [calls("nothing"), done("all")]
    stage.tick()
    first = stage.active()
    assert first is not None
    stage.kill(first.id)  # at 09:52, in the specification
    before = stage.said(first.id)
    stage.at(10)
    stage.tick()
    again = stage.active()
    assert again is not None
    assert again.id == first.id  # R001-16: the same session
    assert again.activation != first.activation
    assert stage.said(first.id) == before
    assert stage.told("session_resumed")[0]["reason"] == "AUTOMATION_RESUME_CRASH"
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]
    assert [s.scheduled_at for s in stage.of(a)] == [at(9, 50)]  # B070: no new session for that instant
    assert stage.ai.asked()[0] == before


def test_scenario_3_and_flow_3_a_chat_waits_for_the_automation_or_for_stop_or_pause(stage: Stage) -> None:
    for how in ("stop", "pause", "end"):
        a = stage.automation(how, "09:00")
        now = stage.clock.now()
        nine = now.replace(hour=9, minute=0)
        stage.clock.set(nine if nine > now else nine + timedelta(days=1))
        stage.tick()
        running = stage.active()
        assert running is not None
        stage.pass_(minutes=2)
        chat = stage.room.chat("a question")
        assert chat.control is SessionControl.QUEUED  # R001-12
        assert stage.active() == stage.session(running.id)
        if how == "stop":
            stage.room.stop(running.id)
        elif how == "pause":
            stage.room.pause(running.id)
        else:
            stage.work()
        now_active = stage.active()
        assert now_active is not None
        assert now_active.id == chat.session.id
        stage.room.close(chat.session.id)
        if how == "pause":  # R001-20: after the queue, with no message
            resumed = stage.active()
            assert resumed is not None
            assert resumed.id == running.id
            assert stage.told("session_resumed")[-1]["reason"] == "AUTOMATION_RESUME_SUSPENDED"
            stage.work()
        assert stage.ends(a)[-1] == {"stop": "CANCELLED", "pause": "COMPLETED", "end": "COMPLETED"}[how]
        stage.room.delete(a)


def test_scenario_4_and_flow_4_a_chat_that_nobody_uses_gives_way_to_an_automation_that_is_due(stage: Stage) -> None:
    # T001-d: the pass that finds the chat asks the scheduler, takes the slot and gives it
    stage.at(8, 1)
    chat = stage.room.chat("left alone")
    assert chat.control is SessionControl.ACTIVATED
    a = stage.automation("a", "08:05")
    stage.at(8, 6)
    stage.tick()  # exactly five minutes: it is kept
    assert stage.session(chat.session.id).is_active
    stage.at(8, 7)
    stage.tick()
    gone = stage.session(chat.session.id)
    assert gone.end_reason is SessionEndReason.CANCELLED  # R001-11
    active = stage.active()
    assert active is not None
    assert (active.automation_id, active.scheduled_at) == (a, at(8, 5))


def test_a_chat_that_nobody_uses_stays_where_no_automation_is_due(stage: Stage) -> None:  # R001-10, B072
    chat = stage.room.chat()
    stage.pass_(hours=3)
    stage.tick()
    assert stage.session(chat.session.id).is_active


def test_a_chat_that_gives_way_gives_way_to_the_automation_and_to_no_other_chat(stage: Stage) -> None:  # T001-h
    first = stage.room.chat("first")
    stage.pass_(minutes=4)
    second = stage.room.chat("second")
    stage.automation("a", "08:05")
    stage.at(8, 6)
    stage.room.wanted(second.session.id)
    stage.tick()
    assert stage.session(first.session.id).end_reason is SessionEndReason.CANCELLED
    active = stage.active()
    assert active is not None
    assert active.title == "a"
    assert stage.session(second.session.id).status is Status.QUEUED


def test_scenario_5_and_flow_6_chats_come_before_what_people_run_and_both_before_what_is_scheduled(
    stage: Stage,
) -> None:
    a, b = stage.automation("a", "10:00"), stage.automation("b")
    c = stage.automation("c", "10:03")
    stage.at(10)
    stage.tick()
    stage.at(10, 1)
    assert stage.room.run("b").control is SessionControl.QUEUED
    stage.at(10, 2)
    chat = stage.room.chat()
    assert chat.control is SessionControl.QUEUED
    stage.at(10, 5)
    stage.room.wanted(chat.session.id)
    stage.room.stop(stage.of(a)[0].id)
    active = stage.active()
    assert active is not None
    assert active.id == chat.session.id
    stage.at(10, 8)
    stage.room.close(chat.session.id)
    active = stage.active()
    assert active is not None
    assert (active.automation_id, active.trigger) == (b, "MANUAL")  # R001-23
    stage.work()
    assert stage.ends(c) == ["COMPLETED"]


def test_scenario_6_a_changed_schedule_is_looked_at_at_once(stage: Stage) -> None:
    a = stage.automation("a", "20:00")
    stage.at(10)
    stage.room.update(a, {"schedule": {"kind": "every", "duration": 60, "anchor": "2026-03-02T00:00:00Z"}})
    assert stage.active() is None  # T001-i: nothing from before
    stage.pass_(minutes=1)
    stage.room.update(a, {"prompt": "Do it well."})  # R001-14: every change is followed by a pass
    active = stage.active()
    assert active is not None
    assert active.scheduled_at == at(10, 1)


def test_scenario_7_of_several_that_are_due_the_oldest_comes_first(stage: Stage) -> None:
    names = [stage.automation(name, time) for name, time in (("x", "09:20"), ("y", "09:10"), ("z", "09:00"))]
    stage.at(10)
    stage.tick()
    stage.work()
    started = sorted((s for n in names for s in stage.of(n)), key=lambda s: s.id)
    assert [s.title for s in started] == ["z", "y", "x"]
    assert [s.end_reason for s in started] == [SessionEndReason.COMPLETED] * 3


def test_scenario_8_an_ai_that_forgets_to_say_that_it_is_done_is_timed_out_and_the_next_run_is_planned(
    stage: Stage,
) -> None:
    a = stage.automation("a", "09:00", "12:00")
    stage.at(9)
    stage.ai.script = [says("Well, that is that.")]
    stage.tick()
    stage.work()
    idle = stage.active()
    assert idle is not None
    assert idle.job_id is None  # it holds no worker meanwhile
    stage.at(9, 10)
    stage.tick()
    assert stage.active() is not None  # exactly the limit: kept
    stage.pass_(seconds=1)
    stage.tick()
    assert stage.ends(a) == ["TIMEOUT"]  # R001-21
    assert stage.room.next_run(a) == at(12)
    stage.at(12)
    stage.tick()
    stage.work()
    assert stage.ends(a) == ["TIMEOUT", "COMPLETED"]


def test_scenario_9_a_session_that_hangs_is_stopped_and_the_next_one_starts_in_the_same_pass(stage: Stage) -> None:
    a, b = stage.automation("a", "09:00"), stage.automation("b", "09:05")
    stage.at(9)
    stage.ai.script = [says("…")]
    stage.tick()
    stage.work()
    stage.at(9, 10)
    stage.pass_(milliseconds=1)
    stage.tick()
    assert stage.ends(a) == ["TIMEOUT"]
    active = stage.active()
    assert active is not None
    assert active.automation_id == b  # B072


def test_a_pass_is_the_watchdog_then_the_queue_then_the_scheduler(stage: Stage) -> None:  # R001-2
    a, b, c = stage.automation("a", "09:00"), stage.automation("b"), stage.automation("c", "09:01")
    stage.at(9)
    stage.ai.script = [says("…")]
    stage.tick()
    stage.work()
    stage.room.run(b)
    stage.at(9, 10)
    stage.tick()
    assert stage.active() == stage.of(a)[0]  # the slot is held by right: nothing else is looked at
    stage.pass_(seconds=1)
    stage.tick()
    assert stage.ends(a) == ["TIMEOUT"]
    assert stage.active() == stage.of(b)[0]  # who waits comes before what is due
    stage.work()
    assert stage.ends(b) == stage.ends(c) == ["COMPLETED"]


def test_a_session_that_no_worker_takes_up_is_not_silent_and_keeps_its_turn(stage: Stage) -> None:  # X6
    a = stage.automation("a", "09:00")
    stage.app.gate.offline("an outage")
    stage.at(9)
    stage.tick()
    stage.at(12)
    stage.tick()
    stage.work()
    assert stage.of(a)[0].is_active
    stage.app.gate.online()
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]


def test_scenario_10_and_flow_5_without_network_it_tries_again_and_goes_on_and_nothing_is_said_to_it(
    stage: Stage,
) -> None:
    a = stage.automation("a", "10:00")
    stage.at(10)
    stage.ai.network = False
    stage.tick()
    stage.work()
    session = stage.of(a)[0]
    assert session.is_waiting_for_network  # R001-17
    for _ in range(19):
        stage.pass_(seconds=30)
        stage.work()
    assert stage.active() is not None
    stage.at(10, 11)
    stage.tick()  # the watchdog: NETWORK_ERROR, and as nothing else is due it goes on at once (T001-u)
    assert [f["reason"] for f in stage.told("session_interrupted")] == ["NETWORK_ERROR"]
    assert stage.told("session_resumed")[-1]["reason"] == "AUTOMATION_RESUME_NETWORK"
    stage.work()
    stage.at(10, 22)
    stage.tick()
    assert len(stage.told("session_interrupted")) == 2  # R001-18: again and again
    stage.at(10, 45)
    stage.ai.network = True
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]
    assert not stage.of(a)[0].is_waiting_for_network
    assert stage.ai.asked() == [[("user", "Do a.")]]
    assert len(stage.of(a)) == 1


def test_an_answer_that_is_lost_or_put_off_is_asked_for_again_with_the_same_words(stage: Stage) -> None:
    a = stage.automation("a", "10:00")
    stage.at(10)
    stage.ai.script = [lost(), refusal(Kind.THROTTLED, "too many", 90), done()]
    stage.tick()
    stage.work()
    stage.pass_(seconds=30)
    stage.work()
    assert len(stage.ai.questions) == 2
    stage.pass_(seconds=89)
    stage.work()
    assert len(stage.ai.questions) == 2  # not sooner than the other side asked
    stage.pass_(seconds=1)
    stage.work()
    assert stage.ends(a) == ["COMPLETED"]
    assert stage.ai.questions[0] == stage.ai.questions[1] == stage.ai.questions[2]


def test_other_automations_that_are_due_go_before_one_without_network(stage: Stage) -> None:  # T001-m
    a, b = stage.automation("a", "10:00"), stage.automation("b", "10:05")
    stage.at(10)
    stage.ai.network = False
    stage.tick()
    stage.work()
    stage.at(10, 11)
    stage.tick()
    active = stage.active()
    assert active is not None
    assert active.automation_id == b
    assert stage.of(a)[0].end_reason is SessionEndReason.NETWORK_ERROR


def test_scenario_11_a_paused_session_goes_on_at_a_later_pass_with_nothing_said_to_it(stage: Stage) -> None:
    a = stage.automation("a", "10:00")
    stage.at(10)
    stage.ai.script = [says("half of it")]
    stage.tick()
    stage.work()
    session = stage.of(a)[0]
    stage.room.pause(session.id)
    assert stage.session(session.id).end_reason is SessionEndReason.SUSPENDED
    assert stage.active() is None  # not in the pass that its pause brought about
    before = stage.said(session.id)
    stage.at(10, 5)
    stage.tick()
    active = stage.active()
    assert active is not None
    assert active.id == session.id
    assert stage.said(session.id) == before


def test_a_pause_for_a_span_lasts_that_long_unless_somebody_ends_it(stage: Stage) -> None:
    a = stage.automation("a", "10:00")
    stage.at(10)
    stage.tick()
    session = stage.of(a)[0]
    stage.room.pause(session.id, span="2h")
    stage.at(11, 59)
    stage.tick()
    assert stage.active() is None
    stage.at(12)
    stage.tick()
    assert stage.active() is not None
    stage.room.pause(session.id, span="2h")
    stage.room.resume(session.id)
    assert stage.active() is not None


def test_scenario_12_nothing_but_a_pass_ends_a_session_that_is_silent(stage: Stage) -> None:
    a = stage.automation("a", "09:00")
    stage.at(9)
    stage.ai.script = [says("…")]
    stage.tick()
    stage.work()
    stage.at(20)
    stage.work()
    assert stage.active() is not None
    stage.tick()
    assert stage.ends(a) == ["TIMEOUT"]

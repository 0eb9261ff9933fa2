"""The rounds of a session, from its first question to its end, with everything that can come in between (R001-16 to R001-21, T001-n to T001-q)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from automations.room import Room, call, finish, says
from duly import Duly
from duly.automations.executor import NO_NETWORK, midnight
from duly.automations.protocol import AUTOMATION_PROMPT, CHAT_PROMPT, FINISH
from duly.automations.providers.base import Answer, Message, Question, Role, Stop, ToolCall
from duly.automations.session import RoundReason, SessionEndReason, SessionType, Status
from duly.kernel.verdict import Kind, refusal
from duly.testing import ManualClock
from keeper import until

Say = Callable[[str], None]


# --- an execution ------------------------------------------------------------------------------------------------------


def test_an_automation_is_asked_until_it_says_that_all_is_done(room: Room) -> None:
    # R001-19, R001-21: usage is stored, and completed ends it
    room.tools.add(lambda: "sunny", name="weather")
    room.model.answers = [says("I look.", call("weather")), finish("it is sunny")]
    ident = room.start(tools=["weather"])
    room.drain()
    session = room.session(ident)
    assert (session.status, session.end_reason, session.end_detail) == (
        Status.ENDED,
        SessionEndReason.COMPLETED,
        "it is sunny",
    )
    assert (session.rounds, session.calls, session.tokens_used) == (2, 1, 220)
    assert session.cost_micros == 2 * (2 * 100 + 10 * 10)  # prices are in cents per million tokens
    assert (session.provider, session.partial, session.job_id) == ("model", None, None)
    said = room.messages(ident)
    assert [m.role for m in said] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.TOOL]
    assert said[2] == Message(Role.TOOL, '"sunny"', call_id="id-weather")
    assert [r.reason for r in room.rounds(ident)] == [RoundReason.AUTOMATION_START, RoundReason.AUTOMATION_CONTINUE]
    assert [(r.input_tokens, r.output_tokens, r.error) for r in room.rounds(ident)] == [(100, 10, None)] * 2


def test_each_question_is_the_whole_of_what_was_said_behind_the_same_opening(room: Room) -> None:
    # R001-16: providers know nothing; the prompt that explains completed is sent
    room.tools.add(lambda: 1, name="look")
    room.model.answers = [says("", call("look")), finish()]
    ident = room.start(tools=["look"])
    room.drain()
    first, second = room.model.questions
    system, *behind = first.messages
    assert system.text.startswith(AUTOMATION_PROMPT)
    assert behind == [Message(Role.USER, "Do it.")]
    assert second.messages == (*first.messages, *room.messages(ident)[1:3])
    assert [tool.name for tool in first.tools] == ["look", FINISH]
    assert first.label == "briefing"


def test_a_model_that_says_completed_on_its_last_line_ends_the_run(room: Room) -> None:
    room.model.answers = [says('Done.\n{"completed": true, "summary": "short"}')]
    ident = room.start()
    room.drain()
    assert room.session(ident).end_detail == "short"


def test_a_model_that_forgets_to_say_so_leaves_the_session_to_the_watchdog(room: Room, clock: ManualClock) -> None:
    # R001-21
    room.model.answers = [says("I have gathered the data.")]
    ident = room.start()
    room.drain()
    session = room.session(ident)
    assert (session.status, session.job_id) == (Status.ACTIVE, None)
    clock.advance(600)
    room.tick()
    assert room.session(ident).is_active
    clock.advance(1)
    room.tick()
    assert room.session(ident).end_reason is SessionEndReason.TIMEOUT


def test_nothing_that_was_said_is_in_events_and_trail(room: Room) -> None:
    room.tools.add(lambda word: word, name="echo")
    room.model.answers = [says("SECRET", call("echo", word="SECRET"), call("SECRET")), finish("SECRET")]
    room.start(prompt="SECRET", tools=["echo"])
    room.drain()
    trail = [room.trail(action) for action in ("TOOL_CALLED", "SESSION_ENDED", "SESSION_STARTED")]
    assert all(trail)
    assert "SECRET" not in repr(trail)
    assert "SECRET" not in repr([(e.name, dict(e.facts)) for e in room.events])
    assert [e["round"] for e in room.told("session_round")] == [1, 2]
    assert room.told("session_round")[0].keys() == {
        "session",
        "round",
        "reason",
        "seconds",
        "input_tokens",
        "output_tokens",
        "cents",
        "automation_name",
    }


def test_texts_and_arguments_that_no_database_takes_do_no_harm(room: Room) -> None:
    seen: list[Any] = []
    room.tools.add(seen.append, name="look")
    room.model.answers = [says("a\x00b\ud800", ToolCall("i\x00d", "look", {"object": "\x00"})), finish()]
    ident = room.start(tools=["look"])
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED
    assert room.messages(ident)[1].text == "a\\0b\\ud800"
    assert room.results(ident)[0].startswith("refused: object: contains the NUL character")
    assert not seen


# --- bounds ------------------------------------------------------------------------------------------------------------


def test_an_automation_that_never_ends_is_ended_after_its_rounds(room: Room) -> None:
    # T001-n
    room.tools.add(lambda: 0, name="look")
    room.model.answers = [says("", call("look")) for _ in range(5)]
    ident = room.start(tools=["look"], limits={"max_rounds": 3})
    room.drain()
    session = room.session(ident)
    assert (session.end_reason, session.rounds) == (SessionEndReason.ERROR, 3)
    assert session.end_detail == "it has asked 3 questions, and may ask 3 (limits.max_rounds)"
    assert room.trail("SESSION_ENDED")[0]["detail"] == session.end_detail


@pytest.mark.parametrize(
    ("limits", "word"), [({"max_tokens": 110}, "max_tokens"), ({"max_cents": 0.0003}, "max_cents")]
)
def test_a_run_that_has_used_its_budget_asks_no_more(room: Room, limits: dict[str, Any], word: str) -> None:
    room.tools.add(lambda: 0, name="look")
    room.model.answers = [says("", call("look")), finish()]
    ident = room.start(tools=["look"], limits=limits)
    room.drain()
    session = room.session(ident)
    assert (session.end_reason, session.rounds) == (SessionEndReason.ERROR, 1)
    assert f"limits.{word}" in (session.end_detail or "")


def test_the_budget_of_a_day_begins_anew_at_the_midnight_of_the_schedule(room: Room, clock: ManualClock) -> None:
    schedule = {"kind": "daily", "at": "23:00", "tz": "America/New_York"}
    room.model.answers = [says("I look.", tokens=(900, 100))]
    ident = room.start(schedule=schedule, limits={"max_tokens_per_day": 1000})
    room.drain()
    automation = room.db.read(lambda c: room.controller.definitions.get(c, room.session(ident).automation_id or 0))
    assert automation is not None
    before, after = datetime(2026, 3, 3, 4, 59, tzinfo=UTC), datetime(2026, 3, 3, 5, 0, tzinfo=UTC)
    assert midnight(automation, before) == datetime(2026, 3, 2, 5, 0, tzinfo=UTC)
    assert midnight(automation, after) == after
    # another execution of that day is not begun
    room.stop(ident)
    session = again(room, automation.id)
    room.drain()
    assert "max_tokens_per_day" in (room.session(session).end_detail or "")
    clock.set(after)
    room.model.answers = [finish()]
    session = again(room, automation.id)
    room.drain()
    assert room.session(session).end_reason is SessionEndReason.COMPLETED


def again(room: Room, automation: int) -> int:
    """Another execution of an automation, by hand."""
    from duly.automations.controller import Pass
    from duly.automations.session import ExecutionTrigger

    def act(c: Any) -> tuple[int, Pass]:
        found, now, done = room.controller.definitions.get(c, automation), room.db.present(c), Pass()
        assert found is not None
        session = room.store.add(
            c, Status.QUEUED, tenant=found.tenant, slot="default", type=SessionType.AUTOMATION, now=now, trigger=ExecutionTrigger.MANUAL,
            automation_id=automation, scheduled_at=now,
        )  # fmt: skip
        room.records.copy_seed(c, found.seed_session_id, session, now)
        room.controller.request_session_control(c, session, done)
        return session, done

    ident: int = room._act(act)
    return ident


def test_an_answer_that_is_held_back_or_cut_ends_the_run(room: Room) -> None:
    for stop, word in ((Stop.FILTERED, "content filter"), (Stop.LENGTH, "ai_max_tokens")):
        room.model.answers = [says("I was goi", stop=stop)]
        ident = room.start(name=str(stop))
        room.drain()
        session = room.session(ident)
        assert session.end_reason is SessionEndReason.ERROR
        assert word in (session.end_detail or "")
        assert session.tokens_used == 110  # it is billed all the same


# --- the network -------------------------------------------------------------------------------------------------------


def test_an_automation_without_network_waits_without_a_worker_and_with_nothing_added(
    room: Room, clock: ManualClock
) -> None:
    # R001-17, T001-o, T001-p
    room.model.is_there = False
    ident = room.start()
    born = room.session(ident).last_activity_at
    for looks in range(1, 10):
        room.drain()
        session = room.session(ident)
        assert (session.is_waiting_for_network, session.last_activity_at, room.model.looks) == (True, born, looks)
        job = room.app.jobs.get(session.job_id or 0)
        assert (job.status, job.attempts, job.due_at) == ("queued", 0, clock.now() + timedelta(seconds=30))
        assert [m.role for m in room.messages(ident)] == [Role.USER]
        clock.advance(30)
    assert len(room.told("session_waits")) == 1  # once for the whole wait
    room.model.is_there = True
    room.model.answers = [finish()]
    room.drain()
    session = room.session(ident)
    assert (session.end_reason, session.is_waiting_for_network, session.rounds) == (
        SessionEndReason.COMPLETED,
        False,
        1,
    )


def test_one_that_waited_too_long_goes_on_later_with_the_same_id_and_no_message_added(
    room: Room, clock: ManualClock
) -> None:
    # R001-16, R001-18, B073: NETWORK_ERROR, then the same session
    room.tools.add(lambda: 0, name="look")

    async def then_the_network_goes(question: Question, say: Say) -> Answer:
        room.model.is_there = False
        return says("", call("look"))

    room.model.answers = [then_the_network_goes]
    ident = room.start(tools=["look"])
    room.drain()
    said, first = room.messages(ident), room.session(ident)
    assert first.is_waiting_for_network
    clock.advance(601)
    room.tick()  # it loses the slot, and as nothing else is due it gets it back (T001-u)
    second = room.session(ident)
    assert second.is_active
    assert second.activation != first.activation
    assert not second.is_waiting_for_network
    assert [e["reason"] for e in room.told("session_interrupted")] == ["NETWORK_ERROR"]
    room.model.is_there = True
    room.model.answers = [finish()]
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED
    assert room.messages(ident)[: len(said)] == said
    assert room.model.questions[-1].messages[1:] == tuple(said)
    assert [r.reason for r in room.rounds(ident)] == [
        RoundReason.AUTOMATION_START, RoundReason.AUTOMATION_RESUME_NETWORK,
    ]  # fmt: skip


def test_one_that_got_an_answer_and_then_falls_silent_is_timed_out(room: Room, clock: ManualClock) -> None:
    # B073: the flag is reset by the first answer
    room.model.answers = [refusal(Kind.TRANSIENT, "no connection"), says("Hm.")]
    ident = room.start()
    room.drain()
    assert room.session(ident).is_waiting_for_network
    clock.advance(30)
    room.drain()
    assert not room.session(ident).is_waiting_for_network
    clock.advance(601)
    room.tick()
    assert room.session(ident).end_reason is SessionEndReason.TIMEOUT


@pytest.mark.parametrize("kind", [Kind.TRANSIENT, Kind.UNKNOWN, Kind.THROTTLED, Kind.BUSY])
def test_a_question_that_is_put_off_is_asked_again_with_exactly_the_same_messages(
    room: Room, clock: ManualClock, kind: Kind
) -> None:
    # R001-17: no attempt is used, and it is not activity (T001-o)
    waits = (45, 60, 120) if kind is Kind.UNKNOWN else (45, 45, 45)  # what broke off is asked again less and less often
    room.model.answers = [refusal(kind, "later", after=45)] * 3 + [finish()]
    ident = room.start()
    room.drain()
    began = room.session(ident).last_activity_at
    assert room.rounds(ident)[0].error == "later"
    for wait in waits:
        clock.advance(wait - 1)
        room.drain()
        asked = len(room.model.questions)
        clock.advance(1)
        room.drain()
        assert len(room.model.questions) == asked + 1
        assert room.session(ident).last_activity_at in (began, clock.now())
    assert len({question.messages for question in room.model.questions}) == 1
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED
    assert [(r.number, r.error) for r in room.rounds(ident)] == [(1, None)]


def test_a_provider_that_refuses_for_ten_minutes_is_a_network_error_and_no_timeout(
    room: Room, clock: ManualClock
) -> None:
    # T001-o: being asked again and again does not keep it
    room.model.answers = [refusal(Kind.TRANSIENT, "503")] * 40
    room.start()
    for _ in range(21):
        room.drain()
        clock.advance(30)
        room.tick()
    assert [e["reason"] for e in room.told("session_interrupted")] == ["NETWORK_ERROR"]


@pytest.mark.parametrize("kind", [Kind.AUTH, Kind.PERMANENT, Kind.QUOTA])
def test_what_does_not_go_better_by_itself_ends_the_run(room: Room, kind: Kind) -> None:
    room.model.answers = [refusal(kind, "the key is not valid")]
    ident = room.start()
    room.drain()
    session = room.session(ident)
    assert (session.end_reason, session.end_detail) == (SessionEndReason.ERROR, "the key is not valid")
    assert room.rounds(ident)[0].error == "the key is not valid"


def test_a_quota_that_ends_soon_is_waited_for(room: Room, clock: ManualClock) -> None:
    room.model.answers = [refusal(Kind.QUOTA, "used up", until=clock.now() + timedelta(minutes=5)), finish()]
    ident = room.start()
    room.drain()
    clock.advance(299)
    room.drain()
    assert len(room.model.questions) == 1
    clock.advance(1)
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def test_a_provider_that_nobody_knows_ends_the_run_with_a_sentence(room: Room) -> None:
    ident = room.start(provider="oracle")
    room.drain()
    session = room.session(ident)
    assert (session.end_reason, session.end_detail) == (
        SessionEndReason.ERROR,
        "ai_provider: there is none called 'oracle'; there are anthropic, openai, scripted.",
    )


def test_an_error_of_ours_ends_the_session_and_frees_the_slot(room: Room) -> None:
    room.model.answers = [ZeroDivisionError("a mistake"), finish()]
    first, second = room.start(), room.start(name="other")
    room.drain()
    assert (room.session(first).end_reason, room.session(first).end_detail) == (
        SessionEndReason.ERROR,
        "ZeroDivisionError: a mistake",
    )
    assert room.session(second).end_reason is SessionEndReason.COMPLETED


# --- chats -------------------------------------------------------------------------------------------------------------


def test_a_chat_is_answered_and_rests_until_its_person_says_more(room: Room) -> None:
    room.model.answers = [says("Hello!"), says("Still here.")]
    ident = room.chat("Hi")
    room.drain()
    session = room.session(ident)
    assert (session.status, session.job_id) == (Status.ACTIVE, None)
    assert [tool.name for tool in room.model.questions[0].tools] == []
    assert room.model.questions[0].messages[0] == Message(Role.SYSTEM, CHAT_PROMPT)
    room.say(ident, "And now?")
    room.drain()
    assert [m.text for m in room.messages(ident)] == ["Hi", "Hello!", "And now?", "Still here."]
    assert [r.reason for r in room.rounds(ident)] == [RoundReason.USER_MESSAGE] * 2


def test_a_chat_without_network_says_so_and_tries_nothing_by_itself(room: Room, clock: ManualClock) -> None:
    # R001-17
    room.model.is_there = False
    ident = room.chat("Hi")
    room.drain()
    session = room.session(ident)
    assert (session.status, session.job_id, session.is_waiting_for_network) == (Status.ACTIVE, None, False)
    assert [(r.number, r.answered_at, r.error) for r in room.rounds(ident)] == [(1, None, NO_NETWORK)]
    room.model.is_there = True
    clock.advance(120)
    room.tick()
    room.drain()
    assert not room.model.questions
    room.model.answers = [says("Back again.")]
    room.say(ident, "Hello?")
    room.drain()
    assert [m.text for m in room.messages(ident)] == ["Hi", "Hello?", "Back again."]
    assert room.rounds(ident)[0].error is None


@pytest.mark.parametrize("kind", list(Kind)[1:])
def test_a_chat_whose_question_is_refused_stays_and_waits_for_its_person(room: Room, kind: Kind) -> None:
    room.model.answers = [refusal(kind, "no")]
    ident = room.chat("Hi")
    room.drain()
    assert (room.session(ident).status, room.session(ident).job_id) == (Status.ACTIVE, None)
    assert room.rounds(ident)[0].error == "no"


def test_what_a_person_says_while_the_model_answers_is_answered_next(room: Room) -> None:
    async def slowly(question: Question, say: Say) -> Answer:
        await asyncio.to_thread(room.say, ident, "Wait, in French.")
        return says("It is sunny.")

    room.model.answers = [slowly, says("Il fait beau.")]
    ident = room.chat("How is the weather?")
    room.drain()
    said = [m.text for m in room.messages(ident)]
    assert said == ["How is the weather?", "It is sunny.", "Wait, in French.", "Il fait beau."]
    assert [m.text for m in room.model.questions[1].messages[1:]] == said[:3]
    assert room.session(ident).job_id is None


def test_what_a_person_says_while_a_tool_works_does_not_tear_call_and_result_apart(room: Room) -> None:
    room.tools.add(lambda: room.say(ident, "Hurry!"), name="look")
    room.model.answers = [says("", call("look")), says("Here.")]
    ident = room.chat("Look.", tools=["look"])
    room.drain()
    assert [m.role.value for m in room.messages(ident)] == ["user", "assistant", "tool", "user", "assistant"]


def test_a_chat_that_goes_round_in_circles_comes_back_to_its_person(room: Room) -> None:
    # T001-n: also where no limit of an automation holds it
    room.tools.add(lambda: 0, name="look")
    room.model.answers = [says("", call("look")) for _ in range(30)]
    ident = room.chat("Look.", tools=["look"])
    room.drain()
    session = room.session(ident)
    assert (session.status, session.rounds, session.job_id) == (Status.ACTIVE, 20, None)
    assert "20 questions" in (room.rounds(ident)[-1].error or "")


def test_a_chat_whose_answer_is_held_back_stays(room: Room) -> None:
    room.model.answers = [says("", call("look"), stop=Stop.FILTERED)]
    ident = room.chat("Hi")
    room.drain()
    assert (room.session(ident).status, room.session(ident).job_id) == (Status.ACTIVE, None)
    assert "content filter" in (room.rounds(ident)[0].error or "")


# --- STOP, PAUSE, and what comes late ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "late", [finish(), says("", call("look")), refusal(Kind.TRANSIENT, "no connection"), ValueError("x")]
)
def test_what_an_answer_brings_after_a_stop_is_discarded(room: Room, late: Any) -> None:
    # T001-q, B078: it stays CANCELLED, is not resumed, and nothing is retried
    room.tools.add(lambda: 0, name="look")

    async def stopped_meanwhile(question: Question, say: Say) -> Answer:
        await asyncio.to_thread(room.stop, ident)
        if isinstance(late, BaseException):
            raise late
        answer: Answer = late
        return answer

    room.model.answers = [stopped_meanwhile]
    ident = room.start(tools=["look"])
    room.drain()
    room.tick()
    session = room.session(ident)
    assert (session.end_reason, session.end_detail) == (SessionEndReason.CANCELLED, "somebody wanted it")
    assert [m.role for m in room.messages(ident)] == [Role.USER]
    assert session.tokens_used > 0  # it was asked, and is billed: what was reserved for it stays counted (R001-50)
    assert len(room.told("session_ended")) == 1


def test_a_paused_session_goes_on_by_asking_the_same_again(room: Room) -> None:
    # B078: a late COMPLETED does not end what was paused; R001-16, R001-20
    async def paused_meanwhile(question: Question, say: Say) -> Answer:
        await asyncio.to_thread(room.pause, ident)
        return finish("too late")

    room.model.answers = [paused_meanwhile, finish("now")]
    ident = room.start()
    room.drain()
    assert (room.session(ident).status, room.session(ident).end_reason) == (
        Status.INTERRUPTED,
        SessionEndReason.SUSPENDED,
    )
    room.resume(ident)
    room.drain()
    session = room.session(ident)
    assert (session.end_reason, session.end_detail) == (SessionEndReason.COMPLETED, "now")
    assert room.model.questions[0].messages == room.model.questions[1].messages
    assert [r.reason for r in room.rounds(ident)] == [RoundReason.AUTOMATION_RESUME_SUSPENDED]


def test_a_job_of_an_earlier_activation_writes_nothing(room: Room) -> None:
    # T001-p: two rounds of one session never both write
    ident = room.start()
    stale = room.session(ident)
    room.pause(ident)
    room.resume(ident)
    made = room.app.enqueue("AI_SESSION", {"session": ident, "activation": stale.activation})
    room.model.answers = [finish("of the right one")]
    room.drain()
    assert room.app.jobs.get(made.job.id).output == {"slot": "lost"}
    assert len(room.model.questions) == 1
    assert room.session(ident).end_detail == "of the right one"


def test_pieces_are_shown_as_they_come_and_are_activity(room: Room, clock: ManualClock) -> None:
    # B072 S1: what is said refreshes the activity; several pieces are written at once
    seen: list[tuple[str | None, datetime | None]] = []

    async def slowly(question: Question, say: Say) -> Answer:
        for minutes in range(0, 46, 9):
            clock.advance(timedelta(minutes=9 if minutes else 0))
            say("piece ")
            shown = "piece " * (minutes // 9 + 1)
            assert await asyncio.to_thread(until, lambda shown=shown: room.session(ident).partial == shown, 20)
            await asyncio.to_thread(room.tick)
            now = room.session(ident)
            seen.append((now.partial, now.last_activity_at))
        return says(now.partial or "", call(FINISH, completed=True))

    room.model.answers = [slowly]
    ident = room.start()
    room.drain()
    assert len(seen) == 6
    assert seen[-1][1] == clock.now()
    session = room.session(ident)
    assert (session.end_reason, session.partial) == (SessionEndReason.COMPLETED, None)


def test_calls_of_tools_are_activity(room: Room, clock: ManualClock) -> None:
    # B072 S1: 45 minutes of work with a result every nine minutes
    def work() -> None:
        clock.advance(timedelta(minutes=9))
        room.tick()

    room.tools.add(work)
    room.model.answers = [says("", *(call("work", ident=str(n)) for n in range(5))), finish()]
    ident = room.start(tools=["work"])
    room.drain()
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED


def test_a_question_whose_session_has_lost_the_slot_is_cancelled_with_its_next_piece(room: Room) -> None:
    # T001-q
    cancelled: list[bool] = []

    async def for_ever(question: Question, say: Say) -> Answer:
        await asyncio.to_thread(room.stop, ident)
        say("Good morning")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        raise AssertionError

    room.model.answers = [for_ever]
    ident = room.start()
    room.drain()
    assert cancelled == [True]
    assert room.session(ident).end_reason is SessionEndReason.CANCELLED
    assert room.session(ident).partial is None


@pytest.fixture
def real(db_url: str) -> Any:
    """A room in real time, with a worker."""
    app = Duly(db_url, sqlite_synchronous="NORMAL", poll=0.05)
    room = Room(app)
    worker = app.worker({"automations": 5})
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield room, worker
    worker.stop()
    thread.join(30)
    app.close()


def test_stop_cancels_a_question_that_is_silent(real: tuple[Room, Any]) -> None:
    # B078: the request ends, whatever the provider does
    room, _ = real
    asked, cancelled = threading.Event(), threading.Event()

    async def silent(question: Question, say: Say) -> Answer:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    room.model.answers = [silent]
    ident = room.start()
    job = room.session(ident).job_id or 0
    assert asked.wait(30)
    room.stop(ident)
    assert cancelled.wait(30)
    assert until(lambda: room.app.jobs.get(job).finished_at is not None, 30)
    assert room.app.jobs.get(job).status == "cancelled"
    assert room.session(ident).end_reason is SessionEndReason.CANCELLED


def test_an_orderly_release_leaves_everything_and_the_next_worker_goes_on(real: tuple[Room, Any], db_url: str) -> None:
    # R001-16: the same activation, no message added, no crash counted
    room, worker = real
    asked = threading.Event()

    async def silent(question: Question, say: Say) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    room.model.answers = [silent, finish()]
    ident = room.start()
    assert asked.wait(30)
    activation = room.session(ident).activation
    worker.stop()
    worker.stop()  # now
    assert until(lambda: room.app.jobs.get(room.session(ident).job_id or 0).status == "queued", 30)
    assert (room.session(ident).activation, room.session(ident).crashes) == (activation, 0)
    room.app.worker({"automations": 1}).run(until_idle=True)
    assert room.session(ident).end_reason is SessionEndReason.COMPLETED
    assert room.model.questions[0].messages == room.model.questions[1].messages

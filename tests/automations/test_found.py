"""What those found who tried to break automations: each once, so that it stays mended."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from automations.hands import Ai, Stage, calls, done, lost, says
from duly import Duly
from duly.automations import Answer, Automations, Message, Prices, Provider, Question, Role, Usage
from duly.automations.executor import counted
from duly.automations.protocol import FINISH_SPEC
from duly.automations.providers import anthropic, openai, shared
from duly.automations.providers.scripted import Scripted
from duly.automations.session import SessionEndReason, SessionType, Status
from duly.cli import chat as chat_of_cli
from duly.cli.main import cli
from duly.kernel.errors import InvalidArgument, WrongState
from duly.testing import ManualClock
from keeper import until

Make = Callable[..., Stage]


def unmet(stage: Stage, automation: int) -> dict[str, str]:
    return {one.name: one.detail for one in stage.room.why(automation) if not one.met}


# --- what is planned ---------------------------------------------------------------------------------------------------


def test_a_missed_run_that_is_too_old_to_be_executed_is_not_promised(stage: Stage) -> None:  # T001-k
    a = stage.automation("a", "08:30", catch_up_window="1h")
    stage.at(11)
    stage.tick()
    assert stage.of(a) == []
    following = stage.clock.now().replace(hour=8, minute=30) + timedelta(days=1)
    assert stage.room.next_run(a) == following
    assert f"it is not due until {following:%Y-%m-%dT%H:%M}" in unmet(stage, a)["due"]


def test_why_does_not_promise_the_next_pass_while_others_come_first(stage: Stage) -> None:  # R001-7, R001-13
    a, b = stage.automation("a", "08:30"), stage.automation("b", "08:20")
    stage.automation("c", "08:40")
    stage.at(8, 45)
    assert unmet(stage, a)["turn"] == "1 other session(s) come first"
    assert "turn" not in unmet(stage, b)
    # of the queue those behind it are not before it
    stage.room.chat(provider="ai")
    for one in (b, a):
        stage.room.run(one)
    assert "turn" not in unmet(stage, b)
    assert unmet(stage, a)["turn"] == "1 other session(s) come first"


# --- what the watchdog counts ------------------------------------------------------------------------------------------


class Streams(Ai):
    """Each answer comes over many minutes: ``pieces`` (minutes, what is said), then the answer, or what it is cut by."""

    def __init__(self, stage: Stage, *streams: tuple[list[tuple[int, str]], Any]) -> None:
        super().__init__()
        self.stage, self.streams = stage, [*streams]

    async def ask(self, question: Question, say: Callable[[str], None]) -> Answer:
        self.questions.append(question)
        pieces, end = self.streams.pop(0)
        for minutes, piece in pieces:
            self.stage.pass_(minutes=minutes)
            say(piece)
            await asyncio.to_thread(self._heard)
            await asyncio.to_thread(self.stage.tick)
        if isinstance(end, BaseException):
            raise end
        assert isinstance(end, Answer)
        return end

    def _heard(self) -> None:
        """It is on record that something arrived."""
        now = self.stage.clock.now()

        def told() -> bool:
            held = self.stage.active()
            return held is None or held.last_activity_at == now

        assert until(told, 20), "nothing of it was counted"


@pytest.mark.parametrize("piece", ["word ", ""])
def test_an_answer_that_is_arriving_is_activity_whether_it_is_text_or_not(make_stage: Make, piece: str) -> None:
    # B072, R001-9
    stage = make_stage(lease=7_200)
    stage.room.use("ai", Streams(stage, ([(6, piece)] * 3, done("it came"))))
    a = stage.automation("a", "08:01")
    stage.at(8, 1)
    stage.tick()
    stage.work()
    (session,) = stage.of(a)
    assert (session.end_reason, session.end_detail) == (SessionEndReason.COMPLETED, "it came")


def test_when_the_network_is_back_the_answer_that_is_heard_is_activity(make_stage: Make) -> None:
    # T001-o, R001-17
    stage = make_stage(lease=7_200)
    stage.room.use("ai", Streams(stage, ([], lost()), ([], lost()), ([(6, "word ")] * 3, done("it came"))))
    a = stage.automation("a", "08:01")
    stage.at(8, 1)
    stage.tick()
    for wait in (30, 60, 30):
        stage.work()
        stage.pass_(seconds=wait)
    (session,) = stage.of(a)
    assert (session.end_reason, session.end_detail) == (SessionEndReason.COMPLETED, "it came")


def test_what_was_heard_of_a_stream_is_taken_back_when_it_is_cut(make_stage: Make) -> None:  # T001-o, B073
    stage = make_stage(lease=7_200)
    stage.room.use("ai", Streams(stage, *[([(4, "word ")], lost())] * 9))
    a, b = stage.automation("a", "08:01"), stage.automation("b", "08:02")
    stage.at(8, 1)
    stage.tick()
    began = stage.clock.now()
    for number in range(2):
        stage.work()
        (session,) = stage.of(a)
        assert (session.is_waiting_for_network, session.last_activity_at) == (True, began), number
        stage.pass_(seconds=30 * (number + 1))
        stage.tick()
    # the third is heard as long as it comes; then it has been ten minutes without an answer
    stage.work()
    stage.tick()
    assert stage.of(a)[0].end_reason is SessionEndReason.NETWORK_ERROR
    assert stage.of(b)[0].is_active


QUESTION = Question((Message(Role.USER, "x" * 400),), (FINISH_SPEC,))


def openai_heard(*deltas: dict[str, Any]) -> list[str]:
    heard: list[str] = []
    gathered = openai._Gathered(heard.append, shared.Names(QUESTION), "c")
    for delta in deltas:
        gathered.add({"choices": [{"index": 0, "delta": delta}]})
    return heard


def anthropic_heard(*events: dict[str, Any]) -> list[str]:
    heard: list[str] = []
    gathered = anthropic._Gathered(heard.append, shared.Names(QUESTION))
    for event in events:
        gathered.add(event)
    return heard


def test_openai_tells_that_arguments_and_reasoning_arrive_and_no_more_of_pieces_without_anything() -> None:  # B072
    call = {"tool_calls": [{"index": 0, "function": {"arguments": "word "}}]}
    assert openai_heard(call, {"reasoning_content": "hmm"}, {"content": "Yes."}) == ["", "", "Yes."]
    assert openai_heard({"role": "assistant", "content": ""}, {}, {"content": None}) == []


def test_anthropic_tells_that_arguments_and_thinking_arrive_and_a_ping_is_no_life_of_the_model() -> None:  # B072
    def delta(**what: Any) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": 0, "delta": what}

    assert anthropic_heard(
        delta(type="input_json_delta", partial_json="{"),
        delta(type="thinking_delta", thinking="hmm"),
        delta(type="text_delta", text="Yes."),
    ) == ["", "", "Yes."]
    assert anthropic_heard({"type": "ping"}, delta(type="text_delta", text="")) == []


# --- several slots -----------------------------------------------------------------------------------------------------


def at_once(*acts: Callable[[], Any]) -> list[BaseException]:
    """Do all of them at the same moment; what they raised."""
    raised: list[BaseException] = []
    gate = threading.Barrier(len(acts))

    def go(act: Callable[[], Any]) -> None:
        gate.wait()
        try:
            act()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=go, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_events_that_run_automations_of_the_same_slots_in_any_order_lose_nothing(stage: Stage) -> None:
    # R001-1: their locks are taken in one order
    for event, slots in (("east", "abc"), ("west", "cba")):
        for slot in slots:
            stage.automation(f"{event}-{slot}", slot=slot, triggers=[event])
    fires = [lambda event=event: stage.room.fire(event) for event in ("east", "west")]
    for _ in range(8):
        assert at_once(*fires, *fires) == []
    assert len(stage.room.sessions(500)) == 8 * 4 * 3


def test_two_automations_change_places_without_a_collision(stage: Stage) -> None:
    x, y = stage.automation("x", slot="a"), stage.automation("y", slot="b")
    for there, back in [("b", "a"), ("a", "b")] * 8:
        assert at_once(lambda s=there: stage.room.update(x, {"slot": s}), lambda s=back: stage.room.update(y, {"slot": s})) == []  # fmt: skip
    assert (stage.room.get(x).definition.slot, stage.room.get(y).definition.slot) == ("a", "b")


@pytest.mark.postgres
def test_an_automation_that_moves_to_another_slot_at_this_moment_is_run_there(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, other = (Stage(Duly(pg_url, clock=ManualClock()), ManualClock(), Ai()) for _ in range(2))
    try:
        a = stage.automation("a", slot="m", triggers=["wind"])
        store = stage.room.controller.store
        hold, moves = store.hold_slot, iter(["b", "z"])

        def moved_first(connection: Any, name: str) -> Any:
            slot = next(moves, None)
            if slot is not None:
                other.room.update(a, {"slot": slot})
            return hold(connection, name)

        monkeypatch.setattr(store, "hold_slot", moved_first)
        (asked,) = stage.room.fire("wind")
        assert (asked.session.slot, asked.session.is_active) == ("z", True)
    finally:
        stage.app.close()
        other.app.close()


def test_a_name_that_is_taken_at_this_moment_is_refused_as_any_that_is_taken(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.automation("a")
    b = stage.automation("b", slot="other")
    monkeypatch.setattr(stage.room.controller.definitions, "named", lambda *_: None)
    for act in (lambda: stage.automation("a", slot="third"), lambda: stage.room.update(b, {"name": "a"})):
        with pytest.raises(InvalidArgument, match="there is an automation of that name"):
            act()


# --- one that is off ---------------------------------------------------------------------------------------------------


def test_what_was_interrupted_of_an_automation_that_is_off_says_when_it_goes_on(stage: Stage) -> None:  # T001-s, T001-i
    a = stage.automation("a")
    stage.room.disable(a)
    stage.ai.script = [says("half")]
    ident = stage.room.run(a).session.id
    stage.work()
    stage.room.pause(ident, span=1)
    stage.pass_(hours=1)
    stage.tick()
    assert stage.session(ident).status is Status.INTERRUPTED
    assert f"session {ident} was interrupted, and goes on when it is on again" in unmet(stage, a)["enabled"]
    with pytest.raises(WrongState, match="of automation a, which is off, so it cannot go on before that is enabled"):
        stage.room.resume(ident)
    stage.room.enable(a)
    assert stage.session(ident).is_active


# --- providers that are not set up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        (openai.OpenAICompatible(), "ai_model (DULY_AI_MODEL) is not set"),
        (anthropic.Anthropic(key="k"), "anthropic_model (DULY_ANTHROPIC_MODEL) is not set"),
        (anthropic.Anthropic(model="m"), "anthropic_api_key (DULY_ANTHROPIC_API_KEY) is not set"),
        (Scripted(), "no AI is set up"),
    ],
)
def test_why_says_that_a_provider_is_not_set_up(stage: Stage, provider: Provider, says: str) -> None:
    a = stage.automation("a")
    assert "provider" not in unmet(stage, a)  # of one that does not tell nothing is known
    stage.room.use("ai", provider)
    assert says in unmet(stage, a)["provider"]
    assert any(says in note for note in stage.room.notes(stage.room.get(a)))


def test_an_automation_that_names_its_model_needs_none_of_the_settings(stage: Stage) -> None:
    a = stage.automation("a", model="m")
    stage.room.use("ai", openai.OpenAICompatible())
    assert "provider" not in unmet(stage, a)


# --- bounds ------------------------------------------------------------------------------------------------------------


def test_a_bound_in_cents_holds_where_a_provider_tells_of_none(stage: Stage) -> None:  # T001-n
    a = stage.automation("a", limits={"max_cents": 0.0001})
    stage.ai.prices = Prices(1e6, 1e6)
    stage.ai.script = [Answer("x" * 1000, calls("nothing").calls, Usage()) for _ in range(6)]
    stage.room.run(a)
    stage.work()
    assert len(stage.ai.questions) == 1
    assert "limits.max_cents" in (stage.of(a)[0].end_detail or "")


@pytest.mark.parametrize(
    ("told", "bounded", "so"),
    [
        (Usage(10, 0, False), False, Usage(10, 2000, False)),
        (Usage(10, 0), True, Usage(10, 2000, False)),
        (Usage(0, 7), True, Usage(100, 7, False)),
        (Usage(10, 7), True, Usage(10, 7)),
        (Usage(10, 0), False, Usage(10, 0)),
        (Usage(), False, Usage()),
    ],
)
def test_the_side_of_an_answer_that_is_not_told_is_guessed(told: Usage, bounded: bool, so: Usage) -> None:  # T001-n
    assert counted(Answer("w" * 8000, usage=told), QUESTION, bounded) == so


# --- what cannot be used -----------------------------------------------------------------------------------------------

HALF = "a\udcff"


@pytest.mark.parametrize(
    ("field", "act"),
    [
        ("provider", lambda s, a: s.room.update(a, {"provider": HALF})),
        ("model", lambda s, a: s.room.update(a, {"model": HALF})),
        ("prompt", lambda s, a: s.room.update(a, {"prompt": HALF})),
        ("model", lambda s, a: s.room.chat(model=HALF)),
        ("provider", lambda s, a: s.room.chat(provider=HALF)),
        ("reason", lambda s, a: s.room.pause(s.room.run(a).session.id, HALF)),
        ("reason", lambda s, a: s.room.resume(s.room.run(a).session.id, HALF)),
        ("span", lambda s, a: s.room.pause(s.room.run(a).session.id, span=0)),
        ("span", lambda s, a: s.room.pause(s.room.run(a).session.id, span=-5)),
        ("span", lambda s, a: s.room.pause(s.room.run(a).session.id, span=timedelta(days=10_000_000))),
    ],
)
def test_what_cannot_be_used_is_refused_by_the_name_of_its_field(
    stage: Stage, field: str, act: Callable[[Stage, int], Any]
) -> None:  # T001-x
    a = stage.automation("a")
    with pytest.raises(InvalidArgument) as refused:
        act(stage, a)
    assert refused.value.field == field


# --- the command line --------------------------------------------------------------------------------------------------


class Line:
    """``duly automations …`` on a database, and the automations of it from the inside."""

    def __init__(self, url: str) -> None:
        self.app = Duly(url)
        self.room = Automations(self.app)

    def __call__(self, *args: str, input: str | bytes | None = None) -> tuple[int, str]:
        """The exit code, and all that was said."""
        done = CliRunner().invoke(cli, ["automations", *args], input=input, prog_name="duly")
        return done.exit_code, done.stdout + done.stderr


@pytest.fixture
def line(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_DATABASE_URL", sqlite_url)
    made = Line(sqlite_url)
    yield made
    made.app.close()


@pytest.mark.parametrize("limits", ["null", "[1]", "3"])
@pytest.mark.parametrize("options", [(), ("--limit", "max_rounds=1")])
def test_limits_of_a_file_that_are_no_mapping_are_refused(line: Line, limits: str, options: tuple[str, ...]) -> None:
    Path("a.yaml").write_text(f"prompt: x\nlimits: {limits}\n")
    code, said = line("create", "a", *options, "-f", "a.yaml")
    assert (code, "limits: is " in said) == (2, True), said


@pytest.mark.parametrize(
    ("args", "input", "named"),
    [
        (("create", "b", "--prompt", "x", "--limit", "x=1"), None, "limits."),
        (("create", "b", "--prompt", HALF), None, "prompt: "),
        (("create", "b", "--prompt", "-"), b"\xff\xfe", "prompt"),
        (("pause", "2", "--reason", HALF), None, "reason: "),
        (("pause", "2", "--for", "10000000d"), None, "span: "),
        (("pause", "2", "--for", "0s"), None, "span: "),
    ],
)
def test_wrong_words_on_the_command_line_are_told_by_their_name(
    line: Line, args: tuple[str, ...], input: bytes | None, named: str
) -> None:
    assert line("create", "a", "--prompt", "x")[0] == 0
    assert line("run", "a")[0] == 0
    code, said = line(*args, input=input)
    assert (code, named in said) == (2, True), said
    assert not re.search("(Type|Unicode[a-zA-Z]+|Overflow)Error", said)


def test_none_gives_provider_and_model_back_to_the_settings(line: Line) -> None:
    line("create", "a", "--prompt", "x", "--provider", "openai", "--model", "m")
    assert line("update", "a", "--provider", "none", "--model", "none")[0] == 0
    d = line.room.get("a").definition
    assert (d.provider, d.model) == (None, None)


def test_what_is_made_is_told_what_could_keep_it_from_running(line: Line) -> None:
    _, said = line("create", "a", "--prompt", "x", "--trigger", "session_ended", "--tool", "nosuch")
    assert "note: session_ended is told of this room, and runs nothing by itself" in said
    assert "note: nosuch is neither a tool nor a task" in said
    assert "note: no AI is set up" in said


def test_a_chat_has_no_json_and_is_told_of_a_tool_that_is_none(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = line("--json", "chat", "Hello?")
    assert (code, "no JSON" in said) == (2, True), said
    assert line.room.sessions() == []
    monkeypatch.setattr(chat_of_cli, "talk", lambda *_: 0)
    assert "note: nosuch is neither a tool nor a task" in line("chat", "--tool", "nosuch", "Hello?")[1]


def test_what_is_paused_of_an_automation_that_is_off_is_not_promised_to_go_on(line: Line) -> None:  # T001-s
    line("create", "a", "--off", "--prompt", "x")
    line("run", "a")
    _, said = line("pause", "a")
    assert "its automation is off: it goes on when that is enabled" in said
    code, said = line("resume", "a")
    assert (code, "which is off" in said) == (1, True), said


# --- a chat at the terminal --------------------------------------------------------------------------------------------


@contextmanager
def chatting(line: Line, *turns: dict[str, Any], is_served: Callable[[], bool] = lambda: False) -> Iterator[Callable[[str], int]]:  # fmt: skip
    line.room.use("script", Scripted({"default": [*turns, {"say": "Yes.", "again": True}]}))
    yield lambda text: chat_of_cli.talk(line.room, text, {"provider": "script"}, is_served)


def test_a_chat_becomes_its_own_worker_when_the_one_that_was_alive_is_not(
    line: Line, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat_of_cli, "WAIT", 0.05)
    looks = iter([True, True])
    with chatting(line, is_served=lambda: next(looks, False)) as talk:
        assert talk("Hello?") == 0
    assert "Yes." in capsys.readouterr().out


def test_an_answer_that_was_held_back_is_told_and_a_failure(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    with chatting(line, {"say": "", "stop": "filtered"}) as talk:
        assert talk("bad") == 1
    assert "no answer: the provider held its answer back (content filter)" in capsys.readouterr().err


def test_who_speaks_in_a_chat_that_has_given_way_is_told_why_it_is_over(
    line: Line, capsys: pytest.CaptureFixture[str]
) -> None:  # R001-11
    made = line.room.chat()
    line.room.stop(made.session.id, "nobody used it")
    talk = chat_of_cli._Talk(line.room, made.session)
    assert talk._ask("Still there?") is False
    assert (talk.failed, "the chat is over: nobody used it." in capsys.readouterr().err) == (True, True)
    with pytest.raises(WrongState, match=r"is ended \(nobody used it\), so it cannot say"):
        line.room.say(made.session.id, "Still there?")


def test_who_waits_for_the_slot_of_a_chat_is_not_advised_to_pause_it(line: Line) -> None:  # R001-12
    first = line.room.chat().session
    waits = chat_of_cli._Talk(line.room, line.room.chat().session)
    assert waits._held_by(first) == f" It is held by session {first.id}: duly automations stop {first.id}."
    line.room.close(waits.id)
    line.room.close(first.id)
    a = line.room.create({"name": "a", "prompt": "x"})
    held = line.room.run(a.id).session
    assert f"or pause {held.id}" in waits._held_by(held)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_whose_terminal_is_closed_gives_the_slot_back(line: Line, sqlite_url: str, kind: signal.Signals) -> None:
    # R001-10: time alone does not end it
    process = subprocess.Popen(
        [sys.executable, "-m", "duly", "automations", "chat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "DULY_DATABASE_URL": sqlite_url},
        preexec_fn=lambda: signal.signal(kind, signal.SIG_DFL),  # whoever runs the tests may ignore it (nohup)
    )  # fmt: skip
    try:
        assert until(lambda: bool(line.room.sessions(status=["active"])), 30)
        # in the middle of reading what is typed
        process.send_signal(kind)
        assert process.wait(30) == 128 + kind
    finally:
        process.kill()
        process.wait()
    (session,) = line.room.sessions(type=SessionType.CHAT)
    assert (session.status, session.end_detail) == (Status.ENDED, "closed")

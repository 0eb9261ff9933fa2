"""What every AI provider keeps to, as tests that you run against one of your own.

::

    class TestMine(ProviderContract):
        def provider(self): return MyProvider(url=self.server.url, key="…")
        def says(self, *pieces, tokens=None): self.server.next = pieces
        def asked(self): return len(self.server.questions)

A test runner finds the methods that begin with ``test_`` (pytest and unittest do). What the other side can be made to do is told by the
methods of the first part; a test of what yours cannot do is skipped. None of this needs pytest.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from unittest import SkipTest

from duly.automations.providers.base import (
    Message,
    Prices,
    Provider,
    Question,
    Role,
    Stop,
    TellsMissing,
    ToolCall,
    ToolSpec,
)
from duly.kernel.verdict import Kind, Refusal

__all__ = ["ProviderContract"]

T = TypeVar("T")

#: Tools of the questions that are asked. One has a name that many an API does not take as it is.
TOOLS = (
    ToolSpec("weather", "The weather of a city.", {"type": "object", "properties": {"city": {"type": "string"}}}),
    ToolSpec("mail.send/urgent", "Sends a message.", {"type": "object", "properties": {"to": {"type": "string"}}}),
)
#: Seconds until a test that waits for something gives up.
PATIENCE = 30.0


class ProviderContract:
    """Subclass it, and say how yours is made and what the other side does."""

    #: What must not be seen in errors and in ``repr``: keys.
    secrets: tuple[str, ...] = ()
    #: Does the other side tell tokens?
    tells_tokens = True
    #: Do the arguments of its calls come in pieces? Then each is told with an empty one, so that the watchdog sees that an answer is arriving.
    streams_calls = False

    def provider(self) -> Provider:
        """A provider, made as after a restart: it knows nothing of those before it."""
        raise NotImplementedError

    def says(self, *pieces: str, tokens: tuple[int, int] | None = None) -> None:
        """Let the next answer be this text, in these pieces, with so many tokens told and answered."""
        raise NotImplementedError

    def asked(self) -> int | None:
        """How many questions the other side has had; None when nobody counts."""
        return None

    def calls(self, *calls: tuple[str, Mapping[str, Any] | str]) -> None:
        """Let the next answer ask for calls: name, and arguments (a text: as the model wrote them)."""
        raise SkipTest("the other side asks for no calls")

    def cut_by_length(self) -> None:
        """Let the next answer be cut at the most tokens that it may have, after it has begun a call of ``weather``."""
        raise SkipTest("the other side cuts no answers")

    def refuse(self, kind: Kind) -> None:
        """Let the next question be refused with an answer of this kind."""
        raise SkipTest(f"the other side cannot answer {kind}")

    def cut(self) -> None:
        """Let the next answer break off after something of it was said."""
        raise SkipTest("the other side breaks nothing off")

    def hang(self) -> None:
        """Let the next answer say something and then nothing more, for longer than anybody waits."""
        raise SkipTest("the other side does not hang")

    def was_left(self) -> bool:
        """Has the other side seen that nobody waits for its answer any more?"""
        return True

    def unreachable(self) -> Provider:
        """A provider whose other side is not there."""
        raise SkipTest("there is no provider without another side")

    # ------------------------------------------------------------------ answers

    def test_an_answer_comes_in_pieces_and_whole(self) -> None:
        self.says("Good ", "morning, ", "Zoë 🌞")
        heard: list[str] = []
        answer = _run(self.provider().ask(question(), heard.append))
        assert answer.text == "Good morning, Zoë 🌞"
        assert "".join(heard) == answer.text, "what was said is not what was answered"
        assert answer.calls == ()
        assert answer.stop is Stop.END

    def test_the_tokens_of_an_answer_are_told(self) -> None:
        if not self.tells_tokens:
            raise SkipTest("the other side tells no tokens")
        self.says("Yes.", tokens=(12, 3))
        usage = _run(self.provider().ask(question(), _quiet)).usage
        assert (usage.input_tokens, usage.output_tokens, usage.is_complete) == (12, 3, True)

    def test_calls_come_whole_and_in_their_order_with_the_names_that_were_given(self) -> None:
        wanted: list[tuple[str, Mapping[str, Any]]] = [
            ("weather", {"city": "Zürich", "days": [1, 2.5, None]}),
            ("mail.send/urgent", {"to": "a@example.com"}),
        ]
        self.calls(*wanted)
        answer = _run(self.provider().ask(question(), _quiet))
        assert [(call.name, dict(call.arguments), call.problem) for call in answer.calls] == [
            (n, a, "") for n, a in wanted
        ]
        assert len({call.id for call in answer.calls}) == 2, "the ids of calls are not unique"
        assert answer.stop is Stop.CALLS

    def test_what_arrives_and_is_no_text_is_told_with_an_empty_piece(self) -> None:
        if not self.streams_calls:
            raise SkipTest("its calls come at once")
        self.calls(("weather", {"city": "Zürich"}), ("mail.send/urgent", {"to": "a@example.com"}))
        heard: list[str] = []
        answer = _run(self.provider().ask(question(), heard.append))
        assert heard, "arguments arrived, and nobody was told"
        assert "".join(heard) == answer.text, "what was said is not what was answered"

    def test_arguments_that_cannot_be_read_are_the_problem_of_the_call(self) -> None:
        self.calls(("weather", '{"city": "Rom'), ("weather", "[1]"), ("weather", {"city": "Rome"}))
        broken, listed, whole = _run(self.provider().ask(question(), _quiet)).calls
        for call in (broken, listed):
            assert call.problem
            assert call.arguments == {}
        assert not whole.problem

    def test_an_answer_that_was_cut_says_so(self) -> None:
        self.cut_by_length()
        answer = _run(self.provider().ask(question(), _quiet))
        assert answer.stop is Stop.LENGTH, "a call of an answer that was cut would be made"
        assert answer.finish_reason

    def test_a_conversation_goes_on_from_the_question_alone(self) -> None:
        self.says("It is sunny.")
        answer = _run(self.provider().ask(question(with_results=True), _quiet))
        assert answer.text == "It is sunny."

    def test_a_question_without_words_of_a_user_is_asked(self) -> None:
        self.says("Yes.")
        asked = Question((Message(Role.SYSTEM, "Be brief."), Message(Role.ASSISTANT, "I have begun.")))
        assert _run(self.provider().ask(asked, _quiet)).text == "Yes."

    # ------------------------------------------------------------------ no answers

    def test_an_answer_that_breaks_off_is_unknown(self) -> None:
        self.cut()
        heard: list[str] = []
        error = self._refused(self.provider(), heard.append)
        assert error.verdict.kind is Kind.UNKNOWN, error.verdict
        assert "".join(heard), "what was said before it broke off was held back"

    def test_cancelling_ends_the_request(self) -> None:
        self.hang()

        async def leave() -> None:
            heard = asyncio.Event()
            task = asyncio.ensure_future(self.provider().ask(question(), lambda piece: heard.set()))
            async with asyncio.timeout(PATIENCE):
                await heard.wait()
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled(), "it was cancelled, and it went on"
                while not self.was_left():
                    await asyncio.sleep(0.01)

        _run(leave())

    def test_what_say_raises_ends_the_request(self) -> None:
        class Full(Exception):
            pass

        def fail(piece: str) -> None:
            raise Full

        self.says("Good ", "morning")
        try:
            _run(self.provider().ask(question(), fail))
        except Full:
            pass
        else:
            raise AssertionError("the error of say() was swallowed")

    def test_another_side_that_is_not_there_is_seen_and_asked_again_later(self) -> None:
        one = self.unreachable()
        assert _run(one.is_reachable()) is False
        error = self._refused(one)
        assert error.verdict.kind is Kind.TRANSIENT, error.verdict

    def test_another_side_that_is_there_can_be_reached_and_is_not_asked_for_it(self) -> None:
        before = self.asked()
        assert _run(self.provider().is_reachable()) is True
        assert self.asked() == before

    def test_a_refusal_that_passes(self) -> None:
        self._refuses(Kind.TRANSIENT)

    def test_too_many_questions(self) -> None:
        error = self._refuses(Kind.THROTTLED)
        assert error.verdict.after is None or error.verdict.after >= 0

    def test_a_refusal_for_good(self) -> None:
        self._refuses(Kind.PERMANENT)

    def test_a_configuration_that_is_refused(self) -> None:
        self._refuses(Kind.AUTH)

    def test_a_quota_that_is_used_up(self) -> None:
        self._refuses(Kind.QUOTA)

    # ------------------------------------------------------------------ what else is asked

    def test_it_has_a_name_and_prices_and_shows_no_secret(self) -> None:
        one = self.provider()
        assert one.name
        assert one.prices is None or isinstance(one.prices, Prices)
        self._told_nothing_secret(repr(one))
        for method in (one.is_reachable, one.ask, one.check):
            assert inspect.iscoroutinefunction(method)

    def test_what_is_missing_is_told_in_a_line_and_nobody_is_asked(self) -> None:
        one, before = self.provider(), self.asked()
        if not isinstance(one, TellsMissing):
            raise SkipTest("it does not tell what is missing")
        assert one.missing() == "", "a provider that can be asked says that something is missing"
        assert one.missing("another-model") == ""
        assert self.asked() == before

    def test_a_check_says_what_it_found_and_asks_nothing(self) -> None:
        before = self.asked()
        found = _run(self.provider().check())
        assert isinstance(found, str)
        assert found
        self._told_nothing_secret(found)
        assert self.asked() == before

    # ------------------------------------------------------------------ hands

    def _refused(self, provider: Provider, say: Callable[[str], None] | None = None) -> Refusal:
        told: Refusal | None = None
        try:
            _run(provider.ask(question(), say or _quiet))
        except Refusal as error:
            told = error
        assert told is not None, "it was not refused"
        assert told.verdict.reason
        self._told_nothing_secret(told)
        return told

    def _refuses(self, kind: Kind) -> Refusal:
        self.refuse(kind)
        error = self._refused(self.provider())
        assert error.verdict.kind is kind, error.verdict
        return error

    def _told_nothing_secret(self, told: object) -> None:
        for word in self.secrets:
            assert word not in f"{told} {told!r}", "a secret is shown"


def question(with_results: bool = False) -> Question:
    """A question with tools; ``with_results``: of a conversation in which some were called."""
    messages = [Message(Role.SYSTEM, "You are brief."), Message(Role.USER, "What is the weather in Rome?")]
    if with_results:
        calls = (
            ToolCall("call:1", "weather", {"city": "Rome"}),
            ToolCall("call:2", "mail.send/urgent", {}, "the arguments are not JSON"),
        )
        messages += [
            Message(Role.ASSISTANT, "", calls),
            Message(Role.TOOL, json.dumps({"sky": "sunny"}), call_id="call:1"),
            Message(Role.TOOL, "", call_id="call:2"),
            Message(Role.ASSISTANT, "", (ToolCall("call:1", "weather", {"city": "Rome"}),)),
            Message(Role.TOOL, json.dumps({"sky": "sunny"}), call_id="call:1"),
        ]
    return Question(tuple(messages), TOOLS, label="contract")


def _quiet(piece: str) -> None: ...


def _run(what: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(what)

"""Answers from a script: without a network, and the same ones to the same question."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from automations.providers.hands import WEATHER, ask, refused
from duly.automations.protocol import FINISH, FINISH_SPEC
from duly.automations.providers.base import Answer, Message, Question, Role, Stop, ToolCall, Usage
from duly.automations.providers.scripted import Scripted
from duly.kernel.source import InvalidDocument
from duly.kernel.verdict import Kind, Refusal

BRIEFING = """\
morning briefing:
  - call: {tool: weather, arguments: {city: Rome}}
    tokens: [120, 30]
  - say: "It is {{ result.weather.sky }} in Rome, {{ result.weather.days.0.most }} degrees."
    completed: true
default:
  - when: hello
    say: Hello!
  - say: "First: {{ last }}"
  - say: "And then: {{ last }}"
"""


def question(*messages: Message, label: str = "") -> Question:
    return Question(messages, (WEATHER, FINISH_SPEC), label)


def talk(provider: Scripted, *said: str, label: str = "") -> list[str]:
    """What is answered to each, in one conversation."""
    messages: list[Message] = []
    for text in said:
        messages.append(Message(Role.USER, text))
        messages.append(Message(Role.ASSISTANT, ask(provider, question(*messages, label=label)).text))
    return [m.text for m in messages if m.role is Role.ASSISTANT]


@pytest.fixture
def briefing(tmp_path: Path) -> Path:
    file = tmp_path / "briefing.yaml"
    file.write_text(BRIEFING)
    return file


def run(file: Path) -> list[Answer]:
    """The briefing to its end, each turn by a provider that knows nothing of those before."""
    messages, answers = [Message(Role.USER, "Begin")], []
    while not answers or all(call.name != FINISH for call in answers[-1].calls):
        answer = ask(Scripted(file), question(*messages, label="morning briefing"))
        answers.append(answer)
        messages.append(Message(Role.ASSISTANT, answer.text, answer.calls))
        messages += [
            Message(Role.TOOL, json.dumps({"sky": "sunny", "days": [{"most": 31}]}), call_id=call.id)
            for call in answer.calls
        ]
    return answers


def test_a_conversation_goes_on_at_its_turn_in_another_process(briefing: Path) -> None:
    # R001-16: the turn is computed from the question alone
    first, last = run(briefing)
    assert [(c.name, dict(c.arguments)) for c in first.calls] == [("weather", {"city": "Rome"})]
    assert (first.usage, first.stop) == (Usage(120, 30), Stop.CALLS)
    assert last.text == "It is sunny in Rome, 31 degrees."
    assert [(c.name, dict(c.arguments)) for c in last.calls] == [(FINISH, {"completed": True})]
    assert len({call.id for answer in (first, last) for call in answer.calls}) == 2
    assert run(briefing) == [first, last]


def test_turns_come_in_order_and_answers_to_words_between_them(briefing: Path) -> None:
    assert talk(Scripted(briefing), "a", "oh, hello", "b") == ["First: a", "Hello!", "And then: b"]


def test_a_script_that_is_at_its_end_says_so(briefing: Path) -> None:
    messages = [Message(Role.ASSISTANT, "x"), Message(Role.ASSISTANT, "x"), Message(Role.USER, "more")]
    verdict = refused(Scripted(briefing), question(*messages))
    assert (verdict.kind, "has 2 turns" in verdict.reason) == (Kind.PERMANENT, True)


def test_the_last_turn_may_come_again(briefing: Path) -> None:
    assert talk(Scripted({"default": [{"say": "a"}, {"say": "b", "again": True}]}), "1", "2", "3", "4") == [
        "a",
        "b",
        "b",
        "b",
    ]


def test_what_is_no_answer_happens_as_often_as_the_script_says_and_once_for_each_label() -> None:
    one = Scripted(
        {
            "default": [
                {"fail": "throttled", "after": 20, "times": 2},
                {"fail": "unknown", "say": "Half"},
                {"say": "Yes."},
                {"fail": "auth"},
            ]
        }
    )
    heard: list[str] = []
    for label in ("a", "b"):
        hello = question(Message(Role.USER, "Hello"), label=label)
        assert [(v.kind, v.after) for v in (refused(one, hello) for _ in range(2))] == [(Kind.THROTTLED, 20.0)] * 2
        with pytest.raises(Refusal, match="unknown") as caught:
            ask(one, hello, heard.append)
        assert caught.value.verdict.kind is Kind.UNKNOWN
        assert ask(one, hello).text == "Yes."
        assert ask(one, hello).text == "Yes."  # the same question again
        assert refused(one, question(Message(Role.ASSISTANT, "Yes."), label=label)).kind is Kind.AUTH
    assert heard == ["Half", "Half"]


def test_a_network_that_is_down_is_seen_before_the_turn_it_stands_before() -> None:
    # R001-17
    one = Scripted({"a": [{"network": "down", "times": 2}, {"say": "Yes."}, {"network": "down"}, {"say": "Again."}]})

    def reachable() -> list[bool]:
        return [asyncio.run(one.is_reachable()) for _ in range(3)]

    assert reachable() == [False, False, True]
    assert ask(one, question(Message(Role.USER, "Hello"), label="a")).text == "Yes."
    more = question(Message(Role.ASSISTANT, "Yes."), Message(Role.USER, "And?"), label="a")
    assert refused(one, more).kind is Kind.TRANSIENT  # asked without a look: it counts as one
    assert reachable() == [True] * 3
    assert ask(one, more).text == "Again."


def test_placeholders_keep_the_kind_of_what_they_stand_for() -> None:
    script = {
        "default": [
            {
                "call": {
                    "tool": "mail",
                    "arguments": {
                        "whole": "{{ result.weather }}",
                        "n": ["{{ result.weather.days }}"],
                        "said": "{{last}}!",
                    },
                }
            }
        ]
    }
    messages = [
        Message(Role.TOOL, "stray", call_id="nothing"),
        Message(Role.USER, "", (ToolCall("c", "weather", {}),)), Message(Role.TOOL, '{"days": 3}', call_id="c"),
    ]  # fmt: skip
    [call] = ask(Scripted(script), question(*messages)).calls
    assert call.arguments == {"whole": {"days": 3}, "n": [3], "said": '{"days": 3}!'}


@pytest.mark.parametrize("name", ["result.mail", "result.weather.rain", "result.weather.days.x"])
def test_a_placeholder_for_what_is_not_there_is_said(name: str) -> None:
    messages = [
        Message(Role.ASSISTANT, "", (ToolCall("c", "weather", {}),)),
        Message(Role.TOOL, '{"days": [3]}', call_id="c"),
    ]
    verdict = refused(Scripted({"default": [{"say": "x"}, {"say": f"{{{{ {name} }}}}"}]}), question(*messages))
    assert (verdict.kind, "default[1]" in verdict.reason) == (Kind.PERMANENT, True)


def test_completed_is_said_where_the_tool_for_it_is_there() -> None:
    one = Scripted({"default": [{"say": "Done.", "completed": True}]})
    assert ask(one, Question((), ())).calls == ()
    assert [call.name for call in ask(one, Question((), (FINISH_SPEC,))).calls] == [FINISH]


def test_arguments_may_be_broken_on_purpose() -> None:
    [call] = ask(Scripted({"default": [{"call": {"tool": "weather", "arguments": '{"city": "Ro'}}]})).calls
    assert (call.name, call.arguments, bool(call.problem)) == ("weather", {}, True)


def test_without_a_script_every_question_is_refused_with_how_to_set_up_an_ai() -> None:
    provider = Scripted()
    for act in (lambda: provider.ask(question(Message(Role.USER, "Hello")), lambda _: None), provider.check):
        with pytest.raises(Refusal) as said:
            asyncio.run(act())
        assert said.value.verdict.kind is Kind.AUTH
        assert "ai_provider" in said.value.verdict.reason
    assert asyncio.run(provider.is_reachable())


def test_a_long_text_is_said_as_it_is_word_by_word() -> None:
    text, heard = "  It is\n\nsunny.  " * 20_000, []
    assert ask(Scripted({"default": [{"say": text}]}), say=heard.append).text == text == "".join(heard)
    assert len(heard) == 60_001


@pytest.mark.parametrize(
    ("script", "place", "problem"),
    [
        ("- say: x", "", "is a list"),
        ("default: []", "default", "is a list"),
        ("default:\n  - sai: x", "default[0].sai", "Did you mean say?"),
        ("default:\n  - {tokens: [1, 2]}", "default[0]", "says nothing"),
        ("default:\n  - {say: x, tokens: [1]}", "default[0].tokens", "no pair"),
        ("default:\n  - {say: x, completed: 1}", "default[0].completed", "true or false"),
        ("default:\n  - {say: x, pause: -1}", "default[0].pause", "no number of seconds"),
        ("default:\n  - {say: x, stop: never}", "default[0].stop", "Choose one of: end"),
        ("default:\n  - {fail: sent}", "default[0].fail", "Choose one of: transient"),
        ("default:\n  - {fail: auth, times: 0}", "default[0].times", "whole number"),
        ("default:\n  - {fail: auth, when: x}", "default[0].when", "does not go with"),
        ("default:\n  - {say: x, after: 3}", "default[0].after", "does not go with an answer"),
        ("default:\n  - {network: up}", "default[0].network", "Choose one of: down"),
        ("default:\n  - call: {arguments: {}}", "default[0].call", "has no tool"),
        ("default:\n  - calls: {tool: x}", "default[0].calls", "list of calls"),
        ("default:\n  - calls:\n      - {tool: x, arguments: [1]}", "default[0].calls[0].arguments", "Write a mapping"),
        ("default:\n  - call: {tool: x, arguments: {a: ['{{ nothing }}']}}", "default[0].call.arguments.a[0]", "{{ nothing }}"),
        ("default:\n  - say: '{{ result. }}'", "default[0].say", "holds"),
        ("default:\n  - {say: x, again: true}\n  - say: y", "default[0].again", "never come"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_script_is_said_with_its_place(
    tmp_path: Path, script: str, place: str, problem: str
) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(script)
    with pytest.raises(InvalidDocument) as caught:
        Scripted(file)
    [found] = caught.value.problems
    assert (found.path, problem in str(found), found.line is not None) == (place, True, True), found


def test_it_says_what_it_is(briefing: Path) -> None:
    assert (
        asyncio.run(Scripted(briefing).check()) == f"answers come from {briefing} (2 conversations), and no AI is asked"
    )

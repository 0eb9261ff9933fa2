"""Anthropic's Messages, on real connections. The classes of refusals are those of the facts about providers, section 7."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automations.providers.hands import KEY, WEATHER, ask, refused, user
from automations.servers import AI, Gone, Says, Silent, Status
from duly.automations.providers.anthropic import Anthropic, body, turns
from duly.automations.providers.base import Message, Question, Role, Stop, ToolCall, Usage
from duly.automations.providers.shared import Names, threaded
from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind


@pytest.fixture
def ai() -> Iterator[AI]:
    with AI().listening() as ai:
        ai.key = KEY
        yield ai


def provider(ai: AI, **more: Any) -> Anthropic:
    return Anthropic(**{"base_url": ai.anthropic_url, "model": "test", "key": KEY, "timeout": 20.0, **more})


# ---------------------------------------------------------------------- what is told


def test_the_conversation_is_told_in_turns_and_the_system_apart(ai: AI) -> None:
    # R001-16
    calls = (ToolCall("c1", "weather", {"city": "Rome"}), ToolCall("c2", "weather", {"city": "Oslo"}))
    messages = (
        Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Weather?"), Message(Role.USER, "Quickly."), Message(Role.ASSISTANT, "I look.", calls),
        Message(Role.SYSTEM, "Two calls are left."), Message(Role.TOOL, "sunny", call_id="c1"), Message(Role.USER, "And?"),
        Message(Role.TOOL, "", call_id="c2"),
    )  # fmt: skip
    ask(provider(ai), Question(messages, (WEATHER,), temperature=0.5, max_tokens=77))
    [asked] = ai.questions
    assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert asked.body == {
        "model": "test", "stream": True, "max_tokens": 77, "temperature": 0.5, "system": "Be brief.\n\nTwo calls are left.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "text", "text": "Quickly."}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {"city": "Oslo"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}, {"type": "tool_result", "tool_use_id": "c2"},
                {"type": "text", "text": "And?"},
            ]},
        ],
        "tools": [{"name": "weather", "description": "The weather.", "input_schema": WEATHER.parameters}],
    }  # fmt: skip


def test_an_answer_has_a_longest_length_although_nobody_named_one(ai: AI) -> None:
    ask(provider(ai))
    assert ai.questions[0].body["max_tokens"] == 4096


MESSAGES = st.lists(
    st.builds(Message, st.sampled_from([Role.SYSTEM, Role.USER, Role.ASSISTANT]), st.sampled_from(["", " ", "Hello"])),
    max_size=8,
)


@given(MESSAGES)
def test_turns_alternate_and_the_user_begins_and_ends(messages: list[Message]) -> None:
    question = Question(tuple(messages))
    made = body(question, "test", 1, Names(question))["messages"]
    assert [turn["role"] for turn in made] == ["user" if n % 2 == 0 else "assistant" for n in range(len(made))]
    assert len(made) % 2 == 1
    assert all(block["text"].strip() for turn in made for block in turn["content"])
    said = [m.text for m in messages if m.role is not Role.SYSTEM and m.text.strip()]
    assert [b["text"] for t in made for b in t["content"] if b["text"] != "Go on."] == said


def test_ids_that_another_model_gave_twice_are_told_apart() -> None:
    def pair(number: int) -> list[Message]:
        call = ToolCall("functions.weather:0", "weather", {"city": str(number)})
        return [Message(Role.ASSISTANT, "", (call,)), Message(Role.TOOL, str(number), call_id=call.id)]

    messages = [Message(Role.USER, "Go"), *pair(1), *pair(2)]
    told = turns(threaded(messages), Names(Question(tuple(messages))))
    uses = [b["id"] for t in told for b in t["content"] if b["type"] == "tool_use"]
    results = {b["tool_use_id"]: b["content"] for t in told for b in t["content"] if b["type"] == "tool_result"}
    assert uses == ["functions_weather_0", "functions_weather_0_2"]
    assert results == {uses[0]: "1", uses[1]: "2"}


# ---------------------------------------------------------------------- what is answered


def test_text_and_calls_are_put_together_from_blocks(ai: AI) -> None:
    ai.answers.append(Says("I look.", [("weather", {"city": "Zürich"}), ("weather", {})], tokens=(100, 30)))
    answer = ask(provider(ai))
    assert answer.text == "I look."
    assert [(c.id, c.name, dict(c.arguments)) for c in answer.calls] == [
        ("toolu_0", "weather", {"city": "Zürich"}),
        ("toolu_1", "weather", {}),
    ]
    assert (answer.stop, answer.usage) == (Stop.CALLS, Usage(100, 30))


@pytest.mark.parametrize(
    ("why", "calls", "stop"),
    [
        ("end_turn", False, Stop.END), ("stop_sequence", False, Stop.END), ("max_tokens", False, Stop.LENGTH), ("max_tokens", True, Stop.LENGTH),
        ("refusal", False, Stop.FILTERED), ("tool_use", True, Stop.CALLS), ("model_context_window_exceeded", False, Stop.LENGTH),
        ("pause_turn", False, Stop.END), ("something_new", False, Stop.OTHER),
    ],
)  # fmt: skip
def test_why_an_answer_ended_is_said(ai: AI, why: str, calls: bool, stop: Stop) -> None:
    ai.answers.append(Says("Yes.", [("weather", {})] if calls else [], stop=why))
    assert ask(provider(ai)).stop is stop


def test_what_was_read_from_a_cache_counts_as_told() -> None:
    from duly.automations.providers.anthropic import _Gathered

    gathered = _Gathered(lambda piece: None, Names(user()))
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 30, "output_tokens": 1}
    gathered.add({"type": "message_start", "message": {"usage": usage}})
    gathered.add({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}})
    assert gathered.answer("").usage == Usage(60, 7)


# ---------------------------------------------------------------------- what is no answer


@pytest.mark.parametrize(
    ("reply", "kind", "after"),
    [
        (Status.error(400, "invalid_request_error", "messages: wrong"), Kind.PERMANENT, None),
        (Status.error(400, "invalid_request_error", "You have reached your specified API usage limits."), Kind.QUOTA, None),
        (Status.error(400, "invalid_request_error", "Your credit balance is too low to access the API."), Kind.QUOTA, None),
        (Status.error(401, "authentication_error"), Kind.AUTH, None),
        (Status.error(402, "billing_error"), Kind.QUOTA, None),
        (Status.error(403, "permission_error"), Kind.AUTH, None),
        (Status.error(404, "not_found_error"), Kind.AUTH, None),
        (Status.error(409, "conflict_error"), Kind.TRANSIENT, None),
        (Status.error(413, "request_too_large"), Kind.PERMANENT, None),
        (Status.error(429, "rate_limit_error", retry_after="20"), Kind.THROTTLED, 20.0),
        (Status.error(429, "rate_limit_error"), Kind.THROTTLED, None),
        (Status(429, {"error": {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}}), Kind.QUOTA, None),
        (Status(429, {"error": {"type": "rate_limit_error", "message": "enforced_spend_limit_reached"}}), Kind.QUOTA, None),
        (Status.error(429, "rate_limit_error", "enforced_spend_limit_reached", retry_after="60"), Kind.THROTTLED, 60.0),
        (Status.error(500, "api_error"), Kind.TRANSIENT, None),
        (Status.error(504, "timeout_error"), Kind.UNKNOWN, None),
        (Status.error(529, "overloaded_error", retry_after="3"), Kind.TRANSIENT, 3.0),
        (Status(502, b"<html>"), Kind.TRANSIENT, None),
        (Status(307, {}, {"Location": "/elsewhere"}), Kind.AUTH, None),
        (Status(200, {"hello": 1}), Kind.AUTH, None),
        (Status(200, b"<html>", {"Content-Type": "text/html"}), Kind.TRANSIENT, None),
        (Status(200, {"type": "error", "error": {"type": "overloaded_error"}}), Kind.TRANSIENT, None),
        (Status(403, b"<html>Blocked by the firewall</html>", {"Content-Type": "text/html"}), Kind.TRANSIENT, None),
        (Status.error(418), Kind.UNKNOWN, None),
        (Says("Good", error=("overloaded_error", "sorry")), Kind.TRANSIENT, None),
        (Says("Good", error=("api_error", "sorry")), Kind.TRANSIENT, None),
        (Says("Good", error=("rate_limit_error", "sorry")), Kind.THROTTLED, None),
        (Says("Good", error=("billing_error", "sorry")), Kind.QUOTA, None),
        (Says("Good", error=("invalid_request_error", "sorry")), Kind.PERMANENT, None),
        (Says("Good", error=("something_new", "sorry")), Kind.TRANSIENT, None),
        (Says("Good morning", cut_after=0), Kind.UNKNOWN, None),
        (Says("Good morning", cut_after=5), Kind.UNKNOWN, None),
        (Says("Good morning", ends_after=5), Kind.UNKNOWN, None),
        (Says("", [("weather", {"city": "Rome"})], cut_after=4), Kind.UNKNOWN, None),
        (Gone(), Kind.UNKNOWN, None),
    ],
)  # fmt: skip
def test_what_is_no_answer_has_its_class(ai: AI, reply: Any, kind: Kind, after: float | None) -> None:
    ai.answers.append(reply)
    verdict = refused(provider(ai))
    assert (verdict.kind, verdict.after, verdict.until) == (kind, after, None), verdict
    assert len(ai.questions) == 1  # asking again is for others to decide


def test_silence_is_an_unknown_outcome(ai: AI) -> None:
    for reply in (Silent(5), Says("Good morning", hangs_after=4, hangs_for=5)):
        ai.answers.append(reply)
        assert refused(provider(ai, timeout=0.2)).kind is Kind.UNKNOWN
    ai.until(lambda: ai.left == 2)


def test_a_key_is_in_no_log_although_the_other_side_repeats_it(ai: AI, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ai.key = "another"
    one = provider(ai)
    assert refused(one).kind is Kind.AUTH
    with pytest.raises(Exception, match="401") as caught:
        asyncio.run(one.check())
    ai.key = KEY
    ask(one)
    assert KEY not in caplog.text + repr(one) + str(caught.value)


@pytest.mark.parametrize(
    ("missing", "variable"), [("key", "DULY_ANTHROPIC_API_KEY"), ("model", "DULY_ANTHROPIC_MODEL")]
)
def test_what_is_not_set_is_said_before_anything_is_asked(ai: AI, missing: str, variable: str) -> None:
    verdict = refused(provider(ai, **{missing: ""}))
    assert (verdict.kind, variable in verdict.reason) == (Kind.AUTH, True)
    assert not ai.questions


def test_a_url_that_would_show_the_key_to_others_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="anthropic_base_url"):
        Anthropic(base_url="http://example.org", model="test", key=KEY)


def test_a_base_url_may_end_in_the_version(ai: AI) -> None:
    assert ask(provider(ai, base_url=f"{ai.anthropic_url}/v1/")).text == "Yes."


def test_a_check_says_whether_the_model_is_there(ai: AI) -> None:
    ai.models = ("test",)
    assert asyncio.run(provider(ai).check()) == f"127.0.0.1:{ai.port} answers, and knows test"
    assert ai.questions == []

"""Chat completions as OpenAI has them, on real connections. The classes of refusals are those of the facts about providers, section 6."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automations.providers.hands import KEY, WEATHER, ask, refused, user
from automations.servers import AI, Gone, Says, Silent, Status
from duly.automations.providers import openai
from duly.automations.providers.base import Message, Prices, Question, Refused, Role, Stop, ToolCall, ToolSpec, Usage
from duly.automations.providers.openai import OpenAICompatible
from duly.automations.providers.shared import Names
from duly.kernel.errors import InvalidArgument
from duly.kernel.verdict import Kind


@pytest.fixture
def ai() -> Iterator[AI]:
    openai._refused.clear()
    with AI().listening() as ai:
        ai.key = KEY
        yield ai


def provider(ai: AI, **more: Any) -> OpenAICompatible:
    return OpenAICompatible(**{"base_url": ai.openai_url, "model": "test", "key": KEY, "timeout": 20.0, **more})


# ---------------------------------------------------------------------- what is told


def test_the_whole_conversation_is_told_with_tools_as_functions(ai: AI) -> None:
    # R001-16: a session goes on from what is stored, and nothing else
    call = ToolCall("c1", "weather", {"city": "Rome"})
    messages = (
        Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Weather?"), Message(Role.ASSISTANT, "I look.", (call,)),
        Message(Role.TOOL, '{"sky": "sunny"}', call_id="c1"),
    )  # fmt: skip
    ask(provider(ai), Question(messages, (WEATHER,), temperature=0.5, max_tokens=77))
    [asked] = ai.questions
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "test", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 77, "temperature": 0.5,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "sunny"}'},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": WEATHER.parameters}}],
    }  # fmt: skip


def test_the_question_may_name_another_model(ai: AI) -> None:
    ask(provider(ai), user(model="other"))
    assert ai.questions[0].body["model"] == "other"


def test_a_model_on_this_machine_needs_no_key(ai: AI) -> None:
    ai.key = None
    assert ask(provider(ai, key=None)).text == "Yes."
    assert "authorization" not in ai.questions[0].headers


def test_a_server_that_knows_no_stream_options_is_asked_without_them_from_then_on(ai: AI) -> None:
    ai.answers.append(
        Status.error(400, "invalid_request_error", "Unrecognized request argument supplied: stream_options")
    )
    assert ask(provider(ai)).usage == Usage(is_complete=False)
    ask(provider(ai))
    assert ["stream_options" in asked.body for asked in ai.questions] == [True, False, False]


def test_a_model_that_wants_max_completion_tokens_is_given_them_from_then_on(ai: AI) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    ai.answers.append(
        Status.error(400, "invalid_request_error", said, param="max_tokens", code="unsupported_parameter")
    )
    ask(provider(ai))
    ask(provider(ai))
    assert [sorted(n for n in asked.body if n.startswith("max")) for asked in ai.questions] == [
        ["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"],
    ]  # fmt: skip
    ask(provider(ai), user(model="other"))
    assert "max_tokens" in ai.questions[-1].body  # another model, another question


def test_a_server_that_refuses_both_names_is_not_asked_for_ever(ai: AI) -> None:
    ai.by_question = lambda asked: Status.error(
        400, "invalid_request_error", "max_tokens: and stream_options: both are wrong"
    )
    assert refused(provider(ai)).kind is Kind.PERMANENT
    assert len(ai.questions) == 3
    ai.by_question = lambda asked: Says("Yes.")
    ask(provider(ai))
    assert "max_tokens" in ai.questions[-1].body  # what was never taken is not remembered


def test_names_that_the_api_does_not_take_are_changed_on_the_way_and_back(ai: AI) -> None:
    tools = tuple(ToolSpec(name, "", {"type": "object"}) for name in ("mail.send", "mail/send", "Zoë", "x" * 80))
    ai.by_question = lambda asked: Says("", [(tool["function"]["name"], {}) for tool in asked.body["tools"]])
    answer = ask(provider(ai), Question((Message(Role.USER, "Go"),), tools))
    assert [call.name for call in answer.calls] == [tool.name for tool in tools]
    told = [tool["function"]["name"] for tool in ai.questions[0].body["tools"]]
    assert told == ["mail_send", "mail_send_2", "Zo_", "x" * 64]


# ---------------------------------------------------------------------- what is answered


def test_tokens_are_told_and_cost_what_the_prices_say(ai: AI) -> None:
    # R001-19
    ai.answers.append(Says("Yes.", tokens=(1000, 50)))
    one = provider(ai, prices=Prices(250.0, 1000.0))
    answer = ask(one)
    assert answer.usage == Usage(1000, 50)
    assert one.prices is not None
    assert one.prices.micros(answer.usage) == 300_000


@pytest.mark.parametrize(
    ("why", "calls", "stop"),
    [
        ("stop", False, Stop.END), ("length", False, Stop.LENGTH), ("content_filter", False, Stop.FILTERED), ("tool_calls", True, Stop.CALLS),
        ("stop", True, Stop.CALLS), ("length", True, Stop.LENGTH), ("tool_calls", False, Stop.END), ("eos", False, Stop.END),
        ("insufficient_system_resource", True, Stop.OTHER),
    ],
)  # fmt: skip
def test_why_an_answer_ended_is_said(ai: AI, why: str, calls: bool, stop: Stop) -> None:
    ai.answers.append(Says("Yes.", [("weather", {})] if calls else [], stop=why))
    assert ask(provider(ai)).stop is stop


def gathered(*deltas: dict[str, Any]) -> list[tuple[str, str, dict[str, Any], str]]:
    heard = openai._Gathered(lambda piece: None, Names(user()), "call-1")
    for delta in deltas:
        heard.add({"choices": [{"index": 0, "delta": delta}]})
    heard.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return [(c.id, c.name, dict(c.arguments), c.problem) for c in heard.answer("").calls]


def piece(
    arguments: Any = "", name: str | None = None, ident: str | None = None, index: int | None = 0
) -> dict[str, Any]:
    return {"index": index, "id": ident, "function": {"name": name, "arguments": arguments}}


def test_servers_that_write_calls_in_their_own_way_are_understood() -> None:
    one, other = ("a", "weather", {"city": "Rome"}, ""), ("b", "weather", {"city": "Oslo"}, "")
    rome, oslo = '{"city": "Rome"}', '{"city": "Oslo"}'
    # all of them at index 0, each with its id
    assert gathered({"tool_calls": [piece(rome, "weather", "a")]}, {"tool_calls": [piece(oslo, "weather", "b")]}) == [
        one,
        other,
    ]
    # no index at all, both in one piece
    assert gathered({"tool_calls": [piece(rome, "weather", "a", None), piece(oslo, "weather", "b", None)]}) == [
        one,
        other,
    ]
    # in turns, the id and the name repeated in each piece
    turns = [
        piece(rome[:5], "weather", "a", 0),
        piece(oslo[:5], "weather", "b", 1),
        piece(rome[5:], "weather", "a", 0),
        piece(oslo[5:], "weather", "b", 1),
    ]
    assert gathered(*({"tool_calls": [p]} for p in turns)) == [one, other]
    # arguments as an object, no id
    assert gathered({"tool_calls": [piece({"city": "Rome"}, "weather")]}) == [("call-1-1", *one[1:])]
    # the same id twice: ids are unique within an answer
    assert [
        c[0] for c in gathered({"tool_calls": [piece(rome, "weather", "a", 0), piece(oslo, "weather", "a", 1)]})
    ] == ["a", "call-1-2"]
    # no arguments at all
    assert gathered({"tool_calls": [piece("", "weather", "a")]}) == [("a", "weather", {}, "")]


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers(-9, 9) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), st.lists(st.integers(1, 7)))  # fmt: skip
def test_arguments_are_the_same_however_they_are_cut_in_pieces(arguments: dict[str, Any], sizes: list[int]) -> None:
    written, pieces = json.dumps(arguments), []
    for size in sizes:
        pieces.append(written[:size])
        written = written[size:]
    deltas = [{"tool_calls": [piece("", "weather", "a")]}, *({"tool_calls": [piece(p)]} for p in [*pieces, written])]
    assert gathered(*deltas) == [("a", "weather", arguments, "")]


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1', "[1]", '{"a": NaN}', '{"a": "\\u0000"}', '{"a": 1e999}', "[" * 100_000, '{"a": "\\ud800"}'],
)
def test_arguments_that_nobody_could_use_are_the_problem_of_the_call(ai: AI, arguments: str) -> None:
    ai.answers.append(Says("", [("weather", arguments), ("weather", {"city": "Rome"})]))
    broken, whole = ask(provider(ai)).calls
    assert broken.problem
    assert broken.arguments == {}
    assert (whole.problem, whole.arguments) == ("", {"city": "Rome"})


def test_a_character_that_is_cut_in_two_is_put_together_and_nul_is_left_out() -> None:
    heard: list[str] = []
    speech = openai._Gathered(heard.append, Names(user()), "")
    for text in ("sun \ud83c", "\udf1e and\0", " half \ud83c", ""):
        speech.add({"choices": [{"delta": {"content": text}}]})
    speech.add({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    assert speech.answer("").text == "".join(heard) == "sun 🌞 and half \ufffd"


def test_a_server_that_does_not_stream_is_understood(ai: AI) -> None:
    message = {
        "role": "assistant",
        "content": "Yes.",
        "tool_calls": [{"id": "a", "function": {"name": "weather", "arguments": "{}"}}],
    }
    ai.answers.append(
        Status(
            200,
            {
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 2},
            },
        )
    )
    answer = ask(provider(ai))
    assert (answer.text, [c.name for c in answer.calls], answer.usage) == ("Yes.", ["weather"], Usage(5, 2))


def test_an_answer_that_said_why_it_ended_is_whole_although_its_tokens_are_lost(ai: AI) -> None:
    ai.answers.append(Says("Yes.", pieces=1, cut_after=3))
    answer = ask(provider(ai))
    assert (answer.text, answer.usage) == ("Yes.", Usage(is_complete=False))


# ---------------------------------------------------------------------- what is no answer


@pytest.mark.parametrize(
    ("reply", "kind", "after"),
    [
        (Status.error(400, "invalid_request_error", "too long", code="context_length_exceeded"), Kind.PERMANENT, None),
        (Status.error(404, "invalid_request_error", code="model_not_found"), Kind.AUTH, None),
        (Status.error(422, "invalid_request_error"), Kind.PERMANENT, None),
        (Status(422, {"detail": [{"loc": ["body", "messages"], "msg": "wrong"}]}), Kind.PERMANENT, None),
        (Status.error(413), Kind.PERMANENT, None),
        (Status(307, {}, {"Location": "/elsewhere"}), Kind.AUTH, None),
        (Status(200, b"<html>", {"Content-Type": "text/html"}), Kind.TRANSIENT, None),
        (Status(200, {"hello": 1}), Kind.AUTH, None),
        (Status(200, {"error": {"message": "over", "code": 429}}), Kind.THROTTLED, None),
        (Status(200, {"error": {"message": "no money", "code": "insufficient_quota"}}), Kind.QUOTA, None),
        (Status(403, b"<html>Blocked by the firewall</html>", {"Content-Type": "text/html"}), Kind.TRANSIENT, None),
        (Status(404, b"<html>"), Kind.AUTH, None),
        (Status.error(504), Kind.UNKNOWN, None),
        (Status.error(418), Kind.UNKNOWN, None),
        (Status.error(400, code="content_policy_violation"), Kind.PERMANENT, None),
        (Status.error(401, code="invalid_api_key"), Kind.AUTH, None),
        (Status.error(403, "permission_error"), Kind.AUTH, None),
        (Status.error(402), Kind.QUOTA, None),
        (Status.error(408), Kind.TRANSIENT, None),
        (Status.error(409), Kind.TRANSIENT, None),
        (Status.error(500, "server_error"), Kind.TRANSIENT, None),
        (Status.error(503, retry_after="9"), Kind.TRANSIENT, 9.0),
        (Status(502, b"<html>"), Kind.TRANSIENT, None),
        (Status.error(429, "requests", code="rate_limit_exceeded"), Kind.THROTTLED, None),
        (Status.error(429, "tokens", code="rate_limit_exceeded", retry_after="20"), Kind.THROTTLED, 20.0),
        (Status.error(429, code="slow_down", retry_after="20", retry_after_ms="1500"), Kind.THROTTLED, 1.5),
        (Status.error(429, retry_after_ms="nan"), Kind.THROTTLED, None),
        (Status.error(429, retry_after="99999999"), Kind.THROTTLED, 86_400.0),
        *((Status.error(429, "insufficient_quota", code=code, retry_after="5"), Kind.QUOTA, None) for code in (
            "insufficient_quota", "credit_balance_exhausted", "organization_spend_limit_exceeded", "project_spend_limit_exceeded",
            "organization_usage_limit_exceeded",
        )),
        (Status.error(429, "insufficient_quota"), Kind.QUOTA, None),
        (Says("Good", error=("server_error", "sorry")), Kind.TRANSIENT, None),
        (Says("Good", error=("rate_limit_error", "sorry")), Kind.THROTTLED, None),
        (Says("Good", error=("insufficient_quota", "sorry")), Kind.QUOTA, None),
        (Says("Good", error=("invalid_request_error", "sorry")), Kind.PERMANENT, None),
        (Says("Good", error=("authentication_error", "sorry")), Kind.AUTH, None),
        (Says("Good morning", cut_after=0), Kind.UNKNOWN, None),
        (Says("Good morning", cut_after=3), Kind.UNKNOWN, None),
        (Says("Good morning", ends_after=3), Kind.UNKNOWN, None),
        (Says("", [("weather", {"city": "Rome"})], cut_after=3), Kind.UNKNOWN, None),
        (Gone(), Kind.UNKNOWN, None),
    ],
)  # fmt: skip
def test_what_is_no_answer_has_its_class(ai: AI, reply: Any, kind: Kind, after: float | None) -> None:
    ai.answers.append(reply)
    verdict = refused(provider(ai))
    assert (verdict.kind, verdict.after, verdict.until) == (kind, after, None), verdict
    assert len(ai.questions) == 1  # asking again is for others to decide


def test_what_the_provider_says_of_a_question_is_kept_apart_from_its_class(ai: AI) -> None:
    # it may quote the conversation, so events and the trail have the class alone
    ai.answers.append(Status.error(400, "invalid_request_error", f"This is\nwrong for {KEY}. " + "x" * 1000))
    with pytest.raises(Refused) as caught:
        ask(provider(ai))
    assert str(caught.value) == "the AI answered 400 invalid_request_error"
    assert caught.value.said.startswith("This is wrong for …. xxx")
    assert len(caught.value.said) <= 300


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


def test_silence_before_an_answer_and_within_it_is_an_unknown_outcome(ai: AI) -> None:
    for reply in (Silent(5), Says("Good morning", hangs_after=3, hangs_for=5)):
        ai.answers.append(reply)
        assert refused(provider(ai, timeout=0.2)).kind is Kind.UNKNOWN
    ai.until(lambda: ai.left == 2)  # the connections were closed


def test_an_answer_may_take_longer_than_the_longest_silence(ai: AI) -> None:
    ai.answers.append(Says("Good morning, all of you", pieces=12, pause=0.2))
    assert ask(provider(ai, timeout=2.0)).text == "Good morning, all of you"


def test_an_answer_without_an_end_is_given_up(ai: AI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.outbound.MOST_STREAMED", 50_000)
    ai.answers.append(Says("x" * 60_000))
    verdict = refused(provider(ai))
    assert (verdict.kind, "50,000 bytes" in verdict.reason) == (Kind.UNKNOWN, True)


def test_nobody_at_the_other_side_is_no_question_asked(ai: AI) -> None:
    one = provider(ai, base_url="http://127.0.0.1:1/v1")
    assert refused(one).kind is Kind.TRANSIENT
    assert asyncio.run(one.is_reachable()) is False
    assert asyncio.run(provider(ai, base_url="https://nowhere.invalid/v1").is_reachable()) is False
    assert asyncio.run(provider(ai).is_reachable()) is True


def test_a_model_that_nobody_named_is_said_before_anything_is_asked(ai: AI) -> None:
    verdict = refused(provider(ai, model=""))
    assert (verdict.kind, "DULY_AI_MODEL" in verdict.reason) == (Kind.AUTH, True)
    assert not ai.questions


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/v1",
        "ftp://127.0.0.1",
        "https://user:word@example.org/v1",
        "https://example.org/v1?key=1",
        "",
        "https://",
        "https://a b/",
    ],
)
def test_a_url_that_would_show_the_key_to_others_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="ai_base_url") as caught:
        OpenAICompatible(base_url=url, model="test", key=KEY)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-\n1", "sk 1", "sk-é"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidArgument, match="ai_api_key") as caught:
        OpenAICompatible(model="test", key=key)
    assert key not in str(caught.value)


def test_a_check_says_whether_the_model_is_there(ai: AI) -> None:
    assert asyncio.run(provider(ai).check()) == f"127.0.0.1:{ai.port} answers, and knows test"
    assert asyncio.run(provider(ai, model="gone").check()).endswith("does not list gone")
    assert ai.questions == []

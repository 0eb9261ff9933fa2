"""What an AI sent is kept and sent back unchanged; whose fault an answer is (G4, F)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from automations.providers.hands import ask, user
from automations.servers import AI, Says, Status
from duly.automations.providers import anthropic, openai, verdicts
from duly.automations.providers.anthropic import Anthropic
from duly.automations.providers.base import Answer, Message, Owner, Question, Refused, Role, Stop
from duly.automations.providers.openai import OpenAICompatible
from duly.automations.providers.shared import limit_of


@pytest.fixture
def ai() -> Iterator[AI]:
    openai._refused.clear()
    with AI().listening() as ai:
        yield ai


def events(*chunks: Mapping[str, Any], done: bool = True) -> Status:
    """A stream of these chunks, as OpenAI's."""
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if done else "")
    return Status(200, text.encode(), {"Content-Type": "text/event-stream"})


def delta(why: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": why}]}


def next_question(answer: Answer) -> Question:
    """The question after an answer whose calls were made."""
    results = tuple(Message(Role.TOOL, "1", call_id=call.id) for call in answer.calls)
    said = Message(Role.ASSISTANT, answer.text, answer.calls, original=answer.original)
    return Question((*user().messages, said, *results), user().tools)


def test_fields_of_an_openai_compatible_answer_that_nobody_knows_go_back_unchanged(ai: AI) -> None:
    signature = {"google": {"thought_signature": "c2lnbmF0dXJl"}}
    ai.answers.append(events(
        delta(role="assistant", content=None, reasoning_content="I ", reasoning_details=[{"index": 0, "type": "reasoning.text", "text": "I ", "format": "f"}]),
        delta(reasoning_content="think.", reasoning_details=[{"index": 0, "type": "reasoning.text", "text": "think.", "format": "f"}]),
        delta(tool_calls=[{"index": 0, "id": "functions.weather:0", "type": "function", "extra_content": signature,
                           "function": {"name": "weather", "arguments": '{"city": '}}]),
        delta("tool_calls", tool_calls=[{"index": 0, "function": {"arguments": '"Rome"}'}}]),
    ))  # fmt: skip
    one = OpenAICompatible(base_url=ai.openai_url, model="test")
    answer = ask(one)
    ask(one, next_question(answer))
    sent = ai.questions[1].messages[1]
    assert sent == {
        "role": "assistant", "content": None, "reasoning_content": "I think.",
        "reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "I think.", "format": "f"}],
        "tool_calls": [{"id": "functions.weather:0", "type": "function", "extra_content": signature,
                        "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}],
    }  # fmt: skip
    # another model or server is told what all of them know
    ask(OpenAICompatible(base_url=ai.openai_url, model="other"), next_question(answer))
    assert set(ai.questions[2].messages[1]) == {"role", "content", "tool_calls"}


def test_blocks_of_anthropic_go_back_unchanged(ai: AI) -> None:
    def event(kind: str, **facts: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n"

    blocks = [
        ({"type": "thinking", "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": "Let me "}, {"type": "thinking_delta", "thinking": "see."}, {"type": "signature_delta", "signature": "c2ln"},
        ]),
        ({"type": "redacted_thinking", "data": "ZW5j"}, []),
        ({"type": "something_new", "deep": {"a": [1]}}, [{"type": "new_delta", "more": "x"}, {"type": "new_delta", "more": "y"}]),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "I look."}]),
        ({"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}, "caller": "me"}, [{"type": "input_json_delta", "partial_json": '{"city": "Rome"}'}]),
    ]  # fmt: skip
    text = event("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}})
    for index, (block, deltas) in enumerate(blocks):
        text += event("content_block_start", index=index, content_block=block)
        text += "".join(event("content_block_delta", index=index, delta=one) for one in deltas)
        text += event("content_block_stop", index=index)
    text += event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9}) + event(
        "message_stop"
    )
    ai.answers.append(Status(200, text.encode(), {"Content-Type": "text/event-stream"}))
    one = Anthropic(base_url=ai.anthropic_url, model="test", key="k")
    answer = ask(one)
    ask(one, next_question(answer))
    assert ai.questions[1].messages[1]["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZW5j"},
        {"type": "something_new", "deep": {"a": [1]}, "more": "xy"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}, "caller": "me"},
    ]


def test_a_result_that_is_a_failure_is_one_to_anthropic(ai: AI) -> None:
    one = Anthropic(base_url=ai.anthropic_url, model="test", key="k")
    ai.answers.append(Says("", [("weather", {"city": "Rome"})]))
    answer = ask(one)
    asked = next_question(answer)
    for text, is_error in (("failed: KeyError", True), ("refused: no", True), ('"failed: not"', None), ("1", None)):
        ask(one, Question((*asked.messages[:-1], Message(Role.TOOL, text, call_id="toolu_0")), asked.tools))
        (block,) = ai.questions[-1].messages[-1]["content"]
        assert block.get("is_error") is is_error


def test_done_is_an_end_without_a_reason(ai: AI) -> None:
    ai.answers.append(events(delta(content='{"completed": true}')))
    one = OpenAICompatible(base_url=ai.openai_url, model="test")
    answer = ask(one)
    assert (answer.text, answer.stop) == ('{"completed": true}', Stop.END)
    # a call whose arguments were not written may not be whole
    blank = {"index": 0, "id": "a", "function": {"name": "weather", "arguments": ""}}
    ai.answers.append(events(delta(tool_calls=[blank])))
    assert ask(one).calls[0].problem.startswith("its arguments did not come")


def test_a_block_of_a_call_that_did_not_end_is_the_problem_of_the_call(ai: AI) -> None:
    def event(kind: str, **facts: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **facts})}\n\n"

    text = event(
        "content_block_start", index=0, content_block={"type": "tool_use", "id": "t", "name": "weather", "input": {}}
    )
    text += event("message_delta", delta={"stop_reason": "tool_use"}) + event("message_stop")
    ai.answers.append(Status(200, text.encode(), {"Content-Type": "text/event-stream"}))
    (call,) = ask(Anthropic(base_url=ai.anthropic_url, model="test", key="k")).calls
    assert call.problem == "its arguments did not come to their end"


def test_content_in_parts_is_heard_and_null_arguments_are_none(ai: AI) -> None:
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "day"}]
    call = {"id": "a", "function": {"name": "weather", "arguments": "null"}}
    message = {"role": "assistant", "content": parts, "tool_calls": [call]}
    ai.answers.append(Status(200, {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}))
    answer = ask(OpenAICompatible(base_url=ai.openai_url, model="test"))
    assert (answer.text, answer.calls[0].arguments, answer.calls[0].problem) == ("Good day", {}, "")


# ---------------------------------------------------------------------- whose fault


@pytest.mark.parametrize("table", [openai.VERDICTS, anthropic.VERDICTS], ids=["openai", "anthropic"])
def test_each_row_of_the_verdicts_is_reached(table: tuple[verdicts.Row, ...]) -> None:
    for row in (*table, *verdicts.HTTP):
        # a status that no other row names, where the row is for any
        found = verdicts.refused(table, row.status or 499, [row.word] if row.word else [], said="", limit=9)
        assert (found.verdict.kind, found.owner, found.is_too_long) == (row.kind, row.owner, row.is_too_long), row
        assert row.means in found.verdict.reason


@pytest.mark.parametrize("status", [306, 411, 418, 421, 423, 424, 426, 428, 431, 501, 505, 507, 599])
def test_what_no_row_names_goes_to_the_cautious_side(ai: AI, status: int) -> None:
    for one in (
        OpenAICompatible(base_url=ai.openai_url, model="test"),
        Anthropic(base_url=ai.anthropic_url, model="test", key="k"),
    ):
        ai.answers.append(Status.error(status, "something_new", "hm"))
        with pytest.raises(Refused) as caught:
            ask(one)
        assert caught.value.verdict.kind is verdicts.UNLISTED.kind
        assert caught.value.owner is Owner.SERVER


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        ({"message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."}, 8192),
        ({"message": "prompt is too long: 208310 tokens > 200000 maximum"}, 200_000),
        ({"message": "the request exceeds the available context size", "n_ctx": 4096}, 4096),
        ({"message": "too long"}, None), ("x", None),
    ],
)  # fmt: skip
def test_how_long_a_conversation_may_be_is_read_where_it_is_said(ai: AI, error: Any, limit: int | None) -> None:
    assert limit_of(error) == limit


@pytest.mark.parametrize("path", ["openai", "anthropic"])
@pytest.mark.parametrize("said", ["prompt is too long: 208310 tokens > 200000 maximum", "This model's maximum context length is 8192 tokens."])  # fmt: skip
def test_a_conversation_that_is_too_long_is_known_by_its_words(ai: AI, path: str, said: str) -> None:
    one: Any = (
        OpenAICompatible(base_url=ai.openai_url, model="test")
        if path == "openai"
        else Anthropic(base_url=ai.anthropic_url, model="test", key="k")
    )
    ai.answers.append(Status.error(400, "invalid_request_error", said))
    with pytest.raises(Refused) as caught:
        ask(one)
    assert caught.value.is_too_long
    assert caught.value.context_limit

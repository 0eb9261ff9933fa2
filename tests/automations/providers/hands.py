"""What the tests of providers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duly.automations.providers.base import Answer, Message, Provider, Question, Role, ToolSpec
from duly.kernel.verdict import Refusal, Verdict

KEY = "sk-test-4f2c9a77aa01"
WEATHER = ToolSpec("weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def user(text: str = "Hello", **more: object) -> Question:
    return Question((Message(Role.USER, text),), (WEATHER,), **more)  # type: ignore[arg-type]


def ask(
    provider: Provider, question: Question | None = None, say: Callable[[str], None] = lambda piece: None
) -> Answer:
    return asyncio.run(provider.ask(question or user(), say))


def refused(provider: Provider, question: Question | None = None) -> Verdict:
    """The verdict of a question that is refused; neither it nor its error shows the key."""
    try:
        answer = ask(provider, question)
    except Refusal as error:
        assert KEY not in f"{error} {error!r} {error.verdict} {error.__cause__!r}"
        return error.verdict
    raise AssertionError(f"it was answered: {answer}")

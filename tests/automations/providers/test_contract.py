"""Every provider of Duly keeps to what ``duly.testing.providers`` asks of users' own (R001-16, R001-17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from automations.servers import AI, Says, Status
from duly.automations.providers.anthropic import Anthropic
from duly.automations.providers.base import Provider
from duly.automations.providers.openai import OpenAICompatible
from duly.automations.providers.scripted import Scripted
from duly.kernel.verdict import Kind
from duly.testing.providers import ProviderContract

KEY = "sk-test-4f2c9a77aa01"


class OverHttp(ProviderContract):
    secrets = (KEY,)
    streams_calls = True
    refusals: ClassVar[dict[Kind, Status]]

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with AI().listening() as self.ai:
            self.ai.key = KEY
            yield

    def says(self, *pieces: str, tokens: tuple[int, int] | None = None) -> None:
        self.ai.answers.append(Says("".join(pieces), pieces=len(pieces), tokens=tokens or (1, 1)))

    def asked(self) -> int:
        return len(self.ai.questions)

    def calls(self, *calls: tuple[str, Mapping[str, Any] | str]) -> None:
        def reply(asked: Any) -> Says:
            told = [t.get("function", t)["name"] for t in asked.body["tools"]]
            real = {"weather": told[0], "mail.send/urgent": told[1]}
            return Says("", [(real[name], arguments) for name, arguments in calls])

        self.ai.by_question = reply

    #: How the API calls an answer that was cut.
    length: ClassVar[str]

    def cut_by_length(self) -> None:
        self.ai.answers.append(Says("", [("weather", "")], stop=self.length))

    def refuse(self, kind: Kind) -> None:
        self.ai.answers.append(self.refusals[kind])

    def cut(self) -> None:
        self.ai.answers.append(Says("Good morning", cut_after=4))

    def hang(self) -> None:
        self.ai.answers.append(Says("Good morning", hangs_after=4))

    def was_left(self) -> bool:
        return self.ai.left == 1


class TestOpenAI(OverHttp):
    length = "length"
    refusals: ClassVar = {
        Kind.TRANSIENT: Status.error(503, "server_error"),
        Kind.THROTTLED: Status.error(429, "requests", code="rate_limit_exceeded", retry_after="7"),
        Kind.PERMANENT: Status.error(400, "invalid_request_error", "messages: wrong"),
        Kind.AUTH: Status.error(
            401, "invalid_request_error", f"Incorrect API key provided: {KEY}", code="invalid_api_key"
        ),
        Kind.QUOTA: Status.error(429, "insufficient_quota", code="insufficient_quota"),
    }

    def provider(self) -> Provider:
        return OpenAICompatible(base_url=self.ai.openai_url, model="test", key=KEY)

    def unreachable(self) -> Provider:
        return OpenAICompatible(base_url="http://127.0.0.1:1/v1", model="test", key=KEY)


class TestAnthropic(OverHttp):
    length = "max_tokens"
    refusals: ClassVar = {
        Kind.TRANSIENT: Status.error(529, "overloaded_error"),
        Kind.THROTTLED: Status.error(429, "rate_limit_error", retry_after="7"),
        Kind.PERMANENT: Status.error(400, "invalid_request_error", "messages: wrong"),
        Kind.AUTH: Status.error(401, "authentication_error", f"invalid x-api-key {KEY}"),
        Kind.QUOTA: Status.error(402, "billing_error"),
    }

    def provider(self) -> Provider:
        return Anthropic(base_url=self.ai.anthropic_url, model="test", key=KEY)

    def unreachable(self) -> Provider:
        return Anthropic(base_url="http://127.0.0.1:1", model="test", key=KEY)


class TestScripted(ProviderContract):
    @pytest.fixture(autouse=True)
    def _script(self) -> None:
        self.turns: list[dict[str, Any]] = []

    def provider(self) -> Provider:
        # place 0 of the conversation and those after it answer alike: the contract asks in the middle of one, too
        return Scripted(
            {"contract": [*self.turns, {"say": "Yes.", "again": True}], "default": [{"say": "Yes.", "again": True}]}
        )

    def says(self, *pieces: str, tokens: tuple[int, int] | None = None) -> None:
        self.turns = [{"say": "".join(pieces), "tokens": list(tokens or (0, 0))}] * 3

    def calls(self, *calls: tuple[str, Mapping[str, Any] | str]) -> None:
        self.turns = [{"calls": [{"tool": name, "arguments": arguments} for name, arguments in calls]}]

    def refuse(self, kind: Kind) -> None:
        self.turns = [{"fail": kind.value}]

    def cut(self) -> None:
        self.turns = [{"fail": "unknown", "say": "Good morning"}]

    def hang(self) -> None:
        self.turns = [{"say": "Good morning", "pause": 3600}]

    def unreachable(self) -> Provider:
        return Scripted({"contract": [{"network": "down", "times": 2}, {"say": "Yes."}]})

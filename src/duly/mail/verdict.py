"""What was answered about a message and its recipients, as values without addresses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from duly.kernel.verdict import Kind, Refusal, Verdict
from duly.mail.address import without_addresses


class Owner(StrEnum):
    """Whose fault an answer is."""

    #: This message: its size, its content, its fields.
    MESSAGE = "message"
    #: This recipient.
    RECIPIENT = "recipient"
    #: The address that sends. If the message names it itself, the message is at fault; if the settings do, the account is.
    SENDER = "sender"
    #: The account at the provider: credentials, permissions, limits.
    ACCOUNT = "account"
    #: The server or relay that was asked.
    SERVER = "server"
    #: The way there.
    NETWORK = "network"


class Undelivered(Refusal):
    """Raised by a provider: nobody got this message, or nobody knows (``verdict.kind``)."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(replace(verdict, reason=without_addresses(verdict.reason)))


def undelivered(
    kind: Kind, reason: str, after: float | None = None, until: datetime | None = None, owner: str = ""
) -> Undelivered:
    """Return the error of a verdict, cleared of addresses."""
    return Undelivered(Verdict(kind, reason, after, until, owner))


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said of one recipient: a number, a text without addresses, and whose fault it is (``Owner``)."""

    code: int | None = None
    said: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message was answered. Recipients that are named in no mapping were accepted."""

    #: What the other side calls the message.
    remote_id: str | None = None
    #: Recipients (addresses) that were refused for good, and those that may be tried again.
    refused: Mapping[str, Answer] = field(default_factory=dict, repr=False)
    deferred: Mapping[str, Answer] = field(default_factory=dict, repr=False)
    #: Those for whom no answer came after the message was handed over.
    unknown: Mapping[str, Answer] = field(default_factory=dict, repr=False)

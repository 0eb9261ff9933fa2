"""The nouns of the outbox: a message, where it goes, and the one table of its moves.

A message is written by ``Outbox.publish`` in the transaction of the change that causes it, taken by a relay, and handed
to the transport that its destination names. All its moves live here. This file knows no database, no transport, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from duly.kernel.errors import InvalidArgument
from duly.kernel.lifecycle import Lifecycle, Move
from duly.kernel.payload import check_name, check_text

#: The type of the error of a message that an operator put aside.
PARKED_BY_HAND = "Parked"


class Status(StrEnum):
    """Where a message stands."""

    PENDING = "pending"
    SENT = "sent"
    PARKED = "parked"


LIFECYCLE: Lifecycle[Status] = Lifecycle(
    "message",
    (
        Move(None, "publish", Status.PENDING),
        Move(Status.PENDING, "send", Status.SENT),
        Move(Status.PENDING, "fail", Status.PENDING, "sending failed; it is tried again after a pause"),
        Move(Status.PENDING, "park", Status.PARKED, "sending failed too often, or an operator put it aside"),
        Move(Status.PENDING, "release", Status.PENDING, "a relay gave it back without having tried"),
        Move(Status.PARKED, "redrive", Status.PENDING, "an operator has it sent again"),
        Move(Status.SENT, "redrive", Status.PENDING, "an operator has it sent again, under the same message id"),
    ),
)

#: Audit actions.
PARKED, REDRIVEN = "OUTBOX_PARKED", "OUTBOX_REDRIVEN"

_TRANSPORT = re.compile(r"[a-z][a-z0-9_-]*")
#: Names of headers: tokens that HTTP, AMQP and Celery carry alike.
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
LONGEST_HEADER = 4_096


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message goes: the name of a transport, and what that transport makes of the rest."""

    transport: str
    target: str = ""

    @classmethod
    def parse(cls, text: str) -> Destination:
        """From ``transport:target`` (``duly:send_receipt``) or a transport alone. Raises InvalidArgument."""
        check_name(text, "destination")
        transport, _, target = text.partition(":")
        if not _TRANSPORT.fullmatch(transport):
            raise InvalidArgument(
                "destination",
                f"is {text!r}, which names no transport.",
                "Write the transport's name, a colon and the rest, such as webhook:billing.",
            )
        return cls(transport, target)

    def __str__(self) -> str:
        return f"{self.transport}:{self.target}" if self.target else self.transport


@dataclass(frozen=True, slots=True)
class Message:
    """A message as its row says. Fields in the order of its life; instants are aware, in UTC."""

    #: In the order of insertion; within an ordering key also in the order of commits.
    id: int
    #: A UUID as text, the same at every delivery.
    message_id: str
    tenant: str
    destination: str
    #: Any JSON value.
    payload: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    ordering_key: str | None = None
    status: Status = Status.PENDING
    #: Attempts that were begun, this one included.
    attempts: int = 0
    created_at: datetime | None = None
    #: Not before this instant.
    due_at: datetime | None = None
    sent_at: datetime | None = None
    parked_at: datetime | None = None
    #: Who sends it, or sent it last.
    relay: str | None = None
    #: Until when he may; None when nobody does.
    lease_until: datetime | None = None
    #: So often in a row it was lost: its relay ended in the middle.
    losses: int = 0
    #: Why the last attempt failed: ``message``, ``type``, ``attempted_at``.
    error: Any = None
    #: The proof that it is he.
    token: int = field(default=0, repr=False)

    @property
    def to(self) -> Destination:
        """Its destination in two parts."""
        transport, _, target = self.destination.partition(":")
        return Destination(transport, target)

    @property
    def target(self) -> str:
        """What stands behind the colon of its destination."""
        return self.to.target

    def label(self, now: datetime) -> str:
        """Its state for people: a pending message is being sent, is retrying, is planned, or waits."""
        if self.status is not Status.PENDING:
            return str(self.status)
        if self.lease_until is not None:
            return "sending"
        if self.due_at is not None and self.due_at > now:
            return "retrying" if self.attempts or self.losses or self.error is not None else "planned"
        return "pending"


class Published(NamedTuple):
    """What publishing answers. ``created`` is False when the key was taken: the message that has it is named."""

    message_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be written, everything decided but its id and the present instant."""

    message_id: str
    tenant: str
    destination: str
    #: Encoded (JSON text).
    payload: str
    headers: Mapping[str, str]
    key: str | None = None
    ordering_key: str | None = None
    run_at: datetime | None = None
    #: Seconds from now, instead of run_at.
    delay: float | None = None


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers that every transport can carry: short names, printable texts. Raises InvalidArgument naming the header."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidArgument("headers", f"is of type {type(headers).__name__}.", "Give a mapping of names to texts.")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise InvalidArgument(
                "headers", f"has the name {name!r}.", "Use letters, digits, '-', '_' and '.', at most 100."
            )
        field = f"headers.{name}"
        if not isinstance(value, str):
            raise InvalidArgument(field, f"is of type {type(value).__name__}; it must be a text.")
        if not value.isprintable() or value != value.strip() or len(value) > LONGEST_HEADER:
            raise InvalidArgument(
                field,
                f"is not printable, begins or ends with a blank, or is longer than {LONGEST_HEADER:,} characters.",
            )
        check_text(value, field)
    return dict(headers)

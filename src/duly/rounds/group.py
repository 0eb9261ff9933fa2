"""The nouns around a round: a group with its clock on the wall, its members, its prompts.

A group says where (a time zone), when (``drop_time``, a local time) and how often (``cooldown``). This file knows no database and
no clock; it reads what people write and refuses what cannot be meant. Source: R000-4, R000-7, R000-13, T000-c, T000-n.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from enum import StrEnum
from urllib.parse import urlsplit

from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_name, check_text, read_seconds

#: Audit actions.
GROUP_CREATED, GROUP_CHANGED = "GROUP_CREATED", "GROUP_CHANGED"
MEMBER_ADDED, MEMBER_CHANGED = "MEMBER_ADDED", "MEMBER_CHANGED"
TICKED = "ROUNDS_TICKED"
SUBMITTED, SUBMISSION_CHANGED = "SUBMISSION_MADE", "SUBMISSION_CHANGED"
COMMENTED, COMMENT_CHANGED, VOTED = "COMMENT_MADE", "COMMENT_CHANGED", "VOTE_CAST"
PROMPT_ADDED, PROMPT_CHANGED, PROMPT_REMOVED = "PROMPT_ADDED", "PROMPT_CHANGED", "PROMPT_REMOVED"

#: The longest text of a prompt, a submission or a comment, in characters.
LONGEST_TEXT = 10_000
LONGEST_COOLDOWN = timedelta(days=3_660)
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?")


class Channel(StrEnum):
    """How a member hears that a round has opened."""

    #: A job of the task EMAIL_SEND.
    EMAIL = "email"
    #: A signed POST to the member's endpoint.
    WEBHOOK = "webhook"
    #: A line in the log.
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its row says. Instants are aware, in UTC."""

    id: int
    tenant: str
    #: Unique within the tenant.
    name: str
    #: An IANA name. One written by hand may be none.
    zone: str
    #: The local time at which rounds open, ``HH:MM`` or ``HH:MM:SS``; None is the setting ``rounds_drop_time``.
    drop_time: str | None = None
    #: Rounds are planned and opened only while it is.
    is_active: bool = True
    #: Are members told of openings?
    notifications: bool = True
    #: Seconds from the end of a round until the next may be planned; None is the setting ``rounds_cooldown``.
    cooldown: float | None = None
    #: From when on a round may be planned; None while one is scheduled or open.
    plan_at: datetime | None = None
    #: Why the last pass failed on this group, when, and how often in a row; None, None and 0 after one that did not.
    error: str | None = None
    error_at: datetime | None = None
    failures: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody in a group, and how he wants to be told."""

    id: int
    group_id: int
    #: Unique within the group.
    name: str
    #: His addresses; they appear in no log.
    email: str | None = field(default=None, repr=False)
    webhook: str | None = field(default=None, repr=False)
    #: The channels he wants; none is a wish, too.
    channels: tuple[Channel, ...] = ()
    #: One who has left is not told, and takes part in nothing.
    is_active: bool = True
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question that rounds of its group can ask."""

    id: int
    group_id: int
    text: str
    #: Only active ones are chosen (R000-8).
    is_active: bool = True
    created_at: datetime | None = None


# --- Reading what people write -----------------------------------------------------------------------------------------


def read_drop_time(text: object, field: str = "drop_time") -> time:
    """A local time from ``HH:MM`` or ``HH:MM:SS``, naive. Raises InvalidArgument."""
    if isinstance(text, time) and text.tzinfo is None and not text.microsecond:
        return text
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise InvalidArgument(field, f"is {text!r}.", "Write a local time such as 18:00, from 00:00 to 23:59:59.")
    return time.fromisoformat(text)


def shown_drop_time(at: time) -> str:
    """The text that is kept of a local time: seconds only where there are some."""
    return at.isoformat("seconds" if at.second else "minutes")


def read_cooldown(value: object, field: str = "cooldown") -> float:
    """Seconds of a duration, 0 to ten years. Raises InvalidArgument."""
    return read_seconds(value, field, 0, LONGEST_COOLDOWN.total_seconds())


def read_channels(given: Iterable[str] | str, field: str = "channels") -> tuple[Channel, ...]:
    """Channels, each once, in the order of their names. Raises InvalidArgument."""
    names = [given] if isinstance(given, str) else list(given)
    known = {channel.value for channel in Channel}
    for name in names:
        if name not in known:
            raise InvalidArgument(field, f"has {name!r}.", f"Use some of {', '.join(sorted(known))}.")
    return tuple(sorted({Channel(name) for name in names}))


def check_addresses(email: str | None, webhook: str | None, channels: Iterable[Channel]) -> None:
    """Each channel needs the address it goes to. Raises InvalidArgument, without repeating an address."""
    if email is not None:
        check_name(email, "email", 320)
        if "@" not in email.strip("@") or any(c.isspace() for c in email):
            raise InvalidArgument("email", "is not an address.", "Write it as name@example.org.")
    if webhook is not None:
        check_name(webhook, "webhook", 2000)
        if not _is_url(webhook):
            raise InvalidArgument("webhook", "is not a URL.", "Write one that begins with https://.")
    for channel, address in ((Channel.EMAIL, email), (Channel.WEBHOOK, webhook)):
        if channel in channels and address is None:
            raise InvalidArgument(
                "channels", f"has {channel.value!r}, and there is no address.", f"Give {channel.value}=."
            )


def _is_url(text: str) -> bool:
    """Does it name a host over HTTP? An address in brackets has to be one, and a port a number."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def check_words(text: object, field: str = "text") -> str:
    """A text that people write: not empty, storable, at most 10,000 characters. Raises InvalidArgument."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument(field, "is empty." if isinstance(text, str) else f"is of type {type(text).__name__}.")
    if len(text) > LONGEST_TEXT:
        raise InvalidArgument(field, f"has {len(text):,} characters; at most {LONGEST_TEXT:,} are allowed.")
    return check_text(text, field)

"""An automation: what an AI is to do, when, with which tools, and within which bounds. Pure.

Source: R001, T001-x (a schedule that cannot be read stops no other), ADR 0028.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson

from duly.automations.plan import Limits
from duly.automations.providers.base import Message, Role
from duly.kernel.errors import InvalidArgument, UnreadableHere
from duly.kernel.payload import check_name, check_text, read_duration
from duly.kernel.recurrence import Schedule, schedule_from_json
from duly.kernel.recurrence.reading import quoted
from duly.kernel.rooms import check_task

#: Sessions whose ids an automation keeps (R001-22).
HISTORY = 50
MOST_MESSAGES, MOST_TEXT, MOST_NAMES = 200, 200_000, 200
LONGEST_SPAN = timedelta(days=3_660)


class NoCall(StrEnum):
    """What an answer means that neither calls a tool nor says that the work is done."""

    #: The session keeps the slot until somebody speaks, or the watchdog ends it (R001-21).
    WAIT = "wait"
    #: It is told so and asked once more; a second one ends it as ERROR.
    ASK = "ask"
    #: The work is done.
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Definition:
    """An automation as somebody wants it."""

    name: str
    #: What each execution begins with (the seed).
    messages: tuple[Message, ...]
    #: None: only people and events run it.
    schedule: Schedule | None = None
    #: Names of events that run it: Duly's own, and those that ``fire`` says.
    triggers: tuple[str, ...] = ()
    #: Names of tools that it may call.
    tools: tuple[str, ...] = ()
    slot: str = "default"
    #: None: the setting ai_provider.
    provider: str | None = None
    model: str | None = None
    #: Of several missed occurrences only the latest runs (T001-k).
    dismiss_older_instances: bool = False
    #: How far back missed occurrences still run; None for no bound.
    catch_up_window: timedelta | None = None
    limits: Limits = field(default_factory=Limits)
    #: The longest answer, in tokens; None: the setting ai_max_tokens.
    max_tokens: int | None = None
    #: None: that of the provider.
    temperature: float | None = None
    #: What an answer means that neither calls a tool nor says that the work is done.
    no_call: NoCall = NoCall.WAIT
    #: After so many answers in a row that broke off it ends; None: the setting automation_max_unanswered.
    max_unanswered: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if self.name.isascii() and self.name.isdigit():
            raise InvalidArgument("name", f"is {self.name!r}, a number, and numbers are sessions.", "Add a letter.")
        check_name(self.slot, "slot")
        for field_, text in (("provider", self.provider), ("model", self.model)):
            if text is not None:
                check_text(text, field_)
        for place, message in enumerate(self.messages):
            check_text(message.text, f"messages[{place}].text")
        if not self.messages:
            raise InvalidArgument(
                "messages", "are missing.", "Say what is to be done: `prompt`, or a list of messages."
            )
        if self.schedule is not None:
            object.__setattr__(self, "schedule", self.schedule.named(self.name))


@dataclass(frozen=True, slots=True)
class Automation:
    """An automation as it stands in the database. Instants are aware, in UTC."""

    id: int
    tenant: str
    definition: Definition
    is_enabled: bool
    version: int
    #: Occurrences up to this instant are not wanted (T001-i).
    reference_at: datetime
    seed_session_id: int
    created_at: datetime
    updated_at: datetime
    #: Why its schedule could not be read.
    error: str | None = None
    #: What of its definition this program cannot read, with why: newer code has written it. Such a part is as usual in ``definition``.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    last_execution_id: int | None = None
    #: Ids of its last sessions, the newest first.
    execution_history: tuple[int, ...] = ()
    #: Why this process cannot read all of it and leaves it to others: of newer code, or in a zone that this machine does not know.
    left: UnreadableHere | None = None

    @property
    def problem(self) -> str | None:
        """Why it cannot be planned: at all, or in this process."""
        return self.error if self.left is None else str(self.left)

    @property
    def name(self) -> str:
        return self.definition.name


#: How it is asked: the fields that are kept as one object.
ASKING = ("max_tokens", "temperature", "no_call", "max_unanswered")
#: What a definition is made of, as JSON.
FIELDS = (
    "name", "prompt", "messages", "schedule", "triggers", "tools", "slot", "provider", "model", "dismiss_older_instances", "catch_up_window",
    "limits", *ASKING,
)  # fmt: skip


def read_definition(value: Mapping[str, Any], base: Definition | None = None) -> Definition:
    """A definition of a JSON object; with ``base``, that one with the given fields changed. Raises InvalidArgument that names the field."""
    for name in value:
        if name not in FIELDS:
            raise InvalidArgument(quoted(name), "is no field of an automation.", f"Known are {', '.join(FIELDS)}.")
    given: dict[str, Any] = {}
    for name in ("name", "slot", "provider", "model"):
        if name in value:
            given[name] = _text(value[name], name, optional=name in ("provider", "model"))
    if "prompt" in value and "messages" in value:
        raise InvalidArgument("prompt", "is given along with messages.", "Give one of the two.")
    if "prompt" in value:
        given["messages"] = (Message(Role.USER, _text(value["prompt"], "prompt") or ""),)
    if "messages" in value:
        given["messages"] = read_messages(value["messages"])
    if "schedule" in value:
        given["schedule"] = None if value["schedule"] is None else schedule_from_json(value["schedule"])
    for name in ("triggers", "tools"):
        if name in value:
            given[name] = _names(value[name], name)
    check_tools(given.get("tools", ()))
    if "dismiss_older_instances" in value:
        if not isinstance(value["dismiss_older_instances"], bool):
            raise InvalidArgument(
                "dismiss_older_instances", f"is {quoted(value['dismiss_older_instances'])}.", "Give true or false."
            )
        given["dismiss_older_instances"] = value["dismiss_older_instances"]
    if "catch_up_window" in value:
        given["catch_up_window"] = read_window(value["catch_up_window"])
    if "limits" in value:
        given["limits"] = read_limits(value["limits"], Limits() if base is None else base.limits)
    given |= read_asking(value)
    if base is not None:
        return replace(base, **given)
    for name in ("name", "messages"):
        if name not in given:
            raise InvalidArgument(name if name == "name" else "prompt", "is missing.", "An automation has a name and a prompt (or messages).")  # fmt: skip
    return Definition(**given)


def read_messages(value: object) -> tuple[Message, ...]:
    """Messages of a seed: ``[{"role": "user", "text": "…"}]``, of people, the system and the assistant."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not 1 <= len(value) <= MOST_MESSAGES:
        raise InvalidArgument("messages", f"is {quoted(value)}.", f"Give a list of 1 to {MOST_MESSAGES} messages.")
    found = []
    for place, one in enumerate(value):
        path = f"messages[{place}]"
        if not isinstance(one, Mapping) or set(one) != {"role", "text"}:
            raise InvalidArgument(path, f"is {quoted(one)}.", "Give an object with role and text.")
        if one["role"] not in ("system", "user", "assistant"):
            raise InvalidArgument(f"{path}.role", f"is {quoted(one['role'])}.", "Use system, user or assistant.")
        found.append(Message(Role(one["role"]), _text(one["text"], f"{path}.text") or ""))
    said = [message.role for message in found if message.role is not Role.SYSTEM]
    if not said or said[-1] is not Role.USER:
        raise InvalidArgument(
            "messages",
            "do not end with one of the user, so there is nothing to answer.",
            "Let the last be of the user.",
        )
    return tuple(found)


def read_window(value: object) -> timedelta | None:
    """How far back missed occurrences still run: seconds, or a span such as ``2h``; null for no bound."""
    return None if value is None else read_span(value, "catch_up_window")


def read_span(value: object, field: str) -> timedelta:
    """More than nothing, and at most ten years."""
    span = read_duration(value, field)
    if not timedelta(0) < span <= LONGEST_SPAN:
        shown = f"{span.total_seconds():g} seconds" if isinstance(value, timedelta) else quoted(value)
        raise InvalidArgument(field, f"is {shown}.", "Give a span of more than 0 s and of up to ten years, such as 2h.")
    return span


#: The names of all bounds.
LIMITS = frozenset(field.name for field in fields(Limits))


def read_limits(value: object, base: Limits = Limits()) -> Limits:
    """Bounds of a JSON object; those that are not named stay as in ``base``; null takes one away."""
    known = LIMITS
    if not isinstance(value, Mapping):
        raise InvalidArgument("limits", f"is {quoted(value)}.", f"Give an object with some of {', '.join(sorted(known))}.")  # fmt: skip
    given: dict[str, Any] = {}
    for name, most in value.items():
        if name not in known:
            raise UnreadableHere(f"limits.{quoted(name)}", "is no limit.", f"Known are {', '.join(sorted(known))}.")
        whole = not name.startswith("max_cents")
        counted = name in ("max_rounds", "max_calls")
        if most is None and not counted:
            given[name] = None
            continue
        right = isinstance(most, int | float) and not isinstance(most, bool) and math.isfinite(most) and most >= 0
        if not right or (whole and not isinstance(most, int)) or most > 1e12 or (counted and most > 10_000):
            raise InvalidArgument(f"limits.{name}", f"is {quoted(most)}.", "Give a number that is not negative"
                                  + (", whole" if whole else "") + (" and at most 10000." if counted else "."))  # fmt: skip
        given[name] = most
    return replace(base, **given)


def read_asking(value: Mapping[str, Any]) -> dict[str, Any]:
    """How an automation is asked: those fields of ``ASKING`` that are given; null is the usual one. Raises InvalidArgument."""
    given: dict[str, Any] = {}
    for name, most in (("max_tokens", 10_000_000), ("max_unanswered", 10_000)):
        if name in value:
            found = value[name]
            if found is not None and (isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= most):
                raise InvalidArgument(name, f"is {quoted(found)}.", f"Give a whole number from 1 to {most:,}.")
            given[name] = found
    if "temperature" in value:
        found = value["temperature"]
        number = isinstance(found, int | float) and not isinstance(found, bool)
        if found is not None and not (number and 0 <= found <= 2):
            raise InvalidArgument("temperature", f"is {quoted(found)}.", "Give a number from 0 to 2.")
        given["temperature"] = found
    if "no_call" in value:
        found = value["no_call"]
        if found is not None and found not in list(NoCall):
            raise InvalidArgument("no_call", f"is {quoted(found)}.", f"Give one of {', '.join(NoCall)}.")
        given["no_call"] = NoCall(found or NoCall.WAIT)
    return given


def read_kept_asking(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as it is kept. Raises InvalidArgument also for what only newer code knows."""
    for name in value:
        if name not in ASKING:
            raise InvalidArgument(
                quoted(name), "is nothing that this program knows.", f"Known are {', '.join(ASKING)}."
            )
    return read_asking(value)


def asking_json(d: Definition) -> dict[str, Any]:
    """How it is asked, as it is kept: what is not as usual."""
    found = {name: getattr(d, name) for name in ASKING}
    return {name: value for name, value in found.items() if value not in (None, NoCall.WAIT)}


def check_tools(names: Sequence[str]) -> None:
    """Refuse tasks whose jobs a room makes itself, whose effects may reach other tenants. Raises InvalidArgument with the place in ``tools``."""
    for place, name in enumerate(names):
        check_task(name, f"tools[{place}]")


def limits_json(limits: Limits) -> dict[str, Any]:
    """Bounds as they are kept: those that are not at their defaults."""
    usual = Limits()
    return {
        f.name: getattr(limits, f.name) for f in fields(Limits) if getattr(limits, f.name) != getattr(usual, f.name)
    }


def messages_json(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role.value, "text": message.text} for message in messages]


def definition_json(definition: Definition) -> dict[str, Any]:
    """The JSON that ``read_definition`` makes an equal one of."""
    window = definition.catch_up_window
    return {
        "name": definition.name, "messages": messages_json(definition.messages), "schedule": schedule_json(definition.schedule),
        "triggers": list(definition.triggers), "tools": list(definition.tools), "slot": definition.slot, "provider": definition.provider,
        "model": definition.model, "dismiss_older_instances": definition.dismiss_older_instances,
        "catch_up_window": None if window is None else window.total_seconds(), "limits": limits_json(definition.limits),
        **{name: getattr(definition, name) for name in ASKING},
    }  # fmt: skip


def definition_mark(definition: Definition) -> str:
    """A mark of a definition, for telling which of two code declared later. A field that is as usual is none of it."""
    said = {name: value for name, value in definition_json(definition).items() if value not in (None, False, [], {})}
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def schedule_json(schedule: Schedule | None) -> dict[str, Any] | None:
    return None if schedule is None else schedule.to_json()


def _text(value: object, field: str, optional: bool = False) -> str | None:
    if value is None and optional:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > MOST_TEXT:
        raise InvalidArgument(field, f"is {quoted(value)}.", f"Give a text of 1 to {MOST_TEXT} characters.")
    return check_text(value, field)


def _names(value: object, field: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MOST_NAMES:
        raise InvalidArgument(field, f"is {quoted(value)}.", "Give a list of names.")
    for place, one in enumerate(value):
        if not isinstance(one, str):
            raise InvalidArgument(f"{field}[{place}]", f"is {quoted(one)}.", "Give a name.")
        check_name(one, f"{field}[{place}]")
    return tuple(dict.fromkeys(value))

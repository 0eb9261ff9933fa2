"""Schedules as JSON, for the rows that keep them and the doors that take them, and as one line of text.

``schedule_from_json(schedule.to_json()) == schedule`` for every schedule. What a door takes may be anything at all: each
mistake is an InvalidArgument that names the field by its path (``schedule.at[1]``), says what is wrong and what to do (case B010).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duly.kernel.errors import InvalidArgument, UnreadableHere
from duly.kernel.recurrence.civil import Daily, Moments, Monthly, OnDates, Weekly, Yearly
from duly.kernel.recurrence.cron import Cron
from duly.kernel.recurrence.elapsed import Every, Once
from duly.kernel.recurrence.reading import quoted
from duly.kernel.recurrence.rrule import RRule
from duly.kernel.recurrence.schedule import Schedule

_SPREAD = ("jitter", "name")
_CIVIL = ("gap", "fold", "start_date", "end_date", *_SPREAD)

#: For each kind: its class, the fields that it must have, and those that it may have.
KINDS: dict[str, tuple[type[Schedule], tuple[str, ...], tuple[str, ...]]] = {
    "cron": (Cron, ("expression", "tz"), _CIVIL),
    "every": (Every, ("duration",), ("anchor", *_SPREAD)),
    "daily": (Daily, ("at", "tz"), _CIVIL),
    "weekly": (Weekly, ("days", "at", "tz"), _CIVIL),
    "monthly": (Monthly, ("day", "at", "tz"), _CIVIL),
    "yearly": (Yearly, ("dates", "at", "tz"), _CIVIL),
    "on_dates": (OnDates, ("dates", "at", "tz"), _CIVIL),
    "moments": (Moments, ("moments", "tz"), _CIVIL),
    "once": (Once, ("instant",), ()),
    "rrule": (RRule, ("rule", "start", "tz"), _CIVIL),
}


def schedule_from_json(value: object, path: str = "schedule") -> Schedule:
    """The schedule that a JSON object says; ``path`` is what it is called in errors.

    ``{"kind": "cron", "expression": "30 2 * * *", "tz": "Europe/Paris"}``; fields have the names of the classes' own.
    A field that may be left out may also be null. Raises InvalidArgument.
    """
    if not isinstance(value, Mapping):
        raise InvalidArgument(path, f"is {quoted(value)}.", f"Give an object with a kind: {', '.join(KINDS)}.")
    kind = value.get("kind")
    found = KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        problem = f"is {quoted(kind)}." if "kind" in value else "is missing."
        # a word that is none here may be one of newer code
        error = UnreadableHere if isinstance(kind, str) else InvalidArgument
        raise error(f"{path}.kind", problem, f"Use one of {', '.join(KINDS)}.")
    made, required, optional = found
    known = (*required, *optional)
    for name in value:
        if name != "kind" and name not in known:
            label = name if isinstance(name, str) and len(name) <= 60 else quoted(name)
            raise UnreadableHere(
                f"{path}.{label}", f"is no field of the kind {kind}.", f"Known are {', '.join(known)}."
            )
    for name in required:
        if value.get(name) is None:
            raise InvalidArgument(f"{path}.{name}", "is missing.", f"The kind {kind} needs {' and '.join(required)}.")
    given: dict[str, Any] = {name: given for name, given in value.items() if name != "kind" and given is not None}
    try:
        return made(**given)
    except UnreadableHere as error:
        raise error.at(f"{path}.{error.field}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}.{error.field}", error.problem, error.remedy) from None


def schedule_from_text(text: str, tz: str | None = None) -> Schedule:
    """The schedule that one line of text says: a cron expression in the zone ``tz``, or ``@every 15m``.

    Raises InvalidArgument for the fields ``text``, ``expression``, ``duration`` or ``tz``.
    """
    if not isinstance(text, str):
        raise InvalidArgument("text", f"is of type {type(text).__name__}; it must be a text.")
    word, _, rest = text.strip().partition(" ")
    if word.lower() == "@every":
        return Every(rest.strip())
    if tz is None:
        raise InvalidArgument(
            "tz", "is missing.", "Name the IANA time zone whose clock is meant, such as Europe/Paris."
        )
    return Cron(text, tz=tz)

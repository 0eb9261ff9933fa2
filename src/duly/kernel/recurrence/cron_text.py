"""A cron expression, read and checked before ``cronsim`` parses it: nicknames, hashed fields, and mistakes by name.

``cronsim`` takes what is left apart into sets; it is asked for nothing else (ADR 0022). What it would accept and nobody means
is refused here: a step beyond the field, a sixth field, letters that only look like English.

A hashed field spreads schedules that need not run at the same moment: ``H`` is one value, ``H(0-29)`` one in that range,
``H/15`` every fifteenth from a hashed beginning. The hash is of the schedule's name and the field, so it stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from cronsim import CronSim, CronSimError

from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence.reading import quoted

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

#: No expression that means something is longer.
LONGEST = 1_000

_FORM = "Write five fields, such as 30 2 * * *, or a nickname such as @daily."

#: The fields in order, with their ranges, and the last value that a hash chooses: every month has a 28th.
FIELDS = {
    "minute": (0, 59, 59),
    "hour": (0, 23, 23),
    "day of the month": (1, 31, 28),
    "month": (1, 12, 12),
    "day of the week": (0, 7, 6),
}

#: ``cronsim`` asks from when on; nobody asks it when.
_ANY = datetime(2000, 1, 1)  # noqa: DTZ001

_HASHED = re.compile(r"H(?:\(([0-9]{1,2})-([0-9]{1,2})\))?(?:/([0-9]{1,3}))?")
_ONE_VALUE = re.compile(r"(\w{1,9})-(\w{1,9})/\w+")
_NAMES = {name: number for number, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])} | {
    name: number
    for number, name in enumerate(
        ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], start=1
    )
}
_STEP = re.compile(r"/([0-9]+)$")


@dataclass(frozen=True, slots=True)
class CronFields:
    """What an expression means."""

    #: The five fields without nicknames and hashes, as ``cronsim`` read them.
    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    #: Days of the month; below zero for the last day and the last of Monday to Friday.
    days: frozenset[int]
    months: tuple[int, ...]
    #: Days of the week, 0 and 7 for Sunday, and pairs ``(day, n-th in its month)``, n below zero for the last.
    weekdays: frozenset[int | tuple[int, int]]
    #: Must day of the month and day of the week both match? So if either begins with ``*``; else one of them is enough (case B008).
    both_days: bool
    #: Does minute or hour begin with ``*`` (or ``H/``), so that this follows elapsed time?
    elapsed: bool


def split_expression(expression: object) -> tuple[str, ...]:
    """The five fields of an expression, nicknames resolved, in capitals. Raises InvalidArgument with a remedy."""
    if not isinstance(expression, str):
        raise _wrong(f"is of type {type(expression).__name__}; it must be a text.", _FORM)
    if not expression.strip():
        raise _wrong("is empty.", _FORM)
    if len(expression) > LONGEST:
        raise _wrong(f"has {len(expression)} characters; at most {LONGEST} are read.", _FORM)
    if not expression.isascii() or not expression.replace("\t", " ").isprintable():
        raise _wrong(f"is {quoted(expression)}.", "Use plain English letters and digits: mon, not a translation of it.")
    text = expression.strip()
    if text.startswith("@"):
        return _nickname(text)
    fields = text.upper().split()
    if "=" in fields[0]:
        raise _wrong(f"begins with {quoted(fields[0])}.", "Say the zone beside the expression: tz='Europe/Paris'.")
    if len(fields) == 6:
        raise _wrong(
            "has six fields; five are read: minute, hour, day of the month, month, day of the week.",
            "For seconds use Daily('02:30:15') or Every('10s'); leave a year or a command out.",
        )
    if len(fields) != 5:
        count = f"{len(fields)} field{'' if len(fields) == 1 else 's'}"
        raise _wrong(f"has {count}; five are needed: minute, hour, day of the month, month, day of the week.", _FORM)
    return tuple(fields)


def _nickname(text: str) -> tuple[str, ...]:
    found = NICKNAMES.get(text.lower())
    if found is not None:
        return tuple(found.split())
    if text.lower().startswith("@every"):
        raise _wrong(f"is {quoted(text)}, which is no cron expression.", "Use Every('15m').")
    if text.lower() == "@reboot":
        raise _wrong("is @reboot, which names no instant.", "Enqueue the job where your program starts.")
    raise _wrong(f"is {quoted(text)}, an unknown nickname.", f"Known are {', '.join(NICKNAMES)}.")


def needs_name(fields: tuple[str, ...]) -> bool:
    """Is there a hashed field?"""
    return any(_HASHED.fullmatch(term) for field in fields for term in field.split(","))


def parse(fields: tuple[str, ...], name: str | None) -> CronFields:
    """What five fields mean; ``name`` is hashed for ``H``."""
    plain = []
    for text, (label, (low, high, _)) in zip(fields, FIELDS.items(), strict=True):
        plain.append(",".join(_plain(term, label, low, high, name) for term in text.split(",")))
    expression = " ".join(plain)
    try:
        sets = CronSim(expression, _ANY)
    except (CronSimError, ValueError, AssertionError) as error:
        raise _cannot_be_read(plain, str(error)) from None
    return CronFields(
        text=expression,
        minutes=tuple(sorted(sets.minutes)),
        hours=tuple(sorted(sets.hours)),
        days=frozenset(sets.days),
        months=tuple(sorted(sets.months)),
        weekdays=frozenset(sets.weekdays),
        both_days=fields[2].startswith("*") or fields[4].startswith("*"),
        elapsed=any(text.startswith(("*", "H/")) for text in fields[:2]),
    )


def _plain(term: str, label: str, low: int, high: int, name: str | None) -> str:
    """A term of a field as ``cronsim`` is to read it: without a hash, and checked."""
    hashed = _HASHED.fullmatch(term)
    if hashed is None:
        _check_term(term, label, low, high)
    else:
        term = _unhashed(hashed, label, name)
    # Stepping through one value gives that value. cronsim takes it for n/step, which goes on to the end of the field.
    one = _ONE_VALUE.fullmatch(term)
    return one[1] if one and _number(one[1]) == _number(one[2]) else term


def _number(word: str) -> int | str:
    return _NAMES.get(word, word) if not word.isdigit() else int(word)


def _unhashed(found: re.Match[str], label: str, name: str | None) -> str:
    """What a hashed term is for a name."""
    term, (low, high, last) = found[0], FIELDS[label]
    if found[1] is not None:
        first, last = int(found[1]), int(found[2])
        if not low <= first <= last <= high:
            raise _wrong(f"has {term} for the {label}.", f"The range goes from {low} to {high}, the smaller first.")
        low = first
    # Fields are hashed apart, so that minute and hour do not go together.
    hashed = int.from_bytes(sha256(f"{label}\n{name or ''}".encode()).digest()[:8])
    if found[3] is None:
        return str(low + hashed % (last - low + 1))
    step = int(found[3])
    if not 1 <= step <= last - low + 1:
        raise _wrong(f"has {term} for the {label}.", f"Use a step from 1 to {last - low + 1}.")
    return f"{low + hashed % step}-{last}/{step}"


def _check_term(term: str, label: str, low: int, high: int) -> None:
    """Refuse, by name, what ``cronsim`` would take in a way that nobody means."""
    if "?" in term:
        raise _wrong(f"has ? for the {label}.", "Use *.")
    if found := _STEP.search(term):
        span = high - low + 1
        if len(found[1]) > 3 or not 1 <= int(found[1]) < span:
            remedy = f"A step goes from 1 to {span - 1}."
            if label in ("minute", "hour"):
                remedy += f" For intervals longer than {'an hour' if label == 'minute' else 'a day'} use Every."
            raise _wrong(f"has the step {quoted(term)} for the {label}.", remedy)
        if term.startswith("L"):
            raise _wrong(f"has {term} for the {label}.", "The last day has no step.")


def _cannot_be_read(fields: list[str], said: str) -> InvalidArgument:
    """The error for what ``cronsim`` refused: it says which field."""
    for text, (label, (low, high, _)) in zip(fields, FIELDS.items(), strict=True):
        if label.replace(" of the ", "-of-") in said:
            remedy = f"Use {low} to {high}, *, lists (1,2), ranges (1-5, the smaller first) and steps (*/2)"
            if label == "month":
                remedy += ", or jan to dec"
            elif label == "day of the week":
                remedy += ", sun to sat, 5L (the last Friday) or 2#1 (the first Tuesday); Sunday is 0 or 7"
            elif label == "day of the month":
                if _reads(f"0 0 {text} * *"):
                    months = "no month that it names has such a day."
                    return _wrong(
                        f"has {quoted(text)} for the {label}, and {months}", "L is the last day of any month."
                    )
                remedy += ", L (the last day) or LW (the last of Monday to Friday)"
            return _wrong(f"has {quoted(text)} for the {label}.", remedy + ".")
    return _wrong(f"is {quoted(' '.join(fields))}, which cannot be read.")


def _reads(expression: str) -> bool:
    try:
        CronSim(expression, _ANY)
    except (CronSimError, ValueError, AssertionError):
        return False
    return True


def _wrong(problem: str, remedy: str = "") -> InvalidArgument:
    return InvalidArgument("expression", problem, remedy)

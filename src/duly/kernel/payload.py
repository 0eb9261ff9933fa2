"""Can this value be carried in a job? Found out when it is enqueued, with the path of what cannot.

Payloads are JSON. What one database stores and another refuses is refused alike on both (case B038): the NUL
character, NaN and infinities, half of a surrogate pair, and texts beyond the size limit.
"""

from __future__ import annotations

import json
import math
import re
from datetime import timedelta
from typing import Any

from duly.kernel.duration import REMEDY, parse_duration
from duly.kernel.errors import InvalidArgument, InvalidPayload, NotFound

#: The deepest nesting carried. JSON parsers of both databases stop somewhere beyond this.
MAX_DEPTH = 100
#: So many digits has the smallest whole number that may be of more than 64 bits.
_LONG = re.compile(rb"[0-9]{19}")


def check_text(text: str, path: str) -> str:
    """Refuse text that a database cannot store. Returns it unchanged."""
    if "\x00" in text:
        raise InvalidPayload(path, "contains the NUL character, which databases cannot store.", "Remove it.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidPayload(
                path,
                "contains half of a surrogate pair, which is not valid Unicode.",
                "Repair the text where it is read.",
            ) from None
    return text


def check_name(text: str, field: str, limit: int = 200) -> str:
    """A name such as a queue, tenant, task or key: not empty, storable, at most ``limit`` characters."""
    if not isinstance(text, str):
        raise InvalidArgument(field, f"is of type {type(text).__name__}; it must be a text.")
    if not text:
        raise InvalidArgument(field, "is empty.")
    try:
        check_text(text, field)
    except InvalidPayload as error:
        raise InvalidArgument(field, error.problem, error.remedy) from None
    if not text.isprintable():
        raise InvalidArgument(field, "contains control characters.", "Use printable characters only.")
    if len(text) > limit:
        raise InvalidArgument(field, f"has {len(text)} characters; at most {limit} are allowed.")
    return text


#: The highest number that a row can have.
MOST_ID = 2**63 - 1


def check_id(value: object, what: str) -> int:
    """A number that a row can have. Returns it; raises NotFound for any other value: there is no such thing."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST_ID:
        raise NotFound(what, value)
    return value


def check_whole(value: object, field: str, low: int = 1, high: int | None = None, remedy: str = "") -> int:
    """A whole number from ``low`` to ``high``; without ``high``, at least ``low`` and of 32 bits. Returns it."""
    most = 2**31 - 1 if high is None else high
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
        bounds = f", at least {low:,}" if high is None else f" from {low:,} to {high:,}"
        raise InvalidArgument(field, f"is {value!r}; it must be a whole number{bounds}.", remedy)
    return value


def check_number(
    value: object, field: str, wanted: str, low: float, below: float = math.inf, above: bool = False
) -> float:
    """A number from ``low`` (``above``: more than that) to less than ``below``. ``wanted`` says so in words. Returns it."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value < below
    if not good or (above and value == low):
        raise InvalidArgument(field, f"is {value!r}; it must be {wanted}.")
    return value  # type: ignore[return-value]


def read_duration(value: object, field: str) -> timedelta:
    """A duration as it is written anywhere (``kernel.duration``). Raises InvalidArgument, saying what is allowed."""
    try:
        return parse_duration(value)
    except ValueError:
        try:
            shown = repr(value)
        except ValueError:  # Python writes no integer of more than 4300 digits
            shown = f"a {type(value).__name__} too long to be written"
        raise InvalidArgument(field, f"is {shown if len(shown) <= 60 else shown[:59] + '…'}.", REMEDY) from None


def read_seconds(
    value: object, field: str, low: float | None = None, high: float | None = None, above: bool = False
) -> float:  # fmt: skip
    """A duration in seconds, from ``low`` (or ``above`` it) to ``high``. Raises InvalidArgument."""
    seconds = read_duration(value, field).total_seconds()
    if (low is not None and (seconds < low or (above and seconds == low))) or (high is not None and seconds > high):
        least = "" if low is None else f"more than {low:g} s" if above else f"at least {low:g} s"
        most = "" if high is None else f"at most {high:g} s"
        raise InvalidArgument(field, f"is {value!r}; it must be {' and '.join(filter(None, (least, most)))}.", REMEDY)
    return seconds


def check_value(value: Any, path: str, depth: int = 0) -> None:
    """Refuse a value that does not come back as it was sent. ``path`` names it in the error, e.g. ``items[2].price``."""
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is str:
        check_text(value, path)
    elif kind is int:
        if not -(2**63) <= value < 2**64:
            raise InvalidPayload(path, "is an integer of more than 64 bits.", "Send it as text.")
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidPayload(path, f"is {value}, which JSON cannot carry.", "Send None or a text instead.")
    elif depth >= MAX_DEPTH:
        raise InvalidPayload(path, f"is nested deeper than {MAX_DEPTH} levels (or contains itself).")
    elif kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise InvalidPayload(
                    path, f"has a key of type {type(key).__name__}; keys must be texts.", "Convert the keys."
                )
            check_text(key, f"{path} (a key)")
            check_value(inner, f"{path}.{key}" if path else key, depth + 1)
    elif kind is list or kind is tuple:
        for position, inner in enumerate(value):
            check_value(inner, f"{path}[{position}]", depth + 1)
    else:
        raise InvalidPayload(
            path,
            f"is of type {kind.__module__}.{kind.__qualname__}, which JSON cannot carry.",
            "Annotate the task's parameter with its type, or convert it.",
        )


class _Refused:
    """Stands in a JSON value for what is refused there."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy


def read_json(text: str | bytes, path: str, remedy: str = "") -> Any:
    """The value of a JSON text from outside: a command line, a file, a request, an answer of a model. Every front reads with this.

    ``path`` names it in errors (``input`` → ``input.items[2].id``). Raises InvalidArgument when it is no JSON (``remedy``: what to do then), and
    InvalidPayload for what readers of JSON would change in silence: whole numbers of more than 64 bits, numbers that are not
    finite, and names that stand twice in one object.
    """
    refused: list[_Refused] = []

    def refuse(problem: str, remedy: str) -> _Refused:
        refused.append(_Refused(problem, remedy))
        return refused[-1]

    def whole(digits: str) -> Any:
        if len(digits) < 19:
            return int(digits)
        if len(digits) <= 21 and -(2**63) <= int(digits) < 2**64:
            return int(digits)
        return refuse("is an integer of more than 64 bits.", "Send it as text.")

    def fraction(digits: str) -> Any:
        number = float(digits)
        return (
            number if math.isfinite(number) else refuse(f"is {digits[:40]}, which is not finite.", "Send it as text.")
        )

    def pairs(found: list[tuple[str, Any]]) -> Any:
        value = dict(found)
        if len(value) == len(found):
            return value
        names = [name for name, _ in found]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        return refuse(f"has the name {twice[:100]!r} twice.", "Keep one of the two.")

    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = json.loads(
            text, parse_int=whole, parse_float=fraction, object_pairs_hook=pairs,
            parse_constant=lambda word: refuse(f"is {word}, which JSON cannot carry.", "Send null or a text instead."),
        )  # fmt: skip
    except RecursionError:
        raise InvalidArgument(path or "body", f"is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError as error:
        said = f"is not JSON: {error.reason if isinstance(error, UnicodeDecodeError) else error}."
        raise InvalidArgument(path or "body", said, remedy) from None
    if refused:
        _raise_refused(value, path)
    return value


def _raise_refused(value: Any, path: str) -> None:
    """Raise for the first part of a value that is refused."""
    if isinstance(value, _Refused):
        raise InvalidPayload(path or "body", value.problem, value.remedy)
    if isinstance(value, dict):
        for name, inner in value.items():
            _raise_refused(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _raise_refused(inner, f"{path}[{place}]")


def has_long_number(text: bytes) -> bool:
    """Does a whole number of more than 64 bits stand in this JSON text? Readers of JSON make a number near it of that. Digits in a text are none."""
    if not _LONG.search(text):
        return False
    found: list[int] = []
    json.loads(text, parse_int=lambda digits: found.append(int(digits)))
    return any(not -(2**63) <= number < 2**64 for number in found)


def examine(value: Any, path: str) -> None:
    """Walk what is about to be stored and name the first text or number that no database would give back."""
    if isinstance(value, str | float):
        check_value(value, path)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key, f"{path} (a key)")
            examine(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            examine(inner, f"{path}[{position}]")


def check_size(encoded: int, limit: int, path: str) -> None:
    """Refuse an encoded payload of more than ``limit`` bytes."""
    if encoded > limit:
        raise InvalidPayload(
            path,
            f"is {encoded:,} bytes when encoded; the limit is {limit:,}.",
            "Store it elsewhere and send a reference, or raise the setting max_payload.",
        )

"""The canonical text of a value, type by type; refused with its path if it has none.

The table at the end says which types have a form. Each rule writes JSON, and what JSON has no form for as an object with
one name that begins with ``$``. ``canonical.py`` makes keys of these texts and says what they are for; the rules stand in
words in ``docs/reference/canonical-keys.md``. A rule never changes: it gets a successor, together with a new version.

A text is made in one walk. Where a value stands is kept as a trail and becomes a path only when something is refused.
"""

from __future__ import annotations

import math
import re
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from json import JSONEncoder
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import MappingProxyType, NoneType
from typing import Any, NoReturn, TypeAlias
from unicodedata import normalize
from uuid import UUID

from duly.kernel.errors import InvalidArgument, InvalidPayload
from duly.kernel.payload import MAX_DEPTH

#: The longest canonical text of one list, dictionary or set, in characters. A list that holds another one twice, which
#: holds another one twice, and so on, is small in memory and has no end as a text.
MAX_LENGTH = 16 * 2**20

_ADDRESS = re.compile(r" at 0x|0x[0-9a-f]{8,16}(?![0-9a-f])", re.IGNORECASE)

#: A text as JSON: quoted, with no more escapes than JSON demands.
quoted: Callable[[str], str] = JSONEncoder(ensure_ascii=False).encode

# --- Paths, made when something is refused ------------------------------------------------------------------------------


class _Inside(Enum):
    """A place inside a value that has no index and no name."""

    KEY = " (a key)"
    ELEMENT = "{}"


#: Where a value stands: the name of the outermost one, or (where what holds it stands, the place in there, what holds it).
#: A place is an index, the name of a text key or field, or the type of any other key.
Trail: TypeAlias = "str | tuple[Trail, int | str | type | _Inside, object]"


def _path(trail: Trail) -> str:
    """The path as a person would write it, at most about 200 characters long."""
    parts: list[str] = []
    while not isinstance(trail, str):
        trail, place, _ = trail
        if isinstance(place, str):
            parts.append(f".{place}" if place.isprintable() and len(place) <= 60 else f".{place[:60]!a}…")
        elif isinstance(place, _Inside):
            parts.append(place.value)
        else:
            parts.append(f"[{place}]" if isinstance(place, int) else f"[{place.__name__}]")
    path = trail + "".join(reversed(parts))
    return path if len(path) <= 200 else f"{path[:100]}…{path[-99:]}"


def _refuse(trail: Trail, problem: str, remedy: str = "", cause: BaseException | None = None) -> NoReturn:
    raise InvalidPayload(_path(trail), problem, remedy) from cause


def _refuse_depth(trail: Trail) -> NoReturn:
    """Too deep. If that is because a value contains itself, name the place where it does so first."""
    steps: list[tuple[Trail, object]] = []
    walk = trail
    while not isinstance(walk, str):
        walk, _, whole = walk
        steps.append((walk, whole))
    seen: set[int] = set()
    for place, whole in reversed(steps):
        if id(whole) in seen:
            _refuse(place, "contains itself.", "Refer to the inner one by its id.")
        seen.add(id(whole))
    _refuse(trail, f"is nested deeper than {MAX_DEPTH} levels.", "Pass a reference to it, or its digest.")


# --- Values to texts ---------------------------------------------------------------------------------------------------


class Writer:
    """Writes values as canonical texts, with the options of one call."""

    __slots__ = ("fallback", "naive_zone")

    def __init__(self, fallback: Callable[[object], str] | None, naive_zone: tzinfo | None) -> None:
        if naive_zone is not None and not isinstance(naive_zone, tzinfo):
            raise InvalidArgument(
                "naive_zone", f"is of type {type(naive_zone).__name__}.", "Give a tzinfo, such as UTC."
            )
        self.fallback, self.naive_zone = fallback, naive_zone

    def write(self, value: Any, trail: Trail, depth: int) -> str:
        """The canonical text of ``value``, which stands at ``trail`` with ``depth`` lists and dictionaries around it."""
        if depth > MAX_DEPTH:
            _refuse_depth(trail)
        rule = _RULES.get(type(value)) or _rule_of(value)
        return rule(self, value, trail, depth)


_Rule: TypeAlias = Callable[[Writer, Any, Trail, int], str]


def _tagged(tag: str, text: str) -> str:
    """What JSON has no form for: an object whose only name begins with a ``$`` that no name of a caller's has alone."""
    return f'{{"${tag}":{text}}}'


def composed(text: str, trail: Trail) -> str:
    """A text in Unicode's normal form C, so that é is é however it was typed (T004-n). Refuses half a surrogate pair."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError as error:
        _refuse(trail, "contains half of a surrogate pair.", "Repair the text where it is read.", error)
    return normalize("NFC", text)


def _none(writer: Writer, value: None, trail: Trail, depth: int) -> str:
    return "null"


def _bool(writer: Writer, value: bool, trail: Trail, depth: int) -> str:
    return "true" if value else "false"


def _int(writer: Writer, value: int, trail: Trail, depth: int) -> str:
    try:
        return int.__repr__(value)
    except ValueError as error:  # more digits than Python is willing to write out
        _refuse(trail, "is an integer of thousands of digits.", "Pass it as bytes.", error)


def _float(writer: Writer, value: float, trail: Trail, depth: int) -> str:
    if not math.isfinite(value):
        _refuse(trail, f"is {float.__repr__(value)}, which JSON cannot carry.", "Pass None or a text instead.")
    return float.__repr__(value) if value else "0.0"  # 0.0 and -0.0 are equal


def _text(writer: Writer, value: str, trail: Trail, depth: int) -> str:
    if type(value) is not str:
        value = str.__str__(value)
    return quoted(value if value.isascii() else composed(value, trail))


def _bytes(writer: Writer, value: bytes | bytearray, trail: Trail, depth: int) -> str:
    return _tagged("bytes", f'"{b2a_base64(value, newline=False).decode()}"')


def _memoryview(writer: Writer, value: memoryview, trail: Trail, depth: int) -> str:
    try:
        return _bytes(writer, value.tobytes(), trail, depth)
    except ValueError as error:
        _refuse(trail, "is a memoryview that was released.", cause=error)


def _decimal(writer: Writer, value: Decimal, trail: Trail, depth: int) -> str:
    """By value: 1.0 and 1.00 are equal. Made of digits, since arithmetic would round to the context of the thread."""
    sign, digits, exponent = Decimal.as_tuple(value)
    if isinstance(exponent, str):
        _refuse(trail, "is a Decimal that is not a finite number.", "Pass None or a text instead.")
    written = "".join(map(str, digits)).lstrip("0")
    significant = written.rstrip("0")
    if not significant:
        return _tagged("decimal", '"0E0"')
    return _tagged("decimal", f'"{"-" * sign}{significant}E{exponent + len(written) - len(significant)}"')


def _uuid(writer: Writer, value: UUID, trail: Trail, depth: int) -> str:
    return _tagged("uuid", f'"{UUID.__str__(value)}"')


def _path_name(writer: Writer, value: PurePath, trail: Trail, depth: int) -> str:
    return _tagged("path", _text(writer, value.as_posix(), trail, depth))


def _datetime(writer: Writer, value: datetime, trail: Trail, depth: int) -> str:
    """The instant, in UTC and with microseconds: equal however the zone writes it, different on both sides of a fold."""
    if value.tzinfo is None and writer.naive_zone is not None:
        value = value.replace(tzinfo=writer.naive_zone)
    try:
        offset = value.utcoffset()
    except Exception as error:
        _refuse(trail, f"is a datetime whose time zone raised {type(error).__name__}.", cause=error)
    if offset is None:
        _refuse(trail, "is a datetime without a time zone.", "Attach one, or say with naive_zone= which is meant.")
    if type(offset) is not timedelta or getattr(value, "nanosecond", None):
        _refuse(trail, f"is of type {type(value).__name__} and not on a microsecond.", "Pass a plain datetime.")
    wall = datetime(  # noqa: DTZ001  # the clock on the wall in UTC
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond
    )
    try:
        return _tagged("datetime", f'"{(wall - offset).isoformat(timespec="microseconds")}Z"')
    except OverflowError as error:
        _refuse(trail, "is a datetime that lies before year 1 or after year 9999 in UTC.", cause=error)


def _date(writer: Writer, value: date, trail: Trail, depth: int) -> str:
    return _tagged("date", f'"{date.isoformat(value)}"')


def _time(writer: Writer, value: time, trail: Trail, depth: int) -> str:
    if value.tzinfo is not None:
        _refuse(
            trail, "is a time of day with a zone, which names no instant.", "Pass the time and the zone's name apart."
        )
    return _tagged("time", f'"{time.isoformat(value, timespec="microseconds")}"')


def _timedelta(writer: Writer, value: timedelta, trail: Trail, depth: int) -> str:
    if getattr(value, "nanoseconds", None):
        _refuse(trail, f"is of type {type(value).__name__} and not on a microsecond.", "Pass a plain timedelta.")
    return _tagged("timedelta", str((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds))


def _list(writer: Writer, value: list[Any], trail: Trail, depth: int) -> str:
    return array(writer, list.__iter__(value), value, trail, depth)


def _tuple(writer: Writer, value: tuple[Any, ...], trail: Trail, depth: int) -> str:
    return array(writer, tuple.__iter__(value), value, trail, depth)


def array(writer: Writer, elements: Iterator[Any], whole: object, trail: Trail, depth: int) -> str:
    """Elements in their order."""
    depth += 1
    texts = [writer.write(element, (trail, index, whole), depth) for index, element in enumerate(elements)]
    return _checked(f"[{','.join(texts)}]", trail)


def _set(writer: Writer, value: set[Any], trail: Trail, depth: int) -> str:
    return _elements(writer, set.__iter__(value), value, trail, depth)


def _frozenset(writer: Writer, value: frozenset[Any], trail: Trail, depth: int) -> str:
    return _elements(writer, frozenset.__iter__(value), value, trail, depth)


def _elements(writer: Writer, elements: Iterator[Any], whole: object, trail: Trail, depth: int) -> str:
    """The set of the elements' texts. Texts can be sorted whatever the types of the elements are (T004-j)."""
    texts = {writer.write(element, (trail, _Inside.ELEMENT, whole), depth + 1) for element in elements}
    return _checked(_tagged("set", f"[{','.join(sorted(texts))}]"), trail)


def _dict(writer: Writer, value: dict[Any, Any], trail: Trail, depth: int) -> str:
    for key in dict.keys(value):  # of the base, whatever a subclass makes of iteration
        if type(key) is not str and not (isinstance(key, str) and _rule_of(key) is _text):
            return _pairs(writer, value, trail, depth)
    return object_of(writer, dict.items(value), value, trail, depth)


def _mappingproxy(writer: Writer, value: MappingProxyType[Any, Any], trail: Trail, depth: int) -> str:
    return _dict(writer, dict(value), trail, depth)


def object_of(writer: Writer, entries: Iterable[tuple[str, Any]], whole: object, trail: Trail, depth: int) -> str:
    """Entries whose keys are texts, in the order of these texts."""
    depth += 1
    texts: dict[str, str] = {}
    for key, value in entries:
        name = key if type(key) is str else str.__str__(key)
        if not name.isascii():
            name = composed(name, (trail, _Inside.KEY, whole))
        place = (trail, name, whole)
        if name.startswith("$"):
            name = f"${name}"
        if name in texts:
            _refuse(place, "is there twice: two keys are the same text in Unicode's normal form C.", "Rename one.")
        texts[name] = writer.write(value, place, depth)
    return _checked(f"{{{','.join([f'{quoted(name)}:{texts[name]}' for name in sorted(texts)])}}}", trail)


def _pairs(writer: Writer, value: dict[Any, Any], trail: Trail, depth: int) -> str:
    """A dictionary with a key that is no text: pairs in the order of the keys' canonical texts."""
    depth += 1
    texts: dict[str, str] = {}
    for key, inner in dict.items(value):
        text = writer.write(key, (trail, _Inside.KEY, value), depth)
        if text in texts:
            _refuse((trail, _Inside.KEY, value), "is there twice: two keys have one canonical form.", "Remove one.")
        place = str.__str__(key) if isinstance(key, str) else type(key)
        texts[text] = writer.write(inner, (trail, place, value), depth)
    return _checked(_tagged("dict", f"[{','.join([f'[{key},{texts[key]}]' for key in sorted(texts)])}]"), trail)


def _enum(writer: Writer, value: Enum, trail: Trail, depth: int) -> str:
    """The class's name and the member's value: both stay when a class moves, and when a member is renamed."""
    inner = writer.write(_attribute(value, "value", trail), (trail, "value", value), depth + 1)
    return _tagged("enum", f"[{quoted(_name(value, trail))},{inner}]")


def _dataclass(writer: Writer, value: Any, trail: Trail, depth: int) -> str:
    entries = [(field.name, _attribute(value, field.name, trail)) for field in fields(value)]
    inner = object_of(writer, entries, value, trail, depth)
    return _tagged("dataclass", f"[{quoted(_name(value, trail))},{inner}]")


def _model(writer: Writer, value: Any, trail: Trail, depth: int) -> str:
    """A pydantic model, by its fields as they are: serialisers may leave something out, and see no types inside."""
    entries = [(name, _attribute(value, name, trail)) for name in _model_fields(type(value)) or ()]
    inner = object_of(writer, entries, value, trail, depth)
    if extra := getattr(value, "__pydantic_extra__", None):
        inner += f",{_dict(writer, extra, trail, depth)}"
    return _tagged("model", f"[{quoted(_name(value, trail))},{inner}]")


def _other(writer: Writer, value: object, trail: Trail, depth: int) -> str:
    """A value of any other type: refused, unless the caller said how it becomes a text."""
    kind = type(value)
    if writer.fallback is None:
        _refuse(
            trail,
            f"is of type {kind.__module__}.{kind.__qualname__}, which has no canonical form.",
            "Pass its id or plain values, leave the parameter out with ignore=, or give fallback= to make a text of it.",
        )
    try:
        text = writer.fallback(value)
    except Exception as error:
        _refuse(trail, f"is of type {kind.__name__}, and fallback raised {type(error).__name__} for it.", cause=error)
    if not isinstance(text, str):
        _refuse(trail, f"is of type {kind.__name__}, and fallback made a {type(text).__name__} of it, not a text.")
    if _holds_address(text, value):
        _refuse(
            trail,
            f"is of type {kind.__name__}, and its text holds a memory address, which differs from run to run.",
            "Give it a __str__ that says what it is, or a fallback= that does.",
        )
    return _tagged("other", f"[{quoted(_name(value, trail))},{_text(writer, text, trail, depth)}]")


def _holds_address(text: str, value: object) -> bool:
    """Does a text look as if it held a memory address, such as ``<Order object at 0x7f…>``?"""
    own = id(value)
    return _ADDRESS.search(text) is not None or (own > 2**24 and (f"{own:x}" in text.lower() or str(own) in text))


def _checked(text: str, trail: Trail) -> str:
    if len(text) > MAX_LENGTH:
        _refuse(trail, f"is longer than {MAX_LENGTH:,} characters as a text.", "Pass a reference to it, or its digest.")
    return text


def _name(value: object, trail: Trail) -> str:
    """The name of the value's class, without its module, so that classes can move."""
    return composed(type(value).__name__, trail)


def _attribute(value: object, name: str, trail: Trail) -> Any:
    try:
        return getattr(value, name)
    except Exception as error:
        _refuse((trail, name, value), f"cannot be read: {type(error).__name__}.", cause=error)


def _model_fields(kind: type) -> Mapping[str, Any] | None:
    """The fields of a pydantic model, known by its looks; None for other classes."""
    if not callable(getattr(kind, "model_dump", None)):
        return None
    found = getattr(kind, "__pydantic_fields__", None) or getattr(kind, "model_fields", None)
    return found if isinstance(found, Mapping) else None


def _rule_of(value: object) -> _Rule:
    """The rule for a type that is not in the table.

    A subclass is written as its base, but only if that says all there is: one with attributes of its own is another type.
    """
    kind = type(value)
    if issubclass(kind, Enum):  # first, since a member of IntEnum is an int too
        return _enum
    base = next((base for base in kind.__mro__ if base in _RULES), None)
    if base is not None:
        return _other if _has_more(value, base) else _RULES[base]
    if hasattr(kind, "__dataclass_fields__"):
        return _dataclass
    return _other if _model_fields(kind) is None else _model


def _has_more(value: object, base: type) -> bool:
    """Does an instance of a subclass hold anything that its base does not know of?"""
    if getattr(value, "__dict__", None):
        return True
    between = type(value).__mro__[: type(value).__mro__.index(base)]
    return any(kind.__dict__.get("__slots__") for kind in between)


_RULES: dict[type, _Rule] = {
    NoneType: _none,
    bool: _bool,
    int: _int,
    float: _float,
    str: _text,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    MappingProxyType: _mappingproxy,
    set: _set,
    frozenset: _frozenset,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _memoryview,
    Decimal: _decimal,
    UUID: _uuid,
    datetime: _datetime,
    date: _date,
    time: _time,
    timedelta: _timedelta,
    # each by itself, since some Pythons keep caches in the slots of the concrete ones
    PurePath: _path_name,
    PurePosixPath: _path_name,
    PureWindowsPath: _path_name,
    PosixPath: _path_name,
    WindowsPath: _path_name,
}

"""Equal calls have one text, and different calls have different ones, over a space of values.

That no two different values share a text is shown by reading: ``read`` makes of a text what ``meaning`` makes of the value
it was made of, so two values with one text mean the same. Neither looks at the code that writes the texts.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import PurePath, PurePosixPath
from typing import Any
from unicodedata import normalize
from uuid import UUID

from hypothesis import assume, example, given
from hypothesis import strategies as st

from duly.kernel.canonical import canonical, canonical_call, canonical_task_key
from duly.kernel.errors import InvalidPayload
from kernel.canonical_child import build, describe

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Colour(Enum):
    RED = "red"
    ONE = 1


class Level(IntEnum):
    ONE = 1


class Word(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any


TAGS = ["bytes", "set", "dict", "datetime", "date", "time", "timedelta", "decimal", "uuid", "path", "enum", "dataclass"]
words = st.sampled_from(
    ["", "a", "b", "red", "YQ==", "1E0", "é", "e\u0301", "ﬁ", "x", "RED", "\x00", "1", "true", "null"]
)
tags = st.builds(lambda dollars, tag: "$" * dollars + tag, st.integers(0, 3), st.sampled_from(TAGS))
texts = st.one_of(words, tags, st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=4))
zones = st.builds(lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-1439, 1439))
instants = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 28), timezones=zones)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2**53, 2**63, 2**64, -(2**63) - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 1e16, 1e-5]),
    texts,
    st.binary(max_size=3),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**6), max_value=10**6),
    st.sampled_from([Decimal("1"), Decimal("1.0"), Decimal("10"), Decimal("1E1"), Decimal("-0"), Decimal("0.00")]),
    st.uuids(),
    instants,
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.sampled_from([PurePosixPath("a"), PurePosixPath("$path/é")]),
    st.sampled_from([Colour.RED, Colour.ONE, Level.ONE, Word.RED]),
)
keys = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2) | st.builds(Point, inner, inner)
    ),
    max_leaves=3,
)
values = st.recursive(
    scalars | st.frozensets(keys, max_size=3) | st.binary(max_size=3).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.builds(lambda tag, held: {f"${tag}": held}, st.sampled_from(TAGS), inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


def meaning(value: Any) -> Any:
    """What tells a value from others: the equality that keys are meant to have."""
    match value:
        case None:
            return ("none",)
        case Enum():
            return ("enum", type(value).__name__, meaning(value.value))
        case bool() | int() | float():
            return (type(value).__name__, value)
        case str():
            return ("text", normalize("NFC", value))
        case bytes() | bytearray() | memoryview():
            return ("bytes", bytes(value))
        case Decimal():
            return ("decimal", Fraction(value))
        case datetime():
            return ("datetime", (value - EPOCH) // MICROSECOND)
        case timedelta():
            return ("timedelta", value // MICROSECOND)
        case PurePath():
            return ("path", value.as_posix())
        case UUID() | date() | time():
            return (type(value).__name__.lower(), value)
        case list() | tuple():
            return ("list", tuple(meaning(inner) for inner in value))
        case set() | frozenset():
            return ("set", frozenset(meaning(inner) for inner in value))
        case dict():
            return ("dict", frozenset((meaning(key), meaning(inner)) for key, inner in value.items()))
        case Point():
            return ("dataclass", "Point", meaning({"x": value.x, "y": value.y}))
    raise AssertionError(type(value))


class Names(list[tuple[str, Any]]):
    """An object as it stands in a JSON text."""


def read(node: Any) -> Any:
    """What a canonical text says."""
    match node:
        case None:
            return ("none",)
        case bool():
            return ("bool", node)
        case str():
            return ("text", node)
        case tuple():
            return node
        case Names():
            assert [name for name, _ in node] == sorted({name for name, _ in node})
            if len(node) == 1 and node[0][0].startswith("$") and not node[0][0].startswith("$$"):
                return read_tagged(node[0][0][1:], node[0][1])
            assert not [name for name, _ in node if name.startswith("$") and not name.startswith("$$")]
            return ("dict", frozenset((("text", name.removeprefix("$")), read(held)) for name, held in node))
        case list():
            return ("list", tuple(read(held) for held in node))
    raise AssertionError(type(node))


def read_tagged(tag: str, held: Any) -> Any:
    match tag:
        case "set":
            return ("set", frozenset(read(element) for element in held))
        case "dict":
            return ("dict", frozenset((read(key), read(value)) for key, value in held))
        case "enum" | "dataclass":
            return (tag, held[0], read(held[1]))
        case "timedelta":
            return ("timedelta", held[1])
        case "bytes":
            return ("bytes", b64decode(held, validate=True))
        case "datetime":
            assert len(held) == len("2026-05-01T08:00:00.000000Z")
            return ("datetime", (datetime.fromisoformat(held) - EPOCH) // MICROSECOND)
        case "decimal":
            return ("decimal", Fraction(Decimal(held)))
    assert tag in ("uuid", "date", "time", "path")
    return (tag, held if tag == "path" else build([tag, held]))


def read_text(text: str) -> Any:
    return read(
        json.loads(
            text,
            parse_int=lambda digits: ("int", int(digits)),
            parse_float=lambda digits: ("float", float(digits)),
            object_pairs_hook=Names,
        )
    )


def text_of(value: Any) -> str:
    """The text of a value, unless two of its keys are one text in Unicode: no other value here may be refused."""
    try:
        return canonical(value)
    except InvalidPayload as error:
        assert "is there twice" in error.problem
        assume(False)
        raise


@st.composite
def twins(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two values that mean the same and are written as differently as Python allows."""

    def twin(value: Any, hashed: bool = False) -> Any:
        match value:
            case Enum():
                return value
            case str():
                return normalize(draw(st.sampled_from(["NFC", "NFD"])), value)
            case float():
                return -value if value == 0 else value
            case bytes() | bytearray():
                return bytes(value) if hashed else draw(st.sampled_from([bytes, bytearray, memoryview]))(value)
            case Decimal() if abs(value.as_tuple().exponent) < 10:  # type: ignore[arg-type]
                sign, digits, exponent = value.as_tuple()
                return Decimal((sign, (*digits, 0), exponent - 1))  # type: ignore[operator]
            case datetime():
                return value.astimezone(draw(zones))
            case list() | tuple():
                inner = [twin(element, hashed) for element in value]
                return tuple(inner) if hashed else draw(st.sampled_from([list, tuple]))(inner)
            case set() | frozenset():
                shuffled = draw(st.permutations(list(value)))
                made = frozenset(twin(element, True) for element in shuffled)
                return made if hashed else draw(st.sampled_from([set, frozenset]))(made)
            case dict():
                return {twin(key, True): twin(inner) for key, inner in draw(st.permutations(list(value.items())))}
            case Point():
                return Point(twin(value.x, hashed), twin(value.y, hashed))
        return value

    value = draw(values)
    return value, twin(value)


@given(twins())
def test_values_that_mean_the_same_have_one_text(pair: tuple[Any, Any]) -> None:  # R004-10, B046, T004-j, T004-n
    value, twin = pair
    text = text_of(value)
    assert meaning(value) == meaning(twin)
    assert text_of(twin) == text


@given(values)
@example({"$bytes": "YQ=="})
@example({"$$bytes": "YQ=="})
@example({1: "a", "1": "b"})
@example([{"$dict": [[1, "a"]]}, {1: "a"}])
@example([Colour.ONE, Level.ONE, 1, True, 1.0, "1", Decimal(1), {"$enum": ["Colour", 1]}])
@example([b"hi", "aGk=", {"$bytes": "aGk="}])
def test_a_text_says_all_that_its_value_means(value: Any) -> None:  # T004-i: so no two meanings share a text
    assert read_text(text_of(value)) == meaning(value)


@given(values, values)
@example(1, True)
@example(1, 1.0)
@example({1}, [1])
@example({"a": 1}, {"$a": 1})
@example({"$set": [1]}, {1})
def test_two_values_have_one_text_only_if_they_mean_the_same(a: Any, b: Any) -> None:  # T004-i
    assert (text_of(a) == text_of(b)) is (meaning(a) == meaning(b))


@given(values)
def test_a_text_is_sorted_compact_json_with_as_few_escapes_as_can_be(value: Any) -> None:  # R004-10
    text = text_of(value)
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text
    text.encode()


@given(values)
def test_the_description_of_a_value_builds_its_equal(value: Any) -> None:
    assert text_of(build(json.loads(json.dumps(describe(value))))) == text_of(value)


@given(
    st.tuples(texts, st.lists(values, max_size=2), st.dictionaries(texts, values, max_size=2)),
    st.tuples(texts, st.lists(values, max_size=2), st.dictionaries(texts, values, max_size=2)),
)
@example(("t", [1], {}), ("t", [], {"x": 1}))
@example(("t", [], {"$args": 1}), ("t", [], {"$$args": 1}))
def test_two_calls_have_one_key_only_if_they_mean_the_same(a: Any, b: Any) -> None:  # B046
    made = []
    for task, args, kwargs in (a, b):
        assume(task.isprintable() and task)
        text_of([args, kwargs])
        made.append(canonical_task_key(task, args, kwargs))
        assert read_text(canonical_call(task, args, kwargs)) == (
            "dict",
            frozenset(
                {
                    (("text", "args"), meaning(args)),
                    (("text", "kwargs"), meaning(kwargs)),
                    (("text", "namespace"), ("text", "task")),
                    (("text", "task"), meaning(task)),
                    (("text", "version"), ("int", 1)),
                }
            ),
        )
    assert (made[0] == made[1]) is (meaning(list(a)) == meaning(list(b)))

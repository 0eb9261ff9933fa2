"""What can be carried in a job, and the path of what cannot."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duly.kernel.errors import InvalidArgument, InvalidPayload
from duly.kernel.payload import MAX_DEPTH, check_name, check_number, check_size, check_value, check_whole

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(plain)
@example({"a": [1, 2.5, None, True, "é", {"b": []}]})
def test_a_value_that_passes_comes_back_as_it_was_sent(value: Any) -> None:
    check_value(value, "x")
    assert orjson.loads(orjson.dumps(value)) == value


@given(st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3) | st.decimals(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_what_json_would_change_never_passes(value: Any) -> None:  # B038
    try:
        check_value(value, "x")
    except InvalidPayload:
        return
    assert json.loads(orjson.dumps(value)) == value
    assert "\\u0000" not in json.dumps(value).replace("\\\\", "")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"t": "a\x00b"}, "input.t"),
        ({"a": [0, {"x": math.nan}]}, "input.a[1].x"),
        ([math.inf], "input[0]"),
        ([-math.inf], "input[0]"),
        ({"t": "\ud800"}, "input.t"),
        ({"n": 2**64}, "input.n"),
        ({"n": -(2**63) - 1}, "input.n"),
        ({"d": Decimal(1)}, "input.d"),
        ({"d": {1: 2}}, "input.d"),
        ({"s": {1}}, "input.s"),
        ({"k\x00": 1}, "input (a key)"),
        ({"o": object()}, "input.o"),
    ],
)
def test_a_value_that_cannot_be_carried_is_named_by_its_path(value: Any, path: str) -> None:  # B038
    with pytest.raises(InvalidPayload) as refused:
        check_value(value, "input")
    assert refused.value.field == path


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidPayload, match="contains itself"):
        check_value(loop, "x")


def test_the_deepest_value_that_is_carried_can_be_read_again() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    check_value(deep, "x")
    assert orjson.loads(orjson.dumps(deep)) == deep
    with pytest.raises(InvalidPayload, match="nested deeper"):
        check_value([deep], "x")


@pytest.mark.parametrize("name", ["", "x" * 201, "k\x00", "\udfff", "a\nb", "\x7f", None, 7])
def test_a_name_that_no_database_can_keep_is_refused_with_its_field(name: Any) -> None:  # B038
    with pytest.raises(InvalidArgument) as refused:
        check_name(name, "key")
    assert refused.value.field == "key"


@pytest.mark.parametrize(
    ("name", "said"),
    [("\ud800", "half of a surrogate pair"), ("a\x00", "the NUL character"), ("a\n", "control characters")],
)
def test_a_refusal_of_a_name_says_what_is_wrong_with_it(name: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check_name(name, "key")


def test_an_ordinary_name_is_returned_as_it_is() -> None:
    assert check_name("комната-7 \U0001f600", "key") == "комната-7 \U0001f600"


def test_a_payload_beyond_the_limit_is_refused_with_both_numbers() -> None:
    check_size(256, 256, "the input")
    with pytest.raises(InvalidPayload, match=r"is 1,257 bytes when encoded; the limit is 1,256"):
        check_size(1257, 1256, "the input")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, 2**31], ids=repr)
def test_what_is_no_whole_number_in_bounds_is_refused_in_one_wording(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"limit: is .*; it must be a whole number, at least 1\. Pause it\."):
        check_whole(value, "limit", remedy="Pause it.")
    with pytest.raises(InvalidArgument, match=r"it must be a whole number from 1 to 2,000\."):
        check_whole(value, "limit", 1, 2_000)


@pytest.mark.parametrize("value", [True, "1", None, -1, math.nan, math.inf], ids=repr)
def test_what_is_no_number_in_bounds_is_refused_in_one_wording(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"lease: is .*; it must be seconds, 0 or more\."):
        check_number(value, "lease", "seconds, 0 or more", 0)


def test_numbers_in_bounds_are_returned() -> None:
    assert (check_whole(1, "n"), check_whole(2_000, "n", 1, 2_000)) == (1, 2_000)
    assert (check_number(0, "n", "", 0), check_number(0.5, "n", "", 0, 1, above=True)) == (0, 0.5)
    with pytest.raises(InvalidArgument):
        check_number(0, "n", "more than 0", 0, above=True)

"""Arguments come back as they were sent, or are refused where the mistake is, with the parameter's name."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, PrivateAttr, SecretStr

from duly.jobs.codec import Arguments, Codec, encode_output, encode_plain
from duly.kernel.errors import InvalidArgument, InvalidPayload

LIMIT = 100_000


class Stranger:
    """What no JSON carries; it looks the same in every process, so that parallel runs collect the same tests."""

    def __repr__(self) -> str:
        return "a stranger"


STRANGER = Stranger()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


@dataclasses.dataclass(frozen=True)
class Order:
    number: UUID
    lines: tuple[Money, ...]
    due: date | None = None


class Address(BaseModel):
    street: str
    since: datetime
    rating: float = 1.0


class Point(NamedTuple):
    x: int
    y: int


class Foreign:
    """A class that pydantic knows nothing of."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and other.name == self.name


Carried = Annotated[
    Foreign, PlainValidator(lambda v: v if isinstance(v, Foreign) else Foreign(v)), PlainSerializer(lambda f: f.name)
]


def travel(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """There and back: the arguments with which the handler would be called."""
    codec = Codec(fn, "t", {})
    back = codec.decode(codec.encode(codec.bind(args, kwargs), LIMIT))
    return back.args, back.kwargs


def one(kind: Any, value: Any) -> Any:
    """A value's way through a parameter ``x`` of some type."""

    def fn(x: Any) -> None: ...

    fn.__annotations__["x"] = kind
    return travel(fn, value)[1]["x"]


PLUS2 = timezone(timedelta(hours=2))
VALUES: list[tuple[Any, Any]] = [
    (Decimal, Decimal("10.10")),
    (Decimal, Decimal("1E+400")),
    (UUID, UUID(int=7)),
    (datetime, datetime(2026, 3, 2, 12, 0, 0, 123456, tzinfo=UTC)),
    (datetime, datetime(2026, 3, 2, 12, 0, tzinfo=PLUS2)),
    (datetime, datetime(2026, 3, 2, 12, 0)),
    (date, date(2026, 3, 2)),
    (time, time(23, 59, 59, 999999)),
    (timedelta, timedelta(days=-2, microseconds=1)),
    (timedelta, timedelta(days=900, hours=5)),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Literal["a", "b"], "b"),
    (Money, Money(Decimal("9.90"))),
    (Order, Order(UUID(int=1), (Money(Decimal(1)), Money(Decimal(2), "USD")), date(2026, 3, 2))),
    (Address, Address(street="Rue «É»", since=datetime(2026, 1, 1, tzinfo=UTC))),
    (Point, Point(1, -2)),
    (bytes, bytes(range(256))),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[Colour, ...], (Colour.BLUE, Colour.RED)),
    (list[dict[str, Decimal]], [{"a": Decimal("0.1")}]),
    (dict[int, date], {7: date(2026, 3, 2)}),
    (dict[UUID, set[bytes]], {UUID(int=3): {b"\x00\xff"}}),
    (Optional[Decimal], None),  # noqa: UP045
    (Optional[Decimal], Decimal(3)),  # noqa: UP045
    (Money | None, Money(Decimal(1))),
    (int | str, "5"),
    (int | str, 5),
    (int, 2**64 - 1),
    (int, -(2**63)),
    (float, 0.1),
    (bool, True),
    (str, "a\u2028b\U0001f600"),
    (Any, {"a": [1, None, 2.5, {"b": "c"}]}),
    (Carried, Foreign("x")),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda v: str(v)[:40])
def test_a_typed_argument_comes_back_as_it_was_sent(kind: Any, value: Any) -> None:
    back = one(kind, value)
    assert back == value
    assert type(back) is type(value)


@given(st.datetimes(timezones=st.just(UTC)), st.timedeltas(), st.decimals(allow_nan=False, allow_infinity=False))
def test_any_instant_duration_and_decimal_comes_back(at: datetime, span: timedelta, amount: Decimal) -> None:
    def fn(at: datetime, span: timedelta, amount: Decimal) -> None: ...

    back = travel(fn, at, span, amount)[1]
    assert back == {"at": at, "span": span, "amount": amount}
    assert str(back["amount"]) == str(amount)


def test_arguments_may_be_given_by_place_or_by_name() -> None:
    def fn(a: int, b: Decimal, *, c: str = "c") -> None: ...

    assert travel(fn, 1, Decimal(2)) == ((), {"a": 1, "b": Decimal(2)})
    assert travel(fn, b=Decimal(2), a=1, c="x") == ((), {"a": 1, "b": Decimal(2), "c": "x"})


def test_a_default_is_left_to_the_function_so_that_it_may_change() -> None:
    def fn(a: int, b: int = 5) -> None: ...

    codec = Codec(fn, "t", {})
    assert codec.encode(codec.bind((1,), {}), LIMIT) == '{"a":1}'


def test_positional_only_parameters_come_back_in_their_places() -> None:
    def fn(a: Decimal, b: int, /, c: date) -> None: ...

    assert travel(fn, Decimal(1), 2, date(2026, 1, 1)) == ((Decimal(1), 2), {"c": date(2026, 1, 1)})


def test_keywords_of_a_rest_are_carried_as_plain_json() -> None:
    def fn(a: int = 1, **rest: Any) -> None: ...

    assert travel(fn, 2, x=[1], y={"z": None}) == ((), {"a": 2, "x": [1], "y": {"z": None}})
    assert travel(fn, f0=5, self=6, model_config=7) == ((), {"f0": 5, "self": 6, "model_config": 7})
    with pytest.raises(InvalidPayload) as refused:
        travel(fn, x=[Decimal(1)])
    assert refused.value.field == "x[0]"


def test_a_keyword_that_has_the_name_of_a_positional_only_parameter_is_refused() -> None:
    def fn(a: int, /, **rest: int) -> None: ...

    with pytest.raises(InvalidArgument, match="given to task t twice"):
        travel(fn, 1, a=2)


def test_parameters_may_have_names_that_models_use_for_themselves() -> None:
    def fn(model_config: int, schema: str, copy: bool, json: float, _private: int) -> None: ...

    values: dict[str, Any] = {"model_config": 1, "schema": "s", "copy": True, "json": 1.5, "_private": 3}
    assert travel(fn, **values) == ((), values)


def test_a_none_beside_a_value_of_a_foreign_class_harms_nobody() -> None:
    def fn(a: Carried, b: int | None) -> None: ...

    assert travel(fn, Foreign("x"), None) == ((), {"a": Foreign("x"), "b": None})


class Vat(Enum):
    NORMAL = Decimal("0.22")
    LOW = Decimal("0.10")


class Size(Enum):
    SMALL = (1, 2)
    RAW = b"\xff"


class Swapped(Enum):
    A = "B"
    B = Decimal(1)


@dataclasses.dataclass
class Rated:
    name: str
    vat: Vat
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Gross:
    net: int
    gross: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Scaled:
    value: int
    factor: dataclasses.InitVar[int]

    def __post_init__(self, factor: int) -> None:
        self.value *= factor


@dataclasses.dataclass
class MoreMoney(Money):
    note: str = ""


@dataclasses.dataclass
class Loose:
    a: float
    b: Decimal
    c: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class NoEq:
    a: int


class Animal(BaseModel):
    name: str


class Dog(Animal):
    breed: str


class Login(BaseModel):
    user: str
    password: SecretStr


class Hidden(BaseModel):
    shown: int
    hidden: int = Field(default=0, exclude=True)


class Event(BaseModel):
    ident: UUID = Field(default_factory=uuid4)
    notes: list[str] = []
    _cache: Any = PrivateAttr(default_factory=object)


class Marked(str):
    """A text that says of itself that it is safe."""


@dataclasses.dataclass
class Counted:
    n: int


class Opaque(Foreign):
    __eq__ = object.__eq__
    __hash__ = object.__hash__


Unlike = Annotated[
    Opaque, PlainValidator(lambda v: v if isinstance(v, Opaque) else Opaque(v)), PlainSerializer(lambda f: f.name)
]
Lossy = Annotated[
    Opaque, PlainValidator(lambda v: v if isinstance(v, Opaque) else Opaque(v)), PlainSerializer(lambda f: f.name[:-1])
]
ROME = ZoneInfo("Europe/Rome")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Vat, Vat.LOW),
        (Size, Size.SMALL),
        (list[Size], [Size.RAW, Size.SMALL]),
        (dict[Vat, int], {Vat.LOW: 1}),
        (Rated, Rated("a", Vat.NORMAL, {"x", "y"})),
        (Vat | None, None),
        (NoEq | int, 5),
        (Union[list[int], set[int]], [3, 1]),  # noqa: UP007
        (Union[set[int], list[int]], [3, 1]),  # noqa: UP007
        (set[int], {2**63, 2**62, 3}),
        (datetime | date, date(2026, 3, 2)),
        (datetime | date, datetime(2026, 3, 2)),
    ],
    ids=lambda v: str(v)[:40],
)  # fmt: skip
def test_an_argument_comes_back_whole(kind: Any, value: Any) -> None:
    back = one(kind, value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [
        (int, 2**64, "x"), (int, -(2**63) - 1, "x"), (int | None, 2**70, "x"), (list[int], [1, 2**70], "x[1]"),
        (set[int], {2**70}, "x[0]"), (dict[str, int], {"a": 2**64}, "x.a"), (Counted, Counted(2**64), "x.n"),
    ],
    ids=str,
)  # fmt: skip
def test_a_whole_number_that_readers_of_json_would_round_is_refused_whatever_the_annotation(
    kind: Any, value: Any, path: str
) -> None:  # ADR 0011
    with pytest.raises(InvalidPayload, match="integer of more than 64 bits") as caught:
        one(kind, value)
    assert caught.value.field == path


def test_many_digits_that_are_no_whole_number_are_carried() -> None:
    digits = "1" * 40
    assert one(str, digits) == digits
    assert one(Decimal, Decimal(digits)) == Decimal(digits)
    assert one(list[float], [1.1111111111111111, 1e300]) == [1.1111111111111111, 1e300]


def offsets(values: list[datetime]) -> list[timedelta | None]:
    return [v.utcoffset() for v in values]


def test_an_hour_that_the_clocks_repeat_is_no_false_alarm() -> None:
    sent = [datetime(2026, 10, 25, 2, 30, tzinfo=ROME), datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ROME)]
    assert offsets(one(list[datetime], sent)) == offsets(sent)


def test_an_object_that_cannot_be_compared_is_carried_where_it_encodes_to_the_same() -> None:
    assert one(Unlike, Opaque("x")).name == "x"
    assert [o.name for o in one(list[Unlike], [Opaque("x"), Opaque("y")])] == ["x", "y"]
    assert one(NoEq, NoEq(3)).a == 3
    assert [n.a for n in one(list[NoEq], [NoEq(3)])] == [3]
    with pytest.raises(InvalidPayload):
        one(list[Lossy], [Opaque("xyz")])


def test_what_a_plain_type_promises_may_be_sent_as_more() -> None:
    assert one(list[str], [Marked("x")]) == ["x"]
    assert one(Money, Money(5)).amount == 5  # type: ignore[arg-type]
    assert one(Loose, Loose(1, 2, [3])) == Loose(1.0, Decimal(2), (3,))  # type: ignore[arg-type]
    assert list(one(Sequence[Decimal], (Decimal(1),))) == [Decimal(1)]
    assert one(Mapping[str, Decimal], {"a": Decimal(1)}) == {"a": Decimal(1)}


def test_a_default_inside_a_model_that_is_another_each_time_arrives_as_it_was_sent() -> None:
    sent = Event()
    sent.notes.append("x")
    back = one(Event, sent)
    assert (back.ident, back.notes) == (sent.ident, ["x"])
    assert one(Event, Event(ident=UUID(int=1))).model_fields_set == {"ident"}


def test_an_enum_that_was_stored_by_value_is_still_read() -> None:
    def fn(x: Colour, y: Swapped) -> None: ...

    assert Codec(fn, "t", {}).decode('{"x":"red","y":"B"}').kwargs == {"x": Colour.RED, "y": Swapped.A}


def test_sets_are_encoded_in_one_order() -> None:
    def fn(x: set[str], y: frozenset[bytes], z: list[set[int]]) -> None: ...

    text = Codec(fn, "t", {}).encode({"x": {"c", "a", "b"}, "y": frozenset({b"b", b"a"}), "z": [{300, 200, 1}]}, LIMIT)
    assert text == '{"x":["a","b","c"],"y":["YQ==","Yg=="],"z":[[1,200,300]]}'


def test_a_field_of_another_type_than_its_annotation_is_refused_or_arrives_the_same() -> None:
    samples: list[Any] = [1, 2.5, True, "x", "5", b"x", None, Decimal("1.5"), UUID(int=5), date(2026, 1, 1), datetime(2026, 1, 1, 5),
               timedelta(seconds=3), Colour.RED, Level.LOW, [1], (1,), {"a": 1}, {1}]  # fmt: skip
    kinds = [int, float, bool, str, bytes, Decimal, UUID, date, timedelta, Colour, Level, list[int], tuple[int, ...], dict[str, int],
             set[int], int | None, UUID | None, Literal["x", "5"]]  # fmt: skip
    for kind in kinds:
        Box = dataclasses.make_dataclass("Box", [("inner", kind)])
        for sample in samples:
            try:
                back = one(Box, Box(sample)).inner
            except InvalidArgument:
                continue
            rows = isinstance(back, list | tuple) and isinstance(sample, list | tuple)
            assert back == sample or (rows and list(back) == list(sample)), (kind, sample, back)
            assert (
                isinstance(sample, type(back)) or rows or (isinstance(sample, int) and type(back) in (float, Decimal))
            )


# --- The short way -----------------------------------------------------------------------------------------------------


def light(
    whole: int, said: str, real: float, sure: bool, perhaps: int | None = None, either: int | str | bool = "x", half: Optional[float] = 0.5  # noqa: UP045
) -> None: ...  # fmt: skip


def answer(act: Callable[[], Any]) -> Any:
    """What comes of it, as something to compare: 1 is not 1.0."""
    try:
        found = act()
        return repr(found if isinstance(found, str) else (found.args, sorted(found.kwargs.items())))
    except InvalidArgument as refused:
        return type(refused), refused.field, str(refused)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.text('\ud800\x00a\\u"\n'),
    st.sampled_from(Level),
)
FITTING = {
    "whole": st.integers(), "said": st.text(), "real": st.floats(), "sure": st.booleans(), "perhaps": st.none() | st.integers(),
    "either": st.integers() | st.text() | st.booleans(), "half": st.none() | st.floats(),
}  # fmt: skip
CALLS = st.one_of(
    st.fixed_dictionaries({n: FITTING[n] for n in list(FITTING)[:4]}, optional={n: FITTING[n] for n in list(FITTING)[4:]}),
    st.dictionaries(st.sampled_from([*FITTING, "stranger"]), SCALARS),
)  # fmt: skip


@given(CALLS)
def test_plain_values_travel_as_the_model_of_the_signature_would_carry_them(arguments: dict[str, Any]) -> None:
    codec = Codec(light, "t", {})
    assert codec._light
    carefully = answer(lambda: codec._typed.encode(arguments, LIMIT))
    assert answer(lambda: codec.encode(arguments, LIMIT)) == carefully
    if isinstance(carefully, str):
        text = codec.encode(arguments, LIMIT)
        assert answer(lambda: codec.decode(text)) == answer(lambda: carefully_decoded(codec, text))


ODD = SCALARS | st.lists(st.integers()) | st.sampled_from([2**64, 2**70, "7", "1.5", 7.0])
STORED = st.fixed_dictionaries(
    {n: FITTING[n] | ODD for n in list(FITTING)[:4]}, optional={n: FITTING[n] | ODD for n in [*list(FITTING)[4:]]} | {"stranger": ODD}
)  # fmt: skip


@given(CALLS | STORED, st.randoms())
def test_stored_input_is_read_as_the_model_of_the_signature_would_read_it(
    arguments: dict[str, Any], dice: random.Random
) -> None:
    names = list(arguments)
    dice.shuffle(names)
    codec, text = Codec(light, "t", {}), json.dumps({name: arguments[name] for name in names})
    assert answer(lambda: codec.decode(text)) == answer(lambda: carefully_decoded(codec, text))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"whole":1,"whole":2,"said":"","real":1.0,"sure":true}', '{"real":1e400}']
)
def test_stored_input_that_is_odd_is_read_as_the_model_would_read_it(text: str) -> None:
    codec = Codec(light, "t", {})
    assert answer(lambda: codec.decode(text)) == answer(lambda: carefully_decoded(codec, text))


def carefully_decoded(codec: Codec, text: str) -> Arguments:
    given, values, _ = codec._typed.decode(text)
    return Arguments((), {p.name: values[p.field] for p in codec.parameters if p.field in given})


# --- Refusals ----------------------------------------------------------------------------------------------------------


class Reading(BaseModel):
    value: float


LOOP: list[Any] = []
LOOP.append(LOOP)
REFUSED: list[tuple[Any, Any, str]] = [
    (str, "a\x00b", "x"),
    (Any, {"t": "a\x00b"}, "x.t"),
    (list[Address], [Address(street="a\x00", since=datetime(2026, 1, 1))], "x[0].street"),
    (dict[str, int], {"k\x00": 1}, "x (a key)"),
    (float, math.nan, "x"),
    (list[float], [1.0, math.inf], "x[1]"),
    (Any, {"x": 1e999}, "x.x"),
    (dict[str, Any], {"a": {"b": -math.inf}}, "x.a.b"),
    (Reading, Reading(value=math.nan), "x.value"),
    (Decimal, Decimal("NaN"), "x"),
    (str, "\ud800", "x"),
    (Any, ["ok", "\udfff"], "x[1]"),
    (list[Any], [STRANGER], "x[0]"),
    (list[Any], [Decimal(1)], "x[0]"),
    (list, [{"when": date(2026, 1, 1)}], "x[0].when"),
    (dict[str, Any], {"a": b"raw"}, "x.a"),
    (dict, {1: 2}, "x"),
    (Optional[Any], Decimal(1), "x"),  # noqa: UP045
    (Any, {1, 2}, "x"),
    (object, Foreign("x"), "x"),
    (Any, 2**64, "x"),
    (int, "seven", "x"),
    (int, None, "x"),
    (Colour, "green", "x"),
    (Money, {"amount": "a lot"}, "x.amount"),
    (tuple[int, int], (1, 2, 3), "x"),
    (Gross, Gross(100), "x.gross"),
    (list[Scaled], [Scaled(1, 2)], "x[0].factor"),
    (dict[tuple[int, int], str], {(1, 2): "a"}, "x.1,2.[key]"),
    (dict[str | None, int], {None: 1}, "x (a key)"),
    (SecretStr, SecretStr("hunter2"), "x"),
    (Login, Login(user="a", password=SecretStr("hunter2")), "x.password"),
    (Animal, Dog(name="Rex", breed="collie"), "x"),
    (list[Animal], [Animal(name="a"), Dog(name="Rex", breed="collie")], "x[1]"),
    (Money, MoreMoney(Decimal(1), note="n"), "x"),
    (dict[str, Money], {"a": Money("1")}, "x.a.amount"),  # type: ignore[arg-type]
    (Hidden, Hidden(shown=1, hidden=7), "x.hidden"),
    (bytes | str, "abcd", "x"),
    (str | bytes, b"abcd", "x"),
    (Decimal | str, "1.5", "x"),
    (str | datetime, datetime(2026, 1, 1), "x"),
    (Swapped, Swapped.B, "x"),
    (datetime, datetime(1890, 1, 1, 12, tzinfo=timezone(timedelta(seconds=561))), "x"),
    (list[datetime], [datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=3601)))], "x[0]"),
    (time, time(1, 2, tzinfo=ROME), "x"),
]


@pytest.mark.parametrize(("kind", "value", "path"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_cannot_be_carried_is_refused_with_its_path(kind: Any, value: Any, path: str) -> None:  # B038
    with pytest.raises(InvalidArgument) as refused:
        one(kind, value)
    assert refused.value.field == path


@pytest.mark.parametrize("kind", [Any, list[Any], object])
def test_a_value_that_contains_itself_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidPayload, match="contains itself"):
        one(kind, LOOP)


@pytest.mark.parametrize(("kind", "value"), [(str, "\\u0000"), (str, "NaN"), (Any, ["Infinity", ":null", "\\\\u0000"])])
def test_a_text_that_only_looks_suspicious_passes(kind: Any, value: Any) -> None:
    assert one(kind, value) == value


def test_an_input_beyond_the_limit_is_refused_with_its_size() -> None:
    def fn(x: str) -> None: ...

    codec = Codec(fn, "t", {})
    assert codec.encode({"x": "a" * 92}, 100) == '{"x":"' + "a" * 92 + '"}'
    with pytest.raises(InvalidPayload, match="is 101 bytes when encoded; the limit is 100"):
        codec.encode({"x": "a" * 93}, 100)
    with pytest.raises(InvalidPayload):
        codec.encode({"x": "é" * 50}, 100)  # bytes count, not characters


def test_a_wrong_call_is_refused_as_python_would() -> None:
    def fn(a: int, *, b: int = 2) -> None: ...

    for args, kwargs, name in [((), {}, "a"), ((1, 2), {}, "task t"), ((1,), {"c": 3}, "task t"), ((), {"a": 1, "c": 3}, "c")]:  # fmt: skip
        with pytest.raises(InvalidArgument) as refused:
            travel(fn, *args, **kwargs)
        assert refused.value.field == name


def test_no_refusal_repeats_the_value() -> None:
    def fn(x: int) -> None: ...

    with pytest.raises(InvalidArgument) as refused:
        travel(fn, "secret")
    assert "secret" not in str(refused.value)
    for kind, value in ((Login, Login(user="hunter2", password=SecretStr("hunter2"))), (bytes | str, "hunter22")):
        with pytest.raises(InvalidArgument) as refused:
            one(kind, value)
        assert "hunter2" not in str(refused.value)


def test_an_input_that_no_longer_fits_its_task_is_refused_when_it_is_read() -> None:
    def fn(a: int, b: Colour) -> None: ...

    codec = Codec(fn, "t", {})
    for text, field in [('{"a":1}', "b"), ('{"a":1,"b":"green"}', "b"), ('{"a":1,"b":"red","c":0}', "c"), ("[]", "t")]:
        with pytest.raises(InvalidArgument) as refused:
            codec.decode(text)
        assert refused.value.field == field


# --- Definitions -------------------------------------------------------------------------------------------------------


def test_a_parameter_that_can_never_travel_is_refused_at_definition() -> None:
    def foreign(x: Foreign) -> None: ...

    def places(*x: int) -> None: ...

    def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for fn, words in ((foreign, "cannot be carried"), (places, "Take a list"), (unknown, "cannot be resolved")):
        with pytest.raises(InvalidArgument, match=words):
            Codec(fn, "t", {})


def test_injected_parameters_are_no_part_of_the_input() -> None:
    def fn(a: int, job: Foreign) -> None: ...

    codec = Codec(fn, "t", {"job": "context"})
    assert codec.encode(codec.bind((1,), {}), LIMIT) == '{"a":1}'
    with pytest.raises(InvalidArgument):
        codec.encode({"a": 1, "job": 2}, LIMIT)


# --- Plain input and results -------------------------------------------------------------------------------------------


def test_an_input_by_name_is_plain_json() -> None:
    assert encode_plain({"a": [1, {"b": None}]}, "input", LIMIT) == '{"a":[1,{"b":null}]}'
    for bad, path in [({"t": "a\x00b"}, "t"), ({"x": [math.nan]}, "x[0]"), ({"d": Decimal(1)}, "d")]:  # B038
        with pytest.raises(InvalidPayload) as refused:
            encode_plain(bad, "input", LIMIT)
        assert refused.value.field == path
    with pytest.raises(InvalidPayload, match="the limit is 10"):
        encode_plain({"a": "0123456789"}, "input", 10)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "{}"),  # R003-10
        ({"a": 1}, '{"a":1}'),
        ([Decimal("1.5"), {1, 1}, b"ab", date(2026, 1, 1), Colour.RED], '["1.5",[1],"YWI=","2026-01-01","red"]'),
        (Money(Decimal(1)), '{"amount":"1","currency":"EUR"}'),
        (Address(street="a", since=datetime(2026, 1, 1, tzinfo=UTC)), '{"street":"a","since":"2026-01-01T00:00:00Z","rating":1.0}'),
        ({1: "a"}, '{"1":"a"}'),
        ("\\u0000", '"\\\\u0000"'),
    ],
)  # fmt: skip
def test_a_result_is_stored_as_json(result: Any, text: str) -> None:
    assert encode_output(result, LIMIT) == (text, None)


@pytest.mark.parametrize(
    "result", [STRANGER, "a\x00", {"a": ["\x00"]}, "\ud800", 2**70, LOOP, "x" * LIMIT, {(1, 2): 3}], ids=lambda r: str(r)[:20]
)  # fmt: skip
def test_a_result_that_cannot_be_stored_comes_with_the_reason(result: Any) -> None:
    text, problem = encode_output(result, LIMIT)
    assert text is None
    assert problem is not None and "result" in problem

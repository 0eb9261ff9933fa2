"""The key of a call: what is the same call, what is another one, and what is refused with its path."""

from __future__ import annotations

import inspect
import threading
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, getcontext, localcontext
from enum import Enum, IntEnum, IntFlag, StrEnum
from pathlib import Path, PureWindowsPath
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import MagicMock
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.kernel.binding import bind_call, instance_parameter
from duly.kernel.canonical import canonical, canonical_call, canonical_task_key
from duly.kernel.canonical_forms import MAX_LENGTH
from duly.kernel.errors import InvalidArgument, InvalidPayload

PARIS = ZoneInfo("Europe/Paris")


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    ONE = 1


class Word(StrEnum):
    RED = "red"


class Right(IntFlag):
    READ = 1
    WRITE = 2


@dataclass
class Line:
    sku: str
    price: Decimal
    note: Any = field(default=None, compare=False)


class Order(pydantic.BaseModel):
    line: Any
    secret: str = pydantic.Field(default="", exclude=True)


class Open(pydantic.BaseModel, extra="allow"):
    a: int


class Item(pydantic.BaseModel, arbitrary_types_allowed=True):
    word: pydantic.SecretStr


def refusal(value: Any, **options: Any) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as refused:
        canonical(value, "x", **options)
    return refused.value


# --- The key ----------------------------------------------------------------------------------------------------------


def test_a_key_names_its_version_and_namespace_and_is_short_enough_for_a_name() -> None:  # R004-10, T004-m
    key = canonical_task_key("t", namespace="n" * 64)
    assert key.startswith(f"duly:v1:{'n' * 64}:")
    assert len(key) <= 200
    assert key.isascii()
    assert canonical_task_key("t").startswith("duly:v1:task:")
    assert canonical_task_key("t").rpartition(":")[2] != key.rpartition(":")[2]


def test_no_argument_can_be_read_in_a_key() -> None:  # T004-m
    assert "ada" not in canonical_task_key("t", ["ada"], {"to": "ada@example.org"})


def test_order_never_counts_where_there_is_none() -> None:  # R004-10, B046
    kwargs = {"a": 1, "b": {"y": 2, "x": [3]}, "tags": {"c", "a", "b"}}
    permuted = {"tags": {"b", "c", "a"}, "b": {"x": [3], "y": 2}, "a": 1}
    assert canonical_task_key("t", (), kwargs) == canonical_task_key("t", (), permuted)


def test_another_task_argument_or_order_of_a_list_is_another_call() -> None:  # B046
    calls = [
        ("t", (), {}),
        ("u", (), {}),
        ("t", (1,), {}),
        ("t", (), {"x": 1}),
        ("t", (), {"y": 1}),
        ("t", ([1, 2],), {}),
        ("t", ([2, 1],), {}),
        ("t", (1, 2), {}),
        ("t", ((), {"x": 1}), {}),
    ]
    assert len({canonical_task_key(*call) for call in calls}) == len(calls)
    assert canonical_task_key("t", namespace="a") != canonical_task_key("t", namespace="b")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ({"task_name": ""}, "task_name"),
        ({"task_name": None}, "task_name"),
        ({"task_name": "a\nb"}, "task_name"),
        ({"task_name": "t", "namespace": "a:b"}, "namespace"),
        ({"task_name": "t", "namespace": ""}, "namespace"),
        ({"task_name": "t", "namespace": "a\n"}, "namespace"),
        ({"task_name": "t", "namespace": None}, "namespace"),
        ({"task_name": "t", "args": "text"}, "args"),
        ({"task_name": "t", "args": {1, 2}}, "args"),
        ({"task_name": "t", "args": None}, "args"),
        ({"task_name": "t", "kwargs": [("a", 1)]}, "kwargs"),
        ({"task_name": "t", "kwargs": {1: 2}}, "kwargs"),
        ({"task_name": "t", "naive_zone": "UTC"}, "naive_zone"),
        ({"task_name": "t", "ignore": ["session"]}, "ignore"),
        ({"task_name": "t", "signature": inspect.signature(lambda **more: more), "ignore": "obj"}, "ignore"),
        ({"task_name": "t", "args": [1], "signature": inspect.signature(len), "ignore": ["objs"]}, "ignore"),
        ({"task_name": "t", "signature": 7}, "signature"),
        ({"task_name": "t", "signature": dict.update}, "signature"),
    ],
)
def test_a_call_that_cannot_be_keyed_names_the_argument(call: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        canonical_task_key(**call)
    assert refused.value.field == problem


def test_the_path_leads_to_the_value_that_has_no_form() -> None:
    with pytest.raises(InvalidPayload) as refused:
        canonical_task_key("t", (), {"items": [1, 2, {"price": float("nan")}]})
    assert refused.value.field == "kwargs.items[2].price"
    with pytest.raises(InvalidPayload) as refused:
        canonical_task_key("t", (0, [Line("a", Decimal("NaN"))]))
    assert refused.value.field == "args[1][0].price"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1: {UUID(int=0): object()}}, "x[int][UUID]"),
        ({(1, object()): 1}, "x (a key)[1]"),
        ({"a": {1, 2, object()}}, "x.a{}"),
        ({"a\x00b": object()}, "x.'a\\x00b'…"),
        ([[object()]], "x[0][0]"),
        ({Word.RED: 1, 2: object()}, "x[int]"),
        ({Word.RED: object()}, "x.red"),
        (Order(line={"a": object()}), "x.line.a"),
        (Open(a=1, b=object()), "x.b"),  # type: ignore[call-arg]
        (Item(word=pydantic.SecretStr("s")), "x.word"),
        (Enum("Odd", {"A": object()}).A, "x.value"),  # type: ignore[attr-defined]
    ],
)
def test_every_kind_of_place_has_a_path(value: Any, path: str) -> None:
    assert refusal(value).field == path


def test_a_refusal_never_quotes_the_value() -> None:
    assert "ada" not in str(refusal({"to": [UserDict({"a": "ada"})]}))


def test_a_path_is_short_enough_to_be_read() -> None:
    assert refusal({"k" * 5000: [object()]}).field == f"x.'{'k' * 60}'…[0]"
    far: Any = object()
    for _ in range(90):
        far = [far]
    assert refusal({"a": far}).field == f"x.a{'[0]' * 32}[…{'[0]' * 33}"


# --- One form for what is equal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, [2]), [1, (2,)]),  # T004-i accepts it
        ({1, 2}, frozenset([2, 1])),
        (b"hi", bytearray(b"hi")),
        (b"hi", memoryview(b"hi")),
        (b"hlo", memoryview(b"h-l-o")[::2]),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (defaultdict(list, a=1), {"a": 1}),
        (Counter("aab"), {"b": 1, "a": 2}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal("1E+2"), Decimal(100)),
        (Decimal("-0.0"), Decimal(0)),
        (0.0, -0.0),
        ("é", "e\u0301"),
        ({"é": 1}, {"e\u0301": 1}),
        (time(2, 30, fold=1), time(2, 30)),
        (datetime(2026, 5, 1, 10, tzinfo=PARIS), datetime(2026, 5, 1, 8, tzinfo=UTC)),
        (datetime(2026, 5, 1, 10, tzinfo=timezone(timedelta(hours=2))), datetime(2026, 5, 1, 8, tzinfo=UTC)),
        (PureWindowsPath("a\\b"), Path("a/b")),
    ],
)
def test_equal_values_have_one_text(left: Any, right: Any) -> None:  # R004-10, B048
    assert canonical(left) == canonical(right)


@pytest.mark.parametrize(
    "different",
    [
        [1, True, 1.0, "1", Decimal(1), Level.ONE, b"1", [1], {1}, {"a": 1}, Right.READ, Right.WRITE],
        [0, False, 0.0, None, "", b"", [], frozenset(), {}],
        [b"abc", "YWJj", {"$bytes": "YWJj"}, {"$$bytes": "YWJj"}, ["$bytes", "YWJj"], '{"$bytes":"YWJj"}'],
        [{1, 2}, [1, 2], {"$set": [1, 2]}],
        [{1: "a"}, {"1": "a"}, {1: "a", "1": "a"}, {"$dict": [[1, "a"]]}, {True: "a"}, {1.0: "a"}, {Level.ONE: "a"}],
        ["red", Word.RED, Colour.RED, {"$enum": ["Colour", "red"]}],
        [{"red": 1}, {Word.RED: 1}],
        [date(2026, 5, 1), datetime(2026, 5, 1, tzinfo=UTC), "2026-05-01", time(0)],
        [datetime(2026, 10, 25, 2, 30, tzinfo=PARIS, fold=fold) for fold in (0, 1)],
        [datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 5, 1, 0, 0, 0, 1, tzinfo=UTC)],
        [timedelta(seconds=1), 1, 1_000_000, timedelta(0), timedelta(microseconds=-1)],
        [UUID(int=1), str(UUID(int=1)), UUID(int=1).bytes],
        [Path("a"), "a", Path("A")],
        [Line("a", Decimal(1)), {"sku": "a", "price": Decimal(1), "note": None}, Line("a", Decimal(1), note="n")],
        [Order(line=1), Order(line=1, secret="s"), Order(line="1"), Open(a=1), Open(a=1, b=1)],  # type: ignore[call-arg]
        [Order(line=Line("a", Decimal(1))), Order(line={"sku": "a", "price": Decimal(1), "note": None})],
        [2**53, 2**53 + 1, float(2**53)],
        ["\x00", "", "\\u0000"],
    ],
)
def test_different_values_have_different_texts(different: list[Any]) -> None:  # T004-i, B048
    assert len({canonical(value) for value in different}) == len(different)


def test_an_instant_is_one_whatever_zone_writes_it_and_another_one_after_the_fold() -> None:  # B048
    assert canonical(datetime(2026, 5, 1, 10, tzinfo=PARIS)) == '{"$datetime":"2026-05-01T08:00:00.000000Z"}'
    folds = [datetime(2026, 10, 25, 2, 30, tzinfo=PARIS, fold=fold) for fold in (0, 1)]
    assert [canonical(instant)[14:-2] for instant in folds] == [
        "2026-10-25T00:30:00.000000Z",
        "2026-10-25T01:30:00.000000Z",
    ]


def test_a_datetime_without_a_zone_is_refused_unless_the_zone_is_imposed() -> None:  # T004-k, B048
    naive = datetime(2026, 5, 1, 8)
    error = refusal([naive])
    assert (error.field, "naive_zone" in error.remedy) == ("x[0]", True)
    assert canonical(naive, naive_zone=UTC) == canonical(datetime(2026, 5, 1, 8, tzinfo=UTC))
    assert canonical(naive, naive_zone=PARIS) == canonical(datetime(2026, 5, 1, 6, tzinfo=UTC))
    aware = datetime(2026, 5, 1, 8, tzinfo=UTC)
    assert canonical(aware, naive_zone=PARIS) == canonical(aware)
    folded = datetime(2026, 10, 25, 2, 30, fold=1)
    assert canonical(folded, naive_zone=PARIS) == canonical(datetime(2026, 10, 25, 1, 30, tzinfo=UTC))


def test_sets_of_any_mixture_are_sorted_by_the_texts_of_their_elements() -> None:  # T004-j
    mixed = {3, "a", None, 2.5, (1, 2), frozenset({1}), b"b"}
    assert canonical(mixed) == '{"$set":["a",2.5,3,[1,2],null,{"$bytes":"Yg=="},{"$set":[1]}]}'


def test_decimals_are_not_rounded_to_the_context_of_the_thread() -> None:
    long = Decimal("1234567890.12345678901234567890123456789")
    before = canonical(long)
    with localcontext() as context:
        context.prec = 3
        assert canonical(long) == before
    found: list[str] = []
    thread = threading.Thread(target=lambda: (setattr(getcontext(), "prec", 2), found.append(canonical(long))))
    thread.start()
    thread.join()
    assert found == [before]
    assert canonical(Decimal("1E+1000000")) == '{"$decimal":"1E1000000"}'


def test_a_class_can_move_to_another_module() -> None:
    moved = make_dataclass("Line", ["note", "price", "sku"])
    moved.__module__, moved.__qualname__ = "elsewhere", "Outer.Line"
    assert canonical(moved(None, Decimal(1), "a")) == canonical(Line("a", Decimal(1)))
    elsewhere = Enum("Colour", {"CRIMSON": "red"}, module="elsewhere", qualname="Outer.Colour")
    assert canonical(elsewhere.CRIMSON) == canonical(Colour.RED)  # type: ignore[attr-defined]


def test_a_model_is_written_by_its_fields_and_keeps_the_types_inside() -> None:
    text = canonical(Order(line=Line("a", Decimal("1.50")), secret="s"))
    inside = '{"$dataclass":["Line",{"note":null,"price":{"$decimal":"15E-1"},"sku":"a"}]}'
    assert text == f'{{"$model":["Order",{{"line":{inside},"secret":"s"}}]}}'
    assert canonical(Open(a=1, b=2)) == '{"$model":["Open",{"a":1},{"b":2}]}'  # type: ignore[call-arg]


# --- Subclasses ----------------------------------------------------------------------------------------------------------


class Tag(str):
    """Nothing more than a text."""


class Place(NamedTuple):
    x: int
    y: int


class Loud(dict[Any, Any]):
    """A dictionary that shows less than it holds, as some do that hold many values under one name."""

    def items(self) -> Any:
        return []

    def __iter__(self) -> Any:
        return iter(())


class Shy(list[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Money(int):
    """More than a number."""

    currency: str

    def __new__(cls, amount: int, currency: str) -> Money:
        made = super().__new__(cls, amount)
        made.currency = currency
        return made


class Slotted(dict[str, Any]):
    __slots__ = ("unit",)


@dataclass
class Both(dict[str, Any]):
    more: int = 0


class Nanosecond(datetime):
    nanosecond = 0


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (Tag("a"), "a"),
        ({Tag("a"): 1}, {"a": 1}),
        (Place(1, 2), [1, 2]),
        (Loud(a=1), {"a": 1}),
        (Loud({1: 1}), {1: 1}),
        (Shy([1]), [1]),
        (Nanosecond(2026, 5, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC)),
        (type("Whole", (int,), {"__repr__": lambda self: "?"})(7), 7),
        (type("Real", (float,), {"__repr__": lambda self: "Real(1.5)"})(1.5), 1.5),
        (type("Raw", (bytes,), {})(b"a"), b"a"),
        (type("Bag", (frozenset,), {"__iter__": lambda self: iter(())})([1]), {1}),
        (type("Amount", (Decimal,), {"as_tuple": None})("1.50"), Decimal("1.5")),
    ],
)
def test_a_subclass_that_holds_nothing_more_is_its_base(value: Any, base: Any) -> None:
    assert canonical(value) == canonical(base)


def test_a_subclass_that_holds_more_is_refused_rather_than_halved() -> None:
    instant = type("Exact", (datetime,), {"nanosecond": 1})(2026, 5, 1, tzinfo=UTC)
    duration = type("Exact", (timedelta,), {"nanoseconds": 1})(1)
    for value in (Money(5, "EUR"), Slotted(a=1), Both(more=1), instant, duration):
        assert refusal(value).field == "x"
    assert canonical(Money(5, "EUR"), fallback=lambda m: m.currency) == '{"$other":["Money","EUR"]}'  # type: ignore[attr-defined]


# --- What has no form ------------------------------------------------------------------------------------------------------


class Broken(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        raise RuntimeError

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str | None:
        raise RuntimeError


class Nowhere(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str | None:
        return None


@dataclass
class Computed:
    value: int = field(init=False)


def released() -> memoryview:
    view = memoryview(b"a")
    view.release()
    return view


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "is nan"),
        (float("inf"), "is inf"),
        (Decimal("sNaN"), "not a finite number"),
        (Decimal("-Infinity"), "not a finite number"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        (datetime(2026, 5, 1), "without a time zone"),
        (datetime(2026, 5, 1, tzinfo=Nowhere()), "without a time zone"),
        (datetime(2026, 5, 1, tzinfo=Broken()), "raised RuntimeError"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "before year 1"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "after year 9999"),
        (time(8, tzinfo=UTC), "names no instant"),
        (time(8, tzinfo=PARIS), "names no instant"),
        ({"é": 1, "e\u0301": 2}, "is there twice"),
        ({("é",): 1, ("e\u0301",): 2}, "is there twice"),
        ([10**5000], "thousands of digits"),
        (released(), "released"),
        (Computed(), "cannot be read: AttributeError"),
        (object(), "has no canonical form"),
        (Line, "has no canonical form"),
        (deque([1]), "has no canonical form"),
        (range(3), "has no canonical form"),
        ((n for n in [1]), "has no canonical form"),
        (1j, "has no canonical form"),
        (MagicMock(), "has no canonical form"),
        (PARIS, "has no canonical form"),
        (len, "has no canonical form"),
        (UserDict(), "has no canonical form"),
    ],
)
def test_what_has_no_form_is_refused(value: Any, problem: str) -> None:  # T004-i, T004-k, T004-n
    assert problem in refusal(value).problem


def test_a_value_that_contains_itself_is_refused_at_the_place_where_it_does() -> None:
    loop: list[Any] = [1, {}]
    loop[1]["again"] = loop
    assert (refusal({"a": loop}).field, "contains itself" in refusal(loop).problem) == ("x.a[1].again", True)
    knot = Line("a", Decimal(1))
    knot.note = [knot]
    assert (refusal(knot).field, refusal(knot).problem) == ("x.note[0]", "contains itself.")
    order = Order(line=None)
    order.line = {1: MappingProxyType({"order": order})}
    assert refusal(order).field == "x.line[int].order"


def test_a_value_may_be_held_twice_without_containing_itself() -> None:
    shared = [1]
    assert canonical([shared, {"a": shared}, {(1,): shared}]) == '[[1],{"a":[1]},{"$dict":[[[1],[1]]]}]'


def test_the_deepest_value_has_a_text_and_the_next_one_is_refused() -> None:
    for wrap in (lambda v: [v], lambda v: {"a": v}, lambda v: {1: v}, lambda v: Line("a", Decimal(1), v)):
        deep: Any = None
        for _ in range(100):
            deep = wrap(deep)
        canonical(deep)
        assert "nested deeper than 100 levels" in refusal(wrap(deep)).problem
    bag: Any = frozenset()
    for _ in range(100):
        bag = frozenset([bag])
    canonical(bag)
    assert "nested deeper" in refusal(frozenset([bag])).problem
    deep = ()
    for _ in range(99):
        deep = (deep,)
    canonical(Enum("Deep", {"A": deep}).A)  # type: ignore[attr-defined]
    assert "nested deeper" in refusal(Enum("Deep", {"A": (deep,)}).A).problem  # type: ignore[attr-defined]


def test_a_small_value_with_an_endless_text_is_refused() -> None:
    bomb: list[Any] = ["x" * 1000]
    for _ in range(90):
        bomb = [bomb, bomb]
    assert "is longer than" in refusal(bomb).problem
    assert "is longer than" in refusal({"a": "x" * MAX_LENGTH}).problem


# --- The fallback ----------------------------------------------------------------------------------------------------------


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"shop {self.name}"


def test_the_fallback_is_asked_for_what_has_no_form_and_its_text_is_tagged() -> None:
    assert canonical([Shop("a")], fallback=str) == '[{"$other":["Shop","shop a"]}]'
    assert canonical(Shop("é"), fallback=str) == canonical(Shop("e\u0301"), fallback=str)
    assert canonical({1, b"a", "a"}, fallback=lambda value: pytest.fail("asked")) == canonical({1, b"a", "a"})
    assert canonical(1j, fallback=str) != canonical("1j")


@pytest.mark.parametrize(
    "text",
    [
        "<Shop object at 0x7f3a5c0de1f0>",
        "<Shop object at 0x1>",
        "Shop(0x00007F3A5C0DE1F0)",
        "shop_0x7f3a5c0d",
    ],
)
def test_a_text_with_a_memory_address_is_refused(text: str) -> None:  # T004-i
    error = refusal([Shop("a")], fallback=lambda value: text)
    assert error.field == "x[0]"
    assert "memory address" in error.problem


def test_a_text_with_the_identity_of_its_value_is_refused() -> None:  # T004-i
    for written in (lambda v: f"shop {id(v)}", lambda v: f"shop {id(v):X}"):
        assert "memory address" in refusal(Shop("a"), fallback=written).problem
    assert "memory address" in refusal(object(), fallback=str).problem
    assert "memory address" in refusal(print_nothing, fallback=repr).problem
    assert "memory address" in refusal([Shop("a").__str__], fallback=repr).problem


def print_nothing() -> None: ...


def test_short_numbers_and_digests_are_no_memory_addresses() -> None:
    for text in ("0x1f", "0x" + "ab" * 20, "at 0", "colour 0xffffff"):
        canonical(Shop("a"), fallback=lambda value, text=text: text)


@pytest.mark.parametrize("fallback", [lambda value: 1 / 0, lambda value: None, lambda value: b"a", 7, lambda: "a"])
def test_a_fallback_that_does_not_make_a_text_is_told_apart(fallback: Any) -> None:
    error = refusal({"a": Shop("a")}, fallback=fallback)
    assert error.field == "x.a"
    assert "fallback" in error.problem


def test_a_fallback_is_not_asked_for_what_is_merely_wrong() -> None:
    for wrong in (float("nan"), datetime(2026, 5, 1), "\ud800"):
        refusal(wrong, fallback=str)
    assert "surrogate" in refusal(Shop("a"), fallback=lambda value: "\ud800").problem


# --- Binding ---------------------------------------------------------------------------------------------------------------


def charge(order: int, cents: int = 100, *, currency: str = "EUR") -> None: ...


def test_all_ways_to_write_a_call_are_one() -> None:  # T004-l
    calls = [((1,), {}), ((), {"order": 1}), ((1, 100), {}), ((1,), {"cents": 100, "currency": "EUR"})]
    keys = {canonical_task_key("charge", args, kwargs, signature=charge) for args, kwargs in calls}
    keys.add(canonical_task_key("charge", (), {"order": 1, "cents": 100, "currency": "EUR"}))
    assert len(keys) == 1
    assert canonical_task_key("charge", (2,), signature=charge) not in keys


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "problem"),
    [
        ((), {}, "order", "is missing"),
        ((1,), {"order": 2}, "order", "twice"),
        ((1, 2, 3), {}, "args[2]", "one too many"),
        ((1,), {"cent": 2}, "cent", "no parameter"),
    ],
)
def test_a_call_that_does_not_fit_names_the_parameter(args: Any, kwargs: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        canonical_task_key("charge", args, kwargs, signature=charge)
    assert refused.value.field == field
    assert problem in refused.value.problem


def test_a_parameter_by_position_only_cannot_be_given_by_name() -> None:
    def f(a: int, b: int = 2, /) -> None: ...

    with pytest.raises(InvalidArgument) as refused:
        bind_call(f, (1,), {"b": 3})
    assert (refused.value.field, "position only" in refused.value.problem) == ("b", True)


def test_a_name_that_is_also_a_parameter_by_position_stays_apart() -> None:
    def f(a: int, /, **more: int) -> None: ...

    assert bind_call(f, (1,), {"a": 2}) == ([1], {"a": 2})
    assert canonical_call("t", (1,), {"a": 2}, signature=f) != canonical_call("t", (2,), {"a": 1}, signature=f)


class Service:
    def send(self, to: str, copies: int = 1) -> None: ...

    @classmethod
    def make(cls, name: str) -> None: ...

    @staticmethod
    def stop(cls: str) -> None: ...

    def wrapped(cls, to: str) -> None: ...


def book(cls: str, seat: int) -> None: ...


def bound_task(self: Any, x: int) -> None: ...


def test_the_instance_is_no_argument_of_a_method() -> None:  # T004-l
    key = canonical_task_key("send", (), {"to": "a", "copies": 1})
    for method in (Service.send, Service().send):
        assert canonical_task_key("send", ("a",), signature=method) == key
    full = inspect.signature(Service.send)
    assert canonical_task_key("send", (Service(), "a"), signature=full, ignore=("self",)) == key
    assert canonical_task_key("make", ("a",), signature=Service.make) == canonical_task_key("make", (), {"name": "a"})
    assert bind_call(bound_task, (1,), {}) == ([], {"x": 1})


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Service.send, "self"),
        (Service.wrapped, "cls"),
        (Service().send, None),
        (Service.make, None),
        (bound_task, "self"),
        (book, None),
        (charge, None),
        (len, None),
    ],
)
def test_the_parameter_of_the_instance_is_told_from_others(function: Callable[..., Any], name: str | None) -> None:
    assert instance_parameter(function) == name


def test_a_booking_class_is_not_a_class() -> None:
    assert bind_call(book, ("economy", 7), {}) == ([], {"cls": "economy", "seat": 7})

    def local(cls: str) -> None: ...

    assert bind_call(local, ("economy",), {}) == ([], {"cls": "economy"})


def test_ignored_parameters_are_left_out_given_or_not() -> None:
    def handler(a: int, session: Any, *rest: int, trace: Any = None, **more: Any) -> None: ...

    session = object()
    ignore = ("session", "trace", "request_id")
    expected = ([3], {"a": 1, "b": 2})
    assert bind_call(handler, (1, session, 3), {"b": 2, "trace": 7, "request_id": 9}, ignore) == expected
    assert bind_call(handler, (), {"a": 1}, ignore) == ([], {"a": 1})
    assert bind_call(handler, (1, session, 3), {"b": 2}, (*ignore, "rest", "more")) == ([], {"a": 1})


def test_a_default_that_has_no_form_is_named_by_its_parameter() -> None:
    def f(a: Any = len) -> None: ...

    with pytest.raises(InvalidPayload) as refused:
        canonical_task_key("t", signature=f)
    assert refused.value.field == "kwargs.a"


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., dict[str, Any]]:
    """A function with any kinds of parameters, which tells how they were filled in."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=5))
    first = draw(st.integers(0, len(names)))
    second = draw(st.integers(first, len(names)))
    defaults = draw(st.integers(0, second))
    written = [f"{name}={position}" if position >= defaults else name for position, name in enumerate(names[:second])]
    if first:
        written.insert(first, "/")
    if draw(st.booleans()):
        written.append("*rest")
    elif second < len(names):
        written.append("*")
    written += [f"{name}=9" if draw(st.booleans()) else name for name in names[second:]]
    if draw(st.booleans()):
        written.append("**more")
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(written)}): return locals()", scope)
    return scope["f"]  # type: ignore[no-any-return]


@given(
    functions(),
    st.lists(st.integers(10, 19), max_size=6),
    st.dictionaries(st.sampled_from("abcdefg"), st.integers(20, 29)),
)
def test_a_call_is_bound_as_python_binds_it(f: Any, args: list[int], kwargs: dict[str, int]) -> None:  # T004-l
    try:
        filled = f(*args, **kwargs)
    except TypeError:
        with pytest.raises(InvalidArgument):
            bind_call(f, args, kwargs)
        return
    only = [name for name, p in inspect.signature(f).parameters.items() if p.kind is p.POSITIONAL_ONLY]
    by_position = [filled[name] for name in only] + list(filled.get("rest", ()))
    named = {name: value for name, value in filled.items() if name not in (*only, "rest", "more")}
    assert bind_call(f, args, kwargs) == (by_position, named | filled.get("more", {}))

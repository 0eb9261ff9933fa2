"""What an operation was asked for with: a fingerprint of each argument, which stands in its record beside kind and name.

Code that is run again has to ask for the same things with the same arguments. Equal values have equal fingerprints whatever the process, the
hash seed or the order of a set (``kernel/canonical.py``). Only fingerprints are kept, so a record holds no argument in clear.

A function or a class is known by its name, and an object of a class of one's own by what it holds, where its class defines ``__eq__`` and
``__hash__``; any other object without a canonical form by its type only. Defaults are left out, so a new parameter with a default changes nothing. What a function carries along counts as well: the arguments of a
``functools.partial``, and the workflow's own local values that a lambda or an inner function uses, where these are texts, numbers or the like.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, TypeAlias
from uuid import UUID

from duly.kernel.canonical import canonical
from duly.kernel.errors import InvalidArgument

#: (name, fingerprint) of each argument, in the order of the parameters.
Fingerprints: TypeAlias = list[list[str]]

_PLAINLY_SHOWN = (
    Fraction, complex, range, timezone, IPv4Address, IPv6Address, IPv4Network, IPv6Network, IPv4Interface, IPv6Interface,
)  # fmt: skip
DEEPEST = 20

#: Types of local values that an inner function may carry along: nothing changes them but a new value under the same name.
_CONSTANT = (str, bytes, int, float, bool, type(None), Decimal, UUID, datetime, date, time, timedelta)


#: Types of values that have one fingerprint as long as type and value are the same.
_PLAIN = frozenset((str, int, float, bool, type(None)))
#: What is remembered of them in this process, and for at most so many: a run that goes on asks for the same things again from its start.
_seen: dict[Any, str] = {}
MOST_SEEN, LONGEST_SEEN, WIDEST_SEEN = 20_000, 200, 20


def of_values(values: Mapping[str, Any]) -> Fingerprints:
    """The fingerprints of named values."""
    return [[name, fingerprint(value)] for name, value in values.items()]


def of_call(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], locals_: Collection[str] = (), skip: int = 0
) -> Fingerprints:
    """The fingerprints of a call, in one form for all ways to write it. ``locals_``: names of the calling code's own variables that inner
    functions use. ``skip``: parameters before those that are given."""
    while isinstance(fn, functools.partial):
        args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
    if isinstance(fn, MethodType):
        args, fn = (fn.__self__, *args), fn.__func__
    code = getattr(fn, "__code__", None)
    names = code.co_varnames[skip : code.co_argcount] if isinstance(code, CodeType) else ()
    given: Mapping[str, Any]
    if not kwargs and len(args) <= len(names):  # in order as they are
        given = dict(zip(names, args, strict=False))
    else:
        values = {names[i] if i < len(names) else f"argument {i + 1}": value for i, value in enumerate(args)}
        values.update(kwargs)
        order = {name: i for i, name in enumerate(names)}
        given = {name: values[name] for name in sorted(values, key=lambda n: (order.get(n, len(order)), n))}
    found = of_values(given)
    if isinstance(fn, FunctionType) and (fn.__closure__ or fn.__name__ == "<lambda>"):
        found += of_values(_carried(fn, locals_, given))
    return found


def _carried(fn: FunctionType, locals_: Collection[str], given: Collection[str]) -> dict[str, Any]:
    """What an inner function carries along: of a lambda its defaults, and of both the values of the calling code that it reads only."""
    code, carried = fn.__code__, {}
    if fn.__name__ == "<lambda>" and fn.__defaults__:
        names = code.co_varnames[code.co_argcount - len(fn.__defaults__) : code.co_argcount]
        carried = {name: value for name, value in zip(names, fn.__defaults__, strict=True) if name not in given}
    if fn.__closure__ and locals_:
        for name, cell in zip(code.co_freevars, fn.__closure__, strict=True):
            if name not in locals_ or name in _stored(code):
                continue
            try:
                carried[name] = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
    return {name: value for name, value in carried.items() if isinstance(value, _CONSTANT)}


_stores: weakref.WeakKeyDictionary[CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def _stored(code: CodeType) -> frozenset[str]:
    """The outer variables that a function changes itself: they say nothing of what it was asked for."""
    if code not in _stores:
        changed = ("STORE_DEREF", "DELETE_DEREF")
        _stores[code] = frozenset(str(i.argval) for i in dis.get_instructions(code) if i.opname in changed)
    return _stores[code]


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits; the same for equal values."""
    same = _likeness(value)
    if same is None:
        return _digest(value)
    found = _seen.get(same)
    if found is None:
        found = _digest(value)
        if len(_seen) >= MOST_SEEN:
            _seen.clear()
        _seen[same] = found
    return found


def _likeness(value: Any) -> Any:
    """What two values have in common only where they are alike in type and value, all the way down. None for any that are not that plain."""
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value) if kind is not str or len(value) <= LONGEST_SEEN else None
    if kind is dict:
        if len(value) > WIDEST_SEEN:
            return None
        parts = (*value, *value.values())
    elif kind is list or kind is tuple:
        if len(value) > WIDEST_SEEN:
            return None
        parts = tuple(value)
    else:
        return None
    kinds = tuple(map(type, parts))
    if not _PLAIN.issuperset(kinds):
        return None
    for part in parts:
        if type(part) is str and len(part) > LONGEST_SEEN:
            return None
    return kind, kinds, parts


def _digest(value: Any, above: tuple[int, ...] = ()) -> str:
    try:
        text = canonical(value, fallback=_other, naive_zone=UTC)
    except RecursionError:
        text = f"a {_type(value)}"
    except InvalidArgument:  # something in it has no canonical form; the rest counts all the same
        text = _part_by_part(value, above)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _part_by_part(value: Any, above: tuple[int, ...]) -> str:
    """A value that has no canonical form as a whole: a text or number that JSON cannot carry is its Python form. ``above``: what it is in."""
    if type(value) in (float, str):
        return ascii(value)
    if len(above) < DEEPEST and id(value) not in above:
        here = (*above, id(value))
        if isinstance(value, Mapping):
            return f"{_type(value)} {sorted(_digest(k, here) + _digest(v, here) for k, v in value.items())}"
        if isinstance(value, set | frozenset):
            return f"{_type(value)} {sorted(_digest(one, here) for one in value)}"
        if isinstance(value, list | tuple):
            return f"{_type(value)} {[_digest(one, here) for one in value]}"
        if is_dataclass(value) and not isinstance(value, type):
            return f"{_type(value)} {[_digest(getattr(value, f.name, None), here) for f in fields(value)]}"
    return f"a {_type(value)}"


def _other(value: object) -> str:
    """A value of a type that has no canonical form. What it is worth counts where its type says so; otherwise only the type."""
    kind = type(value)
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return f"the {value.__module__}.{value.__qualname__}"
    as_json = getattr(value, "model_dump_json", None)  # a model of pydantic
    if as_json is not None:
        return str(as_json())
    if isinstance(value, _PLAINLY_SHOWN):
        return f"{_type(value)} {value!r}"
    if isinstance(value, deque | array):
        return f"{_type(value)} {fingerprint(list(value))}"
    if isinstance(value, BaseException):
        return f"{_type(value)} {fingerprint(list(value.args))}"
    if (names := _worth(kind)) is not None:
        own = [*getattr(value, "__dict__", ()), *names]
        said = {
            n: getattr(value, n, None) for n in own if not isinstance(getattr(kind, n, None), functools.cached_property)
        }
        return f"{_type(value)} {fingerprint(said)}"
    return f"a {_type(value)}"


def _worth(kind: type) -> Sequence[str] | None:
    """Of a class whose objects are compared by what they hold, and cannot change or say of what they are made: its slots. None for others."""
    eq, hashed = getattr(kind, "__eq__", None), getattr(kind, "__hash__", None)
    if eq is object.__eq__ or kind.__module__ == "builtins":
        return None
    if hashed in (None, object.__hash__) and not hasattr(kind, "__attrs_attrs__"):
        return None
    slots = (getattr(one, "__slots__", ()) for one in kind.__mro__)
    return [n for some in slots for n in ((some,) if isinstance(some, str) else some) if not n.startswith("__")]


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def different(recorded: Sequence[Sequence[str]], asked: Fingerprints) -> list[tuple[str, str | None, str | None]]:
    """(name, as recorded, as asked) of the arguments that differ; None where one side has no such argument. Empty for the same call.

    Parameters that were renamed, or are given in another way, are the same as long as all values are, in their order.
    """
    if recorded == asked or [f for _, f in recorded] == [f for _, f in asked]:
        return []
    before, now = {str(n): str(f) for n, f in recorded}, {one[0]: one[1] for one in asked}
    return [(n, before.get(n), now.get(n)) for n in {**before, **now} if before.get(n) != now.get(n)]

"""What an operation was asked for with: a fingerprint of each argument, which stands in its record beside kind and name.

Code that is run again has to ask for the same things with the same arguments. Equal values have equal fingerprints whatever the process, the
hash seed or the order of a set (``kernel/canonical.py``). Only fingerprints are kept, so a record holds no argument in clear.

A value without a canonical form (an object of a class of one's own, a function, a float that is not finite) is known by its type only. Defaults
are left out, so a new parameter with a default changes nothing. What a function carries along counts as well: the arguments of a
``functools.partial``, and the workflow's own local values that a lambda or an inner function uses, where these are texts, numbers or the like.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias
from uuid import UUID

from duly.kernel.canonical import canonical
from duly.kernel.errors import InvalidArgument

#: (name, fingerprint) of each argument, in the order of the parameters.
Fingerprints: TypeAlias = list[list[str]]

#: Types of local values that an inner function may carry along: nothing changes them but a new value under the same name.
_CONSTANT = (str, bytes, int, float, bool, type(None), Decimal, UUID, datetime, date, time, timedelta)


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
    values = {names[i] if i < len(names) else f"argument {i + 1}": value for i, value in enumerate(args)}
    given = {**values, **kwargs}
    order = {name: i for i, name in enumerate(names)}
    found = of_values({name: given[name] for name in sorted(given, key=lambda n: (order.get(n, len(order)), n))})
    if isinstance(fn, FunctionType):
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
    try:
        text = canonical(value, fallback=_other, naive_zone=UTC)
    except (InvalidArgument, RecursionError):
        text = f"a {_type(value)}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _other(value: object) -> str:
    """A value of a type that has no canonical form."""
    as_json = getattr(value, "model_dump_json", None)  # a model of pydantic
    return str(as_json()) if as_json is not None and not isinstance(value, type) else f"a {_type(value)}"


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def different(recorded: Sequence[Sequence[str]], asked: Fingerprints) -> list[tuple[str, str | None, str | None]]:
    """(name, as recorded, as asked) of the arguments that differ; None where one side has no such argument. Empty for the same call.

    Parameters that were renamed, or are given in another way, are the same as long as all values are, in their order.
    """
    if [f for _, f in recorded] == [f for _, f in asked]:
        return []
    before, now = {str(n): str(f) for n, f in recorded}, {one[0]: one[1] for one in asked}
    return [(n, before.get(n), now.get(n)) for n in {**before, **now} if before.get(n) != now.get(n)]

"""Did an argument come back as it was sent? Two values are compared part by part, and the first part that differs is named.

``==`` alone does not tell: it calls 1 and 1.0 the same, two moments of one instant in the hour that the clocks repeat
different, and two objects of a class without an ``__eq__`` of its own always different. Loaded by ``typed`` only.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn
from uuid import UUID

from pydantic import BaseModel

from duly.kernel.errors import InvalidPayload

_ROWS = (list, tuple, deque)
_SCALARS = frozenset({str, int, float, bool, bytes, Decimal, UUID, date, timedelta, type(None)})
#: What may be sent as a class of its own below these (a text marked safe, a moment of another library) and arrives as one of these.
_BASES = frozenset({str, int, float, bytes, Decimal, UUID, date, timedelta, datetime, time})
_NOTHING = object()


def compare(sent: Any, back: Any, path: str, *, loose: bool = False, inside: bool = False) -> bool:
    """Are these the same, as far as can be told? False: yes; True: only the text that they encode to can tell.

    ``loose``: the annotation names a collection in general (``Sequence``, ``Mapping``), so that a tuple may arrive as a list.
    ``inside``: within an object that nobody validated, where a whole number may stand for a float or a Decimal.
    Raises InvalidPayload with the path of what differs, and the types; the values may be secret.
    """
    if sent is back:
        return False
    there, here = type(sent), type(back)
    if there in _SCALARS and there is here:
        return False if sent == back else _differ(sent, back, path)
    if isinstance(sent, datetime | time) and isinstance(back, datetime | time):
        alike = there is here or (here in _BASES and isinstance(sent, here))
        return False if alike and _moment(sent) == _moment(back) else _differ(sent, back, path)
    if there is not here and not (loose or inside):
        return _as_base(sent, back, path, inside)
    if isinstance(sent, Mapping) and isinstance(back, Mapping):
        return _compare_mappings(sent, back, path, loose, inside)
    if (
        isinstance(sent, _ROWS)
        and isinstance(back, _ROWS)
        and getattr(sent, "_fields", 0) == getattr(back, "_fields", 0)
    ):
        if len(sent) != len(back):
            _differ(sent, back, path)
        doubt = False
        for at, (one, other) in enumerate(zip(sent, back, strict=True)):
            doubt |= compare(one, other, f"{path}[{at}]", loose=loose, inside=inside)
        return doubt
    if isinstance(sent, Set) and isinstance(back, Set):
        return _compare_sets(sent, back, path, loose, inside)
    if there is not here:
        return _as_base(sent, back, path, inside)
    if dataclasses.is_dataclass(there):
        return _compare_parts(sent, back, path, [f.name for f in dataclasses.fields(there)], loose)
    if isinstance(sent, BaseModel):
        doubt = compare(sent.__pydantic_extra__, back.__pydantic_extra__, path, loose=loose, inside=True)
        return _compare_parts(sent, back, path, list(there.__pydantic_fields__), loose) or doubt
    if not _has_own_eq(there):
        return True
    try:
        same = bool(sent == back)
    except Exception:  # an array answers with an array
        return True
    return False if same else _differ(sent, back, path)


def _has_own_eq(kind: Any) -> bool:
    return kind.__eq__ is not object.__eq__


def _moment(value: datetime | time) -> tuple[Any, ...]:
    """What the clock says and how far it is from UTC; of two zones with one offset the name does not count."""
    return value.replace(tzinfo=None, fold=0), value.utcoffset(), value.tzinfo is None


def _as_base(sent: Any, back: Any, path: str, inside: bool) -> bool:
    """Values of two types: the same where the one that arrives is the plain form of the one that was sent."""
    there, here = type(sent), type(back)
    plain = here in _BASES and isinstance(sent, here) and there is not bool and (inside or not isinstance(sent, Enum))
    whole = inside and there is int and here in (float, Decimal)
    return False if (plain or whole) and sent == back else _differ(sent, back, path)


def _compare_parts(sent: Any, back: Any, path: str, names: list[str], loose: bool) -> bool:
    doubt = False
    for name in names:
        one, other = getattr(sent, name, _NOTHING), getattr(back, name, _NOTHING)
        doubt |= compare(one, other, f"{path}.{name}", loose=loose, inside=True)
    return doubt


def _compare_mappings(sent: Mapping[Any, Any], back: Mapping[Any, Any], path: str, loose: bool, inside: bool) -> bool:
    """JSON keeps the order, so that pairs are compared in their places."""
    if len(sent) != len(back):
        _differ(sent, back, path)
    doubt = False
    for (key, value), (other_key, other) in zip(sent.items(), back.items(), strict=True):
        doubt |= compare(key, other_key, f"{path} (a key)", loose=loose, inside=inside)
        doubt |= compare(value, other, f"{path}.{key}" if isinstance(key, str) else path, loose=loose, inside=inside)
    return doubt


def _compare_sets(sent: Set[Any], back: Set[Any], path: str, loose: bool, inside: bool) -> bool:
    if len(sent) != len(back):
        _differ(sent, back, path)
    found, doubt = {one: one for one in back}, False
    for one in sent:
        other = found.get(one, _NOTHING)
        if other is _NOTHING:
            if _has_own_eq(type(one)):
                _differ(sent, back, path)
            doubt = True
        else:
            doubt |= compare(one, other, path, loose=loose, inside=inside)
    return doubt


def _differ(sent: Any, back: Any, path: str) -> NoReturn:
    raise differs(path, type(sent).__name__, type(back).__name__)


def differs(path: str, sent: str, back: str) -> InvalidPayload:
    """The refusal of an argument that would arrive as something else; ``sent`` and ``back`` are names of types."""
    what = "with another value" if sent == back else f"as one of type {back}"
    return InvalidPayload(
        path,
        f"is of type {sent} and would arrive {what}: its annotation does not carry it whole.",
        "Annotate it with the one type that it has, or send it as text.",
    )

"""What a document says about values: placeholders such as ``{{ input.name }}``, and conditions. Pure; nothing is evaluated as code.

A placeholder is a dotted path and nothing else. A text that is one placeholder stands for the value itself; within other text it is
written out. What a path leads to where there is nothing is ABSENT: in a text that is an error, in a condition it is a value like no other.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from duly.kernel.errors import PermanentError

_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_PATH = re.compile(r"[A-Za-z_][\w-]*(\.([A-Za-z_][\w-]*|\d+))*", re.ASCII)

#: There is no such value.
ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "nothing"})()

#: The operators of a condition, and what each is.
OPERATORS = {
    "equals": "the same value",
    "in": "one of a list",
    "greater": "more than a number, or later than an instant",
    "less": "less than a number, or earlier than an instant",
    "present": "true where there is a value, false where there is none",
}


class NoValue(PermanentError):
    """A document asks for a value that is not there, or compares what cannot be compared."""


# ---------------------------------------------------------------------- placeholders


def paths_in(text: str) -> list[str]:
    """The dotted paths of a text's placeholders. Raises ValueError where ``{{`` begins something else."""
    found = [match[1].strip() for match in _PLACEHOLDER.finditer(text)]
    if "{{" in _PLACEHOLDER.sub("", text):
        raise ValueError("has {{ that begins no placeholder.")
    for path in found:
        if not _PATH.fullmatch(path):
            raise ValueError(f"has the placeholder {{{{ {path} }}}}, which is no dotted path.")
    return found


def look_up(path: str, scope: Mapping[str, Any]) -> Any:
    """What a dotted path leads to: through mappings by name, through lists by number from 0. ABSENT where it leads nowhere."""
    value: Any = scope
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return ABSENT
    return value


def filled(value: Any, scope: Mapping[str, Any], *, escape: bool = False) -> Any:
    """A value with its placeholders filled in, also those within lists and mappings. ``escape``: for HTML. Raises NoValue."""
    if isinstance(value, str):
        return _filled_text(value, scope, escape)
    if isinstance(value, Mapping):
        return {name: filled(inner, scope, escape=escape) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [filled(inner, scope, escape=escape) for inner in value]
    return value


def _filled_text(text: str, scope: Mapping[str, Any], escape: bool) -> Any:
    if "{{" not in text:
        return text
    whole = _PLACEHOLDER.fullmatch(text)
    if whole is not None:
        found = _there(whole[1].strip(), scope)
        return html.escape(found) if escape and isinstance(found, str) else found
    return _PLACEHOLDER.sub(lambda m: _as_text(_there(m[1].strip(), scope), m[1].strip(), escape), text)


def _there(path: str, scope: Mapping[str, Any]) -> Any:
    value = look_up(path, scope)
    if value is ABSENT:
        raise NoValue(f"{path} has no value here.")
    return value


def _as_text(value: Any, path: str, escape: bool) -> str:
    if value is None:
        raise NoValue(f"{path} is null, which cannot stand in a text.")
    if isinstance(value, bool):
        said = "true" if value else "false"
    elif isinstance(value, str | int | float):
        said = str(value)
    else:
        said = json.dumps(value, ensure_ascii=False)
    return html.escape(said) if escape else said


def as_written(value: Any) -> Iterator[str]:
    """Every text within a value, for those who look for placeholders."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from as_written(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from as_written(inner)


# ---------------------------------------------------------------------- conditions


@dataclass(frozen=True, slots=True)
class Test:
    """A value that passes all of these: (operator, operand)."""

    __test__ = False  # no test of pytest

    value: Any
    tests: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition


Condition: TypeAlias = Test | AllOf | AnyOf | Not


def holds(condition: Condition, scope: Mapping[str, Any]) -> bool:
    """Is it so? Raises NoValue where two values cannot be compared."""
    match condition:
        case AllOf(inner):
            return all(holds(one, scope) for one in inner)
        case AnyOf(inner):
            return any(holds(one, scope) for one in inner)
        case Not(inner):
            return not holds(inner, scope)
        case Test(value, tests):
            found = _tested(value, scope)
            return all(_passes(found, operator, _tested(operand, scope)) for operator, operand in tests)


def _tested(value: Any, scope: Mapping[str, Any]) -> Any:
    """A value of a condition; ABSENT where a text that is one placeholder leads nowhere."""
    whole = _PLACEHOLDER.fullmatch(value) if isinstance(value, str) else None
    if whole is not None:
        return look_up(whole[1].strip(), scope)
    return filled(value, scope)


def _passes(found: Any, operator: str, operand: Any) -> bool:
    if operator == "present":
        return (found is not ABSENT and found is not None) is operand
    if operator == "equals":
        return _same(found, operand)
    if operator == "in":
        if not isinstance(operand, list | tuple):
            raise NoValue("in is compared with something that is no list.")
        return any(_same(found, one) for one in operand)
    if found is ABSENT or found is None:
        return False
    if not (_is_number(found) and _is_number(operand)) and not (isinstance(found, str) and isinstance(operand, str)):
        raise NoValue(f"{operator} compares {_kind(found)} with {_kind(operand)}; give two numbers, or two texts.")
    less: bool = found < operand if operator == "less" else operand < found
    return less


def _same(one: Any, other: Any) -> bool:
    # true is not 1 here
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if _is_number(value):
        return "a number"
    kinds = {str: "a text", bool: "a truth value", list: "a list", dict: "a mapping", type(None): "null"}
    return kinds.get(type(value), repr(value))


def in_words(condition: Condition) -> str:
    """A condition on one line, for diagrams."""
    match condition:
        case AllOf(inner):
            return " and ".join(_inside(one) for one in inner)
        case AnyOf(inner):
            return " or ".join(_inside(one) for one in inner)
        case Not(inner):
            return f"not {_inside(inner)}"
        case Test(value, tests):
            return " and ".join(_test_in_words(value, operator, operand) for operator, operand in tests)


def _inside(condition: Condition) -> str:
    said = in_words(condition)
    return said if isinstance(condition, Test) and len(condition.tests) == 1 else f"({said})"


def _test_in_words(value: Any, operator: str, operand: Any) -> str:
    name = _plain(value)
    if operator == "present":
        return f"{name} is {'present' if operand else 'absent'}"
    word = {"equals": "is", "in": "is in", "greater": "is more than", "less": "is less than"}[operator]
    return f"{name} {word} {_plain(operand)}"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda m: m[1].strip(), value)
    return json.dumps(value, ensure_ascii=False)

"""Carrying arguments: typed values in, JSON text in the row, the same typed values out.

A task's signature is read once: each argument is checked and encoded by its annotation when the job is enqueued (so a wrong
one is refused where the mistake is, naming the parameter) and decoded the same way when it runs. A parameter without an
annotation carries plain JSON only. Parameters that the worker fills in by itself (``job``, ``session``) are not part of the input.

Where all parameters are numbers, texts and truth values, values of exactly these types are carried as they are. Everything
else, wrong values too, is for a pydantic model of the signature (``typed``), which would say the same of them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import orjson

from duly.kernel.binding import signature_of
from duly.kernel.errors import InvalidArgument, InvalidPayload
from duly.kernel.payload import check_size, check_value, examine

if TYPE_CHECKING:
    from pydantic import BaseModel

    from duly.jobs.typed import Typed

#: The types whose values are carried as they are, each by itself or beside None.
_AS_THEY_ARE = (str, int, float, bool, NoneType)


class Arguments(NamedTuple):
    """The decoded arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Parameter(NamedTuple):
    """One parameter that travels."""

    name: str
    #: Its field in the model.
    field: str
    kind: Any
    required: bool
    positional_only: bool
    #: Without a type that says how to carry it.
    untyped: bool


class Codec:
    """How one function's arguments travel.

    ``injected`` names parameters the worker supplies. Raises InvalidArgument at definition for what can never travel.
    """

    def __init__(self, fn: Callable[..., Any], name: str, injected: Mapping[str, Any], what: str = "task") -> None:
        self.task, self.owner = name, f"{what} {name}"
        self.signature = signature_of(fn)
        try:
            hints = get_type_hints(fn, include_extras=True)
        except NameError as error:
            raise InvalidArgument(
                self.owner,
                f"has an annotation that cannot be resolved: {error}.",
                "Import it outside of `if TYPE_CHECKING:`: arguments are carried by their annotations.",
            ) from None
        self.parameters: list[Parameter] = []
        self.rest: str | None = None
        visible: list[inspect.Parameter] = []
        for position, p in enumerate(self.signature.parameters.values()):
            if p.name in injected:
                continue
            visible.append(p)
            if p.kind is p.VAR_POSITIONAL:
                raise InvalidArgument(
                    self.owner,
                    f"takes *{p.name}, and positional rests have no names to be stored under.",
                    "Take a list.",
                )
            if p.kind is p.VAR_KEYWORD:
                self.rest = p.name
                continue
            kind = hints.get(p.name, Any)
            inner = f"·{position}"  # no keyword of a **rest can have this name
            positional = p.kind is p.POSITIONAL_ONLY
            self.parameters.append(Parameter(p.name, inner, kind, p.default is p.empty, positional, is_plain(kind)))
        self.visible = self.signature.replace(parameters=visible, return_annotation=inspect.Signature.empty)
        self._in_place = [
            p.name for p in visible if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and self.rest is None
        ]
        self._names = [(p.name, p.field) for p in self.parameters]
        self._simple = self.rest is None and not any(p.positional_only for p in self.parameters)
        #: Parameter → the types of its values, where all are carried as they are; else None.
        self._kinds = {p.name: _kinds(p.kind) for p in self.parameters}
        self._floats = any(kinds is not None and float in kinds for kinds in self._kinds.values())
        self._needed = {p.name for p in self.parameters if p.required}
        self._light = self._simple and all(self._kinds.values())
        if not self._light:
            _ = self._typed  # what can never travel is refused at once

    @cached_property
    def _typed(self) -> Typed:
        from duly.jobs.typed import Typed

        return Typed(self.task, self.owner, self.parameters, self.rest)

    @property
    def model(self) -> type[BaseModel]:
        """The signature as a model."""
        return self._typed.model

    # ------------------------------------------------------------------ there

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. Raises InvalidArgument, as the call itself would raise TypeError."""
        if not args and not self.rest:
            return dict(kwargs)
        if not kwargs and len(args) <= len(self._in_place):  # what is missing, or cannot be left out, the encoding says
            return dict(zip(self._in_place, args, strict=False))
        try:
            bound = self.visible.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArgument(self.owner, f"{error}.") from None
        if self.rest is not None:
            rest = bound.pop(self.rest, {})
            if twice := sorted(rest.keys() & bound.keys()):
                raise InvalidArgument(
                    twice[0], f"is given to {self.owner} twice: in its place, and as a keyword of **{self.rest}."
                )
            bound.update(rest)
        return dict(bound)

    def encode(self, arguments: Mapping[str, Any], limit: int) -> str:
        """JSON text of the arguments given by name. Raises InvalidArgument or InvalidPayload naming the parameter."""
        if self._light and self._fits(arguments):
            try:
                encoded = orjson.dumps({name: arguments[name] for name, _ in self._names if name in arguments})
            except orjson.JSONEncodeError:
                pass  # a number of more than 64 bits, half a character
            else:
                if b"\\u0000" not in encoded and not (self._floats and _any_wild(arguments)):
                    check_size(len(encoded), limit, f"the input of {self.owner}")
                    return encoded.decode()
        return self._typed.encode(arguments, limit)

    def _fits(self, arguments: Mapping[str, Any]) -> bool:
        """Are these exactly such values as are carried as they are, and all that are needed?"""
        kinds = self._kinds
        for name, value in arguments.items():
            found = kinds.get(name)
            if found is None or type(value) not in found:
                return False
        return len(arguments) == len(kinds) or self._needed <= arguments.keys()

    # ------------------------------------------------------------------ and back

    def decode(self, text: str) -> Arguments:
        """The arguments as they were sent. Raises InvalidArgument when the stored input no longer fits the signature."""
        if self._light:
            try:
                found = orjson.loads(text)
            except orjson.JSONDecodeError:
                found = None
            if type(found) is dict and self._fits(found):
                return Arguments((), found)
        given, values, extra = self._typed.decode(text)
        if self._simple:
            return Arguments((), {name: values[inner] for name, inner in self._names if inner in given})
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for p in self.parameters:
            if p.field in given:
                if p.positional_only:
                    args.append(values[p.field])
                else:
                    kwargs[p.name] = values[p.field]
        if self.rest:
            kwargs.update(extra)
        return Arguments(tuple(args), kwargs)


def _any_wild(arguments: Mapping[str, Any]) -> bool:
    """Is there a number that is not finite? It would be stored as null."""
    return any(type(value) is float and not math.isfinite(value) for value in arguments.values())


def _kinds(kind: Any) -> frozenset[type] | None:
    """The types of values of an annotation, where all of them are carried as they are; None where a model has to see to it.

    A whole number of more than 64 bits reads as a float, so int and float do not go together.
    """
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if not all(any(one is known for known in _AS_THEY_ARE) for one in kinds) or (int in kinds and float in kinds):
        return None
    return frozenset(kinds)


def is_plain(kind: Any) -> bool:
    """Does the annotation leave open what stands inside (``Any``, ``list``, ``dict[str, Any]``, ``Any | None`` …)?

    Then nothing says how to carry a Decimal or a date, and only plain JSON comes back as it was sent.
    """
    if kind is Any or kind in (object, list, dict):
        return True
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (list, dict, Sequence, Mapping):
        return is_plain(inner[-1]) and (len(inner) == 1 or inner[0] in (str, Any))
    others = [k for k in inner if k not in (NoneType, str, int, float, bool)]
    return origin in (Union, UnionType) and bool(others) and all(map(is_plain, others))


def encode_plain(value: Any, what: str, limit: int) -> str:
    """JSON text of plain values, for jobs enqueued by name. Raises InvalidPayload with the path."""
    check_value(value, what if not isinstance(value, dict) else "")
    encoded = orjson.dumps(value)
    check_size(len(encoded), limit, what)
    return encoded.decode()


def encode_output(value: Any, limit: int) -> tuple[str | None, str | None]:
    """(JSON text, problem). A result that cannot be stored never hangs its job: the text is None then, the problem says why.

    A number that is not finite is stored as null, and the problem names its path.
    """
    if value is None:
        return "{}", None
    try:
        encoded = orjson.dumps(value, default=_jsonable, option=orjson.OPT_NON_STR_KEYS)
    except Exception as error:
        where = _first(value, lambda one: type(one) is int and not -(2**63) <= one < 2**64)
        said = f"{where} is an integer of more than 64 bits. Return it as text." if where else str(error)
        return None, f"the result of type {type(value).__name__} cannot be stored: {said}"
    if len(encoded) > limit:
        return None, f"the result is {len(encoded):,} bytes when encoded; the limit is {limit:,}"
    text = encoded.decode()
    if "\\u0000" in text:
        try:
            examine(orjson.loads(encoded), "the result")
        except InvalidPayload as error:
            return None, str(error)
    if b"null" in encoded and (where := _first(value, lambda one: type(one) is float and not math.isfinite(one))):
        return text, f"{where} is not finite, and was stored as null."
    return text, None


def _first(value: Any, is_it: Callable[[Any], bool]) -> str:
    """The path of the first part of a result for which ``is_it`` holds; "" where there is none."""
    stack, seen = [(value, "the result")], 0
    while stack and seen < 1_000_000:
        seen += 1
        one, path = stack.pop()
        if is_it(one):
            return path
        if isinstance(one, dict):
            stack += [(inner, f"{path}.{name}") for name, inner in reversed(one.items())]
        elif isinstance(one, list | tuple) and len(path) < 2_000:
            stack += [(inner, f"{path}[{place}]") for place, inner in reversed(list(enumerate(one)))]
    return ""


def _jsonable(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null")

"""Carrying arguments: typed values in, JSON text in the row, the same typed values out.

A task's signature is read once and becomes a pydantic model: each argument is checked and encoded by its annotation when
the job is enqueued (so a wrong one is refused where the mistake is, naming the parameter) and decoded the same way when it
runs. A parameter without an annotation carries plain JSON only. Parameters that the worker fills in by itself (``job``,
``session``) are not part of the input.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticSchemaGenerationError,
    PydanticUserError,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from duly.kernel.errors import InvalidArgument, InvalidPayload
from duly.kernel.payload import check_size, check_text, check_value

_CONFIG = ConfigDict(
    arbitrary_types_allowed=False,
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="constants",
    ser_json_timedelta="iso8601",
    extra="forbid",
    hide_input_in_errors=True,
    protected_namespaces=(),
)
#: Texts in an encoding that make a closer look worth while (in a nested model, a float that is not finite becomes null).
_SUSPECTS = (b"\\u0000", b"NaN", b"Infinity", b":null", b"[null", b",null")


class Arguments(NamedTuple):
    """The decoded arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Codec:
    """How one function's arguments travel.

    ``injected`` names parameters the worker supplies. Raises InvalidArgument at definition for what can never travel.
    """

    def __init__(self, fn: Callable[..., Any], name: str, injected: Mapping[str, Any], what: str = "task") -> None:
        self.task, self.owner = name, f"{what} {name}"
        self.signature = inspect.signature(fn)
        try:
            hints = get_type_hints(fn, include_extras=True)
        except NameError as error:
            raise InvalidArgument(self.owner, f"has an annotation that cannot be resolved: {error}.") from None
        fields: dict[str, Any] = {}
        #: (parameter, field, positional-only?, without a type that says how to carry it?)
        self.parameters: list[tuple[str, str, bool, bool]] = []
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
            required = ... if p.default is p.empty else None
            fields[inner] = (kind, Field(default=required, alias=p.name))
            self.parameters.append((p.name, inner, p.kind is p.POSITIONAL_ONLY, is_plain(kind)))
        self.visible = self.signature.replace(parameters=visible, return_annotation=inspect.Signature.empty)
        config = ConfigDict(**{**_CONFIG, "extra": "allow"}) if self.rest else _CONFIG
        try:
            self.model: type[BaseModel] = create_model(f"Input of {name}", __config__=config, **fields)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise InvalidArgument(
                self.owner,
                f"has a parameter whose type cannot be carried as JSON: {str(error).splitlines()[0]}",
                "Use a dataclass, a pydantic model or plain types.",
            ) from None
        self._validate = self.model.__pydantic_validator__.validate_python
        self._decode = self.model.__pydantic_validator__.validate_json
        self._dump = self.model.__pydantic_serializer__.to_json
        self._plain = self.model.__pydantic_serializer__.to_python
        self._untyped = [(n, f) for n, f, _, untyped in self.parameters if untyped]
        self._names = [(n, f) for n, f, _, _ in self.parameters]
        self._in_place = [
            p.name for p in visible if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and self.rest is None
        ]
        self._simple = self.rest is None and not any(positional for _, _, positional, _ in self.parameters)

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
        try:
            model = self._validate(arguments)
        except ValidationError as error:
            raise self._refused(error) from None
        values = model.__dict__
        for name, inner in self._untyped:
            if inner in model.__pydantic_fields_set__:
                check_value(values[inner], name)
        if self.rest and model.__pydantic_extra__:
            check_value(dict(model.__pydantic_extra__), "")
        try:
            encoded: bytes = self._dump(model, by_alias=True, exclude_unset=True)
        except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
            self._find(arguments)
            raise InvalidPayload(self.owner, f"has an argument that cannot be encoded: {error}.") from None
        for suspect in _SUSPECTS:
            if suspect in encoded:
                _examine(self._plain(model, mode="json", by_alias=True, exclude_unset=True), "")
                break
        check_size(len(encoded), limit, f"the input of {self.owner}")
        return encoded.decode()

    def _find(self, arguments: Mapping[str, Any]) -> None:
        """Walk the arguments as plain values and name the first that cannot be carried, if plain values tell."""
        for name, value in arguments.items():
            try:
                plain = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants")
            except Exception:
                plain = value
            check_value(plain, name)

    def _refused(self, error: ValidationError) -> InvalidArgument:
        first = error.errors(include_url=False, include_input=False)[0]
        names = {f: n for n, f in self._names}
        where = [names.get(str(part), part) for part in first["loc"]]
        path = str(where[0]) if where else self.task
        for part in where[1:]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        message = first["msg"]
        if first["type"] == "extra_forbidden":
            message = f"is not a parameter of {self.owner}"
        elif first["type"] == "missing":
            message = f"is required by {self.owner}"
        return InvalidArgument(path, message[0].lower() + message[1:] + ".")

    # ------------------------------------------------------------------ and back

    def decode(self, text: str) -> Arguments:
        """The arguments as they were sent. Raises InvalidArgument when the stored input no longer fits the signature."""
        try:
            model = self._decode(text)
        except ValidationError as error:
            raise self._refused(error) from None
        given, values = model.__pydantic_fields_set__, model.__dict__
        if self._simple:
            return Arguments((), {name: values[inner] for name, inner in self._names if inner in given})
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, inner, positional, _ in self.parameters:
            if inner in given:
                if positional:
                    args.append(values[inner])
                else:
                    kwargs[name] = values[inner]
        if self.rest and model.__pydantic_extra__:
            kwargs.update(model.__pydantic_extra__)
        return Arguments(tuple(args), kwargs)


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


def _examine(value: Any, path: str) -> None:
    """Walk what is about to be stored and name the first text or number that no database would give back."""
    if isinstance(value, str | float):
        check_value(value, path)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key, f"{path} (a key)")
            _examine(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            _examine(inner, f"{path}[{position}]")


def encode_plain(value: Any, what: str, limit: int) -> str:
    """JSON text of plain values, for jobs enqueued by name. Raises InvalidPayload with the path."""
    check_value(value, what if not isinstance(value, dict) else "")
    encoded = orjson.dumps(value)
    check_size(len(encoded), limit, what)
    return encoded.decode()


def encode_output(value: Any, limit: int) -> tuple[str | None, str | None]:
    """(JSON text, problem). A result that cannot be stored never hangs its job: the text is None then, the problem says why."""
    if value is None:
        return "{}", None
    try:
        encoded = orjson.dumps(value, default=_jsonable, option=orjson.OPT_NON_STR_KEYS)
    except Exception as error:
        return None, f"the result of type {type(value).__name__} cannot be stored: {error}"
    if len(encoded) > limit:
        return None, f"the result is {len(encoded):,} bytes when encoded; the limit is {limit:,}"
    text = encoded.decode()
    if "\\u0000" in text:
        try:
            _examine(orjson.loads(encoded), "the result")
        except InvalidPayload as error:
            return None, str(error)
    return text, None


def _jsonable(value: Any) -> Any:
    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null")

"""Arguments by their annotations: a pydantic model of a signature.

What ``codec`` cannot see to by itself comes here. Loaded when first needed, since pydantic takes six megabytes of a process
and a worker whose tasks take numbers and texts needs none of it.

Not all that a model can encode does it decode to the same: what is given as ``Decimal | str`` arrives as the other of the two,
a field that is left out of the encoding is gone, a password arrives as asterisks. So what was encoded is decoded again and
compared with what was given, and refused where the mistake is. Annotations that are known to come back are spared that.
"""

from __future__ import annotations

import dataclasses
import json
from collections import abc
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

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
from pydantic_core import (
    PydanticSerializationError,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    SchemaValidator,
    core_schema,
    to_jsonable_python,
)

from duly.jobs.likeness import compare, differs
from duly.kernel.binding import signature_of
from duly.kernel.errors import InvalidArgument, InvalidPayload
from duly.kernel.payload import check_size, check_value, examine, has_long_number

if TYPE_CHECKING:
    from duly.jobs.codec import Parameter

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


class Typed:
    """The arguments of one function, carried by a model. Raises InvalidArgument for a type that can never travel."""

    def __init__(self, name: str, owner: str, parameters: Sequence[Parameter], rest: str | None) -> None:
        self.owner, self._name, self._rest = owner, name, rest
        self._fields = {p.field: p.name for p in parameters}
        self._untyped = [p for p in parameters if p.untyped]
        fields: dict[str, Any] = {
            p.field: (p.kind, Field(default=... if p.required else None, alias=p.name)) for p in parameters
        }
        config = ConfigDict(**{**_CONFIG, "extra": "allow"}) if rest else _CONFIG
        try:
            self.model: type[BaseModel] = create_model(f"Input of {name}", __config__=config, **fields)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise InvalidArgument(
                owner,
                f"has a parameter whose type cannot be carried as JSON: {str(error).splitlines()[0]}",
                "Use a dataclass, a pydantic model or plain types.",
            ) from None
        validator: Any = self.model.__pydantic_validator__
        serializer: Any = self.model.__pydantic_serializer__
        schema = self.model.__pydantic_core_schema__
        if (bettered := _better(schema)) != schema:
            validator = SchemaValidator(bettered, None, False)
            serializer = SchemaSerializer(bettered, None, False)
        self._validate: Callable[..., Any] = validator.validate_python
        self._decode: Callable[..., Any] = validator.validate_json
        self._dump: Callable[..., bytes] = serializer.to_json
        self._plain: Callable[..., Any] = serializer.to_python
        #: The dataclasses in parameters that are sure: they are so while no class is made of them that says more.
        self._classes: set[type] = set()
        unsure = [p for p in parameters if not (p.untyped or _is_moment(p.kind) or _is_sure(p.kind, self._classes))]
        #: Field → whether its annotation names a collection in general, of the parameters that are decoded again.
        self._unsure: Mapping[str, bool] = {p.field: _is_loose(p.kind) for p in unsure}
        self._moments = [p for p in parameters if _is_moment(p.kind)]
        self._others: Mapping[str, bool] = {p.field: _is_loose(p.kind) for p in parameters if not p.untyped}

    def encode(self, arguments: Mapping[str, Any], limit: int) -> str:
        """JSON text of the arguments given by name. Raises InvalidArgument or InvalidPayload naming the parameter."""
        try:
            model = self._validate(arguments)
        except ValidationError as error:
            raise self._refused(error) from None
        values, given = model.__dict__, model.__pydantic_fields_set__
        for p in self._untyped:
            if p.field in given:
                check_value(values[p.field], p.name)
        if self._rest and model.__pydantic_extra__:
            check_value(dict(model.__pydantic_extra__), "")
        for p in self._moments:
            value = values[p.field]
            if value is not None and value.tzinfo is not UTC and p.field in given and _is_odd(value):
                raise InvalidPayload(
                    p.name,
                    "is a moment whose distance from UTC is no whole number of minutes, which texts of moments cannot say.",
                    "Convert it to UTC.",
                )
        doubtful = self._unsure
        if doubtful and doubtful.keys().isdisjoint(given):
            doubtful = {}
        if self._classes and any(kind.__subclasses__() for kind in self._classes):
            doubtful = self._others
        encoded = None
        if not doubtful:
            try:
                if self._classes:  # a dataclass is taken as it is: the values in it may yet have other types
                    encoded = self._dump(model, by_alias=True, exclude_unset=True, warnings="error")
                else:
                    encoded = self._dump(model, by_alias=True, exclude_unset=True)
            except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError):
                doubtful = self._others
            else:
                self._look_into(encoded, model, limit)
        if encoded is None:
            encoded = self._encoded(model, arguments, limit, exclude_unset=True)
            try:
                self._check(model, encoded, doubtful)
            except InvalidPayload:
                # defaults inside of models need not be the same tomorrow: a time, a list that was added to
                again = self._encoded(model, arguments, limit, include=given | (model.__pydantic_extra__ or {}).keys())
                if again == encoded:
                    raise
                self._check(model, again, doubtful)
                encoded = again
        return encoded.decode()

    def _encoded(self, model: BaseModel, arguments: Mapping[str, Any], limit: int, **which: Any) -> bytes:
        try:
            encoded = self._dump(model, by_alias=True, warnings="none", **which)
        except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
            self._find(arguments)
            raise InvalidPayload(self.owner, f"has an argument that cannot be encoded: {error}.") from None
        self._look_into(encoded, model, limit)
        return encoded

    def _look_into(self, encoded: bytes, model: BaseModel, limit: int) -> None:
        for suspect in _SUSPECTS:
            if suspect in encoded:
                examine(self._plain(model, mode="json", by_alias=True, exclude_unset=True, warnings="none"), "")
                break
        if has_long_number(encoded):
            # whoever reads the input as JSON, and not by the annotations, reads a number near it
            check_value(json.loads(encoded), "")
        check_size(len(encoded), limit, f"the input of {self.owner}")

    def _check(self, model: BaseModel, encoded: bytes, fields: Mapping[str, bool]) -> None:
        """Decode again what was encoded. Raises InvalidPayload for what does not come back as it was given."""
        given, values = model.__pydantic_fields_set__, model.__dict__
        try:
            back = self._decode(encoded)
        except ValidationError as error:
            raise self._unreadable(error, values) from None
        doubts = []
        for field, loose in fields.items():
            if field in given and compare(values[field], back.__dict__[field], self._fields[field], loose=loose):
                doubts.append(field)
        if doubts:
            again = self._dump(back, by_alias=True, exclude_unset=True, warnings="none")
            if again != encoded:
                first, second = orjson.loads(encoded), orjson.loads(again)
                for field in doubts:
                    name = self._fields[field]
                    if first[name] != second.get(name):
                        raise differs(name, type(values[field]).__name__, type(back.__dict__[field]).__name__)

    def _unreadable(self, error: ValidationError, values: Mapping[str, Any]) -> InvalidPayload:
        """The refusal of what can be encoded and then not decoded; what a class of the user's says may repeat the value."""
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        field = next((field for field, known in self._fields.items() if known == name), name)
        kind = type(values[field]).__name__ if field in values else "unknown"
        own = first["type"] in ("value_error", "assertion_error")
        why = "its class refuses what was stored" if own else first["msg"][0].lower() + first["msg"][1:]
        return InvalidPayload(
            self._refused(error).field,
            f"is of type {kind} and could be stored, but not read again when the job runs: {why}.",
            "Annotate it with a type that JSON can carry there and back, or send it as text.",
        )

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
        where = [self._fields.get(str(part), part) for part in first["loc"]]
        path = str(where[0]) if where else self._name
        for part in where[1:]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        message = first["msg"]
        if first["type"] == "extra_forbidden":
            message = f"is not a parameter of {self.owner}"
        elif first["type"] == "missing":
            message = f"is required by {self.owner}"
        return InvalidArgument(path, message[0].lower() + message[1:] + ".")

    def decode(self, text: str) -> tuple[set[str], dict[str, Any], dict[str, Any]]:
        """(fields that were given, their values, the keywords of a **rest). Raises InvalidArgument where the text does not fit."""
        try:
            model = self._decode(text)
        except ValidationError as error:
            raise self._refused(error) from None
        return model.__pydantic_fields_set__, model.__dict__, model.__pydantic_extra__ or {}


# --- What comes back -----------------------------------------------------------------------------------------------------

#: By themselves, in collections and beside None, these arrive as they were sent.
_SURE = (str, int, float, bool, NoneType, bytes, Decimal, UUID, date, timedelta)


def _is_moment(kind: Any) -> bool:
    return kind is datetime or (get_origin(kind) in (Union, UnionType) and set(get_args(kind)) == {datetime, NoneType})


def _is_odd(moment: datetime) -> bool:
    offset = moment.utcoffset()
    return offset is not None and bool(offset.seconds % 60 or offset.microseconds)


def _is_sure(kind: Any, classes: set[type], inside: bool = False) -> bool:
    """Does all that this annotation admits arrive as it was sent? ``classes`` takes the dataclasses that are met.

    Dataclasses are so for values of exactly these classes, whose fields have the types that their annotations say.
    """
    if kind in _SURE or kind in classes:
        return kind is not float or not inside  # whatever number stands there is encoded as a float without a word
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (list, set, frozenset, tuple):
        return bool(inner) and all(_is_sure(one, classes, inside) for one in inner if one is not Ellipsis)
    if origin is dict:
        return inner[0] is str and _is_sure(inner[1], classes, inside)
    if origin in (Union, UnionType):
        others = [one for one in inner if one is not NoneType]
        if len(others) == 1:
            return _is_sure(others[0], classes, inside)
        return all(one in (str, int, bool) for one in others)
    if origin is Literal:
        return _are_alike(list(inner))
    if not isinstance(kind, type):
        return False
    if issubclass(kind, Enum):
        return _are_alike([member.value for member in kind]) and not _has_own_schema(kind)
    return _is_plain_dataclass(kind) and _are_sure_fields(kind, classes)


def _are_alike(values: list[Any]) -> bool:
    return len({type(value) for value in values}) == 1 and type(values[0]) in (str, int)


def _has_own_schema(kind: type) -> bool:
    return any(
        hasattr(kind, name)
        for name in ("__get_pydantic_core_schema__", "__pydantic_config__", "__pydantic_core_schema__")
    )


def _is_plain_dataclass(kind: type) -> bool:
    """A dataclass of the standard library that is made of its fields and of nothing else."""
    return (
        dataclasses.is_dataclass(kind)
        and not _has_own_schema(kind)
        and not hasattr(kind, "__post_init__")
        and getattr(getattr(kind.__init__, "__code__", None), "co_filename", "") == "<string>"
        and all(f.init and isinstance(f.default, Hashable) for f in dataclasses.fields(kind))
        and signature_of(kind).parameters.keys() == {f.name for f in dataclasses.fields(kind)}
    )


def _are_sure_fields(kind: type, classes: set[type]) -> bool:
    try:
        hints = get_type_hints(kind, include_extras=True)
    except Exception:  # told when a value is there
        return False
    found = classes | {kind}
    if not all(_is_sure(hints[f.name], found, True) for f in dataclasses.fields(kind)):
        return False
    classes |= found
    return True


def _is_loose(kind: Any) -> bool:
    """Does the annotation name a collection in general somewhere? Then a tuple may arrive as a list."""
    origin = get_origin(kind)
    return getattr(origin or kind, "__module__", "") == abc.__name__ or any(map(_is_loose, get_args(kind)))


# --- What can be made to come back ---------------------------------------------------------------------------------------

#: Parts of a schema that hold values or facts, and no schemas.
_NO_SCHEMAS = frozenset({"cls", "config", "default", "expected", "members", "metadata", "ref", "schema_ref", "serialization"})  # fmt: skip


def _better(schema: Any) -> Any:
    """The schema with sets that are encoded in a fixed order, whatever the process, and Enums of any values, carried by name."""
    if isinstance(schema, list):
        return [_better(one) for one in schema]
    if isinstance(schema, tuple):
        return tuple(_better(one) for one in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    named = not isinstance(kind, str)  # the fields of a class by their names, which may be any
    made = {key: value if not named and key in _NO_SCHEMAS else _better(value) for key, value in schema.items()}
    if "serialization" in schema:
        return made
    if kind in ("set", "frozenset"):
        return made | {"serialization": core_schema.wrap_serializer_function_ser_schema(_in_order, schema=dict(made))}
    if kind == "enum" and not all(type(m.value) in (str, int, float, bool, NoneType) for m in schema["members"]):
        ref = made.pop("ref", None)
        return core_schema.no_info_wrap_validator_function(
            _by_name(schema["cls"]), made, ref=ref, serialization=core_schema.plain_serializer_function_ser_schema(_name_of, when_used="json")
        )  # fmt: skip
    return made


def _in_order(value: Any, handler: Callable[[Any], Any]) -> Any:
    """A set as a list in the order of its members' JSON: that of the set depends on the process, and its job may have a key."""
    if not isinstance(value, set | frozenset):
        raise PydanticSerializationUnexpectedValue("is no set")
    found = handler(value)
    return sorted(found, key=_json) if isinstance(found, list) else found


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a number of more than 64 bits
        return repr(value).encode(errors="replace")


def _name_of(member: Any) -> str:
    if not isinstance(member, Enum):
        raise PydanticSerializationUnexpectedValue("is no member")
    return member.name


def _by_name(kind: type[Enum]) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Find a member by name where its value does not find it: so it was stored."""

    def find(value: Any, by_value: Callable[[Any], Any]) -> Any:
        try:
            return by_value(value)
        except ValidationError:
            if not isinstance(value, str) or value not in kind.__members__:
                raise
            return kind.__members__[value]

    return find

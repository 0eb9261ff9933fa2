"""Arguments by their annotations: a pydantic model of a signature.

What ``codec`` cannot see to by itself comes here. Loaded when first needed, since pydantic takes six megabytes of a process
and a worker whose tasks take numbers and texts needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from duly.kernel.payload import check_size, check_value, examine

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
        self._validate = self.model.__pydantic_validator__.validate_python
        self._decode = self.model.__pydantic_validator__.validate_json
        self._dump = self.model.__pydantic_serializer__.to_json
        self._plain = self.model.__pydantic_serializer__.to_python

    def encode(self, arguments: Mapping[str, Any], limit: int) -> str:
        """JSON text of the arguments given by name. Raises InvalidArgument or InvalidPayload naming the parameter."""
        try:
            model = self._validate(arguments)
        except ValidationError as error:
            raise self._refused(error) from None
        values = model.__dict__
        for p in self._untyped:
            if p.field in model.__pydantic_fields_set__:
                check_value(values[p.field], p.name)
        if self._rest and model.__pydantic_extra__:
            check_value(dict(model.__pydantic_extra__), "")
        try:
            encoded: bytes = self._dump(model, by_alias=True, exclude_unset=True)
        except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError) as error:
            self._find(arguments)
            raise InvalidPayload(self.owner, f"has an argument that cannot be encoded: {error}.") from None
        for suspect in _SUSPECTS:
            if suspect in encoded:
                examine(self._plain(model, mode="json", by_alias=True, exclude_unset=True), "")
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

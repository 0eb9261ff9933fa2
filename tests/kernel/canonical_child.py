"""Values described in JSON, so that programs in any language and process can make the same keys of them.

A description is a list whose first element is a type, as ``docs/reference/canonical-keys.md`` lists them. Run as a program
with the folder of the package and a file of vectors, this prints the text and the key of each vector, and the place of each
refusal. It needs the standard library only: the other versions of Python that it is run with have nothing else installed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass, make_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath, PurePosixPath
from types import ModuleType
from typing import Any
from uuid import UUID


def build(described: list[Any], hashed: bool = False) -> Any:
    """The value that is described. ``hashed``: inside of a key or an element, where Python wants tuples for lists."""
    kind, *parts = described
    if kind in ("none", "bool", "text"):
        return parts[0] if parts else None
    if kind in SCALARS:
        return SCALARS[kind](parts[0])
    if kind == "list":
        return (tuple if hashed else list)(build(part, hashed) for part in parts[0])
    if kind == "set":
        return frozenset(build(part, True) for part in parts[0])
    if kind == "dict":
        return {build(key, True): build(value) for key, value in parts[0]}
    if kind == "enum":
        return Enum(parts[0], {"MEMBER": build(parts[1])}).MEMBER  # type: ignore[attr-defined]
    if kind == "dataclass":
        kept = make_dataclass(parts[0], [name for name, _ in parts[1]], frozen=True)
        return kept(*(build(value, hashed) for _, value in parts[1]))
    if kind == "model":
        return model(*parts)
    if kind == "self-containing list":
        loop: list[Any] = [None]
        loop[0] = loop
        return loop
    if kind == "nested lists":
        nest: Any = None
        for _ in range(parts[0]):
            nest = [nest]
        return nest
    assert kind == "object"
    return object()


def model(name: str, described: list[Any], extra: list[Any] | None = None) -> Any:
    """What looks like an instance of a pydantic model, without pydantic."""
    own = {field: build(value) for field, value in described}
    more = {field: build(value) for field, value in extra} if extra else None
    return type(
        name, (), own | {"__pydantic_fields__": own, "__pydantic_extra__": more, "model_dump": lambda self: own}
    )()


SCALARS: dict[str, Any] = {
    "int": int,
    "float": float,
    "bytes": bytes.fromhex,
    "decimal": Decimal,
    "uuid": UUID,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda microseconds: timedelta(microseconds=int(microseconds)),
    "path": PurePosixPath,
}


def describe(value: Any) -> list[Any]:
    """The description of a value; ``build`` makes an equal one of it."""
    if value is None:
        return ["none"]
    for kind, name, written in (
        (Enum, "enum", lambda: [type(value).__name__, describe(value.value)]),
        (bool, "bool", lambda: [value]),
        (int, "int", lambda: [str(value)]),
        (float, "float", lambda: [repr(value)]),
        (str, "text", lambda: [value]),
        ((bytes, bytearray, memoryview), "bytes", lambda: [bytes(value).hex()]),
        (Decimal, "decimal", lambda: [str(value)]),
        (UUID, "uuid", lambda: [str(value)]),
        (datetime, "datetime", lambda: [value.isoformat()]),
        (date, "date", lambda: [value.isoformat()]),
        (time, "time", lambda: [value.isoformat()]),
        (timedelta, "timedelta", lambda: [str(value // timedelta(microseconds=1))]),
        (PurePath, "path", lambda: [str(value)]),
        ((list, tuple), "list", lambda: [[describe(inner) for inner in value]]),
        ((set, frozenset), "set", lambda: [[describe(inner) for inner in value]]),
        (dict, "dict", lambda: [[[describe(key), describe(inner)] for key, inner in value.items()]]),
    ):
        if isinstance(value, kind):
            return [name, *written()]
    assert is_dataclass(value)
    return ["dataclass", type(value).__name__, [[f.name, describe(getattr(value, f.name))] for f in fields(value)]]


def run(vectors: dict[str, Any]) -> dict[str, Any]:
    """What the package under test makes of the vectors."""
    from duly.kernel.canonical import canonical_call, canonical_task_key
    from duly.kernel.errors import InvalidPayload

    keys = []
    for vector in vectors["keys"]:
        args = [build(value) for value in vector["args"]]
        kwargs = {name: build(value) for name, value in vector["kwargs"].items()}
        namespace = vector["namespace"]
        text = canonical_call(vector["task"], args, kwargs, namespace=namespace)
        keys.append({"text": text, "key": canonical_task_key(vector["task"], args, kwargs, namespace=namespace)})
    refused = []
    for vector in vectors["refused"]:
        kwargs = {name: build(value) for name, value in vector["kwargs"].items()}
        try:
            canonical_call("t", [build(value) for value in vector["args"]], kwargs)
            refused.append("nowhere")
        except InvalidPayload as error:
            refused.append(error.field)
    return {"keys": keys, "refused": refused}


def main(package: str, file: str) -> None:
    # The kernel alone: the package around it would ask for libraries that are not installed here.
    duly = ModuleType("duly")
    duly.__path__ = [package]
    sys.modules["duly"] = duly
    print(json.dumps(run(json.loads(Path(file).read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main(*sys.argv[1:])

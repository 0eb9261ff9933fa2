"""Payloads as programs have them: what has one obvious form in JSON is written in that form.

UUIDs, dates and times, decimals, enumerations, dataclasses and pydantic models. The receiver has texts, numbers, lists and objects; whatever
else a payload holds is refused with its path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from duly.jobs.codec import encode_plain
from duly.kernel.errors import InvalidPayload


def encode_payload(payload: Any, limit: int) -> str:
    """Return a payload as JSON text of up to ``limit`` bytes. Raises InvalidPayload with the path of what cannot be written."""
    try:
        return encode_plain(payload, "payload", limit)
    except InvalidPayload as error:
        try:
            plain = _plain(payload)
        except RecursionError:
            raise error from None
    try:
        return encode_plain(plain, "payload", limit)
    except InvalidPayload as error:
        if not error.remedy.startswith("Annotate"):
            raise
        remedy = "Give JSON values, UUIDs, dates, times, decimals, dataclasses or pydantic models."
        raise InvalidPayload(error.field, error.problem, remedy) from None


def _plain(value: Any) -> Any:
    match value:
        case bool() | None:
            return value
        case Enum():
            return _plain(value.value)
        case UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() if value.is_finite():
            return str(value)
        case Mapping():
            return {name: _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if callable(dump := getattr(type(value), "model_dump", None)):
        return dump(value, mode="json")
    return value

"""What a body returned, as text that is recorded, and what duplicates are given.

With a return annotation that says what the value is, it comes back as that: dates, Decimals, dataclasses, bytes. Without
one, or with ``dict``, ``list``, ``Any``, it comes back as plain JSON. A result that would not come back as it was is not
recorded at all: a duplicate is better given nothing than something else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import orjson
from pydantic import ConfigDict, PydanticUserError, TypeAdapter
from pydantic_core import to_jsonable_python

from duly.jobs.codec import is_plain
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_value, has_long_number

#: The longest text that is recorded, in bytes.
LONGEST = 1_000_000
_NOTHING = (None, type(None))


class Results:
    """The results of one function."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        with contextlib.suppress(NameError, TypeError, PydanticUserError):
            returns = get_type_hints(fn, include_extras=True).get("return", Any)
            if returns not in _NOTHING and not is_plain(returns):
                self._adapter = _adapter(returns)

    def encoded(self, result: Any) -> tuple[str | None, str]:
        """(JSON text, why there is none). The reason names no part of the value."""
        if result is None:
            return "null", ""
        if isinstance(result, Iterator):
            return None, "it is an iterator, which can be read once"
        try:
            text = self._text(result)
        except Exception:
            return None, "it has no form in JSON"
        if text is None:
            return None, "it would not come back as it was"
        if len(text) > LONGEST:
            return None, f"it is longer than {LONGEST:,} bytes"
        try:
            check_value(orjson.loads(text), "result")
        except InvalidArgument:
            return None, "it holds what no database gives back"
        return text.decode(), ""

    def _text(self, result: Any) -> bytes | None:
        if self._adapter is None:
            plain = to_jsonable_python(result, bytes_mode="base64", inf_nan_mode="constants")
            check_value(plain, "result")
            return orjson.dumps(plain)
        text: bytes = self._adapter.dump_json(result, warnings="error")
        if has_long_number(text):
            return None  # read again, it would be a float that is near to it
        back = self._adapter.validate_json(text)
        return orjson.dumps(orjson.loads(text)) if back == result and type(back) is type(result) else None

    def decoded(self, text: str | None) -> Any:
        """The result that was recorded."""
        if text is None:
            return None
        return orjson.loads(text) if self._adapter is None or text == "null" else self._adapter.validate_json(text)


def _adapter(returns: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(returns, config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64"))
    except PydanticUserError:
        return TypeAdapter(returns)  # a model has a configuration of its own

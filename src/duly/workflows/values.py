"""What steps answer, as it is kept: JSON, read back by the function's return annotation."""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

from duly.jobs.codec import encode_output
from duly.kernel.errors import InvalidPayload, PermanentError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def encoded(value: Any, name: str, limit: int) -> str | None:
    """JSON text of an answer; None stays None. Raises PermanentError where it cannot be kept: calling the step again would not help."""
    if value is None:
        return None
    text, problem = encode_output(value, limit)
    if text is None:
        raise PermanentError(f"step {name}: {problem}")
    if "null" in text and not _is_finite(value):
        raise PermanentError(f"step {name}: the result holds a number that is not finite, which JSON cannot carry")
    return text


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def decoded(fn: Callable[..., Any], value: Any, name: str) -> Any:
    """An answer as the function's annotation says; as plain JSON where it says nothing that can be read."""
    inner = inspect.unwrap(fn)
    code = getattr(inner, "__code__", None)
    if code is None:
        kind = _return_of(inner)
    elif code in _returns:  # a function that is made anew each time the workflow is run has the same code
        kind = _returns[code]
    else:
        kind = _returns[code] = _return_of(inner)
    if kind is Any or type(value) is kind:
        return value
    adapter = _adapter(kind)
    if adapter is None:
        return value
    from pydantic import ValidationError

    try:
        return adapter.validate_python(value, strict=False)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise InvalidPayload(
            f"the answer of step {name}", f"is not what its function now says it returns: {problem}."
        ) from None


#: Code → the annotation of what it returns.
_returns: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _return_of(fn: Callable[..., Any]) -> Any:
    try:
        kind = get_type_hints(fn).get("return", Any)
    except (NameError, TypeError):
        return Any
    return Any if kind is None or kind is type(None) else kind


def _adapter(kind: Any) -> TypeAdapter[Any] | None:
    try:
        return _made(kind)
    except TypeError:  # an annotation that has no hash
        return None


@functools.lru_cache(maxsize=1024)
def _made(kind: Any) -> TypeAdapter[Any] | None:
    from pydantic import TypeAdapter  # six megabytes, for those whose steps say what they answer

    try:
        return TypeAdapter(kind)
    except Exception:
        return None

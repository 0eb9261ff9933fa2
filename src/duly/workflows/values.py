"""What steps answer, as it is kept: JSON, read back by the function's return annotation."""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

from duly.jobs.codec import encode_output
from duly.jobs.run import is_unawaited
from duly.kernel.binding import is_async
from duly.kernel.errors import InvalidPayload, PermanentError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


DONE = "What the step does is done; it is not called again unless you replay the run from it"


class UnstorableResult(PermanentError):
    """A step has done its work, and its answer cannot be kept. It is not called again by itself, and its compensation counts."""


def encoded(value: Any, name: str, limit: int) -> str | None:
    """JSON text of an answer; None stays None. Raises UnstorableResult where it cannot be kept, PermanentError for work that is not done."""
    if value is None:
        return None
    check_done(value, f"step {name}")
    text, problem = encode_output(value, limit)
    if text is None:
        raise UnstorableResult(f"step {name}: {(problem or '').rstrip('.')}. {DONE}")
    if "null" in text and not _is_finite(value):
        raise UnstorableResult(
            f"step {name}: the result holds a number that is not finite, which JSON cannot carry. {DONE}"
        )
    return text


def check_done(value: Any, who: str) -> None:
    """Refuse an answer that is work which nobody has done. Raises PermanentError."""
    if not is_unawaited(value):
        return
    remedy = (
        "Go through it, and return a list" if inspect.isasyncgen(value) else "Await it, and return what comes of it"
    )
    raise PermanentError(
        f"{who} answered with an object of type {type(value).__name__}: work that nobody has done. {remedy}."
    )


def check_step(fn: Callable[..., Any], name: str, session: str | None) -> None:
    """Refuse a function that cannot be called as a step. ``session``: the kind that it asks for. Raises PermanentError."""
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if any(map(inspect.isasyncgenfunction, (inner, getattr(type(inner), "__call__", None)))):  # noqa: B004 (the method itself)
        raise PermanentError(
            f"step {name} is an asynchronous generator, which nobody would go through. Return a list instead of yielding."
        )
    if session == "session" and is_async(fn):
        raise PermanentError(
            f"step {name} is async and asks for a Session, whose calls would stop the event loop. Annotate it with "
            "sqlalchemy.ext.asyncio.AsyncSession and await its calls, or make it a plain function."
        )


def calling(fn: Callable[..., Any], name: str, session: str | None) -> Callable[..., Any]:
    """A step's function whose answer can be dealt with: a generator's body runs here, on the thread that it was called on."""

    def call(**more: Any) -> Any:
        answer = fn(**more)
        if inspect.isgenerator(answer):
            return list(answer)
        if session == "async_session" and not inspect.isawaitable(answer):
            raise PermanentError(
                f"step {name} is a plain function and asks for an AsyncSession, whose calls have to be awaited. Annotate it with "
                "sqlalchemy.orm.Session, or define it with `async def`."
            )
        return answer

    return call


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def decoded(fn: Callable[..., Any], value: Any, name: str) -> Any:
    """An answer as the function's annotation says; as plain JSON where it says nothing that can be read."""
    inner = inspect.unwrap(fn) if hasattr(fn, "__wrapped__") else fn
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

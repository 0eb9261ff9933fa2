"""One form of all ways to write a call: ``f(1)``, ``f(a=1)`` and ``f(1, b=<default>)`` are the same call (T004-l).

Used by the canonical keys. It tells which parameter does not fit by name, and lets parameters be left out that are no
part of what is asked for: the instance of a method, a session, a context.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from types import FunctionType
from typing import Any, NoReturn

from duly.kernel.errors import InvalidArgument


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """What a function takes, also where an annotation names what is not there yet, or is imported for type checkers only.

    From Python 3.14 on annotations are evaluated when they are read, so that reading a signature would raise NameError.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def bind_call(
    signature: inspect.Signature | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ignore: Collection[str] = (),
) -> tuple[list[Any], dict[str, Any]]:
    """One form of all ways to write a call: by name what has a name, defaults filled in, ``ignore`` left out.

    The list holds what can only be given by position (parameters before ``/``, then ``*args``), the dictionary the rest.
    A function's ``self`` or ``cls`` is no argument of its calls; a signature is taken as it is. What ``ignore`` names may
    be missing from the call, and may be one of ``**kwargs``.

    Raises InvalidArgument naming the parameter that does not fit, or the name in ``ignore`` that is none.
    """
    if not isinstance(signature, inspect.Signature):
        signature = _signature_of(signature)
    parameters = signature.parameters
    if ignore:
        _check_ignored(ignore, parameters)
    position, count = 0, len(args)
    left = dict(kwargs)
    by_position: list[Any] = []
    by_name: dict[str, Any] = {}
    for name, parameter in parameters.items():
        kind = parameter.kind
        if kind is Parameter.VAR_POSITIONAL:
            by_position += () if name in ignore else args[position:]
            position = count
            continue
        if kind is Parameter.VAR_KEYWORD:
            by_name |= {} if name in ignore else {key: left[key] for key in left if key not in ignore}
            left = {}
            continue
        nameable = kind is not Parameter.POSITIONAL_ONLY
        if position < count and kind is not Parameter.KEYWORD_ONLY:
            value = args[position]
            position += 1
            if nameable and name in left:
                raise InvalidArgument(name, "is given twice: by position and by name.")
        elif nameable and name in left:
            value = left.pop(name)
        elif parameter.default is not Parameter.empty:
            value = parameter.default
        elif name in ignore:
            continue
        else:
            raise InvalidArgument(name, "is missing, and has no default.")
        if name in ignore:
            continue
        if nameable:
            by_name[name] = value
        else:
            by_position.append(value)
    if position < count or left:
        _refuse_rest(position, count, left, parameters)
    return by_position, by_name


def _refuse_rest(position: int, count: int, left: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> NoReturn:
    """Arguments that no parameter takes."""
    if position < count:
        raise InvalidArgument(
            f"args[{position}]", f"is one too many: {position} arguments are taken by position, {count} were given."
        )
    name = next(iter(left))
    if name in parameters:
        raise InvalidArgument(name, "is given by name, but is taken by position only.")
    raise InvalidArgument(name, "is no parameter of the task.", f"Its parameters: {', '.join(parameters) or 'none'}.")


def _check_ignored(ignore: Collection[str], parameters: Mapping[str, Parameter]) -> None:
    """A misspelt name would be ignored itself, and a session be part of the key."""
    if isinstance(ignore, str):
        raise InvalidArgument("ignore", "is one text.", "Give a list of names.")
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in ignore:
        if name not in parameters and name not in ("self", "cls"):
            raise InvalidArgument("ignore", f"names {name!r}, which is no parameter of the task.")


def instance_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that stands for a method's instance or class; None for other functions.

    It is the first one, if it is called ``self``, or ``cls`` in a function that was defined in a class. A method that is
    bound to its instance has none.
    """
    if not isinstance(function, FunctionType):
        return None
    first = next(iter(signature_of(function).parameters), None)
    around = function.__qualname__.rpartition(".")[0]
    in_a_class = around != "" and not around.endswith("<locals>")
    return first if first == "self" or (first == "cls" and in_a_class) else None


def is_async(function: Callable[..., Any]) -> bool:
    """Does calling it give a coroutine? Looked for through partials and objects that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    called = getattr(type(function), "__call__", None)  # noqa: B004 (the method itself is looked at)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The parameters that a caller fills in."""
    try:
        signature = signature_of(function)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("signature", "cannot be read from this object.", "Give an inspect.Signature.") from error
    if instance_parameter(function) is None:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])

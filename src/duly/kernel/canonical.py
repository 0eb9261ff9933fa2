"""Same as before? The one text that equal calls have in common, and the key that is made of it.

``canonical_task_key`` turns a call into ``duly:v1:<namespace>:<sha256>``. The hash is taken of a JSON text in which
whatever does not tell two calls apart has one form only: the order of dictionaries and sets, the zone that an instant is
written in, the two ways of composing an accented letter, positional or by keyword. What does tell two calls apart stays
apart: JSON has no bytes, sets or instants, so these are written as objects with one name that begins with ``$``, and a
name of the caller's that begins with ``$`` is written with one more.

Nothing here depends on the process, the platform, the locale or a hash seed, and what has no such form is refused with
its path instead of being guessed. ``docs/reference/canonical-keys.md`` says the same byte by byte for other languages,
with vectors; a rule can change only together with ``VERSION``. Sources: R004-10, T004-i to T004-n, ADR 0018.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import tzinfo
from types import MappingProxyType
from typing import Any

from duly.kernel.binding import bind_call
from duly.kernel.canonical_forms import Writer, array, composed, object_of, quoted
from duly.kernel.errors import InvalidArgument
from duly.kernel.payload import check_name

#: The version of the rules. It stands in every key and in every hashed text.
VERSION = 1

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def canonical_task_key(
    task_name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    signature: inspect.Signature | Callable[..., Any] | None = None,
    ignore: Collection[str] = (),
    namespace: str = "task",
    fallback: Callable[[object], str] | None = None,
    naive_zone: tzinfo | None = None,
) -> str:
    """The key of a call: ``duly:v1:<namespace>:`` and 64 hexadecimal digits; equal calls have equal keys everywhere.

    ``signature``, the task's function or its signature, makes ``f(1)``, ``f(a=1)`` and ``f(1, b=<default>)`` one call.
    A function's ``self`` or ``cls`` is no argument of its calls; a signature is taken as it is, and is quicker.
    ``ignore`` names parameters that are left out, such as a session; it needs a signature.
    ``fallback``, such as ``str``, turns values of other types into texts; one with a memory address is refused.
    ``naive_zone`` is the zone that datetimes without one are meant in; without it they are refused.

    Raises InvalidPayload with the path of a value that has no canonical form (``kwargs.items[2].price``), and
    InvalidArgument for a call that does not fit the signature, naming the parameter.
    """
    text = canonical_call(
        task_name,
        args,
        kwargs,
        signature=signature,
        ignore=ignore,
        namespace=namespace,
        fallback=fallback,
        naive_zone=naive_zone,
    )
    return f"duly:v{VERSION}:{namespace}:{hashlib.sha256(text.encode()).hexdigest()}"


def canonical_call(
    task_name: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    signature: inspect.Signature | Callable[..., Any] | None = None,
    ignore: Collection[str] = (),
    namespace: str = "task",
    fallback: Callable[[object], str] | None = None,
    naive_zone: tzinfo | None = None,
) -> str:
    """The text that the key of this call is the hash of. It holds the arguments: look at it, but do not log it."""
    name = composed(check_name(task_name, "task_name"), "task_name")
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise InvalidArgument("namespace", f"is {namespace!r}.", "Use 1 to 64 letters, digits, dots, dashes and _.")
    if not isinstance(args, list | tuple):
        raise InvalidArgument("args", f"is of type {type(args).__name__}.", "Give a list or a tuple.")
    if not isinstance(kwargs, Mapping):
        raise InvalidArgument("kwargs", f"is of type {type(kwargs).__name__}.", "Give a dictionary.")
    for key in kwargs:
        if not isinstance(key, str):
            raise InvalidArgument("kwargs", f"has a name of type {type(key).__name__}; names are texts.")
    if signature is not None:
        args, kwargs = bind_call(signature, args, kwargs, ignore)
    elif ignore:
        raise InvalidArgument("ignore", "names parameters, but there is no signature.", "Give signature= too.")
    writer = Writer(fallback, naive_zone)
    given = array(writer, iter(args), args, "args", 0)
    named = object_of(writer, kwargs.items(), kwargs, "kwargs", 0)
    return f'{{"args":{given},"kwargs":{named},"namespace":"{namespace}","task":{quoted(name)},"version":{VERSION}}}'


def canonical(
    value: object,
    path: str = "value",
    *,
    fallback: Callable[[object], str] | None = None,
    naive_zone: tzinfo | None = None,
) -> str:
    """The canonical JSON text of one value; ``path`` names it in errors. Raises InvalidPayload if it has none."""
    return Writer(fallback, naive_zone).write(value, path, 0)

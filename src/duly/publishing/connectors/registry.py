"""Which connectors there are, and how one is made from a name and options.

Connectors of other packages are found by entry points of the group ``duly.connectors``: a name, and a class (or a function) that takes its
options by keyword. Duly's own are known without them, and their names are theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from duly.kernel.binding import signature_of
from duly.kernel.errors import InvalidArgument
from duly.publishing.connectors.base import Connector

GROUP = "duly.connectors"
#: Name → where its class is. The same stand in pyproject.toml.
BUILT_IN = {
    "facebook": "duly.publishing.connectors.facebook:FacebookConnector",
    "folder": "duly.publishing.connectors.folder:FolderConnector",
    "instagram": "duly.publishing.connectors.instagram:InstagramConnector",
    "newsletter": "duly.publishing.connectors.newsletter:NewsletterConnector",
    "webhook": "duly.publishing.connectors.webhook:WebhookConnector",
    "wordpress": "duly.publishing.connectors.wordpress:WordPressConnector",
}


def names() -> list[str]:
    """The connectors that can be named, those of other packages included."""
    return sorted({*BUILT_IN, *_others()})


def find(name: str) -> Callable[..., Connector]:
    """The class of a connector. Raises InvalidArgument: nobody knows the name, or what it needs is not installed."""
    try:
        if name in BUILT_IN:
            module, _, kind = BUILT_IN[name].partition(":")
            found: Callable[..., Connector] = getattr(import_module(module), kind)
            return found
        other = _others().get(name)
        if other is None:
            raise InvalidArgument("connector", f"there is none called {name!r}; there are {', '.join(names())}.")
        found = other.load()
    except ImportError as error:
        remedy = "pip install duly[publishing]" if name in BUILT_IN else ""
        raise InvalidArgument("connector", f"{name} needs a library that is not there: {error.name}.", remedy) from None
    if not callable(found):
        raise InvalidArgument("connector", f"the entry point {name!r} names no class.")
    return found


def make(name: str, options: Mapping[str, Any] | None = None, **given: Any) -> Connector:
    """A connector by its name. ``options``: as a channel's configuration has them. ``given``: what the application has (``clock``,
    ``enqueue``, ``beside``); a connector gets those that it takes and that the options do not name. Raises InvalidArgument.
    """
    kind, chosen = find(name), dict(options or {})
    takes = signature_of(kind).parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        strange = sorted(set(chosen) - set(takes))
        if strange:
            raise InvalidArgument(
                f"options.{strange[0]}", f"{name} knows no such option; it knows {', '.join(sorted(takes))}."
            )
    lacking = [
        n for n, one in takes.items()
        if one.default is one.empty and one.kind is one.KEYWORD_ONLY and n not in chosen and n not in given
    ]  # fmt: skip
    if lacking:
        raise InvalidArgument(f"options.{lacking[0]}", f"is missing; {name} cannot do without it.")
    try:
        return kind(**{n: v for n, v in given.items() if n in takes} | chosen)
    except InvalidArgument as error:
        raise InvalidArgument(f"options.{error.field}", error.problem, error.remedy) from None


def _others() -> dict[str, EntryPoint]:
    """What other packages have, by name."""
    return {one.name: one for one in entry_points(group=GROUP) if one.name not in BUILT_IN}

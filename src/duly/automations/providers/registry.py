"""Which AI providers there are, and how one is made from a name and the settings.

Providers of other packages are found by entry points of the group ``duly.ai_providers``: a name, and what makes one of ``Settings``.
Duly's own are known without them, and their names are theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from duly.automations.providers.base import Prices, Provider
from duly.kernel.errors import InvalidArgument
from duly.settings import Settings

GROUP = "duly.ai_providers"
Factory: TypeAlias = Callable[[Settings], Provider]


def scripted(settings: Settings) -> Provider:
    """The one that reads its answers from ``ai_script``. Raises InvalidArgument: all that is wrong with the script."""
    from duly.automations.providers.scripted import Scripted

    return Scripted(settings.ai_script or None, prices=prices(settings))


def openai(settings: Settings) -> Provider:
    """Any API that is like OpenAI's. Raises InvalidArgument."""
    from duly.automations.providers.openai import OpenAICompatible

    return OpenAICompatible(
        base_url=settings.ai_base_url, model=settings.ai_model, key=settings.ai_api_key or None, prices=prices(settings),
        timeout=settings.ai_timeout, max_tokens=settings.ai_max_tokens,
    )  # fmt: skip


def anthropic(settings: Settings) -> Provider:
    """Anthropic's Messages. Raises InvalidArgument."""
    from duly.automations.providers.anthropic import Anthropic

    return Anthropic(
        base_url=settings.anthropic_base_url, model=settings.anthropic_model, key=settings.anthropic_api_key or None, prices=prices(settings),
        timeout=settings.ai_timeout, max_tokens=settings.ai_max_tokens,
    )  # fmt: skip


#: The same stand in pyproject.toml.
BUILT_IN: dict[str, Factory] = {"anthropic": anthropic, "openai": openai, "scripted": scripted}


def names() -> list[str]:
    """The providers that can be named, those of other packages included."""
    return sorted({*BUILT_IN, *_others()})


def named(name: str, settings: Settings) -> Provider:
    """A provider by its name, made anew. Raises InvalidArgument: nobody knows the name, what it needs is not installed, or a setting of it
    is wrong. A key or a model that is missing is said when it is asked (a Refusal, AUTH).
    """
    factory = BUILT_IN.get(name)
    if factory is None:
        other = _others().get(name)
        if other is None:
            raise InvalidArgument("ai_provider", f"there is none called {name!r}; there are {', '.join(names())}.")
        try:
            factory = other.load()
        except (ImportError, AttributeError) as error:
            raise InvalidArgument("ai_provider", f"{name} cannot be loaded from {other.value}: {error}.") from None
        if not callable(factory):
            raise InvalidArgument("ai_provider", f"the entry point {name!r} names nothing that makes a provider.")
    return factory(settings)


def prices(settings: Settings) -> Prices | None:
    """What ``ai_price_input`` and ``ai_price_output`` say; None when neither is set. One that is not set counts as nothing."""
    if settings.ai_price_input is None and settings.ai_price_output is None:
        return None
    return Prices(settings.ai_price_input or 0.0, settings.ai_price_output or 0.0)


def _others() -> dict[str, EntryPoint]:
    """What other packages have, by name."""
    return {one.name: one for one in entry_points(group=GROUP) if one.name not in BUILT_IN}

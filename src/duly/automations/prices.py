"""What an answer costs: by provider and model.

Asked in this order: the setting ``ai_prices``; the prices that a provider was configured with (``ai_price_input``, ``ai_price_output``), for
the model that it was configured with; the list of the package genai-prices, which comes with ``duly[ai]`` and is read offline. A model that
none of them knows has no price: its cost counts as nothing, and a bound in cents is refused for it (ADR 0038).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import orjson

from duly.automations.providers.base import Prices, Provider, Usage
from duly.kernel.errors import InvalidArgument
from duly.kernel.recurrence.reading import quoted

#: What a use costs, in millionths of a cent.
Cost: TypeAlias = Callable[[Usage], int]
#: Providers whose models the list is asked for.
_LISTED = ("openai", "anthropic")


def read_table(text: str) -> Mapping[str, Prices]:
    """The setting ``ai_prices``: ``{"MODEL" or "PROVIDER/MODEL" or "PROVIDER/*": [input, output]}``, cents per million tokens. Raises
    InvalidArgument."""
    if not text.strip():
        return {}
    shape = 'Give a JSON object such as {"gpt-5-mini": [25, 200], "openai/*": [0, 0]}, in cents per million tokens.'
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument("ai_prices", f"is not JSON: {error}.", shape) from None
    if not isinstance(found, dict):
        raise InvalidArgument("ai_prices", f"is {quoted(found)}.", shape)
    table = {}
    for name, pair in found.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(_is_price(one) for one in pair):
            raise InvalidArgument(f"ai_prices[{quoted(name)}]", f"is {quoted(pair)}.", shape)
        table[name] = Prices(*pair)
    return table


def cost_of(table: Mapping[str, Prices], provider: Provider, model: str | None) -> Cost | None:
    """What answers of a model cost; None where nobody knows. ``model`` None: the one that the provider was configured with."""
    own = getattr(provider, "model", None)
    wanted = model or own or ""
    for name in (f"{provider.name}/{wanted}", wanted, f"{provider.name}/*"):
        if name and name in table:
            return table[name].micros
    if provider.prices is not None and model in (None, own):
        return provider.prices.micros
    return _listed(wanted, getattr(provider, "url", None)) if wanted and provider.name in _LISTED else None


def _listed(model: str, url: str | None) -> Cost | None:
    """What the list of genai-prices says of a model at a URL; None where the package is not there or does not know it."""
    try:
        import genai_prices
    except ImportError:
        return None

    def dollars(usage: Usage) -> Any:
        used = genai_prices.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        return genai_prices.calc_price(used, model, provider_api_url=url).total_price

    def micros(usage: Usage) -> int:
        made: int = round(dollars(usage) * 100_000_000)
        return made

    try:
        dollars(Usage(1, 1))
    except (LookupError, ValueError):
        return None
    return micros


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12

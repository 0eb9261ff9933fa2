"""What sessions are run with: providers, and the tools that they may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from duly.automations.ground import Ground
from duly.automations.host import Host
from duly.automations.prices import Cost, cost_of, read_table
from duly.automations.providers.base import Prices, Provider
from duly.automations.tools import Toolbox
from duly.kernel.payload import check_name

F = TypeVar("F", bound=Callable[..., Any])


class Equipment(Ground):
    """Providers by name, and the tools."""

    def __init__(self, app: Host) -> None:
        super().__init__(app)
        self.tools = Toolbox(app)
        self._providers: dict[str, Provider] = {}
        self._prices: Mapping[str, Prices] | None = None

    @overload
    def tool(self, fn: F, /) -> F: ...

    @overload
    def tool(self, /, **options: Any) -> Callable[[F], F]: ...

    def tool(self, fn: Any = None, /, **options: Any) -> Any:
        """Let sessions call a function: ``@automations.tool def look_up(order: int) -> dict: …``. See ``Toolbox.add``."""
        if fn is not None:
            self.tools.add(fn)
            return fn

        def register(inner: F) -> F:
            self.tools.add(inner, **options)
            return inner

        return register

    def use(self, name: str, provider: Provider) -> Provider:
        """Name a provider made in code; automations ask it by that name. It goes before one found by entry points."""
        check_name(name, "provider")
        self._providers[name] = provider
        return provider

    def cost(self, provider: Provider, model: str | None = None) -> Cost | None:
        """What answers of a model cost; None where nobody knows. Raises InvalidArgument: the setting ai_prices is wrong."""
        if self._prices is None:
            self._prices = read_table(self._app.settings.ai_prices)
        return cost_of(self._prices, provider, model)

    def provider(self, name: str | None = None) -> Provider:
        """A provider by name; None: the one of the setting ``ai_provider``. Raises InvalidArgument."""
        wanted = name or self._app.settings.ai_provider
        found = self._providers.get(wanted)
        if found is None:
            from duly.automations.providers import registry

            found = self._providers[wanted] = registry.named(wanted, self._app.settings)
        return found

"""What rooms ask of an application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from duly.jobs.engine import Engine
    from duly.kernel.events import Emitter
    from duly.settings import Settings


class Host(Protocol):
    """What an application offers every room; each adds what it alone asks for."""

    settings: Settings

    @property
    def engine(self) -> Engine: ...

    @property
    def events(self) -> Emitter: ...

    def open(self) -> None: ...

    def task(self, name: str, /, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...

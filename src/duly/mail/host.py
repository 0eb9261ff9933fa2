"""What the mail room asks of an application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from duly.jobs.host import Host as AnyHost


class Host(AnyHost, Protocol):
    """What an application offers here besides."""

    @property
    def queues(self) -> Any: ...

    @property
    def jobs(self) -> Any: ...

    def enqueue(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Any: ...

    async def aenqueue(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Any: ...

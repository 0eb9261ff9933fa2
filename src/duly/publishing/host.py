"""What the publishing room asks of an application, and what an application asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from duly.jobs.enqueue import NewJob
from duly.jobs.host import Host as AnyHost


class Host(AnyHost, Protocol):
    """What an application offers here besides."""

    @property
    def queues(self) -> Any: ...

    def join(self, room: Any) -> None: ...

    async def aenqueue(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> Any: ...

    def prepare(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> NewJob: ...

"""What the automations room asks of an application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from duly.jobs.enqueue import NewJob
from duly.jobs.host import Host as AnyHost


class Host(AnyHost, Protocol):
    """What an application offers here besides."""

    def join(self, room: Any) -> None: ...

    def prepare(self, name: str, input: Mapping[str, Any] | None = None, **options: Any) -> NewJob: ...

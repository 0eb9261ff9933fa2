"""Subscribers of the room: functions that are told of runs, publications and first comments that failed (R002-14, R002-20)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from duly.kernel.errors import InvalidArgument, brief
from duly.kernel.events import Emitter
from duly.publishing.view import Publication

R = TypeVar("R")
NAMES = ("process_job", "published", "failed", "ig_first_comment_error")


class Hooks:
    """Subscribers by name. What one raises is told as ``publish_subscriber_failed``, and harms nothing."""

    def __init__(self, events: Emitter) -> None:
        self._events = events
        self._subscribers: dict[str, list[Callable[..., Any]]] = {name: [] for name in NAMES}

    def on(self, name: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Subscribe the decorated function. Raises InvalidArgument."""
        if name not in self._subscribers:
            raise InvalidArgument("name", f"is {name!r}.", f"Use one of: {', '.join(NAMES)}.")

        def subscribe(fn: Callable[..., R]) -> Callable[..., R]:
            self._subscribers[name].append(fn)
            return fn

        return subscribe

    def wanted(self, name: str) -> bool:
        """Is anybody told of it?"""
        return bool(self._subscribers[name])

    async def tell(self, name: str, publication: Publication, facts: Mapping[str, Any]) -> None:
        """Tell, from an event loop: async subscribers on it, plain ones on a thread, one after the other."""
        for fn in tuple(self._subscribers[name]):
            try:
                if inspect.iscoroutinefunction(fn):
                    await fn(publication, facts)
                else:
                    await asyncio.to_thread(fn, publication, facts)
            except Exception as error:
                self._failed(name, publication, error)

    def tell_here(self, name: str, publication: Publication, facts: Mapping[str, Any]) -> None:
        """Tell, from a thread without an event loop: async subscribers on one of their own."""
        for fn in tuple(self._subscribers[name]):
            try:
                if inspect.iscoroutinefunction(fn):
                    asyncio.run(fn(publication, facts))
                else:
                    fn(publication, facts)
            except Exception as error:
                self._failed(name, publication, error)

    def _failed(self, name: str, publication: Publication, error: Exception) -> None:
        self._events.emit("publish_subscriber_failed", "error", subscribed=name, job=publication.id, error=brief(error))

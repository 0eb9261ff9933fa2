"""Django's connections around the handlers of a worker, as Django has them around requests.

A plain handler runs on a thread of the worker's pool, which keeps its connections as long as ``CONN_MAX_AGE`` says. What an async handler
asks of the ORM runs on a thread that belongs to that run alone, as under ASGI, and its connections end with it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections, reset_queries

from duly.jobs.task import Task


def guarded(task: Task[Any, Any]) -> Task[Any, Any]:
    """The task as workers run it. A handler that runs in a process of its own takes care of itself."""
    if task.run_in == "process":
        return task
    wrap = _guarded_async if inspect.iscoroutinefunction(task.fn) else _guarded
    return replace(task, fn=wrap(task.fn))


def _guarded(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        reset_queries()
        close_old_connections()
        try:
            return fn(*args, **kwargs)
        finally:
            close_old_connections()

    return run


def _guarded_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        async with ThreadSensitiveContext() as context:
            try:
                return await fn(*args, **kwargs)
            finally:
                if (
                    context in SyncToAsync.context_to_thread_executor
                ):  # it has asked the ORM, or another synchronous thing
                    await sync_to_async(connections.close_all)()

    return run

"""The Celery task between dispatcher and executor: ``duly.execute``, which runs one job of Duly.

The lease protects the job, so the broker need not: a message that comes twice finds another token and is done with. What
Celery does to protect its own tasks is set for this one so that it never works against the lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from celery import signals
from celery.worker import state
from celery.worker.request import Request as CeleryRequest

from duly.integrations.celery.dispatcher import EXECUTE, MARGIN
from duly.integrations.celery.executor import Home
from duly.jobs.engine import Engine
from duly.kernel.errors import InvalidArgument
from duly.kernel.events import Emitter, Listener
from duly.monitoring.logs import EventLog
from duly.settings import Settings
from duly.storage.database import Database


class Application(Protocol):
    """What is needed of a Duly application."""

    engine: Engine
    db: Database
    settings: Settings
    events: Emitter

    def open(self) -> None: ...

    def listen(self, listener: Listener) -> Callable[[], None]: ...


class Request(CeleryRequest):  # type: ignore[misc]
    """A message of ``duly.execute``, as a Celery worker's main process handles it."""

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """A lost connection to the broker ends no job: its lease is in the database, and the message that is delivered again
        finds another token. (For other tasks, ``worker_cancel_long_running_tasks_on_connection_loss`` decides.)"""
        if any(asked is not None and asked is not False for asked in (state.should_stop, state.should_terminate)):
            super().cancel(pool, *args, **kwargs)  # the worker is ending; 0 is an exit code too


def install_executor(celery_app: Any, duly_app: Application) -> Any:
    """Let the workers of a Celery application run the jobs of a Duly application. Returns the Celery task, ``duly.execute``.

    Call it where the Celery application is made, so that every worker of the fleet does. Events of jobs go to Celery's log.
    Raises InvalidArgument for what is no Celery or no Duly application.
    """
    if not hasattr(celery_app, "send_task"):
        raise InvalidArgument("celery_app", f"is of type {type(celery_app).__name__}.", "Give a Celery application.")
    if not isinstance(getattr(duly_app, "engine", None), Engine):
        raise InvalidArgument("duly_app", f"is of type {type(duly_app).__name__}.", "Give a Duly application.")
    home = Home(duly_app, lambda: _celery_log(duly_app.settings))

    def execute(self: Any, job: int, token: int) -> str:
        """Run one job of Duly."""
        executor = home.executor(self.request.hostname or "celery")
        return executor.execute(job, token, _limit(self))

    # One handler for each pool: processes say when they end, threads and the solo pool end with the worker.
    signals.worker_process_shutdown.connect(lambda **_: home.close(), weak=False)
    signals.worker_shutdown.connect(lambda **_: home.close(), weak=False)
    return celery_app.task(
        execute,
        name=EXECUTE,
        bind=True,
        Request=Request,
        # a worker that is lost before it began gives the message to another one
        acks_late=True,
        reject_on_worker_lost=True,
        retry_on_worker_lost=False,
        ignore_result=True,
        typing=False,
    )


def _limit(task: Any) -> float | None:
    """How long a run without a timeout of its own may take: a little less than Celery lets it, so that its end can be written."""
    hard, soft = task.request.timelimit or (None, None)
    conf = task.app.conf
    first = soft or task.soft_time_limit or conf.task_soft_time_limit or hard or task.time_limit or conf.task_time_limit
    return None if not first else float(first) - min(MARGIN / 2, first / 10)


def _celery_log(settings: Settings) -> EventLog:
    """A listener that writes events into Celery's own log."""
    logger = structlog.wrap_logger(
        logging.getLogger("duly"),
        processors=[structlog.processors.LogfmtRenderer(key_order=["event"], drop_missing=True, bool_as_flag=False)],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return EventLog(logger, settings.log_level)

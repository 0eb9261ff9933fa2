"""Events as log lines: JSON for machines, a console for people.

``EventLog`` listens to the application's events. What is below the level is dropped before anything is formatted; a
batch (``jobs_settled``, ``jobs_claimed``) becomes a line per job only when debug is on. The logger is private: it does
not touch what the application has configured in structlog. ``adopt_logging`` gives lines of the standard ``logging``
module (handlers' own, libraries') the same form, unless the application has set that up itself.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TextIO

import structlog

from duly.kernel.events import PROCESS, Event
from duly.monitoring.redact import hide_passwords, visible
from duly.settings import Settings

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
#: Names that a line uses itself; a fact of that name gets an underscore behind it.
_TAKEN = frozenset({"event", "level", "timestamp", "logger"})


class EventLog:
    """A listener that writes each event of at least ``level`` as a line."""

    def __init__(self, logger: Any, level: str = "info") -> None:
        self._logger, self._least = logger, LEVELS[level]

    def __call__(self, event: Event) -> None:
        number = LEVELS[event.level]
        if number < self._least:
            return
        for name, facts in lines(event):
            self._logger.log(number, name, **{f"{k}_" if k in _TAKEN else k: v for k, v in facts.items()})


def watch_logs(settings: Settings | None = None, stream: TextIO | None = None) -> Callable[[], None]:
    """Write what happens outside any application as log lines: for an API process that sends after its commits, or a Celery
    worker with idempotent tasks. Returns a function that stops it. Without it only trouble is told, through ``logging``."""
    return PROCESS.listen(event_log(settings or Settings.load(), stream))


def lines(event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, facts) of the lines of an event: one, or one per job of a batch."""
    facts = dict(event.facts)
    if event.name == "jobs_settled":
        for queue, task, outcome, seconds in facts.pop("jobs"):
            yield (
                "job_settled",
                {"queue": queue, "task": task, "outcome": outcome, "seconds": round(seconds, 6), **facts},
            )
    elif event.name == "jobs_claimed":
        for queue, task, lag in facts.pop("lags"):
            yield "job_claimed", {"queue": queue, "task": task, "lag": round(lag, 6), **facts}
    else:
        yield event.name, facts


def event_log(settings: Settings, stream: TextIO | None = None) -> EventLog:
    """A listener for ``settings.log_level`` and ``settings.log_format`` that writes to ``stream`` (stderr)."""
    stream = stream or sys.stderr
    shared, render = _processors(settings.log_format, stream)
    logger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[structlog.stdlib.add_log_level, *shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return EventLog(logger, settings.log_level)


def adopt_logging(settings: Settings, stream: TextIO | None = None) -> None:
    """Give the standard ``logging`` the same form and level, unless a handler is set up already."""
    root = logging.getLogger()
    if root.handlers:
        return
    stream = stream or sys.stderr
    shared, render = _processors(settings.log_format, stream)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root.addHandler(handler)
    root.setLevel(LEVELS[settings.log_level])
    for chatty in ("alembic", "asyncio"):
        logger = logging.getLogger(chatty)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def coloured(stream: TextIO) -> bool:
    """May this stream be written in colour? Not into a pipe, and not when NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def for_people(log_format: str, stream: TextIO) -> bool:
    """Console lines rather than JSON?"""
    return log_format == "console" or (log_format == "auto" and stream.isatty())


def _processors(log_format: str, stream: TextIO) -> tuple[list[Any], Any]:
    if for_people(log_format, stream):
        local = stream.isatty()
        stamper = structlog.processors.TimeStamper(fmt="%H:%M:%S" if local else "iso", utc=not local)
        renderer: Any = structlog.dev.ConsoleRenderer(
            colors=coloured(stream), exception_formatter=structlog.dev.plain_traceback
        )
        return [stamper, _clean], renderer
    render = structlog.processors.JSONRenderer(serializer=_dumps)
    stamper = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [stamper, structlog.processors.format_exc_info, _clean, _ordered], render


def _ordered(_logger: Any, _method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """When, how bad and what first; then the rest as it came."""
    first = {key: facts.pop(key) for key in ("timestamp", "level", "event") if key in facts}
    return {**first, **facts}


def _dumps(value: Any, **_: Any) -> str:
    import orjson

    return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _clean(_logger: Any, _method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Nothing secret, nothing that steers a terminal."""
    for key, value in facts.items():
        if isinstance(value, str):
            facts[key] = visible(hide_passwords(value), keep="\n\t" if key == "exception" else "")
    return facts

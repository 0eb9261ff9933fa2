"""Events as log lines: JSON for machines, a console for people.

``EventLog`` listens to the application's events. What is below the level is dropped before anything is formatted; a
batch (``jobs_settled``, ``jobs_claimed``) becomes a line per job only when debug is on. ``adopt_logging`` gives lines of the
standard ``logging`` module (handlers' own, libraries') the same form, unless the application has set that up itself.

The console is structlog's (``console``), with a private logger: what the application has configured in structlog is not touched.
JSON lines have the form of structlog's, and are written here: structlog loads rich, and the two take five megabytes of each worker.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import orjson

from duly.clock import SystemClock
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
    if for_people(settings.log_format, stream):
        from duly.monitoring.console import logger

        return EventLog(logger(stream, LEVELS[settings.log_level]), settings.log_level)
    return EventLog(_JsonLines(stream), settings.log_level)


def adopt_logging(settings: Settings, stream: TextIO | None = None) -> None:
    """Give the standard ``logging`` the same form and level, unless a handler is set up already."""
    root = logging.getLogger()
    if root.handlers:
        return
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    if for_people(settings.log_format, stream):
        from duly.monitoring.console import formatter

        handler.setFormatter(formatter(stream))
    else:
        handler.setFormatter(_JsonFormatter())
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


class _JsonLines:
    """Writes events as JSON lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def log(self, level: int, event: str, /, **facts: Any) -> None:
        self._stream.write(_line(logging.getLevelName(level).lower(), event, facts) + "\n")
        self._stream.flush()


class _JsonFormatter(logging.Formatter):
    """Lines of the standard ``logging`` as such lines."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            facts["stack_info"] = record.stack_info
        return _line(record.levelname.lower(), record.getMessage(), facts)


def _line(level: str, event: str, facts: Mapping[str, Any]) -> str:
    """When, how bad and what first; then the rest as it came."""
    now = SystemClock().now().isoformat().replace("+00:00", "Z")
    line = clean({"timestamp": now, "level": level, "event": event, **facts})
    return orjson.dumps(line, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def clean(facts: dict[str, Any]) -> dict[str, Any]:
    """The same facts: nothing secret, nothing that steers a terminal."""
    for key, value in facts.items():
        if isinstance(value, str):
            facts[key] = visible(hide_passwords(value), keep="\n\t" if key == "exception" else "")
    return facts

"""Log lines for people, by structlog: loaded where somebody reads them."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from duly.monitoring.logs import clean, coloured


def logger(stream: TextIO, level: int) -> Any:
    """A logger of its own that writes to ``stream`` what is of at least ``level``."""
    shared, render = _processors(stream)
    return structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[structlog.stdlib.add_log_level, *shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
        cache_logger_on_first_use=False,
    )


def formatter(stream: TextIO) -> logging.Formatter:
    """The same form for lines of the standard ``logging``."""
    shared, render = _processors(stream)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
    )


def _processors(stream: TextIO) -> tuple[list[Any], Any]:
    local = stream.isatty()
    stamper = structlog.processors.TimeStamper(fmt="%H:%M:%S" if local else "iso", utc=not local)
    renderer = structlog.dev.ConsoleRenderer(colors=coloured(stream), exception_formatter=structlog.dev.plain_traceback)
    return [stamper, _clean], renderer


def _clean(_logger: Any, _method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return clean(facts)  # type: ignore[arg-type]

"""The trace that work belongs to: W3C Trace Context, carried beside jobs, messages and Celery tasks.

Where OpenTelemetry is in use and a span is current, that span is the context. Otherwise it is what the work that is
being run brought along, so that what a job enqueues belongs to the trace that enqueued the job. Nothing is ever invented:
without a trace there is none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: https://www.w3.org/TR/trace-context/#traceparent-header, version 00. A parser of one ignores what later versions append.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")

_brought: ContextVar[str | None] = ContextVar("duly_traceparent", default=None)

_sources: list[Callable[[], str | None]] = []


def source(ask: Callable[[], str | None]) -> Callable[[], str | None]:
    """Let ``ask`` say which ``traceparent`` the work that runs here brought along (None: none)."""
    _sources.append(ask)
    return ask


def traceparent() -> str | None:
    """The present trace context as the value of a ``traceparent`` header; None outside any trace."""
    # an optional extra: where nobody has loaded it no span is current, and nothing is loaded for the question
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if current is not None:
        span = current().get_span_context()
        if span.is_valid:
            return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    brought = _brought.get()
    if brought is None:
        for ask in _sources:
            if (found := ask()) is not None:
                return found
    return brought


def trace_id() -> str | None:
    """The present trace's id, 32 hexadecimal digits, for logs."""
    header = traceparent()
    return header[3:35] if header else None


def checked(header: object) -> str | None:
    """A ``traceparent`` that came from outside, or None when it is not one."""
    return header if isinstance(header, str) and len(header) <= 256 and _TRACEPARENT.fullmatch(header) else None


@contextmanager
def carried(header: object) -> Iterator[None]:
    """Within: work that brought this ``traceparent`` along. Anything else than one is no trace."""
    token = _brought.set(checked(header))
    try:
        yield
    finally:
        _brought.reset(token)

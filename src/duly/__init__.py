"""Duly: jobs done on time, once, and on the record.

The public face. Everything a program needs is imported from here; rooms with more to say have a module of their own
(``duly.testing``).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from duly._version import __version__

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.jobs.job import Enqueued, Job, Status
    from duly.jobs.run import INJECT, Context
    from duly.jobs.task import Task
    from duly.jobs.worker import Worker
    from duly.kernel.backoff import Backoff
    from duly.kernel.errors import (
        BlockingCallWarning,
        Cancel,
        DatabaseUnavailable,
        DulyError,
        InvalidArgument,
        InvalidPayload,
        KeyConflict,
        NotFound,
        PermanentError,
        Retry,
        Snooze,
        UnknownName,
        UnknownNameWarning,
        UnknownTask,
        UnsafeSession,
        UsageError,
        WrongState,
    )
    from duly.kernel.recurrence import Cron, Daily, Every, Moments, Monthly, Once, OnDates, RRule, Weekly, Yearly
    from duly.kernel.windows import Window

__all__ = [
    "INJECT",
    "Backoff",
    "BlockingCallWarning",
    "Cancel",
    "Context",
    "Cron",
    "Daily",
    "DatabaseUnavailable",
    "Duly",
    "DulyError",
    "Enqueued",
    "Every",
    "InvalidArgument",
    "InvalidPayload",
    "Job",
    "KeyConflict",
    "Moments",
    "Monthly",
    "NotFound",
    "OnDates",
    "Once",
    "PermanentError",
    "RRule",
    "Retry",
    "Snooze",
    "Status",
    "Task",
    "UnknownName",
    "UnknownNameWarning",
    "UnknownTask",
    "UnsafeSession",
    "UsageError",
    "Weekly",
    "Window",
    "Worker",
    "WrongState",
    "Yearly",
    "__version__",
]

#: Where these names live; each module is imported when a name of it is first asked for, so that ``duly --help`` does not wait for
#: SQLAlchemy. A test holds this against ``__all__``.
_HOMES = {
    "duly.app": ("Duly",),
    "duly.jobs.job": ("Enqueued", "Job", "Status"),
    "duly.jobs.run": ("INJECT", "Context"),
    "duly.jobs.task": ("Task",),
    "duly.jobs.worker": ("Worker",),
    "duly.kernel.backoff": ("Backoff",),
    "duly.kernel.errors": (
        "BlockingCallWarning",
        "Cancel",
        "DatabaseUnavailable",
        "DulyError",
        "InvalidArgument",
        "InvalidPayload",
        "KeyConflict",
        "NotFound",
        "PermanentError",
        "Retry",
        "Snooze",
        "UnknownName",
        "UnknownNameWarning",
        "UnknownTask",
        "UnsafeSession",
        "UsageError",
        "WrongState",
    ),
    "duly.kernel.recurrence": (
        "Cron",
        "Daily",
        "Every",
        "Moments",
        "Monthly",
        "OnDates",
        "Once",
        "RRule",
        "Weekly",
        "Yearly",
    ),
    "duly.kernel.windows": ("Window",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = globals()[name] = getattr(import_module(_HOME[name]), name)
        return found
    raise AttributeError(f"module 'duly' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Duly: jobs done on time, once, and on the record.

The public face. Everything a program needs is imported from here; rooms with more to say have a module of their own
(``duly.testing``).
"""

from duly._version import __version__
from duly.app import Duly
from duly.jobs.job import Enqueued, Job, Status
from duly.jobs.run import Context
from duly.jobs.task import Task
from duly.jobs.worker import Worker
from duly.kernel.backoff import Backoff
from duly.kernel.errors import (
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
    UnknownTask,
    UnsafeSession,
    UsageError,
    WrongState,
)

__all__ = [
    "Backoff",
    "Cancel",
    "Context",
    "DatabaseUnavailable",
    "Duly",
    "DulyError",
    "Enqueued",
    "InvalidArgument",
    "InvalidPayload",
    "Job",
    "KeyConflict",
    "NotFound",
    "PermanentError",
    "Retry",
    "Snooze",
    "Status",
    "Task",
    "UnknownTask",
    "UnsafeSession",
    "UsageError",
    "Worker",
    "WrongState",
    "__version__",
]

"""Schedules: recurring work as rows, and a ledger of every occurrence.

A recurrence (``Cron``, ``Daily`` …) says when, a schedule what and by which policies, an occurrence what became of one planned instant.
``app.schedules`` is the door (``door``); ``plan`` decides without a database, ``tick`` acts, ``store`` holds the statements.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.kernel.recurrence import SpecialDay, schedule_from_json, schedule_from_text, special_days
    from duly.schedules.door import Backfill, Previewed, Schedules
    from duly.schedules.schedule import Occurrence, Policies, Schedule, Spec, Status, Trigger
    from duly.schedules.tick import Scheduler, TickReport

__all__ = [
    "Backfill",
    "Occurrence",
    "Policies",
    "Previewed",
    "Schedule",
    "Scheduler",
    "Schedules",
    "Spec",
    "SpecialDay",
    "Status",
    "TickReport",
    "Trigger",
    "schedule_from_json",
    "schedule_from_text",
    "special_days",
]

_KERNEL, _NOUNS = "duly.kernel.recurrence", "duly.schedules.schedule"
#: Where these names live; each module is imported when a name of it is first asked for.
_HOMES = {
    "Backfill": "duly.schedules.door",
    "Occurrence": _NOUNS,
    "Policies": _NOUNS,
    "Previewed": "duly.schedules.door",
    "Schedule": _NOUNS,
    "Scheduler": "duly.schedules.tick",
    "Schedules": "duly.schedules.door",
    "Spec": _NOUNS,
    "SpecialDay": _KERNEL,
    "Status": _NOUNS,
    "TickReport": "duly.schedules.tick",
    "Trigger": _NOUNS,
    "schedule_from_json": _KERNEL,
    "schedule_from_text": _KERNEL,
    "special_days": _KERNEL,
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module 'duly.schedules' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

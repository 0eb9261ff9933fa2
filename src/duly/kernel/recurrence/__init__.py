"""When next? Schedules as frozen values that answer by themselves, without a clock, a database or a thread.

=============  ====================================================================================================
``Cron``       five fields or a nickname, hashed fields; fixed times and elapsed time told apart as Debian's cron does
``Every``      a fixed interval of elapsed time on a grid
``Daily``      at local times of every day
``Weekly``     at local times of some days of the week
``Monthly``    at local times of some days of the month: by number, the last, the second Tuesday
``Yearly``     at local times of some days of the year
``OnDates``    at local times of given dates
``Moments``    at single local dates and times
``Once``       at one instant
``RRule``      a calendar rule of RFC 5545
=============  ====================================================================================================

``schedule`` holds the face that they share and the rule for days on which clocks change; ``reading`` reads what people
write; ``dates``, ``cron_text`` and ``rrule_text`` know calendars and grammars; ``forms`` are JSON and text; ``special``
and ``words`` tell people. Nothing here imports more than ``kernel`` and, to take expressions apart, ``cronsim``.
"""

from duly.kernel.recurrence.civil import Daily, Moments, Monthly, OnDates, Weekly, Yearly
from duly.kernel.recurrence.cron import Cron
from duly.kernel.recurrence.elapsed import Every, Once
from duly.kernel.recurrence.forms import schedule_from_json, schedule_from_text
from duly.kernel.recurrence.rrule import RRule
from duly.kernel.recurrence.schedule import CivilSchedule, Recurring, Schedule
from duly.kernel.recurrence.special import SpecialDay, special_days

__all__ = [
    "CivilSchedule",
    "Cron",
    "Daily",
    "Every",
    "Moments",
    "Monthly",
    "OnDates",
    "Once",
    "RRule",
    "Recurring",
    "Schedule",
    "SpecialDay",
    "Weekly",
    "Yearly",
    "schedule_from_json",
    "schedule_from_text",
    "special_days",
]

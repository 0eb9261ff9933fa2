"""``/api/v1``: every room over REST. One file a room, and ``bulk.py`` for acts on many jobs; ``common.py`` is what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duly.app import Duly
from duly.web.api import (
    accounts,
    automations,
    events,
    jobs,
    keys,
    mail,
    outbox,
    queues,
    rounds,
    schedules,
    system,
    workflows,
)

#: The routers, in the order of the description, behind that of ``bulk.py``.
ROUTERS: tuple[Callable[[Duly], Any], ...] = (
    jobs.routes,
    queues.routes,
    schedules.routes,
    workflows.routes,
    keys.routes,
    outbox.routes,
    rounds.routes,
    mail.routes,
    automations.routes,
    system.routes,
    events.routes,
    accounts.routes,
)

"""The pages, one file each. ``routes(desk)`` of a file gives its routes."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from duly.web.dashboard.desk import Desk
from duly.web.dashboard.pages import (
    alerts,
    audit,
    automations,
    calendar,
    failures,
    job,
    jobs,
    keys,
    login,
    oidc,
    outbox,
    overview,
    publishing,
    queues,
    rounds,
    schedule_form,
    schedules,
    workflows,
)

PAGES: tuple[Callable[[Desk], APIRouter], ...] = tuple(
    one.routes
    for one in (
        login,
        oidc,
        overview,
        jobs,
        job,
        failures,
        queues,
        schedules,
        schedule_form,
        calendar,
        automations,
        workflows,
        publishing,
        rounds,
        keys,
        outbox,
        audit,
        alerts,
    )
)

"""Blackout calendars, schedules and their ledger, rounds, alerts.

Frozen text, as every revision.
"""

from __future__ import annotations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
#: The oldest revision whose code may still run on this schema.
works_with = "0001"


def upgrade() -> None:
    _calendars()
    _schedules()
    _rounds()
    _alerts()


def _calendars() -> None:
    pass


def _schedules() -> None:
    pass


def _rounds() -> None:
    pass


def _alerts() -> None:
    pass

"""Which leases have lapsed, for those who watch. Nothing decides by these numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from duly.jobs.tables import jobs


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Running jobs whose lease has ended longer ago than a pass of the rescue takes."""

    count: int
    oldest: datetime | None


def lapsed(connection: Connection, before: datetime) -> Lapsed:
    """Running jobs whose lease ended before an instant."""
    query = select(func.count(), func.min(jobs.c.lease_until)).where(
        jobs.c.status == "running", jobs.c.lease_until < before
    )
    return Lapsed(*connection.execute(query).one())

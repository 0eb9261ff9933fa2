"""Which publications belong to a stretch of time, for calendars: those to come, and those that a run has begun. Readers never lock.

However many jobs there are, no more than some of an index are looked at, so in a very full stretch some may be left out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, literal_column, select

from duly.jobs.tables import jobs
from duly.publishing.state import State
from duly.publishing.tables import publications
from duly.publishing.view import COMMENT, PUBLISH

#: Rows of the index of what is due that are looked at.
LOOKED_AT = 20_000
#: A post that began within the stretch may be written on this much later.
AFTER = timedelta(days=1)


def agenda(connection: Connection, start: datetime, end: datetime, tenant: str | None, most: int) -> list[int]:
    """The numbers of publications from ``start`` until before ``end`` (aware): at most ``most`` to come, and of those begun."""
    c, p = jobs.c, publications.c
    queued = c.status == literal_column("'queued'")
    due = (
        select(c.id, c.task, c.tenant, c.due_at).where(queued, c.due_at >= start, c.due_at < end).order_by(c.due_at).limit(LOOKED_AT).subquery()
    )  # fmt: skip
    coming: Any = select(due.c.id).where(due.c.task.in_((PUBLISH, COMMENT)))
    begun: Any = select(p.job_id).where(p.updated_at >= start, p.updated_at < end + AFTER)
    if tenant is not None:
        coming, begun = coming.where(due.c.tenant == tenant), begun.where(p.tenant == tenant)
    found = set(connection.execute(coming.order_by(due.c.due_at).limit(most)).scalars())
    for state in State:
        of = begun.where(p.state == state.value).order_by(p.updated_at.desc()).limit(most)
        found.update(connection.execute(of).scalars())
    return sorted(found)

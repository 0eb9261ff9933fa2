"""Removing jobs and keys that are past their time, in portions: what housekeeping does by itself, and people by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, func, or_, select, update

from duly.jobs.job import Status
from duly.jobs.tables import attempts, job_keys, jobs, jobs_done
from duly.storage.database import Database
from duly.storage.qualified import text

#: Jobs removed in one transaction.
PORTION = 1000
#: Jobs that a session of an AI still waits for, ended or not: it may be paused for longer than jobs are kept. Rooms above this one are asked by
#: the names of their tables, as any worker of the database prunes, whichever rooms its application has. Sessions that have not ended are few, and
#: are found by partial indexes whose words these are; without any, this costs two looks at nothing.
_AWAITED = """(
SELECT c.job_id FROM ai_sessions s JOIN ai_calls c ON c.session_id = s.id
WHERE s.status = 'active' AND c.status = 'waiting' AND c.job_id IS NOT NULL
UNION ALL
SELECT c.job_id FROM ai_sessions s JOIN ai_calls c ON c.session_id = s.id
WHERE s.status IN ('queued', 'interrupted') AND c.status = 'waiting' AND c.job_id IS NOT NULL
)"""


def prune(db: Database, older_than: datetime, statuses: Sequence[Status] = (), dry_run: bool = False) -> int:
    """Remove jobs that ended before an instant, with their attempts. Keys stay (T002-p). Returns how many.

    Children of a live parent stay, and so do jobs whose end a session of an AI has still to be told.
    """
    alive = select(jobs.c.id).where(jobs.c.id == jobs_done.c.parent_id)
    # a parent that lives may still ask what became of its children
    where = [
        jobs_done.c.finished_at < older_than,
        or_(jobs_done.c.parent_id.is_(None), ~alive.exists()),
        jobs_done.c.id.not_in(text(_AWAITED)),
    ]
    if statuses:
        where.append(jobs_done.c.status.in_([str(s) for s in statuses]))
    if dry_run:
        count = select(func.count()).select_from(jobs_done).where(*where)
        return db.read(lambda c: c.execute(count).scalar_one())
    total = 0
    while True:

        def portion(connection: Connection) -> int:
            query = select(jobs_done.c.id).where(*where).limit(PORTION).with_for_update(skip_locked=True)
            ids = list(connection.execute(query).scalars())
            if ids:
                _remember_until(db, connection, ids)
                connection.execute(delete(attempts).where(attempts.c.job_id.in_(ids)))
                connection.execute(delete(jobs_done).where(jobs_done.c.id.in_(ids)))
            return len(ids)

        n = db.write(portion)
        total += n
        if n < PORTION:
            return total


def prune_expired(db: Database) -> int:
    """What housekeeping removes: jobs past their retention, keys past theirs. Returns how many jobs."""
    now, s = db.clock.now(), db.settings
    gone = prune(db, now - timedelta(seconds=s.retention)) if s.retention > 0 else 0
    # a key whose instant has passed may be taken over anyway; after a day it is only litter
    litter = delete(job_keys).where(job_keys.c.until.is_not(None), job_keys.c.until < now - timedelta(days=1))
    db.write(lambda c: c.execute(litter))
    return gone


def _remember_until(db: Database, connection: Connection, ids: Sequence[int]) -> None:
    """Note in the keys of jobs that are removed how these ended and of which task they were, and give the keys their end, if keys have one."""
    ended, task = (
        select(column).where(jobs_done.c.id == job_keys.c.job_id).scalar_subquery()
        for column in (jobs_done.c.status, jobs_done.c.task)
    )
    connection.execute(update(job_keys).where(job_keys.c.job_id.in_(ids)).values(ended=ended, task=task))
    keep = db.settings.key_retention
    if keep > 0:
        until = db.clock.now() + timedelta(seconds=keep)
        connection.execute(
            update(job_keys).where(job_keys.c.job_id.in_(ids), job_keys.c.until.is_(None)).values(until=until)
        )

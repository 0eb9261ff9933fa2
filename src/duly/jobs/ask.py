"""Gathering the facts for ``why`` from the database."""

from __future__ import annotations

from sqlalchemy import Connection, and_, func, or_, select

from duly.jobs.engine import Engine
from duly.jobs.filter import JobFilter
from duly.jobs.job import LIVE, Job
from duly.jobs.queues import QueueSettings
from duly.jobs.tables import job_keys, jobs
from duly.jobs.why import Check, KeyOwner, WhyFacts, WorkerFacts, why

#: A worker that has not been seen for this many seconds is not alive.
WORKER_GONE = 20.0


def ask_why(engine: Engine, ident: int, tenant: str | None = None) -> list[Check]:
    """The conditions of one job. Raises NotFound."""
    return why(engine.db.read(lambda c: facts(engine, c, ident, tenant)))


def facts(engine: Engine, connection: Connection, ident: int, tenant: str | None = None) -> WhyFacts:
    job = engine.reader.get(connection, ident, tenant)
    settings: QueueSettings = engine.queues.get(connection, job.queue)
    running = [jobs.c.queue == job.queue, jobs.c.status == "running"]
    few = select(jobs.c.id).where(*running).order_by(jobs.c.id).limit(10)
    key_held = []
    if job.concurrency_key is not None:
        key_held = list(
            connection.execute(few.where(jobs.c.concurrency_key == job.concurrency_key, jobs.c.id != job.id)).scalars()
        )
    first = or_(
        jobs.c.priority > job.priority,
        and_(
            jobs.c.priority == job.priority,
            or_(jobs.c.run_at < job.run_at, and_(jobs.c.run_at == job.run_at, jobs.c.id < job.id)),
        ),
    )
    ready = (
        select(jobs.c.id)
        .where(jobs.c.queue == job.queue, jobs.c.status == "queued", jobs.c.due_at.is_(None), first)
        .limit(10_000)
    )
    workers = [
        WorkerFacts(w["name"], frozenset(w["queues"]), frozenset(w["tasks"]), w["state"], w["age"])
        for w in engine.reader.live_workers(connection, WORKER_GONE)
    ]
    return WhyFacts(
        job=job, now=engine.clock.now(), queue=engine.queues.facts(connection, settings), workers=workers,
        limit_held_by=list(connection.execute(few).scalars()) if settings.limit is not None else [],
        key_held_by=key_held, key_limit=settings.key_limit,
        ahead=connection.execute(select(func.count()).select_from(ready.subquery())).scalar_one(),
        open_children=engine.reader.count(connection, JobFilter(parent_id=job.id, status=LIVE)),
        key_owner=_key_owner(engine, connection, job),
        needs=connection.execute(select(jobs.c.needs).where(jobs.c.id == job.id)).scalar(),
    )  # fmt: skip


def _key_owner(engine: Engine, connection: Connection, job: Job) -> KeyOwner | None:
    """Who has the job's idempotency key, by the clock that decides about keys."""
    if job.key is None:
        return None
    k = job_keys.c
    valid = or_(k.until.is_(None), k.until > engine.db.present(connection))
    query = select(k.job_id, k.scope, k.until).where(k.tenant == job.tenant, k.queue == job.queue, k.key == job.key)
    row = connection.execute(query.where(valid)).first()
    return KeyOwner(row.job_id, row.scope, row.until) if row is not None else None

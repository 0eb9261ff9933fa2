"""Keys of jobs, as people see them: which job holds one, until when, and forgetting it after a mistake. Source: R002-2."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, Select, and_, delete, func, or_, select, tuple_

from duly.audit.store import record
from duly.jobs.job import LIVE, Status
from duly.jobs.tables import job_keys, jobs, jobs_done
from duly.kernel.errors import InvalidArgument, NotFound, WrongState
from duly.kernel.payload import check_id, check_text, check_whole
from duly.storage.database import Database

FORGOTTEN = "JOB_KEY_FORGOTTEN"
#: Keys that one page of a list looks at. A task is known by the keys' jobs only, so what is of another task is looked at, too.
LOOKED = 10_000
#: Keys that are read at a time.
PORTION = 500

k = job_keys.c


@dataclass(frozen=True, slots=True)
class JobKey:
    """A key of ``enqueue(key=…)`` that is taken, and the job that holds it."""

    tenant: str
    queue: str
    key: str
    job_id: int
    #: None where the job was pruned by a version that did not note it.
    task: str | None
    status: Status | None
    #: The job's row is gone; the key is remembered.
    pruned: bool
    #: What frees the key: ``start`` or ``done`` (of its job), an instant (``until``), or nothing (``forever``).
    scope: str
    until: datetime | None
    since: datetime


class JobKeys:
    """``app.keys.jobs``."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def find(
        self, limit: int = 50, cursor: str | None = None, *, tenant: str | None = None, queue: str | None = None, task: str | None = None,
        key: str | None = None,
    ) -> tuple[list[JobKey], str | None]:  # fmt: skip
        """Keys that are taken, newest job first, and the cursor of the next page; None on the last one.

        With ``task``, a page may hold fewer keys than ``limit``, even none, and others behind it. Raises InvalidArgument.
        """
        check_whole(limit, "limit", 1, 10_000)
        wanted = [
            column == check_text(value, name)
            for name, column, value in (("tenant", k.tenant, tenant), ("queue", k.queue, queue), ("key", k.key, key))
            if value is not None
        ]
        after = None if cursor is None else _place(cursor)

        def look(connection: Connection) -> tuple[list[JobKey], str | None]:
            taken, place, found, looked = _taken(self.db, connection), after, list[JobKey](), 0
            while looked < LOOKED:
                query = _keys().where(taken, *wanted, *([] if place is None else [_behind(*place)]))
                rows = connection.execute(query.order_by(k.job_id.desc(), k.tenant, k.queue, k.key).limit(PORTION))
                part = [_shown(row) for row in rows]
                for one in part:
                    if len(found) == limit:
                        return found, _cursor(place)
                    place = (one.job_id, one.tenant, one.queue, one.key)
                    if task is None or one.task == task:
                        found.append(one)
                if len(part) < PORTION:
                    return found, None
                looked += PORTION
            return found, _cursor(place)

        return self.db.read(look)

    def get(self, key: str, queue: str = "default", tenant: str = "default") -> JobKey:
        """One key that is taken. Raises NotFound."""
        return self.db.read(lambda c: self._one(c, tenant, queue, key))

    def forget(
        self, key: str, reason: str, actor: str = "code", *, queue: str = "default", tenant: str = "default", force: bool = False,
        job_id: int | None = None,
    ) -> JobKey:  # fmt: skip
        """Forget a key, so that the next enqueue under it makes a job, and return it as it stood. Audited with who and why.

        ``force``: also one whose job has not ended: a second job may then run beside it. ``job_id``: only while this job holds it.
        Raises NotFound, WrongState.
        """
        if not check_text(reason, "reason").strip():
            raise InvalidArgument("reason", "is empty.", "Say why; it stands in the audit trail.")

        def act(connection: Connection) -> JobKey:
            found = self._one(connection, tenant, queue, key, lock=True)
            what = f"key {key!r} of queue {queue!r}"
            if job_id is not None and found.job_id != job_id:
                raise WrongState(what, f"held by job {found.job_id} by now", "be forgotten")
            if found.status in LIVE and not force:
                raise WrongState(
                    what,
                    f"held by job {found.job_id}, which is {found.status}",
                    "be forgotten without force: a second job may run beside it",
                )
            connection.execute(delete(job_keys).where(*_exactly(tenant, queue, key)))
            meta = {
                "reason": reason, "key": key, "queue": queue, "task": found.task, "was": found.status and found.status.value,
                "scope": found.scope, "forced": force,
            }  # fmt: skip
            record(
                self.db, connection, actor=actor, action=FORGOTTEN, entity="job", entity_id=found.job_id, tenant=tenant, level="warning",
                meta=meta,
            )  # fmt: skip
            return found

        return self.db.write(act)

    def _one(self, connection: Connection, tenant: str, queue: str, key: str, lock: bool = False) -> JobKey:
        mine = _exactly(
            *(check_text(value, name) for name, value in (("tenant", tenant), ("queue", queue), ("key", key)))
        )
        if lock:
            connection.execute(select(k.job_id).where(*mine).with_for_update())
        row = connection.execute(_keys().where(_taken(self.db, connection), *mine)).first()
        if row is None:
            raise NotFound("key", f"{key!r} of a job on queue {queue!r}")
        return _shown(row)


def _keys() -> Select[Any]:
    """Keys with what is known of their jobs, which are live, ended or gone."""
    live, done = jobs, jobs_done
    return (
        select(
            job_keys,
            func.coalesce(live.c.task, done.c.task, k.task).label("of_task"),
            func.coalesce(live.c.status, done.c.status, k.ended).label("status"),
            func.coalesce(live.c.id, done.c.id).is_(None).label("pruned"),
        )
        .outerjoin_from(job_keys, live, live.c.id == k.job_id)
        .outerjoin(done, done.c.id == k.job_id)
    )


def _taken(db: Database, connection: Connection) -> Any:
    """By the clock that decides about keys."""
    return or_(k.until.is_(None), k.until > db.present(connection))


def _exactly(tenant: str, queue: str, key: str) -> tuple[Any, ...]:
    return k.tenant == tenant, k.queue == queue, k.key == key


def _shown(row: Any) -> JobKey:
    status = None if row.status is None else Status(row.status)
    return JobKey(
        row.tenant, row.queue, row.key, row.job_id, row.of_task, status, bool(row.pruned), row.scope, row.until, row.created_at
    )  # fmt: skip


def _behind(job_id: int, tenant: str, queue: str, key: str) -> Any:
    """What comes after a place in the order of the list."""
    return or_(
        k.job_id < job_id, and_(k.job_id == job_id, tuple_(k.tenant, k.queue, k.key) > tuple_(tenant, queue, key))
    )


def _cursor(place: tuple[int, str, str, str] | None) -> str:
    return orjson.dumps(place).hex()


def _place(cursor: str) -> tuple[int, str, str, str]:
    """Raises InvalidArgument."""
    try:
        job_id, *names = orjson.loads(bytes.fromhex(cursor))
        tenant, queue, key = (check_text(name, "cursor") for name in names)
        return check_id(job_id, "job"), tenant, queue, key
    except (ValueError, TypeError, NotFound):
        raise InvalidArgument(
            "cursor", "is not valid.", "Use the cursor of the previous page, or leave it out."
        ) from None

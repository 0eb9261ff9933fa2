"""Making jobs: one or many, with and without keys, in a transaction of our own or in the caller's.

Uniqueness is never checked and then relied on. A key is taken by inserting it; who finds it taken is given the job that
has it. Both the key and its job are written by one transaction, so nobody sees one without the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
from sqlalchemy import Connection, bindparam, or_, select

from duly.audit.store import record, record_many
from duly.jobs.job import Enqueued, EnqueuedMany, Job, Status, numbered
from duly.jobs.sql import dialect
from duly.jobs.tables import job_keys, jobs, jobs_done, queues
from duly.kernel.errors import InvalidArgument, KeyConflict
from duly.storage.database import Database
from duly.storage.qualified import text
from duly.storage.rows import encode, relation
from duly.storage.types import Instant

if TYPE_CHECKING:
    from duly.jobs.read import JobReader

#: Audit action: somebody who has a name made a job. What programs enqueue stands in the job's row alone.
ENQUEUED = "JOB_ENQUEUED"
#: Audit action: a job holds a key that a room gives its own work, which took another one beside it.
KEY_TAKEN = "JOB_KEY_TAKEN"


@dataclass(slots=True)
class NewJob:
    """A job to be made, everything decided but its id and the present instant."""

    tenant: str
    queue: str
    task: str
    #: Encoded arguments (JSON text).
    input: str
    max_attempts: int
    priority: int = 0
    run_at: datetime | None = None
    #: Seconds from now, instead of run_at.
    delay: float | None = None
    key: str | None = None
    #: start, done, forever, or the seconds for which the key is taken.
    unique: str | float = "forever"
    #: What happens when the key is taken: ``return`` that job, ``raise`` when its payload differs. A key that a job of another task holds
    #: is a conflict for both. ``apart``: then the job takes a key of its own beside it; for rooms, whose work nobody may silence.
    on_conflict: str = "return"
    concurrency_key: str | None = None
    parent_id: int | None = None
    meta: str | None = None

    @property
    def scope(self) -> str:
        return self.unique if isinstance(self.unique, str) else "until"

    @property
    def payload_hash(self) -> str:
        """One for all texts that say the same: a dictionary that was filled in another order is no other payload."""
        try:
            canonical = json.dumps(json.loads(self.input), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        except (ValueError, RecursionError):  # Python reads no number of more than 4,300 digits
            canonical = self.input
        return self._hash(canonical)

    def fits(self, payload_hash: str) -> bool:
        """Was this hash taken of the same payload? Keys that are older than canonical hashes have one of the text as it stands."""
        return payload_hash in (self.payload_hash, self._hash(self.input))

    def _hash(self, text: str) -> str:
        return hashlib.sha256(f"{self.task}\n{text}".encode(errors="surrogatepass")).hexdigest()


_KEY_COLUMNS = {
    "tenant": "text", "queue": "text", "key": "text", "job_id": "bigint", "payload_hash": "text", "scope": "text",
    "until": "timestamptz", "created_at": "timestamptz",
}  # fmt: skip


def _take_keys(is_sqlite: bool) -> Any:
    # "WHERE true" is needed by SQLite's parser between SELECT … FROM and ON CONFLICT
    return text(f"""
        INSERT INTO job_keys (tenant, queue, key, job_id, payload_hash, scope, until, created_at)
        SELECT r.tenant, r.queue, r.key, r.job_id, r.payload_hash, r.scope, r.until, r.created_at FROM {relation(is_sqlite, _KEY_COLUMNS)}
         WHERE true
         ORDER BY r.tenant, r.queue, r.key
            ON CONFLICT (tenant, queue, key) DO UPDATE
           SET job_id = excluded.job_id, payload_hash = excluded.payload_hash, scope = excluded.scope, until = excluded.until,
               created_at = excluded.created_at, ended = NULL, task = NULL
         WHERE job_keys.until IS NOT NULL AND job_keys.until <= excluded.created_at
     RETURNING job_id""")


def _find_keys(is_sqlite: bool) -> Any:
    return text(f"""
        SELECT k.tenant, k.queue, k.key, k.job_id, k.payload_hash, k.ended, k.task FROM {relation(is_sqlite, {"tenant": "text", "queue": "text", "key": "text"})}
          JOIN job_keys k ON k.tenant = r.tenant AND k.queue = r.queue AND k.key = r.key""")


class JobMaker:
    """Every INSERT of jobs and keys."""

    def __init__(self, db: Database, reader: Callable[[], JobReader]) -> None:
        #: ``reader``: gives what reads jobs, and is asked where a key is somebody's.
        self.db, self.reader = db, reader
        self.sql = dialect(db)
        self._take = _take_keys(db.is_sqlite)
        self._find = _find_keys(db.is_sqlite)

    # ------------------------------------------------------------------ doors

    def make(self, new: NewJob) -> Enqueued:
        """One job in a transaction of its own."""
        if new.key is None:
            alone = not self.db.is_sqlite and new.parent_id is None and new.concurrency_key is None
            made = Enqueued(
                self._insert_alone(new) if alone else self.db.write(lambda c: self._insert_one(c, new)), True
            )
        else:
            made = self.db.write(lambda c: self._insert_many(c, [new], own=True))[0]
        self.db.bells.ring()
        return made

    def make_many(self, new: Sequence[NewJob]) -> list[Enqueued]:
        """Many jobs in one transaction of its own, in order."""
        if not new:
            return []
        made = self.db.write(lambda c: self._insert_many(c, new, own=True))
        self.db.bells.ring()
        return made

    def make_in(self, connection: Connection, new: Sequence[NewJob]) -> list[Enqueued]:
        """Jobs in the caller's transaction: they exist when, and only when, it commits."""
        if len(new) == 1 and new[0].key is None:
            return [Enqueued(self._insert_one(connection, new[0]), True)]
        return self._insert_many(connection, new, own=False)

    def note(self, connection: Connection, made: Sequence[Enqueued], actor: str) -> None:
        """Put on the trail that somebody made these jobs; those that were there already are left out."""
        new = [(one.job.id, one.job.tenant) for one in made if one.created]
        record_many(self.db, connection, new, actor=actor, action=ENQUEUED, entity="job")

    def make_alike(self, template: NewJob, inputs: Sequence[str]) -> Sequence[Enqueued]:
        """Many jobs without keys that differ in their input only, in one transaction of its own, in order."""
        if not inputs:
            return []
        made = self.db.write(lambda c: self._insert_alike(c, template, inputs))
        self.db.bells.ring()
        return made

    # ------------------------------------------------------------------ statements

    @staticmethod
    def _check_parents(connection: Connection, new: Sequence[NewJob]) -> None:
        """A parent is a job of the same tenant. Raises InvalidArgument."""
        for parent, _ in sorted(orphans(connection, wanted_parents(new))):
            raise no_parent(parent)

    def _insert_alike(self, connection: Connection, template: NewJob, inputs: Sequence[str]) -> EnqueuedMany:
        db, queue = self.db, template.queue
        self._check_parents(connection, [template])
        now = self.sql.sent(connection, db.stamp())
        ids = db.next_ids(connection, "jobs", len(inputs))
        run_at, due_at = _when(template, now)
        fair = connection.execute(select(queues.c.fair).where(queues.c.name == queue)).scalar()
        self.sql.insert_alike(connection, _row(template, None, run_at, due_at, now, bool(fair)), ids, inputs)
        if template.concurrency_key is not None:
            self._govern(connection, {queue})
        if db.settings.notify:
            self.sql.ring(connection, [queue])

        def job(ident: int, at: int) -> Job:
            return _job(replace(template, input=inputs[at]), ident, now, run_at, due_at)

        return EnqueuedMany(ids, job)

    def _insert_one(self, connection: Connection, new: NewJob) -> Job:
        """One job without a key, in the transaction of ``connection``."""
        self._check_parents(connection, [new])
        if new.concurrency_key is not None:
            self._govern(connection, {new.queue})
        ident, run_at, due_at, created_at = self.sql.insert_one(connection, self._parameters(new))
        run_at, created_at, due_at = (
            run_at.astimezone(UTC),
            created_at.astimezone(UTC),
            due_at and due_at.astimezone(UTC),
        )
        return _job(new, ident, created_at, run_at, due_at)

    def _insert_alone(self, new: NewJob) -> Job:
        """One job that needs no more than one statement, which is a transaction by itself (PostgreSQL)."""
        db, sql, prepares = self.db, self.sql, self.db.prepares
        if new.run_at is None and new.delay is None and db.stamp() is None:
            notify = db.settings.notify
            ident, at, job = db.direct(
                lambda c: sql.insert_at_once(c, new, notify, prepares, lambda: _job(new, 0), db.schema)
            )
            return numbered(job, ident, at)
        parameters = self._parameters(new)
        ident, run_at, due_at, created_at = db.direct(lambda c: sql.insert_alone(c, parameters, prepares, db.schema))
        return _job(new, ident, created_at, run_at, due_at)

    def _parameters(self, new: NewJob) -> dict[str, Any]:
        now = self.db.stamp()
        parameters: dict[str, Any] = {
            "tenant": new.tenant, "queue": new.queue, "task": new.task, "priority": new.priority, "input": new.input,
            "max_attempts": new.max_attempts, "concurrency_key": new.concurrency_key, "parent_id": new.parent_id, "meta": new.meta, "now": now,
        }  # fmt: skip
        if self.db.is_sqlite:
            assert now is not None
            run_at, due_at = _when(new, now)
            return parameters | {"run_at": run_at, "due_at": due_at}
        return parameters | {"run_at": new.run_at, "delay": new.delay, "notify": self.db.settings.notify}

    def _insert_many(self, connection: Connection, new: Sequence[NewJob], own: bool) -> list[Enqueued]:
        self._check_parents(connection, new)
        db = self.db
        now = self.sql.sent(connection, db.stamp())
        ids = db.next_ids(connection, "jobs", len(new))
        names = {n.queue for n in new}
        fair = set(connection.execute(select(queues.c.name).where(queues.c.name.in_(names), queues.c.fair)).scalars())
        owners = self._take_all_keys(connection, new, ids, now)
        rows, out = [], []
        for n, ident in zip(new, ids, strict=True):
            owner = owners.get(ident)
            if owner is not None:
                out.append(owner)
                continue
            run_at, due_at = _when(n, now)
            rows.append(_row(n, ident, run_at, due_at, now, n.queue in fair))
            out.append(Enqueued(_job(n, ident, now, run_at, due_at), True))
        if rows:
            self.sql.insert_many(connection, rows, own)
            keyed = {n.queue for n in new if n.concurrency_key is not None}
            if keyed:
                self._govern(connection, keyed)
            if db.settings.notify:
                self.sql.ring(connection, sorted(names))
        return out

    def key_owner(self, connection: Connection, ident: int, new: NewJob, take: bool) -> int | None:
        """Who has a key now, None when nobody; with ``take``, job ``ident`` unless somebody else has it."""
        now = self.sql.sent(connection, self.db.stamp())
        if take:
            row = {
                "tenant": new.tenant, "queue": new.queue, "key": new.key, "job_id": ident, "payload_hash": new.payload_hash,
                "scope": new.scope, "until": None, "created_at": now,
            }  # fmt: skip
            connection.execute(self._take, {"rows": encode(self.db.is_sqlite, [row])})
        k = job_keys.c
        mine = [k.tenant == new.tenant, k.queue == new.queue, k.key == new.key, or_(k.until.is_(None), k.until > now)]
        owner: int | None = connection.execute(select(k.job_id).where(*mine)).scalar()
        return owner

    def _take_all_keys(
        self, connection: Connection, new: Sequence[NewJob], ids: Sequence[int], now: datetime
    ) -> dict[int, Enqueued]:
        """Take the keys. Returns, for each id that got none, the job that has its key."""
        first: dict[tuple[str, str, str], int] = {}
        wanted: dict[int, NewJob] = {}
        for n, ident in zip(new, ids, strict=True):
            if n.key is not None:
                wanted[ident] = n
                first.setdefault((n.tenant, n.queue, n.key), ident)
        if not wanted:
            return {}
        rows = [
            {
                "tenant": n.tenant, "queue": n.queue, "key": n.key, "job_id": ident, "payload_hash": n.payload_hash, "scope": n.scope,
                "until": now + timedelta(seconds=n.unique) if not isinstance(n.unique, str) else None, "created_at": now,
            }
            for ident, n in wanted.items()
            if first[n.tenant, n.queue, n.key or ""] == ident
        ]  # fmt: skip
        got = set(connection.execute(self._take, {"rows": encode(self.db.is_sqlite, rows)}).scalars())
        lost = {ident: n for ident, n in wanted.items() if ident not in got}
        if not lost:
            return {}
        asked = [{"tenant": n.tenant, "queue": n.queue, "key": n.key} for n in lost.values()]
        found = {
            (tenant, queue, key): (job_id, payload_hash, ended, task)
            for tenant, queue, key, job_id, payload_hash, ended, task in connection.execute(
                self._find, {"rows": encode(self.db.is_sqlite, asked)}
            )
        }
        made = {ident: n for ident, n in wanted.items() if ident in got}
        known = self.reader().get_many(connection, {job_id for job_id, *_ in found.values() if job_id not in made})
        out: dict[int, Enqueued] = {}
        apart: dict[int, NewJob] = {}
        for ident, n in lost.items():
            owner, payload_hash, ended, task = found[n.tenant, n.queue, n.key or ""]
            holder = known.get(owner) or made.get(owner)
            if holder is not None:
                task = holder.task
            if task not in (None, n.task):
                if n.on_conflict != "apart":
                    raise KeyConflict(
                        n.key or "", n.queue, owner, task=task, wanted=n.task, pruned=None if holder else ended
                    )
                self._note_taken(connection, n, owner, task)
                n.key, n.on_conflict = f"{n.key}:{n.task}", "return"
                apart[ident] = n
                continue
            if n.on_conflict == "raise" and not n.fits(payload_hash):
                raise KeyConflict(n.key or "", n.queue, owner)
            twin = made.get(owner)
            job = known.get(owner) or (
                _job(twin, owner, now, *_when(twin, now)) if twin else _forgotten(n, owner, ended)
            )
            out[ident] = Enqueued(job, False)
        if apart:
            out |= self._take_all_keys(connection, list(apart.values()), list(apart), now)
        return out

    def _note_taken(self, connection: Connection, new: NewJob, owner: int, task: str) -> None:
        """Put on the trail that a job of another task holds the key that a room gives its own work."""
        meta = {"key": new.key, "queue": new.queue, "task": new.task, "held_by_task": task}
        record(
            self.db,
            connection,
            actor=new.task,
            action=KEY_TAKEN,
            entity="job",
            entity_id=owner,
            tenant=new.tenant,
            level="warning",
            meta=meta,
        )

    def _govern(self, connection: Connection, names: set[str]) -> None:
        """A queue with concurrency keys must be looked at closely by claims; the default is one job per key at a time.

        Asked before it is written: a write would lock the queue's row until the caller commits, and claims pass a locked
        queue by.
        """
        done = select(queues.c.name).where(queues.c.name.in_(names), queues.c.governed, queues.c.key_limit.is_not(None))
        for name in sorted(names - set(connection.execute(done).scalars())):
            connection.execute(
                text(
                    "INSERT INTO queues (name, governed, key_limit, fair, updated_at) VALUES (:name, true, 1, false, :now) "
                    "ON CONFLICT (name) DO UPDATE SET governed = true, key_limit = coalesce(queues.key_limit, 1) "
                    "WHERE NOT queues.governed OR queues.key_limit IS NULL"
                ).bindparams(bindparam("now", type_=Instant)),
                {"name": name, "now": self.db.clock.now()},
            )


#: A parent's id, and the tenant whose job it must be.
Parent = tuple[int, str]


def wanted_parents(new: Iterable[NewJob]) -> set[Parent]:
    """The parents that these jobs name."""
    return {(n.parent_id, n.tenant) for n in new if n.parent_id is not None}


def orphans(connection: Connection, wanted: Collection[Parent]) -> set[Parent]:
    """Which of these are no job of their tenant. No more is said of another tenant's jobs than of none. Reads only where one is wanted."""
    if not wanted:
        return set()
    idents, found = {ident for ident, _ in wanted}, set()
    for table in (jobs, jobs_done):
        query = select(table.c.id, table.c.tenant).where(table.c.id.in_(idents))
        found |= {(ident, tenant) for ident, tenant in connection.execute(query)}
    return set(wanted) - found


def no_parent(ident: int) -> InvalidArgument:
    """The refusal of a job whose parent is not there."""
    return InvalidArgument("parent", f"is {ident}, and there is no such job of this tenant.")


def _row(
    new: NewJob, ident: int | None, run_at: datetime, due_at: datetime | None, now: datetime, fair: bool
) -> dict[str, Any]:
    """The columns of a job that is born."""
    return {
        "id": ident, "tenant": new.tenant, "queue": new.queue, "task": new.task, "priority": new.priority, "run_at": run_at, "due_at": due_at,
        "input": new.input, "max_attempts": new.max_attempts, "key": new.key, "key_scope": new.scope if new.key is not None else None,
        "concurrency_key": new.concurrency_key, "parent_id": new.parent_id, "meta": new.meta, "created_at": now, "fair": fair,
    }  # fmt: skip


def _when(new: NewJob, now: datetime) -> tuple[datetime, datetime | None]:
    """(run_at, due_at): the planned instant, and when to become claimable if that is not now."""
    run_at = new.run_at if new.run_at is not None else now + timedelta(seconds=new.delay or 0)
    return run_at, run_at if run_at > now else None


def _job(
    new: NewJob, ident: int, created_at: datetime | None = None, run_at: datetime | None = None, due_at: datetime | None = None
) -> Job:  # fmt: skip
    return Job(
        id=ident, tenant=new.tenant, queue=new.queue, task=new.task, status=Status.QUEUED, priority=new.priority, input=orjson.loads(new.input),
        key=new.key, concurrency_key=new.concurrency_key, parent_id=new.parent_id, created_at=created_at, run_at=run_at, due_at=due_at,
        max_attempts=new.max_attempts, meta=orjson.loads(new.meta) if new.meta else None,
    )  # fmt: skip


def _forgotten(new: NewJob, ident: int, ended: str | None) -> Job:
    """A job whose row was pruned while its key is remembered: how it ended is known, its input and output are not."""
    return Job(
        id=ident,
        tenant=new.tenant,
        queue=new.queue,
        task=new.task,
        status=Status(ended or Status.SUCCEEDED),
        key=new.key,
        max_attempts=new.max_attempts,
        meta={"pruned": True},
    )

"""Reading jobs: one life seen through two tables. Readers never lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, func, literal, literal_column, null, select

from duly.jobs.job import ENDED, LIVE, Attempt, Job, Status
from duly.jobs.tables import LONGEST_CLASS, NO_CLASS, attempts, error_class, jobs, jobs_done, system_state, workers
from duly.kernel.errors import InvalidArgument, NotFound
from duly.kernel.payload import MOST_ID
from duly.storage.database import Database
from duly.storage.types import Instant

_FIELDS = [
    "id", "tenant", "queue", "task", "status", "priority", "input", "key", "concurrency_key", "parent_id", "created_at", "run_at",
    "attempts", "max_attempts", "worker", "started_at", "output", "error", "cost_cents", "remote_id", "meta",
]  # fmt: skip
_LIVE_ONLY = ["due_at", "next_retry_at", "lease_until", "waits_for_children", "cancel_requested"]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs. Everything given must hold."""

    tenant: str | None = None
    #: One status or several.
    status: Sequence[str] = ()
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    parent_id: int | None = None
    #: Only jobs that ended (or, for live ones, were made) at or after / before these instants.
    since: datetime | None = None
    before: datetime | None = None
    ids: Sequence[int] = ()
    #: The class of its error, such as ``Timeout``; ``NO_CLASS``: an error that names none.
    error: str | None = None

    def __post_init__(self) -> None:
        given = (self.status,) if isinstance(self.status, str) else self.status
        for name in given:
            if name not in set(Status):
                raise InvalidArgument("status", f"is {name!r}.", f"Use one of: {', '.join(Status)}.")
        object.__setattr__(self, "status", tuple(Status(name) for name in given))


def of_error(f: JobFilter) -> JobFilter:
    """The same; where a class of errors is given and no status, of jobs that failed: these are found by an index."""
    return replace(f, status=(Status.FAILED,)) if f.error is not None and not f.status else f


def _live() -> Select[Any]:
    return select(
        *(jobs.c[n] for n in _FIELDS), *(jobs.c[n] for n in _LIVE_ONLY), null().cast(Instant).label("finished_at")
    )


def _done() -> Select[Any]:
    none: dict[str, Any] = {n: null().cast(Instant).label(n) for n in ("due_at", "next_retry_at", "lease_until")}
    none |= {n: literal(False).label(n) for n in ("waits_for_children", "cancel_requested")}
    return select(*(jobs_done.c[n] for n in _FIELDS), *(none[n] for n in _LIVE_ONLY), jobs_done.c.finished_at)


def to_job(row: Any) -> Job:
    values = dict(row._mapping)
    values["status"] = Status(values["status"])
    values["waits_for_children"] = bool(values["waits_for_children"])
    values["cancel_requested"] = bool(values["cancel_requested"])
    return Job(**values)


def conditions(table: Any, f: JobFilter) -> list[Any]:
    """The WHERE of a filter on one of the two tables."""
    c, out = table.c, []
    for name in ("tenant", "queue", "task", "key", "parent_id"):
        value = getattr(f, name)
        if value is not None:
            out.append(c[name] == value)
    if f.status == (Status.FAILED,):
        out.append(c.status == literal_column("'failed'"))  # a constant: SQLite takes a partial index for nothing less
    elif f.status:
        out.append(c.status.in_([str(s) for s in f.status]))
    if f.ids:
        out.append(c.id.in_(f.ids))
    if f.error is not None:
        out.append(error_class(c.error) == f.error[:LONGEST_CLASS])
        if f.error == NO_CLASS:
            out.append(c.error.is_not(None) | (c.status == "failed"))
    moment = c.finished_at if "finished_at" in c else c.created_at
    if f.since is not None:
        out.append(moment >= f.since)
    if f.before is not None:
        out.append(moment < f.before)
    return out


class JobReader:
    """Every SELECT that shows jobs to people and programs."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def get(self, connection: Connection, ident: int, tenant: str | None = None) -> Job:
        """One job. Raises NotFound, also when it is another tenant's."""
        found = self.get_many(connection, [ident]).get(ident)
        if found is None or (tenant is not None and found.tenant != tenant):
            raise NotFound("job", ident)
        return found

    def get_many(self, connection: Connection, idents: Iterable[int]) -> dict[int, Job]:
        wanted = sorted({i for i in idents if isinstance(i, int) and 0 < i < 2**63})
        out: dict[int, Job] = {}
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            # A job that ends between two reads is found in the second, one that is replayed between them in the third.
            for query, table in ((_live(), jobs), (_done(), jobs_done), (_live(), jobs)):
                part = [ident for ident in part if ident not in out]
                if not part:
                    break
                for row in connection.execute(query.where(table.c.id.in_(part))):
                    out[row.id] = to_job(row)
        return out

    def find(self, connection: Connection, f: JobFilter, limit: int = 50, below: int | None = None) -> list[Job]:
        """Jobs by filter, newest first. ``below`` is the last id of the page before."""
        if not 1 <= limit <= 10_000:
            raise InvalidArgument("limit", f"is {limit}; it must be between 1 and 10,000.")
        parts = []
        for query, table, states in ((_live(), jobs, LIVE), (_done(), jobs_done, ENDED)):
            if f.status and not set(f.status) & set(states):
                continue
            query = query.where(*conditions(table, f))
            if below is not None:
                query = query.where(table.c.id < min(below, MOST_ID))
            parts.append(query.order_by(table.c.id.desc()).limit(limit))
        out = [to_job(row) for query in parts for row in connection.execute(query)]
        return sorted(out, key=lambda j: -j.id)[:limit]

    def count(self, connection: Connection, f: JobFilter, cap: int = 100_000) -> int:
        """How many jobs, counted up to ``cap``."""
        total = 0
        for table, states in ((jobs, LIVE), (jobs_done, ENDED)):
            if f.status and not set(f.status) & set(states):
                continue
            inner = select(literal(1)).select_from(table).where(*conditions(table, f)).limit(cap).subquery()
            total += connection.execute(select(func.count()).select_from(inner)).scalar_one()
        return min(total, cap)

    def attempts_of(self, connection: Connection, ident: int) -> list[Attempt]:
        """The runs that did not end in success, in order."""
        names = Attempt.__dataclass_fields__
        rows = connection.execute(
            select(*(attempts.c[n] for n in names)).where(attempts.c.job_id == ident).order_by(attempts.c.id)
        )
        return [Attempt(**row._mapping) for row in rows]

    def children_of(self, connection: Connection, ident: int, limit: int = 1000) -> list[Job]:
        return self.find(connection, JobFilter(parent_id=ident), limit)

    def live_workers(self, connection: Connection, within: float) -> list[dict[str, Any]]:
        """Workers seen in the last ``within`` seconds, by the clock that stamps them."""
        rows = [dict(row._mapping) for row in connection.execute(select(workers).order_by(workers.c.name))]
        now = self.db.present(connection)
        return [
            {**row, "age": (now - row["seen_at"]).total_seconds()}
            for row in rows
            if (now - row["seen_at"]).total_seconds() <= within
        ]

    def state(self, connection: Connection, key: str) -> str | None:
        value: str | None = connection.execute(select(system_state.c.value).where(system_state.c.key == key)).scalar()
        return value
